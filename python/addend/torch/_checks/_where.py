"""Finds the first module that is wrong: compares each module's inputs, outputs and the gradients of both, on all ranks
together, with those of one process."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy

from addend.torch._checks import _match, _words
from addend.torch._checks._axes import Axes
from addend.torch._checks._factors import Factors
from addend.torch._checks._fates import Fate, Fates
from addend.torch._checks._report import Begins
from addend.torch._checks._trace import Key, Record, gradient_key, is_inside, value_key

if TYPE_CHECKING:
    from numpy.typing import NDArray

Nothing: frozenset[str] = frozenset()
MISSING, LOST = "missing sum", "lost gradient"  # readings of addends that are not summed, or do not arrive


@dataclasses.dataclass
class Module:
    """What a module's tensors are on all ranks, over all calls and microbatches."""

    name: str
    values: dict[str, list[_match.Value | None]] = dataclasses.field(default_factory=dict)  # kinds: in, out
    gradients: dict[str, list[_match.Gradient]] = dataclasses.field(default_factory=dict)  # kinds: gin, gout
    forward: int = -1  # position of its output in one process's record
    backward: int = -1  # position of its gradients in one process's record
    params: list[str] = dataclasses.field(default_factory=list)  # its own parameters whose addends are wrong
    shown: dict[str, str] = dataclasses.field(default_factory=dict)
    without: bool = False  # no rank has a gradient of its output
    keeps: bool = False  # its inputs need gradients, and no rank has one, unlike one process
    factor: float | None = None  # the output is this many times one process's; None: not a multiple

    def lost(self, kind: str) -> bool:
        """Whether one of these values could not be related to one process's value."""
        return any(value is None for value in self.values.get(kind, ()))

    def partial(self, kind: str) -> frozenset[str]:
        """The axes over which these values, or gradients, are still addends."""
        found: frozenset[str] = Nothing
        for value in self.values.get(kind, ()):
            found |= value.axes if value is not None else Nothing
        for gradient in self.gradients.get(kind, ()):
            found |= gradient.axes if gradient.partial else Nothing
        return found

    def wrong(self, kind: str) -> bool:
        return any(gradient.wrong for gradient in self.gradients.get(kind, ()))


class Modules:
    """All modules that both one process's model and the ranks' models have."""

    def __init__(
        self,
        whole: Record,
        ranks: Mapping[int, Record],
        axes: Axes,
        averaged: Mapping[int, float],
        bound: float,
        factors: Factors,
        batches: int = 1,
    ):
        self._batches = batches  # of one process; if there are several, a rank's batch i is part of batch i
        self.axes, self.bound, self.whole, self.ranks = axes, bound, whole, ranks
        self.found: dict[str, Module] = {}
        self._calls = {rank: _calls(record) for rank, record in ranks.items()}
        self._whole_calls = _calls(whole)
        self.scales: dict[tuple[int, int], float] = {}
        self._averaged, self._factors = averaged, factors
        self._values: dict[tuple[Key, int], _match.Value | None] = {}
        self._fates = Fates(self)
        self._gradients: dict[tuple[Key, int], _match.Gradient] = {}
        self._find_values()
        self._find_scales()
        self._find_gradients()
        self._find_keepers()
        self._find_times()

    # -- the same tensor on all ranks

    def _key(self, key: Key, microbatch: int) -> Key:
        """The ranks' key of one process's tensor in a microbatch."""
        name, call, kind, i = key
        alone = self._whole_calls.get(name, 0)
        if self._batches > 1 and alone and alone % self._batches == 0:  # the rank runs a batch's pieces one by one
            own = alone // self._batches
            batch, call = divmod(call, own)
            return name, call + (microbatch + batch * self.microbatches(name)) * own, kind, i
        return name, call + microbatch * alone, kind, i

    def _parts(self, key: Key, microbatch: int) -> dict[int, NDArray[numpy.float64]]:
        parts, theirs = {}, self._key(key, microbatch)
        for rank, record in self.ranks.items():
            if theirs in record.values:
                parts[rank] = record.values[theirs]
        return parts

    def microbatches(self, name: str) -> int:
        most = max((calls.get(name, 0) for calls in self._calls.values()), default=0)
        alone = self._whole_calls.get(name, 0)
        return most // alone if alone and most % alone == 0 else 0

    def _keys(self, kinds: Sequence[str]) -> Iterator[tuple[Key, int]]:
        for key in self.whole.order:
            if key[2] in kinds:
                for microbatch in range(self.microbatches(key[0])):
                    yield key, microbatch

    def module(self, name: str) -> Module:
        return self.found.setdefault(name, Module(name))

    def _find_values(self) -> None:
        """Relates all values to one process's, the last ones first: their rows differ most, which helps the others."""
        hints: dict[int, dict[int, _match.Hints]] = {}
        for key, microbatch in reversed(list(self._keys(("in", "out")))):
            parts = self._parts(key, microbatch)
            if not parts:
                continue
            whole = self.whole.values[key]
            known = hints.setdefault(microbatch, {rank: _match.Hints() for rank in self.ranks})
            value = _match.value_of(parts, whole, self.axes, self.bound, known)
            for rank, index in value.index.items() if value is not None else ():
                known[rank].add(index, whole.shape)
            self._values[key, microbatch] = value
            module = self.module(key[0])
            if value is None and (key in self.whole.unused or self._is_of_a_list(key, microbatch, parts)):
                continue
            module.values.setdefault(key[2], []).append(value)
            if value is not None and key[2] == "out":
                module.shown.setdefault(key[2], value.text(self.axes, whole.shape))
            if value is None and key[2] == "out":
                factors = [_match.factor_of(part, whole, self.bound) for part in parts.values()]
                module.factor = factors[0] if len(set(_rounded(factors))) == 1 else None

    def _is_of_a_list(self, key: Key, microbatch: int, parts: Mapping[int, NDArray[numpy.float64]]) -> bool:
        """Whether a module has as many tensors as its rows of the batch need (one for each image), so that a rank has
        one process's tensors at other positions; and each of `parts` that is used is one of them."""
        wholes, theirs = _siblings(self.whole, key), self._key(key, microbatch)
        if all(len(_siblings(self.ranks[rank], theirs)) == len(wholes) for rank in parts):
            return False
        used = {rank: part for rank, part in parts.items() if theirs not in self.ranks[rank].unused}
        return _match.among(used, wholes, self.axes, self.bound)

    def _find_scales(self) -> None:
        """Finds by what each rank's loss was multiplied, from the gradient of the model's output."""
        for key, microbatch in self._keys(("gout",)):
            value = self._values.get((value_key(key), microbatch))
            if key[0] or value is None:
                continue
            whole = self.whole.values[key]
            for rank, part in self._parts(key, microbatch).items():
                factor = _match.factor_of(part, _match.take(whole, value.index[rank]), self.bound)
                if factor:
                    self.scales.setdefault((rank, microbatch + self._batch(key)), factor)

    def _batch(self, key: Key) -> int:
        """The number of the first of the ranks' microbatches that belong to the same batch of one process as a call."""
        return key[1] * self._batches // self._whole_calls[key[0]] * self.microbatches(key[0])

    # -- what Fates asks for

    def addends(self, name: str, axes: frozenset[str]) -> list[tuple[Key, int]]:
        """The inputs of a module, each with the microbatch, whose gradients are addends over these axes."""
        return [
            (value_key(key), microbatch)
            for (key, microbatch), gradient in self._gradients.items()
            if key[0] == name and key[2] == "gin" and gradient.partial and gradient.axes & axes
        ]

    def needs_gradient(self, key: Key, microbatch: int) -> bool:
        """Whether a module's input or output has a gradient in one process and has, or needs, one on a rank."""
        own, gradient = self._key(key, microbatch), gradient_key(key)
        if gradient not in self.whole.values:
            return False
        records = list(self.ranks.values())
        lost = any(own in (record.unused if key[2] == "out" else record.ungiven) for record in records)
        return lost or bool(self._parts(gradient, microbatch))

    def gradient(self, key: Key, microbatch: int) -> _match.Gradient | None:
        return self._gradients.get((key, microbatch))

    def ranks_with(self, key: Key, microbatch: int) -> list[int]:
        return sorted(self._parts(key, microbatch))

    def index(self, key: Key, microbatch: int, rank: int) -> _match.Index | None:
        """The indices of one process's input or output that a rank has; None: unknown."""
        value = self._values.get((key, microbatch))
        return None if value is None else value.index.get(rank)

    def part(self, key: Key, microbatch: int, rank: int) -> NDArray[numpy.float64] | None:
        """A rank's gradient of a value that it has: zeros if it has none."""
        values = self.ranks[rank].values
        value = values.get(self._key(value_key(key), microbatch))
        return None if value is None else values.get(self._key(key, microbatch), numpy.zeros_like(value))

    def scale_of(self, key: Key, microbatch: int, rank: int) -> float:
        """The factor of the loss of which a rank's gradient of this value is."""
        return self.scale(rank, microbatch + self._batch(key))

    # -- about one module

    def value(self, key: Key) -> _match.Value | None:
        """What a module's input or output is on all ranks, in the first microbatch."""
        return self._values.get((key, 0))

    def scale(self, rank: int, microbatch: int) -> float:
        return self.scales.get((rank, microbatch), self._averaged[rank])

    def _find_gradients(self) -> None:
        for key, microbatch in self._keys(("gin", "gout")):
            value = self._values.get((value_key(key), microbatch))
            parts = self._parts(key, microbatch)
            if not parts and key[2] == "gout" and self._parts(value_key(key), microbatch):
                self.module(key[0]).without = True
            if value is None or not parts or any(rank not in value.index for rank in parts):
                continue
            parts.update(self._ungiven(key, microbatch, [rank for rank in value.index if rank not in parts]))
            scales = {rank: self.scale(rank, microbatch + self._batch(key)) for rank in parts}
            whole = self.whole.values[key]
            gradient = _match.gradient_of(parts, value, whole, self.axes, scales, self.bound)
            times = {rank: self.ranks[rank].passes.get(self._key(key, microbatch), 1) for rank in parts}
            if gradient.wrong and any(count > 1 for count in times.values()):
                all_passes = {rank: part * times[rank] for rank, part in parts.items()}
                again = _match.gradient_of(all_passes, value, whole, self.axes, scales, self.bound)
                gradient = gradient if again.wrong else again
            self.module(key[0]).gradients.setdefault(key[2], []).append(gradient)
            self._gradients[key, microbatch] = gradient

    def _ungiven(self, key: Key, microbatch: int, ranks: Sequence[int]) -> dict[int, NDArray[numpy.float64]]:
        """Zeros as the gradient on those of the ranks that need one and got none, while others got one."""
        theirs = self._key(value_key(key), microbatch)
        records = {rank: self.ranks[rank] for rank in ranks}
        return {
            rank: numpy.zeros_like(record.values[theirs])
            for rank, record in records.items()
            if theirs in (record.unused if key[2] == "gout" else record.ungiven)
        }

    def _find_keepers(self) -> None:
        """Finds the modules that get a gradient of their inputs in one process, and none on any rank, although the
        ranks' inputs need one."""
        lost: dict[str, bool] = {}
        for key, microbatch in self._keys(("gin",)):
            theirs = self._key(value_key(key), microbatch)
            holders = [record for record in self.ranks.values() if theirs in record.values]
            if holders and self.whole.values[key].any():
                is_lost = all(theirs in record.ungiven for record in holders)
                lost[key[0]] = lost.get(key[0], True) and is_lost
        for name, is_lost in lost.items():
            self.module(name).keeps = is_lost

    def _find_times(self) -> None:
        for time, key in enumerate(self.whole.order):
            if key[0] not in self.found:
                continue
            module = self.found[key[0]]
            if key[2] == "out":
                module.forward = time
            elif key[2] in ("gin", "gout"):
                module.backward = time
        for module in self.found.values():
            inside = [other.backward for other in self.found.values() if is_inside(other.name, module.name)]
            module.backward = max([module.backward, *inside])

    def parent(self, name: str) -> str | None:
        """The innermost module around this one that both models have."""
        while name:
            name = name.rpartition(".")[0]
            if name in self.found:
                return name
        return None

    # -- where the first error arises

    def ordered(self, phase: str) -> list[Module]:
        """The modules in the order of the phase ("forward" or "backward"); inner modules before those around them."""
        kept = [module for module in self.found.values() if getattr(module, phase) >= 0]
        return sorted(kept, key=lambda module: (getattr(module, phase), -module.name.count("."), not module.name))

    def calls(self, name: str, phase: str, axes: frozenset[str]) -> bool:
        """Whether the module itself, not a module inside it, calls a collective over these axes."""
        words = [f" over {self.axes.text(axes)}"]
        return any(
            inside == name and when == phase and what.endswith(tuple(words))
            for record in self.ranks.values()
            for inside, when, what, _ in record.collectives
        )

    def begins(
        self, place: str, module: str, text: str, axes: frozenset[str], factor: float | None, *readings: str
    ) -> Begins:
        record = next(iter(self.ranks.values()))
        inside: dict[str, None] = {}
        for where, when, what, line in record.collectives:
            if is_inside(where, module):
                inside[f"{when}, {what} ({line})"] = None
        names = tuple(name for name in self.axes.names if name in axes)
        where, collectives = record.places.get(module, ""), tuple(inside)[:8]
        return Begins(module, place, text, names, factor, where, collectives, readings=readings)

    def _outwards(self, name: str, kind: str, other: str, avoid: str) -> str:
        """The module in which a sum is missing: `name`, whose result is an addend, or a module around it, if similar
        modules show that the sum belongs there or if several modules inside it have addends."""
        while True:
            parent = self.parent(name)
            if parent is None or parent == avoid or is_inside(avoid, parent):
                return name
            around, axes = self.found[parent], self.found[name].partial(kind)
            if not axes & around.partial(kind) or axes & around.partial(other) or around.wrong(kind):
                return name
            if not self._outer_sums(name, parent, kind):
                return name
            name = parent

    def _outer_sums(self, name: str, parent: str, kind: str) -> bool:
        axes, own = self.found[name].partial(kind), self._identical(name)
        if any(self.settled(other, kind) for other in own):
            return False
        for other in own:
            around = self.parent(other)
            if axes & self.found[other].partial(kind) and around is not None and self.settled(around, kind):
                return True
        inside = [m for m in self.found.values() if self.parent(m.name) == parent and axes & m.partial(kind)]
        return len(inside) > 1

    def settled(self, name: str, kind: str) -> bool:
        """Whether these tensors of a module are known, right, and need no further sum."""
        module = self.found[name]
        if not (module.values if kind in ("in", "out") else module.gradients).get(kind):
            return False
        return not module.wrong(kind) and not module.lost(kind) and not module.partial(kind)

    def _identical(self, name: str) -> list[str]:
        """Other modules with the same class and the same last part of the name."""
        kinds = next(iter(self.ranks.values())).kinds
        last = name.rpartition(".")[2]
        return [
            other
            for other in self.found
            if other != name and other.rpartition(".")[2] == last and kinds.get(other) == kinds.get(name)
        ]

    def forward(self, is_wrong: bool = True) -> Begins | None:
        """Where the forward is first wrong: the first module whose output is neither one process's, nor a part of it,
        nor an addend; or where a sum is missing before that. `is_wrong`: whether gradients are; if they are not, rows
        of the model that are laid out otherwise, as with other padding, are no cause."""
        ordered = [module for module in self.ordered("forward") if not self._is_called_otherwise(module.name)]
        first = next((m for m in ordered if m.lost("out") and not m.lost("in")), None)
        lost = next((m for m in ordered if m.lost("in") or m.lost("out")), None)
        if first is None and lost is not None:
            first = self.found.get(self.parent(lost.name) or "")
        if first is None and not (self.found.get("") and self.found[""].partial("out")):
            return None
        end = first.forward if first is not None else len(self.whole.order)
        name = first.name if first is not None else ""
        start = self._unsummed(ordered, "forward", "out", "in", end, name)
        if start is not None:
            axes = self.found[start].partial("out")
            text = f"{self._own_part(axes)}: a sum over it is missing after `{start}`"
            return self.begins("forward", start, text, axes, None, MISSING)
        if first is None:  # the model's output is an addend, and rightly so, as a loss that it returns
            return None
        given = self._given_integers(first.name)
        if given is not None:
            return None if not is_wrong and self._other_integers("") else given
        if first.factor is not None:
            return self.begins(
                "forward",
                first.name,
                f"its output is {_words.times(first.factor)} that of one process{self._factors.text(first.factor)}",
                self._factors.axes(first.factor),
                first.factor,
            )
        text = "its inputs are those of one process, and its output is neither that, nor a part of it, nor an addend"
        return self.begins("forward", first.name, text, Nothing, None)

    def _is_called_otherwise(self, name: str) -> bool:
        """Whether a module is called with another number of tensors than in one process, as where the job's model
        computes its loss itself and is given labels and a count: its output then rightly differs."""
        records = (self.whole, *self.ranks.values())
        held = [[record.values for record in records]]
        if all(record.integers is not None for record in records):
            held.append([record.integers or {} for record in records])
        counts = [[sum(key[:3] == (name, 0, "in") for key in values) for values in some] for some in held]
        return any(count not in (0, some[0]) for some in counts for count in some[1:])

    def _given_integers(self, name: str) -> Begins | None:
        """The error, if a module gets integers or booleans that are no part of one process's, which may be why its
        output is another: the innermost module around it that gets one process's, or the model that does not."""
        text = self._other_integers(name)
        if not text:
            return None
        around = self.parent(name)
        while around is not None and self._other_integers(around):
            around = self.parent(around)
        if around is None:
            text = f"the model is given {self._other_integers('') or text}, neither one process's nor a part of them"
            axes = self._apart()
            text += f", and over {self.axes.text(axes)} ranks are given different ones" if axes else ""
            text += ": other rows, or the same in another order or with other padding, and then the error is "
            text += "after it"
            return self.begins("forward", "", text, Nothing, None)
        text = f"in it `{name}`, whose output is wrong, is given {text}, neither one process's nor a part of them"
        return self.begins("forward", around, text, Nothing, None)

    def _apart(self) -> frozenset[str]:
        """The axes over which the model is given different integers or booleans."""
        given = {
            rank: [(key, value.shape, value.tobytes()) for key, value in (record.integers or {}).items() if not key[0]]
            for rank, record in self.ranks.items()
        }

        def differ(axis: str) -> bool:
            fibres = self.axes.fibres(frozenset({axis}), sorted(given))
            return any(given[rank] != given[fibre[0]] for fibre in fibres for rank in fibre)

        return frozenset(filter(differ, self.axes.names))

    def _other_integers(self, name: str) -> str:
        """The shapes of integers and booleans that ranks' calls of a module get and that are no part of those of one
        process; "" if there are none or if one process's are unknown."""
        for key, whole in (self.whole.integers or {}).items():
            for microbatch in range(self.microbatches(name) if key[0] == name else 0):
                theirs = self._key(key, microbatch)
                held = {rank: record.integers or {} for rank, record in self.ranks.items()}
                parts = {rank: values[theirs] for rank, values in held.items() if theirs in values}
                hints = {rank: _match.Hints() for rank in parts}
                if parts and _match.value_of(parts, whole, self.axes, self.bound, hints) is None:
                    rank, part = next(iter(parts.items()))
                    return f"integers or booleans {list(part.shape)} on rank {rank}"
        return ""

    def missing(self) -> Begins | None:
        """The error, if a part of the model's output in one process is on no rank: then ranks do not have the whole
        batch. Rows that equal another row cannot be distinguished from it, and are not missing."""
        for key in self.whole.order:
            values = [v for (other, _), v in self._values.items() if other == key and v is not None]
            if key[0] or key[2] != "out" or len(values) < self.microbatches("") or any(v.axes for v in values):
                continue
            whole = self.whole.values[key]
            for dim, count in enumerate(whole.shape):
                had = {int(i) for value in values for index in value.index.values() for i in index[dim]}
                rows = numpy.moveaxis(whole, dim, 0)
                absent = [i for i in range(count) if i not in had]
                if had and absent and not any(numpy.allclose(rows[i], rows[j]) for i in absent for j in had):
                    text = f"the ranks' batches are not the whole: no rank has {len(absent)} of {count} indices "
                    text += f"along dimension {dim} of the model's output, first {absent[0]}"
                    return self.begins("forward", "", text, Nothing, None)
        return None

    def _own_part(self, axes: frozenset[str]) -> str:
        return f"on {self.axes.text(axes)} each rank has its own addend where the full value is wanted"

    def _unsummed(
        self, ordered: Sequence[Module], phase: str, kind: str, other: str, end: int, first: str
    ) -> str | None:
        """The last module before the first wrong one whose result is an addend that no module around it sums."""
        found: list[str] = []
        for module in [m for m in ordered if getattr(m, phase) <= end]:
            axes, parent = module.partial(kind), self.parent(module.name)
            if not axes or axes & module.partial(other) or module.wrong(kind) or module.lost(kind) or parent is None:
                continue
            if not self.settled(parent, kind) and self._is_unsummed(module, phase, parent):
                found.append(module.name)
        if not found:
            return None
        start = max([name for name in found if is_inside(name, found[-1])], key=lambda name: name.count("."))
        outer = self._outwards(start, kind, other, first)
        above = self.parent(outer)
        return None if above is not None and self.calls(above, phase, self.found[outer].partial(kind)) else outer

    def _is_unsummed(self, module: Module, phase: str, parent: str) -> bool:
        """Whether a module's addends may be the ones never summed, although the module around it is wrong, too."""
        if phase == "backward":
            fate = self._fates.of(module, module.partial("gin"))
            return fate in (Fate.MISSING, Fate.EITHER) and not self._is_kept(parent)
        axes, same = module.partial("out"), []
        for key, microbatch in self._values:
            if key[0] == module.name and key[2] == "out":
                same += [(other, microbatch) for other in self.whole.values if self._takes(other, key)]
        return not any(self._is_full(self._values.get(one), axes) for one in same)

    def _takes(self, key: Key, output: Key) -> bool:
        """Whether, in one process, `key` has the values of a module's `output`, as another module's input or as the
        output of one around it."""
        is_other = key[0] != output[0] and (key[2] == "in" or key[2] == "out" and is_inside(output[0], key[0]))
        return is_other and numpy.array_equal(self.whole.values[key], self.whole.values[output])

    def _is_full(self, value: _match.Value | None, axes: frozenset[str]) -> bool:
        return value is not None and not axes & value.axes

    def _is_kept(self, name: str | None) -> bool:
        """Whether this module's backward returns no gradient, or that of the next module around it that has any."""
        while name is not None and not self.found[name].keeps and not self.found[name].gradients.get("gin"):
            name = self.parent(name)
        return name is not None and self.found[name].keeps

    def loss(self) -> Begins | None:
        """The error, if losses were scaled by different factors, or by another than the wrapper's divisor."""
        off = {at: scale / self._averaged[at[0]] for at, scale in self.scales.items()}
        if not off or all(abs(factor - 1) < 1e-6 for factor in off.values()):
            return None
        if len(set(_rounded(list(off.values())))) == 1:
            factor = next(iter(off.values()))
            return self.begins(
                "loss",
                "",
                f"every rank's addends are {_words.times(factor)} what is wanted{self._factors.text(factor)}",
                self._factors.axes(factor),
                factor,
            )
        words = [f"rank {rank}'s microbatch {m}: {factor:.6g}" for (rank, m), factor in sorted(off.items())]
        text = "ranks and microbatches do not count the same; possible cause: each is divided by its own count; "
        text += "times what is wanted, " + ", ".join(words[:6]) + (", ..." if len(words) > 6 else "")
        return self.begins("loss", "", text, Nothing, None)

    def behind(self) -> Begins | None:
        """The error, if the model's output is right and the loss passes a wrong gradient to it: none that is a multiple
        of the right one, which `loss` finds, or an addend."""
        root = self.found.get("")
        if root is None or root.lost("out"):
            return None
        axes = root.partial("gout") - root.partial("out")
        given = {key: gradient for (key, _), gradient in self._gradients.items() if key[0] == "" and key[2] == "gout"}
        wrong = [key for key, gradient in given.items() if gradient.wrong]
        if not wrong and not axes:
            return None
        last = self._last(wrong[0] if wrong else next(iter(given)))
        text = f"the gradient that the loss passes to {f'`{last}`' if last else 'the output of the model'} is "
        text += "wrong" if wrong else f"on {self.axes.text(axes)} each rank's own addend: a sum is missing"
        is_lone = not wrong and any(gradient.lone for gradient in given.values())
        text += _OTHERS_LOST if is_lone else ""
        readings = () if wrong else _readings(is_lone)
        return dataclasses.replace(self.begins("loss", "", text, axes, None, *readings), module=last)

    def _last(self, key: Key) -> str:
        """The innermost module that returns this output of the model; "" if none does."""
        output = self.whole.values[value_key(key)]
        outputs = [other for other in self.whole.order if other[0] and other[2] == "out"]
        same = [other[0] for other in outputs if numpy.array_equal(self.whole.values[other], output)]
        return max(same, key=lambda name: name.count("."), default="")

    def backward(
        self, early: Mapping[str, str], late: Mapping[str, frozenset[str]], same: Collection[str] = ()
    ) -> Begins | None:
        """Where the backward is first wrong: the first module in backward order whose output's gradient is right and
        whose input's gradient is wrong. `early`: parameters whose addends are wrong; `late`: parameters whose addends
        are right, with the axes to sum over; `same`: those of the latter of which ranks have the same addends, so that
        each may also be a mean, which a module's wrong gradient shows."""
        ordered = self.ordered("backward")
        for name in early:
            owner = name.rpartition(".")[0]
            self.module(owner if owner in self.found else self.parent(owner) or "").params.append(name)
        first = next((m for m in ordered if self._first_wrong(m)), None)
        if not early and not (same and first is not None and first.wrong("gin")):
            first = None  # if all addends are right, no gradient in the backward was wrong
        upstream = self._given_addends(ordered, late)
        if first is None or (upstream is not None and upstream.backward < first.backward):
            first = upstream or first
        if first is None:
            return self._between(ordered) if early else None
        start = self._unsummed(ordered, "backward", "gin", "gout", first.backward, first.name)
        if start is not None:
            axes = self.found[start].partial("gin")
            text = f"the gradient that it returns is on {self.axes.text(axes)} each rank's own addend: a sum over it "
            text += f"is missing in the backward after `{start}`"
            is_lone = any(gradient.lone for gradient in self.found[start].gradients["gin"])
            is_either = is_lone or self._fates.of(self.found[start], axes) is Fate.EITHER
            text += (_OTHERS_LOST if is_lone else ", or it is lost or changed there") if is_either else ""
            return self.begins("backward", start, text, axes, None, *_readings(is_either))
        if first is upstream:
            return self._given_addend(first)
        inner = [
            m for m in ordered if m is not first and is_inside(m.name, first.name) and m.backward <= first.backward
        ]
        return (self._between(inner) if first.wrong("gin") else None) or self._described(first, inner)

    def _first_wrong(self, module: Module) -> bool:
        is_wrong = module.wrong("gin") or module.keeps or bool(module.params)
        return is_wrong and not module.wrong("gout") and not module.without

    def _between(self, ordered: Sequence[Module]) -> Begins | None:
        """The error, if a module's output has a wrong gradient or none, but the module around it got a right one."""
        for module in ordered:
            around = self.parent(module.name)
            if around is None or not (module.wrong("gout") or module.without) or not self.settled(around, "gout"):
                continue
            if module.without:
                text = f"the gradient of its output is right, and none comes to `{module.name}`"
                return self.begins("backward", around, text, Nothing, None, LOST)
            factors = {gradient.factor for gradient in module.gradients["gout"]}
            factor = factors.pop() if len(factors) == 1 else None
            text = f"the gradient of its output is right, the one that it passes to `{module.name}` is "
            text += "not" if factor is None else f"{_words.times(factor)} what it should be{self._factors.text(factor)}"
            lost = self._lost(ordered)
            return self.begins(
                "backward", around, text + lost, self._factors.axes(factor), factor, *[LOST] * bool(lost)
            )
        return None

    def _given_addend(self, module: Module) -> Begins | None:
        """The error, if the gradient of a module's output misses a sum: the innermost module around it whose output's
        gradient is right."""
        axes, around = module.partial("gout"), self.parent(module.name)
        while around is not None and not self.settled(around, "gout"):
            around = self.parent(around)
        if around is None:
            return self.behind()
        text = f"the gradient that it passes to `{module.name}` is on {self.axes.text(axes)} each rank's own addend: "
        text += "a sum over it is missing"
        is_lone = any(gradient.lone for gradient in module.gradients["gout"])
        text += _OTHERS_LOST if is_lone else ""
        return self.begins("backward", around, text, axes, None, *_readings(is_lone))

    def _given_addends(self, ordered: Sequence[Module], late: Mapping[str, frozenset[str]]) -> Module | None:
        """The first module with a parameter whose gradient misses a sum because the gradient of its output does."""
        owners: dict[str, set[str]] = {}
        for name, axes in late.items():
            owners.setdefault(name.rpartition(".")[0], set()).update(axes)
        return next((m for m in ordered if owners.get(m.name, set()) & m.partial("gout")), None)

    def hands_on_wrong(self) -> bool:
        """Whether any module's gradient is wrong, or is an addend that no module around it sums."""
        ordered = self.ordered("backward")
        if any(m.wrong("gin") or m.wrong("gout") or (m.keeps and not m.without) for m in ordered):
            return True
        return self._unsummed(ordered, "backward", "gin", "gout", len(self.whole.order), "") is not None

    def _lost(self, modules: Sequence[Module]) -> str:
        """That the addends of one of these modules are lost; ""."""
        lost = [module.name for module in modules if self._fates.of(module, module.partial("gin")) is Fate.LOST]
        return f"; the gradient that `{lost[-1]}` returns is lost, on some ranks or on all" if lost else ""

    def _described(self, first: Module, inner: Sequence[Module]) -> Begins:
        factors = {gradient.factor for gradient in first.gradients.get("gin", ()) if gradient.wrong}
        if len(factors) == 1 and None not in factors:
            factor = factors.pop()
            assert factor is not None
            text = "the gradient of its output is right, the one that it returns is "
            text += f"{_words.times(factor)} what it should be"
            text += self._factors.text(factor)
            return self.begins("backward", first.name, text, self._factors.axes(factor), factor)
        lost = ""
        if first.keeps:
            text = f"`{first.name}` returns no gradient" if first.name else "it returns no gradient"
            text += ": its inputs need one, have one in one process, and get none on any rank"
        elif first.wrong("gin"):
            text = "the gradient of its output is right, the one that it returns is not: "
            text += "neither the full one, nor a part, nor an addend"
            lost = self._lost(inner)
            text += lost
        else:
            names = ", ".join(f"`{name}`" for name in first.params[:3])
            text = f"the gradient of its output is right, that of {names} is not"
        return self.begins("backward", first.name, text, Nothing, None, *[LOST] * bool(lost or first.keeps))

    def tensors(self) -> dict[str, str]:
        """For each module whose output is not one process's: what the output is, in words."""
        return {m.name: m.shown["out"] for m in self.found.values() if m.shown.get("out", "whole") != "whole"}


_OTHERS_LOST = ", or the other ranks' is lost (one rank alone has more than zeros)"


def _readings(is_either: bool) -> tuple[str, ...]:
    return (MISSING, LOST) if is_either else (MISSING,)


def _siblings(record: Record, key: Key) -> list[NDArray[numpy.float64]]:
    """All tensors of the same call and kind."""
    keys = ((key[0], key[1], key[2], i) for i in itertools.count())
    return [record.values[one] for one in itertools.takewhile(record.values.__contains__, keys)]


def _calls(record: Record) -> dict[str, int]:
    found: dict[str, int] = {}
    for name, call, _, _ in record.values:
        found[name] = max(found.get(name, 0), call + 1)
    return found


def _rounded(factors: Sequence[float | None]) -> list[float | None]:
    return [None if factor is None else float(f"{factor:.6g}") for factor in factors]
