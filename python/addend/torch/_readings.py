"""Reads a wrong sum in further ways that the job itself shows: by the gradients that its hooks made, and by factors
that something inside the watch brought in."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Callable, NamedTuple

import addend
from addend._kinds import FACTORS, uncounted
from addend.torch import _gather, _report
from addend.torch._addends import Change

_COUNTED = "a hook of the job changed the gradient, and what it gave is counted once"
_ASKED = "the gradients that torch.autograd.grad returned are in its sum, beside those of backwards"


class Reading(NamedTuple):
    """One way to read a parameter's sum."""

    hooked: bool = False  # addends are the gradients after the job's hooks
    times: float = 1.0  # by what the expected factor is multiplied
    words: str = ""  # why, for the report
    doubt: str = ""  # if the sum is right when it is read so, when that is right; "": certainly
    asked: bool = False  # addends have what torch.autograd.grad returned in them, too
    factors: Mapping[int, float | None] = {}  # by what the hook multiplied on each rank that has it; None: no factor


Factor = tuple[float, str, bool]  # it may belong to what is expected; why; whether that is certain
Readings = dict[str, list[Reading]]  # by the parameter's name, without the first one, Reading()
Chosen = Mapping[str, Reading]
_HERE = -1  # the rank that made a reading, until readings are united
Judge = Callable[[Chosen], addend.DiffReport]


def of(
    hooked: Mapping[str, Change],
    factors: Mapping[str, Sequence[Factor]],
    asked: Iterable[str] = (),
) -> Readings:
    """The readings of every parameter that has more than one. `hooked`: what hooks did to gradients; `factors`: by the
    parameter's name; `asked`: parameters with gradients from backwards and others from torch.autograd.grad."""
    found = {name: [Reading(), Reading(asked=True, words=_ASKED)] for name in asked}
    for name in {*hooked, *factors}:
        changes: list[Change | None] = [None, hooked[name]] if name in hooked else [None]
        choices = [[(1.0, "", True), factor] for factor in factors.get(name, ())]
        readings = []
        for change, chosen in itertools.product(changes, list(itertools.product(*choices))):
            times = math.prod(factor for factor, _, _ in chosen)
            words = "; ".join(filter(None, [change.words if change else "", *(why for _, why, _ in chosen)]))
            doubt = "; ".join(why for _, why, is_certain in chosen if not is_certain)
            own = {_HERE: change.factor} if change else {}
            readings.append(Reading(change is not None, times, words, doubt, factors=own))
        found[name] = [*readings, *found.get(name, [])[1:]]
    return {name: readings[1:] for name, readings in found.items()}


def _same(one: Reading, other: Reading) -> bool:
    return one[:2] == other[:2] and one.asked == other.asked


def united(everyones: Mapping[int, Readings]) -> Readings:
    """The readings that any rank has: the same on all ranks."""
    found: Readings = {}
    for rank, own in everyones.items():
        for name, readings in own.items():
            known = found.setdefault(name, [])
            for reading in readings:  # ranks may have other words for one reading
                at = next((i for i, other in enumerate(known) if _same(other, reading)), None)
                if reading.factors:
                    before = {} if at is None else known[at].factors
                    reading = reading._replace(factors={**before, rank: reading.factors[_HERE]})
                if at is None:
                    known.append(reading)
                else:
                    doubt = known[at].doubt or reading.doubt
                    known[at] = known[at]._replace(factors=reading.factors, doubt=doubt)
    return {name: found[name] for name in sorted(found)}


def _common(factors: Mapping[int, float | None]) -> float | None:
    """The factor that hooks have on all ranks; None: they differ, or have none."""
    first, *others = factors.values()
    if first is None or any(other is None or abs(other - first) > 1e-3 * abs(first) for other in others):
        return None
    return first


def _doubt_of(factors: Mapping[int, float | None]) -> str:
    """When a hook that multiplied by these factors was right; "": certainly."""
    common = _common(factors)
    if None in factors.values():
        return f"{_COUNTED}: right if the hook did not sum it and is meant to weigh addends so"
    if common is None:
        by: dict[str, list[int]] = {}
        for rank, factor in factors.items():
            by.setdefault(f"{factor:.6g}", []).append(rank)
        said = " and ".join(f"by {factor} on {_gather.ranks_text(ranks)}" for factor, ranks in list(by.items())[:3])
        more = " and others" if by.keys() - list(by)[:3] else ""
        return f"{_COUNTED}: right if ranks are meant to differ, for it multiplied {said}{more}"
    if common < 0:
        return f"{_COUNTED}: right if it is meant to multiply by {common:.6g}"
    is_number = common >= 1.5 and abs(common - round(common)) <= 1e-3
    return f"{_COUNTED}: right if the hook did not sum it" if is_number else ""


def _is_mean(factor: float | None, sizes: Sequence[int]) -> bool:
    """Whether a factor is that of a mean over ranks: one over a product of sizes of axes."""
    if not factor or factor < 0:
        return False
    chosen = itertools.chain.from_iterable(itertools.combinations(sizes, n) for n in range(1, len(sizes) + 1))
    return any(abs(factor * math.prod(some) - 1) <= 1e-3 for some in chosen if math.prod(some) > 1)


def doubt_hooks(
    readings: Readings, having: Mapping[int, Collection[str]], averaged: Mapping[str, float], sizes: Sequence[int]
) -> None:
    """Sets for each reading with hooks when these are right. They surely are if they multiplied by one factor
    on all ranks that have a gradient of the parameter (`having`) and that factor is not of a sum or a mean over ranks.
    One over a number of ranks is that of a mean if hooks multiply by it all parameters of the same expected factor.
    `averaged`: parameters of which such a mean would be a second one, with that factor; `sizes`: of the mesh's axes."""
    common: dict[str, float | None] = {}
    for name, known in readings.items():
        for at, reading in enumerate(known):
            if reading.hooked:
                ranks = {rank: reading.factors.get(rank, 1.0) for rank, names in having.items() if name in names}
                ranks.update({rank: factor for rank, factor in reading.factors.items() if factor is None})
                doubts = [_doubt_of(ranks) if ranks else "", reading.doubt]
                known[at] = reading._replace(factors=ranks, doubt="; ".join(filter(None, doubts)))
                common[name] = _common(ranks) if ranks else None
    some = {name for names in having.values() for name in names}
    left = {factor for name, factor in averaged.items() if name in some and not _is_mean(common.get(name), sizes)}
    for name, known in readings.items():
        if name in averaged and averaged[name] not in left and name in some:
            words = f"{_COUNTED}: right if it is no second mean over ranks"
            known[:] = [one._replace(doubt=one.doubt or words) if one.hooked else one for one in known]


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
    return bool(param.ok and not reading.doubt) or (
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
        doubtful = {name: reading for name, reading in left.items() if report[name].ok and reading.doubt}
        uncertain = {**doubtful, **uncertain}
        changed = [name for name, reading in left.items() if reading.hooked and reading.times == 1]
        behind.update((name, _report.document_of(report, name)) for name in changed)
    if tried != held:
        report = by(held) if held else first
    uncertain = {name: reading for name, reading in sorted(uncertain.items()) if name not in held}
    changes = {name: reading for name, reading in uncertain.items() if reading.hooked}
    report = _report.noted(report, _notes({**held, **changes}))
    report = _doubt_readings(report, {name: reading.doubt for name, reading in uncertain.items()})
    open_ones = {name: document for name, document in behind.items() if name not in held and name not in uncertain}
    return _with_hooks(report, open_ones)


def _doubt_readings(report: addend.DiffReport, doubts: Mapping[str, str]) -> addend.DiffReport:
    """The report in which it is left open whether hooks changed these parameters as the job intends, or whether
    their factors belong to the expected one."""
    cause = {"kind": "factor", "axes": None, "factor": None, "place": None}
    return _report.doubted(report, {name: {**cause, "text": text} for name, text in doubts.items()})


def _with_hooks(report: addend.DiffReport, behind: Mapping[str, Mapping[str, Any]]) -> addend.DiffReport:
    """The report with what is wrong by the gradients that hooks made, beside what is wrong by those before."""
    if not behind:
        return report
    explained = {name: other for name, other in behind.items() if not uncounted(other["kind"])}
    wrong = {name: other for name, other in explained.items() if other["verdict"] == "wrong"}
    report = _report.joined(report, wrong, "by what a hook made of the gradient")
    neither = [name for name, other in behind.items() if other["verdict"] == "wrong"]
    said = "a hook changed it after its addend was seen, but the sum fits neither the gradients before the hook nor "
    return _report.noted(report, [_note(neither, f"{said}those after it")] if neither else [])


def doubt(report: addend.DiffReport, custom: Mapping[str, str]) -> addend.DiffReport:
    """The report in which factors, and what no addends explain, are left open where a hook of the job makes the sum:
    it may mean them. `custom`: the hook's name, by the parameter's."""
    causes = {}
    for param in report.params:
        kinds = {cause.kind for cause in param.possible_causes} | {param.kind} - {"not_distinguishable"}
        if param.verdict != "wrong" or param.name not in custom:
            continue
        if any(kind not in FACTORS and not uncounted(kind) for kind in kinds):
            continue
        if param.kind in FACTORS and (param.ranks or (param.kind == "missing" and param.factor != 0)):
            continue  # of some ranks alone: no factor of the sum
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
