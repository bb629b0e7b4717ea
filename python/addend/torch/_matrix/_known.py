"""What is known and accepted: a file with one line for each outcome."""

from __future__ import annotations

import fnmatch
import os
from typing import List, Sequence, Tuple, Union

import addend
from addend.torch._matrix._cells import MATCHES, NOT_TRIED, RUNS, VERDICTS, Outcome, starred, without_rank

_HEAD = """# What `addend torch-matrix --known` accepts; a CI fails for everything else.
# model | layout | microbatches | verdict | of what (wrong parameters, or the reason); * stands for any text
"""
_FIELDS = 5
_NEEDS_NONE = (MATCHES, RUNS, NOT_TRIED)


def _of_what(outcome: Outcome) -> str:
    """The classes of wrong parameters, or the first words of the reason."""
    wrong = [p["name"] for p in outcome.report["params"] if p["ok"] is False] if outcome.report else []
    if wrong:
        return ", ".join(sorted({starred(name) for name in wrong}))
    return " ".join(without_rank(outcome.why).split()[:8]) + " *" if outcome.why else "*"


def _fields(outcome: Outcome) -> Tuple[str, ...]:
    cell = outcome.cell
    return cell.model, cell.layout.name.replace("|", "/"), str(cell.microbatches), outcome.verdict, _of_what(outcome)


class Known:
    """The lines of a file."""

    def __init__(self, lines: Sequence[Tuple[str, ...]]):
        self._lines = lines

    def has(self, outcome: Outcome) -> bool:
        """Whether a line accepts the outcome. What matches, or was not tried, needs none."""
        if outcome.verdict in _NEEDS_NONE:
            return False
        *fields, of_what = _fields(outcome)
        return any(all(map(_fits, fields, line)) and _names_all(of_what, line[-1]) for line in self._lines)


def _fits(field: str, pattern: str) -> bool:
    """Whether a text fits a pattern in which * alone is special: names of parameters have * as well, and brackets."""
    return field == pattern or fnmatch.fnmatchcase(field, pattern.replace("[", "[[]").replace("?", "[?]"))


def _names_all(of_what: str, listed: str) -> bool:
    """Whether each wrong parameter fits one of those that a line lists; a reason fits as a whole."""
    patterns = listed.split(", ")
    return _fits(of_what, listed) and all(any(_fits(name, p) for p in patterns) for name in of_what.split(", "))


def read(path: Union[str, os.PathLike[str]]) -> Known:
    """Reads such a file; raises InvalidError, with the line, for one that cannot be read."""
    found: List[Tuple[str, ...]] = []
    try:
        with open(path, encoding="utf-8") as file:
            lines = file.read().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise addend.InvalidError(f"{os.fspath(path)} cannot be read: {error}") from error
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        fields = tuple(field.strip() for field in line.split("|", _FIELDS - 1))
        if len(fields) != _FIELDS or fields[3] not in VERDICTS:
            raise addend.InvalidError(
                f"{os.fspath(path)}:{number}: a line is model | layout | microbatches | verdict | of what, and the "
                f"verdict one of {', '.join(VERDICTS)}"
            )
        found.append(fields)
    return Known(found)


def write(path: Union[str, os.PathLike[str]], outcomes: Sequence[Outcome]) -> None:
    """Writes a file that accepts these outcomes."""
    lines = [" | ".join(_fields(one)) for one in outcomes if one.verdict not in _NEEDS_NONE]
    part = f"{os.fspath(path)}.part"
    with open(part, "w", encoding="utf-8") as file:
        file.write(_HEAD + "".join(f"{line}\n" for line in sorted(lines)))
    os.replace(part, path)
