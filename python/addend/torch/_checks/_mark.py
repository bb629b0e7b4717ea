"""Checksums of model and batch, by which a reference file of another model or batch is refused."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch

import addend

if TYPE_CHECKING:
    from addend.torch._checks._job import Whole


def need_same(whole: Whole, model_mark: str, batch_mark: str) -> None:
    """Refuses a reference that was written for another model or batch than this job's."""
    if whole.file and whole.model_mark != model_mark:
        raise addend.InvalidError(
            f"{whole.file} is the reference of another model: the weights that `make_model` gives have other names, "
            "shapes or values (write it again; a make_model with random weights must set a seed)"
        )
    if whole.file and whole.batch_mark != batch_mark:
        raise addend.InvalidError(f"{whole.file} is not the reference of the batch of `batches`: write it again")


def mark_of(value: Any) -> str:
    """A checksum of nested values, which depends on their tensors, numbers and texts and on their order."""
    digest = hashlib.sha256()
    for piece in _pieces(value):
        digest.update(piece)
    return digest.hexdigest()


def _pieces(value: Any) -> Iterable[bytes]:
    if isinstance(value, torch.Tensor):
        plain = value.detach().cpu().contiguous()
        yield f"{plain.dtype} {tuple(plain.shape)}".encode()
        if plain.numel():
            yield plain.reshape(-1).view(torch.uint8).numpy().tobytes()
    elif isinstance(value, (str, bytes, int, float, bool, complex, type(None))):
        yield repr(value).encode()
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield repr(key).encode()
            yield from _pieces(item)
    elif isinstance(value, (list, tuple)):
        yield f"{len(value)}".encode()
        for item in value:
            yield from _pieces(item)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield field.name.encode()
            yield from _pieces(getattr(value, field.name))
    else:
        yield type(value).__qualname__.encode()
