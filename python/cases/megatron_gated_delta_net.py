"""Megatron-Core: the norm behind the heads of a gated delta net has one weight for the heads of all ranks of tp, and
its gradient is summed over tp with sequence parallelism alone.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from megatron.core import parallel_state, tensor_parallel
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.ssm.gated_delta_net import common, gdn
from megatron.core.transformer import TransformerConfig
from torch import nn

import addend.torch
import case

SOURCE = "https://github.com/NVIDIA/Megatron-LM/issues/7452"
WRONG = RIGHT = [
    "numpy packaging",
    "--no-deps --ignore-requires-python --python-version=3.12 --only-binary=:all: --target={site} "
    "megatron-core==0.19.2",
]
REBUILT = "the norm, in plain PyTorch; wrong without sequence parallelism and right with it"
WORLD, WIDTH, HEADS, SEQUENCE, ROWS = 2, 16, 4, 6, 2

torch.cuda.current_device = lambda: "cpu"  # where buffers and gathered tensors are made
torch.cuda.current_stream = torch.cpu.current_stream
common.HAVE_FLA = True  # its kernels are for GPUs; in deterministic mode Megatron-Core computes without them
common.l2norm = lambda x, dim=-1, eps=1e-6: x * torch.rsqrt(x.square().sum(dim, keepdim=True) + eps)


class Norm(nn.RMSNorm):
    """Marked as Megatron-Core marks its norms."""

    def __init__(self, config, hidden_size, eps):
        super().__init__(hidden_size, eps)
        self.weight.sequence_parallel = config.sequence_parallel


def layer_of(sequence_parallel):
    config = TransformerConfig(
        num_layers=1, hidden_size=WIDTH, num_attention_heads=HEADS, tensor_model_parallel_size=WORLD,
        sequence_parallel=sequence_parallel, use_cpu_initialization=True, perform_initialization=False,
        activation_func=F.silu, deterministic_mode=True, experimental_attention_variant="gated_delta_net",
        linear_attention_freq=1, linear_conv_kernel_dim=2, linear_key_head_dim=WIDTH // HEADS,
        linear_value_head_dim=WIDTH // HEADS, linear_num_key_heads=HEADS, linear_num_value_heads=HEADS,
    )  # fmt: skip
    parts = common.GatedDeltaNetSubmodules(
        in_proj=tensor_parallel.ColumnParallelLinear, out_norm=Norm, out_proj=tensor_parallel.RowParallelLinear
    )
    groups = ProcessGroupCollection.use_mpu_process_groups(["tp", "cp"])
    layer = gdn.GatedDeltaNet(config, parts, layer_number=1, pg_collection=groups)
    torch.manual_seed(1 + dist.get_rank())
    for name, parameter in layer.named_parameters():
        if not name.startswith("out_norm"):
            nn.init.normal_(parameter, std=0.3)
    return DistributedDataParallel(config, DistributedDataParallelConfig(), layer)


def watched():
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=WORLD)
    sequence_parallel = not case.is_wrong()
    chunk = layer_of(sequence_parallel)
    x = torch.randn(SEQUENCE, ROWS, WIDTH, generator=torch.Generator().manual_seed(1))
    if sequence_parallel:
        x = x.chunk(WORLD)[dist.get_rank()]
    chunk.zero_grad_buffer()
    with addend.torch.watch(**addend.torch.megatron([chunk]), allow_identical=True) as watch:
        chunk(x, None)[0].square().sum().backward()
        finalize_model_grads([chunk], None)
    return watch.report


def checked():
    return "not tried: ranks have parts of each section of its fused projection, which are no part of the whole weight"


if __name__ == "__main__":
    case.play(WORLD, watched, checked)
