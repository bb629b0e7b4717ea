"""One step of Megatron-Core with tensor and data parallelism, 2 x 2 ranks; addend watches it.

OMP_NUM_THREADS=1 torchrun --nproc-per-node 4 python/examples/megatron_core.py [--distributed-optimizer] [--bug]"""

import argparse
import contextlib

import torch
import torch.distributed as dist
from megatron.core import parallel_state as mpu
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear
from megatron.core.transformer import TransformerConfig
from torch import nn

import addend.torch


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
    """Lets Megatron-Core run on CPUs: it asks CUDA for its device even if there is none."""
    torch.cuda.current_device = lambda: "cpu"
    torch.cuda.synchronize = torch.cuda.empty_cache = lambda *_, **__: None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--distributed-optimizer", action="store_true")
    parser.add_argument("--bug", action="store_true", help="make a mistake: average gradients a second time")
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
    torch.manual_seed(10 + mpu.get_data_parallel_rank())  # each data-parallel rank has its own batches
    model.zero_grad_buffer()
    with addend.torch.mutate(model.module, "average") if arguments.bug else contextlib.nullcontext():
        with addend.torch.watch(**addend.torch.megatron(model), show=True):
            for m in range(2):
                with model.no_sync() if m == 0 else contextlib.nullcontext():
                    (model(torch.randn(6, 16)).square().mean() / 2).backward()
            model.finish_grad_sync(force_all_reduce=True)  # the first thing that finalize_model_grads() does
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
