"""Test that the examples of docs/python.md run and print what the page shows."""

import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2]
PROGRAM = Path(os.environ["ADDEND_LIBRARY"]).parent / "addend"
EXAMPLE = re.compile(r"```python\n(.*?)```\n\n```text\n(.*?)```", re.S)
HANGS = 60  # seconds


def output_of(example):
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "example.py").write_text(example, encoding="utf-8")
        Path(folder, "recipes").symlink_to(SOURCE / "recipes")
        run = re.match(r"# addend run -n (\d+) ", example)
        start = [PROGRAM, "run", "-n", run[1], "--"] if run else []
        command = [*start, sys.executable, "example.py"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=HANGS)
        return done.stdout if done.returncode == 0 else done.stderr


class Examples(unittest.TestCase):
    def test_every_example_prints_what_stands_behind_it(self):
        text = (SOURCE / "docs" / "python.md").read_text(encoding="utf-8")
        examples = EXAMPLE.findall(text)
        self.assertEqual(len(examples), text.count("```python"))
        for example, printed in examples:
            with self.subTest(example=example):
                self.assertEqual(output_of(example), printed)


if __name__ == "__main__":
    unittest.main()
