"""What a gradient should be: for each parameter its type on every axis of the mesh and the factor of its sum. Both come
from wrappers, placements and the caller, never from looking at the numbers."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar, cast

from torch.distributed.device_mesh import DeviceMesh

from addend.torch import _meshes
from addend.torch._declared import Declarations
from addend.torch._loaded import is_dtensor
from addend.torch._parameters import Watched
from addend.torch._sample import Box, Place

if TYPE_CHECKING:
    from torch.distributed.tensor import Placement, Shard

    import addend

Types = dict[str, str]  # the type on each axis: R, I or S<dim>
T = TypeVar("T")


def _of_placement(placement: Placement) -> str:
    if placement.is_replicate():
        return "I"  # all ranks along this axis did the same work
    if placement.is_partial():
        return "R"
    shard = cast("Shard", placement)
    return f"S{shard.dim}"  # also of a _StridedShard, which is not always a subclass of Shard


def _placed(mesh: _meshes.Mesh, device_mesh: DeviceMesh, placements: _meshes.Placements) -> Types:
    """The types that a DTensor's placements mean, on the axes of the DTensor's device mesh."""
    return {
        axis: _of_placement(placement)
        for dim, placement in enumerate(placements)
        for axis in mesh.spanned(_meshes.along(device_mesh, dim))
    }


def _named(axis: str, mesh: _meshes.Mesh) -> list[str]:
    return [axis] if axis in mesh.names else [name for name in mesh.names if axis == "dp" and name.startswith("dp")]


def parse(text: str, mesh: _meshes.Mesh) -> Types:
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


def _given(patterns: Mapping[str, T] | None, entry: Watched, otherwise: T) -> T:
    return last_that_fits(patterns or {}, entry.name, otherwise, *entry.tied)


def _placement(entry: Watched) -> _meshes.Placed | None:
    """The mesh and placements of a DTensor, or of a plain tensor that is known to be a DTensor's local part."""
    if entry.part is not None:
        return entry.part[0], entry.part[1]
    return (entry.used.device_mesh, entry.used.placements) if is_dtensor(entry.used) else None


def _summed_axes(entry: Watched, mesh: _meshes.Mesh) -> set[str]:
    """The axes over which the parameter's wrapper (DDP, FSDP) sums, fully or in part."""
    return {axis for ranks in entry.data for axis in mesh.between(ranks)}


def _beside_axes(entry: Watched, mesh: _meshes.Mesh) -> set[str]:
    """The axes over which the other parameters' wrapper sums: ranks along them have different data."""
    return {axis for ranks in entry.beside[0] for axis in mesh.between(ranks)} if entry.beside else set()


def _parallel_axes(entry: Watched, mesh: _meshes.Mesh) -> set[str]:
    """The axes along which the forward itself is distributed: the DTensor's, less those that the wrapper sums over."""
    placed = _placement(entry)
    return set(_placed(mesh, *placed)) - _summed_axes(entry, mesh) if placed else set()


def _is_cut(entry: Watched, mesh: _meshes.Mesh, axis: str) -> bool:
    placed = _placement(entry)
    return placed is not None and _placed(mesh, *placed)[axis][0] == "S"


def _stage_axes(entry: Watched, mesh: _meshes.Mesh) -> list[str]:
    return mesh.between(entry.stage.ranks) if entry.stage is not None else []


def said_axes(watched: Iterable[Watched], mesh: _meshes.Mesh, given: Mapping[str, str] | None) -> set[str]:
    """The axes whose meaning is known from wrappers, placements, pipeline stages or the caller's types."""
    said: set[str] = set()
    for entry in watched:
        said |= _parallel_axes(entry, mesh) | _summed_axes(entry, mesh)
        said |= set(_stage_axes(entry, mesh))
        said |= set(parse(_given(given, entry, ""), mesh))
    return said


def smaller_groups(watched: Iterable[Watched], mesh: _meshes.Mesh) -> list[str]:
    """Notes on wrappers that sum over only some of the ranks along an axis."""
    found: dict[str, str] = {}
    for entry in watched:
        for ranks in entry.data:
            axes = mesh.between(ranks)
            if mesh.size(axes) != len(ranks):
                along = f"{mesh.size(axes)} ranks along {', '.join(axes)}"
                found.setdefault(f"its wrapper sums over {len(ranks)} of the {along}: {ranks}", entry.name)
    return [f"`{name}`: {some}; if the others have another model, say so by group=" for some, name in found.items()]


def types_of(
    watched: Iterable[Watched],
    mesh: _meshes.Mesh,
    given: Mapping[str, str] | None,
    placements: Mapping[str, _meshes.Placed],
    declared: Declarations,
) -> dict[str, Types]:
    """The types of each parameter, by name. `placements`: those of gradients, which count before the parameter's;
    `declared` counts before both, and a wrapper that sums counts before it."""
    parallel = {axis for entry in watched for axis in _parallel_axes(entry, mesh)}
    cut = {axis for entry in watched for axis in _parallel_axes(entry, mesh) if _is_cut(entry, mesh, axis)}
    found = {}
    for entry in watched:
        # If other parameters are DTensors on an axis, ranks along it use this plain tensor for the same work: I.
        types = {axis: "I" if axis in parallel else "R" for axis in mesh.names}
        if entry.name in placements:
            types.update(_placed(mesh, *placements[entry.name]))
        elif (placed := _placement(entry)) is not None:
            types.update(_placed(mesh, *placed))
        types.update((axis, "R") for axis in _beside_axes(entry, mesh) - cut if types[axis] == "I")
        types.update(dict.fromkeys(_stage_axes(entry, mesh), "I"))
        types.update({axis: kind for axis, (kind, _) in declared.types(entry.name).items()})
        types.update(dict.fromkeys(_summed_axes(entry, mesh), "R"))
        types.update(parse(_given(given, entry, ""), mesh))
        if entry.tied:  # a tie counts before a pattern, which may name all parameters of the stages
            types.update(dict.fromkeys(_stage_axes(entry, mesh), "R"))
        found[entry.name] = types
    return found


def assumed_of(
    watched: Iterable[Watched], mesh: _meshes.Mesh, given: Mapping[str, str] | None, types: Mapping[str, Types]
) -> dict[str, str]:
    """The axes, by name, on which a parameter has type I because of placements or of other parameters' placements
    alone: a job may use a replicated parameter for different work on each rank."""
    found = {}
    for entry in watched:
        said = {*_stage_axes(entry, mesh), *parse(_given(given, entry, ""), mesh)}
        axes = [axis for axis, kind in types[entry.name].items() if kind == "I" and axis not in said]
        if axes:
            found[entry.name] = " ".join(axes)
    return found


def contradicted_ties(watched: Iterable[Watched], mesh: _meshes.Mesh, given: Mapping[str, str] | None) -> list[str]:
    """Notes on tied parameters to which types= gives another type than R along their pipeline."""
    notes = []
    for entry in watched:
        types = parse(_given(given, entry, ""), mesh) if entry.tied else {}
        other = " ".join(f"{axis}={types[axis]}" for axis in _stage_axes(entry, mesh) if types.get(axis, "R") != "R")
        if other:
            both = " and ".join(f"`{name}`" for name in entry.tied)
            notes.append(
                f"types= gives {both} {other}, but they are tied, so their sum is expected; tied=() if they "
                "are not tied"
            )
    return notes


def is_meant(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def lost(unused: Iterable[str], used: Iterable[str], meant: Iterable[str]) -> dict[str, str]:
    """Notes on `unused` parameters (no rank has a gradient) whose peers have one. A peer's name differs only in its
    numbers, such as the layer's."""
    having: dict[str, str] = {}
    for name in sorted(used):
        having.setdefault(re.sub(r"\d+", "#", name), name)
    found = {}
    for name in unused:
        peer = having.get(re.sub(r"\d+", "#", name))
        if peer is not None and not is_meant(name, meant):
            found[name] = (
                f"no rank has a gradient of it, but `{peer}` has one: the gradient was lost, or the parameter was not "
                "used in this step (then name it in unused=)"
            )
    return found


def unsaid(
    watched: Sequence[Watched],
    mesh: _meshes.Mesh,
    types: Mapping[str, str] | None,
    expect: float | Mapping[str, float] | None,
    ties: Iterable[Sequence[str]],
    report: addend.DiffReport,
) -> list[str]:
    """If something is wrong, notes on assumptions that the caller may correct by further arguments. `ties`: names of
    tied parameters, whose sums over the ranks that have them are wanted whatever holds for the others."""
    wrong = {param.name: param for param in report.params if param.verdict == "wrong"}
    notes = []
    large = [name for name, size in zip(mesh.names, mesh.sizes) if size > 1]
    for axis in [axis for axis in large if axis not in said_axes(watched, mesh, types)] if len(large) > 1 else []:
        if any(axis in (param.axis or axis).split(",") for param in wrong.values()):
            summed = "".join(f', "{name}": "{axis}=R"' for names in ties for name in names)
            notes.append(
                f'nothing says what ranks along {axis} have, so sums over {axis} are expected; say types={{"*": '
                f'"{axis}=S0"{summed}}} if each has its own shard of dimension 0, {{"*": "{axis}=I"{summed}}} if all '
                "do the same work"
            )
    alone = [entry.name for entry in watched if not entry.data and entry.name in wrong and expect is None]
    if alone and any(entry.data or entry.beside for entry in watched):
        more = f" and {len(alone) - 1} more" if alone[1:] else ""
        notes.append(
            f"`{alone[0]}`{more}: no wrapper sums it, so the same factor is expected as for the others; "
            f'expect={{"{alone[0]}": ...}} sets another factor'
        )
    return notes


def _own_factor(entry: Watched, mesh: _meshes.Mesh, types: Mapping[str, Types]) -> float:
    """The wrapper's factor or, if the parameter has none and is to be summed over the same axes, the others'."""
    axes = _beside_axes(entry, mesh)
    is_identical = entry.beside is not None and all(types[entry.name][axis] == "R" for axis in axes)
    return entry.factor * (entry.beside[1] if entry.beside and is_identical else 1)


def factors_of(
    watched: Iterable[Watched],
    given: float | Mapping[str, float] | None,
    mesh: _meshes.Mesh,
    types: Mapping[str, Types],
) -> dict[str, float]:
    """The expected factor of each parameter's sum, by name: the caller's (a number, or numbers by pattern of names),
    else the wrapper's."""
    patterns = given if isinstance(given, Mapping) else {} if given is None else {"*": given}
    return {entry.name: float(_given(patterns, entry, _own_factor(entry, mesh, types))) for entry in watched}


def cut_by_hand(watched: Iterable[Watched], types: Mapping[str, Types]) -> list[str]:
    """Names of plain tensors that are shards by the caller's types; PyTorch does not know their global shape."""
    return [
        entry.name
        for entry in watched
        if _placement(entry) is None and any(kind[0] == "S" for kind in types[entry.name].values())
    ]


def _along(mesh: _meshes.Mesh, rank: int, axes: set[int]) -> list[int]:
    """The ranks that differ from `rank` on these axes only, `rank` included, sorted by coordinates."""
    mine = mesh.coords[rank]
    fibre = [r for r, at in mesh.coords.items() if all(at[i] == mine[i] for i in range(len(at)) if i not in axes)]
    return sorted(fibre, key=lambda r: mesh.coords[r])


def place(types: Types, mesh: _meshes.Mesh, rank: int, shapes: Mapping[int, tuple[int, ...]]) -> Place:
    """The global shape of a sharded parameter and the box of `rank`'s shard, from all ranks' local shapes. The shards
    are in the order of the ranks' coordinates."""
    whole, first = list(shapes[rank]), [0] * len(shapes[rank])
    for dim in range(len(whole)):
        cutting = {i for i, axis in enumerate(mesh.names) if types[axis] == f"S{dim}"}
        fibre = [r for r in _along(mesh, rank, cutting) if r in shapes]
        whole[dim] = sum(shapes[r][dim] for r in fibre)
        first[dim] = sum(shapes[r][dim] for r in fibre[: fibre.index(rank)])
    return tuple(whole), Box(tuple(first), tuple(shapes[rank]))


def text(types: Types) -> str:
    return " ".join(f"{axis}={kind}" for axis, kind in types.items())


def factors_text(factors: Mapping[str, float]) -> str | dict[str, float]:
    """One number if all parameters have the same factor, else a number for each name."""
    if len(set(factors.values())) <= 1:
        return repr(next(iter(factors.values()), 1.0))
    return {literal(name): factor for name, factor in factors.items()}


def literal(name: str) -> str:
    """The fnmatch pattern that matches this name only."""
    return re.sub(r"([*?[])", r"[\1]", name)
