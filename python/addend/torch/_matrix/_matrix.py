"""`matrix` and `matrix_cells`: models by layouts by numbers of microbatches."""

from __future__ import annotations

import dataclasses
import functools
import math
import os
import time
import traceback
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Callable, TypeVar, Union

import addend
from addend.torch._checks import _ranks
from addend.torch._matrix import _architectures, _bugs, _known, _own, _reproduce, _rows, _run, _show, _transformers
from addend.torch._matrix._cells import (
    CANNOT_RUN,
    CANNOT_TELL,
    MATCHES,
    NOT_TRIED,
    RUNS,
    WRONG,
    Cell,
    Layout,
    Outcome,
    Source,
    Wanted,
)

MICROBATCHES = (2, 1, 3)  # two first: most mistakes that one microbatch shows are in two as well, and others are not
ALL = "transformers"  # the word for every architecture of Transformers with a plan

Model = Union[str, "os.PathLike[str]", Mapping[str, Any]]
T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class MatrixReport:
    """One outcome for each cell. str() gives the table."""

    outcomes: tuple[Outcome, ...]
    known: tuple[Outcome, ...] = ()  # those of the outcomes that a file says are known and accepted
    seconds: float = 0.0
    notes: tuple[str, ...] = ()  # lines that say which layouts are left out for want of a package
    even: tuple[Outcome, ...] = ()  # of cells of bugs that were run once more, with a vocabulary that the ranks divide

    @property
    def new(self) -> tuple[Outcome, ...]:
        """The outcomes that are not known."""
        known = set(map(id, self.known))
        return tuple(outcome for outcome in self.outcomes if id(outcome) not in known)

    @property
    def ok(self) -> bool | None:
        """False if a cell is wrong, or a mutant of it survived; None if a cell cannot run or be judged, or if it or a
        mutant was not tried. What is known counts for neither."""
        verdicts = {outcome.verdict for outcome in self.new}
        if WRONG in verdicts or self.survivors:
            return False
        is_open = verdicts & {CANNOT_TELL, CANNOT_RUN, NOT_TRIED} or any(one.is_untested for one in self.outcomes)
        return True if self.outcomes and not is_open else None

    @functools.cached_property
    def bugs(self) -> tuple[_bugs.Bug, ...]:
        """Each different mistake of the wrong cells that are not known, once."""
        return tuple(_rows.judged(_bugs.bugs(self.outcomes, self.known), self.even))

    @property
    def survivors(self) -> tuple[Outcome, ...]:
        """The outcomes of cells in which a mutant that changes something, and is not known, survived."""
        return tuple(outcome for outcome in self.outcomes if outcome.new_survivors)

    def reproduce(self, folder: str | os.PathLike[str]) -> tuple[list[str], list[str]]:
        """Writes a program for each bug; returns their paths, and why others have none: programs are of Transformers'
        architectures alone. OSError: the folder or a file cannot be written."""
        return _reproduce.write_all(self.bugs, folder)

    @property
    def document(self) -> dict[str, Any]:
        """The report as `addend torch-matrix --json` prints it."""
        return _show.document(self)

    def __str__(self) -> str:
        return _show.table(self)


def _source(model: Model) -> Source:
    if isinstance(model, Mapping):
        return _own.Own(str(model.get("name", "job")), model)
    name = os.fspath(model)
    if name.endswith(".py"):
        return _own.Own(_name_of(model), _own.read(name))
    return _transformers.Transformers(_architectures.architectures() if name == ALL else [name])


def _name_of(model: Model) -> str:
    """What cells of the model are named by, as far as its name alone says it."""
    if isinstance(model, Mapping):
        return str(model.get("name", "job"))
    return os.path.splitext(os.path.basename(os.fspath(model)))[0] if os.fspath(model).endswith(".py") else str(model)


def _layouts(source: Source, model: str, asked: Sequence[Wanted] | None) -> Sequence[Layout]:
    """A model's layouts: all that it declares, or those that are asked for, each once."""
    declared = source.layouts(model)
    if asked is None:
        return declared
    found: dict[tuple[str, str], Layout] = {}
    for one in asked:
        same = [layout for layout in declared if layout.fits(one)] or _undeclared(source, one)[0]
        found.update({(layout.name, layout.variant): layout for layout in same})
    return list(found.values())


def _undeclared(source: Source, wanted: Wanted) -> tuple[list[Layout], list[str]]:
    """The layout that a source makes of what is asked for, if it does, and why it refuses."""
    try:
        made = source.layout(wanted)
    except addend.InvalidError as error:
        return [], [str(error)]
    return [made] if made is not None else [], []


def _need(asked: Sequence[Wanted], sources: Sequence[Source], cells: Sequence[Cell]) -> None:
    """Raises InvalidError for what is asked for and no source has, and for a source that has nothing of it."""
    unmet = [(source, one) for one in asked if not any(cell.layout.fits(one) for cell in cells) for source in sources]
    have = {cell.model for cell in cells}
    unmet += [(source, one) for source in sources if have.isdisjoint(source.models) for one in asked]
    refusals = [why for source, one in unmet for why in _undeclared(source, one)[1]]
    if refusals:
        raise addend.InvalidError("; ".join(dict.fromkeys(refusals)))


def _flat(models: Iterable[Any]) -> list[Model]:
    """The models, of which some may be in lists."""
    found: list[Model] = []
    for model in models:
        if isinstance(model, (list, tuple)):
            found += _flat(model)
        elif isinstance(model, (str, os.PathLike, Mapping)):
            found.append(model)
        else:
            raise addend.InvalidError(f"{model!r} is not a model: give a name, a file or a dictionary")
    return found


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _listed(layouts: Any) -> list[Wanted] | None:
    """The layouts that are asked for; one alone need not be in a list."""
    if layouts is None:
        return None
    found = [layouts] if isinstance(layouts, (str, Mapping)) else layouts
    if not isinstance(found, (list, tuple)) or not found:
        raise addend.InvalidError(
            f'layouts={layouts!r} must be a list of layouts, as [{{"fsdp": 2, "ep": 2}}, "no_sync"]'
        )
    for one in found:
        is_sizes = isinstance(one, Mapping) and one and all(map(_is_count, one.values()))
        if not is_sizes and not (isinstance(one, str) and one):
            raise addend.InvalidError(
                f'{one!r} in layouts must be sizes of axes, as {{"fsdp": 2, "ep": 2}}, or the name of a layout'
            )
    return list(found)


def _counts(microbatches: Any) -> list[int]:
    found = list(microbatches) if isinstance(microbatches, (list, tuple, range)) else [microbatches]
    if not found or not all(map(_is_count, found)):
        raise addend.InvalidError(
            f"microbatches={microbatches!r} must be a list of numbers of at least 1, as [2, 1, 3]"
        )
    return list(dict.fromkeys(found))


def _need_numbers(minutes: float | None, timeout: float, jobs: int = 1) -> None:
    for name, value in (("minutes", minutes), ("timeout", timeout)):
        if value is not None and not (isinstance(value, (int, float)) and 0 < value < math.inf):
            raise addend.InvalidError(f"{name}={value!r} must be a number of seconds above 0")
    if not _is_count(jobs):
        raise addend.InvalidError(f"jobs={jobs!r} must be a whole number of at least 1")


class Matrix:
    """The cells of a matrix, and where each one's job comes from."""

    def __init__(
        self,
        models: Sequence[Any],
        layouts: Any = None,
        microbatches: Any = MICROBATCHES,
        timeout: float = 120.0,
        budget: _run.Budget | None = None,
    ):
        chosen, asked, counts = _flat(models), _listed(layouts), _counts(microbatches)
        if not chosen:
            raise addend.InvalidError("name at least one model: an architecture of Transformers, or a Python file")
        self._of: dict[str, Source] = {}
        self._timeout, self._budget = timeout, budget or _run.Budget()
        self.refused: list[Outcome] = []  # of models whose cells are not known
        placed: list[tuple[int, int, Cell]] = []
        with _run.one_thread():  # cells are forked from this process
            for given in chosen:
                source = self._made(_name_of(given), functools.partial(_source, given))
                if source is None:
                    continue
                for model in source.models:
                    if model in self._of:
                        raise addend.InvalidError(f"`{model}` is named twice: give each model its own name")
                    self._of[model] = source
                    placed += self._cells(source, model, asked, counts)
        self.cells = [cell for _, _, cell in sorted(placed, key=lambda one: one[:2])]
        refused = {outcome.cell.model for outcome in self.refused}
        known = [source for source in dict.fromkeys(self._of.values()) if refused.isdisjoint(source.models)]
        _need(asked or (), known, self.cells)
        notes = (source.note(asked) for source in known)
        self.notes = tuple(dict.fromkeys(note for note in notes if note))

    def _refuse(self, model: str, verdict: str, why: str, text: str = "") -> None:
        self.refused.append(Outcome(Cell(model, Layout({}, variant="no layout"), 1), verdict, why, text=text))

    def _made(self, model: str, make: Callable[[], T]) -> T | None:
        """What make() returns. It may execute a user's file or build a model, so it is tried in another process first:
        None, and the model is refused, if that dies or does not end, or if there is no time left."""
        died = "" if self._budget.over() else _run.dies(make, self._timeout, self._budget)
        if died:
            self._refuse(model, CANNOT_RUN, f"before its layouts were known, {died}")
        elif self._budget.over():
            self._refuse(model, NOT_TRIED, self._budget.over())
        else:
            return make()
        return None

    def _cells(
        self, source: Source, model: str, asked: Sequence[Wanted] | None, microbatches: Sequence[int]
    ) -> list[tuple[int, int, Cell]]:
        """A model's cells, with their places in the order: by the number of microbatches, then by layout."""
        try:
            layouts = self._made(model, functools.partial(_layouts, source, model, asked))
        except addend.InvalidError:
            raise
        except Exception as error:  # a framework's own, of one architecture of many
            self._refuse(model, CANNOT_RUN, _ranks.reported(error), traceback.format_exc())
            return []
        return [
            (microbatches.index(count) if count in microbatches else 0, j, Cell(model, layout, count))
            for j, layout in enumerate(layouts or ())
            for count in source.counts(layout, microbatches)
        ]

    def run(self, cells: Sequence[Cell], **options: Any) -> list[Outcome]:
        """Runs cells; the options are those of `_run.run`."""
        with _run.one_thread():
            return _run.run(lambda cell, folder: self._of[cell.model].job(cell, folder), cells, **options)


def matrix(
    *models: Model | Sequence[Model],
    layouts: Wanted | Sequence[Wanted] | None = None,
    microbatches: Sequence[int] = MICROBATCHES,
    minutes: float | None = None,
    timeout: float = 120.0,
    jobs: int = 1,
    mutate: bool = False,
    known: str | os.PathLike[str] | None = None,
    progress: Callable[[Outcome, int, int], None] = lambda outcome, done, all_of: None,
    stopped: Callable[[], str] = lambda: "",
) -> MatrixReport:
    """Compares models under layouts, with several numbers of microbatches, with one process each: one verdict a cell.

    Args:
        *models: an architecture of Transformers, a folder with a configuration, "transformers" for all architectures
            with a plan, a Python file or a dictionary with the functions that `check` takes
            (python/docs/torch-matrix.md); or lists.
        layouts: sizes of axes, or names of layouts, as [{"tp": 2}, {"fsdp": 2, "ep": 2}, "no_sync"]; None: all that a
            model declares.
        microbatches: the numbers of microbatches, those that show most first.
        minutes: no further cell is begun after so long; those that are left are not tried, and `ok` is not True.
        timeout: seconds after which a cell, or what finds a model's layouts, is ended.
        jobs: the number of cells at the same time; each has as many processes as its layout has ranks.
        mutate: try mutants of each cell that matches (rules of plans, hooks, collectives), and report which survive.
        known: a file with what is known and accepted.
        progress: progress(outcome, done, all_of) is called after each cell.
        stopped: stopped() is called again and again; once it returns a reason, cells that run are ended, no other is
            begun, and the report has what is known until then.

    Returns:
        The report: outcomes of cells, bugs, mutants that survived. Its `ok` is None if cells were not tried or judged.

    Raises:
        InvalidError: a model, a layout or a number is none, or fits none of the others.

    Example:
        report = addend.torch.matrix("qwen3_moe", "llama")
        assert report.ok, report
    """
    start = time.monotonic()
    _need_numbers(minutes, timeout, jobs)
    accepted = _known.read(known) if known is not None else None
    budget = _run.Budget(minutes, stopped)
    made = Matrix(models, layouts, microbatches, timeout, budget)
    done = 0

    def report(outcome: Outcome) -> None:
        nonlocal done
        done += 1
        progress(outcome, done, len(made.refused) + len(made.cells))

    for one in made.refused:
        report(one)
    options = {"jobs": jobs, "timeout": timeout, "budget": budget, "mutate": mutate, "progress": report}
    outcomes = (*made.refused, *made.run(made.cells, **options))
    if accepted is not None:
        outcomes = tuple(map(accepted.marked, outcomes))
    those = tuple(outcome for outcome in outcomes if accepted is not None and accepted.has(outcome))
    again = _rows.cells(MatrixReport(outcomes, those).bugs)
    even = made.run(again, jobs=jobs, timeout=timeout, budget=budget) if again else ()
    return MatrixReport(outcomes, those, time.monotonic() - start, made.notes, tuple(even))


@dataclasses.dataclass(frozen=True)
class MatrixCell:
    """A cell as a test: call it."""

    matrix: Matrix
    cell: Cell
    timeout: float

    def __str__(self) -> str:
        return self.cell.name

    def __call__(self) -> Outcome:
        """Runs the cell; raises AssertionError with the report unless it matches, or runs where no more is asked."""
        refused = [one for one in self.matrix.refused if one.cell is self.cell]
        outcome = (refused or self.matrix.run([self.cell], timeout=self.timeout))[0]
        if outcome.verdict not in (MATCHES, RUNS):
            raise AssertionError(f"{self.cell.name}: {outcome.verdict}: {outcome.why}\n\n{outcome.text}")
        return outcome


def matrix_cells(
    *models: Model | Sequence[Model],
    layouts: Wanted | Sequence[Wanted] | None = None,
    microbatches: Sequence[int] = MICROBATCHES,
    timeout: float = 120.0,
) -> list[MatrixCell]:
    """The cells of `matrix`, one test each.

    Args:
        *models: as in `matrix`.
        layouts: as in `matrix`.
        microbatches: as in `matrix`.
        timeout: as in `matrix`.

    Returns:
        The cells. A call of one raises AssertionError if its ranks do not compute what one process does.

    Raises:
        InvalidError: as `matrix`.

    Example:
        @pytest.mark.parametrize("cell", addend.torch.matrix_cells("qwen3_moe", layouts=[{"tp": 2}]), ids=str)
        def test_layout(cell):
            cell()
    """
    _need_numbers(None, timeout)
    made = Matrix(models, layouts, microbatches, timeout)
    cells = [*(outcome.cell for outcome in made.refused), *made.cells]
    return [MatrixCell(made, cell, timeout) for cell in cells]
