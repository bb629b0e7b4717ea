"""Reads `fully_shard` (FSDP2). Only this file reads the private attributes of its groups of parameters."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn

from addend.torch import _meshes, _spmd
from addend.torch._declared import Declared
from addend.torch._loaded import is_fsdp
from addend.torch._wrapper import Said, Wrapper

if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule

    from addend.torch._parameters import Part

_Unit = tuple[Any, dict[int, tuple[nn.Parameter, nn.Parameter]]]


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


def _units(module: nn.Module) -> list[_Unit]:
    """The module's groups (FSDPParamGroup), and by the id of each sharded parameter it and the unsharded one."""
    groups = fsdp_groups(cast("FSDPModule", module))
    pairs = {id(part): (part, whole) for part, whole in _pairs(module, groups)}
    return [(group, pairs) for group in groups]


def _part(fsdp_param: Any) -> Part | None:
    """Of a parameter with spmd_types' annotation, of which the forward uses a plain tensor: where this tensor lies in
    the parameter as it is before fully_shard's own sharding."""
    if not getattr(fsdp_param, "is_spmd_types", False):
        return None
    spec = fsdp_param._unsharded_dtensor_spec
    return spec.mesh, tuple(spec.placements), tuple(spec.tensor_meta.shape)


def _annotation(fsdp_param: Any, ndim: int) -> _spmd.Annotation | None:
    """The annotation with which fully_shard found the parameter: neither its sharded nor its unsharded tensor has it
    (the latter has one while types are checked)."""
    local = getattr(fsdp_param, "_spmd_init_local_type", None)
    return _spmd.Annotation(local, getattr(fsdp_param, "_spmd_partition_spec", None) or (), ndim) if local else None


def _promised(fsdp_param: Any) -> tuple[torch.dtype | None, str, bool]:
    """The dtype in which fully_shard says that it reduces; by what it says that; whether the job wrote it."""
    if fsdp_param.reduce_dtype is not None:
        return fsdp_param.reduce_dtype, "fully_shard's reduce_dtype", True
    if getattr(fsdp_param, "_has_sharded_grad_dtype_override", False):
        return fsdp_param.sharded_grad_dtype, "grad_dtype", True
    if hasattr(fsdp_param, "unsharded_grad_dtype"):  # the rule of PyTorch 2.15; earlier ones reduced in param_dtype
        return fsdp_param.orig_dtype, "fully_shard's default", False
    return None, "", False


def _declared(fsdp_param: Any, ranks: list[list[int]], mesh: _meshes.Mesh) -> list[Declared]:
    """The groups over which fully_shard reduces, and the dtype."""
    over = [" ".join(mesh.between(group)) for group in ranks]
    axes = tuple(axis for some in over for axis in some.split())
    if not axes:
        return []
    words = f"all-reduce over {over[0]}, reduce-scatter over {over[1]}" if len(over) == 2 and all(over) else ""
    dtype, by, given = _promised(fsdp_param)
    found = [Declared(dict.fromkeys(axes, "R"), "fully_shard", words=words, sums=True)]
    return found + ([Declared({}, by, dtype=dtype, given=given, axes=axes)] if dtype is not None else [])


def _params(_: str, module: nn.Module, unit: _Unit) -> Iterator[Said]:
    """What fully_shard says of the parameters in one of its groups."""
    group, pairs = unit
    along: dict[int, list[list[int]]] = {}  # by the id of a mesh, which is many parameters': PyTorch looks groups up
    for param in group.fsdp_params:  # FSDPParam
        if id(param.sharded_param) not in pairs:
            continue
        part, whole = pairs[id(param.sharded_param)]
        mesh = param.mesh_info.mesh  # has only the data-parallel ranks, even if the parameter is on a larger mesh
        if id(mesh) not in along:
            along[id(mesh)] = [_meshes.along(mesh, i) for i in range(mesh.ndim)]
        ranks = along[id(mesh)]
        yield Said(
            of={id(part), id(whole)},
            ranks=ranks,
            used=whole,
            owned=part,
            reduce=param.reduce_dtype,
            custom=_custom_of(group),
            partials=functools.partial(_partial, whole, group, param),
            part=_part(param),
            annotation=_annotation(param, whole.ndim),
            declared=functools.partial(_declared, param, ranks),
            promised=_promised(param)[0],
        )


def _divisor(unit: _Unit) -> float:
    """What the job set by set_gradient_divide_factor(), else the number of ranks."""
    group, _ = unit
    set_by_job = getattr(group, "gradient_divide_factor", None)
    return float(set_by_job or group.mesh_info.mesh.size())


FULLY_SHARD = Wrapper(
    name="fully_shard",
    recognised_by=is_fsdp,
    units=_units,
    params=_params,
    divides_by=_divisor,
)
