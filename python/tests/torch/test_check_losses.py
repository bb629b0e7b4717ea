"""Test what `addend.torch.check` makes of losses: sums and means over ranks and microbatches, factors, and losses that
say nothing.
"""

import contextlib
import dataclasses
import math
import unittest

import numpy
import torch
import torch.distributed as dist
from says import raises, says, says_nothing_of
from torch import nn

import addend
from addend.torch import check
from addend.torch._checks import _losses, _report, _words
from addend.torch._checks._axes import Axes
from addend.torch._checks._factors import Factors
from addend.torch._checks._job import Held, Part, Task, Whole
from addend.torch._checks._judge import Judge

HANGS = 120  # seconds; many times what a check takes
ROWS = 12


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.head = nn.Linear(6, 8), nn.Linear(8, 5)

    def forward(self, x):
        return self.head(torch.tanh(self.up(x)))


def ddp(model, mesh):
    return nn.parallel.DistributedDataParallel(model)


def pieces(count=1):
    """The rows of a rank, over all axes of the mesh, in `count` microbatches."""

    def batches(rank, mesh):
        x = torch.randn(ROWS, 6, generator=torch.Generator().manual_seed(3))
        return [x] if rank is None else list(x.chunk(mesh.size())[rank].chunk(count))

    return batches


def no_sync(model, microbatches, loss_of):
    for i, batch in enumerate(microbatches):
        with model.no_sync() if i < len(microbatches) - 1 else contextlib.nullcontext():
            loss_of(model, batch).backward()


def squares(model, x):
    return model(x).square().sum(), len(x)


def scaled(factor=1.0, divide=ROWS):
    """A scalar loss: the sum over a microbatch's rows by all rows, times the ranks that DDP averages, as a trainer
    that divides by num_items_in_batch has it.
    """

    def loss(model, x):
        alone = len(x) == ROWS
        return model(x).square().sum() / divide * (1 if alone else dist.get_world_size() * factor)

    return loss


def checked(
    loss=squares,
    mesh=2,
    count=1,
    parallelize=ddp,
    run=no_sync,
    make_model=Net,
    **arguments,
):
    return check(
        make_model,
        parallelize,
        pieces(count),
        loss,
        mesh,
        run=run,
        timeout=HANGS,
        **arguments,
    )


class SumsAndMeans(unittest.TestCase):
    def test_a_mean_over_ranks_of_sums_over_microbatches(self):
        for mesh, count in ((2, 3), (3, 2), (2, 1)):
            report = checked(scaled(), mesh, count)
            self.assertTrue(report.ok, report)
            self.assertAlmostEqual(report.loss, report.loss_alone, delta=1e-12)

    def test_a_sum_over_one_axis_and_a_mean_over_another(self):
        """Ranks of cp have addends of one loss; over dp the job averages."""

        def loss(model, x):
            return model(x).square().sum() / ROWS * (1 if len(x) == ROWS else 2)

        def run(model, microbatches, loss_of):
            no_sync(model, microbatches, lambda model, x: 2 * loss_of(model, x))  # DDP averages over cp too

        report = checked(loss, {"dp": 2, "cp": 2}, 3, run=run)
        self.assertTrue(report.ok, report)

    def test_a_loss_that_is_wrong_alone(self):
        def loss(model, x):
            return model(x).square().sum() / ROWS * (1 if len(x) == ROWS else 2) + (len(x) < ROWS) * 1e-7

        report = checked(loss)
        self.assertIs(report.ok, False)
        self.assertTrue(all(param.ok for param in report.params))
        self.assertEqual(report.begins.place, "loss")
        says(self, report.begins.text, *_words.apart(report.loss, report.loss_alone))

    def test_numbers_that_differ_are_printed_apart(self):
        self.assertEqual(_words.apart(1.5, 2.5), ("1.5", "2.5"))
        a, b = _words.apart(1.25, 1.25 + 2**-52)
        self.assertNotEqual(a, b)
        self.assertEqual(_words.times(0.5), "0.5 times")
        self.assertNotEqual(_words.times(1 + 1e-12), "1 times")


def judged(losses, mesh=None, counted=True, alone=1.0, further=(), averaged=1.0, **of_part):
    """The report on ranks with right gradients and these losses, losses[rank][microbatch], beside one process with the
    loss `alone`.
    """
    axes, right = Axes(mesh or {"dp": len(losses)}), numpy.array([1.0, 2.0])
    task = Task(Net, ddp, None, None, axes.sizes, run=no_sync)
    whole = Whole(alone, 8.0 if counted else None, {"w": right}, {}, {"w": right}, {}, [], None, set())
    parts = []
    for rank, some in enumerate(losses):
        held = {"w": Held((numpy.arange(2),), (2,), [right] * 3)}
        seen = [loss * averaged for loss in some]
        parts.append(Part(rank, [] if further else seen, averaged, held, [], None, set()))
        parts[-1].further = seen if further else []
        for name, value in of_part.items():
            setattr(parts[-1], name, value)
    return Judge(task, axes, whole, parts, "no such folder").report()


def wrong_once():
    """A report whose only parameter is wrong."""
    report = judged([[0.25], [0.75]])
    return dataclasses.replace(report, ok=False, params=(dataclasses.replace(report.params[0], ok=False),))


class Cancelled(unittest.TestCase):
    def test_losses_that_cancel_are_only_rounding(self):
        """As those of advantages do, whose mean is 0."""
        axes = Axes({"dp": 2})
        for last, is_right in ((-0.75, True), (-0.75 + 1e-11, False)):
            found = list(_losses.readings({0: [0.5, 0.25], 1: [3e-17, last]}, axes))
            self.assertEqual(_losses.nearest(found, 1e-17).error(1e-17) == 0, is_right)

    def cancelled(self, shift=0.0, factor=1.0):
        """The rows' weights add up to 0 in each rank and in one process, and each returns its own sum alone: what is
        left of it says nothing of how large the terms are.
        """
        signs = torch.tensor([0.7, -0.4, -0.3], dtype=torch.float64)

        def loss(model, x):
            rows = model(x).mean(1)
            every = (rows - rows.detach() + 1.1) * signs.repeat(len(x) // 3) / ROWS
            is_rank = len(x) < ROWS
            return every.sum() * (2 * factor if is_rank else 1) + shift * is_rank

        return checked(loss)

    def test_a_loss_that_cancels_in_itself_is_only_rounding(self):
        report = self.cancelled()
        self.assertLess(max(abs(report.loss_alone), abs(report.loss)), 1e-15)
        self.assertNotEqual(report.loss_alone, report.loss, "the test shows nothing")
        self.assertIs(report.ok, True, str(report))

    def test_a_loss_that_cancels_and_is_wrong(self):
        report = self.cancelled(shift=1e-11)
        self.assertIs(report.ok, False, str(report))
        self.assertEqual((report.begins.place, report.begins.module), ("loss", ""))
        self.assertIs(self.cancelled(factor=1.5).ok, False)


class Bounds(unittest.TestCase):
    """Losses just within each bound and just beyond it, without jobs."""

    def each(self, rows, **arguments):
        for losses, ok in rows:
            report = judged(losses, **arguments)
            self.assertIs(report.ok, ok, f"{losses}: {report}")

    def test_numerators_add_up(self):
        for under, over in ((0.9e-9, 1.1e-9), (-0.9e-9, -1.1e-9)):
            rows = [([[0.25], [0.75 + under]], True), ([[0.25], [0.75 + over]], False)]
            self.each(rows)
            self.each(rows, averaged=2.0)
            self.each(rows, counted=False)
            self.each([([[0.25, 0.75 + under]], True), ([[0.25, 0.75 + over]], False)])

    def test_a_mean_of_numerators_is_open_and_one_of_scalars_is_right(self):
        for under, over in ((1.8e-9, 2.2e-9), (-1.8e-9, -2.2e-9)):
            rows = [([[0.6], [1.4 + under]], None), ([[0.6], [1.4 + over]], False)]
            self.each(rows)
            self.each(rows, averaged=2.0)
            self.each([(losses, ok is None) for losses, ok in rows], counted=False)
            self.each([(losses, ok is None) for losses, ok in rows], returned=True)  # run has its own losses
        self.each([([[0.5, 1.5]], None), ([[0.5, 1.6]], False), ([[0.2, 0.6], [1.4, 1.8]], None)])

    def test_the_mean_and_the_sum_are_both_named(self):
        for losses, mean, total in (
            ([[0.6], [1.4]], ["dp"], 2),
            ([[0.5, 1.5]], [], 2),
            ([[0.2, 0.6], [1.4, 1.8]], ["dp"], 4),  # and over microbatches
        ):
            report = judged(losses)
            says(self, "\n".join(report.messages), "averaged=", str(total), "1", *mean)
            if not mean:
                says_nothing_of(self, "\n".join(report.messages), "dp")
            self.assertAlmostEqual(report.loss, total, delta=1e-12)

    def test_ranks_with_the_same_loss_have_it_once(self):
        mesh = {"dp": 2, "tp": 2}
        self.each([([[0.25], [0.25], [0.75], [0.75]], True), ([[0.25], [0.25], [0.75], [0.76]], False)], mesh=mesh)
        self.each([([[0.1], [0.15], [0.7], [0.05]], True), ([[0.6], [0.6], [1.4], [1.4]], None)], mesh=mesh)

    def test_losses_without_gradients(self):
        rows = [([[0.25], [0.75 + 0.9e-9]], True), ([[0.25], [0.75 + 1.1e-9]], None), ([[0.6], [1.4]], None)]
        self.each([*rows, ([[math.nan], [0.75]], None)], further=True)
        self.each([([[math.nan], [0.75]], False)])

    def test_a_buffer_in_f32_explains_small_errors_alone(self):
        rows = [([[0.25], [0.75 + 0.9e-4]], None), ([[0.25], [0.75 + 1.1e-4]], False), ([[0.25], [0.75]], True)]
        for narrow in ({"scale": "f32"}, {"scale": ""}):
            self.each(rows, narrow=narrow)
        self.each([(losses, bool(ok)) for losses, ok in rows])

    def test_losses_that_no_rank_has(self):
        report = judged([[], []])
        self.assertIs(report.ok, True, str(report))
        self.assertIsNone(report.loss)
        says(self, "\n".join(report.messages), "run", "loss")
        says_nothing_of(self, "\n".join(judged([[0.25], [0.75]]).messages), "loss")

    def test_one_parameter_is_in_the_singular(self):
        says(self, str(judged([[0.25], [0.75]])), "1 parameter")
        says(self, _report.table(wrong_once()), "NOT MATCH", "1 of", "1 parameter")


class WrongFactors(unittest.TestCase):
    """A factor of the loss is named with all that may have made it, and with nothing else."""

    def causes(self, factor, mesh, count):
        report = checked(scaled(factor), mesh, count)
        self.assertIs(report.ok, False)
        self.assertEqual((report.begins.place, report.begins.module), ("loss", ""), report)
        self.assertAlmostEqual(report.begins.factor, factor, delta=1e-6)
        says(self, report.begins.text, f"{factor:.6g} times")
        readings = Factors(Axes({"dp": mesh}), [count]).readings(factor)
        self.assertEqual(report.causes, tuple(reading.text for reading in readings))
        self.assertTrue(all(cause in report.begins.text for cause in report.causes), report)
        return [(*reading.axes, reading.microbatches) for reading in readings], report.begins.axes

    def test_two_readings_are_both_named(self):
        self.assertEqual(self.causes(1 / 2, 2, 2), ([("dp", 1), (2,)], ()))
        self.assertEqual(self.causes(1 / 2, 3, 2), ([(2,)], ()))
        self.assertEqual(self.causes(1 / 3, 3, 2), ([("dp", 1)], ("dp",)))
        self.assertEqual(self.causes(1 / 6, 3, 2), ([("dp", 2)], ("dp",)))

    def test_too_much(self):
        self.assertEqual(self.causes(2, 2, 2), ([("dp", 1), (2,)], ()))
        self.assertEqual(self.causes(2, 3, 2), ([(2,)], ()))

    def test_a_factor_that_nothing_explains(self):
        self.assertEqual(self.causes(0.7, 2, 2), ([], ()))


class Spare(Net):
    """`spare` is used by nothing, `muted` counts 0 times, `frozen` is not trained."""

    def __init__(self):
        super().__init__()
        self.spare, self.muted, self.frozen = nn.Linear(3, 3), nn.Linear(6, 5), nn.Linear(6, 5).requires_grad_(False)

    def forward(self, x):
        return super().forward(x) + 0 * self.muted(x) + self.frozen(x)


def with_unused(model, mesh):
    return nn.parallel.DistributedDataParallel(model, find_unused_parameters=True)


def sharded(model, mesh):
    from torch.distributed.fsdp import fully_shard

    fully_shard(model)


UNREACHED = ("spare.weight", "spare.bias", "muted.weight", "muted.bias")


class Nothing(unittest.TestCase):
    """Zeros that match zeros are not called right."""

    def test_a_loss_times_zero(self):
        report = checked(lambda model, x: (0 * model(x).square().sum(), len(x)))
        self.assertIsNone(report.ok, report)
        self.assertEqual(len(report.unreached), len(report.params))
        self.assertEqual({param.ok for param in report.params}, {None})
        says(self, str(report).rpartition("\n")[2], "NOT CHECKED")
        says_nothing_of(self, str(report), "ok")

    def test_labels_that_are_all_ignored(self):
        def loss(model, x):
            ignored = torch.full((len(x),), -100)
            return nn.functional.cross_entropy(model(x), ignored, reduction="sum"), len(x)

        self.assertIsNone(checked(loss).ok)
        with raises(self, addend.InvalidError, "loss"):
            checked(lambda model, x: nn.functional.cross_entropy(model(x), torch.full((len(x),), -100)))

    def test_a_gradient_that_is_no_number(self):
        def loss(model, x):
            return (0 * model(x).sum()).sqrt() + model(x).square().sum(), len(x)

        with raises(self, addend.InvalidError, "up.weight"):
            checked(loss)

    def test_ranks_that_have_a_gradient_where_one_process_has_none(self):
        report = checked(lambda model, x: ((len(x) < ROWS) * model(x).square().sum(), len(x)))
        self.assertIs(report.ok, False)
        self.assertEqual(report.unreached, ())

    def test_parameters_that_nothing_uses(self):
        for parallelize in (with_unused, sharded):
            report = checked(make_model=Spare, parallelize=parallelize, run=None)
            self.assertTrue(report.ok, report)
            self.assertEqual(report.unreached, UNREACHED)
            self.assertEqual(
                {param.name: param.ok for param in report.params if not param.ok}, dict.fromkeys(UNREACHED)
            )
            says(self, report["muted.bias"].text)
            says(self, str(report), "4 parameters")
            says(self, str(report), "4 parameters", *UNREACHED[:3])
            self.assertEqual(report.document["unreached"], list(UNREACHED))

    def test_a_gradient_that_is_lost_on_all_ranks(self):
        """It is none on ranks alone, which is no parameter that nothing uses."""

        def run(model, microbatches, loss_of):
            no_sync(model, microbatches, loss_of)
            model.module.up.weight.grad = None

        report = checked(run=run)
        self.assertIs(report["up.weight"].ok, False)
        self.assertEqual(report.unreached, ())


class AllByOneFactor(unittest.TestCase):
    def report(self, factor, names=("up", "head")):
        def run(model, microbatches, loss_of):
            no_sync(model, microbatches, loss_of)
            for name, parameter in model.module.named_parameters():
                if name.startswith(names):
                    parameter.grad *= factor

        return checked(mesh=3, run=run)

    def test_it_is_said_first(self):
        report = self.report(1 / 3)
        self.assertAlmostEqual(report.factor, 1 / 3, delta=1e-9)
        self.assertEqual(len(report.causes), 1)
        says(self, report.causes[0], "dp")
        text = str(report)
        says(self, text[: text.index(report.begins.text)], "0.333333 times")

    def test_a_factor_of_some_is_none_of_all(self):
        report = self.report(1 / 3, ("up",))
        self.assertIsNone(report.factor)
        says_nothing_of(self, str(report).partition(report.begins.text)[0], "0.333333 times")


class Twice(torch.autograd.Function):
    """Its backward returns twice what it should."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return 2 * gradient


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def forward(self, x):
        x = self.linear(x)
        return Twice.apply(x) if self.training else x  # ranks train; one process has this in evaluation


class WrongInTraining(nn.Module):
    """Its first layer returns twice what it should, on the ranks of a job."""

    def __init__(self):
        super().__init__()
        self.first, self.up, self.head = nn.Linear(6, 6), nn.Linear(6, 8), nn.Linear(8, 5)
        self.up.register_full_backward_hook(lambda module, before, after: (before[0] * (1 + dist.is_initialized()),))

    def forward(self, x):
        return self.head(torch.tanh(self.up(torch.tanh(self.first(x)))))


def staged(doubled):
    """Two stages whose objects each step makes anew, so that each finds its shapes again. `doubled`: whether the first
    one's backward is wrong on ranks.
    """
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    def make_model():
        return nn.Sequential(Block(), Block()).eval()

    def parallelize(model, mesh):
        own = mesh.get_local_rank()
        model._modules = {str(own): model._modules[str(own)]}
        parallelize.group = mesh.get_group()
        return model.train(doubled and not own)

    def run(model, microbatches, loss_of):
        stage = PipelineStage(model, dist.get_rank(), 2, torch.device("cpu"), group=parallelize.group)
        loss = lambda out, target: loss_of(lambda _: out, target)  # noqa: E731
        schedule = ScheduleGPipe(stage, 2, loss_fn=loss, scale_grads=False)
        for x in microbatches:
            schedule.step(*([x] if stage.is_first else []), **({"target": x} if stage.is_last else {}))

    def batches(rank, mesh):
        return [torch.randn(ROWS, 6, generator=torch.Generator().manual_seed(3))]

    return check(make_model, parallelize, batches, squares, {"pp": 2}, run=run, timeout=HANGS)


class FurtherForwards(unittest.TestCase):
    """Forwards that are no part of the step."""

    def test_stages_that_find_their_shapes_in_each_step(self):
        report = staged(doubled=False)
        self.assertIs(report.ok, True, str(report))
        self.assertAlmostEqual(report.loss, report.loss_alone, delta=1e-9)

    def test_a_bug_beside_them_begins_where_it_is(self):
        report = staged(doubled=True)
        self.assertEqual({param.name for param in report.params if not param.ok}, {"0.linear.bias", "0.linear.weight"})
        self.assertEqual((report.begins.module, report.begins.place), ("0", "backward"), str(report))

    def validated(self, make_model=Net):
        def run(model, microbatches, loss_of):
            with torch.no_grad():
                loss_of(model, microbatches[0] + 1)
            no_sync(model, microbatches, loss_of)

        return checked(make_model=make_model, run=run)

    def test_a_validation_in_the_step(self):
        self.assertIs(self.validated().ok, True)

    def test_a_bug_beside_a_validation_begins_where_it_is(self):
        report = self.validated(WrongInTraining)
        self.assertEqual((report.begins.module, report.begins.place), ("up", "backward"), str(report))

    def unseen(self, value=1.0, shift=0.0):
        """The job computes its backward itself; its loss, whose value alone is `value` times too large, has none."""

        def loss(model, x):
            found = model(x).square().sum()
            return found + (value - 1) * found.detach() if len(x) < ROWS else found, len(x)

        def run(model, microbatches, loss_of):
            for x in microbatches:
                with torch.no_grad():
                    loss_of(model, x + shift)
                (model(x).square().sum() * dist.get_world_size() / ROWS).backward()

        report = checked(loss, run=run)
        self.assertTrue(all(param.ok for param in report.params), report)
        return report

    def test_a_loss_that_is_seen_without_gradients_alone(self):
        report = self.unseen()
        self.assertIs(report.ok, True, str(report))
        self.assertAlmostEqual(report.loss, report.loss_alone, delta=1e-9)
        for arguments in ({"value": 3.0}, {"value": 2.0}, {"value": 1 + 1e-7}, {"value": float("nan")}, {"shift": 1.0}):
            report = self.unseen(**arguments)
            self.assertIsNone(report.ok, str(report))
            if math.isfinite(report.loss):
                says(self, "\n".join(report.messages), *_words.apart(report.loss, report.loss_alone))

    def test_forwards_with_gradients_that_no_backward_reaches(self):
        """Losses that are computed again, or whose sum alone goes backward, and a backward in two parts."""

        def again(model, microbatches, loss_of):
            for x in microbatches:
                loss_of(model, x)
            no_sync(model, microbatches, loss_of)

        def together(model, microbatches, loss_of):
            sum(loss_of(model, x) for x in microbatches).backward()

        def twice(model, microbatches, loss_of):
            with model.no_sync():
                losses = [loss_of(model.module, x) / 2 for x in microbatches]
                sum(losses).backward(retain_graph=True)
            sum(losses).backward()
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
                parameter.grad /= dist.get_world_size()

        for run in (again, together, twice):
            report = checked(run=run, count=2)
            self.assertIs(report.ok, True, f"{run.__name__}: {report}")
            self.assertAlmostEqual(report.loss, report.loss_alone, delta=1e-9)

    def test_numerators_whose_value_alone_is_doubled(self):
        def loss(model, x):
            found = model(x).square().sum()
            return found + found.detach() if len(x) < ROWS else found, len(x)

        report = checked(loss)
        self.assertTrue(all(param.ok for param in report.params), report)
        self.assertIsNone(report.ok, str(report))
        self.assertAlmostEqual(report.loss, 2 * report.loss_alone, delta=1e-9)

    def test_a_run_that_never_calls_loss(self):
        def own(model, microbatches, loss_of):
            values = [model(x).square().sum() / ROWS * dist.get_world_size() for x in microbatches]
            sum(values).backward()
            return values

        report = checked(run=lambda *job: own(*job) and None)
        self.assertIs(report.ok, True, str(report))
        self.assertIsNone(report.loss)
        says(self, "\n".join(report.messages), "run", "loss")
        report = checked(run=own)  # returns its losses
        self.assertIs(report.ok, True, str(report))
        says_nothing_of(self, "\n".join(report.messages), "loss")

    def test_draws_are_those_of_the_step(self):
        def drawing(model, mesh):
            nn.init.normal_(torch.empty(3))
            torch.randn(3)
            return ddp(model, mesh)

        def optimizer(model):
            torch.randn(3)
            return torch.optim.SGD(model.parameters(), lr=0.1)

        def run(model, microbatches, loss_of):
            torch.rand(3)
            no_sync(model, microbatches, loss_of)

        def draws(**arguments):
            report = checked(**arguments)
            self.assertIs(report.ok, True, str(report))
            return "\n".join(report.messages)

        says_nothing_of(self, draws(parallelize=drawing, optimizer=optimizer, steps=1), "torch")
        found = draws(parallelize=drawing, run=run)
        says(self, found, "torch.rand")
        self.assertEqual(found.count("torch."), 1, found)


if __name__ == "__main__":
    unittest.main()
