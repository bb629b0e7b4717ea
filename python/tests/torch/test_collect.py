"""Test how the first rank reads all ranks' dump files in pieces, and that the verdict is the same as with all files
at hand, also if it must read some twice.
"""

import contextlib
import os
import tempfile
import unittest
from unittest import mock

import torch
import torch.distributed as dist
from says import says
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import addend
import addend.torch
import ranks
from addend.torch import _collect, _files, _gather, _report, _sample

WIDTH, LAYERS = 64, 6


def model_of_layers():
    torch.manual_seed(1)
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))


def step_of(model, microbatches):
    for m in range(microbatches):
        x = torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(100 * dist.get_rank() + m))
        model(x).square().mean().backward()


def taken(folder):
    """Return the bytes that the folder takes on disk."""
    return sum(512 * os.stat(os.path.join(folder, name)).st_blocks for name in os.listdir(folder))


def run_watched(at_once, mutated):
    """Return (the report, number of chunks, most bytes that they took on disk)."""
    model, seen, most = DistributedDataParallel(model_of_layers()), [], [0]
    bring = _collect.Collection.bring

    def measure(collection):
        bring(collection)
        seen.append(len(collection.chunks))
        if dist.get_rank() == 0:
            most[0] = max(most[0], taken(collection._folder))

    put_bug = addend.torch.mutate(model, "skip") if mutated else contextlib.nullcontext()
    with mock.patch.object(_gather, "AT_ONCE", at_once), mock.patch.object(_collect.Collection, "bring", measure):
        with contextlib.redirect_stdout(None), put_bug, addend.torch.watch(model) as watch:
            step_of(model, 2)
    return watch.report, seen, most[0]


def run_dumped(at_once, folder):
    model = DistributedDataParallel(model_of_layers())
    with mock.patch.object(_gather, "AT_ONCE", at_once), addend.torch.dump(model, folder):
        step_of(model, 2)


def run_hooked(at_once):
    """A hook of the job's own changes one parameter's gradient, and the changed one is summed."""
    model = DistributedDataParallel(model_of_layers())
    mask = (torch.arange(WIDTH) % 2).float()
    model.module[3].weight.register_hook(lambda gradient: gradient * mask)
    with mock.patch.object(_gather, "AT_ONCE", at_once), contextlib.redirect_stdout(None):
        with addend.torch.watch(model) as watch:
            step_of(model, 2)
    return watch.report


class Collect(unittest.TestCase):
    def test_what_hooks_made_comes_in_parts_too(self):
        whole, parts = (ranks.run(3, run_hooked, at_once) for at_once in (64 << 20, 1 << 18))
        self.assertEqual(whole, parts)
        open_ones = [param.name for param in whole[0].params if not param.ok]
        self.assertEqual((whole[0].ok, open_ones), (None, ["3.weight"]), str(whole[0]))
        says(self, "\n".join(whole[0].messages), "`3.weight`")

    def test_only_what_no_addends_give_is_brought_together(self):
        params = tuple(
            addend.DiffParam(name, False, kind=kind, sampled=sampled)
            for name, kind, sampled in (
                ("a", "not_fitted", 8),
                ("b", "unexplained", 8),
                ("c", "averaged", 8),
                ("d", "unexplained", 1 << 30),
                ("e", "unexplained", 8),
            )
        )
        report = addend.DiffReport(False, params, None, "", world=2, microbatches=1)
        self.assertEqual(_report.unexplained(report), ["b"])
        report = addend.DiffReport(False, params[:3] + params[4:], None, "", world=2, microbatches=1)
        self.assertEqual(_report.unexplained(report), ["b", "e"])

    def test_what_is_judged_again_brings_its_declarations(self):
        def report(**kinds):
            judged = {"pass": False, "verdict": "wrong", "text": ""}
            params = [{"name": name, "kind": kind, **judged} for name, kind in kinds.items()]
            rows = [{"name": name, "by": kind} for name, kind in kinds.items()]
            whole = {"params": params, "declarations": rows, "messages": [], "world": 2}
            return _report.of_document({"pass": False, "verdict": "wrong", **whole})

        again = _report.with_params(report(a="averaged", b="unexplained"), report(a="other", b="shifted"))
        self.assertEqual([(row.name, row.by) for row in again.declarations], [("a", "averaged"), ("b", "shifted")])
        self.assertEqual([param.kind for param in again.params], ["averaged", "shifted"])

    def test_a_sampler_keeps_apart_wholes_of_one_name(self):
        sampler, part = _sample.Sampler(8), torch.arange(50.0)
        box = _sample.Box((0,), (50,))
        half = sampler.take("p", (100,), part, box).values
        whole = sampler.take("p", (50,), part, box).values
        self.assertLess(len(half), 8)
        self.assertEqual(whole.tolist(), _sample.sampled("p", 50, 8).tolist())

    def test_a_thinned_plan_takes_a_few_evenly_and_all_where_there_are_few(self):
        for drawn in (1, 7, 8, 9, 15, 16, 17, 1023):
            part, box = torch.arange(5000.0), _sample.Box((0,), (5000,))
            plan = _sample.Sampler(drawn).plan("p", (5000,), part, box)
            every, few = plan.take(part).values.tolist(), plan.thinned(8).take(part).values.tolist()
            step = -(-drawn // 8)
            self.assertEqual(few, every[::step])
            self.assertLessEqual(len(few), 8)
            self.assertGreaterEqual(2 * len(few), min(drawn, 8))
            self.assertEqual(plan.take(part).values.tolist(), every)  # the plan is as before
        whole = _sample.Sampler(None).plan("p", (5000,), part, box)
        self.assertEqual(whole.thinned(8).take(part).values.tolist(), part.tolist())

    def test_a_part_at_a_time_is_judged_as_all_at_once(self):
        for mutated in (False, True):
            whole = ranks.run(3, run_watched, 64 << 20, mutated)
            parts = ranks.run(3, run_watched, 1 << 18, mutated)
            self.assertEqual(whole[0][1], [1])
            for (report, _, _), (in_parts, seen, _) in zip(whole, parts):
                self.assertEqual(report.ok, not mutated)
                self.assertEqual(report, in_parts)
                self.assertEqual(seen, [len(seen)] * len(seen))
                self.assertGreater(len(seen), 3)
            self.assertLess(parts[0][2], whole[0][2] / 2)

    def test_what_is_judged_leaves_nothing_on_disk(self):
        names, block = [f"p{i}" for i in range(8)], 4096
        file = _files.Encoded(bytes(100), {name: bytes([1]) * (4 * block) for name in names})
        with tempfile.TemporaryDirectory() as folder, mock.patch.object(_gather, "AT_ONCE", 1):
            collection = _collect.Collection(folder, [("addend", 0, file)], names, None)
            self.assertEqual(len(collection.chunks), len(names))
            for _ in names:
                collection.bring()
                # blocks of the header, and those that contain a part of the parameter
                self.assertLessEqual(taken(folder), 6 * block)
                collection.drop()

    def test_what_is_dropped_takes_nothing_else_along(self):
        names, header, length = [f"p{i}" for i in range(5)], b"h" * 5000, 3000
        file = _files.Encoded(header, {name: bytes([1 + i]) * length for i, name in enumerate(names)})
        with tempfile.TemporaryDirectory() as folder, mock.patch.object(_gather, "AT_ONCE", 1):
            collection = _collect.Collection(folder, [("addend", 0, file)], names, None)
            path = os.path.join(folder, _files.file_name(0, "addend", 0))
            for i, name in enumerate(names):
                collection.bring()
                with open(path, "rb") as opened:
                    self.assertEqual(opened.read(len(header)), header)
                    opened.seek(i * length, os.SEEK_CUR)
                    self.assertEqual(opened.read(length), file.data[name])
                collection.drop()
            with open(path, "rb") as opened:
                self.assertEqual(opened.read(len(header)), header)

    def test_a_dump_has_all_of_it(self):
        reports = []
        for at_once in (64 << 20, 1 << 16):
            with tempfile.TemporaryDirectory() as folder:
                ranks.run(3, run_dumped, at_once, folder)
                reports.append(addend.diff(folder))
                self.assertEqual(len(os.listdir(folder)), 9)
        self.assertTrue(reports[0].ok)
        self.assertEqual(reports[0], reports[1])


if __name__ == "__main__":
    unittest.main()
