"""The examples of a page: code in Python, and after it what it prints."""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2]
EXAMPLE = re.compile(r"```python\n(.*?)```\n\n```text\n(.*?)```", re.S)
HANGS = 60  # seconds


def output_of(example):
    """What the code prints, run where recipes are; on ranks, if its first line says so."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "example.py").write_text(example, encoding="utf-8")
        Path(folder, "recipes").symlink_to(SOURCE / "recipes")
        run = re.match(r"# addend run -n (\d+) ", example)
        start = [Path(os.environ["ADDEND_LIBRARY"]).parent / "addend", "run", "-n", run[1], "--"] if run else []
        command = [*start, sys.executable, "example.py"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=HANGS)
        return done.stdout if done.returncode == 0 else done.stderr


def hold(test, page):
    """Fails the test case unless each example prints what follows it, and the page has no other code."""
    text = (SOURCE / page).read_text(encoding="utf-8")
    examples = EXAMPLE.findall(text)
    test.assertEqual(len(examples), text.count("```python"))
    test.assertGreater(len(examples), 1)
    for example, printed in examples:
        with test.subTest(example=example):
            test.assertEqual(output_of(example), printed)
