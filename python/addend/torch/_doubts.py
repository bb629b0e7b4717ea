"""Finds parameters whose sums cannot be judged because the job did not say what they should be: `Watched.unjudged`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from addend.torch import _expected, _gather
from addend.torch._addends import Addends
from addend.torch._names import Checked
from addend.torch._parameters import Watched
from addend.torch._pipeline import Observer
from addend.torch._sums import Sums


def own_group(watched: Iterable[Watched], summed: int, world: int) -> None:
    """Marks parameters of a DDP whose process_group has only some of the job's ranks: the other ranks may train this
    model or another one."""
    if summed == world:
        return
    for entry in watched:
        entry.unjudged = entry.unjudged or (
            f"DDP's process_group sums {summed} of {world} ranks; if the other ranks train this model too, their "
            "addends are missing: give mesh= with all ranks if they do, group= with DDP's process_group if they do not"
        )


def local_sums(watched: Iterable[Watched], ranks: Collection[int]) -> None:
    """Marks parameters that PostLocalSGD sums over fewer ranks than are watched: replicas differ until it averages."""
    for entry in watched:
        if entry.among and not set(ranks) <= set(entry.data[0]):
            own = entry.data[0]
            settled = "group= with its subgroup judges its sums" if own[1:] else "no gradient is summed in this step"
            entry.unjudged = entry.unjudged or (
                f"PostLocalSGD sums over {_gather.ranks_text(own)} alone, and replicas differ until parameters are "
                f"averaged: {settled}"
            )


def cleared(watched: Iterable[Watched], addends: Addends, sums: Sums) -> None:
    """Marks parameters whose gradient was there, and is cleared although no optimizer took a step with it."""
    have = {name for pieces in addends.taken.values() for name in pieces}
    for entry in watched:
        if entry.used is entry.owned and entry.name in have and entry.name not in sums:
            entry.unjudged = entry.unjudged or (
                "its gradient was cleared inside the watch, and no optimizer took a step with it there: end the watch "
                "before, or keep the gradient and name it by gradient="
            )


def lost_microbatches(watched: Iterable[Watched], addends: Addends, pipeline: Observer, unused: Sequence[str]) -> None:
    """Marks parameters of a pipeline stage that have a gradient in only some of its microbatches: some may be lost."""
    for entry in watched:
        has = sum(entry.name in pieces for pieces in addends.taken.values())
        if entry.stage is not None and 0 < has < pipeline.run_by(entry.stage):
            if not _expected.is_meant(entry.name, unused):
                entry.unjudged = (
                    f"it has a gradient in only {has} of its stage's microbatches: in the others it was lost, or the "
                    "parameter was not used (then name it in unused=)"
                )


def ties(watched: Iterable[Watched], sets: Iterable[Sequence[str]], everyones: Sequence[Mapping[str, Checked]]) -> None:
    """Marks parameters that were taken for tied because their values are equal, but whose gradients differ."""
    firsts = {names[0]: names for names in sets}
    for entry in watched:
        reported = [of_rank[entry.name] for of_rank in everyones if entry.name in of_rank]
        if entry.name in firsts and len({box for box, _ in reported}) < len(set(reported)):
            both = ", ".join(f'"{name}"' for name in firsts[entry.name])
            entry.unjudged = (
                f"{both} have equal values but different gradients: if they are tied, their gradients were not summed; "
                f"say tied=[({both})] if they are tied, tied=() if no parameters are"
            )
