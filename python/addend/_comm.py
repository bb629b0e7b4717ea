"""`addend.Comm`: this process as a rank, and collectives on its arrays. Ranks are processes of their own, which
`addend run -n 4 -- python job.py`, mpirun, srun or torchrun starts, or anybody who has a store for them."""

from __future__ import annotations

import ctypes
from types import TracebackType
from typing import Any, Optional, Type, Union

from addend._arrays import Memory, memory_of
from addend._errors import AddendError, InvalidError
from addend._layout import CGroup, Mesh, axes_of, call_site
from addend._library import checked, constant, function, same_size
from addend._rendezvous import join

_size_p = ctypes.POINTER(ctypes.c_size_t)


@same_size("ad_segment")
class _Segment(ctypes.Structure):
    _fields_ = [("rows", ctypes.c_int64), ("row", ctypes.c_size_t)]


@same_size("ad_collective")
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
    ]


@same_size("ad_span")
class _Span(ctypes.Structure):
    _fields_ = [("first", ctypes.c_int64), ("count", ctypes.c_int64)]


_comm_p = ctypes.c_void_p
_open = checked("ad_comm_open", ctypes.POINTER(ctypes.c_void_p))
_launched = function("ad_comm_launched", ctypes.c_int)
_close = function("ad_comm_close", None, _comm_p)
_rank = function("ad_comm_rank", ctypes.c_int64, _comm_p)
_size = function("ad_comm_size", ctypes.c_int64, _comm_p)
_engine = function("ad_comm_engine", ctypes.c_char_p, _comm_p)
_fail = function("ad_comm_fail", None, _comm_p, ctypes.c_int, ctypes.c_char_p)
_run = checked("ad_comm_run_at", _comm_p, ctypes.POINTER(_Collective), ctypes.c_char_p)
_cut = function("ad_cut", _Span, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)
_group_size = function("ad_group_size", ctypes.c_int64, ctypes.POINTER(CGroup))
_group_index = function("ad_group_index", ctypes.c_int64, ctypes.POINTER(CGroup), ctypes.c_int64)

_REDUCTIONS = {
    name: constant(f"AD_{name.upper()}") for name in ("sum", "max", "min", "product", "bit_and", "bit_or", "bit_xor")
}
_OPS = {
    name: constant(name)
    for name in ("AD_ALL_REDUCE", "AD_REDUCE_SCATTER", "AD_ALL_GATHER", "AD_BROADCAST", "AD_BARRIER")
}


class Comm:
    """This rank's membership of the world that it was started in; close it, or use it as a context manager, so that
    an exception here is an error on every rank and not a wait.

    `mesh`: how the ranks lie, for collectives over some axes; one axis `dp` if left out. A process that nobody started
    as a rank is refused, unless `alone`: a world of one is nobody's by accident. Used by one thread at a time.

    `store`, with `rank` and `size`: processes of one machine that anybody started are ranks; they find each other in
    it, an object with set, get and wait, as torch.distributed's stores have them. A store serves one world: give
    another one a PrefixStore. A rank that does not come within `seconds` is named."""

    def __init__(
        self,
        mesh: Union[Mesh, str, None] = None,
        alone: bool = False,
        *,
        store: Any = None,
        rank: Optional[int] = None,
        size: Optional[int] = None,
        seconds: int = 300,
    ):
        self._handle = ctypes.c_void_p()
        if store is None and (rank is not None or size is not None):
            raise InvalidError("Comm(rank=, size=) wants the store in which the ranks find each other: Comm(store=)")
        if store is None:
            _open(self._handle)
        elif rank is None or size is None:
            raise InvalidError(
                "Comm(store=) wants to know which rank this is, and of how many: Comm(store=, rank=, size=)"
            )
        else:
            join(store, rank, size, seconds, self._handle)
        try:
            self._check(mesh, alone or store is not None)
        except BaseException:
            self.close()
            raise

    def _check(self, mesh: Union[Mesh, str, None], alone: bool) -> None:
        if not alone and not _launched():
            raise InvalidError(
                "nobody started this process as a rank, and alone it would sum nothing: start it with "
                "`addend run -n N -- python PROGRAM`, mpirun, srun or torchrun; Comm(alone=True) is a world of "
                "one"
            )
        self.mesh = Mesh(f"dp={self.size}") if mesh is None else mesh if isinstance(mesh, Mesh) else Mesh(mesh)
        if self.mesh.size != self.size:
            raise InvalidError(f"{self.size} ranks were started, and the mesh {str(self.mesh)!r} has {self.mesh.size}")

    def close(self) -> None:
        """Leaves the world: ranks that still need this one get RankLeftError."""
        handle, self._handle = self._handle, ctypes.c_void_p()
        if handle:
            _close(handle)

    def __enter__(self) -> Comm:
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], traceback: Optional[TracebackType]
    ) -> None:
        if error is not None and self._handle:
            self.fail(error)
        self.close()

    def fail(self, error: BaseException) -> None:
        """Tells every rank that this one failed: what they wait in raises PeerFailedError with these words. An error
        that all know already stays theirs."""
        status = constant("AD_PEER_FAILED")
        words = str(error) if isinstance(error, AddendError) else f"{type(error).__name__}: {error}"
        _fail(self._need(), status, words.encode(errors="replace"))

    def _need(self) -> ctypes.c_void_p:
        if not self._handle:
            raise InvalidError("this comm is closed")
        return self._handle

    @property
    def rank(self) -> int:
        return int(_rank(self._need()))

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return int(_size(self._need()))

    @property
    def engine(self) -> str:
        """What moves bytes: "shm" or "mpi"."""
        text: bytes = _engine(self._need())
        return text.decode()

    def all_reduce(self, array: Any, out: Any = None, axes: Optional[str] = None, op: str = "sum") -> Any:
        """Combines the ranks' arrays into `out`, or in place, on every rank; returns it. `op`: "sum", "max", "min" or
        "product", of integers and bool also "bit_and", "bit_or" or "bit_xor"; of bools "sum" and "max" say whether any
        is true, "product" and "min" whether all are. Sums and products form in the order of one tree over the group, so
        every rank has the same bits; those of integers wrap around."""
        source = memory_of(array, "array", written=out is None)
        result = source if out is None else memory_of(out, "out", written=True)
        _need_alike(source, result, source.shape)
        self._collective("AD_ALL_REDUCE", axes, source, result, count=source.numel, reduction=_reduction(op))
        return array if out is None else out

    def reduce_scatter(self, array: Any, out: Any, axes: Optional[str] = None, op: str = "sum") -> Any:
        """Combines the ranks' arrays as all_reduce does and leaves each its rows of the result in `out`: member i of g
        has the rows from i*n//g on."""
        source, result = memory_of(array, "array"), memory_of(out, "out", written=True)
        self._cut_by_rows(
            "AD_REDUCE_SCATTER", axes, source, result, whole=source, part=result, reduction=_reduction(op)
        )
        return out

    def all_gather(self, array: Any, out: Any, axes: Optional[str] = None) -> Any:
        """Puts the rows of all ranks one after another into `out`, which has all of them: member i of g brings the rows
        from i*n//g on."""
        source, result = memory_of(array, "array"), memory_of(out, "out", written=True)
        self._cut_by_rows("AD_ALL_GATHER", axes, source, result, whole=result, part=source)
        return out

    def broadcast(self, array: Any, root: int = 0, axes: Optional[str] = None) -> Any:
        """Writes the array of member `root` of the group over that of the others; returns it."""
        memory = memory_of(array, "array", written=True)
        self._collective("AD_BROADCAST", axes, memory, memory, count=memory.numel, root=root)
        return array

    def barrier(self, axes: Optional[str] = None) -> None:
        """Returns when every rank of the group has called it."""
        nothing = Memory(0, "AD_F32", (), False, None)
        self._collective("AD_BARRIER", axes, nothing, nothing)

    def _cut_by_rows(
        self,
        op: str,
        axes: Optional[str],
        source: Memory,
        out: Memory,
        whole: Memory,
        part: Memory,
        reduction: int = _REDUCTIONS["sum"],
    ) -> None:
        if not whole.shape:
            raise InvalidError("a single number has no rows")
        group = self._group(axes)
        rows = _cut(whole.shape[0], _group_index(group, self.rank), _group_size(group)).count
        _need_alike(whole, part, (rows, *whole.shape[1:]))
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

    def _group(self, axes: Optional[str]) -> CGroup:
        everything = ",".join(self.mesh.axes)
        return self.mesh.c_group(axes_of(everything if axes is None else axes), self.rank)

    def _collective(
        self, op: str, axes: Optional[str], source: Memory, out: Memory, depth: int = 3, **fields: Any
    ) -> None:
        call = _Collective(
            size=ctypes.sizeof(_Collective),
            op=_OPS[op],
            group=self._group(axes),
            source=source.address,
            out=out.address,
            dtype=constant(source.dtype),
            **fields,
        )
        _run(self._need(), call, call_site(depth))


def _reduction(op: str) -> int:
    if op not in _REDUCTIONS:
        raise InvalidError(f"op takes one of {', '.join(_REDUCTIONS)}, not {op!r}")
    return _REDUCTIONS[op]


def _need_alike(source: Memory, out: Memory, shape: Any) -> None:
    if out.dtype != source.dtype:
        raise InvalidError(f"the arrays have different types, {_short(source)} and {_short(out)}")
    if out.shape != tuple(shape):
        raise InvalidError(f"an array of shape {list(out.shape)} stands where {list(shape)} is needed")


def _short(memory: Memory) -> str:
    return memory.dtype[3:].lower()
