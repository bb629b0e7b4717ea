"""`watch` judges a step, `dump` writes it to files, `assert_summed` fails a test if it is wrong."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Callable, NoReturn

from torch import nn

import addend
from addend.torch import _calls, _collect, _expected, _files, _gather, _parameters, _readings, _report, _sums
from addend.torch._options import DumpOptions, JudgeOptions, WatchOptions, need_options
from addend.torch._seen import Seen, Unjudged
from addend.torch._step import Step

if TYPE_CHECKING:
    from typing_extensions import Unpack


class watch(Step):
    """A context around one step of a job, which reports how often each rank's addend was counted in the gradients.

    Enter the context after zero_grad() and leave it once gradients are synchronised, before clipping and
    optimizer.step(). All ranks of the job must enter and leave it together. To put the watch around every step of a
    training, give `every=1000`. Nothing is printed unless `show=True` asks for it.

    Args:
        model: the job's model, in its wrappers.
        norm: the global gradient norm that the job computed, or a function that gives it at the end; or call w.norm(x).
        divisor: by what this rank divides the loss of each microbatch; or call w.divisor(n) before each backward.
        expect: the factor by which the job multiplies the sum of addends, a number or {pattern: number}. Default: the
            wrapper's, which is one over the data-parallel ranks for DDP and fully_shard, and 1 without a wrapper.
        types: {pattern: "dp=R tp=S0"}: for each axis, how ranks' gradients relate: R, they are summed; I, all ranks
            have the same one; S0, each has a shard of dimension 0. Needed if neither wrapper nor placements say it.
        mesh: the job's DeviceMesh. Default: that of the model's DTensors, else one axis "dp" with all ranks.
        sample: how many elements of each parameter are compared; None: all. Default: 4096.
        raises: raise addend.GradientError on all ranks if a gradient is wrong or cannot be judged.
        show: print the report of each watched step on the first rank.
        group: the process group of the watched ranks. Default: all ranks.
        gradient: a function that gives a parameter's summed gradient at the end, if that is not parameter.grad.
        addend: for jobs whose backward writes a buffer itself, such as Megatron's `main_grad`: a function that gives
            the tensor in which this rank's backward accumulates a parameter's gradient, or None for a parameter whose
            gradient autograd gives. What autograd gives the others is not read. Where the optimizer reads such a
            buffer, give `gradient` too.
        reduce: the dtype in which the job sums, if it is narrower than the gradients' (a compressing comm hook).
        tied: sets of names that are one tied parameter on different pipeline stages. Default: those with equal values;
            (): none.
        unused: patterns of names of parameters that may have no gradient, or a gradient of zeros, on all ranks.
            Default: a parameter whose gradients are all zero is not judged, nor is one without a gradient if similar
            ones (other layers' of that name) have one.
        allow_identical: say that ranks, or microbatches, are meant to have equal gradients. Otherwise addends that are
            equal before any sum cannot be distinguished, and `report.ok` is None.
        wait: seconds within which all ranks must enter the watch; if one does not, the others warn, and the step runs
            unwatched. Default: 10.
        every: watch the second step, in which fewer gradients are zero than in the first, and then one step in
            `every`; the others are only counted. `w.watches` says whether this step is watched; `w.report` is the last
            watched step's. Default: 1, every step.

    Returns:
        The context `w`. At its end `w.report` is the same addend.DiffReport on all ranks.

    Raises:
        GradientError: with `raises=True`, a gradient is wrong or cannot be judged.
        TypeError: an option came by position, or does not exist.
        ValueError: on all ranks, an option does not fit the model (types= or expect= names a parameter that no rank
            has), or gradients are there before the step.
        RuntimeError: another watch or dump is active in this process.

    Example:
        with addend.torch.watch(model) as w:
            for batch in microbatches:
                loss(model, batch).backward()
        assert w.report.ok, w.report
        optimizer.step()
    """

    def __init__(self, model: nn.Module, *misplaced: NoReturn, **options: Unpack[WatchOptions]):
        need_options("watch", "the model", misplaced, options, WatchOptions)
        super().__init__(model, options, options.get("every", 1))
        self._allow_identical = options.get("allow_identical", False)
        self._raises, self._show = options.get("raises", False), options.get("show", False)
        self._report: addend.DiffReport | None = None

    @property
    def report(self) -> addend.DiffReport:
        """The report on the last watched step: how often each addend was counted."""
        if self._report is None:
            raise RuntimeError(
                "there is no report yet: it is made at the end of the `with` block of a watched step (with every= the "
                "second one is the first)"
            )
        return self._report

    @property
    def calls(self) -> _calls.Calls:
        """The collectives that this rank called in the last watched step."""
        if self._calls is None:
            raise RuntimeError(
                "there are no calls: they are known at the end of the `with` block of a watched step, if it ended "
                "without an error on all ranks"
            )
        return self._calls

    def _finish(self) -> None:
        super()._finish()
        if self._raises and not self.report.ok and self.report.verdict != "overflow":
            raise addend.GradientError(self.report)

    def _deliver_none(self, why: Unjudged) -> None:
        self._keep(_report.of_none(why, len(_gather.group_ranks(self._group))))

    def _deliver(self, sums: _sums.Sums) -> None:
        report = _readings.judge(functools.partial(self._judged, sums), self._readings)
        self._keep(_readings.doubt(report, self._custom))

    def _judged(self, sums: _sums.Sums, chosen: _readings.Chosen) -> addend.DiffReport:
        files = self._encoded(sums, chosen)
        report = _report.of_files(files, self._used, self._group, self._allow_identical, self._notes)
        names = _report.unexplained(report)
        if not names:
            return report
        files = self._encoded(sums, chosen, names)
        others = _report.of_files(files, names, self._group, self._allow_identical, lambda _: (), together=True)
        return _report.with_params(report, others)

    def _notes(self, report: addend.DiffReport) -> list[str]:
        """Further messages for the report: unused and tied parameters, and assumptions that may be wrong."""
        notes = []
        idle = [name for name in self._unused if name not in self._lost]
        if idle:
            some = ", ".join(f"`{name}`" for name in idle[:3]) + " ..." * (len(idle) > 3)
            notes.append(f"no rank used {some}: no gradient but zeros, and none expected")
        for first, *others in self._ties:
            notes.append(f"`{first}` represents {', '.join(f'`{name}`' for name in others)} too: they are tied")
        later = self._afterwards.later if self._afterwards else []
        if later:
            more = f" and {len(later) - 1} more" if later[1:] else ""
            words = "an optimizer took its step inside the watch before its gradient changed: judged is what it took"
            notes.append(f"`{later[0]}`{more}: {words}")
        notes += self._nowhere
        notes += _parameters.in_other_dtypes(self._watched)
        notes += _expected.contradicted_ties(self._watched, self._mesh, self._types)
        notes += _expected.smaller_groups(self._watched, self._mesh)
        return notes + _expected.unsaid(self._watched, self._mesh, self._types, self._expect, self._ties, report)

    def _keep(self, report: addend.DiffReport) -> None:
        self._report = report
        if _gather.rank_in(self._group) == 0 and self._show:
            print(report, flush=True)


class dump(Step):
    """A context that writes what a `watch` observes into files for `addend diff`, without judging it.

    Enter and leave it where a `watch` is entered and left, on all ranks. At the end all ranks send their data to the
    first one, which writes for each rank, in the format of audit/docs/dumps.md,

        rank00000.addend.m0.safetensors     the gradients of microbatch 0, before any sum; m1: of microbatch 1 ...
        rank00000.sum.safetensors           the gradients that the rank's optimizer gets

    Judge them on the first rank's machine with `addend diff dumped` or addend.diff("dumped"); with `--reference FILE`
    the sums are compared with the unsharded gradients of another run too.

    Args:
        model: the job's model, in its wrappers.
        folder: the folder for these files on the first rank's machine; it is created if necessary, and files of an
            earlier dump in it are removed.
        **options: those of `watch` but `raises`, `show`, `every` and `allow_identical`, and the methods .norm(x) and
            .divisor(n); they are written into the files, where `addend diff` finds them.

    Returns:
        The context.

    Raises:
        TypeError: an option came by position, or does not exist.
        ValueError: on all ranks, an option does not fit the model, or the step could not be observed.

    Example:
        with addend.torch.dump(model, "dumped"):
            for batch in microbatches:
                loss(model, batch).backward()
        optimizer.step()
    """

    def __init__(
        self,
        model: nn.Module,
        folder: str | os.PathLike[str],
        *misplaced: NoReturn,
        **options: Unpack[DumpOptions],
    ):
        need_options("dump", "the model and the folder", misplaced, options, DumpOptions)
        super().__init__(model, options)
        self._folder = os.fspath(folder)

    def _overflow(self, everyones: Mapping[int, Seen]) -> Unjudged | None:
        return None  # a dump is written even if it has an inf or a NaN

    def _deliver_none(self, why: Unjudged) -> None:
        raise ValueError(why.text)

    def _deliver(self, sums: _sums.Sums) -> None:
        if _gather.rank_in(self._group) == 0:
            os.makedirs(self._folder, exist_ok=True)
            for name in os.listdir(self._folder):
                if _files.is_ours(name):
                    os.remove(os.path.join(self._folder, name))
        _collect.Collection(self._folder, self._encoded(sums), self._used, self._group).bring_all()


def assert_summed(
    step: Callable[[], object], model: nn.Module, *misplaced: NoReturn, **options: Unpack[JudgeOptions]
) -> addend.DiffReport:
    """Watches one step in a test, and fails the test if a gradient is wrong.

    Args:
        step: a function without arguments, which goes from the first forward after zero_grad() to synchronised
            gradients.
        model: the model that it trains.
        **options: those of `watch` but `raises`, `every` and `show`.

    Returns:
        The report, which is the same on all ranks.

    Raises:
        AssertionError: a gradient is wrong or cannot be judged. The text is the report's table.
        TypeError: an option came by position, or does not exist.

    Example:
        def test_sums():
            model = DistributedDataParallel(Net())
            addend.torch.assert_summed(lambda: loss(model, batch).backward(), model)
    """
    need_options("assert_summed", "the step and the model", misplaced, options, JudgeOptions)
    watching = watch(model, **options)
    with watching:
        step()
    assert watching.report.ok, f"\n{watching.report}"
    return watching.report
