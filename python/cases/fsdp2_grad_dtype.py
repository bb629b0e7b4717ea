"""PyTorch before 2.15: fully_shard made new parameters without the `grad_dtype` of the old ones, and gradients
that should be f32 were computed and reduced in bf16.
"""

import torch
import torch.distributed as dist
from torch import nn

import addend.torch
import case
from jobs import Net, draw

SOURCE = "https://github.com/pytorch/pytorch/issues/170648"
WRONG = RIGHT = []
REBUILT = "the replacement of parameters; wrong and right by its argument"

WORLD = 3


def replaced(model):
    """Return the model with new parameters; the right ones keep `grad_dtype`."""
    for module in model.modules():
        for name, old in list(module.named_parameters(recurse=False)):
            new = nn.Parameter(old.detach().clone())
            if not case.is_wrong():
                new.grad_dtype = old.grad_dtype
            setattr(module, name, new)
    return model


def watched():
    model = Net().bfloat16()
    for p in model.parameters():
        p.grad_dtype = torch.float32
    model = replaced(model)
    with addend.torch.watch(model, reduce=torch.float32) as watch:
        x, y = draw(dist.get_rank())
        (model(x.bfloat16()).float() - y).square().mean().backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
    return watch.report


def checked():
    return "not tried: the dtypes are what is wrong, and check computes in f64"


if __name__ == "__main__":
    case.play(WORLD, watched, checked)
