"""The addends: what each backward gives for each parameter on this rank, before anything is summed over ranks."""

from __future__ import annotations

import functools

import torch
from torch.distributed.tensor import DTensor

from addend.torch import _meshes


class Addends:
    """Hooks on the parameters, from `attach` to `remove`. `taken[microbatch][name]` is the sample of one backward's gradient:
    microbatches are told by the backward that is running, not by how often a parameter got a gradient."""

    def __init__(self, watched: list, sampler, places: dict):
        self.watched = watched
        self.taken: dict[int, dict] = {}
        self.placements: dict[str, tuple] = {}  # of gradients that are DTensors: (mesh, placements)
        self.microbatch = 0
        self.errors: list[str] = []
        self._sampler = sampler
        self._places = places  # of plain tensors that are parts: (the whole's shape, box)
        self._depth = 0
        self._ending = -1  # the graph task whose end is waited for
        self._handles: list = []
        self._backward = None

    def attach(self) -> None:
        for watched in self.watched:
            self._handles.append(watched.used.register_hook(functools.partial(self._take, watched)))
            # First of all hooks, for a job may sum in a hook of its own. They run as they stand in memory, so the others
            # are put behind this one; moving it to the front would not do.
            hooks = watched.used._backward_hooks
            for key in list(hooks)[:-1]:
                hooks[key] = hooks.pop(key)
        self._backward = torch.autograd.backward
        torch.autograd.backward = self._run_backward

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        if self._backward is not None:
            torch.autograd.backward = self._backward
            self._backward = None

    def _run_backward(self, *args, **kwargs):
        """torch.autograd.backward. A backward inside another (reentrant checkpoints) belongs to the same microbatch."""
        self._depth += 1
        try:
            return self._backward(*args, **kwargs)
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

    def _take(self, watched, grad: torch.Tensor) -> None:
        self._await_end()
        with torch.no_grad():
            whole, local, box = self._locate(watched, grad)
            piece = self._sampler.take(watched.name, whole, local.to_dense() if local.is_sparse else local, box)
        pieces = self.taken.setdefault(self.microbatch, {})
        if watched.name in pieces:
            pieces[watched.name].values += piece.values
        else:
            pieces[watched.name] = piece

    def _locate(self, watched, grad: torch.Tensor) -> tuple:
        """(the whole's shape, this rank's part, its box)"""
        if not isinstance(grad, DTensor):
            whole, box = self._places.get(watched.name, (tuple(grad.shape), None))
            return whole, grad.detach(), box or _meshes.local_part(grad)[1]
        placements = _meshes.addend_placements(grad, watched.used)
        local, box = _meshes.placed(grad.detach(), placements)
        first = self.placements.setdefault(watched.name, (grad.device_mesh, placements))
        if first[1] != placements:
            self.errors.append(f"{watched.name}: its gradient is {placements} in one backward and {first[1]} in another")
        return tuple(grad.shape), local, box
