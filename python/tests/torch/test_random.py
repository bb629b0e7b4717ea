"""Test what `addend.torch.check` makes of random numbers that a step draws: jobs whose ranks draw others than one
process are not called wrong for that, and mistakes beside such draws are found as far as they do not depend on them.
"""

import dataclasses
import random
import tempfile
import unittest
import unittest.mock

import numpy
import torch
import torch.nn.functional as F
from says import says
from torch import nn
from torch.utils.checkpoint import checkpoint

import addend
import draws
from addend.torch import check
from addend.torch._checks import _check, _double, _draws, _job, _judge
from addend.torch._checks._axes import Axes
from addend.torch._checks._draws import Draw, Drawn
from addend.torch._checks._report import CONSTANTS, OTHERS, SAME

HANGS = 200  # seconds; many times what a check takes
ROWS = 12
F64 = torch.float64
OWN = torch.Generator().manual_seed(4)
NUMPY, PYTHON = numpy.random.default_rng(1), random.Random(1)


def drawn(*marks, is_constant=True):
    return Drawn([Draw(f"torch.{mark[0]}", "", mark) for mark in marks], is_constant)


class Compared(unittest.TestCase):
    def test_steps_are_the_same_if_all_draws_are(self):
        one = drawn("a1", "b1")
        for other, first in (
            (drawn("a1", "b1"), None),
            (drawn("a1", "b2"), "b1"),
            (drawn("a1"), "b1"),
            (drawn("a1", "b1", "c1"), "c1"),
            (drawn(), "a1"),
        ):
            found = one.differs(other)
            self.assertEqual(found and found.mark, first)

    def test_microbatches_repeat_the_calls_of_one_process(self):
        for own, theirs, holds in (
            (("a1", "b1"), ("a2", "b2"), True),
            (("a1", "b1", "a2", "b2"), ("a3", "b3"), True),
            (("a1", "b1", "a2"), ("a3", "b3"), False),
            (("a1", "a2", "b1", "b2"), ("a3", "b3"), False),
            (("a1",), ("b1",), False),
            ((), ("a1",), False),
            (("a1",), (), False),
        ):
            self.assertIs(drawn(*own).repeats(drawn(*theirs)), holds, (own, theirs))


def stepped(work, count=1, constant=False, held=()):
    """What `count` steps of a process draw that does work(), and what it gave in each."""
    found, kept = [], _draws.Draws(held, constant)
    for _ in range(count):
        with kept.step(), _double.Double(draws=kept), kept.loss():
            found.append(work())
    return kept.steps, found


def held_numpy():
    return NUMPY.random()


def held_python():
    return PYTHON.random()


CALLS = {  # by kind: work that draws, and what the note names
    "torch": (lambda: torch.rand(3), "torch.rand"),
    "torch in place": (lambda: torch.empty(3).normal_(), "torch.normal_"),
    "torch inside a call": (lambda: F.gumbel_softmax(torch.ones(3)), "torch.gumbel_softmax"),
    "torch's own generator": (lambda: torch.rand(3, generator=OWN), "torch.rand"),
    "numpy": (lambda: numpy.random.rand(), "numpy.random"),
    "numpy's own generator": (held_numpy, "numpy.random.Generator"),
    "python": (lambda: random.random(), "random"),
    "python's own generator": (held_python, "random.Random"),
    "numpy's, made in the step": (lambda: numpy.random.default_rng(3).random(), "numpy.random.Generator"),
    "python's, made in the step": (lambda: random.Random(3).random(), "random.Random"),
}
NONE = {  # work that draws nothing
    "nothing": lambda: torch.zeros(3),
    "dropout": lambda: F.dropout(torch.ones(3), 0.5, training=True),
    "a generator without state": lambda: random.SystemRandom().random(),
    "a generator of Python's library": lambda: tempfile.mktemp(),
    "a generator alone": lambda: (numpy.random.default_rng(3), random.Random(3)),
    "a state that is set": lambda: torch.set_rng_state(torch.get_rng_state()),
}


class Noted(unittest.TestCase):
    def setUp(self):
        _draws.seed(3)

    def test_every_generator_draws_the_same_in_each_step_and_is_noted(self):
        for name, (work, text) in CALLS.items():
            with self.subTest(name):
                steps, found = stepped(work, 2, held=[held_numpy, held_python])
                self.assertEqual([[draw.name for draw in step.draws] for step in steps], [[text]] * 2)
                self.assertIsNone(steps[0].differs(steps[1]))
                self.assertTrue(numpy.array_equal(*found))

    def test_what_draws_nothing_is_not(self):
        for name, work in NONE.items():
            with self.subTest(name):
                self.assertEqual(stepped(work)[0][0].draws, [])

    def test_numbers_of_another_shape_are_others(self):
        with _draws.kept():
            other = stepped(lambda: torch.rand(6))[0][0]
        one, again = stepped(lambda: torch.rand(2, 3), 2)[0]
        self.assertIsNone(one.differs(again))
        self.assertIsNotNone(one.differs(other))

    def test_a_recomputation_draws_again_and_what_follows_does_not(self):
        x = torch.ones(3, dtype=F64, requires_grad=True)

        def work():
            y = checkpoint(lambda x: x * torch.rand(3, dtype=F64), x, use_reentrant=False)
            torch.rand(2)
            (y * 2).sum().backward()
            return torch.ones(3) * 2

        names = [draw.name for draw in stepped(work)[0][0].draws]
        self.assertEqual(names, ["torch.rand"] * 3)

    def test_outside_of_a_step_nothing_is(self):
        kept = _draws.Draws()
        with _double.Double(draws=kept), kept.loss():
            torch.rand(3)
        self.assertEqual(kept.steps, [])

    def test_what_making_a_model_draws_is_taken_back_unless_it_seeds(self):
        torch.manual_seed(3)
        wanted = torch.rand(2)
        torch.manual_seed(3)
        with _draws.kept():
            torch.rand(5)
        self.assertTrue(torch.equal(torch.rand(2), wanted))
        torch.manual_seed(5)
        with _draws.kept():
            torch.manual_seed(3)
        self.assertTrue(torch.equal(torch.rand(2), wanted))
        numpy.random.seed(3)
        random.seed(3)
        first = numpy.random.rand(), random.random()
        numpy.random.seed(3)
        random.seed(3)
        with _draws.kept(others=True):
            numpy.random.rand(), random.random()
        self.assertEqual((numpy.random.rand(), random.random()), first)


class Constants(unittest.TestCase):
    def test_floating_point_numbers_are_the_same_everywhere(self):
        ones, halves = torch.ones(3), torch.tensor([0.49, 0.5, 0.51])
        for work, wanted in (
            (lambda: torch.rand(3), 0.6),
            (lambda: torch.randn_like(ones), 1.0),
            (lambda: torch.empty(3).uniform_(2, 4), 3.2),
            (lambda: torch.empty(3).normal_(2, 3), 5.0),
            (lambda: torch.normal(ones, 2 * ones), 3.0),
            (lambda: torch.bernoulli(halves), [0.0, 1.0, 1.0]),
        ):
            steps, found = stepped(work, constant=True)
            self.assertTrue(torch.allclose(found[0].double(), torch.tensor(wanted, dtype=F64)), (found, wanted))
            self.assertTrue(steps[0].is_constant)

    def test_what_else_is_drawn_is_no_constant(self):
        for work in (
            lambda: torch.randperm(4),
            lambda: torch.randint(0, 4, (3,)),
            lambda: torch.multinomial(torch.ones(4), 2),
            lambda: F.gumbel_softmax(torch.ones(3)),
            lambda: torch.empty(3).uniform_(to=3),
            lambda: numpy.random.rand(),
            lambda: random.Random(1).random(),
        ):
            self.assertIs(stepped(work, constant=True)[0][0].is_constant, False)

    def test_an_order_or_a_count_of_equal_numbers_is_none(self):
        differ, equal, two = torch.tensor([1.0, 2.0, 3.0]), torch.ones(3), torch.tensor([1.0, 1.0, 3.0])
        for call, of, holds in (
            (torch.argsort, differ, True),
            (torch.argsort, two, False),
            (lambda x: x.topk(2), equal, False),
            (torch.cumsum, equal, False),
            (torch.cumsum, two, True),
            (torch.sum, equal, False),
            (torch.sum, equal[:1], True),
            (torch.exp, equal, True),
        ):
            more = (0,) if call is torch.cumsum else ()
            steps, _ = stepped(lambda c=call, x=of, m=more: (torch.rand(2), c(x, *m)), constant=True)
            self.assertIs(steps[0].is_constant, holds, (call, of))

    def test_a_loop_that_ends_by_chance_is_refused(self):
        def work():
            while torch.rand(()) > 0.5:
                pass

        with self.assertRaises(addend.InvalidError):
            stepped(work, constant=True)

    def test_a_step_may_draw_so_often_with_constants(self):
        def work(count):
            for _ in range(count):
                torch.rand(())
            return torch.ones(3) * 2

        self.assertEqual(_draws._MANY, 10000)
        with unittest.mock.patch.object(_draws, "_MANY", 3):
            self.assertEqual(len(stepped(lambda: work(3), constant=True)[0][0].draws), 3)
            self.assertEqual(len(stepped(lambda: work(9))[0][0].draws), 9)
            with self.assertRaises(addend.InvalidError):
                stepped(lambda: work(4), constant=True)


RIGHT = numpy.array([4.0, -1.0, 0.5, 2.0])
OFF = RIGHT + [1e-3, 0, 0, 0]


def judged(gradients=(OFF, OFF), alone=("a1",), ranks=(("a2",), ("a1",)), constant=False, is_constant=True, later=()):
    """The report on one parameter of two ranks; `alone` and `ranks`: the marks of draws in one process's step, and in
    those of each rank; `constant`: constants were wanted in their place, `is_constant`: they were possible; `later`:
    the marks of one process and of the ranks in a second step of the optimizer."""
    task = _job.Task(None, None, None, None, {"dp": 2}, is_constant=constant)
    whole = _job.Whole(1.0, None, {"w": RIGHT}, {}, {"w": RIGHT}, {}, [], None, set())
    whole.drawn = (
        None if alone is None else [drawn(*alone, is_constant=is_constant), *(drawn(mark) for mark in later[:1])]
    )
    parts = []
    for rank in range(2):
        held = _job.Held((numpy.arange(4),), (4,), [gradients[rank]] * 3)
        parts.append(_job.Part(rank, [1.0], 1.0, {"w": held}, [], None, set()))
        parts[-1].drawn = [drawn(*ranks[rank], is_constant=is_constant)] * 3 + [drawn(mark) for mark in later[1:]]
    return _judge.Judge(task, Axes({"dp": 2}), whole, parts, "/nowhere").report()


class Judged(unittest.TestCase):
    def test_a_wrong_gradient_beside_other_draws_is_left_open(self):
        same = (("a1",), ("a1",))
        for name, ok, found, arguments in (
            ("nothing is drawn", False, "", {"alone": (), "ranks": ((), ())}),
            ("the same is drawn", False, SAME, {"ranks": same}),
            ("others are drawn", None, OTHERS, {}),
            ("others, and all is right", True, OTHERS, {"gradients": (RIGHT, RIGHT)}),
            ("others, and copies differ", False, OTHERS, {"gradients": (OFF, RIGHT)}),
            ("a rank draws nothing", None, OTHERS, {"ranks": (("a1",), ())}),
            ("a file that does not say what is drawn", None, OTHERS, {"alone": None, "ranks": same}),
            ("constants", False, CONSTANTS, {"constant": True}),
            ("constants in some places", None, OTHERS, {"constant": True, "is_constant": False}),
            ("constants in each step of an optimizer", False, CONSTANTS, {"constant": True, "later": ("b1", "b2")}),
            ("constants in other calls of a later step", None, OTHERS, {"constant": True, "later": ("b1", "c1")}),
            ("constants in other calls", None, OTHERS, {"constant": True, "ranks": (("b1",), ("a1",))}),
        ):
            with self.subTest(name):
                report = judged(**arguments)
                self.assertIs(report.ok, ok, report)
                self.assertEqual(report.drawn, found)
                self.assertEqual(bool(report.reasons), ok is None)
                self.assertTrue(report.begins is None or found != OTHERS)

    def test_loss_and_norm_beside_other_draws_are_left_open(self):
        for ranks, ok in (((("a1",),) * 2, False), ((("a2",),) * 2, None)):
            for change in (lambda part: part.losses.__setitem__(0, 2.0), lambda part: part.norms.append(9.0)):
                with unittest.mock.patch.object(_job.Part, "__init__", _changed(change)):
                    report = judged((RIGHT, RIGHT), ranks=ranks)
                self.assertIs(report.ok, ok, report)
                self.assertTrue(report["w"].ok)

    def test_what_constants_show(self):
        first, names = judged(), lambda report: (report.ok, report.drawn)
        wrong, right = judged(constant=True), judged((RIGHT, RIGHT), constant=True)
        self.assertEqual(names(wrong), (False, CONSTANTS))
        self.assertEqual(names(right), (True, CONSTANTS))
        for found, wanted in ((wrong, (False, CONSTANTS)), (right, (None, OTHERS)), (first, (None, OTHERS))):
            self.assertEqual(names(_check._with_constants(first, lambda f=found: f)), wanted)
        is_open = dataclasses.replace(wrong, ok=None)
        self.assertIs(_check._with_constants(first, lambda: is_open), first)
        reported = _check._with_constants(first, lambda: right).messages
        self.assertEqual(reported[:-1], first.messages)

        def refused():
            raise addend.InvalidError("no constants")

        self.assertIs(_check._with_constants(first, refused), first)

    def test_the_second_comparison_takes_no_longer_than_it_may(self):
        for timeout, ends, limit in ((100.0, 7.0, 24.0), (20.0, 7.0, 20.0), (100.0, 0.0, 10.0)):
            given, first = [], judged()

            def checked(task, axes, timeout, whole_of, given=given, first=first):
                given.append((task.is_constant, timeout))
                return first

            patch = unittest.mock.patch.object
            with patch(_check, "_compare", checked), patch(_check, "time") as clock:
                clock.monotonic.side_effect = [1.0, 1.0 + ends, 50.0]
                report = check(Net, ddp, rows, squares, 2, timeout=timeout)
            self.assertEqual(given, [(False, timeout), (True, limit)])
            self.assertEqual(report.seconds, 49.0)


def _changed(change):
    make = _job.Part.__init__

    def init(self, *args, **kwargs):
        make(self, *args, **kwargs)
        change(self)

    return init


class Net(nn.Module):
    def __init__(self, noise=None):
        super().__init__()
        self.up, self.head, self.noise = nn.Linear(6, 8), nn.Linear(8, 5), noise

    def forward(self, x):
        x = torch.tanh(self.up(x[:, 1:]))
        return self.head(x if self.noise is None else self.noise(x))


def by_row(x):
    """Noise of the rows that `x` has, which is drawn for the whole batch."""
    every = torch.rand(ROWS, 8, dtype=F64, generator=torch.Generator().manual_seed(7))
    return x * every[ROW[0].long()]


ROW = [torch.arange(ROWS)]


def rows(rank, mesh):
    x = torch.randn(ROWS, 7, generator=torch.Generator().manual_seed(3))
    x[:, 0] = torch.arange(ROWS)
    return [x] if rank is None else [x[rank :: mesh.size()]]


def squares(model, x):
    ROW[0] = x[:, 0]
    return model(x).square().sum(), len(x)


def ddp(model, mesh):
    return nn.parallel.DistributedDataParallel(model)


def once(model, microbatches, loss):
    for batch in microbatches:
        loss(model, batch).backward()


def cleared(model, microbatches, loss):
    """A mistake: gradients are cleared in every microbatch."""
    for batch in microbatches:
        for part in batch.chunk(2):
            model.zero_grad()
            loss(model, part).backward()


def apart(model, microbatches, loss):
    """A mistake: nothing is summed over ranks."""
    with model.no_sync():
        once(model, microbatches, loss)


def shifted(x):
    return x * torch.rand(x.shape, dtype=F64)


def sampled(x):
    return x + x[torch.randint(0, len(x), (len(x),))]


JOBS = {  # by name: the noise, the run, whether it is right, what is drawn
    "each process its own": (shifted, once, None, OTHERS),
    "a mask, and gradients are cleared": (lambda x: x * (torch.rand(x.shape) > 0.3), cleared, False, CONSTANTS),
    "an index": (sampled, once, None, OTHERS),
    "an index, and gradients are not summed": (sampled, apart, False, OTHERS),
    "by the row": (by_row, once, True, SAME),
    "by the row, and gradients are cleared": (by_row, cleared, False, CONSTANTS),
    "the same for all rows": (lambda x: x * torch.rand(8, dtype=F64), once, True, SAME),
    "numpy": (lambda x: x * torch.from_numpy(numpy.random.rand(*x.shape)), once, None, OTHERS),
    "python, the same for all": (lambda x: x * random.random(), once, True, SAME),
    "a layer is left out": (lambda x: x if torch.rand(()) < 0.5 else 2 * x, once, True, SAME),
    "recomputed": (lambda x: checkpoint(shifted, x, use_reentrant=False), once, None, OTHERS),
    "without effect": (lambda x: (torch.rand(x.shape), x)[1], once, True, OTHERS),
    "nothing, and gradients are cleared": (None, cleared, False, ""),
}


class Jobs(unittest.TestCase):
    def test_draws_of_whole_jobs(self):
        kinds = {name: (ok, found) for name, (_, _, ok, found) in JOBS.items()}
        for name in draws.draw_of_each("jobs that draw", kinds):
            noise, run, ok, found = JOBS[name]
            with self.subTest(name):
                report = check(lambda n=noise: Net(n), ddp, rows, squares, 2, run=run, timeout=HANGS)
                self.assertIs(report.ok, ok, report)
                self.assertEqual(report.drawn, found, report)
                if found != OTHERS:
                    self.assertIs(report.begins is None, ok, report)

    def test_it_is_said_what_draws_and_what_to_do(self):
        report = check(lambda: Net(sampled), ddp, rows, squares, 2, timeout=HANGS)
        says(self, "\n".join(report.reasons), "torch.randint", __file__, "rank 0", "model.eval()")

    def test_what_parallelize_draws_changes_no_batch(self):
        def drawing(model, mesh):
            torch.rand(5)
            return ddp(model, mesh)

        def unseeded(rank, mesh):
            x = torch.randn(ROWS, 7)
            return [x] if rank is None else [x[rank :: mesh.size()]]

        self.assertTrue(check(Net, drawing, unseeded, squares, 2, timeout=HANGS).ok)


if __name__ == "__main__":
    unittest.main()
