"""Allocates tensors in memory that all ranks of a group share, so that collectives need no copy. The block of a deleted
tensor is reused for the next tensor of its size. Closing the comm frees the memory, so the comm stays open until the
last tensor is deleted."""

from __future__ import annotations

import ctypes
import weakref
from collections import deque

import torch

from addend._library import checked
from addend.torch._group_calls import Calls

_alloc = checked("ad_comm_alloc", ctypes.c_void_p, ctypes.c_size_t, ctypes.POINTER(ctypes.c_void_p))


class Memory:
    def __init__(self, calls: Calls):
        self._calls = calls
        self._free: dict[int, list[int]] = {}  # addresses of free blocks, by their size in bytes
        self._gone: deque[tuple[int, int]] = deque()  # (size, address) of blocks whose tensors any thread deleted
        self._used = 0  # number of blocks that tensors have
        self._has_left = False

    def tensor(self, numel: int, dtype: torch.dtype) -> torch.Tensor:
        """An uninitialised tensor of one dimension in shared memory."""
        if numel == 0:
            return torch.empty(0, dtype=dtype)
        size = numel * dtype.itemsize
        address = self._take(size)
        block = (ctypes.c_byte * size).from_address(address)
        weakref.finalize(block, self._give_back, size, address).atexit = False
        self._used += 1
        return torch.frombuffer(block, dtype=dtype)

    def _take(self, size: int) -> int:
        self._collect()
        blocks = self._free.get(size)
        if blocks:
            return blocks.pop()
        address = ctypes.c_void_p()
        with self._calls.alone() as handle:
            _alloc(handle, size, address)
        return address.value or 0

    def _collect(self) -> None:
        while self._gone:
            size, address = self._gone.popleft()
            self._free.setdefault(size, []).append(address)
            self._used -= 1

    def _give_back(self, size: int, address: int) -> None:
        self._gone.append((size, address))
        if self._has_left:
            self.leave()

    def leave(self) -> None:
        """Closes the comm, now or when the last tensor in its memory is deleted."""
        self._has_left = True
        self._collect()
        if not self._used:
            self._calls.close()
