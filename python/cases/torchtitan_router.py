"""torchtitan: `NoParallel` returns the router's output as a plain tensor; its gradient, of which each tp rank has
only an addend, is taken for the whole gradient.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Partial
from torch.distributed.tensor.parallel import parallelize_module
from torchtitan.distributed import NoParallel

import addend.torch
import case

SOURCE = "https://github.com/pytorch/torchtitan/issues/2387"
WRONG = RIGHT = ["tyro", "--no-deps torchtitan==0.2.2"]
REBUILT = "the job around `NoParallel`; and the published fix, for no later release has that class"

WORLD, WIDTH, EXPERTS = 2, 16, 4


class Summed(NoParallel):
    """The authors' repair: the gradient that comes back behind the router is an addend."""

    @staticmethod
    def _prepare_output_fn(layout, local, module, outputs, mesh):
        return outputs.to_local(grad_placements=(Partial(),))


class SumForward(torch.autograd.Function):
    """The sum of all ranks' parts; each part's gradient is that of the sum."""

    @staticmethod
    def forward(ctx, x):
        x = x.clone()
        if dist.is_initialized() and dist.get_world_size() > 1:
            dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad


class Moe(nn.Module):
    """A layer of experts of which each rank has some."""

    def __init__(self, experts=range(EXPERTS)):
        super().__init__()
        torch.manual_seed(1)
        self.gate, self.mine = nn.Linear(WIDTH, EXPERTS, bias=False), list(experts)
        whole = torch.randn(EXPERTS, WIDTH, WIDTH)
        self.experts = nn.Parameter(whole[self.mine])

    def forward(self, x):
        scores = torch.softmax(self.gate(x), -1)
        parts = torch.einsum("ti,eio->teo", x, self.experts)
        return SumForward.apply((parts * scores[:, self.mine, None]).sum(1))


def parallel(model, mesh):
    at, each = mesh.get_local_rank(), EXPERTS // WORLD
    model.mine = list(range(at * each, (at + 1) * each))
    model.experts = nn.Parameter(model.experts.detach()[model.mine].clone())
    style = NoParallel() if case.is_wrong() else Summed()
    parallelize_module(model, mesh, {"gate": style})
    return model


def batch():
    return torch.randn(12, WIDTH, generator=torch.Generator().manual_seed(3))


def loss(model, x):
    return model(x).square().mean()


def watched():
    mesh = init_device_mesh("cpu", (WORLD,), mesh_dim_names=("tp",))
    model = parallel(Moe(), mesh)
    with addend.torch.watch(model, mesh=mesh, types={"experts": "tp=S0"}) as watch:
        loss(model, batch()).backward()
    return watch.report


def checked():
    return addend.torch.check(
        Moe, lambda model, mesh: parallel(model, mesh["tp"]), lambda *_: [batch()], loss, mesh={"tp": WORLD}
    )


if __name__ == "__main__":
    case.play(WORLD, watched, checked)
