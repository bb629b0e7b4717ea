"""The measured model in PyTorch; its sizes are the last arguments of a peer's command line: LAYERS D_MODEL HEADS SEQ BATCH."""
import sys

import torch
import torch.nn.functional as F
from torch import nn

LAYERS, D_MODEL, HEADS, SEQ, BATCH = map(int, sys.argv[6:11])
VOCABULARY, HEAD = 256, D_MODEL // HEADS
HIDDEN = (8 * D_MODEL // 3 + 15) // 16 * 16
def angles():
    half = HEAD // 2
    rates = 10000.0 ** (-torch.arange(half) * 2 / HEAD)
    angle = torch.arange(SEQ)[:, None] * rates  # [seq, head/2]
    return angle.cos(), angle.sin()


COS, SIN = angles()


def rotate(x):  # [batch, heads, seq, head]
    a, b = x.chunk(2, -1)
    return torch.cat((a * COS - b * SIN, b * COS + a * SIN), -1)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(D_MODEL, D_MODEL, bias=False) for _ in range(4))

    def forward(self, x):  # computes this rank's heads: all of them without tensor parallelism
        heads = [f(x).unflatten(-1, (-1, HEAD)).transpose(1, 2) for f in (self.q, self.k, self.v)]
        y = F.scaled_dot_product_attention(rotate(heads[0]), rotate(heads[1]), heads[2], is_causal=True)
        return self.o(y.transpose(1, 2).flatten(2))


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.up = nn.Linear(D_MODEL, HIDDEN, bias=False), nn.Linear(D_MODEL, HIDDEN, bias=False)
        self.down = nn.Linear(HIDDEN, D_MODEL, bias=False)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(D_MODEL), nn.RMSNorm(D_MODEL)
        self.attention, self.mlp = Attention(), MLP()

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, D_MODEL)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.RMSNorm(D_MODEL)
        self.head = nn.Linear(D_MODEL, VOCABULARY, bias=False)

    def forward(self, tokens, targets):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1).float(), targets.flatten())
