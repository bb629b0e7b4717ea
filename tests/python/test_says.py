"""Test what tests/support/says.py and says.sh take for a fact, and which sentences the golden file has to list."""

import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

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
            self.assertFalse(says.has(text, fact))
            self.assertIsNotNone(wrong(text, fact))

    def test_a_word_of_prose_is_no_fact(self):
        text = 'the mesh must have `block` first, on "dp=2 tp=3" and gloo'
        self.assertIsNone(wrong(text, "block", "dp=2 tp=3", "dp=2"))
        for prose in "must", "gloo":
            self.assertFalse(says.is_fact(text, prose))
            self.assertIsNotNone(wrong(text, prose))
        self.assertFalse(says.is_fact("at most 3 rows of it", "most 3 rows of"))

    def test_an_option_a_shape_and_the_subject_are_facts(self):
        text = "  axes: mine.c:7: rotary: shapes [2,3] and [2] differ without --resume, -o or --no-resume-all: see that"
        self.assertIsNone(wrong(text, "axes", "rotary", "[2,3]", "--resume", "-o", "--no-resume-all"))
        for prose in "see", "that", "shapes":
            self.assertTrue(says.has(text, prose))
            self.assertFalse(says.is_fact(text, prose))
        for longer, fact in ("--resume-all", "--resume"), ("--no", "-no"):
            self.assertFalse(says.has(longer, fact))

    def test_all_facts_stand_on_one_line(self):
        self.assertIsNone(wrong("rank 1\nrank 2 of rank 1", "rank 1", "rank 2"))
        self.assertIsNotNone(wrong("rank 1\nrank 2", "rank 1", "rank 2"))

    def test_the_sentence_is_the_line_without_numbers(self):
        self.assertEqual(
            says.sentence_of("/tmp/tmp.x1/run: 12 of 0.5, xxh64 0123456789abcdef"), ".../run: # of #, xxh64 #"
        )

    def test_a_line_that_is_not_listed_ends_the_script(self):
        ended = script("says err nobody.py:7 this")
        self.assertEqual((ended.returncode, ended.stdout), (1, ""))
        says.says_facts(self, ended.stderr, "tests/golden/some.txt", "nobody.py:#")
        self.assertIn("nobody. nobody.py:# this", ended.stderr)
        self.assertIn("\n  nobody.py:#: says `this`\n", ended.stderr)
        says.says_facts(self, ended.stderr, "nobody.sh", "line 2")

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


class InPython(unittest.TestCase):
    """What a test case in Python asserts; `records` makes the golden file one that lists everything."""

    TEXT = "another line\nnobody.py:7: says `this`"

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def records(self, call):
        """What is recorded of a call: area, head and sentence of each line."""
        with mock.patch.dict(os.environ, ADDEND_GOLDEN=str(self.folder)):
            call()
        texts = [path.read_text(encoding="utf-8") for path in self.folder.iterdir()]
        return [line.split("\t") for text in texts for line in text.splitlines()]

    def test_a_line_is_recorded_under_its_test_or_a_case_of_its_table(self):
        head, sentence = f"says.{self.id().split('.')[-1]}", "nobody.py:#: says `this`"
        said = self.records(lambda: says.says(self, self.TEXT, "nobody.py:7", "this"))
        self.assertEqual(said, [["python", head, sentence]])
        said = self.records(lambda: says.says(self, self.TEXT, "this", case="other"))
        self.assertEqual(said[1:], [["python", f"{head} other", sentence]])
        said = self.records(lambda: says.says(self, self.TEXT))
        self.assertEqual(said[2:], [["python", head, "another line"]])

    def test_a_row_comes_before_the_verdict_that_has_the_same_facts(self):
        for verdict in ("matches", "DOES NOT MATCH", "CANNOT TELL", "NOT CHECKED"):
            first, row = f"{verdict}: 2 of 3 parameters", "  BAD  2 of 3 parameters `a`"
            for text, facts, expected in (
                (f"{first}\n\n{row}\n{first}", ["2", "3"], row),
                (f"{first}\n{first}", ["2", "3"], first),  # no other line has them
                (f"{first}\n{row}", [], first),  # the first line is meant
            ):
                with self.subTest(text=text, facts=facts):
                    for path in self.folder.iterdir():
                        path.unlink()
                    said = self.records(lambda text=text, facts=facts: says.says(self, text, *facts))
                    self.assertEqual([line[2] for line in said], [says.sentence_of(expected)])

    def test_a_sentence_that_is_not_listed_fails(self):
        environment = {name: value for name, value in os.environ.items() if name != "ADDEND_GOLDEN"}
        with mock.patch.dict(os.environ, environment, clear=True):
            self.assertRaises(self.failureException, says.says, self, self.TEXT, "nobody.py:7")
            says.says_facts(self, self.TEXT, "nobody.py:7")

    def test_what_is_raised_has_the_facts(self):
        for raises in says.raises, says.raises_facts:
            with mock.patch.dict(os.environ, ADDEND_GOLDEN=str(self.folder)):
                with raises(self, ValueError, "nobody.py:7") as caught:
                    raise ValueError(self.TEXT)
                self.assertEqual(str(caught.exception), self.TEXT)
                with self.assertRaises(self.failureException), raises(self, ValueError, "nobody.py:8"):
                    raise ValueError(self.TEXT)

    def test_facts_that_are_not_to_be_said(self):
        says.says_nothing_of(self, self.TEXT, "nobody.py:8")
        says.says_nothing_of(self, self.TEXT, "another", "this")  # on two lines
        self.assertRaises(self.failureException, says.says_nothing_of, self, self.TEXT, "nobody.py:7", "this")
        self.assertRaises(self.failureException, says.says_facts, self, self.TEXT, "nobody.py:8")


if __name__ == "__main__":
    unittest.main()
