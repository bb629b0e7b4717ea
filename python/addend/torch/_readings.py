"""Reads a wrong sum in further ways that the job itself shows: by the gradients that its hooks made, and by factors
that something inside the watch brought in."""

from __future__ import annotations

import itertools
import math
from typing import Any, Callable, Dict, Iterable, List, Mapping, NamedTuple, Sequence, Tuple

import addend
from addend.torch import _report

UNKNOWN = ("unexplained", "not_fitted", "other_operation", "shifted", "other_parameters", "other_rows")
_ASKED = "the gradients that torch.autograd.grad returned are in its sum, beside those of backwards"
FACTORS = ("averaged", "doubled", "factor", "missing", "earlier_microbatches_divided")


class Reading(NamedTuple):
    """One way to read a parameter's sum."""

    hooked: bool = False  # addends are the gradients after the job's hooks
    times: float = 1.0  # by what the expected factor is multiplied
    words: str = ""  # why, for the report
    is_certain: bool = True  # False: if the sum is right when it is read so, the hook may have summed it once too often
    asked: bool = False  # addends have what torch.autograd.grad returned in them, too


Factor = Tuple[float, str, bool]  # it may belong to what is expected; why; whether that is certain
Readings = Dict[str, List[Reading]]  # by the parameter's name, without the first one, Reading()
Chosen = Mapping[str, Reading]
Judge = Callable[[Chosen], addend.DiffReport]


def of(
    hooked: Mapping[str, tuple[str, bool]],
    factors: Mapping[str, Sequence[Factor]],
    asked: Iterable[str] = (),
) -> Readings:
    """The readings of every parameter that has more than one. `hooked`: what hooks did to gradients, in words, and
    whether a sum that is right behind them is certainly right; `factors`: by the parameter's name; `asked`: parameters
    with gradients from backwards and others from torch.autograd.grad."""
    found = {name: [Reading(), Reading(asked=True, words=_ASKED)] for name in asked}
    for name in {*hooked, *factors}:
        changes = [(False, "", True), (True, *hooked[name])] if name in hooked else [(False, "", True)]
        choices = [[(1.0, "", True), factor] for factor in factors.get(name, ())]
        readings = []
        for (is_hooked, what, is_certain), chosen in itertools.product(changes, list(itertools.product(*choices))):
            times = math.prod(factor for factor, _, _ in chosen)
            words = "; ".join(filter(None, [what, *(why for _, why, _ in chosen)]))
            readings.append(Reading(is_hooked, times, words, is_certain and all(certain for _, _, certain in chosen)))
        found[name] = [*readings, *found.get(name, [])[1:]]
    return {name: readings[1:] for name, readings in found.items()}


def _same(one: Reading, other: Reading) -> bool:
    return one[:2] == other[:2] and one.asked == other.asked


def united(everyones: Iterable[Readings]) -> Readings:
    """The readings that any rank has: the same on all ranks."""
    found: Readings = {}
    for own in everyones:
        for name, readings in own.items():
            known = found.setdefault(name, [])
            for reading in readings:  # ranks may have other words for one reading
                at = next((i for i, other in enumerate(known) if _same(other, reading)), None)
                if at is None:
                    known.append(reading)
                elif not reading.is_certain:
                    known[at] = known[at]._replace(is_certain=False)
    return {name: found[name] for name in sorted(found)}


def _note(names: Sequence[str], words: str) -> str:
    more = f" and {len(names) - 1} more" if names[1:] else ""
    return f"`{names[0]}`{more}: {words}"


def _notes(chosen: Chosen) -> list[str]:
    by_words: dict[str, list[str]] = {}
    for name, reading in chosen.items():
        by_words.setdefault(reading.words, []).append(name)
    return [_note(names, words) for words, names in by_words.items()]


def _holds(param: addend.DiffParam, reading: Reading) -> bool:
    """Whether the sum is right when it is read so, or zero because hooks made all gradients zero."""
    return bool(param.ok and reading.is_certain) or (
        reading.hooked and param.kind == "not_observed" and param.residual == 0
    )


def judge(by: Judge, readings: Readings) -> addend.DiffReport:
    """The report on sums of which each is read in the first way in which it is right. `by` judges them in given ways;
    parameters without one are read as they are. All ranks call this, with the same readings."""
    first = by({})
    wrong = [param.name for param in first.params if param.verdict == "wrong" and param.name in readings]
    held: dict[str, Reading] = {}
    behind: dict[str, Mapping[str, Any]] = {}
    uncertain: dict[str, Reading] = {}
    tried: Chosen = {}
    report = first
    for at in range(max((len(readings[name]) for name in wrong), default=0)):
        left = {name: readings[name][at] for name in wrong if name not in held and at < len(readings[name])}
        if not left:
            break
        tried = {**held, **left}
        report = by(tried)
        held.update((name, reading) for name, reading in left.items() if _holds(report[name], reading))
        doubtful = {name: reading for name, reading in left.items() if report[name].ok and not reading.is_certain}
        uncertain = {**doubtful, **uncertain}
        changed = [name for name, reading in left.items() if reading.hooked and reading.times == 1]
        behind.update((name, _report.document_of(report, name)) for name in changed)
    if tried != held:
        report = by(held) if held else first
    report = _report.noted(report, _notes(held))
    report = _doubt_readings(report, {name: uncertain[name] for name in sorted(uncertain.keys() - held.keys())})
    open_ones = {name: document for name, document in behind.items() if name not in held and name not in uncertain}
    return _with_hooks(report, open_ones)


def _doubt_readings(report: addend.DiffReport, readings: Chosen) -> addend.DiffReport:
    """The report in which it cannot be told whether a hook summed these parameters or changed them otherwise, or
    whether their factors belong to what is expected."""
    hooks = "a hook of the job changed the gradient, and what it gave is counted once: right if the hook did not sum it"
    causes = {}
    for name, reading in readings.items():
        text = hooks if reading.hooked else reading.words
        causes[name] = {"kind": "factor", "axes": None, "factor": None, "text": text, "place": None}
    return _report.doubted(report, causes)


def _with_hooks(report: addend.DiffReport, behind: Mapping[str, Mapping[str, Any]]) -> addend.DiffReport:
    """The report with what is wrong by the gradients that hooks made, beside what is wrong by those before."""
    if not behind:
        return report
    explained = {name: other for name, other in behind.items() if other["kind"] not in UNKNOWN}
    wrong = {name: other for name, other in explained.items() if other["verdict"] == "wrong"}
    report = _report.joined(report, wrong, "by what a hook made of the gradient")
    said = "a hook changed it after its addend was seen, but the sum fits neither the gradients before the hook nor "
    return _report.noted(report, [_note(list(behind), f"{said}those after it")])


def doubt(report: addend.DiffReport, custom: Mapping[str, str]) -> addend.DiffReport:
    """The report in which factors, and what no addends explain, are left open where a hook of the job makes the sum:
    it may mean them. `custom`: the hook's name, by the parameter's."""
    causes = {}
    for param in report.params:
        kinds = {cause.kind for cause in param.possible_causes} | {param.kind} - {"not_distinguishable"}
        if param.verdict != "wrong" or param.name not in custom or not kinds <= {*FACTORS, *UNKNOWN}:
            continue
        if param.kind == "missing" and param.factor != 0:
            continue
        does = "makes the sum, and may mean it"
        if param.factor is not None and param.kind in FACTORS:
            does = f"makes the sum {param.factor:.6g} times what is expected: say so by expect= if it is meant"
        causes[param.name] = {
            "kind": "factor",
            "axes": None,
            "factor": param.factor,
            "text": f"the job's hook `{custom[param.name]}` {does}",
            "place": None,
        }
    return _report.doubted(report, causes)
