"""Which tensors and modules are of those parts of PyTorch that take long to import (docs/python.md has a number). What
a job has not imported it has nothing of, so nothing is imported here."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule
    from torch.distributed.tensor import DTensor
    from typing_extensions import TypeIs


def _is_of(thing: object, module: str, name: str) -> bool:
    kind: Any = getattr(sys.modules.get(module), name, None)
    return kind is not None and isinstance(thing, kind)


def is_dtensor(tensor: object) -> TypeIs[DTensor]:
    """Placed on a DeviceMesh."""
    return _is_of(tensor, "torch.distributed.tensor", "DTensor")


def is_fsdp(module: object) -> TypeIs[FSDPModule]:
    """fully_shard was applied to it."""
    return _is_of(module, "torch.distributed.fsdp", "FSDPModule")


def is_flat_fsdp(module: object) -> bool:
    """Wrapped in FullyShardedDataParallel."""
    return _is_of(module, "torch.distributed.fsdp", "FullyShardedDataParallel")
