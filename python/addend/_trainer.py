"""The names that the package has from addend-train, the distribution of the trainer, where that is installed."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any, NoReturn

from addend._errors import MissingTrainerError

CALLS = ("check", "plan", "train")
RESULTS = ("CheckParam", "CheckReport", "Plan", "PlanParam", "PlanStep", "Mutant", "TrainResult")
GET = "`pip install './python[train]'` in addend's folder builds it; script/setup there installs what that needs"


def missing(what: str, why: str) -> MissingTrainerError:
    """The error of `what`, which needs the trainer."""
    return MissingTrainerError(f"{what} needs addend's trainer, {why}")


def of_the_trainer(name: str) -> Any:
    """The object of addend-train of this name. If that is not installed: for a function, one that raises when it is
    called; for a class of results, the error immediately."""
    if importlib.util.find_spec("addend_train"):
        return getattr(importlib.import_module("addend_train"), name)

    def call(*arguments: Any, **options: Any) -> NoReturn:
        raise missing(f"addend.{name}", f"which is not installed: {GET}")

    call.__name__ = name
    return call if name in CALLS else call()
