"""Test a project's own models and layouts in a matrix: what is refused before any rank starts, with what is said; which
layouts `--layout` chooses; and that a file's name hides no other module."""

import json
import pathlib
import random
import sys
import tempfile
import unittest

from says import raises_facts

import addend
from addend.torch._matrix import _matrix, _own
from addend.torch._matrix._cells import Cell, Layout


def make_model():
    return None


def parallelize(model, mesh):
    return model


def batches(rank, mesh):
    return []


def counted(rank, mesh, microbatches):
    return [microbatches]


def loss(model, batch):
    return None


def with_rows(rank, mesh, *, rows=2):
    return [rows]


BASE = {"make_model": make_model, "parallelize": parallelize, "batches": batches, "loss": loss}


def layouts(**more):
    return {**BASE, "layouts": {"one": {"mesh": {"dp": 2}, **more}}}


# what a dictionary is, and the facts that its refusal has
REFUSED = {
    "an_unknown_key": ({**BASE, "mesh": [{"dp": 2}]}, "mesh", "meshes"),
    "an_unknown_key_of_a_layout": (layouts(paralelize=parallelize), "one", "paralelize", "parallelize", "run"),
    "a_layout_without_a_mesh": ({**BASE, "layouts": {"one": {}}}, "one", "mesh"),
    "a_mesh_that_is_none": (layouts(mesh={"dp": 0}), "one", "dp"),
    "meshes_with_one_that_is_none": ({**BASE, "meshes": [{"dp": "2"}]}, "meshes", "dp"),
    "meshes_that_are_no_list": ({**BASE, "meshes": {"dp": 2}}, "meshes"),
    "a_mesh_twice": ({**BASE, "meshes": [{"dp": 2}, {"tp": 2}, {"dp": 2}]}, "meshes", "{'dp': 2}"),
    "models_that_are_a_list": ({**BASE, "models": [make_model]}, "models"),
    "no_models": ({**BASE, "models": {}, "make_model": None}, "models"),
    "a_model_without_a_name": ({**BASE, "models": {3: make_model}}, "models", "3"),
    "a_model_that_is_no_function": ({**BASE, "models": {"a": 3}}, "models", "a"),
    "a_model_that_wants_arguments": ({**BASE, "models": {"a": loss}}, "a", "make_model()"),
    "layouts_that_are_a_list": ({**BASE, "layouts": [{"mesh": {"dp": 2}}]}, "layouts"),
    "a_layout_that_is_a_mesh": ({**BASE, "layouts": {"one": 2}}, "layouts", "mesh"),
    "a_layout_of_a_text": (layouts(models="one"), "one", "models"),
    "a_layout_of_a_model_that_there_is_not": (
        {**layouts(models=["dens"]), "models": {"dense": make_model}},
        "one",
        "dens",
        "dense",
    ),
    "parallelize_of_one": ({**BASE, "parallelize": lambda model: model}, "parallelize(model, mesh)"),
    "a_layout_s_parallelize_of_three": (layouts(parallelize=lambda a, b, c: a), "one", "parallelize(model, mesh)"),
    "batches_of_one": ({**BASE, "batches": lambda rank: []}, "batches(rank, mesh)"),
    "a_layout_s_batches_of_four": (layouts(batches=lambda a, b, c, d: []), "one", "batches(rank, mesh, microbatches)"),
    "a_layout_s_batches_of_one": (layouts(batches=lambda rank: []), "one", "batches(rank, mesh)"),
    "a_layout_s_batches_that_are_none": (layouts(batches=None), "one", "batches", "NoneType"),
    "a_layout_s_make_model_of_one": (layouts(make_model=lambda mesh: None), "one", "make_model"),
    "a_cut_of_two": ({**BASE, "batches": ([], lambda whole, rank: [])}, "cut(whole, rank, mesh)"),
    "a_loss_of_one": ({**BASE, "loss": lambda model: None}, "loss(model, batch)"),
    "a_run_of_two": (layouts(run=lambda model, batches: None), "one", "run(model, microbatches, loss)"),
    "an_optimizer_that_is_made": ({**BASE, "optimizer": 3}, "optimizer", "int", "optimizer(model)"),
    "steps_that_are_a_text": ({**BASE, "steps": "2"}, "steps", "2", "str"),
    "steps_below_0": ({**BASE, "steps": -1}, "steps", "-1"),
    "a_bound_of_0": ({**BASE, "bound": 0}, "bound"),
    "a_seed_of_a_half": ({**BASE, "seed": 0.5}, "seed", "0.5"),
    "what_is_averaged_in_words": ({**BASE, "averaged": "yes"}, "averaged", "yes"),
    "no_loss": ({**BASE, "loss": None}, "loss"),
    "a_layout_without_functions": ({**layouts(), "parallelize": None}, "one", "parallelize"),
}

ACCEPTED = {
    "no_layouts": BASE,
    "batches_that_take_the_number": {**BASE, "batches": counted},
    "a_pair": {**BASE, "batches": ([], lambda whole, rank, mesh: [])},
    "what_is_not_given": {**BASE, "run": None, "norm": None, "meshes": None, "models": None, "layouts": None},
    "functions_of_any_arguments": {**BASE, "parallelize": lambda *any_, **more: None},
    "functions_of_more_that_have_values": {**BASE, "loss": lambda model, batch, weight=2: None},
    "a_layout_with_all_functions": {"layouts": {"one": {**BASE, "mesh": 2}}},
    "a_layout_without_a_norm": {**layouts(norm=None), "norm": lambda model: 0},
    "a_name": {**BASE, "name": "mine"},
}

FILE = """
def make_model(): pass
def parallelize(model, mesh): return model
def batches(rank, mesh): return []
def loss(model, batch): pass
"""


class Refused(unittest.TestCase):
    def test_a_dictionary(self):
        for name, (reported, *facts) in REFUSED.items():
            with self.subTest(name), raises_facts(self, addend.InvalidError, "`mine`", *facts):
                _own.Own("mine", reported)
        for name, reported in ACCEPTED.items():
            with self.subTest(name):
                self.assertEqual(_own.Own("mine", reported).models, ["mine"])

    def test_a_file(self):
        for text, *facts in (
            ("meshs = [{'dp': 2}]", "meshs", "meshes"),
            ("layout = {'a': {'mesh': {'dp': 2}}}", "layout", "layouts"),
            ("def optimiser(model): pass", "optimiser", "optimizer"),
            ("step = 3", "step", "steps"),
            ("meshes = [{'dp': 2}, {'dp': 2}]", "meshes"),
            ("layouts = {'a': {'mesh': {'dp': 2}, 'runs': None}}", "a", "runs", "run"),
        ):
            with self.subTest(text), raises_facts(self, addend.InvalidError, "jobs.py", *facts):
                self.read("jobs", text)
        for text in (
            "from os import path as steps_",
            "def layout(mesh): return {'mesh': mesh}\nlayouts = {'a': layout({'dp': 2})}",
            "def step(model): pass",
            "class Losses: pass",
            "_meshs = 3",
            "import torch.optim as optimizers",
        ):
            with self.subTest(text):
                self.assertEqual(self.read("jobs", text).models, ["jobs"])

    def read(self, name, text):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / f"{name}.py"
            path.write_text(FILE + text + "\n", encoding="utf-8")
            try:
                return _own.Own(name, _own.read(str(path)))
            finally:
                sys.path.remove(folder)

    def test_a_file_called_as_another_module_hides_none(self):
        for name in ("random", "json", "addend", "my-jobs.v2"):
            with self.subTest(name):
                before = sys.modules.get(name)
                own = self.read(name, "import dataclasses\n@dataclasses.dataclass\nclass Size:\n    n: 'int' = 3\n")
                self.assertEqual(own.models, [name])
                self.assertIs(sys.modules.get(name), before)
        self.assertEqual((json.loads("3"), random.__name__), (3, "random"))

    def test_a_file_that_cannot_be_read_leaves_nothing(self):
        before = set(sys.modules)
        with raises_facts(self, addend.InvalidError, "jobs.py", "ZeroDivisionError"):
            self.read("jobs", "1 / 0")
        self.assertEqual({name for name in set(sys.modules) - before if "jobs" in name}, set())


class Cases(unittest.TestCase):
    def test_the_files_of_this_project_are_accepted(self):
        folder = pathlib.Path(__file__).resolve().parents[2] / "cases" / "matrix"
        for name in ("torch_optimizers", "torch_parallel", "torch_pipelines"):
            with self.subTest(name):
                own = _own.Own(name, _own.read(str(folder / f"{name}.py")))
                self.assertTrue(all(own.layouts(model) for model in own.models))


class Counts(unittest.TestCase):
    def test_a_layout_s_own_batches_say_whether_they_take_the_number(self):
        for own, of_file, counts in (
            (counted, batches, [2, 1]),
            (batches, counted, [1]),
            (with_rows, counted, [1]),
            (None, counted, [2, 1]),
            (None, batches, [1]),
        ):
            reported = {**layouts(**({"batches": own} if own else {})), "batches": of_file}
            source = _own.Own("mine", reported)
            (layout,) = source.layouts("mine")
            self.assertEqual(list(source.counts(layout, [2, 1])), counts)
            made = source.job(Cell("mine", layout, 2), "").arguments["batches"]
            self.assertEqual(made(0, None), [2] if (own or of_file) in (counted, with_rows) else [])

    def test_what_a_layout_has_itself_counts(self):
        def norm(model):
            return 0

        reported = {**BASE, "norm": norm, "steps": 2, "layouts": {}}
        reported["layouts"] = {
            "all": {"mesh": {"dp": 2}},
            "none": {"mesh": {"dp": 2}, "norm": None, "make_model": batches_of_none, "steps": 1},
        }
        source = _own.Own("mine", reported)
        of = {layout.variant: source.job(Cell("mine", layout, 1), "").arguments for layout in source.layouts("mine")}
        self.assertEqual((of["all"]["norm"], of["all"]["steps"], of["all"]["make_model"]), (norm, 2, make_model))
        self.assertEqual(("norm" in of["none"], of["none"]["steps"]), (False, 1))
        self.assertIs(of["none"]["make_model"], batches_of_none)


def batches_of_none():
    return None


class Chosen(unittest.TestCase):
    MANY = {
        **BASE,
        "name": "many",
        "models": {"dense": make_model, "moe": make_model},
        "layouts": {
            "ddp": {"mesh": {"dp": 2}},
            "again": {"mesh": {"dp": 2}},
            "ep, of two": {"mesh": {"dp": 2, "ep": 2}, "models": ["moe"]},
        },
    }
    PLAIN = {**BASE, "name": "plain", "meshes": [{"dp": 2}, {"dp": 3}]}

    def test_by_name_and_by_mesh(self):
        for reported, wanted, names in (
            (
                self.MANY,
                None,
                ["many:dense ddp", "many:dense again", "many:moe ddp", "many:moe again", "many:moe ep, of two"],
            ),
            (self.MANY, ["ddp"], ["many:dense ddp", "many:moe ddp"]),
            (self.MANY, [{"dp": 2}], ["many:dense ddp", "many:dense again", "many:moe ddp", "many:moe again"]),
            (self.MANY, ["ep, of two"], ["many:moe ep, of two"]),
            (self.MANY, ["dp=2 ep=2, ep, of two", {"ep": 2, "dp": 2}], ["many:moe ep, of two"]),
            (self.PLAIN, [{"dp": 3}], ["plain "]),
            (self.PLAIN, [{"dp": 2, "tp": 2}], ["plain "]),
            (self.PLAIN, ["dp=3"], ["plain "]),
        ):
            with self.subTest(wanted):
                cells = _matrix.Matrix([reported], wanted, [1]).cells
                self.assertEqual(sorted(f"{cell.model} {cell.layout.variant}" for cell in cells), sorted(names))

    def test_what_there_is_is_said(self):
        for reported, wanted, *facts in (
            (self.MANY, "dp", "dp", "ddp", "dp=2", "ep, of two", "fsdp=2,ep=2"),
            (self.MANY, {"tp": 2}, "tp=2", "ddp", "again"),
            (self.PLAIN, "ddp", "ddp", "dp=2", "dp=3"),
        ):
            with self.subTest(wanted), raises_facts(self, addend.InvalidError, *facts):
                _matrix.Matrix([reported], [wanted], [1])
        with raises_facts(self, addend.InvalidError, "plain", "ddp"):  # it would have no cell at all
            _matrix.Matrix([self.MANY, self.PLAIN], ["ddp"], [1])
        self.assertEqual(len(_matrix.Matrix([self.MANY, self.PLAIN], ["ddp", {"dp": 3}], [1]).cells), 3)


class Fits(unittest.TestCase):
    def test_a_layout_is_asked_for_by_its_sizes_or_names(self):
        layout = Layout({"fsdp": 2}, {"ep": 2}, "frozen")
        for wanted, fits in (
            ({"ep": 2, "fsdp": 2}, True),
            ({"fsdp": 2}, False),
            ("frozen", True),
            ("fsdp=2 ep=2, frozen", True),
            ("fsdp=2 ep=2", False),
            ("", False),
        ):
            self.assertEqual(layout.fits(wanted), fits, wanted)


if __name__ == "__main__":
    unittest.main()
