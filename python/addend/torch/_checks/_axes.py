"""The mesh of a `check`: named axes over ranks 0 to n - 1, in row-major order (the last axis varies fastest)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

import addend


class Axes:
    """The mesh's axes and a rank's place on them, as the job's function `batches` gets them. It has the methods of a
    DeviceMesh but needs no process group, since the process with the whole batch has none."""

    def __init__(self, sizes: Mapping[str, int], rank: int | None = None):
        self.sizes: dict[str, int] = dict(sizes)
        self.names: tuple[str, ...] = tuple(self.sizes)
        self.rank = rank

    @property
    def mesh_dim_names(self) -> tuple[str, ...]:
        """The axes' names, under DeviceMesh's name for them."""
        return self.names

    @property
    def shape(self) -> tuple[int, ...]:
        """The axes' sizes, in the axes' order."""
        return tuple(self.sizes.values())

    def size(self, axis: str | int | None = None) -> int:
        """The number of ranks along an axis, or of all ranks."""
        if axis is None:
            return math.prod(self.sizes.values())
        return self.sizes[self.names[axis] if isinstance(axis, int) else axis]

    def coordinate(self, rank: int) -> dict[str, int]:
        """The rank's index on each axis."""
        at: dict[str, int] = {}
        for name in reversed(self.names):
            rank, at[name] = divmod(rank, self.sizes[name])
        return at

    def get_local_rank(self, axis: str) -> int:
        """This rank's index on an axis."""
        if self.rank is None:
            raise ValueError("batches was called for the whole batch (rank None), which has no index on an axis")
        return self.coordinate(self.rank)[axis]

    def __str__(self) -> str:
        return " ".join(f"{name}={size}" for name, size in self.sizes.items())

    def subsets(self) -> Iterator[frozenset[str]]:
        """All sets of one or more axes with more than one rank, the smallest sets first."""
        wide = [name for name in self.names if self.sizes[name] > 1]
        for count in range(1, len(wide) + 1):
            for some in itertools.combinations(wide, count):
                yield frozenset(some)

    def fibres(self, axes: frozenset[str], ranks: Sequence[int] | None = None) -> list[list[int]]:
        """The groups of ranks that differ on these axes only."""
        groups: dict[tuple[int, ...], list[int]] = {}
        for rank in range(self.size()) if ranks is None else ranks:
            at = self.coordinate(rank)
            groups.setdefault(tuple(at[name] for name in self.names if name not in axes), []).append(rank)
        return list(groups.values())

    def text(self, axes: frozenset[str]) -> str:
        """The names of these axes in the mesh's order."""
        return ", ".join(name for name in self.names if name in axes)

    def ranks_text(self, rank: int) -> str:
        """The rank's indices as text: "dp=1 tp=0"."""
        return " ".join(f"{name}={at}" for name, at in sorted(self.coordinate(rank).items(), key=self._order))

    def _order(self, item: tuple[str, int]) -> int:
        return self.names.index(item[0])


def parse(mesh: object) -> dict[str, int]:
    """The argument mesh= as axes and sizes: {"dp": 2, "tp": 2}; a number means that many ranks on one axis dp."""
    if isinstance(mesh, int):
        mesh = {"dp": mesh}
    if not isinstance(mesh, Mapping) or not mesh:
        raise addend.InvalidError(
            f'mesh={mesh!r} must be a dictionary of axes and their numbers of ranks, as {{"dp": 2, "tp": 2}}'
        )
    for name, size in mesh.items():
        if not isinstance(name, str) or not name.isidentifier() or not isinstance(size, int) or size < 1:
            raise addend.InvalidError(
                f"mesh: {name!r}: {size!r} must be the name of an axis and its number of ranks, as 'dp': 2"
            )
    return dict(mesh)
