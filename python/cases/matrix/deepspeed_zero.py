"""DeepSpeed 0.19: ZeRO 0 to 2 on two and three ranks, with one to three microbatches."""

import os
import pathlib
import sys

os.environ["DS_ACCELERATOR"] = "cpu"
sys.path[:0] = [
    str(pathlib.Path(__file__).resolve().parent.parent),
    str(pathlib.Path(__file__).resolve().parents[2] / "tests" / "torch"),
]

# ruff: noqa: E402
import deepspeed
import torch
from deepspeed.utils import safe_get_full_grad
from torch import nn
from torch.nn.functional import cross_entropy, silu

NEEDS = ["numpy", "deepspeed==0.19.8"]
WIDTH, WORDS = 9, 13
sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None  # else sums in shared memory are compiled first


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 21), nn.Linear(21, WIDTH)

    def forward(self, x):
        return x + self.down(silu(self.up(self.norm(x))))


class Model(nn.Module):
    def __init__(self, tied=False):
        super().__init__()
        self.embed, self.blocks = nn.Embedding(WORDS, WIDTH), nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def plain():
    torch.manual_seed(0)
    return Model()


def tied():
    torch.manual_seed(0)
    return Model(tied=True)


def frozen():
    model = plain()
    for parameter in list(model.parameters())[1::2]:
        parameter.requires_grad_(False)
    return model


def looped():
    """A model in which one block is called twice."""
    model = plain()
    model.blocks[1] = model.blocks[0]
    return model


models = {"plain": plain, "tied": tied, "frozen": frozen, "looped": looped}


def zero(stage, microbatches, **more):
    def parallelize(model, mesh):
        deepspeed.init_distributed(dist_backend="gloo")
        config = {
            "train_micro_batch_size_per_gpu": 1,
            "gradient_accumulation_steps": microbatches,
            "optimizer": {"type": "AdamW", "params": {"lr": 0.0, "weight_decay": 0.0, "torch_adam": True}},
            "zero_optimization": {"stage": stage, **more.pop("zero", {})},
            **more,
        }
        trained = [p for p in model.parameters() if p.requires_grad]
        model.__dict__["backend"] = deepspeed.initialize(model=model, model_parameters=trained, config=config)[0]
        return model

    return parallelize


def run(model, microbatches, loss):
    """A step with a learning rate of 0, so that only gradients are seen, which DeepSpeed keeps in its own buffers."""
    engine = model.engine
    for i, batch in enumerate(microbatches):
        engine.backward(loss(model, batch))
        if i < len(microbatches) - 1:
            engine.step()
    found = {p: safe_get_full_grad(p) for p in model.parameters() if p.requires_grad}
    found = {p: None if grad is None else grad.detach().clone() for p, grad in found.items()}
    engine.step()
    for parameter, grad in found.items():
        parameter.grad = grad


def rows_of(draw, count):
    return torch.randint(WORDS, (count, 5), generator=draw), torch.randint(WORDS, (count, 5), generator=draw)


def cut(microbatches):
    def batches(rank, mesh):
        draw = torch.Generator().manual_seed(1)
        parts = [[rows_of(draw, 1 + (r + k) % 2) for r in range(mesh.size())] for k in range(microbatches)]
        if rank is None:
            return [tuple(torch.cat(some) for some in zip(*part)) for part in parts]
        return [part[rank] for part in parts]

    return batches


def loss(model, batch):
    ids, labels = batch
    return cross_entropy(
        model.__dict__.get("backend", model)(ids).transpose(1, 2), labels, reduction="sum"
    ), labels.numel()


batches = cut(2)  # layouts have their own, for DeepSpeed is told the number of microbatches when it starts
SMALL = {"reduce_bucket_size": 100, "allgather_bucket_size": 100}
layouts = {
    f"zero {stage}{more and ', small buckets'}, {count} microbatches": {
        "mesh": {"dp": ranks},
        "parallelize": zero(stage, count, **({"zero": SMALL} if more else {})),
        "batches": cut(count),
        "averaged": ranks * count,
        "run": run,
    }
    for stage, more, ranks in ((1, "", 2), (2, "", 3), (2, "small", 2), (1, "small", 3), (0, "", 2), (3, "", 2))
    for count in (2, 1, 3)
}
