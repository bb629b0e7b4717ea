"""The report of a matrix as a table, as JSON, as a page, and as annotations of GitHub's."""

from __future__ import annotations

import dataclasses
import html
from typing import TYPE_CHECKING, Any, Dict, List, Sequence, Tuple

from addend.torch._matrix._cells import CANNOT_RUN, CANNOT_TELL, MATCHES, NOT_TRIED, RUNS, WRONG, Outcome, without_rank

if TYPE_CHECKING:
    from addend.torch._matrix._bugs import Bug
    from addend.torch._matrix._matrix import MatrixReport

_SHORT = {MATCHES: "ok", WRONG: "WRONG", CANNOT_TELL: "?", CANNOT_RUN: "cannot run", NOT_TRIED: "-", RUNS: "runs"}
_ORDER = (WRONG, CANNOT_TELL, CANNOT_RUN, MATCHES, RUNS, NOT_TRIED)
_WIDTH = 200  # characters of a reason in the table


def _listed(names: Sequence[str], count: int = 3) -> str:
    return ", ".join(names[:count]) + ", ..." * (len(names) > count)


def _square(outcomes: Sequence[Outcome]) -> str:
    """What one model did under one layout: "ok", or "WRONG 2, 3; ok 1" with the numbers of microbatches."""
    by_verdict: Dict[str, List[int]] = {}
    for outcome in outcomes:
        by_verdict.setdefault(outcome.verdict, []).append(outcome.cell.microbatches)
    if len(by_verdict) == 1:
        return _SHORT[next(iter(by_verdict))]
    shown = [
        f"{_SHORT[verdict]} {', '.join(map(str, sorted(by_verdict[verdict])))}"
        for verdict in _ORDER
        if verdict in by_verdict
    ]
    return "; ".join(shown)


def squares(outcomes: Sequence[Outcome]) -> Tuple[List[str], List[List[str]]]:
    """The names of the layouts, and a row for each model: its name, then what it did under each layout."""
    found: Dict[str, Dict[str, List[Outcome]]] = {}
    layouts: Dict[str, None] = {}
    for outcome in outcomes:
        layouts[outcome.cell.layout.name] = None
        found.setdefault(outcome.cell.model, {}).setdefault(outcome.cell.layout.name, []).append(outcome)
    rows = [
        [model, *(_square(of[layout]) if layout in of else "" for layout in layouts)]
        for model, of in sorted(found.items())
    ]
    return list(layouts), rows


def _grid(report: MatrixReport) -> str:
    layouts, rows = squares(report.outcomes)
    lines = [["", *layouts], *rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(layouts) + 1)]
    return "\n".join("  ".join(text.ljust(width) for text, width in zip(line, widths)).rstrip() for line in lines)


def _reasons(report: MatrixReport) -> List[str]:
    """For each reason why cells cannot run or be judged, one line with the cells."""
    cells: Dict[Tuple[str, str], List[str]] = {}
    for outcome in report.outcomes:
        if outcome.verdict in (CANNOT_RUN, CANNOT_TELL):
            cells.setdefault((outcome.verdict, without_rank(outcome.why)), []).append(outcome.cell.name)
    return [f"{verdict}: {_listed(names)}: {why[:_WIDTH]}" for (verdict, why), names in cells.items()]


def _unobserved(report: MatrixReport) -> List[str]:
    """What no cell says anything about, one line for each model: parameters without gradient, kinds of layers that the
    small model lacks."""
    lines = []
    seen = set()
    for outcome in report.outcomes:
        model = outcome.cell.model
        if outcome.unobserved and (model, "gradient") not in seen:
            seen.add((model, "gradient"))
            names = outcome.unobserved
            lines.append(f"NOT OBSERVED: {model}: no gradient reaches {len(names)} parameters: {_listed(names)}")
        if outcome.missing and (model, "kinds") not in seen:
            seen.add((model, "kinds"))
            lines.append(f"NOT OBSERVED: {model}: of the full model, or of its inputs: {_listed(outcome.missing)}")
    return lines


def _count(report: MatrixReport) -> str:
    verdicts = [outcome.verdict for outcome in report.outcomes]
    counts = ", ".join(f"{verdicts.count(verdict)} {verdict}" for verdict in _ORDER if verdict in verdicts)
    known = f"; {len(report.known)} known" if report.known else ""
    return f"{len(verdicts)} cells: {counts}{known}; {report.seconds:.0f} s"


def _shown_by(bug: Bug) -> str:
    """The cells of a bug: "3 models (qwen3, qwen3_moe, ...) under tp=2, with 2, 3 microbatches"."""
    models, layouts = bug.models, bug.layouts
    who = models[0] if len(models) == 1 else f"{len(models)} models ({_listed(models, 8)})"
    counts = ", ".join(map(str, bug.microbatches))
    return f"{who} under {_listed(layouts, 6)}, with {counts} microbatch{'es' * (bug.microbatches != (1,))}"


def _bug(number: int, bug: Bug) -> str:
    """A bug in a few lines."""
    place = f"`{bug.module}`" if bug.module else "the model itself"
    lines = [f"bug {number}: {place}{f', {bug.place}' * bool(bug.place)}: {bug.cause}"]
    for name, text in (
        ("at", bug.where),
        ("parameters", _listed(bug.params, 6)),
        ("plan", ", ".join(bug.styles)),
        ("shown by", _shown_by(bug)),
        ("smallest", bug.smallest.cell.name),
    ):
        if text:
            lines.append(f"  {name:<10}  {text}")
    return "\n".join(lines)


def _planted(report: MatrixReport) -> List[str]:
    """What came of planted mistakes, one line a cell, and one for each that was not noticed."""
    lines = []
    for outcome in report.outcomes:
        if outcome.coverage or outcome.unplanted:
            why = f" ({outcome.unplanted})" if outcome.unplanted else ""
            lines.append(f"planted: {outcome.cell.name}: noticed {outcome.coverage or 'none'}{why}")
        for one in outcome.survivors:
            lines.append(f"  not noticed: {one.kind} {one.name} {one.how}; it changes {one.by}")
    return lines


def table(report: MatrixReport) -> str:
    """The report as the command prints it."""
    parts = [_grid(report), *(_bug(i, bug) for i, bug in enumerate(report.bugs, 1))]
    parts += ["\n".join(lines) for lines in (_planted(report), _unobserved(report), _reasons(report))]
    return "\n\n".join(part for part in [*parts, _count(report)] if part)


def _cell(outcome: Outcome, known: bool) -> Dict[str, Any]:
    cell = outcome.cell
    return {
        "model": cell.model,
        "layout": cell.layout.name,
        "mesh": dict(cell.layout.mesh),
        "microbatches": cell.microbatches,
        "verdict": outcome.verdict,
        "known": known,
        "why": outcome.why,
        "seconds": round(outcome.seconds, 3),
        "unobserved": list(outcome.unobserved),
        "missing": list(outcome.missing),
        "planted": [dataclasses.asdict(one) for one in outcome.planted],
        "report": outcome.report,
    }


def _of_bug(bug: Bug) -> Dict[str, Any]:
    return {
        "module": bug.module,
        "place": bug.place,
        "where": bug.where,
        "params": list(bug.params),
        "plan": list(bug.styles),
        "cause": bug.cause,
        "cells": [outcome.cell.name for outcome in bug.outcomes],
        "smallest": bug.smallest.cell.name,
    }


def document(report: MatrixReport) -> Dict[str, Any]:
    """The report as JSON has it."""
    known = set(map(id, report.known))
    return {
        "format": 1,
        "ok": report.ok,
        "seconds": round(report.seconds, 3),
        "bugs": [_of_bug(bug) for bug in report.bugs],
        "cells": [_cell(outcome, id(outcome) in known) for outcome in report.outcomes],
    }


def _escaped(text: str, also: str = "") -> str:
    """A text as GitHub's annotations have it. `also`: characters that a property may not have."""
    for character in "%\r\n" + also:
        text = text.replace(character, f"%{ord(character):02X}")
    return text


def github(report: MatrixReport) -> str:
    """Lines that GitHub's runners turn into annotations: an error for each wrong cell that is new, a warning for each
    that cannot be judged, and the count."""
    lines = []
    for outcome in report.new:
        level = {WRONG: "error", CANNOT_TELL: "warning", CANNOT_RUN: "warning"}.get(outcome.verdict)
        if level:
            title = _escaped(f"{outcome.verdict}: {outcome.cell.name}", ":,")
            lines.append(f"::{level} title={title}::{_escaped(outcome.why or outcome.verdict)}")
    return "\n".join([*lines, f"::notice title=addend torch-matrix::{_escaped(_count(report))}"])


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>addend torch-matrix</title><style>
body {{ font: 15px/1.4 system-ui, sans-serif; margin: 2em auto; max-width: 80em; padding: 0 1em; color: #222; }}
table {{ border-collapse: collapse; }} th, td {{ border: 1px solid #ccc; padding: .3em .6em; text-align: left; }}
.wrong {{ background: #fdd; }} .ok {{ background: #dfd; }} .open {{ background: #ffd; }}
pre {{ overflow: auto; background: #f6f6f6; padding: .7em; }}
</style></head><body><h1>addend torch-matrix</h1><p>{count}</p>
<table><thead><tr><th></th>{heads}</tr></thead><tbody>{rows}</tbody></table>
{bugs}{notes}{details}</body></html>
"""


def _class(square: str) -> str:
    return "wrong" if "WRONG" in square else "ok" if square in ("ok", "runs") else "open" if square else ""


def page(report: MatrixReport) -> str:
    """The report as one file of HTML, which needs no other."""
    layouts, rows = squares(report.outcomes)
    shown = [one for verdict in _ORDER[:3] for one in report.outcomes if one.verdict == verdict]
    return _PAGE.format(
        count=html.escape(_count(report)),
        heads="".join(f"<th>{html.escape(layout)}</th>" for layout in layouts),
        rows="".join(
            f"<tr><th>{html.escape(row[0])}</th>"
            + "".join(f'<td class="{_class(square)}">{html.escape(square)}</td>' for square in row[1:])
            + "</tr>"
            for row in rows
        ),
        bugs="".join(f"<pre>{html.escape(_bug(i, bug))}</pre>" for i, bug in enumerate(report.bugs, 1)),
        notes="".join(f"<p>{html.escape(line)}</p>" for line in (*_planted(report), *_unobserved(report))),
        details="".join(
            f"<details><summary>{html.escape(f'{one.verdict}: {one.cell.name}: {one.why[:_WIDTH]}')}</summary>"
            f"<pre>{html.escape(one.text or one.why)}</pre></details>\n"
            for one in shown
        ),
    )
