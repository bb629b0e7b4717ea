"""Test the package itself: it runs on Python 3.9, is typed and documented, and can be imported without PyTorch."""

import ast
import inspect
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from says import says

import addend

FOLDER = Path(addend.__file__).parent
SOURCE = Path(__file__).resolve().parents[2]


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
        says(self, done.stderr, "ImportError", "/nowhere/libaddend.so", "ADDEND_LIBRARY")

    def test_without_the_trainer_it_says_how_to_get_it(self):
        program = (
            "import addend\n"
            "print(addend.Mesh('dp_shard=2 tp=4').layout('dp_shard=R tp=S1').dual)\n"
            "for call in (addend.check, addend.plan, addend.train):\n"
            "    try: call('recipe.yaml')\n"
            "    except addend.MissingTrainerError as error: print(error)\n"
        )
        with tempfile.TemporaryDirectory() as folder:
            core = Path(folder) / "libaddend.so"
            core.symlink_to(Path(os.environ["ADDEND_LIBRARY"]).resolve())
            environment = dict(os.environ, ADDEND_LIBRARY=str(core))
            done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment)
        self.assertEqual(done.stderr, "")
        layout, *said = done.stdout.splitlines()
        self.assertEqual(layout, "dp_shard=P tp=S1")
        self.assertEqual(len(said), 3, said)
        for line, name in zip(said, ("addend.check", "addend.plan", "addend.train")):
            says(self, line, name, "pip install './python[train]'", "script/setup")

    def test_without_the_trainers_package_the_same_is_said(self):
        program = (
            "import addend\n"
            "for name in (*addend._trainer.CALLS, *addend._trainer.RESULTS):\n"
            "    try: getattr(addend, name)('recipe.yaml')\n"
            "    except addend.MissingTrainerError as error: print(error)\n"
        )
        environment = dict(os.environ, PYTHONPATH=str(SOURCE))
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment)
        self.assertEqual(done.stderr, "")
        names = [*addend._trainer.CALLS, *addend._trainer.RESULTS]
        self.assertEqual(len(done.stdout.splitlines()), len(names), done.stdout)
        for name in names:
            says(self, done.stdout, f"addend.{name}", "pip install './python[train]'", "script/setup")

    def test_its_two_distributions_name_each_other(self):
        program = (
            "import sys; sys.dont_write_bytecode = True; sys.path.insert(0, sys.argv[1])\n"
            "import siblings\n"
            "print(*siblings.dynamic_metadata('dependencies', {}))\n"
            "print(*siblings.dynamic_metadata('optional-dependencies', {'of': 'addend'})['train'])\n"
        )

        def names(**more):
            environment = {name: text for name, text in os.environ.items() if name != "ADDEND_RELEASE"}
            command = [sys.executable, "-c", program, str(SOURCE)]
            return subprocess.run(
                command, capture_output=True, text=True, check=True, env={**environment, **more}
            ).stdout.splitlines()

        folders = [f"addend @ {SOURCE.as_uri()}", f"addend-train @ {(SOURCE.parent / 'train' / 'python').as_uri()}"]
        self.assertEqual(names(), folders)
        version = addend.__version__
        self.assertEqual(names(ADDEND_RELEASE="1"), [f"addend=={version}", f"addend-train=={version}"])


if __name__ == "__main__":
    unittest.main()
