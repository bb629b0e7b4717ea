"""FSDP2 with hybrid sharding, two replicas of two shards, and two microbatches a step; addend watches the first step.

OMP_NUM_THREADS=1 torchrun --nproc-per-node 4 python/examples/fsdp2.py [--bug]"""

import argparse
import contextlib

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy

import addend.torch

STEPS, MICROBATCHES, ROWS, INPUTS, CLASSES = 5, 2, 16, 64, 8


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--bug", action="store_true", help="synchronise the outermost module's gradients only, not its children's"
    )
    bug = parser.parse_args().bug

    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp_replicate", "dp_shard"))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(INPUTS, 256), nn.GELU(), nn.Linear(256, CLASSES))
    fully_shard(model[0], mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.manual_seed(1 + dist.get_rank())  # each rank has its own batches

    for step in range(STEPS):
        with addend.torch.watch(model, show=True) if step == 0 else contextlib.nullcontext():
            for m in range(MICROBATCHES):
                x = torch.randn(ROWS, INPUTS)
                y = x[:, :CLASSES].argmax(1)
                last = m == MICROBATCHES - 1
                model.set_requires_gradient_sync(last, recurse=not (last and bug))
                (cross_entropy(model(x), y) / MICROBATCHES).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
