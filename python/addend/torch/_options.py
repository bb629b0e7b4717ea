"""The options of a watch, listed once: what `watch`, `dump`, `assert_summed`, `watch_trainer` and the pytest fixture
take by name. The docstring of `watch` explains them."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Callable, TypedDict, Union

import torch
from torch.distributed.device_mesh import DeviceMesh

from addend.torch import _buffers, _names, _sums
from addend.torch._gather import Group

Number = Union[float, torch.Tensor]
Norm = Union[Number, Callable[[], Number]]


class DumpOptions(TypedDict, total=False):
    """Options that say what a job does in its step."""

    norm: Norm | None
    divisor: Number | None
    expect: float | Mapping[str, float] | None
    types: Mapping[str, str] | None
    mesh: DeviceMesh | None
    sample: int | None
    group: Group
    gradient: _sums.GradientOf | None
    addend: _buffers.AddendOf | None
    reduce: torch.dtype | None
    tied: _names.Tied
    unused: Sequence[str]
    wait: float


class JudgeOptions(DumpOptions, total=False):
    """Options of one step that is judged."""

    allow_identical: bool


class WatchOptions(JudgeOptions, total=False):
    """Everything that `watch` takes beside the model: `options = WatchOptions(every=1000, raises=True)` makes a
    dictionary, and `watch(model, **options)` takes it, as `watch_trainer` and the fixture `addend_watch` do."""

    raises: bool
    every: int
    show: bool


def need_options(
    call: str, heads: str, misplaced: Sequence[object], options: Mapping[str, object], known: type
) -> None:
    """Raises TypeError, which names the option, if one came by position or does not exist.

    Args:
        call: the name of the function that was called.
        heads: what that function takes by position, in words.
        misplaced: what came by position beyond these.
        options: what came by name.
        known: the TypedDict of the function's options.
    """
    names = sorted(known.__annotations__)
    if misplaced:
        raise TypeError(
            f"{call} takes {heads} by position and its options by name: {misplaced[0]!r} came without a name; the "
            f"options are {', '.join(names)}"
        )
    unknown = sorted(set(options) - set(names))
    if unknown:
        similar = difflib.get_close_matches(unknown[0], names, 1)
        meant = f"`{similar[0]}=` is similar; " if similar else ""
        raise TypeError(f"{call} has no option `{unknown[0]}=`; {meant}the options are {', '.join(names)}")
