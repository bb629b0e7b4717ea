"""Test by tables how many entries of a list a message shows, and that it says so where there are more: of ranks,
parameters, modules, factors and calls. No job runs. Sources: _gather, _names, _readings and _watch of addend.torch, and
_judge, _places, _report and _where of its _checks.
"""

import dataclasses
import types
import unittest
from unittest import mock

from addend.torch import _gather, _names, _readings, _watch
from addend.torch._checks import _judge, _places, _report, _where
from addend.torch._checks._axes import Axes

DP = Axes({"dp": 2})


def of(count):
    return [f"layer{i:02}.weight" for i in range(count)]


class Shown(unittest.TestCase):
    def hold(self, most, say, more=None):
        """`say(names)` shows at most `most` of them, in order; `more`: what it has behind them if there are others."""
        for count in (1, most - 1, most, most + 1, 3 * most):
            said, names = say(of(count)), of(count)
            shown = [name for name in names if name in said]
            self.assertEqual(shown, names[:most], said)
            self.assertEqual([said.index(name) for name in shown], sorted(said.index(name) for name in shown))
            if more:
                self.assertIs(more in said.rpartition(shown[-1])[2], count > most, said)

    def test_ranks(self):
        for count in (1, 2, 7, 8, 9, 30):
            said = _gather.ranks_text(list(range(100, 100 + count)))
            numbers = [int(word) for word in said.replace(",", " ").split() if word.isdigit()]
            self.assertEqual(numbers, [*range(100, 100 + count)][:8] + [count - 8] * (count > 8), said)

    def test_parameters_that_no_rank_used(self):
        known = types.SimpleNamespace(_lost=["lost"], _ties=[], _afterwards=None, _nowhere=[])
        known._mesh = known._types = known._expect = None
        known._watched = []

        def say(names):
            known._unused = ["lost", *names]
            (said,) = _watch.watch._notes(known, None)
            return said

        none = dict.fromkeys(("contradicted_ties", "smaller_groups", "unsaid"), lambda *_: [])
        with mock.patch.multiple(_watch._expected, **none):
            self.hold(3, say, " ...")

    def test_parameters_that_no_gradient_reached(self):
        report = _report.MatchReport(True, 2, "dp=2", 1.0, 1.0, 1e-9, ())
        self.hold(3, lambda names: str(dataclasses.replace(report, unreached=tuple(names))), ", ...")

    def test_parameters_that_one_process_does_not_have(self):
        whole = types.SimpleNamespace(weights={"w": None})

        def say(names):
            parts = [types.SimpleNamespace(params=dict.fromkeys(some)) for some in (["w"], names, [*names[:1], "w"])]
            return _judge.Judge._renamed(types.SimpleNamespace(whole=whole, parts=parts))

        self.hold(4, say, ", ...")
        self.assertEqual(say([]), "")

    def test_parameters_of_which_one_may_be_meant(self):
        def say(names):
            try:
                return _names._resolve("missing", dict.fromkeys(names, {0}))
            except ValueError as error:
                return str(error)

        self.hold(5, say, " ...")

    def test_factors_of_a_hook_on_ranks(self):
        for count in (2, 3, 4, 5):
            said = _readings._doubt_of({rank: 2.0**-rank for rank in range(count)})
            shown = [rank for rank in range(count) if f"by {2.0**-rank:.6g} on rank {rank}" in said]
            self.assertEqual(shown, [*range(count)][:3], said)
            self.assertIs("others" in said, count > 3, said)

    def test_losses_of_microbatches(self):
        for count in (2, 6, 7, 20):
            scales = {(rank, m): 1.0 + rank + m / 16 for rank in range(2) for m in range(count - count // 2)}
            scales = dict(list(scales.items())[:count])
            modules = types.SimpleNamespace(
                scales=scales, _averaged={0: 2.0, 1: 2.0}, begins=lambda *reported: reported
            )
            place, module, said, axes, factor = _where.Modules.loss(modules)
            self.assertEqual((place, module, axes, factor), ("loss", "", frozenset(), None))
            shown = [at for at in scales if f"rank {at[0]}'s microbatch {at[1]}: {scales[at] / 2:.6g}" in said]
            self.assertEqual(shown, list(scales)[:6], said)
            self.assertIs(said.endswith("..."), count > 6, said)

    def test_collectives_inside_a_module(self):
        for count in (0, 1, 7, 8, 9):
            noted = [("up", "forward", f"all_reduce over {i}", "job.py:7") for i in range(count)] * 2
            noted.insert(0, ("down", "forward", "all_gather over dp", "job.py:8"))
            record = types.SimpleNamespace(collectives=noted, places={"up": "job.py:1"})
            modules = types.SimpleNamespace(ranks={3: record}, axes=DP)
            found = _where.Modules.begins(modules, "forward", "up", "wrong", frozenset({"dp"}), None)
            self.assertEqual((found.module, found.axes, found.where), ("up", ("dp",), "job.py:1"))
            self.assertEqual(
                found.collectives, tuple(f"forward, all_reduce over {i} (job.py:7)" for i in range(min(count, 8)))
            )

    def test_calls_of_which_one_is_wrong(self):
        """Calls that surely are it are named, however few; those that may be it only if they are several."""
        begins = _report.Begins("", "backward", "wrong")
        for begin_in, few in ((True, 1), (None, 2)):
            for count in (0, 1, 2, 3, 4, 5, 9):
                places = _places.Places(types.SimpleNamespace())
                call = types.SimpleNamespace(plain=True, ranks=True)
                sites = [_places.Site(f"f{i}", f"job.py:{i}", "", {0: [call]}) for i in range(count)]
                places._sites, places._begins_in = (
                    lambda module, sites=sites: sites,
                    lambda *_, reported=begin_in: reported,
                )
                expected = [str(site) for site in sites][:4] if count >= few else []
                self.assertEqual(places.narrowed(begins).calls, tuple(expected))


if __name__ == "__main__":
    unittest.main()
