"""What ranks tell each other, over the job's own process group."""

from __future__ import annotations

import torch
import torch.distributed as dist

_AT_ONCE = 64 << 20  # bytes that rank 0 receives at a time, from all ranks together


def everyones(value, group) -> list:
    """The (small) values of all ranks, in the group's order."""
    if not dist.is_initialized():
        return [value]
    values = [None] * dist.get_world_size(group)
    dist.all_gather_object(values, value, group=group)
    return values


def from_first(value, group):
    """The value of the group's first rank."""
    if not dist.is_initialized():
        return value
    values = [value]
    dist.broadcast_object_list(values, src=dist.get_global_rank(group or dist.group.WORLD, 0), group=group)
    return values[0]


def rank_in(group) -> int:
    return dist.get_rank(group) if dist.is_initialized() else 0


def _device(group) -> torch.device:
    if "nccl" in dist.get_backend(group):
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def to_first(data: bytes, group, write) -> None:
    """Calls write(rank, bytes) on the first rank, piece after piece, for every rank's data."""
    if not dist.is_initialized():
        write(0, data)
        return
    lengths = everyones(len(data), group)
    world, first = len(lengths), rank_in(group) == 0
    size = max(_AT_ONCE // world, 1 << 12)
    padded = torch.zeros(-(-max(lengths) // size) * size, dtype=torch.uint8)
    padded[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    device = _device(group)
    for at in range(0, len(padded), size):
        piece = padded[at : at + size].to(device)
        pieces = [torch.empty_like(piece) for _ in range(world)] if first else None
        dist.gather(piece, pieces, dst=dist.get_global_rank(group or dist.group.WORLD, 0), group=group)
        for rank, received in enumerate(pieces or []):
            write(rank, received[: max(0, lengths[rank] - at)].cpu().numpy().tobytes())
