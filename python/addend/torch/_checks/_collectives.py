"""Notes a job's collectives and makes mutants of them. It intercepts them at PyTorch's dispatcher, through which
functions of `torch.distributed`, functional collectives, DTensor, DDP and fully_shard all go."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.utils._python_dispatch import TorchDispatchMode

from addend.torch import _pipeline
from addend.torch._checks import _names
from addend.torch._checks._axes import Axes
from addend.torch._checks._calls import Calls
from addend.torch._checks._trace import Call, Trace, array

OPERATORS = ("left out", "doubled", "averaged")
ACCUMULATED = "given what has accumulated"  # its input is added to what it was given in earlier backwards of the step
_NONE_TO_MUTATE = ("barrier", "wait", "wrap")  # these move no data
_TRANSFERS = ("send", "recv")  # from one rank to another


@dataclasses.dataclass(frozen=True)
class Place:
    """A collective of a step's backward, or forward: number `number` of those over these axes; or a rank's send,
    counted alone."""

    axes: str
    number: int
    send: bool = False
    forward: bool = False


@dataclasses.dataclass
class Seen:
    """The collective that was called at a Place: the operation, and file:line of the caller."""

    what: str
    where: str
    adds: bool = False  # an earlier backward of the step has one of the same order and of an input of the same shape


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [tensor for item in value for tensor in _tensors(item)] if isinstance(value, (list, tuple)) else []


def _group(values: Iterable[Any]) -> list[int] | None:
    """The ranks of the group among an operation's arguments."""
    resolve: Any = getattr(distributed_c10d, "_resolve_process_group")  # noqa: B009  PyTorch does not export it
    for value in values:
        try:
            if isinstance(value, torch.ScriptObject):
                return list(dist.get_process_group_ranks(dist.ProcessGroup.unbox(value)))
            if isinstance(value, str):
                return list(dist.get_process_group_ranks(resolve(value)))
        except (RuntimeError, ValueError, KeyError, LookupError):
            continue
    return None


def axes_of(ranks: list[int], axes: Axes) -> str:
    """The names of the axes on which these ranks differ."""
    at = [axes.coordinate(rank) for rank in ranks]
    return ", ".join(name for name in axes.names if len({place[name] for place in at}) > 1)


class Collectives(TorchDispatchMode):
    """A context that notes collectives: those of the backward in `seen`, and those of floating-point numbers in the
    forward if `forwards`. `mutate` = (place, operator) makes one of them wrong."""

    def __init__(
        self,
        axes: Axes,
        trace: Trace | None = None,
        mutate: tuple[Place, str] | None = None,
        calls: Calls | None = None,
        forwards: bool = False,
    ):
        super().__init__()  # type: ignore[no-untyped-call, unused-ignore]
        self._calls = calls
        self.seen: dict[Place, Seen] = {}
        self._axes, self._trace, self._mutate = axes, trace, mutate
        self._forwards = forwards
        self._counts: dict[tuple[str, bool, bool], int] = {}
        self._task = -1  # PyTorch's identifier of the last backward
        self._order = -1  # of the last collective in its backward
        self._shapes: dict[int, list[torch.Size]] = {}  # by order in a backward: of the last one's input
        self._given: dict[int, list[torch.Tensor]] = {}  # by order in a backward: the sum of what it was given
        self._sent: list[list[torch.Tensor]] = []  # keeps what is sent in place of the job's tensors

    def __torch_dispatch__(
        self, func: Any, types: Iterable[type], args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if any(kind.__name__ == "DTensor" for kind in types):
            return NotImplemented  # DTensor then calls the operation again, with local tensors
        name = func._schema.name.rpartition("::")[2]
        if "c10d" not in func.namespace or any(word in name for word in _NONE_TO_MUTATE) or _pipeline.infers():
            return func(*args, **kwargs)
        ranks = _group([*args, *kwargs.values()])
        if ranks is None or len(ranks) < 2:
            return func(*args, **kwargs)
        if any(word in name for word in _TRANSFERS):
            return self._transfer(func, name.strip("_"), ranks, args, kwargs)
        return self._run(func, name.strip("_"), ranks, args, kwargs)

    def _transfer(self, func: Any, name: str, ranks: list[int], args: Any, kwargs: Mapping[str, Any]) -> Any:
        """Notes a send or receive inside one of the job's calls. A send of the backward may be the mutant: it sends
        changed values. A receive may come before the send that it waits for, so it is never waited for here."""
        along = axes_of(ranks, self._axes)
        if self._calls is not None and self._calls.transfer(f"{name} over {along}") and self._trace is not None:
            self._trace.collective(f"{name} over {along}", self._calls.place())
        if torch._C._current_graph_task_id() == -1 or "send" not in name:
            return func(*args, **kwargs)
        place = self._next(along, name)
        if self._mutate is None or self._mutate[0] != place:
            return func(*args, **kwargs)
        factor = {"left out": 0.0, "doubled": 2.0, "averaged": 1 / len(ranks)}[self._mutate[1]]
        self._sent.append([tensor * factor if tensor.is_floating_point() else tensor for tensor in _tensors(args[0])])
        return func(self._sent[-1], *args[1:], **kwargs)

    def _next(self, along: str, name: str) -> Place:
        """The place of the collective or send that is called now; notes it as seen."""
        task = torch._C._current_graph_task_id()
        kind = (along, "send" in name, task == -1)
        place = Place(along, self._counts.get(kind, 0), *kind[1:])
        self._counts[kind] = place.number + 1
        if task != -1:
            self._order = self._order + 1 if task == self._task else 0
            self._task = task
        self.seen[place] = Seen(name, _names.caller())
        return place

    def _run(self, func: Any, name: str, ranks: list[int], args: Any, kwargs: Mapping[str, Any]) -> Any:
        along = axes_of(ranks, self._axes)
        if self._trace is not None:
            where = self._calls.place() if self._calls is not None else _names.caller()
            self._trace.collective(f"{name} over {along}", where)
        call = self._calls.collective(f"{name} over {along}") if self._calls is not None else None
        if call is not None:
            return _noted(call, func, args, kwargs)
        floats = any(tensor.is_floating_point() for tensor in _tensors(args))
        if torch._C._current_graph_task_id() == -1 and not (self._forwards and floats):
            return func(*args, **kwargs)
        place = self._next(along, name)
        if self._mutate is not None and self._mutate[1] == ACCUMULATED:
            return func(*self._accumulated(place, func.namespace != "c10d", args), **kwargs)
        if not place.forward:
            shapes = [tensor.shape for tensor in _tensors(args[_input_of(args)])]
            self.seen[place].adds = floats and self._shapes.get(self._order) == shapes
            self._shapes[self._order] = shapes
        if self._mutate is None or self._mutate[0] != place:
            return func(*args, **kwargs)
        return self._wrongly(func, name, ranks, args, kwargs)

    def _accumulated(self, place: Place, is_functional: bool, args: Any) -> Any:
        """The arguments; at the mutant's place, the sum of what the collectives of the same order in the backwards
        before were given is added to the input, if shapes are equal."""
        at = _input_of(args)
        inputs = _tensors(args[at])
        before = self._given.get(self._order, [])
        fits = [tensor.shape for tensor in before] == [tensor.shape for tensor in inputs]
        summed = [tensor + other for tensor, other in zip(inputs, before)] if fits else [t.clone() for t in inputs]
        if not place.forward:
            self._given[self._order] = summed
        if self._mutate is None or self._mutate[0] != place:
            return args
        if is_functional:
            return (*args[:at], summed if isinstance(args[at], (list, tuple)) else summed[0], *args[at + 1 :])
        for tensor, total in zip(inputs, summed):
            tensor.copy_(total)
        return args

    def _wrongly(self, func: Any, name: str, ranks: list[int], args: Any, kwargs: Mapping[str, Any]) -> Any:
        functional = func.namespace != "c10d"
        before = [tensor.clone() for tensor in _tensors(args[0])]
        own = _own_part(name, ranks, args)
        out = func(*args, **kwargs)
        if functional:
            results = [torch.ops._c10d_functional.wait_tensor(tensor) for tensor in _tensors(out)]
        else:
            work = out[-1] if isinstance(out, (tuple, list)) else out
            work.wait()
            results = _tensors(args[0])
        for i, result in enumerate(results):
            if self._mutate is not None and self._mutate[1] == "doubled":
                result.mul_(2)
            elif self._mutate is not None and self._mutate[1] == "averaged":
                result.div_(len(ranks))
            elif own is not None and own.shape == result.shape:
                result.copy_(own)
            elif "reduce" in name and before[i].shape == result.shape:
                result.copy_(before[i])
            else:
                result.zero_()
        return out if functional else _finished(out, results)


def _input_of(args: Any) -> int:
    """Which of a collective's arguments is its input: the second, if that has tensors, and the first is the output."""
    return int(len(args) > 1 and bool(_tensors(args[1])))


def _noted(call: Call, func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
    """Runs the collective and notes its inputs and outputs in `call`."""
    call.takes = [array(tensor) for tensor in _tensors(args) if tensor.is_floating_point()]
    out = func(*args, **kwargs)
    if func.namespace != "c10d":
        results = [torch.ops._c10d_functional.wait_tensor(tensor) for tensor in _tensors(out)]
    else:
        (out[-1] if isinstance(out, (tuple, list)) else out).wait()
        results = _tensors(args)
    call.gives = [array(tensor) for tensor in results if tensor.is_floating_point()]
    return out


def _finished(out: Any, results: list[torch.Tensor]) -> Any:
    """The collective's return value with a Work that is complete: waiting for gloo's own Work a second time would copy
    the right numbers over the mutant's."""
    from torch._C._distributed_c10d import _create_work_from_future

    future: torch.futures.Future[list[torch.Tensor]] = torch.futures.Future()
    future.set_result(results)
    work = _create_work_from_future(future).boxed()
    return type(out)((*out[:-1], work)) if isinstance(out, (tuple, list)) else work


def _own_part(name: str, ranks: list[int], args: Any) -> torch.Tensor | None:
    """The result of a reduce_scatter that leaves out the other ranks: this rank's block of its own input."""
    if "reduce_scatter" not in name:
        return None
    source = args[1] if len(args) > 1 and isinstance(args[1], torch.Tensor) else args[0]
    if not isinstance(source, torch.Tensor) or len(source) % len(ranks):
        return None
    return source.chunk(len(ranks))[ranks.index(dist.get_rank())].clone()
