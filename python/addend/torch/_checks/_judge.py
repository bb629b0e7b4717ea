"""Judges a check: compares every parameter's gradient on every rank with that of one process."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy

import addend
from addend._kinds import UNSUMMED
from addend.torch._checks import _double, _losses, _match, _start, _words
from addend.torch._checks._addends import Dump
from addend.torch._checks._axes import Axes
from addend.torch._checks._collectives import Place
from addend.torch._checks._draws import Draw, Drawn
from addend.torch._checks._factors import Factors
from addend.torch._checks._job import STEPS, Held, Part, Task, Whole
from addend.torch._checks._places import Places
from addend.torch._checks._report import CONSTANTS, OTHERS, SAME, Begins, MatchReport, Mutant, Param
from addend.torch._checks._trace import Record
from addend.torch._checks._where import Module, Modules

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclasses.dataclass
class Found:
    """The finding on one parameter."""

    name: str
    error: float = 0.0
    text: str = ""
    unknown: bool = False
    always: str = ""  # what is wrong whatever random numbers are drawn; "": nothing
    step: int = 0  # the optimizer step after which the parameter is wrong, if its gradients are right; 0: none

    def worse(self, error: float, text: str) -> None:
        """Notes an error; the report shows the text of the first."""
        self.error = max(self.error, error)
        self.text = self.text or text


_BY_F32 = 1e-4  # the largest relative error that buffers in f32, or rounded to it, may explain
_NOISE = 1e-10  # of a gradient's largest element: smaller elements may be rounding alone


class Judge:
    """Makes the report from what all processes computed."""

    def __init__(self, task: Task, axes: Axes, whole: Whole, parts: Sequence[Part], folder: str):
        self.task, self.axes, self.whole, self.parts, self.folder = task, axes, whole, parts, folder
        self.modules: Modules | None = None
        self.factors = Factors(axes, [count for part in parts for count in (part.batches, len(part.losses))])
        self._unseen = False  # no addends were dumped
        self._narrow = {name: dtype for part in parts for name, dtype in sorted(part.narrow.items())}
        self._is_doubted = False  # of the loss or of the norm it is open whether it is wrong
        self._same: set[str] = set()  # wrong parameters of which ranks have the same addends, whose sum is right
        self.messages: list[str] = sorted(whole.said | set().union(*(part.said for part in parts)))
        self._note = ""
        self._chance, self._drawn = self._find_chance()
        self._reasons: list[str] = []  # those of the messages that say why it is wrong or open, besides parameters

    def _find_modules(self) -> Modules | None:
        records = {part.rank: part.record for part in self.parts if part.record is not None}
        if self.whole.record is None or not records:
            return None
        other = next((part for part in self.parts if part.batches != self.whole.batches), None)
        if self.whole.batches > 1 and other is not None:
            self.messages.append(
                f"modules were not compared: the whole is {self.whole.batches} batches, and rank {other.rank} has "
                f"{other.batches}, so it is unknown which of them belong together"
            )
            return None
        return self._modules(self.whole.record, records)

    def _modules(self, whole: Record, records: Mapping[int, Record]) -> Modules:
        averaged = {part.rank: part.averaged for part in self.parts}
        bound = max(self.task.bound, 1e-9)
        return Modules(whole, records, self.axes, averaged, bound, self.factors, self.whole.batches)

    def report(self) -> MatchReport:
        self.modules = self._find_modules()
        found = {name: self._param(name) for name in self.whole.weights}
        self._doubt(found)
        self._open(found)
        self._extra()
        loss, loss_ok = self._loss()
        wrong = [name for name, param in found.items() if param.text and not param.unknown]
        updates = {name: found[name].step for name in wrong if found[name].step}
        wrong = [name for name in wrong if name not in updates]
        telling = [name for name in wrong if self._is_more_than_rounding(name)]
        is_sought = (wrong or not loss_ok) and not self._chance
        begins, diff = self._begins(telling or wrong, loss_ok) if is_sought else (None, None)
        if updates and begins is None:
            begins = self._update(updates)
        unreached = tuple(name for name in self._unreached() if not found[name].text)
        shown = {*self._compared, *unreached}
        params = tuple(self._reported(param, diff, unreached) for param in found.values() if param.name in shown)
        norm_ok = self._norm()
        is_open = bool(self._chance) and (self._is_doubted or any(param.unknown for param in found.values()))
        if is_open:
            self._blame(self._chance)
        elif self._chance:
            self.messages.append(self._note)
        modules = self.modules.tensors() if self.modules is not None else {}
        judged = [param.ok for param in params if param.name not in unreached]
        ok: bool | None = False not in judged and loss_ok and norm_ok and not self._others
        if ok and (not judged or None in judged or self._is_doubted):
            ok = None
        factor = None if self._chance else self._common_factor()
        return MatchReport(
            ok=ok,
            world=self.axes.size(),
            mesh=str(self.axes),
            loss=loss,
            loss_alone=self.whole.loss,
            bound=self.task.bound,
            params=params,
            begins=begins,
            tensors=modules,
            unreached=unreached,
            factor=factor,
            causes=tuple(self.factors.causes(factor)),
            mutants=() if is_open else self._mutants(),
            messages=tuple(self.messages),
            reasons=tuple(self._reasons),
            diff=diff,
            drawn=self._drawn,
        )

    def _blame(self, text: str) -> None:
        self.messages.append(text)
        self._reasons.append(text)

    def _is_more_than_rounding(self, name: str) -> bool:
        return name in self.whole.gradients and _match.largest(self.whole.gradients[name]) >= self.whole.floor

    # -- parameters

    @property
    def _compared(self) -> list[str]:
        """The names of all parameters that have a gradient in the one process or on a rank."""
        return [name for name in self.whole.weights if name in self.whole.gradients or self._somewhere(name)]

    def _unreached(self) -> list[str]:
        """The names of trained parameters that no gradient reaches: it is none or zero, in one process and on all
        ranks."""
        trained = {name for part in self.parts for name, one in part.params.items() if one.trained}
        return [name for name in self.whole.weights if name in trained and not self._reached(name)]

    def _reached(self, name: str) -> bool:
        held = [part.params[name] for part in self.parts if name in part.params]
        found = [self.whole.gradients.get(name), *(gradient for one in held for gradient in one.gradients)]
        return any(gradient is not None and gradient.any() for gradient in found)

    def _common_factor(self) -> float | None:
        """The one factor by which all gradients are wrong in the first step; None: there is none."""
        factors: list[float | None] = []
        for name, right in self.whole.gradients.items():
            if not right.any() or not self._is_more_than_rounding(name):
                continue
            for one in (part.params[name] for part in self.parts if name in part.params):
                gradient = one.gradients[0]
                if one.index is None or gradient is None:
                    return None
                wanted = _match.take(right, one.index)
                if wanted.any():
                    factors.append(_match.factor_of(gradient, wanted, self.task.bound))
        first = factors[0] if factors else None
        if first is None or abs(first - 1) <= max(self.task.bound, 1e-9):
            return None
        return first if all(f is not None and abs(f - first) <= 1e-6 * abs(first) for f in factors) else None

    def _somewhere(self, name: str) -> bool:
        return any(g is not None for part in self.parts if name in part.params for g in part.params[name].gradients)

    def _param(self, name: str) -> Found:
        found, right = Found(name), self.whole.gradients.get(name)
        held = {part.rank: part.params[name] for part in self.parts if name in part.params}
        if not held:
            found.always = self._absent(name)
            found.worse(math.inf, found.always)
            return found
        if right is None:
            if self._somewhere(name):
                found.worse(math.inf, "one process has no gradient for it, but the ranks have one")
            return found
        for rank, one in held.items():
            if one.index is None:
                found.unknown = True
                found.worse(math.inf, self._no_part(name, rank, one))
                return found
        for step in range(STEPS):
            self._compare(found, right, held, step)
        self._after(found, name, held)
        return found

    def _absent(self, name: str) -> str:
        return f"no rank has a parameter of this name{self._renamed()}"

    def _renamed(self) -> str:
        others = sorted({other for part in self.parts for other in part.params if other not in self.whole.weights})
        listed = ", ".join(others[:4]) + ", ..." * (len(others) > 4)
        return f"; those that one process does not have: {listed}" if others else ""

    def _no_part(self, name: str, rank: int, one: Held) -> str:
        shape = list(self.whole.weights[name].shape)
        return (
            f"rank {rank}'s weights {list(one.shape)} are no part of those of one process {shape}: parallelize must "
            "shard the weights that it is given, not make new ones"
        )

    def _compare(self, found: Found, right: NDArray[numpy.float64], held: dict[int, Held], step: int) -> None:
        scale = max(_match.largest(right), self.whole.floor) or 1.0
        late = f", in step {step + 1}" if step and not found.text else ""
        self._cover(found, right, held)
        for rank, one in held.items():
            assert one.index is not None
            gradient, wanted = one.gradients[step], _match.take(right, one.index)
            if gradient is None:
                if wanted.any():
                    found.worse(math.inf, f"no gradient on rank {rank}{late}")
                continue
            error = _error(gradient, wanted) / scale
            if error > self.task.bound:
                found.worse(error, f"off by {error:.2g} of the largest on rank {rank}{late}")
            found.error = max(found.error, error)
        self._replicas(found, held, step, late)

    def _cover(self, found: Found, right: NDArray[numpy.float64], held: dict[int, Held]) -> None:
        """Notes an error if some elements of the parameter are on no rank."""
        covered = numpy.zeros(right.shape, dtype=bool)
        for one in held.values():
            if one.index:
                covered[numpy.ix_(*one.index)] = True
        if right.ndim and not covered.all():
            found.always = f"no rank has {int((~covered).sum())} of its {covered.size} elements"
            found.worse(math.inf, found.always)

    def _replicas(self, found: Found, held: dict[int, Held], step: int, late: str) -> None:
        """Notes an error if ranks with the same part of the parameter have different bits in the gradient."""
        first: dict[tuple[bytes, ...], int] = {}
        for rank, one in held.items():
            gradient = one.gradients[step]
            if gradient is None or one.index is None:
                continue
            other = first.setdefault(tuple(part.tobytes() for part in one.index), rank)
            theirs = held[other].gradients[step]
            if theirs is not None and gradient.tobytes() != theirs.tobytes():
                text = f"replicas on ranks {other} and {rank} are not the same bits"
                found.always = found.always or text
                found.worse(0.0, f"{text}{late}")

    def _after(self, found: Found, name: str, held: dict[int, Held]) -> None:
        """Notes an error if the parameter is wrong after a step of the optimizer. Elements whose gradient is only
        rounding are left out: an optimizer that divides by the gradient's size makes any number of it."""
        for step, wanted in enumerate(self.whole.after):
            for rank, one in held.items():
                if one.index is None or step >= len(one.after) or name not in wanted:
                    continue
                right = _match.take(wanted[name], one.index)
                reported = self._is_reported(name, one)
                scale = _match.largest(wanted[name]) or 1.0
                error = _error(numpy.where(reported, one.after[step], right), right) / scale
                if error > self.task.bound:
                    found.step = found.step or (0 if found.text else step + 1)
                    found.worse(
                        error,
                        f"its gradient is right, and it is off by {error:.2g} on rank {rank} after step {step + 1}",
                    )

    def _is_reported(self, name: str, one: Held) -> NDArray[numpy.bool_]:
        """Whether an element's gradient, of one process and of the rank, is more than rounding, or exactly zero."""
        assert one.index is not None
        right = _match.take(self.whole.gradients[name], one.index)
        own = next((gradient for gradient in one.gradients if gradient is not None), None)
        zero = (right == 0) if own is None or own.shape != right.shape else (right == 0) & (own == 0)
        part = max(_NOISE, self.whole.narrow_error)  # with operations without f64, that is their rounding
        noise = part * max(_match.largest(self.whole.gradients[name]), self.whole.floor)
        reported: NDArray[numpy.bool_] = zero | (numpy.abs(right) > noise)
        return reported

    def _extra(self) -> None:
        self._others = False
        renamed = self._renamed()
        aliases = {alias for names in self.whole.aliases.values() for alias in names}
        others = {name for part in self.parts for name in part.params if name not in self.whole.weights}
        if others & aliases:
            self._blame(f"tied in one process and not on the ranks: {', '.join(sorted(others & aliases))}")
            self._others = True
        if others - aliases:
            self._blame(f"parameters that were not compared{renamed[1:]}")
            self._others = True

    # -- random numbers

    def _find_chance(self) -> tuple[str, str]:
        """(that differences may come from random numbers, of which the ranks draw others than one process, and what to
        do; "": they may not; what the ranks draw)"""
        alone = self.whole.drawn
        every = [step for steps in (alone or [], *(part.drawn for part in self.parts)) for step in steps]
        first = next((draw for step in every for draw in step.draws), None)
        if first is None:
            return "", ""
        other = next(((part.rank, draw) for part in self.parts for draw in _other_draws(alone, part.drawn)), None)
        if other is None:
            what = _draw_text(first)
            self.messages.append(f"numbers are drawn in the step ({what}), the same on all ranks as in one process")
            return "", SAME
        rank, draw = other
        what = _draw_text(draw)
        if self._has_constants():
            self.messages.append(
                f"rank {rank} draws other numbers than one process ({what}): here, a constant is in place of each"
            )
            return "", CONSTANTS
        self._note = f"numbers are drawn in the step, on rank {rank} others than in one process ({what})"
        text = f"rank {rank} drew other numbers than one process ({what}): cannot tell whether differences come from "
        text += "these. Draw with one generator of the same seed, for the rows of the whole batch, of which a rank "
        return f"{text}takes its own; or draw nothing in the check (dropout off, model.eval())", OTHERS

    def _has_constants(self) -> bool:
        """Whether a constant took the place of each number that was drawn, in the same calls as in one process."""
        alone = self.whole.drawn
        if not self.task.is_constant or alone is None:
            return False
        steps = [(step, alone[max(i - STEPS + 1, 0)]) for part in self.parts for i, step in enumerate(part.drawn)]
        is_same = all(own.repeats(theirs) or not (own.draws or theirs.draws) for own, theirs in steps)
        return is_same and all(own.is_constant and theirs.is_constant for own, theirs in steps)

    def _open(self, found: Mapping[str, Found]) -> None:
        """Leaves open what may come from random numbers that the ranks draw otherwise than one process. Ranks' replicas
        of a gradient have the same bits whatever is drawn."""
        for param in found.values() if self._chance else ():
            if param.always:
                param.text, param.step = param.always, 0
            elif param.text and not param.unknown:
                param.unknown = True
                param.text += "; cannot tell: the ranks drew other random numbers than one process"

    # -- buffers that the ranks have in f32, or that may have been in f32

    def _doubt(self, found: Mapping[str, Found]) -> None:
        """Leaves errors open that are no larger than those that the rounding of the ranks' buffers may make."""
        why = []
        for dtype in sorted(set(self._narrow.values())):
            names = [name for name, other in self._narrow.items() if other == dtype]
            listed = ", ".join(f"`{name}`" for name in names[:3]) + ", ..." * (len(names) > 3)
            if dtype:
                self.messages.append(f"the ranks have buffers in {dtype}, and one process has none: {listed}")
                why.append(f"buffer `{names[0]}` is {dtype} in the ranks")
            else:
                off = f"up to {_double.MANY_ULPS} units of f32's last place off"
                self.messages.append(f"buffers in the ranks are {off}, by rounding or by a mistake: {listed}")
                why.append(f"buffer `{names[0]}` is {off} in the ranks, by rounding or by a mistake")
        for param in found.values():
            if self._is_small(param.error) and param.text:
                param.unknown = True
                param.text += f"; cannot tell: {'; '.join(why)}"

    def _is_near(self, error: float) -> bool:
        return error <= self.task.bound or self._is_small(error)

    def _is_small(self, error: float) -> bool:
        return bool(self._narrow) and self.task.bound < error <= _BY_F32

    # -- losses and norms

    def _loss(self) -> tuple[float | None, bool]:
        """(the ranks' loss, whether it is right or left open). A scalar loss is right if a sum or a mean of the ranks'
        and microbatches' gives that of one process; numerators are right if they add up to it. Losses that no backward
        reached count where there are no others; that these are wrong is left open, for they may be a validation's."""
        has_backward = any(part.losses for part in self.parts)
        is_counted = self.whole.count is not None
        seen = {part.rank: (part.losses if has_backward else part.further, part.averaged) for part in self.parts}
        losses = {
            rank: [loss / (averaged if is_counted else 1.0) for loss in some]
            for rank, (some, averaged) in seen.items()
            if some
        }
        if not losses:
            why = "`run` never called `loss`" if self.task.run is not None else "no rank has a microbatch"
            self.messages.append(f"the losses were not compared: {why}")
            return None, True
        alone, every = self.whole.loss, list(_losses.readings(losses, self.axes, self.whole.terms))
        is_sum = is_counted and not any(part.returned for part in self.parts)
        best = _losses.nearest([reading for reading in every if not (is_sum and reading.mean)], alone)
        error = best.error(alone)
        if error <= self.task.bound:
            return best.values[0], True
        value, doubt, mean = best.values[0], "", _losses.nearest(every, alone)
        ours, one = _words.apart(value, alone)
        if not has_backward:
            doubt = f"`loss` was seen without a backward alone, and is {ours}, in one process {one}: cannot tell "
            doubt += "whether it is the step's or a validation's"
        elif not self._chance and not self._is_small(error) and self._is_near(mean.error(alone)):
            value = mean.total
            doubt = f"the losses add up to {value:.9g}, in one process to {one}, and their mean over {mean.mean} is "
            doubt += "that of one process: cannot tell whether `loss` returns numerators that are too large or the job "
            doubt += "divides by hand. Return plain numerators, and give what the job divides by as averaged="
        is_open = bool(doubt) or self._is_small(error) or bool(self._chance)
        self._is_doubted |= is_open
        # of numerators by which all gradients are too large the factor is reported, with its causes
        if doubt and (not has_backward or self._common_factor() is None):
            self._blame(doubt)
        return value, is_open

    def _norm(self) -> bool:
        norms = {norm for part in self.parts for norm in part.norms}
        if not norms:
            return True
        right = math.sqrt(sum(float((gradient**2).sum()) for gradient in self.whole.gradients.values()))
        off = [norm for norm in norms if not abs(norm - right) <= self.task.bound * right]  # true of a NaN, too
        if off and (self._chance or all(self._is_small(abs(norm - right) / (right or 1.0)) for norm in off)):
            self._is_doubted, off = True, []
        if off:
            ours, alone = _words.apart(off[0], right)
            times = f": {_words.times(off[0] / right)}" if right else ""
            self._blame(f"the gradients' norm that `norm` gives is {ours}, in one process {alone}{times}")
        return not off

    # -- where the first error arises

    def _update(self, updates: Mapping[str, int]) -> Begins:
        """The error, if all gradients are right and parameters are not after a step of the optimizer."""
        first = min(updates.values())
        names = [name for name, step in updates.items() if step == first]
        are = "is" if len(names) == 1 else "are"
        count = f"{len(names)} of {_words.parameters(len(self._compared))}"
        wrong = f"after step {first}, {count} {are} not{', among them' if len(names) > 1 else ':'} `{names[0]}`"
        if first == 1:
            return Begins("", "optimizer", f"the gradients are those of one process, {wrong}", step=first)
        why = self._parted(first - 1) or "the gradients of this step, or the update"
        text = f"after step {first - 1} all parameters are those of one process, {wrong}: {why}"
        return Begins("", "optimizer", text, step=first)

    def _parted(self, step: int) -> str:
        """That ranks have different values of what is one parameter in one process after a step of the optimizer, as
        far as forwards show it; ""."""
        pairs = dict.fromkeys(pair for part in self.parts for pair in part.parted.get(step, ()))
        reported = [f"`{a}` and `{b}` are one parameter in one process and differ on the ranks" for a, b in pairs]
        more = f" (and {len(reported) - 1} more such pair{'s' * (len(reported) > 2)})" if len(reported) > 1 else ""
        return f"{reported[0]} after step {step}{more}" if reported else ""

    def _begins(self, wrong: Sequence[str], loss_ok: bool) -> tuple[Begins | None, addend.DiffReport | None]:
        late, early, diff = self._addends(wrong)
        begins = self._search(early, _unsummed(late, diff), loss_ok)
        if begins is not None and begins.place == "forward":
            begins = self._loaded(begins)
        if begins is not None and self.modules is not None:
            begins = Places(self.modules).narrowed(begins)
        if begins is None and late:
            begins = self._reduction(late, diff)
        if begins is None and not loss_ok:
            ours, alone = _words.apart(self._loss()[0] or 0.0, self.whole.loss)
            begins = Begins("", "loss", f"the ranks' is {ours}, that of one process {alone}")
        return begins, diff

    def _addends(
        self, wrong: Sequence[str]
    ) -> tuple[dict[str, frozenset[str]], dict[str, str], addend.DiffReport | None]:
        """(wrong parameters whose addends are right, with the axes to sum over; those whose addends are wrong; the diff
        report on the former)"""
        folder = os.path.join(self.folder, "dump")
        refused = next((part.no_dump for part in self.parts if part.no_dump), "")
        if refused or not os.path.isdir(folder):
            self._unseen = True
            self.messages.append(f"addends were not seen: {refused or 'nothing was dumped'}")
            absent: dict[str, frozenset[str]] = {name: frozenset() for name in wrong if not self._somewhere(name)}
            return absent, {name: "" for name in wrong if name not in absent}, None
        dump = Dump(folder, self.whole, self.parts, self.axes)
        found = {name: dump.wanted(name, self.task.bound) for name in self.whole.gradients}
        fits = {name: wanted for name, wanted in found.items() if wanted is not None}
        late = {name: fits[name] for name in wrong if name in fits}
        early = {name: "" for name in wrong if name not in fits}
        self._same = {name for name, wanted in late.items() if dump.same(name, wanted, self.task.bound)}
        # the right ones too: whether all parameters carry a factor shows what made it
        diff = dump.diff(fits, os.path.join(self.folder, "wrong")) if late else None
        return late, early, diff

    def _search(self, early: dict[str, str], late: dict[str, frozenset[str]], loss_ok: bool) -> Begins | None:
        if self.modules is None:
            return None
        is_wrong = bool(early or late)
        found = (self.modules.forward(is_wrong) or self.modules.missing()) if early or not loss_ok else None
        if found is None and early:
            found = self.modules.loss() or self.modules.behind()
        return (
            found
            or (self._unseen_sums(early) if self._unseen else None)
            or self.modules.backward(early, late, self._same)
        )

    def _loaded(self, begins: Begins) -> Begins:
        """The first parameter or buffer whose values were not one process's before the first step, if with one
        process's values the output of the first wrong module is right: its error comes from them. Else `begins`."""
        mended = {part.rank: part.mended for part in self.parts if part.mended is not None}
        module = self.modules.found.get(begins.module) if self.modules is not None else None
        if self.whole.record is None or not mended or module is None or not module.lost("out"):
            return begins
        again = self._modules(self.whole.record, mended).found.get(begins.module)
        if again is None or not again.values.get("out") or again.lost("out") or again.partial("out"):
            return begins
        names = self._others_before(module)
        others = {part.rank: part.others[names[0]] for part in self.parts if names[0] in part.others}
        listed = ", ".join(f"`{name}`" for name in names[1:4]) + ", ..." * (len(names) > 4)
        more = f"; nor are those of {listed}" if listed else ""
        where = f"`{begins.module}`" if begins.module else "the model"
        text = (
            f"{_start.text(others)}{more}; so the ranks train another model: with one process's values {where} gives "
        )
        return Begins(names[0].rpartition(".")[0], "loaded", f"{text}what one process does", param=names[0])

    def _others_before(self, module: Module) -> list[str]:
        """The parameters and buffers whose values were not one process's: those in the module or, if there are none,
        those of modules before it; in order."""
        every = {name for part in self.parts for name in part.others}
        ordered = [name for name in self.whole.weights if name in every]
        ordered += sorted(every - {*ordered})
        inside = _start.inside(module.name, ordered, self.whole.aliases)
        found = self.modules.found if self.modules is not None else {}
        owners = {name: found.get(name.rpartition(".")[0]) for name in ordered}
        before = [name for name, owner in owners.items() if owner is not None and owner.forward < module.forward]
        return inside or before or ordered

    def _unseen_sums(self, wrong: Mapping[str, str]) -> Begins | None:
        """Decides without addends: if parameters of several modules are wrong but no module passes on a wrong gradient,
        the sums of their gradients are wrong."""
        owners = {name.rpartition(".")[0] for name in wrong}
        if self.modules is None or len(owners) < 2 or self.modules.hands_on_wrong():
            return None
        name = next(iter(wrong))
        text = f"no module returns a wrong gradient, and {len(wrong)} parameters have one, first `{name}`"
        return Begins(name.rpartition(".")[0], "reduction", text)

    def _reduction(self, late: dict[str, frozenset[str]], diff: addend.DiffReport | None) -> Begins:
        name = next(iter(late))
        count = _words.parameters(len(late))
        text = f"{count} whose addends are right, first `{name}`"
        axes: tuple[str, ...] = tuple(axis for axis in self.axes.names if axis in late[name])
        factor = None
        reported = next((param for param in (diff.params if diff else ()) if not param.ok and param.name in late), None)
        if reported is not None:
            text = f"{count} whose addends are right, `{reported.name}`: {reported.text}"
            name, factor = reported.name, reported.factor
            axes = tuple((reported.axis or "").replace(",", " ").split())
        owner = name.rpartition(".")[0]
        return Begins(owner, "reduction", text, axes, factor)

    def _reported(self, found: Found, diff: addend.DiffReport | None, unreached: Sequence[str]) -> Param:
        if found.name in unreached:
            return Param(found.name, None, None, "no gradient reached it")
        if not found.text:
            return Param(found.name, True, found.error)
        reported = next(
            (param for param in (diff.params if diff else ()) if param.name == found.name and not param.ok), None
        )
        text = f"{found.text}; {reported.text}" if reported is not None else found.text
        cause = reported.cause if reported is not None else None
        possible = reported.possible_causes if reported is not None else ()
        return Param(found.name, None if found.unknown else False, found.error, text, cause, possible)

    # -- mutants

    def _mutants(self) -> tuple[Mutant, ...]:
        found: dict[tuple[Place, str], Mutant] = {}
        for part in self.parts:
            for (place, operator), noticed in part.noticed.items():
                seen = part.collectives.get(place)
                key = (place, operator)
                before = found.get(key)
                if before is None or (noticed and not before.noticed) or not before.collective:
                    what, where = (seen.what, seen.where) if seen else ("", "")
                    old = before.noticed if before else ""
                    found[key] = Mutant(what, place.axes, place.number, operator, noticed or old, where)
        return tuple(found.values())


def _unsummed(late: dict[str, frozenset[str]], diff: addend.DiffReport | None) -> dict[str, frozenset[str]]:
    """Those of the parameters whose gradient misses a sum, as far as `diff` shows: where an addend is summed another
    number of times than expected, no sum before it is missing."""
    found = {param.name: param for param in (diff.params if diff is not None else ())}
    kinds = {name: {found[name].kind, *(cause.kind for cause in found[name].possible_causes)} for name in found}
    return {name: axes for name, axes in late.items() if name not in kinds or kinds[name] & UNSUMMED}


def _other_draws(alone: Sequence[Drawn] | None, drawn: Sequence[Drawn]) -> Iterator[Draw]:
    """The first draw of each of a rank's steps that is not one process's. `alone`: the steps of one process, the first
    of which is compared with STEPS of the rank's; None: unknown."""
    for i, step in enumerate(drawn):
        at = max(i - STEPS + 1, 0)
        theirs = alone[at] if alone is not None and at < len(alone) else Drawn()
        other = step.differs(theirs)
        if other is not None:
            yield other


def _draw_text(draw: Draw) -> str:
    return f"{draw.name}, {draw.where}" if draw.where else draw.name


def _error(found: NDArray[numpy.float64], right: NDArray[numpy.float64]) -> float:
    if found.shape != right.shape:
        return math.inf
    if not found.size:
        return 0.0
    with numpy.errstate(invalid="ignore", over="ignore"):
        worst = float(numpy.abs(found - right).max())
    return worst if math.isfinite(worst) else math.inf
