"""`watch`, `dump` and `assert_summed`: one step of a job, from its first forward to its synchronised gradients."""

from __future__ import annotations

import dataclasses
import math
import os
import tempfile
import warnings
from types import TracebackType
from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    TypedDict,
    TypeVar,
    Union,
)
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

import addend
from addend._diff import judged
from addend._progress import CProgress
from addend.torch import _addends, _collect, _expected, _files, _gather, _meeting, _meshes, _parameters, _sample, _sums
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
    wait: float


class Judging(Arguments, total=False):
    """What a test is told beside that; `watch` says what it means."""

    allow_identical: bool


class Unjudged(NamedTuple):
    """Why a step says nothing of its sums."""

    verdict: str  # overflow, cannot_tell
    text: str


class Seen(NamedTuple):
    """What a rank saw of a step."""

    kinds: dict[str, _expected.Types]  # of gradients that are DTensors
    numbers: list[int]  # of microbatches
    used: set[str]
    trainable: int
    sums: int
    infinite: list[str]  # addends with inf or NaN
    infinite_sums: list[str]
    infinite_norm: bool


T = TypeVar("T")
_running: List[_Step] = []  # the watch whose hooks are on parameters
_entered: WeakKeyDictionary[nn.Module, int] = WeakKeyDictionary()  # how many steps there were, of those with every=


# What is taken of a model's parameters is the same in every watch, and takes longer to find than to take.
_samplers: WeakKeyDictionary[nn.Module, dict[int | None, _sample.Sampler]] = WeakKeyDictionary()


def _sampler_of(model: nn.Module, count: int | None) -> _sample.Sampler:
    return _samplers.setdefault(model, {}).setdefault(count, _sample.Sampler(count))


class _Step:
    """What both contexts do. Everything that a rank refuses is refused on all of them, with one message; nothing of it
    ends a backward."""

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
        wait: float = 10.0,
        every: int = 1,
    ):
        self._model, self._given_norm, self._divisor, self._group = model, norm, divisor, group
        self._expect, self._types, self._given_mesh = expect, types, mesh
        self._gradient, self._reduce = gradient, reduce
        self._wait, self._every = wait, every
        self._sampler = _sampler_of(model, sample)
        self._watches: bool | None = None  # None: no step yet
        self._reset()

    def _reset(self) -> None:
        self._norm = self._given_norm
        self._divisors: dict[int, float] = {}
        self._attached: _addends.Addends | None = None
        self._unjudged: Unjudged | None = None

    @property
    def watches(self) -> bool:
        """Whether this step is watched, of those that `every` counts."""
        return bool(self._watches)

    @property
    def _addends(self) -> _addends.Addends:
        if self._attached is None:
            raise RuntimeError("no step is being watched yet: this belongs inside the with")
        return self._attached

    def divisor(self, count: Number) -> None:
        """What this rank divides the loss of the microbatch by whose backward comes next."""
        if self._watches is not False and not self._unjudged:
            self._divisors[self._addends.microbatch] = float(count)

    def norm(self, value: Number) -> None:
        """The global norm of the gradients as the job computed it, before clipping."""
        self._norm = value

    def _is_due(self) -> bool:
        if self._every == 1:
            return True
        before = _entered.get(self._model, 0)
        _entered[self._model] = before + 1
        return before % self._every == 0

    def __enter__(self) -> Self:
        self._watches = self._is_due()
        if not self._watches:
            return self
        if _running:
            raise RuntimeError("a step is being watched already: leave that watch first")
        _running.append(self)
        try:
            self._reset()
            self._begin()
        except BaseException:
            self._leave()
            raise
        return self

    def _begin(self) -> None:
        if self._group is None and self._given_mesh is None:
            self._group = _parameters.own_group(self._model)
        self._meeting = _meeting.Meeting(self._group)
        alone = self._meeting.begin(self._wait)
        if alone:
            warnings.warn(f"addend.torch: {alone}", RuntimeWarning, stacklevel=4)
            self._unjudged = Unjudged("cannot_tell", alone)
            return
        without = {rank: names for rank, names in self._together(self._prepare).items() if names}
        if without:
            words = f"on {_where(without)}: on the meta device, without values: nothing is judged"
            self._unjudged = Unjudged("cannot_tell", words)
            return
        self._find_places()
        self._attached = _addends.Addends(self._watched, self._sampler, self._places)
        self._attached.attach()

    def _leave(self) -> None:
        if self._attached is not None:
            self._attached.remove()
        _running.clear()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._watches:
            return
        self._leave()
        if error is not None:
            self._meeting.left(f"{type(error).__name__}: {error}")
            return
        with torch.no_grad():
            self._finish()

    def _together(self, find: Callable[[], T]) -> dict[int, T]:
        """What find() gives on every rank, by rank. An error of one rank becomes one on all of them, so that none waits
        for the others."""
        told: tuple[str | None, Any]
        own: Exception | None = None
        ranks = _gather.group_ranks(self._group)
        try:
            told = (None, find())
        except ValueError as error:
            told, own = (str(error), None), error
        except Exception as error:
            told, own = (f"rank {ranks[_gather.rank_in(self._group)]}: {type(error).__name__}: {error}", None), error
        everyones: dict[int, tuple[str | None, Any]] = dict(zip(ranks, _gather.everyones(told, self._group)))
        for said, _ in everyones.values():
            if said:
                raise ValueError(said) from own
        return {rank: found for rank, (_, found) in everyones.items()}

    def _prepare(self) -> list[str]:
        """Names of parameters without values."""
        self._watched = _parameters.find(self._model)
        ranks = _gather.group_ranks(self._group)
        self._mesh = _meshes.find(self._given_mesh, [entry.owned for entry in self._watched], ranks)
        self._rank = ranks[_gather.rank_in(self._group)]
        self._factors = _expected.factors_of(self._watched, self._expect)
        self._find_types({})
        without = [entry.name for entry in self._watched if entry.used.is_meta]
        if not without:
            _sums.need_none(self._watched)
        return without

    def _find_types(self, placements: Mapping[str, _meshes.Placed]) -> None:
        self._kinds = _expected.types_of(self._watched, self._mesh, self._types, placements)

    def _find_places(self) -> None:
        """Of plain tensors that the caller calls parts; ranks tell each other their shapes."""
        cut = _expected.cut_by_hand(self._watched, self._kinds)
        self._places: dict[str, _sample.Place] = {}
        if not cut:
            return
        mine = {entry.name: tuple(entry.used.shape) for entry in self._watched if entry.name in cut}
        everyones = self._together(lambda: mine)
        for name in cut:
            shapes = {rank: shapes[name] for rank, shapes in everyones.items()}
            self._places[name] = _expected.place(self._kinds[name], self._mesh, self._rank, shapes)

    def _finish(self) -> None:
        if self._unjudged is None:
            left = self._meeting.end()
            self._unjudged = Unjudged("cannot_tell", f"{left}: this step is not judged") if left else None
        if self._unjudged:
            self._deliver_none(self._unjudged)
            return
        everyones = self._together(self._look)
        self._unify(everyones)
        unjudged = self._overflow(everyones) or _unseen(everyones)
        if unjudged:
            self._deliver_none(unjudged)
        else:
            self._deliver(self._sums)

    def _look(self) -> Seen:
        """At what the step left, on this rank alone."""
        if self._addends.errors:
            raise ValueError(self._addends.errors[0])
        self._find_types(self._addends.placements)
        self._sums = _sums.take(self._watched, self._sampler, self._places, self._gradient, self._mesh)
        _sample.bring([piece for pieces in self._addends.taken.values() for piece in pieces.values()])
        _sample.bring([piece for piece, _ in self._sums.values()])
        self._global_norm = self._find_norm()
        return self._seen(self._sums)

    def _find_norm(self) -> float | None:
        norm = self._norm() if callable(self._norm) else self._norm
        return None if norm is None else float(norm.full_tensor() if is_dtensor(norm) else norm)

    def _seen(self, sums: _sums.Sums) -> Seen:
        infinite = {name for pieces in self._addends.taken.values() for name in _sample.not_finite(pieces)}
        return Seen(
            kinds={name: self._kinds[name] for name in self._addends.placements},
            numbers=sorted(self._addends.taken),
            used=set(sums).union(*self._addends.taken.values()),
            trainable=len(self._watched),
            sums=len(sums),
            infinite=[entry.name for entry in self._watched if entry.name in infinite],
            infinite_sums=_sample.not_finite({name: piece for name, (piece, _) in sums.items()}),
            infinite_norm=self._global_norm is not None and not math.isfinite(self._global_norm),
        )

    def _unify(self, everyones: Mapping[int, Seen]) -> None:
        """Types that a rank saw hold for those that did not use the parameter; microbatches are numbered alike."""
        for seen in everyones.values():
            self._kinds.update(seen.kinds)
        self._numbers = sorted({number for seen in everyones.values() for number in seen.numbers})
        used = {name for seen in everyones.values() for name in seen.used}
        self._used = sorted(used, key=str.encode)
        self._unused = [entry.name for entry in self._watched if entry.name not in used]

    def _overflow(self, everyones: Mapping[int, Seen]) -> Unjudged | None:
        """inf or NaN, as of a loss scale that is too large: such a step is thrown away by the job itself."""
        addends = {rank: seen.infinite for rank, seen in everyones.items() if seen.infinite}
        sums = {rank: seen.infinite_sums for rank, seen in everyones.items() if seen.infinite_sums}
        if addends:
            return Unjudged("overflow", f"overflow on {_where(addends)}: this step is not judged")
        if sums:
            words = f"overflow in the sum on {_where(sums)}, of addends that are finite: this step is not judged"
            return Unjudged("overflow", words)
        if any(seen.infinite_norm for seen in everyones.values()):
            return Unjudged("overflow", "overflow in the global norm: this step is not judged")
        return None

    def _deliver(self, sums: _sums.Sums) -> None:
        raise NotImplementedError

    def _deliver_none(self, why: Unjudged) -> None:
        raise NotImplementedError

    def _metadata(self, kind: str) -> dict[str, object]:
        kept = [entry for entry in self._watched if entry.name not in self._unused]
        metadata: dict[str, object] = {
            "addend.version": "1",
            "addend.kind": kind,
            "addend.rank": _gather.rank_in(self._group),
            "addend.mesh": str(self._mesh),
            "addend.coord": self._mesh.coord_text(self._rank),
            "addend.types": {entry.name: _expected.text(self._kinds[entry.name]) for entry in kept},
            "addend.expect": _expected.factors_text({entry.name: self._factors[entry.name] for entry in kept}),
        }
        if self._sampler.count is not None:
            metadata["addend.sample"] = self._sampler.count
        return metadata

    def _addend_file(self, at: int) -> _files.Encoded:
        number = self._numbers[at]
        metadata = {**self._metadata("addend"), "addend.microbatch": at}
        divisor = self._divisors.get(number, self._divisor)
        if divisor is not None:
            metadata["addend.divisor"] = float(divisor)
        return _files.encode(self._addends.taken.get(number, {}), metadata)

    def _sum_file(self, sums: _sums.Sums) -> _files.Encoded:
        metadata = self._metadata("sum")
        if self._global_norm is not None:
            metadata["addend.norm"] = self._global_norm
        partial = {name: " ".join(axes) for name, (_, axes) in sums.items() if axes}
        if partial:
            metadata["addend.partial"] = partial
        dtypes = {entry.name: self._reduce or entry.reduce for entry in self._watched}
        reduce = {_expected.literal(name): _files.dtype_name(dtype) for name, dtype in dtypes.items() if dtype}
        if reduce:
            metadata["addend.reduce"] = reduce
        return _files.encode({name: piece for name, (piece, _) in sums.items()}, metadata)

    def _collected(self, folder: str, sums: _sums.Sums) -> _collect.Collection:
        """All ranks' files, in a folder of the first one."""
        files: list[_collect.File] = [("addend", at, self._addend_file(at)) for at in range(len(self._numbers))]
        return _collect.Collection(folder, [*files, ("sum", None, self._sum_file(sums))], self._used, self._group)


class watch(_Step):
    """Looks at one step of a job and says how often each rank's addend was counted in the gradients.

        with addend.torch.watch(model) as w:
            for batch in microbatches:
                loss(model, batch).backward()
        optimizer.step()

    The context begins after zero_grad() and ends once gradients are synchronised, before clipping and optimizer.step().
    All ranks of the job enter and leave it. `w.report` is the same addend.DiffReport on all of them; the first one
    prints it. `every=1000` is for a watch around every step of a training.

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
    allow_identical: ranks' gradients, or those of microbatches, are meant to be the same; else those that are the same
        before any sum hide what was counted of them, and `report.ok` is None
    wait: seconds in which all ranks enter the watch; where one does not come, the others say so, and that step runs
        unwatched
    every: the first step that enters a watch of this model is looked at, and every so many steps one; in between
        nothing is done but to count (`w.watches`: whether this step is looked at; `w.report`: that of the last one)
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
        wait: float = 10.0,
        every: int = 1,
    ):
        super().__init__(model, norm, divisor, expect, types, mesh, sample, group, gradient, reduce, wait, every)
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
        if self._raises and not self.report.ok and self.report.verdict != "overflow":
            raise addend.GradientError(self.report)

    def _deliver_none(self, why: Unjudged) -> None:
        self._report = _unjudged_report(why, len(_gather.group_ranks(self._group)))
        if _gather.rank_in(self._group) == 0 and not self._quiet:
            print(self._report, flush=True)

    def _deliver(self, sums: _sums.Sums) -> None:
        with tempfile.TemporaryDirectory(prefix="addend-") as folder:
            collection = self._collected(folder, sums)
            collection.bring()
            found = None
            if _gather.rank_in(self._group) == 0:
                found = _judge(folder, collection, self._unused, self._allow_identical)
            collection.bring_all()
        answer = _gather.from_first(lambda: found, self._group)
        if isinstance(answer, Exception):
            raise answer
        self._report = answer
        if _gather.rank_in(self._group) == 0 and not self._quiet:
            print(answer, flush=True)


def _unjudged_report(why: Unjudged, world: int) -> addend.DiffReport:
    document = {
        "format": 1,
        "pass": False,
        "verdict": why.verdict,
        "world": world,
        "params": [],
        "messages": [why.text],
    }
    return addend.DiffReport(None, (), None, why.text, why.verdict, world, messages=(why.text,), document=document)


def _unseen(everyones: Mapping[int, Seen]) -> Unjudged | None:
    """Steps of which there is nothing to compare."""
    if any(seen.numbers for seen in everyones.values()):
        return None
    if not any(seen.trainable for seen in everyones.values()):
        words = "no parameter of the model wants a gradient: there is nothing to judge"
    elif any(seen.sums for seen in everyones.values()):
        words = "there are gradients, and no backward in this watch gave them to parameters: nothing is judged"
    else:
        words = (
            "no backward in this watch gave a parameter a gradient: nothing is judged (torch.func.grad has no hooks: "
            "torch.autograd.grad is seen)"
        )
    return Unjudged("cannot_tell", words)


def _where(names: Mapping[int, Sequence[str]]) -> str:
    """ "ranks 0 and 1 in `up.weight` and 3 more": names by rank, those of the first rank."""
    first = next(iter(names.values()))
    more = f" and {len(first) - 1} more" if first[1:] else ""
    return f"{_gather.ranks_text(list(names))} in `{first[0]}`{more}"


def _judge(
    folder: str, collection: _collect.Collection, unused: Sequence[str], allow_identical: bool
) -> addend.DiffReport | Exception:
    def told(_: object, what: bytes, done: int, of: int) -> None:
        try:
            collection.told(what)
        except Exception as error:  # nothing can be raised through C
            failed.append(error)

    failed: list[Exception] = []
    try:
        files = sorted(os.path.join(folder, name) for name in os.listdir(folder))
        report = judged(files, CProgress(told), allow_identical=allow_identical, finite=True)
        if failed:
            return failed[0]
    except Exception as error:  # it has to reach the other ranks, which wait for the report
        return error
    if not unused:
        return report
    message = f"no rank used {', '.join(unused[:3])}{' ...' if len(unused) > 3 else ''}: no gradient, and none expected"
    return dataclasses.replace(report, messages=(*report.messages, message), table=f"{report.table}\n{message}")


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
    norm, divisor, expect, types, mesh, sample, group, gradient, reduce; .norm(x) and .divisor(n) inside: as of `watch`;
        `addend diff` finds in the files what was said
    """

    def __init__(self, model: nn.Module, folder: str | os.PathLike[str], **arguments: Unpack[Arguments]):
        super().__init__(model, **arguments)
        self._folder = os.fspath(folder)

    def _overflow(self, everyones: Mapping[int, Seen]) -> Unjudged | None:
        return None  # it is written as it is

    def _deliver_none(self, why: Unjudged) -> None:
        raise ValueError(why.text)

    def _deliver(self, sums: _sums.Sums) -> None:
        if _gather.rank_in(self._group) == 0:
            os.makedirs(self._folder, exist_ok=True)
            for name in os.listdir(self._folder):
                if _files.is_ours(name):
                    os.remove(os.path.join(self._folder, name))
        self._collected(self._folder, sums).bring_all()


def assert_summed(step: Callable[[], object], model: nn.Module, **arguments: Unpack[Judging]) -> addend.DiffReport:
    """For pytest: runs step(), from the first forward after zero_grad() to synchronised gradients, and fails with the
    table if they do not hold or it cannot be told."""
    watching = watch(model, **arguments)
    watching._quiet = True
    with watching:
        step()
    assert watching.report.ok, f"\n{watching.report}"
    return watching.report
