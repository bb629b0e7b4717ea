"""Reads the plan by which Transformers made a model tensor-parallel. Only this file reads the private attributes in
which Transformers keeps it."""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING, Any, Callable

from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from addend.torch import _meshes
from addend.torch._declared import Declared

if TYPE_CHECKING:
    from addend.torch._meshes import Mesh

# The types of parameters that a style leaves whole. The other styles shard a module's parameters, which are DTensors
# then, or speak of what the module returns.
_TYPES = {
    "replicated_with_grad_allreduce": "R",  # a norm of this rank's heads
    "sequence_parallel": "R",
    "mla_kv_a_proj": "I",  # the gradients of both parts of its output are summed behind it
    "replicate": "I",
}


def _axis(device_mesh: DeviceMesh) -> int:
    names = device_mesh.mesh_dim_names or ()
    return names.index("tp") if "tp" in names else 0


def _declared(style: str, device_mesh: DeviceMesh, mesh: Mesh) -> list[Declared]:
    axes = mesh.spanned(_meshes.along(device_mesh, _axis(device_mesh)))
    return [Declared(dict.fromkeys(axes, _TYPES[style]), f"Transformers' plan ({style})")] if axes else []


def _style(plan: dict[str, Any], name: str) -> str:
    """The style of a parameter: its own, or that of the module that it belongs to."""
    generic = re.sub(r"\d+", "*", name)
    style = plan.get(generic, plan.get(generic.rpartition(".")[0]))
    return style if isinstance(style, str) else ""


def of(model: nn.Module) -> dict[int, Callable[[Mesh], list[Declared]]]:
    """What the plans in a model say of its parameters, by their id()."""
    found: dict[int, Callable[[Mesh], list[Declared]]] = {}
    for module in model.modules():
        plan, device_mesh = vars(module).get("_tp_plan"), vars(module).get("_device_mesh")
        if not isinstance(plan, dict) or not isinstance(device_mesh, DeviceMesh):
            continue
        for name, parameter in module.named_parameters():
            style = _style(plan, name)
            if style in _TYPES:
                found[id(parameter)] = functools.partial(_declared, style, device_mesh)
    return found
