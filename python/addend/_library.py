"""The shared libraries: found, loaded and called. A status that is not ok becomes an exception, a text that the caller
frees becomes a str. The core is always there; the trainer may not be."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Any, Callable, Dict, Optional, Sequence, Type, TypeVar

from addend._errors import MissingTrainerError, error_of

_FOLDER = Path(__file__).parent / "_native"  # what a wheel brings


def _library_path() -> Path:
    return Path(os.environ.get("ADDEND_LIBRARY") or _FOLDER / "libaddend.so")


def program_path() -> Path:
    """The program `addend` of the same build: it lies beside the library."""
    return _library_path().parent / "addend"


def _load() -> ctypes.CDLL:
    path = _library_path()
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        hint = (
            "ADDEND_LIBRARY names it"
            if "ADDEND_LIBRARY" in os.environ
            else ("`pip install ./python` in addend's folder builds it, or ADDEND_LIBRARY names one that is built")
        )
        raise ImportError(f"addend's library could not be loaded: {error}; {hint}") from error


def _load_trainer(core: Path) -> Optional[ctypes.CDLL]:
    path = core.parent / core.name.replace("libaddend.", "libaddend_train.")
    return ctypes.CDLL(str(path)) if path.exists() else None


_library = _load()
_trainer = _load_trainer(_library_path())
_free = ctypes.CDLL(None).free
_free.argtypes, _free.restype = [ctypes.c_void_p], None

_GET_TRAINER = "`pip install './python[train]'` in addend's folder builds it"

Structure = TypeVar("Structure", bound=ctypes.Structure)


def _find(name: str) -> Any:
    for library in (_library, _trainer):
        if library is not None and hasattr(library, name):
            return getattr(library, name)
    if _trainer is None:
        raise MissingTrainerError(f"{name} needs addend's trainer, which is not here: {_GET_TRAINER}")
    raise ImportError(f"addend's library {_library_path()} is of another version: it has no {name}")


def function(name: str, returns: Any, *takes: Any) -> Callable[..., Any]:
    """A function of the library as it is; it is looked up at its first call."""
    found: Dict[str, Any] = {}

    def call(*arguments: Any) -> Any:
        if not found:
            found[name] = _find(name)
            found[name].restype, found[name].argtypes = returns, takes
        return found[name](*arguments)

    return call


_status_name = function("ad_status_name", ctypes.c_char_p, ctypes.c_int)
_last_error = function("ad_last_error", ctypes.c_char_p)


def checked(name: str, *takes: Any) -> Callable[..., None]:
    """A function that returns a status: any but ok is raised, with the library's sentence."""
    plain = function(name, ctypes.c_int, *takes)

    def call(*arguments: Any) -> None:
        status = plain(*arguments)
        if status:
            raise error_of(_status_name(status).decode(), _last_error().decode(errors="replace"))

    return call


def take_text(text: ctypes.c_void_p) -> str:
    """A text that the library gave away, which is freed."""
    try:
        return ctypes.string_at(text.value or 0).decode()
    finally:
        _free(text)


def texts(values: Sequence[str]) -> Any:
    """An array of C strings."""
    return (ctypes.c_char_p * len(values))(*[value.encode() for value in values])


def path_of(path: Any) -> str:
    """A path as the library takes it."""
    return os.fsdecode(os.fspath(path))


_header_constant = checked("ad_header_constant", ctypes.c_char_p, ctypes.POINTER(ctypes.c_int64))


def constant(name: str) -> int:
    """A number of the C headers by its name."""
    out = ctypes.c_int64()
    _header_constant(name.encode(), out)
    return out.value


def same_size(name: str) -> Callable[[Type[Structure]], Type[Structure]]:
    """Holds a structure that is declared here to the library's own."""

    def hold(structure: Type[Structure]) -> Type[Structure]:
        if ctypes.sizeof(structure) != constant(f"sizeof({name})"):
            raise ImportError(
                f"addend's library {_library_path()} is of another version ({version()}) than this "
                f"package: its {name} has another size"
            )
        return structure

    return hold


def version() -> str:
    """The library's."""
    text: bytes = function("ad_version", ctypes.c_char_p)()
    return text.decode()
