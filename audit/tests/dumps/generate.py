"""Write the dumps of this folder: one step of a small PyTorch job on gloo, each with one mistake in how it sums.

    torchrun --nproc-per-node 3 audit/tests/dumps/generate.py maximum audit/tests/dumps/maximum

maximum: the all_reduce has ReduceOp.MAX. one_rank: a reduce to rank 0. shifted: gradients are read from their buffer
three elements behind where they were written. order: the last rank packs its parameters in the reverse order. sparse:
of an embedding's sparse gradient the values alone are summed.
"""

import sys

import torch
import torch.distributed as dist
from torch import nn

import addend.torch

HEADER = 3  # elements that the packer leaves free in front of the gradients


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(4)
        self.words = nn.Embedding(9, 6, sparse=True)
        self.up, self.down = nn.Linear(6, 8), nn.Linear(8, 4)

    def forward(self, numbers):
        return self.down(torch.tanh(self.up(self.words(numbers))))


def sum_packed(parameters, read_from=0):
    buffer = torch.cat([torch.zeros(HEADER), *(p.grad.reshape(-1) for p in parameters), torch.zeros(HEADER)])
    dist.all_reduce(buffer)
    at = HEADER + read_from
    for parameter in parameters:
        parameter.grad.copy_(buffer[at : at + parameter.numel()].view_as(parameter))
        at += parameter.numel()


def synchronise(model, bug):
    words, *layers = model.parameters()
    if bug == "sparse":
        values = words.grad._values()
        dist.all_reduce(values)
    else:
        words.grad = words.grad.to_dense()
        dist.all_reduce(words.grad)
    if bug in ("maximum", "one_rank"):
        for parameter in layers:
            if bug == "maximum":
                dist.all_reduce(parameter.grad, op=dist.ReduceOp.MAX)
            else:
                dist.reduce(parameter.grad, 0)
    elif bug == "order" and dist.get_rank() == dist.get_world_size() - 1:
        sum_packed(layers[::-1])
    else:
        sum_packed(layers, HEADER if bug == "shifted" else 0)


def main(bug, folder):
    dist.init_process_group("gloo")
    model = Net()
    numbers = torch.randperm(9, generator=torch.Generator().manual_seed(dist.get_rank()))[:4]
    with addend.torch.dump(model, folder):
        model(numbers).square().sum().backward()
        synchronise(model, bug)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
