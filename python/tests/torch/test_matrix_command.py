"""Test the command `addend torch-matrix` where it is interrupted, where its outputs cannot be written, where a user's
file fails or prints, and with --mutate, --reproduce, --minutes and --format github. Cells are a project's own."""

import contextlib
import io
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest

from says import says_facts

from addend.torch._matrix import _command, _show
from addend.torch._matrix._cells import CANNOT_RUN, MATCHES, NOT_TRIED, WRONG

ROOT = pathlib.Path(__file__).resolve().parents[3]
PROGRAM = pathlib.Path(os.environ["ADDEND_LIBRARY"]).resolve().parent / "addend"
HANGS = 240  # seconds; many times what a command takes
HOLDS, IS_NO, WRONG_CALL, UNFINISHED = range(4)

PAGE = (ROOT / "python" / "docs" / "torch-matrix.md").read_text(encoding="utf-8")
JOBS = re.search(r"^```python\n(# jobs\.py\n.*?)^```", PAGE, re.M | re.S)[1]
LINEAR = JOBS.replace("nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 5))", "nn.Linear(6, 5, bias=False)")
FORGETS = """
def forgets(model, microbatches, loss):
    for batch in microbatches[: max(1, len(microbatches) - 1)]:
        loss(model, batch).backward()
layouts = {"forgets": {"mesh": {"dp": 2}, "run": forgets}}
"""
HANGING = f"""
import os, time
def hangs(model, mesh):
    with open("pids", "a") as file:
        file.write(f"{{os.getpid()}}\\n")
    time.sleep({10 * HANGS})
layouts = {{"right": {{"mesh": {{"dp": 2}}}}, "hangs": {{"mesh": {{"dp": 2}}, "parallelize": hangs}}}}
"""
SEES = """
def parallelize(model, mesh):
    model.register_buffer("seen", torch.zeros(()))
    model.register_forward_hook(see)
    return DistributedDataParallel(model, broadcast_buffers=False)
def see(module, inputs, output):
    module.seen.add_(output.detach().sum())
meshes = [{"dp": 2}]
"""
ODD = """
class Odd(list):
    def __iter__(self):
        raise KeyError("odd")
meshes = Odd([{"dp": 2}])
"""


def is_alive(pid):
    try:
        state = pathlib.Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


class Commands(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.environment = {**os.environ, "ADDEND_PYTHON": sys.executable}

    def file(self, text, name="jobs.py"):
        (self.folder / name).write_text(text, encoding="utf-8")

    def run_command(self, *words, stdout=subprocess.PIPE):
        return subprocess.run(
            [PROGRAM, "torch-matrix", *words],
            cwd=self.folder,
            env=self.environment,
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
            timeout=HANGS,
        )

    def wait_for(self, holds):
        end = time.monotonic() + HANGS
        while not holds():
            self.assertLess(time.monotonic(), end)
            time.sleep(0.05)

    def pids(self):
        path = self.folder / "pids"
        return path.read_text(encoding="utf-8").split() if path.exists() else []

    def interrupted(self, number):
        """The command on a cell that matches and one that hangs, with a signal when both ranks hang."""
        self.file(JOBS + HANGING)
        (self.folder / "pids").unlink(missing_ok=True)
        words = [PROGRAM, "torch-matrix", "jobs.py", "--microbatches", "1", "--json", "--html", "page.html"]
        one = subprocess.Popen(
            [*words, "--timeout", str(10 * HANGS)],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.addCleanup(one.kill)
        self.wait_for(lambda: len(self.pids()) == 2)
        one.send_signal(number)
        out, err = one.communicate(timeout=HANGS)
        return one.returncode, out, err

    def test_an_interrupted_command_reports_what_it_knows(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            with self.subTest(number):
                status, out, err = self.interrupted(number)
                self.assertEqual(status, UNFINISHED, err)
                self.assertEqual([one["verdict"] for one in json.loads(out)["cells"]], [MATCHES, NOT_TRIED])
                says_facts(self, err, f"signal {number:d}", number.name)
                self.assertIn(number.name, (self.folder / "page.html").read_text(encoding="utf-8"))
                self.wait_for(lambda: not any(map(is_alive, self.pids())))

    def test_cells_end_with_a_command_that_is_killed(self):
        status, _, err = self.interrupted(signal.SIGKILL)
        self.assertEqual(status, -signal.SIGKILL, err)
        self.wait_for(lambda: not any(map(is_alive, self.pids())))

    def test_what_a_file_prints_is_no_part_of_the_document(self):
        self.file("import os\nprint('said_here')\nos.write(1, b'and_here')\n" + JOBS)
        done = self.run_command("jobs.py", "--microbatches", "1", "--json", "--layout", "dp=1")
        self.assertEqual([one["verdict"] for one in json.loads(done.stdout)["cells"]], [MATCHES], done.stderr)
        self.assertIn("said_here", done.stderr)

    def test_outputs_that_cannot_be_written(self):
        self.file(JOBS)
        (self.folder / "here").mkdir()
        (self.folder / "file").touch()
        for option, path in (
            ("--html", "none/page.html"),
            ("--html", "here"),
            ("--write-known", "none/known"),
            ("--reproduce", "file/programs"),
        ):
            done = self.run_command("jobs.py", option, path)
            self.assertEqual((done.returncode, done.stdout), (UNFINISHED, ""), done.stderr)
            self.assertIn(path, done.stderr)
            self.assertNotIn("microbatch", done.stderr)  # no cell ran
        with open("/dev/full", "w") as full:
            done = self.run_command("jobs.py", "--layout", "dp=1", "--json", "--html", "page.html", stdout=full)
        self.assertEqual(done.returncode, UNFINISHED, done.stderr)
        self.assertIn("<!doctype html>", (self.folder / "page.html").read_text(encoding="utf-8"))
        self.assertEqual(sorted(path.name for path in self.folder.glob("*.part")), [])

    def test_a_file_that_ends_its_process(self):
        self.file("import os\nos._exit(0)\n", "leaves.py")
        self.file(JOBS)
        done = self.run_command("leaves.py", "jobs.py", "--layout", "dp=1", "--microbatches", "1", "--json")
        found = {one["model"]: one["verdict"] for one in json.loads(done.stdout)["cells"]}
        self.assertEqual((found, done.returncode), ({"leaves": CANNOT_RUN, "jobs": MATCHES}, UNFINISHED))

    def test_an_error_that_nothing_expects_names_the_file_of_which_it_is(self):
        self.file(JOBS + ODD)
        done = self.run_command("jobs.py")
        self.assertNotIn(done.returncode, (HOLDS, IS_NO), done.stderr)
        says_facts(self, done.stderr, "jobs.py", "KeyError")
        for source, is_own in (("_show.table(None)", True), ("1 / 0", False)):
            said = io.StringIO()
            with contextlib.redirect_stderr(said):
                try:
                    exec(compile(source, "/home/me/jobs.py" if not is_own else "<none>", "exec"), {"_show": _show})
                except Exception as error:
                    _command._unexpected(error.with_traceback(error.__traceback__.tb_next))
            self.assertEqual("addend itself" in said.getvalue(), is_own, said.getvalue())
            self.assertEqual("/home/me/jobs.py:1" in said.getvalue(), not is_own)

    def test_cells_for_which_there_was_no_time_are_no_success(self):
        self.file(JOBS)
        done = self.run_command("jobs.py", "--minutes", "1e-9", "--format", "github")
        self.assertEqual(done.returncode, UNFINISHED, done.stderr)
        self.assertIn("::warning", done.stdout)

    def test_annotations_have_the_bug_and_a_program_is_of_transformers_alone(self):
        self.file(JOBS + FORGETS)
        words = ["jobs.py", "--microbatches", "2", "--format", "github", "--reproduce", "programs"]
        done = self.run_command(*words)
        self.assertEqual(done.returncode, IS_NO, done.stderr)
        self.assertEqual(done.stdout.count("::error title=bug 1"), 1, done.stdout)
        self.assertIn(f"::error title={WRONG}%3A jobs", done.stdout)
        self.assertIn("no program is written for jobs, dp=2, forgets, 2 microbatches", done.stderr)
        self.assertEqual(list((self.folder / "programs").iterdir()), [])

    def test_a_mutation_that_is_not_noticed(self):
        self.file(LINEAR + SEES)
        words = ["jobs.py", "--microbatches", "1", "--mutate"]
        done = self.run_command(*words, "--json", "--write-known", "known")
        document = json.loads(done.stdout)
        self.assertEqual(done.returncode, IS_NO, (done.stderr, document["cells"][0]["not_mutated"]))
        survived = [one["name"] for one in document["cells"][0]["mutants"] if one["result"] == "survived"]
        self.assertEqual(document["survivors"], len(survived))
        self.assertTrue(survived and all("see" in name for name in survived), survived)
        done = self.run_command(*words, "--format", "github", "--known", "known")
        self.assertEqual(done.returncode, HOLDS, (done.stdout, done.stderr))
        self.assertNotIn("::error", done.stdout)


if __name__ == "__main__":
    unittest.main()
