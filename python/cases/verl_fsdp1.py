"""verl: `fsdp_size=1` on several GPUs asks for HYBRID_SHARD on a mesh of (ranks, 1). FullyShardedDataParallel turns
that into NO_SHARD and sums gradients over the shard axis alone, which has one rank.
"""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy

import addend.torch
import case
from jobs import Net, draw, mean_loss

SOURCE = "https://github.com/verl-project/verl/issues/7493"
WRONG = RIGHT = []  # the choice of the strategy is rewritten here; the wrapper is PyTorch's own
REBUILT = "the choice of the strategy; wrong and right by its argument"

WORLD = 4


def strategy_of(mesh):
    return ShardingStrategy.FULL_SHARD if mesh.ndim == 1 else ShardingStrategy.HYBRID_SHARD


def wrap(model):
    """Wrap as fsdp_size=1 did, or as fsdp_size=-1 does, which the authors recommend."""
    mesh = init_device_mesh("cpu", (WORLD, 1) if case.is_wrong() else (WORLD,))
    return FullyShardedDataParallel(
        model,
        device_mesh=mesh,
        sharding_strategy=strategy_of(mesh),
        device_id=torch.device("cpu"),
        use_orig_params=True,
    )


def watched():
    model = wrap(Net())
    with addend.torch.watch(model) as watch:
        mean_loss(model, draw(dist.get_rank())).backward()
    return watch.report


def checked():
    return addend.torch.check(Net, lambda model, mesh: wrap(model), batches, mean_loss, mesh={"dp": WORLD})


def batches(rank, mesh):
    every = [draw(rank) for rank in range(WORLD)]
    return [tuple(torch.cat(parts) for parts in zip(*every))] if rank is None else [every[rank]]


if __name__ == "__main__":
    case.play(WORLD, watched, checked)
