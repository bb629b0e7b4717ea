"""Synchronises the ranks where a watch begins and ends, through the store of the job's process group. No collective is
used, so that a rank that enters a watch alone gets an error instead of waiting forever."""

from __future__ import annotations

import time
from typing import Any, Callable

import torch.distributed as dist

from addend.torch import _alive, _gather
from addend.torch._gather import Group

TOGETHER = "together"  # the decision if all ranks came; otherwise the decision says which ranks are missing
_SOONEST, _LATEST = 0.0005, 0.05  # shortest and longest pause in seconds between two looks at the store


def _store() -> Any:
    """The store of the default process group; None if there is no group, or no store."""
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return None
    try:
        return dist.distributed_c10d._get_default_store()
    except (AttributeError, ValueError):
        return None


class Meeting:
    """The meetings of one group's ranks at the beginning and end of watches. The first rank that decides (all came, or
    somebody is missing) decides for all of them."""

    def __init__(self, group: Group):
        self._all = _gather.group_ranks(group)
        self._me = self._all[_gather.rank_in(group)]
        self._store = _store()
        self._prefix = (
            "addend/" + ",".join(map(str, self._all)) if len(self._all) < 32 else f"addend/{hash(tuple(self._all))}"
        )
        self._key = ""
        self._identities: dict[int, str] | None = None
        self._at_end = _gather.timeout(group) if self._store is not None else 0.0

    def begin(self, seconds: float) -> str | None:
        """Waits until all ranks have entered the watch: None. If they have not within `seconds`: words that say which
        ranks are missing."""
        return self._unless_lost(lambda: self._begin(seconds))

    def _begin(self, seconds: float) -> str | None:
        number = self._store.add(f"{self._prefix}/number", 0)
        self._key = f"{self._prefix}/{number}"
        self._store.set(f"{self._key}/rank{self._me}", _alive.identity())
        decided = self._decided("begun", seconds, lambda: self._missing(seconds), lambda: None)
        if decided == TOGETHER and self._me == self._all[0]:
            self._forget(f"{self._prefix}/{number - 1}")
        return None if decided == TOGETHER else decided

    def end(self) -> str | None:
        """Waits until all ranks have ended the watch: None. Else words on a rank that called left(), that ended, or
        that did not come within the group's timeout."""
        return self._unless_lost(self._end)

    def _end(self) -> str | None:
        self._store.set(f"{self._key}/end{self._me}", "")
        decided = self._decided("ended", self._at_end, self._late, self.ended)
        return None if decided == TOGETHER else decided

    def _unless_lost(self, meet: Callable[[], str | None]) -> str | None:
        """What meet() returns, or words on the store if its process has ended."""
        if self._store is None:
            return None
        try:
            return meet()
        except RuntimeError as error:  # DistNetworkError is one
            return f"the ranks' store cannot be reached, as if its process had ended: {str(error).splitlines()[0]}"

    def ended(self) -> str | None:
        """Words on a rank of the watch whose process has ended; None: none is seen to have."""
        return self._unless_lost(self._ended)

    def _ended(self) -> str | None:
        if self._identities is None:
            self._identities = {rank: self._store.get(f"{self._key}/rank{rank}").decode() for rank in self._all}
        gone = [rank for rank, identity in self._identities.items() if _alive.has_ended(identity)]
        return f"the process of {_gather.ranks_text(gone)} ended before the watch did" if gone else None

    def left(self, error: str) -> None:
        """This rank leaves the watch with an error of the job; end() on the other ranks returns it."""
        if self._store is not None and self._key:
            words = f"rank {self._me} left the watch with {error}"
            self._unless_lost(lambda: self._decide("ended", words))

    def _decide(self, what: str, words: str) -> str:
        decided: str = self._store.compare_set(f"{self._key}/{what}", "", words).decode()
        if what == "begun" and self._store.add(f"{self._key}/closed", 1) == 1:
            self._store.add(f"{self._prefix}/number", 1)  # a rank that comes later begins the next watch
        return decided

    def _decided(self, what: str, seconds: float, late: Callable[[], str], lost: Callable[[], str | None]) -> str:
        """What the ranks decide: TOGETHER, or the words of late() after `seconds`, or those of lost() as soon as it has
        some."""
        if self._store.add(f"{self._key}/{what}/count", 1) == len(self._all):
            return self._decide(what, TOGETHER)
        now = time.monotonic()
        until, look, pause = now + seconds, now + _alive.LOOKS, _SOONEST
        while not self._store.check([f"{self._key}/{what}"]):
            now = time.monotonic()
            words = lost() if now > look else None
            look = now + _alive.LOOKS if now > look else look
            if words or now > until:
                return self._decide(what, words or late())
            time.sleep(pause)
            pause = min(2 * pause, _LATEST)
        decided: str = self._store.get(f"{self._key}/{what}").decode()
        return decided

    def _missing(self, seconds: float) -> str:
        missing = [rank for rank in self._all if not self._store.check([f"{self._key}/rank{rank}"])]
        who = _gather.ranks_text(missing)
        return (
            f"rank {self._me} entered a watch, and {who} did not within {seconds:g} s: this step is not watched; "
            "all ranks of the job (or of group=) must enter and leave a watch together"
        )

    def _late(self) -> str:
        late = [rank for rank in self._all if not self._store.check([f"{self._key}/end{rank}"])]
        return f"{_gather.ranks_text(late)} did not end the watch within the group's timeout of {self._at_end:g} s"

    def _forget(self, key: str) -> None:
        """Deletes the store's keys of the previous watch, which every rank has left."""
        for rank in self._all:
            self._store.delete_key(f"{key}/rank{rank}")
            self._store.delete_key(f"{key}/end{rank}")
        for what in ("begun", "begun/count", "closed", "ended", "ended/count"):
            self._store.delete_key(f"{key}/{what}")
