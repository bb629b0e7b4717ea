"""A project's own models and layouts: the functions that `check` takes, in a Python file or a dictionary."""

from __future__ import annotations

import importlib.util
import inspect
import os
import sys
from typing import Any, Dict, List, Mapping, Sequence

import addend
from addend.torch._matrix._cells import Cell, Job, Layout
from addend.torch._proof import _axes, _ranks

NEEDED = ("parallelize", "batches", "loss")
PASSED = (*NEEDED, "run", "averaged", "norm", "optimizer", "steps", "bound", "seed")  # handed on to `check`
_MESHES = ({"dp": 2}, {"dp": 3}, {"dp": 1})


def read(path: str) -> Dict[str, Any]:
    """What a Python file defines."""
    name = os.path.splitext(os.path.basename(path))[0]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not os.path.exists(path):
        raise addend.InvalidError(f"{path} is no Python file that can be read")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise addend.InvalidError(f"{path} cannot be read: {_ranks.told(error)}") from error
    return dict(vars(module))


class Own:
    """Models, layouts and functions of a project.

    told: `make_model`, or `models` ({name: make_model}); `parallelize`, `batches` and `loss`; `meshes`, a list of
        meshes, or `layouts` ({name: {"mesh": ..., "parallelize": ..., "run": ...}}); and what else `check` takes. A
        layout that is not for all models names them: "models": ["dense"]. If `batches` has a third parameter, it gets
        the number of microbatches, and is to return so many for a rank.
    """

    def __init__(self, name: str, told: Mapping[str, Any]):
        self._told = told
        models = told.get("models") or {"": told.get("make_model")}
        self._models = {f"{name}:{key}" if key else name: make for key, make in models.items()}
        self._layouts: Dict[str, Mapping[str, Any]] = dict(told.get("layouts") or {})
        self.models: Sequence[str] = list(self._models)
        self._need(name)
        self._vary = len(inspect.signature(told["batches"]).parameters) > 2 if callable(told["batches"]) else False

    def _need(self, name: str) -> None:
        lacking = [key for key in NEEDED if key not in self._told]
        if self._layouts and all("parallelize" in layout for layout in self._layouts.values()):
            lacking = [key for key in lacking if key != "parallelize"]
        if None in self._models.values():
            lacking.insert(0, "make_model")
        if lacking:
            raise addend.InvalidError(f"{name} does not define {', '.join(lacking)}, as `check` takes them")
        if any("mesh" not in layout for layout in self._layouts.values()):
            raise addend.InvalidError(f"{name}: each of `layouts` needs a mesh")
        for key, layout in self._layouts.items():
            unknown = [model for model in layout.get("models", ()) if f"{name}:{model}" not in self._models]
            if unknown:
                raise addend.InvalidError(
                    f"{name}: layout {key} is for {', '.join(unknown)}, which `models` does not have"
                )

    def layouts(self, model: str) -> Sequence[Layout]:
        """The project's layouts; if it names neither layouts nor meshes, two, three and one ranks on an axis dp."""
        if self._layouts:
            key = model.partition(":")[2]
            own = {name: one for name, one in self._layouts.items() if key in one.get("models", [key])}
            return [Layout(_axes.parse(one["mesh"]), variant=name) for name, one in own.items()]
        return [Layout(_axes.parse(mesh)) for mesh in self._told.get("meshes", _MESHES)]

    def counts(self, layout: Layout, asked: Sequence[int]) -> Sequence[int]:
        """One "number" if `batches` does not take it: the project's own."""
        return asked if self._vary else [1]

    def layout(self, sizes: Mapping[str, int]) -> Layout:
        """The layout of a mesh that the user names."""
        return Layout(dict(sizes))

    def job(self, cell: Cell, folder: str) -> Job:
        """The functions of the project, for one mesh and number of microbatches."""
        told = {**self._told, **self._layouts.get(cell.layout.variant, {})}
        arguments = {key: told[key] for key in PASSED if key in told}
        if self._vary:
            batches = told["batches"]

            def counted(rank: Any, mesh: Any) -> List[Any]:
                found: List[Any] = batches(rank, mesh, cell.microbatches)
                return found

            arguments["batches"] = counted
        arguments.update(make_model=self._models[cell.model], mesh=dict(cell.layout.mesh))
        return Job(arguments)
