"""Gradients that other tools saved, as the files that `addend diff` reads (docs/dumps.md). Reading them takes PyTorch.

`megatron`: what Megatron-LM writes with --save-wgrads-interval. `sglang`: what SGLang's dumper writes."""

from __future__ import annotations

import itertools
import math
import os
import pathlib
import re
from typing import TYPE_CHECKING, Any, Dict, Iterable, Mapping, Optional, Tuple, Union

if TYPE_CHECKING:
    import torch

    from addend.torch._sample import Piece

Path = Union[str, "os.PathLike[str]"]
Coord = Tuple[int, ...]  # where a rank stands on the mesh
Tensors = Dict[str, "torch.Tensor"]  # by the parameter's name
Entry = Dict[str, Any]  # what SGLang's dumper saved of one tensor: its value, and its notes as meta


def megatron(
    folder: Path,
    out: Path,
    types: Optional[Mapping[str, str]] = None,
    reference: bool = False,
    second: Optional[str] = None,
) -> list[str]:
    """`folder`: one iteration, SAVE/wgrads/iter_0000100, with mp_rank_TT[_PPP][_EEE].pth of each model-parallel rank:
    sums only, as the optimizer gets them. They become sums on the mesh "pp ep tp", for a comparison with a reference;
    or, with reference=True, one file of whole gradients, the reference itself. `types` says which parameters are cut:
    {"*.linear_fc1.weight": "tp=S0"}. Where there is more than one stage, names begin with that of the stage, for
    Megatron numbers layers anew in each. `second`: what the second of two numbers in a file's name counts, "pp"
    (stages) or "ep" (ranks of experts): the name does not tell."""
    ranks = _megatron_ranks(pathlib.Path(folder), second)
    sizes = [1 + max(at[i] for at in ranks) for i in range(3)]
    tensors = {at: _megatron_names(chunks, at[0], sizes[0]) for at, chunks in ranks.items()}
    dump = _Dump(out, dict(zip(("pp", "ep", "tp"), sizes)), tensors, types)
    return dump.write_reference() if reference else dump.write("sum")


def sglang(
    folder: Path,
    out: Path,
    types: Optional[Mapping[str, str]] = None,
    step: Optional[int] = None,
    sums: str = "param",
    addends: str = "addend",
    expect: float = 1,
) -> list[str]:
    """`folder`: DUMPER_DIR/EXP_NAME. With DUMPER_ENABLE_MODEL_GRAD=1, dumper.dump_model(model, name_prefix=PREFIX)
    saves the gradients as they are when it is called: once behind the synchronisation (`sums` is its prefix) and,
    before it, once for each microbatch whose gradients are not added to the last one's (`addends`). Parallel ranks come
    from the dumper's own notes on Megatron; where it has none, all ranks are on one axis dp. `expect`: what the job
    multiplies sums by."""
    found = _sglang_values(pathlib.Path(folder), step)
    sizes = _sglang_mesh(found)
    written = []
    most = max((len(values) for name, values in _of_prefix(found, addends)), default=0)
    for microbatch in range(most):
        tensors = _by_place(found, addends, sizes, microbatch)
        written += _Dump(out, sizes, tensors, types, expect).write("addend", microbatch)
    return written + _Dump(out, sizes, _by_place(found, sums, sizes, -1), types, expect).write("sum")


def _load(path: pathlib.Path) -> Any:
    import torch

    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch has one kind for each way in which a file can be wrong
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise ValueError(f"{path} cannot be read as a file that torch.save wrote: {reason}") from error


def _megatron_place(numbers: list[int], second: Optional[str], path: pathlib.Path) -> tuple[int, int, int]:
    """(pp, ep, tp). The name has the stage and the experts' rank only where there are several."""
    if len(numbers) == 2 and second not in ("pp", "ep"):
        raise ValueError(
            f'{path}: the second number may be the stage or the rank of experts: say second="pp" or second="ep"'
        )
    tp, pp, ep = (*numbers, 0, 0)[:3]
    return (0, pp, tp) if len(numbers) == 2 and second == "ep" else (pp, ep, tp)


def _megatron_ranks(folder: pathlib.Path, second: Optional[str]) -> dict[Coord, dict[str, Tensors]]:
    """At (pp, ep, tp): the tensors of each chunk of the model."""
    found: dict[Coord, dict[str, Tensors]] = {}
    for path in sorted(folder.glob("mp_rank_*.pth")):
        numbers = re.fullmatch(r"mp_rank_(\d+)(?:_(\d+))?(?:_(\d+))?\.pth", path.name)
        if numbers is None:
            raise ValueError(f"{path} is not named as Megatron names a model-parallel rank's file")
        place = _megatron_place([int(number) for number in numbers.groups() if number], second, path)
        if place in found:
            raise ValueError(f"{path} is of the same rank as another file: {folder} shall be one iteration's folder")
        found[place] = _load(path)
        if not isinstance(found[place], dict) or not all(isinstance(chunk, dict) for chunk in found[place].values()):
            raise ValueError(
                f"{path} is no file of gradients: Megatron's has one dictionary of tensors for each chunk of the model"
            )
    if not found:
        raise ValueError(f"{folder} has no mp_rank_*.pth: it shall be one iteration's folder, wgrads/iter_NNNNNNN")
    return found


def _megatron_names(chunks: Mapping[str, Tensors], stage: int, stages: int) -> Tensors:
    tensors: Tensors = {}
    for chunk, values in chunks.items():
        prefix = (f"pp{stage}." if stages > 1 else "") + (f"{chunk}." if len(chunks) > 1 else "")
        tensors.update({prefix + name: value for name, value in values.items()})
    return tensors


def _sglang_entry(path: pathlib.Path) -> Entry:
    entry = _load(path)
    meta = entry.get("meta") if isinstance(entry, dict) else None
    lacking = [key for key in ("name", "step", "rank", "world_size", "dump_index") if key not in (meta or {})]
    if lacking or "value" not in entry:
        raise ValueError(f"{path} is no file of SGLang's dumper: it lacks {', '.join(lacking) or 'the value'}")
    return dict(entry)


def _sglang_values(folder: pathlib.Path, step: Optional[int]) -> list[Entry]:
    """What was saved of gradients in one step, in the order of saving."""
    found = [_sglang_entry(path) for path in sorted(folder.glob("*.pt")) if "name=grad__" in path.name]
    steps = sorted({entry["meta"]["step"] for entry in found})
    if not steps or (step is None and len(steps) > 1) or (step is not None and step not in steps):
        raise ValueError(f"{folder} has gradients (name=grad__*.pt) of the steps {steps}: one of them has to be chosen")
    kept = [entry for entry in found if entry["meta"]["step"] == (steps[0] if step is None else step)]
    return sorted(kept, key=lambda entry: entry["meta"]["dump_index"])


def _sglang_mesh(found: list[Entry]) -> dict[str, int]:
    meta = found[0]["meta"]
    noted, world = meta.get("megatron_parallel_info", {}), meta["world_size"]
    sizes = {axis: noted.get(f"{axis}_size") or 1 for axis in ("pp", "dp", "cp", "tp")}
    return sizes if math.prod(sizes.values()) == world else {"dp": world}


def _of_prefix(found: Iterable[Entry], prefix: str) -> list[tuple[tuple[int, str], list[Entry]]]:
    """((rank, parameter), its values in order) for the gradients under one prefix."""
    values: dict[tuple[int, str], list[Entry]] = {}
    for entry in found:
        start = f"grad__{prefix}__"
        if entry["meta"]["name"].startswith(start):
            values.setdefault((entry["meta"]["rank"], entry["meta"]["name"][len(start) :]), []).append(entry)
    return list(values.items())


def _by_place(found: Iterable[Entry], prefix: str, sizes: Mapping[str, int], at: int) -> dict[Coord, Tensors]:
    """The at-th value of each parameter, for every rank of the mesh."""
    tensors: dict[Coord, Tensors] = {coord: {} for coord in _positions(sizes)}
    for (_, name), entries in _of_prefix(found, prefix):
        if at >= len(entries):
            continue
        meta = entries[at]["meta"]
        noted = meta.get("megatron_parallel_info", {})
        coord = (meta["rank"],) if list(sizes) == ["dp"] else tuple(noted.get(f"{axis}_rank") or 0 for axis in sizes)
        tensors[coord][name] = entries[at]["value"].detach()
    return tensors


def _positions(sizes: Mapping[str, int]) -> Iterable[Coord]:
    return itertools.product(*map(range, sizes.values()))


class _Dump:
    """Whole tensors of all ranks on a mesh, and how they are cut."""

    def __init__(
        self,
        out: Path,
        sizes: Mapping[str, int],
        tensors: Mapping[Coord, Tensors],
        types: Optional[Mapping[str, str]],
        expect: float = 1,
    ):
        from addend.torch import _expected, _meshes, _sample

        self.out, self.tensors, self.expect = pathlib.Path(out), tensors, expect
        coords = dict(enumerate(_positions(sizes)))
        missing = [at for at in coords.values() if at not in tensors]
        if missing:
            raise ValueError(f"of the mesh {sizes} the rank at {missing[0]} has no file")
        self.mesh = _meshes.Mesh(tuple(sizes), tuple(sizes.values()), coords)
        self.names = sorted({name for values in tensors.values() for name in values})
        data = {axis: "R" if axis in ("dp", "cp") else "I" for axis in sizes}
        given = {name: _expected.last_that_fits(types or {}, name, "") for name in self.names}
        self.types = {name: {**data, **_expected.parse(given[name], self.mesh)} for name in self.names}
        self._expected, self._sample = _expected, _sample

    def _shapes(self, name: str) -> dict[int, tuple[int, ...]]:
        """By the ranks that have it."""
        coords = self.mesh.coords.items()
        return {rank: tuple(self.tensors[at][name].shape) for rank, at in coords if name in self.tensors[at]}

    def _pieces(self, rank: int) -> dict[str, Piece]:
        pieces = {}
        for name, tensor in self.tensors[self.mesh.coords[rank]].items():
            whole, box = self._expected.place(self.types[name], self.mesh, rank, self._shapes(name))
            pieces[name] = self._sample.Piece(tensor.reshape(-1), box, whole)
        return pieces

    def write(self, kind: str, microbatch: Optional[int] = None) -> list[str]:
        from addend.torch import _files

        self.out.mkdir(parents=True, exist_ok=True)
        written = []
        for rank in self.mesh.coords:
            pieces = self._pieces(rank)
            metadata = {
                "addend.version": "1",
                "addend.kind": kind,
                "addend.rank": rank,
                "addend.mesh": str(self.mesh),
                "addend.coord": self.mesh.coord_text(rank),
                "addend.expect": self.expect,
                "addend.types": {name: self._expected.text(self.types[name]) for name in pieces},
            }
            if microbatch is not None:
                metadata["addend.microbatch"] = microbatch
            path = self.out / _files.file_name(rank, kind, microbatch)
            path.write_bytes(_files.encode(pieces, metadata).whole())
            written.append(str(path))
        return written

    def write_reference(self) -> list[str]:
        from addend.torch import _files

        wholes: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}
        for rank in self.mesh.coords:
            for name, piece in self._pieces(rank).items():
                values = piece.values.reshape(piece.box.count)
                zeros = values.new_zeros(piece.whole)
                whole, filled = wholes.setdefault(name, (zeros, zeros.bool()))
                part = tuple(slice(first, first + count) for first, count in zip(piece.box.first, piece.box.count))
                if bool((filled[part] & (whole[part] != values)).any()):
                    raise ValueError(
                        f"{name}: the rank at {self.mesh.coord_text(rank)} has other values than those before it where "
                        "they shall be the same: say in `types` how it is cut, or compare the ranks first (addend diff)"
                    )
                whole[part], filled[part] = values, True
        pieces = {}
        for name, (whole, filled) in wholes.items():
            if not bool(filled.all()):
                raise ValueError(f"{name}: no rank has some of its elements: say in `types` how it is cut")
            box = self._sample.Box((0,) * whole.ndim, tuple(whole.shape))
            pieces[name] = self._sample.Piece(whole.reshape(-1), box, box.count)
        self.out.parent.mkdir(parents=True, exist_ok=True)
        self.out.write_bytes(_files.encode(pieces, {"addend.version": "1", "addend.kind": "reference"}).whole())
        return [str(self.out)]
