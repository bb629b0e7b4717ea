"""What each rank saw of a step, and which steps are not judged because of it (overflow, no gradients)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from addend.torch import _expected, _gather, _patterns, _readings
from addend.torch._names import Checked


class Unjudged(NamedTuple):
    """Why a step's sums are not judged."""

    verdict: str  # overflow, cannot_tell
    text: str


class Seen(NamedTuple):
    """What a rank saw of a step. Strings are names of parameters."""

    kinds: dict[str, _expected.Types]  # types of gradients that are DTensors
    numbers: list[int]  # numbers of the microbatches
    used: set[str]  # parameters with an addend or a sum
    idle: list[str]  # the other parameters
    discarded: list[str]  # parameters whose gradients torch.autograd.grad returned, and which have no sum
    zero: set[str]  # parameters in `used` of which every addend and the sum are zero
    silent: set[str]  # parameters in `used` that no hook could change here: every addend is zero, or the sum empty
    sums: int  # number of sums
    readings: _readings.Readings  # further ways to read parameters' sums
    custom: dict[str, str]  # names of the job's own hooks that make sums
    tied: dict[str, Checked]  # box and checksum of the sum of parameters that were taken for tied
    infinite: list[str]  # parameters with an inf or a NaN in an addend
    infinite_sums: list[str]  # parameters with an inf or a NaN in the sum
    infinite_norm: bool  # the global norm is inf or NaN
    # parameters whose gradient their hooks changed and summed: over which axes, and where
    hooked: Mapping[str, Mapping[str, str]] = {}
    unmatched: _patterns.Unmatched = {}  # patterns of options that match no parameter here
    written: Mapping[str, bool] = {}  # parameters of addend=: whether a backward changed the buffer before their hook


def where(names: Mapping[int, Sequence[str]]) -> str:
    """Words for some ranks' parameters, with the names of the first rank: "ranks 0 and 1 in `up.weight` and 3 more"."""
    first = next(iter(names.values()))
    more = f" and {len(first) - 1} more" if first[1:] else ""
    return f"{_gather.ranks_text(list(names))} in `{first[0]}`{more}"


def overflow(everyones: Mapping[int, Seen]) -> Unjudged | None:
    """Why a step with an inf or a NaN is not judged: the job itself skips it, as with a too large loss scale."""
    addends = {rank: seen.infinite for rank, seen in everyones.items() if seen.infinite}
    sums = {rank: seen.infinite_sums for rank, seen in everyones.items() if seen.infinite_sums}
    if addends:
        return Unjudged("overflow", f"overflow on {where(addends)}: this step is not judged")
    if sums:
        words = f"overflow in the sum on {where(sums)}, of addends that are finite: this step is not judged"
        return Unjudged("overflow", words)
    if any(seen.infinite_norm for seen in everyones.values()):
        return Unjudged("overflow", "overflow in the global norm that `norm` gives: this step is not judged")
    return None


def nothing(everyones: Mapping[int, Seen]) -> Unjudged | None:
    """Why a step without addends is not judged."""
    if any(seen.numbers for seen in everyones.values()):
        return None
    if not any(seen.used or seen.idle for seen in everyones.values()):
        words = "no parameter of the model wants a gradient (requires_grad): there is nothing to judge"
    elif any(seen.sums for seen in everyones.values()):
        words = "parameters have gradients (`.grad`) that no backward in this watch gave them: nothing is judged"
    else:
        words = (
            "no backward in this watch gave a parameter a gradient: nothing is judged (torch.func.grad has no hooks: "
            "torch.autograd.grad is seen)"
        )
    return Unjudged("cannot_tell", words)
