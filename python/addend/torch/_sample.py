"""Chooses which elements of a parameter are sampled: the same on all ranks, however sharded (audit/docs/dumps.md)."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import numpy
import torch

from addend._dtypes import by_torch

if TYPE_CHECKING:
    from numpy.typing import NDArray

# the names in files of the dtypes that gradients in files can have
DTYPES = {of: dtype.safetensors for of, dtype in by_torch().items() if dtype.is_float and dtype.safetensors}
_FNV_OFFSET, _FNV_PRIME, _MASK = 0xCBF29CE484222325, 0x100000001B3, (1 << 64) - 1


@dataclasses.dataclass(frozen=True)
class Box:
    """The part of a tensor that one rank holds: its first index and its count in every dimension."""

    first: tuple[int, ...]
    count: tuple[int, ...]


@dataclasses.dataclass
class Piece:
    """The sampled elements of a box, in the order of their index in the global tensor."""

    values: torch.Tensor  # a one-dimensional copy
    box: Box
    whole: tuple[int, ...]  # the global shape


Place = tuple[tuple[int, ...], Box]  # the global shape, this rank's box


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
    """The flat indices of the sampled elements, ascending: one in each of `count` equal intervals of the tensor."""
    if numel <= count:
        return numpy.arange(numel, dtype=numpy.int64)
    k, each, rest = numpy.arange(count + 1, dtype=numpy.uint64), numel // count, numel % count
    bounds: NDArray[numpy.uint64] = k * numpy.uint64(each) + k * numpy.uint64(rest) // numpy.uint64(count)
    drawn = _mix(numpy.uint64(_fnv1a(name)) + numpy.arange(count, dtype=numpy.uint64))
    flat: NDArray[numpy.int64] = (bounds[:-1] + drawn % (bounds[1:] - bounds[:-1])).astype(numpy.int64)
    return flat


def _within(flat: NDArray[numpy.int64], shape: tuple[int, ...], box: Box) -> NDArray[numpy.int64]:
    """Of the flat indices into the global tensor, those that are in the box, as flat indices into the box."""
    if not shape:
        return flat
    inside = numpy.ones(len(flat), dtype=bool)
    local = numpy.zeros(len(flat), dtype=numpy.int64)
    for index, first, count in zip(numpy.unravel_index(flat, shape), box.first, box.count):
        inside &= (index >= first) & (index < first + count)
        local = local * count + (index - first)
    return local[inside]


def _offsets(flat: NDArray[numpy.int64], shape: tuple[int, ...], strides: tuple[int, ...]) -> NDArray[numpy.int64]:
    """The memory offsets of elements from the tensor's first element, in elements, from their flat indices."""
    offsets = numpy.zeros(len(flat), dtype=numpy.int64)
    for stride, size in zip(reversed(strides), reversed(shape)):
        flat, at = numpy.divmod(flat, size)
        offsets += at * stride
    return offsets


def as_real(local: torch.Tensor, whole: tuple[int, ...], box: Box) -> tuple[torch.Tensor, tuple[int, ...], Box]:
    """A complex tensor as a real one with a last dimension of 2, since sums add real and imaginary parts separately."""
    if not local.is_complex():
        return local, whole, box
    parts = torch.view_as_real(local.resolve_conj())
    return parts, (*whole, 2), Box((*box.first, 0), (*box.count, 2))


def _kept(values: torch.Tensor) -> torch.Tensor:
    """The values as f32, if files cannot have their dtype (8 bits or fewer)."""
    return values if values.dtype in DTYPES else values.float()


@dataclasses.dataclass
class Plan:
    """Which elements to sample of a gradient with a certain shape, strides and device."""

    shape: torch.Size
    strides: tuple[int, ...]
    device: torch.device
    indices: torch.Tensor | None  # memory offsets of the sampled elements, in elements; None: all elements
    extent: int  # number of elements in the memory from the first to the last element
    box: Box
    whole: tuple[int, ...]

    def fits(self, local: torch.Tensor) -> bool:
        """Whether the plan can be used for this gradient: a plain tensor with the plan's shape, strides and device."""
        return (
            type(local) is torch.Tensor
            and local.layout is torch.strided
            and local.shape == self.shape
            and local.stride() == self.strides
            and local.device == self.device
        )

    def thinned(self, count: int) -> Plan:
        """A plan for at most about `count` of the sampled elements, evenly chosen. A plan for all elements stays."""
        if self.indices is None or len(self.indices) <= count:
            return self
        return dataclasses.replace(self, indices=self.indices[:: -(-len(self.indices) // count)].contiguous())

    def take(self, local: torch.Tensor) -> Piece:
        """A detached copy of the sampled elements."""
        local = local.detach()
        if self.indices is None:
            values = local.clone().reshape(-1)
        else:
            values = local.as_strided((self.extent,), (1,)).index_select(0, self.indices)
        return Piece(_kept(values), self.box, self.whole)


_Key = tuple[str, tuple[int, ...], Box, torch.Size, tuple[int, ...], torch.device]


class Sampler:
    """Samples gradients; makes a plan once for each parameter, box and memory layout."""

    def __init__(self, count: int | None):
        self.count = count
        self._drawn: dict[tuple[str, tuple[int, ...]], NDArray[numpy.int64]] = {}
        self._plans: dict[_Key, Plan] = {}

    def _indices(self, name: str, shape: tuple[int, ...], local: torch.Tensor, box: Box) -> torch.Tensor | None:
        if self.count is None or math.prod(shape) <= self.count:
            return None
        if (name, shape) not in self._drawn:
            self._drawn[name, shape] = sampled(name, math.prod(shape), self.count)
        inside = _within(self._drawn[name, shape], shape, box)
        offsets = torch.from_numpy(_offsets(inside, tuple(local.shape), local.stride()))
        if math.prod(local.shape) < 1 << 31 and local.is_contiguous():
            offsets = offsets.int()  # saves memory, since plans are kept for later watches
        return offsets.to(local.device, non_blocking=True)  # so that a hook need not wait for the device

    def plan(self, name: str, shape: tuple[int, ...], local: torch.Tensor, box: Box) -> Plan:
        """The plan for tensors like `local`, which is the `box` of a parameter with the global shape `shape`."""
        key = (name, shape, box, local.shape, local.stride(), local.device)
        if key not in self._plans:
            extent = 1 + sum((size - 1) * stride for size, stride in zip(local.shape, local.stride()))
            indices = self._indices(name, shape, local, box)
            extent = extent if local.numel() else 0
            self._plans[key] = Plan(local.shape, local.stride(), local.device, indices, extent, box, shape)
        return self._plans[key]

    def take(self, name: str, shape: tuple[int, ...], local: torch.Tensor, box: Box) -> Piece:
        """A copy of the sampled elements of `local`, which is the `box` of a parameter with global shape `shape`."""
        return self.plan(name, shape, local, box).take(local)


def bring(pieces: Iterable[Piece]) -> None:
    """Copies all pieces to the CPU, with one copy for each device and dtype."""
    away: dict[tuple[torch.device, torch.dtype], list[Piece]] = {}
    for piece in pieces:
        if piece.values.device.type != "cpu":
            away.setdefault((piece.values.device, piece.values.dtype), []).append(piece)
    for together in away.values():
        lengths = [piece.values.numel() for piece in together]
        for piece, values in zip(together, torch.cat([p.values for p in together]).cpu().split(lengths)):
            piece.values = values


def _are_finite(pieces: Mapping[str, Piece]) -> bool:
    """True if all values are finite: then their sum is. (A finite sum may overflow too: False means "perhaps not".)"""
    found: dict[torch.dtype, list[torch.Tensor]] = {}
    for piece in pieces.values():
        found.setdefault(piece.values.dtype, []).append(piece.values)
    return all(math.isfinite(torch.cat(values).sum()) for values in found.values())


def not_finite(pieces: Mapping[str, Piece]) -> list[str]:
    """The names of the pieces with an inf or a NaN. The pieces are on the CPU."""
    if _are_finite(pieces):
        return []
    return [name for name, piece in pieces.items() if not bool(torch.isfinite(piece.values).all())]
