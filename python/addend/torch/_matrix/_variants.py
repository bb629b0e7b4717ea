"""What else a job may do under a layout: train a part of its parameters, synchronise once, compute in bf16."""

from __future__ import annotations

import os
from typing import Any, Callable, List, Mapping, Sequence

import torch
import torch.distributed as dist
from torch import nn

import addend

FROZEN, NO_SYNC, BF16 = "frozen", "no_sync", "bf16"


def freeze(model: nn.Module) -> None:
    """Freezes every second parameter, by the order of names: ranks that order modules otherwise agree."""
    parameters = dict(model.named_parameters())
    for name in sorted(parameters)[::2]:
        parameters[name].requires_grad_(False)


def no_sync(model: Any, microbatches: Sequence[Any], loss: Callable[[Any, Any], torch.Tensor]) -> None:
    """Runs a step whose gradients are reduced with the last microbatch alone."""
    for i, batch in enumerate(microbatches):
        model.set_requires_gradient_sync(i == len(microbatches) - 1)
        loss(model, batch).backward()


def one_step(
    load: Callable[[], Any],
    batches: Callable[[int, Any], List[Any]],
    loss: Callable[[Any, Any], Any],
    mesh: Mapping[str, int],
) -> Callable[[int, str], None]:
    """The work of ranks that only shows that a step runs: every gradient that there is must be finite."""
    from addend.torch._proof._axes import Axes

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
