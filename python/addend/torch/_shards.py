"""Looks at the values of parameters that are shards because the job says so: ranks that should have different shards
may have copies of one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import nn

from addend.torch import _meshes, _names
from addend.torch._declared import Types
from addend.torch._parameters import Watched

_ELEMENTS = 4096  # of each shard, at the same places on every rank


class _Seen(NamedTuple):
    checksum: str
    has_changed: bool  # since an earlier watched step


_seen: WeakKeyDictionary[nn.Module, dict[str, _Seen]] = WeakKeyDictionary()  # in a model's last watched step, by name


def _some(parameter: torch.Tensor) -> torch.Tensor:
    """Some elements of this rank's part, at places that its shape alone decides."""
    flat = _meshes.local_of(parameter).reshape(-1)
    return flat[:: -(-flat.numel() // _ELEMENTS) or 1].cpu()


def is_said_to_be_one(entry: Watched, types: Types) -> bool:
    """Whether the parameter is a shard by an annotation or by types=. (A DTensor surely is what its placements say.)"""
    by_hand = entry.placement() is None or entry.annotation is not None
    return by_hand and any(kind[0] == "S" for kind in types.values())


def look(model: nn.Module, watched: Iterable[Watched], types: Mapping[str, Types]) -> dict[str, dict[str, object]]:
    """The value of `addend.shards`: by name, a checksum of a shard's values (`values`), whether all of them are equal
    (`constant`) and, if an earlier watched step saw other ones, that they are being trained (`stepped`)."""
    taken = {e.name: _some(e.owned) for e in watched if e.flat is None and is_said_to_be_one(e, types[e.name])}
    taken = {name: some for name, some in taken.items() if some.numel()}
    before, found = _seen.setdefault(model, {}), {}
    for (name, some), checksum in zip(taken.items(), _names.checksums([*taken.values()])):
        earlier = before.get(name, _Seen(checksum, False))
        before[name] = _Seen(checksum, earlier.has_changed or earlier.checksum != checksum)
        row: dict[str, object] = {"values": checksum, "constant": bool((some == some[0]).all())}
        found[name] = {**row, "stepped": True} if before[name].has_changed else row
    return found
