"""What else a job may do under a layout: train a part of its parameters or adapters alone, synchronise once, compute in
bf16."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping, Sequence
from typing import Any, Callable

import torch
import torch.distributed as dist
from torch import nn

import addend

FROZEN, NO_SYNC, BF16, LORA = "frozen", "no_sync", "bf16", "lora"
ADAPTED = "base_model.model."  # what PEFT puts before the names of a model's modules
_LORA_RANK, _LORA_ALPHA = 3, 5  # two numbers whose quotient, the scale of an adapter, is not 1


def freeze(model: nn.Module) -> None:
    """Freezes every second parameter, by the order of names, the same on ranks that order modules otherwise."""
    parameters = dict(model.named_parameters())
    for name in sorted(parameters)[::2]:
        parameters[name].requires_grad_(False)


def has_peft() -> bool:
    """Whether PEFT, which makes the adapters of LoRA, is installed."""
    return importlib.util.find_spec("peft") is not None


def adapted(model: Any) -> Any:
    """The model with LoRA by PEFT, which trains the adapters alone: on the layers that PEFT itself chooses for the
    architecture, or on all linear layers if it chooses none."""
    from peft import LoraConfig, get_peft_model
    from peft.utils import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING as CHOSEN

    targets = None if model.config.model_type in CHOSEN else "all-linear"
    config = LoraConfig(r=_LORA_RANK, lora_alpha=_LORA_ALPHA, target_modules=targets)
    return get_peft_model(model, config).train(model.training)


def fill(model: nn.Module, values: Mapping[str, torch.Tensor]) -> None:
    """Gives a rank's trained parameters the values that they have in the unsharded model. One that was made for this
    rank's part of a layer, and is no DTensor, gets this rank's part; there is one axis of ranks."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                parameter.copy_(_part(values[name].detach(), parameter))


def _part(whole: torch.Tensor, like: Any) -> torch.Tensor:
    """The values of `whole`, shared among ranks as `like` is."""
    if hasattr(like, "placements"):
        from torch.distributed.tensor import distribute_tensor

        return distribute_tensor(whole, like.device_mesh, like.placements, src_data_rank=None)
    for dim, (has, all_of) in enumerate(zip(like.shape, whole.shape)):
        if has != all_of:
            whole = whole.narrow(dim, has * dist.get_rank(), has)
    return whole


def no_sync(model: Any, microbatches: Sequence[Any], loss: Callable[[Any, Any], torch.Tensor]) -> None:
    """Runs a step whose gradients are reduced with the last microbatch alone."""
    for i, batch in enumerate(microbatches):
        model.set_requires_gradient_sync(i == len(microbatches) - 1)
        loss(model, batch).backward()


def one_step(
    load: Callable[[], Any],
    batches: Callable[[int, Any], list[Any]],
    loss: Callable[[Any, Any], Any],
    mesh: Mapping[str, int],
) -> Callable[[int, str], None]:
    """The work of ranks that only shows that a step runs: every gradient that there is must be finite."""
    from addend.torch._checks._axes import Axes

    def work(rank: int, folder: str) -> None:
        torch.set_num_threads(1)
        axes = Axes(mesh, rank)
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(axes.size()))
        dist.init_process_group("gloo", init_method=f"file://{folder}/runs", rank=rank, world_size=axes.size())
        model = load()
        for batch in batches(rank, axes):
            numerator, count = loss(model, batch)
            (numerator / count).backward()
        for name, parameter in model.named_parameters():
            if parameter.grad is not None and not bool(torch.isfinite(_local(parameter.grad)).all()):
                raise addend.AddendError(f"the gradient of `{name}` is not finite in bf16")
        dist.barrier()

    return work


def _local(gradient: Any) -> torch.Tensor:
    local: torch.Tensor = gradient.to_local() if hasattr(gradient, "to_local") else gradient
    return local
