"""Exchanges pickled values between ranks: in one collective if they are small, else in two."""

from __future__ import annotations

import pickle
import struct
from typing import Any

import torch
import torch.distributed as dist

from addend.torch import _alive

_AT_FIRST = 8192  # bytes of the first collective, which begin with the value's length
_LENGTH = struct.Struct("<Q")


def _rows(data: bytes, size: int, world: int, device: torch.device, group: Any) -> list[bytes]:
    """All-gathers `data`, padded with zeros to `size` bytes."""
    own = torch.frombuffer(bytearray(data) + bytearray(size - len(data)), dtype=torch.uint8).to(device)
    rows = torch.empty((world, size), dtype=torch.uint8, device=device)
    _alive.complete(dist.all_gather(list(rows.unbind()), own, group=group, async_op=True))
    return [row.tobytes() for row in rows.cpu().numpy()]


def _begun(data: bytes) -> tuple[bytes, bytes]:
    """Splits a value's bytes into those for the first collective and the rest for a second one."""
    room = _AT_FIRST - _LENGTH.size
    return _LENGTH.pack(len(data)) + data[:room], data[room:]


def _length(first: bytes) -> int:
    length: int = _LENGTH.unpack_from(first)[0]
    return length


def to_all(value: Any, device: torch.device, group: Any) -> list[Any]:
    """Every rank gives a value; returns all ranks' values, in the group's order."""
    world = dist.get_world_size(group)
    begin, end = _begun(pickle.dumps(value, pickle.HIGHEST_PROTOCOL))
    first = _rows(begin, _AT_FIRST, world, device, group)
    longest = max(map(_length, first)) + _LENGTH.size - _AT_FIRST
    rest = _rows(end, longest, world, device, group) if longest > 0 else [b""] * world
    return [pickle.loads(a[_LENGTH.size :][: _length(a)] + b) for a, b in zip(first, rest)]


def _broadcast(data: bytes, size: int, source: int, device: torch.device, group: Any) -> bytes:
    sent = torch.frombuffer(bytearray(data) + bytearray(size - len(data)), dtype=torch.uint8).to(device)
    _alive.complete(dist.broadcast(sent, src=source, group=group, async_op=True))
    received: bytes = sent.cpu().numpy().tobytes()
    return received


def from_one(value: Any, source: int, is_source: bool, device: torch.device, group: Any) -> Any:
    """Returns the value that rank `source` gives, which gets its own back; the other ranks' values are ignored."""
    begin, end = _begun(pickle.dumps(value if is_source else None, pickle.HIGHEST_PROTOCOL))
    first = _broadcast(begin, _AT_FIRST, source, device, group)
    longer = _length(first) + _LENGTH.size - _AT_FIRST
    rest = _broadcast(end[:longer], longer, source, device, group) if longer > 0 else b""
    return value if is_source else pickle.loads(first[_LENGTH.size :][: _length(first)] + rest)
