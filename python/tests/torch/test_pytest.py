"""Test the pytest plugin: tests run on ranks, a mutant fails with the table, and the plugin changes nothing
in a pytest without PyTorch.
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

from says import says, says_facts
from skips import skip_file

import draws

HANGS = 120  # seconds; several times what a run takes
HEAD = """
import addend.torch
import pytest
import torch
import torch.distributed as dist
from torch import nn

def ddp():
    return nn.parallel.DistributedDataParallel(nn.Linear(8, 40))

def step(model):
    model(torch.randn(16, 8)).square().mean().backward()
"""

BUG = """
def test_mistake(addend_watch):
    model = ddp()
    with addend_watch(model), addend.torch.mutate(model, "average"):
        step(model)
"""
WRONG = {  # name -> test, what its failure says
    "test_same_batch": (
        """
def test_same_batch(addend_watch):
    model, batch = ddp(), torch.randn(16, 8)
    with addend_watch(model):
        model(batch).square().mean().backward()
""",
        "CANNOT TELL",
    ),
    "test_own_assertion": (
        """
def test_own_assertion(addend_watch):
    model = ddp()
    with addend_watch(model):
        step(model)
    assert dist.get_rank() == 0, "its own words"
""",
        "its own words",
    ),
    "test_unused": (
        """
def test_unused(addend_watch):
    ddp()
""",
        "addend_watch",
    ),
    "test_hangs": (
        """
@pytest.mark.addend(ranks=2, timeout=10)
def test_hangs(addend_watch):
    import time
    time.sleep(100)
""",
        "2 ranks",
        "10 s",
    ),
    "test_dies": (
        """
def test_dies(addend_watch):
    import os
    os._exit(3)
""",
        "rank 0",
        "2",
    ),
    "test_marker": (
        """
@pytest.mark.addend(world=2)
def test_marker(addend_watch):
    pass
""",
        "addend",
        "world",
    ),
    "test_skipped": (
        """
def test_skipped(addend_watch):
    pytest.skip("its own reason")
""",
        "its own reason",
    ),
}


class Pytest(unittest.TestCase):
    def run_tests(self, text, *arguments, **environment):
        with tempfile.TemporaryDirectory() as folder:
            pathlib.Path(folder, "test_sums.py").write_text(text, encoding="utf-8")
            command = [
                sys.executable,
                "-m",
                "pytest",
                "-p",
                "pytest_addend",
                "-p",
                "no:cacheprovider",
                "-rs",
                *arguments,
            ]
            environment = dict(os.environ, **environment)
            done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=HANGS)
        return done.returncode, done.stdout + done.stderr

    def test_right_jobs_pass_on_as_many_ranks_as_are_asked_for(self):
        status, said = self.run_tests(
            HEAD
            + """
class TestClass:
    @pytest.mark.addend(ranks=3, seed=5)
    @pytest.mark.parametrize("microbatches", [2])
    def test_three(self, addend_watch, microbatches, tmp_path):
        model = ddp()
        with addend_watch(model, sample=8) as watch:
            for _ in range(microbatches):
                step(model)
        assert (watch.report.world, watch.report.microbatches) == (3, microbatches)
        assert tmp_path.exists()

def test_the_same_weights_and_batches_of_its_own(addend_watch):
    weights = torch.randn(4)
    everyones = [torch.empty(4) for _ in range(2)]
    dist.all_gather(everyones, weights)
    assert torch.equal(*everyones)
    model = ddp()
    with addend_watch(model) as watch:
        batch = torch.randn(4)
        dist.all_gather(everyones, batch)
        step(model)
    assert watch.report.world == 2 and not torch.equal(*everyones)

def test_plain():
    assert 1 + 1 == 2
"""
        )
        self.assertEqual(status, 0, said)
        self.assertIn("3 passed", said)

    def test_what_is_wrong_fails_with_the_table(self):
        """Run a mutant always, and two drawn ones of the other ways in which a test fails."""
        names = draws.draw_cases("tests that fail", list(WRONG), 2)
        status, said = self.run_tests(HEAD + BUG + "".join(WRONG[name][0] for name in names), "-v")
        self.assertEqual(status, 1, said)
        reported = dict(re.findall(r"^_+ (\w+) _+\n(.*?)(?=^_+ \w+ _+\n|^=)", said, re.M | re.S))
        says(self, reported["test_mistake"], "BAD", "2 parameters", "dp")
        for name in names:
            facts = WRONG[name][1:]
            if facts[0].startswith("its own"):
                self.assertIn(facts[0], reported.get(name, said), said)
            else:
                says(self, reported.get(name, said), *facts)

    def test_pytest_without_pytorch_is_as_it_was(self):
        with tempfile.TemporaryDirectory() as hidden:
            # Hide torch by an import finder that comes before all others.
            pathlib.Path(hidden, "sitecustomize.py").write_text(
                "import sys\nclass No:\n    def find_spec(self, name, *rest):\n"
                "        if name.split('.')[0] == 'torch':\n            raise ModuleNotFoundError(name)\n"
                "sys.meta_path.insert(0, No())\nimport importlib.util\nfound = importlib.util.find_spec\n"
                "importlib.util.find_spec = lambda name, *rest: None if name == 'torch' else found(name, *rest)\n"
            )
            status, said = self.run_tests(
                "import sys\n\ndef test_plain():\n    assert 'torch' not in sys.modules\n\n"
                "def test_watched(addend_watch):\n    pass\n",
                "--strict-markers",
                PYTHONPATH=f"{hidden}:{os.environ['PYTHONPATH']}",
            )
        self.assertEqual(status, 0, said)
        self.assertIn("1 passed, 1 skipped", said)
        says_facts(self, said, "addend_watch", "PyTorch")

    def test_other_tests_do_not_import_pytorch(self):
        status, said = self.run_tests("import sys\n\ndef test_plain():\n    assert 'torch' not in sys.modules\n")
        self.assertEqual(status, 0, said)


if __name__ == "__main__":
    try:
        import pytest  # noqa: F401
    except ImportError:
        skip_file(__name__, f"{sys.executable} has no pytest (script/torch installs it)")
    unittest.main()
