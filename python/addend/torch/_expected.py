"""What a gradient should be: for each parameter its type on every axis of the mesh and the factor of its sum. Both come from
wrappers, placements and the caller, never from looking at the numbers."""

from __future__ import annotations

import fnmatch
import re

from torch.distributed.tensor import DTensor, Partial, Replicate

from addend.torch import _meshes
from addend.torch._sample import Box


def _of_placement(placement) -> str:
    if isinstance(placement, Replicate):
        return "I"  # all ranks along this axis did the same work
    return "R" if isinstance(placement, Partial) else f"S{placement.dim}"


def _placed(mesh, device_mesh, placements) -> dict[str, str]:
    """Types of a DTensor on the axes of its own mesh."""
    return {
        axis: _of_placement(placement)
        for dim, placement in enumerate(placements)
        for axis in mesh.spanned(_meshes.along(device_mesh, dim))
    }


def parse(text: str, mesh) -> dict[str, str]:
    """ "dp=R tp=S0"; dp stands for all axes whose names begin with dp, where no axis has that name."""
    types = {}
    for word in text.split():
        axis, _, kind = word.partition("=")
        named = [axis] if axis in mesh.names else [name for name in mesh.names if axis == "dp" and name.startswith("dp")]
        if not named or not (kind in ("R", "I") or (kind[:1] == "S" and kind[1:].isdigit())):
            raise ValueError(f'types: "{word}" in "{text}" is not AXIS=R, AXIS=I or AXIS=S<dim> with an axis of the mesh {mesh}')
        types.update(dict.fromkeys(named, kind))
    return types


def last_that_fits(patterns: dict, name: str, otherwise):
    found = [value for pattern, value in patterns.items() if fnmatch.fnmatchcase(name, pattern)]
    return found[-1] if found else otherwise


def _parallel_axes(entry, mesh) -> set[str]:
    """The axes along which the forward itself is distributed: the DTensor's, less those that the wrapper sums over."""
    if not isinstance(entry.used, DTensor):
        return set()
    summed = {axis for ranks in entry.data for axis in mesh.spanned(ranks)}
    return set(_placed(mesh, entry.used.device_mesh, entry.used.placements)) - summed


def types_of(watched: list, mesh, given: dict | None, placements: dict) -> dict[str, dict[str, str]]:
    """By name. `placements`: those of the gradients that were seen, which say more than those of the parameters."""
    parallel = {axis for entry in watched for axis in _parallel_axes(entry, mesh)}
    found = {}
    for entry in watched:
        # A plain tensor beside tensors that are placed on an axis: all ranks along it use it for the same work.
        types = {axis: "I" if axis in parallel else "R" for axis in mesh.names}
        if entry.name in placements:
            types.update(_placed(mesh, *placements[entry.name]))
        elif isinstance(entry.used, DTensor):
            types.update(_placed(mesh, entry.used.device_mesh, entry.used.placements))
        for ranks in entry.data:
            types.update(dict.fromkeys(mesh.spanned(ranks), "R"))
        types.update(parse(last_that_fits(given or {}, entry.name, ""), mesh))
        found[entry.name] = types
    return found


def factors_of(watched: list, given) -> dict[str, float]:
    """By name: the caller's (a number, or numbers by pattern), else the wrapper's."""
    patterns = given if isinstance(given, dict) else {} if given is None else {"*": given}
    return {entry.name: float(last_that_fits(patterns, entry.name, entry.factor)) for entry in watched}


def cut_by_hand(watched: list, types: dict) -> list[str]:
    """Plain tensors that the caller's types call parts: PyTorch does not know of which whole."""
    return [
        entry.name
        for entry in watched
        if not isinstance(entry.used, DTensor) and any(kind[0] == "S" for kind in types[entry.name].values())
    ]


def place(types: dict[str, str], mesh, rank: int, shapes: dict[int, tuple]) -> tuple:
    """(the whole's shape, this rank's box) from the local shapes of all ranks: parts stand in order of coordinates."""
    whole, first = list(shapes[rank]), [0] * len(shapes[rank])
    for dim in range(len(whole)):
        cutting = {i for i, axis in enumerate(mesh.names) if types[axis] == f"S{dim}"}
        mine = mesh.coords[rank]
        fibre = [r for r, at in mesh.coords.items() if r in shapes and all(at[i] == mine[i] for i in range(len(at)) if i not in cutting)]
        fibre.sort(key=lambda r: mesh.coords[r])
        whole[dim] = sum(shapes[r][dim] for r in fibre)
        first[dim] = sum(shapes[r][dim] for r in fibre[: fibre.index(rank)])
    return tuple(whole), Box(tuple(first), tuple(shapes[rank]))


def text(types: dict[str, str]) -> str:
    return " ".join(f"{axis}={kind}" for axis, kind in types.items())


def factors_text(factors: dict[str, float]):
    """One number, or numbers by pattern where parameters differ."""
    if len(set(factors.values())) <= 1:
        return repr(next(iter(factors.values()), 1.0))
    return {literal(name): factor for name, factor in factors.items()}


def literal(name: str) -> str:
    """The pattern that this name alone fits."""
    return re.sub(r"([*?[])", r"[\1]", name)
