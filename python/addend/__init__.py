"""addend types the gradients of distributed training and proves them right. python/docs/python.md has examples."""

from addend._cause import Cause
from addend._check import CheckParam, CheckReport, Sabotage, check
from addend._comm import Comm
from addend._diff import DiffNorm, DiffParam, DiffReference, DiffReport, diff, explain
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
from addend._plan import Plan, PlanParam, PlanStep, plan
from addend._train import TrainResult, train

__version__ = _version()
__all__ = [
    "AddendError",
    "Cause",
    "CheckParam",
    "CheckReport",
    "Comm",
    "CycleError",
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
    "Plan",
    "PlanParam",
    "PlanStep",
    "RankDiedError",
    "RankLeftError",
    "Sabotage",
    "StoppedError",
    "SystemRefusedError",
    "TrainResult",
    "Transition",
    "check",
    "diff",
    "explain",
    "plan",
    "propagate",
    "train",
    "transitions",
]
