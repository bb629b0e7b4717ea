"""Runs a check on ranks that torchrun or another launcher started. Each rank forks a process for its part, so that the
rank's process groups, default dtype and threads do not change, and all ranks hear of a part that dies or hangs."""

from __future__ import annotations

import datetime
import os
import pickle
import socket
import tempfile
from typing import Any, Callable, TypeVar

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.distributed.rendezvous import rendezvous

import addend
from addend.torch._checks import _job, _judge, _ranks
from addend.torch._checks._axes import Axes
from addend.torch._checks._report import MatchReport

_LATE = 30.0  # seconds by which a rank may come later than the others
_calls = 0  # number of checks so far, which all ranks make in the same order
_kept: list[Any] = []  # keeps groups alive in a forked process, since their destructors would wait for threads

T = TypeVar("T")
Failure = tuple[type, str]


def is_launched() -> bool:
    """Whether this process is one of several that a launcher started."""
    return dist.is_initialized() or ("RANK" in os.environ and "WORLD_SIZE" in os.environ)


def _store() -> tuple[Any, int, int]:
    if dist.is_initialized():
        return distributed_c10d._get_default_store(), dist.get_rank(), dist.get_world_size()
    found: tuple[Any, int, int] = next(iter(rendezvous("env://")))
    return found


def forget_groups() -> None:
    """Makes torch.distributed forget its groups, in a process that was forked from a rank."""
    if not dist.is_initialized():
        return
    world = distributed_c10d._world
    _kept.extend([dict(world.pg_map), distributed_c10d.GroupMember.WORLD])
    distributed_c10d._update_default_pg(None)
    for held in (
        world.pg_map, world.pg_names, world.pg_group_ranks, world.pg_backend_config, world.pg_to_tag,
        world.tags_to_pg, world.pg_coalesce_state,
    ):  # fmt: skip
        held.clear()
    torch._C._distributed_c10d._unregister_all_process_groups()
    world.group_count = 0


def _attempt(work: Callable[[], T]) -> tuple[T | None, Failure | None]:
    try:
        return work(), None
    except addend.AddendError as error:
        return None, (type(error), str(error))
    except Exception as error:
        return None, (addend.RankDiedError, _ranks.reported(error))


class Team:
    """This rank and, through the launcher's store, the others."""

    def __init__(self, axes: Axes, limit: float):
        global _calls
        _calls += 1
        store, self.rank, self.world = _store()
        if self.world != axes.size():
            raise addend.InvalidError(
                f"the launcher started {self.world} ranks, but mesh {axes} has {axes.size()}: start that many, or "
                "`unset RANK WORLD_SIZE` so that check starts its own"
            )
        restart = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        self._store: Any = distributed_c10d.PrefixStore(f"addend-check/{restart}/{_calls}", store)
        self._limit = limit
        self._reported = 0
        hosts = self._exchange(socket.gethostname())
        if len(set(hosts)) > 1:
            raise addend.InvalidError(
                f"the ranks are on {len(set(hosts))} machines ({', '.join(sorted(set(hosts)))}): the check needs all "
                "on one machine"
            )

    def _get(self, key: str, rank: int) -> Any:
        limit = self._limit + _LATE
        try:
            self._store.wait([key], datetime.timedelta(seconds=limit))
        except RuntimeError as error:
            raise addend.RankDiedError(
                f"rank {rank} did not join the check within {limit:g} s: that rank does not call check, or has ended"
            ) from error
        return pickle.loads(self._store.get(key))

    def _exchange(self, own: Any) -> list[Any]:
        """Every rank gives a value; returns all of them."""
        self._reported += 1
        self._store.set(f"{self._reported}/{self.rank}", pickle.dumps(own))
        return [self._get(f"{self._reported}/{rank}", rank) for rank in range(self.world)]

    def _agree(self, own: Failure | None) -> None:
        """If a rank failed, raises its error on all ranks."""
        reported = self._exchange(own)
        failed: dict[str, Failure] = {failure[1]: failure for failure in reported if failure is not None}
        if failed:
            kind, text = min(failed.values(), key=lambda failure: _ranks.follows(failure[1]))
            hung = [text for _, text in failed.values() if _ranks.HUNG in text]
            raise kind("\n".join(hung) if _ranks.HUNG in text else text)

    def first(self, work: Callable[[], T]) -> T:
        """Calls work() on rank 0; returns its result, or raises its error, on all ranks."""
        found, failure = _attempt(work) if self.rank == 0 else (None, None)
        self._agree(failure)
        reported: T = self._exchange(found)[0]
        return reported

    def each(self, work: Callable[[], T]) -> T:
        """Calls work() on every rank; returns this rank's result, or raises the error of a rank that failed."""
        found, failure = _attempt(work)
        self._agree(failure)
        assert found is not None
        return found

    def compare(
        self, task: _job.Task, axes: Axes, timeout: float, whole_of: Callable[[str], _job.Whole], in_file: bool
    ) -> MatchReport:
        """Runs the check; returns its report on all ranks. `in_file`: each rank reads the reference from a file; else
        rank 0 computes it."""
        folder = self.first(lambda: tempfile.mkdtemp(prefix="addend-check-"))
        try:
            if not in_file:
                self.first(lambda: _write(os.path.join(folder, "whole"), whole_of(folder)))
            whole = self.each(lambda: whole_of(folder) if in_file else _read(os.path.join(folder, "whole")))
            task = _job.with_bound(task, whole)
            self.each(lambda: self._part(task, axes, whole, folder, timeout))
            return self.first(lambda: self._report(task, axes, whole, folder))
        finally:
            if self.rank == 0:
                _job.forget(folder)

    def run(self, work: Callable[[int, str], Any], timeout: float) -> None:
        """Runs work(rank, folder) in a process that each rank forks, with one folder for all; raises the error of a
        rank that failed on all ranks."""
        folder = self.first(lambda: tempfile.mkdtemp(prefix="addend-check-"))

        def forked(_: int) -> Any:
            forget_groups()
            return work(self.rank, folder)

        try:
            self.each(lambda: _ranks.run([f"rank {self.rank}"], forked, folder, timeout))
        finally:
            if self.rank == 0:
                _job.forget(folder)

    def _part(self, task: _job.Task, axes: Axes, whole: _job.Whole, folder: str, timeout: float) -> bool:
        def be_rank(_: int) -> _job.Part:
            forget_groups()
            return _job.be_rank(task, Axes(task.mesh, self.rank), whole, folder, self.rank)

        part = _ranks.run([f"rank {self.rank}"], be_rank, folder, timeout)[0]
        return _write(os.path.join(folder, f"part{self.rank}"), part)

    def _report(self, task: _job.Task, axes: Axes, whole: _job.Whole, folder: str) -> MatchReport:
        parts = [_read(os.path.join(folder, f"part{rank}")) for rank in range(self.world)]
        return _judge.Judge(task, axes, whole, parts, folder).report()


def _write(path: str, value: Any) -> bool:
    with open(path, "wb") as file:
        pickle.dump(value, file)
    return True


def _read(path: str) -> Any:
    with open(path, "rb") as file:
        return pickle.load(file)
