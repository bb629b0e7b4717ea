"""The backend "addend" of torch.distributed, for CPU tensors. Importing this module registers it, as `import torch`
does where the package is installed (python/docs/torch-group.md).

import torch.distributed as dist
import addend.torch.group
dist.init_process_group("addend")"""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from addend._errors import InvalidError
from addend.torch._group import Group

__all__ = ["Group", "flight_recorder"]


def _create(options: Any, _: Any = None) -> Group:
    return Group(options.store, options.group_rank, options.group_size, options.timeout)


def flight_recorder(group: dist.ProcessGroup | None = None) -> str:
    """This rank's last calls in a process group.

    Args:
        group: a group of backend "addend". Default: the default group.

    Returns:
        The calls, oldest first, one line each: operation, count, dtype, the caller's line, state and time.

    Raises:
        InvalidError: the group has another backend.

    Example:
        print(addend.torch.flight_recorder())
    """
    found = dist.distributed_c10d._get_default_group() if group is None else group
    if not isinstance(found, Group):
        raise InvalidError(
            'flight_recorder needs a process group of backend "addend", but this group is of another backend'
        )
    return found._calls.flight_recorder()


dist.Backend.register_backend("addend", _create, extended_api=True, devices=["cpu"])
