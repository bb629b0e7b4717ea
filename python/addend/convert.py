"""Converts gradients that other tools saved into files for `addend diff` (audit/docs/dumps.md). Needs PyTorch.

`megatron`: the files that Megatron-LM writes with --save-wgrads-interval. `sglang`: those of SGLang's dumper."""

from __future__ import annotations

import itertools
import math
import os
import pathlib
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Union

if TYPE_CHECKING:
    import torch

    from addend.torch._sample import Piece

Path = Union[str, "os.PathLike[str]"]
Coord = tuple[int, ...]  # a rank's index on each axis of the mesh
Tensors = dict[str, "torch.Tensor"]  # the key is the parameter's name
Entry = dict[str, Any]  # a file of SGLang's dumper: a tensor under "value", a description of it under "meta"


def megatron(
    folder: Path,
    out: Path,
    types: Mapping[str, str] | None = None,
    reference: bool = False,
    second: str | None = None,
) -> list[str]:
    """Converts the gradients that Megatron-LM saved in one iteration.

    The files have summed gradients, as the optimizer gets them. With several pipeline stages, parameters' names begin
    with the stage, since Megatron numbers the layers of each stage from 0.

    Args:
        folder: the iteration's folder, SAVE/wgrads/iter_0000100, with a file mp_rank_TT[_PPP][_EEE].pth of each
            model-parallel rank.
        out: a folder for one file of sums per rank of the mesh "pp ep tp", to compare with a reference; or, with
            `reference`, the path of one file.
        types: which parameters are sharded: {"*.linear_fc1.weight": "tp=S0"}.
        reference: write one reference file with the unsharded gradients.
        second: the meaning of the second number in file names with two numbers, "pp" (pipeline stage) or "ep"
            (expert-parallel rank); the names do not say which.

    Returns:
        The paths of the files written.

    Raises:
        ValueError: a file's name or content is not as Megatron-LM writes it, or the types do not fit.

    Example:
        convert.megatron("save/wgrads/iter_0000100", "dumped", types={"*.linear_fc1.weight": "tp=S0"})
        report = addend.diff("dumped", reference="right.safetensors")
    """
    ranks = _megatron_ranks(pathlib.Path(folder), second)
    sizes = [1 + max(at[i] for at in ranks) for i in range(3)]
    tensors = {at: _megatron_names(chunks, at[0], sizes[0]) for at, chunks in ranks.items()}
    dump = _Dump(out, dict(zip(("pp", "ep", "tp"), sizes)), tensors, types)
    return dump.write_reference() if reference else dump.write("sum")


def sglang(
    folder: Path,
    out: Path,
    types: Mapping[str, str] | None = None,
    step: int | None = None,
    sums: str = "param",
    addends: str = "addend",
    expect: float = 1,
) -> list[str]:
    """Converts the gradients that SGLang's dumper saved in one step.

    With DUMPER_ENABLE_MODEL_GRAD=1, dumper.dump_model(model, name_prefix=PREFIX) saves the present gradients. The job
    calls it once after gradient synchronisation, with the prefix `sums`, and before that once for each microbatch, with
    the prefix `addends`, if microbatches' gradients are not accumulated. The mesh comes from the dumper's
    megatron_parallel_info; without that, all ranks are on one axis dp.

    Args:
        folder: DUMPER_DIR/EXP_NAME.
        out: a folder for addend's files.
        types: which parameters are sharded, as in `megatron`.
        step: the dumper's step, needed if it saved several.
        sums: the prefix of summed gradients.
        addends: the prefix of gradients before they are summed.
        expect: the factor by which the job multiplies the sum of addends, such as 1 / ranks.

    Returns:
        The paths of the files written.

    Raises:
        ValueError: a file is not as the dumper writes it, several steps are there, or the types do not fit.

    Example:
        convert.sglang("dumper/experiment", "dumped", expect=1 / 8)
        report = addend.diff("dumped")
    """
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
    except Exception as error:  # torch.load raises exceptions of many types
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise ValueError(f"{path} cannot be read as a file that torch.save wrote: {reason}") from error


def _megatron_place(numbers: list[int], second: str | None, path: pathlib.Path) -> tuple[int, int, int]:
    """(pp, ep, tp) from the numbers in a file's name, which leaves out the pp or ep number if that axis has size 1."""
    if len(numbers) == 2 and second not in ("pp", "ep"):
        raise ValueError(
            f"{path}: the second number may be the pipeline stage or the expert-parallel rank: set which of the two "
            "it is with "
            'second="pp" or second="ep"'
        )
    tp, pp, ep = (*numbers, 0, 0)[:3]
    return (0, pp, tp) if len(numbers) == 2 and second == "ep" else (pp, ep, tp)


def _megatron_ranks(folder: pathlib.Path, second: str | None) -> dict[Coord, dict[str, Tensors]]:
    """For each (pp, ep, tp), the gradients of each model chunk."""
    found: dict[Coord, dict[str, Tensors]] = {}
    for path in sorted(folder.glob("mp_rank_*.pth")):
        numbers = re.fullmatch(r"mp_rank_(\d+)(?:_(\d+))?(?:_(\d+))?\.pth", path.name)
        if numbers is None:
            raise ValueError(
                f"{path} is not named as Megatron names the file of a rank, mp_rank_NN or mp_rank_NN_NNN: leave it "
                "out of the folder"
            )
        place = _megatron_place([int(number) for number in numbers.groups() if number], second, path)
        if place in found:
            raise ValueError(
                f"{path} is of the same rank as another file of {folder}: name the folder of one iteration"
            )
        found[place] = _load(path)
        if not isinstance(found[place], dict) or not all(isinstance(chunk, dict) for chunk in found[place].values()):
            raise ValueError(
                f"{path} is no gradient file of Megatron, which has a dictionary of tensors for each chunk of the model"
            )
    if not found:
        raise ValueError(f"{folder} has no mp_rank_*.pth: it must be one iteration's folder, wgrads/iter_NNNNNNN")
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
    absent = [key for key in ("name", "step", "rank", "world_size", "dump_index") if key not in (meta or {})]
    if absent or "value" not in entry:
        raise ValueError(f"{path} is not a file of SGLang's dumper: it has no {', '.join(absent) or 'value'}")
    return dict(entry)


def _sglang_values(folder: pathlib.Path, step: int | None) -> list[Entry]:
    """The gradients that were saved in one step, in the order in which they were saved."""
    found = [_sglang_entry(path) for path in sorted(folder.glob("*.pt")) if "name=grad__" in path.name]
    steps = sorted({entry["meta"]["step"] for entry in found})
    if not steps or (step is None and len(steps) > 1) or (step is not None and step not in steps):
        raise ValueError(f"{folder} has gradients (name=grad__*.pt) of the steps {steps}: choose one with step=")
    kept = [entry for entry in found if entry["meta"]["step"] == (steps[0] if step is None else step)]
    return sorted(kept, key=lambda entry: entry["meta"]["dump_index"])


def _sglang_mesh(found: list[Entry]) -> dict[str, int]:
    meta = found[0]["meta"]
    noted, world = meta.get("megatron_parallel_info", {}), meta["world_size"]
    sizes = {axis: noted.get(f"{axis}_size") or 1 for axis in ("pp", "dp", "cp", "tp")}
    return sizes if math.prod(sizes.values()) == world else {"dp": world}


def _of_prefix(found: Iterable[Entry], prefix: str) -> list[tuple[tuple[int, str], list[Entry]]]:
    """For each (rank, parameter), its gradients saved with this prefix, in the order in which they were saved."""
    values: dict[tuple[int, str], list[Entry]] = {}
    for entry in found:
        start = f"grad__{prefix}__"
        if entry["meta"]["name"].startswith(start):
            values.setdefault((entry["meta"]["rank"], entry["meta"]["name"][len(start) :]), []).append(entry)
    return list(values.items())


def _by_place(found: Iterable[Entry], prefix: str, sizes: Mapping[str, int], at: int) -> dict[Coord, Tensors]:
    """For every rank of the mesh, the gradient number `at` of each parameter (-1: the last one)."""
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
    """The gradients of all ranks on a mesh with their types (how they are sharded), to be written as addend's files."""

    def __init__(
        self,
        out: Path,
        sizes: Mapping[str, int],
        tensors: Mapping[Coord, Tensors],
        types: Mapping[str, str] | None,
        expect: float = 1,
    ):
        from addend.torch import _declared, _expected, _meshes, _sample

        self.out, self.tensors, self.expect = pathlib.Path(out), tensors, expect
        coords = dict(enumerate(_positions(sizes)))
        missing = [at for at in coords.values() if at not in tensors]
        if missing:
            at = " ".join(f"{axis}={place}" for axis, place in zip(sizes, missing[0]))
            mesh = " ".join(f"{axis}={size}" for axis, size in sizes.items())
            raise ValueError(
                f"there is no file of the rank at {at} of the mesh {mesh}: put the files of all ranks into the "
                "folder, or correct the mesh"
            )
        self.mesh = _meshes.Mesh(tuple(sizes), tuple(sizes.values()), coords)
        self.names = sorted({name for values in tensors.values() for name in values})
        data = {axis: "R" if axis in ("dp", "cp") else "I" for axis in sizes}
        given = {name: _declared.last_that_fits(types or {}, name, "") for name in self.names}
        self.types = {name: {**data, **_declared.parse(given[name], self.mesh)} for name in self.names}
        self._expected, self._sample = _expected, _sample

    def _shapes(self, name: str) -> dict[int, tuple[int, ...]]:
        """The local shape of the parameter on each rank that has it."""
        coords = self.mesh.coords.items()
        return {rank: tuple(self.tensors[at][name].shape) for rank, at in coords if name in self.tensors[at]}

    def _pieces(self, rank: int) -> dict[str, Piece]:
        pieces = {}
        for name, tensor in self.tensors[self.mesh.coords[rank]].items():
            whole, box = self._expected.place(self.types[name], self.mesh, rank, self._shapes(name))
            pieces[name] = self._sample.Piece(tensor.reshape(-1), box, whole)
        return pieces

    def write(self, kind: str, microbatch: int | None = None) -> list[str]:
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
                        f"{name}: the rank at {self.mesh.coord_text(rank)} has other values than the ranks before it, "
                        "but by `types` they are replicas: write in `types` how the parameter is sharded, or compare "
                        "the "
                        "ranks first with addend diff"
                    )
                whole[part], filled[part] = values, True
        pieces = {}
        for name, (whole, filled) in wholes.items():
            if not bool(filled.all()):
                raise ValueError(
                    f"{name}: some of its elements are on no rank: write in `types` how the parameter is sharded"
                )
            box = self._sample.Box((0,) * whole.ndim, tuple(whole.shape))
            pieces[name] = self._sample.Piece(whole.reshape(-1), box, box.count)
        self.out.parent.mkdir(parents=True, exist_ok=True)
        self.out.write_bytes(_files.encode(pieces, {"addend.version": "1", "addend.kind": "reference"}).whole())
        return [str(self.out)]
