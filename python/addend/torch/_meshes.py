"""The mesh of a job: named axes over the ranks that are watched; which of them a process group or a DTensor spans."""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from typing import TYPE_CHECKING, Iterable, Tuple
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from addend.torch._loaded import is_dtensor
from addend.torch._sample import Box

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor, Placement

    Placements = Tuple[Placement, ...]
    Placed = Tuple[DeviceMesh, Placements]


@dataclasses.dataclass
class Mesh:
    """Axes, row-major, over `ranks` (of the world); `coords[rank]` is where a rank stands."""

    names: tuple[str, ...]
    sizes: tuple[int, ...]
    coords: dict[int, tuple[int, ...]]

    def __str__(self) -> str:
        return " ".join(f"{name}={size}" for name, size in zip(self.names, self.sizes))

    def coord_text(self, rank: int) -> str:
        return " ".join(f"{name}={at}" for name, at in zip(self.names, self.coords[rank]))

    def between(self, ranks: list[int]) -> list[str]:
        """The axes, outer first, on which these ranks have other places."""
        if not set(ranks) <= set(self.coords):
            raise ValueError(
                f"ranks {ranks} are not all among those that are watched, {sorted(self.coords)}: give watch the job's "
                "whole mesh (mesh=...)"
            )
        coords = [self.coords[rank] for rank in ranks]
        return [name for i, name in enumerate(self.names) if len({coord[i] for coord in coords}) > 1]

    def size(self, axes: list[str]) -> int:
        return math.prod(size for name, size in zip(self.names, self.sizes) if name in axes)

    def spanned(self, ranks: list[int]) -> list[str]:
        """The axes, outer first, that these ranks lie along; ValueError where they are not all ranks along some."""
        axes = self.between(ranks)
        if self.size(axes) != len(ranks):
            raise ValueError(
                f"ranks {ranks} are no group of the mesh {self}: give watch the job's whole mesh (mesh=...)"
            )
        return axes


def _root(mesh: DeviceMesh) -> DeviceMesh:
    if hasattr(mesh, "_get_root_mesh"):
        root: DeviceMesh = mesh._get_root_mesh()
        return root
    from torch.distributed.device_mesh import _mesh_resources

    root = _mesh_resources.get_root_mesh(mesh)
    return root


def _of_device_mesh(mesh: DeviceMesh) -> Mesh:
    table = mesh.mesh
    unnamed = {1: ["dp"], 2: ["dp_replicate", "dp_shard"]}.get(table.ndim, [f"axis{i}" for i in range(table.ndim)])
    names = tuple(re.sub(r"\W", "_", name) for name in mesh.mesh_dim_names or unnamed)
    coords = {int(table[at]): at for at in itertools.product(*map(range, table.shape))}
    return Mesh(names, tuple(table.shape), coords)


def _of_pipelines(lines: Iterable[list[int]], ranks: list[int]) -> Mesh | None:
    """Equal pipelines side by side, which have all ranks: dp, pp."""
    distinct = sorted({tuple(line) for line in lines})
    if (
        sorted(rank for line in distinct for rank in line) != sorted(ranks)
        or len({len(line) for line in distinct}) != 1
    ):
        return None
    coords: dict[int, tuple[int, ...]] = {
        rank: (dp, pp) for dp, line in enumerate(distinct) for pp, rank in enumerate(line)
    }
    return Mesh(("dp", "pp"), (len(distinct), len(distinct[0])), coords)


def find(given: DeviceMesh | None, meshes: Iterable[DeviceMesh], lines: Iterable[list[int]], ranks: list[int]) -> Mesh:
    """The mesh that was given, else the root of the parameters' meshes that has all ranks, else that of the pipelines
    on these lines of ranks, else one axis dp."""
    if given is not None:
        mesh = _of_device_mesh(given)
        if set(mesh.coords) != set(ranks):
            raise ValueError(f"the mesh {mesh} does not have the {len(ranks)} ranks that are watched: {ranks}")
        return mesh
    for own in meshes:
        for candidate in (_root(own), own):
            if set(candidate.mesh.flatten().tolist()) == set(ranks):
                return _of_device_mesh(candidate)
    return _of_pipelines(lines, ranks) or Mesh(("dp",), (len(ranks),), {rank: (i,) for i, rank in enumerate(ranks)})


def along(device_mesh: DeviceMesh, dim: int) -> list[int]:
    """The ranks along one dimension of a DeviceMesh that this rank belongs to."""
    return list(dist.get_process_group_ranks(device_mesh.get_group(dim)))


# What is asked for at every parameter of every watched step: by placements and shape.
_boxes: WeakKeyDictionary[DeviceMesh, dict[tuple[object, ...], Box]] = WeakKeyDictionary()


def _box(tensor: DTensor, placements: Placements) -> Box:
    return part_box(tensor.device_mesh, placements, tuple(tensor.shape))


def part_box(mesh: DeviceMesh, placements: Placements, shape: tuple[int, ...]) -> Box:
    """Which box of a whole of this shape this rank has."""
    found, key = _boxes.setdefault(mesh, {}), (*map(type, placements), placements, shape)
    if key not in found:
        found[key] = _find_box(mesh, placements, shape)
    return found[key]


def _find_box(mesh: DeviceMesh, placements: Placements, shape: tuple[int, ...]) -> Box:
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    count, first = compute_local_shape_and_global_offset(torch.Size(shape), mesh, placements)
    return Box(tuple(first), tuple(count))


def local_part(tensor: torch.Tensor) -> tuple[torch.Tensor, Box]:
    """What this rank has of a tensor, without a graph, and which box of the whole that is."""
    if not is_dtensor(tensor):
        return tensor.detach(), Box((0,) * tensor.ndim, tuple(tensor.shape))
    with torch.no_grad():  # much cheaper than to detach the DTensor
        return tensor.to_local().detach(), _box(tensor, tensor.placements)


_ranks: WeakKeyDictionary[DeviceMesh, frozenset[int]] = WeakKeyDictionary()  # they are long in finding


def _ranks_of(mesh: DeviceMesh) -> frozenset[int]:
    if mesh not in _ranks:
        _ranks[mesh] = frozenset(mesh.mesh.flatten().tolist())
    return _ranks[mesh]


def is_held_once(tensor: torch.Tensor, mesh: Mesh) -> bool:
    """Whether it is known that no two ranks of the mesh have the same part."""
    if not is_dtensor(tensor) or not all(placement.is_shard() for placement in tensor.placements):
        return False
    return mesh.coords.keys() <= _ranks_of(tensor.device_mesh)


def addend_placements(gradient: DTensor, used: torch.Tensor) -> Placements:
    """Where the parameter is whole and a backward gave a part of its gradient, that is an addend, zero elsewhere."""
    if not is_dtensor(used) or used.device_mesh != gradient.device_mesh:
        return tuple(gradient.placements)
    from torch.distributed.tensor import Partial

    return tuple(
        Partial() if has.is_shard() and whole.is_replicate() else has
        for has, whole in zip(gradient.placements, used.placements)
    )


def placed(gradient: DTensor, placements: Placements) -> tuple[torch.Tensor, Box]:
    """local_part() of a gradient that is brought to `placements` of addend_placements(), without communication."""
    local, box = local_part(gradient)
    if placements == tuple(gradient.placements):
        return local, box
    wide = _box(gradient, placements)
    out = local.new_zeros(wide.count)
    out[tuple(slice(at - first, at - first + n) for at, first, n in zip(box.first, wide.first, box.count))] = local
    return out, wide
