"""Kinds of training jobs as people have them: kinds.tsv lists them, with where each is met. A kind draws its job by a
seed; what a job needs in order to be drawn, wrapped and held to one process is here.
"""

import contextlib
import copy
import csv
import dataclasses
import importlib.metadata
import importlib.util
import pathlib
import random
import typing

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import addend
import ranks

TABLE = pathlib.Path(__file__).with_name("kinds.tsv")
IN, HIDDEN, OUT, WORDS = 24, 64, 48, 56
KINDS = {}
WRAPPERS = ("ddp", "fsdp2", "hand", "hooked")


@dataclasses.dataclass
class Kind:
    name: str
    make: typing.Callable  # make(draw) -> Job, or the arguments of check
    worlds: tuple  # numbers of ranks, one of which is drawn
    truth: object = None  # of a wrong job: what is true of its mistake
    needs: tuple = ()  # packages
    under: str = "watch"  # or "check"
    says: tuple = ()  # of declarations and calls, see `watched`

    @property
    def missing(self):
        return [need for need in self.needs if not installed(need)]


def installed(need):
    """Return whether a package is here; `need`: its name, or `name>=major.minor`."""
    name, _, least = need.partition(">=")
    if importlib.util.find_spec(name) is None:
        return False
    own = importlib.metadata.version(name).split(".")[:2]
    return not least or list(map(int, own)) >= list(map(int, least.split(".")))


@dataclasses.dataclass
class Truth:
    """What a report may say of a mistake without being false."""

    causes: tuple = ()  # (kind, axes, factor, place)...; None: any
    silent: str = ""  # why it cannot be seen, as the documentation has it
    equal: bool = False  # one process has the same gradients: the mistake is not in them
    place: str = ""  # of check: where it begins, and in which module
    module: typing.Optional[str] = None


def truth(*causes, **more):
    """Return a Truth; a cause is written `kind:axes:factor:place`, of which all but the kind may be missing."""
    read = []
    for cause in causes:
        kind, axes, factor, place = (cause.split(":") + ["", "", ""])[:4]
        addend.explain(kind)  # raises if no report has this kind
        read.append((kind, axes or None, float(factor) if factor else None, place or None))
    return Truth(tuple(read), **more)


@dataclasses.dataclass
class Job:
    model: nn.Module
    step: typing.Callable  # step(watch): all microbatches, up to synchronised gradients
    whole: typing.Callable  # () -> name -> gradient of the whole batch, from one process
    watch: dict = dataclasses.field(default_factory=dict)
    gradients: typing.Callable = None  # name -> the optimizer's gradient; None: the model's gradients
    warm: int = 0  # steps before the one that is watched
    after: typing.Callable = None  # called with the watch inside it, after the step
    affected: typing.Optional[set] = None  # names of the parameters that the mistake makes wrong; None: all
    bound: float = 1e-4
    report: typing.Callable = None  # report(): runs the job with its own watch; in place of `step`
    clear: typing.Callable = None  # in place of zero_grad() between steps


def watched(*worlds, truth=None, needs=(), says=()):
    """Register a kind of job.

    `says` has what a report must say beside its verdict, and with a wrong job that has it, or a right one, nothing else
    may be contradicted or found: `holds NAME AXIS=TYPE`, `contradicted NAME AXIS=TYPE`, `open NAME AXIS=TYPE` of a
    declaration (of a dtype: `NAME f32`), `declares` in place of the first word if it holds or nothing tells, `call
    FINDING NAME` of a collective; names as patterns, `*` for no parameter. `refused WORD...` of a job that is refused
    before its step.
    """

    def keep(make):
        name = make.__name__
        assert name not in KINDS, name
        KINDS[name] = Kind(name, make, worlds, truth, needs, says=says)
        return make

    return keep


def checked(name, make, truth=None, needs=()):
    assert name not in KINDS, name
    KINDS[name] = Kind(name, make, (0,), truth, needs, "check")


def table():
    """Return name -> (watch or check, right or wrong, where people meet it)."""
    with open(TABLE, encoding="utf-8", newline="") as file:
        return {row[0]: tuple(row[1:]) for row in csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE)}


@dataclasses.dataclass
class Drawn:
    """A kind with a seed; each rank draws the same from it."""

    kind: str
    seed: int

    @property
    def world(self):
        return random.Random(f"{self.seed} {self.kind} ranks").choice(KINDS[self.kind].worlds)

    def build(self):
        torch.manual_seed(self.seed)
        return KINDS[self.kind].make(Draw(self.kind, self.seed))

    def __str__(self):
        return f"--kind {self.kind} --seed {self.seed}"


class Draw(random.Random):
    def __init__(self, name, seed):
        super().__init__(f"{seed} {name}")
        self.base = self.randrange(1 << 20)
        self.rank = dist.get_rank() if dist.is_initialized() else 0
        self.world = dist.get_world_size() if dist.is_initialized() else 1
        self.device = ranks.DEVICE

    def one_of(self, *choices):
        return self.choice(choices)

    def generator(self, data, m=0):
        return torch.Generator(self.device).manual_seed(self.base * 4096 + 64 * data + m)

    def rows(self, data, m=0):
        """Return how many rows a rank has in a microbatch, where ranks differ."""
        return 2 + (5 * data + 3 * m + self.base) % 9

    def batch(self, data, m=0, rows=6):
        generator = self.generator(data, m)
        return torch.randn(rows, IN, generator=generator), torch.randn(rows, OUT, generator=generator)

    def tokens(self, data, m=0, rows=3, length=8, words=WORDS):
        """Return tokens and labels; a third of the labels, and in each rank another number, are -100."""
        generator = self.generator(data, m)
        tokens = torch.randint(words, (rows, length), generator=generator)
        labels = torch.randint(words, (rows, length), generator=generator)
        labels[torch.rand(rows, length, generator=generator) < 0.15 + 0.12 * ((data + m) % 4)] = -100
        labels[0, -1] = 3
        return tokens, labels

    def seeded(self, data, m=0):
        """Return a context in which random numbers are those of a rank and microbatch."""

        @contextlib.contextmanager
        def inside():
            with torch.random.fork_rng():
                torch.manual_seed(self.base + 64 * data + m)
                yield

        return inside()


# -- models


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(IN), nn.Linear(IN, HIDDEN), nn.Linear(HIDDEN, OUT)

    def forward(self, x):
        return self.down(torch.tanh(self.up(self.norm(x))))


class Words(nn.Module):
    """A language model of two attention blocks."""

    def __init__(self, tied=False, width=16, dropout=0.0):
        super().__init__()
        self.embed = nn.Embedding(WORDS, width)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 2, 2 * width, dropout=dropout, batch_first=True) for _ in range(2)
        )
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, WORDS, bias=False)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def square(model, batch):
    x, y = batch
    return (model(x) - y).square().mean()


def token_sum(model, batch, **more):
    tokens, labels = batch
    return F.cross_entropy(model(tokens).flatten(0, 1), labels.flatten(), reduction="sum", **more)


# -- one process


def alone(model, shares):
    """Return name -> the sum of the gradients of `shares`, functions that give the model's loss."""
    for share in shares:
        loss = share(model)
        if loss is not None:
            loss.backward()
    return gradients_of(model)


def gradients_of(model):
    found = {}
    for name, p in model.named_parameters():
        if p.grad is not None:
            found[name] = (p.grad.to_dense() if p.grad.is_sparse else p.grad).detach().double().clone()
    return found


# -- wrappers


def mesh_of(names, *sizes):
    return init_device_mesh(ranks.DEVICE.type, sizes, mesh_dim_names=tuple(names.split()))


def all_reduced(parameters, divisor=1, group=None):
    """Sum gradients by hand; a rank without one sums zeros."""
    for p in parameters:
        if not p.requires_grad:
            continue
        p.grad = torch.zeros_like(p) if p.grad is None else p.grad.to_dense() if p.grad.is_sparse else p.grad
        dist.all_reduce(p.grad, group=group)
        p.grad /= divisor


@dataclasses.dataclass
class Wrapped:
    """A model in a wrapper: what the loss's share is multiplied by, what ends a step, what the watch is given."""

    model: nn.Module
    scale: float
    finish: typing.Callable = lambda: None
    watch: dict = dataclasses.field(default_factory=dict)
    sync: typing.Callable = None  # sync(last): a context around each microbatch
    gradients: typing.Callable = None


def wrap(draw, model, kinds=WRAPPERS, microbatches=1, **more):
    kind = draw.choice(kinds)
    return {"ddp": in_ddp, "fsdp2": in_fsdp2, "hand": by_hand, "hooked": in_hooks, "fsdp1": in_fsdp1}[kind](
        draw, model, microbatches, **more
    )


def in_ddp(draw, model, microbatches=1, **more):
    model = DistributedDataParallel(model, **more)
    early = microbatches > 1 and draw.random() < 0.6

    def sync(last):
        return model.no_sync() if early and not last else contextlib.nullcontext()

    return Wrapped(model, draw.world, sync=sync)


def in_fsdp2(draw, model, microbatches=1, layers=None, **more):
    from torch.distributed.fsdp import fully_shard

    mesh = mesh_of("dp", draw.world)
    for layer in layers(model) if layers else ():
        fully_shard(layer, mesh=mesh, **more)
    fully_shard(model, mesh=mesh, **more)
    early = microbatches > 1 and draw.random() < 0.6

    def sync(last):
        if early:
            model.set_requires_gradient_sync(last)
        return contextlib.nullcontext()

    return Wrapped(model, draw.world, sync=sync)


def in_fsdp1(draw, model, microbatches=1, **more):
    from torch.distributed.fsdp import FullyShardedDataParallel

    model = FullyShardedDataParallel(model, use_orig_params=True, device_id=draw.device, **more)

    def gradients():
        with FullyShardedDataParallel.summon_full_params(model, with_grads=True):
            return {name: None if p.grad is None else p.grad.clone() for name, p in model.named_parameters()}

    return Wrapped(model, draw.world, gradients=gradients)


def by_hand(draw, model, microbatches=1, **more):
    averages = draw.random() < 0.5
    divisor = draw.world if averages else 1
    watch = {"expect": 1 / draw.world} if averages else {}
    return Wrapped(model, divisor, lambda: all_reduced(model.parameters(), divisor), watch)


def in_hooks(draw, model, microbatches=1, **more):
    """Sum in hooks, once the last microbatch is accumulated."""
    at = [True]

    def reduce(p):
        if at[0]:
            dist.all_reduce(p.grad)

    for p in model.parameters():
        if p.requires_grad:
            p.register_post_accumulate_grad_hook(reduce)

    def sync(last):
        at[0] = last
        return contextlib.nullcontext()

    return Wrapped(model, 1, sync=sync)


def data_parallel(draw, model, share, microbatches=None, kinds=WRAPPERS, wrapped=None, **more):
    """Return a job in which each rank has its own data; `share(model, data, m)`: its loss, the mean of which over ranks
    and microbatches is wanted, or with `summed` the sum. `reference`: the model of one process, if it is no copy.
    """
    summed, reported, fields = more.pop("summed", False), more.pop("watch", {}), more.pop("fields", {})
    microbatches = microbatches or draw.randint(1, 3)
    parts = 1 if summed else microbatches * draw.world
    reference = more.pop("reference", None) or copy.deepcopy(model)
    wrapped = wrapped or wrap(draw, model, kinds, microbatches, **more)

    def step(watch):
        for m in range(microbatches):
            with wrapped.sync(m == microbatches - 1) if wrapped.sync else contextlib.nullcontext():
                (share(wrapped.model, draw.rank, m) * (wrapped.scale / parts)).backward()
        wrapped.finish()

    def whole():
        shares = [
            lambda one, r=r, m=m: share(one, r, m) / parts for r in range(draw.world) for m in range(microbatches)
        ]
        return alone(reference, shares)

    return Job(wrapped.model, step, whole, {**wrapped.watch, **reported}, wrapped.gradients, **fields)


def local_of(tensor):
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
