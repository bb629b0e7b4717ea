"""The Work and Future objects that a group's calls return; they are complete only once the data has arrived."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any

import torch
from torch._C._distributed_c10d import Work, _create_work_from_future
from torch.futures import Future

from addend.torch._group_calls import Calls, Posted

# Whether this PyTorch's C++ code keeps the Python object of a Work alive, as it does from 2.9 on.
KEEPS_WORK = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 9)


class GroupWork(Work):  # type: ignore[misc, unused-ignore]
    """The Work of a posted call. Data moves only while ranks are inside calls of the group: wait, is_completed and
    get_future complete it."""

    def __init__(self, calls: Calls, posted: Posted, outputs: Sequence[torch.Tensor]):
        super().__init__()
        self._calls = calls
        self._posted = posted
        self._outputs = outputs

    def wait(self, timeout: datetime.timedelta | None = None) -> bool:
        self._calls.wait(self._posted, timeout.total_seconds() if timeout else 0.0)
        return True

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        return self._calls.test(self._posted)

    def is_success(self) -> bool:
        return self._posted.done and self._posted.error is None

    def exception(self) -> BaseException | None:
        return self._posted.error

    def result(self) -> list[torch.Tensor]:
        self.wait()
        return list(self._outputs)

    def get_future(self) -> Any:
        """Waits, then returns a complete Future: waiting for a Future makes no call here that could move data."""
        self.wait()
        future: Future[Any] = Future()
        future.set_result(list(self._outputs))
        return future

    def get_future_result(self) -> Any:
        return self.get_future()

    def _source_rank(self) -> int:
        return int(self._posted.requests[0].source)

    def source_rank(self) -> int:
        return self._source_rank()


class CoalescedWork(Work):  # type: ignore[misc, unused-ignore]
    """The Work of several posted calls, complete when all of them are."""

    def __init__(self, calls: Calls, posted: Sequence[Posted]):
        super().__init__()
        self._calls = calls
        self._posted = posted

    def wait(self, timeout: datetime.timedelta | None = None) -> bool:
        for posted in self._posted:
            self._calls.wait(posted, timeout.total_seconds() if timeout else 0.0)
        return True

    def is_completed(self) -> bool:
        return all(self._calls.test(posted) for posted in self._posted)

    def get_future(self) -> Any:
        self.wait()
        future: Future[Any] = Future()
        future.set_result([])
        return future


def complete(outputs: Sequence[torch.Tensor]) -> Work:
    """A Work of PyTorch's own class for a call that is complete."""
    future: Future[Any] = Future()
    future.set_result(list(outputs))
    return _create_work_from_future(future)


DONE = complete([])  # returned by synchronous calls, whose Work PyTorch does not look at
