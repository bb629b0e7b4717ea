"""Reads the sums: the gradients that the optimizer gets after synchronisation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Callable, Optional, cast

import torch

from addend.torch import _meshes, _names
from addend.torch._loaded import is_dtensor
from addend.torch._parameters import Watched
from addend.torch._sample import Piece, Place, Sampler, as_real

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor, Partial

Taken = tuple[Piece, list[str]]  # sampled elements, and axes on which they are not summed yet
Sums = dict[str, Taken]
_VALUES = 64  # elements of a parameter that are compared between replicas; few, since each is a slow memory access
GradientOf = Callable[[torch.Tensor], Optional[torch.Tensor]]


def is_zero(gradient: torch.Tensor) -> bool:
    return not bool(_meshes.local_of(gradient).any())


def _some(names: list[str]) -> str:
    return f"{names[0]} and {len(names) - 1} more" if names[1:] else names[0]


def need_none(watched: Iterable[Watched]) -> None:
    """Raises ValueError if a parameter already has a gradient before the step."""
    partials = [entry.name for entry in watched if not all(map(is_zero, entry.partials()))]
    if partials:
        raise ValueError(
            f"{_some(partials)}: fully_shard keeps gradients of an earlier step that were never synchronised, because "
            "synchronisation was off in that step's last microbatch. zero_grad() does not clear them, so the next sum "
            "would contain them; call set_requires_gradient_sync(True) and set_requires_all_reduce(True) before the "
            "last backward of every step"
        )
    full = [entry.name for entry in watched if entry.owned.grad is not None and not is_zero(entry.owned.grad)]
    if full:
        raise ValueError(f"{_some(full)}: parameters hold gradients already: begin the watch after zero_grad()")


def _values_of(entry: Watched, sampler: Sampler, piece: Piece, mesh: _meshes.Mesh) -> torch.Tensor | None:
    if _meshes.is_held_once(entry.owned, mesh) or (entry.annotation is not None and entry.annotation.is_partial):
        return None
    local, box = _meshes.local_part(entry.owned if entry.flat is None else entry.flat.values())
    local, _, _ = as_real(local, box.count, box)
    if tuple(local.shape) != piece.box.count:  # gradient= gave one of another shape
        return None
    return sampler.plan(entry.name, piece.whole, local, piece.box).thinned(_VALUES).take(local).values


def values(watched: Iterable[Watched], sampler: Sampler, sums: Sums, mesh: _meshes.Mesh) -> dict[str, str]:
    """A checksum of a few sampled elements of each parameter's values, to compare replicas. Parameters of which no two
    ranks have the same part are left out."""
    found = {e.name: _values_of(e, sampler, sums[e.name][0], mesh) for e in watched if e.name in sums}
    taken = {name: some for name, some in found.items() if some is not None}
    return dict(zip(taken, _names.checksums([*taken.values()])))


def _partial_axes(gradient: DTensor, mesh: _meshes.Mesh) -> list[str]:
    axes: list[str] = []
    for dim, placement in enumerate(gradient.placements):
        if placement.is_partial():
            if cast("Partial", placement).reduce_op != "sum":
                raise ValueError(
                    f"a gradient has placement {placement}; of Partial placements only sums, Partial('sum'), can be "
                    "watched"
                )
            axes += mesh.spanned(_meshes.along(gradient.device_mesh, dim))
    return axes


def take_one(
    entry: Watched,
    sampler: Sampler,
    places: Mapping[str, Place],
    gradient: GradientOf | None,
    mesh: _meshes.Mesh,
) -> Taken | None:
    """The sampled sum of one parameter on this rank; None: it has no gradient."""
    if entry.flat and gradient is None:
        located = entry.flat.sum()
        return None if located is None else (sampler.take(entry.name, *located), [])
    found = entry.owned.grad if gradient is None else gradient(entry.owned)
    if found is None:
        return None
    local, box = _meshes.local_part(found)
    local = local.to_dense() if local.is_sparse else local
    axes = _partial_axes(found, mesh) if is_dtensor(found) else []
    place = (tuple(found.shape), box)
    shape, own_box = place if is_dtensor(found) else places.get(entry.name, place)  # `places` are those of `used`
    local, shape, own_box = as_real(local, shape, own_box)
    return sampler.take(entry.name, shape, local, own_box), axes


def take(watched: Sequence[Watched], take_of: Callable[[Watched], Taken | None]) -> Sums:
    """The sampled sum of each parameter on this rank, by name; parameters without a gradient are left out."""
    found = ((entry.name, take_of(entry)) for entry in watched)
    return {name: taken for name, taken in found if taken is not None}
