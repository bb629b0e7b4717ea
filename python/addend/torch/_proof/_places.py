"""Which call of the job's own is where it begins, within the module that was found: an autograd Function, a conversion
of a DTensor or a collective. What such a call takes and gives is compared with what modules take and give."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Dict, FrozenSet, List, Optional, Sequence, Tuple

import numpy

from addend.torch._proof import _match
from addend.torch._proof._calls import sites
from addend.torch._proof._report import Begins
from addend.torch._proof._trace import Call, Key
from addend.torch._proof._where import Modules, Nothing

if TYPE_CHECKING:
    from numpy.typing import NDArray

_MOST = 4  # calls that are named
_BACK = {"in": "gin", "out": "gout"}


@dataclasses.dataclass
class Site:
    """One line that calls one thing, on all ranks."""

    name: str
    where: str
    module: str
    calls: Dict[int, List[Call]]
    before: List[Key] = dataclasses.field(default_factory=list)  # modules' values that it takes
    after: List[Key] = dataclasses.field(default_factory=list)  # and gives
    alone: bool = True  # whether all of the gradient of what it takes is what it hands back

    @property
    def first(self) -> Call:
        return next(iter(self.calls.values()))[0]

    def over(self, axes: str, phase: str) -> bool:
        """Whether it has a collective over these axes."""
        return any(
            what.endswith(f" over {axes}")
            for some in self.calls.values()
            for call in some
            for what in getattr(call, phase)
        )

    @property
    def ranks(self) -> bool:
        """Whether it has to do with other ranks."""
        return any(call.ranks or call.forward or call.backward for some in self.calls.values() for call in some)

    def __str__(self) -> str:
        words = [self.where]
        for phase in ("forward", "backward") if not self.first.plain else ():
            inside = dict.fromkeys(getattr(self.first, phase))
            words += [f"in its {phase} {', '.join(inside)}"] if inside else []
        return f"{self.name} ({'; '.join(words)})"


class Places:
    """The calls in a module, and in what is around it."""

    def __init__(self, modules: Modules) -> None:
        self.modules = modules

    def narrowed(self, begins: Begins) -> Begins:
        """With the calls that it may be; where one is for sure, with this alone."""
        if begins.place not in ("forward", "backward"):
            return begins
        here = self._sites(begins.module)
        around = self.modules.parent(begins.module) if begins.module else None
        beside = self._sites(around) if around is not None else []
        beside = [site for site in beside if any(key[0] == begins.module for key in (*site.before, *site.after))]
        certain = [site for site in here + beside if self._is_it(site, begins)]
        if certain:
            return dataclasses.replace(begins, calls=tuple(str(site) for site in certain[:_MOST]))
        possible = [site for site in here if site.ranks and not self._is_not(site, begins)]
        if len(possible) < 2:
            return begins  # one alone that is not seen to be wrong is not named
        return dataclasses.replace(begins, calls=tuple(str(site) for site in possible[:_MOST]))

    # -- what a call is given and gives

    def _sites(self, module: Optional[str]) -> List[Site]:
        found: Dict[Tuple[str, str, str], Site] = {}
        for rank, record in self.modules.ranks.items():
            for (inside, name, where), calls in sites(record.calls).items():
                if inside == module:
                    found.setdefault((inside, name, where), Site(name, where, inside, {})).calls[rank] = calls
        for site in found.values():
            self._link(site)
        return list(found.values())

    def _link(self, site: Site) -> None:
        rank, calls = next(iter(site.calls.items()))
        record = self.modules.ranks[rank]
        for key in record.order:
            if key[0] not in self.modules.found or key[2] not in _BACK:
                continue
            own, child = key[0] == site.module, self.modules.parent(key[0]) == site.module and key[0] != site.module
            value = record.values[key]
            if (own and key[2] == "in") or (child and key[2] == "out"):
                call = next((call for call in calls if _has(call.takes, value)), None)
                if call is not None:
                    site.before.append(key)
                    gradient = record.values.get(_gradient(key))
                    if call.gradients and gradient is not None and not _has(call.gradients, gradient):
                        site.alone = False
            if (own and key[2] == "out") or (child and key[2] == "in"):
                call = next((call for call in calls if _has(call.gives, value)), None)
                gradient = record.values.get(_gradient(key))
                if call is not None and (
                    gradient is None or not call.gradients_given or _has(call.gradients_given, gradient)
                ):
                    site.after.append(key)

    def _states(self, keys: Sequence[Key]) -> Tuple[bool, FrozenSet[str]]:
        """(whether gradients of these are wrong, the axes over which they are addends)"""
        wrong, axes = False, Nothing
        for key in keys:
            module = self.modules.found[key[0]]
            wrong = wrong or module.wrong(_BACK[key[2]]) or (key[2] == "out" and module.without)
            axes |= module.pending(_BACK[key[2]])
        return wrong, axes

    # -- whether it is where it begins

    def _is_it(self, site: Site, begins: Begins) -> bool:
        if begins.place == "forward":
            return self._forward(site, begins)
        if self._adds(site) is not None:
            return self._adds(site) is False
        if not site.before or not site.alone:
            return False
        wrong, axes = self._states(site.before)
        given = self._given(site)
        if given is None or given[0] or (given[1] and site.first.told_whole):
            return False
        if wrong:
            return True
        missing = frozenset(begins.axes) & axes
        return bool(missing) and begins.factor is None and not self._sums(site, missing)

    def _adds(self, site: Site) -> Optional[bool]:
        """Whether a call that sums over ranks, and is given the right gradient of the sum, hands it back as it is, as
        an addend's has to be. None: it is no such call."""
        calls = {rank: calls[0] for rank, calls in site.calls.items()}
        if any(len(call.gradients_given) != 1 or len(call.gradients) != 1 for call in calls.values()):
            return None
        if not self._is_sum(calls) or not self._is_given_right(site, calls):
            return None
        given = [(call.gradients_given[0], call.gradients[0]) for call in calls.values()]
        return all(_match.close(back, got, self.modules.bound, _match.largest(got)) for got, back in given)

    def _is_sum(self, calls: Dict[int, Call]) -> bool:
        axes, bound = self.modules.axes, self.modules.bound
        if any(len(call.gives) != 1 or not call.takes for call in calls.values()):
            return False
        shapes = {array.shape for call in calls.values() for array in (call.takes[0], call.gives[0])}
        if len(shapes) != 1:
            return False
        for some in axes.subsets():
            fibres = axes.fibres(some, sorted(calls))
            totals = {rank: _total([calls[other].takes[0] for other in fibre]) for fibre in fibres for rank in fibre}
            if all(len(fibre) > 1 for fibre in fibres) and all(
                _match.close(calls[rank].gives[0], total, bound, _match.largest(total))
                for rank, total in totals.items()
            ):
                return True
        return False

    def _is_given_right(self, site: Site, calls: Dict[int, Call]) -> bool:
        """Whether what a call is given is the right gradient of a module's input, or of its own module's output."""
        if site.after:
            wrong, axes = self._states(site.after)
            return not wrong and not axes
        module = site.module
        if module not in self.modules.found or not self.modules.settled(module, "gout"):
            return False
        for rank, call in calls.items():
            values = self.modules.ranks[rank].values
            own = [value for key, value in values.items() if key[0] == module and key[2] == "gout"]
            if not _has(own, call.gradients_given[0]):
                return False
        return True

    def _sums(self, site: Site, axes: FrozenSet[str]) -> bool:
        return site.over(self.modules.axes.text(axes), "backward")

    def _given(self, site: Site) -> Optional[Tuple[bool, FrozenSet[str]]]:
        """The same for the gradients that it is given; None: it cannot be told."""
        if site.after:
            return self._states(site.after)
        found = self._copy(site)
        return None if found is None else (found.wrong, found.axes if found.pending else frozenset())

    def _copy(self, site: Site) -> Optional[_match.Gradient]:
        """What a call is given that gives what it takes: the gradient of the same value."""
        name, call, kind, i = site.before[0]
        if any(not _same(call.takes, call.gives) or len(call.gradients_given) != 1 for call in _firsts(site)):
            return None
        key = (name, call, kind, i)
        value, whole = self.modules.value(key), self.modules.whole.values.get(_gradient(key))
        if value is None or whole is None or set(site.calls) - set(value.index):
            return None
        parts = {rank: calls[0].gradients_given[0] for rank, calls in site.calls.items()}
        scales = {rank: self.modules.scale(rank, 0) for rank in parts}
        return _match.gradient_of(parts, value, whole, self.modules.axes, scales, self.modules.bound)

    def _forward(self, site: Site, begins: Begins) -> bool:
        found = self.modules.found
        right = bool(site.before) and not any(found[key[0]].lost(key[2]) for key in site.before)
        if not right:
            return False
        if any(found[key[0]].lost(key[2]) for key in site.after):
            return True
        missing = frozenset(begins.axes) & frozenset().union(*(found[key[0]].pending(key[2]) for key in site.before))
        after = frozenset().union(*(found[key[0]].pending(key[2]) for key in site.after))
        return bool(missing & after) and not site.over(self.modules.axes.text(missing), "forward")

    def _is_not(self, site: Site, begins: Begins) -> bool:
        """Whether it is seen to do what is wanted of it."""
        if begins.place == "forward":
            return False
        if self._adds(site):
            return True
        if not site.before or not site.alone:
            return False
        if begins.axes and begins.factor is None and self._sums(site, frozenset(begins.axes)):
            return True
        wrong, axes = self._states(site.before)
        given = self._given(site)
        return given is not None and (given[0] or bool(given[1] and site.first.told_whole) or not (wrong or axes))


def _gradient(key: Key) -> Key:
    return (key[0], key[1], _BACK[key[2]], key[3])


def _firsts(site: Site) -> List[Call]:
    return [calls[0] for calls in site.calls.values()]


def _total(addends: Sequence[NDArray[numpy.float64]]) -> NDArray[numpy.float64]:
    found: NDArray[numpy.float64] = numpy.sum(addends, axis=0)
    return found


def _has(some: Sequence[NDArray[numpy.float64]], value: NDArray[numpy.float64]) -> bool:
    return any(numpy.array_equal(one, value) for one in some)


def _same(a: Sequence[NDArray[numpy.float64]], b: Sequence[NDArray[numpy.float64]]) -> bool:
    return len(a) >= 1 and len(b) == 1 and numpy.array_equal(a[0], b[0])
