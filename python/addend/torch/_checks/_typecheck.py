"""Runs one step of a job's ranks under spmd_types' type checker, in the job's own dtypes: what types say of the job,
beside what numbers say of it."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from typing import Any, Callable

import torch

import addend
from addend.torch._checks import _draws, _job, _names
from addend.torch._checks._axes import Axes
from addend.torch._checks._report import Typecheck

Start = Callable[[Callable[[int, str], Any]], None]  # runs work(rank, folder) on all ranks; raises the error of one


class _RefusedError(addend.AddendError):
    """The type checker refused the step on a rank. The text has the checker's words and, after a tab, the place."""


def need() -> None:
    """Imports spmd_types before ranks are forked; ImportError if it is not installed."""
    try:
        importlib.import_module("spmd_types.checker")
    except ImportError as error:
        raise ImportError(f"check(typecheck=True) needs spmd_types (pip install spmd-types): {error}") from error


def find(task: _job.Task, axes: Axes, start: Start) -> Typecheck:
    """What the type checker says of the job's first step. Strict mode also refuses a step where something has no type;
    permissive mode passes over that. A step that fails otherwise is not checked, and raises nothing: what numbers say
    stays."""
    try:
        untyped = _refusal(task, axes, start, "strict")
        refused = _refusal(task, axes, start, "permissive") if untyped is not None else None
    except Exception as error:
        first = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        return Typecheck(None, first.strip(), checked=False)
    if untyped is None:
        return Typecheck(True)
    return Typecheck(None, *untyped) if refused is None else Typecheck(False, *refused)


def _refusal(task: _job.Task, axes: Axes, start: Start, mode: str) -> tuple[str, str] | None:
    """The checker's words and the place, if it refuses the step on a rank."""
    try:
        start(lambda rank, folder: _step(task, axes, folder, rank, mode))
    except _RefusedError as error:
        said, _, where = str(error).partition("\t")
        return said.partition(": ")[2], where  # without the rank, which may be any of those that refused it
    return None


def _step(task: _job.Task, axes: Axes, folder: str, rank: int, mode: str) -> None:
    """One rank's step: forward and backward of its microbatches. A loss is not scaled, which changes no type."""
    from torch.distributed.device_mesh import init_device_mesh

    spmd = sys.modules["spmd_types"]
    _job.join(axes, folder, rank)
    torch.set_num_threads(1)
    _draws.seed(task.seed)
    try:
        model = task.make_model()
        made = task.parallelize(model, init_device_mesh("cpu", axes.shape, mesh_dim_names=axes.names))
        batches = _job.own_microbatches(task, Axes(task.mesh, rank), rank)
        with spmd.checker.typecheck(strict_mode=mode):
            _run(task, model if made is None else made, batches)
    except spmd.SpmdTypeError as error:
        words = str(error).partition("\n")[0]  # what follows is advice, and the call's arguments
        raise _RefusedError(f"{words}\t{_place(error)}") from error


def _run(task: _job.Task, model: Any, batches: list[Any]) -> None:
    def loss(model: Any, batch: Any) -> Any:
        found = task.loss(model, batch)
        return found[0] if isinstance(found, (tuple, list)) else found

    if task.run is not None:
        task.run(model, batches, loss)
        return
    for batch in batches:
        loss(model, batch).backward()


def _place(error: Exception) -> str:
    spmd = os.path.dirname(sys.modules["spmd_types"].__file__ or "") + os.sep
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if not _names.is_inside(f.filename) and not f.filename.startswith(spmd)]
    return f"{own[-1].filename}:{own[-1].lineno}" if own else ""
