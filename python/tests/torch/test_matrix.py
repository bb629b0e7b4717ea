"""Test `addend.torch.matrix` and `addend torch-matrix`: verdicts of cells, their order and budget, what is known, and
the report's forms. Cells are a project's own, on DDP; those of Transformers are in test_matrix_transformers.py."""

import dataclasses
import json
import os
import pathlib
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from unittest import mock

import torch
from says import raises_facts, says_facts

import addend
import addend.torch
from addend.torch._checks import _ranks
from addend.torch._matrix import _cells, _known, _matrix, _mutants, _run, _show
from addend.torch._matrix._cells import CANNOT_RUN, CANNOT_TELL, MATCHES, NOT_TRIED, WRONG, Cell, Layout, Outcome

ROOT = pathlib.Path(__file__).resolve().parents[3]
PROGRAM = pathlib.Path(os.environ["ADDEND_LIBRARY"]).resolve().parent / "addend"
HANGS = 120  # seconds; many times what a command takes

PAGE = (ROOT / "python" / "docs" / "torch-matrix.md").read_text(encoding="utf-8")
JOBS = re.search(r"^```python\n(# jobs\.py\n.*?)^```", PAGE, re.M | re.S)[1]  # as the page has it, meshes and all
TWO_LAYOUTS = (
    JOBS
    + """

def forgets(model, microbatches, loss):
    \"\"\"Leaves out the last microbatch where there are several.\"\"\"
    for batch in microbatches[: max(1, len(microbatches) - 1)]:
        loss(model, batch).backward()


layouts = {"right": {"mesh": {"dp": 3}}, "forgets": {"mesh": {"dp": 2}, "run": forgets}}
"""
)


def cell(model="m", count=1, **sizes):
    return Cell(model, Layout(sizes or {"dp": 2}), count)


def outcome(verdict, one, *wrong, why="", unreached=(), missing=()):
    report = {"params": [{"name": name, "ok": False} for name in wrong], "unreached": list(unreached)}
    return Outcome(one, verdict, why, report, "", tuple(missing))


def report(*outcomes, known=()):
    return _matrix.MatrixReport(tuple(outcomes), tuple(known), 1.5)


class Names(unittest.TestCase):
    def test_numbers_of_layers_are_stars(self):
        for name, star in (
            ("model.layers.10.mlp.w1.weight", "model.layers.*.mlp.w1.weight"),
            ("0.bias", "*.bias"),
            ("blocks.3", "blocks.*"),
            ("conv1d.h2.weight", "conv1d.h2.weight"),
        ):
            self.assertEqual(_cells.starred(name), star)

    def test_cells_and_layouts(self):
        layout = Layout({"fsdp": 4, "tp": 3}, {"ep": 2}, "frozen")
        self.assertEqual((layout.name, layout.ranks), ("fsdp=4 tp=3 ep=2, frozen", 12))
        self.assertEqual(Cell("a", Layout({"tp": 2}), 1).name, "a, tp=2, 1 microbatch")
        self.assertEqual(Cell("a", Layout({"tp": 2}), 3).name, "a, tp=2, 3 microbatches")


class Runs(unittest.TestCase):
    """What becomes of a cell's process, whatever it does."""

    def run_cells(self, *jobs, **options):
        cells = [cell(count=i + 1) for i in range(len(jobs))]
        return _run.run(lambda one, folder: jobs[one.microbatches - 1](folder), cells, **options)

    def test_a_broken_cell_does_not_end_others(self):
        def crash(_):
            os.write(2, b"cell_17_was_here\n")
            os.kill(os.getpid(), signal.SIGSEGV)

        def leave(_):
            os._exit(7)

        def refuse(_):
            raise ValueError("no_plan")

        def hang(_):
            time.sleep(HANGS)

        def wrong_call(_):
            return _cells.Job({"mesh": {"dp": 2}})

        found = self.run_cells(crash, leave, refuse, hang, wrong_call, timeout=2.0)
        self.assertEqual([one.verdict for one in found], [CANNOT_RUN] * 5)
        says_facts(self, found[0].why, "signal 11", "cell_17_was_here")
        says_facts(self, found[1].why, "7")
        says_facts(self, found[2].why, "ValueError", "no_plan")
        says_facts(self, found[3].why, "2 s")
        says_facts(self, found[4].why, "make_model")
        self.assertEqual([one.cell.microbatches for one in found], [1, 2, 3, 4, 5])

    def test_what_a_cell_started_ends_with_it(self):
        here, there = os.pipe()

        def leaves_a_child(_):
            if not os.fork():
                time.sleep(10 * HANGS)
            raise ValueError("the child holds the pipe")

        found = self.run_cells(leaves_a_child)
        os.close(there)
        self.assertEqual(found[0].verdict, CANNOT_RUN)
        readable, _, _ = select.select([here], [], [], HANGS)  # readable once nobody holds the other end
        self.assertEqual(readable, [here])
        self.assertEqual(os.read(here, 1), b"")
        os.close(here)

    def test_what_a_cell_started_ends_with_the_process_of_the_matrix(self):
        here, there = os.pipe()

        def waits_with_a_rank(folder):
            _ranks.run(["rank 0"], lambda rank: (os.write(there, b"r"), time.sleep(10 * HANGS)), folder, 10 * HANGS)

        matrix = os.fork()
        if not matrix:
            self.run_cells(waits_with_a_rank, timeout=10 * HANGS)
            os._exit(0)
        os.close(there)
        self.assertEqual(os.read(here, 1), b"r")
        os.kill(matrix, signal.SIGKILL)
        os.waitpid(matrix, 0)
        readable, _, _ = select.select([here], [], [], HANGS)
        self.assertEqual(readable, [here])
        self.assertEqual(os.read(here, 1), b"")
        os.close(here)

    def test_no_cell_is_begun_after_the_minutes(self):
        found = self.run_cells(lambda _: 1 / 0, lambda _: 1 / 0, budget=_run.Budget(0))
        self.assertEqual([one.verdict for one in found], [NOT_TRIED] * 2)

    def test_a_request_to_stop_ends_what_runs_and_keeps_what_is_known(self):
        known = []
        found = self.run_cells(
            lambda _: 1 / 0,
            lambda _: time.sleep(10 * HANGS),
            lambda _: 1 / 0,
            timeout=10 * HANGS,
            budget=_run.Budget(None, lambda: "asked" if known else ""),
            progress=known.append,
        )
        self.assertEqual([one.verdict for one in found], [CANNOT_RUN, NOT_TRIED, NOT_TRIED])
        self.assertEqual([one.why for one in found[1:]], ["asked"] * 2)

    def test_a_cell_that_is_killed_while_it_is_mutated_says_so(self):
        def kills(job, seconds):
            os.kill(os.getpid(), signal.SIGKILL)

        jobs = {"make_model": None}
        exec(compile(JOBS, "jobs.py", "exec"), jobs)
        job = _cells.Job({**{key: jobs[key] for key in ("make_model", "parallelize", "loss")}, "mesh": {"dp": 2}})
        job.arguments["batches"] = lambda rank, mesh: jobs["batches"](rank, mesh, 1)
        with mock.patch.object(_mutants, "mutants", kills):
            (found,) = self.run_cells(lambda _: job, mutate=True)
        self.assertEqual((found.verdict, found.mutants, found.is_untested), (MATCHES, (), True))
        says_facts(self, found.not_mutated, "signal 9")
        self.assertIsNone(report(found).ok)

    def test_each_is_reported_once(self):
        known = []
        found = self.run_cells(lambda _: 1 / 0, lambda _: [][1], jobs=2, progress=known.append)
        self.assertEqual(sorted(map(id, known)), sorted(map(id, found)))
        says_facts(self, found[0].why, "ZeroDivisionError")
        says_facts(self, found[1].why, "IndexError")


class Report(unittest.TestCase):
    def test_ok(self):
        one = cell()
        right, wrong = outcome(MATCHES, one), outcome(WRONG, one, "a.weight")
        cannot, open_, late = outcome(CANNOT_RUN, one), outcome(CANNOT_TELL, one), outcome(NOT_TRIED, one)
        for outcomes, known, ok in (
            ([right], [], True),
            ([right, late], [], None),
            ([right, late], [late], True),
            ([late], [], None),
            ([right, wrong], [], False),
            ([right, wrong], [wrong], True),
            ([wrong, cannot], [], False),
            ([right, cannot], [], None),
            ([right, open_], [], None),
            ([right, cannot], [cannot], True),
            ([cannot, wrong], [cannot], False),
        ):
            self.assertIs(report(*outcomes, known=known).ok, ok)

    def test_what_was_mutated_counts(self):
        def mutants(*results, not_mutated="", known=()):
            some = [_cells.Mutant("hook", f"h{i}", "left out", result) for i, result in enumerate(results)]
            some = [dataclasses.replace(one, known=one.name in known) for one in some]
            return dataclasses.replace(outcome(MATCHES, cell()), mutants=tuple(some), not_mutated=not_mutated)

        noticed, survived, late = _cells.NOTICED, _cells.SURVIVED, NOT_TRIED
        for one, ok in (
            (mutants(noticed), True),
            (mutants(noticed, survived), False),
            (mutants(survived, known=["h0"]), True),
            (mutants(survived, survived, known=["h0"]), False),
            (mutants(noticed, late, not_mutated="1 of 2 were not tried"), None),
            (mutants(not_mutated="it died"), None),
            (dataclasses.replace(mutants(not_mutated="it died"), not_mutated_known=True), True),
        ):
            self.assertIs(report(one).ok, ok)
            is_new = ok is not True
            self.assertEqual("::error" in _show.github(report(one)) or "::warning" in _show.github(report(one)), is_new)
        shown = report(mutants(survived, not_mutated="it_died"))
        says_facts(self, _show.github(shown), "hook h0")
        says_facts(self, _show.github(shown), "it_died")
        self.assertEqual((shown.document["survivors"], shown.document["cells"][0]["not_mutated"]), (1, "it_died"))

    def test_names_with_commas_are_told_apart(self):
        for names, text in (
            (["tp=2", "fsdp=2"], "tp=2, fsdp=2"),
            (["fsdp=2", "fsdp=2, no_sync"], "fsdp=2; fsdp=2, no_sync"),
            (["a", "b", "c, d", "e"], "a; b; c, d; ..."),
            (["a", "b", "c", "d"], "a, b, c, ..."),
        ):
            self.assertEqual(_show._listed(names), text)

    def test_what_a_matching_cell_says_nothing_about(self):
        some = [outcome(MATCHES, cell("a", 1, tp=2)), outcome(MATCHES, cell("a", 2, tp=2), unreached=["x"])]
        some += [outcome(MATCHES, cell("a", 1, tp=3), unreached=["x", "y"]), outcome(MATCHES, cell("b", 1, tp=3))]
        _, rows = _show.entries(some)
        self.assertEqual(rows, [["a", "ok 1; ok* 2", "ok*"], ["b", "", "ok"]])
        lines = [line for line in str(report(*some)).splitlines() if "NOT OBSERVED" in line]
        self.assertEqual(
            [("tp=2, 2 microbatches" in one, "tp=3, 1 microbatch" in one) for one in lines], [(1, 0), (0, 1)]
        )
        self.assertEqual(_show.github(report(*some)).count("::warning"), 2)
        everywhere = report(*(outcome(MATCHES, cell("a", i, tp=2), unreached=["x"]) for i in (1, 2)))
        self.assertEqual(str(everywhere).count("NOT OBSERVED"), 1)

    def test_an_entry_has_what_differs_between_numbers_of_microbatches(self):
        outcomes = [
            outcome(WRONG, cell("a", 2, tp=2)),
            outcome(MATCHES, cell("a", 1, tp=2)),
            outcome(WRONG, cell("a", 3, tp=2)),
            outcome(MATCHES, cell("b", 2, tp=2)),
            outcome(MATCHES, cell("b", 1, tp=2)),
            outcome(CANNOT_RUN, cell("b", 1, fsdp=3)),
        ]
        layouts, rows = _show.entries(outcomes)
        self.assertEqual(layouts, ["tp=2", "fsdp=3"])
        self.assertEqual(rows, [["a", "BAD 2, 3; ok 1", ""], ["b", "ok", "cannot run"]])

    def test_the_verdict_is_the_first_line_and_the_last(self):
        right, wrong = outcome(MATCHES, cell("a", 1)), outcome(WRONG, cell("b", 1), "w")
        for shown, words, status in (
            (report(right), "matches one process: 1 of 1 cell", 0),
            (report(right, wrong), "DOES NOT MATCH one process: 1 of 2 cells", 1),
            (report(right, wrong, known=[wrong]), "matches one process: 1 of 2 cells, 1 known", 0),
            (report(right, outcome(_cells.CANNOT_TELL, cell("c", 1))), "CANNOT TELL: 1 of 2 cells", 3),
            (report(outcome(CANNOT_RUN, cell("c", 1))), "NOT CHECKED: 1 of 1 cell", 3),
        ):
            lines = str(shown).splitlines()
            self.assertEqual((lines[0], lines[-1]), (words, words))
            self.assertEqual(_show.verdict_of(shown).of_matrix, status)

    def test_forms(self):
        bad = outcome(WRONG, cell("a<b", 2, tp=2), "w", why="half, 50%", unreached=["x.7.bias"], missing=["mlp"])
        shown = report(outcome(MATCHES, cell("a<b", 1, tp=2)), bad, outcome(CANNOT_RUN, cell("c", 1), why="no plan"))
        for text, facts in (
            (str(shown), ["BAD 2; ok 1"]),
            (str(shown), ["NOT OBSERVED", "x.7.bias"]),
            (str(shown), ["NOT OBSERVED", "mlp"]),
            (str(shown), ["cannot run", "no plan"]),
            (str(shown), ["3", "1 wrong", "1 cannot run", "1 matches"]),
            (_show.github(shown), ["::error ", "a<b%2C tp=2%2C 2 microbatches", "half, 50%25"]),
            (_show.github(shown), ["::warning ", "no plan"]),
            (_show.page(shown), ["a&lt;b", "BAD 2; ok 1"]),
        ):
            self.assertTrue(any(all(fact in line for fact in facts) for line in text.splitlines()), (facts, text))
        cells = json.loads(json.dumps(shown.document))["cells"]
        self.assertEqual([one["verdict"] for one in cells], [MATCHES, WRONG, CANNOT_RUN])
        self.assertEqual((cells[1]["unobserved"], cells[1]["missing"]), (["x.7.bias"], ["mlp"]))
        self.assertNotIn("::error", _show.github(report(bad, known=[bad])))
        self.assertIn("::error title=bug 1%3A", _show.github(shown))
        late = report(bad, *(outcome(NOT_TRIED, cell("d", i), why="5 minutes were over") for i in (1, 2)), known=[bad])
        self.assertEqual(_show.github(late).count("::warning title=2 cells"), 1)


class Known(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.file = pathlib.Path(folder.name) / "known.txt"

    def test_what_was_written_is_known_and_nothing_else(self):
        layout = {"fsdp": 2}
        bad = outcome(WRONG, cell("a", 2, **layout), "h.0.w", "h.1.w")
        cannot = outcome(CANNOT_RUN, cell("a", 3, **layout), why="rank 0: no plan of this [kind] for a model")
        _known.write(self.file, [bad, cannot, outcome(MATCHES, cell("a", 1, **layout))])
        known = _known.read(self.file)
        self.assertTrue(known.has(bad) and known.has(cannot))
        other = outcome(CANNOT_RUN, cell("a", 3, **layout), why="rank 1: no plan of this [kind] for a model")
        self.assertTrue(known.has(other))  # whichever rank says it first
        for other in (
            outcome(WRONG, cell("b", 2, **layout), "h.0.w"),
            outcome(WRONG, cell("a", 1, **layout), "h.0.w"),
            outcome(WRONG, cell("a", 2, tp=2), "h.0.w"),
            outcome(WRONG, cell("a", 2, **layout), "h.0.w", "norm.weight"),
            outcome(WRONG, cell("a", 2, **layout), "a.bias", "h.0.w"),
            outcome(WRONG, cell("a", 2, **layout), "h.0.b", "h.0.w"),
            outcome(CANNOT_RUN, cell("a", 2, **layout), why="h.*.w"),
            outcome(MATCHES, cell("a", 2, **layout)),
        ):
            self.assertFalse(known.has(other))

    def test_stars(self):
        self.file.write_text("# accepted\n\na* | * | * | wrong | h.*.w\n", encoding="utf-8")
        known = _known.read(self.file)
        self.assertTrue(known.has(outcome(WRONG, cell("ab", 3, tp=2), "h.4.w")))
        self.assertFalse(known.has(outcome(WRONG, cell("b", 3, tp=2), "h.4.w")))

    def test_mutants_that_are_not_noticed(self):
        some = [_cells.Mutant("rule", f"tp `a.{i}`, x: colwise", "left out", _cells.SURVIVED) for i in (1, 2)]
        one = dataclasses.replace(
            outcome(MATCHES, cell("a", 2)), mutants=tuple(some), not_mutated="rank 1: no time at all"
        )
        _known.write(self.file, [dataclasses.replace(one, mutants=tuple(some[:1]))])
        found = _known.read(self.file).marked(one)
        self.assertEqual([each.known for each in found.mutants], [True, False])
        self.assertTrue(found.not_mutated_known)
        other = dataclasses.replace(one, cell=cell("b", 2), not_mutated="none")
        found = _known.read(self.file).marked(other)
        self.assertEqual([each.known for each in found.mutants] + [found.not_mutated_known], [False] * 3)
        self.assertFalse(_known.read(self.file).has(one))

    def test_cells_that_were_not_tried_are_accepted_by_hand_alone(self):
        late = outcome(NOT_TRIED, cell("a", 2), why="5 minutes were over")
        _known.write(self.file, [late])
        self.assertFalse(_known.read(self.file).has(late))
        self.file.write_text("* | * | * | not tried | *\n", encoding="utf-8")
        self.assertTrue(_known.read(self.file).has(late))

    def test_a_line_that_cannot_be_read(self):
        for text, line in (("a | b | 1 | wrong\n", 1), ("# x\na | b | 1 | bad | w\n", 2)):
            self.file.write_text(text, encoding="utf-8")
            with raises_facts(self, addend.InvalidError, f"known.txt:{line}"):
                _known.read(self.file)
        with raises_facts(self, addend.InvalidError, "none.txt"):
            _known.read(self.file.with_name("none.txt"))


class Calls(unittest.TestCase):
    """What `matrix` takes, and what it leaves as it was."""

    def job(self, **more):
        found = {}
        exec(compile(JOBS, "jobs.py", "exec"), found)
        return {**{key: found[key] for key in ("make_model", "parallelize", "batches", "loss", "meshes")}, **more}

    def test_what_is_no_model_layout_time_or_number(self):
        layout = [{"dp": 2}]
        for models, options, *facts in (
            ([3], {}, "3"),
            ([self.job()], {"layouts": [7]}, "7"),
            ([self.job()], {"layouts": 7}, "layouts=7"),
            ([self.job()], {"layouts": [{"dp": 0}]}, "{'dp': 0}"),
            ([self.job()], {"layouts": layout, "microbatches": [0]}, "[0]"),
            ([self.job()], {"layouts": layout, "microbatches": "12"}, "12"),
            ([self.job()], {"layouts": layout, "minutes": float("nan")}, "minutes=nan"),
            ([self.job()], {"layouts": layout, "timeout": -1}, "timeout=-1"),
            ([self.job()], {"layouts": layout, "minutes": float("inf")}, "minutes=inf"),
            ([self.job()], {"layouts": layout, "jobs": 0}, "jobs=0"),
        ):
            with raises_facts(self, addend.InvalidError, *facts):
                addend.torch.matrix(*models, **options)

    def test_lists_of_models_one_layout_and_threads_of_the_caller(self):
        torch.set_num_threads(2)
        self.addCleanup(torch.set_num_threads, 1)
        jobs = [self.job(name="a"), (self.job(name="b"),)]
        found = addend.torch.matrix(jobs, layouts={"dp": 2}, microbatches=1)
        self.assertEqual([(one.cell.name, one.verdict) for one in found.outcomes], [
            ("a, dp=2, 1 microbatch", MATCHES), ("b, dp=2, 1 microbatch", MATCHES)
        ])  # fmt: skip
        self.assertEqual(torch.get_num_threads(), 2)

    def test_a_model_that_ends_its_process_before_its_layouts_are_known(self):
        with tempfile.TemporaryDirectory() as folder:
            for name, text in (
                ("leaves", "import os\nos._exit(0)"),
                ("crashes", "import os\nos.kill(os.getpid(), 11)"),
                ("hangs", f"import time\ntime.sleep({10 * HANGS})"),
                ("right", JOBS),
            ):
                pathlib.Path(folder, f"{name}.py").write_text(text, encoding="utf-8")
            files = [os.path.join(folder, f"{name}.py") for name in ("leaves", "crashes", "hangs", "right")]
            found = addend.torch.matrix(files, layouts={"dp": 2}, microbatches=[1], timeout=10.0)
        verdicts = {one.cell.model: (one.verdict, one.why) for one in found.outcomes}
        self.assertEqual({name: verdict for name, (verdict, _) in verdicts.items()}, {
            "leaves": CANNOT_RUN, "crashes": CANNOT_RUN, "hangs": CANNOT_RUN, "right": MATCHES
        })  # fmt: skip
        says_facts(self, verdicts["crashes"][1], "signal 11")
        says_facts(self, verdicts["hangs"][1], "10 s")

    def test_models_take_time_from_the_budget(self):
        found = addend.torch.matrix(self.job(), layouts={"dp": 2}, minutes=1e-9)
        self.assertEqual([one.verdict for one in found.outcomes], [NOT_TRIED])
        self.assertIsNone(found.ok)


class Command(unittest.TestCase):
    """One file of a project's own, by the command."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        (self.folder / "jobs.py").write_text(TWO_LAYOUTS, encoding="utf-8")

    def run_command(self, *words):
        return subprocess.run(
            [PROGRAM, "torch-matrix", *words],
            cwd=self.folder,
            env={**os.environ, "ADDEND_PYTHON": sys.executable},
            capture_output=True,
            text=True,
            timeout=HANGS,
        )

    def test_what_one_microbatch_hides_and_what_is_known(self):
        words = ["jobs.py", "--microbatches", "2,1", "--json", "--write-known", "known.txt", "--html", "page.html"]
        done = self.run_command(*words)
        cells = json.loads(done.stdout)["cells"]
        self.assertEqual(
            [(one["layout"], one["microbatches"], one["verdict"]) for one in cells],
            [
                ("dp=3, right", 2, MATCHES),
                ("dp=2, forgets", 2, WRONG),
                ("dp=3, right", 1, MATCHES),
                ("dp=2, forgets", 1, MATCHES),
            ],
        )
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertEqual(len(done.stderr.splitlines()), 4)  # one line of progress for each cell
        self.assertIn("BAD 2", (self.folder / "page.html").read_text(encoding="utf-8"))
        again = self.run_command("jobs.py", "--microbatches", "2", "--known", "known.txt")
        self.assertEqual(again.returncode, 0, again.stderr)
        says_facts(self, again.stdout, "2", "1 wrong", "1 known")

    def test_the_file_of_the_page(self):
        (self.folder / "page.py").write_text(JOBS, encoding="utf-8")
        done = self.run_command("page.py", "--microbatches", "2", "--json")
        cells = json.loads(done.stdout)["cells"]
        self.assertEqual([(one["layout"], one["verdict"]) for one in cells], [("dp=2", MATCHES), ("dp=3", MATCHES)])
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_what_is_refused(self):
        (self.folder / "empty.py").write_text("parallelize = None\n", encoding="utf-8")
        (self.folder / "leaves.py").write_text("import sys\nsys.exit(0)\n", encoding="utf-8")
        for words, *facts in (
            ([], "config.json"),
            (["nothing.py"], "nothing.py"),
            (["empty.py"], "make_model"),
            (["jobs.py", "--layout", "dp"], "dp", "fsdp=2,ep=2"),
            (["jobs.py", "--layout", "dp=2,dp=3"], "dp=2,dp=3"),
            (["jobs.py", "--microbatches", "1,0"], "1,0"),
            (["jobs.py", "--known", "none.txt"], "none.txt"),
            (["jobs.py", "jobs.py"], "jobs"),
            (["jobs.py", "--jobs", "0"], "0"),
            (["jobs.py", "--minutes", "nan"], "nan"),
            (["jobs.py", "--minutes", "-1"], "-1"),
            (["jobs.py", "--minutes", "inf"], "inf"),
            (["jobs.py", "--timeout", "0"], "0"),
            (["leaves.py"], "leaves.py"),
            (["jobs.py", "--formt", "json"], "--formt", "--format"),
        ):
            done = self.run_command(*words)
            self.assertEqual(done.returncode, 2, done.stderr)
            says_facts(self, done.stderr, *facts)

    def test_a_cell_as_a_test(self):
        cells = addend.torch.matrix_cells(self.folder / "jobs.py", microbatches=[2])
        names = ["jobs, dp=3, right, 2 microbatches", "jobs, dp=2, forgets, 2 microbatches"]
        self.assertEqual([str(one) for one in cells], names)
        self.assertEqual(cells[0]().verdict, MATCHES)
        with raises_facts(self, AssertionError, "0.weight"):
            cells[1]()


if __name__ == "__main__":
    unittest.main()
