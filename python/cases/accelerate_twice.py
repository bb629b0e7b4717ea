"""Accelerate's own example divides the loss by the number of microbatches, and `backward()` divides it again."""

import functools
import os

import torch.distributed as dist
from accelerate import Accelerator

import addend.torch
import case
from jobs import Net, draw, mean_loss

SOURCE = "https://github.com/huggingface/accelerate/issues/1839"
WRONG = RIGHT = ["accelerate==1.15.0"]
REBUILT = "the example's loop over microbatches; wrong and right by its argument"

WORLD, MICROBATCHES = 2, 3
# Accelerate asks for these and does not use them: the ranks have joined already
os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29500")


@functools.lru_cache(None)
def accelerator():
    return Accelerator(cpu=True, gradient_accumulation_steps=MICROBATCHES)


def step(model, microbatches, loss):
    for batch in microbatches:
        with accelerator().accumulate(model):
            found = loss(model, batch)
            if case.is_wrong():
                found = found / MICROBATCHES
            accelerator().backward(found)


def watched():
    model = accelerator().prepare(Net())
    with addend.torch.watch(model) as watch:
        step(model, [draw(dist.get_rank(), m) for m in range(MICROBATCHES)], mean_loss)
    return watch.report


def checked():
    wrap = lambda model, _: accelerator().prepare(model)  # noqa: E731
    return addend.torch.check(Net, wrap, case.batches_of(WORLD, MICROBATCHES), mean_loss, mesh={"dp": WORLD}, run=step)


if __name__ == "__main__":
    case.play(WORLD, watched, checked)
