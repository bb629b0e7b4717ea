"""Encodes one rank's sampled gradients as the bytes of a safetensors file (audit/docs/dumps.md)."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Mapping
from typing import NamedTuple

import torch

from addend._dtypes import by_torch
from addend.torch._sample import DTYPES, Piece

_NOT_IN_NUMPY = frozenset(of for of, dtype in by_torch().items() if not dtype.numpy)


def file_name(rank: int, kind: str, microbatch: int | None = None) -> str:
    middle = kind if microbatch is None else f"{kind}.m{microbatch}"
    return f"rank{rank:05d}.{middle}.safetensors"


def by_name(item: tuple[str, object]) -> bytes:
    """The sort key for parameters: the order in which `addend diff` judges them."""
    return item[0].encode()


def _bytes(values: torch.Tensor) -> bytes:
    """The bytes of a tensor, which is on the CPU and detached."""
    known = values.view(torch.uint8) if values.dtype in _NOT_IN_NUMPY else values
    data: bytes = known.numpy().tobytes()
    return data


class Encoded(NamedTuple):
    """A file's parts in their order: the header, then each parameter's bytes, sorted by name."""

    header: bytes
    data: dict[str, bytes]

    def whole(self) -> bytes:
        """The file's bytes."""
        return self.header + b"".join(self.data.values())


def encode(pieces: Mapping[str, Piece], metadata: Mapping[str, object]) -> Encoded:
    """Encodes `pieces`, one for each parameter's name. Metadata values other than strings are written as JSON. Tensors
    are written flat, except a reference's, which have their global shape."""
    whole = metadata["addend.kind"] == "reference"
    texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in metadata.items()}
    if not whole:
        texts["addend.shapes"] = json.dumps({name: piece.whole for name, piece in pieces.items()})
        texts["addend.held"] = json.dumps({name: [piece.box.first, piece.box.count] for name, piece in pieces.items()})
    header: dict[str, object] = {"__metadata__": texts}
    data: dict[str, bytes] = {}
    at = 0
    for name, piece in sorted(pieces.items(), key=by_name):
        data[name] = _bytes(piece.values)
        header[name] = {
            "dtype": DTYPES[piece.values.dtype],
            "shape": list(piece.whole) if whole else [piece.values.numel()],
            "data_offsets": [at, at + len(data[name])],
        }
        at += len(data[name])
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return Encoded(struct.pack("<Q", len(text)) + text, data)


def is_ours(name: str) -> bool:
    return bool(re.fullmatch(r"rank\d{5,}\.(addend\.m\d+|sum)\.safetensors", name))


def dtype_name(dtype: torch.dtype) -> str:
    return DTYPES[dtype].lower()
