"""Shows the progress of a call into the library on standard error, as addend's commands do.

The library shows nothing unless a caller asks for it. On a terminal it is a moving bar;
elsewhere, every few seconds a line."""

from __future__ import annotations

import ctypes
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

CProgress = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int64, ctypes.c_int64)
_BAR_WIDTH, _BAR_SECONDS, _QUIET_SECONDS = 24, 0.05, 5.0


def _is_terminal() -> bool:
    return sys.stderr.isatty() and os.environ.get("TERM") != "dumb"


class _Shown:
    def __init__(self, label: str):
        self.label, self.terminal = label, _is_terminal()
        self.last = 0.0 if self.terminal else time.monotonic()

    def show(self, what: str, done: int, of: int) -> None:
        now = time.monotonic()
        if now - self.last < (_BAR_SECONDS if self.terminal else _QUIET_SECONDS):
            return
        self.last = now
        if self.terminal:
            filled = _BAR_WIDTH * done // of if of > 0 else 0
            bar = "#" * filled + "." * (_BAR_WIDTH - filled)
            print(f"\r\033[K{self.label} [{bar}] {done}/{of} {what}", end="", file=sys.stderr, flush=True)
        else:
            print(f"{self.label} {done}/{of} {what}", file=sys.stderr, flush=True)

    def end(self) -> None:
        if self.terminal:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


@contextmanager
def progress(label: str) -> Iterator[Any]:
    """A context that gives a progress callback for a call into the library. Ctrl-C during the call is raised after the
    call, because no exception can pass through C code."""
    shown = _Shown(label)
    interrupts: list[BaseException] = []

    def tell(_: Any, what: bytes, done: int, of: int) -> None:
        try:
            shown.show(what.decode(errors="replace"), done, of)
        except BaseException as interrupt:  # no exception can pass through C code
            interrupts.append(interrupt)

    try:
        yield CProgress(tell)
    finally:
        shown.end()
    if interrupts:
        raise interrupts[0]
