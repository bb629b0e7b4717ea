"""Right jobs for `addend.torch.check` with layers that `right_jobs` does not have, under DDP and fully_shard.
Each trains on rows of tokens; every rank has its own rows.
"""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import ranks
import right_jobs
from right_jobs import DP, Job, right

WIDTH, ANSWERS = 8, 5


def whole():
    generator = torch.Generator(ranks.DEVICE).manual_seed(3)
    return torch.randint(20, (12, 6), generator=generator), torch.randn(12, ANSWERS, generator=generator)


def cut(batch, rank, mesh):
    return [tuple(x.chunk(mesh.size("dp"))[mesh.get_local_rank("dp")] for x in batch)]


def loss(model, batch):
    tokens, wanted = batch
    found = model(tokens)
    found = found["answer"] if isinstance(found, dict) else found
    return (found - wanted).square().sum(), wanted.numel()


class Net(nn.Module):
    """An embedding, the layer that is tested, and an output layer."""

    def __init__(self):
        super().__init__()
        self.embed, self.out = (
            nn.Embedding(20, WIDTH, padding_idx=0),
            nn.Linear(WIDTH, ANSWERS),
        )
        self.layer = self.made()

    def made(self):
        return nn.Tanh()

    def middle(self, x):
        return self.layer(x)

    def forward(self, tokens):
        return self.out(self.middle(self.embed(tokens)).mean(1))


class Tied(Net):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(WIDTH, 20, bias=False)
        self.out.weight = self.embed.weight

    def forward(self, tokens):
        return super().forward(tokens)[:, :ANSWERS]


class Recurrent(Net):
    def made(self):
        return nn.LSTM(WIDTH, WIDTH, 2, batch_first=True, dropout=0.1)

    def middle(self, x):
        return self.layer(x)[0]


class Convolution(Net):
    def made(self):
        return nn.Sequential(
            nn.Conv1d(WIDTH, WIDTH, 3, padding=1),
            nn.GroupNorm(2, WIDTH),
            nn.ReLU(inplace=True),
        )

    def middle(self, x):
        return self.layer(x.transpose(1, 2)).transpose(1, 2)


class Frozen(Net):
    def made(self):
        return nn.Linear(WIDTH, WIDTH).requires_grad_(False)


class CalledTwice(Net):
    def made(self):
        return nn.Linear(WIDTH, WIDTH)

    def middle(self, x):
        return torch.tanh(self.layer(torch.tanh(self.layer(x))))


class Checkpointed(Net):
    def made(self):
        return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Dropout(0.2))

    def middle(self, x):
        return checkpoint(self.layer, x, use_reentrant=False)


class InPlace(Net):
    """Hooks on what a module returned, and on what one was given."""

    def made(self):
        return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.LeakyReLU(inplace=True), nn.Linear(WIDTH, WIDTH))

    def middle(self, x):
        y = self.layer(x)
        y += x
        return F.relu_(y)


class Turned(nn.Module):
    def forward(self, x):
        return x.transpose(0, 1)


class Views(Net):
    def made(self):
        return nn.Sequential(Turned(), Turned(), nn.Identity())


class Several(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x, mask=None):
        return self.linear(x), mask


class Mixed(Net):
    """A module that returns None among other values, and a dictionary of the model's own."""

    def made(self):
        return Several()

    def forward(self, tokens):
        hidden, mask = self.layer(self.embed(tokens), mask=None)
        return {"answer": self.out(hidden.mean(1)), "mask": mask, "hidden": hidden}


class Encoder(Net):
    def made(self):
        return nn.TransformerEncoderLayer(WIDTH, 2, 16, dropout=0.1, batch_first=True)


def sharded(model, mesh):
    from torch.distributed.fsdp import fully_shard

    if any(True for _ in model.layer.parameters()):
        fully_shard(model.layer, mesh=mesh)
    fully_shard(model, mesh=mesh)


MODELS = (
    Net, Tied, Recurrent, Convolution, Frozen, CalledTwice, Checkpointed, InPlace, Views, Mixed, Encoder,
)  # fmt: skip
for i, kind in enumerate(MODELS):
    job = Job(
        sharded if i % 2 else right_jobs.ddp,
        DP,
        make_model=kind,
        batches=(whole, cut),
        loss=loss,
    )
    right(f"a model, {kind.__name__}", job)
