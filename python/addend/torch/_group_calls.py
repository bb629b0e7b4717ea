"""The calls of one process group into addend's library: fills their structures, posts them, waits for them, and fails
them if a wait takes too long. _group_collectives.py says what each call moves."""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, Callable

from addend._comm import Comm, _Collective
from addend._errors import InvalidError
from addend._library import bound, checked, constant, error_of_status, same_layout, take_text
from addend.torch._group_site import call_site


@same_layout("ad_request")
class Request(ctypes.Structure):
    _fields_ = [("id", ctypes.c_uint64), ("source", ctypes.c_int64)]


@same_layout("ad_transfer")
class _Transfer(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_size_t),
        ("ranks", ctypes.c_void_p),
        ("peer", ctypes.c_int64),
        ("tag", ctypes.c_int64),
        ("send", ctypes.c_void_p),
        ("receive", ctypes.c_void_p),
        ("receives", ctypes.c_int),
        ("count", ctypes.c_size_t),
        ("dtype", ctypes.c_int),
        ("site", ctypes.c_char_p),
    ]


@same_layout("ad_message")
class Message(ctypes.Structure):
    _fields_ = [
        ("peer", ctypes.c_int64),
        ("send", ctypes.c_void_p),
        ("receive", ctypes.c_void_p),
        ("count", ctypes.c_size_t),
    ]


_address = ctypes.c_void_p
_run = bound("ad_comm_run_at", ctypes.c_int, _address, _address, ctypes.c_char_p)
_post = bound("ad_comm_post_at", ctypes.c_int, _address, _address, _address, ctypes.c_char_p)
_post_transfer = bound("ad_comm_post_transfer_at", ctypes.c_int, _address, _address, _address, ctypes.c_char_p)
_test = bound("ad_comm_test", ctypes.c_int, _address, _address, _address)
_wait = bound("ad_comm_wait", ctypes.c_int, _address, _address)
_fail = bound("ad_comm_fail", None, _address, ctypes.c_int, ctypes.c_char_p)
_flight_recorder = checked("ad_comm_flight_recorder", ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p))
_missing = checked("ad_comm_missing", ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p))
_PEER_FAILED = constant("AD_PEER_FAILED")
_sizeof = ctypes.sizeof
TRANSFER = "transfer"
ANY_SOURCE = constant("AD_ANY_SOURCE")
OPS = {
    name: constant(f"AD_{name.upper()}")
    for name in ("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast", "barrier", "exchange")
}


def _template(op: str) -> Any:
    if op == TRANSFER:
        return _Transfer(size=_sizeof(_Transfer))
    return _Collective(size=_sizeof(_Collective), op=OPS[op])


class Posted:
    """Calls that were posted together, with a function to run once all are complete."""

    __slots__ = ("requests", "kept", "finish", "done", "error")

    def __init__(self, kept: Any, finish: Callable[[], None] | None):
        self.requests: list[Any] = []
        self.kept = kept  # tensors whose memory the calls read and write
        self.finish = finish
        self.done = False
        self.error: BaseException | None = None

    def settle(self) -> None:
        """Called once all calls are complete: runs `finish` and releases the tensors."""
        finish, self.finish, self.kept = self.finish, None, None
        self.done = True
        if finish is not None:
            finish()


class Calls:
    """A group's comm with one C structure for each operation, which each call fills again. A lock lets one thread call
    at a time."""

    def __init__(self, store: Any, rank: int, size: int, seconds: float):
        self.seconds = seconds  # timeout of a wait
        self._lock = threading.RLock()
        self._pid = os.getpid()
        self._comm = Comm(store=store, rank=rank, size=size, seconds=max(1, int(seconds)))
        self.handle: int | None = self._comm._handle.value
        self._templates: dict[str, Any] = {op: _template(op) for op in (*OPS, TRANSFER)}
        self._addresses = {op: ctypes.addressof(one) for op, one in self._templates.items()}
        self._in_flight: deque[Posted] = deque()
        self._is_done = ctypes.c_int()
        self._is_done_at = ctypes.addressof(self._is_done)
        self.since = 0.0  # time.monotonic() at which the present wait began; 0: no thread waits
        self._site = b""
        self.count = 0  # number of calls so far
        _watch(self)

    # ---- one call ----

    def run(self, op: str, fill: Callable[[Any], Any]) -> None:
        """Fills a call and runs it to completion. `fill` returns the objects that must live until then."""
        with self._lock:
            self._begin(call_site())
            kept = fill(self._templates[op])
            self.since = time.monotonic()
            status = _run(self.handle, self._addresses[op], self._site)
            self.since = 0.0
            del kept
        if status:
            raise error_of_status(status)

    def post(self, op: str, fills: Sequence[Callable[[Any], Any]], finish: Callable[[], None] | None) -> Posted:
        """Fills and starts several calls of one operation; the returned Posted is complete when all of them are."""
        start = _post_transfer if op == TRANSFER else _post
        with self._lock:
            self._begin(call_site())
            posted = Posted([], finish)
            for fill in fills:
                posted.kept.append(fill(self._templates[op]))
                request = Request()
                self.since = time.monotonic()
                status = start(self.handle, self._addresses[op], ctypes.addressof(request), self._site)
                self.since = 0.0
                if status:
                    raise error_of_status(status)
                posted.requests.append(request)
            self._in_flight.append(posted)
            return posted

    def _begin(self, site: bytes) -> None:
        if self.handle is None:
            raise InvalidError("this process group was destroyed or aborted: create a new one")
        self._site = site
        self.count += 1
        if self._in_flight:
            self._settle_first()

    def _settle_first(self) -> None:
        """Settles the oldest posted calls that are complete, in case their callers never wait for them."""
        while self._in_flight and self._test(self._in_flight[0]):
            self._in_flight.popleft()

    # ---- testing and waiting for posted calls ----

    def test(self, posted: Posted) -> bool:
        """Whether the calls are complete; if so, settles them."""
        with self._lock:
            return self._test(posted)

    def _test(self, posted: Posted) -> bool:
        if posted.done:
            return True
        for request in posted.requests:
            if not request.id:
                continue
            status = _test(self._need(), ctypes.addressof(request), self._is_done_at)
            if status:
                self._lose(posted, status)
            if not self._is_done.value:
                return False
        posted.settle()
        return True

    def wait(self, posted: Posted, seconds: float = 0.0) -> None:
        """Returns when the calls are complete and settled. `seconds`: a timeout of this wait, besides the group's own;
        0: no other timeout."""
        if posted.done:
            if posted.error is not None:
                raise posted.error
            return
        if seconds > 0:
            self._wait_until(posted, seconds)
            return
        with self._lock:
            if posted.done:
                return
            self.since = time.monotonic()
            for request in posted.requests:
                if request.id:
                    status = _wait(self._need(), ctypes.addressof(request))
                    if status:
                        self.since = 0.0
                        self._lose(posted, status)
            self.since = 0.0
            posted.settle()

    def _wait_until(self, posted: Posted, seconds: float) -> None:
        end = time.monotonic() + seconds
        while not self.test(posted):
            if time.monotonic() > end:
                self.fail(f"a wait took longer than its timeout of {seconds:g} s{self.missing()}")
            time.sleep(0.0002)

    def _lose(self, posted: Posted, status: int) -> None:
        """Marks failed calls and raises their error."""
        posted.done, posted.kept, posted.finish = True, None, None
        posted.error = error_of_status(status)
        raise posted.error

    def _need(self) -> int:
        if self.handle is None:
            raise InvalidError(
                "this process group was destroyed or aborted before a posted call was complete: wait for every call "
                "first"
            )
        return self.handle

    def in_flight(self) -> list[Posted]:
        with self._lock:
            return list(self._in_flight)

    @contextlib.contextmanager
    def alone(self) -> Iterator[int]:
        """A context with the comm's handle, in which no other thread can call it."""
        with self._lock:
            yield self._need()

    # ---- finishing, failing and closing ----

    def finish(self) -> None:
        """Waits for all posted calls."""
        with self._lock:
            while self._in_flight:
                self.wait(self._in_flight.popleft())

    def fail(self, words: str) -> None:
        """Raises an error with these words on every rank of the group, in the call in which it waits or in its next
        one. Any thread may call this, even while another thread is in a call."""
        with _closing:
            if self.handle is not None and os.getpid() == self._pid:
                _fail(self.handle, _PEER_FAILED, words.encode(errors="replace"))

    def missing(self) -> str:
        """Where the ranks are for which the present wait waits, as the end of a sentence. Any thread may call this."""
        with _closing:
            if self.handle is None or os.getpid() != self._pid:
                return ""
            text = ctypes.c_void_p()
            _missing(self.handle, text)
            words = take_text(text)
        return f"; {words}" if words else ""

    def close(self) -> None:
        with self._lock, _closing:
            self.handle = None
            self._in_flight.clear()
            if os.getpid() == self._pid:
                self._comm.close()

    def flight_recorder(self) -> str:
        with self._lock:
            text = ctypes.c_void_p()
            _flight_recorder(self._need(), text)
            return take_text(text)

    def give_up_if_late(self, now: float) -> None:
        """Called by the timeout thread: fails the group if a wait has lasted longer than the group's timeout."""
        since = self.since
        if since and now - since > self.seconds:
            place = self._site.decode()
            self.fail(f"waited {self.seconds:g} s, the timeout of its process group, at {place}{self.missing()}")


# ---- timeouts: one thread for all groups of the process ----

_closing = (
    threading.RLock()
)  # no comm may be closed while fail() uses it; reentrant, since garbage collection inside fail() may close a comm
_watched: weakref.WeakSet[Calls] = weakref.WeakSet()
_watcher: threading.Thread | None = None
_woken = threading.Event()


def _watch(calls: Calls) -> None:
    global _watcher
    _watched.add(calls)
    if _watcher is None or not _watcher.is_alive():
        _watcher = threading.Thread(target=_look, name="addend timeouts", daemon=True)
        _watcher.start()
    _woken.set()


def _look() -> None:
    while True:
        all_calls = list(_watched)
        shortest = min((calls.seconds for calls in all_calls if calls.handle is not None), default=60.0)
        now = time.monotonic()
        for calls in all_calls:
            calls.give_up_if_late(now)
        del all_calls  # or its references would keep destroyed groups alive
        _woken.wait(min(5.0, max(0.05, shortest / 10)))
        _woken.clear()
