"""DeepSpeed, ZeRO 2: a backward comes to a module along two ways, and its gradient is reduced after the first:
what the second adds stays on its rank.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint

import addend.torch
import case
from jobs import HIDDEN, IN, OUT, draw, mean_loss

SOURCE = "https://github.com/deepspeedai/DeepSpeed/issues/8224"
WRONG = RIGHT = []
REBUILT = "the reducer, by hooks; DeepSpeed's own ends with an assertion or is right; wrong and right by its argument"

WORLD = 3


class Twice(nn.Module):
    """A layer that is used twice, each time in a reentrant checkpoint, which accumulates its own gradient."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.up, self.shared, self.down = nn.Linear(IN, HIDDEN), nn.Linear(HIDDEN, HIDDEN), nn.Linear(HIDDEN, OUT)

    def forward(self, x):
        x = torch.tanh(self.up(x))
        for _ in range(2):
            x = torch.tanh(checkpoint(self.shared, x, use_reentrant=True))
        return self.down(x)


def average(p):
    dist.all_reduce(p.grad)
    p.grad /= dist.get_world_size()


def step(model, microbatches, loss):
    """Run one microbatch, and reduce each gradient once: when it first comes, or when the backward is over."""
    reduced = set()

    def reduce(p):
        if p not in reduced:
            reduced.add(p)
            average(p)

    hooks = [p.register_post_accumulate_grad_hook(reduce) for p in model.parameters() if case.is_wrong()]
    (batch,) = microbatches
    loss(model, batch).backward()
    for hook in hooks:
        hook.remove()
    for p in model.parameters():
        reduce(p)


def watched():
    model = Twice()
    with addend.torch.watch(model, expect=1 / WORLD) as watch:
        step(model, [draw(dist.get_rank())], mean_loss)
    return watch.report


def sum_and_count(model, batch):
    x, y = batch
    return (model(x) - y).square().sum(), y.numel()


def checked():
    batches, mesh = case.batches_of(WORLD, 1), {"dp": WORLD}
    return addend.torch.check(
        Twice, lambda model, _: model, batches, sum_and_count, mesh=mesh, run=step, averaged=WORLD
    )


if __name__ == "__main__":
    case.play(WORLD, watched, checked)
