"""What is watched of a model: for each parameter the tensor whose gradient a backward gives, the tensor whose gradient
the optimizer gets, and what the wrapper around it (DDP, fully_shard) is known to do in between."""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Any, Callable, List, Sequence, Tuple, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from addend.torch import _meshes
from addend.torch._gather import Group
from addend.torch._loaded import is_dtensor, is_flat_fsdp, is_fsdp

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
    pending: Callable[[], list[torch.Tensor]] = list  # what the wrapper keeps of it for a later sum


# A parameter's shard, the whole one, and fully_shard's own records (without public types) of its group and of itself.
_Sharded = Tuple[nn.Parameter, nn.Parameter, Any, Any]


def _plain(name: str, ddp: Sequence[str]) -> str:
    """The parameter's name without what wrappers put into it."""
    for prefix in sorted(ddp, key=len, reverse=True):
        if name.startswith(f"{prefix}module."):
            name = prefix + name[len(prefix) + len("module.") :]
    for wrapper in ("_orig_mod.", "_checkpoint_wrapped_module."):
        name = name.replace(wrapper, "")
    return name


def _find_ddp(model: nn.Module) -> dict[str, DistributedDataParallel]:
    """By the prefix of their parameters' names."""
    modules = model.named_modules()
    return {f"{name}." if name else "": ddp for name, ddp in modules if isinstance(ddp, DistributedDataParallel)}


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


def _need_no_flat_buffers(model: nn.Module) -> None:
    if any(map(is_flat_fsdp, model.modules())):
        raise ValueError(
            "FullyShardedDataParallel keeps gradients in flat buffers: watch sees DDP, fully_shard, DTensor and plain "
            "modules"
        )


def find(model: nn.Module) -> list[Watched]:
    """Every parameter of the model that wants a gradient, each once, in the model's order."""
    _need_no_flat_buffers(model)
    ddp, sharded = _find_ddp(model), _find_sharded(model)
    watched = {}
    for name, param in model.named_parameters():
        if not param.requires_grad:
            continue
        plain = _plain(name, list(ddp))
        entry = _of_sharded(plain, *sharded[id(param)]) if id(param) in sharded else Watched(plain, param, param)
        for prefix, module in ddp.items():
            if name.startswith(prefix) and name[len(f"{prefix}module.") :] not in module.parameters_to_ignore:
                entry.data = [dist.get_process_group_ranks(module.process_group)]
                entry.factor = 1 / len(entry.data[0])
        watched[id(entry.owned)] = entry
    return list(watched.values())


def own_group(model: nn.Module) -> Group:
    """Of a model that DDP wraps, where nothing says how its ranks lie in a larger job."""
    placed = any(map(is_dtensor, model.parameters()))
    group: Group = model.process_group if isinstance(model, DistributedDataParallel) and not placed else None
    return group
