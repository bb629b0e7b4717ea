"""Which elements of a parameter are looked at: the same on every rank, whatever part of it it holds (docs/dumps.md)."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Iterable, Mapping, Tuple

import numpy
import torch

if TYPE_CHECKING:
    from numpy.typing import NDArray

DTYPES = {torch.float64: "F64", torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}  # that files have
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
    k, each, rest = numpy.arange(count + 1, dtype=numpy.uint64), numel // count, numel % count
    bounds: NDArray[numpy.uint64] = k * numpy.uint64(each) + k * numpy.uint64(rest) // numpy.uint64(count)
    drawn = _mix(numpy.uint64(_fnv1a(name)) + numpy.arange(count, dtype=numpy.uint64))
    flat: NDArray[numpy.int64] = (bounds[:-1] + drawn % (bounds[1:] - bounds[:-1])).astype(numpy.int64)
    return flat


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


def _offsets(flat: NDArray[numpy.int64], shape: tuple[int, ...], strides: tuple[int, ...]) -> NDArray[numpy.int64]:
    """Where in memory the elements of these flat indices lie, from the tensor's first one on."""
    offsets = numpy.zeros(len(flat), dtype=numpy.int64)
    for stride, size in zip(reversed(strides), reversed(shape)):
        flat, at = numpy.divmod(flat, size)
        offsets += at * stride
    return offsets


def as_real(local: torch.Tensor, whole: tuple[int, ...], box: Box) -> tuple[torch.Tensor, tuple[int, ...], Box]:
    """A complex tensor is one of real and imaginary parts, which are summed alike."""
    if not local.is_complex():
        return local, whole, box
    parts = torch.view_as_real(local.resolve_conj())
    return parts, (*whole, 2), Box((*box.first, 0), (*box.count, 2))


def _kept(values: torch.Tensor) -> torch.Tensor:
    """Dtypes that no file has (8 bits and less) become f32."""
    return values if values.dtype in DTYPES else values.float()


@dataclasses.dataclass
class Plan:
    """What is taken of a parameter's gradient that lies as the tensor did that the plan was made for."""

    shape: torch.Size
    strides: tuple[int, ...]
    device: torch.device
    indices: torch.Tensor | None  # from the first element's place in memory on; None: all elements
    extent: int  # of the memory that the elements lie in
    box: Box
    whole: tuple[int, ...]

    def fits(self, local: torch.Tensor) -> bool:
        """Plain tensors alone are held to a plan."""
        return (
            type(local) is torch.Tensor
            and local.layout is torch.strided
            and local.shape == self.shape
            and local.stride() == self.strides
            and local.device == self.device
        )

    def thinned(self, count: int) -> Plan:
        """The same for as many of its elements that lie evenly among them, where they are drawn; else for all."""
        if self.indices is None or len(self.indices) <= count:
            return self
        return dataclasses.replace(self, indices=self.indices[:: -(-len(self.indices) // count)].contiguous())

    def take(self, local: torch.Tensor) -> Piece:
        """A copy, without a graph."""
        local = local.detach()
        if self.indices is None:
            values = local.clone().reshape(-1)
        else:
            values = local.as_strided((self.extent,), (1,)).index_select(0, self.indices)
        return Piece(_kept(values), self.box, self.whole)


_Key = Tuple[str, Tuple[int, ...], Box, torch.Size, Tuple[int, ...], torch.device]


class Sampler:
    """Takes the sample of any parameter's gradient; what to take is found once for each parameter, box and layout."""

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
            offsets = offsets.int()  # they are kept for later watches
        return offsets.to(local.device, non_blocking=True)  # a hook may not wait for the device

    def plan(self, name: str, shape: tuple[int, ...], local: torch.Tensor, box: Box) -> Plan:
        """For tensors like `local`, which is the whole's `box`."""
        key = (name, shape, box, local.shape, local.stride(), local.device)
        if key not in self._plans:
            extent = 1 + sum((size - 1) * stride for size, stride in zip(local.shape, local.stride()))
            indices = self._indices(name, shape, local, box)
            extent = extent if local.numel() else 0
            self._plans[key] = Plan(local.shape, local.stride(), local.device, indices, extent, box, shape)
        return self._plans[key]

    def take(self, name: str, shape: tuple[int, ...], local: torch.Tensor, box: Box) -> Piece:
        """A copy of the elements of `local`, which is the whole's `box`, that belong to the sample."""
        return self.plan(name, shape, local, box).take(local)


def bring(pieces: Iterable[Piece]) -> None:
    """To the CPU: what is on a device is copied at once, dtype by dtype."""
    away: dict[tuple[torch.device, torch.dtype], list[Piece]] = {}
    for piece in pieces:
        if piece.values.device.type != "cpu":
            away.setdefault((piece.values.device, piece.values.dtype), []).append(piece)
    for together in away.values():
        lengths = [piece.values.numel() for piece in together]
        for piece, values in zip(together, torch.cat([p.values for p in together]).cpu().split(lengths)):
            piece.values = values


def _are_finite(pieces: Mapping[str, Piece]) -> bool:
    """False: perhaps not. A sum that has an inf or a NaN in it is none that is finite."""
    found: dict[torch.dtype, list[torch.Tensor]] = {}
    for piece in pieces.values():
        found.setdefault(piece.values.dtype, []).append(piece.values)
    return all(math.isfinite(torch.cat(values).sum()) for values in found.values())


def not_finite(pieces: Mapping[str, Piece]) -> list[str]:
    """The names of those with inf or NaN. On the CPU."""
    if _are_finite(pieces):
        return []
    return [name for name, piece in pieces.items() if not bool(torch.isfinite(piece.values).all())]
