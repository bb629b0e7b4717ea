"""Which elements of a parameter are looked at: the same on every rank, whatever part of it it holds (docs/dumps.md)."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Tuple

import numpy
import torch

if TYPE_CHECKING:
    from numpy.typing import NDArray

_FNV_OFFSET, _FNV_PRIME, _MASK = 0xCBF29CE484222325, 0x100000001B3, (1 << 64) - 1


@dataclasses.dataclass(frozen=True)
class Box:
    """The part of a whole tensor that one rank holds: the first index and the count in every dimension."""

    first: tuple[int, ...]
    count: tuple[int, ...]


@dataclasses.dataclass
class Piece:
    """The sampled elements of a box, in order of their index in the whole."""

    values: torch.Tensor  # 1-D, a copy
    box: Box
    whole: tuple[int, ...]  # the shape of the whole


Place = Tuple[Tuple[int, ...], Box]  # the whole's shape, this rank's box


def _fnv1a(name: str) -> int:
    value = _FNV_OFFSET
    for byte in name.encode():
        value = (value ^ byte) * _FNV_PRIME & _MASK
    return value


def _mix(z: NDArray[numpy.uint64]) -> NDArray[numpy.uint64]:
    """splitmix64 of every element (uint64, modulo 2^64)."""
    z = z + numpy.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> numpy.uint64(30))) * numpy.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> numpy.uint64(27))) * numpy.uint64(0x94D049BB133111EB)
    return z ^ (z >> numpy.uint64(31))


def sampled(name: str, numel: int, count: int) -> NDArray[numpy.int64]:
    """Flat indices, ascending: one from each of `count` equal stretches of the tensor."""
    if numel <= count:
        return numpy.arange(numel, dtype=numpy.int64)
    bounds = numpy.array([k * numel // count for k in range(count + 1)], dtype=numpy.uint64)
    drawn = _mix(numpy.uint64(_fnv1a(name)) + numpy.arange(count, dtype=numpy.uint64))
    return (bounds[:-1] + drawn % (bounds[1:] - bounds[:-1])).astype(numpy.int64)


def _within(flat: NDArray[numpy.int64], shape: tuple[int, ...], box: Box) -> NDArray[numpy.int64]:
    """Those of the whole's flat indices that lie in the box, as flat indices of the box."""
    if not shape:
        return flat
    inside = numpy.ones(len(flat), dtype=bool)
    local = numpy.zeros(len(flat), dtype=numpy.int64)
    for index, first, count in zip(numpy.unravel_index(flat, shape), box.first, box.count):
        inside &= (index >= first) & (index < first + count)
        local = local * count + (index - first)
    return local[inside]


class Sampler:
    """Takes the sample of any parameter's gradient; what to take is found once for each parameter and box."""

    def __init__(self, count: int | None):
        self.count = count
        self._found: dict[tuple[str, Box, torch.device], torch.Tensor] = {}

    def _indices(self, name: str, count: int, shape: tuple[int, ...], box: Box, device: torch.device) -> torch.Tensor:
        key = (name, box, device)
        if key not in self._found:
            local = _within(sampled(name, math.prod(shape), count), shape, box)
            self._found[key] = torch.from_numpy(local).to(device)
        return self._found[key]

    def take(self, name: str, shape: tuple[int, ...], local: torch.Tensor, box: Box) -> Piece:
        """A copy of the elements of `local`, which is the whole's `box`, that belong to the sample."""
        if self.count is None or math.prod(shape) <= self.count:
            return Piece(local.reshape(-1).clone(), box, shape)
        indices = self._indices(name, self.count, shape, box, local.device)
        if local.is_contiguous():
            return Piece(local.view(-1)[indices], box, shape)
        return Piece(local[torch.unravel_index(indices, local.shape)], box, shape)
