"""DeepSpeed, ZeRO 0 with Ulysses: gradients are divided by the number of all ranks, also over the sequence-parallel
ranks, whose addends are parts of one loss and must only be summed.
"""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

import case
import deepspeed_jobs
from jobs import IN, Net

SOURCE = "https://github.com/deepspeedai/DeepSpeed/pull/5555"
WRONG, RIGHT = ["deepspeed==0.14.2 numpy==1.26.4"], ["deepspeed==0.14.3 numpy==1.26.4"]

WORLD, SEQUENCE = 6, 3


class Mesh:
    """The interface that DeepSpeed asks of a client that cuts sequences."""

    def __init__(self):
        ranks = list(range(WORLD))
        rows = [ranks[at : at + SEQUENCE] for at in range(0, WORLD, SEQUENCE)]
        self.sequence = [dist.new_group(row) for row in rows][dist.get_rank() // SEQUENCE]
        self.data = [dist.new_group(ranks[at::SEQUENCE]) for at in range(SEQUENCE)][dist.get_rank() % SEQUENCE]
        self.alone = [dist.new_group([rank]) for rank in ranks][dist.get_rank()]

    def __getattr__(self, name):
        groups = {
            "model_parallel": self.__dict__["alone"],
            "data_parallel": self.__dict__["data"],
            "sequence_parallel": self.__dict__["sequence"],
            "sequence_data_parallel": dist.group.WORLD,
        }
        for kind, group in groups.items():
            if name == f"get_{kind}_group":
                return lambda group=group: group
            if name == f"get_{kind}_world_size":
                return lambda group=group: dist.get_world_size(group)
            if name == f"get_{kind}_rank":
                return lambda group=group: dist.get_rank(group)
        raise AttributeError(name)


def watched():
    engine = deepspeed_jobs.engine_of(Net(), mpu=Mesh(), zero_optimization={"stage": 0})
    x = torch.randn(deepspeed_jobs.ROWS, IN, generator=torch.Generator().manual_seed(dist.get_rank()))
    mesh = init_device_mesh("cpu", (WORLD // SEQUENCE, SEQUENCE), mesh_dim_names=("dp", "sp"))
    return deepspeed_jobs.watch(engine, [lambda: engine(x).square().mean()], expect=SEQUENCE / WORLD, mesh=mesh)


def checked():
    return "not tried: addends are parts of a sequence here, and the job has no sequence"


if __name__ == "__main__":
    case.play(WORLD, watched, checked)
