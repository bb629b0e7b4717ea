"""Finds out that another rank's process has ended while this one waits for it. A process of another machine, or of
another container, cannot be seen; there the transport's errors and the group's timeout end the wait."""

from __future__ import annotations

import os
import time
from typing import Any, Callable

_SOONEST, _LATEST = 0.00005, 0.01  # shortest and longest pause in seconds between two looks at a collective
LOOKS = 0.25  # seconds between two looks at the ranks' processes
_GRACE = 1.2  # seconds in which a collective may still complete after a rank ended that had done its part


class Lost(RuntimeError):
    """Another rank ended, or cannot be reached: what was exchanged with it cannot be completed."""


def _started(pid: int) -> str:
    """When the process started, in ticks since the machine's start; "": there is no such process, or it has ended and
    is only waited for by its parent."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]


def _machine() -> str:
    """Names the machine since its start, and the container whose process numbers this process sees."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return f"{file.read().strip()}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def identity() -> str:
    """Words by which other ranks can see whether this process still runs."""
    return f"{_machine()} {os.getpid()} {_started(os.getpid())}"


def has_ended(identity_of_other: str) -> bool:
    """Whether the process has ended; False also where that cannot be seen."""
    machine, pid, started = (identity_of_other.split(" ") + [""] * 3)[:3]
    return bool(machine and started) and machine == _machine() and _started(int(pid)) != started


_look: list[Callable[[], str | None]] = []  # how the running watch looks for ranks that ended; at most one


def look_by(look: Callable[[], str | None] | None) -> None:
    """Sets what `complete` calls to look for a rank that ended: it returns words on it, or None. None: nothing."""
    _look[:] = [look] if look else []


def _found_within(seconds: float) -> str | None:
    until = time.monotonic() + seconds
    while True:
        found = _look[0]() if _look else None
        if found or time.monotonic() > until:
            return found
        time.sleep(_LATEST)


def _await(work: Any) -> None:
    began = time.monotonic()
    looked, pause, lost = began, _SOONEST, 0.0
    while not work.is_completed():
        now = time.monotonic()
        if now - looked > LOOKS:
            looked, found = now, _look[0]()
            lost = (lost or now) if found else 0.0
            if found and now - lost > _GRACE:
                raise Lost(found)
        time.sleep(pause)
        pause = min(2 * pause, _LATEST)
    work.wait()


def complete(work: Any) -> None:
    """Waits until a collective that was begun with async_op=True is complete. While a watch runs, raises Lost if a rank
    ends that it needs, or cannot be reached."""
    if not _look:
        work.wait()
        return
    try:
        _await(work)
    except Lost:
        raise
    except RuntimeError as error:
        words = _found_within(2 * LOOKS) or f"an exchange with the other ranks failed: {str(error).splitlines()[0]}"
        raise Lost(words) from error
