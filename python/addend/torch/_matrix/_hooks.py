"""Lists the hooks that a framework puts on a model's tensors and modules, and makes one of them wrong."""

from __future__ import annotations

import functools
import inspect
import types
import weakref
from collections.abc import Iterable, Mapping
from typing import Any, Callable

import torch
from torch import nn

from addend.torch._checks import _names
from addend.torch._matrix._cells import starred

LEFT_OUT, TWICE, ACCUMULATED = "left out", "run twice", "given what has accumulated"
Mutation = tuple[str, str]  # the hook's name, and what becomes of it
_REGISTER = ("register_hook", "register_post_accumulate_grad_hook")  # methods of tensors
_MODULES = {
    "_forward_pre_hooks": "forward pre-hook",
    "_forward_hooks": "forward hook",
    "_backward_pre_hooks": "backward pre-hook",
    "_backward_hooks": "backward hook",
}  # where a module keeps its hooks, and what they are called here


def _function(hook: Any) -> Any:
    while isinstance(hook, functools.partial):
        hook = hook.func
    return hook


def _name(hook: Any) -> str:
    function = _function(hook)
    name: str = getattr(function, "__qualname__", type(function).__name__)
    return name.replace(".<locals>", "")


def _module(path: str) -> str:
    return f"`{starred(path)}`" if path else "the model"


class Hooks:
    """A context in which hooks that are put on tensors are noted, and, after `attach`, those of modules too.
    `mutations` has all that can be made wrong in the hooks that have been called; `mutants` has those that are.

    Hooks of one function on layers that differ in their numbers alone are one hook: a mistake is in all of them."""

    def __init__(self, mutants: Iterable[Mutation] = ()) -> None:
        self.mutations: dict[Mutation, None] = {}
        self.mutants: frozenset[Mutation] = frozenset(mutants)
        self._parameters: dict[int, str] = {}
        self._kept: dict[str, Any] = {}

    def __enter__(self) -> Hooks:
        for name in _REGISTER:
            self._kept[name] = getattr(torch.Tensor, name)
            setattr(torch.Tensor, name, self._noting(self._kept[name], name == _REGISTER[1]))
        return self

    def __exit__(self, *error: Any) -> None:
        for name, method in self._kept.items():
            setattr(torch.Tensor, name, method)

    def _noting(self, register: Callable[..., Any], is_after: bool) -> Callable[..., Any]:
        @functools.wraps(register)
        def noting(tensor: torch.Tensor, hook: Any) -> Any:
            own = isinstance(hook, _OnTensor) or str(getattr(_function(hook), "__module__", "")).startswith("addend.")
            return register(tensor, hook if own else _OnTensor(self, hook, tensor, is_after))

        return noting

    def attach(
        self, parts: Iterable[nn.Module], parameters: Mapping[str, nn.Parameter], own: Mapping[str, Any]
    ) -> None:
        """Takes hold of the modules' hooks and replaced forwards. `own`: those of the model before it was made
        parallel, from `hooks_of`, which are not the framework's."""
        self._parameters = {id(parameter): starred(name) for name, parameter in parameters.items()}
        seen = set()
        for path, module in (found for part in parts for found in _names.modules(part)):
            if id(module) in seen:
                continue
            seen.add(id(module))
            for where, kind in _MODULES.items():
                kept = getattr(module, where)
                for key, hook in kept.items():
                    name = f"{kind} {_name(hook)} of {_module(path)}"
                    if name not in own:
                        kept[key] = _OnModule(self, name, hook, where)
            forward = vars(module).get("forward")
            if forward is not None and f"forward of `{path}`" not in own:
                # the module keeps a function here, so that what looks at its signature finds one
                module.forward = _forward(self, f"forward {_name(forward)} of {_module(path)}", forward, module)

    def is_mutated(self, name: str, how: str) -> bool:
        """Whether this mutant is active; notes that it exists."""
        self.mutations.setdefault((name, how))
        return (name, how) in self.mutants

    def place_of(self, tensor: torch.Tensor | None) -> str:
        """The name of a hook's tensor: that of a parameter, with numbers starred."""
        if tensor is None or not tensor.is_leaf:
            return "tensors of the forward"
        name = self._parameters.get(id(tensor), "")
        return f"`{name}`" if name else "parameters"


class _OnTensor:
    """A hook on a tensor."""

    def __init__(self, hooks: Hooks, hook: Any, tensor: torch.Tensor, is_after: bool):
        self._hooks, self._hook, self._tensor, self._is_after = hooks, hook, weakref.ref(tensor), is_after

    def __call__(self, given: torch.Tensor) -> Any:
        """Called with the gradient, or with the parameter after it was accumulated."""
        tensor = given if self._is_after else self._tensor()
        kind = "post-accumulate hook" if self._is_after else "hook"
        name = f"{kind} {_name(self._hook)} of {self._hooks.place_of(tensor)}"
        mutants = functools.partial(self._hooks.is_mutated, name)
        if mutants(LEFT_OUT):
            return None
        kept = tensor.grad if tensor is not None and tensor.is_leaf and not self._is_after else None
        if kept is not None and mutants(ACCUMULATED):
            return self._hook(given + kept)
        result = self._hook(given)
        if not mutants(TWICE):
            return result
        again = self._hook(given if result is None else result)
        return result if again is None else again


class _OnModule:
    """A hook of a module."""

    def __init__(self, hooks: Hooks, name: str, hook: Any, where: str):
        self._hooks, self._name, self._hook = hooks, name, hook
        self._at = {"_forward_pre_hooks": 1, "_backward_pre_hooks": 1}.get(where, -1)  # of what it may replace
        self._is_pre = where == "_forward_pre_hooks"

    def __call__(self, *given: Any) -> Any:
        """Called with what PyTorch gives the hook: (module, inputs), (module, inputs, output), ..."""
        if self._hooks.is_mutated(self._name, LEFT_OUT):
            return None
        result = self._hook(*given)
        if not self._hooks.is_mutated(self._name, TWICE):
            return result
        again = self._hook(*self._changed(given, result))
        return result if again is None else again

    def _changed(self, given: tuple[Any, ...], result: Any) -> tuple[Any, ...]:
        """The hook's arguments once it has replaced what it may."""
        if result is None:
            return given
        if self._is_pre and len(given) == 3:  # with keyword arguments: it returns (inputs, keywords)
            return (given[0], *result)
        changed = list(given)
        changed[self._at] = result if isinstance(result, tuple) or not self._is_pre else (result,)
        return tuple(changed)


def _forward(hooks: Hooks, name: str, forward: Any, module: nn.Module) -> Callable[..., Any]:
    twice = _installed_twice(forward, module)

    @functools.wraps(forward)
    def noted(*args: Any, **kwargs: Any) -> Any:
        if hooks.is_mutated(name, LEFT_OUT):
            return type(module).forward(module, *args, **kwargs)
        if twice is not None and hooks.is_mutated(name, TWICE):
            return twice(*args, **kwargs)
        return forward(*args, **kwargs)

    return noted


def _installed_twice(forward: Any, module: nn.Module) -> Callable[..., Any] | None:
    """A replaced forward around itself: a copy of the function that has the function in place of the module's own
    forward, which it kept. None if it keeps none."""
    cells = getattr(forward, "__closure__", None) or ()
    if not isinstance(forward, types.FunctionType) or not any(_is_own(cell, module) for cell in cells):
        return None
    closure = tuple(types.CellType(forward) if _is_own(cell, module) else cell for cell in cells)
    twice = types.FunctionType(forward.__code__, forward.__globals__, forward.__name__, forward.__defaults__, closure)
    twice.__kwdefaults__ = forward.__kwdefaults__
    return twice


def _is_own(cell: Any, module: nn.Module) -> bool:
    try:
        value = cell.cell_contents
    except ValueError:  # nothing was put into it
        return False
    own: Any = type(module)
    return inspect.ismethod(value) and value.__self__ is module and value.__func__ is own.forward


def hooks_of(model: nn.Module) -> dict[str, None]:
    """The names of the hooks and replaced forwards that a model has, as `Hooks.attach` calls them."""
    found: dict[str, None] = {}
    for path, module in _names.modules(model):
        for where, kind in _MODULES.items():
            found.update({f"{kind} {_name(hook)} of {_module(path)}": None for hook in getattr(module, where).values()})
        if "forward" in vars(module):
            found[f"forward of `{path}`"] = None
    return found
