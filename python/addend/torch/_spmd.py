"""Reads spmd_types' annotations of plain parameters. Only this file reads the private attributes in which spmd_types
keeps them; spmd_types itself is not imported."""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Callable

import torch

from addend.torch import _gather
from addend.torch._declared import Declared

if TYPE_CHECKING:
    from addend.torch._meshes import Mesh

# spmd_types' type of a value on an axis -> the type of its gradient there. A replica (R) has a gradient in parts, an
# invariant one (I) is used for the same work everywhere, and of a value in parts (P) the gradient is whole on every
# rank. A varying one (V) without a dimension is read as if its ranks were stacked: nothing is summed.
_TYPES = {"R": "R", "I": "I", "P": "I", "V": "S0"}
_UNKNOWN = "is annotated by a release of spmd_types that addend does not read"


@dataclasses.dataclass(frozen=True)
class Annotation:
    """What spmd_types keeps of one tensor."""

    local: Mapping[Any, Any]  # its MeshAxis -> its R, I, V or P; an axis that shards the tensor is V here
    spec: Sequence[Any]  # its PartitionSpec: for each dimension None, a MeshAxis, or several, the outermost first
    ndim: int

    @property
    def is_partial(self) -> bool:
        """Whether the tensor's values are parts of a sum, so that ranks have other values than their neighbours."""
        return any(getattr(kind, "value", None) == "P" for kind in self.local.values())

    def kinds(self) -> dict[tuple[int, ...], str]:
        """What it says of each axis, by how the axis' ranks lie from the first of them: equal on ranks with the same
        annotation, whatever names their axes have."""
        found = {_offsets(axis): str(getattr(kind, "value", kind)) for axis, kind in self.local.items()}
        for dim, cuts in enumerate(map(_several, self.spec)):
            for at, axis in enumerate(cuts):
                found[_offsets(axis)] = f"S({dim})" + f" as cut {at + 1} of {len(cuts)}" * (len(cuts) > 1)
        return found

    def declared(self, mesh: Mesh) -> list[Declared]:
        """The annotation on the axes of `mesh`; nothing of axes whose other ranks are not watched. ValueError if an
        axis is no set of axes of the mesh."""
        types: dict[str, str] = {}
        words, unjudged, cutting = [], "", {axis for entry in self.spec for axis in _several(entry)}
        for axis, kind in self.local.items():
            letter = getattr(kind, "value", None)
            if letter not in _TYPES:
                raise ValueError(_UNKNOWN)
            names = _axes_of(axis, mesh)
            if names and letter in ("P", "V") and axis not in cutting:
                words.append(f"{letter} on {' '.join(names)}")
            if names and letter == "V" and not self.ndim:
                unjudged = f"varies on {' '.join(names)} (spmd_types), and a scalar has no dimension to be cut"
            else:
                types.update(dict.fromkeys(names, _TYPES[letter]))
        order = {}
        for dim, cuts in enumerate(map(_several, self.spec)):
            names = [name for axis in cuts for name in _axes_of(axis, mesh)]
            types.update(dict.fromkeys(names, f"S{dim}"))
            if names[1:]:
                order[dim] = tuple(names)
                words.append(f"S({dim}) over ({', '.join(names)})")
        if not types and not unjudged:
            return []
        return [Declared(types, "spmd_types", words=", ".join(words), order=order, unjudged=unjudged)]


def annotation(tensor: torch.Tensor) -> Annotation | None:
    """The annotation that spmd_types' assert_type() left at a tensor; None: there is none."""
    local = getattr(tensor, "_local_type", None)
    return Annotation(local, getattr(tensor, "_partition_spec", None) or (), tensor.ndim) if local else None


def leave_unchecked(functions: Iterable[Callable[..., Any]]) -> None:
    """Tells spmd_types, if the job has imported it, not to check types in these functions and in what they call: a job
    may be watched while its types are checked."""
    spmd_types: Any = sys.modules.get("spmd_types")
    if hasattr(spmd_types, "register_no_typecheck"):
        for function in functions:
            spmd_types.register_no_typecheck(function)


def _several(entry: Any) -> tuple[Any, ...]:
    """The axes in an entry of a PartitionSpec."""
    return () if entry is None else entry if isinstance(entry, tuple) else (entry,)


@functools.lru_cache(maxsize=1024)
def _offsets(axis: Any) -> tuple[int, ...]:
    """How the ranks of a MeshAxis lie from the first of them. Its name is for display alone: several axes may have one
    name, and one axis several."""
    try:
        return tuple(sorted(axis.layout.all_ranks_from_zero()))
    except AttributeError:
        raise ValueError(_UNKNOWN) from None


def _axes_of(axis: Any, mesh: Mesh) -> list[str]:
    """The axes of `mesh`, the outermost first, that a MeshAxis spans; none if its other ranks are not watched."""
    offsets, rank = _offsets(axis), _gather.group_ranks(None)[_gather.rank_in(None)]
    found = mesh.pattern(rank, offsets)
    if found is not None:
        return found
    if any(all(rank - own + other in mesh.coords for other in offsets) for own in offsets):
        apart = ", ".join(str(offset) for offset in offsets[:8]) + " ..." * (len(offsets) > 8)
        raise ValueError(
            f"is annotated on {axis} (spmd_types), whose ranks are {apart} from its first one, and no axes of the mesh "
            f"{mesh} have such ranks: give watch the job's whole mesh (mesh=...)"
        )
    return []
