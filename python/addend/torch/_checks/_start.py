"""Finds parameters and buffers whose values on a rank, before the first step, are not those of one process, and puts
those of one process into them, so that a further step shows whether an error comes from them."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy
import torch

from addend.torch import _meshes
from addend.torch._checks import _match
from addend.torch._checks._trace import array
from addend.torch._loaded import is_dtensor

if TYPE_CHECKING:
    from numpy.typing import NDArray

_ROUNDED = 2.0**-8  # a cast to bf16 and back changes no element by a larger part of it
_EXACT = 1e-12
_TELLING = 4  # as many elements or more are not by chance those of another parameter
_RUNS = 6  # number of runs of indices that are listed


@dataclasses.dataclass
class Other:
    """What a parameter or buffer is on one rank whose values are not one process's."""

    shape: tuple[int, ...]  # of one process's
    count: int  # of the rank's elements that differ
    size: int
    has: _match.Index | None  # the indices of one process's elements that it has; None: none fit
    wants: _match.Index | None  # the indices of those that it should have
    whose: str = ""  # another parameter of one process, of which it is all or a part; "": none


class Start:
    """The parameters and buffers of one rank whose values are not one process's before the first step."""

    def __init__(self, named: Mapping[str, torch.Tensor], whole: Mapping[str, NDArray[numpy.float64]]):
        self._whole = whole
        self._found: dict[str, NDArray[numpy.float64]] = {}
        self._right: dict[str, NDArray[numpy.float64]] = {}
        for name, tensor in named.items():
            right = _right(tensor, whole[name]) if name in whole else None
            if right is None or not right.size:
                continue
            found = array(tensor)
            if found.shape == right.shape and not _is_rounded(found, right, _match.largest(whole[name])):
                self._found[name], self._right[name] = found, right

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._right)

    def others(self) -> dict[str, Other]:
        """What they are, by name."""
        return {name: self._other(name) for name in self.names}

    def _other(self, name: str) -> Other:
        found, right, whole = self._found[name], self._right[name], self._whole
        with numpy.errstate(invalid="ignore", over="ignore"):
            has, wants = (_match.locate(values, whole[name], _EXACT) for values in (found, right))
            fits = [other for other in whole if has is None and _match.locate(found, whole[other], _EXACT) is not None]
        whose = fits[0] if len(fits) == 1 and found.size >= _TELLING else ""
        return Other(whole[name].shape, int((found != right).sum()), right.size, has, wants, whose)

    def put(self, named: Mapping[str, torch.Tensor]) -> None:
        """Puts one process's values into those that differ."""
        with torch.no_grad():
            for name, right in self._right.items():
                local = _meshes.local_of(named[name])
                local.copy_(torch.from_numpy(right))


def _right(tensor: torch.Tensor, whole: NDArray[numpy.float64]) -> NDArray[numpy.float64] | None:
    """The part of one process's values that this rank should have: a DTensor's placements say which, and a plain
    tensor of the full shape should have all. None: unknown, as for a part that the job sharded by hand."""
    if tensor.is_meta or tensor.is_complex() or tuple(tensor.shape) != whole.shape:
        return None
    if not is_dtensor(tensor):
        return whole
    from torch.distributed.tensor import distribute_tensor

    values = torch.from_numpy(numpy.array(whole))
    # raised for placements that cannot be given so, and by a PyTorch without `src_data_rank`
    with contextlib.suppress(TypeError, RuntimeError, ValueError, AssertionError):
        return array(distribute_tensor(values, tensor.device_mesh, tensor.placements, src_data_rank=None))
    return None


def _is_rounded(found: NDArray[numpy.float64], right: NDArray[numpy.float64], largest: float) -> bool:
    """Whether all elements are the right ones, or what rounding to a narrow dtype makes of them."""
    with numpy.errstate(invalid="ignore", over="ignore"):
        is_near = numpy.abs(found - right) <= _ROUNDED * numpy.abs(right) + _EXACT * largest
    return bool((is_near | (found == right) | (numpy.isnan(found) & numpy.isnan(right))).all())


def inside(module: str, names: Sequence[str], aliases: Mapping[str, Sequence[str]]) -> list[str]:
    """Those of the names that belong to a module, or to a module in it, also under a further name of a tie."""
    below = f"{module}." if module else ""
    return [name for name in names if any(one.startswith(below) for one in (name, *aliases.get(name, ())))]


def text(others: Mapping[int, Other]) -> str:
    """What a parameter is on the ranks that do not have one process's values."""
    ranks = ", ".join(map(str, sorted(others)))
    text = f"its values on rank{'s' * (len(others) > 1)} {ranks} are not those of one process"
    moved = _moved(others)
    if moved is not None:
        dim, order = moved
        what = "rows" if dim == 0 else f"indices along dimension {dim}"
        how = "in another order" if sorted(order) == list(range(len(order))) else "with some of them twice"
        return f"{text}, but its {what} {how}: {_runs(order)}"
    whose = [(rank, other.whose) for rank, other in sorted(others.items()) if other.whose]
    if whose:
        return f"{text} ({'; '.join(f'on rank {rank} those of `{name}`' for rank, name in whose[:_RUNS])})"
    rank, worst = max(others.items(), key=lambda one: one[1].count)
    count = "all elements" if worst.count == worst.size else f"{worst.count} of {worst.size} elements"
    return f"{text} ({count} on rank {rank})"


def _moved(others: Mapping[int, Other]) -> tuple[int, list[int]] | None:
    """(the dimension, the index of one process's values at each of its indices), if the ranks have one process's values
    at other indices of one dimension; None: they do not."""
    moved: dict[tuple[int, int], int] = {}
    for other in others.values():
        if other.has is None or other.wants is None:
            return None
        for dim, (has, wants) in enumerate(zip(other.has, other.wants)):
            if any(moved.setdefault((dim, int(w)), int(h)) != h for h, w in zip(has, wants)):
                return None
    dims = {dim for (dim, wants), has in moved.items() if wants != has}
    if len(dims) != 1:
        return None
    dim, shape = dims.pop(), next(iter(others.values())).shape
    return dim, [moved.get((dim, i), i) for i in range(shape[dim])]


def _runs(order: Sequence[int]) -> str:
    """Indices in runs of successive ones: "0-1, 4-5, 2-3"."""
    runs: list[list[int]] = []
    for i in order:
        if runs and runs[-1][1] == i - 1:
            runs[-1][1] = i
        else:
            runs.append([i, i])
    listed = [str(first) if first == last else f"{first}-{last}" for first, last in runs]
    return ", ".join(listed[:_RUNS]) + ", ..." * (len(listed) > _RUNS)
