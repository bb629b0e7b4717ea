"""A mixture of experts: experts are sharded over tp, every rank of tp computes the router, FSDP2 shards both over dp.
addend watches the first step.

OMP_NUM_THREADS=1 torchrun --nproc-per-node 4 python/examples/tensor_parallel.py [--bug]"""

import argparse
import contextlib

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.nn.functional import cross_entropy, gelu, linear, softmax

import addend.torch

STEPS, ROWS, INPUTS, CLASSES, EXPERTS = 5, 16, 64, 8, 4


class MixtureOfExperts(nn.Module):
    """Each rank of tp has its own experts; the output of a row is the sum of all ranks' parts."""

    def __init__(self, tp, gradients_of_scores):
        super().__init__()
        self.tp, self.gradients_of_scores = tp, gradients_of_scores
        self.router = nn.Parameter(distribute_tensor(torch.randn(EXPERTS, INPUTS) / 8, tp, [Replicate()]))
        self.experts = nn.Parameter(distribute_tensor(torch.randn(EXPERTS, INPUTS, CLASSES) / 8, tp, [Shard(0)]))

    def forward(self, x):
        experts = self.experts.to_local()
        first = self.tp.get_local_rank() * len(experts)
        scores = softmax(linear(DTensor.from_local(x, self.tp, [Replicate()], run_check=False), self.router), -1)
        # From here each rank uses only the scores of its own experts, so its gradient of the scores is Partial.
        scores = scores.to_local(grad_placements=self.gradients_of_scores)[:, first : first + len(experts)]
        part = torch.einsum("re,eri->ri", scores, gelu(x @ experts))
        whole = DTensor.from_local(part, self.tp, [Partial()], run_check=False).redistribute(placements=[Replicate()])
        return whole.to_local().clone()  # FSDP2 does not accept a view as output


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--bug", action="store_true", help="turn the scores into a local tensor without grad_placements"
    )
    bug = parser.parse_args().bug

    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    torch.manual_seed(0)
    model = MixtureOfExperts(mesh["tp"], None if bug else [Partial()])
    fully_shard(model, mesh=mesh["dp"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.manual_seed(1 + mesh.get_local_rank("dp"))  # ranks of one tp group have the same batches

    for step in range(STEPS):
        with addend.torch.watch(model, show=True) if step == 0 else contextlib.nullcontext():
            x = torch.randn(ROWS, INPUTS)
            y = x[:, :CLASSES].argmax(1)
            cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
