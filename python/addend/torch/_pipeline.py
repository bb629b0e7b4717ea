"""Reads torch.distributed.pipelining: to which stage a parameter belongs, to which microbatch a backward belongs, and
by what the schedule divides gradients. Only this file reads private attributes of its classes. Without them,
microbatches are counted by backwards, and the caller has to describe the schedule (mesh=, expect=)."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import sys
import traceback
from typing import TYPE_CHECKING, Any, Callable

import torch.distributed as dist
from torch import nn

if TYPE_CHECKING:
    from addend.torch._addends import Addends

_ROUND = 1 << 20  # microbatch numbers for each call of a schedule's step(): those of call n begin at n * _ROUND


@dataclasses.dataclass
class Stage:
    index: int
    count: int  # number of stages in the pipeline
    ranks: list[int]  # the pipeline's ranks
    names: dict[int, str]  # names of the stage's parameters, by id()
    module: nn.Module


_PACKAGE = "torch.distributed.pipelining."


def _base() -> Any:
    return getattr(sys.modules.get(f"{_PACKAGE}stage"), "_PipelineStageBase", None)


def find(model: nn.Module) -> list[Stage]:
    """The stages whose module is the model, contains it, or is in it. Modules do not refer to their stage, so all
    objects of the garbage collector are searched."""
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


_INFERENCES = {"_forward_metadata_inference", "_backward_metadata_inference", "_shape_inference"}


def infers() -> bool:
    """Whether a stage now finds the shapes of what it exchanges: by an extra forward and backward, at a schedule's
    first step, which are no part of the job's."""
    if _base() is None:
        return False
    return any(
        frame.f_code.co_name in _INFERENCES and frame.f_globals.get("__name__", "").startswith(_PACKAGE)
        for frame, _ in traceback.walk_stack(sys._getframe())
    )


class Observer:
    """During a watch, numbers the microbatches of `addends` as the schedule does, and notes its gradients' divisor."""

    def __init__(self) -> None:
        self.divided: dict[int, int] = {}  # by what the schedule divided gradients; key: id() of the stage's module
        self._rounds: dict[tuple[int, str, int], int] = {}
        self._run: dict[int, set[int]] = {}  # microbatches whose backward ran; key: id() of the stage's module
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
        """The number of microbatches of which the stage ran a backward."""
        return len(self._run.get(id(stage.module), ()))

    def _replace(self, base: Any, name: str, replacement: Callable[..., Any]) -> None:
        self._kept[name] = getattr(base, name)
        setattr(base, name, replacement)

    def _number(self, stage: Any, name: str, chunk: int) -> int:
        """The number of the microbatch whose backward begins."""
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
