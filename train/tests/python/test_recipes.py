"""Test check, train and plan from Python: what they return, what they raise, and that no rank process is left."""

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from pathlib import Path

import numpy
from says import raises, says

import addend

SOURCE = Path(__file__).resolve().parents[3]
RECIPE = SOURCE / "recipes" / "gpt-dp.yaml"
RANK_HANGS = 60  # seconds


def multiply_until(stop, matrix):
    while not stop.is_set():
        matrix @ matrix


class Checks(unittest.TestCase):
    def test_a_check_has_a_number_for_every_parameter(self):
        report = addend.check(RECIPE, steps=1, set={"mesh": "dp=2"})
        self.assertTrue(report.ok)
        self.assertEqual((report.recipe, report.world, report.mesh, report.steps), ("gpt-dp", 2, "dp=2", 1))
        self.assertEqual(len(report.params), report.summary["params"])
        for param in report.params:
            self.assertLessEqual(param.max_rel_err, param.bound)
            self.assertEqual(param.reduced_over, "dp_shard")
            self.assertIsNone(param.cause)
        self.assertNotIn("embedding.weight", str(report))
        self.assertIn("embedding.weight", report.full_table())
        first, *_, last = str(report).splitlines()
        self.assertEqual(first, last)
        self.assertTrue(first.startswith("matches one process "), first)
        self.assertEqual((report.mutants, report.coverage), ((), None))

    def test_a_check_that_does_not_match_is_no_error(self):
        report = addend.check(RECIPE, steps=1, set={"mesh": "dp=2", "data.valid": [0]})  # no target counts
        self.assertIs(report.ok, False)
        self.assertIs(report.document["summary"]["pass"], report.ok)
        self.assertEqual(report.document["summary"]["counted"], 0)

    def test_mutants_are_killed(self):
        report = addend.check(RECIPE, steps=1, mutate=1, seed=3, set=["mesh='dp=2'"])
        self.assertTrue(report.ok)
        self.assertEqual((report.survivors, report.coverage["mutants"]), (0, 1))
        self.assertTrue(all(row.killed_by in ("type", "number", "protocol", "no_effect") for row in report.mutants))
        wrong = [row for row in report.mutants if row.killed_by == "number"]
        self.assertTrue(wrong and all(row.param for row in wrong))
        self.assertTrue(any(row.cause and row.cause.kind and row.cause.text for row in wrong))

    def test_all_errors_of_a_recipe_are_reported_together(self):
        with self.assertRaises(addend.InvalidError) as raised:
            addend.check(RECIPE, set=["mesh='zz=3'", "a.b=2"])
        says(self, str(raised.exception), "--set mesh", "zz")
        says(self, str(raised.exception), "a.b")

    def test_a_call_that_is_wrong_is_refused_before_anything_starts(self):
        for wrong in ({"steps": 0}, {"steps": True}, {"dtype": "bf16"}, {"mutate": -1}):
            with self.assertRaises(addend.InvalidError, msg=wrong):
                addend.check(RECIPE, **wrong)
        with self.assertRaises(OSError):
            addend.check("--steps")

    def test_other_threads_are_no_hindrance(self):
        matrix, stop = numpy.ones((300, 300)), threading.Event()
        other = threading.Thread(target=multiply_until, args=(stop, matrix))
        other.start()
        try:
            reports = []
            checking = threading.Thread(target=lambda: reports.append(addend.check(RECIPE, steps=1)))
            checking.start()
            checking.join(RANK_HANGS)
        finally:
            stop.set()
            other.join()
        self.assertTrue(reports and reports[0].ok)

    def test_a_rank_starts_no_ranks(self):
        os.environ.update(ADDEND_RANK="0", ADDEND_RANKS="2", ADDEND_SHM_FD="99")
        try:
            with raises(self, addend.InvalidError, "addend.check", "addend run"):
                addend.check(RECIPE)
        finally:
            del os.environ["ADDEND_RANK"], os.environ["ADDEND_RANKS"], os.environ["ADDEND_SHM_FD"]


class Trainings(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name) / "run"

    def test_a_training_leaves_its_folder(self):
        result = addend.train(RECIPE, out=self.folder, steps=3)
        self.assertEqual((result.recipe, result.steps, result.steps_taken), ("gpt-dp", 3, 3))
        self.assertEqual(result.folder, self.folder)
        self.assertEqual([row["step"] for row in result.metrics() if "step" in row][-1], 2)
        self.assertTrue((self.folder / "weights.safetensors").exists())
        with raises(self, addend.InvalidError, str(self.folder), "3 steps"):
            addend.train(RECIPE, out=self.folder)
        again = addend.train(RECIPE, out=self.folder, steps=2, overwrite=True)
        self.assertEqual(again.steps, 2)

    def test_states_of_another_optimizer_begin_anew_where_a_pattern_says_so(self):
        sets = {"checkpoint.every": 2}
        addend.train(RECIPE, out=self.folder, steps=2, set=sets)
        other = {**sets, "optimizer.kind": "sgd"}
        with raises(self, addend.InvalidError, "embedding.weight", "--fresh-states"):
            addend.train(RECIPE, out=self.folder, steps=4, resume=True, set=other)
        result = addend.train(RECIPE, out=self.folder, steps=4, resume=True, fresh_states="*", set=other)
        self.assertEqual((result.steps, result.steps_taken), (4, 2))

    def test_options_that_contradict_each_other_are_refused(self):
        for wrong in (
            {"resume": True, "overwrite": True},
            {"force": True},
            {"fresh_states": "*"},
            {"out": ""},
            {"steps": 0},
            {"dump_step": -1},
        ):
            with self.assertRaises(addend.InvalidError, msg=wrong):
                addend.train(RECIPE, **{"out": self.folder, **wrong})
        self.assertFalse(self.folder.exists())


class Plans(unittest.TestCase):
    def test_a_plan_of_a_large_world_takes_one_process(self):
        plan = addend.plan(
            RECIPE, set={"mesh": "dp_replicate=64 dp_shard=64", "shard.zero": 2, "train.global_batch": 4096}
        )
        self.assertEqual(plan.world, 4096)
        param = next(param for param in plan.params if param.name == "blocks.0.attn.wq")
        self.assertEqual(
            [(step.op, step.axes) for step in param.path],
            [("reduce_scatter", "dp_shard"), ("all_reduce", "dp_replicate"), ("all_gather", "dp_shard")],
        )
        self.assertIn("blocks.0.attn.wq", str(plan))
        self.assertTrue(plan.collectives and plan.memory_per_rank)

    def test_its_picture_is_a_file(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "plan.svg")
            addend.plan(RECIPE, picture=path)
            self.assertIn("<svg", path.read_text(encoding="utf-8"))

    def test_a_recipe_that_is_not_there_is_named(self):
        with raises(self, addend.FileError, "nowhere.yaml"):
            addend.plan("nowhere.yaml")


INTERRUPTED = """
import sys
import addend
try:
    addend.train(sys.argv[1], out=sys.argv[2], steps=1000000)
except KeyboardInterrupt:
    sys.exit(77)
"""


def processes_of(folder):
    """Return the processes whose arguments name the folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes()
        except OSError:
            continue
        if os.fsencode(str(folder)) in words:
            found.append(int(process.name))
    return found


def until(holds):
    """Return whether the condition comes to hold."""
    end = time.monotonic() + RANK_HANGS
    while not holds() and time.monotonic() < end:
        time.sleep(0.05)
    return holds()


class Interrupts(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name) / "run"

    def ended_by(self, number):
        """Return the exit status of a Python that trains when it gets the signal, with all its ranks at work."""
        program = subprocess.Popen(
            [sys.executable, "-c", INTERRUPTED, str(RECIPE), str(self.folder)],
            stderr=subprocess.DEVNULL,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
        metrics = self.folder / "metrics.jsonl"
        self.assertTrue(until(lambda: metrics.exists() and metrics.stat().st_size > 0))
        self.assertEqual(len(processes_of(self.folder)), 1 + 1 + 3)  # Python, the program, three ranks
        program.send_signal(number)
        status = program.wait(RANK_HANGS)
        self.assertTrue(until(lambda: not processes_of(self.folder)), "a rank is left")
        return status

    def test_ctrl_c_is_raised_when_the_ranks_have_ended_in_order(self):
        self.assertEqual(self.ended_by(signal.SIGINT), 77)
        self.assertTrue(list((self.folder / "checkpoints").iterdir()), "what was trained is kept")

    def test_no_rank_outlives_an_interpreter_that_is_killed(self):
        self.assertEqual(self.ended_by(signal.SIGKILL), -signal.SIGKILL)


if __name__ == "__main__":
    unittest.main()
