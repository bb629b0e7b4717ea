"""Finds, loads and calls addend's two shared libraries. A status other than AD_OK becomes an exception; a C string that
the caller owns becomes a str. The core library is always installed, the trainer library may be missing."""

from __future__ import annotations

import ctypes
import importlib.util
import os
from pathlib import Path
from typing import Any, Callable, Dict, Optional, Sequence, Type, TypeVar

from addend._errors import AddendError, MissingTrainerError, error_of

_FOLDER = Path(__file__).parent / "_native"  # the wheel of `addend` has its libraries here
_GET_TRAINER = (
    "`pip install './python[train]'` in addend's folder builds it; script/setup there installs what that needs"
)


def _given() -> Optional[Path]:
    """The core library that ADDEND_LIBRARY names; the other parts of the same build are beside it."""
    path = os.environ.get("ADDEND_LIBRARY")
    return Path(path) if path else None


def _in(folder: Path, name: str) -> Path:
    """The path of a library in a wheel's folder, where its file name ends in the soname's version."""
    return next(iter(sorted(folder.glob(f"{name}.so*"))), folder / f"{name}.so")


def _core_path() -> Path:
    return _given() or _in(_FOLDER, "libaddend")


def _trainer_path() -> Optional[Path]:
    """The trainer library beside the core that ADDEND_LIBRARY names, or in the wheel `addend-train`, or None."""
    given = _given()
    if given:
        path = given.parent / given.name.replace("libaddend.", "libaddend_train.")
    else:
        package = importlib.util.find_spec("addend_train")
        if package is None or package.origin is None:
            return None
        path = _in(Path(package.origin).parent / "_native", "libaddend_train")
    return path if path != given and path.exists() else None


def program_path() -> Path:
    """The program `addend` of the same build, with the trainer's commands if the trainer is installed. It is in the
    library's folder, or, after `cmake --install`, in PREFIX/bin."""
    folder = (_trainer_path() or _core_path()).parent
    places = [folder / "addend", *(parent / "bin" / "addend" for parent in list(folder.parents)[:2])]
    return next((place for place in places if place.is_file()), places[0])


def _load() -> ctypes.CDLL:
    try:
        return ctypes.CDLL(str(_core_path()))
    except OSError as error:
        hint = (
            "the environment variable ADDEND_LIBRARY names it"
            if _given()
            else ("`pip install ./python` in addend's folder builds it, or ADDEND_LIBRARY names one that is built")
        )
        raise ImportError(f"addend's library could not be loaded: {error}; {hint}") from error


_library = _load()
_trainer: Optional[ctypes.CDLL] = None
_free = ctypes.CDLL(None).free
_free.argtypes, _free.restype = [ctypes.c_void_p], None


def need_trainer(what: str) -> Path:
    """The path of the trainer library. If it is not installed, raises an error that says how to get it."""
    path = _trainer_path()
    if path is None:
        raise MissingTrainerError(f"{what} needs addend's trainer, which is not installed: {_GET_TRAINER}")
    return path


def _load_trainer(what: str) -> ctypes.CDLL:
    """Loads the trainer at its first use only, because it loads OpenBLAS too."""
    global _trainer
    path = need_trainer(what)
    try:
        _trainer = _trainer or ctypes.CDLL(str(path))
    except OSError as error:
        raise MissingTrainerError(
            f"{what} needs addend's trainer, which could not be loaded: {error}; build it again: {_GET_TRAINER}"
        ) from error
    return _trainer


def show_to_all(what: str) -> None:
    """Makes the functions of both libraries visible to shared objects that are loaded later."""
    for path in (_core_path(), need_trainer(what)):
        ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)


Structure = TypeVar("Structure", bound=ctypes.Structure)


def _find(name: str) -> Any:
    if hasattr(_library, name):
        return getattr(_library, name)
    trainer = _load_trainer(name)
    if hasattr(trainer, name):
        return getattr(trainer, name)
    raise ImportError(f"addend's library {_core_path()} is of another version: it has no {name}")


def function(name: str, returns: Any, *takes: Any) -> Callable[..., Any]:
    """A C function of the library, looked up at its first call; its result is returned unchanged."""
    found: Dict[str, Any] = {}

    def call(*arguments: Any) -> Any:
        if not found:
            found[name] = _find(name)
            found[name].restype, found[name].argtypes = returns, takes
        return found[name](*arguments)

    return call


def bound(name: str, returns: Any, *takes: Any) -> Any:
    """A C function of the library, looked up now: for functions that are called so often that `function` is slow."""
    found = _find(name)
    found.restype, found.argtypes = returns, takes
    return found


_status_name = function("ad_status_name", ctypes.c_char_p, ctypes.c_int)
_last_error = function("ad_last_error", ctypes.c_char_p)


def checked(name: str, *takes: Any) -> Callable[..., None]:
    """A C function that returns a status; a status other than AD_OK is raised with the library's error message."""
    plain = function(name, ctypes.c_int, *takes)

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
    """The value of a constant (or sizeof(TYPE)) of the C headers by its name."""
    out = ctypes.c_int64()
    _header_constant(name.encode(), out)
    return out.value


def same_size(name: str) -> Callable[[Type[Structure]], Type[Structure]]:
    """A class decorator that checks a ctypes structure's size against that of the library's C struct `name`."""

    def hold(structure: Type[Structure]) -> Type[Structure]:
        if ctypes.sizeof(structure) != constant(f"sizeof({name})"):
            raise ImportError(
                f"addend's library {_core_path()} is of another version ({version()}) than this "
                f"package: its {name} has another size"
            )
        return structure

    return hold


def version() -> str:
    """The version of the core library."""
    text: bytes = function("ad_version", ctypes.c_char_p)()
    return text.decode()
