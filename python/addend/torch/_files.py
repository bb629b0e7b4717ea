"""Encodes one rank's sampled gradients as the bytes of a safetensors file (audit/docs/dumps.md)."""

from __future__ import annotations

import functools
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


def texts(metadata: Mapping[str, object]) -> dict[str, str]:
    """Metadata as files have it: values other than strings are written as JSON."""
    return {key: value if isinstance(value, str) else json.dumps(value) for key, value in metadata.items()}


def _layout(pieces: Mapping[str, Piece]) -> dict[str, str]:
    """The global shape and this rank's box of each piece, as metadata."""
    kinds: dict[tuple[object, ...], tuple[str, str]] = {}  # few shapes are many parameters'
    shapes, held = [], []
    for name, piece in pieces.items():
        kind = piece.whole, piece.box
        if kind not in kinds:
            kinds[kind] = json.dumps(piece.whole), json.dumps([piece.box.first, piece.box.count])
        quoted, (shape, box) = _quoted(name), kinds[kind]
        shapes.append(f"{quoted}: {shape}")
        held.append(f"{quoted}: {box}")
    return {"addend.shapes": f"{{{', '.join(shapes)}}}", "addend.held": f"{{{', '.join(held)}}}"}


_quoted = functools.lru_cache(maxsize=1 << 16)(json.dumps)  # names, which are the same in each file


def encode(pieces: Mapping[str, Piece], metadata: Mapping[str, object]) -> Encoded:
    """Encodes `pieces`, one for each parameter's name. Metadata values other than strings are written as JSON. Tensors
    are written flat, except a reference's, which have their global shape."""
    whole = metadata["addend.kind"] == "reference"
    about = texts(metadata)
    if not whole:
        about.update(_layout(pieces))
    header = [f'"__metadata__":{json.dumps(about, separators=(",", ":"))}']
    data: dict[str, bytes] = {}
    at = 0
    for name, piece in sorted(pieces.items(), key=by_name):
        data[name] = own = _bytes(piece.values)
        shape = json.dumps(piece.whole) if whole else f"[{piece.values.numel()}]"
        end = at + len(own)
        dtype = DTYPES[piece.values.dtype]
        header.append(f'{_quoted(name)}:{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{at},{end}]}}')
        at = end
    text = f"{{{','.join(header)}}}".encode()
    text += b" " * (-len(text) % 8)
    return Encoded(struct.pack("<Q", len(text)) + text, data)


def is_ours(name: str) -> bool:
    return bool(re.fullmatch(r"rank\d{5,}\.(addend\.m\d+|sum)\.safetensors", name))


def dtype_name(dtype: torch.dtype) -> str:
    return DTYPES[dtype].lower()
