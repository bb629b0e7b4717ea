"""The report of a matrix as a table, as JSON, as a page, and as annotations of GitHub's."""

from __future__ import annotations

import collections
import dataclasses
import html
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from addend._verdict import CANNOT_TELL as UNCLEAR, DOES_NOT_MATCH, MATCHES as ALL_MATCH, NOT_CHECKED, Verdict
from addend.torch._matrix._cells import (
    CANNOT_RUN,
    CANNOT_TELL,
    MATCHES,
    NOT_TRIED,
    RUNS,
    WRONG,
    Cell,
    Mutant,
    Outcome,
    shortened,
    without_rank,
)

if TYPE_CHECKING:
    from addend.torch._matrix._bugs import Bug
    from addend.torch._matrix._matrix import MatrixReport

_SHORT = {MATCHES: "ok", WRONG: "BAD", CANNOT_TELL: "?", CANNOT_RUN: "cannot run", NOT_TRIED: "-", RUNS: "runs"}
_ORDER = (WRONG, CANNOT_TELL, CANNOT_RUN, MATCHES, RUNS, NOT_TRIED)
_WIDTH = 200  # characters of a reason in the table
_PARTIAL = "*"  # after a verdict: a line NOT OBSERVED says what it says nothing about


def _listed(names: Sequence[str], count: int = 3) -> str:
    between = "; " if any(", " in name for name in names) else ", "  # a layout's name may have a comma
    return between.join(names[:count]) + f"{between}..." * (len(names) > count)


def _short(outcome: Outcome) -> str:
    """The verdict as the table has it, with a star if there is something that it says nothing about."""
    is_partial = outcome.verdict in (MATCHES, RUNS) and (outcome.unobserved or outcome.missing)
    return _SHORT[outcome.verdict] + _PARTIAL * bool(is_partial)


def _entry(outcomes: Sequence[Outcome]) -> str:
    """What one model did under one layout: "ok", or "BAD 2, 3; ok 1" with the numbers of microbatches."""
    found: dict[str, list[int]] = {}
    for outcome in sorted(outcomes, key=lambda one: _ORDER.index(one.verdict)):
        found.setdefault(_short(outcome), []).append(outcome.cell.microbatches)
    if len(found) == 1:
        return next(iter(found))
    return "; ".join(f"{short} {', '.join(map(str, sorted(counts)))}" for short, counts in found.items())


def entries(outcomes: Sequence[Outcome]) -> tuple[list[str], list[list[str]]]:
    """The names of the layouts, and a row for each model: its name, then what it did under each layout."""
    found: dict[str, dict[str, list[Outcome]]] = {}
    layouts: dict[str, None] = {}
    for outcome in outcomes:
        layouts[outcome.cell.layout.name] = None
        found.setdefault(outcome.cell.model, {}).setdefault(outcome.cell.layout.name, []).append(outcome)
    rows = [
        [model, *(_entry(of[layout]) if layout in of else "" for layout in layouts)]
        for model, of in sorted(found.items())
    ]
    return list(layouts), rows


def _grid(report: MatrixReport) -> str:
    layouts, rows = entries(report.outcomes)
    lines = [["", *layouts], *rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(layouts) + 1)]
    return "\n".join("  ".join(text.ljust(width) for text, width in zip(line, widths)).rstrip() for line in lines)


def _reasons(report: MatrixReport) -> list[str]:
    """For each reason why cells cannot run or be judged, one line with the cells."""
    cells: dict[tuple[str, str], list[str]] = {}
    for outcome in report.outcomes:
        if outcome.verdict in (CANNOT_RUN, CANNOT_TELL, NOT_TRIED):
            cells.setdefault((outcome.verdict, without_rank(outcome.why)), []).append(outcome.cell.name)
    return [f"{verdict}: {_listed(names)}: {shortened(why, _WIDTH)}" for (verdict, why), names in cells.items()]


def _unobserved(report: MatrixReport) -> list[str]:
    """What cells say nothing about, each with the cells: parameters without gradient, kinds of layers that the small
    model does not have."""
    cells: dict[str, list[Cell]] = {}
    for outcome in report.outcomes:
        model, names = outcome.cell.model, outcome.unobserved
        if names:
            count = f"{len(names)} parameter{'s' * (len(names) > 1)}"
            cells.setdefault(f"{model}: no gradient reaches {count}: {_listed(names)}", []).append(outcome.cell)
        if outcome.missing:
            what = f"{model}: of the full model, or of its inputs: {_listed(outcome.missing)}"
            cells.setdefault(what, []).append(outcome.cell)
    of_model = collections.Counter(outcome.cell.model for outcome in report.outcomes)
    return [f"NOT OBSERVED: {what}{_where(some, of_model[some[0].model])}" for what, some in cells.items()]


def _where(cells: Sequence[Cell], all_of: int) -> str:
    """The cells of a model, unless they are all of it."""
    if len(cells) == all_of:
        return ""
    return f" (in {len(cells)} of {all_of} cells: {_listed([cell.name.partition(', ')[2] for cell in cells])})"


def _count(report: MatrixReport) -> str:
    verdicts = [outcome.verdict for outcome in report.outcomes]
    counts = ", ".join(f"{verdicts.count(verdict)} {verdict}" for verdict in _ORDER if verdict in verdicts)
    survivors = sum(len(outcome.new_survivors) for outcome in report.outcomes)
    untested = sum(outcome.is_untested for outcome in report.outcomes)
    for count, what in (
        (len(report.known), "known"),
        (survivors, f"mutant{'s' * (survivors > 1)} survived"),
        (untested, "without all mutants"),
    ):
        counts += f"; {count} {what}" * bool(count)
    return f"{len(verdicts)} cells: {counts}; {report.seconds:.0f} s"


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
        ("plan's style", ", ".join(bug.styles)),
        ("shown by", _shown_by(bug)),
        ("smallest", bug.smallest.cell.name),
        ("only", bug.only),
    ):
        if text:
            lines.append(f"  {name:<12}  {text}")
    return "\n".join(lines)


def _mutant_words(one: Mutant) -> str:
    return f"{one.kind} {one.name} {one.how}; it changes {one.by}"


def _mutants(report: MatrixReport) -> list[str]:
    """What came of mutants, one line a cell, and one for each that survived."""
    lines = []
    for outcome in report.outcomes:
        if outcome.coverage or outcome.not_mutated:
            is_known = ", known" * outcome.not_mutated_known
            why = f" (not all: {outcome.not_mutated}{is_known})" if outcome.not_mutated else ""
            lines.append(f"mutants: {outcome.cell.name}: killed {outcome.coverage or 'none'}{why}")
        lines += [f"  SURVIVED{', known' * one.known}: {_mutant_words(one)}" for one in outcome.survivors]
    return lines


def verdict_of(report: MatrixReport) -> Verdict:
    """The verdict on all cells, what is known left out."""
    verdicts = {outcome.verdict for outcome in report.new}
    if report.ok:
        return ALL_MATCH
    if WRONG in verdicts:
        return DOES_NOT_MATCH
    if report.survivors or CANNOT_TELL in verdicts or any(one.is_untested for one in report.outcomes):
        return UNCLEAR
    return NOT_CHECKED


def verdict_line(report: MatrixReport) -> str:
    """The first line of the report and its last: "DOES NOT MATCH one process: 3 of 12 cells"."""
    verdict, of = verdict_of(report), len(report.outcomes)
    verdicts = [outcome.verdict for outcome in report.new]
    if verdict == ALL_MATCH:
        counts = ((len(report.known), "known"), (sum(one.verdict == RUNS for one in report.outcomes), "only run"))
        rest = "".join(f", {count} {what}" for count, what in counts if count)
        matching = sum(one.verdict == MATCHES for one in report.outcomes)
        return f"{verdict.words} one process: {matching} of {_cells(of)}{rest}"
    if verdict == DOES_NOT_MATCH:
        return f"{verdict.words} one process: {verdicts.count(WRONG)} of {_cells(of)}"
    if report.survivors:
        return f"{verdict.words}: {_cells(of)}, in which mutants survived"
    left = (CANNOT_TELL, CANNOT_RUN, NOT_TRIED)
    return f"{verdict.words}: {sum(one in left for one in verdicts)} of {_cells(of)}"


def _cells(count: int) -> str:
    return f"{count} cell{'s' * (count != 1)}"


def table(report: MatrixReport) -> str:
    """The report as the command prints it; its first line and its last are the verdict."""
    parts = [_grid(report), *(_bug(i, bug) for i, bug in enumerate(report.bugs, 1))]
    parts += ["\n".join(lines) for lines in (_mutants(report), _unobserved(report), _reasons(report), report.notes)]
    count = f"{_count(report)}\n{verdict_line(report)}"
    return "\n\n".join(part for part in [verdict_line(report), *parts, count] if part)


def _cell(outcome: Outcome, known: bool) -> dict[str, Any]:
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
        "mutants": [dataclasses.asdict(one) for one in outcome.mutants],
        "not_mutated": outcome.not_mutated,
        "not_mutated_known": outcome.not_mutated_known,
        "report": outcome.report,
    }


def _of_bug(bug: Bug) -> dict[str, Any]:
    return {
        "module": bug.module,
        "place": bug.place,
        "where": bug.where,
        "params": list(bug.params),
        "plan": list(bug.styles),
        "cause": bug.cause,
        "cells": [outcome.cell.name for outcome in bug.outcomes],
        "smallest": bug.smallest.cell.name,
        "only": bug.only,
    }


def document(report: MatrixReport) -> dict[str, Any]:
    """The report as JSON has it."""
    known = set(map(id, report.known))
    return {
        "format": 1,
        "ok": report.ok,
        "seconds": round(report.seconds, 3),
        "notes": list(report.notes),
        "bugs": [_of_bug(bug) for bug in report.bugs],
        "survivors": sum(len(outcome.new_survivors) for outcome in report.outcomes),
        "cells": [_cell(outcome, id(outcome) in known) for outcome in report.outcomes],
    }


def _escaped(text: str, also: str = "") -> str:
    """A text as GitHub's annotations have it. `also`: characters that a property may not have."""
    for character in "%\r\n" + also:
        text = text.replace(character, f"%{ord(character):02X}")
    return text


def _annotation(level: str, title: str, text: str) -> str:
    return f"::{level} title={_escaped(title, ':,')}::{_escaped(text)}"


def github(report: MatrixReport) -> str:
    """Lines that GitHub's runners turn into annotations, what is known left out: an error for each bug, for each
    mutant that survived and for each wrong cell, a warning for what is not judged, not tried or not
    observed, and the count. A runner shows the first ten errors of a step."""
    errors = [("error", f"bug {i}: {bug.module or bug.place}", _bug(i, bug)) for i, bug in enumerate(report.bugs, 1)]
    warnings = []
    for outcome in report.outcomes:
        name = outcome.cell.name
        errors += [("error", f"survived: {name}", _mutant_words(one)) for one in outcome.new_survivors]
        if outcome.is_untested:
            warnings.append(("warning", f"no mutants: {name}", outcome.not_mutated))
    for outcome in report.new:
        said = f"{outcome.verdict}: {outcome.cell.name}", outcome.why or outcome.verdict
        if outcome.verdict == WRONG:
            errors.append(("error", *said))
        elif outcome.verdict in (CANNOT_TELL, CANNOT_RUN):
            warnings.append(("warning", *said))
    late = [outcome for outcome in report.new if outcome.verdict == NOT_TRIED]
    if late:
        names = _listed([outcome.cell.name for outcome in late])
        warnings.append(("warning", f"{len(late)} cells not tried", f"{late[0].why}: {names}"))
    warnings += [("warning", "not observed", line) for line in _unobserved(report)]
    notes = [("notice", "not tried", line) for line in report.notes]
    lines = [*errors, *warnings, *notes, ("notice", "addend torch-matrix", _count(report))]
    return "\n".join(_annotation(*line) for line in lines)


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


def _class(entry: str) -> str:
    return "wrong" if "BAD" in entry else "ok" if entry in ("ok", "runs") else "open" if entry else ""


def page(report: MatrixReport) -> str:
    """The report as one file of HTML, which needs no other."""
    layouts, rows = entries(report.outcomes)
    shown = [one for verdict in _ORDER[:3] for one in report.outcomes if one.verdict == verdict]
    return _PAGE.format(
        count=html.escape(_count(report)),
        heads="".join(f"<th>{html.escape(layout)}</th>" for layout in layouts),
        rows="".join(
            f"<tr><th>{html.escape(row[0])}</th>"
            + "".join(f'<td class="{_class(entry)}">{html.escape(entry)}</td>' for entry in row[1:])
            + "</tr>"
            for row in rows
        ),
        bugs="".join(f"<pre>{html.escape(_bug(i, bug))}</pre>" for i, bug in enumerate(report.bugs, 1)),
        notes="".join(
            f"<p>{html.escape(line)}</p>"
            for line in (*_mutants(report), *_unobserved(report), *_reasons(report), *report.notes)
        ),
        details="".join(
            f"<details><summary>{html.escape(f'{one.verdict}: {one.cell.name}: ')}"
            f"{html.escape(shortened(one.why, _WIDTH))}</summary>"
            f"<pre>{html.escape(one.text or one.why)}</pre></details>\n"
            for one in shown
        ),
    )
