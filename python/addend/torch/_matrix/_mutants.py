"""Makes mutants of a cell that matches, to show that its verdict kills them: each rule of the framework's plans is left
out, one at a time, and each hook and collective is made wrong."""

from __future__ import annotations

import dataclasses
import datetime
import json
import os
import pickle
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Callable

import numpy
import torch
import torch.distributed as dist

import addend
from addend.torch._checks import _check, _collectives, _double, _job, _judge, _match, _names, _ranks
from addend.torch._checks._axes import Axes, parse
from addend.torch._checks._collectives import Collectives, Place, Seen
from addend.torch._checks._job import Part, Task, Whole
from addend.torch._checks._report import MatchReport
from addend.torch._matrix._cells import NO_EFFECT, NOT_TRIED, NOTICED, SURVIVED, Job, Mutant, Rule
from addend.torch._matrix._hooks import LEFT_OUT, TWICE, Hooks, Mutation, hooks_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

_ROUNDING = (
    2e-9  # of the largest element: two gradients that differ by less, both within 1e-9 of one process, are equal
)
_WAIT = 20.0  # seconds for which ranks wait for each other in a collective: a busy machine is no hang
_LIMIT = 120.0  # seconds after which ranks with one mistake are stopped
_LOSS = "the loss"
_BEGUN = "begun\n"  # a line in the file of a rank's progress
_LINE = 200  # characters of an error that are kept

Values = dict[str, "NDArray[numpy.float64]"]


class _Rank(_job.Rank):
    """A rank that takes its steps without looking into them."""

    def _traced_step(self) -> tuple[dict[Place, Seen], str]:
        self.step()
        return {}, "a mutant is tried"

    def values(self) -> Values:
        """This rank's gradients, buffers and losses."""
        with self._whole_parameters():
            found = {
                f"`{name}`": _job.own_gradient(parameter)
                for name, parameter in self.named()
                if parameter.grad is not None
            }
        found.update(self.kept())
        found[_LOSS] = numpy.array(self.losses)
        return found

    def kept(self) -> Values:
        """The buffers."""
        buffers = _double.buffers_of(self.parts)
        return {f"buffer `{name}`": buffer.detach().numpy().copy() for name, buffer in buffers.items()}


@dataclasses.dataclass
class _Cell:
    """A cell's job and what one process computes."""

    task: Task
    axes: Axes
    whole: Whole
    folder: str
    end: float  # time.monotonic() after which no further mutant is begun

    def new_folder(self) -> str:
        """A folder for the files of one set of ranks."""
        return tempfile.mkdtemp(prefix="mutant-", dir=self.folder)

    def ranks(self, work: Callable[[int], Any], folder: str, limit: float = _LIMIT) -> list[Any]:
        """Runs work(rank) on every rank; returns their results."""
        names = [f"rank {rank}" for rank in range(self.axes.size())]

        def one(rank: int) -> Any:
            _job.join(self.axes, folder, rank, datetime.timedelta(seconds=_WAIT))
            return work(rank)

        return _ranks.run(names, one, folder, limit)

    def own_axes(self, rank: int) -> Axes:
        """The mesh, as a rank has it."""
        return Axes(self.task.mesh, rank)

    def hooked(self, rank: int, folder: str, hooks: Hooks) -> _Rank:
        """A rank of the job whose hooks are noted."""
        own: dict[str, None] = {}

        def noted() -> Any:
            model = self.task.make_model()
            own.update(hooks_of(model))
            return model

        one = _Rank(dataclasses.replace(self.task, make_model=noted), self.own_axes(rank), self.whole, folder)
        hooks.attach(one.parts, dict(one.named()), own)
        return one

    def quick(self, rule: Rule | None = None, hooks: Iterable[Mutation] = ()) -> tuple[MatchReport, Values]:
        """The report on the job without a rule of its plans, or with mistakes in hooks, and what its ranks computed."""

        folder = self.new_folder()

        def work(rank: int) -> tuple[Part, Values]:
            if rule is not None:
                rule.leave_out()
            with Hooks(hooks) as noted:
                one = self.hooked(rank, folder, noted)
                part = one.part()
            dist.barrier()
            return part, one.kept()

        found = self.ranks(work, folder)
        parts = [part for part, _ in found]
        report = _judge.Judge(self.task, self.axes, self.whole, parts, folder).report()
        return report, _assembled(self, parts, [buffers for _, buffers in found])

    def scale(self, name: str, right: NDArray[numpy.float64]) -> float:
        """Differences are relative to this: the largest element, unless that is rounding alone."""
        floor = self.whole.floor if name.strip("`") in self.whole.weights else 0.0
        return max(_match.largest(right), floor) or 1.0

    def first_change(self, found: Mapping[str, Any], right: Mapping[str, Any]) -> str:
        """The name of the first value that is not, but for rounding, what it is without a mistake; "": none."""
        for name in {**right, **found}:
            if name not in found or name not in right:
                return name
            if not _match.close(found[name], right[name], _ROUNDING, self.scale(name, right[name])):
                return name
        return ""


def mutants(job: Job, seconds: float) -> tuple[Mutant, ...]:
    """The result of each mutant of a cell that matches; no further one is begun after so many seconds."""
    rules = job.rules()
    fields = {field.name for field in dataclasses.fields(Task)}
    given = {name: value for name, value in job.arguments.items() if name in fields}
    task = Task(**{**given, "mesh": parse(given["mesh"]), "mutate": False})
    axes = Axes(task.mesh)
    _check.import_once()
    with tempfile.TemporaryDirectory(prefix="addend-mutants-", ignore_cleanup_errors=True) as folder:
        whole = _check._alone(task, axes, folder, _LIMIT)
        cell = _Cell(_job.with_bound(task, whole), axes, whole, folder, time.monotonic() + seconds)
        report, right = cell.quick()
        if not report.ok:
            raise addend.InvalidError(f"without a mistake and without a trace, the cell does not match: {report}")
        without = [_anew(cell, right, Mutant("rule", rule.name, LEFT_OUT, NOT_TRIED), rule) for rule in rules]
        return (*without, *_confirmed(cell, right, _inside(cell)))


# -- rules of plans, and hooks: the job is made anew for each


def _anew(
    cell: _Cell, right: Values, answer: Mutant, rule: Rule | None = None, hooks: Iterable[Mutation] = ()
) -> Mutant:
    """The answer, with what comes of the job with a mistake from its beginning."""
    if time.monotonic() > cell.end:
        return answer
    try:
        report, found = cell.quick(rule, hooks)
    except addend.AddendError as error:
        return dataclasses.replace(answer, result=NOTICED, by=f"cannot run: {_line(str(error))}")
    if not report.ok:
        wrong = [param for param in report.params if not param.ok and param.name not in report.unreached]
        by = f"`{wrong[0].name}`: {wrong[0].text}" if wrong else "; ".join(report.reasons[:1])
        return dataclasses.replace(answer, result=NOTICED, by=by)
    changed = cell.first_change(found, right)
    return dataclasses.replace(answer, result=SURVIVED if changed else NO_EFFECT, by=changed)


def _confirmed(cell: _Cell, right: Values, found: Sequence[Mutant]) -> list[Mutant]:
    """Hooks whose mistake has no effect from a later step on may have one from the first on, as one that puts on
    another hook: these are tried together, and one by one if together they have an effect."""
    for how in (LEFT_OUT, TWICE):
        silent = [one for one in found if (one.kind, one.how, one.result) == ("hook", how, NO_EFFECT)]
        mutations = [(one.name, one.how) for one in silent]
        if not silent or _anew(cell, right, silent[0], hooks=mutations).result == NO_EFFECT:
            continue
        again = {one: _anew(cell, right, one, hooks=[(one.name, one.how)]) for one in silent}
        found = [again.get(one, one) for one in found]
    return list(found)


def _assembled(cell: _Cell, parts: Sequence[Part], buffers: Sequence[Values]) -> Values:
    """Each parameter's gradient, put together from all ranks' parts of it, of each step, and its values after each step
    of the optimizer; and each rank's buffers."""
    found: Values = {}
    for name, weight in cell.whole.weights.items():
        held = [part.params[name] for part in parts if name in part.params]
        for which in ("gradients", "after"):
            for step in range(max((len(getattr(one, which)) for one in held), default=0)):
                whole = numpy.full(weight.shape, numpy.nan)
                for one in held:
                    values = getattr(one, which)[step]
                    if values is not None and one.index is not None:
                        whole[numpy.ix_(*one.index) if one.index else ()] = values
                found[f"`{name}`" if which == "gradients" and not step else f"`{name}`, {which} {step}"] = whole
    for rank, own in enumerate(buffers):
        found.update({f"{name} on rank {rank}": values for name, values in own.items()})
    return found


def _line(error: str) -> str:
    text = " ".join(error.split())
    return text if len(text) <= _LINE else text[: _LINE - 3] + "..."


# -- hooks and collectives: one set of ranks runs all mutants; after one that ends the ranks, new ranks are begun


@dataclasses.dataclass(frozen=True)
class _Mutation:
    """A hook or a collective, and what becomes of it."""

    kind: str
    name: str
    how: str
    place: Place | None = None


def _plan(hooks: Hooks, seen: Mapping[Place, Seen]) -> list[_Mutation]:
    """This rank's mistakes, in order."""
    found = [_Mutation("hook", name, how) for name, how in hooks.mutations]
    here = _names.caller()  # the line of a collective that the backward itself calls
    for place, one in seen.items():
        phase = "forward" if place.forward else "backward"
        where = f" ({os.path.basename(one.where)})" if one.where not in ("", here) else ""
        operators = [*_collectives.OPERATORS, *[_collectives.ACCUMULATED] * one.adds]
        name = f"{one.what} {place.number} over {place.axes} in the {phase}{where}"
        found += [_Mutation("collective", name, how, place) for how in operators]
    return found


def _everyones(own: Sequence[_Mutation]) -> list[_Mutation]:
    """The mistakes of all ranks. A collective has one name, which may differ in the line that calls it."""
    gathered: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, list(own))
    found = {(one.kind, one.place or one.name, one.how): one for some in reversed(gathered) for one in reversed(some)}
    return list(reversed(list(found.values())))


class _Mutating:
    """A rank that runs one mutant after the other."""

    def __init__(self, cell: _Cell, rank: int, folder: str):
        self.cell, self.hooks, self.folder, self.rank = cell, Hooks(), folder, rank
        self.apart: Any = dist.new_group()  # a mistake may leave collectives of the job's groups unfinished
        self.hooks.__enter__()  # for as long as this process lives
        self.job = cell.hooked(rank, folder, self.hooks)
        self.held = {name: self.job._held(name, parameter) for name, parameter in self.job.named()}
        self.job.step()
        self.right = self._values()  # a first step may put on hooks
        self.seen = self._seen()
        self.right = self._values()

    def _seen(self) -> dict[Place, Seen]:
        self.job.clear()
        with Collectives(self.cell.own_axes(self.rank), forwards=True) as mode:
            self.job.step()
        found: dict[Place, Seen] = mode.seen
        return found

    def _values(self) -> Values:
        self.job.clear()
        self.job.step()
        return self.job.values()

    def run(self, plan: list[_Mutation] | None, first: int) -> None:
        """Runs the mutants from `first` on, and writes the result of each to a file. Ends after one whose effect
        remains when it is gone."""
        if plan is None:
            plan = _everyones(_plan(self.hooks, self.seen))
            with open(os.path.join(self.folder, f"plan{self.rank}"), "wb") as file:
                pickle.dump(plan, file)
        with open(os.path.join(self.folder, f"progress{self.rank}"), "w", buffering=1) as file:
            for mutation in plan[first:]:
                if not self._agree(time.monotonic() < self.cell.end):
                    return
                file.write(_BEGUN)
                file.write(json.dumps(self._one(mutation)) + "\n")
                if not self._agree(self._is_clean()):
                    return

    def _agree(self, holds: bool) -> bool:
        """Whether it holds on all ranks."""
        flag = torch.tensor([int(holds)])
        dist.all_reduce(flag, dist.ReduceOp.MIN, group=self.apart)
        return bool(flag.item())

    def _is_clean(self) -> bool:
        """Whether a step without a mistake is what it was."""
        try:
            return not self.cell.first_change(self._values(), self.right)
        except Exception:  # whatever a framework raises
            return False

    def _one(self, mutation: _Mutation) -> tuple[str, str]:
        """(the first parameter whose gradient is not that of one process, or the loss, if it is not, or the error; what
        is not as without the mistake)"""
        self.job.clear()
        try:
            self._step(mutation)
        except Exception as error:  # whatever a framework raises
            return f"cannot run: {_line(_ranks.reported(error))}", ""
        found, right = self.job.values(), self.right
        wrong = self.job._differs(self.held)
        wrong = f"`{wrong}`" if wrong else ""
        if not _match.close(found[_LOSS], right[_LOSS], self.job.task.bound, _match.largest(right[_LOSS])):
            wrong = wrong or _LOSS
        return wrong, self.cell.first_change(found, right)

    def _step(self, mutation: _Mutation) -> None:
        if mutation.place is not None:
            mutate = (mutation.place, mutation.how)
            with Collectives(self.cell.own_axes(self.rank), None, mutate, forwards=True):
                self.job.step()
            return
        self.hooks.mutants = frozenset({(mutation.name, mutation.how)})
        try:
            self.job.step()
        finally:
            self.hooks.mutants = frozenset()


def _inside(cell: _Cell) -> list[Mutant]:
    """What came of the mistakes in hooks and collectives."""
    plan: list[_Mutation] | None = None
    found: list[Mutant] = []
    while plan is None or len(found) < len(plan):
        folder, begun = cell.new_folder(), len(found)
        ended = _mutate_from(cell, folder, plan, begun)
        if plan is None:
            plan = _read_plan(folder)
        if plan is None:
            raise addend.RankDiedError(f"hooks and collectives were not tried: {ended}")
        results, is_open = _progress(cell, folder)
        found += [_judged(plan[begun + i], one) for i, one in enumerate(results)]
        if ended and is_open:
            found.append(_answer(plan[len(found)], NOTICED, f"cannot run: {ended}"))
        if time.monotonic() > cell.end:
            found += [_answer(mutation, NOT_TRIED) for mutation in plan[len(found) :]]
        elif len(found) == begun < len(plan):
            raise addend.RankDiedError(f"hooks and collectives were not tried: {ended}")
    return found


def _mutate_from(cell: _Cell, folder: str, plan: list[_Mutation] | None, begun: int) -> str:
    """Runs ranks that try mutants from number `begun` on; returns the error that ended them, if one did."""
    try:
        limit = max(_LIMIT, cell.end - time.monotonic() + _WAIT)
        cell.ranks(lambda rank: _Mutating(cell, rank, folder).run(plan, begun), folder, limit)
    except addend.AddendError as error:
        return _line(str(error))
    return ""


def _read_plan(folder: str) -> list[_Mutation] | None:
    try:
        with open(os.path.join(folder, "plan0"), "rb") as file:
            plan: list[_Mutation] = pickle.load(file)
            return plan
    except (OSError, EOFError):
        return None


def _progress(cell: _Cell, folder: str) -> tuple[list[tuple[tuple[str, str], ...]], bool]:
    """(what came of each mistake on each rank, as far as all ranks came; whether a rank began another one)"""
    everyones = []
    is_open = False
    for rank in range(cell.axes.size()):
        try:
            with open(os.path.join(folder, f"progress{rank}")) as file:
                lines = [line for line in file if line.endswith("\n")]
        except OSError:
            lines = []
        everyones.append([tuple(json.loads(line)) for line in lines if line != _BEGUN])
        is_open |= lines[-1:] == [_BEGUN]
    return list(zip(*everyones)), is_open


def _judged(mutation: _Mutation, results: Sequence[tuple[str, str]]) -> Mutant:
    wrong = next((wrong for wrong, _ in results if wrong), "")
    changed = next((changed for _, changed in results if changed), "")
    if wrong:
        return _answer(mutation, NOTICED, wrong)
    return _answer(mutation, SURVIVED if changed else NO_EFFECT, changed)


def _answer(mutation: _Mutation, result: str, by: str = "") -> Mutant:
    return Mutant(mutation.kind, mutation.name, mutation.how, result, by)
