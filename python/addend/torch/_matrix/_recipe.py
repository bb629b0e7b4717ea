"""What a program that makes a small model of Transformers needs, and what the architecture declares of it."""

from __future__ import annotations

from typing import Any

import torch

from addend.torch._matrix._shrink import FIRST
from addend.torch._matrix._tokens import Tokens

_DEFAULT = ("transformers_version", "architectures", "dtype")  # of a configuration: what makes no other model


def _literal(config: Any) -> dict[str, Any]:
    """What makes this configuration: its model's type, and what differs from the architecture's own values."""
    own = {} if getattr(config, "has_no_defaults_at_init", False) else type(config)().to_dict()
    reported = {name: value for name, value in config.to_diff_dict().items() if name not in own or own[name] != value}
    return {"model_type": config.model_type, **{name: reported[name] for name in reported if name not in _DEFAULT}}


def _plans(auto: Any, config: Any) -> dict[str, dict[str, str]]:
    """The plans of a model, by axis: names with layers' numbers starred, and styles."""
    with torch.device("meta"):
        model = auto.from_config(config)
    return {axis: dict(getattr(model, f"{axis}_plan", None) or {}) for axis in ("tp", "ep", "fsdp")}


def inputs(tokens: Tokens) -> dict[str, Any]:
    """What makes a row of inputs: `length` tokens from `first` on below `vocabulary`, after those of `head`, and by the
    names of other inputs their kind and value: the shape of what is drawn, a constant's elements, or the tokens."""
    row = tokens.rows(torch.Generator().manual_seed(0), 1, 0)
    ids = row.pop("input_ids")
    more: dict[str, tuple[str, Any]] = {}
    for name, value in row.items():
        if name == "weights" or (name == "attention_mask" and value.shape == ids.shape):
            continue
        if value.is_floating_point():
            more[name] = "drawn", list(value.shape)
        else:
            more[name] = ("tokens", None) if torch.equal(value, ids) else ("constant", value.tolist())
    head = ids[0, : 1 + tokens.places].tolist() if tokens.places else []
    return {"first": FIRST, "vocabulary": tokens.vocabulary, "length": ids.shape[1], "head": head, "more": more}


def recipe(auto: Any, config: Any, tokens: Tokens) -> dict[str, Any]:
    """The literal `config`, the name of the class `auto`, `plans`, `inputs` and the `versions` of what computes."""
    import transformers

    versions = {"Transformers": transformers.__version__, "PyTorch": torch.__version__}
    made = {"config": _literal(config), "auto": auto.__name__, "plans": _plans(auto, config)}
    return {**made, "inputs": inputs(tokens), "versions": versions}
