"""Parameters that are tied in one process: whether a rank's forward has the same values under each of their names."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import nn

from addend.torch._checks import _match, _names
from addend.torch._checks._trace import array

Pair = tuple[str, str]  # two names of one parameter of the one process


class Tied:
    """What modules of a rank that share a parameter have when they are called: fully_shard may keep a copy for each
    module, which an update through one of them does not reach."""

    def __init__(self, parts: Sequence[nn.Module], aliases: Mapping[str, Sequence[str]], bound: float):
        self.parted: dict[int, list[Pair]] = {}  # by steps of the optimizer: the names whose values differ after it
        self._bound = bound
        self._same: set[Pair] = set()  # of which the values are the same before the first step
        self._first = {name: first for first, others in aliases.items() for name in (first, *others)}
        self._modules: dict[str, nn.Module] = {}
        for path, module in (named for part in parts for named in _names.modules(part)):
            for attribute in module._parameters:
                name = f"{path}.{attribute}" if path else attribute
                if name in self._first:
                    self._modules[name] = module

    @contextlib.contextmanager
    def watched(self, after: int) -> Iterator[None]:
        """Watches the forwards within it, which come after so many steps of the optimizer."""
        values: dict[str, Any] = {}
        handles = [
            module.register_forward_pre_hook(functools.partial(_note, values, name))
            for name, module in self._modules.items()
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
        for pair in self._pairs(values):
            a, b = (values[name] for name in pair)
            scale = max(_match.largest(a), _match.largest(b)) or 1.0
            off = _match.largest(a - b) / scale
            if after == 0 and off <= self._bound:
                self._same.add(pair)
            if pair in self._same and off > self._bound:
                self.parted.setdefault(after, []).append(pair)

    def _pairs(self, values: Mapping[str, Any]) -> list[Pair]:
        """The names of one parameter whose values were seen and have the same shape, two by two."""
        names = sorted(values)
        return [
            (a, b)
            for i, a in enumerate(names)
            for b in names[i + 1 :]
            if self._first[a] == self._first[b] and values[a].shape == values[b].shape
        ]


def _note(values: dict[str, Any], name: str, module: nn.Module, inputs: Any) -> None:
    """Keeps what a module has under a name when it is called the first time."""
    parameter = module._parameters.get(name.rpartition(".")[2])
    if name not in values and parameter is not None:
        values[name] = array(parameter)
