"""Makes a mutant of the sums of a job's gradients, to show that a watch notices it."""

from __future__ import annotations

import functools
import math
from types import TracebackType

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.hooks import RemovableHandle

from addend.torch import _parameters
from addend.torch._loaded import is_dtensor

KINDS = ("average", "skip", "double")


class mutate:
    """A context in which every backward has a mistake, in jobs with any wrapper or none. Hooks that run after those of
    `watch` change the gradient, so the watch sees right addends and a wrong sum.

    Args:
        model: the job's model, in its wrappers.
        kind: the mistake. "average": every gradient is divided by the number of data-parallel ranks once more; "skip":
            the last rank's addend of one parameter is left out; "double": it is counted twice.

    Returns:
        The context.

    Raises:
        ValueError: the kind does not exist, or the job has a single rank.

    Example:
        with addend.torch.mutate(model, "double"), addend.torch.watch(model) as watch:
            loss(model, batch).backward()
        assert watch.report.ok is False
    """

    def __init__(self, model: nn.Module, kind: str):
        if kind not in KINDS:
            raise ValueError(f'mutate must be one of {", ".join(KINDS)}, but is "{kind}"')
        if not dist.is_initialized() or dist.get_world_size() == 1:
            raise ValueError("mutate needs a job of several ranks, because one rank alone sums no gradients")
        self._model, self._kind = model, kind
        self._victim: str | None = None
        self._times: dict[str, float] = {}  # by what gradients were multiplied, by the parameter's name
        self._handles: list[RemovableHandle] = []

    def __enter__(self) -> mutate:
        change = self._divide if self._kind == "average" else self._change_one
        for entry in _parameters.find(self._model):
            hook = functools.partial(change, entry)
            vars(hook)["addends_own"] = True  # a watch does not take it for a hook of the job
            vars(hook)["times"] = functools.partial(self._times.get, entry.name, 1.0)  # nor what it did for theirs
            self._handles.append(entry.used.register_hook(hook))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _divide(self, entry: _parameters.Watched, gradient: torch.Tensor) -> torch.Tensor:
        ranks = math.prod(len(ranks) for ranks in entry.data) if entry.data else dist.get_world_size()
        return self._changed(entry, gradient, 1 / ranks)

    def _change_one(self, entry: _parameters.Watched, gradient: torch.Tensor) -> torch.Tensor | None:
        """On the last rank, changes the gradient of one parameter: the first that got a gradient."""
        if dist.get_rank() != dist.get_world_size() - 1:
            return None
        self._victim = self._victim or entry.name
        if entry.name != self._victim:
            return None
        return self._changed(entry, gradient, 0 if self._kind == "skip" else 2)

    def _changed(self, entry: _parameters.Watched, gradient: torch.Tensor, factor: float) -> torch.Tensor:
        self._times[entry.name] = factor
        return _times(gradient, factor)


def _times(gradient: torch.Tensor, factor: float) -> torch.Tensor:
    """The gradient times `factor`; for a DTensor computed on the local part, without communication."""
    if not is_dtensor(gradient):
        return gradient * factor
    from torch.distributed.tensor import DTensor

    part, shape, stride = gradient.to_local() * factor, gradient.shape, gradient.stride()
    whole: torch.Tensor = DTensor.from_local(
        part, gradient.device_mesh, gradient.placements, run_check=False, shape=shape, stride=stride
    )
    return whole
