"""Test parameters of 1,024 addends with more wrong ones than `addend diff` will fit: the fits of some explain the
others, simple mistakes are found without a fit, and the rest is reported as not fitted.
"""

import math
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import addend

DUMPS = pathlib.Path(__file__).resolve().parents[3] / "lab" / "bench" / "dumps.py"
RANKS, MICROBATCHES, PARAMS = 64, 16, 24
BUGS = ("missing", "last", "half", "twice", "factor", "own", "random", "term")


def dumped(folder, *options, sampled):
    """Return the report of a dump that lab/bench/dumps.py makes."""
    where = os.path.join(folder, "dump")
    shape = ["--ranks", str(RANKS), "--microbatches", str(MICROBATCHES), "--sampled", str(sampled)]
    subprocess.run([sys.executable, str(DUMPS), where, *shape, *options], check=True)
    return addend.diff(where)


class Many(unittest.TestCase):
    def hold(self, bug, index, found):
        """Return the verdict on the parameter, whether it was fitted or not."""
        kinds = {
            "missing": "missing",
            "last": "last_microbatch",
            "half": "missing",
            "twice": "doubled",
            "own": "own_only",
        }
        if bug in kinds:
            self.assertEqual(found.kind, kinds[bug], found.text)
        if bug == "missing":
            self.assertEqual(found.ranks, (index % RANKS,))
        if bug == "half":
            self.assertEqual(found.ranks, tuple(range(RANKS // 2, RANKS)))
        if bug == "factor":
            self.assertTrue(math.isclose(found.factor, 1 + (index + 0.5) / PARAMS, rel_tol=1e-4), found.text)
        if bug == "random":
            self.assertIn(found.kind, ("factor", "not_fitted"), found.text)
        if bug == "term":
            self.assertIn(found.kind, ("unexplained", "not_fitted"), found.text)

    def test_whatever_fails_is_said(self):
        with tempfile.TemporaryDirectory() as folder:
            wrong = ["--params", str(PARAMS), "--wrong", str(PARAMS), "--bugs", "all"]
            report = dumped(folder, *wrong, sampled=1100)
        for index, found in enumerate(report.params):
            bug = BUGS[index % len(BUGS)]
            with self.subTest(bug, index=index):
                self.assertFalse(found.ok)
                self.hold(bug, index, found)
        unfitted = [found.name for found in report.params if found.kind == "not_fitted"]
        self.assertIn(f"blocks.{PARAMS - 1:04}.weight", unfitted)
        self.assertNotEqual(report.params[7].kind, "right")
        said = f"`{unfitted[0]}` and {len(unfitted) - 1} other parameters: wrong, but how often each addend was counted"
        self.assertTrue(any(message.startswith(said) for message in report.messages), report.messages)
        for found in report.params:
            self.assertEqual(found.counts is None, found.kind == "not_fitted")

    def test_a_weak_sum_is_right_or_wrong_without_a_fit(self):
        """In f16 rounding alone may exceed many addends, so counts must be looked at even if the sums hold."""
        with tempfile.TemporaryDirectory() as folder:
            report = dumped(folder, "--params", "20", "--wrong", "16", "--dtype", "f16", sampled=1100)
        self.assertEqual([found.ok for found in report.params], [False] * 16 + [True] * 4, str(report))


if __name__ == "__main__":
    unittest.main()
