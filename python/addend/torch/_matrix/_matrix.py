"""`matrix` and `matrix_cells`: models by layouts by numbers of microbatches."""

from __future__ import annotations

import dataclasses
import functools
import os
import time
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple, Union

import torch

import addend
from addend.torch._matrix import _architectures, _bugs, _known, _own, _reproduce, _run, _show, _transformers
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


@dataclasses.dataclass(frozen=True)
class MatrixReport:
    """One outcome for each cell. str() gives the table."""

    outcomes: Tuple[Outcome, ...]
    known: Tuple[Outcome, ...] = ()  # those of the outcomes that a file says are known and accepted
    seconds: float = 0.0

    @property
    def new(self) -> Tuple[Outcome, ...]:
        """The outcomes that are not known."""
        known = set(map(id, self.known))
        return tuple(outcome for outcome in self.outcomes if id(outcome) not in known)

    @property
    def ok(self) -> Optional[bool]:
        """False if a cell is wrong that is not known, or did not notice a planted mistake; None if one cannot be
        judged, or if none was tried."""
        verdicts = {outcome.verdict for outcome in self.new}
        if WRONG in verdicts or self.survivors:
            return False
        tried = any(outcome.verdict != NOT_TRIED for outcome in self.outcomes)
        return True if tried and not verdicts & {CANNOT_TELL, CANNOT_RUN} else None

    @functools.cached_property
    def bugs(self) -> Tuple[_bugs.Bug, ...]:
        """Each different mistake of the wrong cells that are not known, once."""
        return tuple(_bugs.bugs(self.outcomes, self.known))

    @property
    def survivors(self) -> Tuple[Outcome, ...]:
        """The outcomes of cells in which a planted mistake that changes something was not noticed."""
        return tuple(outcome for outcome in self.outcomes if outcome.survivors)

    def reproduce(self, folder: Union[str, os.PathLike[str]]) -> Tuple[List[str], List[str]]:
        """Writes a program for each bug; returns their paths, and why others have none: programs are of Transformers'
        architectures alone."""
        paths, without = [], []
        for bug in self.bugs:
            try:
                paths.append(_reproduce.write(bug, folder))
            except addend.InvalidError as error:
                without.append(str(error))
        return paths, without

    @property
    def document(self) -> Dict[str, Any]:
        """The report as `addend torch-matrix --json` prints it."""
        return _show.document(self)

    def __str__(self) -> str:
        return _show.table(self)


def _source(model: Model) -> Source:
    if isinstance(model, Mapping):
        return _own.Own(str(model.get("name", "job")), model)
    name = os.fspath(model)
    if name.endswith(".py"):
        return _own.Own(os.path.splitext(os.path.basename(name))[0], _own.read(name))
    return _transformers.Transformers(_architectures.architectures() if name == ALL else [name])


def _layouts(source: Source, model: str, asked: Optional[Sequence[Wanted]]) -> Sequence[Layout]:
    """A model's layouts: all that it declares, or those that are asked for, each once."""
    declared = source.layouts(model)
    if asked is None:
        return declared
    found: Dict[Tuple[str, str], Layout] = {}
    for one in asked:
        same = [layout for layout in declared if layout.fits(one)] or _undeclared(source, one)[0]
        found.update({(layout.name, layout.variant): layout for layout in same})
    return list(found.values())


def _undeclared(source: Source, wanted: Wanted) -> Tuple[List[Layout], List[str]]:
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


class Matrix:
    """The cells of a matrix, and where each one's job comes from."""

    def __init__(
        self,
        models: Sequence[Model],
        layouts: Optional[Sequence[Wanted]] = None,
        microbatches: Sequence[int] = MICROBATCHES,
    ):
        if not models:
            raise addend.InvalidError("name at least one model: an architecture of Transformers, or a Python file")
        torch.set_num_threads(1)  # no thread exists yet: cells are forked from this process
        self._of: Dict[str, Source] = {}
        self.refused: List[Outcome] = []
        placed: List[Tuple[int, int, Cell]] = []
        for source in map(_source, models):
            for model in source.models:
                if model in self._of:
                    raise addend.InvalidError(f"`{model}` is named twice: give each model a name of its own")
                self._of[model] = source
                placed += self._cells(source, model, layouts, microbatches)
        self.cells = [cell for _, _, cell in sorted(placed, key=lambda one: one[:2])]
        _need(layouts or (), list(dict.fromkeys(self._of.values())), self.cells)

    def _cells(
        self, source: Source, model: str, asked: Optional[Sequence[Wanted]], microbatches: Sequence[int]
    ) -> List[Tuple[int, int, Cell]]:
        """A model's cells, with their places in the order: by the number of microbatches, then by layout."""
        try:
            layouts = _layouts(source, model, asked)
        except addend.InvalidError:
            raise
        except Exception as error:  # a framework's own, of one architecture of many
            cell = Cell(model, Layout({}, variant="no layout"), 1)
            self.refused.append(Outcome(cell, CANNOT_RUN, f"{type(error).__name__}: {error}"))
            return []
        return [
            (microbatches.index(count) if count in microbatches else 0, j, Cell(model, layout, count))
            for j, layout in enumerate(layouts)
            for count in source.counts(layout, microbatches)
        ]

    def run(self, cells: Sequence[Cell], **options: Any) -> List[Outcome]:
        """Runs cells; the options are those of `_run.run`."""
        return _run.run(lambda cell, folder: self._of[cell.model].job(cell, folder), cells, **options)


def matrix(
    *models: Model,
    layouts: Optional[Sequence[Wanted]] = None,
    microbatches: Sequence[int] = MICROBATCHES,
    minutes: Optional[float] = None,
    timeout: float = 120.0,
    jobs: int = 1,
    plant: bool = False,
    known: Union[str, os.PathLike[str], None] = None,
    told: Callable[[Outcome, int, int], None] = lambda outcome, done, all_of: None,
) -> MatrixReport:
    """Compares models under layouts, with several numbers of microbatches, with one process each: one verdict a cell.

        report = addend.torch.matrix("qwen3_moe", "llama")
        assert report.ok, report

    models: an architecture of Transformers, a folder with a configuration, "transformers" for all architectures with
        a plan, a Python file or a dictionary with the functions that `check` takes (docs/torch-matrix.md)
    layouts: sizes of axes, or names of layouts, as [{"tp": 2}, {"fsdp": 2, "ep": 2}, "no_sync"]; None: all that a model
        declares
    microbatches: the numbers of microbatches, those that show most first
    minutes: no further cell is begun after so long
    timeout: seconds after which a cell is ended
    jobs: the number of cells at the same time; each has as many processes as its layout has ranks
    plant: plant mistakes in each cell that matches (rules of plans, hooks, collectives), and say which are not noticed
    known: a file with what is known and accepted
    told: told(outcome, done, all_of) is called after each cell
    """
    start = time.monotonic()
    accepted = _known.read(known) if known is not None else None
    made = Matrix(models, layouts, microbatches)
    done = 0

    def tell(outcome: Outcome) -> None:
        nonlocal done
        done += 1
        told(outcome, done, len(made.cells))

    outcomes = (
        *made.refused,
        *made.run(made.cells, jobs=jobs, timeout=timeout, minutes=minutes, plant=plant, told=tell),
    )
    those = tuple(outcome for outcome in outcomes if accepted is not None and accepted.has(outcome))
    return MatrixReport(outcomes, those, time.monotonic() - start)


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
    *models: Model,
    layouts: Optional[Sequence[Wanted]] = None,
    microbatches: Sequence[int] = MICROBATCHES,
    timeout: float = 120.0,
) -> List[MatrixCell]:
    """The cells of `matrix`, one test each.

    @pytest.mark.parametrize("cell", addend.torch.matrix_cells("qwen3_moe", layouts=[{"tp": 2}]), ids=str)
    def test_layout(cell):
        cell()
    """
    made = Matrix(models, layouts, microbatches)
    cells = [*(outcome.cell for outcome in made.refused), *made.cells]
    return [MatrixCell(made, cell, timeout) for cell in cells]
