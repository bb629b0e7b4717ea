"""Finds how the ranks' tensors relate to the tensor of one process: each is all of it, a part of it, or an addend (sums
over some axes are all or a part of it). Plain tensors do not say it, so it is found by comparing values, in f64."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy

from addend.torch._checks._axes import Axes

if TYPE_CHECKING:
    from numpy.typing import NDArray

Array = "NDArray[numpy.float64]"
Index = tuple["NDArray[numpy.int64]", ...]  # for each dimension, the indices of one process's tensor that a rank has
_MOST = 512  # number of combinations of blocks that are tried


def close(found: NDArray[numpy.float64], right: NDArray[numpy.float64], bound: float, scale: float) -> bool:
    """Whether the arrays differ by at most `bound` times `scale`, the largest element of one process's tensor."""
    if found.shape != right.shape:
        return False
    if not found.size:
        return True
    with numpy.errstate(invalid="ignore", over="ignore"):
        return bool(numpy.abs(found - right).max() <= bound * scale)


def largest(whole: NDArray[numpy.float64]) -> float:
    return float(numpy.abs(whole).max()) if whole.size else 0.0


def take(whole: NDArray[numpy.float64], index: Index) -> NDArray[numpy.float64]:
    """The part of `whole` with these indices."""
    part: NDArray[numpy.float64] = whole[numpy.ix_(*index)] if index else whole
    return part


def everything(shape: Sequence[int]) -> Index:
    return tuple(numpy.arange(n) for n in shape)


def same(a: Index, b: Index) -> bool:
    return len(a) == len(b) and all(numpy.array_equal(x, y) for x, y in zip(a, b))


def _blocks(n: int, count: int) -> Iterator[NDArray[numpy.int64]]:
    """The blocks of `count` out of `n` indices that a shard may have: those at multiples of `count`, then the last."""
    if count == n:
        yield numpy.arange(n)
        return
    aligned = list(range(0, n - count + 1, max(count, 1)))
    rest = [n - count] if n - count not in aligned else []  # the last, shorter part
    for first in aligned + rest:
        yield numpy.arange(first, first + count)


def _by_value(part: NDArray[numpy.float64], whole: NDArray[numpy.float64], dim: int) -> NDArray[numpy.int64] | None:
    """For each slice of `part` along `dim`, the index of the most similar slice of `whole`. All other dimensions have
    the same size in both."""
    rows, wholes = numpy.moveaxis(part, dim, 0), numpy.moveaxis(whole, dim, 0)
    rows, wholes = rows.reshape(len(rows), -1), wholes.reshape(len(wholes), -1)
    if not rows.size:
        return None
    weights = numpy.random.default_rng(1).standard_normal(rows.shape[1])
    mine, theirs = rows @ weights, wholes @ weights
    order = numpy.argsort(theirs, kind="stable")
    at = numpy.clip(numpy.searchsorted(theirs[order], mine), 1, max(len(order) - 1, 1))
    if len(order) == 1:
        return numpy.zeros(len(mine), dtype=numpy.int64)
    left, right = theirs[order[at - 1]], theirs[order[at]]
    found: NDArray[numpy.int64] = numpy.where(abs(mine - left) <= abs(mine - right), order[at - 1], order[at])
    return found


class Hints:
    """The indices that a rank was found to have in other tensors. They tell apart rows that are equal (of the same
    token, before any attention), if the rows of another tensor are not."""

    def __init__(self) -> None:
        self._found: dict[tuple[int, int, int], list[NDArray[numpy.int64]]] = {}

    def add(self, index: Index, shape: Sequence[int]) -> None:
        for dim, (part, n) in enumerate(zip(index, shape)):
            known = self._found.setdefault((dim, n, len(part)), [])
            if not any(numpy.array_equal(part, other) for other in known):
                known.append(part)

    def of(self, dim: int, n: int, count: int) -> list[NDArray[numpy.int64]]:
        """The known indices for a dimension of size `n` of which the rank has `count`, in the order of adding."""
        return self._found.get((dim, n, count), [])


def locate(
    part: NDArray[numpy.float64], whole: NDArray[numpy.float64], bound: float, hints: Hints | None = None
) -> Index | None:
    """The indices at which `whole` has the values of `part`. Tries the indices of the rank's other tensors (hints),
    then blocks, then matches slices of one dimension by value; None: nothing fits."""
    if part.ndim != whole.ndim or any(p > w for p, w in zip(part.shape, whole.shape)):
        return None
    if not part.size:
        return tuple(numpy.arange(n) for n in part.shape)
    scale = largest(whole)
    choices = [list(_blocks(w, p)) for p, w in zip(part.shape, whole.shape)]
    if hints is not None:
        choices = [hints.of(d, w, p) + choices[d] for d, (p, w) in enumerate(zip(part.shape, whole.shape))]
    for index in itertools.islice(itertools.product(*choices), _MOST):
        if close(part, take(whole, index), bound, scale):
            return index
    for dim in range(part.ndim):
        others = [choice if d != dim else [numpy.arange(whole.shape[d])] for d, choice in enumerate(choices)]
        for index in itertools.islice(itertools.product(*others), _MOST):
            rows = _by_value(part, take(whole, index), dim)
            if rows is None:
                continue
            found = (*index[:dim], rows, *index[dim + 1 :])
            if close(part, take(whole, found), bound, scale):
                return found
    return None


@dataclasses.dataclass
class Value:
    """What a tensor is on all ranks: its sum over `axes` (no axes: the tensor itself) is the part of one process's
    tensor with the indices index[rank]."""

    axes: frozenset[str]
    index: dict[int, Index]

    def text(self, axes: Axes, shape: Sequence[int]) -> str:
        """The report's words for this value."""
        words = []
        for dim in range(len(shape)):
            along = [name for name in axes.names if self._differs(axes, name, dim)]
            if along:
                words.append(f"part along dimension {dim} over {', '.join(along)}")
        if self.axes:
            words.append(f"addend over {axes.text(self.axes)}")
        return "; ".join(words) or "whole"

    def _differs(self, axes: Axes, name: str, dim: int) -> bool:
        for fibre in axes.fibres(frozenset([name]), sorted(self.index)):
            first = self.index[fibre[0]][dim]
            if any(not numpy.array_equal(self.index[rank][dim], first) for rank in fibre[1:]):
                return True
        return False


def _replicas(parts: dict[int, NDArray[numpy.float64]], fibre: list[int], bound: float) -> bool:
    """Whether these ranks have equal numbers that are not all zero: then they are copies, not addends."""
    first = parts[fibre[0]]
    scale = largest(first)
    return bool(scale) and all(close(parts[rank], first, bound, scale) for rank in fibre)


def summed(parts: dict[int, NDArray[numpy.float64]], fibre: list[int]) -> NDArray[numpy.float64] | None:
    """The sum of the ranks' parts; None if their shapes differ."""
    if len({parts[rank].shape for rank in fibre}) > 1:
        return None
    total: NDArray[numpy.float64] = numpy.sum([parts[rank] for rank in fibre], axis=0)
    return total


def value_of(
    parts: dict[int, NDArray[numpy.float64]],
    whole: NDArray[numpy.float64],
    axes: Axes,
    bound: float,
    hints: dict[int, Hints] | None = None,
) -> Value | None:
    """What the ranks' tensors are: parts of `whole` or, if that does not fit, addends over the fewest axes; None:
    nothing fits."""
    index: dict[int, Index] = {}
    known = hints or {}
    for rank, part in parts.items():
        found = locate(part, whole, bound, known.get(rank))
        if found is None:
            break
        index[rank] = found
    else:
        return Value(frozenset(), index)
    for some in axes.subsets():
        index = {}
        for fibre in axes.fibres(some, sorted(parts)):
            addends = len(fibre) > 1 and not _replicas(parts, fibre, bound)
            total = summed(parts, fibre) if addends else None
            found = locate(total, whole, bound, known.get(fibre[0])) if total is not None else None
            if found is None:
                break
            index.update(dict.fromkeys(fibre, found))
        else:
            return Value(some, index)
    return None


def among(
    parts: dict[int, NDArray[numpy.float64]], wholes: Sequence[NDArray[numpy.float64]], axes: Axes, bound: float
) -> bool:
    """Whether the ranks' tensors, or their sums over some axes, are each a part of some tensor of one process."""
    for some in (frozenset(), *axes.subsets()):
        totals = [summed(parts, fibre) for fibre in axes.fibres(some, sorted(parts))]
        if all(t is not None and any(locate(t, whole, bound) is not None for whole in wholes) for t in totals):
            return True
    return False


@dataclasses.dataclass
class Gradient:
    """What a gradient is on all ranks: right (no axes, factor 1), right once it is summed over `axes`, or `factor`
    times the right one; factor None: none of these."""

    axes: frozenset[str] = frozenset()
    factor: float | None = 1.0
    lone: bool = False  # of the ranks to sum over, one alone has more than zeros
    partly: bool = False  # wrong, but right on some ranks
    identical: frozenset[str] = frozenset()  # if it is wrong: the axes along which all ranks have the same

    @property
    def right(self) -> bool:
        return not self.axes and self.factor == 1.0

    @property
    def partial(self) -> bool:
        return bool(self.axes) and self.factor == 1.0

    @property
    def wrong(self) -> bool:
        return self.factor != 1.0


def factor_of(found: NDArray[numpy.float64], right: NDArray[numpy.float64], bound: float) -> float | None:
    """The factor with which found = factor * right; None: no factor fits."""
    if found.shape != right.shape:
        return None
    square = float((right * right).sum())
    factor = float((found * right).sum()) / square if square else 0.0
    return factor if close(found, factor * right, bound * max(1.0, abs(factor)), largest(right)) else None


def gradient_of(
    parts: dict[int, NDArray[numpy.float64]],
    value: Value,
    whole: NDArray[numpy.float64],
    axes: Axes,
    scales: dict[int, float],
    bound: float,
) -> Gradient:
    """Compares the ranks' gradients of a value with one process's, times each rank's `scales`. The right gradient of a
    part is that part of the gradient; of an addend, it is the gradient of the sum."""
    scale = largest(whole)
    right = {rank: scales[rank] * take(whole, value.index[rank]) for rank in parts}
    tops = {rank: abs(scales[rank]) * scale for rank in parts}
    if all(close(parts[rank], right[rank], bound, tops[rank]) for rank in parts):
        return Gradient()
    for some in axes.subsets():
        if some & value.axes or not _partial(parts, value, right, tops, axes, some, bound):
            continue
        return Gradient(some, lone=all(_is_lone(parts, fibre) for fibre in axes.fibres(some, sorted(parts))))
    partly = any(close(parts[rank], right[rank], bound, tops[rank]) for rank in parts if numpy.any(right[rank]))
    identical = frozenset(name for name in axes.names if _are_identical(parts, value, axes, name, bound))
    factors = [factor_of(parts[rank], right[rank], bound) for rank in parts if numpy.any(right[rank])]
    if factors and all(f is not None and abs(f - (factors[0] or 0)) <= 1e-6 * abs(f) + 1e-12 for f in factors):
        worst = max(factors, key=lambda f: abs((f or 0) - 1))  # a rank of factor 1 hides no other's
        return Gradient(factor=worst, partly=partly, identical=identical)
    return Gradient(factor=None, partly=partly, identical=identical)


def _is_lone(parts: dict[int, NDArray[numpy.float64]], fibre: list[int]) -> bool:
    """Whether no more than one of these ranks has anything but zeros."""
    return sum(bool(numpy.any(parts[rank])) for rank in fibre) <= 1


def _are_identical(parts: dict[int, NDArray[numpy.float64]], value: Value, axes: Axes, name: str, bound: float) -> bool:
    """Whether all ranks along an axis have the same gradient of the same part of the value."""
    for fibre in axes.fibres(frozenset([name]), sorted(parts)):
        first = fibre[0]
        scale = largest(parts[first])
        for rank in fibre[1:]:
            if not same(value.index[rank], value.index[first]) or not close(parts[rank], parts[first], bound, scale):
                return False
    return True


def _partial(
    parts: dict[int, NDArray[numpy.float64]],
    value: Value,
    right: dict[int, NDArray[numpy.float64]],
    tops: dict[int, float],
    axes: Axes,
    some: frozenset[str],
    bound: float,
) -> bool:
    """Whether the gradient is right once it is summed over the axes `some`."""
    for fibre in axes.fibres(some, sorted(parts)):
        if len(fibre) < 2 or any(not same(value.index[rank], value.index[fibre[0]]) for rank in fibre):
            return False
        if _replicas(parts, fibre, bound):  # each rank's is a mean where the sum is wanted
            return False
        total = summed(parts, fibre)
        if total is None or not close(total, right[fibre[0]], bound, tops[fibre[0]]):
            return False
    return True
