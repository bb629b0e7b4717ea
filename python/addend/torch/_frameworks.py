"""Finds the arguments of a watch for DeepSpeed and Megatron-Core, which sum gradients themselves. The job imports these
frameworks; this file reads them through the objects that the job passes."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

if TYPE_CHECKING:
    from addend.torch._options import DumpOptions

    class Reported(DumpOptions):
        """The model of a watch, and its options."""

        model: nn.Module


def _deepspeed_gradient(parameter: torch.Tensor) -> torch.Tensor | None:
    """The summed gradient. If the optimizer keeps an f32 sum beside the bf16 gradient, that one: some releases of
    DeepSpeed's safe_get_full_grad do not look for it."""
    kept: torch.Tensor | None = getattr(parameter, "_hp_grad", None)
    if kept is not None:
        return kept.view_as(parameter)
    utils: Any = sys.modules["deepspeed.utils"]
    whole: torch.Tensor | None = utils.safe_get_full_grad(parameter)
    return whole


def _need_data_parallelism(engine: Any) -> None:
    """Raises ValueError if the DeepSpeed engine does not only data (and sequence) parallelism."""
    has = {
        "pipeline stages (pipeline_parallelism)": getattr(engine, "pipeline_parallelism", False),
        "experts (has_moe_layers)": getattr(engine, "has_moe_layers", False),
        "tensor parallelism (mp_world_size)": (getattr(engine, "mp_world_size", 1) or 1) > 1,
    }
    found = [what for what, there in has.items() if there]
    if found:
        raise ValueError(
            f"this DeepSpeed engine has {' and '.join(found)}: give watch mesh=, types=, expect= and gradient= yourself"
        )


def _data_mesh(device: str, sequence: int) -> DeviceMesh:
    sizes = {"dp": dist.get_world_size() // sequence, "sp": sequence}
    return init_device_mesh(device, tuple(sizes.values()), mesh_dim_names=tuple(sizes))


def deepspeed(engine: Any) -> Reported:
    """The options of watch, dump and assert_summed for a DeepSpeed engine: ZeRO 0 to 3, with sequence parallelism or
    without.

    The `with` must end before the engine.step() that updates the parameters.

    Args:
        engine: what deepspeed.initialize() returned first.

    Returns:
        The model and its options, as keywords.

    Raises:
        ValueError: the engine has pipeline stages, experts or tensor parallelism.

    Example:
        with addend.torch.watch(**addend.torch.deepspeed(engine)) as watch:
            for at, batch in enumerate(microbatches):
                engine.backward(loss(engine, batch))
                if at < len(microbatches) - 1:
                    engine.step()
        engine.step()
    """
    _need_data_parallelism(engine)
    sequence = getattr(engine, "sequence_parallel_size", 1) or 1
    model: nn.Module = engine.module
    reported: Reported = {"model": model, "gradient": _deepspeed_gradient, "expect": sequence / dist.get_world_size()}
    if sequence > 1:
        reported["mesh"] = _data_mesh(next(model.parameters()).device.type, sequence)
    return reported


def _megatron_sizes(mpu: Any) -> dict[str, int]:
    """The axes of Megatron-Core's ranks with their sizes, the last axis fastest; ValueError if it has pp or ep too."""
    if mpu.get_pipeline_model_parallel_world_size() > 1 or mpu.get_expert_model_parallel_world_size() > 1:
        raise ValueError(
            "this Megatron-Core job has pipeline stages or expert parallelism, which addend.torch.megatron() cannot "
            "describe: give watch mesh=, types=, expect=, gradient= and group= yourself, for each of them"
        )
    return {
        "dp": mpu.get_data_parallel_world_size(),
        "cp": mpu.get_context_parallel_world_size(),
        "tp": mpu.get_tensor_model_parallel_world_size(),
    }


def _megatron_mesh(mpu: Any, device: str) -> DeviceMesh:
    sizes = _megatron_sizes(mpu)
    mesh = init_device_mesh(device, tuple(sizes.values()), mesh_dim_names=tuple(sizes))
    for axis, group in (("tp", mpu.get_tensor_model_parallel_group()), ("cp", mpu.get_context_parallel_group())):
        if dist.get_process_group_ranks(mesh.get_group(axis)) != dist.get_process_group_ranks(group):
            raise ValueError(f"Megatron-Core's ranks of {axis} are not in the order tp-cp-dp: give mesh= yourself")
    return mesh


def _megatron_type(parameter: Any) -> str:
    """The types of the parameter's gradient, from the attributes that Megatron-Core sets on parameters."""
    if getattr(parameter, "tensor_model_parallel", False):
        return f"dp=R cp=R tp=S{parameter.partition_dim}"
    return "dp=R cp=R tp=R" if getattr(parameter, "sequence_parallel", False) else "dp=R cp=R tp=I"


def _main_grad(parameter: torch.Tensor) -> torch.Tensor | None:
    gradient: torch.Tensor | None = getattr(parameter, "main_grad", None)
    return gradient


class _FusedGradient:
    """The addend= of Megatron-Core: a fused kernel adds a weight's gradient to `main_grad` and notes that in a flag,
    until the buffers are cleared. What it returns to autograd is memory that nobody wrote, or zeros."""

    def __call__(self, parameter: torch.Tensor) -> torch.Tensor | None:
        return _main_grad(parameter) if getattr(parameter, "grad_added_to_main_grad", False) else None

    def adds_gradient(self, parameter: torch.Tensor) -> bool:
        """Whether Megatron-Core adds autograd's gradient to `main_grad` as well: that of an embedding which is the
        output layer's weight too."""
        return bool(getattr(parameter, "zero_out_wgrad", False))


def megatron(models: nn.Module | Sequence[nn.Module]) -> Reported:
    """The options of watch, dump and assert_summed for Megatron-Core's model chunks in its DistributedDataParallel.

    With gradient_accumulation_fusion, which adds weight gradients to `main_grad` where no hook sees them, addends are
    read there. With the distributed optimizer `main_grad` has the whole sum only after force_all_reduce=True.

    Args:
        models: one chunk, or the list of a rank's chunks.

    Returns:
        The model and its options, as keywords.

    Raises:
        ValueError: the job has pipeline stages, expert parallelism, or another order of ranks than tp-cp-dp.

    Example:
        for chunk in models:
            chunk.zero_grad_buffer()
        with addend.torch.watch(**addend.torch.megatron(models)) as watch:
            forward_backward(...)
            finalize_model_grads(models, force_all_reduce=True)
        optimizer.step()
    """
    mpu: Any = sys.modules["megatron.core.parallel_state"]
    chunks: Sequence[Any] = [models] if isinstance(models, nn.Module) else list(models)
    config = chunks[0].config
    model = chunks[0].module if len(chunks) == 1 else nn.ModuleList([chunk.module for chunk in chunks])
    mesh = _megatron_mesh(mpu, next(model.parameters()).device.type)
    whole = 1 if getattr(config, "calculate_per_token_loss", False) else mesh.size(0) * mesh.size(1)
    types = {name: _megatron_type(parameter) for name, parameter in _plainly_named(model)}
    return {
        "model": model,
        "mesh": mesh,
        "types": types,
        "expect": 1 / whole,
        "gradient": _main_grad,
        "addend": _FusedGradient(),
    }


def _plainly_named(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    from addend.torch._parameters import plain_names

    plain = plain_names(model)
    return [(plain[name], parameter) for name, parameter in model.named_parameters()]
