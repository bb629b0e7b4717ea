"""Test that nothing unusual in a step makes the watch end the job's backward, change its bits or let a rank wait; it
is reported instead.
"""

import contextlib
import io
import tempfile
import time
import unittest
import warnings

import torch
import torch.distributed as dist
from says import raises, says
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import addend
import addend.torch
import ranks
from addend.torch import _addends

WAIT = 6.0  # seconds; ranks that are ready arrive at once, and on a loaded machine soon


class Net(nn.Module):
    def __init__(self, dtype=torch.float32):
        super().__init__()
        torch.manual_seed(1)
        self.up, self.down = nn.Linear(6, 10, dtype=dtype), nn.Linear(10, 3, dtype=dtype)

    def forward(self, x):
        return self.down(torch.tanh(self.up(x)))


def batch(dtype=torch.float32):
    return torch.randn(8, 6, generator=torch.Generator().manual_seed(7 + dist.get_rank()), dtype=dtype)


class WithoutGradient(torch.autograd.Function):
    """An operation whose backward gives the weight no gradient."""

    @staticmethod
    def forward(ctx, x, weight):
        return x * weight.sum()

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.net, self.scale = Net(), nn.Parameter(torch.ones(3))

    def forward(self, x):
        return WithoutGradient.apply(self.net(x), self.scale)


def sum_by_hand(model):
    for p in model.parameters():
        if p.grad is not None:
            dist.all_reduce(p.grad)


def step_of(model, change=lambda loss: loss, dtype=torch.float32):
    change(model(batch(dtype)).abs().square().mean()).backward()
    sum_by_hand(model)


def gradients(model):
    return [None if p.grad is None else p.grad.view(torch.uint8).numpy().tobytes() for p in model.parameters()]


def watched(model, step, **options):
    """Return (report, printed text, whether the gradients have the bits of a plain step)."""
    step()
    plain = gradients(model)
    model.zero_grad()
    with contextlib.redirect_stdout(io.StringIO()) as printed, addend.torch.watch(model, show=True, **options) as watch:
        step()
    return watch.report, printed.getvalue(), gradients(model) == plain


def run_none():
    model = Scaled()
    return watched(model, lambda: step_of(model))


def run_overflow(rank, factor):
    model = Net()
    return watched(
        model, lambda: step_of(model, lambda loss: loss * (factor if dist.get_rank() == rank else 1)), raises=True
    )


def run_overflown_sum():
    model = Net(torch.float16)

    def step():
        for p in model.parameters():
            (p * 40000.0).sum().backward()
        sum_by_hand(model)

    return watched(model, step)


def run_infinite_norm():
    model = Net()
    return watched(model, lambda: step_of(model), norm=lambda: torch.tensor(float("inf")))


def run_complex(factor):
    model = Net(torch.complex64)

    def step():
        step_of(model, dtype=torch.complex64)
        for p in model.parameters():
            p.grad *= factor

    return watched(model, step)


def run_without(what):
    model = Net()
    if what == "trainable":
        model.requires_grad_(False)
    if what == "values":
        model.to("meta")

    def functional():
        parameters = {name: p.detach() for name, p in model.named_parameters()}
        torch.func.grad(lambda p: torch.func.functional_call(model, p, (batch(),)).square().mean())(parameters)

    def set_by_hand():
        for p in model.parameters():
            p.grad = torch.ones_like(p)

    def on_meta():
        model(batch().to("meta")).mean().backward()

    steps = {"backward": lambda: None, "hooks": functional, "addends": set_by_hand, "values": on_meta}
    with contextlib.redirect_stdout(io.StringIO()) as printed, addend.torch.watch(model, show=True) as watch:
        steps.get(what, lambda: None)()
    return watch.report, printed.getvalue()


def run_asserted():
    model = Net()
    try:
        addend.torch.assert_summed(lambda: step_of(model, lambda loss: loss * float("inf")), model)
    except AssertionError as error:
        return str(error)
    return "nothing"


def run_failing_hook():
    """Something inside the watch fails on one rank."""
    model = Net()
    step_of(model)
    plain = gradients(model)
    model.zero_grad()

    def fail(self, watched, grad):
        raise KeyError("inside")

    if dist.get_rank() == 1:
        _addends.Addends._keep = fail
    try:
        with addend.torch.watch(model):
            step_of(model)
    except ValueError as error:
        return str(error), gradients(model) == plain
    return "nothing", False


def run_failing_behind():
    """The watch's look at a gradient behind a hook of the job's own fails on one rank."""
    model = Net()
    model.up.weight.register_hook(lambda gradient: gradient / 2)
    step_of(model)
    plain = gradients(model)
    model.zero_grad()
    add = _addends.Addends._add

    def fail(self, to, *rest):
        if to is self.behind and dist.get_rank() == 1:
            raise KeyError("behind")
        add(self, to, *rest)

    _addends.Addends._add = fail
    try:
        with addend.torch.watch(model):
            step_of(model)
    except ValueError as error:
        return str(error), gradients(model) == plain
    return "nothing", False


def run_failing(what):
    """A function of the caller raises on one rank."""
    model = Net()

    def fail(*arguments):
        if dist.get_rank() == 1:
            raise KeyError("mine")
        return arguments[0].grad if arguments else 1.0

    try:
        with addend.torch.watch(model, **{what: fail}):
            step_of(model)
    except ValueError as error:
        return str(error), type(error.__cause__).__name__
    return "nothing"


def run_alone(raises):
    """The first rank enters a watch alone, and later both do."""
    model, log = Net(), []
    start = time.monotonic()
    with warnings.catch_warnings(record=True) as warned, contextlib.redirect_stdout(io.StringIO()) as printed:
        warnings.simplefilter("always")
        try:
            watch = (
                addend.torch.watch(model, wait=WAIT, raises=raises, show=True)
                if dist.get_rank() == 0
                else contextlib.nullcontext()
            )
            with watch:
                step_of(model)
            log.append(watch.report.ok if dist.get_rank() == 0 else None)
        except addend.GradientError as error:
            log.append(error.report.ok)
    took = time.monotonic() - start
    dist.barrier()
    model.zero_grad()
    with contextlib.redirect_stdout(None), addend.torch.watch(model, wait=WAIT) as watch:
        step_of(model)
    return (
        [str(w.message) for w in warned if "addend" in str(w.message)],
        printed.getvalue(),
        took,
        log,
        watch.report.ok,
    )


def run_late():
    """The second rank comes after the first has given up: neither watches, and neither waits for the other."""
    model, store = Net(), dist.distributed_c10d._get_default_store()
    if dist.get_rank():
        store.wait(["the first gave up"])
    with warnings.catch_warnings(), contextlib.redirect_stdout(None):
        warnings.simplefilter("ignore")
        with addend.torch.watch(model, wait=1.0) as watch:
            store.set("the first gave up", "")
            step_of(model)
    return watch.report.ok, watch.report.messages


def run_left():
    """One rank leaves the watch with its own exception."""
    model = Net()
    try:
        with contextlib.redirect_stdout(None), addend.torch.watch(model) as watch:
            step_of(model)
            if dist.get_rank() == 1:
                raise KeyError("mine")
    except KeyError as error:
        return error.args[0]
    return watch.report.ok, watch.report.messages


def run_every():
    """Return of six steps which were watched, the reports, and the hooks that existed."""
    model, log = DistributedDataParallel(Net()), []
    kept = addend.torch.watch(model, every=3, show=True)
    for step in range(6):
        model.zero_grad()
        watch = kept if step < 4 else addend.torch.watch(model, every=3, show=True)
        with contextlib.redirect_stdout(io.StringIO()) as printed, watch:
            watch.divisor(8)
            watch.norm(1.0)
            hooks = sum(len(p._backward_hooks or ()) for p in model.parameters())
            model(batch()).square().mean().backward()
        log.append((watch.watches, bool(printed.getvalue()), hooks))
    return log, kept.report.norm.reported


class Exceptions(unittest.TestCase):
    def hold_not_judged(self, log, verdict, *facts):
        for rank, (report, printed, *_) in enumerate(log):
            self.assertIsNone(report.ok)
            self.assertEqual(report.verdict, verdict)
            says(self, str(report), *facts)
            self.assertEqual(str(report), str(log[0][0]))
            self.assertEqual([f"NOT CHECKED: {message}" for message in report.messages], [str(report)])
            self.assertEqual(printed, "" if rank else f"{report}\n")

    def test_a_backward_may_give_a_parameter_nothing(self):
        for report, _, same in ranks.run(2, run_none):
            self.assertTrue(report.ok, str(report))
            self.assertTrue(same)
            self.assertEqual(len(report.params), 4)

    def test_overflow_is_a_verdict(self):
        for rank, factor in ((1, float("inf")), (0, float("nan"))):
            log = ranks.run(2, run_overflow, rank, factor)
            self.hold_not_judged(log, "overflow", f"rank {rank}", "up.weight", "3 more")
            self.assertTrue(all(same for *_, same in log))

    def test_an_overflow_of_the_sum_is_told_apart(self):
        self.hold_not_judged(ranks.run(2, run_overflown_sum), "overflow", "ranks 0", "and 1", "up.weight")

    def test_an_infinite_norm_is_an_overflow(self):
        self.hold_not_judged(ranks.run(2, run_infinite_norm), "overflow", "norm")

    def test_an_overflow_tests_nothing(self):
        for text in ranks.run(2, run_asserted):
            says(self, text, "ranks 0", "and 1", "up.weight")

    def test_complex_gradients_are_judged(self):
        for factor, ok in ((1, True), (3, False)):
            for report, _, same in ranks.run(2, run_complex, factor):
                self.assertEqual(report.ok, ok, str(report))
                self.assertTrue(same)
                self.assertEqual(report["up.weight"].numel, 120)

    def test_what_has_nothing_to_judge_is_said(self):
        for what, *facts in (
            ("trainable", "requires_grad"),
            ("backward", "torch.func.grad", "torch.autograd.grad"),
            ("hooks", "torch.func.grad", "torch.autograd.grad"),
            ("addends", ".grad"),
            ("values", "ranks 0", "and 1", "up.weight", "3 more"),
        ):
            with self.subTest(what):
                self.hold_not_judged(ranks.run(2, run_without, what), "cannot_tell", *facts)

    def test_nothing_leaves_a_hook(self):
        for said, same in ranks.run(2, run_failing_hook):
            self.assertIn("KeyError: 'inside'", said)
            self.assertTrue(same)
        for said, same in ranks.run(2, run_failing_behind):
            self.assertEqual((said, same), ("up.weight: KeyError: 'behind'", True))

    def test_an_error_of_one_rank_is_reported_on_all(self):
        for what in ("gradient", "norm"):
            log = ranks.run(2, run_failing, what)
            self.assertEqual(log, [("rank 1: KeyError: 'mine'", "NoneType"), ("rank 1: KeyError: 'mine'", "KeyError")])

    def test_a_rank_that_is_alone_is_found_and_said_on_it(self):
        for is_raised in (False, True):
            (warned, printed, took, log, later), (silent, *_, later_too) = ranks.run(2, run_alone, is_raised)
            self.assertEqual((len(warned), silent), (1, []))
            says(self, warned[0], "rank 0", "rank 1", f"{WAIT:g} s")
            says(self, printed, "rank 0", "rank 1", f"{WAIT:g} s")
            self.assertGreaterEqual(took, WAIT)
            self.assertEqual((log, later, later_too), ([None], True, True))

    def test_ranks_that_miss_each_other_go_on(self):
        first, second = ranks.run(2, run_late)
        self.assertEqual((first[0], second[0]), (None, None))
        for own, other, said in (0, 1, first[1][0]), (1, 0, second[1][0]):
            says(self, said, f"rank {own}", f"rank {other}", "1 s")
            self.assertLess(said.index(f"rank {own}"), said.index(f"rank {other}"), said)

    def test_a_rank_that_leaves_with_an_error_keeps_nobody_waiting(self):
        first, second = ranks.run(2, run_left)
        self.assertEqual((first[0], second), (None, "mine"))
        says(self, first[1][0], "rank 1", "KeyError")

    def test_every_leaves_steps_out(self):
        for rank, (log, norm) in enumerate(ranks.run(2, run_every)):
            expected = [(step % 3 == 1, step % 3 == 1 and rank == 0, 4 if step % 3 == 1 else 0) for step in range(6)]
            self.assertEqual(log, expected)
            self.assertEqual(norm, 1.0)

    def test_a_dump_of_an_overflow_is_written_and_one_of_nothing_is_refused(self):
        model = nn.Linear(2, 2)
        with tempfile.TemporaryDirectory() as folder:
            with addend.torch.dump(model, folder):
                (model(torch.ones(1, 2)).sum() * float("inf")).backward()
            with (
                raises(self, ValueError, "torch.func.grad", "torch.autograd.grad"),
                addend.torch.dump(nn.Linear(2, 2), folder),
            ):
                pass
            with raises(self, addend.InvalidError, "rank00000.sum.safetensors"):
                addend.diff(folder)


if __name__ == "__main__":
    unittest.main()
