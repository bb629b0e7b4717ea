"""Finds what becomes of the addends that a module's backward returns: whether they were summed over the ranks, reached
another module without a sum, or were lost. For that it looks at the gradient of the same tensor where it comes from."""

from __future__ import annotations

import dataclasses
import enum
import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy

from addend.torch._checks import _match
from addend.torch._checks._trace import Key, gradient_key, is_inside

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from addend.torch._checks._where import Module, Modules

_MOST = 3  # users of one tensor whose addends may each have another fate


class Fate(enum.Enum):
    """What became of a module's addends."""

    SUMMED = "their sum is in the gradient of the tensor"
    MISSING = "each rank's own addend is in it"
    LOST = "on a rank at least, nothing of them is in it"
    EITHER = "each rank's own addend, or nothing of them: the numbers do not show which"
    CHANGED = "none of these"


_ENDS = (Fate.SUMMED, Fate.MISSING, Fate.LOST)


@dataclasses.dataclass
class _Tensor:
    """A tensor that modules take, where it comes from: a module's output, or the input of a module around them."""

    key: Key
    microbatch: int
    users: list[Key]  # the same tensor as inputs of modules, none inside another
    is_clear: bool  # no module returns what it takes, so that users of the one would be taken for users of the other


class Fates:
    """The fates of all modules' addends."""

    def __init__(self, modules: Modules) -> None:
        self._of = modules
        self._whole = modules.whole.values
        self._time = {key: time for time, key in enumerate(modules.whole.order)}
        self._found: dict[tuple[str, frozenset[str]], Fate] = {}

    def of(self, module: Module, axes: frozenset[str]) -> Fate:
        """The fate of the addends over `axes` that a module's backward returns: the first but SUMMED, else SUMMED."""
        if (module.name, axes) not in self._found:
            found = [self._one(key, microbatch, axes) for key, microbatch in self._of.addends(module.name, axes)]
            other = (fate for fate in found if fate is not Fate.SUMMED)
            self._found[module.name, axes] = next(other, Fate.SUMMED if found else Fate.EITHER)
        return self._found[module.name, axes]

    def _one(self, key: Key, microbatch: int, axes: frozenset[str]) -> Fate:
        source = self._source(key, microbatch)
        if source is None:
            return self._around(key, microbatch, axes)
        gradient = self._of.gradient(gradient_key(source.key), microbatch)
        if gradient is not None and gradient.right:
            return Fate.SUMMED
        if gradient is not None and gradient.partial and axes <= gradient.axes:
            return Fate.EITHER if gradient.lone else self._further(source, axes)
        fates = self._fitting(key, source) if source.is_clear else None
        if fates is None:
            return Fate.EITHER
        if Fate.SUMMED in fates:
            return Fate.SUMMED
        return Fate.EITHER if len(fates) > 1 else next(iter(fates), Fate.CHANGED)

    def _further(self, source: _Tensor, axes: frozenset[str]) -> Fate:
        """The fate of addends that reached the module from which the tensor comes: that of what it returns."""
        name = source.key[0]
        if not self._of.addends(name, axes):
            return Fate.MISSING
        further = self.of(self._of.found[name], axes)
        return Fate.MISSING if further is Fate.EITHER else further

    # -- the tensor where it comes from

    def _source(self, key: Key, microbatch: int) -> _Tensor | None:
        """The tensor of a module's input as the input of the innermost module around it that takes it, or else as the
        output of another module; None: neither."""
        value, name = self._whole[key], key[0]
        same = [other for other in self._whole if other[0] != name and self._is(other, value)]
        seen = [other for other in same if self._of.needs_gradient(other, microbatch)]
        around = [other for other in seen if other[2] == "in" and is_inside(name, other[0])]
        before = [other for other in seen if other[2] == "out" and self._at(other) < self._at(key)]
        chosen = max(around, key=lambda one: one[0].count("."), default=None) or max(before, key=self._at, default=None)
        if chosen is None:
            return None
        within = chosen[2] == "in"  # else outside of the module that gives the tensor
        takers = [key, *(other for other in same if other[2] == "in" and not is_inside(name, other[0]))]
        takers = [other for other in takers if is_inside(other[0], chosen[0]) is within]
        users = [one for one in takers if not any(one[0] != o[0] and is_inside(one[0], o[0]) for o in takers)]
        returned = {other[0] for other in same if other[2] == "out"}
        return _Tensor(chosen, microbatch, users, not any(other[2] == "in" and other[0] in returned for other in same))

    def _at(self, key: Key) -> int:
        return self._time[key]

    def _is(self, key: Key, value: NDArray[numpy.float64]) -> bool:
        return key[2] in ("in", "out") and numpy.array_equal(self._whole[key], value)

    # -- which fates the gradient's numbers fit

    def _fitting(self, key: Key, source: _Tensor) -> set[Fate] | None:
        """The fates of one user's addends that explain the ranks' gradient of the tensor, if what no module returns is
        right; None: unknown."""
        if key not in source.users or any(gradient_key(user) not in self._whole for user in source.users):
            return None
        on_ranks = [self._on_rank(key, rank, source) for rank in self._of.ranks_with(source.key, source.microbatch)]
        if not on_ranks or None in on_ranks:
            return None
        fits = [fit for fit in on_ranks if fit is not None]
        found = set()
        if set.intersection(*({other for fate, other in fit if fate is Fate.MISSING} for fit in fits)):
            found.add(Fate.MISSING)
        kept = [{fate for fate, _ in fit} - {Fate.MISSING} for fit in fits]
        if all(kept):
            found.add(Fate.SUMMED if all(Fate.SUMMED in fates for fates in kept) else Fate.LOST)
        return found

    def _on_rank(self, key: Key, rank: int, source: _Tensor) -> set[tuple[Fate, tuple[Fate, ...]]] | None:
        """The fates of one user's addends that fit on a rank, each with those of the tensor's other users; None if
        something is not known."""
        index = self._of.index(source.key, source.microbatch, rank)
        found = self._of.part(gradient_key(source.key), source.microbatch, rank)
        if index is None or found is None:
            return None
        whole, scale = self._whole[gradient_key(source.key)], self._of.scale_of(source.key, source.microbatch, rank)
        rest = whole - sum(self._whole[gradient_key(user)] for user in source.users)
        found = found - scale * _match.take(rest, index)
        others: list[dict[Fate, NDArray[numpy.float64]]] = []
        for user in [key, *(user for user in source.users if user != key)]:
            choice = self._choice(user, source.microbatch, rank, index, scale)
            if choice is None:
                return None
            others.append(choice)
        top = abs(scale) * _match.largest(whole)
        return {
            (fates[0], fates[1:])
            for fates in self._combinations(others)
            if _match.close(sum(c[f] for c, f in zip(others, fates)) + 0 * found, found, self._of.bound, top)
        }

    def _combinations(self, choices: Sequence[dict[Fate, NDArray[numpy.float64]]]) -> list[tuple[Fate, ...]]:
        """One fate for each user; if there are many users, those with addends have the same one."""
        if sum(len(choice) > 1 for choice in choices) <= _MOST:
            return list(itertools.product(*choices))
        return [tuple(fate if fate in choice else next(iter(choice)) for choice in choices) for fate in _ENDS]

    def _choice(
        self, user: Key, microbatch: int, rank: int, index: _match.Index, scale: float
    ) -> dict[Fate, NDArray[numpy.float64]] | None:
        """What a user adds to a rank's gradient of the tensor, by the fate of its addends. What is no addend is added
        unchanged."""
        whole = self._whole[gradient_key(user)]
        own = self._of.part(gradient_key(user), microbatch, rank)
        at = self._of.index(user, microbatch, rank)
        gradient = self._of.gradient(gradient_key(user), microbatch)
        if own is None or at is None:
            return None
        placed = numpy.zeros_like(whole)
        placed[numpy.ix_(*at) if at else ()] = own
        added = _match.take(placed, index)
        if gradient is None or not gradient.partial:
            return {Fate.SUMMED: added}
        return {
            Fate.SUMMED: scale * _match.take(whole, index),
            Fate.MISSING: added,
            Fate.LOST: numpy.zeros_like(added),
        }

    # -- if the tensor is not seen where it comes from

    def _around(self, key: Key, microbatch: int, axes: frozenset[str]) -> Fate:
        """The fate as far as the gradient of the input of the module around shows it: ranks with the same gradient, or
        of which one has the right one, have no addends in it."""
        parent = self._of.parent(key[0])
        gradients = [] if parent is None else self._of.found[parent].gradients.get("gin", [])
        if not gradients:
            return Fate.EITHER
        if all(gradient.partial and axes <= gradient.axes and not gradient.lone for gradient in gradients):
            return Fate.MISSING
        changed = any(gradient.wrong and (gradient.partly or axes <= gradient.identical) for gradient in gradients)
        return Fate.CHANGED if changed else Fate.EITHER
