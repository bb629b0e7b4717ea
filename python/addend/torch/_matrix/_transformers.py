"""Models and layouts of Transformers: what an architecture declares, applied by `from_pretrained` itself."""

from __future__ import annotations

from typing import Any, Mapping, Sequence, Tuple

import torch
import torch.distributed as dist
from torch import nn

from addend.torch._matrix import _architectures, _draw, _inputs
from addend.torch._matrix._cells import Cell, Job, Layout
from addend.torch._matrix._tokens import token_loss

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


class Transformers:
    """The architectures named, with what they declare."""

    counts_vary = True

    def __init__(self, models: Sequence[str]):
        self.models: Sequence[str] = list(models)

    def layouts(self, model: str) -> Sequence[Layout]:
        """The layouts for which the architecture has a plan."""
        plans = _architectures.full(model).plans
        return [layout for needed, layout in _LAYOUTS if plans.issuperset(needed)]

    def layout(self, sizes: Mapping[str, int]) -> Layout:
        """The layout with these sizes; experts are cut over ranks of the other axes."""
        ep = {"ep": sizes["ep"]} if "ep" in sizes else {}
        return Layout({axis: size for axis, size in sizes.items() if axis != "ep"}, ep)

    def job(self, cell: Cell, folder: str) -> Job:
        """A small model of the architecture, loaded on every rank by `from_pretrained(distributed_config=...)`."""
        import transformers
        from transformers.distributed.configuration_utils import DistributedConfig

        full, layout = _architectures.full(cell.model), cell.layout
        config, missing = full.small(layout.mesh.get("tp", 1), layout.options.get("ep", 1))
        auto = full.auto
        replicas = [axis for axis in layout.mesh if axis != "tp"]

        def make_model() -> nn.Module:
            transformers.logging.set_verbosity_error()
            torch.manual_seed(1)
            model: nn.Module = auto.from_config(config, dtype=torch.float64).train()
            _draw.draw(model)
            return model

        torch.set_num_threads(1)  # ranks are forked from this process
        tokens, text_only = _inputs.inputs_of(make_model(), replicas, cell.microbatches)

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
        missing += (text_only,) * bool(text_only)
        return Job(arguments, missing, {"config": config.to_dict(), "auto": auto.__name__, "layout": dict(layout.mesh)})


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    """AdamW over the trained parameters, one at a time: DTensors on different meshes are not updated together."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return torch.optim.AdamW(trained, lr=1e-2, foreach=False)
