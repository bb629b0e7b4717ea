"""Test the programs that a matrix writes of its bugs: each is run as it is, with a mistake, and where it cannot run."""

import os
import pathlib
import subprocess
import sys
import tempfile
import textwrap
import unittest

import torch
from says import raises_facts
from skips import skip_file

import addend
from addend.torch._matrix import _bugs, _matrix, _reproduce, _transformers
from addend.torch._matrix._cells import WRONG, Cell, Layout, Outcome
from draws import draw_cases

try:
    from transformers.distributed.configuration_utils import DistributedConfig  # noqa: F401
except ImportError:
    skip_file(__name__, "this python3 has no Transformers with a DistributedConfig")

HANGS = 400  # seconds; many times what a program takes
AT_ONCE = 2  # programs
RIGHT, WRONG_SUM, CANNOT = 0, 1, 2  # exit statuses
TP, FSDP = {"tp": 2}, {"fsdp": 2}
CONFIG = {"model_type": "llama", "hidden_size": 16, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 8}
CONFIG.update(intermediate_size=16, num_hidden_layers=1, vocab_size=61)
INPUTS = {"first": 5, "vocabulary": 61, "length": 9, "head": [], "more": {}}
NORM, BARE, UP = "model.norm.weight", "norm.weight", "model.layers.0.mlp.up_proj.weight"


def bug(mesh, variant="", count=2, auto="AutoModelForCausalLM", name=NORM, cause="doubled", recipe=None, **report):
    """A bug whose sum of `name` is wrong."""
    one = {"kind": cause, "axes": "", "place": None, "text": cause, "factor": None}
    wrong = {"name": name, "verdict": "wrong", "kind": cause, "text": "wrong", "counts": None, "cause": one}
    param = {"name": name, "ok": False, "error": 0.5}
    found = {"params": [param], "diff": {"params": [wrong]}, "begins": None, "unreached": [], **report}
    recipe = recipe or {
        "config": CONFIG,
        "auto": auto,
        "plans": {},
        "inputs": INPUTS,
        "versions": {"Transformers": "5"},
    }
    cell = Cell("llama", Layout(mesh, variant=variant), count)
    (made,) = _bugs.bugs([Outcome(cell, WRONG, "why", found, recipe=recipe)])
    return made


def with_line(path, before, line):
    """The program with a line before another one, beside the program itself."""
    text = path.read_text(encoding="utf-8")
    assert text.count(before) == 1, before
    changed = path.with_name(f"changed-{path.name}")
    changed.write_text(text.replace(before, line + before), encoding="utf-8")
    return changed


class Programs(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def written(self, *bugs):
        paths, without = _reproduce.write_all(bugs, self.folder)
        self.assertEqual(without, [])
        return list(map(pathlib.Path, paths))

    def statuses(self, paths, **environment):
        """The exit status of each program, and what it printed."""
        plain, pipe = {"PATH": os.environ.get("PATH", ""), **environment}, subprocess.PIPE
        found = []
        for i in range(0, len(paths), AT_ONCE):
            some = [
                subprocess.Popen([sys.executable, path], stdout=pipe, stderr=subprocess.STDOUT, text=True, env=plain)
                for path in paths[i : i + AT_ONCE]
            ]
            said = [one.communicate(timeout=HANGS)[0] for one in some]
            found += [(one.returncode, text) for one, text in zip(some, said)]
        return found

    def test_each_kind_of_program_says_whether_the_bug_is_there(self):
        kinds = [
            bug(TP),
            bug(TP, "frozen", name=UP),
            bug(FSDP, "no_sync"),
            bug(TP, auto="AutoModel", name=BARE),
        ]
        paths = self.written(*kinds)
        self.assertEqual(len(set(paths)), len(kinds))
        for path, more in zip(paths, (0, 8, 3, 0)):
            text = path.read_text(encoding="utf-8")
            self.assertNotIn("addend", text)
            self.assertLess(len(text.splitlines()), 87 + more)
        taken = [paths[int(i)] for i in draw_cases("kinds of programs", list("0123"), 1)]
        doubled = [with_line(path, "    if rank == 0:\n", "    found = 2 * found\n") for path in taken]
        for path, (status, said) in zip(taken, self.statuses(taken)):
            self.assertEqual(status, RIGHT, (path.name, said))
        for path, (status, said) in zip(taken, self.statuses(doubled)):
            self.assertEqual(status, WRONG_SUM, (path.name, said))
            self.assertIn("norm.weight" if "frozen" not in path.name else UP, said)

    def test_a_variant_is_in_its_program(self):
        frozen, late = self.written(bug(TP, "frozen", name=UP), bug(FSDP, "no_sync"))
        shown = with_line(
            frozen, "    if rank == 0:\n", "    print(sum(p.requires_grad for p in model.parameters()))\n"
        )
        count = with_line(
            late, "                model.set_requires", '                print("syncs", i == MICROBATCHES - 1)\n'
        )
        (status, of_frozen), (also, of_late) = self.statuses([shown, count])
        self.assertEqual((status, also), (RIGHT, RIGHT), (of_frozen, of_late))
        self.assertEqual(of_frozen.splitlines().count("6"), 2, of_frozen)  # of 12 parameters, on both ranks
        self.assertEqual([of_late.count(f"syncs {last}") for last in (False, True)], [2, 2], of_late)

    def test_a_program_that_cannot_run_says_neither(self):
        (path,) = self.written(bug(TP))
        fails = with_line(path, "    if rank == 0:\n", "    raise ValueError(rank)\n")
        (self.folder / "transformers.py").write_text("raise ImportError('none_here')", encoding="utf-8")
        beside = self.folder / "beside.py"
        beside.write_text(path.read_text(encoding="utf-8"), encoding="utf-8")
        (missing,) = self.statuses([beside])
        (self.folder / "transformers.py").unlink()
        (failed,) = self.statuses([fails])
        self.assertEqual((missing[0], failed[0]), (CANNOT, CANNOT), (missing, failed))
        self.assertIn("none_here", missing[1])

    def test_a_gradient_that_is_missing_on_ranks_is_wrong(self):
        (path,) = self.written(bug(TP))
        line = "        if dist.is_initialized():\n            model.get_parameter(NAME).requires_grad_(False)\n"
        (found,) = self.statuses([with_line(path, "        model.zero_grad()\n", line)])
        self.assertEqual(found[0], WRONG_SUM, found)

    def test_inputs_are_those_of_the_cell(self):
        cell = Cell("paddleocr_vl", Layout(FSDP), 2)
        recipe = _transformers.Transformers(["paddleocr_vl"]).job(cell, str(self.folder)).recipe
        seen = "model.visual.vision_model.encoder.layers.0.self_attn.q_proj.weight"
        (path,) = self.written(bug(FSDP, name=seen, recipe=recipe))
        doubled = with_line(path, "    if rank == 0:\n", "    found = 2 * found\n")
        (right, said), (wrong, of_doubled) = self.statuses([path, doubled])
        self.assertEqual((right, wrong), (RIGHT, WRONG_SUM), (said, of_doubled))
        blind = {**recipe, "inputs": {**recipe["inputs"], "head": [], "more": {}}}
        (path,) = self.written(bug(FSDP, name=seen, recipe=blind))
        self.assertIn(seen, _reproduce.first_run(str(path)))  # tokens alone show nothing of it: that is not "right"

    def test_a_layout_without_effect_is_no_answer(self):
        (path,) = self.written(bug(FSDP))
        undivided = with_line(path, "    assert hasattr(model", "    model = torch.nn.Linear(1, 1)\n")
        self.assertIn("fsdp_size is without effect", _reproduce.first_run(str(undivided)))

    def test_lines_of_inputs_keep_to_their_length(self):
        more = {"at": ("constant", [[[i, i + 1] for i in range(36)]]), "decoder_input_ids": ("tokens", None)}
        inputs = {**INPUTS, "length": 80, "head": [6] + 64 * [3], "more": {**more, "seen": ("drawn", [1, 3, 4])}}
        made = {"config": CONFIG, "auto": "AutoModel", "plans": {}, "inputs": inputs}
        text = _reproduce.program(bug(TP, recipe=made), "program.py")
        self.assertLessEqual(max(map(len, text.splitlines())), 120)
        begin = text.index("    tokens = torch.randint")
        names = {"torch": torch, "ROWS": (2, 3), "MODEL": {"dtype": torch.float64}}
        exec(textwrap.dedent(text[begin : text.index("    bad = mp.")]), names)
        found = names["inputs"]
        self.assertEqual(found["input_ids"].shape, (2, 3, 1, 80))
        self.assertEqual(found["input_ids"][1, 2, 0, :65].tolist(), inputs["head"])
        self.assertEqual(found["at"][1, 2].tolist(), more["at"][1])
        self.assertEqual((found["seen"].shape, found["seen"].dtype), ((2, 3, 1, 3, 4), torch.float64))
        self.assertTrue(torch.equal(found["decoder_input_ids"], found["input_ids"]))

    def test_the_first_run_says_why_it_does_not_show_the_bug(self):
        program = self.folder / "program.py"
        for text, fact in (("1", ""), ("print('right') or 0", "right"), ("print('no model') or 2", "no model")):
            program.write_text(f"import sys\nsys.exit({text})", encoding="utf-8")
            self.assertEqual(bool(_reproduce.first_run(str(program))), bool(fact), text)
            self.assertIn(fact, _reproduce.first_run(str(program)))
        program.write_text("import time\ntime.sleep(1000)", encoding="utf-8")
        self.assertEqual(_reproduce.first_run(str(program), lambda: "interrupted"), "interrupted")

    def test_bugs_of_one_module_have_programs_of_their_own(self):
        bugs = [bug(TP), bug(TP, cause="averaged"), bug(TP, count=1), bug(TP, "frozen")]
        paths = self.written(*bugs)
        self.assertEqual(len({path.name for path in paths}), len(bugs))
        texts = [path.read_text(encoding="utf-8") for path in paths]
        self.assertEqual([f"python3 {path.name} " in text for path, text in zip(paths, texts)], [True] * len(bugs))

    def test_what_no_program_shows_is_refused(self):
        begins = {"module": "", "place": "optimizer", "text": "t", "where": "", "factor": None, "axes": [], "step": 0}
        plain = bug(TP).smallest
        (own,) = _bugs.bugs([Outcome(plain.cell, WRONG, "why", plain.report)])
        after = bug(TP, begins=begins, diff={"params": []})
        for one, fact in ((own, "Transformers"), (bug(TP, "bf16"), "bf16"), (after, "tp=2")):
            with raises_facts(self, addend.InvalidError, fact):
                _reproduce.write(one, self.folder / "none")
        self.assertFalse((self.folder / "none").exists())

    def test_a_report_writes_a_program_for_each_bug(self):
        outcomes = (bug(TP).smallest, Outcome(Cell("own", Layout(TP), 1), WRONG, "why", bug(FSDP).smallest.report))
        paths, without = _matrix.MatrixReport(outcomes).reproduce(self.folder)
        self.assertEqual((len(paths), len(without)), (1, 1))


if __name__ == "__main__":
    unittest.main()
