"""Tests whether tensors and modules are of classes in parts of PyTorch that take long to import. If the job has not
imported such a part, it has no object of its classes, so nothing is imported here (python/docs/python.md)."""

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
    """Whether the tensor is a DTensor (placed on a DeviceMesh)."""
    return _is_of(tensor, "torch.distributed.tensor", "DTensor")


def is_fsdp(module: object) -> TypeIs[FSDPModule]:
    """Whether fully_shard was applied to the module."""
    return _is_of(module, "torch.distributed.fsdp", "FSDPModule")


def is_flat_fsdp(module: object) -> bool:
    """Whether the module is a FullyShardedDataParallel."""
    return _is_of(module, "torch.distributed.fsdp", "FullyShardedDataParallel")
