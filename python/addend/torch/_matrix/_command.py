"""The command `addend torch-matrix MODEL...`."""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import Any, Dict, List, NoReturn, Sequence, Union

import addend

HOLDS, ANSWER_IS_NO, WRONG_CALL, UNFINISHED = 0, 1, 2, 3
_FORMATS = ("text", "json", "github")


def _layout(text: str) -> Union[str, Dict[str, int]]:
    """ "fsdp=2,ep=2" as {"fsdp": 2, "ep": 2}; what is not sizes alone is a layout's name."""
    words = text.replace(",", " ").split()
    return _sizes(text) if words and all("=" in word for word in words) else text.strip()


def _sizes(text: str) -> Dict[str, int]:
    found: Dict[str, int] = {}
    for word in text.replace(",", " ").split():
        axis, _, size = word.partition("=")
        if not axis.isidentifier() or not size.isdecimal() or not int(size):
            raise argparse.ArgumentTypeError(f"'{text}' is not axes and sizes, as in fsdp=2,ep=2")
        if axis in found:
            raise argparse.ArgumentTypeError(f"'{text}' names {axis} twice")
        found[axis] = int(size)
    return found


def _counts(text: str) -> List[int]:
    """ "2,1" as [2, 1]"""
    words = text.split(",")
    if not all(word.isdecimal() and int(word) for word in words):
        raise argparse.ArgumentTypeError(f"'{text}' is not numbers of microbatches, as in 1,2,3")
    return [int(word) for word in words]


def _number(text: str) -> int:
    """A number from 1 on."""
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"'{text}' is not a number from 1 on")
    return int(text)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("addend torch-matrix", description="Holds models under layouts to one process.")
    parser.add_argument("models", nargs="+", metavar="MODEL")
    parser.add_argument("--layout", type=_layout, action="append", metavar="SIZES|NAME")
    parser.add_argument("--microbatches", type=_counts, metavar="LIST")
    parser.add_argument("--minutes", type=float)
    parser.add_argument("--timeout", type=float, default=120.0)
    parser.add_argument("--jobs", type=_number, default=1)
    parser.add_argument("--known", metavar="FILE")
    parser.add_argument("--write-known", metavar="FILE")
    parser.add_argument("--plant", action="store_true")
    parser.add_argument("--reproduce", metavar="FOLDER")
    parser.add_argument("--format", choices=_FORMATS, default="text")
    parser.add_argument("--json", dest="format", action="store_const", const="json")
    parser.add_argument("--html", metavar="FILE")
    return parser


def _tell(outcome: Any, done: int, all_of: int) -> None:
    """One line of progress for each cell, on standard error."""
    why = f": {outcome.why[:120]}" if outcome.why else ""
    line = f"[{done}/{all_of}] {outcome.cell.name}: {outcome.verdict} ({outcome.seconds:.1f} s){why}"
    print(line, file=sys.stderr, flush=True)


def _write(path: str, text: str) -> None:
    with open(f"{path}.part", "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(f"{path}.part", path)


def _print(report: Any, form: str) -> None:
    from addend.torch._matrix import _show

    if form == "json":
        print(json.dumps(report.document, allow_nan=False))
    else:
        print(_show.github(report) if form == "github" else report)


def run(words: Sequence[str]) -> int:
    """Runs the command and prints the report; returns the exit status."""
    told = _parser().parse_args(words)
    from addend.torch._matrix import _known, _matrix, _show

    sys.path.insert(0, os.getcwd())
    try:
        report = _matrix.matrix(
            *told.models,
            layouts=told.layout,
            microbatches=told.microbatches or _matrix.MICROBATCHES,
            minutes=told.minutes,
            timeout=told.timeout,
            jobs=told.jobs,
            plant=told.plant,
            known=told.known,
            told=_tell,
        )
    except (addend.InvalidError, ModuleNotFoundError) as error:
        print(f"addend torch-matrix: {error}", file=sys.stderr)
        return WRONG_CALL
    try:
        _print(report, told.format)
        if told.reproduce:
            paths, without = report.reproduce(told.reproduce)
            print("\n".join([f"program: {path}" for path in paths] + without), file=sys.stderr)
        if told.html:
            _write(told.html, _show.page(report))
        if told.write_known:
            _known.write(told.write_known, report.outcomes)
    except OSError as error:
        print(f"addend torch-matrix: {error}", file=sys.stderr)
        return UNFINISHED
    return UNFINISHED if report.ok is None else HOLDS if report.ok else ANSWER_IS_NO


def main(words: Sequence[str]) -> NoReturn:
    """The entry point that the program `addend` runs."""
    sys.exit(run(words))
