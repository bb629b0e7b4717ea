"""Makes the report of a watch: the first rank runs `addend diff` on all ranks' files, and all ranks get the result."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import tempfile
from typing import Callable, Collection, Sequence

import addend
from addend._diff import judged
from addend._progress import CProgress
from addend.torch import _collect, _gather
from addend.torch._gather import Group
from addend.torch._seen import Unjudged

Notes = Callable[[addend.DiffReport], Sequence[str]]


def of_none(why: Unjudged, world: int) -> addend.DiffReport:
    """The report of a step that is not judged."""
    document = {
        "format": 1,
        "pass": False,
        "verdict": why.verdict,
        "world": world,
        "params": [],
        "messages": [why.text],
    }
    return addend.DiffReport(None, (), None, why.text, why.verdict, world, messages=(why.text,), document=document)


def noted(report: addend.DiffReport, notes: Sequence[str]) -> addend.DiffReport:
    """The report with further messages."""
    if not notes:
        return report
    messages = (*report.messages, *notes)
    document = {**report.document, "messages": [*messages]}
    return dataclasses.replace(report, messages=messages, table="\n".join([report.table, *notes]), document=document)


def of_files(
    files: Sequence[_collect.File], names: Sequence[str], group: Group, allow_identical: bool, notes_on: Notes
) -> addend.DiffReport:
    """The report on all ranks' files. All ranks call this; each gets the report, or the first rank's error. `files`,
    `names`: as for a Collection. `notes_on` gives further messages for the report; it is called on the first rank."""
    first = _gather.rank_in(group) == 0
    with tempfile.TemporaryDirectory(prefix="addend-") if first else contextlib.nullcontext("") as folder:
        collection = _collect.Collection(folder, files, names, group)
        collection.bring()
        found = None
        if first:
            found = _judge(folder, collection, allow_identical, notes_on)
        collection.bring_all()
    answer = _gather.from_first(lambda: found, group)
    if isinstance(answer, Exception):
        raise answer
    assert answer is not None
    return answer


def _judge(
    folder: str, collection: _collect.Collection, allow_identical: bool, notes_on: Notes
) -> addend.DiffReport | Exception:
    def told(_: object, what: bytes, done: int, of: int) -> None:
        try:
            collection.told(what)
        except Exception as error:  # no exception can pass through C code
            failed.append(error)

    failed: list[Exception] = []
    try:
        files = sorted(os.path.join(folder, name) for name in os.listdir(folder))
        report = judged(files, CProgress(told), allow_identical=allow_identical, finite=True)
        return failed[0] if failed else noted(report, notes_on(report))
    except Exception as error:  # returned, so that it is sent to the other ranks, which wait for the report
        return error


def changed(report: addend.DiffReport, hooked: Collection[str]) -> list[str]:
    """Names of parameters whose sum does not fit the addends, perhaps because a hook of the job changed them first."""
    unknown = ("unexplained", "not_fitted")
    return [param.name for param in report.params if param.kind in unknown and param.name in hooked]


def behind_hooks(first: addend.DiffReport, second: addend.DiffReport, names: Sequence[str]) -> addend.DiffReport:
    """Chooses between two reports on a step: in `second`, the addends of `names` are taken after the job's hooks."""
    more = f" and {len(names) - 1} more" if names[1:] else ""
    said = f"`{names[0]}`{more}: a hook changed it after its addend was seen"
    if all(second[name].ok for name in names):
        return noted(second, [f"{said}; what the hook gave is counted once"])
    return noted(first, [f"{said}, but the sum fits neither the gradients before the hook nor those after it"])
