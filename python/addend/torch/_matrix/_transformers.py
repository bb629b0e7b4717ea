"""Models and layouts of Transformers: what an architecture declares, applied by `from_pretrained` itself."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import addend
from addend.torch._matrix import _architectures, _draw, _inputs, _recipe, _rows, _rules, _shrink, _variants
from addend.torch._matrix._cells import Cell, Job, Layout, Wanted
from addend.torch._matrix._tokens import token_loss

_AXES = ("dp_replicate", "fsdp", "tp", "ep")  # of DistributedConfig; a pipeline's step would be another one
_LAYOUTS: tuple[tuple[tuple[str, ...], Layout], ...] = (
    (("ep",), Layout({"fsdp": 2}, {"ep": 2})),
    (("tp", "ep"), Layout({"tp": 2}, {"ep": 2})),
    (("tp",), Layout({"tp": 2})),
    (("fsdp", "tp"), Layout({"fsdp": 2, "tp": 2})),
    (("ep",), Layout({"fsdp": 4}, {"ep": 2})),
    (("fsdp",), Layout({"fsdp": 2})),
    (("tp",), Layout({"fsdp": 1, "tp": 3})),
    (("fsdp",), Layout({"dp_replicate": 2, "fsdp": 2})),
    (("fsdp",), Layout({"fsdp": 3})),
    (("tp",), Layout({"tp": 2}, variant=_variants.FROZEN)),
    (("fsdp",), Layout({"fsdp": 2}, variant=_variants.FROZEN)),
    (("fsdp",), Layout({"fsdp": 2}, variant=_variants.NO_SYNC)),
    (("tp",), Layout({"tp": 2}, variant=_variants.LORA)),
    (("fsdp",), Layout({"fsdp": 2}, variant=_variants.LORA)),
    (("ep",), Layout({"fsdp": 2}, {"ep": 2}, _variants.BF16)),
    (("tp",), Layout({"tp": 2}, variant=_variants.BF16)),
    (("fsdp",), Layout({"fsdp": 2}, variant=_variants.BF16)),
)  # the plans that a layout needs, and the layout; the layouts that have shown mistakes come first
_NO_PEFT = "PEFT is not installed (pip install peft)"


class Transformers:
    """The architectures named, with what they declare."""

    def __init__(self, models: Sequence[str]):
        self.models: Sequence[str] = list(models)
        self._left_out: dict[str, Layout] = {}

    def layouts(self, model: str) -> Sequence[Layout]:
        """The layouts for which the architecture has a plan, and which the installed packages can run."""
        plans = _architectures.full(model).plans
        declared = [layout for needed, layout in _LAYOUTS if plans.issuperset(needed)]
        if _variants.has_peft():
            return declared
        self._left_out.update({layout.name: layout for layout in declared if layout.variant == _variants.LORA})
        return [layout for layout in declared if layout.variant != _variants.LORA]

    def note(self, asked: Sequence[Wanted] | None) -> str:
        """The layouts that are not tried for want of a package."""
        layouts = self._left_out.values()
        names = [f"`{one.name}`" for one in layouts if asked is None or any(map(one.fits, asked))]
        return f"not tried: {', '.join(names)}: {_NO_PEFT}" if names else ""

    def counts(self, layout: Layout, asked: Sequence[int]) -> Sequence[int]:
        """A layout that only runs has one microbatch; `no_sync` differs from the plain job with two or more."""
        if layout.variant == _variants.BF16:
            return [1]
        return [count for count in asked if count > 1] if layout.variant == _variants.NO_SYNC else asked

    def layout(self, wanted: Wanted) -> Layout | None:
        """The layout with these sizes; experts are sharded over ranks of the other axes."""
        if isinstance(wanted, str):
            wants_lora = any(layout.variant == _variants.LORA and layout.fits(wanted) for _, layout in _LAYOUTS)
            if wants_lora and not _variants.has_peft():
                raise addend.InvalidError(f"the layout `{wanted}` is not tried: {_NO_PEFT}")
            if any(layout.fits(wanted) for _, layout in _LAYOUTS):
                return None  # of other architectures
            there = ", ".join(f"`{layout.name}`" for _, layout in _LAYOUTS)
            raise addend.InvalidError(
                f"Transformers' architectures have no layout `{wanted}`: they have {there}; sizes of "
                f"{', '.join(_AXES)} name others, as fsdp=2,ep=2"
            )
        sizes = wanted
        unknown = [axis for axis in sizes if axis not in _AXES]
        if unknown or set(sizes) == {"ep"}:
            reported = f"no axis {', '.join(unknown)}" if unknown else "experts only over ranks of other axes"
            raise addend.InvalidError(f"a layout of Transformers has {reported}: name sizes of {', '.join(_AXES)}")
        ep = {"ep": sizes["ep"]} if "ep" in sizes else {}
        return Layout({axis: size for axis, size in sizes.items() if axis != "ep"}, ep)

    def job(self, cell: Cell, folder: str) -> Job:
        """A small model of the architecture, loaded on every rank by `from_pretrained(distributed_config=...)`."""
        full, layout = _architectures.full(cell.model), cell.layout
        parts = layout.options.get("ep", layout.mesh.get("fsdp", 1))  # of experts: Transformers loads no empty part
        config, missing = full.small(layout.mesh.get("tp", 1), parts, _rows.parts_of(layout), cell.even)
        small = _Small(full.auto, config, layout, folder)
        torch.set_num_threads(1)  # ranks are forked from this process
        replicas = [axis for axis in layout.mesh if axis != "tp"]
        model = small.base()
        tokens, missing_inputs = _inputs.inputs_of(model, replicas, cell.microbatches)
        small = dataclasses.replace(small, training=model.training)
        if layout.variant == _variants.BF16:
            small.make_model(torch.bfloat16).save_pretrained(folder)
            work = _variants.one_step(small.loaded, tokens.batches, token_loss, layout.mesh)
            return Job(work=work, ranks=layout.ranks)
        arguments = {
            "make_model": small.make_model,
            "parallelize": small.parallelize,
            "batches": tokens.batches,
            "loss": token_loss,
            "mesh": dict(layout.mesh),
            "optimizer": adamw,
            "steps": 2,  # what an update does to tied or sharded parameters shows in the next gradient
        }
        if layout.variant == _variants.NO_SYNC:
            arguments["run"] = _variants.no_sync
        missing += missing_inputs
        recipe = {**_recipe.recipe(full.auto, config, tokens), "training": small.training}
        recipe["rows"] = _shrink.vocabularies(config)
        if layout.variant == _variants.LORA:
            arguments["averaged"] = float(layout.mesh.get("fsdp", 1))  # FSDP2 averages what belongs to its groups
            recipe["plans"] = {axis: _renamed(plan) for axis, plan in recipe["plans"].items()}
        rules = functools.partial(_rules.rules, full.auto, config, layout)
        return Job(arguments, missing=missing, recipe=recipe, rules=rules)


@dataclasses.dataclass(frozen=True)
class _Small:
    """A small model of an architecture, and how Transformers shares it among ranks."""

    auto: Any
    config: Any
    layout: Layout
    folder: str  # where it is saved, and loaded from by every rank
    training: bool = True  # else in evaluation

    def base(self, dtype: torch.dtype = torch.float64) -> Any:
        """The unsharded model as it is saved."""
        import transformers

        transformers.logging.set_verbosity_error()
        torch.manual_seed(1)
        model = self.auto.from_config(self.config, dtype=dtype).train(self.training)
        _draw.draw(model)
        return model

    def make_model(self, dtype: torch.dtype = torch.float64) -> Any:
        """The unsharded model as it is trained."""
        model = self._varied(self.base(dtype))
        if self.layout.variant == _variants.LORA:
            _draw.draw(model, only_trained=True)  # B begins with zeros, which hide the gradient of A
        return model

    def _varied(self, model: Any) -> Any:
        """The model, or what a variant makes of it."""
        if self.layout.variant == _variants.FROZEN:
            _variants.freeze(model)
        return _variants.adapted(model) if self.layout.variant == _variants.LORA else model

    def loaded(self, dtype: torch.dtype = torch.bfloat16) -> Any:
        """The saved model as Transformers loads it on this rank."""
        from transformers.distributed.configuration_utils import DistributedConfig

        sizes = {f"{axis}_size": size for axis, size in {**self.layout.mesh, **self.layout.options}.items()}
        return self.auto.from_pretrained(
            self.folder,
            distributed_config=DistributedConfig(**sizes),
            dtype=dtype,
            attn_implementation="eager",
            experts_implementation="eager",
        ).train(self.training)

    def parallelize(self, model: Any, mesh: Any) -> nn.Module:
        """`check`'s function of this name: saves the model (rank 0 writes), and loads it on every rank."""
        is_lora = self.layout.variant == _variants.LORA
        values = dict(model.named_parameters())
        (model.unload() if is_lora else model).save_pretrained(self.folder)
        dist.barrier()
        made: nn.Module = self._varied(self.loaded(torch.float64))
        if is_lora:
            _variants.fill(made, values)
        return made


def _renamed(plan: dict[str, str]) -> dict[str, str]:
    """A plan by the names that layers have in a model with adapters."""
    return {f"{_variants.ADAPTED}{name}": style for name, style in plan.items()}


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    """AdamW over the trained parameters, one at a time: DTensors on different meshes are not updated together."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return torch.optim.AdamW(trained, lr=1e-2, foreach=False)
