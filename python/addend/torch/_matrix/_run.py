"""Runs the cells of a matrix, each in its own process that is forked from this one after the imports."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pickle
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from typing import Any, Callable

import torch

import addend
from addend.torch._checks import _check, _ranks, check
from addend.torch._checks._report import OTHERS, MatchReport
from addend.torch._matrix import _mutants
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
from addend.torch._process import end_with
from addend.torch._replace import replacing

_SAID, _RESULT = "said", "result"  # the files in a process's folder with what it prints, and with its result
_ENDED = "the process that tried mutants ended"
_PAUSE = 0.02  # seconds between two looks at the processes
MUTATE_SECONDS = 300.0  # for which mutants of a cell are tried
_PART = 0.45  # of a cell's time for one process, and for the ranks: the rest is for the stacks of those that hang
_LINES = 8  # of it that are shown of a cell that died

JobOf = Callable[[Cell, str], Job]  # (a cell, its folder) -> its job; called in the cell's own process


def _verdict(ok: bool | None) -> str:
    return CANNOT_TELL if ok is None else MATCHES if ok else WRONG


def _why(report: MatchReport) -> str:
    """The first of: random numbers that leave it open, where it begins, a parameter that is wrong, another reason."""
    if report.ok is None and report.drawn == OTHERS and report.reasons:
        return report.reasons[-1]
    if report.begins is not None and report.begins.place == "loaded":
        return f"begins in `{report.begins.param}`, before the first step: {report.begins.text}"
    if report.begins is not None:
        what = f"`{report.begins.module}`" if report.begins.module else "the model itself"
        return f"begins in {what}, {report.begins.place}: {report.begins.text}"
    wrong = [param for param in report.params if not param.ok and param.name not in report.unreached]
    return f"`{wrong[0].name}`: {wrong[0].text}" if wrong else "; ".join(report.reasons[:1])


def _try(job_of: JobOf, cell: Cell, folder: str, timeout: float) -> tuple[Outcome, Job | None]:
    """What came of the cell, and the job if it ran."""
    try:
        job = job_of(cell, folder)
        if job.work is not None:
            work = job.work
            _ranks.run([f"rank {r}" for r in range(job.ranks)], lambda rank: work(rank, folder), folder, timeout)
            return Outcome(cell, RUNS, missing=job.missing), None
        report = check(**{"timeout": _PART * timeout, **job.arguments})
    except addend.AddendError as error:
        return Outcome(cell, CANNOT_RUN, str(error)), None
    except Exception as error:  # whatever a framework raises is the reason why its cell cannot run
        return Outcome(cell, CANNOT_RUN, _ranks.reported(error), text=traceback.format_exc()), None
    verdict = _verdict(report.ok)
    why = "" if verdict == MATCHES else _why(report)
    return Outcome(cell, verdict, why, report.document, str(report), job.missing, job.recipe), job


def _with_mutants(outcome: Outcome, job: Job | None) -> Outcome:
    """The outcome with the results of the cell's mutants."""
    if outcome.verdict == RUNS:  # nothing is compared
        return outcome
    if job is None or outcome.verdict != MATCHES:
        return dataclasses.replace(outcome, not_mutated="the cell does not match without a mistake")
    try:
        found = _mutants.mutants(job, MUTATE_SECONDS)
    except Exception as error:  # a framework may raise anything; the cell's own verdict stays
        why = str(error) if isinstance(error, addend.AddendError) else _ranks.reported(error)
        return dataclasses.replace(outcome, not_mutated=why)
    late = sum(one.result == NOT_TRIED for one in found)
    why = f"{late} of {len(found)} mutants were not tried in {MUTATE_SECONDS:g} s" if late else ""
    return dataclasses.replace(outcome, mutants=found, not_mutated=why)


def _put(result: Any, folder: str) -> None:
    """Leaves a result for the process that started this one."""
    with replacing(os.path.join(folder, _RESULT)) as file:
        pickle.dump(result, file)


def _be_cell(job_of: JobOf, cell: Cell, folder: str, timeout: float, mutate: bool) -> None:
    """The work of a cell's process."""
    outcome, job = _try(job_of, cell, folder, timeout)
    if not mutate:
        _put(outcome, folder)
        return
    _put(
        dataclasses.replace(outcome, not_mutated=_ENDED), folder
    )  # the verdict counts even if a mistake ends this process
    _put(_with_mutants(outcome, job), folder)


class _Process:
    """A process that does work(folder) and leaves a result. It leads a session, so that all that it starts is ended
    with it, and it ends with this process. `folder` is its own, and is deleted by `forget`."""

    def __init__(self, work: Callable[[str], None], limit: float):
        self.start = time.monotonic()
        self.end = self.start + limit
        self.folder = tempfile.mkdtemp(prefix="addend-matrix-")
        open(os.path.join(self.folder, _SAID), "w").close()
        sys.stdout.flush()
        sys.stderr.flush()
        parent = os.getpid()
        self.pid = os.fork()
        if not self.pid:
            try:
                self._be(work, parent)
            except BaseException:  # as where the disk is full
                traceback.print_exc()
                os._exit(1)
            os._exit(0)

    def _be(self, work: Callable[[str], None], parent: int) -> None:
        os.setsid()
        end_with(parent)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # this process may have its own handlers
            signal.signal(number, signal.SIG_DFL)
        said = os.open(os.path.join(self.folder, _SAID), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(said, 1)
        os.dup2(said, 2)
        os.environ["TMPDIR"] = tempfile.tempdir = self.folder
        work(self.folder)

    def ended(self) -> tuple[Any, str] | None:
        """(its result or None, how it ended: "" if by itself), or None while it runs. It is ended past its time."""
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        late = time.monotonic() > self.end
        if not pid and not late:
            return None
        self.stop()
        result = None
        with contextlib.suppress(OSError, EOFError, pickle.UnpicklingError):
            with open(os.path.join(self.folder, _RESULT), "rb") as file:
                result = pickle.load(file)
        how = _died(status) if pid else f"it did not end in {self.end - self.start:g} s"
        if result is None:
            how = how or "its process ended with 0 and no result"
        return result, how and how + self._said()

    def _said(self) -> str:
        lines = [line.strip() for line in _ranks.said_lines(os.path.join(self.folder, _SAID))]
        return f": {' | '.join(lines[-_LINES:])}" if lines else ""

    def stop(self) -> None:
        """Ends the process and all that it started."""
        for end in (os.killpg, os.kill):  # it may not lead its session yet
            with contextlib.suppress(ProcessLookupError, PermissionError):
                end(self.pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):  # `ended` may have waited for it
            os.waitpid(self.pid, 0)

    def forget(self) -> None:
        """Ends it, and deletes its folder."""
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)


class _Running:
    """A cell's process."""

    def __init__(self, job_of: JobOf, cell: Cell, timeout: float, mutate: bool):
        def work(folder: str) -> None:
            _be_cell(job_of, cell, folder, timeout, mutate)

        self.cell = cell
        self.process = _Process(work, timeout + (MUTATE_SECONDS + timeout) * mutate)

    def outcome(self) -> Outcome | None:
        """What came of the cell, or None while it runs."""
        ended = self.process.ended()
        if ended is None:
            return None
        found, how = ended
        self.process.forget()
        seconds = time.monotonic() - self.process.start
        if not isinstance(found, Outcome):
            return Outcome(self.cell, CANNOT_RUN, how, seconds=seconds)
        if found.not_mutated == _ENDED:
            found = dataclasses.replace(found, not_mutated=f"{_ENDED}: {how}")
        return dataclasses.replace(found, seconds=seconds)


def _died(status: int) -> str:
    """How a process ended; "" if with 0."""
    code = os.waitstatus_to_exitcode(status) if hasattr(os, "waitstatus_to_exitcode") else status
    return f"its process died (signal {-code})" if code < 0 else f"its process ended with {code}" if code else ""


class Budget:
    """How long cells may be begun, and whether somebody asked to stop."""

    def __init__(self, minutes: float | None = None, stopped: Callable[[], str] = lambda: ""):
        self._minutes, self._stopped = minutes, stopped
        self._end = None if minutes is None else time.monotonic() + 60 * minutes

    def over(self) -> str:
        """Why no further cell is begun, or ""."""
        if self.stopped():
            return self.stopped()
        late = self._end is not None and time.monotonic() >= self._end
        return f"{self._minutes:g} minutes were over" if late else ""

    def stopped(self) -> str:
        """Why those that run are to be ended as well, or ""."""
        return self._stopped()


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Within it PyTorch computes in one thread: a process that is forked from one with more may wait for them."""
    kept = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(kept)


def dies(work: Callable[[], Any], limit: float, budget: Budget) -> str:
    """How a process that does this work dies, or that it does not end within `limit` seconds; "" if the work ends, also
    by an exception. Work that would end this process is so tried in another one first."""

    def tried(folder: str) -> None:
        with contextlib.suppress(Exception):
            work()
        _put(True, folder)

    process = _Process(tried, limit)
    try:
        while (ended := process.ended()) is None and not budget.stopped():
            time.sleep(_PAUSE)
    finally:
        process.forget()
    return ended[1] if ended is not None and ended[0] is None else ""


def run(
    job_of: JobOf,
    cells: Sequence[Cell],
    *,
    jobs: int = 1,
    timeout: float = 120.0,
    budget: Budget | None = None,
    mutate: bool = False,
    progress: Callable[[Outcome], None] = lambda outcome: None,
) -> list[Outcome]:
    """Runs the cells in order, `jobs` at the same time; returns their outcomes in the same order. With `mutate`,
    mutants of each cell that matches are tried. `progress` is called with each outcome when it is known."""
    budget = budget or Budget()
    _check.import_once()  # for all cells, which are forked from this process
    found: dict[int, Outcome] = {}
    waiting = list(range(len(cells)))
    running: dict[int, _Running] = {}
    try:
        while (waiting or running) and not budget.stopped():
            while waiting and len(running) < jobs and not budget.over():
                i = waiting.pop(0)
                running[i] = _Running(job_of, cells[i], timeout, mutate)
            for i, outcome in list(_ended(running)):
                del running[i]
                found[i] = outcome
                progress(outcome)
            if not running and budget.over():
                break
            time.sleep(_PAUSE)
    finally:
        for one in running.values():
            one.process.forget()
    why = budget.over()
    return [found.get(i) or Outcome(cell, NOT_TRIED, why) for i, cell in enumerate(cells)]


def _ended(running: dict[int, _Running]) -> Iterator[tuple[int, Outcome]]:
    for i, one in running.items():
        outcome = one.outcome()
        if outcome is not None:
            yield i, outcome
