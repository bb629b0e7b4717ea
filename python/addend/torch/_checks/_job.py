"""The work of a check's processes: one runs the whole batch, the others are the ranks of the job."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import itertools
import math
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Callable

import torch
import torch.distributed as dist
from torch import nn

import addend
from addend.torch import _parameters, _pipeline, _plain, _watch
from addend.torch._checks import _double, _draws, _mark, _match, _names, _start
from addend.torch._checks._axes import Axes
from addend.torch._checks._calls import Calls
from addend.torch._checks._collectives import OPERATORS, Collectives, Place, Seen
from addend.torch._checks._tied import Pair, Tied
from addend.torch._checks._trace import Record, Trace, array
from addend.torch._loaded import is_dtensor, is_flat_fsdp

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

_SEED = 20
_TIMES = 8.0  # allowed error of ranks, as a multiple of the error that rounding makes in one process
_DRAWS = 4  # number of random roundings that are tried
_ROUNDING = 1e-4  # errors are relative to a gradient's largest element, but at least this part of the largest of all
STEPS = 3  # that are compared: a lost hook shows only after the first


@dataclasses.dataclass
class Task:
    """The arguments of `check`, whose docstring explains them."""

    make_model: Callable[[], nn.Module]
    parallelize: Callable[..., Any]
    batches: Any
    loss: Callable[..., Any]
    mesh: dict[str, int]
    run: Callable[..., Any] | None = None
    averaged: float | None = None
    norm: Callable[..., Any] | None = None
    optimizer: Callable[..., Any] | None = None
    steps: int = 0
    bound: float = 1e-9
    mutate: bool = False
    seed: int = _SEED
    is_constant: bool = False  # constants take the place of floating-point numbers that are drawn in the step


@dataclasses.dataclass
class Whole:
    """What one process computed from the whole batch."""

    loss: float
    count: float | None  # the whole batch's count, if losses are (numerator, count)
    weights: dict[str, NDArray[numpy.float64]]
    state: dict[str, Any]
    gradients: dict[str, NDArray[numpy.float64]]
    aliases: dict[str, list[str]]
    after: list[dict[str, NDArray[numpy.float64]]]  # parameters after each optimizer step
    record: Record | None
    said: set[str]
    batches: int = 1
    drawn: list[_draws.Drawn] | None = None  # in each step; None: unknown, as in a file of an earlier addend
    own_error: float = 0.0  # relative error that other roundings in operations without f64 make
    model_mark: str = ""  # checksum of the weights that make_model gave
    batch_mark: str = ""  # checksum of the whole batch
    file: str = ""  # the reference file from which all this was read; "": it was computed

    def first_name(self, name: str) -> str:
        """The name used here for a parameter, from any of a tied parameter's names."""
        return next((first for first, others in self.aliases.items() if name in others), name)

    @property
    def narrow_error(self) -> float:
        """The error that is allowed for operations without f64, over each tensor's largest element."""
        return _TIMES * self.own_error

    @property
    def floor(self) -> float:
        """A gradient whose elements are all smaller is only rounding errors, as that of a bias before a softmax."""
        return _ROUNDING * max((_match.largest(gradient) for gradient in self.gradients.values()), default=0.0)

    @property
    def terms(self) -> float:
        """The size of what the loss adds up, in its unit: the most that a parameter's elements, times their gradients,
        add to it. A loss that is far smaller is what is left where terms cancel."""
        sizes = (float(abs(gradient * self.weights[name]).sum()) for name, gradient in self.gradients.items())
        return max(sizes, default=0.0)


@dataclasses.dataclass
class Held:
    """A parameter on one rank: which part of the global parameter it is, and its gradient in each step."""

    index: _match.Index | None
    shape: tuple[int, ...]
    gradients: list[NDArray[numpy.float64] | None] = dataclasses.field(default_factory=list)
    after: list[NDArray[numpy.float64]] = dataclasses.field(default_factory=list)
    placements: str = ""
    trained: bool = True  # it requires a gradient


@dataclasses.dataclass
class Part:
    """What one rank computed."""

    rank: int
    losses: list[float]
    averaged: float
    params: dict[str, Held]
    norms: list[float]
    record: Record | None
    said: set[str]
    no_dump: str = ""
    collectives: dict[Place, Seen] = dataclasses.field(default_factory=dict)
    noticed: dict[tuple[Place, str], str] = dataclasses.field(default_factory=dict)
    batches: int = 1
    narrow: dict[str, str] = dataclasses.field(default_factory=dict)  # buffers that may be rounded, by `unify_buffers`
    further: list[float] = dataclasses.field(default_factory=list)  # losses that no backward reached
    drawn: list[_draws.Drawn] = dataclasses.field(default_factory=list)  # in STEPS steps, then in the optimizer's
    returned: bool = False  # `losses` are what the job's run returned, for it called no loss
    others: dict[str, _start.Other] = dataclasses.field(default_factory=dict)  # values not one process's at the start
    mended: Record | None = None  # of a step with one process's values in those `others`, where a step was wrong
    # by steps of the optimizer: names of one parameter of the one process whose values differ in the forward after it
    parted: dict[int, list[Pair]] = dataclasses.field(default_factory=dict)


def with_bound(task: Task, whole: Whole) -> Task:
    """The task with a bound that allows for operations without f64."""
    return dataclasses.replace(task, bound=max(task.bound, whole.narrow_error))


def prepare(task: Task) -> None:
    """Sets threads, dtype and seed in a process of the check."""
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    _draws.seed(task.seed)


def own_microbatches(task: Task, axes: Axes, rank: int | None) -> list[Any]:
    """The microbatches of a rank, or of the whole batch if `rank` is None, as the job gives them. A value that is not a
    list is one microbatch."""
    if callable(task.batches):
        found = task.batches(rank, axes)
    else:
        whole, cut = task.batches
        whole = whole() if callable(whole) else whole
        found = whole if rank is None else cut(whole, rank, axes)
    if found is None:
        whose = "the whole" if rank is None else f"rank {rank}"
        raise addend.InvalidError(f"`batches` returned None for {whose}: it must return a list of microbatches")
    return found if isinstance(found, list) else [found]


def microbatches(task: Task, axes: Axes, rank: int | None) -> list[Any]:
    """The microbatches of a rank, or of the whole batch if `rank` is None, in f64."""
    return [_double.doubled(batch) for batch in own_microbatches(task, axes, rank)]


def _loss_of(task: Task, model: Any, batch: Any) -> tuple[torch.Tensor, float | None]:
    """(the numerator, the count), or (the scalar, None)"""
    found = task.loss(model, batch)
    if isinstance(found, (tuple, list)):
        if len(found) != 2:
            raise addend.InvalidError(
                f"`loss` returned {len(found)} values; it must return a scalar, or a numerator and a count"
            )
        return found[0], float(found[1])
    if not isinstance(found, torch.Tensor) or found.numel() != 1:
        raise addend.InvalidError(f"`loss` returned a {type(found).__name__}; it must return a tensor of one element")
    return found, None


# -- the process with the whole batch


def _need_memory(model: nn.Module, ranks: int, one: int = 1) -> None:
    """Raises NoMemoryError if the check would not fit into memory: each process has parameters, gradients and a copy of
    both. `one` is 1 if one process runs the whole batch, 0 if a file has its results."""
    size = sum(parameter.numel() for parameter in model.parameters()) * 8
    wanted = size * 4 * (ranks + one)
    with open("/proc/meminfo") as file:
        free = next(int(line.split()[1]) << 10 for line in file if line.startswith("MemAvailable"))
    if wanted > free:
        those = [f"{ranks} ranks"] * bool(ranks) + ["one process"] * bool(one)
        instead = ", or write what one process computes to a file (write_reference) and give reference=FILE"
        raise addend.NoMemoryError(
            f"the model has {size / 2**30:.1f} GiB in f64, {' and '.join(those)} with it take about "
            f"{wanted / 2**30:.1f} GiB, but {free / 2**30:.1f} GiB are free: check a smaller model (fewer layers show "
            f"the same mistakes){instead if ranks and one else ''}"
        )


def make(task: Task, ranks: int, one: int = 1) -> tuple[nn.Module, set[str]]:
    """The unsharded model in f64, and notes on what was changed in it."""
    model = task.make_model()
    if not isinstance(model, nn.Module):
        raise addend.InvalidError(f"`make_model` returned a {type(model).__name__}; it must return a torch.nn.Module")
    _need_memory(model, ranks, one)
    said = _double.quiet(model)
    return _double.widened(model), said


def _aliases(model: nn.Module) -> dict[str, list[str]]:
    """For each tied parameter, the names besides its first name."""
    first: dict[int, str] = {}
    found: dict[str, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        kept = first.setdefault(id(parameter), name)
        if kept != name:
            found.setdefault(kept, []).append(name)
    return found


def alone(task: Task, axes: Axes, ranks: int | None = None) -> Whole:
    """Runs the whole batch in this process. `ranks`: how many ranks will have the model at the same time (for the
    memory check)."""
    prepare(task)
    model, said = make(task, axes.size() if ranks is None else ranks)
    model_mark = _mark.mark_of(model.state_dict())
    said |= _double.vary_constants(model)
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    batches = microbatches(task, axes, None)
    batch_mark = _mark.mark_of(batches)
    trace = Trace()
    draws = _draws.Draws([task.loss, model], task.is_constant)
    mode = _double.Double(trace.stack, draws=draws)
    held = _double.Buffers([model])
    weights = {name: array(parameter) for name, parameter in model.named_parameters()}
    trace.attach(model)
    with draws.step(), mode:
        value, count = _whole_loss(task, model, batches, draws)
        if not value.requires_grad:
            raise addend.InvalidError("`loss` depends on no parameter of the model that requires a gradient")
        value.backward()
    trace.remove()
    gradients = {name: array(p.grad) for name, p in model.named_parameters() if p.grad is not None}
    after = _steps_alone(task, model, batches, mode, held, draws)
    _need_numbers(float(value), gradients, after)
    said |= mode.said
    whole = Whole(
        float(value), count, weights, state, gradients, _aliases(model), after, trace.record, said, len(batches),
        list(draws.steps),
    )  # fmt: skip
    whole.model_mark, whole.batch_mark = model_mark, batch_mark
    if mode.narrow:
        whole.own_error = _own_error(task, model, batches, whole, held, draws)
        whole.said.add(_narrow_text(mode.narrow, whole.narrow_error))
    return whole


def _need_numbers(loss: float, gradients: Mapping[str, Any], after: Sequence[Mapping[str, Any]]) -> None:
    """Refuses a loss of one process, its gradients, or parameters that have one after a step, if they are no numbers:
    nothing can be compared with them."""
    if not math.isfinite(loss):
        raise addend.InvalidError(f"`loss` is {loss:g} for the whole batch: nothing can be compared with such a loss")
    for name, gradient in gradients.items():
        if not math.isfinite(_match.largest(gradient)):
            raise addend.InvalidError(
                f"the gradient of `{name}` from the whole batch has {_match.largest(gradient):g} among its elements: "
                "nothing can be compared with it"
            )
    for step, name in itertools.product(range(len(after)), gradients):
        if not math.isfinite(_match.largest(after[step][name])):
            raise addend.InvalidError(
                f"`{name}` has {_match.largest(after[step][name]):g} among its elements after step {step + 1} "
                "of one process: nothing can be compared with it"
            )


def _narrow_text(narrow: Mapping[str, str], bound: float) -> str:
    return (
        f"computed in f32, for there is no f64: {', '.join(f'`{name}` ({place})' for name, place in narrow.items())}; "
        f"so the bound is at least {bound:.2g}: {_TIMES:g} times the difference that other roundings of the inputs of "
        f"these operations make in one process ({_DRAWS} draws)"
    )


def _own_error(
    task: Task, model: nn.Module, batches: Sequence[Any], whole: Whole, held: _double.Buffers, draws: _draws.Draws
) -> float:
    """The largest relative difference that one process's results show if the inputs of operations without f64 are
    rounded differently."""
    worst = 0.0
    for draw in range(_DRAWS):
        model.load_state_dict(whole.state)
        held.restore()
        model.zero_grad()
        trace = Trace()
        if whole.record is not None:
            trace.attach(model)
        with draws.step(), _double.Double(trace.stack, torch.Generator().manual_seed(draw), draws):
            value = _whole_loss(task, model, batches, draws)[0]
            value.backward()
        trace.remove()
        worst = max(worst, abs(float(value) - whole.loss) / (abs(whole.loss) or 1.0))
        for name, parameter in model.named_parameters():
            if name in whole.gradients and parameter.grad is not None:
                worst = max(worst, _off(array(parameter.grad), whole.gradients[name], whole.floor))
        if whole.record is not None:
            worst = max([worst] + [_off(v, whole.record.values[key], 0) for key, v in trace.record.values.items()])
    return worst


def _off(found: Any, right: Any, floor: float) -> float:
    scale = max(_match.largest(right), floor)
    return _match.largest(found - right) / scale if scale else 0.0


def _whole_loss(
    task: Task, model: nn.Module, batches: Sequence[Any], draws: _draws.Draws
) -> tuple[torch.Tensor, float | None]:
    found = []
    for batch in batches:
        with draws.loss():
            found.append(_loss_of(task, model, batch))
    value = torch.stack([value for value, _ in found]).sum()
    counts = [count for _, count in found if count is not None]
    if not counts:
        return value, None
    if not sum(counts):
        raise addend.InvalidError(
            "the counts that `loss` returns for the whole batch add up to 0: return the number of samples or tokens "
            "as the count"
        )
    return value / sum(counts), sum(counts)


def _steps_alone(
    task: Task,
    model: nn.Module,
    batches: Sequence[Any],
    mode: _double.Double,
    held: _double.Buffers,
    draws: _draws.Draws,
) -> list[dict[str, Any]]:
    after: list[dict[str, Any]] = []
    if not task.steps or task.optimizer is None:
        return after
    with mode:
        optimizer = task.optimizer(model)
    for step in range(task.steps):
        if step:
            model.zero_grad()
            held.restore()
            with draws.step(), mode:
                _whole_loss(task, model, batches, draws)[0].backward()
        with draws.step(), mode:
            optimizer.step()
        after.append({name: array(parameter) for name, parameter in model.named_parameters()})
    return after


# -- a rank


@dataclasses.dataclass
class _Noted:
    """The value of a loss, and whether a backward reached it."""

    value: float
    is_reached: bool = False

    def reach(self, _: torch.Tensor) -> None:
        """Notes the backward; called with the gradient that it begins with."""
        self.is_reached = True


class Rank:
    """One rank of the job: makes its model, runs the steps, and returns a Part."""

    def __init__(self, task: Task, axes: Axes, whole: Whole, folder: str):
        self.task, self.axes, self.whole, self.folder = task, axes, whole, folder
        self.rank = dist.get_rank()
        self.trace: Trace | None = None
        self.mode = _double.Double()
        self.losses: list[float] = []
        self.further: list[float] = []  # losses of a validation, or of a step whose backward the job computes otherwise
        self._noted: list[_Noted] = []  # this step's losses
        self.returned = False  # `losses` are what the job's run returned
        prepare(task)
        model, self.said = make(task, axes.size(), 0 if whole.file else 1)
        if whole.file:
            with _draws.kept(others=True):
                batch_mark = _mark.mark_of(microbatches(task, axes, None))
            _mark.need_same(whole, _mark.mark_of(model.state_dict()), batch_mark)
        model.load_state_dict(whole.state)
        from torch.distributed.device_mesh import init_device_mesh

        self.mesh = init_device_mesh("cpu", axes.shape, mesh_dim_names=axes.names)
        buffers = {name: buffer.clone() for name, buffer in _double.buffers_of([model]).items()}
        with _draws.kept(), self.mode:
            made = task.parallelize(model, self.mesh)
        self.model: Any = model if made is None else made
        self.parts: list[nn.Module] = [m for m in _modules_of(self.model)]
        if not self.parts:
            raise addend.InvalidError(
                f"`parallelize` returned a {type(made).__name__}; it must return a module, a list of modules, or None"
            )
        known = {*whole.weights, *(name for names in whole.aliases.values() for name in names)}
        for part in self.parts:
            _plain.learn(part, known)
        self.said |= _double.widen_policies(self.parts)
        _double.divide_as_f32()
        said, self.narrow = _double.unify_buffers(self.parts, buffers)
        self.said |= said
        self.buffers = _double.Buffers(self.parts)
        self._right = {
            **whole.weights,
            **{name: array(buffer) for name, buffer in buffers.items() if not buffer.is_meta},
        }
        self._everywhere: set[str] = set()  # the names of all modules that any rank has
        self.tied = Tied(self.parts, whole.aliases, max(task.bound, 1e-9))
        self.batches = microbatches(task, axes, self.rank)
        self.averaged = task.averaged if task.averaged is not None else self._averaged()
        self.draws = _draws.Draws([task.loss, task.run, *self.parts], task.is_constant)
        self.mode.draws = self.draws

    def _whole_parameters(self) -> contextlib.ExitStack:
        """A context in which parameters and gradients in FullyShardedDataParallel are unsharded on every rank."""
        stack = contextlib.ExitStack()
        for part in self.parts:
            if any(is_flat_fsdp(module) for module in part.modules()):
                from torch.distributed.fsdp import FullyShardedDataParallel

                stack.enter_context(FullyShardedDataParallel.summon_full_params(part, with_grads=True))
        return stack

    def named(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Every parameter under its name in the one process. A parameter that is tied there, and that two pipeline
        stages have under two names, gets the same name on both."""
        own = {name: parameter for part in self.parts for name, parameter in _names.parameters(part)}
        for name, parameter in own.items():
            first = self.whole.first_name(name)
            if first == name or first not in own:
                yield first, parameter
            elif own[first] is not parameter:
                yield name, parameter

    def _averaged(self) -> float:
        """By what DDP, fully_shard or FullyShardedDataParallel divides the sum of gradients."""
        for module in (module for part in self.parts for module in part.modules()):
            if is_flat_fsdp(module):
                return float(getattr(module, "_gradient_predivide_factor", 1.0)) * float(
                    getattr(module, "_gradient_postdivide_factor", 1.0)
                )
        with contextlib.suppress(ValueError):  # raised for a wrapper that cannot be watched
            factors = [entry.factor for part in self.parts for entry in _parameters.find(part)]
            if factors:
                return 1 / max(set(factors), key=factors.count)
        return 1.0

    def scaled(self, model: Any, batch: Any) -> torch.Tensor:
        """The loss of a microbatch, scaled as the job's backward needs it; also notes its value, and whether a backward
        reaches it, as none does in a validation. That of a pipeline that finds its shapes is not the step's."""
        with self.draws.loss():
            value, count = _loss_of(self.task, model, batch)
        if count is not None:
            value = value * (self.averaged / (self.whole.count or 1.0))
        if not _pipeline.infers():
            with torch.no_grad():
                reported = value.full_tensor() if is_dtensor(value) else value
                self._noted.append(noted := _Noted(float(reported.detach())))
            if value.requires_grad:
                value.register_hook(noted.reach)
        return value

    def step(self) -> None:
        """Runs forward and backward of all microbatches."""
        self._noted.clear()
        reported = None
        with self.draws.step(), self.mode:
            if self.task.run is not None:
                reported = self.task.run(self.model, self.batches, self.scaled)
            else:
                for batch in self.batches:
                    self.scaled(self.model, batch).backward()
        self.losses = [noted.value for noted in self._noted if noted.is_reached]
        self.further = [noted.value for noted in self._noted if not noted.is_reached]
        self.returned = isinstance(reported, (list, tuple)) and not self.losses
        if self.returned:
            self.losses = [float(value) for value in reported or ()]

    def clear(self) -> None:
        for part in self.parts:
            part.zero_grad()
        self.buffers.restore()

    def part(self) -> Part:
        """Runs two steps without hooks, then a third with all hooks, and returns what this rank computed."""
        with self._whole_parameters():
            params = {name: self._held(name, parameter) for name, parameter in self.named()}
            start = _start.Start(self._values(), self._right)
        norms = []
        for _ in range(STEPS - 1):
            with self.tied.watched(after=0):
                self.step()
            self._keep(params)
            if self.task.norm is not None:
                norms.append(float(self.task.norm(self.model)))
            self.clear()
        seen, no_dump = self._traced_step()
        self._keep(params)
        losses, further = list(self.losses), list(self.further)
        mends = self.trace is not None and self._anywhere(bool(start.names)) and self._anywhere(self._is_wrong(params))
        with self._whole_parameters():  # FullyShardedDataParallel has it on every rank
            kept = self.task.mutate or mends
            before = {name: parameter.detach().clone() for name, parameter in self.named()} if kept else {}
        self._update(params)
        record = self.trace.record if self.trace else None
        part = Part(self.rank, losses, self.averaged, params, norms, record, self.said | self.mode.said, no_dump, seen)
        part.batches, part.narrow, part.further = len(self.batches), self.narrow, further
        part.returned, part.parted, part.drawn = self.returned, self.tied.parted, list(self.draws.steps)
        if self.task.mutate:
            part.noticed = self._mutate(seen, params, before)
        if mends:
            part.others, part.mended = start.others(), self._mended_step(start, before)
        return part

    def _values(self) -> dict[str, torch.Tensor]:
        """The rank's parameters and floating buffers."""
        return {**_double.buffers_of(self.parts), **dict(self.named())}

    def _anywhere(self, here: bool) -> bool:
        """Whether this is so on any rank."""
        everyones: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(everyones, here)
        return any(everyones)

    def _is_wrong(self, params: Mapping[str, Held]) -> bool:
        """Whether a gradient of this rank is not that of one process."""
        for name, right in self.whole.gradients.items():
            held = params.get(name)
            if held is None:
                continue
            wanted = _match.take(right, held.index) if held.index is not None else None
            scale = max(_match.largest(right), self.whole.floor)
            for own in held.gradients:
                if wanted is None or own is None or not _match.close(own, wanted, self.task.bound, scale):
                    return True
        return False

    def _mended_step(self, start: _start.Start, before: Mapping[str, torch.Tensor]) -> Record:
        """The record of a step that begins with one process's values wherever this rank's were others. `before`: the
        parameters before the optimizer's steps."""
        self.clear()
        with torch.no_grad(), self._whole_parameters():
            for name, parameter in self.named():
                parameter.copy_(before[name])
            start.put(self._values())
        trace = Trace()
        for part in self.parts:
            trace.attach(part, self.whole.record, self._everywhere)
        try:
            self.step()
        finally:
            trace.remove()
        return trace.record

    def _held(self, name: str, parameter: nn.Parameter) -> Held:
        local = array(parameter)
        whole = self.whole.weights.get(name)
        index = _match.locate(local, whole, 1e-12) if whole is not None else None
        placements = str(tuple(parameter.placements)) if is_dtensor(parameter) else ""
        return Held(index, tuple(local.shape), placements=placements, trained=parameter.requires_grad)

    def _keep(self, params: dict[str, Held]) -> None:
        with self._whole_parameters():
            for name, parameter in self.named():
                params[name].gradients.append(_gradient_or_none(parameter))

    def _traced_step(self) -> tuple[dict[Place, Seen], str]:
        self.trace = Trace()
        everyones: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(everyones, [name for part in self.parts for name, _ in _names.modules(part)])
        self._everywhere = {name for names in everyones for name in names}
        for part in self.parts:
            self.trace.attach(part, self.whole.record, self._everywhere)
        calls = Calls(self.trace)
        mode = Collectives(self.axes, self.trace, calls=calls)
        folder, no_dump = os.path.join(self.folder, "dump"), ""
        try:
            with self._dumped(folder) as dumped, calls, mode:
                self.step()
            no_dump = dumped[0] if dumped else ""
        finally:
            self.trace.remove()
        return mode.seen, no_dump

    @contextlib.contextmanager
    def _dumped(self, folder: str) -> Iterator[list[str]]:
        """A context that dumps addends and sums. If they cannot be seen, notes why instead of raising an error."""
        said: list[str] = []
        stack = contextlib.ExitStack()
        if len(self.parts) != 1:
            said.append("a rank has several modules")
        try:
            if not said:
                stack.enter_context(_watch.dump(self.parts[0], folder, mesh=self.mesh, sample=None))
        except ValueError as error:
            said.append(str(error))
        yield said
        try:
            stack.close()
        except ValueError as error:
            said.append(str(error))

    def _update(self, params: dict[str, Held]) -> None:
        if not self.task.steps or self.task.optimizer is None:
            return
        with self.mode:
            optimizer = self.task.optimizer(self.model)
        for step in range(self.task.steps):
            if step:
                self.clear()
                with self.tied.watched(after=step):
                    self.step()
            with self.draws.step(), self.mode:
                optimizer.step()
            with self._whole_parameters():
                for name, parameter in self.named():
                    params[name].after.append(array(parameter))

    # -- mutants of collectives of the backward

    def _mutate(
        self, seen: Mapping[Place, Seen], params: dict[str, Held], state: Mapping[str, torch.Tensor]
    ) -> dict[tuple[Place, str], str]:
        """Tries each mutant in turn, the same on all ranks. `state`: parameters before the optimizer's steps. Returns
        for each the first parameter of this rank whose gradient shows it, or ""."""
        everyones: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(everyones, sorted(seen, key=lambda place: (place.axes, place.send, place.number)))
        places = list(dict.fromkeys(place for some in everyones for place in some))
        noticed = {}
        for place in places:
            for operator in OPERATORS:
                self.clear()
                with torch.no_grad(), self._whole_parameters():
                    for name, parameter in self.named():
                        parameter.copy_(state[name])
                with Collectives(self.axes, None, (place, operator)):
                    self.step()
                with self._whole_parameters():
                    noticed[place, operator] = self._differs(params)
        return noticed

    def _differs(self, params: dict[str, Held]) -> str:
        for name, parameter in self.named():
            held, right = params[name], self.whole.gradients.get(name)
            if right is None or held.index is None:
                continue
            gradient = parameter.grad
            if gradient is None or not _match.close(
                own_gradient(parameter),
                _match.take(right, held.index),
                self.task.bound,
                max(_match.largest(right), self.whole.floor),
            ):
                return name
        return ""


def _gradient_or_none(parameter: nn.Parameter) -> Any:
    """This rank's part of the gradient. Zeros of a frozen parameter are none: FullyShardedDataParallel shows them where
    it shows whole parameters."""
    if parameter.grad is None:
        return None
    own = own_gradient(parameter)
    return own if parameter.requires_grad or own.any() else None


def own_gradient(parameter: nn.Parameter) -> Any:
    """This rank's part of the gradient. If the gradient is a DTensor that is not summed yet, sums it first."""
    gradient = parameter.grad
    if is_dtensor(gradient) and is_dtensor(parameter) and gradient.placements != parameter.placements:
        gradient = gradient.redistribute(parameter.device_mesh, parameter.placements)
    assert gradient is not None
    return array(gradient)


def _modules_of(made: Any) -> Iterator[nn.Module]:
    if isinstance(made, nn.Module):
        yield made
    elif isinstance(made, (list, tuple)):
        for item in made:
            yield from _modules_of(item)


def join(axes: Axes, folder: str, rank: int, timeout: datetime.timedelta | None = None) -> None:
    """Connects this process to the other ranks through gloo. `timeout`: how long it waits for them in a collective."""
    world = axes.size()
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world))
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world, timeout=timeout)


def be_rank(task: Task, axes: Axes, whole: Whole, folder: str, rank: int) -> Part:
    """The work of a rank's process: joins the others through gloo, and runs the job."""
    join(axes, folder, rank)
    part = Rank(task, axes, whole, folder).part()
    dist.barrier()
    return part


def forget(folder: str) -> None:
    """Deletes the folder of a check."""
    shutil.rmtree(folder, ignore_errors=True)
