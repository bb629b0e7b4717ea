"""Jobs with declared types: of right ones no declaration is contradicted and no collective found fault with, and of
wrong ones each mistake is named by parameter, axis and declaration. A draw of them; all if ADDEND_TEST_SEED is `all`.
More seeds: judge.py --kinds declared --seeds 25.
"""

import dataclasses
import unittest
from unittest import mock

import kinds
import kinds_declared
import kinds_declared_wrong
import kinds_judge

import addend
import draws
import judge

SEED = draws.choose_seed()
DRAWN_BY = 1 if SEED == "all" else int(SEED)
TAKEN = {kinds_declared: ("right", 8), kinds_declared_wrong: ("true cause", 7)}
# What is said of the others: one addend that all ranks have may be a mistake, and no number tells a shard's place.
OTHERS = {"declared_tensor_parallel_delayed": "cannot tell", "declared_in_another_order": "silent by design"}


def names_of(module):
    return [name for name, kind in kinds.KINDS.items() if kind.make.__module__ == module.__name__ and not kind.missing]


class Declared(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.judge = judge.Judge()

    @classmethod
    def tearDownClass(cls):
        cls.judge.end()

    def ask(self, name, seed=DRAWN_BY):
        return kinds_judge.ask(self.judge, kinds.Drawn(name, seed))

    def test_declarations_and_calls_are_judged_as_they_are(self):
        for module, (answer, count) in TAKEN.items():
            for name in draws.draw_cases(f"kinds of {module.__name__}", names_of(module), count):
                found, said = self.ask(name)
                with self.subTest(name=name, seed=DRAWN_BY):
                    self.assertEqual(found, OTHERS.get(name, answer), said)


class Wanted(unittest.TestCase):
    """What a kind wants to be said is asked for."""

    def judged(self, says, declarations=(), calls=(), truth=None, answer="right"):
        report = mock.Mock(declarations=declarations, calls=calls)
        return kinds_judge.answer_declared(kinds.Kind("", None, (2,), truth, says=says), report, answer)[0]

    def test_rows(self):
        row = declaration("module.w", "tp", "I", True)
        false, open_ = dataclasses.replace(row, holds=False), dataclasses.replace(row, holds=None)
        self.assertEqual(self.judged(("holds w tp=I",), [row]), "right")
        self.assertEqual(self.judged(("holds w tp=R",), [row]), "UNSAID")
        self.assertEqual(self.judged((), [false]), "FALSE DECLARATION")
        self.assertEqual(self.judged(("holds w tp=I",), [row, false]), "FALSE DECLARATION")
        self.assertEqual(self.judged(("contradicted w tp=I",), [false]), "right")
        self.assertEqual(self.judged(("contradicted w tp=I",), [open_]), "UNSAID")

    def test_calls(self):
        call = addend.DiffCall("all_reduce", params=("w",), finding="twice")
        self.assertEqual(self.judged((), calls=[call]), "FALSE DECLARATION")
        self.assertEqual(self.judged(("call twice w",), calls=[call]), "right")
        self.assertEqual(self.judged(("call wider w",), calls=[call]), "FALSE DECLARATION")
        self.assertEqual(self.judged(("call twice w",), calls=[dataclasses.replace(call, finding="")]), "UNSAID")

    def test_wrong_jobs(self):
        false, truth = declaration("w", "tp", "I", False), kinds.truth("own_only")
        self.assertEqual(self.judged(("contradicted w tp=I",), [false], truth=truth, answer="MISSED"), "true cause")
        self.assertEqual(self.judged(("contradicted w tp=I",), truth=truth, answer="true cause"), "UNSAID")
        self.assertEqual(self.judged((), [false], truth=truth, answer="true cause"), "true cause")

    def test_refusals(self):
        kind = kinds.Kind("", None, (2,), kinds.truth(), says=("refused norm tp",))
        for report, answer in (
            ("ValueError: norm ... tp", "true cause"),
            ("ValueError: norm", "MISSED"),
            (None, "MISSED"),
        ):
            self.assertEqual(kinds_judge.answer_declared(kind, report, "refused")[0], answer)


def declaration(name, axis, type_, holds):
    return addend.DiffDeclaration(name, "spmd_types", axis, type_, holds=holds)


if __name__ == "__main__":
    unittest.main()
