"""Finds a test's body in the process of a rank: imports the test's file there, under the module name that it has in
pytest's process, with pytest's assertion rewriting, so that failed assertions show the values that they compared."""

from __future__ import annotations

import ast
import functools
import importlib
import importlib.util
import sys
from importlib.machinery import ModuleSpec, SourceFileLoader
from types import CodeType, ModuleType
from typing import Any, Callable


class _Loader(SourceFileLoader):
    """Compiles the source anew, since compiled files (.pyc) have assertions that are not rewritten."""

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        source = self.get_data(path)
        tree = ast.parse(source, path)
        try:
            from _pytest.assertion.rewrite import rewrite_asserts  # type: ignore[import-not-found, unused-ignore]
        except ImportError:
            pass
        else:
            rewrite_asserts(tree, source, path)
        return compile(tree, path, "exec", dont_inherit=True)


def find(place: dict[str, Any]) -> Callable[..., Any]:
    """The test function; a method is bound to a new instance of its class."""
    found: Any = _module(place["module"], place["file"])
    owner: Any = None
    for name in place["name"].split("."):
        owner, found = found, getattr(found, name)
    if isinstance(owner, type) and not isinstance(vars(owner).get(name), staticmethod):
        return functools.partial(found, owner())
    return found  # type: ignore[no-any-return]


def _module(name: str, file: str) -> ModuleType:
    known = sys.modules.get("__mp_main__" if name == "__main__" else name)
    if known is not None and getattr(known, "__file__", None) == file:
        return known
    if name == "__main__":  # classes of the main program are pickled under this name
        sys.modules["__main__"] = _load("__mp_main__", file)
        return sys.modules["__main__"]
    if "." in name:
        importlib.import_module(name.rpartition(".")[0])
    return _load(name, file)


def _load(name: str, file: str) -> ModuleType:
    spec: ModuleSpec | None = importlib.util.spec_from_file_location(name, file, loader=_Loader(name, file))
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} cannot be imported as a Python file: name a file that exists and ends in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
