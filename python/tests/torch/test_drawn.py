"""Run some of the jobs that judge.py draws: the watch says nothing false of right jobs or of wrong ones. All of them
are taken if ADDEND_TEST_SEED is `all`. So are some of the kinds in kinds.tsv.
"""

import dataclasses
import unittest
from unittest import mock

import kinds
import kinds_judge

import addend
import drawn_bugs
import drawn_jobs
import draws
import judge
import pool

SEED = draws.choose_seed()
TAKEN = {"right": 200, "wrong": 100} if SEED == "all" else {"right": 12, "wrong": 8}
DRAWN_BY = 1 if SEED == "all" else int(SEED)
KINDS_TAKEN = {"right": 30, "wrong": 15}


def _one():
    return 1


def _fail():
    raise ValueError("no")


def _reported(name, truth, **watch):
    """Return the judge's answer to a kind with another truth, and with more arguments for the watch."""
    kind, judged = kinds.KINDS[name], judge.Judge()

    def make(draw):
        job = kind.make(draw)
        job.watch = {**job.watch, **watch}
        return job

    changed = kinds.Kind(name, make, (2,), truth)
    with mock.patch.dict(kinds.KINDS, {name: changed}):
        answer, said = kinds_judge.ask(judged, kinds.Drawn(name, 1))
    judged.end()
    return answer, said


class Kinds(unittest.TestCase):
    def test_nothing_false_is_said_of_kinds(self):
        taken = [
            name
            for what, count in KINDS_TAKEN.items()
            for name in draws.draw_cases(f"{what} kinds of jobs", kinds_judge.suite("watch", what), count)
        ]
        show = lambda text: print(text, flush=True)  # noqa: E731
        found, lines = judge.judge_kinds([kinds.Drawn(name, DRAWN_BY) for name in taken], show)
        self.assertEqual(sum(found.values()), len(taken))
        self.assertEqual(lines, [])

    def test_the_table_has_every_kind(self):
        kept = {name: (kind.under, "right" if kind.truth is None else "wrong") for name, kind in kinds.KINDS.items()}
        self.assertEqual({name: row[:2] for name, row in kinds.table().items()}, kept)
        self.assertTrue(all(row[2] for row in kinds.table().values()))
        self.assertLessEqual(set(kinds_judge.OPEN), set(kept))

    def test_a_right_job_that_is_called_wrong_is_seen(self):
        answer, said = _reported("several_losses", None, expect=0.25)
        self.assertEqual(answer, "FALSE ALARM", said)

    def test_a_job_whose_truth_is_another_is_seen(self):
        self.assertEqual(_reported("averaged_twice", None)[0], "NOT RIGHT")
        self.assertEqual(_reported("several_losses", kinds.truth("doubled"))[0], "NOT WRONG")
        self.assertEqual(_reported("loss_divided_twice", kinds.truth("averaged"))[0], "MISSED")

    def test_a_false_cause_of_a_kind_is_seen(self):
        for cause, answer in (
            ("averaged:dp:0.5", "true cause"),
            ("averaged:dp:0.25", "FALSE CAUSE"),
            ("averaged:tp", "FALSE CAUSE"),
            ("doubled", "FALSE CAUSE"),
        ):
            self.assertEqual(_reported("averaged_twice", kinds.truth(cause))[0], answer, cause)

    def test_each_field_of_a_cause_is_judged(self):
        for kind, cause, answer in (
            ("maximum_for_sum", "other_operation:dp", "true cause"),
            ("maximum_for_sum", "other_operation:tp", "FALSE CAUSE"),
            ("product_for_sum", "rounding", "FALSE CAUSE"),
            ("shifted_bucket", "other_parameters", "FALSE CAUSE"),
            ("swapped_parameters", "shifted", "FALSE CAUSE"),
            ("parts_in_another_order", "missing", "FALSE CAUSE"),
            ("weights_drawn_by_each_rank", "own_only:dp", "FALSE CAUSE"),
            ("summed_after_each_microbatch", "factor:::microbatches", "true cause"),
            ("summed_after_each_microbatch", "factor:::images", "wrong, no cause of its own"),
        ):
            truth = kinds.truth(cause, equal=kind == "weights_drawn_by_each_rank")
            reported, said = _reported(kind, truth)
            self.assertEqual(reported, answer, f"{kind}, {cause}: {said}")
        with self.assertRaises(addend.InvalidError):
            kinds.truth("maximum")


class Drawn(unittest.TestCase):
    def test_nothing_false_is_said(self):
        print(f"drawn jobs: {TAKEN['right']} and {TAKEN['wrong']} are taken, ADDEND_TEST_SEED={SEED}", flush=True)
        tables, lines = judge.judge_all(TAKEN, DRAWN_BY, show=lambda text: print(text, flush=True))
        self.assertEqual({what: sum(found.values()) for what, found in tables.items()}, TAKEN)
        self.assertEqual([line for line in lines if not judge.is_open(line)], [])
        reported = tables["wrong"]["true cause"] + sum(judge.is_open(line) for line in lines)
        self.assertGreaterEqual(reported, 0.75 * TAKEN["wrong"])

    def test_counts_that_a_fit_hardly_knows_are_no_bug(self):
        """bf16 sums of twelve addends, one of which is smaller than the rounding error."""
        judged = judge.Judge()
        for seed, k in (2, 47), (3, 31):
            self.assertEqual(judged.ask("right", judge.draw("right", seed, k, False))[0], "right", (seed, k))
        judged.end()

    def test_one_number_of_several_addends_is_read_in_all_its_ways(self):
        """Copies differ because a sum was left out; that they differ is not the cause."""
        judged = judge.Judge()
        for seed, k in (1, 8), (1, 27):
            self.assertEqual(judged.ask("wrong", judge.draw("wrong", seed, k, False))[0], "true cause", (seed, k))
        judged.end()

    def test_a_seed_draws_the_same_jobs(self):
        for draw in drawn_jobs.draw_right, drawn_bugs.draw_wrong:
            self.assertEqual([str(draw(7, k)) for k in range(40)], [str(draw(7, k)) for k in range(40)])
            self.assertNotEqual([str(draw(7, k)) for k in range(40)], [str(draw(8, k)) for k in range(40)])

    def test_every_bug_is_drawn(self):
        found = {drawn_bugs.draw_wrong(1, k).bug for k in range(len(drawn_bugs.BUGS))}
        there = {name for name in drawn_bugs.BUGS if drawn_bugs._wrappers(name)}
        self.assertEqual(found, there)

    def test_a_job_that_is_not_what_it_says_is_seen(self):
        judged = judge.Judge()
        spec = drawn_jobs.Spec("hand", (2,), options={"divides": True}, bug="not_divided")
        answer, _ = judged.ask("right", spec)
        self.assertEqual(answer, "NOT RIGHT")
        spec.bug = "no such mistake"
        drawn_bugs.BUGS[spec.bug] = drawn_bugs.Bug([], ())
        answer, _ = judged.ask("wrong", spec)
        del drawn_bugs.BUGS[spec.bug]
        judged.end()
        self.assertEqual(answer, "NOT WRONG")

    def test_a_false_cause_is_seen(self):
        judged = judge.Judge()
        for name, options in ("hook_sums", {}), ("other_weights", {}), ("norm_counts_copies", {"norm": True}):
            spec = drawn_jobs.Spec("ddp", (2,), options=options, bug=name)
            answer, said = judged.ask("wrong", spec)
            self.assertEqual(answer, "true cause", said)
            other = dataclasses.replace(drawn_bugs.BUGS[name], true=(("averaged", "dp"),))
            with mock.patch.dict(drawn_bugs.BUGS, {name: other}):
                answer, said = judged.ask("wrong", spec)
            self.assertEqual(answer, "FALSE CAUSE", said)
        judged.end()

    def test_a_pool_outlives_a_job_that_fails(self):
        started = pool.Pool(2)
        self.assertEqual(started.run(_one), [1, 1])
        with self.assertRaisesRegex(pool.JobError, "ValueError: no"):
            started.run(_fail)
        self.assertEqual(started.run(_one), [1, 1])
        started.end()


if __name__ == "__main__":
    unittest.main()
