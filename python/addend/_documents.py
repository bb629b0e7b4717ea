"""Turns JSON documents of the library into dataclasses. Keys that a class has no field for are ignored, so that
documents of a newer library can be read."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, TypeVar

T = TypeVar("T")


@functools.cache
def _keys(cls: type) -> tuple[tuple[str, str], ...]:
    """The name of each field of the class, and its key in the JSON document."""
    return tuple((field.name, field.metadata.get("key", field.name)) for field in dataclasses.fields(cls))


def read(cls: type[T], document: Mapping[str, Any], /, **given: Any) -> T:
    """Makes a `cls` whose fields have the values of their keys in the document. `given` holds fields that the caller
    computed. The key is the field's name, or `key` in the field's metadata."""
    values: dict[str, Any] = {}
    for name, key in _keys(cls):  # type: ignore[arg-type]
        if name not in given and key in document:
            values[name] = _frozen(document[key])
    return cls(**values, **given)


def _frozen(value: Any) -> Any:
    return tuple(_frozen(item) for item in value) if isinstance(value, list) else value
