"""What is watched of a model: for each parameter the tensor whose gradient a backward gives, the tensor whose gradient the
optimizer gets, and what the wrapper around it (DDP, fully_shard) is known to do in between."""

from __future__ import annotations

import collections
import dataclasses
import functools
from typing import Callable

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from addend.torch import _meshes


@dataclasses.dataclass
class Watched:
    name: str
    used: torch.Tensor  # the forward uses it: its gradient is this rank's addend
    owned: torch.Tensor  # the optimizer has it: its gradient is the sum
    data: list = dataclasses.field(default_factory=list)  # lists of ranks that the wrapper sums over
    factor: float = 1.0  # what the wrapper multiplies the sum by
    reduce: torch.dtype | None = None
    pending: Callable[[], list[torch.Tensor]] = list  # what the wrapper keeps of it for a later sum


def _plain(name: str, ddp: list[str]) -> str:
    """The parameter's name without what wrappers put into it."""
    for prefix in sorted(ddp, key=len, reverse=True):
        if name.startswith(f"{prefix}module."):
            name = prefix + name[len(prefix) + len("module.") :]
    for wrapper in ("_orig_mod.", "_checkpoint_wrapped_module."):
        name = name.replace(wrapper, "")
    return name


def _prefixes(model: nn.Module, kind: type) -> dict[str, nn.Module]:
    return {f"{name}." if name else "": module for name, module in model.named_modules() if isinstance(module, kind)}


def _unsharded(module: nn.Module) -> list[tuple[nn.Parameter, nn.Parameter]]:
    """(sharded, unsharded) for each parameter that this module itself shards; the module is left as it was found."""
    found = dict(module.named_parameters())
    module.unshard()
    whole = dict(module.named_parameters())
    was_sharded = any(whole[name] is not found[name] for name in found)
    module.reshard()
    parts = dict(module.named_parameters())
    if not was_sharded:
        module.unshard()
    return [(parts[name], whole[name]) for name in parts if parts[name] is not whole[name]]


def _fsdp_groups(module: nn.Module) -> list:
    state = module._get_fsdp_state()
    groups = getattr(state, "_fsdp_param_groups", None)
    return [state._fsdp_param_group] if groups is None else groups


def _fsdp_param(part: nn.Parameter, groups: list) -> tuple:
    """fully_shard's own records of a sharded parameter: its group and itself."""
    return next((group, param) for group in groups for param in group.fsdp_params if param.sharded_param is part)


def _pending(whole, group, fsdp_param) -> list[torch.Tensor]:
    """What a backward with synchronisation off leaves: whole gradients or, where only the replicas' sum was off, parts."""
    accumulated = getattr(fsdp_param, "unsharded_accumulated_grad", None)  # in another dtype, before PyTorch 2.15
    kept = (whole.grad, accumulated, getattr(group, "_partial_reduce_output", None))
    return [gradient for gradient in kept if gradient is not None]


def _describe_sharded(watched: Watched, group, fsdp_param) -> None:
    mesh = fsdp_param.mesh_info.mesh  # of the data ranks alone, whatever mesh the parameter is on
    watched.data = [_meshes.along(mesh, i) for i in range(mesh.ndim)]
    watched.factor = 1 / (getattr(group, "gradient_divide_factor", None) or mesh.size())
    watched.reduce = fsdp_param.reduce_dtype
    watched.pending = functools.partial(_pending, watched.used, group, fsdp_param)


def find(model: nn.Module) -> list[Watched]:
    """Every parameter of the model that wants a gradient, each once, in the model's order."""
    if any(isinstance(module, FullyShardedDataParallel) for module in model.modules()):
        raise ValueError("FullyShardedDataParallel keeps gradients in flat buffers: watch sees DDP, fully_shard, DTensor and plain modules")
    ddp = _prefixes(model, DistributedDataParallel)
    sharded = {}
    for module in _prefixes(model, FSDPModule).values():
        groups = [group for group in _fsdp_groups(module) if group is not None]
        for part, whole in _unsharded(module) if groups else []:
            sharded[id(part)] = sharded[id(whole)] = (part, whole, *_fsdp_param(part, groups))
    watched = collections.OrderedDict()
    for name, param in model.named_parameters():
        if not param.requires_grad:
            continue
        part, whole, *fsdp = sharded.get(id(param), (param, param))
        entry = Watched(_plain(name, list(ddp)), whole, part)
        if fsdp:
            _describe_sharded(entry, *fsdp)
        for prefix, module in ddp.items():
            if name.startswith(prefix) and name[len(f"{prefix}module.") :] not in module.parameters_to_ignore:
                entry.data = [dist.get_process_group_ranks(module.process_group)]
                entry.factor = 1 / len(entry.data[0])
        watched[id(part)] = entry
    return list(watched.values())


def own_group(model: nn.Module):
    """The process group of a model that DDP wraps, where nothing says how that lies in a larger job; else None: all ranks."""
    if not isinstance(model, DistributedDataParallel) or any(isinstance(param, DTensor) for param in model.parameters()):
        return None
    return model.process_group
