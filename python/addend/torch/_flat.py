"""FullyShardedDataParallel, which has its parameters in flat buffers. Each parameter is watched as one row of its
elements: its addend is cut out of the buffer's gradient before that is reduced, its sum is what the optimizer has. What
is private to PyTorch is read in this file alone."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any, Iterator, List, Tuple

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from addend.torch._loaded import is_flat_fsdp
from addend.torch._sample import Box

Located = Tuple[Tuple[int, ...], torch.Tensor, Box]  # the whole's shape, what this rank has of it, which box that is


@dataclasses.dataclass(frozen=True)
class InBuffer:
    """One parameter of a flat buffer."""

    buffer: Any  # a FlatParameter: without public types
    at: int  # which of its parameters
    start: int  # of its elements in the whole buffer
    count: int
    mesh: DeviceMesh | None

    @property
    def whole(self) -> tuple[int, ...]:
        return (self.count,)

    def _all_of(self, row: torch.Tensor) -> Located:
        return self.whole, row, Box((0,), self.whole)

    def _own_of(self, shard: torch.Tensor) -> Located:
        """Out of this rank's part of the buffer."""
        own = self.buffer._shard_param_infos[self.at]
        if not own.in_shard:
            return self.whole, shard.new_empty(0), Box((0,), (0,))
        row = shard if shard.numel() == own.numel_in_shard else shard[own.offset_in_shard :][: own.numel_in_shard]
        return self.whole, row, Box((own.intra_param_start_idx,), (own.numel_in_shard,))

    def addend(self, gradient: torch.Tensor) -> Located:
        """Of the whole buffer's gradient."""
        return self._all_of(gradient.detach()[self.start : self.start + self.count])

    def _gradient(self) -> torch.Tensor | None:
        """That of the optimizer's parameter: the original one where it has those, else the buffer."""
        originals = self.buffer._params
        found: torch.Tensor | None = self.buffer.grad if originals is None else originals[self.at].grad
        return found

    def sum(self) -> Located | None:
        """What this rank's optimizer has of it: a part; all of it, where nothing is sharded or nothing was reduced."""
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
        """This rank's own."""
        shard: torch.Tensor = getattr(self.buffer, "_local_shard", self.buffer)
        return self._own_of(shard.detach())[1]


@dataclasses.dataclass(frozen=True)
class Found:
    """A parameter in a buffer, and what is done to its sum."""

    name: str
    owned: torch.Tensor
    where: InBuffer
    ranks: List[List[int]]  # that are summed over
    factor: float
    reduce: torch.dtype | None


def _ranks(state: Any) -> list[list[int]]:
    """One list where shards and their copies together are all ranks, or those of a mesh; else one for each."""
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
    """Parameters are padded to addresses that suit compilers."""
    ends = [0, *itertools.accumulate(buffer._numels_with_padding)]
    return [at for at, is_padding in zip(ends, buffer._is_padding_mask) if not is_padding]


def _need_plain(buffer: Any, name: str) -> None:
    if any(extension is not None for extension in buffer._param_extensions):
        raise ValueError(
            f"{name}: a DTensor in FullyShardedDataParallel is not watched; fully_shard with tensor parallelism is"
        )


def _in_module(prefix: str, state: Any, handle: Any) -> Iterator[Found]:
    buffer = handle.flat_param
    reduce = handle._reduce_dtype if handle._reduce_dtype != handle._orig_param_dtype else None
    factor = 1 / (state._gradient_predivide_factor * state._gradient_postdivide_factor)
    ranks, mesh = _ranks(state), getattr(state, "_device_mesh", None)
    for at, (name, start, count) in enumerate(zip(buffer._fqns, _starts(buffer), buffer._numels)):
        _need_plain(buffer, f"{prefix}{name}")
        owned = buffer if buffer._params is None else buffer._params[at]
        if owned.requires_grad:
            where = InBuffer(buffer, at, start, count, mesh)
            yield Found(f"{prefix}{name}", owned, where, ranks, factor, reduce)


def _wrappers(model: nn.Module) -> Iterator[tuple[str, Any]]:
    for name, module in model.named_modules():
        handle = getattr(module, "_handle", None) if is_flat_fsdp(module) else None
        if handle is not None:
            yield f"{name}." if name else "", module


def find(model: nn.Module) -> list[Found]:
    """Every parameter in a buffer that wants a gradient."""
    found: List[Found] = []
    for prefix, module in _wrappers(model):
        found += _in_module(prefix.replace("_fsdp_wrapped_module.", ""), module, module._handle)
    return found


def hidden(model: nn.Module) -> set[int]:
    """The ids of all buffers, and of the parameters that lie in them."""
    buffers = [module._handle.flat_param for _, module in _wrappers(model)]
    lists = [[buffer, *(buffer._params or ()), *(buffer._shared_params or ())] for buffer in buffers]
    return {id(tensor) for tensors in lists for tensor in tensors}
