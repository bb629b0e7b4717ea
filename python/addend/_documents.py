"""JSON documents of the library as dataclasses. Keys that a class does not name are left out, so that a newer library's
document is read too."""

from __future__ import annotations

import dataclasses
from typing import Any, Dict, Mapping, Type, TypeVar

T = TypeVar("T")


def read(cls: Type[T], document: Mapping[str, Any], /, **given: Any) -> T:
    """`cls` from its keys in the document; `given` are fields that are no plain key. A field whose metadata has a `key`
    has that name there."""
    values: Dict[str, Any] = {}
    for field in dataclasses.fields(cls):  # type: ignore[arg-type]
        name = field.metadata.get("key", field.name)
        if field.name not in given and name in document:
            values[field.name] = _frozen(document[name])
    return cls(**values, **given)


def _frozen(value: Any) -> Any:
    return tuple(_frozen(item) for item in value) if isinstance(value, list) else value
