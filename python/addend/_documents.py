"""JSON documents of the library as dataclasses. Keys that a class does not name are left out, so that a newer library's
document is read too."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, Dict, Mapping, Tuple, Type, TypeVar

T = TypeVar("T")


@functools.cache
def _keys(cls: type) -> Tuple[Tuple[str, str], ...]:
    """Of its fields, names and keys."""
    return tuple((field.name, field.metadata.get("key", field.name)) for field in dataclasses.fields(cls))


def read(cls: Type[T], document: Mapping[str, Any], /, **given: Any) -> T:
    """`cls` from its keys in the document; `given` are fields that are no plain key. A field whose metadata has a `key`
    has that name there."""
    values: Dict[str, Any] = {}
    for name, key in _keys(cls):  # type: ignore[arg-type]
        if name not in given and key in document:
            values[name] = _frozen(document[key])
    return cls(**values, **given)


def _frozen(value: Any) -> Any:
    return tuple(_frozen(item) for item in value) if isinstance(value, list) else value
