"""The record of a wrapper of a model: what the watch must know of DistributedDataParallel, fully_shard and others. A
new one is a record in the table of `_wrappers.py`."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any, Callable

import torch
from torch import nn

from addend.torch._gather import Group

if TYPE_CHECKING:
    from addend.torch import _spmd
    from addend.torch._declared import Declared
    from addend.torch._meshes import Mesh
    from addend.torch._parameters import Part


def none_declared(mesh: Mesh) -> list[Declared]:
    """The declarations of a wrapper that makes none."""
    return []


@dataclasses.dataclass
class Said:
    """What a wrapper says of one or several parameters."""

    of: Collection[int]  # id() of the tensors that are these parameters
    ranks: list[list[int]]  # groups of ranks that the wrapper sums over, one after the other
    reduce: torch.dtype | None = None  # dtype of the reduction, if it is another than the gradient's
    custom: str = ""  # the name of the job's own hook that makes the sums; it may scale them
    unjudged: str = ""  # why the sums cannot be judged; "": they can
    among: list[int] = dataclasses.field(default_factory=list)  # the wrapper's ranks, if it sums only `ranks` of them
    name: str = ""  # the parameter's name, if named_parameters() does not list it; it is then watched by this alone
    used: torch.Tensor | None = None  # the tensor that the forward uses; None: the model's
    owned: torch.Tensor | None = None  # the tensor that the optimizer has; None: the model's
    partials: Callable[[], list[torch.Tensor]] = list  # gradients that the wrapper keeps for a later reduction
    flat: Any = None  # _flat.InBuffer: the parameter's place in a flat buffer, which is `used`
    declared: Callable[[Mesh], list[Declared]] = none_declared  # what the job declares to the wrapper, on this mesh
    part: Part | None = None  # if `used` is this rank's plain part of a sharded tensor
    promised: torch.dtype | None = None  # dtype in which the job says that the sum is formed
    wrapper: str = ""  # the name of the wrapper's record
    annotation: _spmd.Annotation | None = None  # spmd_types' of the parameter before the wrapper replaced it


@dataclasses.dataclass(frozen=True)
class Wrapper:
    """One kind of wrapper. A unit is what sums in one way: the whole module, or one of its groups of parameters."""

    name: str
    recognised_by: Callable[[nn.Module], bool]
    units: Callable[[nn.Module], Iterable[Any]]  # of a module that is recognised
    params: Callable[[str, nn.Module, Any], Iterable[Said]]  # of the module's name, with a dot if any, it and a unit
    divides_by: Callable[[Any], float]  # by what a unit divides the sum of its ranks' gradients
    attribute: str = ""  # of the module, by which it has the model: no part of a parameter's plain name
    group: Callable[[nn.Module], Group] | None = None  # the ranks to watch if the whole model is in this wrapper
    hides: Callable[[Any], Iterable[torch.Tensor]] | None = None  # a unit's tensors that are not watched themselves
    unlisted: Callable[[nn.Module], Iterable[tuple[str, nn.Parameter]]] | None = None  # not in named_parameters()
