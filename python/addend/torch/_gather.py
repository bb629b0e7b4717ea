"""Exchanges values between ranks over the job's own process group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable, Optional, TypeVar

import torch
import torch.distributed as dist

from addend.torch import _alive, _exchange

Group = Optional[dist.ProcessGroup]  # None: all ranks
T = TypeVar("T")

AT_ONCE = 3 << 19  # bytes that rank 0 receives at a time, from all ranks together


def everyones(value: T, group: Group) -> list[T]:
    """Every rank gives a small value; returns all ranks' values, in the group's order."""
    if not dist.is_initialized():
        return [value]
    found: list[T] = _exchange.to_all(value, _device(group), group)
    return found


def group_ranks(group: Group) -> list[int]:
    """The world ranks in a process group, in its order; [0] if torch.distributed is not initialised."""
    whole: Any = dist.group.WORLD  # its type is Optional in older versions of PyTorch
    return list(dist.get_process_group_ranks(group or whole)) if dist.is_initialized() else [0]


def rank_in(group: Group) -> int:
    return int(dist.get_rank(group)) if dist.is_initialized() else 0


def together(find: Callable[[], T], group: Group) -> dict[int, T]:
    """Calls find() on every rank; returns all results, by rank. An error on one rank is raised on all of them, so that
    no rank waits for one that failed."""
    reported: tuple[str | None, Any]
    own: Exception | None = None
    ranks = group_ranks(group)
    try:
        reported = (None, find())
    except ValueError as error:
        reported, own = (str(error), None), error
    except Exception as error:
        reported, own = (f"rank {ranks[rank_in(group)]}: {type(error).__name__}: {error}", None), error
    values: dict[int, tuple[str | None, Any]] = dict(zip(ranks, everyones(reported, group)))
    for said, _ in values.values():
        if said:
            raise ValueError(said) from own
    return {rank: found for rank, (_, found) in values.items()}


def ranks_text(ranks: list[int]) -> str:
    """Words for a list of ranks: "rank 3", "ranks 0, 1 and 2", "ranks 0, 1 ... and 40 more"."""
    shown = [str(rank) for rank in ranks[:8]] + [f"{len(ranks) - 8} more"] * (len(ranks) > 8)
    return f"rank {shown[0]}" if len(shown) == 1 else f"ranks {', '.join(shown[:-1])} and {shown[-1]}"


def from_first(find: Callable[[], T], group: Group) -> T:
    """Calls find() on the group's first rank only; returns its result on every rank."""
    if not dist.is_initialized():
        return find()
    is_first = rank_in(group) == 0
    own = find() if is_first else None
    found: T = _exchange.from_one(own, group_ranks(group)[0], is_first, _device(group), group)
    return found


def _device(group: Group) -> torch.device:
    """A device whose tensors the group's backends ("cpu:gloo,cuda:nccl") can send: the CPU if they can send its."""
    devices = [entry.partition(":")[0] for entry in dist.get_backend_config(group).split(",")]
    if "cpu" in devices:
        return torch.device("cpu")
    return torch.device(devices[0], torch.get_device_module(devices[0]).current_device())


def timeout(group: Group) -> float:
    """The seconds after which the group's own collectives give up."""
    whole: Any = dist.group.WORLD
    try:
        seconds: float = (group or whole)._get_backend(_device(group)).options._timeout.total_seconds()
    except (AttributeError, RuntimeError):  # a backend without options
        seconds = dist.distributed_c10d.default_pg_timeout.total_seconds()
    return seconds


def sees_deaths(group: Group) -> bool:
    """Whether the group's own collectives raise an error as soon as a rank ends."""
    return dist.is_initialized() and "addend" in dist.get_backend_config(group)


def to_first(
    parts: Sequence[bytes], lengths: list[int], group: Group, write: Callable[[int, memoryview], None]
) -> None:
    """Gathers every rank's bytes, `parts` one after the other, lengths[rank] in all, on the first rank, which calls
    write(rank, bytes) for one piece after another."""
    if not dist.is_initialized():
        write(0, memoryview(b"".join(parts)))
        return
    world, first = len(lengths), rank_in(group) == 0
    rounds = -(-max(lengths) * world // AT_ONCE)
    size = -(-max(lengths) // max(rounds, 1))
    data = bytearray().join(parts)
    data.extend(bytes(rounds * size - len(data)))
    padded = torch.frombuffer(data, dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
    device = _device(group)
    for at in range(0, rounds * size, max(size, 1)):
        piece = padded[at : at + size].to(device)
        pieces = [torch.empty_like(piece) for _ in range(world)] if first else None
        _alive.complete(dist.gather(piece, pieces, dst=group_ranks(group)[0], group=group, async_op=True))
        for rank, received in enumerate(pieces or []):
            write(rank, memoryview(received[: max(0, lengths[rank] - at)].cpu().numpy().data))
