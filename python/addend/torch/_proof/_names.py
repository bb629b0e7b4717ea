"""Names of modules and parameters as the model of one process has them."""

from __future__ import annotations

import os
import traceback
from typing import Iterable, Iterator, List, Tuple

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

_WRAPPERS = ("_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module")


def _plain(name: str, ddp: Iterable[str]) -> str:
    parts: List[str] = []
    path = ""
    for part in name.split(".") if name else []:
        wrapped = path in ddp and part == "module"
        path = f"{path}.{part}" if path else part
        if not wrapped and part not in _WRAPPERS:
            parts.append(part)
    return ".".join(parts)


def modules(model: nn.Module) -> Iterator[Tuple[str, nn.Module]]:
    """Every module by its name without wrappers; a wrapper has the name of what it wraps, and comes before it."""
    found = list(model.named_modules(remove_duplicate=False))
    ddp = {name for name, module in found if isinstance(module, DistributedDataParallel)}
    for name, module in found:
        yield _plain(name, ddp), module


def parameters(model: nn.Module) -> Iterator[Tuple[str, torch.nn.Parameter]]:
    """Every parameter by its name without wrappers, each once."""
    ddp = {name for name, module in model.named_modules() if isinstance(module, DistributedDataParallel)}
    for name, parameter in model.named_parameters():
        yield _plain(name, ddp), parameter


_INSIDE = tuple(os.path.dirname(os.path.abspath(path)) + os.sep for path in (torch.__file__, os.path.dirname(__file__)))


def is_inside(file: str) -> bool:
    """Whether a source file is PyTorch's, this package's, or what started the process."""
    return file.startswith(_INSIDE) or file.startswith("<") or "/multiprocessing/" in file


def caller() -> str:
    """file:line of the innermost call outside of PyTorch and of this package."""
    for frame, line in traceback.walk_stack(None):
        if not is_inside(frame.f_code.co_filename):
            return f"{frame.f_code.co_filename}:{line}"
    return ""


_TORCH = os.path.dirname(os.path.abspath(torch.__file__))
_WAYS = tuple(  # through which a function that somebody calls comes to what it does
    os.path.join(_TORCH, *way.split("/"))
    for way in (
        "distributed/distributed_c10d.py", "distributed/c10d_logger.py", "distributed/_functional_collectives.py",
        "distributed/nn/functional.py", "distributed/tensor/_api.py", "_ops.py", "_library/", "_compile.py", "_dynamo/",
        "_tensor.py", "overrides.py", "autograd/function.py", "utils/_contextlib.py", "utils/_python_dispatch.py",
    )
)  # fmt: skip


def called() -> str:
    """file:line of a call that is outside of PyTorch; empty if something in PyTorch, as a wrapper, made it."""
    own = os.path.dirname(os.path.abspath(__file__)) + os.sep
    for frame, line in traceback.walk_stack(None):
        file = frame.f_code.co_filename
        if not file.startswith((own, "<", *_WAYS)):
            return "" if is_inside(file) else f"{file}:{line}"
    return ""
