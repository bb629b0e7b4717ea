"""Test what a matrix says of its wrong cells: each different bug once."""

import dataclasses
import unittest
from unittest import mock

from says import says_facts

from addend.torch._matrix import _bugs, _matrix, _rows, _run, _show
from addend.torch._matrix._cells import MATCHES, NOT_TRIED, WRONG, Cell, Layout, Outcome, shortened

NORM, OTHER = "layers.{}.q_norm.weight", "layers.{}.k_norm.weight"
EXPERTS = "layers.{}.experts.down_proj"
PLANS = {
    "tp": {"layers.*.q_norm": "all_reduced", "layers.*.k_norm": "all_reduced", "layers.*.up": "colwise"},
    "ep": {"layers.*.experts": "dispatched"},
}
FULL = {"fsdp": {"layers.*.q_norm": "gathered", "layers.*.k_norm": "gathered"}}
TP, FSDP, EP = Layout({"tp": 2}), Layout({"fsdp": 2}), Layout({"fsdp": 2}, {"ep": 2})
TP3, BOTH = Layout({"fsdp": 1, "tp": 3}), Layout({"fsdp": 2, "tp": 2})
ROWS, COLUMNS = Layout({"dp": 2}, variant="rows"), Layout({"dp": 2}, variant="columns")  # of a project's own file


def cause(kind, axes="", place=None, text="", factor=None):
    return {"kind": kind, "axes": axes, "place": place, "text": text or f"{kind} {axes or place}", "factor": factor}


BY_RANKS, BY_COUNT = cause("averaged", "fsdp"), cause("averaged", place="microbatches")


def summed(name, counts, *causes):
    """What `check` says of a wrong sum on two ranks: the counts of its microbatches, and what may be the cause."""
    reported = {"name": name, "verdict": "wrong", "kind": "averaged", "text": "wrong", "counts": [list(counts)] * 2}
    one = causes[0] if len(causes) == 1 else None
    return {**reported, "cause": one, "possible_causes": list(causes) if one is None else []}


def cell(model, layout, count, *wrong, begins=None, names=(), plans=PLANS):
    """The outcome of a cell. `wrong`: the wrong sums; `names`: wrong parameters of which no sum is reported."""
    found = [one["name"] for one in wrong] + list(names)
    report = {
        "params": [{"name": name, "ok": False, "error": 0.5} for name in found] + [{"name": "head", "ok": True}],
        "diff": {"params": list(wrong)},
        "begins": begins,
        "unreached": [],
    }
    verdict = WRONG if found or begins else MATCHES
    return Outcome(Cell(model, layout, count), verdict, "why", report, recipe={"plans": plans} if plans else {})


def own(layout, count, *wrong, begins=None, names=("up.weight",)):
    """The outcome of a cell of a project's own file."""
    return cell("mine", layout, count, *wrong, begins=begins, names=() if wrong else names, plans=None)


def begins(module, place, where="", factor=None, text="text", axes=()):
    return {"module": module, "place": place, "text": text, "where": where, "factor": factor, "axes": list(axes)}


def loaded(param, text):
    found = begins(param.rpartition(".")[0], "loaded", text=f"before the first step: {text}")
    return {**found, "param": param}


def halved(axes):
    return begins("up", "forward", text=f"its output is 0.5 times; possible cause: averaged over {axes}", factor=0.5)


def norms(*counts, layers=(0, 1)):
    return [
        summed(name.format(i), counts, cause("factor", place="microbatches")) for i in layers for name in (NORM, OTHER)
    ]


def experts(counts, *causes):
    return [summed(EXPERTS.format(i), counts, *causes) for i in (0, 1)]


AGAIN, RANKS, COUNT = "accumulated were summed over tp", "averaged fsdp", "averaged microbatches"

# what the cells are; for each bug: a part of its cause, its classes of parameters, how many cells, numbers of
# microbatches
TABLE = {
    "four_parameters_of_two_layers_are_one_bug": (
        [cell("a", TP, 1), cell("a", TP, 2, *norms(2, 1))],
        [(AGAIN, 2, 1, (2,))],
    ),
    "layouts_and_numbers_of_microbatches_pool_though_factors_differ": (
        [cell("a", TP, 2, *norms(2, 1)), cell("a", TP, 3, *norms(4, 2, 1)), cell("a", TP3, 2, *norms(3, 1))],
        [(AGAIN, 2, 3, (2, 3))],
    ),
    "architectures_pool_by_what_their_plans_say": (
        [cell("a", TP, 2, *norms(2, 1)), cell("b", TP, 2, *norms(2, 1)[:1])],
        [(AGAIN, 2, 2, (2,))],
    ),
    "one_microbatch_tells_which_of_two_causes_it_is": (
        [cell("a", EP, 1, *experts([0.5], BY_RANKS)), cell("a", EP, 2, *experts([0.5, 0.5], BY_RANKS, BY_COUNT))],
        [(RANKS, 1, 2, (1, 2))],
    ),
    "a_cell_that_matches_refutes_a_cause": (
        [cell("a", EP, 1), cell("a", EP, 2, *experts([0.5, 0.5], BY_RANKS, BY_COUNT))],
        [(COUNT, 1, 1, (2,))],
    ),
    "a_cause_that_is_refuted_is_not_said": (
        [cell("a", EP, 1), cell("a", EP, 2, *experts([0.5, 0.5], BY_RANKS))],
        [("refuted", 1, 1, (2,))],
    ),
    "axes_of_the_same_size_are_named_both": (
        [cell("a", BOTH, 2, *norms(2, 1))],
        [("summed over fsdp or tp again", 2, 1, (2,))],
    ),
    "a_gradient_that_one_microbatch_loses_is_no_base": (
        [cell("a", TP, 1, *norms(0)), cell("a", TP, 2, *norms(0, 1))],
        [("first microbatch counts 0", 2, 2, (1, 2))],
    ),
    "what_nothing_refutes_stays_open": (
        [cell("a", EP, 2, *experts([0.5, 0.5], BY_RANKS, BY_COUNT))],
        [("possible causes: averaged fsdp; averaged microbatches", 1, 1, (2,))],
    ),
    "one_microbatch_hides_nothing_of_two": (
        [cell("a", TP, 1, *norms(0.5)), cell("a", TP, 2, *norms(1, 0.5))],
        [("factor microbatches", 2, 1, (1,)), (AGAIN, 2, 1, (2,))],
    ),
    "two_causes_in_a_cell_are_two_bugs": (
        [cell("a", EP, 2, *norms(2, 1, layers=[0]), *experts([0.5, 0.5], BY_RANKS))],
        [("accumulated were summed over fsdp", 2, 1, (2,)), (RANKS, 1, 1, (2,))],
    ),
    "a_forward_is_told_apart_from_sums": (
        [cell("a", TP, 2, *norms(2, 1), begins=begins("layers.0.up", "forward"), names=["layers.0.up.weight"])],
        [(AGAIN, 2, 1, (2,)), ("text", 0, 1, (2,))],
    ),
    "a_module_in_the_same_line_is_one_bug_of_two_architectures": (
        [
            cell("a", TP, 1, begins=begins("layers.0.up", "backward", "moe.py:3"), names=["x"]),
            cell("b", TP, 1, begins=begins("blocks.0.w1", "backward", "moe.py:3"), names=["y"]),
            cell("c", FSDP, 1, begins=begins("blocks.0.w1", "backward", "moe.py:9"), names=["y"]),
        ],
        [("text", 0, 2, (1,)), ("text", 0, 1, (1,))],
    ),
    "other_values_before_the_first_step_are_one_bug_of_one_class_of_parameters": (
        [
            cell("a", FSDP, 1, begins=loaded("layers.0.up.weight", "rows 0-1, 4-5"), names=["x"]),
            cell("a", FSDP, 2, begins=loaded("layers.1.up.weight", "rows 0-1, 4-5"), names=["x"]),
            cell("b", FSDP, 1, begins=loaded("layers.0.up.weight", "rows 0-3, 8-11"), names=["x"]),
            cell("c", FSDP, 1, begins=loaded("layers.0.q_norm.weight", "rows 0-1, 4-5"), names=["x"], plans=FULL),
            cell("d", FSDP, 1, begins=loaded("layers.0.k_norm.weight", "rows 0-1, 4-5"), names=["x"], plans=FULL),
        ],
        [("before the first step", 1, 3, (1, 2)), ("rows 0-1", 1, 1, (1,)), ("rows 0-1", 1, 1, (1,))],
    ),
    "an_update_is_one_bug_of_two_architectures": (
        [
            cell("a", TP, 1, begins=begins("", "optimizer"), names=["layers.0.up.weight"]),
            cell("b", TP, 1, begins=begins("", "optimizer"), names=["layers.1.up.bias"]),
        ],
        [("text", 0, 2, (1,))],
    ),
    "what_is_wrong_after_a_step_follows_from_a_wrong_sum": (
        [cell("a", TP, 2, *norms(2, 1), begins=begins("layers.0.k_norm", "reduction"), names=["embed.weight"])],
        [(AGAIN, 2, 1, (2,))],
    ),
    "causes_along_two_axes_are_two_bugs": (
        [cell("a", TP, 1, *experts([0.5], cause("averaged", "tp"))), cell("a", FSDP, 1, *experts([0.5], BY_RANKS))],
        [("averaged tp", 1, 1, (1,)), (RANKS, 1, 1, (1,))],
    ),
    "one_cause_with_two_relations_is_two_bugs": (
        [
            cell("a", FSDP, 1, *experts([2], cause("doubled", "fsdp", text="not divided over fsdp"))),
            cell("a", FSDP, 2, *experts([2, 2], cause("doubled", "fsdp", text="summed twice over fsdp"))),
        ],
        [("not divided over fsdp", 1, 1, (1,)), ("summed twice over fsdp", 1, 1, (2,))],
    ),
    "a_factor_that_follows_the_ranks_is_not_one_that_does_not": (
        [
            cell(
                "a", Layout({"fsdp": size}), 1, *experts([1 / factor], cause("scaled", "fsdp", None, "scaled", factor))
            )
            for size, factor in ((2, 0.5), (3, 1 / 3), (4, 1 / 3))
        ],
        [("scaled", 1, 2, (1,)), ("scaled", 1, 1, (1,))],
    ),
    "numbers_that_differ_are_said_of_one_cell": (
        [cell("a", FSDP, n, *experts([1] * n, cause("shifted", text=f"shifted by {5 - n} elements"))) for n in (1, 2)],
        [("in a, fsdp=2, 1 microbatch, of `layers.0.experts.down_proj`: shifted by 4 elements", 1, 2, (1, 2))],
    ),
    "two_causes_of_one_kind_are_both_kept": (
        [
            cell(
                "a",
                FSDP,
                2,
                *experts([1, 1], *(cause("factor", place="microbatches", text=f"{how} after each") for how in "ab")),
            )
        ],
        [("possible causes: a after each; b after each", 1, 1, (2,))],
    ),
    "counts_pool_by_what_they_have_in_common": (
        [cell("a", FSDP, 2, *experts([1, 0])), cell("a", FSDP, 3, *experts([1, 1, 0]))],
        [("the last microbatch counts 0 times", 1, 2, (2, 3))],
    ),
    "counts_that_have_nothing_in_common_are_two_bugs": (
        [cell("a", FSDP, 2, *experts([1, 0])), cell("a", FSDP, 3, *experts([0, 1, 1]))],
        [("microbatch 0 counts 1, microbatch 1 counts 0", 1, 1, (2,)), ("microbatch 0 counts 0", 1, 1, (3,))],
    ),
    "places_on_layouts_without_a_common_axis_are_two_bugs": (
        [cell("a", one, 1, begins=begins("layers.0.up", "forward"), names=["x"]) for one in (TP, FSDP)],
        [("text", 0, 1, (1,)), ("text", 0, 1, (1,))],
    ),
    "places_on_layouts_with_a_common_axis_are_one_bug": (
        [cell("a", one, 1, begins=begins("layers.0.up", "forward"), names=["x"]) for one in (TP, BOTH)],
        [("text", 0, 2, (1,))],
    ),
    "sums_that_are_missing_over_two_axes_are_two_bugs": (
        [
            cell("a", BOTH, n, begins=begins("up", "forward", axes=[axis]), names=["x"])
            for n, axis in ((1, "tp"), (2, "fsdp"))
        ],
        [("text", 0, 1, (1,)), ("text", 0, 1, (2,))],
    ),
    "a_forward_by_a_factor_has_the_causes_of_all_cells": (
        [cell("a", FSDP, n, begins=halved("fsdp"), names=["x"]) for n in (1, 2)],
        [("its output is 0.5 times; averaged over fsdp", 0, 2, (1, 2))],
    ),
    "a_forward_by_a_factor_of_two_axes_is_two_bugs": (
        [cell("a", one, 1, begins=halved(axis), names=["x"]) for one, axis in ((TP, "tp"), (FSDP, "fsdp"))],
        [("averaged over tp", 0, 1, (1,)), ("averaged over fsdp", 0, 1, (1,))],
    ),
    "two_layouts_of_a_file_that_break_a_module_otherwise_are_two_bugs": (
        [
            own(ROWS, 1, begins=begins("up", "forward", text="a sum is missing")),
            own(COLUMNS, 1, begins=begins("up", "forward", text="a sum is made twice")),
        ],
        [("a sum is missing", 0, 1, (1,)), ("a sum is made twice", 0, 1, (1,))],
    ),
    "two_layouts_of_a_file_that_make_other_parameters_wrong_are_two_bugs": (
        [own(one, 1, begins=begins("up", "forward"), names=[name]) for one, name in ((ROWS, "x"), (COLUMNS, "y"))],
        [("text", 0, 1, (1,)), ("text", 0, 1, (1,))],
    ),
    "two_layouts_of_a_file_that_look_the_same_are_one_bug": (
        [
            own(one, 1, begins=begins("up", "forward", text=f"rank {i} has {i + 2} rows"))
            for i, one in enumerate((ROWS, COLUMNS))
        ],
        [("in mine, dp=2, rows, 1 microbatch", 0, 2, (1,))],
    ),
    "two_layouts_of_a_file_without_an_explanation_are_two_bugs": (
        [own(ROWS, 1, names=["x"]), own(COLUMNS, 1, names=["y"])],
        [("why", 1, 1, (1,)), ("why", 1, 1, (1,))],
    ),
    "two_layouts_of_a_file_with_one_cause_of_one_parameter_are_one_bug": (
        [own(one, 1, summed("up.weight", [0.5], cause("averaged", "dp"))) for one in (ROWS, COLUMNS)],
        [("averaged dp", 1, 2, (1,))],
    ),
    "what_is_right_is_no_bug": ([cell("a", TP, 1), cell("a", TP, 2)], []),
}


class BugsTest(unittest.TestCase):
    def test_each_different_bug_is_reported_once(self):
        for name, (cells, wanted) in TABLE.items():
            with self.subTest(name):
                found = _bugs.bugs(cells)
                facts = [(len(bug.params), len(bug.outcomes), bug.microbatches) for bug in found]
                self.assertEqual(sorted(facts), sorted(want[1:] for want in wanted), [bug.cause for bug in found])
                for words, *rest in wanted:
                    same = [b.cause for b in found if [len(b.params), len(b.outcomes), b.microbatches] == rest]
                    self.assertTrue(any(words in reported for reported in same), (words, same))

    def test_a_known_cell_says_as_much_of_others_as_one_that_is_new(self):
        one, two = cell("a", TP, 1, *norms(0.5)), cell("a", TP, 2, *norms(1, 0.5))
        for known, wanted in (([], {(1,), (2,)}), ([one], {(2,)}), ([two], {(1,)}), ([one, two], set())):
            found = _bugs.bugs([one, two], known)
            self.assertEqual({bug.microbatches for bug in found}, wanted)
            self.assertTrue(all(AGAIN in bug.cause for bug in found if bug.microbatches == (2,)), found)
            report = _matrix.MatrixReport((one, two), tuple(known))
            self.assertEqual([bug.cause for bug in report.bugs], [bug.cause for bug in found])

    def test_the_smallest_cell_is_the_one_with_fewest_ranks_and_microbatches(self):
        (bug,) = _bugs.bugs(
            [cell("a", TP3, 2, *norms(3, 1)), cell("b", TP, 3, *norms(4, 2, 1)), cell("b", TP, 2, *norms(2, 1))]
        )
        self.assertEqual((bug.smallest.cell.model, bug.smallest.cell.microbatches, bug.param), ("b", 2, NORM.format(0)))
        self.assertEqual((bug.models, bug.styles, bug.module), (("b", "a"), ("all_reduced",), "layers.*.q_norm"))


def rowed(outcome, *rows):
    return dataclasses.replace(outcome, recipe={**outcome.recipe, "rows": list(rows)})


def once_more(outcome, verdict, *rows):
    even = dataclasses.replace(outcome.cell, even=True)
    return dataclasses.replace(rowed(outcome, *rows), cell=even, verdict=verdict)


class RowsTest(unittest.TestCase):
    """Bugs of cells whose vocabulary has rows that the ranks do not divide."""

    def only(self, cells, *even):
        """Of the one bug of these cells, what is said once `even` was run."""
        (bug,) = _matrix.MatrixReport(tuple(cells), even=even).bugs
        return bug.only

    def broken(self, layout, count, *rows):
        return rowed(cell("a", layout, count, begins=begins("", "optimizer"), names=["up.weight"]), *rows)

    def again(self, *cells):
        return [(one.name, one.even) for one in _rows.cells(_bugs.bugs(cells))]

    def test_the_smallest_cell_of_a_bug_is_run_once_more(self):
        one, two = self.broken(FSDP, 1, 97), self.broken(FSDP, 2, 97)
        self.assertEqual(self.again(one, two), [(one.cell.name, True)])
        self.assertEqual(self.again(two), [(two.cell.name, True)])

    def test_no_cell_is_run_once_more_whose_rows_do_not_matter(self):
        for cells in (
            [self.broken(TP, 1, 97)],  # no fully_shard
            [self.broken(FSDP, 1, 96)],
            [self.broken(FSDP, 1)],
            [self.broken(FSDP, 1, 97), self.broken(FSDP, 2, 96)],  # it is there with rows that divide
            [rowed(cell("a", FSDP, 1), 97)],  # it matches
        ):
            with self.subTest([one.cell.name for one in cells]):
                self.assertEqual(self.again(*cells), [])
                even = [once_more(one, MATCHES, 96) for one in cells]
                found = _matrix.MatrixReport(tuple(cells), even=tuple(even)).bugs
                self.assertEqual([bug.only for bug in found], [""] * len(found))

    def test_replicas_share_no_rows(self):
        layout = Layout({"dp_replicate": 2, "fsdp": 2})
        self.assertEqual(self.again(self.broken(layout, 1, 98)), [])
        self.assertEqual(len(self.again(self.broken(BOTH, 1, 98))), 1)  # 4 ranks share them

    def test_only_a_cell_that_matches_with_rows_that_divide_says_it(self):
        one = self.broken(FSDP, 1, 40, 97)
        says_facts(self, self.only([one], once_more(one, MATCHES, 40, 96)), "97", "96")
        for even in ([], [once_more(one, WRONG, 40, 96)], [once_more(one, NOT_TRIED, 40, 96)]):
            self.assertEqual(self.only([one], *even), "")
        self.assertEqual(self.only([one], once_more(one, MATCHES, 40, 97)), "")  # nothing else was run

    def test_the_reports_have_it(self):
        one = self.broken(FSDP, 1, 97)
        for even, count in ((), 0), ((once_more(one, MATCHES, 96),), 1):
            report = _matrix.MatrixReport((one,), even=even)
            self.assertEqual(bool(report.document["bugs"][0]["only"]), bool(count))
            for text in (str(report), _show.github(report), _show.page(report)):
                self.assertEqual(text.count("97 rows"), count)

    def test_it_counts_in_the_minutes_and_is_left_out_when_they_are_over_or_it_is_interrupted(self):
        one = self.broken(FSDP, 1, 97)
        for over, stopped in (("2 minutes were over", ""), ("", "interrupted")):
            budget = mock.Mock(over=lambda over=over, stopped=stopped: stopped or over, stopped=lambda s=stopped: s)
            found = _run.run(lambda *_: self.fail("it is begun"), _rows.cells(_bugs.bugs([one])), budget=budget)
            self.assertEqual([outcome.verdict for outcome in found], [NOT_TRIED])

    def test_a_reason_is_cut_behind_a_word(self):
        for text, width, wanted in (
            ("one two", 7, "one two"),
            ("one two, three", 12, "one two..."),
            ("one two, three", 11, "one two..."),
            ("one two, three", 9, "one..."),
            ("x" * 12, 10, "x" * 7 + "..."),
        ):
            self.assertEqual(shortened(text, width), wanted)
            self.assertLessEqual(len(wanted), width)


if __name__ == "__main__":
    unittest.main()
