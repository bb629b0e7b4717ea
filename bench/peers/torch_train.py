"""The measured model in PyTorch: the same layers and sizes, AdamW with clipping, one thread per process; gradients go through
DDP over gloo, or parameters are cut by FSDP. Usage: torch_train.py ADDRESS RANK RANKS PORT ddp|fsdp LAYERS D_MODEL HEADS SEQ BATCH."""
import sys

import torch_kinds
import worker
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

KIND = sys.argv[5]
LAYERS, D_MODEL, HEADS, SEQ, BATCH = map(int, sys.argv[6:11])
VOCABULARY, HEAD = 256, D_MODEL // HEADS
HIDDEN = (8 * D_MODEL // 3 + 15) // 16 * 16
torch.set_num_threads(1)
torch.manual_seed(1)


def angles():
    half = HEAD // 2
    rates = 10000.0 ** (-torch.arange(half) * 2 / HEAD)
    angle = torch.arange(SEQ)[:, None] * rates  # [seq, head/2]
    return angle.cos(), angle.sin()


COS, SIN = angles()


def rotate(x):  # [batch, heads, seq, head]
    a, b = x.chunk(2, -1)
    return torch.cat((a * COS - b * SIN, b * COS + a * SIN), -1)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(D_MODEL), nn.RMSNorm(D_MODEL)
        self.q, self.k, self.v, self.o = (nn.Linear(D_MODEL, D_MODEL, bias=False) for _ in range(4))
        self.gate, self.up = nn.Linear(D_MODEL, HIDDEN, bias=False), nn.Linear(D_MODEL, HIDDEN, bias=False)
        self.down = nn.Linear(HIDDEN, D_MODEL, bias=False)

    def attend(self, x):
        heads = [f(x).view(*x.shape[:2], HEADS, HEAD).transpose(1, 2) for f in (self.q, self.k, self.v)]
        y = F.scaled_dot_product_attention(rotate(heads[0]), rotate(heads[1]), heads[2], is_causal=True)
        return self.o(y.transpose(1, 2).reshape(x.shape))

    def forward(self, x):
        x = x + self.attend(self.norm1(x))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, D_MODEL)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.RMSNorm(D_MODEL)
        self.head = nn.Linear(D_MODEL, VOCABULARY, bias=False)

    def forward(self, tokens):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def prepare_step():
    model = GPT()
    model = torch_kinds.distribute(model, model.blocks, KIND, worker.RANKS)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=True)
    rows = BATCH // worker.RANKS
    tokens = torch.randint(0, VOCABULARY, (rows, SEQ))
    targets = torch.randint(0, VOCABULARY, (rows, SEQ))

    def step():
        optimizer.zero_grad(set_to_none=KIND != "ddp")
        loss = F.cross_entropy(model(tokens).view(-1, VOCABULARY), targets.view(-1))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return step


def prepare(task):
    if task.op != "train_step":
        return None
    if "step" not in held:
        held["step"] = prepare_step()
    return held["step"]


held = {}
dist.init_process_group("gloo", rank=worker.RANK, world_size=worker.RANKS)
worker.work(prepare, dist.barrier)
dist.destroy_process_group()
