"""Test what `addend.torch.check` makes of losses: sums and means over ranks and microbatches, factors, and losses that
say nothing.
"""

import contextlib
import unittest

import torch
import torch.distributed as dist
from torch import nn

from addend.torch import check
from addend.torch._proof import _words

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
        ours, alone = report.begins.text.removeprefix("the ranks' is ").split(", that of one process ")
        self.assertNotEqual(float(ours), float(alone))

    def test_numbers_that_differ_are_printed_apart(self):
        self.assertEqual(_words.apart(1.5, 2.5), ("1.5", "2.5"))
        a, b = _words.apart(1.25, 1.25 + 2**-52)
        self.assertNotEqual(a, b)
        self.assertEqual(_words.times(0.5), "0.5 times")
        self.assertNotEqual(_words.times(1 + 1e-12), "1 times")


class Factors(unittest.TestCase):
    """A factor of the loss is named with all that may have made it, and with nothing else."""

    def causes(self, factor, mesh, count):
        report = checked(scaled(factor), mesh, count)
        self.assertIs(report.ok, False)
        self.assertEqual((report.begins.place, report.begins.module), ("loss", ""), report)
        self.assertAlmostEqual(report.begins.factor, factor, delta=1e-6)
        causes = report.begins.text.partition("; possible cause")[2]
        return [cause for cause in causes.partition(": ")[2].split("; ") if cause], report.begins.axes

    def test_two_readings_are_both_named(self):
        averaged, divided = "averaged over dp", "divided by the number of microbatches"
        self.assertEqual(self.causes(1 / 2, 2, 2), ([averaged, divided], ()))
        self.assertEqual(self.causes(1 / 2, 3, 2), ([divided], ()))
        self.assertEqual(self.causes(1 / 3, 3, 2), ([averaged], ("dp",)))
        self.assertEqual(self.causes(1 / 6, 3, 2), ([f"{averaged} and {divided}"], ("dp",)))

    def test_too_much(self):
        summed, whole = (
            "summed once more, or not divided, over dp",
            "not divided by the number of microbatches",
        )
        self.assertEqual(self.causes(2, 2, 2), ([summed, whole], ()))
        self.assertEqual(self.causes(2, 3, 2), ([whole], ()))

    def test_a_factor_that_nothing_explains(self):
        self.assertEqual(self.causes(0.7, 2, 2), ([], ()))


if __name__ == "__main__":
    unittest.main()
