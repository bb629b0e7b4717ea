"""Test what `addend.torch.check` says where parameters or buffers of the ranks are not those of one process before the
first step, as where the sources of a fused weight are cut before they are fused.
"""

import unittest

import numpy
import torch
from test_where import BOUND, FORWARD, TP, WHOLE, noise, of
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import RowwiseParallel, parallelize_module

from addend.torch import check
from addend.torch._checks import _start
from addend.torch._checks._job import Part, Task, Whole
from addend.torch._checks._judge import Judge
from addend.torch._checks._start import Other, Start
from addend.torch._checks._trace import Record

HANGS = 120  # seconds; many times what a check takes
VALUES = numpy.random.default_rng(5).standard_normal((6, 2))


def record(changes, rank=0):
    """What a rank recorded of the forward of test_where's model, with `changes` of some modules' tensors."""
    order = [(name, 0, kind, 0) for name, kind in FORWARD]
    found = {key: changes.get((key[0], key[2]), lambda _, value: value)(rank, WHOLE[key[0], key[2]]) for key in order}
    return Record(values=found, order=order)


def begins(found, mended, others, aliases=None):
    """Where an error begins whose step gave `found`, and the step with one process's values `mended`; `others`: the
    parameters whose values were not one process's.
    """
    weights = {name: VALUES for name in ("a.weight", "b.c.weight", "b.weight")}
    whole = Whole(1.0, None, weights, {}, weights, aliases or {}, [], record({}), set())
    parts = []
    for rank in range(2):
        part = Part(rank, [1.0], 1.0, {}, [], record(found, rank), set())
        part.others = {name: Other((6, 2), 12, 12, None, None) for name in others}
        part.mended = None if mended is None else record(mended, rank)
        parts.append(part)
    judge = Judge(Task(None, None, None, None, TP.sizes, bound=BOUND), TP, whole, parts, "no such folder")
    judge.modules = judge._find_modules()
    said = judge._loaded(judge.modules.forward())
    return said.module, said.place, said.param


class Begin(unittest.TestCase):
    def test_an_error_that_one_process_s_values_mend(self):
        wrong = of(("b.c", "b", ""), ("out",), noise)
        as_today = ("b.c", "forward", "")
        for name, mended, others, aliases, expected in (
            ("its own parameter", {}, ["b.c.weight"], {}, ("b.c", "loaded", "b.c.weight")),
            ("a buffer", {}, ["b.c.mean"], {}, ("b.c", "loaded", "b.c.mean")),
            ("one before it", {}, ["a.weight"], {}, ("a", "loaded", "a.weight")),
            ("its own before another's", {}, ["a.weight", "b.c.weight"], {}, ("b.c", "loaded", "b.c.weight")),
            ("tied", {}, ["x.weight"], {"x.weight": ["b.c.weight"]}, ("x", "loaded", "x.weight")),
            ("what follows stays wrong", of("", ("out",), noise), ["b.c.weight"], {}, ("b.c", "loaded", "b.c.weight")),
            ("still wrong", wrong, ["b.c.weight"], {}, as_today),
            ("not run", None, ["b.c.weight"], {}, as_today),
        ):
            with self.subTest(name):
                self.assertEqual(begins(wrong, mended, others, aliases), expected)

    def test_an_addend_is_not_mended(self):
        def addend(rank, value):
            return noise(0, value) if rank == 0 else value - noise(0, value)

        wrong = of(("b.c", "b", ""), ("out",), noise)
        mended = of(("b.c", "b", ""), ("out",), addend)
        self.assertEqual(begins(wrong, mended, ["b.c.weight"]), ("b.c", "forward", ""))


def index(*some):
    return (numpy.array(some), numpy.arange(2))


class Words(unittest.TestCase):
    def test_what_the_values_are(self):
        first, last = index(0, 1, 2), index(3, 4, 5)
        swapped, twice = {0: (index(0, 1, 3), first), 1: (index(2, 4, 5), last)}, {1: (first, last)}
        for others, facts, absent in (
            (swapped, ("ranks 0, 1", "rows in another order: 0-1, 3, 2, 4-5"), "twice"),
            (twice, ("rank 1 ", "rows with some of them twice: 0-2, 0-2"), "another order"),
            ({0: (None, first), 1: (index(2, 4, 5), last)}, ("7 of 12 elements on rank 0",), "rows"),
            ({0: (index(0, 1, 3), first), 1: (index(0, 1, 4), first)}, ("7 of 12 elements",), "rows"),
        ):
            text = _start.text({rank: Other((6, 2), 7, 12, *pair) for rank, pair in others.items()})
            for fact in facts:
                self.assertIn(fact, text)
            self.assertNotIn(absent, text)
        columns = {0: Other((2, 6), 7, 12, index(1, 0, 2)[::-1], index(0, 1, 2)[::-1])}
        self.assertIn("indices along dimension 1 in another order: 1, 0, 2-5", _start.text(columns))
        whose = {rank: Other((6, 2), 6, 6, None, None, name) for rank, name in enumerate(("q", ""))}
        self.assertIn("on rank 0 those of `q`", _start.text(whose))
        self.assertIn("all elements on rank 0", _start.text({0: Other((6, 2), 12, 12, None, None)}))

    def test_values_that_differ_by_no_more_than_rounding(self):
        values = torch.from_numpy(VALUES)
        for name, found, differs in (
            ("the same", values, False),
            ("bf16", values.bfloat16().double(), False),
            ("f16", values.half().double(), False),
            ("a part by hand", values[:3] * 2, False),
            ("rows", values[[0, 2, 1, 3, 4, 5]], True),
            ("a hundredth", values * 1.01, True),
            ("one element", torch.where(values == values.max(), 0.0, values), True),
        ):
            with self.subTest(name):
                self.assertEqual(["w"] * differs, [*Start({"w": found, "other": found}, {"w": VALUES}).names])

    def test_a_number_that_is_none_in_one_process_too(self):
        values = VALUES.copy()
        values[0, 0], values[1, 0] = numpy.nan, numpy.inf
        self.assertFalse(Start({"w": torch.from_numpy(values.copy())}, {"w": values}).names)
        self.assertTrue(Start({"w": torch.from_numpy(VALUES)}, {"w": values}).names)

    def test_another_parameter_s_values_are_named_if_they_are_one_s_alone(self):
        whole = {"w": VALUES, "v": VALUES[::-1] * 3, "u": VALUES + 1}
        for found, more, whose in (
            (VALUES[::-1] * 3, {}, "v"),
            (VALUES[[1, 0, 2, 3, 4, 5]], {}, ""),
            (VALUES * 2, {}, ""),
            (VALUES[::-1] * 3, {"v2": VALUES * 3}, ""),
        ):
            start = Start({"w": torch.from_numpy(found.copy())}, {**whole, **more})
            self.assertEqual(start.others()["w"].whose, whose)

    def test_one_process_s_values_are_put_where_others_were(self):
        found = {"w": torch.from_numpy(VALUES[::-1].copy()), "v": torch.zeros(3)}
        start = Start(found, {"w": VALUES})
        start.put(found)
        self.assertTrue(numpy.array_equal(found["w"].numpy(), VALUES))
        self.assertFalse(found["v"].any())


# -- jobs of two ranks


class Fused(nn.Module):
    """q and k in one weight, as q, then k."""

    def __init__(self):
        super().__init__()
        self.qk, self.scale = nn.Linear(5, 8, bias=False), nn.Buffer(torch.rand(4) + 1, persistent=False)

    def forward(self, x):
        q, k = self.qk(x).chunk(2, -1)
        return q * self.scale * torch.tanh(k)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.mix, self.down = nn.Linear(6, 5), Fused(), nn.Linear(4, 3)

    def forward(self, x):
        return self.down(self.mix(torch.tanh(self.up(x))))


def sharded(model, mesh):
    for module in (model.mix, model):
        fully_shard(module, mesh=mesh)


def fused(model, mesh, cut_first):
    """Loads the fused weight: each rank reads q and k, or its part of each, fuses them, and keeps its part."""
    q, k = model.mix.qk.weight.detach().clone().chunk(2)
    sharded(model, mesh)
    rank, ranks = mesh.get_local_rank(), mesh.size()
    own = torch.cat([q.chunk(ranks)[rank], k.chunk(ranks)[rank]]) if cut_first else torch.cat([q, k]).chunk(ranks)[rank]
    with torch.no_grad():
        model.mix.qk.weight.to_local().copy_(own)


def cut_first(model, mesh):
    fused(model, mesh, True)


def cut_after(model, mesh):
    fused(model, mesh, False)


def planned(model, mesh):
    """The same of columns over an axis of tensor parallelism."""
    weight = model.down.weight.detach().clone()
    parallelize_module(model, mesh, {"down": RowwiseParallel(input_layouts=Replicate())})
    own = weight[:, mesh.get_local_rank() :: 2].contiguous()
    model.down.weight = nn.Parameter(DTensor.from_local(own, mesh, [Shard(1)]))


def flat(model, mesh):
    with torch.no_grad():
        model.mix.qk.weight.copy_(model.mix.qk.weight.roll(3, 0))
    return FullyShardedDataParallel(model, device_id=torch.device("cpu"), use_orig_params=True)


def buffered(model, mesh):
    with torch.no_grad():
        model.mix.scale.copy_(model.mix.scale.flip(0))
    sharded(model, mesh)


def rounded(model, mesh):
    with torch.no_grad():
        model.mix.qk.weight.mul_(1 + 2**-10)  # by less than a cast to bf16 may
    sharded(model, mesh)


def permuted(model, mesh):
    """Hidden units in another order, on both sides of it: the same model."""
    order = torch.tensor([3, 0, 4, 1, 2])
    with torch.no_grad():
        for parameter, dim in ((model.up.weight, 0), (model.up.bias, 0), (model.mix.qk.weight, 1)):
            parameter.copy_(parameter.index_select(dim, order))
    sharded(model, mesh)


def permuted_and_doubled(model, mesh):
    permuted(model, mesh)
    model.mix.register_forward_hook(lambda module, args, output: output * output)


def batches(rank, mesh):
    x = torch.randn(8, 6, generator=torch.Generator().manual_seed(3))
    return [x] if rank is None else [x.chunk(mesh.size())[rank]]


def identical(rank, mesh):
    return batches(None, mesh)


def squares(model, x):
    return model(x).square().sum(), len(x)


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.5)


def checked(parallelize, **more):
    arguments = {"batches": batches, "optimizer": sgd, "steps": 2, **more}
    return check(Net, parallelize, loss=squares, mesh={"dp": 2}, timeout=HANGS, **arguments)


class Jobs(unittest.TestCase):
    def test_a_linear_that_is_cut_before_it_is_fused(self):
        report = checked(cut_first)
        self.assertEqual(
            (report.ok, report.begins.place, report.begins.module, report.begins.param),
            (False, "loaded", "mix.qk", "mix.qk.weight"),
            str(report),
        )
        self.assertIn("rows in another order: 0-1, 4-5, 2-3, 6-7", report.begins.text)
        self.assertEqual(report.document["begins"]["param"], "mix.qk.weight")
        self.assertIn("begins in `mix.qk.weight`, before the first step", str(report))
        self.assertIs(checked(cut_after).ok, True)

    def test_mutations_of_it_change_nothing(self):
        report = checked(cut_first, mutate=True, steps=0)
        self.assertEqual((report.begins.place, report.begins.param), ("loaded", "mix.qk.weight"), str(report))

    def test_other_ways_to_other_values(self):
        for parallelize, param, more in (
            (planned, "down.weight", {"batches": identical, "averaged": 0.5}),
            (flat, "mix.qk.weight", {}),
            (buffered, "mix.scale", {}),
        ):
            with self.subTest(parallelize.__name__):
                report = checked(parallelize, **more)
                self.assertIs(report.ok, False, str(report))
                self.assertEqual((report.begins.place, report.begins.param), ("loaded", param), str(report))

    def test_right_jobs_stay_right(self):
        self.assertIs(checked(permuted).ok, True)

    def test_what_does_not_come_from_the_values_is_as_before(self):
        for parallelize in (rounded, permuted_and_doubled):
            with self.subTest(parallelize.__name__):
                report = checked(parallelize)
                self.assertIsNot(report.ok, True)
                self.assertNotEqual(report.begins and report.begins.place, "loaded", str(report))


if __name__ == "__main__":
    unittest.main()
