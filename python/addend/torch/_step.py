"""Observes one step of a job on all its ranks, from the first forward to synchronised gradients: the base class of
`watch` and `dump`."""

from __future__ import annotations

import contextlib
import functools
import math
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Callable, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import nn

from addend.torch import (
    _addends,
    _afterwards,
    _alive,
    _buffers,
    _calls,
    _collect,
    _declared,
    _doubts,
    _expected,
    _files,
    _gather,
    _meeting,
    _meshes,
    _names,
    _parameters,
    _patterns,
    _pipeline,
    _readings,
    _recorder,
    _sample,
    _seen,
    _shards,
    _spmd,
    _sums,
)
from addend.torch._addends import Change
from addend.torch._loaded import is_dtensor
from addend.torch._options import DumpOptions, Number
from addend.torch._seen import Seen, Unjudged

if TYPE_CHECKING:
    from typing_extensions import Self

_running: list[Step] = []  # the watch or dump that has hooks on parameters now: at most one
_entered: WeakKeyDictionary[nn.Module, int] = WeakKeyDictionary()  # number of steps so far, for every=
# The samplers of each model, kept for later watches: finding the elements to sample takes longer than sampling them.
_samplers: WeakKeyDictionary[nn.Module, dict[int | None, _sample.Sampler]] = WeakKeyDictionary()


def _sampler_of(model: nn.Module, count: int | None) -> _sample.Sampler:
    return _samplers.setdefault(model, {}).setdefault(count, _sample.Sampler(count))


class Opening(NamedTuple):
    """What a rank sends to the others about its parameters when a watch begins."""

    without: list[str]  # names of parameters without values (on the meta device)
    names: int  # a checksum of all names
    special: bool  # the rank has pipeline stages, or tied= was given
    cut: dict[str, tuple[int, ...]] | None  # the result of _prepare(); None: it needs the other ranks' names first


class Step:
    """A context around one step. An error on one rank is raised on all of them, with the same message; no error is
    raised inside the job's backward."""

    def __init__(self, model: nn.Module, options: DumpOptions, every: int = 1):
        _meshes.need_device_mesh(options.get("mesh"))
        self._model, self._every = model, every
        self._given_norm, self._divisor = options.get("norm"), options.get("divisor")
        self._expect, self._types = options.get("expect"), options.get("types")
        self._given_mesh, self._given_group = options.get("mesh"), options.get("group")
        self._gradient, self._reduce = options.get("gradient"), options.get("reduce")
        self._tied, self._meant_unused = options.get("tied"), options.get("unused", ())
        self._wait = options.get("wait", 10.0)
        self._sampler = _sampler_of(model, options.get("sample", 4096))
        self._addend = options.get("addend")
        self._watches: bool | None = None  # whether the present step is watched; None: no step has begun
        self._reset()

    def _reset(self) -> None:
        self._norm, self._group = self._given_norm, self._given_group
        # Keys: how many backwards, and calls of torch.autograd.grad, came before
        self._divisors: dict[tuple[int, int], float] = {}
        self._attached: _addends.Addends | None = None
        self._pipeline = _pipeline.Observer()
        self._afterwards: _afterwards.Afterwards | None = None
        self._recorder: _recorder.Recorder | None = None
        self._calls: _calls.Calls | None = None  # of the last watched step
        self._unjudged: Unjudged | None = None

    @property
    def watches(self) -> bool:
        """Whether this step is watched: with every=n, one in n is."""
        return bool(self._watches)

    @property
    def _addends(self) -> _addends.Addends:
        if self._attached is None:
            raise RuntimeError("no step is being watched yet: call this inside the `with` block of the watch")
        return self._attached

    def divisor(self, count: Number) -> None:
        """Gives the number by which this rank divides the next microbatch's loss; call it before its backward."""
        if self._watches is not False and not self._unjudged:
            self._divisors[self._addends.microbatch, self._addends.asked] = float(count)

    def norm(self, value: Number) -> None:
        """Gives the gradients' global norm that the job computed, before clipping."""
        self._norm = value

    def _is_due(self) -> bool:
        if self._every == 1:
            return True
        before = _entered.get(self._model, 0)
        _entered[self._model] = before + 1
        return before % self._every == 1  # in the first step of LoRA, and of much else, gradients are zero

    def __enter__(self) -> Self:
        self._watches = self._is_due()
        if not self._watches:
            return self
        if _running:
            raise RuntimeError("another `watch` or `dump` is active already in this process: leave it first")
        _running.append(self)
        _spmd.leave_unchecked((Step.__enter__, Step.__exit__, _addends.Addends.guarded, _recorder.Recorder.guarded))
        try:
            self._reset()
            self._begin()
        except BaseException:
            self._leave()
            raise
        return self

    def _begin(self) -> None:
        stages = _pipeline.find(self._model)
        if self._group is None and self._given_mesh is None and not stages:
            self._group = _parameters.own_group(self._model)
        self._meeting = _meeting.Meeting(self._group)
        alone = self._meeting.begin(self._wait)
        if alone:
            self._give_up(alone)
            return
        try:
            with self._exchanging():
                self._begin_together(stages)
        except _alive.Lost as error:
            self._give_up(f"{error}: this step is not watched")

    @contextlib.contextmanager
    def _exchanging(self) -> Iterator[None]:
        """A context in which exchanges between ranks raise Lost if one of them ends."""
        _alive.look_by(None if _gather.sees_deaths(self._group) else self._meeting.ended)
        try:
            yield
        finally:
            _alive.look_by(None)

    def _give_up(self, words: str) -> None:
        warnings.warn(f"addend.torch: {words}", RuntimeWarning, stacklevel=4)
        self._unjudged = Unjudged("cannot_tell", words)

    def _begin_together(self, stages: Sequence[_pipeline.Stage]) -> None:
        openings = self._together(lambda: self._open(stages))
        without = {rank: opening.without for rank, opening in openings.items() if opening.without}
        if without:
            words = f"on {_seen.where(without)}: on the meta device, without values: nothing is judged"
            self._unjudged = Unjudged("cannot_tell", words)
            return
        self._settle(stages, openings)
        if self._group is not self._given_group:
            summed, world = (len(_gather.group_ranks(group)) for group in (self._group, None))
            _doubts.own_group(self._watched, summed, world)
        _doubts.local_sums(self._watched, list(self._mesh.coords))
        self._attached = _addends.Addends(self._watched, self._sampler, self._places, self._addend)
        self._attached.attach()
        self._afterwards = _afterwards.Afterwards(self._watched, self._take, self._checksum, self._attached.guarded)
        self._attached.on_addend = self._afterwards.before_addend
        self._attached.on_backward = self._around_backward
        self._afterwards.attach()
        self._pipeline.attach(self._attached)
        self._recorder = _recorder.Recorder(self._model, self._watched, lambda: self._addends.ended)
        self._attached.on_hooks = self._afterwards.on_hooks = self._recorder.hooks_of
        self._recorder.attach()

    def _around_backward(self, roots: Any) -> None:
        """Called with the tensors from which a backward begins, and with None when it has ended."""
        if self._afterwards is not None:
            self._afterwards.around_backward(roots)
        if self._recorder is not None and roots is not None:
            self._recorder.begin_backward()

    def _leave(self) -> None:
        if self._recorder is not None:
            self._recorder.remove()
        if self._attached is not None:
            self._attached.remove()
            self._pipeline.remove()
        if self._afterwards is not None:
            self._afterwards.remove()
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

    def _together(self, find: Callable[[], _gather.T]) -> dict[int, _gather.T]:
        return _gather.together(find, self._group)

    def _open(self, stages: Sequence[_pipeline.Stage]) -> Opening:
        """Finds this rank's parameters, and prepares as much as is possible without the other ranks."""
        self._watched = _parameters.find(self._model)
        without = [entry.name for entry in self._watched if entry.used.is_meta]
        names = _names.checksum_of_names(self._watched, stages)
        self._lines: list[list[int]] = []
        self._ties: list[list[str]] = []
        cut = None
        if not (without or stages or self._tied):
            with contextlib.suppress(Exception):  # _settle() calls _prepare() again, and raises its error on all ranks
                cut = self._prepare()
        return Opening(without, names, bool(stages or self._tied), cut)

    def _settle(self, stages: Sequence[_pipeline.Stage], openings: Mapping[int, Opening]) -> None:
        """Settles every parameter's name and the box of it that each rank has."""
        reported = list(openings.values())
        identical = len({opening.names for opening in reported}) == 1
        prepared = all(opening.cut is not None for opening in reported)
        if identical and prepared:
            self._find_places({rank: opening.cut or {} for rank, opening in openings.items()})
            return
        if not identical or any(opening.special for opening in reported):
            mesh = self._mesh if prepared else None
            self._lines, self._ties = _names.settle(self._watched, stages, self._tied, self._group, mesh)
        self._find_places(self._together(self._prepare))

    def _prepare(self) -> dict[str, tuple[int, ...]]:
        """Finds the mesh, factors and types. Returns the local shapes of plain tensors that are shards by the caller's
        types=, from which all ranks together find the global shapes."""
        ranks = _gather.group_ranks(self._group)
        meshes = [entry.owned.device_mesh for entry in self._watched if is_dtensor(entry.owned)]
        meshes += [entry.part[0] for entry in self._watched if entry.part]
        meshes += [entry.flat.mesh for entry in self._watched if entry.flat and entry.flat.mesh]
        self._mesh = _meshes.find(self._given_mesh, meshes, self._lines, ranks)
        self._rank = ranks[_gather.rank_in(self._group)]
        self._find_types({})
        self._find_factors()
        _sums.need_none(self._watched)
        if self._addend is not None:
            _buffers.need_empty(self._watched, self._addend)
        cut = _expected.cut_by_hand(self._watched, self._kinds)
        return {entry.name: tuple(entry.used.shape) for entry in self._watched if entry.name in cut}

    def _find_types(self, placements: Mapping[str, _meshes.Placed]) -> None:
        self._declared = _declared.find(self._watched, self._mesh, placements, self._types, self._reduce)
        self._kinds = _expected.types_of(self._watched, self._mesh, self._types, placements, self._declared)

    def _find_factors(self) -> None:
        self._factors = _expected.factors_of(self._watched, self._expect, self._mesh, self._kinds)

    def _find_places(self, cut: Mapping[int, Mapping[str, tuple[int, ...]]]) -> None:
        self._places: dict[str, _sample.Place] = {
            entry.name: (entry.part[2], _meshes.part_box(*entry.part)) for entry in self._watched if entry.part
        }
        if _expected.are_uneven(cut):
            self._together(lambda: _expected.need_wholes(cut, self._kinds, self._mesh, self._declared))
        for name in cut[self._rank]:
            shapes, order = _expected.shapes_of(name, cut), self._declared.order(name)
            self._places[name] = _expected.place(self._kinds[name], self._mesh, self._rank, shapes, order)

    def _finish(self) -> None:
        if self._unjudged is None:
            left = self._meeting.end()
            self._unjudged = Unjudged("cannot_tell", f"{left}: this step is not judged") if left else None
        if self._unjudged:
            self._deliver_none(self._unjudged)
            return
        try:
            with self._exchanging():
                self._finish_together()
        except _alive.Lost as error:
            self._deliver_none(Unjudged("cannot_tell", f"{error}: this step is not judged"))

    def _finish_together(self) -> None:
        everyones = self._together(self._look)
        self._unify(everyones)
        unjudged = self._overflow(everyones) or _seen.nothing(everyones)
        if unjudged:
            self._deliver_none(unjudged)
        else:
            self._deliver(self._sums)

    def _take(self, entry: _parameters.Watched) -> _sums.Taken | None:
        gradient = self._gradient and functools.partial(self._given_gradient, self._gradient, entry.name)
        return _sums.take_one(entry, self._sampler, self._places, gradient, self._mesh)

    def _given_gradient(self, of: _sums.GradientOf, name: str, parameter: torch.Tensor) -> torch.Tensor | None:
        found = of(parameter)
        if found is not None and self._recorder is not None:
            self._recorder.note_sum(name, found)
        return found

    def _checksum(self, entry: _parameters.Watched, taken: _sums.Taken) -> str | None:
        """A checksum of a parameter's values as they are now, to compare replicas."""
        return _sums.values([entry], self._sampler, {entry.name: taken}, self._mesh).get(entry.name)

    def _look(self) -> Seen:
        """Takes this rank's addends, sums and norm after the step, without communication."""
        if self._addends.errors:
            raise ValueError(self._addends.errors[0])
        if self._addends.placements:
            self._find_types(self._addends.placements)
        self._divide_by_schedules()
        self._sums = _sums.take(self._watched, self._take)
        if self._afterwards is not None:
            self._afterwards.complete(self._sums)
        self._are_asked = self._addends.settle(self._sums)
        if self._recorder is not None:
            self._calls = self._recorder.settle(self._mesh, self._rank)
        _doubts.lost_microbatches(self._watched, self._addends, self._pipeline, self._meant_unused)
        if self._gradient is None:
            _doubts.cleared(self._watched, self._addends, self._sums)
        before = self._afterwards.values if self._afterwards else {}
        rest = [entry for entry in self._watched if entry.name not in before]
        self._values = {**before, **_sums.values(rest, self._sampler, self._sums, self._mesh)}
        self._shards = _shards.look(self._model, self._watched, self._kinds)
        _sample.bring([*self._addends.pieces(), *self._sum_pieces()])
        self._global_norm = self._find_norm()
        return self._seen(self._sums)

    def _sum_pieces(self) -> list[_sample.Piece]:
        before = self._afterwards.before_hooks if self._afterwards else {}
        return [piece for piece, _ in (*self._sums.values(), *before.values())]

    def _divide_by_schedules(self) -> None:
        """Includes the divisor that the pipeline's schedule used in the expected factors."""
        for entry in self._watched:
            if entry.stage is not None:
                entry.factor /= self._pipeline.divided.get(id(entry.stage.module), 1)

    def _changed(self) -> dict[str, Change]:
        """What hooks of the job did to addends and to sums, by the parameter's name."""
        found = self._addends.changed()
        assert self._afterwards is not None
        for name, (piece, _) in self._afterwards.before_hooks.items():
            before, after = piece.values, self._sums[name][0].values
            words = "a hook changed its sum; what the wrapper summed before has each addend once"
            found[name] = _addends.change(words, [_addends.factor_of(before, after)])
        return found

    def _scaler_factor(self, name: str, factor: float) -> _readings.Factor:
        """By what GradScaler multiplied a gradient. It surely is no part of what is expected if the loss was scaled as
        well, and the factor that the caller expects is that of a mean over ranks, or 1."""
        assert self._afterwards is not None
        words = f"GradScaler divided its gradient by {1 / factor:.6g} inside the watch, "
        if not self._afterwards.was_scaled(name):
            words += "and no loss was seen to be multiplied by that scale: right if it was before the watch began, "
            return factor, f"{words}wrong if it never was; begin the watch before the loss is scaled", False
        counts = {1}
        for size in self._mesh.sizes:
            counts |= {size * count for count in counts}
        is_mean = any(math.isclose(self._factors[name] * count, 1) for count in counts)
        if self._expect is not None and (not is_mean or round(1 / factor) in counts):
            return factor, f"{words}which expect= may have or not", False
        return factor, f"{words}which expect= need not have", True

    def _further_factors(self) -> dict[str, list[_readings.Factor]]:
        """Factors that the job may have brought in without saying so, by the parameter's name."""
        found: dict[str, list[_readings.Factor]] = {}
        for name, factor in (self._afterwards.scaled if self._afterwards else {}).items():
            found.setdefault(name, []).append(self._scaler_factor(name, factor))
        for entry in self._watched:
            divisor = self._pipeline.divided.get(id(entry.stage.module), 1) if entry.stage is not None else 1
            if divisor != 1 and self._expect is not None:
                words = f"expect= is taken as given beside the division by {divisor} of the pipeline's schedule"
                found.setdefault(entry.name, []).append((1 / divisor, words, True))
            if entry.frozen and self._expect is None and entry.beside:
                words = "wrappers have only frozen parameters, so a sum that is not divided is right, too"
                found.setdefault(entry.name, []).append((1 / entry.beside[1], words, True))
        return found

    def _find_norm(self) -> float | None:
        norm = self._norm() if callable(self._norm) else self._norm
        return None if norm is None else float(norm.full_tensor() if is_dtensor(norm) else norm)

    def _seen(self, sums: _sums.Sums) -> Seen:
        used = set(sums).union(*self._addends.taken.values())
        firsts = [names[0] for names in self._ties if names[0] in sums] if self._tied is None else []
        changed = self._changed()
        hooked = self._recorder.hooked if self._recorder is not None else {}
        infinite = {name for pieces in self._addends.taken.values() for name in _sample.not_finite(pieces)}
        return Seen(
            kinds={name: self._kinds[name] for name in self._addends.placements},
            numbers=sorted(self._addends.taken),
            used=used,
            idle=[entry.name for entry in self._watched if entry.name not in used],
            discarded=[name for name in self._addends.discarded if not _expected.is_meant(name, self._meant_unused)],
            zero={name for name in used if _expected.is_meant(name, self._meant_unused) and self._is_zero(name, sums)},
            silent={name for name in used if self._is_silent(name, sums)},
            sums=len(sums),
            readings=_readings.of(changed, self._further_factors(), self._addends.beside),
            custom={entry.name: entry.custom for entry in self._watched if entry.custom},
            tied={name: (sums[name][0].box, _names.checksum(sums[name][0].values)) for name in firsts},
            infinite=[entry.name for entry in self._watched if entry.name in infinite],
            infinite_sums=_sample.not_finite({name: piece for name, (piece, _) in sums.items()}),
            infinite_norm=self._global_norm is not None and not math.isfinite(self._global_norm),
            hooked={name: axes for name, axes in hooked.items() if name in changed},
            unmatched=self._find_unmatched(),
            written=self._addends.buffers.settle() if self._addends.buffers else {},
        )

    def _find_unmatched(self) -> _patterns.Unmatched:
        """The patterns of options that match no parameter of this rank, frozen ones included."""
        expect = self._expect if isinstance(self._expect, Mapping) else ()
        options = {"types": self._types or (), "expect": expect, "unused": self._meant_unused}
        names = [name for entry in self._watched for name in (entry.name, *entry.tied)]
        return _patterns.unmatched(options, names, lambda: _parameters.frozen_names(self._model, names))

    def _is_zero(self, name: str, sums: _sums.Sums) -> bool:
        """Whether every addend and the sum of the parameter on this rank are zero."""
        pieces = [taken[name] for taken in self._addends.taken.values() if name in taken]
        pieces += [sums[name][0]] if name in sums else []
        return not any(bool(piece.values.any()) for piece in pieces)

    def _is_silent(self, name: str, sums: _sums.Sums) -> bool:
        """Whether hooks of the parameter could change nothing on this rank: its addends are zero, or its sum empty."""
        pieces = [taken[name] for taken in self._addends.taken.values() if name in taken]
        is_empty = name in sums and not sums[name][0].values.numel()
        return is_empty or not any(bool(piece.values.any()) for piece in pieces)

    def _unify(self, everyones: Mapping[int, Seen]) -> None:
        """Combines what the ranks saw: types that one rank saw hold on ranks that did not use the parameter, and all
        ranks number the microbatches in the same way."""
        reported = list(everyones.values())
        for seen in reported:
            self._kinds.update((name, kind) for name, kind in seen.kinds.items() if name in self._kinds)
        self._find_factors()
        self._nowhere = _patterns.nowhere([seen.unmatched for seen in reported])
        self._declare_hooks([seen.hooked for seen in reported])
        self._numbers = sorted({number for seen in reported for number in seen.numbers})
        used = {name for seen in reported for name in seen.used - seen.zero}
        self._used = sorted(used, key=str.encode)
        idle = dict.fromkeys(name for seen in reported for name in [*seen.idle, *sorted(seen.zero)])
        self._unused = [name for name in idle if name not in used]
        discarded = {name for seen in reported for name in seen.discarded} & {*self._unused}
        self._lost = {
            **_expected.lost(self._unused, used, self._meant_unused),
            **dict.fromkeys(sorted(discarded), "torch.autograd.grad returned its gradient, and it is in no sum"),
        }
        self._readings = _readings.united({rank: seen.readings for rank, seen in everyones.items()})
        having = {rank: seen.used - seen.silent for rank, seen in everyones.items()}
        _readings.doubt_hooks(self._readings, having, self._average_twice(), self._mesh.sizes)
        self._custom = {name: hook for seen in reported for name, hook in seen.custom.items()}
        _buffers.doubt_late(self._watched, [seen.written for seen in reported])
        _doubts.ties(self._watched, self._ties, [seen.tied for seen in reported])

    def _declare_hooks(self, everyones: Sequence[Mapping[str, Mapping[str, str]]]) -> None:
        """Adds to the declarations what hooks summed on any rank: a rank that did not use a parameter calls none."""
        hooked: dict[str, dict[str, str]] = {}
        for of_rank in everyones:
            for name, axes in of_rank.items():
                hooked[name] = {**axes, **hooked.get(name, {})}
        if hooked:
            placements = self._addends.placements
            self._declared = _declared.find(
                self._watched, self._mesh, placements, self._types, self._reduce, _declared.by_hooks(hooked)
            )

    def _average_twice(self) -> dict[str, float]:
        """The expected factors of used parameters of which a mean over ranks, taken by a hook, would be a second one:
        not of those that have neither a wrapper nor expect=."""
        factors = {name: self._factors[name] for name in self._used if name in self._factors}
        return {name: factor for name, factor in factors.items() if factor != 1 or self._expect is not None}

    def _overflow(self, everyones: Mapping[int, Seen]) -> Unjudged | None:
        return _seen.overflow(everyones)

    def _deliver(self, sums: _sums.Sums) -> None:
        raise NotImplementedError

    def _deliver_none(self, why: Unjudged) -> None:
        raise NotImplementedError

    def _metadata(self, chosen: _readings.Chosen) -> dict[str, str]:
        """The metadata that all of this rank's files have."""
        kept = [entry for entry in self._watched if entry.name not in self._unused]
        unjudged = {**self._lost, **{entry.name: entry.unjudged for entry in kept if entry.unjudged}}
        metadata: dict[str, object] = {
            "addend.version": "1",
            "addend.rank": _gather.rank_in(self._group),
            "addend.mesh": str(self._mesh),
            "addend.coord": self._mesh.coord_text(self._rank),
            "addend.types": {entry.name: _expected.text(self._kinds[entry.name]) for entry in kept},
            "addend.expect": _expected.factors_text(
                {
                    entry.name: self._factors[entry.name] * chosen.get(entry.name, _readings.Reading()).times
                    for entry in kept
                }
            ),
        }
        assumed = _expected.assumed_of(kept, self._mesh, self._types, self._kinds)
        if assumed:
            metadata["addend.assumed"] = assumed
        if unjudged:
            metadata["addend.unjudged"] = unjudged
        declared = _declared.metadata(self._declared, [entry.name for entry in kept], self._kinds)
        if declared:
            metadata["addend.declared"] = declared
        promised = {entry.name: self._reduce or entry.promised for entry in kept}
        dtypes = {_expected.literal(name): _files.dtype_name(dtype) for name, dtype in promised.items() if dtype}
        if dtypes:
            metadata["addend.promised"] = dtypes
        if self._sampler.count is not None:
            metadata["addend.sample"] = self._sampler.count
        return _files.texts(metadata)

    def _addend_file(
        self, at: int, chosen: _readings.Chosen, only: Collection[str], common: Mapping[str, str]
    ) -> _files.Encoded:
        number = self._numbers[at]
        taken, behind = self._addends.taken.get(number, {}), self._addends.behind.get(number, {})
        pieces = {name: piece for name, piece in taken.items() if name in only}
        for name in pieces.keys() & chosen.keys():
            if chosen[name].hooked:
                pieces[name] = behind.get(name, pieces[name])
            if chosen[name].asked:
                pieces[name] = self._addends.with_beside(number, name, pieces[name])
        metadata: dict[str, object] = {**common, "addend.kind": "addend", "addend.microbatch": at}
        divisors = {key[self._are_asked]: divisor for key, divisor in self._divisors.items()}
        divisor = divisors.get(number, self._divisor)
        if divisor is not None:
            metadata["addend.divisor"] = float(divisor)
        if number in self._addends.inside:
            metadata["addend.inside"] = self._addends.inside[number]
        return _files.encode(pieces, metadata)

    def _sum_file(
        self, sums: _sums.Sums, chosen: _readings.Chosen, only: Collection[str], common: Mapping[str, str]
    ) -> _files.Encoded:
        sums = {name: found for name, found in sums.items() if name in only}
        metadata: dict[str, object] = {**common, "addend.kind": "sum"}
        if self._global_norm is not None:
            metadata["addend.norm"] = self._global_norm
        partial = {name: " ".join(axes) for name, (_, axes) in sums.items() if axes}
        if partial:
            metadata["addend.partial"] = partial
        dtypes = {entry.name: self._reduce or entry.reduce for entry in self._watched}
        reduce = {_expected.literal(name): _files.dtype_name(dtype) for name, dtype in dtypes.items() if dtype}
        if reduce:
            metadata["addend.reduce"] = reduce
        metadata["addend.values"] = self._values
        if self._shards:
            metadata["addend.shards"] = self._shards
        calls = self._calls.document if self._calls is not None else []
        if calls:
            metadata["addend.calls"] = calls
        before = self._afterwards.before_hooks if self._afterwards else {}
        changed = {
            name: before[name] for name, reading in chosen.items() if reading.hooked and name in {*before} & {*sums}
        }
        return _files.encode({name: piece for name, (piece, _) in {**sums, **changed}.items()}, metadata)

    def _encoded(
        self, sums: _sums.Sums, chosen: _readings.Chosen | None = None, names: Collection[str] | None = None
    ) -> list[_collect.File]:
        """This rank's files. Parameters in `chosen` are read in that way, all others as they are. `names`: of the
        parameters that are wanted; None: all that were used."""
        chosen, only = chosen or {}, set(self._used if names is None else names)
        common = self._metadata(chosen)
        addends: list[_collect.File] = [
            ("addend", at, self._addend_file(at, chosen, only, common)) for at in range(len(self._numbers))
        ]
        return [*addends, ("sum", None, self._sum_file(sums, chosen, only, common))]
