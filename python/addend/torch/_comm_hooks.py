"""Reads communication hooks: what PyTorch's own do to a sum is known by their functions; what a hook of the job does is
not, so that a factor in its sums may be meant. Only this file knows PyTorch's hooks, some by names of private ones."""

from __future__ import annotations

import dataclasses
from typing import Any, Callable

import torch
import torch.distributed as dist

_THEIRS = ("torch.distributed.algorithms.ddp_comm_hooks", "torch.distributed.algorithms._comm_hooks")
_NARROW = {"fp16_compress": torch.float16, "bf16_compress": torch.bfloat16}
_APPROXIMATE = {
    "powerSGD_hook": "PowerSGD sums an approximation of the addends and keeps the rest for later steps",
    "batched_powerSGD_hook": "PowerSGD sums an approximation of the addends and keeps the rest for later steps",
    "quantization_pertensor_hook": "the communication hook quantizes the addends, and sums what is left of them",
    "quantization_perchannel_hook": "the communication hook quantizes the addends, and sums what is left of them",
}
_EXACT = ("allreduce_hook", "reduce_scatter_hook", "noop_hook", "_apply_optim_in_backward_hook")
_AROUND = ("_hook_then_optimizer", "hook_with_zero_step", "hook_with_zero_step_interleaved")  # they call another hook


@dataclasses.dataclass
class Sums:
    """What communication hooks make of a wrapper's sums."""

    reduce: torch.dtype | None = None  # the dtype of the reduction, if it is narrower than the gradients'
    ranks: list[int] | None = None  # the ranks that are summed, if they are not all of the wrapper's
    unjudged: str = ""  # why the sums cannot be judged; "": they can
    custom: str = ""  # the name of a hook that is not PyTorch's


def _factory(hook: Any) -> str:
    """The name of PyTorch's function that is the hook, or that made it; "": the hook is not PyTorch's."""
    module = getattr(hook, "__module__", None) or getattr(getattr(hook, "func", None), "__module__", "") or ""
    return getattr(hook, "__qualname__", "").partition(".")[0] if module.startswith(_THEIRS) else ""


def _inner(hook: Any) -> Any:
    """The hook that a wrapper of PyTorch's calls; None: not found."""
    names = getattr(getattr(hook, "__code__", None), "co_freevars", ())
    cells = dict(zip(names, getattr(hook, "__closure__", None) or ()))
    return cells["hook"].cell_contents if "hook" in cells else None


def _local(state: Any, sums: Sums) -> None:
    """PostLocalSGD, once its first steps are over, sums over a subgroup or not at all, and averages parameters."""
    if state.iter < state.start_localSGD_iter:
        return
    alone = not state.post_local_gradient_allreduce
    sums.ranks = (
        [dist.get_rank()] if alone else dist.get_process_group_ranks(state.subgroup) if state.subgroup else None
    )
    if sums.ranks is None:  # the hook makes a group for each node in its first local step
        sums.unjudged = "PostLocalSGD sums over each node's ranks alone, and has not made their groups yet"


def _read(hook: Any, state: Any, ddp: Any, sums: Sums) -> None:
    made_by = _factory(hook)
    if made_by in _APPROXIMATE or type(state).__name__ == "PowerSGDState":
        sums.unjudged = _APPROXIMATE.get(made_by, _APPROXIMATE["powerSGD_hook"])
    elif made_by == "post_localSGD_hook":
        _local(state, sums)
    elif made_by == "_reducer_allreduce_and_upcast_hook":
        sums.reduce = ddp.mixed_precision.reduce_dtype
    elif made_by.removesuffix("_hook").removesuffix("_wrapper") in _NARROW:
        sums.reduce = _NARROW[made_by.removesuffix("_hook").removesuffix("_wrapper")]
    elif made_by not in (*_EXACT, *_AROUND):
        sums.custom = getattr(hook, "__name__", type(hook).__name__)
    if made_by.endswith("_wrapper") or made_by in _AROUND:
        _read(_inner(hook), state, ddp, sums)


def of_ddp(ddp: Any) -> Sums:
    """What the communication hooks of a DistributedDataParallel do; None: DDP's own sum."""
    sums = Sums()
    for hook, state in getattr(ddp, "_comm_hooks", None) or ():
        _read(hook, state, ddp, sums)
    name = _built_in(ddp)
    for word, dtype in (("FP16", torch.float16), ("BF16", torch.bfloat16)):
        if name.upper().endswith(f"{word}_COMPRESS") and not sums.reduce:
            sums.reduce = dtype
    return sums


def _built_in(ddp: Any) -> str:
    """The name of a hook in C++ (_register_builtin_comm_hook); "" if there is none."""
    read: Callable[[], Any] | None = getattr(ddp, "_get_ddp_logging_data", None)
    if read is None or getattr(ddp, "_comm_hooks", None):
        return ""
    return str(read().get("comm_hook", ""))


def of_function(hook: Any) -> Sums:
    """What a communication hook of FullyShardedDataParallel does; None: no hook."""
    sums = Sums()
    if hook is not None:
        _read(hook, None, None, sums)
    return sums
