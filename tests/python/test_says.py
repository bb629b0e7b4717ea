"""Test what tests/support/says.py and says.sh take for a fact, and which sentences the golden file has to list."""

import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SUPPORT = Path(__file__).resolve().parents[1] / "support"
sys.path.insert(0, str(SUPPORT))
import says  # noqa: E402  its folder is added above

HANGS = 60  # seconds


def wrong(text, *facts):
    return says.wrong_line(text, facts, None, None)


def script(text, golden=None):
    """What a script `some/nobody.sh` ends with, whose file `err` has the text "nobody.py:7: says `this`"."""
    environment = {name: value for name, value in os.environ.items() if name != "ADDEND_GOLDEN"}
    if golden:
        environment["ADDEND_GOLDEN"] = golden
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder, "some")
        folder.mkdir()
        Path(folder, "err").write_text("another line\nnobody.py:7: says `this`\n", encoding="utf-8")
        Path(folder, "nobody.sh").write_text(f". {SUPPORT}/says.sh\n{text}\necho reached\n", encoding="utf-8")
        return subprocess.run(
            ["bash", "nobody.sh"],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=HANGS,
            check=False,
        )


class Says(unittest.TestCase):
    def test_a_fact_is_a_whole_name_or_number(self):
        self.assertIsNone(
            wrong("rank 12 has `emb.w` over dp, 2.5e-07 of it", "rank 12", "12", "emb.w", "dp", "2.5e-07")
        )
        for text, fact in ("rank 12", "rank 1"), ("rank 12", "2"), ("over dp_shard", "dp"), ("`emb.w`", "emb.b"):
            self.assertIn("no line has", wrong(text, fact))

    def test_a_word_of_prose_is_no_fact(self):
        text = 'the mesh must have `block` first, on "dp=2 tp=3" and gloo'
        self.assertIsNone(wrong(text, "block", "dp=2 tp=3", "dp=2"))
        for prose in "must", "gloo":
            self.assertIn("prose", wrong(text, prose))
        self.assertIn("prose", wrong("at most 3 rows of it", "most 3 rows of"))

    def test_an_option_a_shape_and_the_subject_are_facts(self):
        text = "  axes: mine.c:7: rotary: shapes [2,3] and [2] differ without --resume, -o or --no-resume-all: see that"
        self.assertIsNone(wrong(text, "axes", "rotary", "[2,3]", "--resume", "-o", "--no-resume-all"))
        for prose in "see", "that", "shapes":
            self.assertIn("prose", wrong(text, prose))
        for longer, fact in ("--resume-all", "--resume"), ("--no", "-no"):
            self.assertIn("no line has", wrong(longer, fact))

    def test_all_facts_stand_on_one_line(self):
        self.assertIn("no line has", wrong("rank 1\nrank 2", "rank 1", "rank 2"))

    def test_the_sentence_is_the_line_without_numbers(self):
        self.assertEqual(
            says.sentence_of("/tmp/tmp.x1/run: 12 of 0.5, xxh64 0123456789abcdef"), ".../run: # of #, xxh64 #"
        )

    def test_a_line_that_is_not_listed_ends_the_script(self):
        ended = script("says err nobody.py:7 this")
        self.assertEqual((ended.returncode, ended.stdout), (1, ""))
        self.assertIn(
            "tests/golden/some.txt does not list, for nobody. nobody.py:# this:\n  nobody.py:#: says `this`",
            ended.stderr,
        )
        self.assertIn("FAILED: line 2 of nobody.sh", ended.stderr)

    def test_a_line_is_recorded_under_its_script_and_its_facts(self):
        with tempfile.TemporaryDirectory() as folder:
            self.assertEqual(script("says err nobody.py:7 this", folder).stdout, "reached\n")
            said = [path.read_text(encoding="utf-8") for path in Path(folder).iterdir()]
        self.assertEqual(said, ["some\tnobody. nobody.py:# this\tnobody.py:#: says `this`\n"])

    def test_facts_without_the_golden_file(self):
        self.assertEqual(script("says_facts err nobody.py:7").stdout, "reached\n")
        self.assertEqual(script("says_facts err nobody.py:8").returncode, 1)

    def test_no_line_has_what_is_not_to_be_said(self):
        self.assertEqual(script("says_nothing_of err nobody.py:8").stdout, "reached\n")
        ended = script("says_nothing_of err nobody.py:7 this")
        self.assertEqual((ended.returncode, ended.stdout), (1, ""))
        self.assertIn("nobody.py:7: says `this`", ended.stderr)


if __name__ == "__main__":
    unittest.main()
