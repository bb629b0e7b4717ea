"""DeepSpeed, ZeRO 1 with bf16 and sums in f32: each rank adds its last microbatch after the sum over ranks, so that
it is not summed.
"""

import torch
import torch.distributed as dist

import case
import deepspeed_jobs
from jobs import IN, Net

SOURCE = "https://github.com/deepspeedai/DeepSpeed/pull/7985"
WRONG, RIGHT = ["deepspeed==0.18.9"], ["deepspeed==0.19.0"]

WORLD, MICROBATCHES = 2, 3


def watched():
    config = {
        "zero_optimization": {"stage": 1},
        "bf16": {"enabled": True},
        "data_types": {"grad_accum_dtype": "fp32"},
    }
    engine = deepspeed_jobs.engine_of(Net(), MICROBATCHES, **config)
    generator = torch.Generator().manual_seed(dist.get_rank())
    batches = [torch.randn(deepspeed_jobs.ROWS, IN, generator=generator).bfloat16() for _ in range(MICROBATCHES)]
    losses = [lambda x=x: engine(x).float().square().mean() for x in batches]
    return deepspeed_jobs.watch(engine, losses)


def checked():
    return "not tried: DeepSpeed computes in bf16 here, and check in f64"


if __name__ == "__main__":
    case.play(WORLD, watched, checked)
