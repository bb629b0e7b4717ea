"""Architectures of Transformers: which declare a plan, the class that makes each, and a small model of each."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Iterator
from typing import Any

import torch

import addend
from addend.torch._matrix import _shrink

_AUTOS = (
    ("AutoModelForImageTextToText", "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES"),
    ("AutoModelForCausalLM", "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES"),
    ("AutoModelForSeq2SeqLM", "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES"),
    ("AutoModelForMaskedLM", "MODEL_FOR_MASKED_LM_MAPPING_NAMES"),
    ("AutoModel", "MODEL_MAPPING_NAMES"),
)  # classes that make a model, those with a head first, and the name of the table of what each makes

_WIDE = 16  # elements of a head, if no model with narrower ones can be made


def auto_of(kind: str) -> Any:
    """The class by which a model of this architecture is made, or None."""
    import transformers
    from transformers.models.auto import modeling_auto

    for auto, names in _AUTOS:
        made = getattr(modeling_auto, names).get(kind)
        if made and all(hasattr(transformers, name) for name in ([made] if isinstance(made, str) else made)):
            return getattr(transformers, auto)
    return None


def _parts(config: type) -> Iterator[type]:
    """The classes of a configuration's parts, at any depth."""
    for part in (getattr(config, "sub_configs", None) or {}).values():
        if getattr(part, "model_type", None):
            yield part
            yield from _parts(part)


def _has_plan(config: type) -> bool:
    """Whether a configuration or a part of it declares how it is sharded by tensor or expert parallelism."""
    plans = ("base_model_tp_plan", "base_model_ep_plan")
    return any(getattr(part, plan, None) for part in (config, *_parts(config)) for plan in plans)


def architectures() -> list[str]:
    """All architectures with a tensor-parallel or expert-parallel plan (or a part with one) for which there is a class
    with a head; and those without a head that are no part of one of these."""
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    autos = {kind: auto_of(kind) for kind in CONFIG_MAPPING if _has_plan(CONFIG_MAPPING[kind])}
    whole = [kind for kind, auto in autos.items() if auto not in (None, transformers.AutoModel)]
    covered = {part for kind in autos if autos[kind] for part in _parts(CONFIG_MAPPING[kind])}
    rest = [kind for kind, auto in autos.items() if auto is transformers.AutoModel]
    return [kind for kind in autos if kind in whole or kind in rest and CONFIG_MAPPING[kind] not in covered]


def is_file(name: str) -> bool:
    """Whether a name is that of a file or folder with a configuration."""
    return os.path.isfile(name) or os.path.isfile(os.path.join(name, "config.json"))


def full_config(name: str) -> Any:
    """The full configuration of a name: an architecture's, or that in a folder or file."""
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    if is_file(name):
        return transformers.AutoConfig.from_pretrained(name)
    if name not in CONFIG_MAPPING:
        raise addend.InvalidError(
            f"Transformers {transformers.__version__} has no architecture `{name}`: give its model_type, as "
            "gemma3_text, or a folder with its config.json"
        )
    return CONFIG_MAPPING[name]()


class Full:
    """An architecture as it is released: its configuration, and what its model is made of."""

    def __init__(self, name: str):
        config = full_config(name)
        auto = auto_of(config.model_type)
        if auto is None:
            raise addend.InvalidError(f"no Auto class makes a model of `{config.model_type}`")
        self.auto: Any = auto
        self._is_users = is_file(name)  # else an architecture with its own values
        _shrink.complete(config, is_default=not self._is_users)
        with torch.device("meta"):
            model = self.auto.from_config(config)
        _shrink.sections_of(model)
        self.config: Any = model.config
        self.kinds: frozenset[str] = _shrink.kinds_of(model)
        self.plans = {axis for axis in ("tp", "ep", "fsdp") if getattr(model, f"{axis}_plan", None)}
        self._small: dict[_shrink.Sizes, tuple[Any, tuple[str, ...]]] = {}

    def small(self, ranks: int, experts: int, parts: int = 1, even: bool = False) -> tuple[Any, tuple[str, ...]]:
        """The smallest configuration with every kind of layer and parameter of the full one, and the kinds that are
        missing. `parts`: over so many ranks the rows of a vocabulary are sharded; those of a user's model divide by
        it if the full one's do, and all do if `even`."""
        identical, divisor = parts if self._is_users else 1, parts if even else 1
        sizes = _shrink.Sizes(ranks, experts, _shrink.head_of(self.config), identical, divisor)
        if sizes not in self._small:
            self._small[sizes] = self._tried(sizes)
        return self._small[sizes]

    def _tried(self, sizes: _shrink.Sizes) -> tuple[Any, tuple[str, ...]]:
        best: tuple[Any, tuple[str, ...]] | None = None
        failed: Exception | None = None
        wide = dataclasses.replace(sizes, head=_WIDE)
        for layers, sizes in [(n, sizes) for n in _shrink.LAYERS] + [(n, wide) for n in _shrink.LAYERS]:
            if best is not None and sizes is wide:
                break
            try:
                config = _shrink.smaller(self.config, sizes, layers)
                with torch.device("meta"):
                    missing = tuple(sorted(self.kinds - _shrink.kinds_of(self.auto.from_config(config))))
            except Exception as error:  # an architecture may need more layers than these
                failed = failed or error
                continue
            if best is None or len(missing) < len(best[1]):
                best = config, missing
            if not missing:
                break
        if best is None:
            raise addend.InvalidError(f"no small model of `{self.config.model_type}` can be made: {failed}")
        best[0]._attn_implementation = best[0]._experts_implementation = "eager"  # these compute in f64
        return best


@functools.cache
def full(name: str) -> Full:
    """The architecture of a name, made once."""
    return Full(name)
