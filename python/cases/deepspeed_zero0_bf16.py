"""DeepSpeed, ZeRO 0 with bf16: gradients are divided by a loss scale although no loss was multiplied by it, and they
are not zeroed after a step.
"""

import torch
import torch.distributed as dist

import case
import deepspeed_jobs
from jobs import IN, Net

SOURCE = "https://github.com/deepspeedai/DeepSpeed/issues/7837"
WRONG, RIGHT = ["deepspeed==0.18.5"], ["deepspeed==0.18.6"]

WORLD = 2


def watched():
    """Run two steps: in the second, the first step's gradients should be gone."""
    engine = deepspeed_jobs.engine_of(Net(), bf16={"enabled": True}, zero_optimization={"stage": 0})
    generator = torch.Generator().manual_seed(dist.get_rank())
    batches = [torch.randn(deepspeed_jobs.ROWS, IN, generator=generator).bfloat16() for _ in range(2)]
    engine.backward(engine(batches[0]).float().square().mean())
    engine.step()

    return deepspeed_jobs.watch(engine, [lambda: engine(batches[1]).float().square().mean()])


def checked():
    return "not tried: DeepSpeed computes in bf16 here, and check in f64"


if __name__ == "__main__":
    case.play(WORLD, watched, checked)
