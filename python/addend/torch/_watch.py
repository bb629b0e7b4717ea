"""`watch`, `dump` and `assert_summed`: one step of a job, from its first forward to its synchronised gradients."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import tempfile
from types import TracebackType
from typing import (
    TYPE_CHECKING,
    Callable,
    Collection,
    Iterator,
    List,
    Mapping,
    Optional,
    Sequence,
    TypedDict,
    Union,
    cast,
)

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

import addend
from addend.torch import _addends, _expected, _files, _gather, _meshes, _names, _parameters, _pipeline, _sample, _sums
from addend.torch._gather import Group
from addend.torch._loaded import is_dtensor

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

Number = Union[float, torch.Tensor]
Norm = Union[Number, Callable[[], Number]]


class Arguments(TypedDict, total=False):
    """What a watch, a dump and a test are told of the job; `watch` says what each means."""

    norm: Optional[Norm]
    divisor: Optional[Number]
    expect: Union[float, Mapping[str, float], None]
    types: Optional[Mapping[str, str]]
    mesh: Optional[DeviceMesh]
    sample: Optional[int]
    group: Group
    gradient: Optional[_sums.GradientOf]
    reduce: Optional[torch.dtype]
    tied: _names.Tied
    unused: Sequence[str]


class Judging(Arguments, total=False):
    """What a test is told beside that; `watch` says what it means."""

    allow_identical: bool


_running: List[_Step] = []  # the watch whose hooks are on parameters


class _Step:
    """What both contexts do. Everything that a rank refuses is refused on all of them, with one message."""

    def __init__(
        self,
        model: nn.Module,
        norm: Norm | None = None,
        divisor: Number | None = None,
        expect: float | Mapping[str, float] | None = None,
        types: Mapping[str, str] | None = None,
        mesh: DeviceMesh | None = None,
        sample: int | None = 4096,
        group: Group = None,
        gradient: _sums.GradientOf | None = None,
        reduce: torch.dtype | None = None,
        tied: _names.Tied = None,
        unused: Sequence[str] = (),
    ):
        self._model, self._norm, self._divisor, self._group = model, norm, divisor, group
        self._expect, self._types, self._given_mesh = expect, types, mesh
        self._gradient, self._reduce = gradient, reduce
        self._sampler = _sample.Sampler(sample)
        self._divisors: dict[int, float] = {}
        self._tied, self._meant_unused, self._group_is_own = tied, unused, False
        self._pipeline = _pipeline.Observer()
        self._attached: _addends.Addends | None = None

    @property
    def _addends(self) -> _addends.Addends:
        if self._attached is None:
            raise RuntimeError("no step is being watched yet: this belongs inside the with")
        return self._attached

    def divisor(self, count: Number) -> None:
        """What this rank divides the loss of the microbatch by whose backward comes next."""
        self._divisors[self._addends.microbatch] = float(count)

    def norm(self, value: Number) -> None:
        """The global norm of the gradients as the job computed it, before clipping."""
        self._norm = value

    def __enter__(self) -> Self:
        if _running:
            raise RuntimeError("a step is being watched already: leave that watch first")
        _running.append(self)
        try:
            stages = _pipeline.find(self._model)
            if self._group is None and self._given_mesh is None and not stages:
                self._group = _parameters.own_group(self._model)
                self._group_is_own = self._group is not None
            with self._agreed():
                self._watched = _parameters.find(self._model)
            self._lines, self._ties = _names.settle(self._watched, stages, self._tied, self._group)
            self._doubt_own_group()
            with self._agreed():
                self._prepare()
            self._find_places()
            self._attached = _addends.Addends(self._watched, self._sampler, self._places)
            self._attached.attach()
            self._pipeline.attach(self._attached)
        except BaseException:
            self._leave()
            raise
        return self

    def _doubt_ties(self, sums: _sums.Sums) -> None:
        """Parameters that were taken for one because their values are equal, and have other gradients, may be two."""
        if self._tied is not None or not self._ties:
            return
        firsts = {names[0]: names for names in self._ties}
        mine = {name: (sums[name][0].box, _names.checksum(sums[name][0].values)) for name in firsts if name in sums}
        everyones = _gather.everyones(mine, self._group)
        for entry in self._watched:
            told = [of_rank[entry.name] for of_rank in everyones if entry.name in of_rank]
            if entry.name in firsts and len({box for box, _ in told}) < len(set(told)):
                both = ", ".join(f'"{name}"' for name in firsts[entry.name])
                entry.unjudged = (
                    f"{both} have equal values and other gradients: if they are tied, the sum over both was left out; "
                    f"tied=[({both})] says that they are, tied=() that none is"
                )

    def _doubt_own_group(self) -> None:
        """DDP that sums over some of the job's ranks: whether the others train the same model nobody has said."""
        ranks, world = _gather.group_ranks(self._group), len(_gather.group_ranks(None))
        if not self._group_is_own or len(ranks) == world:
            return
        for entry in self._watched:
            entry.unjudged = entry.unjudged or (
                f"{len(ranks)} of {world} ranks are summed, those of DDP's process_group; if the others train this "
                "model too, their addends are missing: mesh= of all ranks tells, group= says that these are all"
            )

    def _leave(self) -> None:
        if self._attached is not None:
            self._attached.remove()
            self._pipeline.remove()
        _running.clear()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave()
        if error is None:
            with torch.no_grad():
                self._finish()

    @contextlib.contextmanager
    def _agreed(self) -> Iterator[None]:
        """A ValueError of one rank becomes one on all of them, so that none waits for the others."""
        said = None
        try:
            yield
        except ValueError as error:
            said = str(error)
        found = [text for text in _gather.everyones(said, self._group) if text]
        if found:
            raise ValueError(found[0])

    def _prepare(self) -> None:
        ranks = _gather.group_ranks(self._group)
        meshes = [entry.owned.device_mesh for entry in self._watched if is_dtensor(entry.owned)]
        meshes += [entry.part[0] for entry in self._watched if entry.part]
        self._mesh = _meshes.find(self._given_mesh, meshes, self._lines, ranks)
        self._rank = ranks[_gather.rank_in(self._group)]
        self._factors = _expected.factors_of(self._watched, self._expect)
        self._find_types({})
        _sums.need_none(self._watched)

    def _find_types(self, placements: Mapping[str, _meshes.Placed]) -> None:
        self._kinds = _expected.types_of(self._watched, self._mesh, self._types, placements)

    def _find_places(self) -> None:
        """Of plain tensors that the caller calls parts; ranks tell each other their shapes."""
        cut = _expected.cut_by_hand(self._watched, self._kinds)
        self._places: dict[str, _sample.Place] = {
            entry.name: (entry.part[2], _meshes.part_box(*entry.part)) for entry in self._watched if entry.part
        }
        if not cut:
            return
        mine = {entry.name: tuple(entry.used.shape) for entry in self._watched if entry.name in cut}
        everyones = dict(zip(_gather.group_ranks(self._group), _gather.everyones(mine, self._group)))
        for name in cut:
            shapes = {rank: shapes[name] for rank, shapes in everyones.items()}
            self._places[name] = _expected.place(self._kinds[name], self._mesh, self._rank, shapes)

    def _finish(self) -> None:
        sums: _sums.Sums = {}
        with self._agreed():
            if self._addends.errors:
                raise ValueError(self._addends.errors[0])
            self._find_types(self._addends.placements)
            self._divide_by_schedules()
            self._find_lost_microbatches()
            sums = _sums.take(self._watched, self._sampler, self._places, self._gradient, self._mesh)
        self._unify(sums)
        self._doubt_ties(sums)
        self._deliver(sums)

    def _divide_by_schedules(self) -> None:
        """A pipeline's schedule says while it runs what it divides by."""
        for entry in self._watched:
            if entry.stage is not None:
                entry.factor /= self._pipeline.divided.get(id(entry.stage.module), 1)
        self._factors = _expected.factors_of(self._watched, self._expect)

    def _find_lost_microbatches(self) -> None:
        """A stage runs all microbatches of its schedule; a gradient of some of them only may have been lost."""
        for entry in self._watched:
            has = sum(entry.name in pieces for pieces in self._addends.taken.values())
            if entry.stage is not None and 0 < has < self._pipeline.run_by(entry.stage):
                if not _expected.is_meant(entry.name, self._meant_unused):
                    entry.unjudged = (
                        f"it has a gradient in {has} of its stage's microbatches only: lost in the others, or not used "
                        "there (unused=...)"
                    )

    def _deliver(self, sums: _sums.Sums) -> None:
        raise NotImplementedError

    def _unify(self, sums: _sums.Sums) -> None:
        """Types that a rank saw hold for those that did not use the parameter; microbatches are numbered alike."""
        seen = {name: self._kinds[name] for name in self._addends.placements}
        used = set(sums).union(*self._addends.taken.values())
        names = [entry.name for entry in self._watched]
        told = (seen, sorted(self._addends.taken), used, names, self._addends.changed())
        everyones = _gather.everyones(told, self._group)
        self._hooked = set().union(*(changed for _, _, _, _, changed in everyones))
        for kinds, _, _, _, _ in everyones:
            self._kinds.update((name, kind) for name, kind in kinds.items() if name in self._kinds)
        self._numbers = sorted({number for _, numbers, _, _, _ in everyones for number in numbers})
        used = {name for _, _, of_rank, _, _ in everyones for name in of_rank}
        self._unused = [name for name in _unique(everyones, 3) if name not in used]
        self._lost = {**_expected.lost(self._unused, used, self._meant_unused)}

    def _metadata(self, kind: str) -> dict[str, object]:
        kept = [entry for entry in self._watched if entry.name not in self._unused]
        unjudged = {**self._lost, **{entry.name: entry.unjudged for entry in kept if entry.unjudged}}
        metadata: dict[str, object] = {
            "addend.version": "1",
            "addend.kind": kind,
            "addend.rank": _gather.rank_in(self._group),
            "addend.mesh": str(self._mesh),
            "addend.coord": self._mesh.coord_text(self._rank),
            "addend.types": {entry.name: _expected.text(self._kinds[entry.name]) for entry in kept},
            "addend.expect": _expected.factors_text({entry.name: self._factors[entry.name] for entry in kept}),
        }
        if unjudged:
            metadata["addend.unjudged"] = unjudged
        if self._sampler.count is not None:
            metadata["addend.sample"] = self._sampler.count
        return metadata

    def _addend_file(self, at: int, behind: bool = False) -> bytes:
        number = self._numbers[at]
        pieces = dict(self._addends.taken.get(number, {}))
        if behind:
            pieces.update(self._addends.behind.get(number, {}))
        metadata = {**self._metadata("addend"), "addend.microbatch": at}
        divisor = self._divisors.get(number, self._divisor)
        if divisor is not None:
            metadata["addend.divisor"] = float(divisor)
        if number in self._addends.inside:
            metadata["addend.inside"] = self._addends.inside[number]
        return _files.encode(pieces, metadata)

    def _sum_file(self, sums: _sums.Sums) -> bytes:
        metadata = self._metadata("sum")
        norm = self._norm() if callable(self._norm) else self._norm
        if norm is not None:
            metadata["addend.norm"] = float(norm.full_tensor() if is_dtensor(norm) else norm)
        partial = {name: " ".join(axes) for name, (_, axes) in sums.items() if axes}
        if partial:
            metadata["addend.partial"] = partial
        dtypes = {entry.name: self._reduce or entry.reduce for entry in self._watched}
        reduce = {_expected.literal(name): _files.dtype_name(dtype) for name, dtype in dtypes.items() if dtype}
        if reduce:
            metadata["addend.reduce"] = reduce
        metadata["addend.values"] = _sums.values(self._watched, self._sampler, sums)
        return _files.encode({name: piece for name, (piece, _) in sums.items()}, metadata)

    def _collect(self, folder: str, sums: _sums.Sums) -> None:
        """All ranks' files, written into the folder by the first rank."""
        for at in range(len(self._numbers)):
            self._send(folder, self._addend_file(at), "addend", at)
        self._send(folder, self._sum_file(sums), "sum")

    def _send(self, folder: str, data: bytes, kind: str, microbatch: int | None = None) -> None:
        def write(rank: int, part: bytes) -> None:
            with open(os.path.join(folder, _files.file_name(rank, kind, microbatch)), "ab") as file:
                file.write(part)

        _gather.to_first(data, self._group, write)


class watch(_Step):
    """Looks at one step of a job and says how often each rank's addend was counted in the gradients.

        with addend.torch.watch(model) as w:
            for batch in microbatches:
                loss(model, batch).backward()
        optimizer.step()

    The context begins after zero_grad() and ends once gradients are synchronised, before clipping and optimizer.step().
    All ranks of the job enter and leave it. `w.report` is the same addend.DiffReport on all of them; the first one
    prints it.

    norm: the global norm that the job reported, a function that gives it at the end, or w.norm(x) inside
    divisor: what this rank divides each microbatch's loss by, or w.divisor(n) before each backward
    expect: what the sum of the addends is multiplied by (a number, or {pattern: number}); else the wrapper's: one over
        the data ranks for DDP and fully_shard, 1 without a wrapper
    types: {pattern: "dp=R tp=S0"}: what ranks' gradients are to each other, where neither wrapper nor placement says it
    mesh: the job's DeviceMesh; else that of the model's DTensors, else all ranks on one axis "dp"
    sample: how many elements of each parameter are looked at; None: all
    raises: addend.GradientError on all ranks where something does not hold or cannot be told
    group: the process group of the ranks that are watched; else all
    gradient: gives the gradient of a parameter at the end, where that is not parameter.grad
    reduce: the dtype in which the job sums, where that is narrower than its gradients (a compressing comm hook)
    tied: sets of names that are one parameter, on ranks of a pipeline that have one of them each; else those that have
        equal values; (): none are
    unused: patterns of names that may be without gradient on all ranks; else what only others that are alike have a
        gradient of, is not judged
    allow_identical: ranks' gradients, or those of microbatches, are meant to be the same; else those that are the same
        before any sum hide what was counted of them, and `report.ok` is None
    """

    def __init__(
        self,
        model: nn.Module,
        norm: Norm | None = None,
        divisor: Number | None = None,
        expect: float | Mapping[str, float] | None = None,
        types: Mapping[str, str] | None = None,
        mesh: DeviceMesh | None = None,
        sample: int | None = 4096,
        raises: bool = False,
        group: Group = None,
        gradient: _sums.GradientOf | None = None,
        reduce: torch.dtype | None = None,
        allow_identical: bool = False,
        tied: _names.Tied = None,
        unused: Sequence[str] = (),
    ):
        super().__init__(model, norm, divisor, expect, types, mesh, sample, group, gradient, reduce, tied, unused)
        self._raises, self._quiet, self._allow_identical = raises, False, allow_identical
        self._report: addend.DiffReport | None = None

    @property
    def report(self) -> addend.DiffReport:
        """What the watched step's gradients hold."""
        if self._report is None:
            raise RuntimeError("there is no report yet: it is made when the with ends")
        return self._report

    def _finish(self) -> None:
        super()._finish()
        if self._raises and not self.report.ok:
            raise addend.GradientError(self.report)

    def _notes(self, report: addend.DiffReport) -> list[str]:
        """What is said beside the judgement of the files."""
        notes = []
        idle = [name for name in self._unused if name not in self._lost]
        if idle:
            some = f"{', '.join(idle[:3])}{' ...' if len(idle) > 3 else ''}"
            notes.append(f"no rank used {some}: no gradient, and none expected")
        for first, *others in self._ties:
            notes.append(f"`{first}` stands for {', '.join(f'`{name}`' for name in others)} too: they are tied")
        notes += _expected.smaller_groups(self._watched, self._mesh)
        return notes + _expected.unsaid(self._watched, self._mesh, self._types, self._expect, report)

    def _deliver(self, sums: _sums.Sums) -> None:
        with tempfile.TemporaryDirectory(prefix="addend-") as folder:
            self._collect(folder, sums)
            behind = os.path.join(folder, "behind")
            if self._hooked:
                os.mkdir(behind)
                for at in range(len(self._numbers)):
                    self._send(behind, self._addend_file(at, behind=True), "addend", at)
            judging = _Judging(folder, behind, self._hooked, self._allow_identical)
            answer = _gather.from_first(lambda: _judge(judging, self._notes), self._group)
        if isinstance(answer, Exception):
            raise answer
        self._report = answer
        if _gather.rank_in(self._group) == 0 and not self._quiet:
            print(answer, flush=True)


def _unique(everyones: Sequence[Sequence[object]], at: int) -> list[str]:
    """Each name once, in the order of ranks."""
    return list(dict.fromkeys(name for told in everyones for name in cast("list[str]", told[at])))


@dataclasses.dataclass
class _Judging:
    """What was written of a step."""

    folder: str
    behind: str  # the same addends as hooks of the job left them
    hooked: Collection[str]  # names of those that they changed
    allow_identical: bool

    def diff(self) -> addend.DiffReport:
        files = [os.path.join(self.folder, name) for name in sorted(os.listdir(self.folder)) if _files.is_ours(name)]
        return addend.diff(files, allow_identical=self.allow_identical)

    def behind_hooks(self, first: addend.DiffReport) -> tuple[addend.DiffReport, list[str]]:
        """What addends do not explain may be a sum of what hooks made of them. The report, and what is to be said."""
        names = [param.name for param in first.params if param.kind == "unexplained" and param.name in self.hooked]
        if not names:
            return first, []
        for file in os.listdir(self.behind):
            _files.replace(os.path.join(self.folder, file), os.path.join(self.behind, file), names)
        second = self.diff()
        more = f" and {len(names) - 1} more" if names[1:] else ""
        told = f"`{names[0]}`{more}: a hook changed it after its addend was seen"
        if all(second[name].ok for name in names):
            return second, [f"{told}; what the hook gave is counted once"]
        return first, [f"{told}, and what the hook gave is not what was summed either"]


def _judge(judging: _Judging, notes_on: Callable[[addend.DiffReport], list[str]]) -> addend.DiffReport | Exception:
    try:
        report, notes = judging.behind_hooks(judging.diff())
    except Exception as error:  # it has to reach the other ranks, which wait for the report
        return error
    notes = notes_on(report) + notes
    if not notes:
        return report
    lines = "\n".join(notes)
    return dataclasses.replace(report, messages=(*report.messages, *notes), table=f"{report.table}\n{lines}")


class dump(_Step):
    """Writes what a `watch` looks at, into files for `addend diff`, and judges nothing: no report, nothing printed.

        with addend.torch.dump(model, "dumped"):
            for batch in microbatches:
                loss(model, batch).backward()
        optimizer.step()

    and then, on the first rank's machine, `addend diff dumped` or addend.diff("dumped"); with `--reference FILE` the
    sums are held against whole gradients of another run too.

    The context begins and ends where that of `watch` does, on all ranks. As it ends they send what they have to the
    first one, which writes for each rank

        rank00000.addend.m0.safetensors     the gradients of its first microbatch, before any sum; m1: of the second ...
        rank00000.sum.safetensors           those that its optimizer gets

    in the format of docs/dumps.md.

    folder: where they are written, on the first rank's machine; it is made if it is not there, and files of an earlier
        dump in it are removed
    norm, divisor, expect, types, mesh, sample, group, gradient, reduce, tied, unused; .norm(x) and .divisor(n) inside:
        as of `watch`; `addend diff` finds in the files what was said
    """

    def __init__(self, model: nn.Module, folder: str | os.PathLike[str], **arguments: Unpack[Arguments]):
        super().__init__(model, **arguments)
        self._folder = os.fspath(folder)

    def _deliver(self, sums: _sums.Sums) -> None:
        if _gather.rank_in(self._group) == 0:
            os.makedirs(self._folder, exist_ok=True)
            for name in os.listdir(self._folder):
                if _files.is_ours(name):
                    os.remove(os.path.join(self._folder, name))
        self._collect(self._folder, sums)


def assert_summed(step: Callable[[], object], model: nn.Module, **arguments: Unpack[Judging]) -> addend.DiffReport:
    """For pytest: runs step(), from the first forward after zero_grad() to synchronised gradients, and fails with the
    table if they do not hold or it cannot be told."""
    watching = watch(model, **arguments)
    watching._quiet = True
    with watching:
        step()
    assert watching.report.ok, f"\n{watching.report}"
    return watching.report
