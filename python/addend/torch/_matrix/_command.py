"""The command `addend torch-matrix MODEL...`."""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import sys
import sysconfig
import traceback
from collections.abc import Sequence
from typing import Any, Callable, NoReturn, TextIO

import addend
from addend.torch import _replace

HOLDS, ANSWER_IS_NO, WRONG_CALL, UNFINISHED = 0, 1, 2, 3
_WIDTH = 120  # characters of a reason in a line of progress
_FORMATS = ("text", "json", "github")


def _layout(text: str) -> str | dict[str, int]:
    """ "fsdp=2,ep=2" as {"fsdp": 2, "ep": 2}; what is not sizes alone is a layout's name."""
    words = text.replace(",", " ").split()
    return _sizes(text) if words and all("=" in word for word in words) else text.strip()


def _sizes(text: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for word in text.replace(",", " ").split():
        axis, _, size = word.partition("=")
        if not axis.isidentifier() or not size.isdecimal() or not int(size):
            raise argparse.ArgumentTypeError(f"'{text}' is not a list of axes and sizes, as in fsdp=2,ep=2")
        if axis in found:
            raise argparse.ArgumentTypeError(f"'{text}' names the axis {axis} twice: name each axis once")
        found[axis] = int(size)
    return found


def _counts(text: str) -> list[int]:
    """ "2,1" as [2, 1]"""
    words = text.split(",")
    if not all(word.isdecimal() and int(word) for word in words):
        raise argparse.ArgumentTypeError(f"'{text}' is not a list of numbers of microbatches, as in 1,2,3")
    return [int(word) for word in words]


def _number(text: str) -> int:
    """A number from 1 on."""
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number of at least 1")
    return int(text)


def _time(text: str) -> float:
    """A number above 0, which is not infinite."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"'{text}' is not a time: write a number of seconds above 0")
    return value


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "addend torch-matrix", description="Compares models under layouts with one process."
    )
    parser.add_argument("models", nargs="+", metavar="MODEL")
    parser.add_argument("--layout", type=_layout, action="append", metavar="SIZES|NAME")
    parser.add_argument("--microbatches", type=_counts, metavar="LIST")
    parser.add_argument("--minutes", type=_time)
    parser.add_argument("--timeout", type=_time, default=120.0)
    parser.add_argument("--jobs", type=_number, default=1)
    parser.add_argument("--known", metavar="FILE")
    parser.add_argument("--write-known", metavar="FILE")
    parser.add_argument("--mutate", action="store_true")
    parser.add_argument("--reproduce", metavar="FOLDER")
    parser.add_argument("--format", choices=_FORMATS, default="text")
    parser.add_argument("--json", dest="format", action="store_const", const="json")
    parser.add_argument("--html", metavar="FILE")
    return parser


def _say(words: object) -> None:
    print(f"addend torch-matrix: {words}", file=sys.stderr, flush=True)


def _progress(outcome: Any, done: int, all_of: int) -> None:
    """One line for each cell, on standard error."""
    from addend.torch._matrix._cells import shortened

    why = f": {shortened(outcome.why, _WIDTH)}" if outcome.why else ""
    line = f"[{done}/{all_of}] {outcome.cell.name}: {outcome.verdict} ({outcome.seconds:.1f} s){why}"
    print(line, file=sys.stderr, flush=True)


class _Requests:
    """Signals that ask to stop. The first is noted, so that what is known until then is reported; a second one raises
    KeyboardInterrupt. A job in the background of a script takes SIGINT as well; under nohup SIGHUP stays ignored."""

    def __init__(self) -> None:
        self._first: signal.Signals | None = None
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, self._note)

    def _note(self, number: int, frame: object) -> None:
        if self._first is not None:
            raise KeyboardInterrupt
        self._first = signal.Signals(number)

    def reason(self) -> str:
        """Why to stop, or ""."""
        return f"interrupted by signal {self._first:d}, {self._first.name}" if self._first is not None else ""


def _take_stdout() -> TextIO:
    """Standard output for the report alone; what else is printed there goes to standard error from now on."""
    sys.stdout.flush()
    kept = os.fdopen(os.dup(1), "w", encoding=sys.stdout.encoding, errors="backslashreplace")
    os.dup2(2, 1)
    return kept


def _print(report: Any, form: str, out: TextIO) -> None:
    from addend.torch._matrix import _show

    if form == "json":
        text = json.dumps(report.document, allow_nan=False)
    else:
        text = _show.github(report) if form == "github" else str(report)
    try:
        print(text, file=out, flush=True)
    except BrokenPipeError:  # as where head has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), out.fileno())  # for the flush at the end of this process


def _reproduce(report: Any, folder: str, stopped: Callable[[], str]) -> None:
    from addend.torch._matrix import _reproduce

    paths, without = report.reproduce(folder)
    for path in paths:
        why = _reproduce.first_run(path, stopped)
        line = f"program: {path}{f' (its first run did not show the bug: {why})' if why else ''}"
        print(line, file=sys.stderr, flush=True)
    print("".join(f"{line}\n" for line in without), end="", file=sys.stderr, flush=True)


def _check_outputs(options: argparse.Namespace) -> None:
    """Raises OSError if a file cannot be written that is to be written at the end."""
    for path in (options.html, options.write_known):
        if path:
            _replace.check_writable(path)
    if options.reproduce:
        os.makedirs(options.reproduce, exist_ok=True)
        _replace.check_writable(os.path.join(options.reproduce, "program.py"))


def _write_all(report: Any, options: argparse.Namespace, out: TextIO, stopped: Callable[[], str]) -> bool:
    """Prints and writes the report in all forms asked for, each whatever becomes of the others; returns whether all
    were."""
    from addend.torch._matrix import _known, _show

    outputs: list[Callable[[], None]] = [lambda: _print(report, options.format, out)]
    if options.reproduce:
        outputs.append(lambda: _reproduce(report, options.reproduce, stopped))
    if options.html:
        outputs.append(lambda: _replace.write(options.html, _show.page(report)))
    if options.write_known:
        outputs.append(lambda: _known.write(options.write_known, report.outcomes))
    failed = False
    for output in outputs:
        try:
            output()
        except OSError as error:
            _say(error)
            failed = True
    return not failed


def _matrix(options: argparse.Namespace, requests: _Requests, out: TextIO) -> int:
    from addend.torch._matrix import _matrix, _show

    report = _matrix.matrix(
        *options.models,
        layouts=options.layout,
        microbatches=options.microbatches or _matrix.MICROBATCHES,
        minutes=options.minutes,
        timeout=options.timeout,
        jobs=options.jobs,
        mutate=options.mutate,
        known=options.known,
        progress=_progress,
        stopped=requests.reason,
    )
    interrupted = requests.reason()
    is_written = _write_all(report, options, out, requests.reason)
    if interrupted:
        _say(interrupted)
    if interrupted or not is_written or report.ok is None:
        return UNFINISHED
    return ANSWER_IS_NO if report.survivors else _show.verdict_of(report).of_matrix


def _is_users(file: str) -> bool:
    """Whether a source file is neither of this package, nor of Python, nor of an installed package."""
    installed = [
        os.path.dirname(os.path.abspath(addend.__file__)),
        *map(sysconfig.get_path, ("stdlib", "purelib", "platlib")),
    ]
    return not file.startswith(("<", *(folder + os.sep for folder in installed)))


def _unexpected(error: Exception) -> None:
    """Says where an error comes from that nothing expects: a user's file, or this package."""
    traceback.print_exception(type(error), error, error.__traceback__)
    own = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_users(frame.filename)]
    if own:
        _say(f"{own[-1].filename}:{own[-1].lineno}, in {own[-1].name}: {type(error).__name__}: {error}")
    else:
        _say(f"this is a mistake in addend itself, which its makers need to know: {type(error).__name__}: {error}")


def run(words: Sequence[str]) -> int:
    """Runs the command and prints the report; returns the exit status."""
    options = _parser().parse_args(words)
    requests = _Requests()
    sys.path.insert(0, os.getcwd())
    try:
        _check_outputs(options)
        out = _take_stdout()
    except OSError as error:
        _say(error)
        return UNFINISHED
    try:
        return _matrix(options, requests, out)
    except (addend.InvalidError, ModuleNotFoundError) as error:
        _say(error)
        return WRONG_CALL
    except addend.AddendError as error:
        _say(error)
    except KeyboardInterrupt:
        _say(f"{requests.reason()}, and again: nothing is reported")
    except Exception as error:
        _unexpected(error)
    return UNFINISHED


def main(words: Sequence[str]) -> NoReturn:
    """The entry point that the program `addend` runs."""
    sys.exit(run(words))
