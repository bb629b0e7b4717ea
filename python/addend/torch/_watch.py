"""`watch`, `dump` and `assert_summed`: what is done with a step."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Callable, Collection, Mapping, Sequence

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

import addend
from addend.torch import _collect, _expected, _files, _gather, _names, _report, _sums
from addend.torch._arguments import Arguments, Judging, Norm, Number
from addend.torch._gather import Group
from addend.torch._seen import Seen, Unjudged
from addend.torch._step import Step

if TYPE_CHECKING:
    from typing_extensions import Unpack


class watch(Step):
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
    tied: sets of names that are one parameter, on ranks of a pipeline that have one of them each; else those that have
        equal values; (): none are
    unused: patterns of names that may be without gradient on all ranks; else what only others that are alike have a
        gradient of, is not judged
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
        tied: _names.Tied = None,
        unused: Sequence[str] = (),
        wait: float = 10.0,
        every: int = 1,
    ):
        super().__init__(
            model, norm, divisor, expect, types, mesh, sample, group, gradient, reduce, tied, unused, wait, every
        )
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
        self._keep(_report.of_none(why, len(_gather.group_ranks(self._group))))

    def _deliver(self, sums: _sums.Sums) -> None:
        report = self._judged(sums, ())
        changed = _report.changed(report, self._hooked)
        if changed:
            report = _report.behind_hooks(report, self._judged(sums, changed), changed)
        self._keep(report)

    def _judged(self, sums: _sums.Sums, changed: Collection[str]) -> addend.DiffReport:
        files = self._encoded(sums, changed)
        return _report.of_files(files, self._used, self._group, self._allow_identical, self._notes)

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

    def _keep(self, report: addend.DiffReport) -> None:
        self._report = report
        if _gather.rank_in(self._group) == 0 and not self._quiet:
            print(report, flush=True)


class dump(Step):
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
    norm, divisor, expect, types, mesh, sample, group, gradient, reduce, tied, unused, wait; .norm(x) and .divisor(n)
        inside: as of `watch`; `addend diff` finds in the files what was said
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
        _collect.Collection(self._folder, self._encoded(sums), self._used, self._group).bring_all()


def assert_summed(step: Callable[[], object], model: nn.Module, **arguments: Unpack[Judging]) -> addend.DiffReport:
    """For pytest: runs step(), from the first forward after zero_grad() to synchronised gradients, and fails with the
    table if they do not hold or it cannot be told."""
    watching = watch(model, **arguments)
    watching._quiet = True
    with watching:
        step()
    assert watching.report.ok, f"\n{watching.report}"
    return watching.report
