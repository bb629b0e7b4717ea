"""The addends: what each backward gives for each parameter on this rank, before anything is summed over ranks."""

from __future__ import annotations

import functools
from typing import Any, Callable, Mapping, Sequence

import torch
from torch.utils.hooks import RemovableHandle

from addend.torch import _meshes
from addend.torch._loaded import is_dtensor
from addend.torch._parameters import Watched
from addend.torch._sample import Box, Piece, Place, Sampler, as_real


class Addends:
    """Hooks on the parameters, from `attach` to `remove`. `taken[microbatch][name]` is the sample of one backward's
    gradient: microbatches are told by the backward that is running, not by how often a parameter got a gradient."""

    def __init__(self, watched: Sequence[Watched], sampler: Sampler, places: Mapping[str, Place]):
        self.watched = watched
        self.taken: dict[int, dict[str, Piece]] = {}
        self.placements: dict[str, _meshes.Placed] = {}  # of gradients that are DTensors
        self.microbatch = 0
        self.errors: list[str] = []
        self._sampler = sampler
        self._places = places  # of plain tensors that are parts
        self._depth = 0
        self._ending = -1  # the graph task whose end is waited for
        self._handles: list[RemovableHandle] = []
        self._backward = torch.autograd.backward

    def attach(self) -> None:
        for watched in self.watched:
            self._guarded(watched, self._prepare)
            self._handles.append(watched.used.register_hook(functools.partial(self._take, watched)))
            # First of all hooks, for a job may sum in a hook of its own. They run as they stand in memory, so the
            # others are put behind this one; moving it to the front would not do.
            hooks = watched.used._backward_hooks or {}
            for key in list(hooks)[:-1]:
                hooks[key] = hooks.pop(key)
        torch.autograd.backward = self._run_backward

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        torch.autograd.backward = self._backward

    def _run_backward(self, *args: Any, **kwargs: Any) -> None:
        """torch.autograd.backward. A backward inside another (reentrant checkpoints) belongs to the same microbatch."""
        self._depth += 1
        try:
            self._backward(*args, **kwargs)
        finally:
            self._depth -= 1
            if self._depth == 0:
                self.microbatch += 1

    def _await_end(self) -> None:
        """For jobs that call the engine themselves."""
        task = torch._C._current_graph_task_id()
        if self._depth == 0 and task != self._ending:
            self._ending = task
            torch.autograd.Variable._execution_engine.queue_callback(self._end)

    def _end(self) -> None:
        self.microbatch += 1

    def _guarded(self, watched: Watched, do: Callable[..., None], *arguments: torch.Tensor) -> None:
        """Nothing that is wrong here may end the job's own work: what it is stands in `errors`."""
        try:
            do(watched, *arguments)
        except Exception as error:
            self.errors.append(f"{watched.name}: {type(error).__name__}: {error}")

    def _prepare(self, watched: Watched) -> None:
        """Gradients mostly lie as their parameters do: what to take of them is found before the backward."""
        local, box = _meshes.local_part(watched.used.detach())
        whole, box = self._places.get(watched.name, (tuple(watched.used.shape), box))
        local, whole, box = as_real(local, whole, box)
        self._sampler.prepare(watched.name, whole, local, box)

    def _take(self, watched: Watched, grad: torch.Tensor | None) -> None:
        if grad is not None:  # a backward may give a parameter nothing
            self._guarded(watched, self._keep, grad)

    def _keep(self, watched: Watched, grad: torch.Tensor) -> None:
        self._await_end()
        with torch.no_grad():
            whole, local, box = self._locate(watched, grad)
            local, whole, box = as_real(local.to_dense() if local.is_sparse else local, whole, box)
            piece = self._sampler.take(watched.name, whole, local, box)
        pieces = self.taken.setdefault(self.microbatch, {})
        if watched.name in pieces:
            pieces[watched.name].values += piece.values
        else:
            pieces[watched.name] = piece

    def _locate(self, watched: Watched, grad: torch.Tensor) -> tuple[tuple[int, ...], torch.Tensor, Box]:
        """(the whole's shape, this rank's part, its box)"""
        if not is_dtensor(grad):
            local, box = _meshes.local_part(grad.detach())
            whole, box = self._places.get(watched.name, (tuple(grad.shape), box))
            return whole, local, box
        placements = _meshes.addend_placements(grad, watched.used)
        local, box = _meshes.placed(grad, placements)
        first = self.placements.setdefault(watched.name, (grad.device_mesh, placements))
        if first[1] != placements:
            self.errors.append(
                f"{watched.name}: its gradient is {placements} in one backward and {first[1]} in another"
            )
        return tuple(grad.shape), local.detach(), box
