"""Addends of parameters whose backward adds to a buffer itself instead of returning a gradient (addend=), such as the
`main_grad` of Megatron's fused weight gradients. What autograd then gives the parameter's hook has no meaning, and may
be memory that nobody wrote."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Callable, Optional

import torch

from addend.torch import _meshes
from addend.torch._parameters import Watched
from addend.torch._sample import Piece

# Gives the tensor in which this rank's backward accumulates a parameter's gradient; None: autograd gives the gradient
AddendOf = Callable[[torch.Tensor], Optional[torch.Tensor]]
_LATE = (
    "the buffer that addend= gives changed only after its backward: a weight gradient that is computed later "
    "(delay_wgrad_compute) cannot be watched, and where autograd gives the gradient addend= must return None"
)
_UNSEEN = "the buffer that addend= gives changed in a backward that called no hook of the parameter: nobody saw by what"


def need_empty(watched: Iterable[Watched], addend_of: AddendOf) -> None:
    """Raises ValueError if a buffer already holds a gradient before the step."""
    full = []
    for entry in watched:
        buffer = addend_of(entry.used)
        if buffer is not None and bool(_meshes.local_of(buffer).any()):
            full.append(entry.name)
    if full:
        more = f" and {len(full) - 1} more" if full[1:] else ""
        raise ValueError(
            f"{full[0]}{more}: the buffer that addend= gives holds a gradient already: begin the watch after it is "
            "cleared (zero_grad_buffer() of Megatron-Core)"
        )


def doubt_late(watched: Iterable[Watched], everyones: Iterable[Mapping[str, bool]]) -> None:
    """Leaves open the sums of parameters whose buffers no rank's backward had written when it called their hook.
    `everyones`: what settle() gives on each rank."""
    written: dict[str, bool] = {}
    for of_rank in everyones:
        for name, is_written in of_rank.items():
            written[name] = written.get(name, False) or is_written
    for entry in watched:
        if not written.get(entry.name, True):
            entry.unjudged = entry.unjudged or _LATE


class Buffers:
    """The buffers of one watched step. An addend is the difference between a buffer when the parameter's hook is called
    and before the backward, in f64, so that it is exact."""

    def __init__(self, watched: Sequence[Watched], addend_of: AddendOf, sample: Callable[..., Piece]):
        self._watched, self._of, self._sample = watched, addend_of, sample
        # Whether the job adds to a parameter's buffer what autograd gives, too
        self._adds: Callable[[torch.Tensor], bool] = getattr(addend_of, "adds_gradient", lambda _: False)
        self._last: dict[str, Piece] = {}  # what each buffer held when it was last looked at
        self._called: set[str] = set()  # parameters with a buffer whose hook the running backward called
        self.written: dict[str, bool] = {}  # by the parameter's name: whether a backward changed it before the hook

    def _look(self, entry: Watched) -> Piece | None:
        buffer = self._of(entry.used)
        if buffer is None:
            return None
        piece = self._sample(entry, buffer)
        return dataclasses.replace(piece, values=piece.values.double())

    def begin(self) -> None:
        """Notes what the buffers hold when a backward begins: a reduction may have changed them since the last one."""
        self._called.clear()
        for entry in self._watched:
            now = self._look(entry)
            if now is not None:
                self._last[entry.name] = now

    def has(self, entry: Watched) -> bool:
        """Whether the running backward gave the parameter's addend by its buffer."""
        return entry.name in self._called

    def take(self, entry: Watched, gradient: torch.Tensor | None) -> Piece | None:
        """The addend when the parameter's hook is called with `gradient`; None: it has no buffer. A buffer that was not
        there before this backward began with zeros."""
        now = self._look(entry)
        if now is None:
            return None
        before = self._last.get(entry.name)
        own = now.values if before is None else now.values - before.values
        self._last[entry.name] = now
        self._called.add(entry.name)
        self.written[entry.name] = self.written.get(entry.name, False) or bool(own.any())
        if gradient is not None and self._adds(entry.used):
            own = own + self._sample(entry, gradient).values
        return dataclasses.replace(now, values=own)

    def end(self) -> None:
        """Ends a backward: a buffer that changed without a call of the parameter's hook leaves its addend unknown."""
        for entry in self._watched:
            before = self._last.get(entry.name)
            if before is None or entry.name in self._called:
                continue
            now = self._look(entry)
            if now is not None and not torch.equal(now.values, before.values):
                entry.unjudged = entry.unjudged or _UNSEEN
                self._last[entry.name] = now

    def clear(self) -> None:
        """Ends the step: what the buffers held is not kept."""
        self._last.clear()
        self._called.clear()

    def settle(self) -> dict[str, bool]:
        """After the step, for each buffer whose parameter's hook was called and which is not zero now: whether a
        backward changed it before that call. If none did on any rank, it was written later."""
        found = {}
        for entry in self._watched:
            if entry.name in self.written:
                now = self._look(entry)
                if self.written[entry.name] or (now is not None and bool(now.values.any())):
                    found[entry.name] = self.written[entry.name]
        return found
