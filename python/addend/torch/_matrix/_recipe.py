"""What a program that makes a small model of Transformers needs, and what the architecture declares of it."""

from __future__ import annotations

from typing import Any, Dict

import torch

_DEFAULT = ("transformers_version", "architectures", "dtype")  # of a configuration: what makes no other model


def _literal(config: Any) -> Dict[str, Any]:
    """What makes this configuration: its model's type, and what differs from the architecture's own values."""
    own = {} if getattr(config, "has_no_defaults_at_init", False) else type(config)().to_dict()
    told = {name: value for name, value in config.to_diff_dict().items() if name not in own or own[name] != value}
    return {"model_type": config.model_type, **{name: told[name] for name in told if name not in _DEFAULT}}


def _plans(auto: Any, config: Any) -> Dict[str, Dict[str, str]]:
    """The plans of a model, by axis: names with layers' numbers starred, and styles."""
    with torch.device("meta"):
        model = auto.from_config(config)
    return {axis: dict(getattr(model, f"{axis}_plan", None) or {}) for axis in ("tp", "ep", "fsdp")}


def recipe(auto: Any, config: Any) -> Dict[str, Any]:
    """The literal `config`, the name of the class `auto`, `plans` and the `versions` of what computes."""
    import transformers

    versions = {"Transformers": transformers.__version__, "PyTorch": torch.__version__}
    return {"config": _literal(config), "auto": auto.__name__, "plans": _plans(auto, config), "versions": versions}
