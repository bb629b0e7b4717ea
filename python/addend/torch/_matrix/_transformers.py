"""Models and layouts of Transformers: what an architecture declares, applied by `from_pretrained` itself."""

from __future__ import annotations

import os
from typing import Any, List, Mapping, Optional, Sequence, Tuple

import torch
import torch.distributed as dist
from torch import nn

import addend
from addend.torch._matrix import _draw, _shrink
from addend.torch._matrix._cells import Cell, Job, Layout
from addend.torch._matrix._tokens import Tokens, token_loss

_LAYOUTS: Tuple[Tuple[Tuple[str, ...], Layout], ...] = (
    (("ep",), Layout({"fsdp": 2}, {"ep": 2})),
    (("tp", "ep"), Layout({"tp": 2}, {"ep": 2})),
    (("tp",), Layout({"tp": 2})),
    (("fsdp", "tp"), Layout({"fsdp": 2, "tp": 2})),
    (("ep",), Layout({"fsdp": 4}, {"ep": 2})),
    (("fsdp",), Layout({"fsdp": 2})),
    (("tp",), Layout({"fsdp": 1, "tp": 3})),
    (("fsdp",), Layout({"dp_replicate": 2, "fsdp": 2})),
    (("fsdp",), Layout({"fsdp": 3})),
)  # the plans that a layout needs, and the layout; the layouts that have shown mistakes stand first


def _auto(kind: str) -> Any:
    """The class by which a model of this architecture is made: one with a head, if there is one."""
    import transformers
    from transformers.models.auto import modeling_auto as names

    for auto, mapping in (
        (transformers.AutoModelForCausalLM, names.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES),
        (transformers.AutoModelForImageTextToText, names.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES),
    ):
        if kind in mapping:
            return auto
    return transformers.AutoModel


def has_plan(kind: str) -> bool:
    """Whether an architecture declares how to be cut by tensor or expert parallelism."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    config = CONFIG_MAPPING[kind]
    parts = [config, *(getattr(config, "sub_configs", None) or {}).values()]
    return any(getattr(part, plan, None) for part in parts for plan in ("base_model_tp_plan", "base_model_ep_plan"))


def architectures() -> List[str]:
    """All architectures with a tensor-parallel or expert-parallel plan."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    return [kind for kind in CONFIG_MAPPING if has_plan(kind)]


def _full(name: str) -> Any:
    """The full configuration that a name stands for: an architecture, or a folder or file with a configuration."""
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    if os.path.exists(name):
        return transformers.AutoConfig.from_pretrained(name)
    if name not in CONFIG_MAPPING:
        raise addend.InvalidError(f"Transformers {transformers.__version__} has no architecture `{name}`")
    return CONFIG_MAPPING[name]()


def _small(full: Any, sizes: _shrink.Sizes) -> Tuple[Any, Tuple[str, ...]]:
    """The smallest configuration with every kind of layer and parameter of the full one, and what it lacks of them."""
    auto = _auto(full.model_type)
    with torch.device("meta"):
        kinds = _shrink.kinds_of(auto.from_config(full))
    best: Optional[Tuple[Any, Tuple[str, ...]]] = None
    failed: Optional[Exception] = None
    for layers in _shrink.LAYERS:
        try:
            config = type(full)(**_shrink.smaller(full, sizes, layers))
            with torch.device("meta"):
                model = auto.from_config(config)
        except Exception as error:  # an architecture may need more layers than these
            failed = failed or error
            continue
        missing = tuple(sorted(kinds - _shrink.kinds_of(model)))
        if best is None or len(missing) < len(best[1]):
            best = config, missing
        if not missing:
            break
    if best is None:
        raise addend.InvalidError(f"no small model of `{full.model_type}` can be made: {failed}")
    config, missing = best
    config._attn_implementation = config._experts_implementation = "eager"  # these compute in f64
    return config, missing


class Transformers:
    """The architectures named, with what they declare."""

    counts_vary = True

    def __init__(self, models: Sequence[str]):
        self.models: Sequence[str] = list(models)

    def layouts(self, model: str) -> Sequence[Layout]:
        """The layouts for which the architecture has a plan."""
        full = _full(model)
        with torch.device("meta"):
            made = _auto(full.model_type).from_config(full)
        plans = {axis for axis in ("tp", "ep", "fsdp") if getattr(made, f"{axis}_plan", None)}
        return [layout for needed, layout in _LAYOUTS if plans.issuperset(needed)]

    def layout(self, sizes: Mapping[str, int]) -> Layout:
        """The layout with these sizes; experts are cut over ranks of the other axes."""
        ep = {"ep": sizes["ep"]} if "ep" in sizes else {}
        return Layout({axis: size for axis, size in sizes.items() if axis != "ep"}, ep)

    def job(self, cell: Cell, folder: str) -> Job:
        """A small model of the architecture, loaded on every rank by `from_pretrained(distributed_config=...)`."""
        import transformers
        from transformers.distributed.configuration_utils import DistributedConfig

        full, layout = _full(cell.model), cell.layout
        sizes = _shrink.Sizes(layout.mesh.get("tp", 1), layout.options.get("ep", 1))
        config, missing = _small(full, sizes)
        auto = _auto(full.model_type)
        replicas = [axis for axis in layout.mesh if axis != "tp"]
        tokens = Tokens(config.get_text_config().vocab_size, replicas, cell.microbatches)

        def make_model() -> nn.Module:
            transformers.logging.set_verbosity_error()
            torch.manual_seed(1)
            model: nn.Module = auto.from_config(config, dtype=torch.float64).train()
            _draw.draw(model)
            return model

        def parallelize(model: Any, mesh: Any) -> nn.Module:
            model.save_pretrained(folder)  # rank 0 writes
            dist.barrier()
            sizes = {f"{axis}_size": size for axis, size in {**layout.mesh, **layout.options}.items()}
            made: nn.Module = auto.from_pretrained(
                folder,
                distributed_config=DistributedConfig(**sizes),
                dtype=torch.float64,
                attn_implementation="eager",
                experts_implementation="eager",
            )
            return made.train()

        arguments = {
            "make_model": make_model,
            "parallelize": parallelize,
            "batches": tokens.batches,
            "loss": token_loss,
            "mesh": dict(layout.mesh),
            "optimizer": adamw,
            "steps": 1,
        }
        return Job(arguments, missing, {"config": config.to_dict(), "auto": auto.__name__, "layout": dict(layout.mesh)})


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    """AdamW over the trained parameters, one at a time: DTensors on different meshes are not updated together."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return torch.optim.AdamW(trained, lr=1e-2, foreach=False)
