"""Each different bug of a matrix once: wrong cells pooled over parameters, microbatches, layouts and models."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any, Dict, FrozenSet, Iterable, List, Mapping, Optional, Sequence, Set, Tuple

from addend.torch._matrix._cells import MATCHES, WRONG, Cell, Outcome, starred

_RANKS, _MICROBATCHES = "ranks", "microbatches"  # what a wrong factor is made of
_CLOSE = 1e-4  # counts are measured; those that differ by less are the same
_AGAIN = "summed again"  # the kind of a cause: a sum is made of what has accumulated, not of what is new

Reading = Tuple[str, str]  # one explanation: the kind of a cause, and what it comes from
Causes = Dict[Reading, str]  # explanations that fit, with their words
Counts = Tuple[float, ...]  # how often each microbatch counts, divided by how often it should


@dataclasses.dataclass(frozen=True)
class Bug:
    """One mistake, and the cells that show it."""

    module: str  # the first wrong module, with layers' numbers starred; "": the whole model
    place: str  # forward, loss, backward, reduction, optimizer, or "" where nothing is said
    where: str  # file:line, or ""
    params: Tuple[str, ...]  # classes of wrong parameters: names with layers' numbers starred
    styles: Tuple[str, ...]  # what the framework's plan says of these
    cause: str
    outcomes: Tuple[Outcome, ...]  # of the cells that show it, the smallest first
    param: str = ""  # a wrong parameter of the smallest cell

    @property
    def smallest(self) -> Outcome:
        """The cell that shows it with the fewest ranks and microbatches."""
        return self.outcomes[0]

    @property
    def models(self) -> Tuple[str, ...]:
        return tuple(dict.fromkeys(outcome.cell.model for outcome in self.outcomes))

    @property
    def layouts(self) -> Tuple[str, ...]:
        return tuple(dict.fromkeys(outcome.cell.layout.name for outcome in self.outcomes))

    @property
    def microbatches(self) -> Tuple[int, ...]:
        return tuple(sorted({outcome.cell.microbatches for outcome in self.outcomes}))


@dataclasses.dataclass
class _Found:
    """A mistake while it is pooled."""

    place: str
    module: str
    where: str
    params: Set[str]
    styles: Set[str]
    causes: Causes
    outcomes: Dict[int, Outcome]
    names: Dict[int, str]  # by outcome: the first wrong parameter

    def join(self, other: _Found) -> None:
        self.causes = {reading: words for reading, words in self.causes.items() if reading in other.causes}
        self.params |= other.params
        self.styles |= other.styles
        self.outcomes.update(other.outcomes)
        self.names = {**other.names, **self.names}


def _size(outcome: Outcome) -> Tuple[bool, int, int, int]:
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


def _counts(param: Mapping[str, Any]) -> Optional[Counts]:
    """How often each microbatch counts, if that is the same on all ranks that have it."""
    rows = [row for row in param.get("counts") or () if any(count is not None for count in row)]
    found: List[float] = []
    for column in zip(*rows):
        known = {round(count, 6) for count in column if count is not None}
        if len(known) != 1:
            return None
        found.append(known.pop())
    return tuple(found) or None


def _axes_of(size: float, mesh: Mapping[str, int]) -> str:
    """The axes whose sizes have this product: "tp", "fsdp tp", "fsdp or tp"; "" if none have."""
    names = [name for name, axis in mesh.items() if axis > 1]
    for count in range(1, len(names) + 1):
        fit = [some for some in itertools.combinations(names, count) if math.prod(map(mesh.__getitem__, some)) == size]
        if fit:
            return " or ".join(map(" ".join, fit))
    return ""


def _of_counts(counts: Counts, mesh: Mapping[str, int]) -> Causes:
    """Explanations of microbatches that do not count alike."""
    count = len(counts)
    size = counts[-2] if count > 1 else 0
    axes = _axes_of(round(size, 6), mesh)
    if axes and all(abs(counts[k] - size ** (count - 1 - k)) < _CLOSE for k in range(count)):
        words = f"earlier microbatches count as if what has accumulated were summed over {axes} again in each later one"
        return {(_AGAIN, _RANKS): words}
    listed = ", ".join(f"microbatch {k} counts {counts[k]:g}" for k in range(count))
    return {("factor", _MICROBATCHES): f"{listed} times what is expected"}


def _reading(cause: Mapping[str, Any]) -> Reading:
    of = [_RANKS] * bool(cause.get("axes")) + [_MICROBATCHES] * (cause.get("place") == _MICROBATCHES)
    return str(cause["kind"]), " and ".join(of)


def _listed(param: Mapping[str, Any]) -> Causes:
    """The explanations that the report on a parameter lists."""
    listed = param.get("possible_causes") or [cause for cause in (param.get("cause"),) if cause]
    return {_reading(cause): str(cause["text"]) for cause in listed}


def _beyond(factor: float, count: int) -> Causes:
    """Explanations of what several microbatches show beyond the factor of one alone."""
    if abs(factor * count - 1) < _CLOSE:
        return {("averaged", _MICROBATCHES): "divided by the number of microbatches"}
    return {("factor", _MICROBATCHES): f"{factor:g} times what one microbatch alone counts"}


def _explained(param: Mapping[str, Any], base: float, cell: Cell) -> Causes:
    """The explanations that fit one parameter. `base`: by which factor its gradient is wrong with one microbatch alone;
    what is wrong with several beyond that is a mistake of its own."""
    counts = _counts(param)
    if counts and max(counts) - min(counts) > _CLOSE:
        return _of_counts(tuple(count / base for count in counts), cell.layout.mesh)
    if counts and base != 1 and abs(counts[0] / base - 1) > _CLOSE:
        return _beyond(counts[0] / base, cell.microbatches)
    return _listed(param) or {(str(param.get("kind", "unknown")), ""): str(param.get("text", ""))}


# -- mistakes of one cell


def _wrong(outcome: Outcome) -> List[Mapping[str, Any]]:
    return [param for param in outcome.report["params"] if param["ok"] is False] if outcome.report else []


def _sums(outcome: Outcome) -> Dict[str, Mapping[str, Any]]:
    """By name: what is said of wrong sums of right addends."""
    diff = (outcome.report or {}).get("diff") or {}
    return {param["name"]: param for param in diff.get("params", ()) if param.get("verdict") == WRONG}


def _bases(outcomes: Iterable[Outcome]) -> Dict[Tuple[str, str], Dict[str, float]]:
    """By model and layout: the factors of parameters' gradients with one microbatch."""
    found: Dict[Tuple[str, str], Dict[str, float]] = {}
    for outcome in outcomes:
        if outcome.cell.microbatches == 1:
            sums = _sums(outcome)
            factors = {name: counts[0] for name, param in sums.items() if (counts := _counts(param)) and counts[0]}
            found[outcome.cell.model, outcome.cell.layout.name] = factors
    return found


def _new(outcome: Outcome, module: str, name: str, causes: Causes, place: str, where: str = "") -> _Found:
    params, styles = ({starred(name)}, {style_of(name, outcome)}) if name else (set(), {style_of(module, outcome)})
    key = id(outcome)
    return _Found(place, starred(module), where, params, styles - {""}, causes, {key: outcome}, {key: name})


def _in_sums(outcome: Outcome, bases: Mapping[str, float]) -> List[_Found]:
    """The mistakes in sums of right addends: those whose explanations agree are one."""
    found: List[_Found] = []
    sums = _sums(outcome)
    for name in (param["name"] for param in _wrong(outcome) if param["name"] in sums):
        causes = _explained(sums[name], bases.get(name, 1.0), outcome.cell)
        one = _new(outcome, name.rpartition(".")[0], name, causes, "reduction")
        same = next((other for other in found if other.causes.keys() & causes.keys()), None)
        if same is None:
            found.append(one)
        else:
            same.join(one)
    return found


def _elsewhere(outcome: Outcome) -> List[_Found]:
    """The mistake where wrong addends or values begin, if there is one."""
    begins = (outcome.report or {}).get("begins")
    sums = _sums(outcome)
    early = [param["name"] for param in _wrong(outcome) if param["name"] not in sums]
    if begins and begins["place"] == "reduction" and sums:  # others are wrong after a step, as a consequence
        return []
    if begins:
        words = str(begins["text"])
        kind = begins["place"] if begins["factor"] is None else f"{begins['place']} by a factor"
        one = _new(outcome, begins["module"], "", {(kind, ""): words}, begins["place"], begins["where"])
        one.names[id(outcome)] = early[0] if early else ""
        if early and not begins["module"]:  # the update of all parameters: the first of them stands for these
            one.styles = {style_of(early[0], outcome)} - {""}
        return [one]
    if early or not sums:
        one = _new(outcome, "", early[0] if early else "", {("unknown", ""): outcome.why}, "")
        return [one]
    return []


# -- pooling


def _right(outcomes: Iterable[Outcome]) -> Set[Tuple[str, str, int]]:
    return {(o.cell.model, o.cell.layout.name, o.cell.microbatches) for o in outcomes if o.verdict == MATCHES}


def _possible(found: _Found, right: Set[Tuple[str, str, int]]) -> Causes:
    """The explanations that no cell of the same model and layout refutes: a factor of ranks alone would be wrong with
    any number of microbatches, one of microbatches alone with any other than 1."""
    outcome = next(iter(found.outcomes.values()))
    same = [count for model, layout, count in right if (model, layout) == _place(outcome)]
    kept = {}
    for (kind, of), words in found.causes.items():
        refuted = (of == _RANKS and kind != _AGAIN and same) or (of == _MICROBATCHES and any(c > 1 for c in same))
        if not refuted:
            kept[kind, of] = words
    return kept or {
        ("unexplained", ""): "not explained: each cause that fits these cells is refuted by one that matches"
    }


def _place(outcome: Outcome) -> Tuple[str, str]:
    return outcome.cell.model, outcome.cell.layout.name


def _agree(a: _Found, b: _Found) -> bool:
    """Whether two mistakes may be one: in the same place, with an explanation of both, and of the same parameters or
    module, or where the framework declares or does the same."""
    if a.place != b.place or not a.causes.keys() & b.causes.keys():
        return False
    same_model = _models(a) & _models(b)
    if same_model and (a.params & b.params if a.params and b.params else a.module == b.module):
        return True
    if a.where or b.where:
        return a.where == b.where
    return bool(a.styles & b.styles)


def _models(found: _Found) -> FrozenSet[str]:
    return frozenset(outcome.cell.model for outcome in found.outcomes.values())


def _pooled(found: Sequence[_Found]) -> List[_Found]:
    """Joins what agrees, what has one explanation first."""
    pools: List[_Found] = []
    for one in sorted(found, key=lambda f: len(f.causes)):
        same = next((pool for pool in pools if _agree(pool, one)), None)
        if same is None:
            pools.append(one)
        else:
            same.join(one)
    return pools


def _bug(found: _Found) -> Bug:
    outcomes = tuple(sorted(found.outcomes.values(), key=_size))
    words = list(dict.fromkeys(found.causes.values()))
    cause = words[0] if len(words) == 1 else f"possible causes: {'; '.join(words)}"
    name = found.names[id(outcomes[0])]
    module = found.module if found.place != "reduction" or not name else starred(name.rpartition(".")[0])
    params, styles = tuple(sorted(found.params)), tuple(sorted(found.styles))
    return Bug(module, found.place, found.where, params, styles, cause, outcomes, name)


def bugs(outcomes: Sequence[Outcome]) -> List[Bug]:
    """The different bugs that the wrong cells show, those of most cells first."""
    bases, right = _bases(outcomes), _right(outcomes)
    found: List[_Found] = []
    for outcome in outcomes:
        if outcome.verdict == WRONG:
            found += _in_sums(outcome, bases.get(_place(outcome), {})) + _elsewhere(outcome)
    for one in found:
        one.causes = _possible(one, right)
    return sorted(map(_bug, _pooled(found)), key=lambda bug: -len(bug.outcomes))
