"""Judges a check: compares every parameter's gradient on every rank with that of one process."""

from __future__ import annotations

import dataclasses
import math
import os
from typing import TYPE_CHECKING, Dict, FrozenSet, List, Mapping, Optional, Sequence, Tuple

import numpy

import addend
from addend.torch._proof import _match
from addend.torch._proof._addends import Dump
from addend.torch._proof._axes import Axes
from addend.torch._proof._job import STEPS, Held, Part, Task, Whole
from addend.torch._proof._places import Places
from addend.torch._proof._report import Begins, MatchReport, Param, Planted
from addend.torch._proof._where import Modules

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclasses.dataclass
class Found:
    """The finding on one parameter."""

    name: str
    error: float = 0.0
    text: str = ""
    unknown: bool = False

    def worse(self, error: float, text: str) -> None:
        """Notes an error; the report shows the text of the first."""
        self.error = max(self.error, error)
        self.text = self.text or text


class Judge:
    """Makes the report from what all processes computed."""

    def __init__(self, task: Task, axes: Axes, whole: Whole, parts: Sequence[Part], folder: str):
        self.task, self.axes, self.whole, self.parts, self.folder = task, axes, whole, parts, folder
        self.modules: Optional[Modules] = None
        self._unseen = False  # no addends were dumped
        self.messages: List[str] = sorted(whole.said | set().union(*(part.said for part in parts)))

    def _find_modules(self) -> Optional[Modules]:
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
        averaged = {part.rank: part.averaged for part in self.parts}
        return Modules(self.whole.record, records, self.axes, averaged, max(self.task.bound, 1e-9), self.whole.batches)

    def report(self) -> MatchReport:
        self.modules = self._find_modules()
        found = {name: self._param(name) for name in self.whole.weights}
        self._extra()
        loss, loss_ok = self._loss()
        wrong = [name for name, param in found.items() if param.text and not param.unknown]
        telling = [name for name in wrong if self._is_more_than_rounding(name)]
        begins, diff = self._begins(telling or wrong, loss_ok) if wrong or not loss_ok else (None, None)
        params = tuple(self._told(param, diff) for param in found.values() if param.name in self._compared)
        norm_ok = self._norm()
        modules = self.modules.tensors() if self.modules is not None else {}
        ok: Optional[bool] = all(param.ok for param in params) and loss_ok and norm_ok and not self._others
        if not ok and loss_ok and norm_ok and not self._others and all(param.ok is not False for param in params):
            ok = None
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
            planted=self._planted(),
            messages=tuple(self.messages),
            diff=diff,
        )

    def _is_more_than_rounding(self, name: str) -> bool:
        return name in self.whole.gradients and _match.largest(self.whole.gradients[name]) >= self.whole.floor

    # -- parameters

    @property
    def _compared(self) -> List[str]:
        """The names of all parameters that have a gradient in the one process or on a rank."""
        return [name for name in self.whole.weights if name in self.whole.gradients or self._somewhere(name)]

    def _somewhere(self, name: str) -> bool:
        return any(g is not None for part in self.parts if name in part.params for g in part.params[name].gradients)

    def _param(self, name: str) -> Found:
        found, right = Found(name), self.whole.gradients.get(name)
        held = {part.rank: part.params[name] for part in self.parts if name in part.params}
        if not held:
            found.worse(math.inf, self._absent(name))
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
        for step in range(len(STEPS)):
            self._compare(found, right, held, step)
        self._after(found, name, held)
        return found

    def _absent(self, name: str) -> str:
        return f"no rank has a parameter of this name{self._renamed()}"

    def _renamed(self) -> str:
        others = sorted({other for part in self.parts for other in part.params if other not in self.whole.weights})
        return f"; those that one process does not have: {', '.join(others[:4])}" if others else ""

    def _no_part(self, name: str, rank: int, one: Held) -> str:
        shape = list(self.whole.weights[name].shape)
        return (
            f"rank {rank}'s weights {list(one.shape)} are no part of those of one process {shape}: parallelize must "
            "shard the weights that it is given, not make new ones"
        )

    def _compare(self, found: Found, right: NDArray[numpy.float64], held: Dict[int, Held], step: int) -> None:
        scale = max(_match.largest(right), self.whole.floor) or 1.0
        late = f", in {STEPS[step]}" if step and not found.text else ""
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
        self._copies(found, held, step, late)

    def _cover(self, found: Found, right: NDArray[numpy.float64], held: Dict[int, Held]) -> None:
        """Notes an error if some elements of the parameter are on no rank."""
        covered = numpy.zeros(right.shape, dtype=bool)
        for one in held.values():
            if one.index:
                covered[numpy.ix_(*one.index)] = True
        if right.ndim and not covered.all():
            found.worse(math.inf, f"{int((~covered).sum())} of its {covered.size} elements are on no rank")

    def _copies(self, found: Found, held: Dict[int, Held], step: int, late: str) -> None:
        """Notes an error if ranks with the same part of the parameter have different bits in the gradient."""
        first: Dict[Tuple[bytes, ...], int] = {}
        for rank, one in held.items():
            gradient = one.gradients[step]
            if gradient is None or one.index is None:
                continue
            other = first.setdefault(tuple(part.tobytes() for part in one.index), rank)
            theirs = held[other].gradients[step]
            if theirs is not None and gradient.tobytes() != theirs.tobytes():
                found.worse(0.0, f"copies on ranks {other} and {rank} are not the same bits{late}")

    def _after(self, found: Found, name: str, held: Dict[int, Held]) -> None:
        for step, wanted in enumerate(self.whole.after):
            for rank, one in held.items():
                if one.index is None or step >= len(one.after) or name not in wanted:
                    continue
                right = wanted[name]
                error = _error(one.after[step], _match.take(right, one.index)) / (_match.largest(right) or 1.0)
                if error > self.task.bound:
                    found.worse(
                        error,
                        f"its gradient is right, and it is off by {error:.2g} on rank {rank} after step {step + 1}",
                    )

    def _extra(self) -> None:
        self._others = False
        renamed = self._renamed()
        aliases = {alias for names in self.whole.aliases.values() for alias in names}
        others = {name for part in self.parts for name in part.params if name not in self.whole.weights}
        if others & aliases:
            self.messages.append(f"tied in one process and not on the ranks: {', '.join(sorted(others & aliases))}")
            self._others = True
        if others - aliases:
            self.messages.append(f"parameters that were not compared{renamed[1:]}")
            self._others = True
        unused = [name for name in self.whole.weights if name not in self._compared]
        if unused:
            self.messages.append(
                f"no gradient, and none in one process: {', '.join(unused[:3])}{', ...' if unused[3:] else ''}"
            )

    # -- losses and norms

    def _loss(self) -> Tuple[Optional[float], bool]:
        """(the ranks' loss, whether it is right). It is right if there are axes over which the ranks' losses, summed or
        averaged, all give the loss of one process."""
        losses = {
            part.rank: sum(part.losses) / (part.averaged if self.whole.count is not None else 1.0)
            for part in self.parts
            if part.losses
        }
        if not losses:
            return None, True
        alone = self.whole.loss
        for some in (frozenset(), *self.axes.subsets()):
            for mean in (False, True):
                told = []
                for fibre in self.axes.fibres(some, sorted(losses)):
                    total = sum(losses[rank] for rank in fibre)
                    count = sum(len(self.parts[rank].losses) for rank in fibre)
                    told.append(total / (count if mean else 1))
                if all(abs(value - alone) <= self.task.bound * max(abs(alone), 1e-300) for value in told):
                    return told[0], True
        return sum(losses.values()) / len(losses), False

    def _norm(self) -> bool:
        norms = {norm for part in self.parts for norm in part.norms}
        if not norms:
            return True
        right = math.sqrt(sum(float((gradient**2).sum()) for gradient in self.whole.gradients.values()))
        off = [norm for norm in norms if abs(norm - right) > self.task.bound * right]
        if off:
            self.messages.append(
                f"the norm of the gradients is {off[0]:.9g}, in one process {right:.9g}: {off[0] / right:.6g} times"
            )
        return not off

    # -- where the first error arises

    def _begins(self, wrong: Sequence[str], loss_ok: bool) -> Tuple[Optional[Begins], Optional[addend.DiffReport]]:
        late, early, diff = self._addends(wrong)
        begins = self._search(early, late, loss_ok)
        if begins is not None and self.modules is not None:
            begins = Places(self.modules).narrowed(begins)
        if begins is None and late:
            begins = self._reduction(late, diff)
        if begins is None and not loss_ok:
            text = f"the ranks' is {self._loss()[0]:.9g}, that of one process {self.whole.loss:.9g}"
            begins = Begins("", "loss", text)
        return begins, diff

    def _addends(
        self, wrong: Sequence[str]
    ) -> Tuple[Dict[str, FrozenSet[str]], Dict[str, str], Optional[addend.DiffReport]]:
        """(wrong parameters whose addends are right, with the axes to sum over; those whose addends are wrong; the diff
        report on the former)"""
        folder = os.path.join(self.folder, "dump")
        refused = next((part.no_dump for part in self.parts if part.no_dump), "")
        if refused or not os.path.isdir(folder):
            self._unseen = True
            self.messages.append(f"addends were not seen: {refused or 'nothing was dumped'}")
            absent: Dict[str, FrozenSet[str]] = {name: frozenset() for name in wrong if not self._somewhere(name)}
            return absent, {name: "" for name in wrong if name not in absent}, None
        dump = Dump(folder, self.whole, self.parts, self.axes)
        late, early = {}, {}
        for name in wrong:
            wanted = dump.wanted(name, self.task.bound) if name in self.whole.gradients else None
            if wanted is None:
                early[name] = ""
            else:
                late[name] = wanted
        diff = dump.diff(late, os.path.join(self.folder, "wrong")) if late else None
        return late, early, diff

    def _search(self, early: Dict[str, str], late: Dict[str, FrozenSet[str]], loss_ok: bool) -> Optional[Begins]:
        if self.modules is None:
            return None
        found = self.modules.forward() if early or not loss_ok else None
        if found is None and early:
            found = self.modules.loss()
        return found or (self._unseen_sums(early) if self._unseen else None) or self.modules.backward(early, late)

    def _unseen_sums(self, wrong: Mapping[str, str]) -> Optional[Begins]:
        """Decides without addends: if parameters of several modules are wrong but no module passes on a wrong gradient,
        the sums of their gradients are wrong."""
        owners = {name.rpartition(".")[0] for name in wrong}
        if self.modules is None or len(owners) < 2 or self.modules.hands_on_wrong():
            return None
        name = next(iter(wrong))
        text = f"no module hands on a wrong gradient, and {len(wrong)} parameters have one, first `{name}`"
        return Begins(name.rpartition(".")[0], "reduction", text)

    def _reduction(self, late: Dict[str, FrozenSet[str]], diff: Optional[addend.DiffReport]) -> Begins:
        name = next(iter(late))
        count = "1 parameter" if len(late) == 1 else f"{len(late)} parameters"
        text = f"{count} whose addends are right, first `{name}`"
        axes: Tuple[str, ...] = tuple(axis for axis in self.axes.names if axis in late[name])
        factor = None
        told = next((param for param in (diff.params if diff else ()) if not param.ok), None)
        if told is not None:
            text = f"{count} whose addends are right, `{told.name}`: {told.text}"
            name, factor = told.name, told.factor
            axes = tuple(told.axis.replace(",", " ").split()) if told.axis else axes
        owner = name.rpartition(".")[0]
        return Begins(owner, "reduction", text, axes, factor)

    def _told(self, found: Found, diff: Optional[addend.DiffReport]) -> Param:
        if not found.text:
            return Param(found.name, True, found.error)
        told = next(
            (param for param in (diff.params if diff else ()) if param.name == found.name and not param.ok), None
        )
        text = f"{found.text}; {told.text}" if told is not None else found.text
        cause = told.cause if told is not None else None
        possible = told.possible_causes if told is not None else ()
        return Param(found.name, None if found.unknown else False, found.error, text, cause, possible)

    # -- planted mistakes

    def _planted(self) -> Tuple[Planted, ...]:
        found: Dict[Tuple[str, int, str], Planted] = {}
        for part in self.parts:
            for (place, operator), noticed in part.noticed.items():
                seen = part.collectives.get(place)
                key = (place.axes, place.number, operator)
                before = found.get(key)
                if before is None or (noticed and not before.noticed) or not before.collective:
                    what, where = (seen.what, seen.where) if seen else ("", "")
                    old = before.noticed if before else ""
                    found[key] = Planted(what, place.axes, place.number, operator, noticed or old, where)
        return tuple(found.values())


def _error(found: NDArray[numpy.float64], right: NDArray[numpy.float64]) -> float:
    if found.shape != right.shape:
        return math.inf
    if not found.size:
        return 0.0
    with numpy.errstate(invalid="ignore", over="ignore"):
        worst = float(numpy.abs(found - right).max())
    return worst if math.isfinite(worst) else math.inf
