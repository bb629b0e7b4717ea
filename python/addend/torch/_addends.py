"""Records the addends: each parameter's gradient from each backward on this rank, before any sum over ranks."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Callable, NamedTuple, TypeVar

import torch
from torch.utils.hooks import RemovableHandle

from addend.torch import _meshes
from addend.torch._buffers import AddendOf, Buffers
from addend.torch._loaded import is_dtensor
from addend.torch._parameters import Watched
from addend.torch._sample import Box, Piece, Place, Plan, Sampler, as_real

T = TypeVar("T")
_HOOKED = "a hook changed it after its addend was seen; what the hook gave is counted once"
_ZEROED = "a hook changed it after its addend was seen: it made it zero"


class Change(NamedTuple):
    """What hooks of the job did to a gradient on this rank."""

    words: str
    factor: float | None  # by what they multiplied it, in every microbatch; None: no such factor


def factor_of(before: torch.Tensor, after: torch.Tensor) -> float | None:
    """The factor between two gradients; None: there is none."""
    before, after = before.double(), after.double()
    square = float(before @ before)
    factor = float(before @ after) / square if square else math.nan
    is_one = math.isfinite(factor) and float((after - factor * before).norm()) <= 1e-3 * abs(factor) * square**0.5
    return factor if is_one else None


def change(words: str, factors: Collection[float | None]) -> Change:
    """The change by hooks that multiplied by these factors, one for each microbatch."""
    first, *others = factors
    if first is None or any(other is None or abs(other - first) > 1e-3 * abs(first) for other in others):
        return Change(words, None)
    return Change(f"{words} (it multiplied by {first:.6g})", first)


def _accumulates(parameter: torch.Tensor) -> bool:
    """Whether the running backward leaves its gradient in the parameter's .grad, instead of returning it."""
    node = torch.autograd.graph.get_gradient_edge(parameter).node
    try:
        return bool(torch._C._will_engine_execute_node(node))
    except RuntimeError:  # PyTorch's answer on a leaf of which torch.autograd.grad returns the gradient
        return False


class Addends:
    """Hooks on the parameters, from `attach` to `remove`. `taken[microbatch][name]` has sampled elements of the
    parameter's gradient. The microbatch is the number of the running backward, not how often a parameter got a
    gradient. Until `settle`, gradients that torch.autograd.grad returns to the job have negative numbers."""

    def __init__(
        self,
        watched: Sequence[Watched],
        sampler: Sampler,
        places: Mapping[str, Place],
        addend_of: AddendOf | None = None,
    ):
        self.watched = watched
        self.buffers = Buffers(watched, addend_of, self._take_placed) if addend_of else None
        self.taken: dict[int, dict[str, Piece]] = {}
        self.placements: dict[str, _meshes.Placed] = {}  # device mesh and placements of DTensor gradients
        self.behind: dict[int, dict[str, Piece]] = {}  # like `taken`, but after the job's own hooks on the parameter
        # Of a parameter with hooks on its accumulated gradient: whether a gradient was there before this backward, its
        # accumulated gradient before the hooks, and by how much they changed it
        self._had: dict[str, bool] = {}
        self._before: dict[str, Piece | None] = {}
        self._changes: dict[int, dict[str, Piece]] = {}
        self._late: set[str] = set()  # parameters that got hooks since the watch began
        self._carried: set[str] = set()  # parameters of which hooks changed what earlier microbatches left
        self._known: dict[str, float] = {}  # hooks of a parameter when the watch began, less mutants
        # Called before an addend is taken, with whether torch.autograd.grad returns it
        self.on_addend: Callable[[Watched, bool], None] = lambda entry, is_asked: None
        # Called with the tensors from which a backward begins, and with None when it has ended
        self.on_backward: Callable[[Any], None] = lambda roots: None
        # Called with a parameter's name before the job's hooks on it run, and with None after them
        self.on_hooks: Callable[[str | None], None] = lambda name: None
        self.inside: dict[int, dict[str, list[float]]] = {}  # [microbatch][name]: addend.inside of audit/docs/dumps.md
        self.microbatch = 0
        self.ended = 0  # how many backwards ended
        self.errors: list[str] = []
        self._sampler = sampler
        self._places = places  # global shape and box of plain tensors that are shards of a parameter
        self._plans: dict[str, Plan] = {}  # which elements to sample of a gradient with its parameter's memory layout
        self._depth = 0
        self._asked: dict[int, int] = {}  # the negative numbers of autograd tasks that accumulate no gradient
        self._accumulating: tuple[int, bool] | None = None  # the last task, and whether of leaves, known to accumulate
        self.beside: dict[str, list[Piece]] = {}  # gradients that the job asked for and that are no addends
        self.discarded: list[str] = []  # names of parameters that have only gradients that are in no sum, after settle
        self._in_schedule = False  # inside `numbered`
        self._ending = -1  # the autograd task whose end will be reported by a queued callback
        self._handles: list[RemovableHandle] = []
        self._backward = torch.autograd.backward

    def attach(self) -> None:
        for watched in self.watched:
            self.guarded(watched.name, self._prepare, watched)
            self._handles.append(watched.used.register_hook(functools.partial(self._take, watched)))
            if watched.flat:
                continue  # the buffer is `used` by several parameters, and gets a hook for each of them
            # This hook must run before the job's own hooks, which may sum gradients. PyTorch runs hooks in the order of
            # its dictionary's memory, so the others are re-inserted after this one; moving this one is not enough.
            hooks = watched.used._backward_hooks or {}
            for key in list(hooks)[:-1]:
                hooks[key] = hooks.pop(key)
            mutants = [key for key, hook in hooks.items() if getattr(hook, "addends_own", False)]
            if len(hooks) > 1 + len(mutants):
                self._handles.append(watched.used.register_hook(functools.partial(self._take_behind, watched)))
            for key in mutants:
                hooks[key] = hooks.pop(key)
            self._known[watched.name] = len(hooks) - len(mutants)
            if watched.used._post_accumulate_grad_hooks:
                self._attach_around(watched, watched.used._post_accumulate_grad_hooks)
        torch.autograd.backward = self._run_backward

    def _attach_around(self, watched: Watched, hooks: Any) -> None:
        """Takes the accumulated gradient before and after the job's hooks; they run in their dictionary's order."""
        theirs = list(hooks)
        for take in (self._note_accumulated, self._keep_accumulated):
            hook = functools.partial(self._around, take, watched)
            self._handles.append(watched.used.register_post_accumulate_grad_hook(hook))
        for key in (*theirs, list(hooks)[-1]):
            hooks[key] = hooks.pop(key)
        self._had[watched.name] = False

    def _around(self, take: Callable[[Watched], None], watched: Watched, _: torch.Tensor) -> None:
        self.guarded(watched.name, take, watched)

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        if self.buffers:
            self.buffers.clear()
        torch.autograd.backward = self._backward

    def _run_backward(self, *args: Any, **kwargs: Any) -> None:
        """Replaces torch.autograd.backward to count microbatches. A backward inside another one (reentrant activation
        checkpointing) belongs to the same microbatch."""
        if self._depth == 0:
            self.guarded("backward", self.on_backward, args[0] if args else kwargs.get("tensors"))
            self._begin_buffers()
        self._depth += 1
        try:
            self._backward(*args, **kwargs)
        finally:
            self._depth -= 1
            if self._depth == 0:
                self._end_buffers()
                self._end()
                self.on_backward(None)

    def _begin_buffers(self) -> None:
        if self.buffers:
            with torch.no_grad():
                self.guarded("addend=", self.buffers.begin)

    def _end_buffers(self) -> None:
        if self.buffers:
            with torch.no_grad():
                self.guarded("addend=", self.buffers.end)

    @contextlib.contextmanager
    def numbered(self, microbatch: int) -> Iterator[None]:
        """A context in which every backward belongs to this microbatch."""
        before, self.microbatch = (self.microbatch, self._in_schedule), microbatch
        self._depth, self._in_schedule = self._depth + 1, True
        self._begin_buffers()
        try:
            yield
        finally:
            self._end_buffers()
            self._depth -= 1
            self.ended += 1
            self.microbatch, self._in_schedule = before

    @property
    def asked(self) -> int:
        """How many calls of torch.autograd.grad returned gradients of parameters."""
        return len(self._asked)

    def _number(self, watched: Watched) -> int:
        """The microbatch of the running backward; a negative number if it leaves nothing in the parameter's .grad, as
        torch.autograd.grad does. A schedule that calls that for the weights accumulates what it gets by itself."""
        task = torch._C._current_graph_task_id()
        if task not in self._asked:
            if self._in_schedule:
                return self.microbatch
            # Of one backward, PyTorch runs the hooks of leaves that all accumulate, or that are all returned
            kind = task, watched.used.is_leaf
            if kind != self._accumulating:
                if not _accumulates(watched.used):
                    self._asked[task] = -1 - len(self._asked)
                    return self._asked[task]
                self._accumulating = kind
            return self.microbatch
        return self._asked[task]

    def settle(self, summed: Collection[str]) -> bool:
        """Decides at the end of the step which gradients that the job asked for are addends: those of parameters with a
        sum (`summed`: their names) to which no backward contributed, or all if there was no backward. Others go to
        `beside`: they are part of how the loss is computed, as an inner step of meta learning or a penalty on
        gradients, or, without any sum, to `discarded`. Returns whether the asked ones number the microbatches."""
        accumulated = {name for number, pieces in self.taken.items() if number >= 0 for name in pieces}
        for number, pieces in self._changes.items():
            for name, piece in pieces.items():
                own = self.behind.setdefault(number, {}).get(name) or self.taken[number][name]
                self.behind[number][name] = dataclasses.replace(own, values=own.values.double() + piece.values)
        every: list[dict[int, dict[str, Any]]] = [{**self.taken}, {**self.behind}, {**self.inside}]
        for kept in every:
            for number in [number for number in kept if number < 0]:
                for name, found in kept.pop(number).items():
                    if not accumulated or (name in summed and name not in accumulated):
                        kept.setdefault(-1 - number, {})[name] = found
                    elif kept is every[0] and name in summed:
                        self.beside.setdefault(name, []).append(found)
                    elif kept is every[0] and name not in accumulated and name not in self.discarded:
                        self.discarded.append(name)
        self.taken, self.behind, self.inside = every
        return not accumulated

    def _await_end(self) -> None:
        """Counts the microbatch at the end of a backward that did not go through torch.autograd.backward."""
        if self._depth:
            return
        task = torch._C._current_graph_task_id()
        if task != self._ending:
            self._ending = task
            torch.autograd.Variable._execution_engine.queue_callback(self._end)

    def _end(self) -> None:
        self.microbatch += 1
        self.ended += 1

    def guarded(self, name: str, do: Callable[..., T], *arguments: Any) -> T | None:
        """Calls `do`; an exception goes to `errors` instead of ending the job."""
        try:
            return do(*arguments)
        except Exception as error:
            self.errors.append(f"{name}: {type(error).__name__}: {error}")
            return None

    def _prepare(self, watched: Watched) -> None:
        """Decides before backward which elements to sample, for gradients with their parameter's memory layout."""
        if watched.flat:
            return  # a flat buffer is unsharded only during forward and backward
        local, box = _meshes.local_part(watched.used)
        whole, box = self._places.get(watched.name, (tuple(watched.used.shape), box))
        local, whole, box = as_real(local, whole, box)
        plan = self._sampler.plan(watched.name, whole, local, box)
        if not is_dtensor(watched.used):
            self._plans[watched.name] = plan

    def _take(self, watched: Watched, grad: torch.Tensor | None) -> None:
        if grad is not None or self.buffers:  # autograd may call a hook without a gradient
            self.guarded(watched.name, self._keep, watched, grad)

    def _mutants(self, watched: Watched) -> float:
        """By what a mutant multiplied the gradient in this backward."""
        hooks: Iterable[Any] = (watched.used._backward_hooks or {}).values()
        times: list[float] = [hook.times() for hook in hooks if getattr(hook, "addends_own", False)]
        return math.prod(times)

    def _take_behind(self, watched: Watched, grad: torch.Tensor | None, is_late: bool = False) -> None:
        """Records the gradient after the job's own hooks. `is_late`: after mutants too, whose factor is taken out;
        nothing is recorded if that leaves nothing."""
        if is_late == (watched.name in self._late):
            self.on_hooks(None)
        if self._is_buffered(watched):
            return
        mutants = self._mutants(watched) if is_late else 1.0
        if grad is not None and mutants and is_late == (watched.name in self._late):
            number = self.guarded(watched.name, self._number, watched)
            if number is not None and watched.name in self.taken.get(number, {}):
                self.guarded(watched.name, self._add, self.behind, number, watched, grad, mutants)

    def _is_buffered(self, watched: Watched) -> bool:
        """Whether the running backward wrote the parameter's addend into a buffer: its gradient then has no meaning."""
        return self.buffers is not None and self.buffers.has(watched)

    def _attach_late(self, watched: Watched) -> None:
        """Records the gradient after hooks attached since the watch began: they run after all of the watch's."""
        self._late.add(watched.name)
        node = torch.autograd.graph.get_gradient_edge(watched.used).node
        take = functools.partial(self._take_behind, watched, is_late=True)
        self._handles.append(node.register_prehook(lambda gradients: take(gradients[0])))

    def _accumulated(self, watched: Watched) -> Piece | None:
        """The parameter's accumulated gradient on this rank, in f64, so that differences of it are exact."""
        if watched.used.grad is None or self._is_buffered(watched):
            return None
        piece = self._take_placed(watched, watched.used.grad)
        return dataclasses.replace(piece, values=piece.values.double())

    def _note_accumulated(self, watched: Watched) -> None:
        self.on_hooks(watched.name)
        self._before[watched.name] = self._accumulated(watched)

    def _keep_accumulated(self, watched: Watched) -> None:
        """Records by how much the job's own hooks changed the accumulated gradient, less a mutant's part."""
        self.on_hooks(None)
        before, after = self._before.pop(watched.name, None), self._accumulated(watched)
        if before is None or after is None or watched.name not in self.taken.get(self.microbatch, {}):
            return
        after.values -= before.values
        if self._had[watched.name] and bool(after.values.any()):
            self._carried.add(watched.name)
        after.values /= self._mutants(watched) or 1.0
        changes = self._changes.setdefault(self.microbatch, {})
        if watched.name in changes:
            after.values += changes[watched.name].values
        changes[watched.name] = after

    def _keep(self, watched: Watched, grad: torch.Tensor | None) -> None:
        written = self._written(watched, grad)
        if written is None and grad is None:
            return
        number = self._number(watched)
        if number >= 0:
            self._await_end()
        self.on_addend(watched, number < 0)
        if written is not None:
            self._add_piece(self.taken, number, watched.name, written)
            return
        assert grad is not None
        if watched.name in self._had:
            left = watched.used.grad
            self._had[watched.name] = left is not None and bool(_meshes.local_of(left).any())
        hooks = (watched.used._backward_hooks or {}).values()
        theirs = sum(not getattr(hook, "addends_own", False) for hook in hooks)
        if watched.name not in self._late and theirs > self._known.get(watched.name, math.inf):
            self._attach_late(watched)
        self._add(self.taken, number, watched, grad)
        if grad.is_sparse:
            self._note_inside(number, watched.name, grad.detach())
        if self._known.get(watched.name, 1) > 1 or watched.name in self._late:
            self.on_hooks(watched.name)

    def _written(self, watched: Watched, grad: torch.Tensor | None) -> Piece | None:
        """What the running backward added to the parameter's buffer; None: it has none."""
        if self.buffers is None:
            return None
        with torch.no_grad():
            return self.buffers.take(watched, grad)

    def _add(
        self, to: dict[int, dict[str, Piece]], number: int, watched: Watched, grad: torch.Tensor, mutants: float = 1.0
    ) -> None:
        plan = self._plans.get(watched.name)
        piece = plan.take(grad) if plan is not None and plan.fits(grad) else self._take_placed(watched, grad)
        if mutants != 1:
            piece = dataclasses.replace(piece, values=piece.values / mutants)
        self._add_piece(to, number, watched.name, piece)

    @staticmethod
    def _add_piece(to: dict[int, dict[str, Piece]], number: int, name: str, piece: Piece) -> None:
        pieces = to.setdefault(number, {})
        if name in pieces:
            pieces[name].values += piece.values
        else:
            pieces[name] = piece

    def _take_placed(self, watched: Watched, grad: torch.Tensor) -> Piece:
        """Samples a gradient of any memory layout: DTensor, sparse, flat or strided."""
        with torch.no_grad():
            whole, local, box = self._locate(watched, grad)
            local, whole, box = as_real(local.to_dense() if local.is_sparse else local, whole, box)
            return self._sampler.take(watched.name, whole, local, box)

    def _note_inside(self, number: int, name: str, gradient: torch.Tensor) -> None:
        """Notes how many addends a sparse gradient has for one row; the job chooses the order of their sum."""
        indices, sizes = gradient._indices(), gradient._values().abs()
        if not sizes.numel():
            return
        rows, place, counts = torch.unique(indices, dim=1, return_inverse=True, return_counts=True)
        sums = sizes.new_zeros((rows.shape[1], *sizes.shape[1:])).index_add_(0, place, sizes)
        had = self.inside.setdefault(number, {}).setdefault(name, [0.0, 0.0])
        had[0] += float(counts.max())
        had[1] += float(sums.max())

    def pieces(self) -> Iterator[Piece]:
        """All recorded samples."""
        for kept in (self.taken, self.behind):
            for pieces in kept.values():
                yield from pieces.values()
        for besides in self.beside.values():
            yield from besides

    def with_beside(self, number: int, name: str, piece: Piece) -> Piece:
        """The addend with the gradients in `beside`, which a job may have added by hand; in one microbatch only."""
        first = min(other for other, pieces in self.taken.items() if name in pieces)
        besides = self.beside.get(name, []) if number == first else []
        return dataclasses.replace(piece, values=sum((other.values for other in besides), piece.values))

    def changed(self) -> dict[str, Change]:
        """What hooks of the job did to gradients, by the parameter's name, only those that were changed. There is no
        factor if they changed what earlier microbatches left, too."""
        factors: dict[str, list[float | None]] = {}
        different, zeroed = set(), set()
        for number, pieces in self.behind.items():
            for name, piece in pieces.items():
                before = self.taken[number][name].values
                after = piece.values.to(before.dtype)
                if not torch.equal(after, before):
                    different.add(name)
                if not bool(after.any()):
                    zeroed.add(name)
                if bool(before.any()) or bool(after.any()):
                    factors.setdefault(name, []).append(factor_of(before, after))
        found = {}
        for name in different:
            made = change("", [None] if name in self._carried else factors[name])
            is_zero = name in zeroed and made.factor == 0
            found[name] = Change(_ZEROED if is_zero else _HOOKED + made.words, made.factor)
        return found

    def _locate(self, watched: Watched, grad: torch.Tensor) -> tuple[tuple[int, ...], torch.Tensor, Box]:
        """(the gradient's global shape, this rank's part of it, the box where this part lies)"""
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
                f"{watched.name}: its gradient has placements {placements} in one backward, {first[1]} in another"
            )
        return tuple(grad.shape), local, box
