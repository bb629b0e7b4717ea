"""Test that texts become token files: encoded as the tokenizer encodes them, written whole or not at all, with the
tokenizer beside them.
"""

import io
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
from contextlib import redirect_stderr, redirect_stdout
from unittest import mock

import numpy
from skips import skip_file

try:
    import tokenizers
except ImportError:
    skip_file(__name__, "this python3 has no tokenizers")

from says import raises, says

from addend_train import tokens

TEXTS = ["the quick brown fox", "", "jumps over the lazy dog\nagain and again", "über"]
END = "<|end|>"


def bytes_tokenizer(vocabulary=300):
    """Return a tokenizer: BPE over bytes, so that every text can be encoded; END is token 0."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=[END], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(TEXTS * 3, trainer)
    return tokenizer


def words_tokenizer(words):
    return tokenizers.Tokenizer(tokenizers.models.WordLevel({f"w{i}": i for i in range(words)}, unk_token="w0"))


class Tokens(unittest.TestCase):
    def setUp(self):
        self.work = tempfile.TemporaryDirectory()
        self.addCleanup(self.work.cleanup)
        self.folder = pathlib.Path(self.work.name)
        self.file, self.mask = self.folder / "corpus.npy", self.folder / "mask.npy"
        self.tokenizer = bytes_tokenizer()

    def left(self):
        return sorted(path.name for path in self.folder.iterdir())

    def test_texts_are_encoded_one_after_another_with_an_end(self):
        written = tokens.write(iter(TEXTS), self.tokenizer, self.file, end=END)
        expected = [i for text in TEXTS for i in [*self.tokenizer.encode(text).ids, 0]]
        array = numpy.load(self.file)
        self.assertEqual((array.tolist(), array.dtype.str), (expected, "<u2"))
        self.assertEqual(self.tokenizer.decode(array.tolist(), skip_special_tokens=False), END.join([*TEXTS, ""]))
        self.assertEqual(written[2:], (len(expected), 4, "uint16", self.tokenizer.get_vocab_size()))
        self.assertEqual(self.left(), ["corpus.npy", "tokenizer.json"])
        self.assertEqual(self.file.stat().st_size, 128 + 2 * len(expected))
        self.assertEqual(self.file.read_bytes()[6:10], b"\1\0\x76\0")

    def test_the_tokenizer_beside_it_encodes_the_same(self):
        tokens.write(TEXTS, self.tokenizer, self.file)
        beside = tokenizers.Tokenizer.from_file(str(self.folder / "tokenizer.json"))
        self.assertEqual(beside.encode(TEXTS[2]).ids, self.tokenizer.encode(TEXTS[2]).ids)

    def test_batches_do_not_show(self):
        tokens.write(TEXTS, self.tokenizer, self.file, end=END)
        whole = self.file.read_bytes()
        for texts, characters in (1, 1 << 20), (2, 1 << 20), (1000, 1), (1000, 20):
            with mock.patch.multiple(tokens, _TEXTS=texts, _CHARACTERS=characters):
                tokens.write(TEXTS, self.tokenizer, self.file, end=END)
            self.assertEqual(self.file.read_bytes(), whole)

    def test_texts_are_not_kept(self):
        alive = []

        def texts():
            for i in range(60):
                alive.append(self.file.parent.joinpath(self.left()[0]).stat().st_size)
                yield f"text {i} " * 3000

        tokens.write(texts(), self.tokenizer, self.file)
        self.assertGreater(max(alive), 1 << 19)  # the file grows while texts still arrive

    def test_a_large_vocabulary_is_written_as_uint32(self):
        for words, dtype in (1 << 16, "<u2"), ((1 << 16) + 1, "<u4"):
            folder = self.folder / str(words)
            folder.mkdir()
            tokens.write([f"w{words - 1}"] * 2, words_tokenizer(words), folder / "corpus.npy")
            array = numpy.load(folder / "corpus.npy")
            self.assertEqual((array.tolist(), array.dtype.str), ([words - 1] * 2, dtype))

    def test_an_id_outside_the_vocabulary_is_refused(self):
        class Tokenizer:
            """A tokenizer whose added token is missing from its vocabulary."""

            def __init__(self, largest):
                self.largest = largest

            def encode(self, text, add_special_tokens):
                return [7, self.largest]

            def get_vocab(self):
                return {f"w{i}": i for i in range(1000)}

        tokens.write(["a"], Tokenizer(999), self.file)
        self.assertEqual(numpy.load(self.file).tolist(), [7, 999])
        for largest in 1000, 65536 + 5, -1:  # the second would be 5 in 16 bits
            with raises(self, ValueError, f"id {largest}", "is 999"):
                tokens.write(["a"], Tokenizer(largest), self.folder / "other.npy")
        self.assertEqual(self.left(), ["corpus.npy"])

    def test_pieces_that_do_not_count_are_masked(self):
        dialogue = [("ask ", False), ("answer", True)]
        prompt = [("answer ", True), ("ask", False)]
        tokens.write([dialogue, "plain", prompt], self.tokenizer, self.file, end=END, mask=self.mask)
        ids, counted = [], []
        for pieces in dialogue, [("plain", True)], prompt:
            for text, counts in pieces:
                own = self.tokenizer.encode(text).ids
                ids, counted = ids + own, counted + [int(counts)] * len(own)
            ids, counted = [*ids, 0], [*counted, counted[-1]]
        self.assertEqual(numpy.load(self.file).tolist(), ids)
        self.assertEqual((numpy.load(self.mask).tolist(), numpy.load(self.mask).dtype.str), (counted, "|u1"))
        with raises(self, ValueError, "mask="):
            tokens.write([dialogue], self.tokenizer, self.file)

    def test_a_tokenizer_that_truncates_pads_and_adds_tokens_does_none_of_it(self):
        expected = self.tokenizer.encode(TEXTS[0]).ids
        self.tokenizer.enable_truncation(3)
        self.tokenizer.enable_padding(length=50)
        template = tokenizers.processors.TemplateProcessing(single=f"{END} $A", special_tokens=[(END, 0)])
        self.tokenizer.post_processor = template
        tokens.write(TEXTS[:1], self.tokenizer, self.file)
        self.assertEqual(numpy.load(self.file).tolist(), expected)
        self.assertEqual(self.tokenizer.truncation["max_length"], 3)  # the setting belongs to the caller and stays

    def test_transformers_tokenizers_and_paths_are_taken(self):
        tokens.write(TEXTS, self.tokenizer, self.file)
        expected = numpy.load(self.file).tolist()
        self.assertEqual(self._write_with(self.folder), expected)
        self.assertEqual(self._write_with(str(self.folder / "tokenizer.json")), expected)
        try:
            from transformers import PreTrainedTokenizerFast
        except ImportError:
            return
        self.assertEqual(self._write_with(PreTrainedTokenizerFast(tokenizer_object=self.tokenizer)), expected)

    def _write_with(self, tokenizer):
        tokens.write(TEXTS, tokenizer, self.file)
        return numpy.load(self.file).tolist()

    def test_a_tokenizer_without_a_json_form_is_taken_and_reported(self):
        class Slow:
            def encode(self, text, add_special_tokens):
                assert not add_special_tokens
                return [ord(letter) % 9 for letter in text]

            def get_vocab(self):
                return {str(i): i for i in range(9)}

        said = io.StringIO()
        with redirect_stderr(said):
            tokens.write(["ab"], Slow(), self.file, end="4")
        self.assertEqual(numpy.load(self.file).tolist(), [97 % 9, 98 % 9, 4])
        says(self, said.getvalue(), "tokenizer.json", str(self.file))
        self.assertEqual(self.left(), ["corpus.npy"])

    def test_what_fails_leaves_what_was_there(self):
        tokens.write(TEXTS, self.tokenizer, self.file, mask=self.mask)
        before = {name: (self.folder / name).read_bytes() for name in self.left()}

        def fails():
            yield "a text " * 200000
            raise KeyboardInterrupt

        for texts, error in (
            (fails(), KeyboardInterrupt),
            ([""], ValueError),
            (["a", 7], TypeError),
            ([["a"]], TypeError),
        ):
            with self.assertRaises(error):
                tokens.write(texts, self.tokenizer, self.file, mask=self.mask)
            self.assertEqual({name: (self.folder / name).read_bytes() for name in self.left()}, before)

    def test_wrong_calls_are_refused_before_anything_is_encoded(self):
        def never():
            raise AssertionError("a text was asked for")
            yield ""

        other = bytes_tokenizer(280)
        tokens.write(TEXTS, other, self.file)
        for call, facts in (
            (dict(tokenizer=self.tokenizer), [str(self.folder / "tokenizer.json")]),
            (dict(tokenizer=other, end="<none>"), ["<none>"]),
            (dict(tokenizer=other, mask=self.file), [str(self.file)]),
        ):
            with raises(self, ValueError, *facts):
                tokens.write(never(), file=self.file, **call)
        with raises(self, TypeError, "Tokenizer"):
            tokens.write(never(), 3, self.file)
        bad = self.folder / "bad.json"
        bad.write_text("{}")
        with raises(self, ValueError, str(bad), "tokenizer.json"):
            tokens.write(never(), bad, self.file)


class Command(unittest.TestCase):
    def setUp(self):
        self.work = tempfile.TemporaryDirectory()
        self.addCleanup(self.work.cleanup)
        self.folder = pathlib.Path(self.work.name)
        self.tokenizer = bytes_tokenizer()
        self.tokenizer.save(str(self.folder / "own.json"))
        (self.folder / "out").mkdir()

    def run_it(self, *arguments):
        out, err = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err):
            here = os.getcwd()
            os.chdir(self.folder)
            try:
                status = tokens.main([*arguments, "--tokenizer", "own.json", "--out", "out/corpus.npy"])
            finally:
                os.chdir(here)
        return status, out.getvalue(), err.getvalue()

    def text(self):
        ids = numpy.load(self.folder / "out/corpus.npy").tolist()
        return self.tokenizer.decode(ids, skip_special_tokens=False)

    def test_files_lines_and_objects_are_texts(self):
        (self.folder / "a.txt").write_bytes(b"eins\r\nzwei\n")
        (self.folder / "b.txt").write_text("drei")
        (self.folder / "c.jsonl").write_text(
            '{"text": "vier"}\n\n{"text": [["f\\u00fcnf ", false], ["sechs", true]]}\n'
        )
        status, out, err = self.run_it("a.txt", "b.txt", "--end", END)
        self.assertEqual((status, err, self.text()), (0, "", f"eins\r\nzwei\n{END}drei{END}"))
        says(
            self,
            out,
            "out/corpus.npy",
            f"{len(numpy.load(self.folder / 'out/corpus.npy'))} tokens",
            "2 texts",
            "uint16",
        )
        self.run_it("a.txt", "b.txt", "--end", END, "--lines")
        self.assertEqual(self.text(), f"eins{END}zwei{END}drei{END}")
        status, _, err = self.run_it("c.jsonl", "--end", END, "--mask", "out/mask.npy")
        self.assertEqual((status, err, self.text()), (0, "", f"vier{END}fünf sechs{END}"))
        self.assertEqual(len(numpy.load(self.folder / "out/mask.npy")), len(numpy.load(self.folder / "out/corpus.npy")))

    def test_what_is_wrong_is_one_sentence(self):
        (self.folder / "c.jsonl").write_text('{"text": "a"}\n{"txt": "b"}\n')
        for arguments, facts in (
            (["none.txt"], ["none.txt"]),
            (["c.jsonl"], ["c.jsonl:2", "text"]),
            (["own.json", "--end", "x" * 9], ["x" * 9]),
        ):
            status, out, err = self.run_it(*arguments)
            self.assertEqual((status, out), (2, ""))
            says(self, err, "addend_train.tokens", *facts)
            self.assertEqual(err.count("\n"), 1, err)
        self.assertEqual(list((self.folder / "out").iterdir()), [])

    def test_help_has_an_example(self):
        done = subprocess.run(
            [sys.executable, "-m", "addend_train.tokens", "--help"], capture_output=True, text=True, check=True
        )
        self.assertIn("Example: python3 -m addend_train.tokens", done.stdout)
        self.assertIn("--mask", done.stdout)

    def test_what_lasts_is_reported(self):
        said = io.StringIO()
        with redirect_stderr(said), mock.patch.object(tokens, "_QUIET_SECONDS", 0.0):
            tokens.write(["a b"] * 3000, self.tokenizer, self.folder / "out/corpus.npy")
        says(self, said.getvalue(), "1,024 texts")


class Json(unittest.TestCase):
    def test_the_same_tokenizer_in_another_layout_is_the_same(self):
        with tempfile.TemporaryDirectory() as work:
            folder = pathlib.Path(work)
            tokenizer = bytes_tokenizer()
            (folder / "tokenizer.json").write_text(json.dumps(json.loads(tokenizer.to_str())))
            before = (folder / "tokenizer.json").read_bytes()
            tokens.write(TEXTS, tokenizer, folder / "corpus.npy")
            self.assertEqual((folder / "tokenizer.json").read_bytes(), before)


if __name__ == "__main__":
    unittest.main()
