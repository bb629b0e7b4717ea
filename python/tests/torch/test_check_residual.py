"""Test what `addend.torch.check` says of blocks with a residual path: a sum that is missing, and gradients that are
lost, averaged or wrong in the branch or beside it, on one rank or on all. What becomes of addends that a layer hands
back is read from the gradient of the tensor that it took. Source: addend/torch/_checks/_fates.py.
"""

import unittest

import torch
import torch.distributed as dist
from says import says
from torch import nn
from torch.autograd import Function

from addend.torch import check

HANGS = 120  # seconds; many times what a check takes
DIRECT, BETWEEN, NORM = "", "tanh", "norm"  # what is between a block's input and its first layer


class Back(Function):
    """Changes nothing in the forward; `how` makes of the gradient what is returned on ranks."""

    @staticmethod
    def forward(context, x, how):
        context.how = how
        return x.view_as(x)

    @staticmethod
    def backward(context, gradient):
        return context.how(gradient) if dist.is_initialized() else gradient, None


class Sum(Function):
    """A sum over the ranks, of which each gets the gradient."""

    @staticmethod
    def forward(context, x):
        x = x.clone()
        if dist.is_initialized():
            dist.all_reduce(x)
        return x

    @staticmethod
    def backward(context, gradient):
        return gradient


class Gather(Function):
    """Rows of all ranks."""

    @staticmethod
    def forward(context, x, how):
        context.how = how
        if not dist.is_initialized():
            return x.view_as(x)
        parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, x.contiguous())
        return torch.cat(parts)

    @staticmethod
    def backward(context, gradient):
        return context.how(gradient) if dist.is_initialized() else gradient, None


class Scatter(Function):
    """The rank's rows of the sum over the ranks."""

    @staticmethod
    def forward(context, x):
        return own_rows(summed(x)) if dist.is_initialized() else x.view_as(x)

    @staticmethod
    def backward(context, gradient):
        return Gather.forward(context, gradient, None) if dist.is_initialized() else gradient


def own(gradient):
    return gradient


def summed(gradient):
    gradient = gradient.clone()
    dist.all_reduce(gradient)
    return gradient


def own_rows(gradient):
    return gradient.chunk(dist.get_world_size())[dist.get_rank()]


def zeros(gradient):
    return torch.zeros_like(gradient)


def on_one(gradient):
    return gradient * (dist.get_rank() == 0)


def odd(gradient):
    return gradient + 0.25 * gradient.roll(1, 0)


def then(second, first=summed):
    return lambda gradient: second(first(gradient))


class Norm(nn.LayerNorm):
    back = staticmethod(own)

    def forward(self, x):
        return super().forward(Back.apply(x, self.back))


class Block(nn.Module):
    """x + down(tanh(up(norm(x)))); ranks of tp have columns of `up` and rows of `down`, or all of both."""

    def __init__(self, enter=summed, residual=own, norm=own, between=NORM, cut=True, sequence=False, detached=()):
        super().__init__()
        self.up, self.down = nn.Linear(8, 10), nn.Linear(10, 8, bias=False)
        self.enter, self.residual, self.cut, self.sequence, self.detached = enter, residual, cut, sequence, detached
        self.between = {DIRECT: own, BETWEEN: torch.tanh, NORM: own}[between]
        if between == NORM:
            self.norm = Norm(8)
            self.norm.back = norm

    def forward(self, x):
        y = self.norm(x) if hasattr(self, "norm") else self.between(x)
        if dist.is_initialized() and dist.get_rank() in self.detached:
            y = y.detach()
        y = self.down(torch.tanh(self.up((Gather if self.sequence else Back).apply(y, self.enter))))
        if self.cut:
            y = (Scatter if self.sequence else Sum).apply(y)
        return Back.apply(x, self.residual) + y


class Net(nn.Module):
    def __init__(self, **reported):
        super().__init__()
        self.first, self.block, self.head = nn.Linear(6, 8), Block(**reported), nn.Linear(8, 5)

    def forward(self, x):
        if self.block.sequence and dist.is_initialized():
            x = own_rows(x)
        return self.head(self.block(torch.tanh(self.first(x))))


def parallelize(model, mesh):
    block = model.block
    if block.cut:
        for layer, name, dim in (block.up, "weight", 0), (block.up, "bias", 0), (block.down, "weight", 1):
            part = getattr(layer, name).detach().chunk(mesh.size(), dim)[dist.get_rank()].clone()
            setattr(layer, name, nn.Parameter(part))
    for name, parameter in model.named_parameters() if block.sequence else ():
        if name.split(".")[-2] not in ("up", "down"):
            parameter.register_hook(summed)
    return model


def batches(rank, mesh):
    return [torch.randn(4, 6, generator=torch.Generator().manual_seed(3), dtype=torch.float64)]


def squares(model, x):
    return model(x).square().sum(), len(x)


def checked(**reported):
    def make_model():
        torch.manual_seed(1)
        return Net(**reported)

    return check(make_model, parallelize, batches, squares, {"tp": 2}, timeout=HANGS)


MISSING, LOST = ("missing sum",), ("lost gradient",)
EITHER, NEITHER = MISSING + LOST, ()


class Residual(unittest.TestCase):
    def hold(self, table):
        """table: by name, (what is wrong in the block, the module, its factor, what may be the matter with addends)"""
        for name, (reported, module, factor, readings) in table.items():
            with self.subTest(name):
                begins = checked(**reported).begins
                found = (begins.module, begins.place, begins.factor and round(begins.factor, 6), begins.readings)
                self.assertEqual(found, (module, "backward", factor, readings), begins)
                self.assertEqual("tp" in begins.axes, "missing sum" in readings or factor in (0.5, 2.0), begins)
                if begins.axes:
                    says(self, begins.text, "tp", case=name)

    def test_right_jobs(self):
        for reported in ({}, {"between": DIRECT}, {"between": BETWEEN}, {"sequence": True, "enter": then(own_rows)}):
            self.assertIs(checked(**reported).ok, True, reported)

    def test_a_branch_behind_a_norm(self):
        self.hold(
            {
                "a missing sum": ({"enter": own}, "block.up", None, MISSING),
                "lost on all": ({"enter": zeros}, "block", 0.0, LOST),
                "lost on one, after the sum": ({"enter": then(on_one)}, "block.up", None, EITHER),
                "lost on one, before it": ({"enter": then(summed, on_one)}, "block", None, NEITHER),
                "detached on all": ({"detached": (0, 1)}, "block", None, LOST),
                "averaged": ({"enter": then(lambda g: g / 2)}, "block", 0.5, NEITHER),
                "summed twice": ({"enter": then(summed)}, "block", 2.0, NEITHER),
                "a wrong norm": ({"norm": odd}, "block.norm", None, NEITHER),
                "a residual that is lost": ({"residual": zeros}, "block", None, NEITHER),
                "a residual that is lost on one": ({"residual": on_one}, "block", None, NEITHER),
            }
        )

    def test_a_branch_that_takes_the_input_of_the_block(self):
        self.hold(
            {
                "a missing sum": ({"between": DIRECT, "enter": own}, "block.up", None, MISSING),
                "lost on all": ({"between": DIRECT, "enter": zeros}, "block", None, LOST),
                "lost on one": ({"between": DIRECT, "enter": then(on_one)}, "block", None, LOST),
                "averaged": ({"between": DIRECT, "enter": then(lambda g: g / 2)}, "block", None, NEITHER),
                "a residual that is lost": ({"between": DIRECT, "residual": zeros}, "block", None, NEITHER),
            }
        )

    def test_a_branch_whose_input_no_module_shows(self):
        self.hold(
            {
                "a missing sum": ({"between": BETWEEN, "enter": own}, "block.up", None, EITHER),
                "lost on all": ({"between": BETWEEN, "enter": zeros}, "block", None, NEITHER),
                "lost on one": ({"between": BETWEEN, "enter": then(on_one)}, "block", None, NEITHER),
                "averaged": ({"between": BETWEEN, "enter": then(lambda g: g / 2)}, "block", None, NEITHER),
            }
        )

    def test_a_branch_of_which_all_ranks_have_all(self):
        """Zeros on one rank may be lost there, or the addend of a rank that has none."""
        whole = {"cut": False, "enter": own}
        self.hold(
            {
                "lost on all": ({**whole, "enter": zeros}, "block", 0.0, NEITHER),
                "lost on one": ({**whole, "enter": on_one}, "block", None, EITHER),
                "detached on one": ({**whole, "detached": (1,)}, "block", None, EITHER),
                "detached on all": ({**whole, "detached": (0, 1)}, "block", None, LOST),
                "lost on one in the norm": ({**whole, "norm": on_one}, "block.norm", None, EITHER),
            }
        )

    def test_a_branch_over_gathered_rows(self):
        rows = {"sequence": True, "enter": then(own_rows)}
        self.hold(
            {
                "lost on all": ({**rows, "enter": then(zeros, own_rows)}, "block", 0.0, LOST),
                "averaged": ({**rows, "enter": then(lambda g: own_rows(g) / 2)}, "block", 0.5, NEITHER),
                "direct, lost": ({**rows, "between": DIRECT, "enter": then(zeros, own_rows)}, "block", None, LOST),
                "a residual that is lost": ({**rows, "residual": zeros}, "block", None, NEITHER),
            }
        )

    def test_a_call_that_hands_back_what_it_should_is_not_named_for_a_residual_that_is_lost(self):
        calls = checked(between=DIRECT, residual=zeros).begins.calls
        self.assertFalse([call for call in calls if "allreduce" in call], calls)

    def test_what_is_lost_is_named(self):
        says(self, checked(between=DIRECT, enter=zeros).begins.text, "block.up")


if __name__ == "__main__":
    unittest.main()
