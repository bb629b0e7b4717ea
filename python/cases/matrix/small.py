"""A small decoder, its batches and losses, shared by the files for `addend torch-matrix` in this folder."""

import copy

import torch
import torch.nn.functional as F
from torch import nn

VOCABULARY, WIDTH, HEADS, HIDDEN, LENGTH = 37, 18, 6, 30, 12  # 2 and 3 divide all but the vocabulary
IGNORED = -100
DATA = ("dp", "dp_replicate", "dp_shard")  # the axes whose ranks have their own rows


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH, bias=name == "q") for name in "qkv")
        self.o = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        q, k, v = (f(x).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2) for f in (self.q, self.k, self.v))
        return self.o(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.up = nn.Linear(WIDTH, HIDDEN, bias=False), nn.Linear(WIDTH, HIDDEN)
        self.down = nn.Linear(HIDDEN, WIDTH)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.before, self.attention = nn.RMSNorm(WIDTH), Attention()
        self.after, self.mlp = nn.LayerNorm(WIDTH), Mlp()

    def forward(self, x):
        x = x + self.attention(self.before(x))
        return x + self.mlp(self.after(x))


class Decoder(nn.Module):
    def __init__(self, blocks=2, tied=False):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleDict({str(i): Block() for i in range(blocks)})
        self.norm, self.head = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=not tied)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, tokens):
        x = self.embed(tokens) if self.embed is not None else tokens
        for block in self.blocks.values():
            x = block(x)
        return x if self.head is None else self.head(self.norm(x))


def make_model(blocks=2, tied=False):
    torch.manual_seed(3)
    return Decoder(blocks, tied)


def make_tied():
    return make_model(tied=True)


def make_frozen():
    """Every second parameter is frozen."""
    model = make_model()
    for i, parameter in enumerate(model.parameters()):
        parameter.requires_grad_(i % 2 == 0)
    return model


def make_half_frozen():
    """The embedding and the first block are frozen."""
    model = make_model()
    for part in model.embed, model.blocks["0"]:
        part.requires_grad_(False)
    return model


def make_deep_frozen():
    model = make_model(blocks=4)
    for i, parameter in enumerate(model.parameters()):
        parameter.requires_grad_(i % 2 == 0)
    return model


def make_deep():
    return make_model(blocks=8)


def part_of(model, stage, count):
    """The stage's own part of a whole model."""
    part = copy.deepcopy(model)
    kept = [key for i, key in enumerate(part.blocks) if i * count // len(part.blocks) == stage]
    part.blocks = nn.ModuleDict({key: part.blocks[key] for key in kept})
    if stage > 0:
        part.embed = None
    if stage < count - 1:
        part.norm = part.head = None
    return part


def replica(mesh):
    """(the rank's place among those that have their own rows, their number); the place is 0 for the whole."""
    place, count = 0, 1
    for axis in (name for name in mesh.mesh_dim_names if name in DATA):
        place = place * mesh.size(axis) + (mesh.get_local_rank(axis) if mesh.rank is not None else 0)
        count *= mesh.size(axis)
    return place, count


def rows_of(draw, rows, padded, length=LENGTH):
    """(tokens, labels, the weight of each token) of one rank; labels of padding are ignored."""
    tokens = torch.randint(VOCABULARY, (rows, length + 1), generator=draw)
    labels = tokens[:, 1:].clone()
    labels[:, 0] = IGNORED
    if padded:
        labels[-1, length // 2 :] = IGNORED
    return tokens[:, :-1], labels, torch.rand(rows, length, generator=draw) + 0.5


def batches(rank, mesh, microbatches):
    """Ranks have unequal numbers of rows, and one has padding."""
    draw = torch.Generator().manual_seed(5)
    place, count = replica(mesh)
    steps = [[rows_of(draw, 1 + (r + m) % 2, r == m % count) for r in range(count)] for m in range(microbatches)]
    return [tuple(map(torch.cat, zip(*ranks))) if rank is None else ranks[place] for ranks in steps]


def even_batches(rank, mesh, microbatches, rows=2):
    """Every rank has as many rows as any other, as pipelines want it."""
    draw = torch.Generator().manual_seed(5)
    place, count = replica(mesh)
    steps = [[rows_of(draw, rows, r == m % count) for r in range(count)] for m in range(microbatches)]
    return [tuple(map(torch.cat, zip(*ranks))) if rank is None else ranks[place] for ranks in steps]


def loss(model, batch):
    """Each token counts by its weight."""
    tokens, labels, weights = batch
    weights = weights * (labels != IGNORED)
    losses = F.cross_entropy(model(tokens).transpose(1, 2), labels, reduction="none", ignore_index=IGNORED)
    return (losses * weights).sum(), weights.sum()


def token_loss(model, batch):
    """All tokens count alike."""
    tokens, labels, _ = batch
    logits = model(tokens)
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum"), int((labels != IGNORED).sum())


def accumulate(contexts):
    """A `run` whose microbatches run in `contexts(model, is_last)`."""

    def run(model, microbatches, loss_of):
        for i, batch in enumerate(microbatches):
            with contexts(model, i == len(microbatches) - 1):
                loss_of(model, batch).backward()

    return run
