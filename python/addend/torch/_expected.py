"""What a gradient should be: for each parameter its type on every axis of the mesh and the factor of its sum. Both come
from wrappers, placements and the caller, never from looking at the numbers."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from addend.torch import _meshes
from addend.torch._declared import Declarations, Types as Types, before_types, given_to, parse, summed_axes
from addend.torch._parameters import Watched
from addend.torch._sample import Box, Place

if TYPE_CHECKING:
    import addend


def _beside_axes(entry: Watched, mesh: _meshes.Mesh) -> set[str]:
    """The axes over which the other parameters' wrapper sums: ranks along them have different data."""
    return {axis for ranks in entry.beside[0] for axis in mesh.between(ranks)} if entry.beside else set()


def _distributed(entry: Watched, mesh: _meshes.Mesh) -> Types:
    """The types on the axes along which the forward itself is distributed: those of the DTensor, and those on which an
    annotation or a plan says anything but R, less those that the wrapper sums over."""
    placed = entry.placement()
    types = _meshes.types_of(mesh, placed) if placed else {}
    for said in before_types(entry, mesh):
        types.update((axis, kind) for axis, kind in said.types.items() if kind != "R")
    summed = summed_axes(entry, mesh) if types else set()
    return {axis: kind for axis, kind in types.items() if axis not in summed}


def _stage_axes(entry: Watched, mesh: _meshes.Mesh) -> list[str]:
    return mesh.between(entry.stage.ranks) if entry.stage is not None else []


def said_axes(watched: Iterable[Watched], mesh: _meshes.Mesh, given: Mapping[str, str] | None) -> set[str]:
    """The axes whose meaning is known from wrappers, placements, annotations, pipeline stages or the caller's types."""
    said: set[str] = set()
    for entry in watched:
        said |= set(_distributed(entry, mesh)) | summed_axes(entry, mesh)
        said |= {axis for source in before_types(entry, mesh) for axis in source.types}
        said |= set(_stage_axes(entry, mesh))
        said |= set(parse(given_to(entry, given, ""), mesh))
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
    distributed = [kind for entry in watched for kind in _distributed(entry, mesh).items()]
    parallel, cut = {axis for axis, _ in distributed}, {axis for axis, kind in distributed if kind[0] == "S"}
    found = {}
    for entry in watched:
        # If other parameters are DTensors on an axis, ranks along it use this plain tensor for the same work: I.
        types = {axis: "I" if axis in parallel else "R" for axis in mesh.names}
        if entry.name in placements:
            types.update(_meshes.types_of(mesh, placements[entry.name]))
        elif (placed := entry.placement()) is not None:
            types.update(_meshes.types_of(mesh, placed))
        types.update((axis, "R") for axis in _beside_axes(entry, mesh) - cut if types[axis] == "I")
        types.update(dict.fromkeys(_stage_axes(entry, mesh), "I"))
        types.update({axis: kind for axis, (kind, _) in declared.types(entry.name).items()})
        types.update(dict.fromkeys(summed_axes(entry, mesh), "R"))
        types.update(parse(given_to(entry, given, ""), mesh))
        if entry.tied:  # a tie counts before a pattern, which may name all parameters of the stages
            types.update(dict.fromkeys(_stage_axes(entry, mesh), "R"))
        found[entry.name] = types
    return found


def assumed_of(
    watched: Iterable[Watched], mesh: _meshes.Mesh, given: Mapping[str, str] | None, types: Mapping[str, Types]
) -> dict[str, str]:
    """The axes, by name, on which a parameter has type I because of placements, annotations or other parameters'
    placements alone: a job may use a replicated parameter for different work on each rank."""
    found = {}
    for entry in watched:
        said = {*_stage_axes(entry, mesh), *parse(given_to(entry, given, ""), mesh)}
        axes = [axis for axis, kind in types[entry.name].items() if kind == "I" and axis not in said]
        if axes:
            found[entry.name] = " ".join(axes)
    return found


def contradicted_ties(watched: Iterable[Watched], mesh: _meshes.Mesh, given: Mapping[str, str] | None) -> list[str]:
    """Notes on tied parameters to which types= gives another type than R along their pipeline."""
    notes = []
    for entry in watched:
        types = parse(given_to(entry, given, ""), mesh) if entry.tied else {}
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
    return {entry.name: float(given_to(entry, patterns, _own_factor(entry, mesh, types))) for entry in watched}


def cut_by_hand(watched: Iterable[Watched], types: Mapping[str, Types]) -> list[str]:
    """Names of plain tensors that are shards by the caller's types or by an annotation; PyTorch does not know their
    global shape."""
    return [
        entry.name
        for entry in watched
        if entry.placement() is None and any(kind[0] == "S" for kind in types[entry.name].values())
    ]


def place(
    types: Types,
    mesh: _meshes.Mesh,
    rank: int,
    shapes: Mapping[int, tuple[int, ...]],
    order: Mapping[int, Sequence[str]] | None = None,
) -> Place:
    """The global shape of a sharded parameter and the box of `rank`'s shard, from all ranks' local shapes. The shards
    are in the order of the ranks' coordinates, those on the axes in `order` (by dimension, the outermost first) after
    the others and as they are there."""
    whole, first = list(shapes[rank]), [0] * len(shapes[rank])
    for dim in range(len(whole)):
        ordered = (order or {}).get(dim, ())
        cutting = [axis for axis in mesh.names if types[axis] == f"S{dim}" and axis not in ordered]
        cutting += [axis for axis in ordered if types[axis] == f"S{dim}"]
        fibre = [r for r in mesh.along(rank, cutting) if r in shapes]
        whole[dim] = sum(shapes[r][dim] for r in fibre)
        first[dim] = sum(shapes[r][dim] for r in fibre[: fibre.index(rank)])
    return tuple(whole), Box(tuple(first), tuple(shapes[rank]))


Cut = Mapping[int, Mapping[str, tuple[int, ...]]]  # the local shapes of parameters that are cut by hand, by rank


def shapes_of(name: str, cut: Cut) -> dict[int, tuple[int, ...]]:
    """The local shape of a parameter on each rank that has it."""
    return {rank: of_rank[name] for rank, of_rank in cut.items() if name in of_rank}


def are_uneven(cut: Cut) -> bool:
    """Whether ranks have parts of a parameter whose shapes differ."""
    names = {name for of_rank in cut.values() for name in of_rank}
    return any(len(set(shapes_of(name, cut).values())) > 1 for name in names)


def _sources(name: str, types: Types, declared: Declarations) -> str:
    """Who says that a parameter is a shard: "tp=S0 (spmd_types)"."""
    said = {axis: f"{who.words or f'{axis}={kind}'} ({who.by})" for axis, (kind, who) in declared.types(name).items()}
    return ", ".join(said.get(axis, f"{axis}={kind} (types=)") for axis, kind in types.items() if kind[0] == "S")


def need_wholes(cut: Cut, types: Mapping[str, Types], mesh: _meshes.Mesh, declared: Declarations) -> None:
    """Raises ValueError if the parts of a parameter, put together as its types say, are not one whole on all ranks."""
    for name, shapes in ((name, shapes_of(name, cut)) for name in types):
        first = min(shapes, default=0)
        other = [rank for rank, shape in shapes.items() if shape != shapes[first]]
        if other and len({place(types[name], mesh, rank, shapes)[0] for rank in shapes}) > 1:
            raise ValueError(
                f"`{name}` is {_sources(name, types[name], declared)}, but has the shape {list(shapes[first])} on rank "
                f"{first} and {list(shapes[other[0]])} on rank {other[0]}: such parts are cut along another dimension, "
                "or are no parts of one parameter"
            )


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
