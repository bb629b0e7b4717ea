"""What the ranks' losses may be: sums or means over axes of the mesh and over microbatches."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from addend.torch._checks._axes import Axes

_ROUNDING = 1e-13  # of the largest loss, or of its terms: sums of what cancels are only rounding


class Reading(NamedTuple):
    """One way to read the losses: a number for every group of ranks over which they are summed or averaged."""

    values: list[float]
    total: float  # what the first group's losses add up to
    mean: str = ""  # over what a mean is taken, in words; "": every loss is added
    rounding: float = 0.0  # of the losses: what is left where they cancel

    def error(self, alone: float) -> float:
        """The largest difference to one process's loss, relative to it; infinite if a value is no number."""
        off = [max(abs(value - alone) - self.rounding, 0.0) for value in self.values]
        return max(off) / max(abs(alone), 1e-300) if all(map(math.isfinite, off)) else math.inf


def readings(losses: Mapping[int, Sequence[float]], axes: Axes, terms: float = 0.0) -> Iterator[Reading]:
    """All ways to read losses[rank][microbatch]. A job may average its losses over some axes and sum them over others,
    and do either over microbatches; a loss that ranks share is read once. `terms`: the size of what a loss
    adds up itself."""
    several = ["microbatches"] * any(len(some) > 1 for some in losses.values())
    choices = [frozenset(), *axes.subsets()]
    rounding = _ROUNDING * max([terms, *(abs(loss) for some in losses.values() for loss in some)])
    for some, mean in itertools.product(choices, choices):
        if not mean <= some:
            continue
        fibres = axes.fibres(some, sorted(losses))
        sums = [sum(sum(losses[rank]) for rank in fibre) for fibre in fibres]
        each = [sum(sum(losses[rank]) / len(losses[rank]) for rank in fibre) for fibre in fibres]
        sizes = [len({tuple(axes.coordinate(rank)[axis] for axis in mean) for rank in f}) for f in fibres]
        over, all_over = [axes.text(mean)] * bool(mean), [axes.text(some)] * bool(some)
        yield Reading([value / size for value, size in zip(sums, sizes)], sums[0], " and ".join(over), rounding)
        yield Reading(
            [value / size for value, size in zip(each, sizes)], sums[0], " and ".join(over + several), rounding
        )
        counts = [sum(len(losses[rank]) for rank in fibre) for fibre in fibres]
        several_means = [value / count for value, count in zip(sums, counts)]
        yield Reading(several_means, sums[0], " and ".join(all_over + several), rounding)


def nearest(found: Sequence[Reading], alone: float) -> Reading:
    """The reading that is nearest to one process's loss."""
    return min(found, key=lambda reading: reading.error(alone))
