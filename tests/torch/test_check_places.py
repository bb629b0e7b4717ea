"""`addend.torch.check`: which call of the job's own is where it begins: an autograd Function, a conversion of a DTensor or
a collective, in a module or between modules."""

import inspect
import unittest

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.nn.functional as F
from torch import nn
from torch.autograd import Function
from torch.distributed.tensor import DTensor, Partial, Replicate

from addend.torch import check

HANGS = 120  # seconds; many times what a proof takes


class CopyIn(Function):
    """Each rank goes on with something else."""

    @staticmethod
    def forward(context, x, group, sums):
        context.group, context.sums = group, sums
        return x.view_as(x)

    @staticmethod
    def backward(context, gradient):
        gradient = gradient.clone()
        for _ in range(context.sums):
            dist.all_reduce(gradient, group=context.group)
        return gradient, None, None


class Sum(Function):
    @staticmethod
    def forward(context, x, group):
        x = x.clone()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(context, gradient):
        return gradient, None


class Net(nn.Module):
    """`between` is called between two of its modules."""

    def __init__(self):
        super().__init__()
        self.first, self.up, self.down, self.last = nn.Linear(6, 8), nn.Linear(8, 12), nn.Linear(12, 8), nn.Linear(8, 3)
        self.between = torch.clone

    def forward(self, x):
        x = self.between(self.first(x))
        return self.last(self.down(self.up(x)))


def whole(rank, mesh):
    generator = torch.Generator().manual_seed(3)
    return [(torch.randn(5, 6, generator=generator), torch.randn(5, 3, generator=generator))]


def loss(model, batch):
    x, y = batch
    return (model(x) - y).square().sum(), y.numel()


def own(x, mesh, dim):
    return nn.Parameter(x.detach().chunk(mesh.size(), dim)[mesh.get_local_rank()].clone())


class Columns(nn.Module):
    def __init__(self, linear, mesh, copy):
        super().__init__()
        self.weight, self.bias = own(linear.weight, mesh, 0), own(linear.bias, mesh, 0)
        self.mesh, self.copy = mesh, copy

    def forward(self, x):
        return F.linear(self.copy(x, self.mesh), self.weight, self.bias)


class Rows(nn.Module):
    def __init__(self, linear, mesh, add):
        super().__init__()
        self.weight, self.bias, self.mesh, self.add = own(linear.weight, mesh, 1), linear.bias, mesh, add

    def forward(self, x):
        return self.add(F.linear(x, self.weight), self.mesh) + self.bias


def nothing(x, mesh):
    return x


def copied(x, mesh):
    return CopyIn.apply(x, mesh.get_group(), 1)


def not_summed(x, mesh):
    return CopyIn.apply(x, mesh.get_group(), 0)


def summed_twice(x, mesh):
    return CopyIn.apply(x, mesh.get_group(), 2)


def converted(x, mesh):
    return DTensor.from_local(x, mesh, [Replicate()]).to_local(grad_placements=[Partial()])


def taken_for_whole(x, mesh):
    x = DTensor.from_local(x, mesh, [Replicate()])
    return x.to_local()


def added(x, mesh):
    return Sum.apply(x, mesh.get_group())


def added_functionally(x, mesh):
    """Summed in the backward, too."""
    return functional.all_reduce(x, "sum", mesh.get_group())


def added_in_place(x, mesh):
    """Autograd is not told, and hands the gradient back as it is."""
    dist.all_reduce(x, group=mesh.get_group())
    return x


def added_without_a_gradient(x, mesh):
    x = x.detach()
    return functional.all_reduce(x, "sum", mesh.get_group())


def line_of(function):
    """The line of its last statement."""
    lines, first = inspect.getsourcelines(function)
    return f"test_check_places.py:{first + len(lines) - 1}"


def columns_and_rows(between=nothing, inside=nothing, add=added):
    """Over tp: what is called before the columns, outside or inside of their module, and after the rows."""

    def parallelize(model, mesh):
        model.up, model.down = Columns(model.up, mesh, inside), Rows(model.down, mesh, add)
        model.between = lambda x: between(x, mesh)
        return model

    return parallelize


class Row(nn.Module):
    """Each rank's addend."""

    def __init__(self, linear, mesh):
        super().__init__()
        self.weight, self.at = own(linear.weight, mesh, 1), mesh.get_local_rank()
        self.bias = linear.bias

    def forward(self, x):
        own = x.chunk(x.shape[1] // self.weight.shape[1], 1)[self.at]
        return F.linear(own, self.weight) + (self.bias if self.at == 0 else self.bias * 0)


def proof(parallelize, mesh=2):
    return check(Net, parallelize, whole, loss, {"tp": mesh}, timeout=HANGS)


if __name__ == "__main__":
    import sys
    for a in (dict(between=copied), dict(between=converted), dict(inside=copied),dict(inside=converted), dict(inside=copied, add=added_in_place),
       dict(between=not_summed), dict(inside=not_summed), dict(between=summed_twice), dict(inside=summed_twice), dict(between=taken_for_whole), dict(inside=taken_for_whole),
       dict(inside=copied, add=added_functionally), dict(inside=copied, add=added_without_a_gradient), dict(), dict(inside=copied, between=summed_twice)):
        print({k: v.__name__ for k, v in a.items()}); print(str(proof(columns_and_rows(**a))).partition("\n\n")[2])
