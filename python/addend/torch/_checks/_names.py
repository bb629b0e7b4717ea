"""Names of modules and parameters without the parts that wrappers add, as in the model of one process; and the line of
the job that made a call."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterator

import torch
from torch import nn

from addend.torch import _plain, _recorder


def modules(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Every module with its name without wrappers. A wrapper has the name of the wrapped module and comes before it."""
    wrappers = _plain.edges(model)
    for name, module in model.named_modules(remove_duplicate=False):
        yield _plain.plain(name, wrappers), module


def parameters(model: nn.Module) -> Iterator[tuple[str, torch.nn.Parameter]]:
    """Every parameter, once, with its name without wrappers."""
    wrappers = _plain.edges(model)
    for name, parameter in model.named_parameters():
        yield _plain.plain(name, wrappers), parameter


_INSIDE = tuple(os.path.dirname(os.path.abspath(path)) + os.sep for path in (torch.__file__, os.path.dirname(__file__)))


def is_inside(file: str) -> bool:
    """Whether a source file belongs to PyTorch, to this package, or to multiprocessing, which started the process."""
    return file.startswith(_INSIDE) or file.startswith("<") or "/multiprocessing/" in file


def caller() -> str:
    """file:line of the innermost call outside of PyTorch and of this package."""
    for frame, line in traceback.walk_stack(sys._getframe()):
        if not is_inside(frame.f_code.co_filename):
            return f"{frame.f_code.co_filename}:{line}"
    return ""


_TORCH = os.path.dirname(os.path.abspath(torch.__file__))
_WAYS = tuple(  # files of PyTorch through which a call of a public function goes before the operation runs
    os.path.join(_TORCH, *way.split("/"))
    for way in (
        "distributed/distributed_c10d.py", "distributed/c10d_logger.py", "distributed/_functional_collectives.py",
        "distributed/nn/functional.py", "distributed/tensor/_api.py", "_ops.py", "_library/", "_compile.py", "_dynamo/",
        "_tensor.py", "overrides.py", "autograd/function.py", "utils/_contextlib.py", "utils/_python_dispatch.py",
    )
)  # fmt: skip


def called() -> str:
    """file:line of the job's call of the present operation; "" if PyTorch itself, such as a wrapper, made the call."""
    own = os.path.dirname(os.path.abspath(__file__)) + os.sep, _recorder.__file__
    for frame, line in traceback.walk_stack(sys._getframe()):
        file = frame.f_code.co_filename
        if not file.startswith((*own, "<", *_WAYS)):
            return "" if is_inside(file) else f"{file}:{line}"
    return ""
