"""Types of layouts in the notation of spmd_types, and back: R, I, V, P and S(d) mean the same in both."""

from __future__ import annotations

import importlib
import math
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Union

from addend._errors import InvalidError
from addend._layout import Layout, Mesh

if TYPE_CHECKING:
    import torch
    from torch.distributed.device_mesh import DeviceMesh

    AnyMesh = Union[Mesh, DeviceMesh]

_Words = dict[str, str]  # the type on each axis, as layouts write it; of axes that shard one dimension, the outer first
_SHARD = re.compile(r"S([0-9])")


def to_spmd(layout: Layout | str, mesh: AnyMesh | None = None) -> dict[Any, Any]:
    """Converts a layout to a dictionary of spmd_types' types.

    `spmd_types.assert_type` takes the dictionary, unless two axes shard one dimension. Then it takes those of the types
    that shard nothing, and `partition_spec`, which says the order of the axes.

    Args:
        layout: a `Layout`, or a text such as "dp=R tp=S1".
        mesh: the job's DeviceMesh. None, or a `Mesh`: the keys are names of axes.

    Returns:
        The type on each axis, such as {"dp": R, "tp": S(1)}. With a DeviceMesh the keys are its process groups. Axes
        that shard one dimension are in order, the outermost first.

    Raises:
        InvalidError: the layout names an axis that the mesh does not have, or has a type that spmd_types does not
            have, as the zigzag S0z.
        ImportError: spmd_types is not installed.

    Example:
        types = addend.types.to_spmd("dp=R tp=S1", device_mesh)
        spmd_types.assert_type(weight, types)
    """
    spmd = _spmd()
    return {_key(axis, mesh): _spmd_type(spmd, axis, kind) for axis, kind in _words(layout, mesh).items()}


def partition_spec(layout: Layout | str, ndim: int, mesh: AnyMesh | None = None) -> Any:
    """Converts what a layout shards to a PartitionSpec of spmd_types.

    Args:
        layout: as in `to_spmd`.
        ndim: the number of dimensions of the value.
        mesh: as in `to_spmd`.

    Returns:
        The PartitionSpec: for each dimension None, the axis that shards it, or a tuple of them, the outermost first.

    Raises:
        InvalidError: the layout shards a dimension that the value does not have, and what `to_spmd` raises.
        ImportError: spmd_types is not installed.

    Example:
        addend.types.partition_spec("dp=S0 tp=S0", 2)  # PartitionSpec(('dp', 'tp'), None)
    """
    spmd = _spmd()
    axes: list[list[Any]] = [[] for _ in range(ndim)]
    for axis, kind in _words(layout, mesh).items():
        found = _spmd_type(spmd, axis, kind)
        if isinstance(found, spmd.Shard):
            if found.dim >= ndim:
                raise InvalidError(f"{axis}={kind} shards dimension {found.dim} of a value that has {ndim} dimensions")
            axes[found.dim].append(_key(axis, mesh))
    return spmd.PartitionSpec(*(tuple(some) if len(some) > 1 else some[0] if some else None for some in axes))


def from_spmd(types: Any, mesh: AnyMesh) -> Layout:
    """Converts types of spmd_types to a layout.

    Args:
        types: a tensor that spmd_types' `assert_type` annotated, an `SpmdType`, or a dictionary as `to_spmd` makes it.
            Its keys are names of axes or, with a DeviceMesh, also process groups and MeshAxis objects. Several axes of
            the mesh may be one key, as in a flattened mesh; the slower of them is then the outer one.
        mesh: the job's DeviceMesh, or a `Mesh`. Axes are found by their ranks, not by the names that spmd_types shows.

    Returns:
        The layout. V on an axis that the tensor's PartitionSpec names is S there. An axis of size 1, which spmd_types
        drops, is R.

    Raises:
        InvalidError: an axis of the mesh has no type, or two; or a key is no axis of the mesh.
        ImportError: spmd_types is not installed.

    Example:
        layout = addend.types.from_spmd(model.norm.weight, device_mesh)
        print(layout.dual)
    """
    spmd = _spmd()
    local, spec = _parts(spmd, types)
    words: _Words = {}
    for dim, entry in enumerate(spec):
        for key in entry if isinstance(entry, tuple) else [entry] * (entry is not None):
            _add(words, _axes_of(spmd, key, mesh), f"S{dim}")
    for key, kind in local.items():
        axes = [axis for axis in _axes_of(spmd, key, mesh) if kind is not spmd.V or axis not in words]
        _add(words, axes, _word(spmd, axes, kind))
    return Layout(_plain(mesh), " ".join(f"{axis}={kind}" for axis, kind in words.items()))


def annotate(model: torch.nn.Module, types: Mapping[str, str], mesh: DeviceMesh) -> None:
    """Annotates a model's parameters by spmd_types' `assert_type`.

    Call it before `fully_shard`, which reads annotations of plain parameters and makes them DTensors.

    Args:
        model: the module.
        types: patterns of parameters' names and what they are, as `addend.torch.watch` takes them: {"*": "dp=R tp=I",
            "*.wq.weight": "dp=R tp=S0"}. The last pattern that fits counts; a parameter that none fits is left as it
            is.
        mesh: the job's DeviceMesh.

    Raises:
        InvalidError: a pattern fits no parameter, a parameter that one fits is a DTensor, or its types do not fit it.
        ImportError: spmd_types is not installed.
        spmd_types.SpmdTypeError: a parameter is annotated with another type already.

    Example:
        addend.types.annotate(model, {"*": "dp=R tp=I", "*.up.weight": "dp=R tp=S0"}, device_mesh)
    """
    from addend.torch._declared import last_that_fits
    from addend.torch._loaded import is_dtensor

    spmd = _spmd()
    named = dict(model.named_parameters())
    for pattern in types:
        if not any(last_that_fits({pattern: True}, name, False) for name in named):
            raise InvalidError(f"`{pattern}` fits no parameter of the model; it has {_shown(named)}")
    for name, parameter in named.items():
        text = last_that_fits(types, name, "")
        if not text:
            continue
        if is_dtensor(parameter):
            raise InvalidError(f"`{name}` is a DTensor, whose placements are its types; annotate it before it is one")
        kept = {key: kind for key, kind in to_spmd(text, mesh).items() if not isinstance(kind, spmd.Shard)}
        spmd.assert_type(parameter, kept, partition_spec=partition_spec(text, parameter.ndim, mesh))


# -- addend's side: words "AXIS=TYPE", and axes by their names


def _words(layout: Layout | str, mesh: AnyMesh | None) -> _Words:
    """The type on each axis of the layout, by the mesh's names of axes."""
    words: _Words = {}
    for word in str(layout).split():
        axis, _, kind = word.partition("=")
        _add(words, [axis] if mesh is None else _named(axis, mesh), kind)
    return words


def _add(words: _Words, axes: Iterable[str], kind: str) -> None:
    for axis in axes:
        if words.setdefault(axis, kind) != kind:
            raise InvalidError(f"{axis} has two types, {words[axis]} and {kind}")


def _named(axis: str, mesh: AnyMesh) -> list[str]:
    """The mesh's names of an axis. As in layouts, dp is short for dp_shard; in a text it also means all dp axes."""
    names = _names(mesh)
    if axis in names:
        return [axis]
    short = {"dp": [name for name in names if name.startswith("dp")], "dp_shard": ["dp"] * ("dp" in names)}
    if not short.get(axis):
        raise InvalidError(f"{axis} is no axis of the mesh {_sizes_text(mesh)}")
    return short[axis]


def _names(mesh: AnyMesh) -> list[str]:
    if isinstance(mesh, Mesh):
        return list(mesh.axes)
    if not mesh.mesh_dim_names:
        raise InvalidError("the DeviceMesh has no names; give init_device_mesh mesh_dim_names=")
    return list(mesh.mesh_dim_names)


def _size(mesh: AnyMesh, name: str) -> int:
    return mesh.axes[name] if isinstance(mesh, Mesh) else int(mesh.size(_names(mesh).index(name)))


def _sizes_text(mesh: AnyMesh) -> str:
    return " ".join(f"{name}={_size(mesh, name)}" for name in _names(mesh))


def _plain(mesh: AnyMesh) -> Mesh:
    return mesh if isinstance(mesh, Mesh) else Mesh(_sizes_text(mesh))


def _shown(names: Iterable[str]) -> str:
    names = list(names)
    return ", ".join(names[:5]) + ", ..." * (len(names) > 5) if names else "none"


# -- the side of spmd_types: R, I, V, P, Shard, and axes by their ranks


def _spmd() -> Any:
    try:
        return importlib.import_module("spmd_types")
    except ImportError as error:
        raise ImportError(f"addend.types needs spmd_types (pip install spmd-types): {error}") from error


def _key(axis: str, mesh: AnyMesh | None) -> Any:
    return axis if mesh is None or isinstance(mesh, Mesh) else mesh.get_group(axis)


def _spmd_type(spmd: Any, axis: str, kind: str) -> Any:
    shard = _SHARD.fullmatch(kind)
    if shard:
        return spmd.Shard(int(shard[1]))
    if kind not in ("R", "I", "V", "P"):
        raise InvalidError(f"{axis}={kind} is no type of spmd_types; these are R, I, V, P, S0, S1 and so on")
    return getattr(spmd, kind)


def _word(spmd: Any, axes: list[str], kind: Any) -> str:
    if not isinstance(kind, spmd.Shard):
        return str(kind.value)
    if kind.dim < 0:
        raise InvalidError(f"{kind!r} on {', '.join(axes)} counts from the last dimension; count from the first")
    return f"S{kind.dim}"


def _parts(spmd: Any, types: Any) -> tuple[Mapping[Any, Any], Iterable[Any]]:
    """The type on each axis, and the PartitionSpec, () if there is none."""
    if isinstance(types, Mapping):
        return types, ()
    if isinstance(types, spmd.SpmdType):
        return types.local_type, types.partition_spec or ()
    local = spmd.get_local_type(types)
    if not local:
        raise InvalidError(f"spmd_types says nothing of this {type(types).__name__}: it has no annotation")
    return local, spmd.get_partition_spec(types) or ()


def _axes_of(spmd: Any, key: Any, mesh: AnyMesh) -> list[str]:
    """The mesh's axes, the slowest first, that a key of spmd_types spans: a name, a process group or a MeshAxis."""
    if isinstance(key, str):
        return _named(key, mesh)
    if isinstance(mesh, Mesh):
        raise InvalidError(f"{key!r} is no name of an axis: give the job's DeviceMesh in place of the mesh {mesh}")
    ranks = _ranks(spmd, key)
    inside = [name for name in _names(mesh) if 1 < _size(mesh, name) and _ranks(spmd, mesh.get_group(name)) <= ranks]
    if math.prod(_size(mesh, name) for name in inside) != len(ranks):
        raise InvalidError(
            f"the ranks {sorted(ranks)} of {key!r}, counted from its first, are no axes of the mesh {_sizes_text(mesh)}"
        )
    return inside


def _ranks(spmd: Any, key: Any) -> set[int]:
    """The ranks of a process group or a MeshAxis, counted from its first."""
    axis = key if isinstance(key, spmd.MeshAxis) else spmd.MeshAxis.of(key)
    return set(axis.layout.all_ranks_from_zero())
