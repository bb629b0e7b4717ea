"""Registers the backend "addend" of torch.distributed at the end of `import torch`, which calls `register` because the
wheel names it in the entry point group torch.backends (python/docs/torch-group.md). addend itself is imported only when
a process group is made."""

from __future__ import annotations

import contextlib
from typing import Any


def _create(options: Any, more: Any = None) -> Any:
    from addend.torch.group import _create as create

    return create(options, more)


def register() -> None:
    """Makes the backend known. Raises nothing: `import torch` must not fail because this package is installed, and
    `import addend.torch.group` shows the error, if there is one."""
    with contextlib.suppress(Exception):
        import torch.distributed as dist

        if dist.is_available():
            dist.Backend.register_backend("addend", _create, extended_api=True, devices=["cpu"])
