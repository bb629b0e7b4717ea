"""The package itself: readable by Python 3.9, typed, described, without PyTorch."""

import ast
import inspect
import os
import subprocess
import sys
import unittest
from pathlib import Path

import addend

FOLDER = Path(addend.__file__).parent


class Package(unittest.TestCase):
    def test_its_grammar_is_that_of_python_3_9(self):
        for path in FOLDER.rglob("*.py"):
            ast.parse(path.read_text(encoding="utf-8"), path.name, feature_version=(3, 9))

    def test_types_are_not_evaluated_when_it_is_imported(self):
        for path in FOLDER.rglob("*.py"):
            text = path.read_text(encoding="utf-8")
            if "->" in text:
                self.assertIn("from __future__ import annotations", text, path.name)
        self.assertTrue((FOLDER / "py.typed").exists())

    def test_every_public_name_says_what_it_is(self):
        for name in addend.__all__:
            self.assertTrue(inspect.getdoc(getattr(addend, name)), name)
        self.assertEqual(list(addend.__all__), sorted(addend.__all__))

    def test_importing_it_imports_neither_pytorch_nor_numpy(self):
        program = "import sys, addend; print(sorted({'torch', 'numpy'} & set(sys.modules)))"
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        self.assertEqual(done.stdout.strip(), "[]")

    def test_a_library_that_is_not_there_is_named(self):
        environment = dict(os.environ, ADDEND_LIBRARY="/nowhere/libaddend.so")
        done = subprocess.run([sys.executable, "-c", "import addend"], capture_output=True, text=True, env=environment)
        self.assertRegex(done.stderr, "ImportError: .*/nowhere/libaddend.so.*ADDEND_LIBRARY names it")


if __name__ == "__main__":
    unittest.main()
