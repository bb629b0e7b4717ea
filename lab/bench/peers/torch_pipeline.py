"""The measured model in torch.distributed.pipelining with gloo: two stages on two ranks, or four stages interleaved; one sample per
microbatch, AdamW with clipping by the norm of all stages, one thread per process.
Usage: torch_pipeline.py ADDRESS RANK RANKS PORT pipeline LAYERS D_MODEL HEADS SEQ BATCH."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
import torch_backend
import worker
from torch import nn
from torch.distributed import pipelining
from torch_model import BATCH, GPT, LAYERS, SEQ, VOCABULARY

torch.set_num_threads(1)
torch.manual_seed(1)


class Stage(nn.Module):
    def __init__(self, whole, first, last, blocks):
        super().__init__()
        self.embedding = whole.embedding if first else nn.Identity()
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Sequential(whole.norm, whole.head) if last else nn.Identity()

    def forward(self, x):
        return self.head(self.blocks(self.embedding(x)))


SCHEDULES = {
    "gpipe": (1, pipelining.ScheduleGPipe),
    "1f1b": (1, pipelining.Schedule1F1B),
    "interleaved": (2, pipelining.ScheduleInterleaved1F1B),
    "zb": (1, pipelining.ScheduleInterleavedZeroBubble),
}


def loss_of(logits, targets):
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def stages_of(each):
    """This rank's stages: rank r has stages r, r + ranks and so on; the blocks are divided evenly."""
    whole, count = GPT(), each * worker.RANKS
    for number in range(worker.RANK, count, worker.RANKS):
        blocks = whole.blocks[number * LAYERS // count : (number + 1) * LAYERS // count]
        module = Stage(whole, number == 0, number == count - 1, blocks)
        yield pipelining.PipelineStage(module, number, count, torch.device("cpu"))


def prepare_step(name):
    each, kind = SCHEDULES[name]
    stages = list(stages_of(each))
    several = kind not in (pipelining.ScheduleGPipe, pipelining.Schedule1F1B)
    schedule = kind(stages if several else stages[0], n_microbatches=BATCH, loss_fn=loss_of)
    parameters = [p for stage in stages for p in stage.submod.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=1e-4, fused=True)
    tokens, targets = (torch.randint(0, VOCABULARY, (BATCH, SEQ)) for _ in range(2))
    inputs = (tokens,) if worker.RANK == 0 else ()

    def step():
        optimizer.zero_grad()
        schedule.step(*inputs, target=targets if worker.RANK == worker.RANKS - 1 else None)
        norm = nn.utils.get_total_norm([p.grad for p in parameters]) ** 2
        dist.all_reduce(norm)
        nn.utils.clip_grads_with_norm_(parameters, 1.0, norm.sqrt())
        optimizer.step()

    return step


def prepare(task):
    if task.op != "pipeline":
        return None
    if task.storage not in held:
        held.clear()
        held[task.storage] = prepare_step(task.storage)
    return held[task.storage]


held = {}
torch_backend.start("gloo")
worker.work(prepare, dist.barrier)
dist.destroy_process_group()
