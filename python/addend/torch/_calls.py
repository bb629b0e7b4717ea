"""The collectives that a rank called in one watched step, as reports and files have them. `_recorder.py` notes them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence


@dataclasses.dataclass(frozen=True)
class Call:
    """Collectives of a step that differ in nothing but their time, and how many there were."""

    operation: str  # all_reduce, reduce_scatter, all_gather, all_to_all, broadcast, reduce, gather, scatter, send, recv
    axes: str  # the mesh's axes that the group spans, "dp" or "dp_shard cp"; "" if it is no set of axes
    ranks: tuple[int, ...]  # the group's ranks, if `axes` does not say it; else ()
    dtype: str  # of what is sent: "bf16"
    bytes: int  # of one call's input on this rank
    count: int
    phase: str  # forward, backward, after (the last backward)
    backwards: tuple[int, ...]  # in phase backward: the numbers of the backwards that made it, the first one is 0
    line: str  # "model.py:71 in forward": the first line outside PyTorch; "" if it has none, as in a thread of PyTorch
    params: tuple[str, ...]  # the parameters whose gradients it sums; () if not known


@dataclasses.dataclass(frozen=True)
class Calls:
    """The collectives of one rank's last watched step, in the order in which each was first made; str() is a table."""

    rows: tuple[Call, ...] = ()
    unseen: tuple[str, ...] = ()  # why there may be more calls than `rows` has
    rank: int = 0
    mesh: str = ""  # "dp=2 tp=2"

    def of(self, name: str) -> tuple[Call, ...]:
        """The calls that sum the gradient of the parameter `name`."""
        return tuple(row for row in self.rows if name in row.params)

    @property
    def bytes(self) -> int:
        """What this rank gives to all calls of the step, in bytes."""
        return sum(row.bytes * row.count for row in self.rows)

    @property
    def document(self) -> list[dict[str, object]]:
        """The value of `addend.calls` in files: the rows, then a row {"unseen": why} for each reason."""
        return [*map(dict, map(vars, self.rows)), *({"unseen": why} for why in self.unseen)]

    def __str__(self) -> str:
        counts = {phase: sum(row.count for row in self.rows if row.phase == phase) for phase in _PHASES}
        made = ", ".join(f"{count} {words}" for (_, words), count in zip(_PHASES.items(), counts.values()) if count)
        head = f"calls of rank {self.rank}, mesh {self.mesh}: {made or 'none'}; {_number(self.bytes)} B"
        cells = [_HEAD, *map(_cells, self.rows)] if self.rows else []
        widths = [max(map(len, column)) for column in zip(*cells)]
        lines = [
            "  ".join(
                cell.rjust(width) if at in _RIGHT else cell.ljust(width)
                for at, (cell, width) in enumerate(zip(line, widths))
            ).rstrip()
            for line in cells
        ]
        return "\n  ".join([head, *lines, *self.unseen])


_PHASES = {"forward": "in forward", "backward": "in backward", "after": "after the last backward"}
_HEAD = ("operation", "over", "dtype", "bytes", "times", "where", "sums")
_RIGHT = (3, 4)  # columns of numbers


def _number(value: int) -> str:
    return f"{value:,}".replace(",", " ")


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "") or "-"


def _cells(row: Call) -> tuple[str, ...]:
    over = row.axes.replace(" ", ", ") or f"ranks {', '.join(map(str, row.ranks))}"
    where = row.line or _PHASES[row.phase]
    return row.operation, over, row.dtype, _number(row.bytes), str(row.count), where, _some(row.params)
