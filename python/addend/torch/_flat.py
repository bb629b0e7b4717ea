"""Finds the parameters in the flat buffers of FullyShardedDataParallel (FSDP1). Each parameter is watched as one row of
elements: its addend is a slice of the buffer's gradient before the reduce-scatter, its sum is the gradient that the
optimizer gets. Only this file reads private attributes of PyTorch's FSDP."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from addend.torch import _comm_hooks, _meshes
from addend.torch._declared import Declared
from addend.torch._loaded import is_flat_fsdp
from addend.torch._sample import Box
from addend.torch._wrapper import Said, Wrapper

_ATTRIBUTE = "_fsdp_wrapped_module"
Located = tuple[tuple[int, ...], torch.Tensor, Box]  # global shape, this rank's part, the box where it lies


@dataclasses.dataclass(frozen=True)
class InBuffer:
    """Where one parameter is in a flat buffer."""

    buffer: Any  # a FlatParameter, whose attributes have no public types
    at: int  # number of the parameter in the buffer
    start: int  # offset of its first element in the unsharded buffer
    count: int  # number of its elements
    mesh: DeviceMesh | None

    @property
    def whole(self) -> tuple[int, ...]:
        return (self.count,)

    def _all_of(self, row: torch.Tensor) -> Located:
        return self.whole, row, Box((0,), self.whole)

    def _own_of(self, shard: torch.Tensor) -> Located:
        """The parameter's part in `shard`, this rank's shard of the buffer or of its gradient."""
        own = self.buffer._shard_param_infos[self.at]
        if not own.in_shard:
            return self.whole, shard.new_empty(0), Box((0,), (0,))
        row = shard if shard.numel() == own.numel_in_shard else shard[own.offset_in_shard :][: own.numel_in_shard]
        return self.whole, row, Box((own.intra_param_start_idx,), (own.numel_in_shard,))

    def addend(self, gradient: torch.Tensor) -> Located:
        """The parameter's part of the unsharded buffer's gradient."""
        return self._all_of(gradient.detach()[self.start : self.start + self.count])

    def _gradient(self) -> torch.Tensor | None:
        """The gradient of the optimizer's tensor: the original parameter (use_orig_params), else the buffer."""
        originals = self.buffer._params
        found: torch.Tensor | None = self.buffer.grad if originals is None else originals[self.at].grad
        return found

    def sum(self) -> Located | None:
        """The summed gradient that this rank's optimizer has: a shard; all of it if nothing is sharded or reduced."""
        gradient, reduced = self._gradient(), self.buffer.grad
        if gradient is None:
            here = self.buffer._shard_param_infos[self.at].in_shard
            return None if here or reduced is None else self._own_of(reduced.detach())
        row = gradient.detach().reshape(-1)
        if self.buffer._params is not None and row.numel() == self.count:
            return self._all_of(row)
        return self._own_of(row) if self._is_part(row) else self.addend(row)

    def _is_part(self, row: torch.Tensor) -> bool:
        return row.numel() == self.buffer._sharded_size.numel() or self.buffer._params is not None

    def values(self) -> torch.Tensor:
        """The parameter's values in this rank's shard."""
        shard: torch.Tensor = getattr(self.buffer, "_local_shard", self.buffer)
        return self._own_of(shard.detach())[1]


def _ranks(state: Any) -> list[list[int]]:
    """The groups of ranks summed over: one list if shard and replica group together are all ranks (or a mesh), else
    one list for each group."""
    mesh = getattr(state, "_device_mesh", None)
    own = list(dist.get_process_group_ranks(state.process_group))
    across = getattr(state, "_inter_node_pg", None)
    if across is None:
        return [own]
    if mesh is not None:
        return [mesh.mesh.flatten().tolist()]
    copies = list(dist.get_process_group_ranks(across))
    return [list(range(dist.get_world_size()))] if len(own) * len(copies) == dist.get_world_size() else [own, copies]


def _starts(buffer: Any) -> list[int]:
    """The offset of each parameter in the unsharded buffer, where padding lies between parameters to align them."""
    ends = [0, *itertools.accumulate(buffer._numels_with_padding)]
    return [at for at, is_padding in zip(ends, buffer._is_padding_mask) if not is_padding]


def _need_plain(buffer: Any, name: str) -> None:
    if any(extension is not None for extension in buffer._param_extensions):
        raise ValueError(
            f"{name}: this parameter is a DTensor in FullyShardedDataParallel, which cannot be watched; use "
            "fully_shard for tensor parallelism"
        )


def _hook(state: Any) -> _comm_hooks.Sums:
    """The communication hook that the job registered, if any."""
    return _comm_hooks.of_function(getattr(state, "_comm_hook", None))


def _promised(handle: Any, hook: _comm_hooks.Sums) -> torch.dtype | None:
    """The dtype in which mixed precision says that the sum is formed; None: none is asked for, or a communication hook
    forms it."""
    if hook.custom or hook.reduce is not None:
        return None
    is_asked = handle._low_prec_reduce_dtype_specified or handle._reduce_dtype != handle._orig_param_dtype
    found: torch.dtype | None = handle._reduce_dtype if is_asked else None
    return found


def _declared(dtype: torch.dtype | None, is_given: bool, ranks: list[list[int]], mesh: _meshes.Mesh) -> list[Declared]:
    axes = tuple(axis for group in ranks for axis in mesh.between(group))
    if dtype is None or not axes:
        return []
    by = "FullyShardedDataParallel's reduce_dtype" if is_given else "FullyShardedDataParallel's param_dtype"
    return [Declared({}, by, dtype=dtype, given=is_given, axes=axes)]


def _params(prefix: str, _: nn.Module, state: Any) -> Iterator[Said]:
    """What FSDP says of the parameters in the buffer of one FullyShardedDataParallel."""
    handle, hook = state._handle, _hook(state)
    buffer = handle.flat_param
    reduce = handle._reduce_dtype if handle._reduce_dtype != handle._orig_param_dtype else None
    ranks, mesh = _ranks(state), getattr(state, "_device_mesh", None)
    promised = _promised(handle, hook)
    declared = functools.partial(_declared, promised, handle._low_prec_reduce_dtype_specified, ranks)
    for at, (name, start, count) in enumerate(zip(buffer._fqns, _starts(buffer), buffer._numels)):
        _need_plain(buffer, f"{prefix}{name}".replace(f"{_ATTRIBUTE}.", ""))
        owned = buffer if buffer._params is None else buffer._params[at]
        if owned.requires_grad:
            yield Said(
                of=(),
                ranks=ranks,
                reduce=hook.reduce or reduce,
                custom=hook.custom,
                name=f"{prefix}{_ATTRIBUTE}.{name}",
                used=buffer,
                owned=owned,
                flat=InBuffer(buffer, at, start, count, mesh),
                declared=declared,
                promised=promised,
            )


def _divisor(state: Any) -> float:
    """FSDP divides before and after the reduction; a hook of PyTorch's in its place by what the hook's state has."""
    reported: Any = getattr(state, "_comm_hook_state", None)
    if not _hook(state).custom and hasattr(reported, "gradient_predivide_factor"):
        return float(reported.gradient_predivide_factor * reported.gradient_postdivide_factor)
    return float(state._gradient_predivide_factor * state._gradient_postdivide_factor)


def _hides(state: Any) -> list[torch.Tensor]:
    """The buffer, and the parameters in it."""
    buffer = state._handle.flat_param
    return [buffer, *(buffer._params or ()), *(buffer._shared_params or ())]


FULLY_SHARDED_DATA_PARALLEL = Wrapper(
    name="FullyShardedDataParallel",
    recognised_by=is_flat_fsdp,
    units=lambda module: [module] if getattr(module, "_handle", None) is not None else [],
    params=_params,
    divides_by=_divisor,
    attribute=_ATTRIBUTE,
    hides=_hides,
)
