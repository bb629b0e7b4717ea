"""A project's own models and layouts: the functions that `check` takes, in a Python file or a dictionary."""

from __future__ import annotations

import difflib
import importlib.util
import inspect
import itertools
import numbers
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Callable, NoReturn

import addend
from addend.torch._checks import _axes, _ranks
from addend.torch._matrix._cells import Cell, Job, Layout, Wanted

NEEDED = ("parallelize", "batches", "loss")
PASSED = (*NEEDED, "run", "averaged", "norm", "optimizer", "steps", "bound", "seed")  # passed to `check`
_MESHES = ({"dp": 2}, {"dp": 3}, {"dp": 1})
_OF_FILE = ("make_model", "models", "layouts", "meshes", *PASSED)
_OF_LAYOUT = ("mesh", "models", "make_model", *PASSED)
_TAKES: Mapping[str, tuple[str, ...]] = {
    "make_model": (),
    "parallelize": ("model", "mesh"),
    "batches": ("rank", "mesh"),
    "loss": ("model", "batch"),
    "run": ("model", "microbatches", "loss"),
    "norm": ("model",),
    "optimizer": ("model",),
}  # the parameters of each function; `batches` may have one more, the number of microbatches
_COUNTED = (*_TAKES["batches"], "microbatches")
_files = itertools.count()


def read(path: str) -> dict[str, Any]:
    """What a Python file defines."""
    stem = os.path.splitext(os.path.basename(path))[0]
    # A name that no other module has: the file may have the name of a standard module, or of another file.
    name = f"_addend_matrix_{next(_files)}_{re.sub(r'[^0-9A-Za-z_]', '_', stem)}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not os.path.exists(path):
        raise addend.InvalidError(f"{path} is not a Python file that can be read: name a file that ends in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise addend.InvalidError(f"{path} cannot be read: {_ranks.reported(error)}") from error
    return dict(vars(module))


def _takes(function: Any, count: int) -> bool:
    """Whether a function can be called with so many arguments; one of which nothing is known can."""
    try:
        inspect.signature(function).bind(*[None] * count)
    except TypeError:
        return False
    except ValueError:  # it has no signature, as some that are written in C
        pass
    return True


def _is_counted(batches: Any) -> bool:
    """Whether `batches` has a parameter for the number of microbatches."""
    if not callable(batches):
        return False
    by_place = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    try:
        found = inspect.signature(batches).parameters.values()
    except ValueError:
        return False
    return sum(parameter.kind in by_place for parameter in found) > len(_TAKES["batches"])


def _is_number(value: Any, kind: type) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


_KINDS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    **{key: (callable, f"a function, `{key}({', '.join(names)})`") for key, names in _TAKES.items()},
    "batches": (
        lambda value: callable(value) or isinstance(value, (tuple, list)) and len(value) == 2 and callable(value[1]),
        "`batches(rank, mesh)`, `batches(rank, mesh, microbatches)` or a pair (whole, cut)",
    ),
    "steps": (lambda value: _is_number(value, numbers.Integral) and value >= 0, "a number of steps from 0 on"),
    "seed": (lambda value: _is_number(value, numbers.Integral), "a whole number"),
    "bound": (lambda value: _is_number(value, numbers.Real) and value > 0, "a number above 0"),
    "averaged": (lambda value: _is_number(value, numbers.Real), "a number"),
    "models": (lambda value: isinstance(value, Mapping) and bool(value), "a dictionary of names and make_model's"),
    "layouts": (
        lambda value: isinstance(value, Mapping) and all(isinstance(one, Mapping) for one in value.values()),
        'a dictionary of names and layouts, as {"ddp": {"mesh": {"dp": 2}, "parallelize": ddp}}',
    ),
    "meshes": (lambda value: isinstance(value, (list, tuple)), 'a list of meshes, as [{"dp": 2}, {"dp": 2, "tp": 2}]'),
}


class Own:
    """Models, layouts and functions of a project.

    reported: `make_model`, or `models` ({name: make_model}); `parallelize`, `batches` and `loss`; `meshes`, a list of
        meshes, or `layouts` ({name: {"mesh": ..., "parallelize": ..., "run": ...}}); and what else `check` takes. A
        layout that is not for all models names them: "models": ["dense"]. If `batches` has a third parameter, it gets
        the number of microbatches, and is to return so many for a rank.

    Raises InvalidError, which names the file, the layout and the key, for what `check` would refuse or ignore.
    """

    def __init__(self, name: str, reported: Mapping[str, Any]):
        self._reported = reported
        self._where = os.path.basename(reported["__file__"]) if "__file__" in reported else f"`{name}`"
        self._check_keys()
        models = reported.get("models") or {"": reported.get("make_model")}
        self._layouts: dict[str, Mapping[str, Any]] = dict(reported.get("layouts") or {})
        self._keys: dict[str, str] = {f"{name}:{key}" if key else name: key for key in models}
        self._make: dict[str, Any] = dict(models)
        self.models: Sequence[str] = list(self._keys)
        self._check_models()
        for key, layout in self._layouts.items():
            self._check_layout(key, layout)
        self._meshes = self._parsed()
        self._need()

    # -- what is refused

    def _refuse(self, text: str) -> NoReturn:
        raise addend.InvalidError(f"{self._where}: {text}")

    def _check_keys(self) -> None:
        """Refuses a key that no one reads, and a value of another kind than its key wants."""
        if "__file__" in self._reported:
            for key, meant in self._misspelled():
                self._refuse(f"`{key}` is not read: is `{meant}` meant? Your own names may begin with _")
        else:
            self._check_names(self._reported, ("name", *_OF_FILE), "")
        for key in _OF_FILE:
            if key in self._reported:
                self._check_value(key, self._reported[key], "")

    def _misspelled(self) -> Iterator[tuple[str, str]]:
        """(a name that the file defines, the key that it may be meant as). Other names are the file's own affair."""
        free = [key for key in _OF_FILE if key not in self._reported]
        for key, value in self._reported.items():
            near = [] if key.startswith("_") or key in _OF_FILE else difflib.get_close_matches(key, free, 1, 0.8)
            here = getattr(value, "__module__", self._reported["__name__"]) == self._reported["__name__"]
            if near and here and not isinstance(value, type) and _KINDS[near[0]][0](value):
                yield key, near[0]

    def _check_names(self, given: Mapping[str, Any], allowed: Sequence[str], whose: str) -> None:
        for key in given:
            if key not in allowed:
                near = difflib.get_close_matches(str(key), allowed, 1)
                meant = f": is `{near[0]}` meant?" if near else ""
                self._refuse(
                    f"{whose}`{key}` is no key{meant}; allowed are {', '.join(f'`{name}`' for name in allowed)}"
                )

    def _check_value(self, key: str, value: Any, whose: str) -> None:
        is_right, wanted = _KINDS[key]
        if value is None and (key not in NEEDED or not whose):
            return  # as if it were not there; what is needed is missed below
        if not is_right(value):
            self._refuse(f"{whose}`{key}` is `{str(value)[:60]}`, a `{type(value).__name__}`; it must be {wanted}")
        names = _TAKES.get(key)
        if key == "batches" and not callable(value):
            key, value, names = "cut", value[1], ("whole", *_TAKES[key])
        elif key == "batches" and _is_counted(value):
            names = _COUNTED
        if names is not None and not _takes(value, len(names)):
            self._refuse(f"{whose}`{key}` cannot be called as `{key}({', '.join(names)})`; it must be {wanted}")

    def _check_models(self) -> None:
        for key, make in self._make.items():
            if not isinstance(key, str):
                self._refuse(f"`models` has the name `{key!r}`; names are texts")
            if make is not None:
                self._check_value("make_model", make, f"`models`, `{key}`: " if key else "")

    def _check_layout(self, key: Any, layout: Mapping[str, Any]) -> None:
        if not isinstance(key, str) or not key:
            self._refuse(f"`layouts` has the name `{key!r}`; names are texts that are not empty")
        whose = f"layout `{key}`: "
        self._check_names(layout, _OF_LAYOUT, whose)
        if "mesh" not in layout:
            self._refuse(f'{whose}it needs a `mesh`, as {{"dp": 2}}')
        names = layout.get("models")
        if names is not None and (isinstance(names, str) or not hasattr(names, "__iter__")):
            self._refuse(f"{whose}`models` is `{names}`; it must be a list of names of `models`")
        unknown = [str(model) for model in names or () if model not in self._make or not model]
        if unknown:
            there = ", ".join(f"`{name}`" for name in self._make if name) or "none, for there is only make_model"
            self._refuse(f"{whose}`models` names {', '.join(f'`{name}`' for name in unknown)}; there are {there}")
        for name in (name for name in _OF_LAYOUT if name in layout and name not in ("mesh", "models")):
            self._check_value(name, layout[name], whose)

    def _parsed(self) -> dict[str, dict[str, int]]:
        """Axes and sizes of all layouts, or of the meshes: by name, and those of meshes by their place."""
        found: dict[str, dict[str, int]] = {}
        given = {key: layout["mesh"] for key, layout in self._layouts.items()}
        of = given or {str(i): mesh for i, mesh in enumerate(self._reported.get("meshes") or _MESHES)}
        for key, mesh in of.items():
            try:
                found[key] = _axes.parse(mesh)
            except addend.InvalidError as error:
                self._refuse(f"{f'layout `{key}`' if given else '`meshes`'}: {error}")
        if not given:
            twice = [mesh for i, mesh in enumerate(found.values()) if mesh in list(found.values())[:i]]
            if twice:
                self._refuse(f"`meshes` has `{twice[0]}` twice")
        return found

    def _need(self) -> None:
        missing = {key: [name for name, one in self._layouts.items() if one.get(key) is None] for key in NEEDED}
        absent = [key for key in NEEDED if self._reported.get(key) is None and (missing[key] or not self._layouts)]
        own_models = self._layouts and all(one.get("make_model") for one in self._layouts.values())
        if None in self._make.values() and not own_models:
            absent.insert(0, "make_model")
        if absent:
            those = missing.get(absent[0], ())
            whose = f", and layout `{those[0]}` does not either" if 0 < len(those) else ""
            self._refuse(f"it does not define {', '.join(f'`{key}`' for key in absent)}, as `check` takes them{whose}")

    # -- what a matrix asks

    def layouts(self, model: str) -> Sequence[Layout]:
        """The project's layouts; if it names neither layouts nor meshes, two, three and one ranks on an axis dp."""
        if self._layouts:
            key = self._keys[model]
            own = [name for name, one in self._layouts.items() if key in (one.get("models") or [key])]
            return [Layout(self._meshes[name], variant=name) for name in own]
        return [Layout(mesh) for mesh in self._meshes.values()]

    def counts(self, layout: Layout, asked: Sequence[int]) -> Sequence[int]:
        """One "number" if `batches` does not take it: the project's own."""
        return asked if _is_counted(self._of(layout)["batches"]) else [1]

    def layout(self, wanted: Wanted) -> Layout | None:
        """The layout of a mesh that the user names, where the file defines no layouts; None if that is a layout
        of another of its models."""
        if not self._layouts and not isinstance(wanted, str):
            return Layout(dict(wanted))
        every = [Layout(mesh, variant=name if self._layouts else "") for name, mesh in self._meshes.items()]
        if any(layout.fits(wanted) for layout in every):
            return None
        text = wanted if isinstance(wanted, str) else " ".join(f"{axis}={size}" for axis, size in wanted.items())
        there = ", ".join(f"`{one.variant}` ({Layout(one.mesh).name})" if one.variant else one.name for one in every)
        self._refuse(
            f"it has no layout `{text}`: it has {there}; a layout is named by its name or its sizes, fsdp=2,ep=2"
        )

    def note(self, asked: Sequence[Wanted] | None) -> str:
        """The project's own layouts are all tried."""
        return ""

    def _of(self, layout: Layout) -> dict[str, Any]:
        """What holds under a layout: the layout's own, and else the file's. None: as if it were not there."""
        reported = {**self._reported, **self._layouts.get(layout.variant, {})}
        return {key: value for key, value in reported.items() if value is not None}

    def job(self, cell: Cell, folder: str) -> Job:
        """The functions of the project, for one mesh and number of microbatches."""
        reported = self._of(cell.layout)
        arguments = {key: reported[key] for key in PASSED if key in reported}
        batches = reported["batches"]
        if _is_counted(batches):

            def counted(rank: Any, mesh: Any) -> list[Any]:
                found: list[Any] = batches(rank, mesh, cell.microbatches)
                return found

            arguments["batches"] = counted
        own = self._layouts.get(cell.layout.variant, {}).get("make_model")
        arguments.update(make_model=own or self._make[self._keys[cell.model]], mesh=dict(cell.layout.mesh))
        return Job(arguments)
