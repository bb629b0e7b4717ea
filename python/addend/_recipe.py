"""Recipes: as the library reads them, and as arguments of the program."""

from __future__ import annotations

import ctypes
import json
import os
from contextlib import contextmanager
from typing import Any, Iterator, List, Mapping, Sequence, Union

from addend._library import checked, function, path_of, texts

PathLike = Union[str, "os.PathLike[str]"]
Sets = Union[Mapping[str, Any], Sequence[str], None]

_read = checked(
    "ad_recipe_read", ctypes.c_char_p, ctypes.POINTER(ctypes.c_char_p), ctypes.c_size_t, ctypes.POINTER(ctypes.c_void_p)
)
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


@contextmanager
def opened(path: PathLike, given: Sets) -> Iterator[ctypes.c_void_p]:
    """The recipe as the library reads it."""
    sets, recipe = sets_of(given), ctypes.c_void_p()
    _read(path_of(path).encode(), texts(sets), len(sets), recipe)
    try:
        yield recipe
    finally:
        _destroy(recipe)
