"""Records each module's inputs and outputs in one step, the gradients of both, and the collectives inside the module.
The gradient of an input is only this module's share, even if other modules use the input too."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import sys
import traceback
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import numpy
import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from addend.torch import _meshes, _pipeline
from addend.torch._checks import _names

if TYPE_CHECKING:
    from numpy.typing import NDArray

Key = tuple[str, int, str, int]  # module, call, kind (in, out, gin, gout), which of its tensors


def gradient_key(key: Key) -> Key:
    """The key of the gradient of a module's input or output."""
    return (key[0], key[1], f"g{key[2]}", key[3])


def value_key(key: Key) -> Key:
    """The key of the input or output that a gradient is of."""
    return (key[0], key[1], key[2][1:], key[3])


def is_inside(name: str, around: str) -> bool:
    """Whether a module is another one, by its name, or inside it."""
    return not around or name == around or name.startswith(f"{around}.")


def tensors(value: Any, floating: bool = True) -> list[torch.Tensor]:
    """The floating tensors in a module's arguments or result, in order; or those of integers and booleans."""
    if isinstance(value, torch.Tensor):
        return [value] if value.is_floating_point() is floating and not value.is_complex() else []
    if isinstance(value, dict):
        return [found for item in value.values() for found in tensors(item, floating)]
    if isinstance(value, (tuple, list)):
        return [found for item in value for found in tensors(item, floating)]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        return [found for field in fields for found in tensors(getattr(value, field.name), floating)]
    return []


def replaced(value: Any, new: dict[int, torch.Tensor]) -> Any:
    """`value` with tensors replaced: new[id(tensor)] is the replacement."""
    if isinstance(value, torch.Tensor):
        return new.get(id(value), value)
    if type(value) is dict:
        return {key: replaced(item, new) for key, item in value.items()}
    if type(value) in (tuple, list):
        return type(value)(replaced(item, new) for item in value)
    return value


def array(tensor: torch.Tensor) -> NDArray[numpy.float64]:
    """This rank's local part of the tensor as a NumPy array."""
    with torch.no_grad():
        local = _meshes.local_of(tensor)
        if hasattr(local, "wait"):
            local = local.wait()
        if local.is_sparse:
            local = local.to_dense()
        if local.is_nested:
            local = local.values()
        if local.is_complex():
            local = torch.view_as_real(local.resolve_conj())
        found: NDArray[numpy.float64] = local.double().cpu().contiguous().clone().numpy()  # a copy
        return found


@dataclasses.dataclass
class Call:
    """A call in the job's forward that may communicate between ranks."""

    name: str
    where: str  # file:line
    module: str  # the innermost module in which it was called
    ranks: bool = False  # whether it has a group or mesh as argument, or is a collective itself
    plain: bool = False  # whether it is a collective outside of any autograd Function
    takes: list[NDArray[numpy.float64]] = dataclasses.field(default_factory=list)
    gives: list[NDArray[numpy.float64]] = dataclasses.field(default_factory=list)
    gradients_given: list[NDArray[numpy.float64]] = dataclasses.field(default_factory=list)  # of outputs
    gradients: list[NDArray[numpy.float64]] = dataclasses.field(default_factory=list)  # of inputs
    reported_whole: bool = False  # the gradient of its output was a DTensor without Partial, so not an addend
    forward: list[str] = dataclasses.field(default_factory=list)  # collectives inside it: "allreduce over tp"
    backward: list[str] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Record:
    """What one process recorded of one step; it can be pickled."""

    values: dict[Key, NDArray[numpy.float64]] = dataclasses.field(default_factory=dict)
    order: list[Key] = dataclasses.field(default_factory=list)  # in the order of recording
    places: dict[str, str] = dataclasses.field(default_factory=dict)  # file:line of a module's forward
    kinds: dict[str, str] = dataclasses.field(default_factory=dict)  # the class of a module
    collectives: list[tuple[str, str, str, str]] = dataclasses.field(default_factory=list)  # module, phase, what, where
    calls: list[Call] = dataclasses.field(default_factory=list)
    passes: dict[Key, int] = dataclasses.field(default_factory=dict)  # of gradients: how many backwards gave the same
    unused: set[Key] = dataclasses.field(default_factory=set)  # outputs that need a gradient and got none
    ungiven: set[Key] = dataclasses.field(default_factory=set)  # inputs that need a gradient and got none
    integers: dict[Key, NDArray[numpy.float64]] | None = None  # inputs of integers and booleans; None: unknown
    evaluates: bool = False  # whether a forward of a whole model ran without gradients


class Trace:
    """Hooks on the modules that record a step, from `attach` to `remove`."""

    def __init__(self) -> None:
        self.record = Record(integers={})
        self.stack: list[str] = []
        self._aside: int | None = None  # id() of the module whose forward, a validation, is not recorded
        self._evaluates = True  # whether such forwards are part of the step: one process has them, too
        self.finished = ""  # the module whose gradients were recorded last in the backward
        self._calls: dict[tuple[int, str, str], int] = {}
        self._open: dict[tuple[int, str], list[int]] = {}
        self._handles: list[RemovableHandle] = []
        self._passes: dict[Key, dict[int, NDArray[numpy.float64]]] = {}  # gradients by backward

    def attach(self, model: nn.Module, whole: Record | None = None, everywhere: Collection[str] = ()) -> None:
        """Puts hooks on all modules. A pipeline stage has the name of the whole model; its inputs are recorded only if
        it has the module that `whole` (one process's record) calls first, its outputs only if it has the last one.
        `everywhere`: the names of all modules that any rank has."""
        self._evaluates = whole is None or whole.evaluates
        chosen: dict[str, nn.Module] = {}
        for name, module in _names.modules(model):
            chosen.setdefault(name, module)  # the wrapper, if there is one: it may convert tensors
            self.record.kinds[name] = type(module).__name__
            self.record.places[name] = _place(module)
        for name, module in chosen.items():
            takes, gives = _ends(name, chosen, whole, everywhere)
            before, after = functools.partial(self._enter, name, takes), functools.partial(self._leave, name, gives)
            self._handles.append(module.register_forward_pre_hook(before, prepend=True, with_kwargs=True))
            self._handles.append(module.register_forward_hook(after, with_kwargs=True))

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        for key, passes in self._passes.items():
            self._add_up(key, list(passes.values()))
        self.record.unused -= {(name, call, "out", i) for name, call, kind, i in self._passes if kind == "gout"}
        self.record.ungiven -= {(name, call, "in", i) for name, call, kind, i in self._passes if kind == "gin"}

    def _add_up(self, key: Key, passes: list[NDArray[numpy.float64]]) -> None:
        """Adds the gradients of several backwards of one forward. If all are the same, a job may have split its
        backward (first the gradients of inputs, then those of weights), so they are kept as one."""
        if len(passes) > 1 and all(numpy.array_equal(one, passes[0]) for one in passes):
            self.record.values[key], self.record.passes[key] = passes[0], len(passes)
        else:
            self.record.values[key] = functools.reduce(numpy.add, passes)

    def _keep(self, key: Key, tensor: torch.Tensor) -> None:
        self.record.values[key] = array(tensor)
        self.record.order.append(key)

    def _keep_gradient(self, key: Key, gradient: torch.Tensor | None) -> None:
        if gradient is None:  # another output of the same autograd Function, as DDP's around a model's, has one
            return
        task, passes = torch._C._current_graph_task_id(), self._passes.setdefault(key, {})
        if passes and _weights_alone():
            return
        if not passes:
            self._keep(key, gradient)
        passes[task] = passes[task] + array(gradient) if task in passes else array(gradient)
        self.finished = key[0]

    def _enter(self, name: str, takes: bool, module: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
        if self._aside is not None or _pipeline.infers():
            return None
        again = torch._C._current_graph_task_id() != -1  # recomputation by activation checkpointing
        if not (again or self.stack or torch.is_grad_enabled()):
            self.record.evaluates = True
            if not self._evaluates:
                self._aside = id(module)
                return None
        phase = "again" if again else "first"
        call = self._calls.get((id(module), name, phase), 0)
        self._calls[id(module), name, phase] = call + 1
        self._open.setdefault((id(module), name), []).append(call)
        self.stack.append(name)
        new: dict[int, torch.Tensor] = {}
        for i, tensor in enumerate(tensors((args, kwargs)) if takes else ()):
            key = (name, call, "in", i)
            if key not in self.record.values:
                self._keep(key, tensor)
            if tensor.requires_grad and torch.is_grad_enabled():
                own = tensor.view_as(tensor)
                own.register_hook(functools.partial(self._keep_gradient, (name, call, "gin", i)))
                new[id(tensor)] = own
                self.record.ungiven.add(key)
        for i, tensor in enumerate(tensors((args, kwargs), floating=False) if takes else ()):
            if self.record.integers is not None:
                self.record.integers.setdefault((name, call, "in", i), array(tensor))
        return (replaced(args, new), replaced(kwargs, new)) if new else None

    def _leave(self, name: str, gives: bool, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        if self._aside is not None or _pipeline.infers():
            self._aside = None if self._aside == id(module) else self._aside
            return
        call = self._open[id(module), name].pop()
        if self.stack and self.stack[-1] == name:
            self.stack.pop()
        for i, tensor in enumerate(tensors(output) if gives else ()):
            key = (name, call, "out", i)
            if key not in self.record.values:
                self._keep(key, tensor)
            if tensor.requires_grad and torch.is_grad_enabled():
                self.record.unused.add(key)
                tensor.register_hook(functools.partial(self._keep_gradient, (name, call, "gout", i)))

    def collective(self, what: str, where: str) -> None:
        """Notes a collective that is being called."""
        backward = torch._C._current_graph_task_id() != -1
        inside = self.finished if backward else self.stack[-1] if self.stack else ""
        self.record.collectives.append((inside, "backward" if backward else "forward", what, where))


def _weights_alone() -> bool:
    """Whether a zero-bubble schedule now computes gradients of weights, in which hooks are called a second time."""
    return any(frame.f_code.co_name == "stage_backward_weight" for frame, _ in traceback.walk_stack(sys._getframe()))


def _ends(name: str, own: Collection[str], whole: Record | None, everywhere: Collection[str]) -> tuple[bool, bool]:
    """Whether the module's inputs, and its outputs, are those of the module of this name in one process."""
    below = f"{name}." if name else ""
    if whole is None or all(other in own for other in everywhere if other.startswith(below)):
        return True, True
    called = [key[0] for key in whole.order if key[2] in ("in", "out") and key[0] != name and key[0].startswith(below)]
    return (called[0] in own, called[-1] in own) if called else (True, True)


def _place(module: nn.Module) -> str:
    try:
        forward = inspect.unwrap(type(module).forward)
        file = inspect.getsourcefile(forward) or ""
        return "" if _names.is_inside(file) else f"{file}:{inspect.getsourcelines(forward)[1]}"
    except (TypeError, OSError):
        return ""
