"""Finds, loads and calls addend's shared library. A status other than AD_OK becomes an exception; a C string that the
caller owns becomes a str."""

from __future__ import annotations

import ctypes
import importlib.util
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Callable, TypeVar

from addend._errors import AddendError, error_of

_FOLDER = Path(__file__).parent / "_native"  # the wheel of `addend` has its libraries here


def given() -> Path | None:
    """The library that ADDEND_LIBRARY names; the other parts of the same build are beside it."""
    path = os.environ.get("ADDEND_LIBRARY")
    return Path(path) if path else None


def in_wheel(folder: Path, name: str) -> Path:
    """The path of a library in a wheel's folder, where its file name ends in the soname's version."""
    return next(iter(sorted(folder.glob(f"{name}.so*"))), folder / f"{name}.so")


def core_path() -> Path:
    """The library."""
    return given() or in_wheel(_FOLDER, "libaddend")


def program_path() -> Path:
    """The program `addend` of the same build: in the library's folder, or, after `cmake --install`, in PREFIX/bin. Of
    two wheels, addend-train's has the commands of both."""
    folder = core_path().parent
    places = [folder / "addend", *(parent / "bin" / "addend" for parent in list(folder.parents)[:2])]
    package = None if given() else importlib.util.find_spec("addend_train")
    if package and package.origin:
        places.insert(0, Path(package.origin).parent / "_native" / "addend")
    return next((place for place in places if place.is_file()), folder / "addend")


def _load() -> ctypes.CDLL:
    try:
        return ctypes.CDLL(str(core_path()))
    except OSError as error:
        hint = (
            "the environment variable ADDEND_LIBRARY names it"
            if given()
            else ("`pip install ./python` in addend's folder builds it, or ADDEND_LIBRARY names one that is built")
        )
        raise ImportError(f"addend's library could not be loaded: {error}; {hint}") from error


_library = _load()
_free = ctypes.CDLL(None).free
_free.argtypes, _free.restype = [ctypes.c_void_p], None


Structure = TypeVar("Structure", bound=ctypes.Structure)


Loader = Callable[[str], ctypes.CDLL]  # gives the library that has the function of this name


def _core(name: str) -> ctypes.CDLL:
    return _library


def _find(name: str, loader: Loader) -> Any:
    library = loader(name)
    if not hasattr(library, name):
        raise ImportError(f"addend's library {library._name} is of another version: it has no {name}")
    return getattr(library, name)


def function(name: str, returns: Any, *takes: Any, loader: Loader = _core) -> Callable[..., Any]:
    """A C function of the library, looked up at its first call; its result is returned unchanged."""
    found: dict[str, Any] = {}

    def call(*arguments: Any) -> Any:
        if not found:
            found[name] = _find(name, loader)
            found[name].restype, found[name].argtypes = returns, takes
        return found[name](*arguments)

    return call


def bound(name: str, returns: Any, *takes: Any) -> Any:
    """A C function of the library, looked up now: for functions that are called so often that `function` is slow."""
    found = _find(name, _core)
    found.restype, found.argtypes = returns, takes
    return found


_status_name = function("ad_status_name", ctypes.c_char_p, ctypes.c_int)
_last_error = function("ad_last_error", ctypes.c_char_p)


def checked(name: str, *takes: Any, loader: Loader = _core) -> Callable[..., None]:
    """A C function that returns a status; a status other than AD_OK is raised with the library's error message."""
    plain = function(name, ctypes.c_int, *takes, loader=loader)

    def call(*arguments: Any) -> None:
        status = plain(*arguments)
        if status:
            raise error_of_status(status)

    return call


def error_of_status(status: int) -> AddendError:
    """The exception for the status of this thread's last call, with the library's error message."""
    return error_of(_status_name(status).decode(), _last_error().decode(errors="replace"))


def take_text(text: ctypes.c_void_p) -> str:
    """The C string as a str; frees it, since the library gave it to the caller."""
    try:
        return ctypes.string_at(text.value or 0).decode()
    finally:
        _free(text)


def texts(values: Sequence[str]) -> Any:
    """An array of C strings."""
    return (ctypes.c_char_p * len(values))(*[value.encode() for value in values])


def path_of(path: Any) -> str:
    """A str, bytes or os.PathLike as str."""
    return os.fsdecode(os.fspath(path))


_header_constant = checked("ad_header_constant", ctypes.c_char_p, ctypes.POINTER(ctypes.c_int64))


def constant(name: str) -> int:
    """The value of a constant (or sizeof(TYPE), or offsetof(TYPE, FIELD)) of the C headers by its name."""
    out = ctypes.c_int64()
    _header_constant(name.encode(), out)
    return out.value


held: dict[type[ctypes.Structure], str] = {}  # structures that same_layout checked, with the names in C


def same_layout(name: str, **names: str) -> Callable[[type[Structure]], type[Structure]]:
    """A class decorator that checks the size of a ctypes structure, and the offset of each of its fields, against the
    library's C struct `name`. `names`: the names in C of fields that have another one here, since Python's keywords
    (`from`, `in`) are no names of attributes."""

    def hold(structure: type[Structure]) -> type[Structure]:
        differences = [] if ctypes.sizeof(structure) == constant(f"sizeof({name})") else ["has another size"]
        for field, *_ in structure._fields_:
            own = names.get(field, field)
            if getattr(structure, field).offset != constant(f"offsetof({name}, {own})"):
                differences.append(f"has its field `{own}` elsewhere")
        if differences:
            raise ImportError(
                f"addend's library {core_path()} is of another version ({version()}) than this "
                f"package: its {name} {' and '.join(differences)}"
            )
        held[structure] = name
        return structure

    return hold


def version() -> str:
    """The version of the core library."""
    text: bytes = function("ad_version", ctypes.c_char_p)()
    return text.decode()
