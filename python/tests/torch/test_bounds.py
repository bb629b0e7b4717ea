"""Test the decisions of a check and of a watch by synthetic inputs, one just within and one just beyond each number
that a verdict compares. No job runs.
"""

import math
import unittest

import numpy
import torch
from says import raises
from torch import nn

import addend
from addend.torch import _addends, _readings, _sample
from addend.torch._checks import _double, _draws, _factors, _job, _judge, _losses, _match
from addend.torch._checks._axes import Axes

DP = Axes({"dp": 2})
RIGHT = numpy.array([4.0, -1.0, 0.5, 2.0])
NORM = math.sqrt(float((RIGHT**2).sum()))
NAN, INF = math.nan, math.inf


def task(**arguments):
    return _job.Task(None, None, None, None, {"dp": 2}, **arguments)


def moved(values, by, at=0):
    found = values.copy()
    found[at] += by
    return found


def held(gradient, values=(), **arguments):
    return _job.Held(
        _match.everything(RIGHT.shape),
        RIGHT.shape,
        [gradient] * 3,
        list(values),
        **arguments,
    )


def judged(
    gradients=(RIGHT, RIGHT),
    losses=(1.0, 1.0),
    norms=(),
    narrow=None,
    right=RIGHT,
    values=((), ()),
    after=(),
):
    """The report on one parameter `w` on two ranks; each argument has a value for each rank, `right` and `after` are of
    one process."""
    whole = _job.Whole(
        1.0,
        None,
        {"w": RIGHT},
        {},
        {"w": right},
        {},
        [{"w": one} for one in after],
        None,
        set(),
    )
    parts = [
        _job.Part(
            rank,
            [losses[rank]],
            1.0,
            {"w": held(gradients[rank], values[rank])},
            [*norms],
            None,
            set(),
        )
        for rank in range(2)
    ]
    for part in parts:
        part.narrow = narrow or {}
    return _judge.Judge(task(), DP, whole, parts, "/nowhere").report()


def small_gradient(by):
    """Whether a gradient beside one that is a million times as large is right, with `by` in its first element."""
    small = RIGHT * 1e-6
    whole = _job.Whole(1.0, None, {"w": RIGHT, "v": RIGHT}, {}, {"w": RIGHT, "v": small}, {}, [], None, set())
    own = {"w": held(RIGHT), "v": held(moved(small, by))}
    parts = [_job.Part(rank, [1.0], 1.0, own, [], None, set()) for rank in range(2)]
    return _judge.Judge(task(), DP, whole, parts, "/nowhere").report()["v"].ok


def after_a_step(by):
    """Whether a parameter is right after a step, with `by` in one of its elements."""
    after = numpy.array([8.0, 1.0, 1.0, 1.0])
    own = moved(after, by, 1)
    return judged(values=([own], [own]), after=[after]).ok


class Check(unittest.TestCase):
    def test_what_is_compared_is_held_to_its_bound_from_both_sides(self):
        """The bound of an error, and whether what has that error is right."""
        table = {
            "an array": (4e-3, lambda by: _match.close(moved(RIGHT, by), RIGHT, 1e-3, 4.0)),
            "a gradient, by its largest element": (4e-9, lambda by: judged((moved(RIGHT, by, 1),) * 2).ok),
            "a small gradient, by the largest of all": (4e-13, small_gradient),
            "a parameter after a step, by its largest element": (8e-9, after_a_step),
        }
        for name, (bound, is_right) in table.items():
            for by in (0.975 * bound, 1.025 * bound, 1.0, NAN, INF):
                for error in (by, -by):
                    self.assertIs(is_right(error), by < bound, (name, error))

    def test_a_gradient_on_ranks_whose_losses_have_other_scales(self):
        """A part is held to its own rank's scale, a sum to that of the first of its ranks; each with that bound."""
        index = _match.everything(RIGHT.shape)
        value = _match.Value(frozenset(), dict.fromkeys(range(4), index))
        axes, bound = Axes({"dp": 2, "tp": 2}), 1e-3
        scales = {0: 1.0, 1: 8.0, 2: -2.0, 3: 0.5}

        def found(parts):
            return _match.gradient_of(parts, value, RIGHT, axes, scales, bound)

        for rank, scale in scales.items():
            for part, right in ((0.975, True), (1.025, False)):
                for error in (part * bound * 4.0 * scale, -part * bound * 4.0 * scale):
                    parts = {other: RIGHT * scales[other] for other in scales}
                    parts[rank] = moved(parts[rank], error, 2)
                    self.assertIs(found(parts).right, right, (rank, error))
        for some, firsts in (("tp", (0, 2)), ("dp", (0, 1)), ("dp tp", (0,))):
            for first in firsts:
                for part, partial in ((0.975, True), (1.025, False)):
                    parts = {}
                    for fibre in axes.fibres(frozenset(some.split()), range(4)):
                        for i, rank in enumerate(fibre):
                            weight = (i + 1) / sum(range(1, len(fibre) + 1))
                            parts[rank] = weight * scales[fibre[0]] * RIGHT
                    parts[first] = moved(parts[first], part * bound * 4.0 * scales[first], 1)
                    expected = frozenset(some.split() if partial else ())
                    self.assertEqual(found(parts).axes, expected, (some, first, part))

    def test_arrays_of_other_lengths_are_not_close(self):
        self.assertFalse(_match.close(RIGHT[:3], RIGHT, 1e-3, 4.0))
        self.assertTrue(_match.close(RIGHT[:0], RIGHT[:0], 1e-3, 4.0))

    def test_small_gradients_have_a_floor_of_the_largest_of_all(self):
        gradients = {"w": RIGHT, "v": RIGHT * 1e-6}
        self.assertEqual(_job.Whole(1.0, None, {}, {}, gradients, {}, [], None, set()).floor, 4e-4)

    def test_a_gradient_that_is_no_number_on_all_ranks_is_wrong(self):
        for value in (NAN, INF):
            found = numpy.full(4, value)
            self.assertIs(judged((found, found)).ok, False)
            self.assertEqual(judged((found, found))["w"].error, INF)

    def test_copies_are_equal_bit_for_bit(self):
        self.assertIs(judged((RIGHT, moved(RIGHT, 2**-52, 1))).ok, False)

    def test_a_gradient_may_be_missing_only_where_it_is_zero(self):
        self.assertIs(judged((RIGHT, None)).ok, False)
        zero = numpy.zeros(4)
        self.assertIsNone(judged((zero, None), right=zero).ok)
        self.assertEqual(judged((zero, None), right=zero).unreached, ("w",))

    def test_every_element_is_on_some_rank(self):
        for last, ok in ((4, True), (3, False)):
            whole = _job.Whole(1.0, None, {"w": RIGHT}, {}, {"w": RIGHT}, {}, [], None, set())
            parts = []
            for rank, index in enumerate((numpy.arange(2), numpy.arange(2, last))):
                one = _job.Held((index,), (len(index),), [RIGHT[index]] * 3)
                parts.append(_job.Part(rank, [1.0], 1.0, {"w": one}, [], None, set()))
            self.assertIs(_judge.Judge(task(), DP, whole, parts, "/nowhere").report().ok, ok)

    def test_a_norm_is_held_from_both_sides(self):
        for factor in (1, 1 + 0.9e-9, 1 - 0.9e-9):
            self.assertIs(judged(norms=[NORM * factor]).ok, True, factor)
        for factor in (1 + 1.1e-9, 1 - 1.1e-9, 0, 0.5, 2, -1, NAN, INF):
            self.assertIs(judged(norms=[NORM * factor]).ok, False, factor)
            self.assertIs(judged(norms=[NORM, NORM * factor]).ok, False, factor)

    def test_a_loss_is_held_from_both_sides(self):
        for value in (1.0, 1 + 0.9e-9, 1 - 0.9e-9, 0.5):  # 0.5: the sum is 1
            self.assertIs(judged(losses=(value, value)).ok, True, value)
        for value in (1 + 1.1e-9, 1 - 1.1e-9, 0.0, 0.25, -1.0, NAN, INF, -INF):
            self.assertIs(judged(losses=(value, value)).ok, False, value)

    def test_a_loss_that_is_no_number_on_one_rank_is_wrong(self):
        for value in (NAN, INF, -INF):
            self.assertIs(judged(losses=(1.0, value)).ok, False, value)
            self.assertIs(judged(losses=(value, 1.0)).ok, False, value)
            for values in ([1.0, value], [value, 1.0]):
                self.assertEqual(_losses.Reading(values, 1.0).error(1.0), INF, values)

    def test_buffers_in_f32_leave_small_errors_open_and_no_others(self):
        narrow = {"b": "torch.float32"}
        for by, ok in ((0.9e-9, True), (1.1e-9, None), (0.9e-4, None), (1.1e-4, False)):
            own = moved(RIGHT, 4 * by, 1)
            self.assertIs(judged((own, own), narrow=narrow).ok, ok, by)
            for sign in (1, -1):
                self.assertIs(judged(norms=[NORM * (1 + sign * by)], narrow=narrow).ok, ok, by)
                self.assertIs(judged(losses=[1 + sign * by] * 2, narrow=narrow).ok, ok, by)
        self.assertIs(judged(norms=[NORM * (1 + 0.9e-4), 2 * NORM], narrow=narrow).ok, False)

    def test_elements_whose_gradient_is_rounding_alone_may_be_anything_after_a_step(
        self,
    ):
        after = numpy.ones(4)
        for size, ok in (
            (3.9e-10, True),
            (4.1e-10, False),
            (0.0, False),
        ):  # zero is no rounding
            right = RIGHT.copy()
            right[1] = size
            own = moved(after, 0.5, 1)
            self.assertIs(
                judged((right, right), right=right, values=([own], [own]), after=[after]).ok,
                ok,
                size,
            )

    def test_a_common_factor_is_one_to_a_millionth(self):
        for by, factor in (
            (0.9e-6, 2.0),
            (-0.9e-6, 2.0),
            (1.1e-6, None),
            (-1.1e-6, None),
        ):
            found = judged((2 * RIGHT, 2 * (1 + by) * RIGHT)).factor
            self.assertIs(found is None, factor is None, by)
            self.assertAlmostEqual(found or 2.0, 2.0, delta=1e-12)
        for by, has in (
            (0.9e-9, False),
            (1.1e-9, True),
            (-0.9e-9, False),
            (-1.1e-9, True),
        ):
            self.assertIs(judged(((1 + by) * RIGHT,) * 2).factor is not None, has, by)

    def test_factors_are_read_to_a_millionth(self):
        for size, axes in ((2, {"dp": 2}), (6, {"dp": 6})):
            for factor in (size, 1 / size):
                for by, count in ((0.9e-6, 1), (-0.9e-6, 1), (1.2e-6, 0), (-1.2e-6, 0)):
                    found = _factors.Factors(Axes(axes)).readings(factor * (1 + by))
                    self.assertEqual(len(found), count, (factor, by))

    def test_a_factor_of_microbatches_and_ranks_is_read_where_neither_alone_fits(self):
        factors = _factors.Factors(Axes({"dp": 2}), [3, 1])
        self.assertEqual([one.axes for one in factors.readings(3.0)], [frozenset()])
        self.assertEqual([one.axes for one in factors.readings(1 / 6)], [frozenset({"dp"})])
        both = _factors.Factors(Axes({"dp": 2}), [2])
        self.assertEqual(len(both.readings(0.5)), 2)
        self.assertEqual(both.axes(0.5), frozenset())


class Counted(nn.Module):
    """Multiplies by how often it was called, which a buffer counts."""

    def __init__(self, persistent=True):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([2.0], dtype=torch.float64))
        self.register_buffer("calls", torch.zeros(1, dtype=torch.float64), persistent=persistent)

    def forward(self, x):
        self.calls += 1
        return (self.weight * x * self.calls).sum()


def counted(persistent):
    model = Counted(persistent)
    batch = torch.tensor([3.0], dtype=torch.float64)
    optimizer = {
        "optimizer": lambda module: torch.optim.SGD(module.parameters(), lr=0.5),
        "steps": 3,
    }
    job = _job.Task(None, None, None, lambda module, x: module(x), {"dp": 1}, **optimizer)
    return job, model, [batch], _double.Buffers([model])


class Buffers(unittest.TestCase):
    def test_every_step_of_one_process_begins_with_the_first_buffers(self):
        for persistent in (True, False):
            job, model, batches, buffers = counted(persistent)
            model(batches[0]).backward()
            after = _job._steps_alone(job, model, batches, _double.Double(), buffers, _draws.Draws())
            self.assertEqual([float(one["weight"][0]) for one in after], [0.5, -1.0, -2.5])

    def test_every_step_of_a_rank_begins_with_the_first_buffers(self):
        _, model, batches, buffers = counted(False)
        rank = object.__new__(_job.Rank)
        rank.parts, rank.buffers = [model], buffers
        model(batches[0]).backward()
        rank.clear()
        self.assertEqual((float(model.calls), model.weight.grad), (0.0, None))

    def test_every_draw_of_roundings_begins_with_the_first_buffers(self):
        for persistent in (True, False):
            job, model, batches, buffers = counted(persistent)
            state = {name: value.clone() for name, value in model.state_dict().items()}
            weights = {"weight": model.weight.detach().numpy().copy()}
            value = model(batches[0])
            value.backward()
            gradients = {"weight": model.weight.grad.numpy().copy()}
            whole = _job.Whole(float(value.detach()), None, weights, state, gradients, {}, [], None, set())
            self.assertEqual(_job._own_error(job, model, batches, whole, buffers, _draws.Draws()), 0.0)

    def test_what_one_process_has_after_a_step_is_a_number(self):
        gradients = {"w": RIGHT}
        _job._need_numbers(1.0, gradients, [{"w": RIGHT, "mask": numpy.full(2, -INF)}])  # has no gradient
        for value in (NAN, INF):
            with raises(self, addend.InvalidError, "w", "step 2"):
                _job._need_numbers(1.0, gradients, [{"w": RIGHT}, {"w": moved(RIGHT, value)}])
            for loss, wrong in ((value, RIGHT), (1.0, moved(RIGHT, value))):
                self.assertRaises(Exception, _job._need_numbers, loss, {"w": wrong}, [])  # noqa: B017


class Hooks(unittest.TestCase):
    """What hooks of a job did to gradients: factors are compared to a thousandth."""

    def test_a_factor_leaves_a_thousandth(self):
        before = torch.tensor([3.0, 4.0])
        across = torch.tensor([4.0, -3.0])  # no part of it is a factor
        for by, has in ((0.9e-3, True), (1.1e-3, False)):
            for factor in (2.0, -2.0, 0.5):
                found = _addends.factor_of(before, factor * (before + by * across))
                self.assertIs(found is not None, has, (by, factor))
                self.assertAlmostEqual(found or factor, factor, places=6)
        self.assertIsNone(_addends.factor_of(torch.zeros(2), before))
        self.assertEqual(_addends.factor_of(before, torch.zeros(2)), 0.0)

    def test_factors_of_microbatches_and_of_ranks_are_one_to_a_thousandth(self):
        for by, has in (
            (0.9e-3, True),
            (-0.9e-3, True),
            (1.1e-3, False),
            (-1.1e-3, False),
        ):
            for first in (2.0, -2.0):
                factors = [first, first * (1 + by)]
                self.assertIs(_addends.change("", factors).factor is not None, has, factors)
                self.assertIs(
                    _readings._common(dict(enumerate(factors))) is not None,
                    has,
                    factors,
                )
        self.assertIsNone(_addends.change("", [2.0, None]).factor)
        self.assertIsNone(_readings._common({0: None, 1: 2.0}))

    def test_a_mean_is_one_over_a_number_of_ranks_to_a_thousandth(self):
        for sizes, count in (((2,), 2), ((2, 3), 3), ((2, 3), 6)):
            for by, is_mean in (
                (0.0, True),
                (0.9e-3, True),
                (-0.9e-3, True),
                (1.1e-3, False),
                (-1.1e-3, False),
            ):
                self.assertIs(_readings._is_mean((1 + by) / count, sizes), is_mean, (sizes, by))
        for factor in (None, 0.0, -0.5, 1.0, 0.2):
            self.assertFalse(_readings._is_mean(factor, (2, 3, 1)), factor)

    def test_a_factor_that_may_be_a_sum_is_doubted(self):
        for factor, doubted in (
            (2.0, True),
            (2.0009, True),
            (1.9991, True),
            (2.0011, False),
            (1.9989, False),
        ):
            self.assertIs(bool(_readings._doubt_of({0: factor, 1: factor})), doubted, factor)
        for factor in (0.5, 1.0, 1.0005, 0.0):
            self.assertFalse(_readings._doubt_of({0: factor}), factor)
        for factors in ({0: -1.0}, {0: None}, {0: 0.5, 1: 0.6}):
            self.assertTrue(_readings._doubt_of(factors), factors)


class Sparse(unittest.TestCase):
    def test_the_addends_of_a_row_are_counted_and_their_sizes_added(self):
        rows, values = (
            torch.tensor([[1, 3, 1, 1]]),
            torch.tensor([[1.0, -2.0], [9.0, 1.0], [3.0, 4.0], [-5.0, 0.0]]),
        )
        addends = _addends.Addends([], _sample.Sampler(None), {})
        gradient = torch.sparse_coo_tensor(rows, values, (5, 2), check_invariants=False)
        addends._note_inside(0, "table", gradient)
        self.assertEqual(addends.inside, {0: {"table": [3.0, 9.0]}})  # row 1 has 3 addends; |1| + |3| + |-5| in it
        addends._note_inside(0, "table", gradient)
        self.assertEqual(addends.inside, {0: {"table": [6.0, 18.0]}})
        addends._note_inside(
            1,
            "table",
            torch.sparse_coo_tensor(torch.empty(1, 0), torch.empty(0, 2), (5, 2)),
        )
        self.assertEqual(list(addends.inside), [0])


if __name__ == "__main__":
    unittest.main()
