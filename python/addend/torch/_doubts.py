"""Finds parameters whose sums cannot be judged because the job did not say what they should be: `Watched.unjudged`."""

from __future__ import annotations

from typing import Iterable, Mapping, Sequence

from addend.torch import _expected
from addend.torch._addends import Addends
from addend.torch._names import Checked
from addend.torch._parameters import Watched
from addend.torch._pipeline import Observer


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
        told = [of_rank[entry.name] for of_rank in everyones if entry.name in of_rank]
        if entry.name in firsts and len({box for box, _ in told}) < len(set(told)):
            both = ", ".join(f'"{name}"' for name in firsts[entry.name])
            entry.unjudged = (
                f"{both} have equal values but different gradients: if they are tied, their gradients were not summed; "
                f"say tied=[({both})] if they are tied, tied=() if no parameters are"
            )
