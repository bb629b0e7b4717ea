"""build-nanogpt: `require_backward_grad_sync` is set between forward and backward of each microbatch, but
DistributedDataParallel reads it in forward.
"""

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import addend.torch
import case
from jobs import Net, draw, mean_loss

SOURCE = "https://github.com/karpathy/build-nanogpt/pull/30"
WRONG = RIGHT = []
REBUILT = "the loop over microbatches; wrong and right by its argument"

WORLD, MICROBATCHES = 3, 4


def step(model, microbatches, loss):
    for at, batch in enumerate(microbatches):
        if not case.is_wrong():
            model.require_backward_grad_sync = at == len(microbatches) - 1
        part = loss(model, batch)
        model.require_backward_grad_sync = at == len(microbatches) - 1
        part.backward()


def mean_of_all(model, batch):
    return mean_loss(model, batch) / MICROBATCHES


def watched():
    model = DistributedDataParallel(Net())
    with addend.torch.watch(model) as watch:
        step(model, [draw(dist.get_rank(), m) for m in range(MICROBATCHES)], mean_of_all)
    return watch.report


def sum_and_count(model, batch):
    x, y = batch
    return (model(x) - y).square().sum(), y.numel()


def checked():
    wrap = lambda model, _: DistributedDataParallel(model)  # noqa: E731
    return addend.torch.check(
        Net, wrap, case.batches_of(WORLD, MICROBATCHES), sum_and_count, mesh={"dp": WORLD}, run=step
    )


if __name__ == "__main__":
    case.play(WORLD, watched, checked)
