"""addend's trainer: `addend.check`, `addend.plan`, `addend.train`, their results, and files of tokens; in the folder
`_native` the trainer's library and the program `addend` with all commands. train/python/README.md has examples."""

from addend_train._check import CheckParam, CheckReport, Mutant, check
from addend_train._plan import Plan, PlanParam, PlanStep, plan
from addend_train._train import TrainResult, train

__all__ = [
    "CheckParam",
    "CheckReport",
    "Plan",
    "PlanParam",
    "PlanStep",
    "Mutant",
    "TrainResult",
    "check",
    "plan",
    "train",
]
