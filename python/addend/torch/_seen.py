"""What ranks saw of a step, and of which steps nothing is said because of it."""

from __future__ import annotations

from typing import Mapping, NamedTuple, Sequence

from addend.torch import _expected, _gather
from addend.torch._names import Checked


class Unjudged(NamedTuple):
    """Why a step says nothing of its sums."""

    verdict: str  # overflow, cannot_tell
    text: str


class Seen(NamedTuple):
    """What a rank saw of a step."""

    kinds: dict[str, _expected.Types]  # of gradients that are DTensors
    numbers: list[int]  # of microbatches
    used: set[str]
    idle: list[str]  # parameters that are not used
    sums: int
    hooked: set[str]  # those that a hook of the job changed after their addends were seen
    tied: dict[str, Checked]  # sums of parameters that were taken for one
    infinite: list[str]  # addends with inf or NaN
    infinite_sums: list[str]
    infinite_norm: bool


def where(names: Mapping[int, Sequence[str]]) -> str:
    """ "ranks 0 and 1 in `up.weight` and 3 more": names by rank, those of the first rank."""
    first = next(iter(names.values()))
    more = f" and {len(first) - 1} more" if first[1:] else ""
    return f"{_gather.ranks_text(list(names))} in `{first[0]}`{more}"


def overflow(everyones: Mapping[int, Seen]) -> Unjudged | None:
    """inf or NaN, as of a loss scale that is too large: such a step is thrown away by the job itself."""
    addends = {rank: seen.infinite for rank, seen in everyones.items() if seen.infinite}
    sums = {rank: seen.infinite_sums for rank, seen in everyones.items() if seen.infinite_sums}
    if addends:
        return Unjudged("overflow", f"overflow on {where(addends)}: this step is not judged")
    if sums:
        words = f"overflow in the sum on {where(sums)}, of addends that are finite: this step is not judged"
        return Unjudged("overflow", words)
    if any(seen.infinite_norm for seen in everyones.values()):
        return Unjudged("overflow", "overflow in the global norm: this step is not judged")
    return None


def nothing(everyones: Mapping[int, Seen]) -> Unjudged | None:
    """Steps of which there is nothing to compare."""
    if any(seen.numbers for seen in everyones.values()):
        return None
    if not any(seen.used or seen.idle for seen in everyones.values()):
        words = "no parameter of the model wants a gradient: there is nothing to judge"
    elif any(seen.sums for seen in everyones.values()):
        words = "there are gradients, and no backward in this watch gave them to parameters: nothing is judged"
    else:
        words = (
            "no backward in this watch gave a parameter a gradient: nothing is judged (torch.func.grad has no hooks: "
            "torch.autograd.grad is seen)"
        )
    return Unjudged("cannot_tell", words)
