"""The table of wrappers, and what those in a model say of its parameters. A later record has precedence over an earlier
one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn

from addend.torch import _flat, _replicated, _sharded
from addend.torch._wrapper import Said, Wrapper

WRAPPERS: tuple[Wrapper, ...] = (
    _flat.FULLY_SHARDED_DATA_PARALLEL,
    _sharded.FULLY_SHARD,
    _replicated.DISTRIBUTED_DATA_PARALLEL,
    _replicated.REPLICATE,
)


def _units(wrapper: Wrapper, model: nn.Module) -> Iterator[tuple[str, nn.Module, Any]]:
    """(the module's name with a dot if any, module, unit) of every such wrapper in the model."""
    for name, module in model.named_modules():
        for unit in wrapper.units(module) if wrapper.recognised_by(module) else ():
            yield f"{name}." if name else "", module, unit


def said(model: nn.Module) -> Iterator[tuple[Said, float]]:
    """What wrappers say of parameters, and by what they divide these parameters' sums."""
    for wrapper in WRAPPERS:
        for name, module, unit in _units(wrapper, model):
            divisor = wrapper.divides_by(unit)
            for of_some in wrapper.params(name, module, unit):
                of_some.wrapper = wrapper.name
                yield of_some, divisor


def hidden(model: nn.Module) -> set[int]:
    """The ids (Python's id()) of tensors that are not watched themselves."""
    return {
        id(tensor)
        for wrapper in WRAPPERS
        if wrapper.hides is not None
        for _, _, unit in _units(wrapper, model)
        for tensor in wrapper.hides(unit)
    }


def unlisted(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """Parameters, by their names, that named_parameters() does not list."""
    return [found for wrapper in WRAPPERS if wrapper.unlisted is not None for found in wrapper.unlisted(model)]


def around(model: nn.Module) -> list[Wrapper]:
    """The wrappers that the module itself is."""
    return [wrapper for wrapper in WRAPPERS if wrapper.recognised_by(model)]


def attributes(module: nn.Module) -> frozenset[str]:
    """The attributes by which the module, if it is a wrapper, has the model."""
    asked = (wrapper for wrapper in WRAPPERS if wrapper.attribute)
    return frozenset(wrapper.attribute for wrapper in asked if wrapper.recognised_by(module))
