"""All schedules of torch.distributed.pipelining, for `addend torch-matrix`: stages alone, and in
DistributedDataParallel, fully_shard, replicate, and tensor parallelism.
"""

import functools
import warnings

import small
import torch
import torch.distributed as dist
from small import loss, make_deep  # noqa: F401 - functions of the matrix
from torch.distributed._composable.replicate_with_fsdp import replicate
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import get_schedule_class
from torch.nn.parallel import DistributedDataParallel
from torch_parallel import block_plan, parallelize_module

PIECES = 4  # in which a schedule cuts a batch


def four_blocks():
    return small.make_model(blocks=4)


models = {"decoder": four_blocks, "frozen": small.make_deep_frozen, "deep": make_deep}


def one_each(rank, world):
    return [rank]


def several_each(count, rank, world):
    return [rank + i * world for i in range(count)]


def there_and_back(rank, world):
    return [rank, 2 * world - 1 - rank]


def alone(part, mesh):
    return part


def staged(schedule, stages_of_rank, wrap=alone, pieces=PIECES, scales=False):
    def parallelize(model, mesh):
        warnings.simplefilter("ignore")
        group = mesh.get_group("pp")
        world, rank = dist.get_world_size(group), dist.get_rank(group)
        own, count = stages_of_rank(rank, world), world * len(stages_of_rank(0, world))
        made = [
            PipelineStage(
                wrap(small.part_of(model, stage, count), mesh), stage, count, torch.device("cpu"), group=group
            )
            for stage in own
        ]
        losses = {}
        reported = get_schedule_class(schedule)(
            made if len(made) > 1 else made[0], pieces, loss_fn=lambda *a: losses["fn"](*a), scale_grads=scales
        )
        modules = [stage.submod for stage in made]
        modules[0].stages = reported, losses, 0 in own, count - 1 in own
        return modules

    return parallelize


def run(model, microbatches, loss_of):
    schedule, losses, first, last = model[0].stages
    losses["fn"] = lambda output, target: loss_of(lambda _: output, (None, target[..., 0].long(), target[..., 1]))
    for tokens, labels, weights in microbatches:
        target = torch.stack([labels.to(weights.dtype), weights], -1)
        schedule.step(*((tokens,) if first else ()), **({"target": target} if last else {}))


batches = functools.partial(small.even_batches, rows=2 * PIECES)


def batches_of(rows):
    return lambda rank, mesh, microbatches: small.even_batches(rank, mesh, microbatches, rows)


def in_ddp(part, mesh):
    return DistributedDataParallel(part, process_group=mesh.get_group("dp"))


def in_fsdp(part, mesh, **arguments):
    for block in part.blocks.values():
        fully_shard(block, mesh=mesh["dp"], **arguments)
    return fully_shard(part, mesh=mesh["dp"], **arguments)


def in_fsdp_kept(part, mesh):
    return in_fsdp(part, mesh, reshard_after_forward=False)


def in_hsdp(part, mesh):
    axes = mesh["dp_replicate", "dp_shard"]
    return fully_shard(part, mesh=axes)


def in_replicate(part, mesh):
    return replicate(part, mesh=mesh["dp"])


def in_tp(part, mesh):
    for block in part.blocks.values():
        parallelize_module(block, mesh["tp"], block_plan(False, False))
    return part


SCHEDULES = {
    "GPipe": one_each,
    "1F1B": one_each,
    "Interleaved1F1B": functools.partial(several_each, 2),
    "LoopedBFS": functools.partial(several_each, 2),
    "InterleavedZeroBubble": functools.partial(several_each, 2),
    "ZBVZeroBubble": there_and_back,
    "DualPipeV": there_and_back,
}
WRAPPED = {"ddp": in_ddp, "fsdp": in_fsdp, "fsdp, kept": in_fsdp_kept, "replicate": in_replicate}
layouts = {name: {"mesh": {"pp": 2}, "parallelize": staged(name, stages)} for name, stages in SCHEDULES.items()}
layouts.update(
    {
        f"{name}, {how}": {"mesh": {"dp": 2, "pp": 2}, "parallelize": staged(name, stages, wrap)}
        for name, stages in SCHEDULES.items()
        for how, wrap in WRAPPED.items()
    }
)
layouts.update(
    {
        f"{name}, tp": {"mesh": {"pp": 2, "tp": 2}, "parallelize": staged(name, stages, in_tp)}
        for name, stages in SCHEDULES.items()
        if name in ("1F1B", "ZBVZeroBubble", "DualPipeV")
    }
)
layouts.update(
    {
        "1F1B, hsdp": {
            "mesh": {"dp_replicate": 2, "dp_shard": 2, "pp": 2},
            "parallelize": staged("1F1B", one_each, in_hsdp),
        },
        "1F1B, of four": {"mesh": {"pp": 4}, "parallelize": staged("1F1B", one_each)},
        "Interleaved1F1B, four each": {
            "mesh": {"pp": 2},
            "parallelize": staged("Interleaved1F1B", functools.partial(several_each, 4)),
        },
        "DualPipeV, of four": {
            "mesh": {"pp": 4},
            "parallelize": staged("DualPipeV", there_and_back, pieces=8),
            "batches": batches_of(8),
        },
        "ZBVZeroBubble, of four": {
            "mesh": {"pp": 4},
            "parallelize": staged("ZBVZeroBubble", there_and_back, pieces=8),
            "batches": batches_of(8),
        },
        "1F1B, unequal pieces": {
            "mesh": {"pp": 2},
            "parallelize": staged("1F1B", one_each, pieces=4),
            "batches": batches_of(7),
        },
    }
)
for name, one in layouts.items():
    is_deep, is_frozen = "four" in name, name in SCHEDULES or name.endswith(", fsdp")
    one["models"] = ["deep"] if is_deep else ["decoder"] + ["frozen"] * is_frozen
