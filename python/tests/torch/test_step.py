"""Test what a watch decides of a step by tables of synthetic inputs: factors of a GradScaler, further readings, what is
not judged and why, the type, factor and place of each parameter, and which elements are sampled. No job runs.
Sources: _step, _afterwards, _readings, _doubts, _seen, _expected, _pipeline and _sample of addend.torch.
"""

import math
import sys
import types
import unittest
from unittest import mock

import numpy
import torch
import torch.distributed as dist
from says import raises, says, says_facts
from torch import nn
from torch.autograd import backward
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.stage import _PipelineStageBase
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils.checkpoint import checkpoint

from addend.torch import (
    _addends,
    _afterwards,
    _declared,
    _doubts,
    _expected,
    _pipeline,
    _readings,
    _sample,
    _seen,
    _step,
)
from addend.torch._meshes import Mesh
from addend.torch._parameters import Watched

DP = Mesh(("dp",), (2,), {0: (0,), 1: (1,)})
DP_TP = Mesh(("dp", "tp"), (2, 3), {3 * dp + tp: (dp, tp) for dp in range(2) for tp in range(3)})
NAN, INF = math.nan, math.inf
SAMPLED = [116, 233, 475, 659, 966]  # of 1000 elements of a parameter "w", in a sample of 5


def entry(name="w", **more):
    param = nn.Parameter(torch.ones(3))
    return Watched(name, param, more.pop("owned", param), **more)


def piece(*values):
    return _sample.Piece(torch.tensor(values), _sample.Box((0,), (len(values),)), (len(values),))


class Scales(unittest.TestCase):
    """By what a GradScaler divided, and whether that surely is no part of what is expected."""

    def factor(self, scale, expected=1.0, said=False, was_scaled=True, mesh=DP):
        step = object.__new__(_step.Step)
        step._mesh, step._factors, step._expect = mesh, {"w": expected}, expected if said else None
        step._afterwards = types.SimpleNamespace(was_scaled=lambda name: was_scaled)
        times, words, is_certain = step._scaler_factor("w", 1 / scale)
        self.assertAlmostEqual(times * scale, 1)
        says_facts(self, words, "GradScaler", f"{scale:g}")
        return is_certain, words

    def test_a_factor_is_certain_where_the_loss_was_scaled(self):
        for scale in (2, 8, 1024):
            for expected in (1.0, 0.5, 1 / 3):
                self.assertIs(self.factor(scale, expected)[0], True)
                is_certain, words = self.factor(scale, expected, was_scaled=False)
                self.assertIs(is_certain, False)
                says(self, words, "GradScaler", f"{scale:g}")

    def test_what_the_caller_expects_may_have_the_scale(self):
        for mesh, means in ((DP, (1, 2)), (DP_TP, (1, 2, 3, 6))):
            for count in range(1, 8):
                is_certain, words = self.factor(1024, 1 / count, True, mesh=mesh)
                self.assertIs(is_certain, count in means, (mesh, count))
                says(self, words, "GradScaler", "expect=")
            for by, is_certain in ((1 + 1e-10, True), (1 - 1e-10, True), (1 + 1e-8, False), (1 - 1e-8, False)):
                self.assertIs(self.factor(1024, 0.5 * by, True, mesh=mesh)[0], is_certain, by)
            for scale in (1, 2, 3, 4, 6, 8):  # one that is a number of ranks may be the mean itself
                self.assertIs(self.factor(scale, 1.0, True, mesh=mesh)[0], scale not in means, scale)

    def loss(self):
        self.scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
        self.param = nn.Parameter(torch.ones(3))
        self.scaler.scale(torch.ones(1))
        return self.param.sum()

    def was_scaled(self, *backwards, scaler=None):
        """Whether the loss of a parameter counts as scaled after these backwards (what they begin from, and whether
        torch.autograd.grad runs them) and a division by the scaler."""
        found = _afterwards.Afterwards([Watched("w", self.param, self.param)], None, None, None)
        for roots, is_asked in backwards:
            found.around_backward(roots)
            found.before_addend(found._by_id[id(self.param)], is_asked)
            found.around_backward(None)
        self.param.grad = torch.ones(3)
        found._scaler = scaler or self.scaler
        found._note_scale([self.param.grad], torch.tensor(1 / 16.0))
        self.assertEqual(found.scaled, {"w": 1 / 16})
        return found.was_scaled("w")

    def test_a_loss_counts_as_scaled_if_each_backward_begins_from_a_product_with_the_scale(self):
        loss = self.loss()
        right = self.scaler.scale(loss)
        table = {
            "scaled": (right, True),
            "converted": (right.double(), True),
            "in a tuple": ((right,), True),
            "no loss": ((), False),
            "not scaled": (loss, False),
            "a leaf": (self.param, False),
            "another product": (loss * 16, False),
            "a tensor of that value": (loss * torch.tensor(16.0), False),
            "divided": (right / 16, False),
            "added": (right + 1, False),
            "both": ((right, loss), False),
            "unknown": (None, False),
            "a product with elements": ((self.param * torch.full((3,), 16.0)), False),
        }
        for name, (roots, expected) in table.items():
            for backwards in ([(roots, False)], [(right, False), (roots, False)], [(roots, False), (right, True)]):
                with self.subTest(name, backwards=len(backwards)):
                    is_first = roots == () and len(backwards) == 2 and not backwards[1][1]
                    self.assertIs(self.was_scaled(*backwards), expected or is_first)
        self.assertIs(self.was_scaled((right, True)), False)  # no backward
        self.assertIs(self.was_scaled((right, False), scaler=torch.amp.GradScaler("cpu")), False)

    def test_a_scale_that_the_job_gets_before_a_backward_scales_it(self):
        loss = self.loss()
        calls = {
            "scale": (lambda: self.scaler.scale(loss), True),
            "scale a list": (lambda: self.scaler.scale([torch.ones(1), loss]), True),
            "scale a number": (lambda: self.scaler.scale(torch.ones(1)), False),
            "get": (lambda: self.scaler.get_scale(), True),
        }
        for name, (call, expected) in calls.items():
            for is_before in (True, False):
                found = _afterwards.Afterwards([entry()], None, None, None)
                found.attach()
                self.addCleanup(found.remove)
                for at in (0, 1):
                    if at == is_before:
                        found.before_addend(entry(), False)
                    else:
                        call()
                found.remove()
                self.assertIs(found.was_scaled("w"), expected and is_before, (name, is_before))

    def test_a_scaler_works_as_it_does_without_a_watch(self):
        param = nn.Parameter(torch.ones(3))
        found = _afterwards.Afterwards([Watched("w", param, param)], None, None, lambda _, do, *given: do(*given))
        scaler, optimizer = torch.amp.GradScaler("cpu", init_scale=16.0), torch.optim.SGD([param], 1.0)
        found.attach()
        self.addCleanup(found.remove)
        self.assertEqual((scaler.scale(torch.ones(1)).item(), scaler.get_scale()), (16, 16))
        param.grad = torch.full((3,), 32.0)
        self.assertIsNone(scaler.unscale_(optimizer))
        self.assertEqual(param.grad.tolist(), [2, 2, 2])
        self.assertEqual((found.scaled, found._scaler), ({"w": 1 / 16}, scaler))
        self.assertIs(found._scale_of["w"], scaler._scale)
        found.remove()
        self.assertIs(found._unscale, None)


class Readings(unittest.TestCase):
    """Further ways to read a sum."""

    def test_what_autograd_grad_returned_is_one_more_reading_beside_those_of_backwards(self):
        found = _readings.of({}, {}, ["w"])
        self.assertEqual(
            [(one.asked, one.hooked, one.times, one.doubt) for one in found["w"]], [(True, False, 1.0, "")]
        )
        says(self, found["w"][0].words, "torch.autograd.grad")
        self.assertEqual(_readings.of({}, {}), {})
        both = _readings.of({"w": _addends.Change("changed", 0.5)}, {"w": [(0.25, "scaled", False)]}, ["w"])["w"]
        reported = [(one.asked, one.hooked, one.times, one.doubt) for one in both]
        self.assertEqual(
            reported,
            [
                (False, False, 0.25, "scaled"),
                (False, True, 1.0, ""),
                (False, True, 0.25, "scaled"),
                (True, False, 1, ""),
            ],
        )

    def test_readings_of_ranks_are_united_by_what_is_read_and_not_by_words(self):
        """A hook has its own factor on each rank that has it; any rank's doubt is a doubt."""
        change, scale = _addends.Change, [(0.25, "scaled", True)]
        everyones = {
            1: _readings.of({"w": change("halved", 0.5), "v": change("doubled", 2.0)}, {}),
            0: _readings.of({"w": change("changed", 0.75)}, {"w": scale, "u": scale}, ["w"]),
            3: _readings.of({"w": change("changed", None)}, {"w": [(0.25, "may be", False)]}),
            2: {},
        }
        found = _readings.united(everyones)
        self.assertEqual([*found], ["u", "v", "w"])
        self.assertEqual([one.factors for one in found["v"]], [{1: 2.0}])
        self.assertEqual([(one.times, one.factors) for one in found["u"]], [(0.25, {})])
        reported = {(one.hooked, one.times, one.asked): (one.words, one.doubt, one.factors) for one in found["w"]}
        self.assertEqual(len(found["w"]), len(reported))
        self.assertEqual(reported.pop((False, 1.0, True))[1:], ("", {}))
        self.assertEqual(
            reported,
            {
                (True, 1.0, False): ("halved", "", {1: 0.5, 0: 0.75, 3: None}),
                (False, 0.25, False): ("scaled", "may be", {}),
                (True, 0.25, False): ("changed; scaled", "may be", {0: 0.75, 3: None}),
            },
        )

    def test_gradients_that_were_asked_for_are_addends_where_no_backward_has_any(self):
        """Whether the parameter has an addend of a backward and a sum: where that of torch.autograd.grad goes, and
        whether such gradients number the microbatches."""
        table = {
            "added by hand": ((True, True), ("beside", False)),
            "inside the loss, without a sum": ((True, False), ("", False)),
            "alone": ((False, True), ("taken", True)),
            "alone, without a sum": ((False, False), ("taken", True)),
        }
        for name, ((has_backward, has_sum), (goes, numbers)) in table.items():
            addends = _addends.Addends([], _sample.Sampler(None), {})
            addends.taken = {**({0: {"w": piece(1.0)}} if has_backward else {}), -1: {"w": piece(2.0)}}
            with self.subTest(name):
                self.assertIs(addends.settle(["w"] if has_sum else []), numbers)
                self.assertEqual([one.values.item() for one in addends.beside.get("w", [])], [2.0] * (goes == "beside"))
                self.assertEqual(addends.taken[0]["w"].values.item(), 2.0 if goes == "taken" else 1.0)
                self.assertEqual(addends.discarded, [])
        addends = _addends.Addends([], _sample.Sampler(None), {})
        addends.taken = {0: {"v": piece(1.0)}, -1: {"w": piece(2.0)}, -2: {"w": piece(3.0)}}
        self.assertIs(addends.settle(["v"]), False)
        self.assertEqual((addends.discarded, addends.beside, [*addends.taken]), (["w"], {}, [0]))

    def test_gradients_that_were_asked_for_are_added_to_the_first_microbatch_alone(self):
        addends = _addends.Addends([], _sample.Sampler(None), {})
        addends.taken = {0: {"v": piece(9.0)}, 1: {"w": piece(1.0)}, 2: {"w": piece(1.0)}}
        addends.beside = {"w": [piece(2.0), piece(4.0)]}
        for number, sum_ in ((1, 7.0), (2, 1.0)):
            self.assertEqual(addends.with_beside(number, "w", piece(1.0)).values.item(), sum_)


class Microbatches(unittest.TestCase):
    """Which microbatch a backward belongs to: all gradients of one are one addend."""

    def addends(self, run, halve=lambda param: None):
        """The addends of a parameter, before and behind the job's hooks, by the microbatch, after `run`."""
        param = nn.Parameter(torch.tensor([1.0, 1.0]))
        halve(param)
        found = _addends.Addends([Watched("w", param, param)], _sample.Sampler(None), {})
        found.attach()
        run(found, param)
        found.remove()
        self.assertIs(found.settle(["w"]), False)
        self.assertEqual(found.errors, [])
        return [
            {number: pieces["w"].values.tolist() for number, pieces in kept.items()}
            for kept in (found.taken, found.behind)
        ]

    def backward(self, param, *by):
        (param * torch.tensor(by)).sum().backward()

    def by_hand(self, found, param):
        self.backward(param, 2.0, 8.0)
        self.backward(param, 6.0, 4.0)

    def by_a_name_from_before(self, found, param):
        for by in ((2.0, 8.0), (6.0, 4.0)):
            backward((param * torch.tensor(by)).sum())

    def in_a_schedule(self, found, param):
        for number in (3, 5):
            with found.numbered(number):
                self.by_hand(found, param)

    def inside_another(self, found, param):
        x = param * torch.tensor([2.0, 8.0])
        (x + checkpoint(lambda x: 3 * x + param, x, use_reentrant=True)).sum().backward()
        self.backward(param, 6.0, 4.0)

    def test_gradients_of_one_microbatch_are_added(self):
        """By hand each backward is a microbatch; a schedule numbers them; reentrant checkpointing nests one."""
        table = {
            self.by_hand: {0: [2, 8], 1: [6, 4]},
            self.by_a_name_from_before: {0: [2, 8], 1: [6, 4]},
            self.in_a_schedule: {3: [8, 12], 5: [8, 12]},
            self.inside_another: {0: [9, 33], 1: [6, 4]},
        }
        for run, expected in table.items():
            halved = {number: [value / 2 for value in values] for number, values in expected.items()}
            with self.subTest(run.__name__):
                self.assertEqual(self.addends(run), [expected, {}])
                self.assertEqual(
                    self.addends(run, lambda param: param.register_hook(lambda grad: grad / 2)), [expected, halved]
                )

    def test_what_hooks_change_of_an_accumulated_gradient_is_added_too(self):
        """The hook takes half of what a backward contributed, and nothing of what was there before."""

        def halve(param):
            before = torch.zeros(2)

            def hook(param):
                param.grad.sub_((param.grad - before) / 2)
                before.copy_(param.grad)

            param.register_post_accumulate_grad_hook(hook)

        found, behind = self.addends(self.in_a_schedule, halve)
        self.assertEqual((found, behind), ({3: [8, 12], 5: [8, 12]}, {3: [4, 6], 5: [4, 6]}))

    def test_each_backward_by_a_name_from_before_ends_once(self):
        """PyTorch numbers the backwards of a process from 0."""
        addends, queued = _addends.Addends([], _sample.Sampler(None), {}), []
        engine = types.SimpleNamespace(queue_callback=queued.append)
        with mock.patch.object(torch.autograd.Variable, "_execution_engine", engine):
            for task, ends in ((0, 1), (0, 1), (1, 2), (1, 2), (5, 3)):
                with mock.patch.object(torch._C, "_current_graph_task_id", lambda task=task: task):
                    addends._await_end()
                self.assertEqual(len(queued), ends, task)
            with addends.numbered(7):
                addends._await_end()
        self.assertEqual(queued, [addends._end] * 3)


class Doubts(unittest.TestCase):
    """Parameters that are not judged, and what is said of them."""

    def test_a_group_of_some_ranks(self):
        for summed, world, doubted in ((2, 2, False), (1, 2, True), (3, 4, True)):
            one = entry()
            _doubts.own_group([one], summed, world)
            self.assertEqual(bool(one.unjudged), doubted)
            if doubted:
                says(self, one.unjudged, f"{summed} of", f"{world} ranks", "mesh=", "group=")

    def test_sums_over_fewer_ranks_than_are_watched(self):
        for among, own, ranks, doubted in (
            ([0, 1], [0, 1], [0, 1], False),
            ([0, 1, 2], [0, 1], [0, 1], False),
            ([0, 1, 2], [0, 1], [0], False),
            ([0, 1, 2], [0, 1], [0, 1, 2], True),
            ([0, 1, 2], [0, 1], [1, 2], True),
            ([0, 1], [0], [0, 1], True),
            ([], [0, 1], [0, 1, 2], False),
        ):
            one = entry(among=among, data=[own])
            _doubts.local_sums([one], ranks)
            self.assertEqual(bool(one.unjudged), doubted, (among, own, ranks))
            if doubted:
                self.assertEqual("group=" in one.unjudged, len(own) > 1)
                says(self, one.unjudged, "PostLocalSGD", f"{own[0]}")

    def test_a_cleared_gradient(self):
        for used, has, sums, doubted in (
            (True, True, {}, True),
            (True, True, {"w": None}, False),
            (True, False, {}, False),
            (False, True, {}, False),
        ):
            one = entry() if used else entry(owned=nn.Parameter(torch.ones(3)))
            addends = types.SimpleNamespace(taken={0: {"w": None}} if has else {0: {}})
            _doubts.cleared([one], addends, sums)
            self.assertEqual(bool(one.unjudged), doubted, (used, has, sums))

    def test_a_stage_that_has_a_gradient_in_some_of_its_microbatches(self):
        for has, run, is_stage, unused, doubted in (
            (0, 3, True, (), False),
            (1, 3, True, (), True),
            (2, 3, True, (), True),
            (3, 3, True, (), False),
            (2, 3, False, (), False),
            (2, 3, True, ("v", "w"), False),
            (2, 3, True, ("v",), True),
        ):
            one = entry(stage=object() if is_stage else None)
            addends = types.SimpleNamespace(taken={m: {"w": None} if m < has else {"v": None} for m in range(run)})
            pipeline = types.SimpleNamespace(run_by=lambda stage, run=run: run)
            _doubts.lost_microbatches([one], addends, pipeline, unused)
            self.assertEqual(bool(one.unjudged), doubted, (has, run))
            if doubted:
                says(self, one.unjudged, f"only {has}", "unused=")

    def test_a_reason_that_is_known_stays(self):
        def known():
            return entry(among=[0, 1], data=[[0]], unjudged="known")

        for doubt in (
            lambda one: _doubts.own_group([one], 1, 2),
            lambda one: _doubts.local_sums([one], [0, 1]),
            lambda one: _doubts.cleared([one], types.SimpleNamespace(taken={0: {"w": None}}), {}),
        ):
            one = known()
            doubt(one)
            self.assertEqual(one.unjudged, "known")

    def test_names_with_equal_values_are_tied_if_their_sums_are(self):
        sets = [["first", "last"]]
        for everyones, doubted in (
            ([{"first": ((0, 3), "a")}, {"first": ((0, 3), "a")}], False),
            ([{"first": ((0, 3), "a")}, {"first": ((0, 3), "b")}], True),
            ([{"first": ((0, 3), "a")}, {"first": ((3, 3), "b")}], False),  # two shards
            ([{"first": ((0, 3), "a")}, {"first": ((3, 3), "b")}, {"first": ((3, 3), "c")}], True),
            ([{"first": ((0, 3), "a")}, {}], False),
        ):
            watched = [entry("first"), entry("other")]
            _doubts.ties(watched, sets, everyones)
            self.assertEqual([bool(one.unjudged) for one in watched], [doubted, False], everyones)
            if doubted:
                says(self, watched[0].unjudged, "first", "last", "tied=")


def seen(**more):
    found = {**dict.fromkeys(_seen.Seen._fields, ()), "numbers": [0], "used": {"w"}, "sums": 1, "infinite_norm": False}
    return _seen.Seen(**{**found, **more})


class Seen(unittest.TestCase):
    """Steps that are not judged."""

    def test_an_overflow(self):
        table = {
            "nothing": ({}, {}, None),
            "an addend": ({}, {"infinite": ["w"]}, ("rank 1", "w")),
            "both": ({"infinite": ["v", "w", "x"]}, {"infinite": ["w"]}, ("ranks 0", "and 1", "v", "2 more")),
            "a sum": ({}, {"infinite_sums": ["w"]}, ("rank 1", "w")),
            "an addend and a sum": ({"infinite": ["w"]}, {"infinite_sums": ["w"]}, ("rank 0", "w")),
            "the norm": ({}, {"infinite_norm": True}, ("norm",)),
        }
        for name, (first, second, facts) in table.items():
            with self.subTest(name):
                found = _seen.overflow({0: seen(**first), 1: seen(**second)})
                self.assertEqual(found and found.verdict, facts and "overflow")
                if facts:
                    says(self, found.text, *facts, case=name)

    def test_nothing(self):
        for first, second, fact in (
            ({}, {"numbers": []}, None),
            ({"numbers": []}, {"numbers": []}, ".grad"),
            ({"numbers": [], "sums": 0}, {"numbers": []}, ".grad"),
            ({"numbers": [], "sums": 0}, {"numbers": [], "sums": 0}, "torch.func.grad"),
            ({"numbers": [], "used": (), "idle": ["w"], "sums": 0},) * 2 + ("torch.func.grad",),
            ({"numbers": [], "used": ()}, {"numbers": [], "used": ()}, "requires_grad"),
        ):
            found = _seen.nothing({0: seen(**first), 1: seen(**second)})
            self.assertEqual(found and found.verdict, fact and "cannot_tell", (first, second))
            if fact:
                says(self, found.text, fact)


class Expected(unittest.TestCase):
    """The type, the factor and the place of a parameter."""

    def test_types_that_the_caller_gives(self):
        data = Mesh(("dp_replicate", "dp_shard"), (2, 2), {i: divmod(i, 2) for i in range(4)})
        self.assertEqual(_declared.parse("dp=R tp=S0", DP_TP), {"dp": "R", "tp": "S0"})
        self.assertEqual(_declared.parse("tp=S10", DP_TP), {"tp": "S10"})
        self.assertEqual(_declared.parse("dp=I", data), {"dp_replicate": "I", "dp_shard": "I"})
        self.assertEqual(_declared.parse("dp_shard=I", data), {"dp_shard": "I"})
        self.assertEqual(_declared.parse("", DP), {})
        for text, mesh in (("pp=R", DP), ("dp=P", DP), ("dp=S", DP), ("dp=S-1", DP), ("dp", DP), ("d=R", data)):
            with raises(self, ValueError, text, "AXIS=R"):
                _declared.parse(text, mesh)

    def test_the_last_pattern_that_fits_counts(self):
        patterns = {"*": 1, "up.*": 2, "down.weight": 3}
        for names, value in ((["up.weight"], 2), (["down.weight"], 3), (["down.bias"], 1), (["Up.bias", "up.x"], 2)):
            self.assertEqual(_declared.last_that_fits(patterns, names[0], 0, *names[1:]), value)
        self.assertEqual(_declared.last_that_fits({"up.*": 2}, "down", 0), 0)

    def test_types_come_from_wrappers_then_from_the_caller(self):
        stage = _pipeline.Stage(0, 3, [0, 1, 2], {}, None)
        table = {
            "nobody says": (entry(), None, "dp=R tp=R"),
            "the caller": (entry(), {"w": "tp=S0"}, "dp=R tp=S0"),
            "a stage": (entry(stage=stage), None, "dp=R tp=I"),
            "a stage, and the caller": (entry(stage=stage), {"w": "tp=R"}, "dp=R tp=R"),
            "a tie, whatever the caller gives": (entry(stage=stage, tied=("w", "v")), {"*": "tp=I"}, "dp=R tp=R"),
            "a wrapper over tp in a stage": (entry(stage=stage, data=[[0, 1, 2]]), None, "dp=R tp=R"),
        }
        for name, (one, given, text) in table.items():
            with self.subTest(name):
                found = _expected.types_of([one], DP_TP, given, {}, _declared.Declarations())["w"]
                self.assertEqual(_expected.text(found), text)

    def test_factors_come_from_the_caller_then_from_wrappers(self):
        beside = ([[0, 3]], 0.5)
        types_of = {"w": {"dp": "R", "tp": "R"}}
        table = {
            "the wrapper's": (entry(factor=0.25), None, types_of, 0.25),
            "the others'": (entry(beside=beside), None, types_of, 0.5),
            "not the others', of another type": (entry(beside=beside), None, {"w": {"dp": "I", "tp": "R"}}, 1.0),
            "the caller's": (entry(factor=0.25), 3, types_of, 3.0),
            "the caller's by pattern": (entry(beside=beside), {"v": 3, "w": 4}, types_of, 4.0),
            "the caller's for another": (entry(beside=beside), {"v": 3}, types_of, 0.5),
            "0": (entry(factor=0.25), 0, types_of, 0.0),
        }
        for name, (one, given, kinds, factor) in table.items():
            with self.subTest(name):
                self.assertEqual(_expected.factors_of([one], given, DP_TP, kinds), {"w": factor})

    def test_a_wrapper_of_some_ranks_along_an_axis_is_noted(self):
        for data, noted in (([[0, 3]], False), ([[0, 1]], True), ([[0, 1, 2]], False), ([[0, 1, 2, 3, 4, 5]], False)):
            notes = _expected.smaller_groups([entry(data=data)], DP_TP)
            self.assertEqual(len(notes), noted, data)
            if noted:
                says(self, notes[0], "w", "2 of", "3 ranks", "tp")

    def test_a_lost_gradient_has_a_peer_with_another_number(self):
        for name, used, meant, lost in (
            ("layers.1.w", ["layers.0.w"], (), True),
            ("layers.10.w", ["layers.9.w"], (), True),
            ("layers.1.w", ["layers.0.v"], (), False),
            ("layers.1.w", [], (), False),
            ("layers.1.w", ["layers.0.w"], ("layers.*",), False),
            ("layers.1.w", ["layers.0.w"], ("head",), True),
        ):
            found = _expected.lost([name], used, meant)
            self.assertEqual([*found], [name] if lost else [], (name, used, meant))
            if lost:
                says(self, found[name], used[0], "unused=")

    def test_shards_lie_in_the_order_of_coordinates(self):
        sizes = {0: 2, 1: 2, 2: 1}
        shapes = {3 * dp + tp: (4, sizes[tp]) for dp in range(2) for tp in range(3)}
        for rank in range(6):
            first = sum(sizes[tp] for tp in range(rank % 3))
            whole, box = _expected.place({"dp": "R", "tp": "S1"}, DP_TP, rank, shapes)
            self.assertEqual((whole, box), ((4, 5), _sample.Box((0, first), (4, sizes[rank % 3]))))
            whole, box = _expected.place({"dp": "S0", "tp": "S1"}, DP_TP, rank, shapes)
            self.assertEqual((whole, box.first), ((8, 5), (rank // 3 * 4, first)))
        del shapes[1]  # a rank without the parameter
        self.assertEqual(_expected.place({"dp": "R", "tp": "S1"}, DP_TP, 2, shapes)[0], (4, 3))

    def test_axes_that_somebody_named(self):
        stage = _pipeline.Stage(0, 3, [0, 1, 2], {}, None)
        for one, given, said in (
            (entry(), None, set()),
            (entry(), {"w": "tp=I"}, {"tp"}),
            (entry(), {"v": "tp=I"}, set()),
            (entry(stage=stage), None, {"tp"}),
            (entry(data=[[0, 3]]), None, {"dp"}),
            (entry(data=[[0, 3]], stage=stage), None, {"dp", "tp"}),
        ):
            self.assertEqual(_expected.said_axes([one], DP_TP, given), said, (one.data, given))

    def test_a_tie_that_the_caller_contradicts_is_noted(self):
        stage = _pipeline.Stage(0, 3, [0, 1, 2], {}, None)
        for tied, given, noted in (
            (("w", "v"), "tp=I", True),
            (("w", "v"), "tp=R", False),
            (("w", "v"), "dp=I", False),
            (("w", "v"), "", False),
            ((), "tp=I", False),
        ):
            notes = _expected.contradicted_ties([entry(stage=stage, tied=tied)], DP_TP, {"w": given})
            self.assertEqual(len(notes), noted, (tied, given))
            if noted:
                says(self, notes[0], "w", "v", "tp=I", "tied=()")

    def test_what_the_caller_may_say_where_something_is_wrong(self):
        def notes(watched, verdict="wrong", axis=None, mesh=DP_TP, given=None, expect=None, ties=()):
            params = [types.SimpleNamespace(name=one.name, verdict=verdict, axis=axis) for one in watched[:1]]
            report = types.SimpleNamespace(params=params)
            return _expected.unsaid(watched, mesh, given, expect, ties, report)

        wrapped = entry("v", data=[[0, 3]])
        small = Mesh(("dp", "tp"), (2, 1), {0: (0, 0), 1: (1, 0)})
        table = {
            "nobody says tp": (notes([wrapped]), ["tp"]),
            "nobody says an axis": (notes([entry()]), ["dp", "tp"]),
            "it is not wrong": (notes([wrapped], "right"), []),
            "it is wrong over another axis": (notes([wrapped], axis="dp"), []),
            "it is wrong over both": (notes([wrapped], axis="dp,tp"), ["tp"]),
            "the caller says tp": (notes([wrapped], given={"*": "tp=I"}), []),
            "one axis": (notes([entry()], mesh=DP), []),
            "one axis of more than one rank": (notes([entry()], mesh=small), []),
            "tied names": (notes([wrapped], ties=[["x", "y"]]), ['"y": "tp=R"']),
            "no wrapper sums it": (notes([entry(), wrapped], axis="dp"), ['expect={"w"']),
            "none has a wrapper": (notes([entry(), entry("v")], axis="none"), []),
            "the caller says a factor": (notes([entry(), wrapped], axis="dp", expect=1.0), []),
        }
        for name, (found, facts) in table.items():
            with self.subTest(name):
                self.assertEqual(len(found), len(facts), found)
                for note, fact in zip(found, facts):
                    says(self, note, fact)

    def test_a_plain_tensor_that_the_caller_shards_needs_a_shape(self):
        watched = [entry("w"), entry("v")]
        kinds = {"w": {"dp": "R", "tp": "S0"}, "v": {"dp": "R", "tp": "I"}}
        self.assertEqual(_expected.cut_by_hand(watched, kinds), ["w"])

    def test_factors_as_a_text(self):
        self.assertEqual(_expected.factors_text({"a": 0.5, "b": 0.5}), "0.5")
        self.assertEqual(_expected.factors_text({}), "1.0")
        self.assertEqual(_expected.factors_text({"a[0]": 0.5, "b": 1.0}), {"a[[]0]": 0.5, "b": 1.0})


def as_six_ranks(case):
    """Makes this process, for one test case, rank 0 of six that exchange nothing."""
    dist.init_process_group("fake", rank=0, world_size=6, store=FakeStore())
    case.addCleanup(dist.destroy_process_group)


class Placed(unittest.TestCase):
    """The types that placements of DTensors mean."""

    def setUp(self):
        as_six_ranks(self)
        self.device_mesh = init_device_mesh("cpu", (2, 3), mesh_dim_names=("data", "model"))

    def placed(self, *placements, name="w", **more):
        return entry(name, part=(self.device_mesh, placements, (3,)), **more)

    def types(self, watched, name="w", given=None, mesh=DP_TP, **gradients):
        found = _expected.types_of(watched, mesh, given, gradients, _declared.Declarations())
        return _expected.text(found[name])

    def test_a_placement_is_a_type_on_the_axes_of_its_own_group(self):
        table = {
            "dp=I tp=I": (Replicate(), Replicate()),
            "dp=R tp=I": (Partial(), Replicate()),
            "dp=I tp=R": (Replicate(), Partial()),
            "dp=I tp=S0": (Replicate(), Shard(0)),
            "dp=S1 tp=S0": (Shard(1), Shard(0)),
            "dp=S0 tp=S2": (_StridedShard(0, split_factor=3), Shard(2)),
        }
        for text, placements in table.items():
            self.assertEqual(self.types([self.placed(*placements)]), text)
            placed = (self.device_mesh, placements)
            self.assertEqual(self.types([entry()], w=placed), text)  # of its gradient
            self.assertEqual(self.types([self.placed(Shard(3), Shard(3))], w=placed), text)
            if not any(each.is_partial() for each in placements):
                used = DTensor.from_local(torch.ones(2, 2, 2), self.device_mesh, placements, run_check=False)
                self.assertEqual(self.types([Watched("w", used, used)]), text)

    def test_a_group_may_span_several_axes_or_fewer(self):
        flat = init_device_mesh("cpu", (6,))
        for mesh, text in ((DP_TP, "dp=S0 tp=S0"), (Mesh(("x",), (6,), {i: (i,) for i in range(6)}), "x=S0")):
            self.assertEqual(self.types([entry(part=(flat, (Shard(0),), (3,)))], mesh=mesh), text)
        small = Mesh(("dp", "one", "tp"), (2, 1, 3), {i: (i // 3, 0, i % 3) for i in range(6)})
        self.assertEqual(self.types([self.placed(Shard(0), Replicate())], mesh=small), "dp=S0 one=R tp=I")
        other = Mesh(("a", "b"), (3, 2), {i: divmod(i, 2) for i in range(6)})
        with self.assertRaises(ValueError):
            self.types([self.placed(Shard(0), Replicate())], mesh=other)

    def test_what_counts_before_a_placement(self):
        stage = _pipeline.Stage(0, 3, [0, 1, 2], {}, None)
        cut, same = (Replicate(), Shard(0)), (Replicate(), Replicate())
        table = {
            "nothing": (self.placed(*cut), None, "dp=I tp=S0"),
            "its wrapper": (self.placed(*cut, data=[[0, 3]]), None, "dp=R tp=S0"),
            "its wrapper over the sharded axis": (self.placed(*cut, data=[[0, 1, 2]]), None, "dp=I tp=R"),
            "the caller": (self.placed(*cut), {"w": "dp=R"}, "dp=R tp=S0"),
            "a stage": (self.placed(*cut, stage=stage), None, "dp=I tp=I"),
            "the wrapper of others": (self.placed(*cut, beside=([[0, 3]], 1.0)), None, "dp=R tp=S0"),
            "the wrapper of others, not over a shard": (
                self.placed(*cut, beside=([[0, 1, 2]], 1.0)),
                None,
                "dp=I tp=S0",
            ),
            "the wrapper of others, of a copy": (self.placed(*same, beside=([[0, 1, 2]], 1.0)), None, "dp=I tp=R"),
            "the wrapper of others, of an addend": (
                self.placed(Shard(0), Partial(), beside=([[0, 3]], 1.0)),
                None,
                "dp=S0 tp=R",
            ),
        }
        for name, (one, given, text) in table.items():
            with self.subTest(name):
                self.assertEqual(self.types([one], given=given), text)

    def test_a_plain_tensor_beside_dtensors(self):
        """Along an axis of DTensors, which no wrapper sums over, ranks use a plain tensor for the same work, unless the
        others' wrapper sums over the axis, and no DTensor is sharded along it."""
        summed, other = ([[0, 1, 2]], 1.0), ([[0, 3]], 1.0)
        table = {
            "sharded": ((Replicate(), Shard(0)), {}, None, "dp=I tp=I"),
            "sharded, in DDP": ((Replicate(), Shard(0)), {"data": [[0, 3]]}, None, "dp=R tp=I"),
            "in DDP over both": ((Shard(0), Shard(0)), {"data": [[0, 1, 2, 3, 4, 5]]}, None, "dp=R tp=R"),
            "the wrapper sums over shards": ((Replicate(), Shard(0)), {}, summed, "dp=I tp=I"),
            "the wrapper sums over copies": ((Shard(0), Replicate()), {}, summed, "dp=I tp=R"),
            "the wrapper sums over other copies": ((Replicate(), Shard(0)), {}, other, "dp=R tp=I"),
            "the wrapper sums over addends": ((Replicate(), Partial()), {}, summed, "dp=I tp=R"),
        }
        for name, (placements, more, beside, text) in table.items():
            for first in (True, False):
                watched = [self.placed(*placements, name="v", **more), entry("w", beside=beside)]
                with self.subTest(name, first=first):
                    self.assertEqual(self.types(watched if first else watched[::-1]), text)
        self.assertEqual(self.types([entry("v"), entry("w")]), "dp=R tp=R")

    def test_axes_that_placements_name(self):
        for one, said in (
            (self.placed(Replicate(), Shard(0)), {"dp", "tp"}),
            (self.placed(Replicate(), Shard(0), data=[[0, 3]]), {"dp", "tp"}),
            (entry(part=(init_device_mesh("cpu", (6,)), (Shard(0),), (3,))), {"dp", "tp"}),
            (entry(part=(self.device_mesh["model"], (Shard(0),), (3,))), {"tp"}),
            (entry(part=(self.device_mesh["data"], (Shard(0),), (3,))), {"dp"}),
        ):
            self.assertEqual(_expected.said_axes([one], DP_TP, None), said, one.part)

    def test_copies_that_are_assumed(self):
        """Axes of type I by placements alone: neither by a stage nor by the caller."""
        stage = _pipeline.Stage(0, 3, [0, 1, 2], {}, None)
        same, cut = (Replicate(), Replicate()), (Replicate(), Shard(0))
        for one, given, axes in (
            (self.placed(*same), None, "dp tp"),
            (self.placed(*cut), None, "dp"),
            (self.placed(Shard(0), Partial()), None, None),
            (self.placed(*same, data=[[0, 3]]), None, "tp"),
            (self.placed(*same, stage=stage), None, "dp"),
            (self.placed(*same), {"w": "tp=I"}, "dp"),
            (self.placed(*same), {"v": "tp=I"}, "dp tp"),
            (entry(), {"w": "tp=I"}, None),
        ):
            kinds = _expected.types_of([one], DP_TP, given, {}, _declared.Declarations())
            found = _expected.assumed_of([one], DP_TP, given, kinds)
            self.assertEqual(found, {"w": axes} if axes else {}, (one.part, given))

    def test_a_shard_without_a_placement_needs_a_shape(self):
        watched = [entry("w"), self.placed(Replicate(), Shard(0), name="v")]
        kinds = {name: {"dp": "R", "tp": "S0"} for name in "wv"}
        self.assertEqual(_expected.cut_by_hand(watched, kinds), ["w"])


class Sample(unittest.TestCase):
    """Which elements are sampled: one in each of equal intervals, the same however the parameter is sharded."""

    def test_a_tensor_that_is_no_larger_than_the_sample_is_taken_whole(self):
        for numel, count, taken in ((7, 8, 7), (8, 8, 8), (9, 8, 8), (0, 8, 0), (4097, 64, 64)):
            found = _sample.sampled("w", numel, count)
            self.assertEqual(len(found), taken)
            if numel > count:
                bounds = [k * (numel // count) + k * (numel % count) // count for k in range(count + 1)]
                for k, at in enumerate(found):
                    self.assertTrue(bounds[k] <= at < bounds[k + 1], (numel, k))
            else:
                self.assertEqual(found.tolist(), list(range(numel)))

    def test_shards_have_together_what_the_whole_has(self):
        whole = torch.arange(15.0 * 7).reshape(15, 7)
        for count in (None, 16, 104, 105):
            wanted = _sample.Sampler(count).take("w", (15, 7), whole, _sample.Box((0, 0), (15, 7))).values
            self.assertEqual(len(wanted), min(count or 105, 105))
            for dim, cuts in ((0, (0, 4, 5, 5, 15)), (1, (0, 3, 7))):
                found = []
                for first, last in zip(cuts, cuts[1:]):
                    at, size = [0, 0], [15, 7]
                    at[dim], size[dim] = first, last - first
                    box = _sample.Box(tuple(at), tuple(size))
                    for local in (
                        whole.narrow(dim, first, last - first),
                        whole.narrow(dim, first, last - first).T.contiguous().T,
                    ):
                        taken = _sample.Sampler(count).take("w", (15, 7), local, box).values
                        self.assertTrue(bool((taken[1:] > taken[:-1]).all()))
                    found += taken.tolist()
                self.assertEqual(sorted(found), wanted.tolist(), (count, dim))

    def test_a_plan_is_for_one_layout(self):
        local = torch.ones(4, 6)
        plan = _sample.Sampler(5).plan("w", (4, 6), local, _sample.Box((0, 0), (4, 6)))
        for other, fits in (
            (torch.zeros(4, 6), True),
            (torch.zeros(6, 4), False),
            (torch.zeros(6, 4).T, False),
            (torch.zeros(4, 6).to_sparse(), False),
            (nn.Parameter(torch.zeros(4, 6)), False),
        ):
            self.assertIs(plan.fits(other), fits, other)

    def test_a_plan_is_thinned_to_at_most_a_number(self):
        local = torch.arange(100.0)
        for drawn, count, left in ((50, 50, 50), (50, 49, 25), (50, 25, 25), (50, 24, 17), (50, 1, 1), (None, 5, 100)):
            plan = _sample.Sampler(drawn).plan("w", (100,), local, _sample.Box((0,), (100,)))
            self.assertEqual(len(plan.thinned(count).take(local).values), left, (drawn, count))

    def test_values_that_are_no_numbers(self):
        most = torch.finfo(torch.float32).max
        pieces = {"a": piece(1.0, 2.0), "b": piece(1.0, NAN), "c": piece(-INF), "d": piece(most, most)}
        self.assertEqual(_sample.not_finite(pieces), ["b", "c"])
        self.assertEqual(_sample.not_finite({name: pieces[name] for name in "ad"}), [])
        self.assertEqual(_sample.not_finite({}), [])

    def test_complex_values_are_two_numbers_and_narrow_ones_are_f32(self):
        value = torch.tensor([1 + 2j, 3 - 4j])
        parts, shape, box = _sample.as_real(value.conj(), (5,), _sample.Box((3,), (2,)))
        self.assertEqual(parts.tolist(), [[1, -2], [3, 4]])
        self.assertEqual((shape, box), ((5, 2), _sample.Box((3, 0), (2, 2))))
        for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn):
            taken = _sample.Sampler(None).take("w", (2,), torch.ones(2).to(dtype), _sample.Box((0,), (2,))).values
            self.assertEqual(taken.dtype, torch.float32 if dtype == torch.float8_e4m3fn else dtype)

    def test_the_name_draws_the_elements(self):
        """Files of other programs have these elements, too (audit/docs/dumps.md)."""
        self.assertEqual(_sample.sampled("w", 1000, 5).tolist(), SAMPLED)
        self.assertFalse(numpy.array_equal(_sample.sampled("w", 4096, 64), _sample.sampled("v", 4096, 64)))


class Stages(unittest.TestCase):
    """Numbers of a pipeline's microbatches."""

    def test_a_microbatch_is_numbered_by_its_chunk_and_its_round(self):
        observer, first, second = _pipeline.Observer(), types.SimpleNamespace(submod=1), types.SimpleNamespace(submod=2)
        reported = [observer._number(first, "backward_one_chunk", chunk) for chunk in (0, 1, 0, 1)]
        self.assertEqual(reported, [0, 1, 1 << 20, (1 << 20) + 1])
        self.assertEqual(observer._number(second, "backward_one_chunk", 0), 0)
        self.assertEqual(observer._number(first, "backward_weight_one_chunk", 0), 0)  # the other half of the same
        for module, count in ((1, 4), (2, 1), (3, 0)):
            self.assertEqual(observer.run_by(_pipeline.Stage(0, 1, [0], {}, module)), count)

    def stage(self, module, group=None, index=1):
        found = PipelineStage.__new__(PipelineStage)
        found.__dict__.update(submod=module, group=group, stage_index=index, num_stages=4)
        return found

    def test_the_stages_of_a_model(self):
        as_six_ranks(self)
        inner, outer, stranger = nn.Linear(1, 1), nn.Module(), nn.Linear(1, 1)
        outer.layer = nn.Sequential(inner)
        pair = dist.new_group([0, 3])
        table = {
            "the model": ([(inner, None)], inner, ["weight", "bias"]),
            "inside the model": ([(inner, None)], outer, ["weight", "bias"]),
            "around the model": ([(outer, None)], inner, ["layer.0.weight", "layer.0.bias"]),
            "none": ([(stranger, None)], outer, None),
            "no module": ([(None, None), ("text", None)], outer, None),
            "a group": ([(inner, pair)], inner, ["weight", "bias"]),
            "two": ([(inner, None), (stranger, None)], inner, ["weight", "bias"]),
        }
        for name, (modules, model, names) in table.items():
            with self.subTest(name):
                kept = [self.stage(module, group) for module, group in modules]
                kept.append(types.SimpleNamespace(submod=model, group=None, stage_index=0, num_stages=1))
                found = _pipeline.find(model)
                del kept
                self.assertEqual([[*one.names.values()] for one in found], [names] if names else [])
                for one in found:
                    self.assertIs(one.module, modules[0][0])
                    self.assertEqual(one.names, {id(p): n for n, p in one.module.named_parameters()})
                    self.assertEqual((one.index, one.count), (1, 4))
                    self.assertEqual(one.ranks, [0, 3] if name == "a group" else [0, 1, 2, 3, 4, 5])

    def test_a_stage_without_a_module_is_none(self):
        as_six_ranks(self)
        without, model = PipelineStage.__new__(PipelineStage), nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1))
        kept = [self.stage(model[at], index=at) for at in range(2)]
        self.assertEqual(sorted(one.index for one in _pipeline.find(model)), [0, 1])
        del kept, without

    def test_a_job_without_pipelining_has_no_stages(self):
        as_six_ranks(self)
        model = nn.Linear(1, 1)
        kept = [self.stage(model)]
        self.assertEqual(len(_pipeline.find(model)), 1)
        with mock.patch.dict(sys.modules):
            del sys.modules["torch.distributed.pipelining.stage"]
            self.assertEqual(_pipeline.find(model), [])
            self.assertIs(self.called_by("_shape_inference", "torch.distributed.pipelining.stage"), False)
        del kept

    def called_by(self, name, module):
        """Whether a stage infers shapes where a function of this name, of this module, is running."""
        given = {"__name__": module}
        exec(f"def {name}(call): return call()", given)  # noqa: S102
        return given[name](_pipeline.infers)

    def test_a_stage_infers_shapes_inside_functions_of_pipelining(self):
        pipelining = "torch.distributed.pipelining."
        for name, module, expected in (
            ("_forward_metadata_inference", f"{pipelining}stage", True),
            ("_backward_metadata_inference", f"{pipelining}stage", True),
            ("_shape_inference", f"{pipelining}stage", True),
            ("_shape_inference", f"{pipelining}another", True),
            ("forward_one_chunk", f"{pipelining}stage", False),
            ("shape_inference", f"{pipelining}stage", False),
            ("_shape_inference", "job", False),
            ("_shape_inference", "torch.distributed.pipelining_of_a_job", False),
            ("_shape_inference", f"job.{pipelining}stage", False),
        ):
            self.assertIs(self.called_by(name, module), expected, (name, module))
        self.assertIs(_pipeline.infers(), False)

    def watched_stage(self, *left_out):
        """A class like PyTorch's, without some methods, and what its methods were called with."""
        reported, addends = [], _addends.Addends([], _sample.Sampler(None), {})

        class Stage:
            pass

        def method(name):
            def run(stage, *args, **kwargs):
                reported.append((name, addends.microbatch if addends._in_schedule else None, args, kwargs))
                return len(reported)

            return run

        for name in {"backward_one_chunk", "backward_weight_one_chunk", "scale_grads"} - set(left_out):
            setattr(Stage, name, method(name))
        return Stage, addends, reported

    def test_a_watch_numbers_backwards_and_notes_divisors(self):
        every = ("backward_one_chunk", "backward_weight_one_chunk", "scale_grads")
        for left_out in ((), *((name,) for name in every)):
            kind, addends, reported = self.watched_stage(*left_out)
            before = {name: vars(kind).get(name) for name in every}
            observer, stage = _pipeline.Observer(), kind()
            stage.submod = nn.Linear(1, 1)
            with self.subTest(left_out=left_out), mock.patch.object(_pipeline, "_base", lambda kind=kind: kind):
                observer.attach(addends)
                expected = []
                for name in every[:2] * 2:
                    if name not in left_out:
                        at = len(expected) // (2 - bool({*left_out} & {*every[:2]}))
                        number = 3 + at * (1 << 20)
                        expected.append((name, number, ("loss",), {"full": True}))
                        self.assertEqual(getattr(stage, name)(3, "loss", full=True), len(expected))
                self.assertEqual([(name, at, args[1:], more) for name, at, args, more in reported], expected)
                self.assertEqual({args[0] for _, _, args, _ in reported}, {3})
                if "scale_grads" not in left_out:
                    self.assertEqual(stage.scale_grads(8), len(reported))
                    self.assertEqual(reported[-1], ("scale_grads", None, (8,), {}))
                self.assertEqual(observer.divided, {} if "scale_grads" in left_out else {id(stage.submod): 8})
                observer.remove()
                self.assertEqual({name: vars(kind).get(name) for name in every}, before)
                observer.remove()
                self.assertEqual({name: vars(kind).get(name) for name in every}, before)
            self.assertEqual((addends.errors, addends._in_schedule), ([], False))

    def test_a_stage_that_cannot_be_numbered_runs_all_the_same(self):
        kind, addends, reported = self.watched_stage()
        observer, stage = _pipeline.Observer(), kind()  # without a module
        with mock.patch.object(_pipeline, "_base", lambda: kind):
            observer.attach(addends)
            stage.backward_one_chunk(0)
            stage.scale_grads(4)
            observer.remove()
        self.assertEqual(
            [(name, number) for name, number, _, _ in reported], [("backward_one_chunk", None), ("scale_grads", None)]
        )
        self.assertEqual([error.partition(":")[0] for error in addends.errors], ["backward_one_chunk", "scale_grads"])

    def test_pytorchs_own_stage_has_the_methods(self):
        names = ("backward_one_chunk", "backward_weight_one_chunk", "scale_grads")
        before = [vars(_PipelineStageBase)[name] for name in names]
        observer = _pipeline.Observer()
        observer.attach(_addends.Addends([], _sample.Sampler(None), {}))
        try:
            for name, own in zip(names, before):
                self.assertIsNot(vars(_PipelineStageBase)[name], own, name)
        finally:
            observer.remove()
        self.assertEqual([vars(_PipelineStageBase)[name] for name in names], before)

    def test_the_divisor_of_a_schedule_is_in_the_factor(self):
        observer, module = _pipeline.Observer(), nn.Linear(1, 1)
        observer._note(types.SimpleNamespace(submod=module), 4)
        step = object.__new__(_step.Step)
        step._pipeline = observer
        stage = _pipeline.Stage(0, 1, [0], {}, module)
        step._watched = [
            entry(stage=stage),
            entry("v"),
            entry("u", stage=_pipeline.Stage(0, 1, [0], {}, nn.Linear(1, 1))),
        ]
        step._divide_by_schedules()
        self.assertEqual([one.factor for one in step._watched], [0.25, 1.0, 1.0])


class Afterwards(unittest.TestCase):
    """Sums with which an optimizer stepped inside the watch."""

    def complete(self, sums, stepped=None, cleared=None, changes=None):
        found = _afterwards.Afterwards([entry()], None, None, None)
        for kept, value in ((found._stepped, stepped), (found._cleared, cleared), (found._changes, changes)):
            if value is not None:
                kept["w"] = (piece(*value), [])
        every = {"w": (piece(*sums), [])} if sums is not None else {}
        found.complete(every)
        before = found.before_hooks.get("w")
        return every["w"][0].values.tolist() if every else None, found.later, before and before[0].values.tolist()

    def test_the_sum_is_that_of_the_step(self):
        table = {
            "no step": (((1, 2),), ([1, 2], [], None)),
            "a step": (((1, 2), (1, 2)), ([1, 2], [], None)),
            "changed since": (((1, 3), (1, 2)), ([1, 2], ["w"], None)),
            "zeroed since": (((0, 0), (1, 2)), ([1, 2], [], None)),
            "dropped since": ((None, (1, 2)), ([1, 2], [], None)),
            "an earlier step, too": (((1, 2), (1, 2), (4, 5)), ([5, 7], [], None)),
            "an earlier step alone": ((None, None, (4, 5)), ([4, 5], [], None)),
            "a hook changed it": (((1, 2), None, None, (0, 0.5)), ([1, 2], [], [1, 1.5])),
            "a hook looked at it": (((1, 2), None, None, (0, 0)), ([1, 2], [], None)),
        }
        for name, (arguments, expected) in table.items():
            with self.subTest(name):
                given = [None if values is None else [float(one) for one in values] for values in arguments]
                self.assertEqual(self.complete(*given), expected)

    def test_a_gradient_with_which_a_step_was_taken_is_cleared_or_not(self):
        for gradient, is_asked, cleared, doubted in (
            (None, False, True, False),
            (torch.zeros(3), False, True, False),
            (torch.ones(3), False, False, True),
            (torch.ones(3), True, False, False),
            (torch.zeros(3), True, True, False),
        ):
            one = entry()
            found = _afterwards.Afterwards([one], None, None, None)
            found._stepped["w"] = (piece(1.0, 1.0, 1.0), [])
            one.owned.grad = gradient
            found.before_addend(one, is_asked)
            reported = (bool(found._cleared), bool(one.unjudged), bool(found._stepped))
            self.assertEqual(reported, (cleared, doubted, not cleared and not doubted), (gradient, is_asked))

    def around(self, hooks, backwards=1, own=False, flat=None, take=None):
        """The sums before hooks of the job on a parameter, which get the sum behind a wrapper; and the observer."""
        param = nn.Parameter(torch.tensor([1.0, 1.0]))
        for hook in hooks:

            def call(param, hook=hook):  # PyTorch wants None
                hook(param)

            param.register_post_accumulate_grad_hook(call)
        one = Watched("w", param if own else param.detach(), param, flat=flat)

        def taken(entry):
            value = entry.owned.grad
            return None if value is None else (_sample.Piece(value.clone(), None, (2,)), ["dp"])

        found = _afterwards.Afterwards([one], take or taken, None, lambda _, do, *given: do(*given))
        before = [*(param._post_accumulate_grad_hooks or {}).values()]
        found.attach()
        self.addCleanup(found.remove)
        for _ in range(backwards):
            (param * torch.tensor([2.0, 8.0])).sum().backward()
        found.remove()
        self.assertEqual([*(param._post_accumulate_grad_hooks or {}).values()], before)
        sums = {} if param.grad is None else {"w": taken(one)}
        found.complete(sums)
        (kept,) = [*found.before_hooks.values()] or [None]
        return (kept and (kept[0].values.tolist(), kept[1])), (
            param.grad if param.grad is None else param.grad.tolist()
        )

    def test_the_sum_before_the_jobs_hooks_is_kept(self):
        """What hooks made of the sum 2, 8 of each backward: the sum before them, and the gradient after."""

        def by(factor):
            return lambda param: param.grad.mul_(factor)

        def plus(more):
            return lambda param: param.grad.add_(more)

        def drop(param):
            param.grad = None

        table = {
            "halved": ([by(0.5)], {}, ([2, 8], ["dp"]), [1, 4]),
            "one element": ([lambda param: param.grad[1:].zero_()], {}, ([2, 8], ["dp"]), [2, 0]),
            "nearly nothing is left": ([by(2.0**-40)], {}, ([2, 8], ["dp"]), [2.0**-39, 2.0**-37]),
            "two hooks": ([by(0.5), plus(1.0)], {}, ([2, 8], ["dp"]), [2, 5]),
            "the other order": ([plus(2.0), by(0.5)], {}, ([2, 8], ["dp"]), [2, 5]),
            "two backwards": ([plus(1.0)], {"backwards": 2}, ([4, 16], ["dp"]), [6, 18]),
            "three": ([plus(1.0)], {"backwards": 3}, ([6, 24], ["dp"]), [9, 27]),
            "looked at": ([lambda param: None], {}, None, [2, 8]),
            "hooks that cancel": ([by(0.5), by(2.0)], {}, None, [2, 8]),
            "no hook": ([], {}, None, [2, 8]),
            "cleared": ([drop], {}, None, None),
            "without a wrapper": ([by(0.5)], {"own": True}, None, [1, 4]),
            "in a flat buffer": ([by(0.5)], {"flat": True}, None, [1, 4]),
            "no sum is taken": ([by(0.5)], {"take": lambda entry: None}, None, [1, 4]),
        }
        for name, (hooks, more, before, after) in table.items():
            with self.subTest(name):
                self.assertEqual(self.around(hooks, **more), (before, after))

    def test_an_error_around_a_hook_is_kept_from_the_job(self):
        one, reported = entry(owned=nn.Parameter(torch.ones(3))), []
        one.owned.register_post_accumulate_grad_hook(lambda param: None)
        found = _afterwards.Afterwards([one], None, None, lambda name, do, *given: reported.append((name, do, *given)))
        found.attach()
        self.addCleanup(found.remove)
        one.owned.sum().backward()
        self.assertEqual(reported, [("w", found._note_before, one), ("w", found._note_after, one)])

    def test_steps_are_noted_once_each(self):
        """What the optimizer is called with, how often, and whether its step calls its parent's."""
        for calls, nested, closure, doubted in (
            (1, False, False, False),
            (2, False, False, True),
            (1, True, False, False),
            (1, False, True, False),
            (2, False, True, True),
            (1, True, True, False),
        ):
            one = entry()
            one.owned.grad = torch.ones(3)
            taken = lambda _, one=one: (_sample.Piece(one.owned.grad.clone(), None, (3,)), [])  # noqa: E731
            found = _afterwards.Afterwards([one], taken, lambda *_: "sum", lambda _, do, *given: do(*given))

            class Inner(torch.optim.SGD):
                pass

            class Outer(Inner):
                def step(self, closure=None):
                    return super().step(closure)

            optimizer = (Outer if nested else Inner)([one.owned], 0.1)
            found.attach()
            try:
                for _ in range(calls):
                    optimizer.step(*([lambda: None] if closure else []))
            finally:
                found.remove()
            self.assertEqual(found._stepped["w"][0].values.tolist(), [1, 1, 1])
            self.assertEqual(found.values, {"w": "sum"})
            self.assertEqual(bool(one.unjudged), doubted, (calls, nested, closure))

    def test_nothing_is_left_of_a_watch(self):
        kept = lambda: [  # noqa: E731
            torch._amp_foreach_non_finite_check_and_unscale_,
            *(vars(torch.amp.GradScaler)[name] for name in ("scale", "get_scale", "unscale_")),
            len(_global_optimizer_pre_hooks),
            len(_global_optimizer_post_hooks),
        ]
        before, found = kept(), _afterwards.Afterwards([entry()], None, None, None)
        found.attach()
        during = kept()
        self.assertEqual([one == other for one, other in zip(before, during)], [False] * len(before))
        found.remove()
        self.assertEqual(kept(), before)

    def test_two_scales_in_one_watch_are_not_judged(self):
        for second, doubted in ((1 / 16, False), (1 / 8, True)):
            one = entry()
            one.owned.grad = torch.ones(3)
            found = _afterwards.Afterwards([one], None, None, None)
            for inverse in (1 / 16, second):
                found._note_scale([one.owned.grad], torch.tensor(inverse))
            self.assertEqual((found.scaled, bool(one.unjudged)), ({"w": 1 / 16}, doubted))
            if doubted:
                says(self, one.unjudged, "GradScaler", "by 16", "by 8")
            found._note_scale([torch.ones(3)], torch.tensor(0.5))
            self.assertEqual(found.scaled, {"w": 1 / 16})


if __name__ == "__main__":
    unittest.main()
