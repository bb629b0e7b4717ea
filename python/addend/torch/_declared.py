"""What a job declares of its gradients' types: spmd_types' annotations, placements, plans of a library, wrappers and
hooks. A declaration is judged by the addends; only types= is believed without a second look."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from addend.torch._meshes import Mesh
    from addend.torch._parameters import Watched


@dataclasses.dataclass(frozen=True)
class Declared:
    """What one source says of one parameter on the axes of the watch's mesh."""

    types: Mapping[str, str]  # axis -> R, I or S<dim>; an axis that the source does not name is not in it
    by: str  # the source, as reports name it: "spmd_types", "fully_shard", "a DTensor's placements"
    where: str = ""  # file and line of the declaration, if the source knows them
    words: str = ""  # what the source says itself, if a type loses it: "V on tp", "S(0) over (dp, tp)"


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
        """For each axis that a source names, the type that counts and who says it."""
        return {axis: (kind, said) for said in self.of(name) for axis, kind in said.types.items()}


def find(watched: Iterable[Watched], mesh: Mesh) -> Declarations:
    """The declarations that can be read before the first forward."""
    found = Declarations()
    for entry in watched:
        for said in entry.declared(mesh):
            found.add(entry.name, said)
    return found


def metadata(
    declarations: Declarations, names: Iterable[str], types: Mapping[str, Mapping[str, str]]
) -> dict[str, list[dict[str, object]]]:
    """The value of `addend.declared`: by name, a row for each declaration. `counts`: whether the watch reads the sum by
    it. `types`: the types by which each parameter is read."""
    rows: dict[str, list[dict[str, object]]] = {}
    for name in names:
        for said in declarations.of(name):
            row: dict[str, object] = {
                "types": " ".join(f"{axis}={kind}" for axis, kind in said.types.items()),
                "by": said.by,
                "counts": all(types[name][axis] == kind for axis, kind in said.types.items()),
            }
            row.update({key: value for key, value in (("where", said.where), ("words", said.words)) if value})
            rows.setdefault(name, []).append(row)
    return rows
