"""Test where a check says that an error begins, by tables of synthetic records: what each module's inputs, outputs and
gradients are on two ranks, compared with one process. No job runs. Source: addend/torch/_checks/_where.py.
"""

import itertools
import types
import unittest

import numpy
from says import says, says_nothing_of

from addend.torch._checks import _match, _where
from addend.torch._checks._axes import Axes
from addend.torch._checks._factors import Factors
from addend.torch._checks._trace import Record

TP, DP = Axes({"tp": 2}), Axes({"dp": 2})
BOUND = 1e-9
# A model with two layers; the second one has a layer inside. In the order in which one process records them.
FORWARD = [("", "in"), ("a", "in"), ("a", "out"), ("b", "in"), ("b.c", "in"), ("b.c", "out"), ("b", "out"), ("", "out")]
BACKWARD = [("", "gout"), ("b", "gout"), ("b.c", "gout"), ("b.c", "gin"), ("b", "gin"), ("a", "gout"), ("a", "gin")]


def values():
    """One process's tensors: a module's input is the output of the one before."""
    drawn = numpy.random.default_rng(3)
    x, h, y = (drawn.standard_normal((4, 3)) for _ in range(3))
    found = {("", "in"): x, ("a", "in"): x, ("a", "out"): h, ("b", "in"): h, ("b", "out"): y, ("", "out"): y}
    gx, gh, gy = (drawn.standard_normal((4, 3)) for _ in range(3))
    found.update({("", "gout"): gy, ("b", "gout"): gy, ("b", "gin"): gh, ("a", "gout"): gh, ("a", "gin"): gx})
    for kind in ("in", "out", "gin", "gout"):
        found["b.c", kind] = found["b", kind]
    return found


WHOLE = values()
NOISE = numpy.random.default_rng(4).standard_normal((4, 3))


def addend(rank, value):
    return NOISE if rank == 0 else value - NOISE


def times(factor):
    return lambda rank, value: factor * value


def noise(rank, value):
    return NOISE * (1 + rank)


def off(by):
    """An error in one element of rank 1, in units of the bound."""

    def change(rank, value):
        value = value.copy()
        value[0, 0] += rank * by * BOUND * abs(value).max()
        return value

    return change


def rows(rank, value):
    return value[2 * rank : 2 * rank + 2]


def dropped(rank, value):
    return None


def modules(changes, axes=TP, passes=None, collectives=(), averaged=None, unused=(), ungiven=(), integers=None):
    """What `changes` made of tensors on two ranks, which have all else as one process has; `passes`: of gradients;
    `ungiven`: modules whose inputs need a gradient and get none on ranks; `integers`: by module, (one process's,
    function of a rank that gives its own)."""
    order = [(name, 0, kind, 0) for name, kind in FORWARD + BACKWARD]
    whole = Record(values={key: WHOLE[key[0], key[2]] for key in order}, order=order, unused=set(unused))
    ranks = {}
    for rank in range(2):
        own = {key: changes.get((key[0], key[2]), lambda _, value: value)(rank, WHOLE[key[0], key[2]]) for key in order}
        own = {key: value for key, value in own.items() if value is not None}
        ranks[rank] = Record(values=own, order=[key for key in order if key in own], collectives=[*collectives])
        ranks[rank].passes.update({(name, 0, kind, 0): count for (name, kind), count in (passes or {}).items()})
        ranks[rank].kinds.update({"": "Net", "a": "Layer", "b": "Layer", "b.c": "Inner"})
        ranks[rank].ungiven.update((name, 0, "in", 0) for name in ungiven)
        if integers is not None:
            ranks[rank].integers = {(name, 0, "in", 0): own(rank) for name, (_, own) in integers.items()}
            whole.integers = {(name, 0, "in", 0): alone for name, (alone, _) in integers.items()}
    averaged = averaged or {0: 1.0, 1: 1.0}
    return _where.Modules(whole, ranks, axes, averaged, BOUND, Factors(axes), 1)


def microbatched(count, change=lambda rank, at, key, value: value, calls=1, averaged=1.0):
    """The same of several microbatches: one process's model is called `calls` times, a rank's that often in each of
    `count` microbatches. `change`: what a rank, the call `at` (of all microbatches), has of one process's tensor."""
    alone = [(name, call, kind, 0) for call in range(calls) for name, kind in FORWARD + BACKWARD]
    drawn = numpy.random.default_rng(6)
    whole = Record(values={key: drawn.standard_normal((4, 3)) for key in alone}, order=alone)
    ranks = {}
    for rank in range(2):
        own = {
            (key[0], key[1] + calls * at, *key[2:]): change(rank, key[1] + calls * at, (key[0], key[2]), value)
            for at in range(count)
            for key, value in whole.values.items()
        }
        kept = {key: value for key, value in own.items() if value is not None}
        ranks[rank] = Record(values=kept, order=[*kept])
    return _where.Modules(whole, ranks, TP, {0: averaged, 1: averaged}, BOUND, Factors(TP), 1)


def only(call, name, kind, change):
    """`change` of one tensor in one call, for microbatched."""
    return lambda rank, at, key, value: change(rank, value) if (at, *key) == (call, name, kind) else value


def reported(begins):
    assert begins is None or isinstance(begins.text, str)
    return begins and (begins.module, begins.place, begins.axes, begins.factor and round(begins.factor, 9))


def of(names, kinds, change):
    return {(name, kind): change for name in names for kind in kinds}


class Forward(unittest.TestCase):
    def hold(self, table):
        for name, (changes, expected) in table.items():
            with self.subTest(name):
                self.assertEqual(reported(modules(changes).forward()), expected)

    def test_the_first_module_whose_output_is_wrong(self):
        inner = of(("b.c", "b", ""), ("out",), noise)
        between = {**inner, **of(("b.c", "b"), ("in",), noise)}
        self.hold(
            {
                "nothing is": ({}, None),
                "a": (of("a", ("out",), noise), ("a", "forward", (), None)),
                "an inner module before the one around it": (inner, ("b.c", "forward", (), None)),
                "the outer one alone": (of("b", ("out",), noise), ("b", "forward", (), None)),
                "an input alone": (of("b", ("in",), noise), ("", "forward", (), None)),
                "a module between others": (between, ("", "forward", (), None)),
                "a multiple": (of("a", ("out",), times(2.0)), ("a", "forward", ("tp",), 2.0)),
                "a multiple of no number of ranks": (of("a", ("out",), times(1.7)), ("a", "forward", (), 1.7)),
                "the model": (of(("",), ("out",), times(0.3)), ("", "forward", (), 0.3)),
            }
        )

    def test_a_multiple_is_one_factor_on_all_ranks(self):
        for by, has in ((0.4e-6, True), (-0.4e-6, True), (1e-4, False), (-1e-4, False)):
            change = of("a", ("out",), lambda rank, value, by=by: value * (1.7 + 1.7 * rank * by))
            self.assertIs(modules(change).forward().factor is not None, has, by)

    def test_an_output_is_held_to_the_bound(self):
        for by in (0.9, -0.9, 1.1, -1.1):
            self.assertEqual(modules(of("a", ("out",), off(by))).forward() is None, abs(by) < 1, by)

    def test_a_gradient_is_held_to_the_bound_on_each_rank(self):
        for rank in range(2):
            for by in (0.9, -0.9, 1.1, -1.1, 900, -900, 1100):

                def change(at, value, rank=rank, by=by):
                    return value * (1 + by * BOUND) if at == rank else value

                self.assertEqual(modules(of("a", ("gin",), change)).hands_on_wrong(), abs(by) > 1, (rank, by))

    def test_a_missing_sum(self):
        partial = of("a", ("out",), addend)
        consumed = {**partial, **of(("b", "b.c"), ("in",), addend)}
        last = of(("b.c", "b", ""), ("out",), addend)
        self.hold(
            {
                "none, where an addend is summed behind": (consumed, None),
                "behind a": ({**consumed, **of(("b.c", "b", ""), ("out",), noise)}, ("a", "forward", ("tp",), None)),
                "behind the last": (last, ("b.c", "forward", ("tp",), None)),
            }
        )

    def test_integers_that_are_not_those_of_one_process(self):
        wrong = of(("b.c", "b", ""), ("out",), noise)
        alone = numpy.arange(12.0).reshape(4, 3)
        same, part, other = (lambda rank: alone), (lambda rank: alone[2 * rank :][:2]), (lambda rank: alone + 1 + rank)
        for integers, expected in (
            (None, "b.c"),
            ({}, "b.c"),
            ({"b.c": same, "": same}, "b.c"),
            ({"b.c": part, "": part}, "b.c"),
            ({"b.c": other, "": same}, "b"),  # b gets none, and makes them
            ({"b.c": other, "b": other, "": same}, ""),
            ({"b.c": other, "b": other, "": other}, ""),
            ({"a": other, "b.c": same}, "b.c"),
        ):
            given = integers and {name: (alone, own) for name, own in integers.items()}
            found = modules(wrong, integers=given).forward()
            self.assertEqual((found.module, found.place), (expected, "forward"), integers)
            if expected != "b.c":
                says_nothing_of(self, found.text, "its inputs are those of one process")
        self.assertIsNone(modules({}, integers={"b.c": (alone, other)}).forward())

    def test_rows_of_the_model_that_are_laid_out_otherwise(self):
        """They are no cause where no gradient is wrong; else they are one of two that fit."""
        wrong = of(("a", "b.c", "b", ""), ("out",), noise)
        alone = numpy.arange(12.0).reshape(4, 3)
        padded, own = (lambda rank: alone + 1), (lambda rank: alone + 1 + rank)
        for given, apart in ((padded, False), (own, True)):
            every = modules(wrong, integers={"a": (alone, given), "": (alone, given)})
            self.assertIsNone(every.forward(is_wrong=False))
            found = every.forward()
            self.assertEqual((found.module, found.place), ("", "forward"))
            (says if apart else says_nothing_of)(self, found.text, "tp")
        inner = modules(wrong, integers={"a": (alone, own), "": (alone, lambda rank: alone)})
        self.assertEqual(inner.forward(is_wrong=False).module, "")

    def test_a_module_that_gets_another_number_of_integers_is_not_compared(self):
        found = modules(of(("b.c", "b", ""), ("out",), noise), integers={"b.c": (NOISE, lambda rank: NOISE)})
        found.whole.integers = {}
        self.assertNotEqual(found.forward().module, "b.c")

    def test_rows_that_no_rank_has(self):
        self.assertIsNone(modules({key: rows for key in WHOLE}, DP).missing())
        first = {key: lambda rank, value: value[:2] for key in WHOLE}
        found = modules(first, DP).missing()
        self.assertEqual(reported(found), ("", "forward", (), None))
        says(self, found.text, "2 of", "4", "dimension 0", "first 2")
        most = {key: lambda rank, value: value[:3] if rank else value[:2] for key in WHOLE}
        says(self, modules(most, DP).missing().text, "1 of", "4")
        inside = {(name, kind): change for (name, kind), change in first.items() if name}
        self.assertIsNone(modules(inside, DP).missing())  # of the model's output alone
        self.assertIsNone(modules({("", "out"): dropped}).missing())

    def test_what_outputs_are(self):
        self.assertEqual(modules({}).tensors(), {})
        (found,) = modules(of("a", ("out",), addend)).tensors().items()
        self.assertEqual(found[0], "a")
        says(self, found[1], "tp")
        found = modules({key: rows for key in WHOLE}, DP).tensors()
        self.assertEqual({*found}, {"", "a", "b", "b.c"})
        (text,) = {*found.values()}
        says(self, text, "dimension 0", "dp")


class Lists(unittest.TestCase):
    """A module gives a tensor and a list with one for each image of the batch, of which ranks have one or two."""

    IMAGES = numpy.random.default_rng(7).standard_normal((3, 2, 2))
    OWN = ((0,), (1, 2))  # the images of each rank

    def modules(self, kind="out", change=lambda rank, image: image, y=lambda rank, value: rows(rank, value)):
        places = [("", "in"), ("a", "in"), ("a", "out"), ("b", "in"), ("b", "out"), ("", "out")]
        ranks = {}
        for rank in (0, 1, None):
            images = self.IMAGES if rank is None else [change(rank, self.IMAGES[i]) for i in self.OWN[rank]]
            own = {}
            for place in places:
                value = WHOLE[place]
                changed = y if place[0] == "" else rows
                own[(*place, 0)] = value if rank is None else changed(rank, value)
                if place == ("a", kind):
                    own.update({(*place, 1 + i): image for i, image in enumerate(images)})
            values = {(name, 0, what, i): value for (name, what, i), value in own.items()}
            ranks[rank] = Record(values=values, order=[*values])
        whole = ranks.pop(None)
        return _where.Modules(whole, ranks, DP, {0: 1.0, 1: 1.0}, BOUND, Factors(DP), 1)

    def test_a_rank_has_some_of_the_list_at_other_positions(self):
        for kind in ("in", "out"):
            found = self.modules(kind)
            self.assertIsNone(found.forward(), kind)
            self.assertIsNone(found.missing())
            wrong = self.modules(kind, y=lambda rank, value: NOISE[:2])
            self.assertEqual(reported(wrong.forward()), ("", "forward", (), None))

    def test_what_is_nowhere_in_the_list_is_wrong(self):
        for by, right in ((0.9, True), (1.1, False)):
            found = self.modules(change=lambda rank, image, by=by: image + rank * by * BOUND * abs(image).max())
            self.assertEqual(reported(found.forward()), None if right else ("a", "forward", (), None), by)

    def test_an_output_that_nothing_uses_is_not_where_an_error_begins(self):
        for unused, expected in ((set(), "a"), ({("a", 0, "out", 0)}, None)):
            found = modules(of("a", ("out",), noise), unused=unused)
            self.assertEqual(reported(found.forward()), expected and (expected, "forward", (), None))
            wrong = modules(of(("a", "b", "b.c", ""), ("out",), noise), unused=unused)
            self.assertEqual(reported(wrong.forward())[0], expected or "b.c")

    def test_addends_of_a_list(self):
        """Both ranks have the same two of three images, each an addend."""
        own = (NOISE[:2, :2], self.IMAGES[1] - NOISE[:2, :2])
        self.assertTrue(_match.among({0: own[0], 1: own[1]}, list(self.IMAGES), TP, BOUND))
        self.assertFalse(_match.among({0: own[0], 1: own[1] * 1.01}, list(self.IMAGES), TP, BOUND))


class Microbatches(unittest.TestCase):
    def test_calls_of_all_microbatches_are_compared(self):
        for count, calls in ((1, 1), (2, 1), (3, 1), (2, 2), (1, 3), (3, 2)):
            found = microbatched(count, calls=calls)
            self.assertEqual(found.microbatches("a"), count)
            self.assertEqual(len(found.module("a").values["out"]), count * calls)
            self.assertEqual(len(found.module("a").gradients["gin"]), count * calls)
            self.assertEqual({*found.module("a").values}, {"in", "out"})
            self.assertEqual({*found.module("a").gradients}, {"gin", "gout"})
            self.assertEqual({key[2] for key, _ in found._gradients}, {"gin", "gout"})
            self.assertIsNone(found.forward())
            self.assertFalse(found.hands_on_wrong())
            for at in range(count * calls):
                with self.subTest(count=count, calls=calls, at=at):
                    wrong = microbatched(count, only(at, "a", "out", noise), calls)
                    self.assertEqual(reported(wrong.forward()), ("a", "forward", (), None))
                    wrong = microbatched(count, only(at, "a", "gin", noise), calls)
                    self.assertTrue(wrong.hands_on_wrong())
                    self.assertEqual(reported(wrong.backward({"a.weight": ""}, {})), ("a", "backward", (), None))

    def test_a_key_of_a_microbatch_is_behind_the_calls_of_those_before(self):
        found = object.__new__(_where.Modules)
        found._batches = 1
        for calls in (1, 2, 3):
            found._whole_calls = {"a": calls}
            for call in range(calls):
                for microbatch in range(3):
                    key = found._key(("a", call, "gin", 1), microbatch)
                    self.assertEqual(key, ("a", call + calls * microbatch, "gin", 1))
        self.assertEqual(found._key(("b", 1, "in", 0), 2), ("b", 1, "in", 0))

    def test_a_key_of_a_batch_in_pieces_is_behind_the_pieces_of_those_before(self):
        for batches, alone, most, call, piece, expected in (
            (2, 2, 6, 0, 2, 2),
            (2, 2, 6, 1, 0, 3),
            (2, 2, 6, 1, 2, 5),
            (2, 4, 8, 3, 1, 7),
            (2, 4, 4, 2, 0, 2),
            (2, 3, 6, 1, 1, 4),  # calls that are no equal parts of batches: one after the other
        ):
            found = object.__new__(_where.Modules)
            found._batches, found._whole_calls, found._calls = batches, {"a": alone}, {0: {"a": most}}
            self.assertEqual(found._key(("a", call, "in", 0), piece)[1], expected, (batches, alone, call, piece))

    def test_the_value_of_a_tensor_is_that_of_the_first_microbatch(self):
        for calls in (1, 2):
            for call in range(2 * calls):
                found = microbatched(2, only(call, "a", "out", addend), calls)
                for key in range(calls):
                    axes = found.value(("a", key, "out", 0)).axes
                    self.assertEqual(axes, {"tp"} if call == key else frozenset(), (calls, call, key))
                lost = microbatched(2, only(call, "a", "out", noise), calls)
                self.assertEqual(lost.value(("a", 0, "out", 0)) is None, call == 0)
        self.assertIsNone(microbatched(2).value(("c", 0, "out", 0)))

    def test_a_loss_is_scaled_in_each_microbatch(self):
        for at in range(2):
            for rank in range(2):

                def change(own, call, key, value, at=at, rank=rank):
                    return value * 1.5 if (own, call) == (rank, at) and key[1][0] == "g" else value

                found = microbatched(2, change)
                self.assertEqual({key for key, scale in found.scales.items() if abs(scale - 1.5) < 1e-9}, {(rank, at)})
                self.assertFalse(found.hands_on_wrong())
                says(self, found.loss().text, f"rank {rank}", f"microbatch {at}", "1.5")
            self.assertTrue(microbatched(2, only(at, "a", "gin", times(1.5))).hands_on_wrong())
        for name, known in (("", {(0, 0), (1, 0), (0, 1), (1, 1)}), ("a", set())):  # of the model's output alone
            found = microbatched(2, lambda own, call, key, value, name=name: value if key[0] == name else None)
            self.assertEqual({*found.scales}, known, name)
        twice = microbatched(2, lambda own, call, key, value: value * (2 if key[1][0] == "g" else 1), averaged=2.0)
        self.assertIsNone(twice.loss())
        self.assertEqual((twice.scale(0, 1), twice.scale(0, 2)), (2.0, 2.0))  # the latter is averaged alone

    def test_batches_of_one_process_are_its_calls_in_equal_parts(self):
        for batches, calls, pieces, numbers in (
            (1, 2, 1, [0, 0]),
            (2, 2, 1, [0, 1]),
            (2, 4, 1, [0, 0, 1, 1]),
            (3, 3, 1, [0, 1, 2]),
            (2, 2, 3, [0, 3]),
            (2, 4, 2, [0, 0, 2, 2]),
        ):
            found = object.__new__(_where.Modules)
            found._batches, found._whole_calls, found._calls = batches, {"a": calls}, {0: {"a": calls * pieces}}
            self.assertEqual([found._batch(("a", call, "gout", 0)) for call in range(calls)], numbers)

    def test_a_gradient_that_is_missing_in_one_microbatch(self):
        for at in range(3):
            found = microbatched(3, only(at, "a", "gout", dropped))
            self.assertTrue(found.module("a").without)
            self.assertEqual(len(found.module("a").gradients["gout"]), 2)
        self.assertFalse(microbatched(3).module("a").without)


class Loss(unittest.TestCase):
    def scaled(self, *factors):
        gradients = {key: (lambda rank, value: factors[rank] * value) for key in WHOLE if key[1][0] == "g"}
        return modules(gradients)

    def test_a_factor_of_all_losses_to_a_millionth(self):
        for by, factor in ((0.9e-6, None), (-0.9e-6, None), (1.2e-6, True), (-1.2e-6, True), (2.0, True)):
            found = self.scaled(1 + by, 1 + by).loss()
            self.assertEqual(found is not None, factor is not None, by)
            if found:
                self.assertEqual((found.place, found.module), ("loss", ""))
                self.assertAlmostEqual(found.factor, 1 + by, places=9)
        self.assertEqual(reported(self.scaled(2, 2).loss()), ("", "loss", ("tp",), 2.0))
        wanted = modules({key: times(2.0) for key in WHOLE if key[1][0] == "g"}, averaged={0: 2.0, 1: 2.0})
        self.assertIsNone(wanted.loss())

    def test_losses_that_do_not_count_equally(self):
        found = self.scaled(1, 1.5).loss()
        self.assertEqual(reported(found), ("", "loss", (), None))
        says(self, found.text, "rank 0", "rank 1", "microbatch 0", "1", "1.5")

    def test_a_wrong_gradient_of_the_output(self):
        self.assertIsNone(modules({}).behind())
        self.assertEqual(reported(modules(of(("",), ("gout",), noise)).behind()), ("b.c", "loss", (), None))
        self.assertEqual(reported(modules(of(("",), ("gout",), addend)).behind()), ("b.c", "loss", ("tp",), None))
        lost = {("", "gout"): noise, ("", "out"): noise}
        self.assertIsNone(modules(lost).behind())
        partial = {("", "gout"): addend, ("", "out"): addend}
        self.assertIsNone(modules({("", "out"): addend}).behind())
        self.assertEqual(reported(modules(partial).behind()), ("b.c", "loss", (), None))


class Backward(unittest.TestCase):
    EARLY = {"a.weight": "wrong"}

    def test_the_first_module_that_hands_back_a_wrong_gradient(self):
        inner = of(("b.c", "b"), ("gin",), noise)
        both = {**of(("b",), ("gin",), noise), **of("a", ("gout", "gin"), noise)}
        before = {**of("a", ("gout",), addend), **of(("b.c", "b"), ("gin",), addend), **of("a", ("gin",), noise)}
        table = {
            "nothing is": ({}, {}, None),
            "no parameter is wrong": (of(("b",), ("gin",), noise), {}, None),
            "b": (both, self.EARLY, ("b", "backward", (), None)),
            "the inner one": (inner, self.EARLY, ("b.c", "backward", (), None)),
            "a multiple": (of(("b",), ("gin",), times(2.0)), self.EARLY, ("b", "backward", ("tp",), 2.0)),
            "a parameter alone": ({}, self.EARLY, ("a", "backward", (), None)),
            "a parameter of the inner one": ({}, {"b.c.weight": ""}, ("b.c", "backward", (), None)),
            "a parameter of no module": ({}, {"b.d.e.weight": ""}, ("b", "backward", (), None)),
            "a sum is missing before": (before, self.EARLY, ("b.c", "backward", ("tp",), None)),
            "between modules": (of("a", ("gout", "gin"), noise), self.EARLY, ("", "backward", (), None)),
            "between, a multiple": (of("a", ("gout", "gin"), times(1.7)), self.EARLY, ("", "backward", (), 1.7)),
            "between, none": (of("a", ("gout", "gin"), dropped), self.EARLY, ("", "backward", (), None)),
        }
        for name, (changes, early, expected) in table.items():
            with self.subTest(name):
                found = modules(changes)
                self.assertEqual(reported(found.backward(early, {})), expected)
                self.assertEqual(
                    found.hands_on_wrong(), any("g" in kind for _, kind in changes) and name[-6:] != ", none"
                )

    def test_a_module_that_hands_nothing_back_is_named_and_not_a_sum_inside_it(self):
        behind = of("a", ("gout", "gin"), dropped)
        through = {**of(("b", "b.c"), ("gin",), dropped), **behind}
        around = {**of(("b.c",), ("gin",), addend), **of(("b",), ("gin",), dropped), **of("a", ("gin",), noise)}
        for changes, ungiven, expected in (
            (through, ("b.c", "b", "a"), ("b.c", "backward", (), None)),
            (through, ("b", "a"), ("b", "backward", (), None)),
            (around, ("b", "a"), ("b", "backward", (), None)),
            (around, (), ("a", "backward", (), None)),  # inputs that need none are not lost, and a's output has the sum
            ({**around, **of("a", ("gout",), addend)}, (), ("b.c", "backward", ("tp",), None)),
            (behind, ("a",), ("", "backward", (), None)),  # nothing comes to a
        ):
            found = modules(changes, ungiven=ungiven)
            self.assertEqual(reported(found.backward(self.EARLY, {})), expected)
            self.assertEqual(found.found["b"].keeps, "b" in ungiven)
            if expected[0] and ungiven:
                self.assertTrue(found.hands_on_wrong())
        text = modules(around, ungiven=("b", "a")).backward(self.EARLY, {}).text
        says(self, text, "b")
        says_nothing_of(self, text, "b.c")
        self.assertFalse(modules({}).found["b"].keeps)

    def test_what_is_handed_back_is_named_or_the_parameter_is(self):
        says(self, modules({}).backward(self.EARLY, {}).text, "a.weight")
        text = modules(of("a", ("gin",), noise)).backward(self.EARLY, {}).text
        says(self, text)
        says_nothing_of(self, text, "a.weight")
        self.assertIsNone(modules(of("a", ("gin",), noise)).backward({}, {}))

    def test_a_sum_is_missing_around_a_module_where_similar_ones_have_it_there(self):
        """The second layer's inner module has an addend. Whether the sum belongs around it is shown by the first layer,
        whose inner module has one, too, or a right output."""

        def outwards(first_inner, first, identical=True):
            found = object.__new__(_where.Modules)
            kinds = {"a.c": "Inner", "b.c": "Inner" if identical else "Other", "a": "Layer", "b": "Layer", "": "Net"}
            found.ranks, found.found = {0: Record(kinds=kinds)}, {name: _where.Module(name) for name in kinds}
            for name, axes in {"b.c": "tp", "b": "tp", "a.c": first_inner, "a": first, "": ""}.items():
                index = {rank: () for rank in range(2)}
                values = [_where._match.Value(frozenset([axes] if axes else []), index)]
                found.found[name].values = {"out": values, "in": [_where._match.Value(frozenset(), index)]}
            return found._outwards("b.c", "out", "in", "a")

        for first_inner, first, identical, expected in (
            ("tp", "", True, "b"),
            ("", "", True, "b.c"),
            ("tp", "tp", True, "b.c"),
            ("tp", "", False, "b.c"),
            ("dp", "", True, "b.c"),
        ):
            self.assertEqual(outwards(first_inner, first, identical), expected, (first_inner, first, identical))

    def test_a_sum_is_sought_outwards_up_to_a_module(self):
        """Modules inside one another, all with an addend: how far the sum may lie outside of the innermost."""
        names = ("a.b.c.d", "a.b.c.e", "a.b.c", "a.b.f", "a.b", "a.g", "a", "")

        def outwards(avoid, settled=(), consumed=(), wrong=(), other_axes=()):
            found = object.__new__(_where.Modules)
            found.ranks = {0: Record(kinds={name: name for name in names})}
            found.found = {name: _where.Module(name) for name in names}
            for name, module in found.found.items():
                axes = [] if name in settled else ["dp" if name in other_axes else "tp"]
                index = {rank: () for rank in range(2)}
                module.values["out"] = [_where._match.Value(frozenset(axes), index)]
                module.values["in"] = [_where._match.Value(frozenset(["tp"] if name in consumed else []), index)]
                if name in wrong:
                    module.gradients["out"] = [types.SimpleNamespace(wrong=True, partial=False, axes=frozenset())]
            return found._outwards("a.b.c.d", "out", "in", avoid)

        for avoid, more, expected in (
            ("z", {}, "a"),  # the model is around it
            ("", {}, "a"),
            ("a", {}, "a.b"),
            ("a.b", {}, "a.b.c"),
            ("a.b.c", {}, "a.b.c.d"),
            ("a.b.c.e", {}, "a.b.c.d"),
            ("a.b.f", {}, "a.b.c"),
            ("a.b.f.x", {}, "a.b.c"),
            ("a.g", {}, "a.b"),
            ("ab", {}, "a"),
            ("z", {"settled": ["a.b"]}, "a.b.c"),
            ("z", {"settled": ["a.b.c"]}, "a.b.c.d"),
            ("z", {"other_axes": ["a.b"]}, "a.b.c"),
            ("z", {"consumed": ["a.b"]}, "a.b.c"),
            ("z", {"wrong": ["a.b"]}, "a.b.c"),
            ("z", {"settled": ["a.b.c.e"]}, "a.b.c.d"),  # only one inside has an addend
            ("z", {"other_axes": ["a.b.f"]}, "a.b.c"),
        ):
            self.assertEqual(outwards(avoid, **more), expected, (avoid, more))

    def test_a_sum_that_is_missing_where_addends_are_right(self):
        changes = of("a", ("gout", "gin"), addend)
        late = {"a.weight": frozenset(["tp"])}
        self.assertEqual(reported(modules(changes).backward({}, late)), ("", "backward", ("tp",), None))
        for other in ({}, {"b.weight": frozenset(["tp"])}, {"a.weight": frozenset()}):
            self.assertIsNone(modules(changes).backward({}, other), other)
        whole = {**changes, **of(("",), ("gout",), addend)}
        self.assertEqual(reported(modules(whole).backward({}, late)), ("b.c", "loss", ("tp",), None))

    def test_parameters_with_the_same_addends_on_ranks_show_a_wrong_module_if_one_is(self):
        wrong = of(("b.c",), ("gin",), times(0.5))
        self.assertEqual(modules(wrong).backward({}, {}, ["a.weight"]).module, "b.c")
        self.assertIsNone(modules(wrong).backward({}, {}, []))
        self.assertIsNone(modules({}).backward({}, {}, ["a.weight"]))

    def test_a_gradient_that_two_backwards_give_is_half_of_one_process(self):
        half = of("a", ("gin",), times(0.5))
        for passes, wrong in ((1, True), (2, False), (3, True)):
            self.assertIs(modules(half, passes={("a", "gin"): passes}).hands_on_wrong(), wrong, passes)
        self.assertFalse(modules({}, passes={("a", "gin"): 2}).hands_on_wrong())
        for factor in (1 / 2, 1 / 10):  # nobody counted the backwards of this one
            found = modules(of("a", ("gin",), times(factor)), passes={("b", "gin"): 2})
            self.assertTrue(found.hands_on_wrong(), factor)

    def test_a_module_that_calls_a_collective_itself(self):
        calls = [("b.c", "backward", "all_reduce over tp", "x.py:1"), ("a", "forward", "all_reduce over dp", "x.py:2")]
        found, tp = modules({}, collectives=calls), frozenset(["tp"])
        for name, phase, has in (("b.c", "backward", True), ("b.c", "forward", False), ("b", "backward", False)):
            self.assertIs(found.calls(name, phase, tp), has, name)
        self.assertFalse(found.calls("a", "forward", tp))
        for module, count in (("b", 1), ("b.c", 1), ("a", 1), ("", 2), ("c", 0)):
            self.assertEqual(len(found.begins("forward", module, "", tp, None).collectives), count, module)


class Fates(unittest.TestCase):
    """A block `b` adds its input to the output of its layers `b.c` and `b.d`, which take that input, or what `a.n`
    returns, or what no module shows. Each layer returns addends."""

    DRAWN = numpy.random.default_rng(8).standard_normal((6, 4, 3))
    C, D, REST = DRAWN[0], DRAWN[1], DRAWN[2]  # what the layers return in one process, and what else comes to x
    PARTS = ({"b.c": DRAWN[3], "b.d": DRAWN[4]}, {"b.c": C - DRAWN[3], "b.d": D - DRAWN[4]})  # the same on ranks

    def modules(self, given, shown="b", parts=PARTS, layers=("b.c", "b.d"), twice=False, scale=1.0):
        """given(rank): the gradient of the layers' input. `shown`: the module that shows it, "": none does; `twice`:
        a module returns that input as it takes it; `scale`: of the gradients of all ranks, as in DDP, which divides."""
        x, y = self.DRAWN[5], WHOLE["b", "out"]
        own = {"b.c": self.C, "b.d": self.D}
        right = self.REST + sum(own[name] for name in layers)
        places = [("", "in", y), ("b", "in", x if shown == "b" else 2 * x)]
        places += [("b.n", "out", x)] * (shown == "b.n") + [("b.i", "in", x), ("b.i", "out", x)] * twice
        places += [(name, "in", x) for name in layers] + [("b", "out", y), ("", "out", y)]
        gradients = [("", "gout", y, None), ("b", "gout", y, None)]
        gradients += [(name, "gin", own[name], lambda rank, name=name: parts[rank][name]) for name in layers]
        gradients += [("b.n", "gout", right, given)] * (shown == "b.n")
        gradients += [("b", "gin", right, given if shown != "b.n" else lambda rank: right + rank + 1)]
        order = [(name, 0, kind, 0) for name, kind, *_ in places + gradients]
        whole = Record(values=dict(zip(order, (one[2] for one in places + gradients))), order=order)
        ranks = {}
        for rank in range(2):
            values = dict(whole.values)
            for name, kind, value, of in gradients:
                values[name, 0, kind, 0] = scale * (value if of is None else of(rank))
            ranks[rank] = Record(values=values, order=order)
            ranks[rank].kinds.update({name: name for name in ("", "b", "b.c", "b.d", "b.n", "b.i")})
        return _where.Modules(whole, ranks, TP, {0: scale, 1: scale}, BOUND, Factors(TP), 1)

    def hold(self, table, **reported):
        for name, (given, module, readings) in table.items():
            with self.subTest(name, **reported):
                found = self.modules(given, **reported).backward({"b.e.weight": ""}, {})
                self.assertEqual((found.module, found.place, found.readings), (module, "backward", readings))
                self.assertEqual(found.axes, ("tp",) if "missing sum" in readings else ())

    def of(self, c=None, d=None, rest=None):
        """The gradient of the layers' input, with these in place of the layers' sums and of what else comes to it."""
        chosen = (self.C if c is None else c, self.D if d is None else d, self.REST if rest is None else rest)
        return lambda rank: sum(one(rank) if callable(one) else one for one in chosen)

    def test_what_became_of_addends_that_a_layer_hands_back(self):
        parts, none = self.PARTS, 0 * self.C

        def own(name):
            return lambda rank: parts[rank][name]

        for shown, scale in ("b", 1.0), ("b.n", 1.0), ("b", 3.0), ("b.n", 0.5):
            self.hold(
                {
                    "the sum is missing": (self.of(own("b.c"), own("b.d")), "b.d", ("missing sum",)),
                    "of one alone": (self.of(own("b.c")), "b.c", ("missing sum",)),
                    "lost on all": (self.of(none, none), "b", ("lost gradient",)),
                    "lost on one": (self.of(lambda rank: self.C * rank), "b", ("lost gradient",)),
                    "averaged": (self.of(self.C / 2, self.D / 2), "b", ()),
                    "the rest is lost": (self.of(rest=none), "b", ()),
                    "the rest is lost on one": (self.of(rest=lambda rank: self.REST * rank), "b", ()),
                    "the rest is another": (self.of(rest=NOISE), "b", ()),
                },
                shown=shown,
                scale=scale,
            )

    def test_a_missing_sum_is_seen_to_the_bound(self):
        cases = ((0.9, ("missing sum",)), (-0.9, ("missing sum",)), (1.1, ()), (-1.1, ()))
        for (by, readings), scale in itertools.product(cases, (1.0, 3.0, 0.25)):
            right = self.REST + self.C

            def given(rank, by=by, right=right):
                found = self.REST + self.PARTS[rank]["b.c"]
                found[0, 0] += by * BOUND * abs(right).max()
                return found

            found = self.modules(given, layers=("b.c",), scale=scale).backward({"b.e.weight": ""}, {})
            self.assertEqual(found.readings, readings, (by, scale))

    def test_zeros_of_all_ranks_but_one_are_lost_or_their_addends(self):
        lone = ({"b.c": self.C}, {"b.c": 0 * self.C})
        given = self.of(lambda rank: lone[rank]["b.c"], 0 * self.D)
        for shown in "b", "b.n":
            found = self.modules(given, shown, lone, ("b.c",)).backward({"b.e.weight": ""}, {})
            self.assertEqual((found.module, found.readings), ("b.c", ("missing sum", "lost gradient")))

    def test_both_readings_where_no_module_shows_the_tensor(self):
        parts = self.PARTS
        either, drawn = ("missing sum", "lost gradient"), self.DRAWN[4]
        self.hold(
            {
                "ranks differ": (lambda rank: drawn * (2 + rank), "b.c", either),
                "ranks are alike": (lambda rank: drawn, "b", ()),
                "one rank is right": (lambda rank: self.REST + self.C + rank * drawn, "b", ()),
                "an addend around it": (lambda rank: drawn if rank else self.REST + self.C - drawn, "b.c", either[:1]),
            },
            shown="",
            parts=parts,
            layers=("b.c",),
        )

    def test_both_readings_where_a_module_returns_what_it_takes(self):
        given = self.of(0 * self.C, 0 * self.D)
        found = self.modules(given, layers=("b.c",), twice=True).backward({"b.e.weight": ""}, {})
        self.assertEqual((found.module, found.readings), ("b.c", ("missing sum", "lost gradient")))


class Order(unittest.TestCase):
    def test_a_backward_ends_with_the_last_module_inside(self):
        found, order = modules({}).found, FORWARD + BACKWARD
        for name, last in (("", "a"), ("a", "a"), ("b", "b"), ("b.c", "b.c")):
            self.assertEqual(found[name].backward, order.index((last, "gin")), name)
            self.assertEqual(found[name].forward, order.index((name, "out")), name)


class Names(unittest.TestCase):
    def test_inside(self):
        for name, around, inside in (
            ("b.c", "b", True),
            ("b", "b", True),
            ("bc", "b", False),
            ("b", "b.c", False),
            ("b", "", True),
            ("", "b", False),
        ):
            self.assertIs(_where.is_inside(name, around), inside, (name, around))

    def test_microbatches_are_calls_over_those_of_one_process(self):
        for most, alone, expected in ((4, 2, 2), (2, 2, 1), (3, 2, 0), (1, 2, 0), (3, 0, 0), (3, 1, 3)):
            found = object.__new__(_where.Modules)
            found._calls, found._whole_calls = {0: {"a": 1}, 1: {"a": most}}, {"a": alone} if alone else {}
            found._batches = 1
            self.assertEqual(found.microbatches("a"), expected, (most, alone))
        self.assertEqual(found._key(("a", 0, "in", 1), 2), ("a", 2, "in", 1))


if __name__ == "__main__":
    unittest.main()
