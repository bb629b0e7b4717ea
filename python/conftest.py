"""Runs the tests of this folder by plain `pytest`: with the libraries of ../build or of an installed wheel, or those
that ADDEND_LIBRARY names, and with the Python sources here. Tests start other Pythons, which take the same.
"""

import importlib.metadata
import importlib.util
import os
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
PATHS = [HERE, HERE.parent / "train" / "python", HERE.parent / "tests" / "support"]
LEAST = (2, 6)  # PyTorch's version


def installed():
    """Where an installed wheel has its library, or None. The sources here hide the wheel from `import`."""
    for found in importlib.metadata.distributions(name="addend"):
        for file in found.files or ():
            if file.parent.name == "_native" and file.name.startswith("libaddend.so"):
                return Path(found.locate_file(file))
    return None


def library():
    """The core library that the tests load; the program is beside it."""
    built = HERE.parent / "build" / "libaddend.so"
    return os.environ.get("ADDEND_LIBRARY") or (not built.exists() and installed()) or built


def missing_for_torch():
    """What the tests of tests/torch need and this Python has not, or None."""
    missing = [name for name in ("torch", "numpy", "safetensors") if importlib.util.find_spec(name) is None]
    if missing:
        return f"{sys.executable} has no {', '.join(missing)} (script/torch makes a Python that has)"
    version = importlib.metadata.version("torch")
    if tuple(map(int, version.split(".")[:2])) < LEAST:
        return f"{sys.executable} has PyTorch {version}; 2.6 is the first that addend watches"
    return None


def missing_for(path):
    """Why the tests of this file cannot run here, or None."""
    if path.parent.name == "torch":
        return missing_for_torch()
    return None if importlib.util.find_spec("numpy") else f"{sys.executable} has no numpy"


class Skipped(pytest.Module):
    """A file whose imports would fail."""

    def collect(self):
        """Nothing but the reason."""
        pytest.skip(missing_for(self.path), allow_module_level=True)


def pytest_pycollect_makemodule(module_path, parent):
    """Called for each file of tests."""
    return Skipped.from_parent(parent, path=module_path) if missing_for(module_path) else None


def pytest_configure():
    """Called before the tests are collected."""
    path = Path(os.environ["ADDEND_LIBRARY"])
    gone = [str(each) for each in (path, path.with_name("addend")) if not each.is_file()]
    if gone:
        raise pytest.UsageError(
            f"there is no {' and no '.join(gone)} to test: in the folder above, `cmake -S . -B build -G Ninja && "
            "ninja -C build addend_python` builds them, as does `pip install ./python`; ADDEND_LIBRARY names others"
        )


os.environ["ADDEND_LIBRARY"] = os.path.abspath(library())
os.environ.update(OMP_NUM_THREADS="1", PYTHONDONTWRITEBYTECODE="1")
os.environ["PYTHONPATH"] = os.pathsep.join([*map(str, PATHS), *filter(None, [os.environ.get("PYTHONPATH")])])
