"""Encodes texts into files of tokens, which a recipe names as `data.tokens`.

    python3 -m addend_train.tokens FILES... --tokenizer tokenizer.json --out corpus.npy

It needs NumPy and tokenizers. train/docs/tokens.md has examples."""

from __future__ import annotations

import argparse
import itertools
import json
import os
import pathlib
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Callable, NamedTuple, Union

from addend._progress import _BAR_SECONDS, _QUIET_SECONDS, _is_terminal

if TYPE_CHECKING:
    import numpy as np

Path = Union[str, "os.PathLike[str]"]
Pieces = Sequence[tuple[str, bool]]
Text = Union[str, Pieces]

_HEADER = 128  # bytes of a .npy header, padded so that it can be rewritten in place with the final length
_TEXTS, _CHARACTERS = 1024, 1 << 20  # texts are encoded in batches, which end at the first of these two limits


class Written(NamedTuple):
    """The files that `write` wrote, and their sizes."""

    file: str
    mask: str | None  # the mask's file
    tokens: int
    texts: int
    dtype: str  # dtype of the tokens in the file: uint16 or uint32
    vocabulary: int  # every token is smaller than this number


def write(
    texts: Iterable[Text],
    tokenizer: Any,
    file: Path,
    end: str | None = None,
    mask: Path | None = None,
) -> Written:
    """Encodes the texts one after another and writes their tokens to a .npy file, as uint16 if the tokenizer's
    vocabulary fits, else as uint32. `tokenizer`: a tokenizers.Tokenizer, a tokenizer of transformers, or the path of a
    tokenizer.json or of a folder with one; a tokenizer.json is written beside the file. The only special token that is
    added is `end`, such as "<|endoftext|>", after every text.

    A text is a string, or a list of (string, counts) pieces, such as the turns of a dialogue; each piece is encoded
    separately. `mask`: a second .npy file, for the recipe's `data.mask`: 1 for tokens that count in the loss (all of a
    string, and those of pieces whose `counts` is true), 0 for others; `end` counts if the piece before it does.

    Texts are read one batch at a time and not kept in memory. Both files get their names when they are complete; files
    that had these names stay until then."""
    return _Writing(_encoder(tokenizer), pathlib.Path(file), None if mask is None else pathlib.Path(mask), end).run(
        texts
    )


# ---- tokenizers ----


class _Encoder(NamedTuple):
    encode: Callable[[list[str]], list[list[int]]]
    vocabulary: int
    token: Callable[[str], int | None]
    json: str | None  # the text of tokenizer.json; None: the tokenizer cannot be written as one


def _of_tokenizers(tokenizer: Any, text: str | None = None) -> _Encoder:
    text = text or tokenizer.to_str(pretty=True)
    whole = type(tokenizer).from_str(text)  # a copy, so that the caller's tokenizer keeps its truncation and padding
    whole.no_truncation()
    whole.no_padding()
    batch = getattr(whole, "encode_batch_fast", whole.encode_batch)  # faster, because it keeps no offsets

    def encode(texts: list[str]) -> list[list[int]]:
        return [encoding.ids for encoding in batch(texts, add_special_tokens=False)]

    ids = whole.get_vocab(with_added_tokens=True).values()
    return _Encoder(encode, 1 + max(ids, default=-1), whole.token_to_id, text)


def _of_transformers(tokenizer: Any) -> _Encoder:
    """The encoder of a transformers tokenizer that is written in Python and has no tokenizer.json."""

    def encode(texts: list[str]) -> list[list[int]]:
        return [list(tokenizer.encode(text, add_special_tokens=False)) for text in texts]

    known = tokenizer.get_vocab()
    return _Encoder(encode, 1 + max(known.values(), default=-1), known.get, None)


def _of_path(path: pathlib.Path) -> _Encoder:
    try:
        import tokenizers
    except ImportError as error:
        raise ImportError("reading a tokenizer.json needs the package tokenizers: pip install tokenizers") from error
    path = path / "tokenizer.json" if path.is_dir() else path
    text = path.read_text(encoding="utf-8")
    try:
        return _of_tokenizers(tokenizers.Tokenizer.from_str(text), text)
    except Exception as error:  # the class of tokenizers' errors is Exception itself
        raise ValueError(f"{path} is not a valid tokenizer.json: {error}") from error


def _encoder(tokenizer: Any) -> _Encoder:
    if isinstance(tokenizer, (str, os.PathLike)):
        return _of_path(pathlib.Path(tokenizer))
    tokenizer = getattr(tokenizer, "backend_tokenizer", tokenizer)
    if hasattr(tokenizer, "encode_batch") and hasattr(tokenizer, "to_str"):
        return _of_tokenizers(tokenizer)
    if hasattr(tokenizer, "encode") and hasattr(tokenizer, "get_vocab"):
        return _of_transformers(tokenizer)
    raise TypeError(
        f"a {type(tokenizer).__name__} is not a tokenizer: give a tokenizers.Tokenizer, a tokenizer of transformers, "
        "or the path of a tokenizer.json"
    )


# ---- files ----


class _Array:
    """A one-dimensional .npy file that is appended to under a temporary name, and renamed once it is complete."""

    def __init__(self, path: pathlib.Path, dtype: str):
        import numpy

        self.path, self.dtype, self.count = path, numpy.dtype(dtype).newbyteorder("<"), 0
        handle, self.unfinished = tempfile.mkstemp(prefix=f"{path.name}.", suffix=".tmp", dir=path.parent)
        self.stream = os.fdopen(handle, "wb")
        self.stream.write(self._header())

    def _header(self) -> bytes:
        said = {"descr": self.dtype.str, "fortran_order": False, "shape": (self.count,)}
        return (
            b"\x93NUMPY\x01\x00" + (_HEADER - 10).to_bytes(2, "little") + f"{said}".ljust(_HEADER - 11).encode() + b"\n"
        )

    def add(self, values: np.ndarray[Any, Any]) -> None:
        self.stream.write(values.astype(self.dtype).tobytes())
        self.count += len(values)

    def finish(self) -> None:
        """Writes the final header and brings the file to disk, still under its temporary name."""
        self.stream.seek(0)
        self.stream.write(self._header())
        self.stream.flush()
        os.fsync(self.stream.fileno())
        self.stream.close()
        os.chmod(self.unfinished, 0o666 & ~_umask())

    def name(self) -> None:
        os.replace(self.unfinished, self.path)

    def drop(self) -> None:
        self.stream.close()
        if os.path.exists(self.unfinished):
            os.unlink(self.unfinished)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _encoding_part(text: str) -> Any:
    """The parts of a tokenizer.json that decide a text's tokens: all but truncation, padding and post-processing."""
    said = json.loads(text)
    unused = ("post_processor", "truncation", "padding")
    return {key: value for key, value in said.items() if key not in unused} if isinstance(said, dict) else said


def _encodes_the_same(path: pathlib.Path, text: str) -> bool:
    try:
        return bool(_encoding_part(path.read_text(encoding="utf-8")) == _encoding_part(text))
    except ValueError:
        return False


class _Reported:
    """Shows progress on standard error: one line that changes on a terminal, elsewhere a line every few seconds."""

    def __init__(self) -> None:
        self.terminal = _is_terminal()
        self.last = 0.0 if self.terminal else time.monotonic()

    def show(self, texts: int, tokens: int) -> None:
        now = time.monotonic()
        if now - self.last < (_BAR_SECONDS if self.terminal else _QUIET_SECONDS):
            return
        self.last = now
        before, behind = ("\r\033[K", "") if self.terminal else ("", "\n")
        print(f"{before}tokens {tokens:,} of {texts:,} texts", end=behind, file=sys.stderr, flush=True)

    def end(self) -> None:
        if self.terminal:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


# ---- writing ----


def _pieces(text: Any, number: int) -> list[tuple[str, bool]]:
    if isinstance(text, str):
        return [(text, True)]
    pieces: list[tuple[str, bool]] = []
    for piece in text if isinstance(text, (list, tuple)) else [text]:
        if not (isinstance(piece, (list, tuple)) and len(piece) == 2 and isinstance(piece[0], str)):
            raise TypeError(f"text {number} is neither a string nor a list of (string, counts) pieces: {text!r:.80}")
        pieces.append((piece[0], bool(piece[1])))
    return pieces


class _Writing:
    def __init__(self, encoder: _Encoder, file: pathlib.Path, mask: pathlib.Path | None, end: str | None):
        self.encoder, self.file, self.mask_file = encoder, file, mask
        self.texts, self.reported = 0, _Reported()
        self.end = None if end is None else encoder.token(end)
        self.dtype = "uint16" if encoder.vocabulary <= 1 << 16 else "uint32"
        if end is not None and self.end is None:
            raise ValueError(f"the tokenizer has no token {end!r}: `end` must be in its vocabulary")
        if mask is not None and mask.absolute() == file.absolute():
            raise ValueError(f"{file} is named for both the tokens and the mask: name two different files")

    def run(self, texts: Iterable[Text]) -> Written:
        self._check_tokenizer()
        with ExitStack() as stack:
            stack.callback(self.reported.end)
            self.tokens = _Array(self.file, self.dtype)
            stack.callback(self.tokens.drop)
            self.mask = None if self.mask_file is None else _Array(self.mask_file, "uint8")
            if self.mask:
                stack.callback(self.mask.drop)
            self._encode(texts)
            self._finish()
        mask_name = None if self.mask_file is None else str(self.mask_file)
        return Written(str(self.file), mask_name, self.tokens.count, self.texts, self.dtype, self.encoder.vocabulary)

    def _check_tokenizer(self) -> None:
        """Refuses a folder with another tokenizer's tokenizer.json: its token files were encoded differently."""
        beside = self.file.parent / "tokenizer.json"
        if self.encoder.json and beside.exists() and not _encodes_the_same(beside, self.encoder.json):
            raise ValueError(
                f"{beside} is another tokenizer than the given one: write to another folder, or remove it and the "
                "token files beside it"
            )

    def _encode(self, texts: Iterable[Text]) -> None:
        batch: list[list[tuple[str, bool]]] = []
        characters = 0
        for text in texts:
            batch.append(_pieces(text, self.texts + len(batch)))
            characters += sum(len(piece) for piece, _ in batch[-1])
            if len(batch) >= _TEXTS or characters >= _CHARACTERS:
                self._add(batch)
                batch, characters = [], 0
        self._add(batch)

    def _add(self, batch: list[list[tuple[str, bool]]]) -> None:
        import numpy

        ids = iter(self.encoder.encode([piece for pieces in batch for piece, _ in pieces]))
        tokens: list[int] = []
        counted: list[int] = []
        for pieces in batch:
            counts = True
            for _, counts in pieces:
                own = next(ids)
                tokens += own
                counted += [counts] * len(own)
            if self.end is not None:
                tokens.append(self.end)
                counted.append(counts)
        if self.mask is None and not all(counted):
            raise ValueError("some pieces do not count in the loss: name a file that says which tokens do, mask=FILE")
        self.tokens.add(self._checked(numpy.array(tokens, dtype=numpy.int64)))
        if self.mask:
            self.mask.add(numpy.array(counted, dtype=numpy.uint8))
        self.texts += len(batch)
        self.reported.show(self.texts, self.tokens.count)

    def _checked(self, ids: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """The ids, if the vocabulary has them all. The dtype of the file follows from it and would cut larger ones."""
        outside = ids[(ids < 0) | (ids >= self.encoder.vocabulary)]
        if len(outside):
            raise ValueError(
                f"{self.file} is not written: the tokenizer encodes a text with id {outside[0]}, but the largest id of "
                f"its vocabulary is {self.encoder.vocabulary - 1}"
            )
        return ids

    def _finish(self) -> None:
        if not self.tokens.count:
            raise ValueError(f"{self.file} is not written: the {self.texts} texts have no tokens")
        arrays = [array for array in (self.mask, self.tokens) if array]
        for array in arrays:
            array.finish()
        self._put_tokenizer()
        for array in arrays:
            array.name()

    def _put_tokenizer(self) -> None:
        beside = self.file.parent / "tokenizer.json"
        if not self.encoder.json:
            print(
                f"addend_train.tokens: no tokenizer.json is written beside {self.file}: "
                "this tokenizer has no such form",
                file=sys.stderr,
            )
            return
        if beside.exists():
            return
        unfinished = pathlib.Path(f"{self.tokens.unfinished}.json")
        try:
            unfinished.write_text(self.encoder.json, encoding="utf-8")
            os.replace(unfinished, beside)
        finally:
            if unfinished.exists():
                unfinished.unlink()


# ---- the command ----


def _lines(path: pathlib.Path) -> Iterator[str]:
    with open(path, encoding="utf-8", newline="") as stream:
        yield from stream


def _of_jsonl(path: pathlib.Path, key: str) -> Iterator[Text]:
    for number, line in enumerate(_lines(path), 1):
        if not line.strip():
            continue
        try:
            text = json.loads(line)[key]
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f'{path}:{number} is not a JSON object with the key "{key}"') from error
        yield text


def _texts_of(path: pathlib.Path, lines: bool, key: str) -> Iterator[Text]:
    if path.suffix == ".jsonl":
        return _of_jsonl(path, key)
    return (line.rstrip("\r\n") for line in _lines(path)) if lines else iter([path.read_bytes().decode("utf-8")])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python3 -m addend_train.tokens",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Encodes texts and writes their tokens as one .npy file, for data.tokens of a recipe, with\n"
        "tokenizer.json beside it. Each file is one text, read into memory; in a .jsonl file each line is one.",
        epilog="Example: python3 -m addend_train.tokens books/*.txt --tokenizer gpt2/tokenizer.json \\\n"
        '           --out corpus.npy --end "<|endoftext|>"\n'
        '         addend train recipes/gpt-text.yaml --set "data={tokens: corpus.npy, seq: 128}"',
    )
    parser.add_argument("files", nargs="+", metavar="FILES", help="texts in UTF-8, or .jsonl files")
    parser.add_argument("--tokenizer", required=True, metavar="PATH", help="a tokenizer.json, or a folder with one")
    parser.add_argument("--out", required=True, metavar="FILE", help="the .npy file to write; replaces an existing one")
    parser.add_argument("--end", metavar="TOKEN", help='a token after every text, such as "<|endoftext|>"')
    parser.add_argument("--lines", action="store_true", help="each line of a file is a text, without its line end")
    parser.add_argument(
        "--key", default="text", help="key of the text, or list of [text, counts], in a .jsonl file's objects"
    )
    parser.add_argument("--mask", metavar="FILE", help="a second .npy file, for data.mask: 1 where a token counts")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """The command `python3 -m addend_train.tokens`. Returns 0, or 2 after a message on standard error."""
    given = _parser().parse_args(arguments)
    texts = itertools.chain.from_iterable(_texts_of(pathlib.Path(path), given.lines, given.key) for path in given.files)
    try:
        written = write(texts, given.tokenizer, given.out, given.end, given.mask)
    except (OSError, ValueError, TypeError, ImportError) as error:
        print(f"addend_train.tokens: {error}", file=sys.stderr)
        return 2
    print(
        f"{written.file}: {written.tokens:,} tokens of {written.texts:,} texts as {written.dtype}; "
        f"the vocabulary is {written.vocabulary:,}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
