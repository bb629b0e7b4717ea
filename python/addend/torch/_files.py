"""One rank's sampled gradients as the bytes of a safetensors file (docs/dumps.md)."""

from __future__ import annotations

import json
import re
import struct
from typing import BinaryIO, Collection, Mapping

import torch

from addend.torch._sample import Piece

_DTYPES = {torch.float64: "F64", torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}


def file_name(rank: int, kind: str, microbatch: int | None = None) -> str:
    middle = kind if microbatch is None else f"{kind}.m{microbatch}"
    return f"rank{rank:05d}.{middle}.safetensors"


def _bytes(values: torch.Tensor) -> bytes:
    return values.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes() if values.numel() else b""


def encode(pieces: Mapping[str, Piece], metadata: Mapping[str, object]) -> bytes:
    """`pieces`: by parameter name. Metadata values that are no text are written as JSON. Tensors are written flat,
    those of a reference in the shape of the whole."""
    whole = metadata["addend.kind"] == "reference"
    texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in metadata.items()}
    if not whole:
        texts["addend.shapes"] = json.dumps({name: piece.whole for name, piece in pieces.items()})
        texts["addend.held"] = json.dumps({name: [piece.box.first, piece.box.count] for name, piece in pieces.items()})
    header: dict[str, object] = {"__metadata__": texts}
    data, at = [], 0
    for name, piece in pieces.items():
        data.append(_bytes(piece.values))
        header[name] = {
            "dtype": _DTYPES[piece.values.dtype],
            "shape": list(piece.whole) if whole else [piece.values.numel()],
            "data_offsets": [at, at + len(data[-1])],
        }
        at += len(data[-1])
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + b"".join(data)


def replace(path: str, other: str, names: Collection[str]) -> None:
    """Takes the tensors of these names from a file that has the same ones."""
    with open(path, "r+b") as file, open(other, "rb") as source:
        for name, (begin, end) in _offsets(file).items():
            if name in names:
                first, last = _offsets(source)[name]
                source.seek(first)
                file.seek(begin)
                file.write(source.read(min(last - first, end - begin)))


def _offsets(file: BinaryIO) -> dict[str, tuple[int, int]]:
    """Where in the file each tensor lies."""
    file.seek(0)
    (length,) = struct.unpack("<Q", file.read(8))
    header = json.loads(file.read(length))
    return {
        name: (8 + length + told["data_offsets"][0], 8 + length + told["data_offsets"][1])
        for name, told in header.items()
        if name != "__metadata__"
    }


def is_ours(name: str) -> bool:
    return bool(re.fullmatch(r"rank\d{5,}\.(addend\.m\d+|sum)\.safetensors", name))


def dtype_name(dtype: torch.dtype) -> str:
    return _DTYPES[dtype].lower()
