"""Ranks find each other where a watch begins and where it ends, through the store that the job's process group was made
with: no collective runs, so that a rank that is alone finds out in place of waiting in one."""

from __future__ import annotations

import time
from typing import Any, Callable, Optional

import torch.distributed as dist

from addend.torch import _gather
from addend.torch._gather import Group

TOGETHER = "together"  # what is decided where all ranks came; else who was missing
_AT_END = 600.0  # seconds; ranks that have not ended by then are waited for by the next collective
_SOONEST, _LATEST = 0.0005, 0.05  # seconds between looks at the store


def _store() -> Any:
    """None: this process group has none, or is not there."""
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return None
    try:
        return dist.distributed_c10d._get_default_store()
    except (AttributeError, ValueError):
        return None


class Meeting:
    """One watch of some ranks. What is decided first, by whoever does, holds for all of them."""

    def __init__(self, group: Group):
        self._all = _gather.group_ranks(group)
        self._me = self._all[_gather.rank_in(group)]
        self._store = _store()
        self._prefix = (
            "addend/" + ",".join(map(str, self._all)) if len(self._all) < 32 else f"addend/{hash(tuple(self._all))}"
        )
        self._key = ""

    def begin(self, seconds: float) -> Optional[str]:
        """None: all ranks are here. Else they are not within `seconds`, and these words say who is missing."""
        if self._store is None:
            return None
        number = self._store.add(f"{self._prefix}/number", 0)
        self._key = f"{self._prefix}/{number}"
        self._store.set(f"{self._key}/rank{self._me}", "here")
        decided = self._decided("begun", seconds, lambda: self._missing(seconds))
        if decided == TOGETHER and self._me == self._all[0]:
            self._forget(f"{self._prefix}/{number - 1}")
        return None if decided == TOGETHER else decided

    def end(self) -> Optional[str]:
        """None: all ranks ended. Else these words of one that left()."""
        if self._store is None:
            return None
        decided = self._decided("ended", _AT_END, lambda: TOGETHER)
        return None if decided == TOGETHER else decided

    def left(self, error: str) -> None:
        """This rank leaves with an error of the job's own; the others are told."""
        if self._store is not None and self._key:
            self._decide("ended", f"rank {self._me} left the watch with {error}")

    def _decide(self, what: str, words: str) -> str:
        decided: str = self._store.compare_set(f"{self._key}/{what}", "", words).decode()
        if what == "begun" and self._store.add(f"{self._key}/closed", 1) == 1:
            self._store.add(f"{self._prefix}/number", 1)  # whoever comes later is not of this watch
        return decided

    def _decided(self, what: str, seconds: float, otherwise: Callable[[], str]) -> str:
        if self._store.add(f"{self._key}/{what}/count", 1) == len(self._all):
            return self._decide(what, TOGETHER)
        until, pause = time.monotonic() + seconds, _SOONEST
        while not self._store.check([f"{self._key}/{what}"]):
            if time.monotonic() > until:
                return self._decide(what, otherwise())
            time.sleep(pause)
            pause = min(2 * pause, _LATEST)
        decided: str = self._store.get(f"{self._key}/{what}").decode()
        return decided

    def _missing(self, seconds: float) -> str:
        missing = [rank for rank in self._all if not self._store.check([f"{self._key}/rank{rank}"])]
        who = _gather.ranks_text(missing)
        return (
            f"rank {self._me} entered a watch, and {who} did not within {seconds:g} s: this step is not watched; "
            "all ranks of the job (or of group=) enter and leave a watch together"
        )

    def _forget(self, key: str) -> None:
        """Keys of the watch before, which every rank has left."""
        for rank in self._all:
            self._store.delete_key(f"{key}/rank{rank}")
        for what in ("begun", "begun/count", "closed", "ended", "ended/count"):
            self._store.delete_key(f"{key}/{what}")
