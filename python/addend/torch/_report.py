"""Makes the report of a watch: the first rank runs `addend diff` on all ranks' files, and all ranks get the result."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any, Callable

import addend
from addend._diff import judged, of_document
from addend._progress import CProgress
from addend._verdict import NOT_CHECKED
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
    table = f"{NOT_CHECKED.words}: {why.text}"
    return addend.DiffReport(None, (), None, table, why.verdict, world, messages=(why.text,), document=document)


def noted(report: addend.DiffReport, notes: Sequence[str]) -> addend.DiffReport:
    """The report with further messages."""
    if not notes:
        return report
    return of_document({**report.document, "messages": [*report.messages, *notes]})


_TOGETHER = 64 << 20  # bytes of parameters that are compared with each other


def unexplained(report: addend.DiffReport) -> list[str]:
    """Names of parameters whose sums no counts of their addends give, as many as may be compared with each other."""
    names, size = [], 0
    for param in report.params:
        size += 8 * param.sampled * (report.microbatches + 1) * report.world if param.kind == "unexplained" else 0
        if param.kind == "unexplained" and size <= _TOGETHER:
            names.append(param.name)
    return names


def with_params(report: addend.DiffReport, others: addend.DiffReport) -> addend.DiffReport:
    """The report with what `others` reports of parameters that it cannot explain."""
    new = {param["name"]: param for param in others.document["params"]}
    params = [
        new.get(param["name"], param) if param["kind"] == "unexplained" else param
        for param in report.document["params"]
    ]
    replaced = {param["name"] for param in report.document["params"] if param["kind"] == "unexplained"} & new.keys()
    rows = [row for row in report.document.get("declarations", ()) if row["name"] not in replaced]
    rows += [row for row in others.document.get("declarations", ()) if row["name"] in replaced]
    declared = {"declarations": rows} if rows else {}
    return of_document({**report.document, "params": params, **declared})


def of_files(
    files: Sequence[_collect.File],
    names: Sequence[str],
    group: Group,
    allow_identical: bool,
    notes_on: Notes,
    together: bool = False,
) -> addend.DiffReport:
    """The report on all ranks' files. All ranks call this; each gets the report, or the first rank's error. `files`,
    `names`: as for a Collection. `notes_on` gives further messages for the report; it is called on the first rank.
    `together`: bring all parameters before one is judged, so that they can be compared with each other."""
    first = _gather.rank_in(group) == 0
    with tempfile.TemporaryDirectory(prefix="addend-") if first else contextlib.nullcontext("") as folder:
        collection = _collect.Collection(folder, files, names, group)
        if together:
            collection.bring_all()
        else:
            collection.bring()
        found = None
        if first:
            found = _judge(folder, collection, allow_identical, notes_on, together)
        collection.bring_all()
    answer = _gather.from_first(lambda: found, group)
    if isinstance(answer, Exception):
        raise answer
    assert answer is not None
    return answer


def _judge(
    folder: str, collection: _collect.Collection, allow_identical: bool, notes_on: Notes, together: bool
) -> addend.DiffReport | Exception:
    def reported(_: object, what: bytes, done: int, of: int) -> None:
        try:
            collection.reported(what)
        except Exception as error:  # no exception can pass through C code
            failed.append(error)

    failed: list[Exception] = []
    try:
        files = sorted(os.path.join(folder, name) for name in os.listdir(folder))
        report = judged(files, CProgress(reported), allow_identical=allow_identical, finite=not together)
        return failed[0] if failed else noted(report, notes_on(report))
    except Exception as error:  # returned, so that it is sent to the other ranks, which wait for the report
        return error


def document_of(report: addend.DiffReport, name: str) -> Mapping[str, Any]:
    """The JSON document of one parameter."""
    return next(document for document in report.document["params"] if document["name"] == name)


def _causes(document: Mapping[str, Any]) -> list[Any]:
    return [document["cause"]] if document["cause"] else list(document["possible_causes"])


def _redrawn(report: addend.DiffReport, documents: Mapping[str, Mapping[str, Any]]) -> addend.DiffReport:
    """The report with other documents of these parameters."""
    params = [documents.get(param["name"], param) for param in report.document["params"]]
    norm = report.document.get("norm")
    verdicts = {param["verdict"] for param in params} | ({"wrong"} if norm and not norm["pass"] else set())
    verdict = next((one for one in ("wrong", "cannot_tell") if one in verdicts), "right")
    return of_document({**report.document, "params": params, "verdict": verdict, "pass": verdict == "right"})


def joined(report: addend.DiffReport, others: Mapping[str, Mapping[str, Any]], why: str) -> addend.DiffReport:
    """The report in which these wrong parameters may be wrong in another way as well, as their documents in `others`
    say; `why` names the other way."""
    documents = {}
    for name, other in others.items():
        document = document_of(report, name)
        causes = _causes(document) + [cause for cause in _causes(other) if cause not in _causes(document)]
        if document["verdict"] != "wrong" or len(causes) < 2:
            continue
        kinds = {cause["kind"] for cause in causes}
        documents[name] = {
            **document,
            "kind": kinds.pop() if len(kinds) == 1 else "not_distinguishable",
            "axis": document["axis"] if document["axis"] == other["axis"] else None,
            "factor": None,
            "text": f"{document['text']}; or, {why}, {other['text']}",
            "cause": None,
            "possible_causes": causes,
        }
    return _redrawn(report, documents) if documents else report


def doubted(report: addend.DiffReport, causes: Mapping[str, Mapping[str, Any]]) -> addend.DiffReport:
    """The report in which it is left open whether these parameters are wrong: another cause, perhaps intended, fits as
    well."""
    documents = {}
    for name, cause in causes.items():
        document = document_of(report, name)
        documents[name] = {
            **document,
            "verdict": "cannot_tell",
            "text": f"cannot tell: {document['text']}; or {cause['text']}",
            "cause": None,
            "possible_causes": [*_causes(document), cause],
        }
    return _redrawn(report, documents) if documents else report
