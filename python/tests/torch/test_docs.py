"""Test that the code of python/docs/torch.md and of the README runs as it is there and prints what the pages show."""

import contextlib
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import types
import unittest
import unittest.mock

import addend.torch
import ranks

README = pathlib.Path(__file__).resolve().parents[3] / "README.md"
DOCS = pathlib.Path(__file__).resolve().parents[2] / "docs" / "torch.md"
PROGRAM = pathlib.Path(os.environ["ADDEND_LIBRARY"]).resolve().parent / "addend"
HANGS = 60  # seconds
# The training script into which the first lines of the documents are pasted.
SCRIPT = """
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 4))
torch.manual_seed(dist.get_rank())
microbatches = torch.randn(2, 16, 8)

def loss_of(model, batch):
    return model(batch).square().mean() / 2
"""
# Stands for pytest, which need not be installed.
PYTEST = """
for test in (test_the_job_sums, test_a_mistake_is_seen):
    test()
    print(test.__name__)
"""


def blocks(kind, page=DOCS):
    found = re.findall(r"^```(\w*)\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S)
    return [text for language, text in found if language == kind]


def code(start):
    return next(block for block in blocks("python") if block.startswith(start))


@contextlib.contextmanager
def new_folder():
    before = os.getcwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            yield pathlib.Path(folder)
        finally:
            os.chdir(before)


def printed_by(script, count=2):
    """Return what each of the ranks printed."""
    path = pathlib.Path("script.py").resolve()
    path.write_text(script, encoding="utf-8")
    return ranks.play(count, path)


class Docs(unittest.TestCase):
    def test_every_piece_of_code_is_one_of_these(self):
        self.assertEqual(len(blocks("python")), 6)

    def test_what_is_pasted_into_a_script(self):
        with new_folder():
            said = printed_by(SCRIPT + code("import addend.torch\n\nwith addend.torch.watch"))
        self.assertIn("\nmatches: 2 parameters\n", said[0])
        self.assertEqual(said[1], "")

    def test_a_watch_around_every_step(self):
        before = "import addend.torch\nbatches, optimizer = microbatches, torch.optim.SGD(model.parameters(), 0.1)\n"
        with new_folder():
            said = printed_by(SCRIPT + before + code("watch = addend.torch.watch(model, every="))
        self.assertEqual([text.count("matches: ") for text in said], [2, 0])

    def test_a_dump_and_its_reference(self):
        shown = next(block for block in blocks("") if "torchrun --nproc-per-node 2 job.py" in block)
        _, command, table = shown.split("\n", 2)
        self.assertTrue(command.startswith("$ addend "), command)
        with new_folder() as folder:
            printed_by(code("# job.py\n"))
            done = subprocess.run([PROGRAM, *command.split()[2:]], capture_output=True, text=True, timeout=HANGS)
            self.assertTrue((folder / "map.html").exists())
        self.assertEqual((done.returncode, done.stdout.strip()), (0, table.strip()), done.stderr)

    def test_the_tests(self):
        sys.modules["pytest"] = types.SimpleNamespace(raises=self.assertRaises)
        with new_folder():
            said = printed_by(code("# test_sums.py\n") + PYTEST)
        self.assertEqual(said, ["test_the_job_sums\ntest_a_mistake_is_seen\n"] * 2)

    def test_the_plugin(self):
        try:
            import pytest  # noqa: F401
        except ImportError:
            self.skipTest("no pytest")
        with new_folder() as folder:
            (folder / "test_ranks.py").write_text(code("# test_ranks.py"), encoding="utf-8")
            command = [sys.executable, "-m", "pytest", "-p", "pytest_addend", "-p", "no:cacheprovider", "test_ranks.py"]
            done = subprocess.run(command, capture_output=True, text=True, timeout=3 * HANGS)
        self.assertIn("1 passed", done.stdout, done.stderr)

    def test_the_readme(self):
        (script,), (table,) = blocks("python", README), blocks("", README)
        with new_folder():
            said = printed_by(script, 4)
        self.assertEqual([text.strip() for text in said], [table.strip(), "", "", ""])

    def test_the_trainer(self):
        try:
            import transformers
        except ImportError:
            self.skipTest("no transformers")
        lines = code("trainer = transformers.Trainer")
        given = []
        trainer = types.SimpleNamespace(add_callback=given.append, train=lambda: given.append("trained"))
        with unittest.mock.patch.object(transformers, "Trainer", lambda *reported, **more: trainer):
            exec(
                lines, {"transformers": transformers, "addend": addend, "model": None, "arguments": None, "rows": None}
            )
        self.assertEqual(len(given), 2)
        self.assertTrue(hasattr(given[0], "on_step_begin"))


if __name__ == "__main__":
    unittest.main()
