"""Finds whether a wrong gradient's addends are right, and then how often each was counted. The ranks' addends and sums
come from a dumped step (audit/docs/dumps.md); `addend diff` counts."""

from __future__ import annotations

import json
import math
import os
import struct
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy

import addend
from addend._dtypes import DTYPES
from addend.torch._checks import _match
from addend.torch._checks._axes import Axes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from addend.torch._checks._job import Part, Whole

_DTYPES = {dtype.safetensors: numpy.dtype(dtype.numpy) for dtype in DTYPES if dtype.is_float and dtype.numpy}


def _read(path: str) -> tuple[dict[str, str], dict[str, NDArray[numpy.float64]]]:
    """The metadata of a dump file, and its flat tensors as f64."""
    with open(path, "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        data = file.read()
    metadata = header.pop("__metadata__")
    found = {}
    for name, entry in header.items():
        values = numpy.frombuffer(data[slice(*entry["data_offsets"])], _DTYPES[entry["dtype"]])
        found[name] = values.astype(numpy.float64)
    return metadata, found


def _write(path: str, metadata: Mapping[str, Any], found: Mapping[str, NDArray[numpy.float64]]) -> None:
    texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in metadata.items()}
    header: dict[str, Any] = {"__metadata__": texts}
    at = 0
    for name, values in found.items():
        header[name] = {"dtype": "F64", "shape": [values.size], "data_offsets": [at, at + values.size * 8]}
        at += values.size * 8
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for values in found.values():
            file.write(numpy.ascontiguousarray(values).tobytes())


def _block(index: _match.Index) -> tuple[list[int], list[int]] | None:
    """(first, count) in each dimension, if the indices are contiguous in all of them; else None."""
    first, count = [], []
    for part in index:
        start = int(part[0]) if len(part) else 0
        if not numpy.array_equal(part, numpy.arange(start, start + len(part))):
            return None
        first.append(start)
        count.append(len(part))
    return first, count


def _elements(index: _match.Index, shape: tuple[int, ...]) -> NDArray[Any]:
    """The flat indices in the global tensor of the part's elements, in the part's order."""
    return numpy.arange(math.prod(shape)).reshape(shape)[numpy.ix_(*index)].reshape(-1)


class Dump:
    """A dumped step: for each tensor, its values and its indices in the global tensor (the flattened one, if the tensor
    was dumped as a row of elements)."""

    def __init__(self, folder: str, whole: Whole, parts: Sequence[Part], axes: Axes):
        self.axes, self.whole, self.parts = axes, whole, parts
        self.addends: dict[str, dict[tuple[int, int], tuple[_match.Index, NDArray[numpy.float64]]]] = {}
        self.sums: dict[str, dict[int, tuple[_match.Index, NDArray[numpy.float64]]]] = {}
        self.types: dict[str, dict[str, str]] = {}
        self.partial: dict[str, str] = {}  # axes over which sums are not summed yet
        self._rows: set[str] = set()
        self.averaged = parts[0].averaged
        self.microbatches = 0
        for file in sorted(os.listdir(folder)):
            if file.endswith(".safetensors"):
                self._add(*_read(os.path.join(folder, file)))

    def _add(self, metadata: dict[str, str], found: dict[str, NDArray[numpy.float64]]) -> None:
        rank = int(metadata["addend.rank"])
        shapes, held = json.loads(metadata["addend.shapes"]), json.loads(metadata["addend.held"])
        for name, text in json.loads(metadata["addend.types"]).items():
            self.types.setdefault(name, dict(word.split("=") for word in text.split()))
        for name, text in json.loads(metadata.get("addend.partial", "{}")).items():
            self.partial[self.whole.first_name(name)] = text
        microbatch = int(metadata.get("addend.microbatch", 0))
        self.microbatches = max(self.microbatches, microbatch + 1)
        for dumped, values in found.items():
            name = self.whole.first_name(dumped)
            if name not in self.whole.weights:
                continue
            placed = self._placed(name, rank, shapes[dumped], held[dumped], values)
            if placed is None:
                continue
            if metadata["addend.kind"] == "addend":
                self.addends.setdefault(name, {})[rank, microbatch] = placed
            else:
                self.sums.setdefault(name, {})[rank] = placed

    def _placed(
        self, name: str, rank: int, shape: list[int], held: Any, values: NDArray[numpy.float64]
    ) -> tuple[_match.Index, NDArray[numpy.float64]] | None:
        first, count = held
        box = tuple(numpy.arange(f, f + c) for f, c in zip(first, count))
        own, whole = self.parts[rank].params.get(name), self.whole.weights[name].shape
        if tuple(shape) == whole:
            return box, values.reshape(count)
        if own is None or own.index is None:
            return None
        if own.shape == tuple(shape):
            index: _match.Index = tuple(part[at] for part, at in zip(own.index, box))
        elif shape == [math.prod(own.shape)]:
            self._rows.add(name)
            index = (_elements(own.index, whole)[box[0]],)
        else:
            return None
        return index, values.reshape(count)

    def _right(self, name: str) -> NDArray[numpy.float64]:
        right = self.whole.gradients[name]
        return right.reshape(-1) if name in self._rows else right

    def cut(self, name: str) -> frozenset[str]:
        """The axes along which ranks have addends of different parts of the parameter."""
        index = {rank: placed[0] for (rank, _), placed in self.addends[name].items()}
        found = set()
        for axis in self.axes.names:
            for fibre in self.axes.fibres(frozenset([axis]), sorted(index)):
                if any(not _match.same(index[rank], index[fibre[0]]) for rank in fibre[1:]):
                    found.add(axis)
        return frozenset(found)

    def wanted(self, name: str, bound: float) -> frozenset[str] | None:
        """The axes over which the addends must be summed to give the gradient of one process; None: no sum gives it, so
        the addends themselves are wrong."""
        if name not in self.addends:
            return None
        cut = self.cut(name)
        never = cut | self._alone(name)
        for some in [frozenset(self.axes.names) - never, *self.axes.subsets(), frozenset()]:
            if not some & never and self._fits(name, some, cut, bound):
                return some
        return None

    def _alone(self, name: str) -> frozenset[str]:
        """The axes along which no two ranks have the parameter, as that of an expert: nothing is summed over them."""
        ranks = [part.rank for part in self.parts if name in part.params]
        return frozenset(
            axis
            for axis in self.axes.names
            if self.axes.sizes[axis] > 1
            and all(len(fibre) == 1 for fibre in self.axes.fibres(frozenset([axis]), ranks))
        )

    def same(self, name: str, axes: frozenset[str], bound: float) -> bool:
        """Whether ranks along these axes have the same addends, which are not zero: each may be a mean."""
        found = self.addends[name]
        for fibre in self.axes.fibres(axes, sorted({rank for rank, _ in found})):
            for m in range(self.microbatches):
                values = [found[rank, m][1] for rank in fibre if (rank, m) in found]
                scale = _match.largest(values[0]) if values else 0.0
                if len(values) < 2 or not scale or not all(_match.close(v, values[0], bound, scale) for v in values):
                    return False
        return True

    def _fits(self, name: str, some: frozenset[str], cut: frozenset[str], bound: float) -> bool:
        right, ranks = self._right(name), sorted({rank for rank, _ in self.addends[name]})
        for fibre in self.axes.fibres(some | cut, ranks):
            total = numpy.zeros_like(right)
            for (rank, _), (index, values) in self.addends[name].items():
                if rank in fibre:
                    total[numpy.ix_(*index)] += values
            if not _match.close(total / self.averaged, right, bound, max(_match.largest(right), self.whole.floor)):
                return False
        return True

    def diff(self, names: Mapping[str, frozenset[str]], folder: str) -> addend.DiffReport | None:
        """`addend diff`'s report on these parameters, whose addends are right; names[name]: the axes over which they
        must be summed. Parameters whose parts are not contiguous are left out."""
        types = {name: self._types(name, wanted) for name, wanted in names.items()}
        kept = [name for name, found in types.items() if found]
        if not kept:
            return None
        os.makedirs(folder, exist_ok=True)
        for rank in range(self.axes.size()):
            for microbatch in range(self.microbatches):
                found = {n: self.addends[n][rank, microbatch] for n in kept if (rank, microbatch) in self.addends[n]}
                self._write(folder, rank, "addend", found, types, microbatch)
            sums = {name: self.sums[name][rank] for name in kept if rank in self.sums.get(name, {})}
            self._write(folder, rank, "sum", sums, types)
        try:
            return addend.diff(folder)
        except addend.AddendError:
            return None

    def _types(self, name: str, wanted: frozenset[str]) -> str:
        placed = list(self.addends[name].values()) + list(self.sums.get(name, {}).values())
        if any(_block(index) is None for index, _ in placed):
            return ""
        words = []
        for axis in self.axes.names:
            kind = "R" if axis in wanted else "I"
            if axis in self.cut(name):
                kind = self._cut_dim(name, axis)
            words.append(f"{axis}={kind}")
        return " ".join(words)

    def _cut_dim(self, name: str, axis: str) -> str:
        index = {rank: placed[0] for (rank, _), placed in self.addends[name].items()}
        for fibre in self.axes.fibres(frozenset([axis]), sorted(index)):
            for dim, first in enumerate(index[fibre[0]]):
                if any(not numpy.array_equal(index[rank][dim], first) for rank in fibre[1:]):
                    return f"S{dim}"
        return "I"

    def _write(
        self,
        folder: str,
        rank: int,
        kind: str,
        found: Mapping[str, Any],
        types: Mapping[str, str],
        microbatch: int = -1,
    ) -> None:
        metadata: dict[str, Any] = {
            "addend.version": "1",
            "addend.kind": kind,
            "addend.rank": str(rank),
            "addend.mesh": str(self.axes),
            "addend.types": {name: text for name, text in types.items() if text},
            "addend.shapes": {name: list(self._right(name).shape) for name in found},
            "addend.held": {name: _block(index) for name, (index, _) in found.items()},
            "addend.expect": str(1 / self.averaged),
        }
        if kind == "sum":
            metadata["addend.partial"] = {name: text for name, text in self.partial.items() if name in found}
        if microbatch >= 0:
            metadata["addend.microbatch"] = str(microbatch)
        middle = kind if microbatch < 0 else f"{kind}.m{microbatch}"
        path = os.path.join(folder, f"rank{rank:05d}.{middle}.safetensors")
        _write(path, metadata, {name: values.reshape(-1) for name, (_, values) in found.items()})
