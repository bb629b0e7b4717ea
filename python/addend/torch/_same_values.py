"""Finds whose gradients a reduced tensor became where it has not their memory, for the job copied them out of it: its
elements, divided by the number of ranks or not, are bit for bit those of a gradient."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

_ELEMENTS = 64  # of a gradient that are compared
_FIRST = 4  # by which gradients are looked up

Gradients = Mapping[str, Sequence[torch.Tensor]]
_Index = dict[tuple[float, ...], list[tuple[str, torch.Tensor]]]


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().reshape(-1)


def _key(values: torch.Tensor) -> tuple[float, ...]:
    return tuple(values[:_FIRST].float().tolist())


def _index(gradients: Gradients) -> dict[torch.dtype, _Index]:
    """Gradients by their first elements, those of each dtype apart. One of zeros or of a single value is told from no
    other, and is left out."""
    found: dict[torch.dtype, _Index] = {}
    for name, tensors in gradients.items():
        for tensor in tensors:
            row = _flat(tensor)
            if row.numel() and bool((row[: 16 * _ELEMENTS] != row[0]).any()):
                found.setdefault(row.dtype, {}).setdefault(_key(row), []).append((name, row))
    return found


def _are_equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    step = -(-other.numel() // _ELEMENTS)
    return bool(torch.equal(one[::step], other[::step]))


def _at(reduced: torch.Tensor, start: int, ranks: int, index: Mapping[torch.dtype, _Index]) -> tuple[set[str], int]:
    """The names of gradients that begin at this element, and how many elements they have."""
    names, size = set[str](), 0
    for dtype, of_dtype in index.items():
        for divisor in (1, ranks):
            first = reduced[start : start + _FIRST].to(dtype) / divisor
            lengths = {min(_FIRST, row.numel()) for rows in of_dtype.values() for _, row in rows[:1]}
            for length in lengths:
                for name, row in of_dtype.get(_key(first[:length]), ()):
                    own = reduced[start : start + row.numel()]
                    if own.numel() == row.numel() and _are_equal(own.to(dtype) / divisor, row):
                        names.add(name)
                        size = max(size, row.numel())
    return names, size


def _of_one(reduced: torch.Tensor, ranks: int, index: Mapping[torch.dtype, _Index]) -> list[str] | None:
    """The gradients that lie one behind the other in a reduced tensor; None: they are not all that it has, or
    two of them cannot be told apart."""
    row, start, found = _flat(reduced), 0, list[str]()
    while start < row.numel():
        names, size = _at(row, start, ranks, index)
        if len(names) != 1:
            return None
        found += names
        start += size
    return found


def find(reduced: Sequence[torch.Tensor], ranks: int, gradients: Gradients) -> list[str]:
    """The names of the gradients that the reduced tensors are, each one or several, of a group of `ranks`; []: not all
    that they have is known."""
    index = _index(gradients)
    found = [_of_one(tensor, ranks, index) for tensor in reduced] if index else []
    return [] if None in found else [*dict.fromkeys(name for names in found for name in names or ())]
