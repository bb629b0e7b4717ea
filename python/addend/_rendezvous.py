"""Joins a world through a store: an object with `set`, `get` and `wait` like torch.distributed's stores."""

from __future__ import annotations

import ctypes
import datetime
from typing import Any, Callable

from addend._errors import InvalidError
from addend._library import checked, constant, function, same_layout

_Put = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_size_t)
_Wait = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int64)
_Get = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_size_t)


@same_layout("ad_rendezvous")
class _Rendezvous(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_size_t),
        ("context", ctypes.c_void_p),
        ("put", _Put),
        ("wait", _Wait),
        ("get", _Get),
        ("seconds", ctypes.c_int64),
    ]


_join = checked(
    "ad_comm_join",
    ctypes.c_int64,
    ctypes.c_int64,
    ctypes.POINTER(_Rendezvous),
    ctypes.POINTER(ctypes.c_void_p),
)
_fail = function("ad_fail", ctypes.c_int, ctypes.c_int, ctypes.c_char_p, ctypes.c_char_p)


def _said(call: Callable[[], None]) -> int:
    """Runs a callback and returns its C status; an exception becomes the message of the library's error."""
    try:
        call()
    except Exception as error:  # no exception can pass through C code
        words = f"{type(error).__name__}: {error}"
        return int(_fail(constant("AD_SYSTEM"), b"%s", words.encode(errors="replace")))
    return 0


def _copy(store: Any, key: str, to: int, size: int) -> None:
    value = bytes(store.get(key))
    if len(value) != size:
        raise ValueError(
            f"the store's `{key}` has {len(value)} bytes, not {size}: something else used this store; give addend a "
            "store of its own"
        )
    ctypes.memmove(to, value, size)


def join(store: Any, rank: int, size: int, seconds: int, handle: ctypes.c_void_p) -> None:
    """Joins as rank `rank` of `size` ranks and stores the new comm in `handle`."""
    missing: list[str] = [name for name in ("set", "get", "wait") if not hasattr(store, name)]
    if missing:
        raise InvalidError(
            f"a store must have set, get and wait, as torch.distributed.Store has; this store has no `{missing[0]}`"
        )

    def put(_: Any, key: bytes, value: int, length: int) -> int:
        return _said(lambda: store.set(key.decode(), ctypes.string_at(value, length)))

    def wait(_: Any, key: bytes, most: int) -> int:
        return _said(lambda: store.wait([key.decode()], datetime.timedelta(seconds=most)))

    def get(_: Any, key: bytes, to: int, length: int) -> int:
        return _said(lambda: _copy(store, key.decode(), to, length))

    by = _Rendezvous(ctypes.sizeof(_Rendezvous), None, _Put(put), _Wait(wait), _Get(get), seconds)
    _join(rank, size, by, handle)
