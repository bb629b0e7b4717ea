"""Whether a bug shows only where the rows of a vocabulary do not divide by the ranks that share them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from addend.torch._matrix._cells import MATCHES, Cell, Layout, Outcome

if TYPE_CHECKING:
    from addend.torch._matrix._bugs import Bug


def parts_of(layout: Layout) -> int:
    """The number of ranks that share the rows of a vocabulary; their replicas have the same."""
    return layout.mesh.get("fsdp", 1) * layout.mesh.get("tp", 1)


def _odd(outcome: Outcome) -> list[int]:
    """The numbers of rows of a small model's vocabularies of which `fully_shard` makes shards of unequal sizes."""
    layout = outcome.cell.layout
    rows = outcome.recipe.get("rows") or ()
    return [count for count in rows if count % parts_of(layout)] if layout.mesh.get("fsdp", 1) > 1 else []


def cells(bugs: Iterable[Bug]) -> list[Cell]:
    """The cells to run once more with rows that divide: the smallest one of each bug, unless another cell shows the bug
    with such rows."""
    smallest = (bug.smallest.cell for bug in bugs if all(map(_odd, bug.outcomes)))
    return list({cell.name: dataclasses.replace(cell, even=True) for cell in smallest}.values())


def judged(bugs: Sequence[Bug], even: Iterable[Outcome]) -> list[Bug]:
    """The bugs, with what the outcomes of cells say of them that were run once more."""
    right = {outcome.cell.name: outcome for outcome in even if outcome.verdict == MATCHES and not _odd(outcome)}
    found = []
    for bug in bugs:
        once_more = right.get(bug.smallest.cell.name)
        if once_more is not None and all(map(_odd, bug.outcomes)):
            bug = dataclasses.replace(bug, only=_only(bug, once_more))
        found.append(bug)
    return found


def _only(bug: Bug, once_more: Outcome) -> str:
    odd, rows = _odd(bug.smallest), set(bug.smallest.recipe["rows"])
    others = [count for count in once_more.recipe["rows"] if count not in rows] or once_more.recipe["rows"]
    what = "it" if len(bug.outcomes) == 1 else "the smallest cell"
    return (
        f"with a vocabulary that the ranks do not divide ({', '.join(map(str, odd))} rows; "
        f"with {', '.join(map(str, others))} {what} matches)"
    )
