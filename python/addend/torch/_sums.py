"""The sums: what stands in the gradients that the optimizer gets."""
from __future__ import annotations

from torch.distributed.tensor import DTensor, Partial

from addend.torch import _meshes


def _gradients(entry):
    return [tensor.grad for tensor in {id(entry.used): entry.used, id(entry.owned): entry.owned}.values() if tensor.grad is not None]


def holds_something(entry) -> bool:
    """Whether a gradient is there that is not zero."""
    with_parts = (gradient.to_local() if isinstance(gradient, DTensor) else gradient for gradient in _gradients(entry))
    return any(bool(part.any()) for part in with_parts)


def _partial_axes(gradient, mesh) -> list[str]:
    axes = []
    for dim, placement in enumerate(gradient.placements):
        if isinstance(placement, Partial):
            if placement.reduce_op != "sum":
                raise ValueError(f"a gradient is {placement}: only sums are watched")
            axes += mesh.spanned(_meshes.along(gradient.device_mesh, dim))
    return axes


def take(watched: list, sampler, places: dict, gradient, mesh) -> dict:
    """By name: (the sample of this rank's part, the axes on which it is still a pending sum). Absent: no gradient."""
    sums = {}
    for entry in watched:
        found = entry.owned.grad if gradient is None else gradient(entry.owned)
        if found is None:
            continue
        found = found.detach()
        local, box = _meshes.local_part(found)
        local = local.to_dense() if local.is_sparse else local
        axes = _partial_axes(found, mesh) if isinstance(found, DTensor) else []
        shape, own_box = places.get(entry.name, (tuple(found.shape), box))
        sums[entry.name] = (sampler.take(entry.name, shape, local, own_box), axes)
    return sums
