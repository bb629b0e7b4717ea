"""A process that was forked ends with the one that forked it."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def end_with(parent: int) -> None:
    """Makes this process end when `parent`, which forked it, ends in whatever way (on Linux; elsewhere nothing is
    asked for). Ends it immediately if `parent` has ended already."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
