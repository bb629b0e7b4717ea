"""What a group's calls give back: Works and Futures, complete when their bytes have arrived and never before."""

from __future__ import annotations

import datetime
from typing import Any, List, Optional, Sequence

import torch
from torch._C._distributed_c10d import Work, _create_work_from_future
from torch.futures import Future

from addend.torch._group_calls import Calls, Posted

# From then on PyTorch's C++ keeps the Python object of a Work that it was given.
KEEPS_WORK = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 9)


class GroupWork(Work):  # type: ignore[misc, unused-ignore]
    """A call that was posted. Its bytes move while ranks are in calls of the group; wait, is_completed and get_future
    complete it."""

    def __init__(self, calls: Calls, posted: Posted, outputs: Sequence[torch.Tensor]):
        super().__init__()
        self._calls = calls
        self._posted = posted
        self._outputs = outputs

    def wait(self, timeout: Optional[datetime.timedelta] = None) -> bool:
        self._calls.wait(self._posted, timeout.total_seconds() if timeout else 0.0)
        return True

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        return self._calls.test(self._posted)

    def is_success(self) -> bool:
        return self._posted.done and self._posted.error is None

    def exception(self) -> Optional[BaseException]:
        return self._posted.error

    def result(self) -> List[torch.Tensor]:
        self.wait()
        return list(self._outputs)

    def get_future(self) -> Any:
        """A complete one: whoever waits for a Future calls nothing here, so this waits."""
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
    """Several posted calls, complete together."""

    def __init__(self, calls: Calls, posted: Sequence[Posted]):
        super().__init__()
        self._calls = calls
        self._posted = posted

    def wait(self, timeout: Optional[datetime.timedelta] = None) -> bool:
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
    """The Work of a call that is complete: PyTorch's own."""
    future: Future[Any] = Future()
    future.set_result(list(outputs))
    return _create_work_from_future(future)


DONE = complete([])  # of calls whose caller said that nobody would look at what they gave
