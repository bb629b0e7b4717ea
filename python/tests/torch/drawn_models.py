"""The models, batches and losses of random jobs, and what one process gets from the whole batch."""

import contextlib

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import ranks

IN, HIDDEN, OUT, ROWS, WORDS = (
    12,
    66,
    50,
    6,
    40,
)  # a shard of the smallest bias has as many elements as there are addends


class Net(nn.Module):
    """A network in which `idle` is never used, and `spare` only if asked for."""

    def __init__(self, spec):
        super().__init__()
        # Dimensions that two axes cut must be even: PyTorch 2.9 puts uneven parts of parts together in a wrong order.
        hidden = HIDDEN + 2 if spec.wrapper == "tp_fsdp" else HIDDEN
        self.norm, self.up, self.down = nn.LayerNorm(IN), nn.Linear(IN, hidden), nn.Linear(hidden, OUT)
        self.checkpoints = spec.options.get("checkpoints")
        if spec.options.get("idle"):
            self.idle = nn.Linear(3, 2)
        if spec.options.get("spare"):
            self.spare = nn.Linear(IN, OUT)
        if spec.options.get("frozen"):
            self.up.weight.requires_grad_(False)
            self.norm.bias.requires_grad_(False)

    def forward(self, x, spare=True):
        out = self.norm(x)
        if self.checkpoints:
            inner = lambda y: torch.tanh(self.up(y))  # noqa: E731
            out = self.down(checkpoint(inner, out.requires_grad_(), use_reentrant=self.checkpoints == "reentrant"))
        else:
            out = self.down(torch.tanh(self.up(out)))
        return out + self.spare(x) if spare and hasattr(self, "spare") else out


def _words(x):
    return (x.abs() * 7).long() % WORDS


class Tied(nn.Module):
    """A network whose input and output share one parameter."""

    def __init__(self, spec):
        super().__init__()
        self.words, self.mix, self.head = nn.Embedding(WORDS, 16), nn.Linear(16, 16), nn.Linear(16, WORDS, bias=False)
        self.head.weight = self.words.weight

    def forward(self, x):
        return self.head(torch.tanh(self.mix(self.words(_words(x)))))


class Attention(nn.Module):
    def __init__(self, spec):
        super().__init__()
        self.words, self.up = nn.Embedding(WORDS, 16), nn.Linear(16, OUT)
        self.block = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)

    def forward(self, x):
        return self.up(self.block(self.words(_words(x))))


class Convolved(nn.Module):
    """A network whose first bias stands before a normalisation, which removes it: its gradient is rounding alone."""

    def __init__(self, spec):
        super().__init__()
        self.first, self.normed = nn.Conv1d(1, 8, 3, padding=1), nn.BatchNorm1d(8)
        self.second, self.down = nn.Conv1d(8, 8, 3, groups=2), nn.Linear(8 * (IN - 2), OUT)

    def forward(self, x):
        x = self.second(torch.tanh(self.normed(self.first(x[:, None]))))
        return self.down(torch.tanh(x.flatten(1)))


class Recurrent(nn.Module):
    """A network that uses one layer three times in a forward."""

    def __init__(self, spec):
        super().__init__()
        self.up, self.again, self.down = nn.Linear(IN, 24), nn.Linear(24, 24), nn.Linear(24, OUT)
        self.scale = nn.Parameter(torch.full([1] if spec.wrapper in ("fsdp", "hsdp") else [], 0.7))

    def forward(self, x):
        x = self.up(x)
        for _ in range(3):
            x = torch.tanh(self.again(x)) * self.scale
        return self.down(x)


class Sparse(nn.Module):
    def __init__(self, spec):
        super().__init__()
        self.words, self.up = nn.Embedding(WORDS, 16, sparse=True), nn.Linear(16, OUT)

    def forward(self, x):
        return self.up(self.words(_words(x)).mean(1))


MODELS = {
    "net": Net,
    "tied": Tied,
    "attention": Attention,
    "convolved": Convolved,
    "recurrent": Recurrent,
    "sparse": Sparse,
}


def make(spec):
    torch.manual_seed(spec.seed)
    return MODELS[spec.model](spec).to(spec.parameters)


def rows_of(spec, data, microbatch):
    """Return how many rows a data rank has in a microbatch."""
    return 2 + (5 * data + 3 * microbatch + spec.seed) % 9 if spec.options.get("counts") else ROWS


def batch(spec, data, microbatch):
    generator = torch.Generator(ranks.DEVICE).manual_seed(spec.seed * 4096 + 64 * data + microbatch)
    x = torch.randn(rows_of(spec, data, microbatch), IN, generator=generator)
    return x.to(spec.parameters)


def total_rows(spec):
    return sum(rows_of(spec, d, m) for d in range(spec.data) for m in range(spec.microbatches))


def narrow(spec):
    wanted = spec.dtype == "autocast"
    return torch.autocast(ranks.DEVICE.type, torch.bfloat16) if wanted else contextlib.nullcontext()


def share(spec, model, data, microbatch, **arguments):
    """Return what this data rank's microbatch adds to the loss of the whole batch."""
    with narrow(spec):
        out = model(batch(spec, data, microbatch), **arguments)
        each = out.float().square() if spec.dtype in ("autocast", "bf16", "mixed") else out.square()
    if spec.options.get("counts"):
        return each.flatten(1).mean(1).sum() / total_rows(spec)
    return each.mean() / (spec.data * spec.microbatches)


def uses_spare(spec, data, microbatch):
    return spec.options.get("spare") != "some" or (data + microbatch) % 2 == 0


def arguments(spec, data, microbatch):
    return {"spare": uses_spare(spec, data, microbatch)} if spec.options.get("spare") else {}


def whole(spec):
    """Return name -> the gradient of the whole batch's loss, from one process without a wrapper; addends are in the
    job's dtype and of its size, their sum in f64.
    """
    model, sums = make(spec), {}
    if spec.dtype == "mixed":  # what fully_shard does to parameters and inputs because of a policy's dtype
        model.bfloat16()
        model.register_forward_pre_hook(lambda module, inputs: tuple(x.bfloat16() for x in inputs))
    for data in range(spec.data):
        for m in range(spec.microbatches):
            (share(spec, model, data, m, **arguments(spec, data, m)) / spec.factor).backward()
            for name, p in model.named_parameters():
                if p.grad is not None:
                    gradient = (p.grad.to_dense() if p.grad.is_sparse else p.grad).double() * spec.factor
                    sums[name] = sums[name] + gradient if name in sums else gradient
                    p.grad = None
    return sums
