"""The memory of other packages' arrays, without a copy: NumPy's, and any with __array_interface__ or __dlpack__."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from addend._dtypes import DTYPES, Dtype
from addend._errors import InvalidError

_BY_TYPESTR = {dtype.numpy: dtype for dtype in DTYPES if dtype.numpy}
_BY_DLPACK = {(int(dtype.dlpack), 8 * dtype.size): dtype for dtype in DTYPES if dtype.dlpack}
_DLPACK_PROCESSOR = (1, 3)  # DLPack's device types of CPU memory: plain, and pinned for a GPU
_DLPACK_DEVICES = {2: "CUDA", 4: "OpenCL", 7: "Vulkan", 8: "Metal", 10: "ROCm", 13: "CUDA (managed)", 14: "oneAPI"}


@dataclass(frozen=True)
class Memory:
    """The memory of one array: contiguous and row-major."""

    address: int
    dtype: Dtype
    shape: tuple[int, ...]
    writable: bool
    owner: Any  # an object that keeps the memory alive as long as this one refers to it

    @property
    def numel(self) -> int:
        count = 1
        for size in self.shape:
            count *= size
        return count

    @property
    def row(self) -> int:
        """Number of elements in one row: the product of all dimensions but the first."""
        return self.numel // self.shape[0] if self.shape and self.shape[0] else _product(self.shape[1:])


def _product(sizes: Sequence[int]) -> int:
    count = 1
    for size in sizes:
        count *= size
    return count


def memory_of(array: Any, what: str, written: bool = False) -> Memory:
    """The array's memory. Raises InvalidError, which names the argument `what`, if addend cannot use it as it is."""
    if hasattr(array, "__cuda_array_interface__"):
        raise _on_device(what, "a CUDA device")
    if hasattr(array, "__array_interface__"):
        memory = _from_interface(array, what)
    elif hasattr(array, "__dlpack__"):
        memory = _from_dlpack(array, what)
    else:
        raise InvalidError(
            f"`{what}` is of type `{type(array).__name__}`, which is not an array: it has neither "
            "__array_interface__ nor __dlpack__"
        )
    if written and not memory.writable:
        raise InvalidError(f"`{what}` is read-only, but the result is written there: pass a writable array")
    return memory


def _on_device(what: str, device: str) -> InvalidError:
    return InvalidError(f"`{what}` is in the memory of {device}; addend works in CPU memory: pass a copy there")


def _need_contiguous(what: str, shape: Sequence[int], strides: Sequence[int] | None, unit: int) -> None:
    """Refuses arrays with gaps between elements: a result written to a copy would not reach the caller's array."""
    step = unit
    if strides is None or 0 in shape:
        return
    for size, stride in zip(reversed(shape), reversed(strides)):
        if size != 1 and stride != step:
            raise InvalidError(
                f"`{what}` has strides: its elements do not lie one after another; pass a contiguous "
                "copy (numpy.ascontiguousarray, or .contiguous() of a tensor)"
            )
        step *= size


def _from_interface(array: Any, what: str) -> Memory:
    interface = array.__array_interface__
    text, shape = interface["typestr"], tuple(interface["shape"])
    dtype = _BY_TYPESTR.get(text[1:]) if text[0] in "<=|" else None
    if dtype is None:
        raise InvalidError(
            f"{what} has elements of type {text!r}; addend takes {', '.join(_BY_TYPESTR)} of this machine's "
            "byte order, and bf16 through __dlpack__"
        )
    _need_contiguous(what, shape, interface.get("strides"), dtype.size)
    address, is_readonly = interface["data"]
    return Memory(address, dtype, shape, not is_readonly, array)


class _DLTensor(ctypes.Structure):
    """The struct DLTensor of dlpack.h, the same in versions 0 and 1."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


_pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of.restype, _pointer_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


def _from_dlpack(array: Any, what: str) -> Memory:
    kind, number = array.__dlpack_device__()
    if kind not in _DLPACK_PROCESSOR:
        raise _on_device(what, f"{_DLPACK_DEVICES.get(kind, f'device kind {kind}')} device {number}")
    capsule = array.__dlpack__()  # not renamed to "used_dltensor": the capsule frees the tensor when it is deleted
    tensor = _DLTensor.from_address(_pointer_of(capsule, b"dltensor"))
    dtype = _BY_DLPACK.get((tensor.code, tensor.bits)) if tensor.lanes == 1 else None
    if dtype is None:
        raise InvalidError(
            f"{what} has elements of a type that addend does not take (DLPack type {tensor.code} of {tensor.bits} "
            f"bits); it takes {', '.join(dtype.name for dtype in DTYPES)}"
        )
    shape = tuple(tensor.shape[: tensor.ndim])
    _need_contiguous(what, shape, tensor.strides[: tensor.ndim] if tensor.strides else None, 1)
    return Memory((tensor.data or 0) + tensor.byte_offset, dtype, shape, True, (array, capsule))
