"""Recipes: opened through the library, or named in the arguments of the program `addend`."""

from __future__ import annotations

import ctypes
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Union

from addend._library import path_of, texts
from addend_train._library import checked, function, show_to_all

PathLike = Union[str, "os.PathLike[str]"]
Sets = Union[Mapping[str, Any], Sequence[str], None]

_read = checked(
    "ad_recipe_read", ctypes.c_char_p, ctypes.POINTER(ctypes.c_char_p), ctypes.c_size_t, ctypes.POINTER(ctypes.c_void_p)
)
_load_program = checked("ad_program_load", ctypes.c_char_p)
_destroy = function("ad_recipe_destroy", None, ctypes.c_void_p)


def sets_of(given: Sets) -> list[str]:
    """The recipe keys to replace, as "PATH=VALUE". Values in a mapping are Python objects, those in a text are YAML."""
    if given is None:
        return []
    if isinstance(given, Mapping):
        return [f"{path}={json.dumps(value)}" for path, value in given.items()]  # JSON is YAML in flow style
    if isinstance(given, str):
        return [given]
    return list(given)


def arguments_of(recipe: PathLike, given: Sets, program: PathLike | None) -> list[str]:
    """The command-line arguments that every command with a recipe takes."""
    arguments = ["--program", path_of(program)] if program is not None else []
    for one in sets_of(given):
        arguments += ["--set", one]
    return [*arguments, "--", path_of(recipe)]


@contextmanager
def opened(path: PathLike, given: Sets, program: PathLike | None) -> Iterator[ctypes.c_void_p]:
    """A context with the library's handle of the recipe. `program`: the shared object with the recipe's program."""
    if program is not None:
        show_to_all("a program of your own")
        _load_program(path_of(program).encode())
    sets, recipe = sets_of(given), ctypes.c_void_p()
    _read(path_of(path).encode(), texts(sets), len(sets), recipe)
    try:
        yield recipe
    finally:
        _destroy(recipe)
