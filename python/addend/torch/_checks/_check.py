"""`check` and `assert_matches_one_process`."""

from __future__ import annotations

import dataclasses
import inspect
import os
import tempfile
import time
from collections.abc import Mapping
from typing import Any, Callable, Union

from torch import nn

import addend
from addend.torch._checks import _axes, _job, _judge, _launched, _ranks, _reference, _report, _typecheck
from addend.torch._checks._report import CONSTANTS, OTHERS, MatchReport

_LEAST, _TIMES = 10.0, 2.0  # seconds, and how often those of a first comparison, that a second one may take
Path = Union[str, "os.PathLike[str]"]


def check(
    make_model: Callable[[], nn.Module],
    parallelize: Callable[..., Any],
    batches: Any,
    loss: Callable[..., Any],
    mesh: int | Mapping[str, int],
    *,
    run: Callable[..., Any] | None = None,
    averaged: float | None = None,
    norm: Callable[..., Any] | None = None,
    optimizer: Callable[..., Any] | None = None,
    steps: int = 0,
    bound: float = 1e-9,
    mutate: bool = False,
    typecheck: bool = False,
    seed: int = 20,
    timeout: float = 300.0,
    reference: Path | None = None,
) -> MatchReport:
    """Compares what the ranks of a job compute with what one process computes, and finds where the first error arises.

    One process runs the whole batch; as many processes as the mesh has ranks, connected by gloo, run the job; all in
    f64. Compared are the loss and every parameter's gradient in three steps, and ranks' replicas of them bit for bit.
    In a script that torchrun started, torchrun's ranks run the job, as many as the mesh has; all get the report.

    Args:
        make_model: make_model() gives the unsharded model with its weights.
        parallelize: parallelize(model, device_mesh) turns it into the job's model, returned or changed in place.
        batches: batches(rank, mesh) gives the list of a rank's microbatches, batches(None, mesh) the list for the whole
            batch; or a pair (whole, cut), where cut(whole, rank, mesh) gives a rank's list.
        loss: loss(model, batch) gives (numerator, count): `check` divides by the whole batch's count and multiplies by
            the number by which the wrapper averages; or it gives a scalar, which is used unchanged.
        mesh: {"dp": 2, "tp": 2}, in row-major order, or a number of ranks along dp.
        run: run(model, microbatches, loss) runs forward and backward of all microbatches and synchronises gradients.
            Needed if that is not a plain loop (no_sync, a pipeline schedule, sums by hand).
        averaged: by what the job divides sums of gradients, if neither DDP nor fully_shard does it.
        norm: norm(model) gives the gradients' global norm as the job computes it.
        optimizer: optimizer(model) makes an optimizer.
        steps: parameters are also compared after so many steps of that optimizer.
        bound: the largest allowed difference, divided by the largest element of the tensor.
        mutate: try mutants of the collectives of the backward, and report which ones survive this comparison.
        typecheck: also run a step of the ranks under spmd_types' type checker, in the job's own dtypes. The job
            annotates parameters in `parallelize`, and its inputs and its loss in `loss` or in the model.
        seed: the seed of random numbers in every process.
        timeout: seconds after which processes that did not end are stopped, and their stacks shown.
        reference: a file that `write_reference` wrote, to use instead of computing the whole batch in one process.

    Returns:
        The report. Its `ok` is False if something differs, None if that cannot be judged. Its `typecheck` is what types
            say, which `ok` does not hear.

    Raises:
        InvalidError: an argument is not what it must be, such as `batches` that is no function.
        AddendError: a process failed or did not end in time. The text has its traceback or stack.
        ImportError: `typecheck` is asked for, and spmd_types is not installed.

    Example:
        report = check(make_model, parallelize, batches, loss, mesh={"dp": 2, "tp": 2})
        assert report.ok, report
    """
    task = _job.Task(
        make_model, parallelize, batches, loss, _axes.parse(mesh), run, averaged, norm, optimizer, steps, bound,
        mutate, seed,
    )  # fmt: skip
    _need(task)
    if typecheck:
        _typecheck.need()
    start = time.monotonic()
    axes = _axes.Axes(task.mesh)
    import_once()

    def compared(task: _job.Task, timeout: float) -> MatchReport:
        def whole_of(folder: str) -> _job.Whole:
            if reference is not None:
                return _reference.read(os.fspath(reference), seed, steps)
            return _alone(task, axes, folder, timeout)

        if _launched.is_launched():
            return _launched.Team(axes, timeout).compare(task, axes, timeout, whole_of, reference is not None)
        return _compare(task, axes, timeout, whole_of)

    report = compared(task, timeout)
    if report.drawn == OTHERS and not report.ok and reference is None:
        limit = min(timeout, _LEAST + _TIMES * (time.monotonic() - start))
        report = _with_constants(report, lambda: compared(dataclasses.replace(task, is_constant=True), limit))
    if typecheck:
        report = dataclasses.replace(report, typecheck=_typecheck.find(task, axes, _starter(axes, timeout)))
    return dataclasses.replace(report, seconds=time.monotonic() - start)


def _with_constants(report: MatchReport, again: Callable[[], MatchReport]) -> MatchReport:
    """The report of a job whose ranks draw other random numbers than one process: of `again`, which compares with
    constants in place of these, if the ranks are wrong then too; else `report`, with what that shows."""
    try:
        found = again()
    except addend.AddendError:  # a job may refuse constants, as where it draws until it likes a number
        return report
    if found.drawn != CONSTANTS or found.ok is None:
        return report
    if found.ok is False:
        return found
    text = "with a constant in place of each number that is drawn, the ranks compute what one process does"
    return dataclasses.replace(report, messages=(*report.messages, text))


def _alone(task: _job.Task, axes: _axes.Axes, folder: str, timeout: float, ranks: int | None = None) -> _job.Whole:
    def work(_: int) -> _job.Whole:
        _launched.forget_groups()
        return _job.alone(task, axes, ranks)

    whole: _job.Whole = _ranks.run(["the process with the whole batch"], work, folder, timeout)[0]
    return whole


def _starter(axes: _axes.Axes, timeout: float) -> _typecheck.Start:
    """What runs work(rank, folder) on all ranks: those of the launcher, or processes that are started here."""

    def start(work: Callable[[int, str], Any]) -> None:
        if _launched.is_launched():
            _launched.Team(axes, timeout).run(work, timeout)
            return
        folder = tempfile.mkdtemp(prefix="addend-check-")
        try:
            _ranks.run([f"rank {r}" for r in range(axes.size())], lambda r: work(r, folder), folder, timeout)
        finally:
            _job.forget(folder)

    return start


def _compare(task: _job.Task, axes: _axes.Axes, timeout: float, whole_of: Callable[[str], _job.Whole]) -> MatchReport:
    """Runs the job on ranks that are started here, and judges it."""
    folder = tempfile.mkdtemp(prefix="addend-check-")
    try:
        whole = whole_of(folder)
        task = _job.with_bound(task, whole)
        names = [f"rank {rank}" for rank in range(axes.size())]
        of_rank = [_axes.Axes(task.mesh, rank) for rank in range(axes.size())]
        parts = _ranks.run(names, lambda r: _job.be_rank(task, of_rank[r], whole, folder, r), folder, timeout)
        return _judge.Judge(task, axes, whole, parts, folder).report()
    finally:
        _job.forget(folder)


def write_reference(
    path: Path,
    make_model: Callable[[], nn.Module],
    parallelize: Callable[..., Any],
    batches: Any,
    loss: Callable[..., Any],
    mesh: int | Mapping[str, int],
    *,
    optimizer: Callable[..., Any] | None = None,
    steps: int = 0,
    seed: int = 20,
    timeout: float = 300.0,
    **others: Any,
) -> None:
    """Writes what one process computes to a file, with which `check(..., reference=path)` compares the ranks.

    Use it for a model that does not fit into memory in one process and on ranks together.

    Args:
        path: the file to write.
        make_model: as in `check`.
        parallelize: as in `check`.
        batches: as in `check`.
        loss: as in `check`.
        mesh: as in `check`.
        optimizer: as in `check`.
        steps: as in `check`.
        seed: as in `check`.
        timeout: as in `check`.
        **others: the other arguments of `check`, so that one dictionary serves both; they are ignored.

    Raises:
        InvalidError: an argument is not what it must be.
        TypeError: an argument is none of `check`.
        AddendError: the process failed or did not end in time.

    Example:
        addend.torch.write_reference("reference.safetensors", **job)
        report = addend.torch.check(**job, reference="reference.safetensors")
    """
    task = _job.Task(
        make_model, parallelize, batches, loss, _axes.parse(mesh), optimizer=optimizer, steps=steps, seed=seed
    )
    unknown = sorted(set(others) - set(inspect.signature(check).parameters))
    if unknown:
        raise TypeError(f"write_reference() got arguments that check() does not have: {', '.join(unknown)}")
    _need(task)
    import_once()
    folder = tempfile.mkdtemp(prefix="addend-check-")
    try:
        whole = _alone(task, _axes.Axes(task.mesh), folder, timeout, ranks=0)
        _reference.write(os.fspath(path), whole, seed)
    finally:
        _job.forget(folder)


def _need(task: _job.Task) -> None:
    for name in ("make_model", "parallelize", "loss"):
        if not callable(getattr(task, name)):
            raise addend.InvalidError(f"`{name}` is {type(getattr(task, name)).__name__}, but must be a function")
    pair = isinstance(task.batches, (tuple, list)) and len(task.batches) == 2 and callable(task.batches[1])
    if not callable(task.batches) and not pair:
        raise addend.InvalidError(
            "`batches` must be a function of (rank, mesh), or a pair of two functions (whole, cut)"
        )
    if task.steps and task.optimizer is None:
        raise addend.InvalidError(f"steps={task.steps} needs optimizer=, a function that makes an optimizer of a model")
    if not hasattr(os, "fork"):
        raise addend.SystemRefusedError(
            "check starts its ranks by os.fork, which this system does not have: run it on Linux"
        )


def import_once() -> None:
    """Imports the slow parts of PyTorch that ranks need, before the ranks are forked."""
    import torch._dynamo
    import torch.distributed.fsdp
    import torch.distributed.tensor.parallel  # noqa: F401


def assert_matches_one_process(
    make_model: Callable[[], nn.Module],
    parallelize: Callable[..., Any],
    batches: Any,
    loss: Callable[..., Any],
    mesh: int | Mapping[str, int],
    **arguments: Any,
) -> MatchReport:
    """Runs `check` in a test, and fails the test if the ranks do not compute what one process does.

    Args:
        make_model: as in `check`.
        parallelize: as in `check`.
        batches: as in `check`.
        loss: as in `check`.
        mesh: as in `check`.
        **arguments: the others of `check`.

    Returns:
        The report of `check`.

    Raises:
        AssertionError: something differs or cannot be judged, a mutant (`mutate=True`) survived, or the step does not
            pass the type checker (`typecheck=True`). The text is the report's table; with `typecheck=True` its first
            line says which of the two failed, numbers or types.
        AddendError: as `check`.

    Example:
        def test_tensor_parallel():
            assert_matches_one_process(make_model, parallelize, batches, loss, mesh={"tp": 2})
    """
    report = check(make_model, parallelize, batches, loss, mesh, **arguments)
    by_types = report.typecheck is None or report.typecheck.ok
    assert report.ok and not report.survivors and by_types, f"{_report.failure(report)}\n{report}"
    return report
