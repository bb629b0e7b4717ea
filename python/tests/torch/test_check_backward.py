"""Test what `addend.torch.check` says of backwards that are unlike a plain loop's: a loss whose own backward is wrong,
backwards in two passes, sends and receives in autograd Functions, and experts that one rank alone has.
"""

import unittest

import torch
import torch.distributed as dist
from says import says, says_nothing_of
from torch import nn
from torch.autograd import Function

from addend.torch import check

HANGS = 120  # seconds; many times what a check takes


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.mid, self.head = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 5)

    def forward(self, x):
        return self.head(torch.tanh(self.mid(torch.tanh(self.up(x)))))


def rows(rank, mesh):
    x = torch.randn(12, 6, generator=torch.Generator().manual_seed(3))
    return [x] if rank is None else [x.chunk(mesh.size())[rank]]


def squares(model, x):
    return model(x).square().sum(), len(x)


def ddp(model, mesh):
    return nn.parallel.DistributedDataParallel(model)


def checked(loss=squares, parallelize=ddp, mesh=2, make_model=Net, batches=rows, **arguments):
    return check(make_model, parallelize, batches, loss, mesh, timeout=HANGS, **arguments)


class Detaching(nn.Linear):
    """Loses, on ranks, what flows back to its input."""

    def forward(self, x):
        return super().forward(x.detach() if dist.is_initialized() else x)


class Counting(nn.Module):
    """Gives integers to its last layer, on ranks others than in one process."""

    class Counted(nn.Linear):
        def forward(self, x, counts):
            return super().forward(x * (1.5 + counts))

    def __init__(self):
        super().__init__()
        self.up, self.head = nn.Linear(6, 8), self.Counted(8, 5)

    def forward(self, x):
        counts = (x[:, :1] * (7 if dist.is_initialized() else 5)).long()
        return self.head(torch.tanh(self.up(x)), counts)


class Odd(Function):
    """Changes nothing, and on ranks its backward is wrong by no factor."""

    @staticmethod
    def forward(context, x):
        return x.view_as(x)

    @staticmethod
    def backward(context, gradient):
        return gradient + 0.25 * gradient.roll(1, 0) if dist.is_initialized() else gradient


class OddLinear(nn.Linear):
    def forward(self, x):
        return super().forward(Odd.apply(x))


def odd_mid(parallelize=ddp):
    def wrong(model, mesh):
        model.mid.__class__ = OddLinear
        return parallelize(model, mesh)

    return wrong


class Losses(unittest.TestCase):
    def test_a_loss_whose_backward_is_wrong(self):
        report = checked(lambda model, x: (Odd.apply(model(x)).square().sum(), len(x)))
        self.assertIs(report.ok, False)
        self.assertEqual((report.begins.place, report.begins.module), ("loss", "head"), report)
        says(self, report.begins.text, "head")

    def test_a_loss_that_hands_an_addend_to_the_model(self):
        """Each rank of tp uses some columns of the output, and the sum of the numerators has the right value."""

        class Added(Function):
            @staticmethod
            def forward(context, x):
                x = x.clone()
                dist.all_reduce(x)
                return x

            @staticmethod
            def backward(context, gradient):
                return gradient

        def loss(model, x):
            y = model(x)
            if not dist.is_initialized():
                return y.square().sum(), len(x)
            return Added.apply(y[:, dist.get_rank() :: 2].square().sum()), len(x)

        report = checked(loss, lambda model, mesh: model, {"tp": 2}, batches=lambda rank, mesh: rows(None, mesh))
        self.assertIs(report.ok, False)
        self.assertEqual((report.begins.place, report.begins.axes), ("loss", ("tp",)), report)

    def test_a_loss_that_the_model_returns(self):
        """It is an addend on each rank, rightly; the backward of a module is wrong."""

        class Returning(Net):
            def forward(self, x):
                return super().forward(x).square().sum()

        def loss(model, x):
            return model(x), len(x)

        report = checked(loss, odd_mid(), make_model=Returning)
        self.assertIs(report.ok, False)
        self.assertEqual((report.begins.place, report.begins.module), ("backward", "mid"), report)

    def test_a_right_loss_and_a_wrong_module(self):
        report = checked(parallelize=odd_mid())
        self.assertEqual((report.begins.place, report.begins.module), ("backward", "mid"), report)
        self.assertIsNone(report.factor)


class Split(Function):
    """Two outputs of one call."""

    @staticmethod
    def forward(context, x):
        return x * 1.0, x * 2.0

    @staticmethod
    def backward(context, first, second):
        return first + 2 * second


class Both(Net):
    """Returns two outputs, of which the loss reads one; it may be given a number by which it divides them."""

    def forward(self, x, count=None):
        y = super().forward(x)
        return Split.apply(y if count is None else y / count)


def one_of_two(model, x, **more):
    return model(x, **more)[1].square().sum(), len(x)


class SeveralOutputs(unittest.TestCase):
    def test_one_that_gets_no_gradient(self):
        """The hook on it is called with None, for its Function has another output that gets one."""
        self.assertTrue(checked(one_of_two, make_model=Both).ok)

    def test_a_model_that_is_given_more_than_in_one_process(self):
        def loss(model, x):
            more = {"count": torch.tensor(1.5, dtype=torch.float64)} if dist.is_initialized() else {}
            return one_of_two(model, x, **more)

        report = checked(loss, make_model=Both)
        self.assertIs(report.ok, False)
        self.assertEqual((report.begins.place, report.begins.calls), ("loss", ()), report)


def in_two_passes(model, microbatches, loss_of):
    """First the gradients of the input and of `up`, then those of the other weights, from the same forward."""
    for x in microbatches:
        value = loss_of(model, x.requires_grad_())
        first, later = list(model.up.parameters()), [*model.mid.parameters(), *model.head.parameters()]
        torch.autograd.backward(value, inputs=[x, *first], retain_graph=True)
        torch.autograd.backward(value, inputs=later)
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)


def in_two_losses(model, microbatches, loss_of):
    """Two terms of the loss, each with its own backward: their gradients add up."""
    for x in microbatches:
        value = loss_of(model, x)
        (0.25 * value).backward(retain_graph=True)
        (0.75 * value).backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)


class TwoPasses(unittest.TestCase):
    def test_right_ones(self):
        for run in (in_two_passes, in_two_losses):
            report = checked(parallelize=lambda model, mesh: model, run=run)
            self.assertTrue(report.ok, report)

    def test_a_wrong_module_is_found(self):
        for run in (in_two_passes, in_two_losses):
            report = checked(parallelize=odd_mid(lambda model, mesh: model), run=run)
            self.assertIs(report.ok, False)
            self.assertEqual((report.begins.place, report.begins.module), ("backward", "mid"), report)

    def test_a_sum_that_is_left_out_is_no_modules_bug(self):
        def run(model, microbatches, loss_of):
            in_two_passes(model, microbatches, loss_of)
            model.mid.weight.grad /= 3

        report = checked(parallelize=lambda model, mesh: model, run=run)
        self.assertIs(report.ok, False)
        self.assertEqual((report.begins.place, report.begins.module), ("reduction", "mid"), report)


class ToTheNext(Function):
    """Sends rows to the next rank and gets those of the one before; the backward sends back, times `factor`."""

    @staticmethod
    def forward(context, x, factor):
        context.factor = factor
        return swapped(x, 1)

    @staticmethod
    def backward(context, gradient):
        return swapped(gradient, -1) * context.factor, None


def swapped(x, step):
    world, rank, got = dist.get_world_size(), dist.get_rank(), torch.empty_like(x)
    received = dist.irecv(got, (rank - step) % world)
    sent = dist.isend(x.contiguous(), (rank + step) % world)
    received.wait()
    sent.wait()
    return got


class Moved(nn.Linear):
    factor = 1.0

    def forward(self, x):
        return ToTheNext.apply(super().forward(x), self.factor)


def moved(factor):
    """`mid` passes its output to the next rank, and `head` computes on the rows of the rank before."""

    def parallelize(model, mesh):
        model.mid.__class__, model.mid.factor = Moved, factor
        return ddp(model, mesh)

    return parallelize


class Transfers(unittest.TestCase):
    def test_mutated_and_noticed(self):
        for ranks in (2, 4):
            report = checked(parallelize=moved(1.0), mesh={"cp": ranks}, mutate=True)
            self.assertTrue(report.ok, report)
            sends = [mutants for mutants in report.mutants if mutants.collective == "send"]
            self.assertEqual([mutants.operator for mutants in sends], ["left out", "doubled", "averaged"], report)
            self.assertTrue(all(mutants.noticed and mutants.axes == "cp" for mutants in sends), report)
            self.assertTrue(all("test_check_backward.py:" in mutants.where for mutants in sends), report)

    def test_a_wrong_one_is_listed_among_the_calls(self):
        report = checked(parallelize=moved(0.7), mesh={"cp": 3})
        self.assertIs(report.ok, False)
        self.assertEqual((report.begins.place, report.begins.module), ("backward", "mid"), report)
        for phase, call in ("forward", "send"), ("backward", "send"), ("backward", "recv"):
            found = [line for line in report.begins.collectives if line.startswith(f"{phase}, {call} ")]
            says(self, "\n".join(found), "cp", "test_check_backward.py")


class Expert(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(6, 6)

    def forward(self, x):
        return torch.tanh(self.up(x))


class Experts(nn.Module):
    """Two experts of all rows, with scores; a rank of ep has one of them and sums over ep what both give."""

    group = None

    def __init__(self):
        super().__init__()
        self.gate, self.experts = nn.Linear(6, 2), nn.ModuleDict({"0": Expert(), "1": Expert()})

    def forward(self, x):
        scores = torch.softmax(self.gate(x), -1)
        parts = [scores[:, int(i), None] * expert(x) for i, expert in self.experts.items()]
        return sum(parts) if self.group is None else Sum.apply(sum(parts), self.group)


class Sum(Function):
    @staticmethod
    def forward(context, x, group):
        x = x.clone()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(context, gradient):
        return gradient, None


def experts(model, mesh):
    del model.experts[str(1 - mesh.get_local_rank("ep"))]
    model.group, model.mesh = mesh.get_group("ep"), mesh
    return model


def rows_over_dp(rank, mesh):
    x = torch.randn(12, 6, generator=torch.Generator().manual_seed(3))
    return [x] if rank is None else [x.chunk(mesh.size("dp"))[mesh.get_local_rank("dp")]]


def summing(change):
    def run(model, microbatches, loss_of):
        for x in microbatches:
            loss_of(model, x).backward()
        for name, parameter in model.named_parameters():
            if change != "not summed" or "experts" not in name:
                dist.all_reduce(parameter.grad, group=model.mesh.get_group("dp"))
            if "gate" in name:
                dist.all_reduce(parameter.grad, group=model.mesh.get_group("ep"))
            if change == "halved" and "experts" in name:
                parameter.grad *= 0.3

    return run


class ExpertsAlone(unittest.TestCase):
    MESH = {"dp": 3, "ep": 2}

    def report(self, change):
        return checked(squares, experts, self.MESH, Experts, rows_over_dp, run=summing(change))

    def test_right_ones(self):
        report = self.report("")
        self.assertTrue(report.ok, report)

    def test_a_wrong_sum_is_not_one_over_the_axis_of_experts(self):
        for change in ("not summed", "halved"):
            report = self.report(change)
            self.assertIs(report.ok, False)
            for param in report.params:
                self.assertEqual(bool(param.ok), "gate" in param.name, report)
                says_nothing_of(self, param.text, "ep")
                self.assertNotIn("ep", getattr(param.cause, "axes", ""))
            self.assertEqual(report.begins.place, "reduction")
            self.assertEqual(report.begins.axes, ("dp",) if change == "not summed" else (), report)


class Batches(unittest.TestCase):
    def test_ranks_that_do_not_have_the_whole_batch(self):
        def same(rank, mesh):
            x = rows(None, mesh)[0]
            return [x] if rank is None else [x[:6]]

        report = checked(batches=same)
        self.assertIs(report.ok, False)
        self.assertEqual((report.begins.module, report.begins.place), ("", "forward"), report)
        says(self, report.begins.text, "6 of", "12", "dimension 0")

    def test_equal_rows_are_not_missed(self):
        def twins(rank, mesh):
            x = rows(None, mesh)[0][:6].repeat(2, 1)
            return [x] if rank is None else [x.chunk(2)[rank]]

        self.assertTrue(checked(batches=twins).ok)
        report = checked(parallelize=odd_mid(), batches=twins)
        self.assertEqual((report.begins.place, report.begins.module), ("backward", "mid"), report)


class HalfBack(Function):
    @staticmethod
    def forward(context, x):
        return x.view_as(x)

    @staticmethod
    def backward(context, gradient):
        return gradient / 2


class HalfLinear(nn.Linear):
    def forward(self, x):
        return super().forward(HalfBack.apply(x))


class SameOnAllRanks(unittest.TestCase):
    def test_halves_that_are_the_same_are_no_addends(self):
        """Ranks of tp do the same work, so two halves make a whole, and yet no sum is missing."""

        def parallelize(model, mesh):
            model.mid.__class__ = HalfLinear
            return model

        report = checked(parallelize=parallelize, mesh={"tp": 2}, batches=lambda rank, mesh: rows(None, mesh))
        self.assertIs(report.ok, False)
        self.assertEqual((report.begins.module, report.begins.factor), ("mid", 0.5), report)
        self.assertEqual(report.begins.axes, ("tp",))
        says(self, report.begins.text, "0.5 times", "tp")


class Spectrum(Net):
    """Its weight is complex."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(5, dtype=torch.cfloat, generator=torch.Generator().manual_seed(1)))

    def forward(self, x):
        x = torch.tanh(self.mid(torch.tanh(self.up(x))))
        return self.head(torch.fft.irfft(torch.fft.rfft(x).to(torch.complex64) * self.weight, n=8))


class Lost(unittest.TestCase):
    def test_a_module_that_detaches_its_input_on_ranks(self):
        def detaching():
            model = Net()
            model.mid = Detaching(8, 8)
            return model

        report = checked(
            make_model=detaching,
            parallelize=lambda model, mesh: nn.parallel.DistributedDataParallel(model, find_unused_parameters=True),
        )
        self.assertEqual({param.name for param in report.params if not param.ok}, {"up.weight", "up.bias"})
        self.assertEqual((report.begins.module, report.begins.place), ("mid", "backward"))
        says(self, report.begins.text, "mid")

    def test_integers_that_are_not_those_of_one_process(self):
        report = checked(make_model=Counting)
        self.assertIs(report.ok, False)
        self.assertEqual((report.begins.module, report.begins.place), ("", "forward"))
        says(self, report.begins.text, "head")


class ComplexParameters(unittest.TestCase):
    def test_a_right_job(self):
        report = checked(make_model=Spectrum, optimizer=lambda model: torch.optim.SGD(model.parameters(), 0.1), steps=2)
        self.assertTrue(report.ok, report)

    def test_a_wrong_imaginary_part(self):
        def run(model, microbatches, loss_of):
            loss_of(model, microbatches[0]).backward()
            torch.view_as_real(model.module.weight.grad)[:, 1] *= 2

        report = checked(make_model=Spectrum, run=run)
        self.assertIs(report["weight"].ok, False)


class PartialSums(unittest.TestCase):
    def test_a_wrong_gradient_beside_right_ones_that_are_not_summed_yet(self):
        """Gradients of norms stay Partial DTensors; the job makes one of them final without its sum."""
        import right_jobs

        def parallelize(model, mesh):
            from torch.distributed.tensor.parallel import parallelize_module

            parallelize_module(model, mesh["tp"], right_jobs.plan(mesh))
            return model

        def run(model, microbatches, loss_of):
            from torch.distributed.tensor import DTensor

            loss_of(model, microbatches[0]).backward()
            weight = model.norm.weight
            weight.grad = DTensor.from_local(weight.grad.to_local(), weight.device_mesh, weight.placements)

        job = (
            right_jobs.Decoder,
            parallelize,
            (right_jobs.whole, right_jobs.whole_on_each),
            right_jobs.loss,
            {"tp": 2},
        )
        report = check(*job, run=run, timeout=HANGS)
        self.assertEqual([param.name for param in report.params if not param.ok], ["norm.weight"], report)
        self.assertEqual(
            (report.begins.place, report.begins.module, report.begins.axes), ("reduction", "norm", ("tp",))
        )


class SeveralBatches(unittest.TestCase):
    def test_the_module_of_a_pipeline_that_has_several_batches_in_pieces(self):
        import right_jobs
        import right_wrapped

        tokens, targets = right_jobs.whole()
        both = [(tokens, targets), (tokens.flip(0, 1), targets.flip(1))]
        stages = right_wrapped.staged_wrongly("1F1B", right_jobs.one_each, right_wrapped.doubled_backward)
        batches = lambda rank, mesh: both  # noqa: E731
        report = check(right_jobs.four_blocks, stages, batches, right_jobs.loss, {"pp": 2}, run=right_jobs.run_stages)
        self.assertEqual((report.begins.place, report.begins.module), ("backward", "blocks.1.mlp"), report)


class FrozenInFlatParameters(unittest.TestCase):
    def test_zeros_that_fully_sharded_data_parallel_shows_are_no_gradient(self):
        import right_jobs
        import right_wrapped

        def half_frozen():
            model = right_jobs.Decoder()
            for i, parameter in enumerate(model.parameters()):
                parameter.requires_grad_(i % 2 == 0)
            return model

        report = check(
            half_frozen, right_wrapped.flat(), (right_jobs.whole, right_jobs.cut), right_jobs.loss, {"dp": 3}
        )
        self.assertTrue(report.ok, report)


class CopyIn(Function):
    """Changes nothing; its backward sums over the ranks."""

    @staticmethod
    def forward(context, x):
        return x.view_as(x)

    @staticmethod
    def backward(context, gradient):
        summed = gradient.clone()
        dist.all_reduce(summed)
        return summed


class SumOut(Function):
    """Sums over the ranks; its backward changes nothing."""

    @staticmethod
    def forward(context, x):
        summed = x.clone()
        dist.all_reduce(summed)
        return summed

    @staticmethod
    def backward(context, gradient):
        return gradient


class Cut(nn.Module):
    """A replicated layer and norm, behind which the layers' columns and rows are sharded over the ranks."""

    def __init__(self):
        super().__init__()
        self.down, self.norm = nn.Linear(6, 8), nn.LayerNorm(8)
        self.up, self.head = nn.Linear(8, 6, bias=False), nn.Linear(6, 5, bias=False)
        self.cut = False

    def forward(self, x):
        x = self.down(x)
        x = self.norm(
            CopyIn.apply(x) if self.cut else x
        )  # the sum is before the norm: its own addends are summed apart
        x = self.head(torch.tanh(self.up(x)))
        return SumOut.apply(x) if self.cut else x


def cut(model, mesh):
    """Cuts the model, and sums what has accumulated in the norm again with each microbatch."""
    rank, model.cut = dist.get_rank(), True
    model.up.weight = nn.Parameter(model.up.weight.detach().chunk(2, 0)[rank].clone())
    model.head.weight = nn.Parameter(model.head.weight.detach().chunk(2, 1)[rank].clone())
    for p in model.norm.parameters():
        p.register_post_accumulate_grad_hook(lambda p: dist.all_reduce(p.grad))
    return model


class Sums(unittest.TestCase):
    def test_a_sum_that_is_there_twice_is_not_missing_before(self):
        found = check(Cut, cut, lambda rank, mesh: list(rows(None, mesh)[0].chunk(2)), squares, 2, timeout=HANGS)
        self.assertEqual({param.name for param in found.params if param.ok is False}, {"norm.weight", "norm.bias"})
        self.assertEqual((found.begins.module, found.begins.place), ("norm", "reduction"))


if __name__ == "__main__":
    unittest.main()
