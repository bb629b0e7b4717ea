"""Tests that the examples of python/docs/python.md run and print what the page shows, and that python/docs/found.md and
the programs of its bugs belong together."""

import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import pages

SOURCE = Path(__file__).resolve().parents[3]
MATRICES = SOURCE / "python" / "cases" / "matrix"
HANGS = 60  # seconds


class Examples(unittest.TestCase):
    def test_every_example_prints_what_stands_behind_it(self):
        pages.hold(self, "python/docs/python.md")


class FoundBugs(unittest.TestCase):
    programs = sorted((SOURCE / "python" / "cases" / "found").glob("*.py"))

    def test_the_page_names_every_program_and_no_other(self):
        text = (SOURCE / "python" / "docs" / "found.md").read_text(encoding="utf-8")
        named = {name for name in re.findall(r"`(\w+\.py)`", text) if not (MATRICES / name).exists()}
        self.assertEqual(named, {path.name for path in self.programs})

    def test_a_program_that_cannot_run_does_not_say_that_the_bug_is_there(self):
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "torch.py").write_text("raise ImportError('no PyTorch')", encoding="utf-8")
            for path in self.programs:
                with self.subTest(program=path.name):
                    environment = {**os.environ, "PYTHONPATH": folder}
                    done = subprocess.run([sys.executable, path], env=environment, capture_output=True, timeout=HANGS)
                    self.assertEqual(done.returncode, 2, done.stderr.decode())
                    self.assertIn("Exit status: 1 ", path.read_text(encoding="utf-8"))


if __name__ == "__main__":
    unittest.main()
