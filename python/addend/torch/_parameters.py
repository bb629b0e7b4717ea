"""What is watched of a model: for each parameter the tensor whose gradient a backward gives, the tensor whose gradient
the optimizer gets, and what the wrapper around it (DDP, fully_shard) is known to do in between."""

from __future__ import annotations

import collections
import dataclasses
import functools
from typing import TYPE_CHECKING, Any, Callable, List, Sequence, Tuple, cast

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel

from addend.torch import _flat, _meshes, _replicated
from addend.torch._gather import Group
from addend.torch._loaded import is_dtensor, is_fsdp
from addend.torch._pipeline import Stage

if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule


@dataclasses.dataclass
class Watched:
    name: str
    used: torch.Tensor  # the forward uses it: its gradient is this rank's addend
    owned: torch.Tensor  # the optimizer has it: its gradient is the sum
    data: List[List[int]] = dataclasses.field(default_factory=list)  # ranks that the wrapper sums over, by dimension
    factor: float = 1.0  # what the wrapper multiplies the sum by
    reduce: torch.dtype | None = None
    unjudged: str = ""  # why its sum cannot be judged; "": it can
    part: Part | None = None  # where a plain tensor is known to be this rank's part of a DTensor
    stage: Stage | None = None  # of a pipeline
    tied: bool = False  # ranks along the pipeline have it under other names, and their addends are summed
    pending: Callable[[], list[torch.Tensor]] = list  # what the wrapper keeps of it for a later sum
    flat: _flat.InBuffer | None = None  # where it lies in a flat buffer, which is `used`


Part = Tuple[DeviceMesh, Tuple[Any, ...], Tuple[int, ...]]  # the mesh, the placements, the shape of the whole
# A parameter's shard, the whole one, and fully_shard's own records (without public types) of its group and of itself.
_Sharded = Tuple[nn.Parameter, nn.Parameter, Any, Any]


def _plain(name: str, ddp: Sequence[str]) -> str:
    """The parameter's name without what wrappers put into it."""
    for prefix in sorted(ddp, key=len, reverse=True):
        if name.startswith(f"{prefix}module."):
            name = prefix + name[len(prefix) + len("module.") :]
    for wrapper in ("_orig_mod.", "_checkpoint_wrapped_module.", "_fsdp_wrapped_module."):
        name = name.replace(wrapper, "")
    return name


def named(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    return [*model.named_parameters(), *_replicated.hidden(model)]


def plain_names(model: nn.Module) -> dict[str, str]:
    """By the name that PyTorch gives. Two that would be one without their wrappers keep those."""
    return _plain_names(model, named(model))


def _plain_names(model: nn.Module, found: Sequence[tuple[str, nn.Parameter]]) -> dict[str, str]:
    """`found`: as of named(model)."""
    prefixes = [
        f"{name}." if name else "" for name, ddp in model.named_modules() if isinstance(ddp, DistributedDataParallel)
    ]
    plain = {name: _plain(name, prefixes) for name, _ in found}
    counts = collections.Counter(plain.values())
    return {name: short if counts[short] == 1 else name for name, short in plain.items()}


def _unsharded(module: nn.Module) -> list[tuple[nn.Parameter, nn.Parameter]]:
    """(sharded, unsharded) for each parameter that this module itself shards; the module is left as it was found."""
    wrapper = cast("FSDPModule", module)  # the same, for it is both
    found = dict(module.named_parameters())
    wrapper.unshard()
    whole = dict(module.named_parameters())
    was_sharded = any(whole[name] is not found[name] for name in found)
    wrapper.reshard()
    parts = dict(module.named_parameters())
    if not was_sharded:
        wrapper.unshard()
    return [(parts[name], whole[name]) for name in parts if parts[name] is not whole[name]]


def _fsdp_groups(module: FSDPModule) -> list[Any]:
    state: Any = module._get_fsdp_state()
    groups = getattr(state, "_fsdp_param_groups", None)
    return [group for group in ([state._fsdp_param_group] if groups is None else groups) if group is not None]


def _fsdp_param(part: nn.Parameter, groups: Sequence[Any]) -> tuple[Any, Any]:
    """Of a sharded parameter: its group and itself."""
    return next((group, param) for group in groups for param in group.fsdp_params if param.sharded_param is part)


def _pending(whole: torch.Tensor, group: Any, fsdp_param: Any) -> list[torch.Tensor]:
    """What a backward with synchronisation off leaves: whole gradients or, with the replicas' sum alone off, parts."""
    accumulated = getattr(fsdp_param, "unsharded_accumulated_grad", None)  # in another dtype, before PyTorch 2.15
    kept = (whole.grad, accumulated, getattr(group, "_partial_reduce_output", None))
    return [gradient for gradient in kept if gradient is not None]


def _pairs(module: nn.Module, groups: Sequence[Any]) -> list[tuple[nn.Parameter, nn.Parameter]]:
    """As _unsharded() has them, without gathering anything once the first forward made them."""
    params = [param for group in groups for param in group.fsdp_params]
    if all(hasattr(param, "_unsharded_param") for param in params):
        return [(param.sharded_param, param._unsharded_param) for param in params]
    return _unsharded(module) if params else []


def _of_sharded(name: str, part: nn.Parameter, whole: nn.Parameter, group: Any, fsdp_param: Any) -> Watched:
    mesh = fsdp_param.mesh_info.mesh  # of the data ranks alone, whatever mesh the parameter is on
    return Watched(
        name,
        used=whole,
        owned=part,
        data=[_meshes.along(mesh, i) for i in range(mesh.ndim)],
        factor=1 / (getattr(group, "gradient_divide_factor", None) or mesh.size()),
        reduce=fsdp_param.reduce_dtype,
        pending=functools.partial(_pending, whole, group, fsdp_param),
    )


def _find_sharded(model: nn.Module) -> dict[int, _Sharded]:
    """By the ids of both of a parameter's tensors."""
    found = {}
    for module in model.modules():
        groups = _fsdp_groups(module) if is_fsdp(module) else []
        for part, whole in _pairs(module, groups):
            found[id(part)] = found[id(whole)] = (part, whole, *_fsdp_param(part, groups))
    return found


def _part_of(param: nn.Parameter) -> Part | None:
    """DDP over one dimension of a mesh, and replicate(), turn DTensors into what this rank has of them, and leave
    behind what that is. Where that is missing they are plain tensors, and types= says it."""
    spec: Any = getattr(param, "_st_info", None)
    if not (hasattr(spec, "mesh") and hasattr(spec, "placements") and hasattr(spec, "shape")):
        return None
    return spec.mesh, tuple(spec.placements), tuple(spec.shape)


def _of_flat(model: nn.Module) -> list[Watched]:
    """Those that FullyShardedDataParallel keeps in flat buffers."""
    return [
        Watched(
            found.name.replace("_checkpoint_wrapped_module.", "").replace("_orig_mod.", ""),
            used=found.where.buffer,
            owned=found.owned,
            data=found.ranks,
            factor=found.factor,
            reduce=found.reduce,
            flat=found.where,
        )
        for found in _flat.find(model)
    ]


def find(model: nn.Module) -> list[Watched]:
    """Every parameter of the model that wants a gradient, each once, in the model's order."""
    replicated, sharded = _replicated.find(model), _find_sharded(model)
    found = named(model)
    names, in_buffers, watched = _plain_names(model, found), _flat.hidden(model), {}
    for name, param in found:
        if not param.requires_grad or id(param) in in_buffers:
            continue
        plain = names[name]
        entry = _of_sharded(plain, *sharded[id(param)]) if id(param) in sharded else Watched(plain, param, param)
        entry.part = _part_of(param)
        for wrapper in replicated:
            if id(param) in wrapper.parameters:
                entry.data, entry.factor = [wrapper.ranks], 1 / len(wrapper.ranks)
                entry.unjudged = wrapper.unjudged
        watched[id(entry.owned)] = entry
    every = [*_of_flat(model), *watched.values()]
    _expect_alike(every)
    return every


def _expect_alike(watched: Sequence[Watched]) -> None:
    """What no wrapper sums, beside what wrappers multiply by one factor, should be multiplied by it as well."""
    factors = {entry.factor for entry in watched if entry.data}
    for entry in watched:
        if not entry.data and len(factors) == 1:
            (entry.factor,) = factors


def own_group(model: nn.Module) -> Group:
    """Of a model that DDP wraps, where nothing says how its ranks lie in a larger job."""
    if not isinstance(model, DistributedDataParallel):
        return None
    placed = any(is_dtensor(param) or _part_of(param) for _, param in named(model))
    group: Group = None if placed else model.process_group
    return group
