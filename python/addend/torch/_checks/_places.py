"""Finds which of the job's calls in the first wrong module is wrong: an autograd Function, a conversion of a DTensor or
a collective. For that it finds the call's inputs and outputs among the inputs and outputs of modules."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy

from addend.torch._checks import _match
from addend.torch._checks._calls import sites
from addend.torch._checks._report import Begins
from addend.torch._checks._trace import Call, Key, gradient_key
from addend.torch._checks._where import Modules, Nothing

if TYPE_CHECKING:
    from numpy.typing import NDArray

_MOST = 4  # number of calls that a report names
_BACK = {"in": "gin", "out": "gout"}


class State(NamedTuple):
    """What some gradients are on all ranks together."""

    wrong: bool
    axes: frozenset[str]  # axes over which the gradients are still addends

    @property
    def right(self) -> bool:
        return not self.wrong and not self.axes


@dataclasses.dataclass
class Site:
    """A line of the job that makes a call, with its calls on all ranks."""

    name: str
    where: str
    module: str
    calls: dict[int, list[Call]]
    before: list[Key] = dataclasses.field(default_factory=list)  # modules' values that are its inputs
    after: list[Key] = dataclasses.field(default_factory=list)  # modules' values that are its outputs
    alone: bool = True  # whether the inputs have no other users, which would add to their gradients

    @property
    def firsts(self) -> dict[int, Call]:
        """The first call on each rank."""
        return {rank: calls[0] for rank, calls in self.calls.items()}

    @property
    def first(self) -> Call:
        return next(iter(self.firsts.values()))

    def over(self, axes: str, phase: str) -> bool:
        """Whether the call runs a collective over these axes in this phase ("forward" or "backward")."""
        return any(
            what.endswith(f" over {axes}")
            for some in self.calls.values()
            for call in some
            for what in getattr(call, phase)
        )

    @property
    def ranks(self) -> bool:
        """Whether the call involves other ranks."""
        return any(call.ranks or call.forward or call.backward for some in self.calls.values() for call in some)

    def link(self, key: Key, side: str, values: dict[Key, NDArray[numpy.float64]]) -> None:
        """Notes a module's value as input (`side` "before") or output ("after"), if the first rank's calls have it."""
        value, gradient = values[key], values.get(gradient_key(key))
        calls = next(iter(self.calls.values()))
        call = next((call for call in calls if _has(call.takes if side == "before" else call.gives, value)), None)
        if call is None:
            return
        back = call.gradients if side == "before" else call.gradients_given
        same = gradient is None or not back or _has(back, gradient)
        if side == "before":
            self.before.append(key)
            self.alone = self.alone and same
        elif same:
            self.after.append(key)

    def __str__(self) -> str:
        words = [self.where]
        for phase in ("forward", "backward") if not self.first.plain else ():
            inside = dict.fromkeys(getattr(self.first, phase))
            words += [f"in its {phase} {', '.join(inside)}"] if inside else []
        return f"{self.name} ({'; '.join(words)})"


class Places:
    """Looks for the wrong call in a module and in its parent."""

    def __init__(self, modules: Modules) -> None:
        self.modules = modules

    def narrowed(self, begins: Begins) -> Begins:
        """`begins` with the calls that may be the wrong one; if one is wrong for sure, only with that."""
        if begins.place not in ("forward", "backward"):
            return begins
        here = self._sites(begins.module)
        around = self.modules.parent(begins.module) if begins.module else None
        beside = self._sites(around) if around is not None else []
        beside = [site for site in beside if any(key[0] == begins.module for key in (*site.before, *site.after))]
        reported = {str(site): self._begins_in(site, begins) for site in here + beside}
        named = [text for text, begins_in in reported.items() if begins_in]
        if not named:
            named = [str(site) for site in here if site.ranks and reported[str(site)] is None]
            named = named if len(named) > 1 else []  # a single call that was not seen to be wrong is not named
        return dataclasses.replace(begins, calls=tuple(named[:_MOST]))

    # -- inputs and outputs of calls

    def _sites(self, module: str | None) -> list[Site]:
        found: dict[tuple[str, str, str], Site] = {}
        for rank, record in self.modules.ranks.items():
            for (inside, name, where), calls in sites(record.calls).items():
                if inside == module:
                    found.setdefault((inside, name, where), Site(name, where, inside, {})).calls[rank] = calls
        for site in found.values():
            self._link(site)
        return list(found.values())

    def _link(self, site: Site) -> None:
        record = self.modules.ranks[next(iter(site.calls))]
        for key in record.order:
            side = self._side(site.module, key)
            if side:
                site.link(key, side, record.values)

    def _side(self, module: str, key: Key) -> str:
        """Whether a value can only be an input ("before") or an output ("after") of calls in `module`; "": neither."""
        name, kind = key[0], key[2]
        if name not in self.modules.found or kind not in _BACK:
            return ""
        if name == module:
            return "before" if kind == "in" else "after"
        if self.modules.parent(name) == module:
            return "after" if kind == "in" else "before"
        return ""

    # -- whether the first error arises in a call

    def _begins_in(self, site: Site, begins: Begins) -> bool | None:
        """Whether the error arises in this call; None: unknown."""
        return self._forward(site, begins) if begins.place == "forward" else self._backward(site, begins)

    def _forward(self, site: Site, begins: Begins) -> bool | None:
        found = self.modules.found
        if not site.before or any(found[key[0]].lost(key[2]) for key in site.before):
            return None
        if any(found[key[0]].lost(key[2]) for key in site.after):
            return True
        missing = frozenset(begins.axes)
        for keys in (site.before, site.after):
            missing &= frozenset().union(*(found[key[0]].partial(key[2]) for key in keys))
        sums = site.over(self.modules.axes.text(missing), "forward")
        return True if missing and not sums else None

    def _backward(self, site: Site, begins: Begins) -> bool | None:
        adds = self._adds(site)
        if adds is not None:
            return not adds
        kept = any(key[2] == "in" and self.modules.found[key[0]].keeps for key in site.before)
        if not site.before or not site.alone or kept:
            return None
        given, handed_back = self._given(site), self._state(site.before)
        if given is not None and given.wrong:
            return False
        missing = frozenset(begins.axes) & handed_back.axes if begins.factor is None else Nothing
        if given is None:
            return None
        if (handed_back.wrong or missing) and self._hands_back_a_copy(site):
            return False  # the error comes from another user of its input
        if handed_back.wrong or missing:
            return True
        return False if handed_back.right else None

    # -- gradients of a call's inputs and outputs

    def _state(self, keys: Sequence[Key]) -> State:
        """What the gradients of these values are on all ranks."""
        wrong, axes = False, Nothing
        for key in keys:
            module = self.modules.found[key[0]]
            wrong = wrong or module.wrong(_BACK[key[2]]) or (key[2] == "out" and module.without)
            axes |= module.partial(_BACK[key[2]])
        return State(wrong, axes)

    def _given(self, site: Site) -> State | None:
        """What the gradient of the call's output is; None: unknown."""
        state = self._state(site.after) if site.after else self._given_a_copy(site)
        if state is not None and state.axes and site.first.reported_whole:
            return State(True, Nothing)
        return state

    def _given_a_copy(self, site: Site) -> State | None:
        """The same for a call whose output equals its input: compares with the gradient of the input's value."""
        key, calls = site.before[0], site.firsts
        if any(not _replicas(call) or len(call.gradients_given) != 1 for call in calls.values()):
            return None
        found = self._compared({rank: call.gradients_given[0] for rank, call in calls.items()}, key)
        return None if found is None else State(found.wrong, found.axes if found.partial else Nothing)

    def _hands_back_a_copy(self, site: Site) -> bool:
        """Whether the call's output equals its input, and its backward returns one process's gradient of its output."""
        calls = site.firsts
        if not site.after or any(not _replicas(call) or len(call.gradients) != 1 for call in calls.values()):
            return False
        found = self._compared({rank: call.gradients[0] for rank, call in calls.items()}, site.after[0])
        return found is not None and found.right

    def _compared(self, parts: dict[int, NDArray[numpy.float64]], key: Key) -> _match.Gradient | None:
        """What these gradients are, as gradients of a module's input or output; None: unknown."""
        value, whole = self.modules.value(key), self.modules.whole.values.get(gradient_key(key))
        if value is None or whole is None or set(parts) - set(value.index):
            return None
        scales = {rank: self.modules.scale(rank, 0) for rank in parts}
        return _match.gradient_of(parts, value, whole, self.modules.axes, scales, self.modules.bound)

    # -- calls that sum over ranks, which can be judged without modules

    def _adds(self, site: Site) -> bool | None:
        """For a call that sums over ranks: whether its backward returns the gradient of the sum unchanged, as the
        gradient of an addend must be. None: it is no such call, or the gradient of its output is not right."""
        calls = list(site.firsts.values())
        if any(len(call.gradients_given) != 1 or len(call.gradients) != 1 for call in calls):
            return None
        if not self._is_sum(site.firsts) or not self._is_given_right(site):
            return None
        pairs = [(call.gradients[0], call.gradients_given[0]) for call in calls]
        return all(_match.close(back, given, self.modules.bound, _match.largest(given)) for back, given in pairs)

    def _is_sum(self, calls: dict[int, Call]) -> bool:
        """Whether, over some axes, the calls' outputs are the sum of their inputs."""
        if any(len(call.gives) != 1 or not call.takes for call in calls.values()):
            return False
        taken = {rank: call.takes[0] for rank, call in calls.items()}
        given = {rank: call.gives[0] for rank, call in calls.items()}
        return any(self._sums_over(some, taken, given) for some in self.modules.axes.subsets())

    def _sums_over(
        self, some: frozenset[str], taken: dict[int, NDArray[numpy.float64]], given: dict[int, NDArray[numpy.float64]]
    ) -> bool:
        for fibre in self.modules.axes.fibres(some, sorted(taken)):
            total = _match.summed(taken, fibre) if len(fibre) > 1 else None
            if total is None:
                return False
            scale = _match.largest(total)
            if not all(_match.close(given[rank], total, self.modules.bound, scale) for rank in fibre):
                return False
        return True

    def _is_given_right(self, site: Site) -> bool:
        """Whether the gradient of the call's output is known to be right."""
        if site.after:
            return self._state(site.after).right
        module = site.module
        if module not in self.modules.found or not self.modules.settled(module, "gout"):
            return False
        for rank, call in site.firsts.items():
            values = self.modules.ranks[rank].values
            own = [value for key, value in values.items() if key[0] == module and key[2] == "gout"]
            if not _has(own, call.gradients_given[0]):
                return False
        return True


def _has(some: Sequence[NDArray[numpy.float64]], value: NDArray[numpy.float64]) -> bool:
    return any(numpy.array_equal(one, value) for one in some)


def _replicas(call: Call) -> bool:
    """Whether the call's output equals its input."""
    return bool(call.takes) and len(call.gives) == 1 and numpy.array_equal(call.takes[0], call.gives[0])
