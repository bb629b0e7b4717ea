"""What a watch, a dump and a test are told of the job; `watch` says what each means."""

from __future__ import annotations

from typing import Callable, Mapping, Optional, Sequence, TypedDict, Union

import torch
from torch.distributed.device_mesh import DeviceMesh

from addend.torch import _names, _sums
from addend.torch._gather import Group

Number = Union[float, torch.Tensor]
Norm = Union[Number, Callable[[], Number]]


class Arguments(TypedDict, total=False):
    """Of all of them."""

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
    """Of a test."""

    allow_identical: bool
