"""One small value of each rank, brought to all of them: one collective where values take less than a page."""

from __future__ import annotations

import pickle
import struct
from typing import Any, List

import torch
import torch.distributed as dist

_AT_FIRST = 4096  # bytes of the first collective, its length included
_LENGTH = struct.Struct("<Q")


def _rows(data: bytes, size: int, world: int, device: torch.device, group: Any) -> List[bytes]:
    """Every rank's `data`, with zeros behind it up to `size`."""
    own = torch.frombuffer(bytearray(data) + bytearray(size - len(data)), dtype=torch.uint8).to(device)
    rows = torch.empty((world, size), dtype=torch.uint8, device=device)
    dist.all_gather(list(rows.unbind()), own, group=group)
    return [row.tobytes() for row in rows.cpu().numpy()]


def to_all(value: Any, device: torch.device, group: Any) -> List[Any]:
    """The values of all ranks, in the group's order. What does not fit at first follows in a second collective."""
    world = dist.get_world_size(group)
    data = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    room = _AT_FIRST - _LENGTH.size
    first = _rows(_LENGTH.pack(len(data)) + data[:room], _AT_FIRST, world, device, group)
    lengths = [_LENGTH.unpack_from(row)[0] for row in first]
    longest = max(lengths) - room
    rest = _rows(data[room:], longest, world, device, group) if longest > 0 else [b""] * world
    whole = (a[_LENGTH.size :] + b for a, b in zip(first, rest))
    return [pickle.loads(row[:length]) for row, length in zip(whole, lengths)]
