"""What a job declares of its gradients' types: spmd_types' annotations, placements, plans of a library, wrappers and
types=. A declaration is judged by the addends; only types= is believed without a second look."""

from __future__ import annotations

import dataclasses
import fnmatch
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

import torch

from addend.torch import _files, _meshes

if TYPE_CHECKING:
    from addend.torch._meshes import Mesh
    from addend.torch._parameters import Watched

Types = dict[str, str]  # the type on each axis: R, I or S<dim>
T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Declared:
    """What one source says of one parameter on the axes of the watch's mesh."""

    types: Mapping[str, str]  # axis -> R, I or S<dim>; an axis that the source does not name is not in it
    by: str  # the source, as reports name it: "spmd_types", "fully_shard", "a DTensor's placements"
    where: str = ""  # file and line of the declaration, if the source knows them
    words: str = ""  # what the source says itself, if a type loses it: "V on tp", "S(0) over (dp, tp)"
    order: Mapping[int, tuple[str, ...]] = dataclasses.field(
        default_factory=dict
    )  # the axes, the outermost first, that
    # cut a dimension, where the source says it
    sums: bool = False  # the source sums over these axes itself
    placed: bool = False  # by a DTensor's placements, which types_of() reads itself, for others count before them
    unjudged: str = ""  # why the sum cannot be judged; "": it can
    dtype: torch.dtype | None = None  # for what is no type but the dtype in which the sum is formed
    given: bool = True  # the dtype was written by the job; False: it is a default of PyTorch
    axes: tuple[str, ...] = ()  # the axes over which the sum is formed in this dtype; (): all


class Declarations:
    """The declarations of one step's parameters, of all sources."""

    def __init__(self) -> None:
        self._of: dict[str, list[Declared]] = {}

    def add(self, name: str, declared: Declared) -> None:
        """Adds what a source says of the parameter `name`. Of two sources, the one that is added later counts."""
        self._of.setdefault(name, []).append(declared)

    def of(self, name: str) -> tuple[Declared, ...]:
        """What all sources say of the parameter, in the order in which they were added."""
        return tuple(self._of.get(name, ()))

    def types(self, name: str) -> dict[str, tuple[str, Declared]]:
        """For each axis that a source other than placements names, the type that counts and who says it."""
        return {axis: (kind, said) for said in self.of(name) if not said.placed for axis, kind in said.types.items()}

    def order(self, name: str) -> dict[int, tuple[str, ...]]:
        """By dimension, the axes that cut it, the outermost first, where a source says it."""
        return {dim: axes for said in self.of(name) for dim, axes in said.order.items()}


def _named(axis: str, mesh: Mesh) -> list[str]:
    return [axis] if axis in mesh.names else [name for name in mesh.names if axis == "dp" and name.startswith("dp")]


def parse(text: str, mesh: Mesh) -> Types:
    """Reads "dp=R tp=S0". If no axis is called dp, dp means all axes whose names begin with dp."""
    types: Types = {}
    for word in text.split():
        axis, _, kind = word.partition("=")
        named = _named(axis, mesh)
        if not named or not (kind in ("R", "I") or (kind[:1] == "S" and kind[1:].isdigit())):
            raise ValueError(
                f'types: "{word}" in "{text}" must be AXIS=R, AXIS=I or AXIS=S<dim> with an axis of the mesh {mesh}'
            )
        types.update(dict.fromkeys(named, kind))
    return types


def last_that_fits(patterns: Mapping[str, T], name: str, otherwise: T, *more: str) -> T:
    """The value of the last pattern that matches the parameter's name, or one of `more` names of it."""
    names = (name, *more)
    found = [value for pattern, value in patterns.items() if any(fnmatch.fnmatchcase(own, pattern) for own in names)]
    return found[-1] if found else otherwise


def given_to(entry: Watched, patterns: Mapping[str, T] | None, otherwise: T) -> T:
    """What the caller gives to a parameter by patterns of names."""
    return last_that_fits(patterns or {}, entry.name, otherwise, *entry.tied)


def summed_axes(entry: Watched, mesh: Mesh) -> set[str]:
    """The axes over which the parameter's wrapper (DDP, FSDP) sums, fully or in part."""
    return {axis for ranks in entry.data for axis in mesh.between(ranks)}


def _by_placements(entry: Watched, mesh: Mesh, gradients: Mapping[str, _meshes.Placed]) -> Iterator[Declared]:
    """What the placements of a DTensor's gradient say or, before there is one, those of a sharded parameter. (A
    replicated parameter has the same values on all ranks, whatever its gradient is.)"""
    if entry.name in gradients:
        types, by = _meshes.types_of(mesh, gradients[entry.name]), "its gradient's placements"
    elif (placed := entry.placement()) is not None and entry.annotation is None:
        types = {axis: kind for axis, kind in _meshes.types_of(mesh, placed).items() if kind[0] == "S"}
        by = "a DTensor's placements"
    else:
        return
    summed = summed_axes(entry, mesh)
    said = {axis: kind for axis, kind in types.items() if axis not in summed}
    if said:
        yield Declared(said, by, placed=True)


def before_types(entry: Watched, mesh: Mesh) -> Iterator[Declared]:
    """What a parameter's plan, annotation, wrapper and `grad_dtype` say. Of types, the later ones count."""
    yield from entry.planned(mesh)
    try:
        yield from entry.annotation.declared(mesh) if entry.annotation else ()
    except ValueError as error:
        raise ValueError(f"`{entry.name}` {error}") from None
    wrapped = entry.declared(mesh)
    yield from wrapped
    if entry.promised is not None and not any(said.dtype for said in wrapped):
        yield Declared({}, "grad_dtype", dtype=entry.promised)


def find(
    watched: Iterable[Watched],
    mesh: Mesh,
    gradients: Mapping[str, _meshes.Placed] | None = None,
    given: Mapping[str, str] | None = None,
    reduce: torch.dtype | None = None,
    hooks: Mapping[str, Sequence[Declared]] | None = None,
) -> Declarations:
    """What all sources declare. `gradients`: placements of gradients, by name, as far as they are known; `given`: the
    caller's types=, `reduce`: the caller's reduce=. These two, and a wrapper that declares nothing else, are named
    where another source speaks, too. `hooks`: what by_hooks() gives."""
    found = Declarations()
    for entry in watched:
        by_hooks = (hooks or {}).get(entry.name, ())
        for said in (*_by_placements(entry, mesh, gradients or {}), *by_hooks, *before_types(entry, mesh)):
            found.add(entry.name, said)
            entry.unjudged = entry.unjudged or said.unjudged
        rows = found.of(entry.name)
        if not rows:
            continue
        summed = summed_axes(entry, mesh)
        if summed and not any(said.sums for said in rows):
            in_order = [axis for axis in mesh.names if axis in summed]
            found.add(entry.name, Declared(dict.fromkeys(in_order, "R"), entry.wrapper, sums=True))
        types = parse(given_to(entry, given, ""), mesh)
        if types:
            found.add(entry.name, Declared(types, "types="))
        if reduce is not None:
            found.add(entry.name, Declared({}, "reduce=", dtype=reduce))
    return found


def by_hooks(summed: Mapping[str, Mapping[str, str]]) -> dict[str, list[Declared]]:
    """What hooks declare by summing a parameter's gradient: over which axes ("dp tp"), and where. It is known after the
    step alone, and chooses no type: a hook may sum what is the same on all ranks."""
    return {
        name: [Declared(dict.fromkeys(axes.split(), "R"), "hook", where) for axes, where in found.items()]
        for name, found in summed.items()
    }


def _rows(declared: Sequence[Declared], types: Mapping[str, str]) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    dtypes = [said for said in declared if said.dtype is not None]
    for said in declared:
        row: dict[str, object] = {"by": said.by}
        if said.dtype is not None:
            row.update(dtype=_files.dtype_name(said.dtype), given=said.given, counts=said is dtypes[-1])
        else:
            row["types"] = " ".join(f"{axis}={kind}" for axis, kind in said.types.items())
            row["counts"] = all(types[axis] == kind for axis, kind in said.types.items())
        more: dict[str, object] = {"where": said.where, "words": said.words, "axes": " ".join(said.axes)}
        more.update(sums=said.sums, placed=said.placed)
        row.update({key: value for key, value in more.items() if value})
        rows.append(row)
    return rows


def metadata(
    declarations: Declarations, names: Iterable[str], types: Mapping[str, Mapping[str, str]]
) -> dict[str, list[dict[str, object]]]:
    """The value of `addend.declared`: by name, a row for each declaration. `counts`: whether the watch reads the sum by
    it. `types`: the types by which each parameter is read."""
    rows = {name: _rows(declarations.of(name), types[name]) for name in names}
    return {name: of_name for name, of_name in rows.items() if of_name}
