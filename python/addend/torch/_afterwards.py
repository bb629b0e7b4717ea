"""Notes what becomes of sums inside a watch: the gradients with which an optimizer took a step there, which the job may
have cleared since; by what GradScaler multiplied them; and what hooks of the job after the wrapper's sum made of them.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any, Callable, Optional

import torch
from torch.amp import GradScaler
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils._pytree import tree_leaves
from torch.utils.hooks import RemovableHandle

from addend.torch import _meshes
from addend.torch._parameters import Watched
from addend.torch._sums import Sums, Taken, is_zero

Take = Callable[[Watched], Optional[Taken]]  # a parameter's sampled sum; None: it has no gradient
Checksum = Callable[[Watched, Taken], Optional[str]]  # of a parameter's values; None: they are not compared
Guard = Callable[..., Any]  # calls a function, and keeps its exception from the job
_UNSCALE = "_amp_foreach_non_finite_check_and_unscale_"  # PyTorch's function by which every GradScaler unscales
# Methods of GradScaler by which a job gets its loss scaled, and its gradients unscaled
_SCALES, _UNSCALES = ("scale", "get_scale"), ("unscale_",)
_OTHER_SCALE = "GradScaler divided its gradient by {:.6g} and by {:.6g} inside the watch: end the watch in between"
_NOT_CLEARED = (
    "an optimizer took a step with its gradient inside the watch, and the next backward added to that gradient without "
    "clearing it (zero_grad): end the watch after each step"
)
_TWO_STEPS = (
    "its optimizer took two steps with one gradient inside the watch, which was neither cleared nor computed anew in "
    "between: end the watch after each step"
)


def _address(tensor: torch.Tensor) -> int:
    local = _meshes.local_of(tensor)
    values = local._values() if local.is_sparse else local
    return int(values.data_ptr())


def _is_same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors of one element lie at the same place of memory."""
    return (one.device, one.dtype, one.data_ptr()) == (other.device, other.dtype, other.data_ptr())


def _scalers(kind: type = GradScaler) -> Iterator[type]:
    yield kind
    further: type
    for further in kind.__subclasses__():
        yield from _scalers(further)


def _multiplier(root: torch.Tensor) -> torch.Tensor | None:
    """The tensor of one element by which a loss was last multiplied, without a copy; None: there is none, or a hook on
    saved tensors keeps it, or this PyTorch cannot say. A conversion to another dtype may follow, as ShardedGradScaler
    has it."""
    node = root.grad_fn
    while node is not None and node.name() == "ToCopyBackward0":
        node = node.next_functions[0][0]
    saved: Any = getattr(node, "_raw_saved_other", None) if node is not None and node.name() == "MulBackward0" else None
    found = saved.data if saved is not None and getattr(saved, "unpack_hook", saved) is None else None
    return found if found is not None and type(found) is torch.Tensor and found.numel() == 1 else None


class Afterwards:
    """From `attach` to `remove`. `scaled`: by what gradients were multiplied, by the parameter's name. `before_hooks`,
    after `complete`: sums as the wrapper made them, where a hook of the job changed them then. `values`: checksums of
    parameters' values before the first step that changed them; `later`, after `complete`: names of parameters whose
    gradient changed after the step with it."""

    def __init__(self, watched: Sequence[Watched], take: Take, checksum: Checksum, guarded: Guard):
        self.scaled: dict[str, float] = {}
        self._has_asked = self._has_scaled = False  # the job asked a GradScaler for a scale; a backward came after it
        self._scaler: Any = None  # the GradScaler that unscales now
        self._scale_of: dict[str, torch.Tensor] = {}  # the scale, as the GradScaler holds it, by the parameter's name
        self._running: list[torch.Tensor | None] = [None]  # what multiplied the losses from which a backward begins
        self._multipliers: dict[str, list[torch.Tensor | None]] = {}  # those of all its backwards, by parameter
        self.values: dict[str, str] = {}
        self.later: list[str] = []
        self.before_hooks: Sums = {}
        # Called with a parameter's name before the job's hooks on its sum run, and with None after them
        self.on_hooks: Callable[[str | None], None] = lambda name: None
        self._by_id = {id(entry.owned): entry for entry in watched}
        self._take, self._checksum, self._guarded = take, checksum, guarded
        self._stepped: Sums = {}  # the sum with which the last step was taken, until another addend comes
        self._stepping: dict[str, int] = {}  # which optimizer took that step: its id()
        self._inside: collections.Counter[int] = collections.Counter()  # how often an optimizer's step has begun
        self._cleared: Sums = {}  # sums of steps whose gradients were cleared
        self._before: Sums = {}  # the sum that the job's hooks are about to get
        self._changes: Sums = {}  # by how much hooks changed sums
        self._handles: list[RemovableHandle] = []
        self._unscale: Any = None
        self._scales: list[tuple[type, str, Any]] = []  # methods of GradScaler and its subclasses that are replaced

    def attach(self) -> None:
        self._handles.append(register_optimizer_step_pre_hook(self._before_step))
        self._handles.append(register_optimizer_step_post_hook(self._after_step))
        for entry in self._by_id.values():
            hooks = entry.owned._post_accumulate_grad_hooks
            if hooks and entry.used is not entry.owned and not entry.flat:
                self._attach_around(entry, hooks)
        self._unscale = getattr(torch, _UNSCALE, None)
        if self._unscale is not None:
            setattr(torch, _UNSCALE, functools.partial(self._unscaling, self._unscale))
        names = (*_SCALES, *_UNSCALES)
        self._scales = [(kind, name, vars(kind)[name]) for kind in _scalers() for name in names if name in vars(kind)]
        for kind, name, method in self._scales:
            setattr(kind, name, self._noting_scaler(name, method))

    def _noting_scaler(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def noted(scaler: Any, *args: Any, **kwargs: Any) -> Any:
            if name in _UNSCALES:
                self._scaler = scaler
            elif name == "get_scale" or any(getattr(one, "requires_grad", True) for one in tree_leaves((args, kwargs))):
                self._has_asked = True
            return method(scaler, *args, **kwargs)

        return noted

    def was_scaled(self, name: str) -> bool:
        """Whether the parameter's gradient is known to be of losses that were scaled as it was unscaled: the job got a
        scale in the watch before a backward, or all its backwards began from a product with the scaler's own scale."""
        own, by = self._scale_of.get(name), self._multipliers.get(name, [])
        is_product = own is not None and bool(by) and all(one is not None and _is_same(one, own) for one in by)
        return self._has_scaled or is_product

    def around_backward(self, roots: Any) -> None:
        """Called with the tensors from which a backward begins; with None when it has ended."""
        found = [roots] if isinstance(roots, torch.Tensor) else roots
        self._running = [_multiplier(root) for root in found] if isinstance(found, (list, tuple)) else [None]

    def _attach_around(self, entry: Watched, hooks: Any) -> None:
        """Takes the sum before and after the job's hooks, which run in the order of their dictionary."""
        theirs = list(hooks)
        for take in (self._note_before, self._note_after):
            hook = functools.partial(self._around, take, entry)
            self._handles.append(entry.owned.register_post_accumulate_grad_hook(hook))
        for key in (*theirs, list(hooks)[-1]):
            hooks[key] = hooks.pop(key)

    def _around(self, take: Callable[[Watched], None], entry: Watched, _: torch.Tensor) -> None:
        self._guarded(entry.name, take, entry)

    def _note_before(self, entry: Watched) -> None:
        self.on_hooks(entry.name)
        taken = self._take(entry)
        if taken is not None:
            self._before[entry.name] = taken

    def _note_after(self, entry: Watched) -> None:
        self.on_hooks(None)
        before, after = self._before.pop(entry.name, None), self._take(entry)
        if before is not None and after is not None:
            after[0].values = after[0].values.double() - before[0].values.double()
            self._add(self._changes, entry.name, after)

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        if self._unscale is not None:
            setattr(torch, _UNSCALE, self._unscale)
            self._unscale = None
        for kind, name, method in self._scales:
            setattr(kind, name, method)
        self._scales.clear()

    def _of(self, optimizer: Optimizer) -> Iterator[Watched]:
        params = (param for group in optimizer.param_groups for param in group["params"])
        return (self._by_id[id(param)] for param in params if id(param) in self._by_id)

    def _before_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """An optimizer with a closure takes the gradients that each call of it leaves: LBFGS calls it more than once
        in a step, and each call clears the gradients of the one before. A step inside a step is the same one, of a
        subclass that calls its parent's."""
        self._inside[id(optimizer)] += 1
        is_nested = self._inside[id(optimizer)] > 1
        if callable(kwargs.get("closure")):
            closure = kwargs["closure"] if is_nested else self._around_closure(optimizer, kwargs["closure"])
            return args, {**kwargs, "closure": closure}
        if len(args) > 1 and callable(args[1]):
            closure = args[1] if is_nested else self._around_closure(optimizer, args[1])
            return (args[0], closure, *args[2:]), kwargs
        self._note_steps(optimizer, is_nested)
        return None

    def _around_closure(self, optimizer: Optimizer, closure: Callable[[], Any]) -> Callable[[], Any]:
        def call() -> Any:
            loss = closure()
            self._note_steps(optimizer, False)
            return loss

        return call

    def _note_steps(self, optimizer: Optimizer, is_nested: bool) -> None:
        for entry in self._of(optimizer):
            self._guarded(entry.name, self._note_step, entry, id(optimizer), is_nested)

    def _note_step(self, entry: Watched, stepping: int, is_nested: bool) -> None:
        with torch.no_grad():
            taken = self._take(entry)
            if taken is None:
                return
            if not is_nested and entry.name in self._stepped and self._stepping[entry.name] == stepping:
                entry.unjudged = entry.unjudged or _TWO_STEPS
            self._stepped[entry.name], self._stepping[entry.name] = taken, stepping
            checksum = None if entry.name in self.values else self._checksum(entry, taken)
        if checksum is not None:
            self.values[entry.name] = checksum

    def _after_step(self, optimizer: Optimizer, *_: Any) -> None:
        """An optimizer may sum inside its step, or run the backward there; a fused one that unscales there has taken
        the scaled gradients."""
        self._inside[id(optimizer)] -= 1
        if getattr(optimizer, "grad_scale", None) is None:
            for entry in self._of(optimizer):
                self._guarded(entry.name, self._note_stepped, entry)

    def _note_stepped(self, entry: Watched) -> None:
        with torch.no_grad():
            taken = self._take(entry)
        if taken is not None and bool(taken[0].values.any()):
            self._stepped[entry.name] = taken

    def _unscaling(self, original: Callable[..., Any], gradients: Any, found: Any, inverse: torch.Tensor) -> Any:
        self._guarded("GradScaler", self._note_scale, gradients, inverse)
        return original(gradients, found, inverse)

    def _note_scale(self, gradients: Any, inverse: torch.Tensor) -> None:
        scaled, factor = set(map(_address, gradients)), float(inverse)
        for entry in self._by_id.values():
            if entry.owned.grad is not None and _address(entry.owned.grad) in scaled:
                known = self.scaled.setdefault(entry.name, factor)
                if type(getattr(self._scaler, "_scale", None)) is torch.Tensor:
                    self._scale_of[entry.name] = self._scaler._scale
                if known != factor:
                    entry.unjudged = entry.unjudged or _OTHER_SCALE.format(1 / known, 1 / factor)

    def before_addend(self, entry: Watched, is_asked: bool) -> None:
        """Called when a backward brings another addend: a gradient that was cleared since the step is no part of the
        sum that begins now. `is_asked`: torch.autograd.grad returns it, and adds it to nothing."""
        self._has_scaled = self._has_asked
        if not is_asked:
            self._multipliers.setdefault(entry.name, []).extend(self._running)
        if entry.name not in self._stepped:
            return
        if entry.owned.grad is None or is_zero(entry.owned.grad):
            self._add(self._cleared, entry.name, self._stepped.pop(entry.name))
        elif not is_asked:
            del self._stepped[entry.name]
            entry.unjudged = entry.unjudged or _NOT_CLEARED

    def _add(self, to: Sums, name: str, taken: Taken) -> None:
        if name in to:
            to[name][0].values += taken[0].values
        else:
            to[name] = taken

    def complete(self, sums: Sums) -> None:
        """Replaces sums by those with which an optimizer took its step, and adds those of steps whose gradients the job
        cleared."""
        for name, taken in self._stepped.items():
            left = sums[name][0].values if name in sums else taken[0].values
            if bool(left.any()) and not torch.equal(left, taken[0].values):
                self.later.append(name)
            sums[name] = taken
        for name, taken in self._cleared.items():
            self._add(sums, name, taken)
        for name, (change, axes) in self._changes.items():
            if name in sums and bool(change.values.any()):
                piece = sums[name][0]
                values = (piece.values.double() - change.values).to(piece.values.dtype)
                self.before_hooks[name] = dataclasses.replace(piece, values=values), axes
