"""DistributedDataParallel with gradient accumulation; addend watches the first step and reports wrong gradients.

OMP_NUM_THREADS=1 torchrun --nproc-per-node 4 python/examples/ddp.py [--bug]"""

import argparse
import contextlib

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import addend.torch

STEPS, MICROBATCHES, ROWS, INPUTS, CLASSES = 5, 2, 16, 64, 8


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bug", action="store_true", help="keep no_sync() on in the last microbatch too")
    bug = parser.parse_args().bug

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(INPUTS, 256), nn.GELU(), nn.Linear(256, CLASSES)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.manual_seed(1 + dist.get_rank())  # each rank has its own batches

    for step in range(STEPS):
        with addend.torch.watch(model, show=True) if step == 0 else contextlib.nullcontext():
            for m in range(MICROBATCHES):
                x = torch.randn(ROWS, INPUTS)
                y = x[:, :CLASSES].argmax(1)
                synchronised = m == MICROBATCHES - 1 and not bug
                with contextlib.nullcontext() if synchronised else model.no_sync():
                    (cross_entropy(model(x), y) / MICROBATCHES).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
