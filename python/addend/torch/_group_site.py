"""Finds the line of the user's program that made a call: the innermost one that is not in PyTorch or addend."""

from __future__ import annotations

import os
import sys

import torch
import typing_extensions

_INSIDE = (
    os.path.dirname(torch.__file__) + os.sep,
    os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep,
    typing_extensions.__file__,  # wraps those functions of PyTorch that are deprecated
    os.path.dirname(os.__file__) + os.sep,
)
_outside: dict[str, bool] = {}
# The bytes for each (file, line), never freed: a posted call keeps their address until it is complete.
_sites: dict[tuple[str, int], bytes] = {}
_NOWHERE = b"a call that Python did not make"


def _is_outside(file: str) -> bool:
    packages = os.sep + "site-packages" + os.sep
    outside = not file.startswith(_INSIDE) or (packages in file and not file.startswith(_INSIDE[:3]))
    _outside[file] = outside = outside and not file.startswith("<frozen ")
    return outside


def call_site() -> bytes:
    """The line of the user's program, such as "train.py:88"."""
    frame = sys._getframe(2)
    while frame is not None:
        file = frame.f_code.co_filename
        outside = _outside.get(file)
        if outside is None:
            outside = _is_outside(file)
        if outside:
            key = (file, frame.f_lineno)  # not f_code, since code objects of two files may compare equal
            return _sites.get(key) or _sites.setdefault(
                key, f"{os.path.basename(file)}:{frame.f_lineno}".encode(errors="replace")
            )
        frame = frame.f_back  # type: ignore[assignment]
    return _NOWHERE
