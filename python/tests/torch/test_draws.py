"""Test the draws: the same seed draws the same cases, another seed others, `all` takes everything, and of each kind
one is taken.
"""

import contextlib
import io
import os
import subprocess
import unittest
from unittest.mock import patch

import draws

CASES = [f"case {i}" for i in range(40)]
KINDS = {case: i % 7 for i, case in enumerate(CASES)}


def drawn(seed, function, *arguments):
    with patch.dict(os.environ, ADDEND_TEST_SEED=str(seed)), contextlib.redirect_stdout(io.StringIO()) as said:
        return function(*arguments), said.getvalue()


class Draws(unittest.TestCase):
    def test_a_seed_draws_the_same_and_another_draws_others(self):
        first, again, other = (drawn(seed, draws.draw_cases, "cases", CASES, 9)[0] for seed in (5, 5, 6))
        self.assertEqual(len(first), 9)
        self.assertEqual(first, again)
        self.assertNotEqual(first, other)
        self.assertEqual(first, sorted(first, key=CASES.index))

    def test_what_is_drawn_is_said(self):
        self.assertEqual(
            drawn(5, draws.draw_cases, "cases", CASES, 9)[1], "cases: 9 of 40 are taken, ADDEND_TEST_SEED=5\n"
        )
        self.assertEqual(
            drawn(5, draws.draw_of_each, "kinds", KINDS)[1], "kinds: 7 of 40 are taken, ADDEND_TEST_SEED=5\n"
        )

    def test_each_kind_is_taken_once_and_every_case_by_some_seed(self):
        found = set()
        for seed in range(100):
            taken, _ = drawn(seed, draws.draw_of_each, "kinds", KINDS)
            self.assertEqual(sorted(KINDS[case] for case in taken), list(range(7)))
            found.update(taken)
        self.assertEqual(found, set(CASES))

    def test_all_takes_everything(self):
        self.assertEqual(drawn("all", draws.draw_cases, "cases", CASES, 9)[0], CASES)
        self.assertEqual(drawn("all", draws.draw_of_each, "kinds", KINDS)[0], CASES)

    def test_without_a_seed_the_commit_gives_it(self):
        said = subprocess.run(["bash", draws.SUPPORT / "seed.sh"], capture_output=True, text=True).stdout
        with patch.dict(os.environ):
            os.environ.pop("ADDEND_TEST_SEED", None)
            self.assertEqual(draws.choose_seed(), said.strip())


if __name__ == "__main__":
    unittest.main()
