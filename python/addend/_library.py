"""The shared libraries: found, loaded and called. A status that is not ok becomes an exception, a text that the caller
frees becomes a str. The core is always there; the trainer may not be."""

from __future__ import annotations

import ctypes
import importlib.util
import os
from pathlib import Path
from typing import Any, Callable, Dict, Optional, Sequence, Type, TypeVar

from addend._errors import AddendError, MissingTrainerError, error_of

_FOLDER = Path(__file__).parent / "_native"  # what the wheel of `addend` brings
_GET_TRAINER = (
    "`pip install './python[train]'` in addend's folder builds it; script/setup there installs what that needs"
)


def _given() -> Optional[Path]:
    """The core that the caller names, with all that was built beside it."""
    path = os.environ.get("ADDEND_LIBRARY")
    return Path(path) if path else None


def _in(folder: Path, name: str) -> Path:
    """A library in a folder of a wheel, where it lies by its soname."""
    return next(iter(sorted(folder.glob(f"{name}.so*"))), folder / f"{name}.so")


def _core_path() -> Path:
    return _given() or _in(_FOLDER, "libaddend")


def _trainer_path() -> Optional[Path]:
    """Beside the core that was named, or what the wheel of `addend-train` brings."""
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
    """The program `addend` of the same build, with the trainer's commands where the trainer is there. It lies beside
    the library, or in the `bin` of what `cmake --install` made, where `lib/addend` is a folder."""
    folder = (_trainer_path() or _core_path()).parent
    places = [folder / "addend", *(parent / "bin" / "addend" for parent in list(folder.parents)[:2])]
    return next((place for place in places if place.is_file()), places[0])


def _load() -> ctypes.CDLL:
    try:
        return ctypes.CDLL(str(_core_path()))
    except OSError as error:
        hint = (
            "ADDEND_LIBRARY names it"
            if _given()
            else ("`pip install ./python` in addend's folder builds it, or ADDEND_LIBRARY names one that is built")
        )
        raise ImportError(f"addend's library could not be loaded: {error}; {hint}") from error


_library = _load()
_trainer: Optional[ctypes.CDLL] = None
_free = ctypes.CDLL(None).free
_free.argtypes, _free.restype = [ctypes.c_void_p], None


def need_trainer(what: str) -> Path:
    """Raises, with how to get it, where the trainer is not there."""
    path = _trainer_path()
    if path is None:
        raise MissingTrainerError(f"{what} needs addend's trainer, which is not here: {_GET_TRAINER}")
    return path


def _load_trainer(what: str) -> ctypes.CDLL:
    """When it is first needed, for it brings OpenBLAS along."""
    global _trainer
    path = need_trainer(what)
    try:
        _trainer = _trainer or ctypes.CDLL(str(path))
    except OSError as error:
        raise MissingTrainerError(
            f"{what} needs addend's trainer, which could not be loaded: {error}; built anew it fits: {_GET_TRAINER}"
        ) from error
    return _trainer


def show_to_all(what: str) -> None:
    """What is loaded from now on finds the functions of both libraries."""
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
    """A function of the library as it is; it is looked up at its first call."""
    found: Dict[str, Any] = {}

    def call(*arguments: Any) -> Any:
        if not found:
            found[name] = _find(name)
            found[name].restype, found[name].argtypes = returns, takes
        return found[name](*arguments)

    return call


def bound(name: str, returns: Any, *takes: Any) -> Any:
    """A function of the library as it is, looked up now: for those that are called too often to look first."""
    found = _find(name)
    found.restype, found.argtypes = returns, takes
    return found


_status_name = function("ad_status_name", ctypes.c_char_p, ctypes.c_int)
_last_error = function("ad_last_error", ctypes.c_char_p)


def checked(name: str, *takes: Any) -> Callable[..., None]:
    """A function that returns a status: any but ok is raised, with the library's sentence."""
    plain = function(name, ctypes.c_int, *takes)

    def call(*arguments: Any) -> None:
        status = plain(*arguments)
        if status:
            raise error_of_status(status)

    return call


def error_of_status(status: int) -> AddendError:
    """What a status of the last call of this thread that failed is raised as, with the library's sentence."""
    return error_of(_status_name(status).decode(), _last_error().decode(errors="replace"))


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
                f"addend's library {_core_path()} is of another version ({version()}) than this "
                f"package: its {name} has another size"
            )
        return structure

    return hold


def version() -> str:
    """The library's."""
    text: bytes = function("ad_version", ctypes.c_char_p)()
    return text.decode()
