"""The collectives that a job calls in one watched step: operation, group, dtype, bytes, line, and whose sum each is."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from addend.torch._meshes import Mesh
    from addend.torch._parameters import Watched
    from addend.torch._sums import Sums


@dataclasses.dataclass(frozen=True)
class Call:
    """Collectives of a step that differ in nothing but their time, and how many there were."""

    operation: str  # all_reduce, reduce_scatter, all_gather, all_to_all, broadcast, reduce, gather, scatter, send, recv
    axes: str  # the mesh's axes that the group spans, "dp" or "dp_shard cp"; "" if it is no set of axes
    ranks: tuple[int, ...]  # the group's ranks, if `axes` does not say it; else ()
    dtype: str  # of what is sent, as in files: "BF16"
    bytes: int  # of one call's input on this rank
    count: int
    phase: str  # forward, backward, after
    line: str  # "model.py:71 in forward": the first line outside PyTorch and other libraries of collectives
    params: tuple[str, ...]  # the parameters whose gradients it sums; () if not known


@dataclasses.dataclass(frozen=True)
class Calls:
    """The collectives of one rank's last watched step."""

    rows: tuple[Call, ...] = ()
    unseen: tuple[str, ...] = ()  # why there may be more: "a compiled region"

    def of(self, name: str) -> tuple[Call, ...]:
        """The calls that sum the gradient of the parameter `name`."""
        return tuple(row for row in self.rows if name in row.params)

    @property
    def bytes(self) -> int:
        """What this rank gives to all calls of the step, in bytes."""
        return sum(row.bytes * row.count for row in self.rows)

    @property
    def document(self) -> list[dict[str, object]]:
        """The value of `addend.calls`: the rows, then a row {"unseen": why} for each reason."""
        return [*map(dataclasses.asdict, self.rows), *({"unseen": why} for why in self.unseen)]


class Recorder:
    """Notes the collectives of one step between attach() and remove()."""

    def __init__(self, mesh: Mesh, rank: int):
        self._mesh, self._rank = mesh, rank

    def attach(self) -> None:
        """Begins to note calls."""

    def remove(self) -> None:
        """Ends it; everything that was replaced is as before."""

    @contextlib.contextmanager
    def window(self, name: str) -> Iterator[None]:
        """A context whose calls sum the gradient of the parameter `name`."""
        yield

    def settle(self, watched: Sequence[Watched], sums: Sums) -> Calls:
        """The step's calls, each with the parameters whose gradients it sums."""
        return Calls()
