"""PyTorch: fully_shard's reduce_dtype held for the reduce-scatter alone; what a norm's gradient is summed over tp
with, an all-reduce before it, ran in param_dtype.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

import addend.torch
import case

SOURCE = "https://github.com/pytorch/pytorch/issues/190626"
WRONG = RIGHT = []
REBUILT = (
    "both reductions, by hand, of a norm whose ranks of tp have parts of the sequence; wrong and right by its argument"
)

MESH, WIDTH = {"dp": 2, "tp": 2}, 512


class Norm(nn.Module):
    """A norm's weight, which the loss is linear in: its gradients are a sum over rows."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x):
        return x * self.weight.to(x.dtype)


def batch(place):
    return (torch.randn(6, WIDTH, generator=torch.Generator().manual_seed(place)),)


def reduce(model, mesh):
    """Sum over tp, then over dp; what is computed in bf16 is summed in f32 unless the job is wrong."""
    wide = model.weight.grad
    parts = wide.to(torch.bfloat16) if case.is_wrong() else wide
    dist.all_reduce(parts, group=mesh.get_group("tp"))
    wide.copy_(parts)
    dist.all_reduce(wide, group=mesh.get_group("dp"))


def watched():
    mesh = init_device_mesh("cpu", tuple(MESH.values()), mesh_dim_names=tuple(MESH))
    model = Norm()
    with addend.torch.watch(model, mesh=mesh, reduce=torch.float32, types={"*": "dp=R tp=R"}) as watch:
        (x,) = batch(dist.get_rank())
        model(x.bfloat16()).float().square().sum().backward()
        reduce(model, mesh)
    return watch.report


def checked():
    def run(model, microbatches, loss):
        for one in microbatches:
            loss(model, one).backward()
        reduce(model, run.mesh)

    def wrap(model, mesh):
        run.mesh = mesh
        return model

    def batches(rank, _):
        return [batch(rank)] if rank is not None else [(torch.cat([batch(r)[0] for r in range(4)]),)]

    loss = lambda model, one: (model(*one).square().sum(), 1)  # noqa: E731
    return addend.torch.check(Norm, wrap, batches, loss, mesh=MESH, run=run, averaged=1)


if __name__ == "__main__":
    case.play(4, watched, checked)
