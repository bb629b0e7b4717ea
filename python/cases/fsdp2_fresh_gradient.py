"""PyTorch: a parameter that is first used in the last microbatch has a gradient in bf16, the others' accumulated
ones are f32, and fully_shard reduces no list of two dtypes.
"""

import torch
import torch.distributed as dist
from torch import nn

import addend.torch
import case
from jobs import IN, OUT, draw

SOURCE = "https://github.com/pytorch/pytorch/issues/196996"
WRONG = RIGHT = []
REBUILT = "the reduction of one group, by hand; wrong and right by its argument"

WORLD, MICROBATCHES = 2, 2


class Late(nn.Module):
    """The layer `late` is used in the last microbatch alone."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.late = nn.Linear(IN, OUT), nn.Linear(IN, OUT)
        self.is_last = False

    def forward(self, x):
        return self.first(x) + (self.late(x) if self.is_last else 0)


def step(model, microbatches, loss):
    """Accumulate in f32 what is computed in bf16, as MixedPrecisionPolicy(bf16, reduce_dtype=f32) does, and reduce all
    gradients as one buffer.
    """
    for at, batch in enumerate(microbatches):
        model.is_last = at == len(microbatches) - 1
        loss(model, batch).backward()
        if not model.is_last:
            for p in model.first.parameters():
                p.grad = p.grad.float()
    gradients = [p.grad for p in model.parameters()]
    if not case.is_wrong():
        gradients = [gradient.float() for gradient in gradients]
    dtypes = {gradient.dtype for gradient in gradients}
    if len(dtypes) > 1:
        raise AssertionError(f"FSDP reduce-scatter expects uniform gradient dtype but got {sorted(map(str, dtypes))}")
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    dist.all_reduce(flat)
    for p, part in zip(model.parameters(), flat.split([p.numel() for p in model.parameters()])):
        p.grad = part.view_as(p)


def loss(model, batch):
    x, y = batch
    return (model(x.bfloat16()).float() - y).square().mean()


def watched():
    model = Late().bfloat16()
    for p in model.parameters():
        p.grad_dtype = None
    try:
        with addend.torch.watch(model, reduce=torch.float32) as watch:
            step(model, [draw(dist.get_rank(), m) for m in range(MICROBATCHES)], loss)
    except AssertionError as error:
        return f"no report: the job's own error comes through: {error}"
    return watch.report


def checked():
    return "not tried: the dtypes are what is wrong, and check computes in f64"


if __name__ == "__main__":
    case.play(WORLD, watched, checked)
