"""The addends: what each backward gives for each parameter on this rank, before anything is summed over ranks."""

from __future__ import annotations

import contextlib
import functools
from typing import Any, Callable, Iterator, Mapping, Sequence, TypeVar

import torch
from torch.utils.hooks import RemovableHandle

from addend.torch import _meshes
from addend.torch._loaded import is_dtensor
from addend.torch._parameters import Watched
from addend.torch._sample import Box, Piece, Place, Plan, Sampler, as_real

T = TypeVar("T")


class Addends:
    """Hooks on the parameters, from `attach` to `remove`. `taken[microbatch][name]` is the sample of one backward's
    gradient: microbatches are told by the backward that is running, not by how often a parameter got a gradient."""

    def __init__(self, watched: Sequence[Watched], sampler: Sampler, places: Mapping[str, Place]):
        self.watched = watched
        self.taken: dict[int, dict[str, Piece]] = {}
        self.placements: dict[str, _meshes.Placed] = {}  # of gradients that are DTensors
        self.behind: dict[int, dict[str, Piece]] = {}  # the same behind hooks of the job, of parameters that have some
        self.inside: dict[int, dict[str, list[float]]] = {}  # addend.inside of docs/dumps.md, by microbatch and name
        self.microbatch = 0
        self.errors: list[str] = []
        self._sampler = sampler
        self._places = places  # of plain tensors that are parts
        self._plans: dict[str, Plan] = {}  # of plain gradients that lie as their parameters do
        self._depth = 0
        self._ending = -1  # the graph task whose end is waited for
        self._handles: list[RemovableHandle] = []
        self._backward = torch.autograd.backward

    def attach(self) -> None:
        for watched in self.watched:
            self.guarded(watched.name, self._prepare, watched)
            self._handles.append(watched.used.register_hook(functools.partial(self._take, watched)))
            if watched.flat:
                continue  # a buffer has a hook for each of its parameters
            # First of all hooks, for a job may sum in a hook of its own. They run as they stand in memory, so the
            # others are put behind this one; moving it to the front would not do.
            hooks = watched.used._backward_hooks or {}
            for key in list(hooks)[:-1]:
                hooks[key] = hooks.pop(key)
            if len(hooks) > 1:
                self._handles.append(watched.used.register_hook(functools.partial(self._take_behind, watched)))
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

    @contextlib.contextmanager
    def numbered(self, microbatch: int) -> Iterator[None]:
        """All backwards in it are of this one."""
        before, self.microbatch = self.microbatch, microbatch
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            self.microbatch = before

    def _await_end(self) -> None:
        """For jobs that call the engine themselves."""
        if self._depth:
            return
        task = torch._C._current_graph_task_id()
        if task != self._ending:
            self._ending = task
            torch.autograd.Variable._execution_engine.queue_callback(self._end)

    def _end(self) -> None:
        self.microbatch += 1

    def guarded(self, name: str, do: Callable[..., T], *arguments: Any) -> T | None:
        """Nothing that is wrong here may end the job's own work: what it is stands in `errors`."""
        try:
            return do(*arguments)
        except Exception as error:
            self.errors.append(f"{name}: {type(error).__name__}: {error}")
            return None

    def _prepare(self, watched: Watched) -> None:
        """Gradients mostly lie as their parameters do: what to take of them is found before the backward."""
        if watched.flat:
            return  # its buffer is whole in the forward alone
        local, box = _meshes.local_part(watched.used)
        whole, box = self._places.get(watched.name, (tuple(watched.used.shape), box))
        local, whole, box = as_real(local, whole, box)
        plan = self._sampler.plan(watched.name, whole, local, box)
        if not is_dtensor(watched.used):
            self._plans[watched.name] = plan

    def _take(self, watched: Watched, grad: torch.Tensor | None) -> None:
        if grad is not None:  # a backward may give a parameter nothing
            self.guarded(watched.name, self._keep, watched, grad)

    def _take_behind(self, watched: Watched, grad: torch.Tensor | None) -> None:
        """What the job's own hooks made of it."""
        if grad is not None and watched.name in self.taken.get(self.microbatch, {}):
            self.guarded(watched.name, self._add, self.behind, watched, grad)

    def _keep(self, watched: Watched, grad: torch.Tensor) -> None:
        self._await_end()
        self._add(self.taken, watched, grad)
        if grad.is_sparse:
            self._note_inside(watched.name, grad.detach())

    def _add(self, to: dict[int, dict[str, Piece]], watched: Watched, grad: torch.Tensor) -> None:
        plan = self._plans.get(watched.name)
        piece = plan.take(grad) if plan is not None and plan.fits(grad) else self._take_placed(watched, grad)
        pieces = to.setdefault(self.microbatch, {})
        if watched.name in pieces:
            pieces[watched.name].values += piece.values
        else:
            pieces[watched.name] = piece

    def _take_placed(self, watched: Watched, grad: torch.Tensor) -> Piece:
        """Wherever its elements lie."""
        with torch.no_grad():
            whole, local, box = self._locate(watched, grad)
            local, whole, box = as_real(local.to_dense() if local.is_sparse else local, whole, box)
            return self._sampler.take(watched.name, whole, local, box)

    def _note_inside(self, name: str, gradient: torch.Tensor) -> None:
        """A sparse gradient may have a row many times: it is a sum whose order the job chooses."""
        indices, sizes = gradient._indices(), gradient._values().abs()
        if not sizes.numel():
            return
        rows, place, counts = torch.unique(indices, dim=1, return_inverse=True, return_counts=True)
        sums = sizes.new_zeros((rows.shape[1], *sizes.shape[1:])).index_add_(0, place, sizes)
        had = self.inside.setdefault(self.microbatch, {}).setdefault(name, [0.0, 0.0])
        had[0] += float(counts.max())
        had[1] += float(sums.max())

    def pieces(self) -> Iterator[Piece]:
        """All of them."""
        for kept in (self.taken, self.behind):
            for pieces in kept.values():
                yield from pieces.values()

    def changed(self) -> set[str]:
        """Those that a hook of the job changed after they were seen."""
        return {
            name
            for number, pieces in self.behind.items()
            for name, piece in pieces.items()
            if not torch.equal(piece.values, self.taken[number][name].values)
        }

    def _locate(self, watched: Watched, grad: torch.Tensor) -> tuple[tuple[int, ...], torch.Tensor, Box]:
        """(the whole's shape, this rank's part, its box)"""
        if watched.flat:
            return watched.flat.addend(grad)
        if not is_dtensor(grad):
            local, box = _meshes.local_part(grad)
            whole, box = self._places.get(watched.name, (tuple(grad.shape), box))
            return whole, local, box
        placements = _meshes.addend_placements(grad, watched.used)
        local, box = _meshes.placed(grad, placements)
        first = self.placements.setdefault(watched.name, (grad.device_mesh, placements))
        if first[1] != placements:
            self.errors.append(
                f"{watched.name}: its gradient is {placements} in one backward and {first[1]} in another"
            )
        return tuple(grad.shape), local, box
