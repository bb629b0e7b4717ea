"""The library's dtypes, and what other formats call them: the rows of core/base/dtypes.h, read from the library."""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

from addend._library import function


class Dtype(NamedTuple):
    """A dtype. A name is None where that format does not have the dtype."""

    number: int  # the value of ad_dtype in the C headers
    name: str  # "f32"
    size: int  # bytes
    is_float: bool
    wide: int  # the number of the dtype in which sums of floats are accumulated
    safetensors: str | None  # "F32"
    numpy: str | None  # the type string of the array interface, without the byte order: "f4"
    torch: str | None  # "float32"
    dlpack: str | None  # the number of DLDataTypeCode in dlpack.h: "2"


def _read() -> tuple[Dtype, ...]:
    size = function("ad_dtype_size", ctypes.c_size_t, ctypes.c_int)
    name = function("ad_dtype_name", ctypes.c_char_p, ctypes.c_int)
    is_float = function("ad_dtype_is_float", ctypes.c_int, ctypes.c_int)
    wide = function("ad_dtype_wide", ctypes.c_int, ctypes.c_int)
    name_in = function("ad_dtype_name_in", ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p)

    def named(number: int, format: bytes) -> str | None:
        found = name_in(number, format)
        return found.decode() if found else None

    found = []
    number = 1
    while size(number):
        others = (named(number, format) for format in (b"safetensors", b"numpy", b"torch", b"dlpack"))
        own = name(number).decode()
        found.append(Dtype(number, own, size(number), bool(is_float(number)), wide(number), *others))
        number += 1
    return tuple(found)


DTYPES = _read()


def by_torch() -> dict[Any, Dtype]:
    """The dtypes that the PyTorch at hand has, by its own objects, such as torch.float32."""
    import torch

    return {getattr(torch, dtype.torch): dtype for dtype in DTYPES if dtype.torch and hasattr(torch, dtype.torch)}
