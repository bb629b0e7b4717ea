"""torch.distributed.pipelining: which parameters belong to which stage, which microbatch a backward is of, and what the
schedule divides gradients by. What is private to PyTorch is read in this file alone, guarded: where it is missing
microbatches are counted by backwards, and the caller says what the schedule does (mesh=, expect=)."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import sys
from typing import TYPE_CHECKING, Any, Callable

import torch.distributed as dist
from torch import nn

if TYPE_CHECKING:
    from addend.torch._addends import Addends

_ROUND = 1 << 20  # microbatches of one call of a schedule's step(); a second call's are numbered behind them


@dataclasses.dataclass
class Stage:
    index: int
    count: int  # of the whole pipeline
    ranks: list[int]  # that the pipeline lies on
    names: dict[int, str]  # of its parameters, by id
    module: nn.Module


def _base() -> Any:
    return getattr(sys.modules.get("torch.distributed.pipelining.stage"), "_PipelineStageBase", None)


def find(model: nn.Module) -> list[Stage]:
    """Stages whose module is the model, in it or around it. No module knows its stage, so all objects are asked."""
    base = _base()
    if base is None:
        return []
    inside = set(map(id, model.modules()))
    found = {}
    for thing in gc.get_objects():
        if not issubclass(type(thing), base):
            continue
        module = getattr(thing, "submod", None)
        if not isinstance(module, nn.Module) or not (id(module) in inside or any(m is model for m in module.modules())):
            continue
        names = {id(param): name for name, param in module.named_parameters()}
        ranks = dist.get_process_group_ranks(thing.group if thing.group is not None else dist.group.WORLD)
        found[id(module)] = Stage(thing.stage_index, thing.num_stages, list(ranks), names, module)
    return list(found.values())


class Observer:
    """While a watch looks: numbers the microbatches of `addends` as schedules do, and keeps what they divide by."""

    def __init__(self) -> None:
        self.divided: dict[int, int] = {}  # by the id of a stage's module
        self._rounds: dict[tuple[int, str, int], int] = {}
        self._run: dict[int, set[int]] = {}  # microbatches, by the id of a stage's module
        self._kept: dict[str, Any] = {}

    def attach(self, addends: Addends) -> None:
        base = _base()
        for name in ("backward_one_chunk", "backward_weight_one_chunk"):
            if hasattr(base, name):
                self._replace(base, name, self._numbered(getattr(base, name), name, addends))
        if hasattr(base, "scale_grads"):
            self._replace(base, "scale_grads", self._noting(base.scale_grads, addends))

    def remove(self) -> None:
        for name, original in self._kept.items():
            setattr(_base(), name, original)
        self._kept.clear()

    def run_by(self, stage: Stage) -> int:
        """How many microbatches' backwards a stage ran."""
        return len(self._run.get(id(stage.module), ()))

    def _replace(self, base: Any, name: str, replacement: Callable[..., Any]) -> None:
        self._kept[name] = getattr(base, name)
        setattr(base, name, replacement)

    def _number(self, stage: Any, name: str, chunk: int) -> int:
        """Of the microbatch whose backward begins."""
        key = (id(stage), name, chunk)
        at = self._rounds[key] = self._rounds.get(key, -1) + 1
        self._run.setdefault(id(stage.submod), set()).add(at * _ROUND + chunk)
        return at * _ROUND + chunk

    def _numbered(self, original: Callable[..., Any], name: str, addends: Addends) -> Callable[..., Any]:
        def run(stage: Any, chunk: int, *args: Any, **kwargs: Any) -> Any:
            number = addends.guarded(name, self._number, stage, name, chunk)
            with addends.numbered(number) if number is not None else contextlib.nullcontext():
                return original(stage, chunk, *args, **kwargs)

        return run

    def _note(self, stage: Any, factor: int) -> None:
        self.divided[id(stage.submod)] = factor

    def _noting(self, original: Callable[..., Any], addends: Addends) -> Callable[..., Any]:
        def scale(stage: Any, factor: int) -> Any:
            addends.guarded("scale_grads", self._note, stage, factor)
            return original(stage, factor)

        return scale
