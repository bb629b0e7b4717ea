"""Finds, loads and calls the trainer's shared library, which links the core's."""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path

from addend import _library
from addend._trainer import GET, missing


def _path() -> Path:
    """The trainer's library beside the core that ADDEND_LIBRARY names, or in this wheel."""
    given = _library.given()
    if given:
        return given.parent / given.name.replace("libaddend.", "libaddend_train.")
    return _library.in_wheel(Path(__file__).parent / "_native", "libaddend_train")


def need_trainer(what: str) -> Path:
    """The path of the trainer's library. If there is none, raises an error that says how to get it."""
    path = _path()
    if path == _library.given() or not path.exists():
        raise missing(what, f"which is not installed: {GET}")
    return path


_loaded = functools.cache(ctypes.CDLL)


def _load(name: str) -> ctypes.CDLL:
    """Loads the library when it is first used, since it loads OpenBLAS too."""
    path = need_trainer(name)
    try:
        return _loaded(str(path))
    except OSError as error:
        raise missing(name, f"which could not be loaded: {error}; build it again: {GET}") from error


function = functools.partial(_library.function, loader=_load)
checked = functools.partial(_library.checked, loader=_load)


def show_to_all(what: str) -> None:
    """Makes the functions of both libraries visible to shared objects that are loaded later."""
    for path in (_library.core_path(), need_trainer(what)):
        ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
