"""Patterns of names in options (types=, expect=, unused=) that match no parameter on any rank: perhaps misspelt."""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Callable

Unmatched = Mapping[tuple[str, str], Sequence[str]]  # (option, pattern) -> the most similar names
_SIMILAR = 0.5  # how similar names are that are shown; 1: equal


def _similar(pattern: str, names: Iterable[str]) -> list[str]:
    """The names that are most like the pattern without its wildcards: whole or, where none is, in as many neighbouring
    parts ("norm.weight" of "blocks.0.norm.weight") as the pattern has."""
    plain = "".join(character for character in pattern if character not in "*?[]").strip(".")
    near = difflib.get_close_matches(plain, [*dict.fromkeys(names)], 3, _SIMILAR)
    if near:
        return near
    parts = plain.count(".") + 1
    within: dict[str, str] = {}
    for name in names:
        split = name.split(".")
        for at in range(len(split) - parts + 1):
            within.setdefault(".".join(split[at : at + parts]), name)
    return [*dict.fromkeys(within[some] for some in difflib.get_close_matches(plain, within, 3, _SIMILAR))]


def unmatched(
    options: Mapping[str, Iterable[str]], names: Collection[str], frozen: Callable[[], Iterable[str]]
) -> dict[tuple[str, str], list[str]]:
    """The patterns that match no parameter of this rank. `options`: by the option's name, its patterns; `names`: of
    watched parameters, `frozen` gives those of others."""
    left = [
        (option, pattern)
        for option, patterns in options.items()
        for pattern in patterns
        if not any(fnmatch.fnmatchcase(name, pattern) for name in names)
    ]
    if not left:
        return {}
    others = [*frozen()]
    return {
        (option, pattern): _similar(pattern, names)
        for option, pattern in left
        if not any(fnmatch.fnmatchcase(name, pattern) for name in others)
    }


def nowhere(everyones: Sequence[Unmatched]) -> list[str]:
    """A sentence on each pattern that matches no parameter of any rank. ValueError if types= or expect= names a
    parameter that no rank has."""
    found = []
    for option, pattern in everyones[0]:
        if not all((option, pattern) in of_rank for of_rank in everyones):
            continue
        near = dict.fromkeys(name for of_rank in everyones for name in of_rank[option, pattern])
        similar = f"; similar: {', '.join(f'`{name}`' for name in [*near][:3])}" if near else ""
        if option != "unused" and not any(character in pattern for character in "*?["):
            raise ValueError(f"{option}: {pattern} is no parameter of any rank{similar}")
        found.append(f'{option}=: "{pattern}" matches no parameter of any rank{similar}')
    return found
