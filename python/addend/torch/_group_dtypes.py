"""The dtypes and reductions of PyTorch that backend "addend" supports, and the library's numbers for them."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch.distributed import ReduceOp

from addend._dtypes import by_torch
from addend._errors import InvalidError
from addend._library import constant


class Moved(NamedTuple):
    """How tensors of one PyTorch dtype are moved and reduced as elements of a dtype of the library."""

    dtype: int  # number of the library's dtype
    parts: int  # library elements per tensor element: 2 for complex numbers, else 1
    sums: bool  # summing the parts sums the elements
    combines: bool  # the other reductions of the parts are those of the elements
    wide: torch.dtype | None  # dtype in which averages and products with a factor are computed; None: there are none


def _table() -> dict[torch.dtype, Moved]:
    own = by_torch()
    dtype_of = {dtype.number: of for of, dtype in own.items()}
    table = {
        of: Moved(dtype.number, 1, True, True, dtype_of[dtype.wide] if dtype.is_float else None)
        for of, dtype in own.items()
    }
    table[torch.complex128] = Moved(own[torch.float64].number, 2, True, False, torch.complex128)
    table[torch.complex64] = Moved(own[torch.float32].number, 2, True, False, torch.complex64)
    table[torch.complex32] = Moved(own[torch.float16].number, 2, True, False, torch.complex64)
    for signed, of in ((torch.int64, torch.uint64), (torch.int32, torch.uint32), (torch.int16, torch.uint16)):
        table[of] = Moved(own[signed].number, 1, False, False, None)
    for name in dir(torch):
        of_8_bits = getattr(torch, name)
        if name.startswith("float8_") and isinstance(of_8_bits, torch.dtype):
            table.setdefault(of_8_bits, Moved(own[torch.uint8].number, 1, False, False, None))
    return table


_MOVED = _table()
AVERAGE = -1  # not a reduction of the library: a sum, divided by the number of ranks when it is complete
_REDUCTIONS = {
    ReduceOp.SUM: constant("AD_SUM"),
    ReduceOp.AVG: AVERAGE,
    ReduceOp.MAX: constant("AD_MAX"),
    ReduceOp.MIN: constant("AD_MIN"),
    ReduceOp.PRODUCT: constant("AD_PRODUCT"),
    ReduceOp.BAND: constant("AD_BIT_AND"),
    ReduceOp.BOR: constant("AD_BIT_OR"),
    ReduceOp.BXOR: constant("AD_BIT_XOR"),
}
SUM = constant("AD_SUM")
_BITS = (constant("AD_BIT_AND"), constant("AD_BIT_OR"), constant("AD_BIT_XOR"))


def moved(dtype: torch.dtype) -> Moved:
    """How tensors of this dtype are moved; raises InvalidError if they cannot be."""
    found = _MOVED.get(dtype)
    if found is None:
        raise InvalidError(f"backend addend does not move tensors of {dtype}: convert them to another dtype first")
    return found


class Reduction(NamedTuple):
    """How ranks' tensors become one."""

    number: int  # the library's, or AVERAGE
    factor: Any = None  # of PREMUL_SUM: a number by which this rank multiplies its tensor before the sum


def reduction(op: Any) -> Reduction:
    """Which reduction a ReduceOp is; raises InvalidError if the backend has none."""
    kind = getattr(op, "op", op)
    if kind == ReduceOp.PREMUL_SUM:
        return Reduction(SUM, _factor_of(op))
    found = _REDUCTIONS.get(kind)
    if found is None:
        raise InvalidError(
            f"backend addend reduces with SUM, AVG, PREMUL_SUM, PRODUCT, MIN, MAX, BAND, BOR and BXOR, not with {op}"
        )
    return Reduction(found)


def _factor_of(op: Any) -> Any:
    """The factor of torch.distributed._make_nccl_premul_sum(factor), which Python gets only by pickling's function."""
    state = op.__getstate__() if isinstance(op, ReduceOp) else None
    factor = state[1] if isinstance(state, tuple) else None
    if isinstance(factor, torch.Tensor) and factor.numel() == 1:
        return factor.item()
    if not isinstance(factor, (int, float)):
        raise InvalidError(
            f"PREMUL_SUM needs a factor that is one number, not {factor}: torch.distributed._make_nccl_premul_sum(0.5)"
        )
    return factor


def check_reduces(dtype: torch.dtype, as_: Moved, by: Reduction) -> None:
    """Raises InvalidError if tensors of the dtype cannot be reduced with `by`."""
    if by.number == AVERAGE or by.factor is not None:
        allowed = as_.wide is not None
    elif by.number == SUM:
        allowed = as_.sums
    else:
        allowed = as_.combines and not (by.number in _BITS and dtype.is_floating_point)
    if not allowed:
        name = next(op for op, number in _REDUCTIONS.items() if number == by.number).name
        name = name if by.factor is None else "PREMUL_SUM"
        raise InvalidError(
            f"backend addend cannot reduce tensors of {dtype} with {name}: convert them to another dtype first"
        )
