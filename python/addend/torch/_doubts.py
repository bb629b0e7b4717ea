"""Sums that are not judged (`Watched.unjudged`), for what they should hold depends on what nobody has said."""

from __future__ import annotations

from typing import Iterable, Mapping, Sequence

from addend.torch import _expected
from addend.torch._addends import Addends
from addend.torch._names import Checked
from addend.torch._parameters import Watched
from addend.torch._pipeline import Observer


def own_group(watched: Iterable[Watched], summed: int, world: int) -> None:
    """DDP that sums over some of the job's ranks: whether the others train the same model nobody has said."""
    if summed == world:
        return
    for entry in watched:
        entry.unjudged = entry.unjudged or (
            f"{summed} of {world} ranks are summed, those of DDP's process_group; if the others train this "
            "model too, their addends are missing: mesh= of all ranks tells, group= says that these are all"
        )


def lost_microbatches(watched: Iterable[Watched], addends: Addends, pipeline: Observer, unused: Sequence[str]) -> None:
    """A stage runs all microbatches of its schedule; a gradient of some of them only may have been lost."""
    for entry in watched:
        has = sum(entry.name in pieces for pieces in addends.taken.values())
        if entry.stage is not None and 0 < has < pipeline.run_by(entry.stage):
            if not _expected.is_meant(entry.name, unused):
                entry.unjudged = (
                    f"it has a gradient in {has} of its stage's microbatches only: lost in the others, or not used "
                    "there (unused=...)"
                )


def ties(watched: Iterable[Watched], sets: Iterable[Sequence[str]], everyones: Sequence[Mapping[str, Checked]]) -> None:
    """Parameters that were taken for one because their values are equal, and have other gradients, may be two."""
    firsts = {names[0]: names for names in sets}
    for entry in watched:
        told = [of_rank[entry.name] for of_rank in everyones if entry.name in of_rank]
        if entry.name in firsts and len({box for box, _ in told}) < len(set(told)):
            both = ", ".join(f'"{name}"' for name in firsts[entry.name])
            entry.unjudged = (
                f"{both} have equal values and other gradients: if they are tied, the sum over both was left out; "
                f"tied=[({both})] says that they are, tied=() that none is"
            )
