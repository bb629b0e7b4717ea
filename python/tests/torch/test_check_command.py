"""Test `addend torch-check`, the command, and the code of python/docs/torch-check.md as it stands there."""

import importlib.util
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

from says import says

ROOT = pathlib.Path(__file__).resolve().parents[3]
DOCS = ROOT / "python" / "docs" / "torch-check.md"
PROGRAM = pathlib.Path(os.environ["ADDEND_LIBRARY"]).resolve().parent / "addend"
HANGS = 120  # seconds; many times what a command takes


def blocks(kind):
    found = re.findall(r"^```(\w*)\n(.*?)^```", DOCS.read_text(encoding="utf-8"), re.M | re.S)
    return [text for language, text in found if language == kind]


class Command(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        for text in blocks("python"):
            name = re.match(r"# (\w+\.py)\n", text)
            if name:
                (self.folder / name[1]).write_text(text, encoding="utf-8")

    def run_command(self, *words, **environment):
        names = {"ADDEND_PYTHON": sys.executable, **environment}
        return subprocess.run(
            [PROGRAM, "torch-check", *words],
            cwd=self.folder,
            env={**os.environ, **names},
            capture_output=True,
            text=True,
            timeout=HANGS,
        )

    def test_what_the_page_shows(self):
        shown = [text for text in blocks("") if text.startswith("$ addend torch-check")]
        self.assertGreaterEqual(len(shown), 2)
        for text in shown:
            command, _, printed = text.partition("\n")
            done = self.run_command(*command.split()[3:])
            found = re.sub(r"  \S*/(\w+\.py):", r"  \1:", done.stdout)  # the page shows file names without a folder
            self.assertEqual(rounded(found.strip()), rounded(printed.strip()), done.stderr)
            self.assertEqual(done.returncode, 0 if printed.startswith("matches ") else 1)

    def test_a_document(self):
        done = self.run_command("jobs:cut", "--json", "--mutate")
        document = json.loads(done.stdout)
        self.assertEqual((done.returncode, document["ok"], document["survivors"]), (0, True, 0), done.stderr)
        self.assertTrue(document["mutants"])

    def test_types(self):
        """A job without types passes neither; the numbers' verdict stays. Without spmd_types it cannot be asked."""
        done = self.run_command("jobs:cut", "--json", "--typecheck")
        if importlib.util.find_spec("spmd_types") is None:
            self.assertEqual(done.returncode, 3)
            self.assertIn("spmd-types", done.stderr)
            return
        document = json.loads(done.stdout)
        self.assertEqual((done.returncode, document["ok"], document["typecheck"]["ok"]), (0, True, None), done.stderr)
        (self.folder / "spmd_types.py").write_text("raise ImportError('gone')", encoding="utf-8")
        done = self.run_command("jobs:cut", "--typecheck", PYTHONPATH=f"{self.folder}:{os.environ['PYTHONPATH']}")
        self.assertEqual(done.returncode, 3)
        self.assertIn("spmd-types", done.stderr)

    def test_the_test_of_the_page(self):
        spoken = (self.folder / "test_jobs.py").read_text(encoding="utf-8")
        done = subprocess.run(
            [sys.executable, "-c", spoken + "\ntest_cut()\n"],
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=HANGS,
        )
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_what_is_refused(self):
        for words, status, *facts in (
            (["jobs:none"], 2, "jobs", "none"),
            (["nowhere:cut"], 2, "nowhere", "PYTHONPATH"),
            (["jobs"], 2, "jobs", "MODULE:FUNCTION"),
            ([], 2, "MODULE:FUNCTION"),
            (["jobs:cut", "jobs:cut"], 2, "MODULE:FUNCTION"),
            (["jobs:cut", "--timeout", "0.01"], 3, "0.01 s", "timeout="),
        ):
            done = self.run_command(*words)
            self.assertEqual(done.returncode, status, done.stderr)
            says(self, done.stderr, *facts)
            self.assertEqual(done.stdout, "")

    def test_a_python_that_is_not_there(self):
        done = self.run_command("jobs:cut", ADDEND_PYTHON="/nowhere/python3")
        self.assertEqual(done.returncode, 3)
        says(self, done.stderr, "/nowhere/python3")


def rounded(text):
    """Remove numbers that depend on the processor: rounding errors; measured numbers keep two digits."""
    return re.sub(r"\(worst [^)]*\)", "(worst ...)", text)


if __name__ == "__main__":
    unittest.main()
