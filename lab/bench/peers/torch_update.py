"""The tasks "update" and "muon" in PyTorch: gradients of the measured model's parameters, which exist from the start, are reduced by DDP
or FSDP over gloo, then AdamW updates the parameters; with fsdp_muon, Muon updates the matrices of blocks.
Usage: torch_update.py ADDRESS RANK RANKS PORT ddp|fsdp|fsdp_muon LAYERS D_MODEL HEADS SEQ BATCH."""
import sys

import torch_kinds
import worker
import torch
import torch.distributed as dist
from torch import nn

KIND = sys.argv[5].removesuffix("_muon")
TASK = "muon" if sys.argv[5].endswith("_muon") else "update"
LAYERS, D_MODEL = map(int, sys.argv[6:8])
VOCABULARY, HIDDEN = 256, (8 * D_MODEL // 3 + 15) // 16 * 16
BLOCK = 2 * [(D_MODEL,)] + 4 * [(D_MODEL, D_MODEL)] + 2 * [(HIDDEN, D_MODEL)] + [(D_MODEL, HIDDEN)]
torch.set_num_threads(1)


class Produce(torch.autograd.Function):
    """An operation that uses parameters without computing; their gradients are given tensors, which are not copied."""

    @staticmethod
    def forward(ctx, x, gradients, *parameters):
        ctx.gradients = gradients
        return x.clone()

    @staticmethod
    def backward(ctx, dx):
        return dx, None, *(gradient.detach() for gradient in ctx.gradients)


class Part(nn.Module):
    def __init__(self, shapes):
        super().__init__()
        for i, shape in enumerate(shapes):
            self.register_parameter(f"p{i}", nn.Parameter(torch.full(shape, 0.02)))
        self.gradients = [torch.full(shape, 1e-3) for shape in shapes]

    def forward(self, x):
        return Produce.apply(x, self.gradients, *self._parameters.values())


class Parameters(nn.Module):
    def __init__(self):
        super().__init__()
        shapes = [[(VOCABULARY, D_MODEL)]] + LAYERS * [BLOCK] + [[(D_MODEL,), (VOCABULARY, D_MODEL)]]
        self.parts = nn.ModuleList(map(Part, shapes))

    def forward(self, x):
        for part in self.parts:
            x = part(x)
        return x


def optimizers_of(model):
    """AdamW, or Muon for the matrices of blocks and AdamW for the rest."""
    if TASK == "update":
        return [torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)]
    matrices = [p for part in model.parts[1:-1] for p in part.parameters() if p.ndim == 2]
    chosen = {id(p) for p in matrices}
    rest = [p for p in model.parameters() if id(p) not in chosen]
    return [torch.optim.Muon(matrices, lr=1e-4, weight_decay=0), torch.optim.AdamW(rest, lr=1e-4, fused=True)]


def prepare_update():
    model = Parameters()
    model = torch_kinds.distribute(model, model.parts, KIND, worker.RANKS)
    optimizers = optimizers_of(model)
    x = torch.zeros(1, requires_grad=True)

    def update():
        model(x).sum().backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()

    return update


def prepare(task):
    if task.op != TASK or task.dtype != "f32":
        return None
    if TASK not in held:
        held[TASK] = prepare_update()
    return held[TASK]


held = {}
dist.init_process_group("gloo", rank=worker.RANK, world_size=worker.RANKS)
worker.work(prepare, dist.barrier)
dist.destroy_process_group()
