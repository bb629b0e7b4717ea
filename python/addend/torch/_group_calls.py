"""The calls of one group on its comm: filled in, posted, waited for, and ended where a wait takes too long. What they
move is _group.py's business."""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
import time
import weakref
from collections import deque
from typing import Any, Callable, Deque, Dict, Iterator, List, Optional, Sequence

from addend._comm import Comm, _Collective
from addend._errors import InvalidError
from addend._library import bound, checked, constant, error_of_status, same_size, take_text
from addend.torch._group_site import call_site


@same_size("ad_request")
class Request(ctypes.Structure):
    _fields_ = [("id", ctypes.c_uint64), ("source", ctypes.c_int64)]


@same_size("ad_transfer")
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


@same_size("ad_message")
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
_flight_record = checked("ad_comm_flight_record", ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p))
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
    """Calls that were posted together, and what is to be done when all are complete."""

    __slots__ = ("requests", "kept", "finish", "done", "error")

    def __init__(self, kept: Any, finish: Optional[Callable[[], None]]):
        self.requests: List[Any] = []
        self.kept = kept  # tensors whose memory the calls read and write
        self.finish = finish
        self.done = False
        self.error: Optional[BaseException] = None

    def settle(self) -> None:
        """All calls are complete."""
        finish, self.finish, self.kept = self.finish, None, None
        self.done = True
        if finish is not None:
            finish()


class Calls:
    """A comm with one structure for each operation, which every call fills anew. One thread at a time: others wait."""

    def __init__(self, store: Any, rank: int, size: int, seconds: float):
        self.seconds = seconds  # that a call may wait
        self._lock = threading.RLock()
        self._pid = os.getpid()
        self._comm = Comm(store=store, rank=rank, size=size, seconds=max(1, int(seconds)))
        self.handle: Optional[int] = self._comm._handle.value
        self._templates: Dict[str, Any] = {op: _template(op) for op in (*OPS, TRANSFER)}
        self._addresses = {op: ctypes.addressof(one) for op, one in self._templates.items()}
        self._under_way: Deque[Posted] = deque()
        self._is_done = ctypes.c_int()
        self._is_done_at = ctypes.addressof(self._is_done)
        self.since = 0.0  # when the call that now waits began; 0: none waits
        self._site = b""
        self.count = 0  # calls so far
        _watch(self)

    # ---- one call ----

    def run(self, op: str, fill: Callable[[Any], Any]) -> None:
        """Fills and runs a call to its end. `fill` gives back what must stay until then."""
        with self._lock:
            self._begin(call_site())
            kept = fill(self._templates[op])
            self.since = time.monotonic()
            status = _run(self.handle, self._addresses[op], self._site)
            self.since = 0.0
            del kept
        if status:
            raise error_of_status(status)

    def post(self, op: str, fills: Sequence[Callable[[Any], Any]], finish: Optional[Callable[[], None]]) -> Posted:
        """Fills and starts calls of one operation, which are complete together."""
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
            self._under_way.append(posted)
            return posted

    def _begin(self, site: bytes) -> None:
        if self.handle is None:
            raise InvalidError("this process group was destroyed or aborted; make another one")
        self._site = site
        self.count += 1
        if self._under_way:
            self._settle_first()

    def _settle_first(self) -> None:
        """Those whose caller never waits are settled at later calls."""
        while self._under_way and self._test(self._under_way[0]):
            self._under_way.popleft()

    # ---- what was posted ----

    def test(self, posted: Posted) -> bool:
        """Whether it is complete; settles it then."""
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
        """Returns when it is complete and settled. `seconds`: of this wait, beside the group's own; 0: none."""
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
                self.fail(f"a wait took longer than the {seconds:g} s that it was given")
            time.sleep(0.0002)

    def _lose(self, posted: Posted, status: int) -> None:
        posted.done, posted.kept, posted.finish = True, None, None
        posted.error = error_of_status(status)
        raise posted.error

    def _need(self) -> int:
        if self.handle is None:
            raise InvalidError("this process group was destroyed or aborted while a call was under way")
        return self.handle

    def under_way(self) -> List[Posted]:
        with self._lock:
            return list(self._under_way)

    @contextlib.contextmanager
    def alone(self) -> Iterator[int]:
        """The comm, while no other thread is in a call of it."""
        with self._lock:
            yield self._need()

    # ---- the end ----

    def finish(self) -> None:
        """Waits for all that is under way."""
        with self._lock:
            while self._under_way:
                self.wait(self._under_way.popleft())

    def fail(self, words: str) -> None:
        """Every rank of the group gets these words as the error of the call it waits in, or of its next one. Of any
        thread, also while another is in a call."""
        with _closing:
            if self.handle is not None and os.getpid() == self._pid:
                _fail(self.handle, _PEER_FAILED, words.encode(errors="replace"))

    def close(self) -> None:
        with self._lock, _closing:
            self.handle = None
            self._under_way.clear()
            if os.getpid() == self._pid:
                self._comm.close()

    def flight_record(self) -> str:
        with self._lock:
            text = ctypes.c_void_p()
            _flight_record(self._need(), text)
            return take_text(text)

    def give_up_if_late(self, now: float) -> None:
        """Of the watch: ends a wait that took longer than the group's timeout."""
        since = self.since
        if since and now - since > self.seconds:
            self.fail(f"waited {self.seconds:g} s, the timeout of its process group, at {self._site.decode()}")


# ---- timeouts: one thread for all groups of the process ----

_closing = (
    threading.RLock()
)  # no comm is closed while it is failed; a group that is collected meanwhile may close its own
_watched: weakref.WeakSet[Calls] = weakref.WeakSet()
_watcher: Optional[threading.Thread] = None
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
        del all_calls  # which would keep them
        _woken.wait(min(5.0, max(0.05, shortest / 10)))
        _woken.clear()
