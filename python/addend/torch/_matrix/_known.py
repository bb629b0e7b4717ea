"""What is known and accepted: a file with one line for each outcome."""

from __future__ import annotations

import dataclasses
import fnmatch
import os
from collections.abc import Sequence

import addend
from addend.torch._matrix._cells import (
    MATCHES,
    NOT_TRIED,
    RUNS,
    VERDICTS,
    Mutant,
    Outcome,
    starred,
    without_rank,
)
from addend.torch._replace import write as write_text

_SURVIVED, _NOT_MUTATED = "not noticed", "not planted"  # of mutants that were tried, or should have been
_WORDS = (*VERDICTS, _SURVIVED, _NOT_MUTATED)
_HEAD = """# What `addend torch-matrix --known` accepts; a CI fails for everything else.
# model | layout | microbatches | verdict | of what (wrong parameters, a mistake, or the reason); * is any text
"""
_FIELDS = 5
_NEEDS_NONE = (MATCHES, RUNS)


def _of_what(outcome: Outcome) -> str:
    """The classes of wrong parameters, or the first words of the reason."""
    wrong = [p["name"] for p in outcome.report["params"] if p["ok"] is False] if outcome.report else []
    if wrong:
        return ", ".join(sorted({starred(name) for name in wrong}))
    return _begin(outcome.why)


def _begin(reason: str) -> str:
    return " ".join(without_rank(reason).split()[:8]) + " *" if reason else "*"


def _fields(outcome: Outcome, verdict: str = "", of_what: str = "") -> tuple[str, ...]:
    cell = outcome.cell
    said = (verdict, of_what) if verdict else (outcome.verdict, _of_what(outcome))
    return cell.model, cell.layout.name.replace("|", "/"), str(cell.microbatches), *said


def _survivor(outcome: Outcome, one: Mutant) -> tuple[str, ...]:
    return _fields(outcome, _SURVIVED, f"{one.kind} {one.name} {one.how}")


def _untested(outcome: Outcome) -> tuple[str, ...]:
    return _fields(outcome, _NOT_MUTATED, _begin(outcome.not_mutated))


class Known:
    """The lines of a file."""

    def __init__(self, lines: Sequence[tuple[str, ...]]):
        self._lines = lines

    def has(self, outcome: Outcome) -> bool:
        """Whether a line accepts the outcome. What matches needs none."""
        return outcome.verdict not in _NEEDS_NONE and self._accepts(_fields(outcome))

    def marked(self, outcome: Outcome) -> Outcome:
        """The outcome, marked: which of its survivors are known, and whether untried mutants are."""
        mutants = tuple(
            dataclasses.replace(one, known=one in outcome.survivors and self._accepts(_survivor(outcome, one)))
            for one in outcome.mutants
        )
        known = bool(outcome.not_mutated) and self._accepts(_untested(outcome))
        return dataclasses.replace(outcome, mutants=mutants, not_mutated_known=known)

    def _accepts(self, said: tuple[str, ...]) -> bool:
        *fields, of_what = said
        return any(all(map(_fits, fields, line)) and _names_all(of_what, line[-1]) for line in self._lines)


def _fits(field: str, pattern: str) -> bool:
    """Whether a text fits a pattern in which * alone is special: names of parameters have * as well, and brackets."""
    return field == pattern or fnmatch.fnmatchcase(field, pattern.replace("[", "[[]").replace("?", "[?]"))


def _names_all(of_what: str, listed: str) -> bool:
    """Whether each wrong parameter fits one of those that a line lists; a reason fits as a whole."""
    patterns = listed.split(", ")
    return _fits(of_what, listed) and all(any(_fits(name, p) for p in patterns) for name in of_what.split(", "))


def read(path: str | os.PathLike[str]) -> Known:
    """Reads such a file; raises InvalidError, with the line, for one that cannot be read."""
    found: list[tuple[str, ...]] = []
    try:
        with open(path, encoding="utf-8") as file:
            lines = file.read().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise addend.InvalidError(f"{os.fspath(path)} cannot be read: {error}") from error
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        fields = tuple(field.strip() for field in line.split("|", _FIELDS - 1))
        if len(fields) != _FIELDS or fields[3] not in _WORDS:
            raise addend.InvalidError(
                f"{os.fspath(path)}:{number}: write each line as model | layout | microbatches | verdict | of what, "
                "with the "
                f"verdict one of {', '.join(_WORDS)}"
            )
        found.append(fields)
    return Known(found)


def write(path: str | os.PathLike[str], outcomes: Sequence[Outcome]) -> None:
    """Writes a file that accepts these outcomes, but not that a cell was not tried."""
    lines = [_fields(one) for one in outcomes if one.verdict not in (*_NEEDS_NONE, NOT_TRIED)]
    lines += [_survivor(outcome, one) for outcome in outcomes for one in outcome.survivors]
    lines += [_untested(outcome) for outcome in outcomes if outcome.verdict == MATCHES and outcome.not_mutated]
    write_text(path, _HEAD + "".join(f"{' | '.join(line)}\n" for line in sorted(lines)))
