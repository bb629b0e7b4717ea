"""Notes the collectives that a job calls while a step is watched. It replaces the methods of ProcessGroup and the
functional operators, since all references to functions of torch.distributed, however early they were taken, call these.
Only this file names them. DDP's own sums pass neither; `_replicated.py` reads them."""

from __future__ import annotations

import collections
import os
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any, NamedTuple, Optional

import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import GradBucket, ProcessGroup
from torch.distributed import distributed_c10d
from torch.multiprocessing.reductions import StorageWeakRef

from addend._dtypes import by_torch
from addend.torch import _meshes, _replicated, _same_values
from addend.torch._calls import Call, Calls
from addend.torch._parameters import Watched

_GATHERS = ("allgather", "allgather_coalesced", "_allgather_base", "allgather_into_tensor_coalesced")
_SCATTERS = ("reduce_scatter", "_reduce_scatter_base", "reduce_scatter_tensor_coalesced")
# By the name of a method of ProcessGroup, of any release: the operation, and which argument is the input
_METHODS: dict[str, tuple[str, int]] = {
    **dict.fromkeys(("allreduce", "allreduce_coalesced"), ("all_reduce", 0)),
    **dict.fromkeys((*_GATHERS, "all_gather_single", "all_gather_single_coalesced"), ("all_gather", 1)),
    **dict.fromkeys((*_SCATTERS, "reduce_scatter_single", "reduce_scatter_single_coalesced"), ("reduce_scatter", 1)),
    **dict.fromkeys(("alltoall", "alltoall_base", "all_to_all_single"), ("all_to_all", 1)),
    **dict.fromkeys(("gather", "gather_single", "gather_into_tensor"), ("gather", 1)),
    **dict.fromkeys(("recv", "recv_anysource"), ("recv", 0)),
    **{"broadcast": ("broadcast", 0), "reduce": ("reduce", 0), "scatter": ("scatter", 1), "send": ("send", 0)},
}
# By the name of an operator in torch.ops, whose first argument is the input and whose last one is the group
_OPERATORS: dict[str, dict[str, str]] = {
    "_c10d_functional": {
        **dict.fromkeys(("all_reduce", "all_reduce_", "all_reduce_coalesced", "all_reduce_coalesced_"), "all_reduce"),
        **dict.fromkeys(
            ("all_gather_into_tensor", "all_gather_into_tensor_out", "all_gather_into_tensor_coalesced"), "all_gather"
        ),
        **dict.fromkeys(
            ("reduce_scatter_tensor", "reduce_scatter_tensor_out", "reduce_scatter_tensor_coalesced"), "reduce_scatter"
        ),
        **dict.fromkeys(("broadcast", "broadcast_"), "broadcast"),
        **{"all_to_all_single": "all_to_all", "isend": "send", "irecv": "recv"},
    },
    "_c10d_functional_autograd": {
        "all_gather_into_tensor": "all_gather",
        "reduce_scatter_tensor": "reduce_scatter",
        "all_to_all_single": "all_to_all",
    },
    "_dtensor": {"shard_dim_alltoall": "all_to_all"},
}
_REDUCTIONS = ("all_reduce", "reduce", "reduce_scatter", "broadcast")  # of which the memory says whose gradient it is
_TRACED = ("FakeTensor", "FunctionalTensor")  # tensors with which a compiler runs a model, and nothing is sent
# Functions of PyTorch that sum gradients: in which file, and of which local variable the parameters are. Nothing that
# they have is kept, since their frames hold gradients.
_SUMMING = {
    "foreach_reduce": ("_fsdp_collectives.py", "fsdp_params"),
    "_get_grad_inner_tensor": ("_fsdp_param.py", "self"),
    "_reduce_grad": ("_runtime_utils.py", "handle"),
}
_KEPT = 64 << 20  # bytes of reduced tensors that are kept to the end of the step, to compare their values
_FURTHER = 3  # how many frames of the job, from the calling one on, are passed in search of such a function
_DEPTH = 6  # of the frame that called a method or operator, seen from the function that looks for it
_STANDARD = os.path.join(sysconfig.get_paths()["stdlib"], "")
_COMPILED = "what a compiled region calls is not seen"
_AUTOGRAD = "the backward of a functional collective with autograd is not seen"
_BUCKETS = "DDP's sums are read from its log, which may have the bytes of an earlier step"


class _Key(NamedTuple):
    """What calls have in common that are counted together."""

    operation: str
    group: Any  # a ProcessGroup, or its name
    dtype: torch.dtype
    bytes: int
    number: int  # of the backward in which it was called, or how many ended before it
    in_backward: bool
    file: str
    line: int
    function: str
    params: tuple[str, ...]


class _Extent(NamedTuple):
    """The memory of a tensor. A storage to which there is a weak reference keeps its number, so equal numbers are one
    storage even if its memory was freed since."""

    storage: int
    start: int
    stop: int


_Remembered = tuple[StorageWeakRef, _Extent]


class _Unassigned(NamedTuple):
    """A reduction of which is not known yet whose gradients it sums."""

    key: _Key
    memory: list[_Remembered]  # of what it was given, and of the new tensor that a functional collective gave
    kept: list[torch.Tensor]  # what is summed, after the last backward: its values may become gradients


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [tensor for item in value for tensor in _tensors(item)] if isinstance(value, (list, tuple)) else []


def _is_sum(arguments: Sequence[Any]) -> bool:
    """Whether a reduction with these arguments adds, or takes the mean."""
    for given in arguments:
        operation = getattr(given, "reduceOp", given)
        if isinstance(operation, (dist.ReduceOp, dist.ReduceOp.RedOpType)):
            return bool(operation == dist.ReduceOp.SUM or operation == dist.ReduceOp.AVG)  # in this order alone
        if isinstance(operation, str):
            return operation.lower() in ("sum", "avg")
    return True


def _bytes(tensor: torch.Tensor) -> int:
    return int((tensor._values() if tensor.is_sparse else tensor).nbytes)


def _extent(tensor: torch.Tensor) -> _Extent:
    start = int(tensor.storage_offset()) * tensor.element_size()
    return _Extent(tensor.untyped_storage()._cdata, start, start + int(tensor.nbytes))


def _is_gradient(given: torch.Tensor, param: Any) -> bool:
    """Whether `given` has the memory of the parameter's gradient."""
    grad = getattr(param, "grad", None)
    local = getattr(grad, "_local_tensor", grad)
    return local is not None and local.untyped_storage()._cdata == given.untyped_storage()._cdata


def _remembered(tensor: torch.Tensor) -> _Remembered:
    return StorageWeakRef(tensor.untyped_storage()), _extent(tensor)


def _inside() -> tuple[str, ...]:
    """The folders of packages whose lines are not the job's."""
    names = ("torch", "functorch", "spmd_types", "addend")
    files = [getattr(sys.modules.get(name), "__file__", None) for name in names]
    return tuple(os.path.join(os.path.dirname(os.path.abspath(file)), "") for file in files if file)


def _is_compiled(model: nn.Module) -> bool:
    """Whether torch.compile compiled something in this process, or will compile a module of the model."""
    if "torch._dynamo" not in sys.modules:
        return False
    compiled: Any = getattr(sys.modules.get("torch._dynamo.convert_frame"), "output_codes", None)
    if any(code() is not None for code in getattr(compiled, "seen", ())):
        return True
    optimized: Any = getattr(sys.modules.get("torch._dynamo.eval_frame"), "OptimizedModule", ())
    return any(
        isinstance(module, optimized) or getattr(module, "_compiled_call_impl", None) is not None
        for module in model.modules()
    )


def _classes() -> list[type]:
    """ProcessGroup, its subclasses, and the classes from which these have their methods."""
    kinds: list[type] = [ProcessGroup]
    for kind in kinds:
        kinds += kind.__subclasses__()
    return list({base: None for kind in kinds for base in kind.__mro__ if base is not object})


class _Running(threading.local):
    """What this thread does now."""

    is_inside = False  # in a call that was noted, which may call further methods
    window: tuple[str, ...] = ()  # the parameter whose hooks run


Note = Callable[..., Optional[_Unassigned]]
_recording: list[Recorder] = []  # the recorder that notes calls now: at most one
_running = _Running()


def _noted(call: Callable[..., Any], note: Note, args: Any, kwargs: Any) -> Any:
    """Calls, and notes the call unless it is part of another one."""
    recorder = next(iter(_recording), None)  # once: another thread may end it
    if _running.is_inside or recorder is None:
        return call(*args, **kwargs)
    _running.is_inside = True
    try:
        unassigned = recorder.guarded(note, args, kwargs)
        result = call(*args, **kwargs)
        if unassigned is not None and isinstance(result, (torch.Tensor, list, tuple)):
            recorder.guarded(Recorder.note_result, unassigned, result)
        return result
    finally:
        _running.is_inside = False


def _method(original: Callable[..., Any], operation: str, at: int) -> Callable[..., Any]:
    def note(recorder: Recorder, args: Any, kwargs: Any) -> _Unassigned | None:
        given = [*args, *kwargs.values()]
        group = given.pop(0)
        is_nothing = isinstance(given[at], (list, tuple)) and not given[at]  # as where another rank scatters
        return recorder.note(operation, group, given[0 if is_nothing else at], given)

    def call(*args: Any, **kwargs: Any) -> Any:
        return _noted(original, note, args, kwargs)

    return call


class _Operator:
    """Takes the place of an operator in torch.ops, and is it in everything but calls."""

    def __init__(self, packet: Any, operation: str, has_autograd: bool):
        self._packet, self._operation, self._has_autograd = packet, operation, has_autograd

    def __getattr__(self, name: str) -> Any:
        return getattr(self._packet, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return self._packet(*args, **kwargs)
        return _noted(self._packet, self._note, args, kwargs)

    def _note(self, recorder: Recorder, args: Any, kwargs: Any) -> _Unassigned | None:
        group = kwargs.get("group_name", args[-1])
        if self._has_autograd:
            recorder.unseen.add(_AUTOGRAD)
        return recorder.note(self._operation, group, args[0] if args else kwargs["input"], args)


# One for each operator for the whole process: a compiler that meets one in a job's function compiles it again if that
# is another object
_operators: dict[tuple[str, str], _Operator] = {}


class Recorder:
    """Notes the collectives of one step between attach() and remove(). `ended`: how many backwards ended so far."""

    def __init__(self, model: nn.Module, watched: Sequence[Watched], ended: Callable[[], int]):
        self._model, self._watched, self._ended = model, watched, ended
        self.unseen: set[str] = set()
        self._lock = threading.Lock()
        self._counts: collections.Counter[_Key] = collections.Counter()
        self._unassigned: list[_Unassigned] = []
        self._left = _KEPT  # bytes of memory that `kept` may yet hold
        self._given: dict[str, list[torch.Tensor]] = {}  # what gradient= gives
        self._finals: dict[str, set[_Extent]] = {}  # memory of sums that gradient= gives
        self._in_hooks: set[_Key] = set()  # calls by which hooks of one parameter may sum its gradient
        # After settle, of each parameter over which axes its hooks summed as many elements as its gradient has: where
        self.hooked: dict[str, dict[str, str]] = {}
        self._names: dict[int, list[str]] = {}  # by id() of a parameter's tensors
        for entry in watched:
            for tensor in {id(entry.owned), id(entry.used)}:
                self._names.setdefault(tensor, []).append(entry.name)
        self._reducers = _replicated.reducers(model)
        self._reduced: list[list[int]] = [[] for _ in self._reducers]  # the backwards in which each one sums
        self._has_hooks = any(getattr(reducer, "_comm_hooks", None) for reducer in self._reducers)
        self._inside, self._is_inside = _inside(), dict[str, bool]()
        self._replaced: list[tuple[Any, str, Any]] = []

    # -- what is replaced

    def attach(self) -> None:
        """Begins to note calls."""
        for kind in _classes():
            for name in _METHODS.keys() & vars(kind).keys():
                self._replace(kind, name, _method(getattr(kind, name), *_METHODS[name]))
        broadcast: Any = getattr(dist, "_broadcast_coalesced", None)  # DDP sends buffers by it
        if broadcast is not None:
            self._replace(dist, "_broadcast_coalesced", _method(broadcast, "broadcast", 0))
        if _is_compiled(self._model):  # its functions would be compiled again, since they hold the operators
            self.unseen.add(_COMPILED)
        else:
            for namespace, operations in _OPERATORS.items():
                for name, operation in operations.items():
                    self._replace_operator(namespace, name, operation)
        _recording.append(self)

    def _replace(self, owner: Any, name: str, replacement: Any) -> None:
        self._replaced.append((owner, name, vars(owner)[name]))
        setattr(owner, name, replacement)

    def _replace_operator(self, namespace: str, name: str, operation: str) -> None:
        packets = getattr(torch.ops, namespace)
        packet = getattr(packets, name, None)
        if packet is None:
            return
        found = _operators.setdefault(
            (namespace, name), _Operator(packet, operation, namespace == "_c10d_functional_autograd")
        )
        self._replace(packets, name, found)

    def remove(self) -> None:
        """Ends it; everything that was replaced is as before."""
        if self in _recording:
            _recording.remove(self)
        for owner, name, original in reversed(self._replaced):
            setattr(owner, name, original)
        self._replaced.clear()
        _running.window = ()

    # -- one call

    def guarded(self, note: Note, args: Any, kwargs: Any) -> _Unassigned | None:
        """Notes a call; what cannot be read is no reason to end the job."""
        try:
            return note(self, args, kwargs)
        except Exception as error:
            self.unseen.add(f"a call could not be read ({type(error).__name__}: {error})")
            return None

    def note(self, operation: str, group: Any, given: Any, arguments: Sequence[Any]) -> _Unassigned | None:
        """Notes a call of this rank with the input `given`, a tensor or lists of them. Returns it if whose gradients it
        sums is not known yet."""
        tensors = _tensors(given)
        first = tensors[0]
        if first.is_meta or type(first).__name__ in _TRACED:
            return None
        in_backward = torch._C._current_graph_task_id() != -1
        number = self._ended()
        file, line, function, params = self._place(in_backward, first)
        params = params or _running.window
        in_hook = bool(params) and params == _running.window
        size = sum(map(_bytes, tensors))
        key = _Key(operation, group, first.dtype, size, number, in_backward, file, line, function, params)
        if not key.params and operation in _REDUCTIONS and (in_backward or number):
            memory = [_remembered(tensor) for tensor in tensors if not tensor.is_sparse]
            is_sum = not in_backward and operation == "all_reduce" and _is_sum(arguments)
            unassigned = _Unassigned(key, memory, self._keep(tensors) if is_sum else [])
            with self._lock:
                self._unassigned.append(unassigned)
            return unassigned
        with self._lock:
            self._counts[key] += 1
            if in_hook and operation == "all_reduce" and _is_sum(arguments):
                self._in_hooks.add(key)
        return None

    def _keep(self, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        """The tensors, to be compared at the end of the step; none if they would hold too much memory."""
        size = sum(int(tensor.untyped_storage().nbytes()) for tensor in tensors if not tensor.is_sparse)
        if size > self._left or any(tensor.is_sparse for tensor in tensors):
            return []
        self._left -= size
        return [tensor.detach() for tensor in tensors]

    def note_result(self, unassigned: _Unassigned, result: Any) -> None:
        """Notes the tensors that a functional collective gave, which may become gradients. One in a backward, where no
        hook runs, is upstream of the parameter's: the addend that this one sees is reduced already."""
        if unassigned.key.in_backward:
            return
        tensors = _tensors(result)
        unassigned.memory.extend(map(_remembered, tensors))
        if unassigned.kept:
            unassigned.kept[:] = [tensor.detach() for tensor in tensors]

    def _place(self, in_backward: bool, given: torch.Tensor) -> tuple[str, int, str, tuple[str, ...]]:
        """The file, line and function that made the call, outside of PyTorch, and the parameters whose gradients one
        of PyTorch's own functions sums there."""
        frame: FrameType | None = sys._getframe(_DEPTH)
        place: tuple[str, int, str] | None = None
        params: tuple[str, ...] = ()
        left = _FURTHER
        while frame is not None and left:
            code = frame.f_code
            if not params:
                if code.co_name in _SUMMING:
                    params = self._summed(frame, given)
                elif self._has_hooks and in_backward:
                    params = self._of_bucket(frame)
            if not self._is_ours(code.co_filename):
                place = place or (code.co_filename, frame.f_lineno, code.co_name)
                left = 0 if params or not in_backward else left - 1
            frame = frame.f_back
        return (*(place or ("", 0, "")), params)

    def _is_ours(self, file: str) -> bool:
        """Whether a source file is no part of the job."""
        found = self._is_inside.get(file)
        if found is None:
            is_standard = file.startswith(_STANDARD) and "-packages" not in file
            found = self._is_inside[file] = is_standard or file.startswith(("<", *self._inside))
        return found

    def _summed(self, frame: FrameType, given: torch.Tensor) -> tuple[str, ...]:
        """The parameters whose gradients a function of PyTorch sums, or the one whose gradient `given` is already: a
        hook of the job has it, which PyTorch calls from there. (): it is another function of that name."""
        file, variable = _SUMMING[frame.f_code.co_name]
        if not frame.f_code.co_filename.endswith(file):
            return ()
        found = frame.f_locals.get(variable)
        params = found if isinstance(found, (list, tuple)) else [found]
        tensors = [getattr(param, "sharded_param", getattr(param, "flat_param", None)) for param in params]
        own = [tensor for tensor in tensors if _is_gradient(given, tensor)]
        return tuple(name for tensor in own or tensors for name in self._names.get(id(tensor), ()))

    def _of_bucket(self, frame: FrameType) -> tuple[str, ...]:
        """The parameters of a bucket that a communication hook of DDP gets, by an argument that must be `bucket`."""
        found = frame.f_locals.get("bucket") if "bucket" in frame.f_code.co_varnames else None
        params = found.parameters() if isinstance(found, GradBucket) else []
        return tuple(name for param in params for name in self._names.get(id(param), ()))

    # -- what the watch knows of gradients

    def begin_backward(self) -> None:
        """Notes which DDPs will sum in the backward that begins."""
        for reducer, reduced in zip(self._reducers, self._reduced):
            if _replicated.sums_now(reducer):
                reduced.append(self._ended())

    def hooks_of(self, name: str | None) -> None:
        """This thread now runs the job's hooks of a parameter, and what they call sums its gradient; None: no more."""
        _running.window = (name,) if name else ()

    def note_sum(self, name: str, tensor: torch.Tensor) -> None:
        """Notes the memory of a parameter's summed gradient."""
        local = _meshes.local_of(tensor)
        if not local.is_sparse:
            self._finals.setdefault(name, set()).add(_extent(local))
            if self._unassigned:
                self._given.setdefault(name, []).append(local)

    # -- after the step

    def settle(self, mesh: _meshes.Mesh, rank: int) -> Calls:
        """The step's calls, each with the parameters whose gradients it sums, as far as that is known."""
        self._assign()
        if _is_compiled(self._model):  # perhaps in this step
            self.unseen.add(_COMPILED)
        found: dict[tuple[Any, ...], list[int]] = {}  # by all but the count: the number of the backward of each call
        groups: dict[Any, tuple[str, tuple[int, ...]] | None] = {}
        for key, count in self._counts.items():
            if key.group not in groups:
                groups[key.group] = self._between(key.group, mesh)
            between = groups[key.group]
            if between is not None:
                what = (key.operation, *between, _dtype(key.dtype), key.bytes, self._phase(key), _line(key), key.params)
                found.setdefault(what, []).extend([key.number] * count)
                if key in self._in_hooks and between[0]:
                    self._note_hooked(key, between[0])
        for what, numbers in self._of_reducers(mesh):
            found.setdefault(what, []).extend(numbers)
        rows = [_row(what, numbers) for what, numbers in found.items()]
        rows.sort(key=lambda row: ("forward", "backward", "after").index(row.phase))
        return Calls(tuple(rows), tuple(sorted(self.unseen)), rank, str(mesh))

    def _note_hooked(self, key: _Key, axes: str) -> None:
        """Notes a sum that a hook made; one of another number of elements than the gradient's is a statistic."""
        for entry in self._watched:
            counts = [_meshes.local_of(tensor).numel() for tensor in (entry.used, entry.owned)]
            if (entry.name,) == key.params and key.bytes // key.dtype.itemsize in counts:
                self.hooked.setdefault(entry.name, {}).setdefault(axes, _line(key))

    def _between(self, group: Any, mesh: _meshes.Mesh) -> tuple[str, tuple[int, ...]] | None:
        try:
            return _between(group, mesh)
        except Exception as error:  # such as of a group that the job has destroyed
            self.unseen.add(f"the ranks of a group are not known ({type(error).__name__})")
            return None

    def _phase(self, key: _Key) -> str:
        ended = self._ended()
        return "backward" if key.in_backward else "after" if ended and key.number == ended else "forward"

    def _assign(self) -> None:
        """Finds whose gradients calls sum: those in whose memory their input lies, or the new tensor that they gave, or
        those with its values, of parameters of which no sum over that group is known."""
        if self._unassigned:
            for entry in self._watched:
                for gradient in {id(t): t for t in (entry.owned.grad, entry.used.grad) if t is not None}.values():
                    self.note_sum(entry.name, gradient)
        at: dict[int, list[tuple[_Extent, str]]] = {}
        for name, extents in self._finals.items():
            for extent in extents:
                at.setdefault(extent.storage, []).append((extent, name))
        left = []
        for one in self._unassigned:
            names = [
                name
                for _, own in one.memory
                for extent, name in at.get(own.storage, ())
                if extent.start < own.stop and own.start < extent.stop
            ]
            if one.kept and not names:
                left.append(one)
            else:
                self._counts[one.key._replace(params=tuple(dict.fromkeys(names)))] += 1
        if left:
            self._assign_by_values(left)
        self._unassigned.clear()
        self._given.clear()

    def _assign_by_values(self, left: Sequence[_Unassigned]) -> None:
        known = {(_name_of(key.group), name) for key in self._counts for name in key.params}
        by_ddp = {
            name for reducer, reduced in zip(self._reducers, self._reduced) for name in self._of(reducer, reduced)
        }
        for one in left:
            group = _name_of(one.key.group)
            open_ = {
                name: tensors
                for name, tensors in self._given.items()
                if (group, name) not in known and name not in by_ddp
            }
            names = _same_values.find(one.kept, dist.get_world_size(_group_of(one.key.group)), open_)
            self._counts[one.key._replace(params=tuple(names))] += 1

    def _of(self, reducer: Any, reduced: Sequence[int]) -> list[str]:
        """The parameters that a DDP summed in this step."""
        params = [param for sent in self._sent(reducer) for param in sent.params] if reduced else []
        return [name for param in params for name in self._names.get(id(param), ())]

    def _of_reducers(self, mesh: _meshes.Mesh) -> Iterator[tuple[tuple[Any, ...], list[int]]]:
        """The sums that DDP makes in C++."""
        for reducer, reduced in zip(self._reducers, self._reduced):
            for sent in self._sent(reducer) if reduced else ():
                between = self._between(reducer.process_group, mesh)
                if between is not None:
                    params = tuple(name for param in sent.params for name in self._names.get(id(param), ()))
                    line = "DistributedDataParallel"
                    what = ("all_reduce", *between, _dtype(sent.dtype), sent.bytes, "backward", line, params)
                    self.unseen.add(_BUCKETS)
                    yield what, reduced

    def _sent(self, reducer: Any) -> list[_replicated.Sent]:
        try:
            return _replicated.sent(reducer)
        except Exception as error:  # PyTorch promises nothing of this log
            self.unseen.add(f"DDP's log could not be read ({type(error).__name__}: {error})")
            return []


def _group_of(group: Any) -> Any:
    """A ProcessGroup, by itself or by its name."""
    resolve: Any = getattr(distributed_c10d, "_resolve_process_group")  # noqa: B009  PyTorch does not export it
    return resolve(group) if isinstance(group, str) else group


def _name_of(group: Any) -> Any:
    return getattr(group, "group_name", group)


def _between(group: Any, mesh: _meshes.Mesh) -> tuple[str, tuple[int, ...]] | None:
    """The axes that a group spans, and its ranks if it spans no set of them; None: it has one rank."""
    ranks = dist.get_process_group_ranks(_group_of(group))
    if len(ranks) < 2:
        return None
    try:
        return " ".join(mesh.spanned(list(ranks))), ()
    except ValueError:
        return "", tuple(ranks)


def _dtype(dtype: torch.dtype) -> str:
    found = by_torch().get(dtype)
    return found.name if found else str(dtype).rpartition(".")[2]


def _line(key: _Key) -> str:
    here = os.path.join(os.getcwd(), "")
    file = key.file[len(here) :] if key.file.startswith(here) else os.path.basename(key.file)
    return f"{file}:{key.line} in {key.function}" if file else ""


def _row(what: tuple[Any, ...], numbers: list[int]) -> Call:
    operation, axes, ranks, dtype, size, phase, line, params = what
    backwards = tuple(sorted(set(numbers))) if phase == "backward" else ()
    return Call(operation, axes, ranks, dtype, size, len(numbers), phase, backwards, line, params)
