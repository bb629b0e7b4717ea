"""What a wrong factor may come from: the sizes of axes and the number of microbatches that it is made of."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from addend.torch._checks._axes import Axes


class Reading(NamedTuple):
    """One way in which a factor may have come about."""

    text: str
    axes: frozenset[str]
    microbatches: int = 1  # how many of them are a part of it; 1: none


class Factors:
    """Reads factors on a mesh. `microbatches`: the numbers of microbatches that ranks have."""

    def __init__(self, axes: Axes, microbatches: Sequence[int] = ()) -> None:
        self._axes = axes
        self._microbatches = sorted({count for count in microbatches if count > 1})

    def readings(self, factor: float) -> list[Reading]:
        """All readings that fit. Products of ranks and microbatches are tried only where neither alone fits."""
        sets = list(self._axes.subsets())
        found = [reading for some in sets for reading in self._fits(factor, some, 1)]
        found += [reading for count in self._microbatches for reading in self._fits(factor, frozenset(), count)]
        if not found:
            found = [r for some in sets for count in self._microbatches for r in self._fits(factor, some, count)]
        return found

    def _fits(self, factor: float, some: frozenset[str], count: int) -> list[Reading]:
        size, along = math.prod(self._axes.sizes[name] for name in some) * count, self._axes.text(some)
        batches = "the number of microbatches" if count > 1 else ""
        if abs(factor - size) < 1e-6 * size:
            words = [f"summed once more, or not divided, over {along}"] * bool(some)
            words += [f"not divided by {batches}"] * bool(batches)
        elif abs(factor * size - 1) < 1e-6:
            words = [f"averaged over {along}"] * bool(some) + [f"divided by {batches}"] * bool(batches)
        else:
            return []
        return [Reading(" and ".join(words), some, count)]

    def causes(self, factor: float | None) -> list[str]:
        """The readings' words."""
        return [reading.text for reading in self.readings(factor)] if factor is not None else []

    def text(self, factor: float | None) -> str:
        """Words that follow a factor: what may be its cause; "" if nothing is known."""
        found = self.causes(factor)
        return f"; possible cause{'s' * (len(found) > 1)}: {'; '.join(found)}" if found else ""

    def axes(self, factor: float | None) -> frozenset[str]:
        """The axes of the only reading; none if there are several or none."""
        found = self.readings(factor) if factor is not None else []
        return found[0].axes if len(found) == 1 else frozenset()
