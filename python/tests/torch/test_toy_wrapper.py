"""Test that a wrapper is one record: a toy one that the watch has never seen is known to it by a record alone, with the
factor, the ranks and the names that the record has.
"""

import dataclasses
import unittest
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn

import addend.torch
import ranks
from addend.torch import _parameters, _wrappers
from addend.torch._wrapper import Said, Wrapper


class Halving(nn.Module):
    """A toy: sums gradients over all ranks and divides them by twice their number."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner
        for param in inner.parameters():
            param.register_post_accumulate_grad_hook(self.reduce)

    def reduce(self, param):
        dist.all_reduce(param.grad)
        param.grad /= 2 * dist.get_world_size()

    def forward(self, x):
        return self.inner(x)


HALVING = Wrapper(
    name="Halving",
    recognised_by=lambda module: isinstance(module, Halving),
    units=lambda module: [list(range(dist.get_world_size()))],
    params=lambda name, module, ranks: [Said({id(param) for param in module.parameters()}, [ranks])],
    divides_by=lambda ranks: 2 * len(ranks),
    attribute="inner",
)
RECORDS = {
    "none": [],
    "its own": [HALVING],
    "another divisor": [dataclasses.replace(HALVING, divides_by=len)],
}


def run_watched():
    """Return by records: whether the step is right, the parameters' names, the factors that are expected."""
    found = {}
    for said, records in RECORDS.items():
        torch.manual_seed(1)
        model = nn.Sequential(Halving(nn.Linear(8, 4)))
        torch.manual_seed(2 + dist.get_rank())
        with mock.patch.object(_wrappers, "WRAPPERS", (*_wrappers.WRAPPERS, *records)):
            with addend.torch.watch(model) as watch:
                model(torch.randn(16, 8)).square().mean().backward()
            factors = [entry.factor for entry in _parameters.find(model)]
        found[said] = (watch.report.ok, [param.name for param in watch.report.params], factors)
    return found


class Toy(unittest.TestCase):
    def test_a_record_is_all_that_a_wrapper_needs(self):
        for found in ranks.run(2, run_watched):
            self.assertEqual(found["its own"], (True, ["0.bias", "0.weight"], [0.25, 0.25]))

    def test_the_record_decides(self):
        for found in ranks.run(2, run_watched):
            self.assertEqual(found["none"], (False, ["0.inner.bias", "0.inner.weight"], [1.0, 1.0]))
            self.assertEqual(found["another divisor"], (False, ["0.bias", "0.weight"], [0.5, 0.5]))


if __name__ == "__main__":
    unittest.main()
