"""Recipes: as the library reads them, and as arguments of the program."""

from __future__ import annotations

import ctypes
import json
import os
from contextlib import contextmanager
from typing import Any, Iterator, List, Mapping, Optional, Sequence, Union

from addend._library import checked, function, path_of, show_to_all, texts

PathLike = Union[str, "os.PathLike[str]"]
Sets = Union[Mapping[str, Any], Sequence[str], None]

_read = checked(
    "ad_recipe_read", ctypes.c_char_p, ctypes.POINTER(ctypes.c_char_p), ctypes.c_size_t, ctypes.POINTER(ctypes.c_void_p)
)
_load_program = checked("ad_program_load", ctypes.c_char_p)
_destroy = function("ad_recipe_destroy", None, ctypes.c_void_p)


def sets_of(given: Sets) -> List[str]:
    """Keys of a recipe that are replaced, as "PATH=VALUE". A value in a mapping is a Python object, in a text YAML."""
    if given is None:
        return []
    if isinstance(given, Mapping):
        return [f"{path}={json.dumps(value)}" for path, value in given.items()]  # JSON is YAML in flow style
    if isinstance(given, str):
        return [given]
    return list(given)


def arguments_of(recipe: PathLike, given: Sets, program: Optional[PathLike]) -> List[str]:
    """What every command that reads a recipe takes."""
    arguments = ["--program", path_of(program)] if program is not None else []
    for one in sets_of(given):
        arguments += ["--set", one]
    return [*arguments, "--", path_of(recipe)]


@contextmanager
def opened(path: PathLike, given: Sets, program: Optional[PathLike]) -> Iterator[ctypes.c_void_p]:
    """The recipe as the library reads it. `program`: the shared object that brings what it trains."""
    if program is not None:
        show_to_all("a program of your own")
        _load_program(path_of(program).encode())
    sets, recipe = sets_of(given), ctypes.c_void_p()
    _read(path_of(path).encode(), texts(sets), len(sets), recipe)
    try:
        yield recipe
    finally:
        _destroy(recipe)
