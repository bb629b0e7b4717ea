"""Test that every kind of verdict or cause that the Python package names is a kind of the library, and that kinds which
the library treats in one way are treated so here."""

import ast
import re
import unittest
from pathlib import Path

from addend import _kinds

ROOT = Path(__file__).resolve().parents[3]
PACKAGE = ROOT / "python" / "addend"
ROW = re.compile(r'^  X\([A-Z_]+, "(\w+)", "[^"]+", (\w+), \w+, ([01])\)', re.MULTILINE)
FILES = ("torch/_report.py", "torch/_readings.py", "torch/_matrix/_bugs.py", "torch/_checks/_judge.py")


def rows():
    """Of each kind in the table of the library: the verdict, and whether counts of the addends give the sum."""
    text = (ROOT / "audit" / "say" / "causes.h").read_text(encoding="utf-8")
    return {name: (verdict, counted == "1") for name, verdict, counted in ROW.findall(text)}


def is_kind(node):
    """Whether an expression is `X.kind`, `X["kind"]` or a call of `X.get("kind")`."""
    if isinstance(node, ast.Call):
        return bool(node.args) and isinstance(node.args[0], ast.Constant) and node.args[0].value == "kind"
    if isinstance(node, ast.Subscript):
        return isinstance(node.slice, ast.Constant) and node.slice.value == "kind"
    return isinstance(node, ast.Attribute) and node.attr == "kind"


def named(tree):
    """The strings that are compared with a kind, removed from kinds, or given as one."""
    for node in ast.walk(tree):
        values = []
        if isinstance(node, ast.Compare) and is_kind(node.left):
            values = node.comparators
        elif isinstance(node, ast.Dict):
            pairs = zip(node.keys, node.values)
            values = [value for key, value in pairs if isinstance(key, ast.Constant) and key.value == "kind"]
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub):
            values = [node.right] if any(map(is_kind, ast.walk(node.left))) else []
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Reading":
            values = node.args[:1] if node.args and isinstance(node.args[0], ast.Constant) else []
        for value in values:
            parts = ast.walk(value)
            yield from (part.value for part in parts if isinstance(part, ast.Constant) and isinstance(part.value, str))


class Kinds(unittest.TestCase):
    def test_the_package_names_kinds_of_the_library(self):
        known = rows()
        self.assertGreater(len(known), 20)
        for group in (_kinds.FACTORS, _kinds.UNSUMMED):
            self.assertLessEqual(group, set(known))
        found = set()
        for name in FILES:
            found |= set(named(ast.parse((PACKAGE / name).read_text(encoding="utf-8"))))
        self.assertLessEqual({"unexplained", "not_observed", "not_distinguishable", "factor", "averaged"}, found)
        self.assertLessEqual(found, set(known))

    def test_what_no_counts_give_is_asked_of_the_library(self):
        table = rows()
        uncounted = {name for name in table if _kinds.uncounted(name)}
        self.assertEqual(uncounted, {name for name, (_, counted) in table.items() if not counted})
        self.assertLessEqual({"unexplained", "not_fitted", "shifted"}, uncounted)
        self.assertFalse(_kinds.uncounted("no_such_kind"))

    def test_no_hook_explains_a_sum_that_one_rank_alone_has(self):
        self.assertFalse(_kinds.uncounted("one_rank"))

    def test_factors_are_of_wrong_sums_that_counts_give(self):
        table = rows()
        self.assertEqual({table[name] for name in _kinds.FACTORS}, {("WRONG", True)})


if __name__ == "__main__":
    unittest.main()
