"""The types of the keyword arguments of watch, dump and assert_summed; the docstring of `watch` explains them."""

from __future__ import annotations

from typing import Callable, Mapping, Optional, Sequence, TypedDict, Union

import torch
from torch.distributed.device_mesh import DeviceMesh

from addend.torch import _names, _sums
from addend.torch._gather import Group

Number = Union[float, torch.Tensor]
Norm = Union[Number, Callable[[], Number]]


class Arguments(TypedDict, total=False):
    """Arguments of all three functions."""

    norm: Optional[Norm]
    divisor: Optional[Number]
    expect: Union[float, Mapping[str, float], None]
    types: Optional[Mapping[str, str]]
    mesh: Optional[DeviceMesh]
    sample: Optional[int]
    group: Group
    gradient: Optional[_sums.GradientOf]
    reduce: Optional[torch.dtype]
    tied: _names.Tied
    unused: Sequence[str]
    wait: float


class Judging(Arguments, total=False):
    """Arguments of assert_summed, which judges the dump itself."""

    allow_identical: bool
