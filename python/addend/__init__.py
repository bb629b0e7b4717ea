"""addend types the gradients of distributed training and checks them. python/docs/python.md has examples."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from addend import _trainer
from addend._cause import Cause
from addend._comm import Comm
from addend._diff import (
    DiffCall,
    DiffDeclaration,
    DiffNorm,
    DiffParam,
    DiffReference,
    DiffReport,
    diff,
    explain,
)
from addend._errors import (
    AddendError,
    CycleError,
    FileError,
    GradientError,
    InvalidError,
    LayoutError,
    MismatchError,
    MissingTrainerError,
    NoMemoryError,
    NumberError,
    PeerFailedError,
    RankDiedError,
    RankLeftError,
    StoppedError,
    SystemRefusedError,
)
from addend._layout import Layout, Mesh, PathStep, Transition, propagate, transitions
from addend._library import version as _version

if TYPE_CHECKING:
    from addend_train import (
        CheckParam as CheckParam,
        CheckReport as CheckReport,
        Mutant as Mutant,
        Plan as Plan,
        PlanParam as PlanParam,
        PlanStep as PlanStep,
        TrainResult as TrainResult,
        check as check,
        plan as plan,
        train as train,
    )

__version__ = _version()
__all__ = [
    "AddendError",
    "Cause",
    "Comm",
    "CycleError",
    "DiffCall",
    "DiffDeclaration",
    "DiffNorm",
    "DiffParam",
    "DiffReference",
    "DiffReport",
    "FileError",
    "GradientError",
    "InvalidError",
    "Layout",
    "LayoutError",
    "Mesh",
    "MismatchError",
    "MissingTrainerError",
    "NoMemoryError",
    "NumberError",
    "PathStep",
    "PeerFailedError",
    "RankDiedError",
    "RankLeftError",
    "StoppedError",
    "SystemRefusedError",
    "Transition",
    "diff",
    "explain",
    "propagate",
    "transitions",
]


def __getattr__(name: str) -> Any:
    if name in _trainer.CALLS or name in _trainer.RESULTS:
        return _trainer.of_the_trainer(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
