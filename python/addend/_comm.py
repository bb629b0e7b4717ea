"""`addend.Comm` makes this process a rank and runs collectives on its arrays. Each rank is a process, started by
`addend run -n 4 -- python job.py`, mpirun, srun or torchrun, or by any launcher that gives its processes a store."""

from __future__ import annotations

import ctypes
from types import TracebackType
from typing import Any

from addend._arrays import Memory, memory_of
from addend._dtypes import DTYPES
from addend._errors import AddendError, InvalidError
from addend._layout import CGroup, Mesh, axes_of, call_site
from addend._library import checked, constant, function, same_layout
from addend._rendezvous import join

_size_p = ctypes.POINTER(ctypes.c_size_t)


@same_layout("ad_segment")
class _Segment(ctypes.Structure):
    _fields_ = [("rows", ctypes.c_int64), ("row", ctypes.c_size_t)]


@same_layout("ad_collective", source="in")
class _Collective(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_size_t),
        ("op", ctypes.c_int),
        ("group", CGroup),
        ("source", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("count", ctypes.c_size_t),
        ("counts", _size_p),
        ("receive_counts", _size_p),
        ("messages", ctypes.c_void_p),
        ("message_count", ctypes.c_size_t),
        ("dtype", ctypes.c_int),
        ("accumulate", ctypes.c_int),
        ("reduction", ctypes.c_int),
        ("out_dtype", ctypes.c_int),
        ("in_scale", ctypes.c_int),
        ("out_scale", ctypes.c_int),
        ("adds", ctypes.c_int),
        ("segments", ctypes.POINTER(_Segment)),
        ("segment_count", ctypes.c_size_t),
        ("root", ctypes.c_int64),
        ("site", ctypes.c_char_p),
        ("ranks", ctypes.c_void_p),
        ("ranges", ctypes.c_void_p),
    ]


@same_layout("ad_span")
class _Span(ctypes.Structure):
    _fields_ = [("first", ctypes.c_int64), ("count", ctypes.c_int64)]


_comm_p = ctypes.c_void_p
_open = checked("ad_comm_open", ctypes.POINTER(ctypes.c_void_p))
_launched = function("ad_comm_launched", ctypes.c_int)
_close = function("ad_comm_close", None, _comm_p)
_rank = function("ad_comm_rank", ctypes.c_int64, _comm_p)
_size = function("ad_comm_size", ctypes.c_int64, _comm_p)
_backend = function("ad_comm_backend", ctypes.c_char_p, _comm_p)
_fail = function("ad_comm_fail", None, _comm_p, ctypes.c_int, ctypes.c_char_p)
_run = checked("ad_comm_run_at", _comm_p, ctypes.POINTER(_Collective), ctypes.c_char_p)
_cut = function("ad_cut", _Span, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)
_group_size = function("ad_group_size", ctypes.c_int64, ctypes.POINTER(CGroup))
_group_index = function("ad_group_index", ctypes.c_int64, ctypes.POINTER(CGroup), ctypes.c_int64)

_REDUCTIONS = {
    name: constant(f"AD_{name.upper()}") for name in ("sum", "max", "min", "product", "bit_and", "bit_or", "bit_xor")
}


class Comm:
    """Connects this rank with all others that the launcher started. Call close(), or use it as a context manager: then
    an exception on this rank raises an error on every rank, where otherwise the others would wait.

    `mesh`: the axes on which the ranks are laid out, for collectives over some axes; one axis `dp` if left out. A
    process that no launcher started as a rank is refused, lest it sum over itself by accident; `alone=True` allows it.
    Only one thread at a time may use a Comm.

    `store`, with `rank` and `size`: joins processes of one machine that any launcher started. They find each other
    through the store, an object with set, get and wait like torch.distributed's stores. Comms that are open at
    one time need a store each: wrap a shared one in a PrefixStore. If a rank does not join within `seconds`, the error
    names it."""

    def __init__(
        self,
        mesh: Mesh | str | None = None,
        alone: bool = False,
        *,
        store: Any = None,
        rank: int | None = None,
        size: int | None = None,
        seconds: int = 300,
    ):
        self._handle = ctypes.c_void_p()
        if store is None and (rank is not None or size is not None):
            raise InvalidError("Comm(rank=, size=) needs a store through which the ranks find each other: add store=")
        if store is None:
            _open(self._handle)
        elif rank is None or size is None:
            raise InvalidError(
                "Comm(store=) needs this process's rank and the number of ranks: Comm(store=, rank=, size=)"
            )
        else:
            join(store, rank, size, seconds, self._handle)
        try:
            self._check(mesh, alone or store is not None)
        except BaseException:
            self.close()
            raise

    def _check(self, mesh: Mesh | str | None, alone: bool) -> None:
        if not alone and not _launched():
            raise InvalidError(
                "no launcher started this process as a rank, so its sums would be over itself alone: start it with "
                "`addend run -n N -- python PROGRAM`, mpirun, srun or torchrun, or ask for a world of one rank with "
                "Comm(alone=True)"
            )
        self.mesh = Mesh(f"dp={self.size}") if mesh is None else mesh if isinstance(mesh, Mesh) else Mesh(mesh)
        if self.mesh.size != self.size:
            started = "1 rank was" if self.size == 1 else f"{self.size} ranks were"
            raise InvalidError(f"{started} started, but the mesh {str(self.mesh)!r} has {self.mesh.size}")

    def close(self) -> None:
        """Leaves the world. A rank that later waits for this one gets RankLeftError."""
        handle, self._handle = self._handle, ctypes.c_void_p()
        if handle:
            _close(handle)

    def __enter__(self) -> Comm:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None and self._handle:
            self.fail(error)
        self.close()

    def fail(self, error: BaseException) -> None:
        """Reports to all ranks that this one failed: the call in which a rank waits raises PeerFailedError with the
        text of `error`. If the ranks already know of an earlier error, they keep that one."""
        status = constant("AD_PEER_FAILED")
        words = str(error) if isinstance(error, AddendError) else f"{type(error).__name__}: {error}"
        _fail(self._need(), status, words.encode(errors="replace"))

    def _need(self) -> ctypes.c_void_p:
        if not self._handle:
            raise InvalidError("this Comm is closed: create a new one")
        return self._handle

    @property
    def rank(self) -> int:
        return int(_rank(self._need()))

    @property
    def size(self) -> int:
        """The number of ranks."""
        return int(_size(self._need()))

    @property
    def backend(self) -> str:
        """The backend that moves data between ranks: "shm" (shared memory, one machine) or "mpi"."""
        text: bytes = _backend(self._need())
        return text.decode()

    def all_reduce(self, array: Any, out: Any = None, axes: str | None = None, op: str = "sum") -> Any:
        """Combines the ranks' arrays element by element; every rank gets the result in `out`, or in `array` if `out` is
        left out. Returns the result. `op`: "sum", "max", "min" or "product"; integers and bools also take "bit_and",
        "bit_or" and "bit_xor". For bools "sum" and "max" are whether any is true, "product" and "min" whether all
        are. Sums and products follow one fixed tree over the group, so every rank has the same bits; integers wrap."""
        source = memory_of(array, "array", written=out is None)
        result = source if out is None else memory_of(out, "out", written=True)
        _need_the_same(source, result, source.shape)
        self._collective("AD_ALL_REDUCE", axes, source, result, count=source.numel, reduction=_reduction(op))
        return array if out is None else out

    def reduce_scatter(self, array: Any, out: Any, axes: str | None = None, op: str = "sum") -> Any:
        """Combines the ranks' arrays of n rows as all_reduce does, and gives each rank some rows of the result in
        `out`: rank i of a group of g gets rows i*n//g to (i+1)*n//g - 1."""
        source, result = memory_of(array, "array"), memory_of(out, "out", written=True)
        self._cut_by_rows(
            "AD_REDUCE_SCATTER", axes, source, result, whole=source, part=result, reduction=_reduction(op)
        )
        return out

    def all_gather(self, array: Any, out: Any, axes: str | None = None) -> Any:
        """Concatenates the rows of all ranks into `out`, on every rank: of the n rows of `out`, rank i of a group of g
        brings rows i*n//g to (i+1)*n//g - 1."""
        source, result = memory_of(array, "array"), memory_of(out, "out", written=True)
        self._cut_by_rows("AD_ALL_GATHER", axes, source, result, whole=result, part=source)
        return out

    def broadcast(self, array: Any, root: int = 0, axes: str | None = None) -> Any:
        """Copies the array of rank number `root` of the group over the arrays of all other ranks; returns `array`."""
        memory = memory_of(array, "array", written=True)
        self._collective("AD_BROADCAST", axes, memory, memory, count=memory.numel, root=root)
        return array

    def barrier(self, axes: str | None = None) -> None:
        """Returns when every rank of the group has called it."""
        nothing = Memory(0, DTYPES[0], (), False, None)
        self._collective("AD_BARRIER", axes, nothing, nothing)

    def _cut_by_rows(
        self,
        op: str,
        axes: str | None,
        source: Memory,
        out: Memory,
        whole: Memory,
        part: Memory,
        reduction: int = _REDUCTIONS["sum"],
    ) -> None:
        """Runs a collective between a full array, `whole`, and the `part` of its rows that this rank has."""
        if not whole.shape:
            raise InvalidError(
                "a single number (shape []) has no rows to divide among ranks: pass an array with at least one "
                "dimension"
            )
        group = self._group(axes)
        rows = _cut(whole.shape[0], _group_index(group, self.rank), _group_size(group)).count
        _need_the_same(whole, part, (rows, *whole.shape[1:]))
        segment = _Segment(whole.shape[0], whole.row)
        self._collective(
            op,
            axes,
            source,
            out,
            segments=ctypes.pointer(segment),
            segment_count=1,
            reduction=reduction,
            depth=4,
        )

    def _group(self, axes: str | None) -> CGroup:
        everything = ",".join(self.mesh.axes)
        return self.mesh.c_group(axes_of(everything if axes is None else axes), self.rank)

    def _collective(
        self, op: str, axes: str | None, source: Memory, out: Memory, depth: int = 3, **fields: Any
    ) -> None:
        call = _Collective(
            size=ctypes.sizeof(_Collective),
            op=constant(op),
            group=self._group(axes),
            source=source.address,
            out=out.address,
            dtype=source.dtype.number,
            **fields,
        )
        _run(self._need(), call, call_site(depth))


def _reduction(op: str) -> int:
    if op not in _REDUCTIONS:
        raise InvalidError(f"`op` takes one of {', '.join(_REDUCTIONS)}, not {op!r}")
    return _REDUCTIONS[op]


def _need_the_same(source: Memory, out: Memory, shape: Any) -> None:
    if out.dtype != source.dtype:
        raise InvalidError(f"the input has dtype {source.dtype.name}, but `out` has {out.dtype.name}: use one dtype")
    if out.shape != tuple(shape):
        raise InvalidError(
            f"`out` has shape {list(out.shape)}, but must have {list(shape)} on this rank: pass an array of this shape"
        )
