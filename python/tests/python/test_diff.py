"""Test addend.diff on dumps written without a framework, and its report as Python sees it."""

import contextlib
import importlib.util
import io
import itertools
import json
import pickle
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import numpy
from says import raises

import addend
from addend._progress import progress

SOURCE = Path(__file__).resolve().parents[3]
_found = importlib.util.spec_from_file_location("dumps", SOURCE / "audit" / "tests" / "cli" / "dumps.py")
dumps = importlib.util.module_from_spec(_found)
_found.loader.exec_module(dumps)

RANKS = 4


def write(path, kind, rank, tensors, **more):
    metadata = {"addend.version": "1", "addend.kind": kind, "addend.step": "5"}
    if rank is not None:
        metadata.update({"addend.rank": str(rank), "addend.mesh": f"dp={RANKS}", "addend.expect": "0.25"})
    metadata.update({f"addend.{key}": str(value) for key, value in more.items()})
    values = {name: ("F32", list(tensor.shape), tensor.ravel().tolist()) for name, tensor in tensors.items()}
    dumps.write(path, metadata, values)


class Dump:
    """Write a step of four ranks that average two parameters; `wrong` gives w's sum from the addends."""

    def __init__(self, folder, wrong=None, norm_of=None, identical=False):
        self.folder = Path(folder)
        draw = numpy.random.default_rng(1)
        addends = [{"w": draw.standard_normal((8, 4)), "b": draw.standard_normal(6)} for _ in range(RANKS)]
        addends = [{name: tensor.astype("f4") for name, tensor in one.items()} for one in addends]
        if identical:
            addends[2]["w"] = addends[1]["w"]
        sums = {name: sum(one[name] for one in addends) / RANKS for name in ("w", "b")}
        self.whole = dict(sums)
        if wrong:
            sums["w"] = wrong([one["w"] for one in addends]).astype("f4")
        norm = {"norm": norm_of(sums)} if norm_of else {}
        for rank in range(RANKS):
            write(self.folder / f"{rank}.addend.safetensors", "addend", rank, addends[rank])
            write(self.folder / f"{rank}.sum.safetensors", "sum", rank, sums, **norm)


def norm(sums):
    return float(numpy.sqrt(sum((tensor.astype("f8") ** 2).sum() for tensor in sums.values())))


class Reports(unittest.TestCase):
    def test_a_report_has_other_forms(self):
        with tempfile.TemporaryDirectory() as folder:
            Dump(folder, lambda addends: sum(addends) / RANKS / 2)
            report = addend.diff(folder, html=Path(folder, "map.html"))
            page = Path(folder, "map.html").read_text()
        self.assertIn("BAD  w ", report.full_table())
        self.assertTrue(report.github().startswith("::error title=addend%3A "), report.github())
        self.assertEqual(report.html(), page)
        self.assertEqual(report.table.splitlines()[-2], f"more: addend explain {report['w'].kind}")

    def test_kinds_are_explained(self):
        self.assertTrue(addend.explain("own_only").startswith("# own_only: "))
        self.assertIn("\n  own_only ", addend.explain())
        with raises(self, addend.InvalidError, "own_onyl", "own_only"):
            addend.explain("own_onyl")

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def test_what_is_right_is_right(self):
        Dump(self.folder, norm_of=norm)
        report = addend.diff(self.folder)
        self.assertTrue(report.ok)
        self.assertEqual((report.world, report.mesh, report.step, report.microbatches), (4, "dp=4", 5, 1))
        self.assertEqual(
            {param.name: (param.ok, param.verdict) for param in report.params}, dict.fromkeys("wb", (True, "right"))
        )
        self.assertTrue(report.norm.ok)
        self.assertEqual(str(report), report.table)
        files = sorted(str(path) for path in self.folder.iterdir())
        self.assertEqual(addend.diff(files).params, report.params)

    def test_an_addend_that_is_missing_is_named_by_its_rank(self):
        Dump(self.folder, wrong=lambda addends: (addends[0] + addends[1] + addends[3]) / RANKS)
        report = addend.diff(self.folder)
        self.assertFalse(report.ok)
        self.assertTrue(report["b"].ok)
        wrong = report["w"]
        self.assertEqual((wrong.verdict, wrong.kind, wrong.axis, wrong.ranks), ("wrong", "missing", "dp", (2,)))
        self.assertEqual([round(count, 3) for (count,) in wrong.counts], [1, 1, 0, 1])
        self.assertEqual(len(wrong.errors), RANKS)
        with self.assertRaises(KeyError):
            report["nothing"]

    def test_what_was_averaged_twice_has_its_factor(self):
        Dump(self.folder, wrong=lambda addends: sum(addends) / RANKS**2)
        wrong = addend.diff(self.folder)["w"]
        self.assertEqual((wrong.verdict, wrong.kind, wrong.axis), ("wrong", "averaged", "dp"))
        self.assertAlmostEqual(wrong.factor, 0.25, places=4)

    def test_a_cause_is_one_that_alone_fits(self):
        Dump(self.folder, wrong=lambda addends: sum(addends) / RANKS**2)
        wrong = addend.diff(self.folder)["w"]
        self.assertEqual(wrong.possible_causes, ())
        self.assertEqual((wrong.cause.kind, wrong.cause.axes, wrong.cause.place), ("averaged", "dp", None))
        tied = self.folder / "tied"
        job = dumps.Job("a=2 b=2", [dumps.Param("w", [9])])
        job.save(tied, counts=lambda p, rank: dict.fromkeys(job.right(p, rank), 0.5))
        wrong = addend.diff(tied)["w"]
        self.assertEqual((wrong.kind, wrong.axis, wrong.cause), ("averaged", None, None))
        self.assertEqual([cause.axes for cause in wrong.possible_causes], ["a", "b"])
        self.assertIsInstance(wrong.possible_causes[0], addend.Cause)

    def test_declarations_and_calls_are_listed(self):
        metadata = {
            "addend.declared": json.dumps(
                {"w": [{"types": "tp=I", "by": "spmd_types", "where": "model.py:4", "counts": True}]}
            ),
            "addend.calls": json.dumps(
                [{"operation": "all_reduce", "bytes": 36, "count": 2, "params": ["w"]}, {"unseen": "x"}]
            ),
        }
        job = dumps.Job("dp=2 tp=2", [dumps.Param("w", [9], "tp=I")])
        for rank in 1, 3:
            job.addends[rank, 0, "w"] = [-value for value in job.addends[rank, 0, "w"]]
        for name in "a", "b":  # two modules of one folder
            job.save(self.folder, metadata=metadata)
            for path in self.folder.glob("rank*"):
                path.rename(path.with_name(f"{name}.{path.name}"))
        report = addend.diff(self.folder)
        (row,) = report.modules["a"].declarations
        self.assertEqual(
            (row.name, row.axis, row.type, row.by, row.where), ("w", "tp", "I", "spmd_types", "model.py:4")
        )
        self.assertEqual((row.counts, row.holds, row.why, row.dtype), (True, False, "differ", ""))
        self.assertIn("spmd_types, model.py:4", row.text)
        self.assertEqual(report.declarations, (row, row))
        (call,) = report.modules["a"].calls
        self.assertEqual((call.operation, call.bytes, call.count, call.params), ("all_reduce", 36, 2, ("w",)))
        self.assertEqual((call.made_by, call.axes, call.finding), ((0, 1, 2, 3), "", ""))
        self.assertEqual((len(report.calls), set(report.calls_unseen)), (2, {"x"}))

    def test_another_operation_is_named(self):
        Dump(self.folder, wrong=lambda addends: numpy.maximum.reduce(list(addends)))
        cause = addend.diff(self.folder)["w"].cause
        self.assertEqual((cause.kind, cause.operation, cause.axes), ("other_operation", "maximum", "dp"))
        other = self.folder / "other"
        other.mkdir()
        Dump(other, wrong=lambda addends: sum(addends) / RANKS**2)
        self.assertIsNone(addend.diff(other)["w"].cause.operation)

    def test_what_cannot_be_told_is_neither_right_nor_wrong(self):
        Dump(self.folder, identical=True)
        report = addend.diff(self.folder)
        self.assertEqual((report.ok, report.verdict), (None, "cannot_tell"))
        self.assertEqual((report["b"].ok, report["b"].verdict), (True, "right"))
        open_ = report["w"]
        self.assertEqual((open_.ok, open_.verdict, open_.kind), (None, "cannot_tell", "identical_addends"))
        self.assertEqual((open_.ranks, open_.counts), ((1, 2), ((1,), (None,), (None,), (1,))))
        self.assertIn("CANNOT TELL", str(report))
        self.assertTrue(addend.diff(self.folder, allow_identical=True).ok)

    def test_any_number_of_threads_gives_the_same_report(self):
        Dump(self.folder, identical=True)
        self.assertEqual(addend.diff(self.folder, threads=3).document, addend.diff(self.folder).document)
        for threads in (0, 65):
            with raises(self, ValueError, "threads", "1 to", "64", str(threads)):
                addend.diff(self.folder, threads=threads)

    def test_a_norm_that_counts_twice_is_not_the_sums(self):
        Dump(self.folder, norm_of=lambda sums: 2 * norm(sums))
        report = addend.diff(self.folder)
        self.assertFalse(report.ok)
        self.assertFalse(report.norm.ok)
        self.assertAlmostEqual(report.norm.reported, 2 * report.norm.computed, places=4)

    def test_a_reference_gives_a_ratio(self):
        dump = Dump(self.folder, wrong=lambda addends: sum(addends) / RANKS / 2)
        reference = self.folder.parent / (self.folder.name + ".reference.safetensors")
        self.addCleanup(reference.unlink)
        write(reference, "reference", None, dump.whole)
        report = addend.diff(self.folder, reference=reference)
        self.assertFalse(report.ok)
        self.assertAlmostEqual(report["w"].reference.ratio, 0.5, places=4)
        self.assertEqual(report["w"].reference.cause.kind, "unknown")

    def test_the_map_is_a_page(self):
        Dump(self.folder)
        page = self.folder / "map.html"
        addend.diff(sorted(self.folder.glob("*.safetensors")), html=page)
        self.assertIn("<html", page.read_text(encoding="utf-8"))

    def test_the_document_and_the_report_travel(self):
        Dump(self.folder)
        report = addend.diff(self.folder)
        self.assertEqual(pickle.loads(pickle.dumps(report)), report)
        self.assertEqual(json.loads(json.dumps(report.document))["pass"], report.ok)
        error = addend.GradientError(report)
        self.assertEqual((error.report, str(error)), (report, report.table))
        self.assertEqual(pickle.loads(pickle.dumps(error)).report, report)

    def test_files_that_are_no_dump_are_named(self):
        Dump(self.folder)
        cut = self.folder / "1.addend.safetensors"
        cut.write_bytes(cut.read_bytes()[:-3])
        with raises(self, addend.InvalidError, "1.addend.safetensors"):
            addend.diff(self.folder)
        cut.unlink()
        with raises(self, addend.InvalidError, "rank 1"):
            addend.diff(self.folder)
        with self.assertRaises(addend.AddendError):
            addend.diff([])
        with raises(self, addend.AddendError, "nowhere"):
            addend.diff("nowhere")


class Progress(unittest.TestCase):
    def test_it_is_shown_only_to_those_who_ask(self):
        for show in False, True:
            written, clock = io.StringIO(), itertools.count(100, 10)
            with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(written):
                with contextlib.redirect_stdout(written), mock.patch("time.monotonic", lambda clock=clock: next(clock)):
                    self.assertTrue(addend.diff(Dump(folder).folder, show=show).ok)
            self.assertEqual(bool(written.getvalue()), show, written.getvalue())

    def lines_of(self, sentences, seconds):
        """Return what is printed of `told` calls with so many seconds between two of them."""
        written = io.StringIO()
        clock = itertools.count(100, seconds)
        with mock.patch("time.monotonic", lambda: next(clock)), contextlib.redirect_stderr(written):
            with progress("diff") as tell:
                for i in range(sentences):
                    tell(None, b"files", i + 1, sentences)
        return written.getvalue().splitlines()

    def test_elsewhere_than_on_a_terminal_work_that_lasts_is_reported_now_and_then(self):
        self.assertEqual(self.lines_of(8, 0.5), [])
        self.assertEqual(self.lines_of(8, 2), ["diff 3/8 files", "diff 6/8 files"])


if __name__ == "__main__":
    unittest.main()
