"""Ranks for tests: processes that import PyTorch once and run one body after another, each in a process group of its
own (docs/torch-testing.md)."""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import pickle
import sys
from types import FunctionType, TracebackType
from typing import Any, Callable, Dict, Iterator, List, Optional, Type

from addend._errors import AddendError, InvalidError
from addend.torch._testing_pool import Pool

__all__ = ["RankError", "World", "ranks"]


class RankError(AddendError, AssertionError):
    """A body raised on a rank, a rank died, or did not end: the text says which did what."""

    status = "rank-failed"


class World:
    """`size` ranks of this machine. They start with the first `run`, and anew with the next one after a failure.

    `timeout`: seconds that a body may take. `seed`: what random numbers start
    from on all ranks, in every body."""

    def __init__(self, size: int, *, timeout: float = 120.0, seed: int = 0):
        if size < 1 or timeout <= 0:
            raise InvalidError(f"a world has 1 rank or more, and they some seconds: not {size} ranks and {timeout} s")
        self.size, self.timeout, self.seed = size, timeout, seed
        self._pool = Pool(size)

    def run(self, body: Callable[..., Any], *arguments: Any) -> List[Any]:
        """Calls body(*arguments) on every rank, with torch.distributed initialised, and returns what the ranks
        returned, in their order. Arguments and results are pickled.

        Raises RankError with the traceback of the rank that failed first; where the body skips the test, so does
        this."""
        __tracebackhide__ = True
        return self._run(body, pickle.dumps((arguments, {})))

    def _run(self, body: Any, arguments: bytes) -> List[Any]:
        __tracebackhide__ = True
        place = dict(_place(body), arguments=arguments, seed=self.seed, timeout=self.timeout)
        outcome, told, said = self._pool.run(place, self.timeout)
        for rank, text in enumerate(said):
            sys.stdout.write("".join(f"[rank {rank}] {line}\n" for line in text.splitlines()))
        if outcome == "skipped":
            import pytest

            pytest.skip(told)
        if outcome == "failed":
            raise RankError(told)
        return [pickle.loads(answer) for answer in told]

    def close(self) -> None:
        """Ends the ranks; another `run` would start them anew."""
        self._pool.close()

    def __enter__(self) -> World:
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], traceback: Optional[TracebackType]
    ) -> None:
        self.close()


def _place(body: Any) -> Dict[str, Any]:
    """Where ranks, which are other processes, find a function."""
    name = getattr(body, "__qualname__", repr(body))
    if not isinstance(body, FunctionType) or "<" in name:
        raise InvalidError(
            f"ranks are other processes, which find a body by its file and name: {name} must be a function at the top "
            "of its file; give it what it needs as arguments"
        )
    file = inspect.getsourcefile(body)
    if file is None or not os.path.exists(file):
        raise InvalidError(f"{name} has no file, where ranks could find it")
    return {"module": body.__module__, "file": os.path.abspath(file), "name": name}


@functools.cache
def _world(size: int, timeout: float, seed: int) -> World:
    return World(size, timeout=timeout, seed=seed)


def _run_test(test: Any, arguments: bytes, size: int, timeout: float, seed: int) -> None:
    """Of the plugin: a whole test is the body."""
    _world(size, timeout, seed)._run(getattr(test, "__func__", test), arguments)


@contextlib.contextmanager
def _lent(size: int, timeout: float, seed: int) -> Iterator[World]:
    world = _world(size, timeout, seed)
    try:
        yield world
    finally:
        world.close()


def ranks(size: int, *, timeout: float = 120.0, seed: int = 0) -> Any:
    """A fixture of pytest's, of session scope: a World. The same one in every file that asks for the same."""
    import pytest

    @pytest.fixture(scope="session")  # type: ignore[untyped-decorator, unused-ignore]
    def world() -> Iterator[World]:
        with _lent(size, timeout, seed) as lent:
            yield lent

    return world
