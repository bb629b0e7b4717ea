"""The rules of Transformers' plans: which a layout applies, and how the framework is made to work without one."""

from __future__ import annotations

import functools
from typing import Any

import torch

import addend
from addend.torch._matrix._cells import Layout, Rule

_APPLY = "maybe_distribute_model"  # the method of models that applies the plans


def rules(auto: Any, config: Any, layout: Layout) -> list[Rule]:
    """The rules of the plans that are applied to a model under a layout."""
    sizes = {**layout.mesh, **layout.options}
    data = sizes.get("fsdp", 1) * sizes.get("dp_replicate", 1)
    with torch.device("meta"):
        model = auto.from_config(config)
    found = []
    for axis, size in (("tp", sizes.get("tp", 1)), ("ep", sizes.get("ep", 1)), ("fsdp", data)):
        plan = (getattr(model, f"_{axis}_plan", None) or {}) if size > 1 else {}
        found += [
            Rule(f"{axis} `{name}`: {style}", functools.partial(_leave_out, axis, name)) for name, style in plan.items()
        ]
    return found


def _leave_out(axis: str, name: str) -> None:
    """Takes the rule out of the plan of every model to which plans are applied from now on."""
    import transformers

    models = transformers.PreTrainedModel
    apply = getattr(models, _APPLY, None)
    if apply is None:
        raise addend.InvalidError(f"Transformers {transformers.__version__} has no `{_APPLY}`, which applies plans")

    def without(cls: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
        getattr(model, f"_{axis}_plan").pop(name, None)
        return apply.__func__(cls, model, *args, **kwargs)

    setattr(models, _APPLY, classmethod(without))
