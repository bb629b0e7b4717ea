"""Each different bug of a matrix once: wrong cells pooled over parameters, microbatches, layouts and models."""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from addend.torch._checks._axes import Axes
from addend.torch._checks._factors import Factors
from addend.torch._matrix._cells import MATCHES, WRONG, Cell, Outcome, starred

_RANKS, _MICROBATCHES, _BOTH = "ranks", "microbatches", "ranks and microbatches"  # what a wrong factor is made of
_CLOSE = 1e-4  # counts are measured; those that differ by less are the same
_AGAIN = "summed again"  # the kind of a cause: a sum is made of what has accumulated, not of what is new

_FACT = "counts"  # the kind of a reading that only says how often microbatches count
_MANY = "one size"  # a relation: a factor is the size of what it comes from
_PART = "one part"  # a relation: a factor is 1 divided by that size

Counts = tuple[float, ...]  # how often each microbatch counts, divided by how often it should


class Reading(NamedTuple):
    """One explanation, without what differs between cells that show the same mistake."""

    kind: str  # of a cause
    of: str  # what it comes from: ranks, microbatches, or "" where nothing says it
    axes: str = ""  # their names in order; "": none is named
    relation: str = ""  # of a factor to sizes, and the words of the cause without numbers and names


class Said(NamedTuple):
    """What is said of one parameter or module of a cell."""

    text: str
    name: str
    outcome: Outcome


Words = dict[Reading, str]  # explanations that fit one parameter or module
Causes = dict[Reading, list[Said]]  # explanations that fit all that is pooled, with what was said of each


@dataclasses.dataclass(frozen=True)
class Bug:
    """One mistake, and the cells that show it."""

    module: str  # the first wrong module, with layers' numbers starred; "": the whole model
    place: str  # forward, loss, backward, reduction, optimizer, or "" where nothing is said
    where: str  # file:line, or ""
    params: tuple[str, ...]  # classes of wrong parameters: names with layers' numbers starred
    styles: tuple[str, ...]  # what the framework's plan says of these
    cause: str
    outcomes: tuple[Outcome, ...]  # of the cells that show it, the smallest first
    param: str = ""  # a wrong parameter of the smallest cell
    only: str = ""  # with what alone it shows, as "with a vocabulary that the ranks do not divide (...)"; "": not known

    @property
    def smallest(self) -> Outcome:
        """The cell that shows it with the fewest ranks and microbatches."""
        return self.outcomes[0]

    @property
    def models(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(outcome.cell.model for outcome in self.outcomes))

    @property
    def layouts(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(outcome.cell.layout.name for outcome in self.outcomes))

    @property
    def microbatches(self) -> tuple[int, ...]:
        return tuple(sorted({outcome.cell.microbatches for outcome in self.outcomes}))


@dataclasses.dataclass
class _Found:
    """A mistake while it is pooled."""

    place: str
    module: str
    where: str
    params: set[str]
    styles: set[str]
    causes: Causes
    facts: list[Said]  # what holds whichever explanation it is
    outcomes: dict[int, Outcome]
    names: dict[int, str]  # by outcome: the first wrong parameter
    axes: frozenset[str]  # that all cells have
    functions: frozenset[str]  # the layouts of a project's file; each has its own functions
    looks: frozenset[str]  # what is said without numbers, and the classes of parameters that are wrong

    def join(self, other: _Found) -> None:
        shared = [reading for reading in self.causes if reading in other.causes]
        self.causes = {reading: [*self.causes[reading], *other.causes[reading]] for reading in shared}
        self.facts += other.facts
        self.params |= other.params
        self.styles |= other.styles
        self.outcomes.update(other.outcomes)
        self.names = {**other.names, **self.names}
        self.axes &= other.axes
        self.functions |= other.functions
        self.looks |= other.looks


def _size(outcome: Outcome) -> tuple[bool, int, int, int]:
    layout = outcome.cell.layout
    return bool(layout.variant), layout.ranks, outcome.cell.microbatches, len(layout.mesh) + len(layout.options)


def style_of(name: str, outcome: Outcome) -> str:
    """What the plans in force under the layout say of a parameter or module, or of the next module around it; "" if
    nothing does. Plans are in the recipe, by axis: names with layers' numbers starred, and styles."""
    layout = outcome.cell.layout
    plans: Mapping[str, Mapping[str, str]] = outcome.recipe.get("plans") or {}
    sizes = {**layout.mesh, **layout.options}
    for axis in ("ep", "tp", "fsdp"):
        plan, part = plans.get(axis, {}), starred(name)
        while sizes.get(axis, 1) > 1 and part:
            if part in plan:
                return plan[part]
            part = part.rpartition(".")[0]
    return ""


# -- explanations of one parameter


def _counts(param: Mapping[str, Any]) -> Counts | None:
    """How often each microbatch counts, if that is the same on all ranks that have it."""
    rows = [row for row in param.get("counts") or () if any(count is not None for count in row)]
    found: list[float] = []
    for column in zip(*rows):
        known = {round(count, 6) for count in column if count is not None}
        if len(known) != 1:
            return None
        found.append(known.pop())
    return tuple(found) or None


def _without_numbers(text: str) -> str:
    """A cause's words without what differs between cells: numbers, ranks, and names of parameters and modules."""
    text = re.sub(r"`[^`]*`(, `[^`]*`)*( and \d+ other parameters?)?", "`", text)
    text = re.sub(r"\branks? \d+((, | and )\d+)*", "rank", text)
    return re.sub(r"\d+(\.\d+)?(e[+-]?\d+)?", "0", text)


def _axes_of(size: float, mesh: Mapping[str, int]) -> list[str]:
    """The smallest sets of axes whose sizes have this product: "tp", "fsdp tp"."""
    names = [name for name, axis in mesh.items() if axis > 1]
    for count in range(1, len(names) + 1):
        fit = [some for some in itertools.combinations(names, count) if math.prod(map(mesh.__getitem__, some)) == size]
        if fit:
            return [" ".join(some) for some in fit]
    return []


def _relation(factor: float | None, size: int) -> str:
    """How a factor follows from the number of ranks or microbatches that it comes from; the factor itself if it does
    not; "" if there is none."""
    if factor is None:
        return ""
    if size > 1 and abs(factor - size) < _CLOSE * size:
        return _MANY
    return _PART if size > 1 and abs(factor * size - 1) < _CLOSE else f"{factor:.4g}"


def _of_counts(counts: Counts, mesh: Mapping[str, int]) -> Words:
    """Explanations of microbatches that count differently; if none is known, what they have in common with others."""
    count = len(counts)
    size = round(counts[-2], 6)
    falls = all(abs(counts[k] - size ** (count - 1 - k)) < _CLOSE for k in range(count))
    again = "earlier microbatches count as if what has accumulated were summed over {} again in each later one"
    axes = _axes_of(size, mesh) if falls else []
    if axes:
        return {Reading(_AGAIN, _BOTH, some): again.format(some) for some in axes}
    return _facts(counts)


def _facts(counts: Counts) -> Words:
    """What is so of these counts, and may be so of those of another number of microbatches."""
    listed = ", ".join(f"microbatch {k} counts {counts[k]:g}" for k in range(len(counts)))
    found = {Reading(_FACT, _MICROBATCHES, "", listed): f"{listed} times what is expected"}
    first, last = f"{counts[0]:.4g}", f"{counts[-1]:.4g}"
    if all(abs(count - 1) < _CLOSE for count in counts[1:]):
        words = f"the first microbatch counts {first} times what is expected, and others are right"
        found[Reading(_FACT, _MICROBATCHES, "", f"first {first}")] = words
    if all(abs(count - 1) < _CLOSE for count in counts[:-1]):
        words = f"the last microbatch counts {last} times what is expected, and others are right"
        found[Reading(_FACT, _MICROBATCHES, "", f"last {last}")] = words
    if max(counts[:-1], default=0) - min(counts[:-1], default=1) < _CLOSE and abs(counts[-1] - 1) < _CLOSE:
        words = f"microbatches before the last count {first} times what is expected, and the last is right"
        found[Reading(_FACT, _MICROBATCHES, "", f"earlier {first}")] = words
    return found


def _listed(param: Mapping[str, Any], cell: Cell) -> Words:
    """The explanations that the report on a parameter lists."""
    listed = param.get("possible_causes") or [cause for cause in (param.get("cause"),) if cause]
    found = {}
    for cause in listed:
        axes = sorted(re.findall(r"[^\s,]+", cause.get("axes") or ""))
        by_count = cause.get("place") == _MICROBATCHES
        of = " and ".join([_RANKS] * bool(axes) + [_MICROBATCHES] * by_count)
        size = math.prod(cell.layout.mesh.get(axis, 1) for axis in axes) if axes else cell.microbatches * by_count
        text = str(cause["text"])
        relation = " ".join(filter(None, (_relation(cause.get("factor"), size), _without_numbers(text))))
        found[Reading(str(cause["kind"]), of, " ".join(axes), relation)] = text
    return found


_DIVIDED = "divided by the number of microbatches"


def _beyond(factor: float, count: int) -> Words:
    """Explanations of what several microbatches show beyond the factor of one alone."""
    relation = _relation(factor, count)
    if relation == _PART:
        return {Reading("averaged", _MICROBATCHES, "", f"{_PART} {_DIVIDED}"): _DIVIDED}
    found = {
        Reading(_FACT, _MICROBATCHES, "", f"all {factor:.4g}"): f"{factor:g} times what one microbatch alone counts"
    }
    if relation == _MANY:
        words = "each microbatch counts what one alone counts times the number of microbatches"
        found[Reading(_FACT, _MICROBATCHES, "", f"all {_MANY}")] = words
    return found


def _explained(param: Mapping[str, Any], base: float, cell: Cell) -> Words:
    """The explanations that fit one parameter. `base`: by which factor its gradient is wrong with one microbatch alone;
    what is wrong with several beyond that is another mistake."""
    counts = _counts(param)
    if counts and max(counts) - min(counts) > _CLOSE:
        return _of_counts(tuple(count / base for count in counts), cell.layout.mesh)
    if counts and base != 1 and abs(counts[0] / base - 1) > _CLOSE:
        return _beyond(counts[0] / base, cell.microbatches)
    listed = _listed(param, cell)
    if listed:
        return {**listed, **(_facts(counts) if counts == (0.0,) else {})}
    text = str(param.get("text", ""))
    return {Reading(str(param.get("kind", "unknown")), "", "", _without_numbers(text)): text}


# -- mistakes of one cell


def _wrong(outcome: Outcome) -> list[Mapping[str, Any]]:
    return [param for param in outcome.report["params"] if param["ok"] is False] if outcome.report else []


def _sums(outcome: Outcome) -> dict[str, Mapping[str, Any]]:
    """By name: what is said of wrong sums of right addends."""
    diff = (outcome.report or {}).get("diff") or {}
    return {param["name"]: param for param in diff.get("params", ()) if param.get("verdict") == WRONG}


def _bases(outcomes: Iterable[Outcome]) -> dict[tuple[str, str], dict[str, float]]:
    """By model and layout: the factors of parameters' gradients with one microbatch."""
    found: dict[tuple[str, str], dict[str, float]] = {}
    for outcome in outcomes:
        if outcome.cell.microbatches == 1:
            sums = _sums(outcome)
            factors = {name: counts[0] for name, param in sums.items() if (counts := _counts(param)) and counts[0]}
            found[outcome.cell.model, outcome.cell.layout.name] = factors
    return found


def _new(outcome: Outcome, module: str, name: str, words: Words, place: str, where: str = "", fact: str = "") -> _Found:
    layout, key = outcome.cell.layout, id(outcome)
    params, styles = ({starred(name)}, {style_of(name, outcome)}) if name else (set(), {style_of(module, outcome)})
    named = name or module
    causes = {reading: [Said(text, named, outcome)] for reading, text in words.items()}
    wrong = sorted({starred(param["name"]) for param in _wrong(outcome)})
    return _Found(
        place,
        starred(module),
        where,
        params,
        styles - {""},
        causes,
        [Said(fact, named, outcome)] * bool(fact),
        {key: outcome},
        {key: name},
        frozenset(axis for axis, size in {**layout.mesh, **layout.options}.items() if size > 1),
        frozenset() if "plans" in outcome.recipe else frozenset((layout.variant,)),
        frozenset((" ".join((_without_numbers(fact or " ".join(words.values())), *wrong)),)),
    )


def _in_sums(outcome: Outcome, bases: Mapping[str, float]) -> list[_Found]:
    """The mistakes in sums of right addends: those whose explanations agree are one."""
    found: list[_Found] = []
    sums = _sums(outcome)
    for name in (param["name"] for param in _wrong(outcome) if param["name"] in sums):
        words = _explained(sums[name], bases.get(name, 1.0), outcome.cell)
        one = _new(outcome, name.rpartition(".")[0], name, words, "reduction")
        same = next((other for other in found if other.causes.keys() & words.keys()), None)
        if same is None:
            found.append(one)
        else:
            same.join(one)
    return found


def _where_it_begins(begins: Mapping[str, Any], cell: Cell) -> tuple[str, Words]:
    """What is known of the place where wrong values begin, and what may explain it: each way in which its factor may
    have come about."""
    place, factor, text = begins["place"], begins["factor"], str(begins["text"])
    axes = " ".join(sorted(begins["axes"] or ()))
    if factor is None:
        return "", {Reading(place, _RANKS * bool(axes), axes): text}
    fact, words = text.partition("; possible cause")[0], {}
    for reading in Factors(Axes(cell.layout.mesh), [cell.microbatches]).readings(factor):
        of = " and ".join([_RANKS] * bool(reading.axes) + [_MICROBATCHES] * (reading.microbatches > 1))
        relation = _MANY if factor > 1 else _PART
        words[Reading(f"{place} by a factor", of, " ".join(sorted(reading.axes)), relation)] = reading.text
    return (fact, words) if words else ("", {Reading(f"{place} by a factor", "", axes, f"{factor:.4g}"): text})


def _elsewhere(outcome: Outcome) -> list[_Found]:
    """The mistake where wrong addends or values begin, if there is one."""
    begins = (outcome.report or {}).get("begins")
    sums = _sums(outcome)
    early = [param["name"] for param in _wrong(outcome) if param["name"] not in sums]
    if begins and begins["place"] == "reduction" and sums:  # others are wrong after a step, as a consequence
        return []
    if begins:
        fact, words = _where_it_begins(begins, outcome.cell)
        param = begins.get("param", "")
        one = _new(outcome, begins["module"], param, words, begins["place"], begins["where"], fact)
        one.names[id(outcome)] = param or (early[0] if early else "")
        if early and not begins["module"]:  # the update of all parameters: the first of them represents these
            one.styles = {style_of(early[0], outcome)} - {""}
        return [one]
    if early or not sums:
        return [_new(outcome, "", early[0] if early else "", {Reading("unknown", ""): outcome.why}, "")]
    return []


# -- pooling


def _right(outcomes: Iterable[Outcome]) -> set[tuple[str, str, int]]:
    return {(o.cell.model, o.cell.layout.name, o.cell.microbatches) for o in outcomes if o.verdict == MATCHES}


_REFUTED = "not explained: each cause that fits these cells is refuted by one that matches"


def _possible(found: _Found, right: set[tuple[str, str, int]]) -> Causes:
    """The explanations that no cell of the same model and layout refutes: a factor of ranks alone would be wrong with
    any number of microbatches, one that microbatches have a part in with any other than 1."""
    outcome = next(iter(found.outcomes.values()))
    same = [count for model, layout, count in right if (model, layout) == _place(outcome)]
    kept = {}
    for reading, said in found.causes.items():
        by_count = reading.of in (_MICROBATCHES, _BOTH)
        if not (reading.of == _RANKS and reading.relation and same) and not (by_count and any(c > 1 for c in same)):
            kept[reading] = said
    return kept or {Reading("unexplained", ""): [Said(_REFUTED, "", outcome)]}


def _place(outcome: Outcome) -> tuple[str, str]:
    return outcome.cell.model, outcome.cell.layout.name


def _agree(a: _Found, b: _Found) -> bool:
    """Whether two mistakes are taken for one: in the same place, with an explanation of both, along an axis that both
    have, and of the same parameters or module, or where the framework declares or does the same."""
    shared = [reading for reading in a.causes if reading in b.causes]
    common = a.axes & b.axes or a.axes == b.axes
    if a.place != b.place or not any(common or reading.axes or reading.of == _MICROBATCHES for reading in shared):
        return False
    other_functions = a.functions and b.functions and not a.functions & b.functions
    if other_functions and not any(reading.relation for reading in shared) and not a.looks & b.looks:
        return False  # a place alone does not say that functions of two layouts make the same mistake
    if a.place == "loaded":  # what a plan says of a parameter does not show how it was loaded
        return bool(a.params & b.params)
    same_model = _models(a) & _models(b)
    if same_model and (a.params & b.params if a.params and b.params else a.module == b.module):
        return True
    if a.where or b.where:
        return a.where == b.where
    return bool(a.styles & b.styles)


def _models(found: _Found) -> frozenset[str]:
    return frozenset(outcome.cell.model for outcome in found.outcomes.values())


def _pooled(found: Sequence[_Found]) -> list[_Found]:
    """Joins what agrees, what has one explanation first."""
    pools: list[_Found] = []
    for one in sorted(found, key=lambda f: len(f.causes)):
        same = next((pool for pool in pools if _agree(pool, one)), None)
        if same is None:
            pools.append(one)
        else:
            same.join(one)
    return pools


def _for_all(said: Sequence[Said], what: str) -> str:
    """What holds for all: what is said of each; or, where that differs, `what`, and what is said of the smallest."""
    if len({one.text for one in said}) == 1:
        return said[0].text
    text, name, outcome = min(said, key=lambda one: _size(one.outcome))
    return f"{what}{'; ' * bool(what)}in {outcome.cell.name}{f', of `{name}`' * bool(name)}: {text}"


def _what(reading: Reading, place: str) -> str:
    """An explanation without what differs between cells; its place is said elsewhere."""
    kind = "" if reading.kind.startswith(place) else reading.kind.replace("_", " ")
    return " ".join(filter(None, (kind, f"over {reading.axes}" * bool(reading.axes))))


def _cause(found: _Found) -> str:
    """What is said of all cells of a mistake."""
    causes = {reading: said for reading, said in found.causes.items() if reading.kind != _FACT}
    if not causes:  # each of these facts holds, and those whose words are the same everywhere come first
        return next(iter(found.causes.values()))[0].text
    words = list(
        dict.fromkeys(_for_all(said, _what(reading, found.place or reading.kind)) for reading, said in causes.items())
    )
    if all(reading.kind == _AGAIN for reading in causes):
        text = words[0].replace(f" over {next(iter(causes)).axes} ", f" over {' or '.join(r.axes for r in causes)} ")
    else:
        text = words[0] if len(words) == 1 else f"possible causes: {'; '.join(words)}"
    fact = _for_all(found.facts, "by a factor") if found.facts else ""
    return f"{fact}; {text}" if fact else text


def _bug(found: _Found) -> Bug:
    outcomes = tuple(sorted(found.outcomes.values(), key=_size))
    name = found.names[id(outcomes[0])]
    module = found.module if found.place != "reduction" or not name else starred(name.rpartition(".")[0])
    params, styles = tuple(sorted(found.params)), tuple(sorted(found.styles))
    return Bug(module, found.place, found.where, params, styles, _cause(found), outcomes, name)


def bugs(outcomes: Sequence[Outcome], known: Collection[Outcome] = ()) -> list[Bug]:
    """The different bugs that the wrong cells show, those of most cells first. `known`: those of the outcomes that are
    accepted: they are in no bug, but say as much of others as if they were not."""
    accepted = set(map(id, known))
    bases, right = _bases(outcomes), _right(outcomes)
    found: list[_Found] = []
    for outcome in outcomes:
        if outcome.verdict == WRONG and id(outcome) not in accepted:
            found += _in_sums(outcome, bases.get(_place(outcome), {})) + _elsewhere(outcome)
    for one in found:
        one.causes = _possible(one, right)
    return sorted(map(_bug, _pooled(found)), key=lambda bug: -len(bug.outcomes))
