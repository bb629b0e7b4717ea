"""The mesh of a job: named axes over the watched ranks, and the axes that a process group or a DTensor spans."""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, cast
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from addend.torch._loaded import is_dtensor
from addend.torch._sample import Box

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor, Placement, Shard

    Placements = tuple[Placement, ...]
    Placed = tuple[DeviceMesh, Placements]


@dataclasses.dataclass
class Mesh:
    """Named axes in row-major order. coords[rank]: the index of a world rank on each axis."""

    names: tuple[str, ...]
    sizes: tuple[int, ...]
    coords: dict[int, tuple[int, ...]]
    _patterns: dict[tuple[int, tuple[int, ...]], list[str] | None] = dataclasses.field(
        default_factory=dict, compare=False, repr=False
    )

    def __str__(self) -> str:
        return " ".join(f"{name}={size}" for name, size in zip(self.names, self.sizes))

    def coord_text(self, rank: int) -> str:
        return " ".join(f"{name}={at}" for name, at in zip(self.names, self.coords[rank]))

    def between(self, ranks: list[int]) -> list[str]:
        """The axes, outer first, on which these ranks have different indices."""
        if not set(ranks) <= set(self.coords):
            raise ValueError(
                f"ranks {ranks} are not all among the watched ranks {sorted(self.coords)}: give watch the job's whole "
                "mesh (mesh=...)"
            )
        coords = [self.coords[rank] for rank in ranks]
        return [name for i, name in enumerate(self.names) if len({coord[i] for coord in coords}) > 1]

    def size(self, axes: list[str]) -> int:
        return math.prod(size for name, size in zip(self.names, self.sizes) if name in axes)

    def spanned(self, ranks: list[int]) -> list[str]:
        """The axes, outer first, that these ranks span; ValueError if they are not all the ranks along these axes."""
        axes = self.between(ranks)
        if self.size(axes) != len(ranks):
            raise ValueError(
                f"ranks {ranks} are not a group of the mesh {self}: give watch the job's whole mesh (mesh=...)"
            )
        return axes

    def along(self, rank: int, axes: Sequence[str]) -> list[int]:
        """The ranks that differ from `rank` on these axes only, `rank` included, in the order of their coordinates on
        the axes, the first of which varies slowest."""
        moving = [self.names.index(axis) for axis in axes]
        mine, fixed = self.coords[rank], [i for i in range(len(self.names)) if i not in moving]
        fibre = [other for other, at in self.coords.items() if all(at[i] == mine[i] for i in fixed)]
        return sorted(fibre, key=lambda other: [self.coords[other][i] for i in moving])

    def pattern(self, rank: int, offsets: tuple[int, ...]) -> list[str] | None:
        """The axes of which the ranks along them, through `rank`, are so far (ascending) from the lowest of them; the
        axis whose ranks are the furthest from each other first. None: there are no such axes."""
        if (rank, offsets) not in self._patterns:
            self._patterns[rank, offsets] = self._find_pattern(rank, offsets)
        return self._patterns[rank, offsets]

    def _find_pattern(self, rank: int, offsets: tuple[int, ...]) -> list[str] | None:
        large = [name for name, size in zip(self.names, self.sizes) if size > 1]
        for count in range(1, len(large) + 1):
            for axes in itertools.combinations(large, count):
                if self.size([*axes]) != len(offsets):
                    continue
                ranks = sorted(self.along(rank, axes))
                if [other - ranks[0] for other in ranks] == [*offsets]:
                    return sorted(axes, key=lambda axis: self._distance(rank, axis), reverse=True)
        return None

    def _distance(self, rank: int, axis: str) -> int:
        """How far neighbours on an axis are from each other."""
        first, second = self.along(rank, [axis])[:2]
        return abs(second - first)


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
    """The mesh (dp, pp) of pipelines of equal length that together have all ranks; None if they have not."""
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


def need_device_mesh(mesh: object) -> None:
    """Raises TypeError unless the argument mesh= is a DeviceMesh or None."""
    if mesh is not None and not isinstance(mesh, DeviceMesh):
        raise TypeError(
            f"mesh={mesh!r} is a {type(mesh).__name__}, and a DeviceMesh of PyTorch is needed, such as "
            'torch.distributed.device_mesh.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))'
        )


def _of_placement(placement: Placement) -> str:
    if placement.is_replicate():
        return "I"  # all ranks along this axis did the same work
    if placement.is_partial():
        return "R"
    shard = cast("Shard", placement)
    return f"S{shard.dim}"  # also of a _StridedShard, which is not always a subclass of Shard


def types_of(mesh: Mesh, placed: Placed) -> dict[str, str]:
    """The types that a DTensor's placements mean, on the axes of the DTensor's device mesh."""
    device_mesh, placements = placed
    return {
        axis: _of_placement(placement)
        for dim, placement in enumerate(placements)
        for axis in mesh.spanned(along(device_mesh, dim))
    }


def find(given: DeviceMesh | None, meshes: Iterable[DeviceMesh], lines: Iterable[list[int]], ranks: list[int]) -> Mesh:
    """The job's mesh: the given one; else a parameter's mesh, or its root mesh, that has all ranks, preferably one with
    axes for all dimensions of the parameters' meshes; else (dp, pp) from the pipelines, whose ranks `lines` has; else
    one axis dp."""
    if given is not None:
        mesh = _of_device_mesh(given)
        if set(mesh.coords) != set(ranks):
            raise ValueError(f"the mesh {mesh} does not have the {len(ranks)} ranks that are watched: {ranks}")
        return mesh
    every = list(dict.fromkeys(meshes))
    whole = [mesh for own in every for mesh in (_root(own), own) if _ranks_of(mesh) == set(ranks)]
    if whole:
        found = [_of_device_mesh(mesh) for mesh in dict.fromkeys(whole)]
        return next((mesh for mesh in found if _has_all(mesh, every)), found[0])
    return _of_pipelines(lines, ranks) or Mesh(("dp",), (len(ranks),), {rank: (i,) for i, rank in enumerate(ranks)})


def _has_all(mesh: Mesh, device_meshes: Iterable[DeviceMesh]) -> bool:
    """Whether each dimension of these meshes is a set of axes of `mesh`."""
    for device_mesh in device_meshes:
        for ranks in (along(device_mesh, dim) for dim in range(device_mesh.ndim)):
            if not mesh.coords.keys() >= set(ranks) or mesh.size(mesh.between(ranks)) != len(ranks):
                return False
    return True


def along(device_mesh: DeviceMesh, dim: int) -> list[int]:
    """The ranks of this rank's group along one dimension of a DeviceMesh."""
    return list(dist.get_process_group_ranks(device_mesh.get_group(dim)))


# A cache of boxes for each mesh, by placements and shape, since each watched step needs the box of each parameter.
_boxes: WeakKeyDictionary[DeviceMesh, dict[tuple[object, ...], Box]] = WeakKeyDictionary()


def _box(tensor: DTensor, placements: Placements) -> Box:
    return part_box(tensor.device_mesh, placements, tuple(tensor.shape))


def part_box(mesh: DeviceMesh, placements: Placements, shape: tuple[int, ...]) -> Box:
    """The box that this rank has of a tensor with the global shape `shape`."""
    found, key = _boxes.setdefault(mesh, {}), (*map(type, placements), placements, shape)
    if key not in found:
        found[key] = _find_box(mesh, placements, shape)
    return found[key]


def _find_box(mesh: DeviceMesh, placements: Placements, shape: tuple[int, ...]) -> Box:
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    count, first = compute_local_shape_and_global_offset(torch.Size(shape), mesh, placements)
    return Box(tuple(first), tuple(count))


def local_part(tensor: torch.Tensor) -> tuple[torch.Tensor, Box]:
    """This rank's part of a tensor, detached, and the box that it is of the global tensor."""
    if not is_dtensor(tensor):
        return tensor.detach(), Box((0,) * tensor.ndim, tuple(tensor.shape))
    return local_of(tensor), _box(tensor, tensor.placements)


def local_of(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's local tensor, detached. A vocabulary-parallel embedding returns a DTensor whose placement has a mask
    of the rows that are other ranks'; these are zero here. `detach()` of such a DTensor would sum it and clear the
    mask, which the job still needs, so only the local tensor is detached."""
    if not is_dtensor(tensor):
        return tensor.detach()
    with torch.no_grad():  # much faster than detaching the DTensor
        local = tensor.to_local().detach()
        for mask in (getattr(placement, "mask_buffer", None) for placement in tensor.placements):
            if mask is not None and mask.data is not None:
                local = local.clone()
                mask.apply_mask(local)
        return local


_ranks: WeakKeyDictionary[DeviceMesh, frozenset[int]] = WeakKeyDictionary()  # a cache


def _ranks_of(mesh: DeviceMesh) -> frozenset[int]:
    if mesh not in _ranks:
        _ranks[mesh] = frozenset(mesh.mesh.flatten().tolist())
    return _ranks[mesh]


def is_held_once(tensor: torch.Tensor, mesh: Mesh) -> bool:
    """Whether the tensor is sharded so that no two ranks of the mesh have the same part."""
    if not is_dtensor(tensor) or not all(placement.is_shard() for placement in tensor.placements):
        return False
    return mesh.coords.keys() <= _ranks_of(tensor.device_mesh)


def addend_placements(gradient: DTensor, used: torch.Tensor) -> Placements:
    """The placements of a gradient as an addend. If the parameter is replicated and backward gave a shard of the
    gradient, the shard is an addend that is zero elsewhere: Partial."""
    if not is_dtensor(used) or used.device_mesh != gradient.device_mesh:
        return tuple(gradient.placements)
    from torch.distributed.tensor import Partial

    return tuple(
        Partial() if has.is_shard() and whole.is_replicate() else has
        for has, whole in zip(gradient.placements, used.placements)
    )


def placed(gradient: DTensor, placements: Placements) -> tuple[torch.Tensor, Box]:
    """local_part() of a gradient after conversion to the placements of addend_placements(), without communication."""
    local, box = local_part(gradient)
    if placements == tuple(gradient.placements):
        return local, box
    wide = _box(gradient, placements)
    out = local.new_zeros(wide.count)
    out[tuple(slice(at - first, at - first + n) for at, first, n in zip(box.first, wide.first, box.count))] = local
    return out, wide
