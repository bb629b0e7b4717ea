"""Runs the cells of a matrix, each in a process of its own that is forked from this one after the imports."""

from __future__ import annotations

import dataclasses
import os
import pickle
import shutil
import signal
import sys
import tempfile
import time
import traceback
from typing import Callable, Dict, Iterator, List, Optional, Sequence, Tuple

import addend
from addend.torch._matrix import _planted
from addend.torch._matrix._cells import (
    CANNOT_RUN,
    CANNOT_TELL,
    MATCHES,
    NOT_TRIED,
    RUNS,
    WRONG,
    Cell,
    Job,
    Outcome,
)
from addend.torch._proof import _check, _ranks, check
from addend.torch._proof._report import MatchReport

_SAID = "said"  # the file in a cell's folder with what its processes print
PLANT_SECONDS = 300.0  # for which mistakes are planted in a cell
_PART = 0.45  # of a cell's time for one process, and for the ranks: the rest is for the stacks of those that hang
_LINES = 8  # of it that are shown of a cell that died

JobOf = Callable[[Cell, str], Job]  # (a cell, its folder) -> its job; called in the cell's own process


def _verdict(ok: Optional[bool]) -> str:
    return CANNOT_TELL if ok is None else MATCHES if ok else WRONG


def _why(report: MatchReport) -> str:
    """The first of: where it begins, a parameter that is wrong, another reason."""
    if report.begins is not None:
        return f"begins in `{report.begins.module}`, {report.begins.place}: {report.begins.text}"
    wrong = [param for param in report.params if not param.ok and param.name not in report.unreached]
    return f"`{wrong[0].name}`: {wrong[0].text}" if wrong else "; ".join(report.reasons[:1])


def _try(job_of: JobOf, cell: Cell, folder: str, timeout: float) -> Tuple[Outcome, Optional[Job]]:
    """What came of the cell, and the job if it ran."""
    try:
        job = job_of(cell, folder)
        if job.work is not None:
            work = job.work
            _ranks.run([f"rank {r}" for r in range(job.ranks)], lambda rank: work(rank, folder), folder, timeout)
            return Outcome(cell, RUNS), None
        report = check(**{"timeout": _PART * timeout, **job.arguments})
    except addend.AddendError as error:
        return Outcome(cell, CANNOT_RUN, str(error)), None
    except Exception as error:  # whatever a framework raises is the reason why its cell cannot run
        return Outcome(cell, CANNOT_RUN, _ranks.told(error)), None
    verdict = _verdict(report.ok)
    why = "" if verdict == MATCHES else _why(report)
    return Outcome(cell, verdict, why, report.document, str(report), job.missing, job.recipe), job


def _with_planted(outcome: Outcome, job: Optional[Job]) -> Outcome:
    """The outcome with what came of mistakes that are planted in the cell."""
    if job is None or outcome.verdict != MATCHES:
        return dataclasses.replace(outcome, unplanted="the cell does not match without a mistake")
    try:
        return dataclasses.replace(outcome, planted=_planted.planted(job, PLANT_SECONDS))
    except Exception as error:  # a framework may raise anything; the cell's own verdict stays
        told = str(error) if isinstance(error, addend.AddendError) else _ranks.told(error)
        return dataclasses.replace(outcome, unplanted=told)


def _write(outcome: Outcome, folder: str) -> None:
    path = os.path.join(folder, "outcome")
    with open(f"{path}.part", "wb") as file:
        pickle.dump(outcome, file)
    os.replace(f"{path}.part", path)


def _be_cell(job_of: JobOf, cell: Cell, folder: str, timeout: float, plant: bool) -> None:
    """The work of a cell's process, which leads a session, so that it and its ranks are ended together."""
    os.setsid()
    said = os.open(os.path.join(folder, _SAID), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(said, 1)
    os.dup2(said, 2)
    os.environ["TMPDIR"] = tempfile.tempdir = folder
    outcome, job = _try(job_of, cell, folder, timeout)
    _write(outcome, folder)  # it counts even if a planted mistake ends this process
    if plant:
        _write(_with_planted(outcome, job), folder)


class _Running:
    """A cell's process."""

    def __init__(self, job_of: JobOf, cell: Cell, timeout: float, plant: bool):
        self.cell, self.start = cell, time.monotonic()
        self.end = self.start + timeout + (PLANT_SECONDS + timeout) * plant
        self.folder = tempfile.mkdtemp(prefix="addend-matrix-")
        open(os.path.join(self.folder, _SAID), "w").close()
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if not self.pid:
            try:
                _be_cell(job_of, cell, self.folder, timeout, plant)
            except BaseException:  # as where the disk is full
                traceback.print_exc()
                os._exit(1)
            os._exit(0)

    def outcome(self) -> Optional[Outcome]:
        """What came of the cell, or None while it runs. Ends one that is past its time."""
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        late = time.monotonic() > self.end
        if not pid and not late:
            return None
        self.stop()
        seconds = time.monotonic() - self.start
        try:
            with open(os.path.join(self.folder, "outcome"), "rb") as file:
                outcome: Outcome = pickle.load(file)
        except (OSError, EOFError, pickle.UnpicklingError):
            how = f"it did not end in {self.end - self.start:g} s" if late else _died(status)
            outcome = Outcome(self.cell, CANNOT_RUN, how + self._said())
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)
        return Outcome(**{**vars(outcome), "seconds": seconds})

    def _said(self) -> str:
        with open(os.path.join(self.folder, _SAID), errors="replace") as file:
            lines = [line.strip() for line in file if line.strip()]
        return f": {' | '.join(lines[-_LINES:])}" if lines else ""

    def stop(self) -> None:
        """Ends the cell's process and all that it started."""
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):  # all have ended
            pass
        try:
            os.waitpid(self.pid, 0)
        except ChildProcessError:  # outcome() has waited for it
            pass


def _died(status: int) -> str:
    code = os.waitstatus_to_exitcode(status) if hasattr(os, "waitstatus_to_exitcode") else status
    return f"its process died (signal {-code})" if code < 0 else f"its process ended with {code} and no result"


def run(
    job_of: JobOf,
    cells: Sequence[Cell],
    *,
    jobs: int = 1,
    timeout: float = 120.0,
    minutes: Optional[float] = None,
    plant: bool = False,
    told: Callable[[Outcome], None] = lambda outcome: None,
) -> List[Outcome]:
    """Runs the cells in order, `jobs` at the same time; returns their outcomes in the same order. After `minutes` no
    further cell is begun. With `plant`, mistakes are planted in each cell that matches. `told` is called with each
    outcome when it is known."""
    _check.import_once()  # for all cells, which are forked from this process
    end = None if minutes is None else time.monotonic() + 60 * minutes
    found: Dict[int, Outcome] = {}
    waiting = list(range(len(cells)))
    running: Dict[int, _Running] = {}
    try:
        while waiting or running:
            while waiting and len(running) < jobs and (end is None or time.monotonic() < end):
                i = waiting.pop(0)
                running[i] = _Running(job_of, cells[i], timeout, plant)
            for i, outcome in list(_ended(running)):
                del running[i]
                found[i] = outcome
                told(outcome)
            if not running and end is not None and time.monotonic() >= end:
                break
            time.sleep(0.02)
    finally:
        for one in running.values():
            one.stop()
            shutil.rmtree(one.folder, ignore_errors=True)
    for i in waiting:
        found[i] = Outcome(cells[i], NOT_TRIED, f"{minutes:g} minutes were over")
    return [found[i] for i in range(len(cells))]


def _ended(running: Dict[int, _Running]) -> Iterator[Tuple[int, Outcome]]:
    for i, one in running.items():
        outcome = one.outcome()
        if outcome is not None:
            yield i, outcome
