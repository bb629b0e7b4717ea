"""Test which call of the job `addend.torch.check` names as the place where the mistake begins: an autograd Function,
a conversion of a DTensor or a collective, in a module or between modules.
"""

import inspect
import unittest
from functools import partial

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.nn.functional as F
from says import says
from torch import nn
from torch.autograd import Function
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.nn.parallel import DistributedDataParallel

from addend.torch import check
from addend.torch._checks import _names, _trace
from addend.torch._checks._calls import Calls
from addend.torch._checks._trace import Trace

HANGS = 120  # seconds; many times what a check takes


class CopyIn(Function):
    """I -> R: each rank continues with something else."""

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


class Mean(Sum):
    @staticmethod
    def forward(context, x, group):
        return Sum.forward(context, x, group) / dist.get_world_size(group)


class Net(nn.Module):
    """A model that calls `between` between two of its modules."""

    def __init__(self):
        super().__init__()
        self.first, self.up, self.down, self.last = (
            nn.Linear(6, 8),
            nn.Linear(8, 12),
            nn.Linear(12, 8, bias=False),
            nn.Linear(8, 3),
        )
        self.between = self.after = torch.clone

    def forward(self, x):
        x = self.between(self.first(x))
        return self.last(self.after(self.down(self.up(x))))


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
        self.weight, self.mesh, self.add = own(linear.weight, mesh, 1), mesh, add

    def forward(self, x):
        return self.add(F.linear(x, self.weight), self.mesh)


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


def taken_for_full(x, mesh):
    x = DTensor.from_local(x, mesh, [Replicate()])
    return x.to_local()


def looked_at(x, mesh):
    x = DTensor.from_local(x, mesh, [Replicate()])
    with torch.no_grad():
        x.to_local().mean()
    return x.to_local()


def added(x, mesh):
    return Sum.apply(x, mesh.get_group())


def added_functionally(x, mesh):
    """The mistake: summed in the backward too."""
    return functional.all_reduce(x, "sum", mesh.get_group())


def added_in_place(x, mesh):
    """The mistake: autograd does not know of the sum and returns the gradient unchanged."""
    dist.all_reduce(x, group=mesh.get_group())
    return x


def added_without_a_gradient(x, mesh):
    x = x.detach()
    return functional.all_reduce(x, "sum", mesh.get_group())


def forked(x, mesh):
    """The mistake: the expression beside the call returns an addend too."""
    return copied(x, mesh) + x - x.detach()


def used_twice(x, mesh):
    """The mistake: the call is given too much already."""
    y = copied(x, mesh)
    return y + y - y.detach()


def halves_added(x, mesh):
    """The sum is given addends, so summing them is right; the gradient of its input is wrong."""
    half = 1.5 * x - x.detach()
    return functional.all_reduce(half, "sum", mesh.get_group())


def averaged(x, mesh):
    """The mistake: a mean in place of the sum, with the right backward of the sum."""
    return Mean.apply(x, mesh.get_group())


def not_added(x, mesh):
    """The mistake: this is called where the sum belongs."""
    return CopyIn.apply(x, mesh.get_group(), 0)


def added_by_conversion(x, mesh):
    return DTensor.from_local(x, mesh, [Partial()]).full_tensor()


def averaged_by_conversion(x, mesh):
    x = DTensor.from_local(x, mesh, [Partial("avg")])
    x = x.redistribute(placements=[Replicate()])
    return x.to_local()


def cut_and_gathered(x, mesh):
    x = DTensor.from_local(x, mesh, [Replicate()]).redistribute(placements=[Shard(1)])
    return x.full_tensor(grad_placements=[Partial()])


def gathered_for_the_full_value(x, mesh):
    x = DTensor.from_local(x, mesh, [Replicate()])
    x = x.redistribute(placements=[Shard(1)])
    return x.full_tensor()  # grad_placements=[Partial()] is missing


def halved(x, mesh):
    """The sum is right; the mistake is not in a call."""
    x = added(x, mesh)
    return x * 0.5 + x.detach() * 0.5


def not_summed_twice(x, mesh):
    x = not_summed(x, mesh)
    return CopyIn.apply(x, mesh.get_group(), 0)


def line_of(function):
    """Return the line of the function's last statement."""
    lines, first = inspect.getsourcelines(function)
    return f"test_check_places.py:{first + len(lines) - 1}"


def columns_and_rows(between=nothing, inside=nothing, add=added, after=nothing):
    """Sharded over tp; functions are called before the columns, outside or inside their module, and after the rows,
    inside or outside.
    """

    def parallelize(model, mesh):
        model.up, model.down = Columns(model.up, mesh, inside), Rows(model.down, mesh, add)
        model.between = lambda x: between(x, mesh)
        model.after = lambda x: after(x, mesh)
        return model

    return parallelize


def check_places(parallelize, mesh=2):
    return check(Net, parallelize, whole, loss, {"tp": mesh}, timeout=HANGS)


def names_of(report):
    return [call.partition(" (")[0] for call in report.begins.calls]


def called_through(look, *files, name="line"):
    """What `look` finds if a job's function of this name calls it in line 2, through one function of each file."""
    for file in reversed(files):
        look = defined(file, "through", look)
    return defined("/job/train.py", name, look)()


def defined(file, name, calls):
    found = {"calls": calls}
    exec(compile(f"def {name}():\n    return calls()", file, "exec"), found)
    return found[name]


class Lines(unittest.TestCase):
    """The job's line is found through any number of calls in between, of which there may be none. No job runs."""

    OWN = _names.__file__
    WAY = dist.distributed_c10d.__file__  # PyTorch's collectives call others
    WRAPPER = nn.parallel.distributed.__file__  # calls collectives of itself

    def test_the_innermost_call_outside(self):
        for between in ((), (self.OWN,), (self.WRAPPER,), (self.OWN, self.WRAPPER), (self.OWN,) * 2 + (self.WAY,) * 3):
            self.assertEqual(called_through(_names.caller, *between), "/job/train.py:2", between)

    def test_the_call_of_the_job(self):
        for between in ((), (self.OWN,), (self.WAY,), (self.WAY, self.OWN), (self.WAY,) * 3 + (self.OWN,) * 2):
            self.assertEqual(called_through(_names.called, *between), "/job/train.py:2", between)
        for between in ((self.WRAPPER,), (self.WRAPPER, self.WAY), (self.WRAPPER, self.WAY, self.OWN, self.OWN)):
            self.assertEqual(called_through(_names.called, *between), "", between)

    def test_the_backward_of_weights_alone(self):
        for between in ((), (self.OWN,), (self.OWN,) * 5):
            self.assertIs(called_through(_trace._weights_alone, *between, name="stage_backward_weight"), True, between)
            self.assertIs(called_through(_trace._weights_alone, *between, name="stage_backward"), False, between)


class Places(unittest.TestCase):
    def right(self, **calls):
        report = check_places(columns_and_rows(**calls))
        self.assertTrue(report.ok, report)
        self.assertIsNone(report.begins)

    def begins(self, where, function, name, place="backward", **calls):
        """Check that the mistake begins in `where`, and that a single call is named, in this function."""
        report = check_places(columns_and_rows(**calls))
        self.assertFalse(report.ok, report)
        self.assertEqual((report.begins.module, report.begins.place), (where, place), report)
        self.assertEqual(len(report.begins.calls), 1, report)
        self.assertRegex(report.begins.calls[0], rf"^{name} \(.*{line_of(function)}[;)]", report)
        self.assertIn(report.begins.calls[0], str(report))
        return report

    def test_right_jobs_with_such_calls(self):
        self.right(between=copied)
        self.right(inside=copied, after=added, add=nothing)
        self.right(between=converted, add=added_in_place)
        self.right(inside=converted, after=added_in_place, add=nothing)

    def test_a_function_between_modules_whose_backward_misses_its_sum(self):
        report = self.begins("up", not_summed, "CopyIn.apply", between=not_summed)
        self.assertEqual(report.begins.axes, ("tp",))

    def test_a_function_in_a_module_whose_backward_misses_its_sum(self):
        self.begins("up", not_summed, "CopyIn.apply", inside=not_summed)

    def test_a_function_whose_backward_sums_once_more(self):
        report = self.begins("", summed_twice, "CopyIn.apply", between=summed_twice)
        self.assertEqual(report.begins.factor, 2)
        says(self, report.begins.text, "first", "2 times")
        self.begins("up", summed_twice, "CopyIn.apply", inside=summed_twice)

    def test_a_to_local_that_takes_an_addend_for_the_full_value(self):
        self.begins("up", taken_for_full, "DTensor.to_local", between=taken_for_full)
        self.begins("up", taken_for_full, "DTensor.to_local", inside=taken_for_full)
        self.begins("up", looked_at, "DTensor.to_local", between=looked_at)

    def test_a_functional_collective_that_sums_again_in_the_backward(self):
        self.begins("down", added_functionally, "all_reduce", inside=copied, add=added_functionally)
        self.begins("", added_functionally, "all_reduce", inside=copied, add=nothing, after=added_functionally)

    def test_a_functional_collective_without_a_backward(self):
        calls = dict(inside=copied, add=nothing, after=added_without_a_gradient)
        report = self.begins("", added_without_a_gradient, "all_reduce over tp", **calls)
        says(self, report.begins.text, "down")

    def test_collectives_of_both_phases_are_listed(self):
        report = check_places(columns_and_rows(inside=copied, add=added_functionally))
        line = line_of(added_functionally)
        for phase in ("forward", "backward"):
            found = [call for call in report.begins.collectives if call.startswith(f"{phase}, all_reduce ")]
            says(self, "\n".join(found), "all_reduce", "tp", line)

    def test_where_no_call_is_wrong_none_is_named(self):
        report = check_places(columns_and_rows())  # nothing sums what `up` returns
        self.assertEqual((report.begins.module, report.begins.calls), ("up", ()), report)
        report = check_places(
            columns_and_rows(inside=lambda x, mesh: copied(x, mesh) * 1.0 + x.detach() * 0, add=halved)
        )
        self.assertEqual((report.begins.module, report.begins.calls), ("down", ()), report)

    def test_a_call_is_not_blamed_for_what_is_beside_it(self):
        for between in (forked, used_twice, halves_added):
            report = check_places(columns_and_rows(between=between))
            self.assertEqual((report.begins.place, report.begins.calls), ("backward", ()), report)

    def test_what_hooks_call_in_the_backward_is_no_call_of_the_forward(self):
        def parallelize(model, mesh):
            model.last.bias.register_hook(lambda gradient: added(gradient, mesh) / mesh.size())
            return columns_and_rows(between=forked)(model, mesh)

        report = check_places(parallelize)
        self.assertEqual((report.begins.place, report.begins.calls), ("backward", ()), report)

    def test_a_value_that_is_wrong_as_a_call_gives_it(self):
        self.begins("", averaged, "Mean.apply", "forward", inside=copied, add=nothing, after=averaged)
        calls = dict(inside=copied, add=nothing, after=averaged_by_conversion)
        report = check_places(columns_and_rows(**calls))
        self.assertEqual((report.begins.module, report.begins.place), ("", "forward"), report)
        self.assertEqual(names_of(report), ["DTensor.redistribute"], report)

    def test_on_three_ranks(self):
        report = check_places(columns_and_rows(between=not_summed), mesh=3)
        self.assertEqual((report.begins.module, names_of(report)), ("up", ["CopyIn.apply"]), report)
        self.assertTrue(check_places(columns_and_rows(inside=copied), mesh=3).ok)

    def test_a_call_whose_sum_is_missing_in_the_forward(self):
        report = self.begins("down", not_added, "CopyIn.apply", "forward", inside=copied, add=nothing, after=not_added)
        self.assertEqual(report.begins.axes, ("tp",))

    def test_a_wrong_value_that_no_call_gives(self):
        report = check_places(columns_and_rows(inside=copied, after=lambda x, mesh: 2 * x))
        self.assertEqual((report.begins.place, report.begins.calls), ("forward", ()), report)

    def test_conversions_to_the_full_value(self):
        self.right(inside=copied, add=nothing, after=added_by_conversion)
        self.right(between=cut_and_gathered)
        for after in (nothing, not_summed):  # a call that is right there
            report = check_places(columns_and_rows(between=gathered_for_the_full_value, after=after))
            self.assertEqual((report.begins.module, report.begins.place), ("", "backward"), report)
            self.assertEqual(names_of(report), ["DTensor.redistribute", "DTensor.full_tensor"], report)

    def test_calls_that_cannot_be_told_apart_are_all_named(self):
        report = check_places(columns_and_rows(inside=not_summed_twice))
        self.assertEqual(report.begins.module, "up", report)
        self.assertEqual(len(report.begins.calls), 2, report)
        for call in report.begins.calls:
            self.assertIn(f"\n    {call}\n", str(report))


class TwoAxes(unittest.TestCase):
    """Sharded over tp as above, with its own rows on each rank of dp."""

    MESH = {"dp": 2, "tp": 2}

    def report(self, count=5, **calls):  # ranks of dp have different numbers of rows
        def parallelize(model, mesh):
            model = columns_and_rows(**calls)(model, mesh["tp"])
            return nn.parallel.DistributedDataParallel(model, process_group=mesh.get_group("dp"))

        def rows(rank, mesh):
            batch = tuple(value[:count] for value in whole(None, None)[0])
            return [batch] if rank is None else [tuple(value[mesh.get_local_rank("dp") :: 2] for value in batch)]

        return check(Net, parallelize, rows, loss, self.MESH, timeout=HANGS)

    def names(self, where, place, name, **calls):
        report = self.report(**calls)
        self.assertFalse(report.ok, report)
        self.assertEqual((report.begins.module, report.begins.place), (where, place), report)
        self.assertEqual(names_of(report), [name], report)
        return report

    def test_right_jobs(self):
        for calls in (dict(inside=copied), dict(between=converted, add=nothing, after=added_by_conversion)):
            report = self.report(**calls)
            self.assertTrue(report.ok, report)
            self.assertIsNone(report.begins)

    def test_a_missing_sum(self):
        self.assertEqual(self.names("up", "backward", "CopyIn.apply", between=not_summed).begins.axes, ("tp",))

    def test_a_sum_over_the_other_axis(self):
        def summed_over_rows(x, mesh):
            return CopyIn.apply(x, mesh._get_root_mesh().get_group("dp"), 1)

        report = self.names("up", "backward", "CopyIn.apply", count=4, inside=summed_over_rows)
        says(self, report.begins.calls[0], "CopyIn.apply", "dp")

    def test_a_sum_whose_backward_sums_again(self):
        self.names("down", "backward", "all_reduce", inside=copied, add=added_functionally)

    def test_a_mean_in_the_forward(self):
        self.names("", "forward", "Mean.apply", inside=copied, add=nothing, after=averaged)


class AsBefore(unittest.TestCase):
    def test_what_calls_are_noted_by_is_taken_away_again(self):
        def held():
            return [vars(Function).get("apply"), *(vars(DTensor)[name] for name in ("to_local", "from_local"))]

        before = held()
        with Calls(Trace()):
            self.assertNotEqual(held(), before)
        self.assertEqual(held(), before)


class Attention(nn.Module):
    """Gives rows, a list with the scores of each row, and the batch's first row, which nothing uses."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def forward(self, x):
        x = self.linear(x)
        scores = [torch.outer(row, row).softmax(-1) for row in x]
        return torch.stack([one @ row for one, row in zip(scores, x)]), scores, x[0]


class Seeing(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention, self.last = Attention(), nn.Linear(6, 3)

    def forward(self, x):
        return self.last(self.attention(x)[0])


class OfOtherBatches(unittest.TestCase):
    def test_what_only_differs_because_a_rank_has_a_part_of_the_batch_is_not_where_an_error_begins(self):
        def parallelize(model, mesh, bug):
            model.last.weight.data[0, 0] += bug
            return DistributedDataParallel(model)

        def batches(rank, mesh):
            ((x, y),) = whole(rank, mesh)
            return [(x, y) if rank is None else (x[:2], y[:2]) if rank == 0 else (x[2:], y[2:])]

        for bug in (0.0, 0.5):
            report = check(Seeing, partial(parallelize, bug=bug), batches, loss, {"dp": 2}, timeout=HANGS)
            self.assertEqual(report.ok, not bug, str(report))
            if bug:
                self.assertEqual((report.begins.module, report.begins.place), ("last", "loaded"))


class SeveralBatches(unittest.TestCase):
    """With a whole of several batches, modules are searched only if each rank has a piece of each batch."""

    def report(self, pieces):
        def batches(rank, mesh):
            x, y = whole(None, None)[0]
            pairs = list(zip(x[:4].chunk(2), y[:4].chunk(2)))
            return pairs if rank is None else [pair for x, y in pairs for pair in zip(x.chunk(pieces), y.chunk(pieces))]

        return check(Net, columns_and_rows(not_summed), batches, loss, {"tp": 2}, timeout=HANGS)

    def test_one_part_of_each_is_searched(self):
        report = self.report(1)
        self.assertEqual((report.ok, report.begins.module), (False, "up"), report)
        self.assertNotEqual(report.tensors, {})

    def test_other_numbers_are_not_and_it_is_said(self):
        report = self.report(2)
        self.assertFalse(report.ok, report)
        self.assertFalse(report["first.weight"].ok)
        self.assertTrue(report["up.weight"].ok, report)
        says(self, "\n".join(report.messages), "2 batches", "rank 0", "4")
        self.assertEqual(report.tensors, {})
        self.assertNotEqual(getattr(report.begins, "place", None), "backward")


if __name__ == "__main__":
    unittest.main()
