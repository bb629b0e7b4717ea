"""Records the job's own calls that may communicate in one step: autograd Functions, conversions of DTensors, and
collectives, each with its inputs and outputs and the gradients of both. Changes nothing in what they compute."""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any, Callable

import torch
import torch.distributed as dist

from addend.torch import _pipeline
from addend.torch._checks import _names
from addend.torch._checks._trace import Call, Trace, array, tensors
from addend.torch._loaded import is_dtensor

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

_CONVERSIONS = ("redistribute", "to_local", "full_tensor", "from_local")
_WRAPPED = "wrap_tensor_autograd"  # the autograd Function that PyTorch puts around a functional collective's result


def _tensor_class() -> Any:
    module = sys.modules.get("torch.distributed.tensor")
    return getattr(module, "DTensor", None)


class Calls:
    """A context in which calls are noted in the trace's record."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._open: Call | None = None  # the call whose forward or backward runs now
        self._before: list[tuple[Any, str, Any]] = []

    def __enter__(self) -> Calls:
        calls = self
        own: Any = torch.autograd.Function.__dict__.get("apply")

        def applied(cls: Any, *args: Any, **kwargs: Any) -> Any:
            above: Any = super
            apply = above(torch.autograd.Function, cls).apply if own is None else own.__get__(None, cls)
            return calls._run(_name(cls.__name__), apply, args, kwargs)

        self._put(torch.autograd.Function, "apply", classmethod(applied))
        conversions = _tensor_class()
        for name in _CONVERSIONS if conversions is not None else ():
            self._put(conversions, name, self._converting(name, getattr(conversions, name)))
        return self

    def __exit__(self, *error: Any) -> None:
        for holder, name, before in reversed(self._before):
            if before is None:
                delattr(holder, name)
            else:
                setattr(holder, name, before)

    def _put(self, holder: Any, name: str, value: Any) -> None:
        self._before.append((holder, name, vars(holder).get(name)))
        setattr(holder, name, value)

    def _converting(self, name: str, func: Callable[..., Any]) -> Any:
        """Wraps a conversion of DTensors so that it is noted, except under no_grad (not part of the forward)."""

        def convert(*args: Any, **kwargs: Any) -> Any:
            if not torch.is_grad_enabled():
                return func(*args, **kwargs)
            return self._run(f"DTensor.{name}", func, args, kwargs)

        return staticmethod(convert) if name == "from_local" else convert

    def _begin(self, name: str) -> Call | None:
        """Notes a new call; None if it is inside another call, in the backward, or made by PyTorch's own code."""
        if self._open is not None or torch._C._current_graph_task_id() != -1 or _pipeline.infers():
            return None
        where = _names.called()
        if not where:
            return None
        call = Call(name, where, self._trace.stack[-1] if self._trace.stack else "")
        self._trace.record.calls.append(call)
        return call

    def _run(self, name: str, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        call = self._begin(name) if name != _WRAPPED else None
        if call is None:
            return func(*args, **kwargs)
        call.ranks = name.startswith("DTensor.") or any(_names_ranks(value) for value in (*args, *kwargs.values()))
        self._open = call
        try:
            call.takes = _arrays((args, kwargs))
            given = func(*args, **kwargs)
            call.gives = _arrays(_waited(name, given))
        finally:
            self._open = None
        node = next((tensor.grad_fn for tensor in tensors(given) if tensor.grad_fn is not None), None)
        if node is not None:
            node.register_prehook(functools.partial(self._enter_backward, call))
            node.register_hook(functools.partial(self._leave_backward, call))
        return given

    def _enter_backward(self, call: Call, given: Any) -> None:
        self._open = call

    def _leave_backward(self, call: Call, given: Any, got: Any) -> None:
        self._open = None
        call.gradients_given, call.gradients = _arrays(got), _arrays(given)
        call.reported_whole = any(_is_full(tensor) for tensor in tensors(got))

    def place(self) -> str:
        """file:line of the collective that runs now; in a backward of PyTorch's, that of the forward call."""
        return _names.called() or (self._open.where if self._open is not None else "") or _names.caller()

    def transfer(self, what: str) -> bool:
        """Notes a send or receive in the call that contains it; returns whether there is one."""
        if self._open is None:
            return False
        backward = torch._C._current_graph_task_id() != -1
        (self._open.backward if backward else self._open.forward).append(what)
        return True

    def collective(self, what: str) -> Call | None:
        """Notes a collective in the call that contains it. If none does, notes it as a call and returns that."""
        if self.transfer(what):
            return None
        call = self._begin(what)
        if call is not None:
            call.ranks, call.plain = True, True
            call.forward.append(what)
        return call


def _is_full(gradient: torch.Tensor) -> bool:
    """Whether a gradient is a DTensor without Partial placements, that is, not an addend."""
    return is_dtensor(gradient) and not any(place.is_partial() for place in gradient.placements)


def _name(function: str) -> str:
    """The name to show for an autograd Function; PyTorch has one for each functional collective, with a long name."""
    made = function.rpartition("_c10d_functional_")[2]
    return f"{function}.apply" if made == function else made.rpartition("_")[0].lstrip("_")


def _waited(name: str, given: Any) -> list[torch.Tensor]:
    """The output tensors of a call; waits for those of a functional collective."""
    found = tensors(given)
    if name.endswith(".apply") or name.startswith("DTensor."):
        return found
    return [torch.ops._c10d_functional.wait_tensor(tensor.detach()) for tensor in found]


def _arrays(value: Any) -> list[NDArray[numpy.float64]]:
    return [array(tensor) for tensor in tensors(value)]


def _names_ranks(value: Any) -> bool:
    return isinstance(value, dist.ProcessGroup) or type(value).__name__ == "DeviceMesh"


def sites(calls: list[Call]) -> dict[tuple[str, str, str], list[Call]]:
    """The calls grouped by module, name and line: one that is made several times is one entry."""
    found: dict[tuple[str, str, str], list[Call]] = {}
    for call in calls:
        found.setdefault((call.module, call.name, call.where), []).append(call)
    return found
