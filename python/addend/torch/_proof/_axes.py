"""The mesh of a proof: named axes over ranks 0 to n - 1, row-major, the last fastest."""

from __future__ import annotations

import itertools
import math
from typing import Dict, FrozenSet, Iterator, List, Mapping, Optional, Sequence, Tuple, Union

import addend


class Axes:
    """What `batches` is given: the mesh's axes, and where a rank stands. It answers as a DeviceMesh does, but needs no
    process group: in the process that has the whole there is none."""

    def __init__(self, sizes: Mapping[str, int], rank: Optional[int] = None):
        self.sizes: Dict[str, int] = dict(sizes)
        self.names: Tuple[str, ...] = tuple(self.sizes)
        self.rank = rank

    @property
    def mesh_dim_names(self) -> Tuple[str, ...]:
        """As DeviceMesh has it."""
        return self.names

    @property
    def shape(self) -> Tuple[int, ...]:
        """The sizes, in order."""
        return tuple(self.sizes.values())

    def size(self, axis: Union[str, int, None] = None) -> int:
        """How many ranks an axis has, or all of them together."""
        if axis is None:
            return math.prod(self.sizes.values())
        return self.sizes[self.names[axis] if isinstance(axis, int) else axis]

    def coordinate(self, rank: int) -> Dict[str, int]:
        """Where a rank stands on each axis."""
        at: Dict[str, int] = {}
        for name in reversed(self.names):
            rank, at[name] = divmod(rank, self.sizes[name])
        return at

    def get_local_rank(self, axis: str) -> int:
        """Where this rank stands on an axis."""
        if self.rank is None:
            raise ValueError("the whole batch has no rank")
        return self.coordinate(self.rank)[axis]

    def __str__(self) -> str:
        return " ".join(f"{name}={size}" for name, size in self.sizes.items())

    def subsets(self) -> Iterator[FrozenSet[str]]:
        """Every set of axes of more than one rank, but the empty one, the smallest first."""
        wide = [name for name in self.names if self.sizes[name] > 1]
        for count in range(1, len(wide) + 1):
            for some in itertools.combinations(wide, count):
                yield frozenset(some)

    def fibres(self, axes: FrozenSet[str], ranks: Optional[Sequence[int]] = None) -> List[List[int]]:
        """The ranks in groups that differ along these axes alone."""
        groups: Dict[Tuple[int, ...], List[int]] = {}
        for rank in range(self.size()) if ranks is None else ranks:
            at = self.coordinate(rank)
            groups.setdefault(tuple(at[name] for name in self.names if name not in axes), []).append(rank)
        return list(groups.values())

    def text(self, axes: FrozenSet[str]) -> str:
        """The axes' names in the mesh's order."""
        return ", ".join(name for name in self.names if name in axes)

    def ranks_text(self, rank: int) -> str:
        """Where a rank stands, as words."""
        return " ".join(f"{name}={at}" for name, at in sorted(self.coordinate(rank).items(), key=self._order))

    def _order(self, item: Tuple[str, int]) -> int:
        return self.names.index(item[0])


def parse(mesh: object) -> Dict[str, int]:
    """{"dp": 2, "tp": 2}, or a number of ranks on one axis dp."""
    if isinstance(mesh, int):
        mesh = {"dp": mesh}
    if not isinstance(mesh, Mapping) or not mesh:
        raise addend.InvalidError(
            f'mesh={mesh!r} is not {{"dp": 2, "tp": 2}}: names of axes and how many ranks each has'
        )
    for name, size in mesh.items():
        if not isinstance(name, str) or not name.isidentifier() or not isinstance(size, int) or size < 1:
            raise addend.InvalidError(f"mesh: {name!r}: {size!r} is no name of an axis with a number of ranks")
    return dict(mesh)
