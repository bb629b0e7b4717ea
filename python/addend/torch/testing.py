"""Runs test bodies on several ranks: processes that import PyTorch only once and run one body after another, each in a
new process group (python/docs/torch-testing.md)."""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import pickle
import sys
from collections.abc import Iterator
from types import FunctionType, TracebackType
from typing import Any, Callable

from addend._errors import AddendError, InvalidError
from addend.torch._testing_pool import Pool

__all__ = ["RankError", "World", "ranks"]


class RankError(AddendError, AssertionError):
    """A body raised an exception on a rank, or a rank died or did not end. The text says what each rank did."""

    status = "rank-failed"


class World:
    """`size` ranks on this machine. They start at the first `run`, and again at the next `run` after a failure.

    `timeout`: seconds that a body may take. `seed`: the seed of PyTorch's random numbers on all ranks, set before every
    body."""

    def __init__(self, size: int, *, timeout: float = 120.0, seed: int = 0):
        if size < 1 or timeout <= 0:
            raise InvalidError(f"size must be 1 or more, and timeout more than 0 s, not {size} and {timeout} s")
        self.size, self.timeout, self.seed = size, timeout, seed
        self._pool = Pool(size)

    def run(self, body: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Calls body(*arguments) on every rank, with torch.distributed initialised, and returns the list of the ranks'
        results. Arguments and results are pickled.

        Raises RankError with the traceback of the rank that failed first. If the body skips the test, this skips it."""
        __tracebackhide__ = True
        return self._run(body, pickle.dumps((arguments, {})))

    def _run(self, body: Any, arguments: bytes) -> list[Any]:
        __tracebackhide__ = True
        place = dict(_place(body), arguments=arguments, seed=self.seed, timeout=self.timeout)
        outcome, reported, said = self._pool.run(place, self.timeout)
        for rank, text in enumerate(said):
            sys.stdout.write("".join(f"[rank {rank}] {line}\n" for line in text.splitlines()))
        if outcome == "skipped":
            import pytest

            pytest.skip(reported)
        if outcome == "failed":
            raise RankError(reported)
        return [pickle.loads(answer) for answer in reported]

    def close(self) -> None:
        """Ends the ranks; a later `run` would start them again."""
        self._pool.close()

    def __enter__(self) -> World:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _place(body: Any) -> dict[str, Any]:
    """The module, file and name by which the ranks, which are other processes, find the function."""
    name = getattr(body, "__qualname__", repr(body))
    if not isinstance(body, FunctionType) or "<" in name:
        raise InvalidError(
            f"the ranks are other processes and find a body by its file and name: `{name}` must be a function at the "
            "top of its file; pass what it needs to run() as arguments"
        )
    file = inspect.getsourcefile(body)
    if file is None or not os.path.exists(file):
        raise InvalidError(f"`{name}` is in no source file, so the ranks cannot find it: define it in one")
    return {"module": body.__module__, "file": os.path.abspath(file), "name": name}


@functools.cache
def _world(size: int, timeout: float, seed: int) -> World:
    return World(size, timeout=timeout, seed=seed)


def _run_test(test: Any, arguments: bytes, size: int, timeout: float, seed: int) -> None:
    """Called by the pytest plugin: runs a whole test function as the body."""
    _world(size, timeout, seed)._run(getattr(test, "__func__", test), arguments)


@contextlib.contextmanager
def _lent(size: int, timeout: float, seed: int) -> Iterator[World]:
    world = _world(size, timeout, seed)
    try:
        yield world
    finally:
        world.close()


def ranks(size: int, *, timeout: float = 120.0, seed: int = 0) -> Any:
    """Makes a pytest fixture of session scope that gives a World. Files that ask for equal worlds share one.

    Args:
        size: the number of ranks.
        timeout: seconds that a body may take.
        seed: the seed of PyTorch's random numbers on all ranks, set before every body.

    Returns:
        The fixture.

    Raises:
        InvalidError: when a test uses the fixture, `size` or `timeout` is not positive.

    Example:
        world = addend.torch.testing.ranks(4)

        def test_sum(world):
            assert world.run(body, 3) == [12] * 4
    """
    import pytest

    @pytest.fixture(scope="session")  # type: ignore[untyped-decorator, unused-ignore]
    def world() -> Iterator[World]:
        with _lent(size, timeout, seed) as lent:
            yield lent

    return world
