"""Megatron-Core's tensor and data parallelism; one step is watched. `watch_megatron` is the recipe, the rest makes a
job for it.

OMP_NUM_THREADS=1 torchrun --nproc-per-node 4 examples/torch/megatron_core.py [--distributed-optimizer] [--mistake]"""

import argparse
import contextlib

import torch
import torch.distributed as dist
from megatron.core import parallel_state as mpu
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear
from megatron.core.transformer import TransformerConfig
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

import addend.torch


def watch_megatron(model, **arguments):
    """From zero_grad_buffer() to behind finalize_model_grads(), before optimizer.step(). `model` is one chunk, in
    Megatron's DistributedDataParallel. With the distributed optimizer main_grad is whole only after
    finalize_model_grads(..., force_all_reduce=True), which is what Megatron itself does when it saves gradients."""
    sizes = {
        "pp": mpu.get_pipeline_model_parallel_world_size(),
        "dp": mpu.get_data_parallel_world_size(),
        "cp": mpu.get_context_parallel_world_size(),
        "tp": mpu.get_tensor_model_parallel_world_size(),
    }
    device = "cuda" if next(model.parameters()).is_cuda else "cpu"
    mesh = init_device_mesh(device, tuple(sizes.values()), mesh_dim_names=tuple(sizes))
    types = {"*": "pp=I tp=I"}
    for name, parameter in model.module.named_parameters():
        if getattr(parameter, "tensor_model_parallel", False):
            types[name] = f"pp=I tp=S{parameter.partition_dim}"
        elif getattr(parameter, "sequence_parallel", False):
            types[name] = "pp=I tp=R"
    expect = 1 if model.config.calculate_per_token_loss else 1 / (sizes["dp"] * sizes["cp"])
    gradient = lambda parameter: parameter.main_grad  # noqa: E731
    return addend.torch.watch(model.module, mesh=mesh, types=types, expect=expect, gradient=gradient, **arguments)


class Block(nn.Module):
    def __init__(self, config):
        super().__init__()
        wide = config.hidden_size
        self.norm = nn.LayerNorm(wide)
        self.up = ColumnParallelLinear(
            wide, 4 * wide, config=config, init_method=nn.init.xavier_normal_, gather_output=False
        )
        self.down = RowParallelLinear(
            4 * wide,
            wide,
            config=config,
            init_method=nn.init.xavier_normal_,
            bias=True,
            input_is_parallel=True,
            skip_bias_add=False,
        )

    def forward(self, x):
        return self.down(torch.tanh(self.up(self.norm(x))[0]))[0]


def on_processors():
    """Megatron-Core asks CUDA where buffers go, even where there is none."""
    torch.cuda.current_device = lambda: "cpu"
    torch.cuda.synchronize = torch.cuda.empty_cache = lambda *_, **__: None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--distributed-optimizer", action="store_true")
    parser.add_argument("--mistake", action="store_true", help="plants one: gradients are averaged once more")
    arguments = parser.parse_args()

    on_processors()
    dist.init_process_group("gloo")
    mpu.initialize_model_parallel(tensor_model_parallel_size=2)
    torch.manual_seed(3)
    config = TransformerConfig(
        num_layers=1,
        hidden_size=16,
        num_attention_heads=2,
        tensor_model_parallel_size=2,
        use_cpu_initialization=True,
        gradient_accumulation_fusion=False,
    )
    ddp = DistributedDataParallelConfig(use_distributed_optimizer=arguments.distributed_optimizer)
    model = DistributedDataParallel(config, ddp, Block(config))
    torch.manual_seed(10 + mpu.get_data_parallel_rank())  # each data rank has its own batches
    model.zero_grad_buffer()
    with addend.torch.sabotage(model.module, "average") if arguments.mistake else contextlib.nullcontext():
        with watch_megatron(model):
            for m in range(2):
                with model.no_sync() if m == 0 else contextlib.nullcontext():
                    (model(torch.randn(6, 16)).square().mean() / 2).backward()
            model.finish_grad_sync(force_all_reduce=True)  # finalize_model_grads() calls this first
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
