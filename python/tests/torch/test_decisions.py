"""Test which gradients, parameters, dtypes and lists a watch and a group of backend "addend" take: what is refused and
what is left out. One process, and no job.
"""

import tempfile
import unittest

import torch
import torch.distributed as dist
from says import raises, says_facts
from torch import nn
from torch.distributed import ReduceOp
from torch.nn.parallel import DistributedDataParallel

import addend
from addend.torch import _group_collectives, _group_dtypes, _sums, _wrappers
from addend.torch._parameters import Watched

FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
COMPLEX = (torch.complex128, torch.complex64, torch.complex32)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)
MOVED_ALONE = (
    torch.uint64,
    torch.uint32,
    torch.uint16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
)
ORDERED = (ReduceOp.MAX, ReduceOp.MIN, ReduceOp.PRODUCT)
BITS = (ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR)


class Reductions(unittest.TestCase):
    """Which reductions the parts of a dtype may have: those that are the same of unsigned and of signed numbers, of
    complex numbers and of their parts, are not many."""

    def hold(self, dtypes, allowed):
        for dtype in dtypes:
            for op in (ReduceOp.SUM, ReduceOp.AVG, *ORDERED, *BITS):
                try:
                    _group_dtypes.check_reduces(dtype, _group_dtypes.moved(dtype), _group_dtypes.reduction(op))
                    taken = True
                except addend.InvalidError as error:
                    taken = False
                    says_facts(self, str(error), str(dtype), op.name if hasattr(op, "name") else str(op))
                self.assertIs(taken, op in allowed, (dtype, op))

    def test_floats(self):
        self.hold(FLOATS, (ReduceOp.SUM, ReduceOp.AVG, *ORDERED))

    def test_complex_numbers(self):
        self.hold(COMPLEX, (ReduceOp.SUM, ReduceOp.AVG))

    def test_integers(self):
        self.hold(INTEGERS, (ReduceOp.SUM, *ORDERED, *BITS))

    def test_what_is_moved_as_another_dtype_is_not_reduced(self):
        self.hold(MOVED_ALONE, ())

    def test_a_collective_refuses_them_too(self):
        for dtype in MOVED_ALONE:
            for op in (ReduceOp.SUM, ReduceOp.MAX, ReduceOp.AVG):
                with self.assertRaises(addend.InvalidError, msg=(dtype, op)):
                    _group_collectives._combined(torch.empty(2, dtype=dtype), _group_dtypes.reduction(op))


class Group(_group_collectives.Collectives):
    """A group of three ranks that keeps what it is asked to do."""

    def __init__(self, rank=0):
        self._rank, self._size, self.done = rank, 3, []

    def _do(self, opts, op, parts, outputs):
        self.done.append(op)


class Lists(unittest.TestCase):
    def hold(self, call, refused=True):
        group = Group()
        if refused:
            self.assertRaises(addend.InvalidError, call, group)
        else:
            call(group)
        self.assertEqual(len(group.done), 0 if refused else 1)

    def test_a_list_has_a_tensor_of_the_dtype_for_each_rank(self):
        one = torch.ones(2)
        lists = {
            "right": [one] * 3,
            "short": [one] * 2,
            "long": [one] * 4,
            "mixed": [one, one, one.double()],
        }
        for name, some in lists.items():
            calls = {
                "scatter": lambda group, some=some: group.scatter([one.clone()], [some], 0),
                "gather": lambda group, some=some: group.gather([some], [one], 0),
                "all_gather": lambda group, some=some: group.allgather([some], [one]),
                "all_to_all": lambda group, some=some: group.alltoall([one] * 3, some),
                "all_to_all, outputs": lambda group, some=some: group.alltoall(some, [one] * 3),
                "reduce_scatter": lambda group, some=some: group.reduce_scatter([one.clone()], [some]),
                "coalesced all_gather": lambda group, some=some: group.allgather_coalesced([[t] for t in some], [one]),
            }
            for what, call in calls.items():
                with self.subTest(what, list=name):
                    self.hold(call, name != "right")

    def test_only_the_root_gives_blocks(self):
        group = Group(rank=1)
        group.scatter([torch.ones(2)], [], 0)
        self.assertEqual(group.done, ["exchange"])

    def test_a_gather_into_one_tensor_has_a_row_for_each_rank(self):
        for numel, refused in ((6, False), (5, True), (3, True), (9, True)):
            with self.subTest(numel):
                self.hold(
                    lambda group, numel=numel: group.gather_single(torch.empty(numel), torch.ones(2)),
                    refused,
                )


class Before(unittest.TestCase):
    def entry(self, gradient, partial=()):
        param = nn.Parameter(torch.ones(3))
        param.grad = gradient
        return Watched("w", param, param, partials=lambda: list(partial))

    def test_gradients_of_zeros_are_none(self):
        model = nn.Linear(3, 2)
        model(torch.ones(1, 3)).sum().backward()
        with self.assertRaises(ValueError):
            _sums.need_none([Watched(name, one, one) for name, one in model.named_parameters()])
        model.zero_grad(set_to_none=False)
        _sums.need_none([Watched(name, one, one) for name, one in model.named_parameters()])

    def test_any_other_gradient_is_refused(self):
        zero = torch.zeros(3)
        for gradient in (None, zero, -zero):
            _sums.need_none([self.entry(gradient, [zero])])
        for gradient in (
            torch.tensor([0.0, 0.0, 1e-30]),
            torch.tensor([0.0, float("nan"), 0.0]),
            -torch.ones(3),
        ):
            with raises(self, ValueError, "zero_grad"):
                _sums.need_none([self.entry(None), self.entry(gradient)])
            with raises(self, ValueError, "set_requires_gradient_sync"):
                _sums.need_none([self.entry(None, [zero, gradient])])


def units(model):
    """Return what sums in one way, of every wrapper in the model."""
    found = [wrapper.units(module) for module in model.modules() for wrapper in _wrappers.around(module)]
    return [unit for some in found for unit in some]


class Wrapped(unittest.TestCase):
    """Parameters and modules that a wrapper ignores are not in its sums."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        dist.init_process_group("gloo", init_method=f"file://{folder.name}/store", rank=0, world_size=1)
        self.addCleanup(dist.destroy_process_group)
        self.model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))

    def names(self, found):
        """The names of the parameters in the only wrapper."""
        self.assertEqual([one.ranks for one in found], [[0]])
        return [name for name, param in self.model.named_parameters() if id(param) in found[0].parameters]

    def test_ddp(self):
        ignore = DistributedDataParallel._set_params_and_buffers_to_ignore_for_model
        ignore(self.model, ["0.bias"])
        found = units(DistributedDataParallel(self.model))
        self.assertEqual(self.names(found), ["0.weight", "1.weight", "1.bias"])

    def test_ddp_that_ignores_none(self):
        found = units(DistributedDataParallel(self.model))
        self.assertEqual(self.names(found), ["0.weight", "0.bias", "1.weight", "1.bias"])

    def test_replicate_before_and_after_its_first_forward(self):
        from torch.distributed._composable.replicate import replicate

        replicate(self.model, ignored_modules=[self.model[0]])
        self.assertEqual(self.names(units(self.model)), ["1.weight", "1.bias"])
        self.model(torch.ones(1, 2))
        self.assertEqual(self.names(units(self.model)), ["1.weight", "1.bias"])


if __name__ == "__main__":
    unittest.main()
