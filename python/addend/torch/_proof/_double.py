"""Computing in f64 throughout, and without what is drawn: conversions to narrower dtypes become conversions to f64, and
dropout is off."""

from __future__ import annotations

from typing import Any, Callable, Dict, Iterable, Mapping, Set

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

NARROW = (torch.float32, torch.bfloat16, torch.float16)
_METHODS = {"float", "half", "bfloat16"}
_DRAWS = {"rand", "randn", "rand_like", "randn_like", "randint", "randperm", "bernoulli", "multinomial", "normal_"}
_DRAWS |= {"uniform_", "bernoulli_", "exponential_"}


def doubled(value: Any) -> Any:
    """Floating tensors in f64; whatever else is in it stays."""

    def convert(leaf: Any) -> Any:
        return leaf.double() if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() else leaf

    return tree_map(convert, value)


class Double(TorchFunctionMode):
    """While it lasts. `said` collects what was done otherwise than the job does it."""

    def __init__(self) -> None:
        super().__init__()
        self.said: Set[str] = set()

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        if name in _METHODS and isinstance(args[0], torch.Tensor) and args[0].is_floating_point():
            self.said.add("conversions to a narrower dtype are conversions to f64")
            return args[0].double()
        if any(value in NARROW for value in (*args, *kwargs.values()) if isinstance(value, torch.dtype)):
            self.said.add("conversions to a narrower dtype are conversions to f64")
            args = tuple(_wide(value) for value in args)
            kwargs = {key: _wide(value) for key, value in kwargs.items()}
        if name == "dropout" or name.endswith("_dropout"):
            self.said.add("dropout is off")
            return args[0] if args else kwargs["input"]
        if kwargs.get("dropout_p"):
            self.said.add("dropout is off")
            kwargs["dropout_p"] = 0.0
        if name in _DRAWS:
            self.said.add(f"numbers are drawn in the step (torch.{name}), in each process its own")
        return func(*args, **kwargs)


def _wide(value: Any) -> Any:
    return torch.float64 if isinstance(value, torch.dtype) and value in NARROW else value


def quiet(model: nn.Module) -> Set[str]:
    """Turns dropout modules off, and says so."""
    found = [module for module in model.modules() if isinstance(module, nn.modules.dropout._DropoutNd) and module.p]
    for dropout in found:
        dropout.p = 0.0
    for module in model.modules():
        if isinstance(getattr(module, "dropout", None), float):  # of nn.MultiheadAttention, nn.LSTM
            setattr(module, "dropout", 0.0)  # noqa: B010  no attribute of every module
    return {"dropout is off"} if found else set()


def vary_constants(model: nn.Module) -> Set[str]:
    """Draws parameters anew that hold one number alone: zeros and ones hide mistakes, and do not say which part of the
    whole a rank has."""
    generator = torch.Generator().manual_seed(5)
    varied: Dict[str, None] = {}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.numel() > 1 and bool((parameter == parameter.reshape(-1)[0]).all()):
                parameter.add_(torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype) * 0.1)
                varied[name.rpartition(".")[2]] = None
    return {f"parameters that held one number were varied: {', '.join(varied)}"} if varied else set()
