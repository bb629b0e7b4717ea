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
        self.after_first = self.after_up = self.after_down = torch.clone

    def forward(self, x):
        x = self.after_first(torch.tanh(self.first(x)))
        x = self.after_up(torch.tanh(self.up(x)))
        return self.last(self.after_down(self.down(x)))


class Between(Net):
    """The first layer's output goes to `between` as it is."""

    def forward(self, x):
        x = self.after_first(self.first(x))
        x = self.after_up(torch.tanh(self.up(x)))
        return self.last(self.after_down(self.down(x)))


def whole(rank, mesh):
    generator = torch.Generator().manual_seed(3)
    return [(torch.randn(5, 6, generator=generator), torch.randn(5, 3, generator=generator))]


def loss(model, batch):
    x, y = batch
    return (model(x) - y).square().sum(), y.numel()


def own(x, mesh, dim):
    return nn.Parameter(x.detach().chunk(mesh.size(), dim)[mesh.get_local_rank()].clone())


class Rows(nn.Module):
    def __init__(self, linear, mesh):
        super().__init__()
        self.weight = own(linear.weight, mesh, 1)

    def forward(self, x):
        return F.linear(x, self.weight)


class Columns(nn.Module):
    def __init__(self, linear, mesh, copy):
        super().__init__()
        self.weight, self.bias, self.copy = own(linear.weight, mesh, 0), own(linear.bias, mesh, 0), copy

    def forward(self, x):
        return F.linear(self.copy(x), self.weight, self.bias)


def line_of(function):
    """The line of its last statement."""
    lines, first = inspect.getsourcelines(function)
    return f"test_check_places.py:{first + len(lines) - 1}"


def cut(copy_between=None, copy_inside=None, add=None):
    """Columns and rows over tp: what is called before the columns, in or outside of their module, and after the rows."""

    def parallelize(model, mesh):
        bias = model.down.bias
        model.up = Columns(model.up, mesh, (copy_inside or (lambda x, mesh: x)).__get__(None, object) if False else
                           (lambda x: (copy_inside or (lambda x, mesh: x))(x, mesh)))
        model.down = Rows(model.down, mesh)
        model.down.register_parameter("bias", bias)
        model.after_first = lambda x: (copy_between or (lambda x, mesh: x))(x, mesh)
        model.after_down = lambda x: (add or sum_up)(x, mesh) + bias
        return model

    return parallelize


def sum_up(x, mesh):
    return Sum.apply(x, mesh.get_group())


def copied(x, mesh):
    return CopyIn.apply(x, mesh.get_group(), 1)


def copied_only(x, mesh):
    return CopyIn.apply(x, mesh.get_group(), 0)


def copied_twice(x, mesh):
    return CopyIn.apply(x, mesh.get_group(), 2)


def proof(parallelize, make_model=Between, mesh=None):
    return check(make_model, parallelize, whole, loss, mesh or {"tp": 2}, timeout=HANGS)


if __name__ == "__main__":
    for a in (dict(copy_between=copied), dict(copy_between=copied_only), dict(copy_between=copied_twice), dict(copy_inside=copied_only), dict()):
        print(a); print(proof(cut(**a)))
