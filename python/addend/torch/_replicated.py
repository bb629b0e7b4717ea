"""Finds wrappers that keep a replica of the parameters on every rank and sum gradients: DistributedDataParallel, and
`replicate()` of torch.distributed._composable, which uses DDP in hooks. Only this file reads their private attributes;
without them, the wrapper is not found, and the caller has to describe it (mesh=, expect=)."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from addend.torch import _comm_hooks
from addend.torch._loaded import is_dtensor
from addend.torch._wrapper import Said, Wrapper


@dataclasses.dataclass
class Replicated:
    ranks: list[int]
    parameters: set[int]  # id() of each
    reduce: torch.dtype | None = None  # the dtype of the reduction, if it is another than the parameters'
    unjudged: str = ""  # why the wrapper's sums cannot be judged; "": they can
    custom: str = ""  # the name of the job's own communication hook
    among: list[int] = dataclasses.field(
        default_factory=list
    )  # the wrapper's ranks, if only `ranks` of them are summed


def _of_hooks(ddp: DistributedDataParallel, summed: set[int]) -> Replicated:
    ranks = list(dist.get_process_group_ranks(ddp.process_group))
    sums = _comm_hooks.of_ddp(ddp)
    among = ranks if sums.ranks is not None and sums.ranks != ranks else []
    unjudged = f"not judged: {sums.unjudged}" if sums.unjudged else ""
    return Replicated(sums.ranks or ranks, summed, sums.reduce, unjudged, sums.custom, among)


def _of_ddp(ddp: DistributedDataParallel) -> Replicated:
    ignored = set(getattr(ddp, "parameters_to_ignore", ()))
    summed = {id(param) for name, param in ddp.module.named_parameters() if name not in ignored}
    summed |= {id(param) for _, param in hidden(ddp)}
    return _of_hooks(ddp, summed)


def hidden(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Parameters that named_parameters() does not list: DDP over one dimension of a mesh replaces them by DTensors that
    are not parameters while it runs, and leaves these after the first step. Both have the same memory, by which the
    parameter is found."""
    for above, ddp in model.named_modules():
        parts = getattr(ddp, "_module_parameters", ()) if isinstance(ddp, DistributedDataParallel) else ()
        at = {param.data_ptr(): param for param in parts if hasattr(param, "_st_info")}
        for name, module in ddp.named_modules() if at else ():
            for own, value in vars(module).items():
                if is_dtensor(value) and value.to_local().data_ptr() in at:
                    yield ".".join(filter(None, (above, name, own))), at[value.to_local().data_ptr()]


def _state_of(module: nn.Module) -> Any:
    """replicate()'s state of a module; None if it was not applied to the module."""
    composable = sys.modules.get("torch.distributed._composable.replicate")
    kind, replicate = getattr(composable, "_ReplicateState", None), getattr(composable, "replicate", None)
    registry = getattr(sys.modules.get("torch.distributed._composable.contract"), "_get_registry", None)
    if kind is None or registry is None or "replicate" not in (registry(module) or ()):
        return None
    state = getattr(replicate, "state", lambda _: None)(module)
    return state if isinstance(state, kind) else None


def _of_state(module: nn.Module, state: Any) -> Replicated | None:
    """The wrapper that replicate() makes: its DDP or, before the first forward makes that, the arguments for it."""
    ddp = getattr(state, "_ddp", None) if getattr(state, "has_initialized", False) else None
    if ddp is not None:
        return _of_hooks(ddp, set(map(id, state._param_list)))
    reported = getattr(state, "_init_kwargs", None)
    if reported is None:
        return None
    mesh, group = reported.get("device_mesh"), reported.get("process_group")
    ranks = dist.get_process_group_ranks(group or (mesh.get_group() if mesh is not None else dist.group.WORLD))
    ignored = {
        id(param) for other in (getattr(state, "_init_args", None) or ((), ()))[1] for param in other.parameters()
    }
    return Replicated(list(ranks), {id(param) for param in module.parameters()} - ignored)


def _params(_: str, module: nn.Module, unit: Replicated) -> Iterator[Said]:
    yield Said(unit.parameters, [unit.ranks], unit.reduce, unit.custom, unit.unjudged, unit.among)


def reducers(model: nn.Module) -> list[Any]:
    """Every DistributedDataParallel in the model, those of replicate() too."""
    found: list[Any] = [module for module in model.modules() if isinstance(module, DistributedDataParallel)]
    if "torch.distributed._composable.replicate" in sys.modules:
        states = (_state_of(module) for module in model.modules())
        found += [state._ddp for state in states if getattr(state, "_ddp", None) is not None]
    return list({id(ddp): ddp for ddp in found}.values())


def sums_now(ddp: Any) -> bool:
    """Whether a backward that begins now sums, as the last forward has prepared it."""
    return bool(getattr(ddp, "require_forward_param_sync", True))


class Sent(NamedTuple):
    """What DDP sums in one call in each backward."""

    bytes: int
    dtype: torch.dtype
    params: list[torch.Tensor]  # whose gradients are in it; []: not known, or of no parameter


def sent(ddp: Any) -> list[Sent]:
    """What DDP's Reducer, which calls no function of Python, sums in a backward, as its log has it: the log is written
    at the beginning of some steps. [] if a communication hook in Python makes the sums."""
    if getattr(ddp, "_use_python_reducer", False) or getattr(ddp, "_comm_hooks", None):
        return []
    log = ddp._get_ddp_logging_data()
    ignored = set(getattr(ddp, "parameters_to_ignore", ()))
    params = [param for name, param in ddp.module.named_parameters() if param.requires_grad and name not in ignored]
    rebuilt = str(log.get("rebuilt_bucket_sizes", ""))
    sizes = [int(size) for size in (rebuilt or str(log.get("bucket_sizes", ""))).split(",") if size.strip()]
    indices = str(log.get("rebuilt_per_bucket_param_indices", "")).split(",") if rebuilt else []
    buckets = [[params[int(at)] for at in some.split()] for some in indices]
    if len(sizes) != len(buckets):
        buckets = [params] if len(sizes) == 1 else [[] for _ in sizes]
    found = []
    narrow = _comm_hooks.of_ddp(ddp).reduce if "comm_hook" in log else None
    for size, bucket in zip(sizes, buckets):
        dtype = (bucket or params)[0].dtype
        found.append(Sent(size * narrow.itemsize // dtype.itemsize if narrow else size, narrow or dtype, bucket))
    if ddp.find_unused_parameters and not getattr(ddp, "static_graph", False):
        found.append(Sent(4 * len(params), torch.int32, []))  # which parameters were used
    return found


def _units_of_state(module: nn.Module) -> list[Replicated]:
    found = _of_state(module, _state_of(module))
    return [found] if found is not None else []


DISTRIBUTED_DATA_PARALLEL = Wrapper(
    name="DistributedDataParallel",
    recognised_by=lambda module: isinstance(module, DistributedDataParallel),
    units=lambda module: [_of_ddp(cast(DistributedDataParallel, module))],
    params=_params,
    divides_by=lambda unit: len(unit.ranks),
    attribute="module",
    group=lambda module: cast(DistributedDataParallel, module).process_group,
    unlisted=hidden,
)
REPLICATE = Wrapper(
    name="replicate",
    recognised_by=lambda module: _state_of(module) is not None and not isinstance(module, DistributedDataParallel),
    units=_units_of_state,
    params=_params,
    divides_by=lambda unit: len(unit.ranks),
)
