"""Finds a model's parameters for a watch: for each one, the tensor to which backward gives the addend, the tensor whose
gradient the optimizer reads, and what the wrapper (DDP, fully_shard) does between the two."""

from __future__ import annotations

import collections
import dataclasses
import functools
from typing import TYPE_CHECKING, Any, Callable, List, Sequence, Tuple, cast

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel

from addend.torch import _flat, _meshes, _plain, _replicated
from addend.torch._gather import Group
from addend.torch._loaded import is_dtensor, is_fsdp
from addend.torch._pipeline import Stage

if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule


@dataclasses.dataclass
class Watched:
    name: str
    used: torch.Tensor  # the tensor that the forward uses: its gradient is this rank's addend
    owned: torch.Tensor  # the tensor that the optimizer has: its gradient is the sum
    data: List[List[int]] = dataclasses.field(default_factory=list)  # groups of ranks that the wrapper sums over
    beside: Beside | None = None  # for a parameter without a wrapper: what the wrapper of all others does
    frozen: bool = False  # every parameter of that wrapper is frozen
    factor: float = 1.0  # by which the wrapper multiplies the sum
    reduce: torch.dtype | None = None  # dtype of the wrapper's reduction, if it is another than the gradient's
    custom: str = ""  # the name of the job's own hook that makes the wrapper's sums; it may scale them
    among: List[int] = dataclasses.field(default_factory=list)  # the wrapper's ranks, if it sums only `data` of them
    unjudged: str = ""  # why the sum cannot be judged; "": it can
    part: Part | None = None  # for a plain tensor that is this rank's part of a DTensor
    stage: Stage | None = None  # pipeline stage of the parameter
    tied: Tuple[str, ...] = ()  # the names under which several stages have the parameter; their addends are summed
    partials: Callable[[], list[torch.Tensor]] = list  # gradients that the wrapper keeps for a later reduction
    flat: _flat.InBuffer | None = None  # the parameter's place in a flat buffer, which is `used`


Beside = Tuple[List[List[int]], float]  # the wrapper's `data` and factor
Part = Tuple[DeviceMesh, Tuple[Any, ...], Tuple[int, ...]]  # the mesh, the placements, the global shape
# A parameter's shard, the unsharded parameter, and fully_shard's FSDPParamGroup and FSDPParam (no public types).
_Sharded = Tuple[nn.Parameter, nn.Parameter, Any, Any]


def named(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    return [*model.named_parameters(), *_replicated.hidden(model)]


def plain_names(model: nn.Module) -> dict[str, str]:
    """The plain name for each name that PyTorch gives. If two would be equal, both keep PyTorch's."""
    return _plain_names(model, named(model))


def _plain_names(model: nn.Module, found: Sequence[tuple[str, nn.Parameter]]) -> dict[str, str]:
    """plain_names(model), where `found` is named(model)."""
    wrappers = _plain.edges(model)
    plain = {name: _plain.plain(name, wrappers) for name, _ in found}
    counts = collections.Counter(plain.values())
    return {name: short if counts[short] == 1 else name for name, short in plain.items()}


def _unsharded(module: nn.Module) -> list[tuple[nn.Parameter, nn.Parameter]]:
    """(sharded, unsharded) tensors of each parameter that fully_shard of this module shards. Leaves the module in the
    state in which it was."""
    wrapper = cast("FSDPModule", module)  # the same object: fully_shard makes a module an FSDPModule too

    def every() -> dict[str, nn.Parameter]:
        """A parameter that was tied after fully_shard is in two groups, under two names."""
        return dict(module.named_parameters(remove_duplicate=False))

    found = every()
    wrapper.unshard()
    whole = every()
    # One without parameters shares a group with others, whose state is not seen here.
    was_sharded = not found or any(whole[name] is not found[name] for name in found)
    wrapper.reshard()
    parts = every()
    if not was_sharded:
        wrapper.unshard()
    return [(parts[name], whole[name]) for name in parts if parts[name] is not whole[name]]


def fsdp_groups(module: FSDPModule) -> list[Any]:
    """The groups of parameters of a module to which fully_shard was applied."""
    state: Any = module._get_fsdp_state()
    groups = getattr(state, "_fsdp_param_groups", None)
    return [group for group in ([state._fsdp_param_group] if groups is None else groups) if group is not None]


def _fsdp_param(part: nn.Parameter, groups: Sequence[Any]) -> tuple[Any, Any]:
    """fully_shard's FSDPParamGroup and FSDPParam of a sharded parameter."""
    return next((group, param) for group in groups for param in group.fsdp_params if param.sharded_param is part)


def _partial(whole: torch.Tensor, group: Any, fsdp_param: Any) -> list[torch.Tensor]:
    """Gradients that a backward without synchronisation left: unsharded ones or, if only the all-reduce over replicas
    was off, shards."""
    accumulated = getattr(fsdp_param, "unsharded_accumulated_grad", None)  # with reduce_dtype, before PyTorch 2.15
    kept = (whole.grad, accumulated, getattr(group, "_partial_reduce_output", None))
    return [gradient for gradient in kept if gradient is not None]


def _custom_of(group: Any) -> str:
    """The name of a hook, or of a reduce-scatter, by which the job changes what fully_shard reduces."""
    hook, scatter = getattr(group, "_all_reduce_hook", None), getattr(group, "_reduce_scatter_comm", None)
    if hook is not None:
        return getattr(hook, "__name__", type(hook).__name__)
    return "" if type(scatter).__module__.startswith(("torch.", "builtins")) else type(scatter).__name__


def _pairs(module: nn.Module, groups: Sequence[Any]) -> list[tuple[nn.Parameter, nn.Parameter]]:
    """The pairs of _unsharded(). After the first forward they are found without an all-gather."""
    params = [param for group in groups for param in group.fsdp_params]
    if all(hasattr(param, "_unsharded_param") for param in params):
        return [(param.sharded_param, param._unsharded_param) for param in params]
    return _unsharded(module) if params else []


def _of_sharded(name: str, part: nn.Parameter, whole: nn.Parameter, group: Any, fsdp_param: Any) -> Watched:
    mesh = fsdp_param.mesh_info.mesh  # has only the data-parallel ranks, even if the parameter is on a larger mesh
    return Watched(
        name,
        used=whole,
        owned=part,
        data=[_meshes.along(mesh, i) for i in range(mesh.ndim)],
        factor=1 / (getattr(group, "gradient_divide_factor", None) or mesh.size()),
        reduce=fsdp_param.reduce_dtype,
        custom=_custom_of(group),
        partials=functools.partial(_partial, whole, group, fsdp_param),
    )


def _find_sharded(model: nn.Module) -> dict[int, _Sharded]:
    """All parameters that fully_shard shards; the keys are the ids of the sharded and of the unsharded tensor."""
    found = {}
    for module in model.modules():
        groups = fsdp_groups(module) if is_fsdp(module) else []
        for part, whole in _pairs(module, groups):
            found[id(part)] = found[id(whole)] = (part, whole, *_fsdp_param(part, groups))
    return found


def _part_of(param: nn.Parameter) -> Part | None:
    """DDP over one dimension of a mesh, and replicate(), replace DTensor parameters by their local parts and keep the
    DTensor's description in `_st_info`. None without it: then the caller has to give types=."""
    spec: Any = getattr(param, "_st_info", None)
    if not (hasattr(spec, "mesh") and hasattr(spec, "placements") and hasattr(spec, "shape")):
        return None
    return spec.mesh, tuple(spec.placements), tuple(spec.shape)


def _of_flat(model: nn.Module) -> list[Watched]:
    """The parameters that FullyShardedDataParallel keeps in flat buffers."""
    wrappers = _plain.edges(model)
    return [
        Watched(
            _plain.plain(found.name, wrappers),
            used=found.where.buffer,
            owned=found.owned,
            data=found.ranks,
            factor=found.factor,
            reduce=found.reduce,
            custom=found.custom,
            flat=found.where,
        )
        for found in _flat.find(model)
    ]


def find(model: nn.Module) -> list[Watched]:
    """Every parameter of the model that requires a gradient, once each, in the model's order."""
    replicated, sharded = _replicated.find(model), _find_sharded(model)
    found = named(model)
    names, in_buffers, watched = _plain_names(model, found), _flat.hidden(model), {}
    frozen = []
    for name, param in found:
        if id(param) in in_buffers:
            continue
        plain = names[name]
        entry = _of_sharded(plain, *sharded[id(param)]) if id(param) in sharded else Watched(plain, param, param)
        entry.part = _part_of(param)
        for wrapper in replicated:
            if id(param) in wrapper.parameters:
                entry.data, entry.factor = [wrapper.ranks], 1 / len(wrapper.ranks)
                entry.reduce, entry.custom = wrapper.reduce, wrapper.custom
                entry.unjudged, entry.among = wrapper.unjudged, wrapper.among
        if param.requires_grad:
            watched[id(entry.owned)] = entry
        else:
            frozen.append(entry)
    every = [*_of_flat(model), *watched.values()]
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
    """The process group of a model in DDP; None if the model is no DDP, or if DTensors say on which mesh it is."""
    if not isinstance(model, DistributedDataParallel):
        return None
    placed = any(is_dtensor(param) or _part_of(param) for _, param in named(model))
    group: Group = None if placed else model.process_group
    return group
