"""The process group of backend "addend": its identity, its end, and its memory. _group_collectives.py has its
operations."""

from __future__ import annotations

import contextlib
import datetime
import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch._C._distributed_c10d import Backend, PrefixStore, ProcessGroup

from addend._errors import AddendError
from addend.torch._group_calls import Calls
from addend.torch._group_collectives import Collectives
from addend.torch._group_memory import Memory

_CPU = torch.device("cpu")


class Group(Collectives, ProcessGroup):  # type: ignore[misc, unused-ignore]
    """A process group for ranks of one machine, which communicate through shared memory. It is both ProcessGroup and
    Backend, because older PyTorch lets Python code implement only the former."""

    def __init__(self, store: Any, rank: int, size: int, timeout: datetime.timedelta):
        super().__init__(rank, size)
        self._store = store
        self._rank, self._size = rank, size
        self._group_name, self._group_desc = "", "undefined"
        self._splits = 0
        self._calls = Calls(PrefixStore("addend", store), rank, size, timeout.total_seconds())
        self._memory = Memory(self._calls)
        self._backend = _register_backend(self)
        # PyTorch 2.6 destroys a group by dropping it, so this finalizer leaves the world. It does not run at exit: to
        # the other ranks, a process that ends without destroying its group has died.
        weakref.finalize(self, self._memory.leave).atexit = False

    # ---- names, ranks and properties that PyTorch asks for ----

    def rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return self._size

    def name(self) -> str:
        return "addend"

    def getBackendName(self) -> str:
        return "addend"

    def _get_backend_name(self) -> str:
        return "addend"

    @property
    def group_name(self) -> Any:
        return self._group_name

    @property
    def group_desc(self) -> str:
        return self._group_desc

    def getGroupName(self) -> str:
        return self._group_name

    def getGroupDesc(self) -> str:
        return self._group_desc

    def _set_group_name(self, name: str) -> None:
        self._group_name = name

    def _set_group_desc(self, desc: str) -> None:
        self._group_desc = desc

    setGroupName, setGroupDesc = _set_group_name, _set_group_desc

    def _get_backend(self, device: torch.device) -> Any:
        if torch.device(device).type != "cpu":
            raise RuntimeError(f"backend addend moves CPU tensors only, not tensors on {device}")
        return self

    get_backend = _get_backend

    @property
    def _device_types(self) -> list[torch.device]:
        return [_CPU]

    @property
    def supports_splitting(self) -> bool:
        return True

    @property
    def supports_coalescing(self) -> bool:
        return False

    @property
    def options(self) -> Any:
        return Backend.Options("addend", datetime.timedelta(seconds=self._calls.seconds))

    def get_group_store(self) -> Any:
        return self._store

    def _set_sequence_number_for_group(self) -> None:
        """Does nothing: addend's library numbers the calls."""

    def _get_sequence_number_for_group(self) -> int:
        return self._calls.count

    # ---- timeout, end and splitting ----

    def set_timeout(self, timeout: datetime.timedelta) -> None:
        self._calls.seconds = timeout.total_seconds()

    _set_default_timeout = set_timeout

    def abort(self) -> None:
        self._calls.fail("the process group was aborted")
        self._memory.leave()

    def shutdown(self) -> None:
        """Waits for the posted calls, then leaves the world; a rank that still waits for this one gets an error. Raises
        nothing: the group may be destroyed because a call failed, and then the other calls fail too."""
        with contextlib.suppress(AddendError):
            self._calls.finish()
        self._memory.leave()

    def _wait_for_pending_works(self) -> None:
        self._calls.finish()

    def split_group(
        self,
        new_ranks: Sequence[int],
        timeout: datetime.timedelta | None = None,
        opts: Any = None,
        group_name: str | None = None,
        group_desc: str | None = None,
        device_types: Any = None,
    ) -> Group | None:
        """A new group of the ranks `new_ranks` (numbers in this group); None on ranks that are not in it."""
        self._splits += 1
        if self._rank not in new_ranks:
            return None
        name = group_name or f"{self.group_name}:split:{self._splits}"
        after = timeout or datetime.timedelta(seconds=self._calls.seconds)
        store = PrefixStore(f"{name}/split/{self._splits}/{'-'.join(map(str, new_ranks))}", self._store)
        group = Group(store, list(new_ranks).index(self._rank), len(new_ranks), after)
        group._set_group_name(name)
        group._set_group_desc(group_desc or f"{self.group_desc}:split:{self._splits}")
        return group

    # ---- memory (FSDP2 asks the group for its buffers) ----

    def supports_tensor_alloc(self, device: torch.device) -> bool:
        return device.type == "cpu" if isinstance(device, torch.device) else False

    def allocate_tensor(self, size: int, *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """A tensor in shared memory, which is reused once no tensor refers to it."""
        return self._memory.tensor(size, dtype)


# ---- the backend that PyTorch's C++ code looks up in the group ----


class Registered(Collectives, Backend):  # type: ignore[misc, unused-ignore]
    """The group's operations as a Backend written in Python, which PyTorch's C++ code can call from 2.15 on."""

    def __init__(self, group: Group):
        super().__init__(group.rank(), group.size())
        self._calls, self._rank, self._size = group._calls, group.rank(), group.size()

    def getBackendName(self) -> str:
        return "addend"


def _register_backend(group: Group) -> Backend | None:
    try:
        backend = Registered(group)
    except TypeError:  # "No constructor defined!": this PyTorch cannot derive a Backend in Python
        return None
    custom = ProcessGroup.BackendType.CUSTOM
    group._set_default_backend(custom)
    group._register_backend(_CPU, custom, backend)
    return backend
