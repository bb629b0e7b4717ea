"""Finds a model's parameters for a watch: for each one, the tensor to which backward gives the addend, the tensor whose
gradient the optimizer reads, and what the wrapper does between the two, as the table of wrappers has it."""

from __future__ import annotations

import collections
import dataclasses
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Callable

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from addend.torch import _flat, _plain, _plans, _spmd, _wrappers
from addend.torch._gather import Group
from addend.torch._loaded import is_dtensor
from addend.torch._pipeline import Stage
from addend.torch._wrapper import Said, none_declared

if TYPE_CHECKING:
    from addend.torch._declared import Declared
    from addend.torch._meshes import Mesh, Placed


@dataclasses.dataclass
class Watched:
    name: str
    used: torch.Tensor  # the tensor that the forward uses: its gradient is this rank's addend
    owned: torch.Tensor  # the tensor that the optimizer has: its gradient is the sum
    data: list[list[int]] = dataclasses.field(default_factory=list)  # groups of ranks that the wrapper sums over
    beside: Beside | None = None  # for a parameter without a wrapper: what the wrapper of all others does
    frozen: bool = False  # every parameter of that wrapper is frozen
    factor: float = 1.0  # by which the wrapper multiplies the sum
    reduce: torch.dtype | None = None  # dtype of the wrapper's reduction, if it is another than the gradient's
    custom: str = ""  # the name of the job's own hook that makes the wrapper's sums; it may scale them
    among: list[int] = dataclasses.field(default_factory=list)  # the wrapper's ranks, if it sums only `data` of them
    unjudged: str = ""  # why the sum cannot be judged; "": it can
    part: Part | None = None  # for a plain tensor that is this rank's part of a DTensor
    stage: Stage | None = None  # pipeline stage of the parameter
    tied: tuple[str, ...] = ()  # the names under which several stages have the parameter; their addends are summed
    partials: Callable[[], list[torch.Tensor]] = list  # gradients that the wrapper keeps for a later reduction
    flat: _flat.InBuffer | None = None  # the parameter's place in a flat buffer, which is `used`
    declared: Callable[[Mesh], list[Declared]] = none_declared  # what the job declares of it, on the watch's mesh
    promised: torch.dtype | None = None  # dtype in which the job says that the sum is formed
    annotation: _spmd.Annotation | None = None  # of spmd_types
    wrapper: str = ""  # the name of the wrapper that sums it
    planned: Callable[[Mesh], list[Declared]] = none_declared  # what a plan of the model's library says of it

    def placement(self) -> Placed | None:
        """The mesh and placements of a DTensor, or of a plain tensor that is known to be a DTensor's local part."""
        if self.part is not None:
            return self.part[0], self.part[1]
        return (self.used.device_mesh, self.used.placements) if is_dtensor(self.used) else None


def grad_dtype_of(param: torch.Tensor) -> torch.dtype | None:
    """The dtype that the job asks of the parameter's gradient by `Tensor.grad_dtype`; None: it asks for none, or takes
    any. Before 2.15 PyTorch does not tell what a job set from the default, which is the parameter's own dtype."""
    asked: torch.dtype | None = getattr(param, "grad_dtype", None)
    return asked if getattr(param, "_has_grad_dtype_override", asked != param.dtype) else None


def in_other_dtypes(watched: Iterable[Watched]) -> list[str]:
    """Notes on gradients that are in another dtype than `Tensor.grad_dtype` asks for."""
    found: dict[str, list[str]] = {}
    for entry in watched:
        asked, gradient = grad_dtype_of(entry.owned), entry.owned.grad
        if asked is not None and gradient is not None and gradient.dtype != asked:
            says, has = (str(dtype).removeprefix("torch.") for dtype in (asked, gradient.dtype))
            found.setdefault(f"its grad_dtype is {says}, but its gradient is {has}", []).append(entry.name)
    more = {words: f" and {len(names) - 1} more" if names[1:] else "" for words, names in found.items()}
    return [f"`{names[0]}`{more[words]}: {words}" for words, names in found.items()]


Beside = tuple[list[list[int]], float]  # the wrapper's `data` and factor
Part = tuple[DeviceMesh, tuple[Any, ...], tuple[int, ...]]  # the mesh, the placements, the global shape


def named(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    return [*model.named_parameters(), *_wrappers.unlisted(model)]


def plain_names(model: nn.Module) -> dict[str, str]:
    """The plain name for each name that PyTorch gives. If two would be equal, both keep PyTorch's."""
    return _plain_names(model, named(model))


def frozen_names(model: nn.Module, watched: Iterable[str]) -> list[str]:
    """The plain names of frozen parameters, also with the stages of a pipeline that `watched` names begin with."""
    plain = plain_names(model)
    found = [plain[name] for name, param in named(model) if not param.requires_grad]
    stages = {name.partition(".")[0] for name in watched if re.match(r"stage\d+\.", name)}
    return [*found, *(f"{stage}.{name}" for stage in sorted(stages) for name in found)]


def _plain_names(model: nn.Module, found: Sequence[tuple[str, nn.Parameter]]) -> dict[str, str]:
    """plain_names(model), where `found` is named(model)."""
    wrappers = _plain.edges(model)
    plain = {name: _plain.plain(name, wrappers) for name, _ in found}
    counts = collections.Counter(plain.values())
    return {name: short if counts[short] == 1 else name for name, short in plain.items()}


def _part_of(param: nn.Parameter) -> Part | None:
    """DDP over one dimension of a mesh, and replicate(), replace DTensor parameters by their local parts and keep the
    DTensor's description in `_st_info`. None without it: then the caller has to give types=."""
    spec: Any = getattr(param, "_st_info", None)
    if not (hasattr(spec, "mesh") and hasattr(spec, "placements") and hasattr(spec, "shape")):
        return None
    return spec.mesh, tuple(spec.placements), tuple(spec.shape)


def _apply(said: Said, divisor: float, entry: Watched) -> None:
    """Writes what a wrapper says of a parameter into its entry; what it leaves open stays as it is."""
    entry.data, entry.factor, entry.reduce, entry.custom = said.ranks, 1 / divisor, said.reduce, said.custom
    entry.unjudged, entry.among = said.unjudged, said.among
    entry.declared, entry.promised, entry.part = said.declared, said.promised, said.part or entry.part
    entry.annotation, entry.wrapper = said.annotation or entry.annotation, said.wrapper
    if said.used is not None and said.owned is not None:
        entry.used, entry.owned, entry.partials, entry.flat = said.used, said.owned, said.partials, said.flat


def find(model: nn.Module) -> list[Watched]:
    """Every parameter of the model that requires a gradient, once each: first those that only their wrapper lists, then
    the others in the model's order."""
    found, edges = named(model), _plain.edges(model)
    names, hidden, watched = _plain_names(model, found), _wrappers.hidden(model), {}
    plans = _plans.of(model)
    said: dict[int, list[tuple[Said, float]]] = {}
    every, frozen = [], []
    for of_some, divisor in _wrappers.said(model):
        if of_some.name and of_some.owned is not None:
            entry = Watched(_plain.plain(of_some.name, edges), of_some.owned, of_some.owned)
            _apply(of_some, divisor, entry)
            every.append(entry)
        for own in of_some.of:
            said.setdefault(own, []).append((of_some, divisor))
    for name, param in found:
        if id(param) in hidden:
            continue
        entry = Watched(names[name], param, param, part=_part_of(param), annotation=_spmd.annotation(param))
        entry.planned = plans.get(id(param), none_declared)
        for of_some, divisor in said.get(id(param), ()):
            _apply(of_some, divisor, entry)
        if entry.promised is None:
            entry.promised = grad_dtype_of(param)
        if param.requires_grad:
            watched[id(entry.owned)] = entry
        else:
            frozen.append(entry)
    every += watched.values()
    _expect_the_same(every, frozen)
    return every


def _expect_the_same(watched: Sequence[Watched], frozen: Sequence[Watched]) -> None:
    """If all wrappers, also those of frozen parameters, multiply sums by the same factor, parameters without a wrapper
    are expected to be summed in the same way."""
    wrapped = [entry for entry in (*watched, *frozen) if entry.data]
    for entry in watched:
        if not entry.data and len({other.factor for other in wrapped}) == 1:
            entry.beside, entry.frozen = (wrapped[0].data, wrapped[0].factor), not any(other.data for other in watched)


def own_group(model: nn.Module) -> Group:
    """The process group of the wrapper around the whole model; None if there is none, it has no group of its own, or
    DTensors say on which mesh the model is."""
    groups = [wrapper.group for wrapper in _wrappers.around(model) if wrapper.group is not None]
    if not groups or any(is_dtensor(param) or _part_of(param) for _, param in named(model)):
        return None
    return groups[0](model)
