"""Values that ranks tell each other, in one collective where they are small."""

from __future__ import annotations

import pickle
import struct
from typing import Any

import torch
import torch.distributed as dist

_AT_FIRST = 8192  # bytes of the first collective, the length of all included
_LENGTH = struct.Struct("<Q")


def _rows(data: bytes, size: int, world: int, device: torch.device, group: Any) -> list[bytes]:
    """Every rank's `data`, with zeros behind it up to `size`."""
    own = torch.frombuffer(bytearray(data) + bytearray(size - len(data)), dtype=torch.uint8).to(device)
    rows = torch.empty((world, size), dtype=torch.uint8, device=device)
    dist.all_gather(list(rows.unbind()), own, group=group)
    return [row.tobytes() for row in rows.cpu().numpy()]


def _begun(data: bytes) -> tuple[bytes, bytes]:
    """What goes into the first collective, and what is left for a second one."""
    room = _AT_FIRST - _LENGTH.size
    return _LENGTH.pack(len(data)) + data[:room], data[room:]


def _length(first: bytes) -> int:
    length: int = _LENGTH.unpack_from(first)[0]
    return length


def to_all(value: Any, device: torch.device, group: Any) -> list[Any]:
    """The values of all ranks, in the group's order."""
    world = dist.get_world_size(group)
    begin, end = _begun(pickle.dumps(value, pickle.HIGHEST_PROTOCOL))
    first = _rows(begin, _AT_FIRST, world, device, group)
    longest = max(map(_length, first)) + _LENGTH.size - _AT_FIRST
    rest = _rows(end, longest, world, device, group) if longest > 0 else [b""] * world
    return [pickle.loads(a[_LENGTH.size :][: _length(a)] + b) for a, b in zip(first, rest)]


def _broadcast(data: bytes, size: int, source: int, device: torch.device, group: Any) -> bytes:
    sent = torch.frombuffer(bytearray(data) + bytearray(size - len(data)), dtype=torch.uint8).to(device)
    dist.broadcast(sent, src=source, group=group)
    received: bytes = sent.cpu().numpy().tobytes()
    return received


def from_one(value: Any, source: int, device: torch.device, group: Any) -> Any:
    """The value of the rank `source`, whatever the others give."""
    begin, end = _begun(pickle.dumps(value, pickle.HIGHEST_PROTOCOL))
    first = _broadcast(begin, _AT_FIRST, source, device, group)
    longer = _length(first) + _LENGTH.size - _AT_FIRST
    rest = _broadcast(end[:longer], longer, source, device, group) if longer > 0 else b""
    return pickle.loads(first[_LENGTH.size :][: _length(first)] + rest)
