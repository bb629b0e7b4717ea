"""Where in the user's program a call stands: the innermost line that is neither PyTorch's nor addend's."""

from __future__ import annotations

import os
import sys
from typing import Dict, Tuple

import torch
import typing_extensions

_INSIDE = (
    os.path.dirname(torch.__file__) + os.sep,
    os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep,
    typing_extensions.__file__,  # PyTorch marks some of its functions as deprecated by it
    os.path.dirname(os.__file__) + os.sep,
)
_outside: Dict[str, bool] = {}
# A posted call keeps the address of its site until it is complete: none is ever freed.
_sites: Dict[Tuple[str, int], bytes] = {}
_NOWHERE = b"a call that Python did not make"


def _is_outside(file: str) -> bool:
    packages = os.sep + "site-packages" + os.sep
    outside = not file.startswith(_INSIDE) or (packages in file and not file.startswith(_INSIDE[:3]))
    _outside[file] = outside = outside and not file.startswith("<frozen ")
    return outside


def call_site() -> bytes:
    """ "train.py:88"."""
    frame = sys._getframe(2)
    while frame is not None:
        file = frame.f_code.co_filename
        outside = _outside.get(file)
        if outside is None:
            outside = _is_outside(file)
        if outside:
            key = (file, frame.f_lineno)  # not the code: that of another file may be equal to it
            return _sites.get(key) or _sites.setdefault(
                key, f"{os.path.basename(file)}:{frame.f_lineno}".encode(errors="replace")
            )
        frame = frame.f_back  # type: ignore[assignment]
    return _NOWHERE
