"""Right jobs whose parameters' types are declared: by spmd_types' annotations, DTensor's placements, fully_shard, plans
of libraries, dtypes. A report holds what is declared against the addends, and contradicts none of it here.
"""

import contextlib
import copy
import dataclasses
import fnmatch
import functools
import io
import tempfile
import typing

import kinds
import kinds_libraries
import kinds_parallel
import torch
import torch.distributed as dist
import torch.nn.functional as F
from kinds import Job, Words, data_parallel, mesh_of, token_sum, watched
from kinds_parallel import Decoder, SumOut, block_plan, shares_of
from kinds_right import Adapted, FusedNet
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import parallelize_module
from torch.nn.parallel import DistributedDataParallel

try:
    import spmd_types as spmd
except ImportError:  # its kinds are skipped
    spmd = None

WIDTH, HEADS, LENGTH = 16, 4, 8
SPMD = ("spmd_types",)
SHARDED_BY_SPMD = ("spmd_types", "torch>=2.15")  # from where fully_shard reads annotations


# -- a block that is cut over tp with spmd_types' collectives

CUT = {
    "q.weight": "S0",
    "k.weight": "S0",
    "scale": "S0",
    "o.weight": "S1",
    "up.weight": "S0",
    "up.bias": "S0",
    "down.weight": "S1",
}


def dtypes(x, sums=False):
    """Return the options by which a collective on bf16 adds in f32, in the forward or in the backward."""
    if x.dtype == torch.float32:
        return {}
    wide = {"op_dtype": torch.float32, "out_dtype": x.dtype}
    return wide if sums else {"backward_options": wide}


SHARED = ("pos.weight", "v.weight", "out_norm.weight")  # each rank of tp uses them for its own heads


class Block(nn.Module):
    """Attention and an MLP. All heads have one value head `v` and one part `pos` of their keys in common; `scale` has a
    number for each head.

    `way` says how the block is cut over tp: "plain", the same rows on all ranks outside of the products; "module", rows
    of a sequence are cut there and the module sums the gradients of what it uses there; "wrapper", cut as well, and
    somebody else sums them.
    """

    def __init__(self):
        super().__init__()
        self.norm, self.mlp_norm, self.out_norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH), nn.RMSNorm(WIDTH // HEADS)
        self.q, self.k = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.pos, self.v = (nn.Linear(WIDTH, WIDTH // HEADS, bias=False) for _ in range(2))
        self.scale, self.o = nn.Parameter(torch.randn(HEADS)), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 32), nn.Linear(32, WIDTH)
        for norm in self.norm, self.mlp_norm, self.out_norm:
            nn.init.normal_(norm.weight, 1, 0.2)
        self.tp, self.cp, self.way, self.act = None, None, "plain", torch.tanh

    def outside(self, p):
        """A parameter that is used where rows are cut."""
        cut = self.tp is not None and self.way == "module"
        return spmd.invariant_to_replicate(p, self.tp, **dtypes(p)) if cut else p

    def normed(self, norm, x):
        return F.layer_norm(x, (WIDTH,), self.outside(norm.weight), self.outside(norm.bias))

    def enter(self, x):
        if self.tp is None:
            return x
        if self.way == "plain":
            return spmd.invariant_to_replicate(x, self.tp, **dtypes(x))
        return spmd.all_gather(x, self.tp, src=spmd.S(1), dst=spmd.R, **dtypes(x))

    def leave(self, x):
        if self.tp is None:
            return x
        if self.way == "plain":
            return spmd.all_reduce(x, self.tp, src=spmd.V, dst=spmd.I, **dtypes(x, True))
        return spmd.reduce_scatter(x, self.tp, src=spmd.V, dst=spmd.S(1), **dtypes(x, True))

    def attend(self, x):
        """`x` has shape [rows, length, WIDTH]; of the whole length a rank of cp has its part."""
        heads = lambda y: y.unflatten(-1, (-1, WIDTH // HEADS))  # noqa: E731
        q, k = heads(self.q(x)), heads(self.k(x)) + self.pos(x)[:, :, None]
        v = self.v(x)[:, :, None]
        first = 0
        if self.cp is not None:
            k, v = (spmd.all_gather(y, self.cp, src=spmd.S(1), dst=spmd.R) for y in (k, v))
            first = dist.get_rank(self.cp) * x.shape[1]
        scores = torch.einsum("rqhc,rkhc->rhqk", q, k) / 2
        ahead = torch.arange(k.shape[1])[None] > first + torch.arange(x.shape[1])[:, None]
        shares = scores.masked_fill(ahead, -1e4).softmax(-1)
        y = torch.einsum("rhqk,rkhc->rqhc", shares, v.expand(*v.shape[:2], q.shape[2], -1))
        return self.out_norm(y) * self.scale[:, None]

    def forward(self, x):
        y = self.attend(self.enter(self.normed(self.norm, x))).flatten(2)
        x = x + self.leave(F.linear(y, self.o.weight)) + self.outside(self.o.bias)
        y = self.act(self.up(self.enter(self.normed(self.mlp_norm, x))))
        return x + self.leave(F.linear(y, self.down.weight)) + self.outside(self.down.bias)


@functools.lru_cache(None)
def mesh_for(**axes):
    """Return one mesh for all jobs of a process: fully_shard wants the very mesh that DTensor has in its caches."""
    return mesh_of(" ".join(axes), *axes.values())


def types_of(name, way):
    """Return a parameter's type along tp as the block uses it."""
    name = name.split(".", 1)[1]
    return CUT.get(name) or ("R" if name in SHARED or way == "wrapper" else "I")


def spmd_type(name):
    return spmd.S(int(name[1:])) if name[0] == "S" else {"R": spmd.R, "I": spmd.I, "V": spmd.V, "P": spmd.P}[name]


def annotate(p, groups, types):
    """Annotate `p` with axis -> type; `groups` has each axis's process group."""
    spmd.assert_type(p, {groups[axis]: spmd_type(type_) for axis, type_ in types.items()})


def replace(model, name, p):
    module, _, last = name.rpartition(".")
    setattr(model.get_submodule(module), last, p)


@dataclasses.dataclass
class Cut:
    """A job of blocks on a mesh: which axes there are, and who sums over them."""

    axes: dict  # name -> size, outer first; beside tp and cp they are data-parallel
    way: str = "plain"
    hold: str = "fsdp"  # or "hand", "ddp"
    declared: dict = dataclasses.field(default_factory=dict)  # pattern -> type along tp, where it is not the true one
    true: dict = dataclasses.field(default_factory=dict)  # the same of what is cut, where the block has it otherwise
    on: dict = dataclasses.field(default_factory=dict)  # axis -> type of all parameters, beside tp; default: R
    policy: typing.Optional[MixedPrecisionPolicy] = None
    dtype: torch.dtype = torch.float32
    count: int = 1
    sums: typing.Callable = None  # sums(name, axis): whether a sum by hand is made, in place of what is right
    fields: dict = dataclasses.field(default_factory=dict)  # of the Job
    watch: dict = dataclasses.field(default_factory=dict)
    blocks: int = 1

    def build(self, draw):
        return _Built(self, draw).job()


class _Built:
    def __init__(self, cut, draw, block=Block):
        self.cut, self.draw, self.factor, self.checked, self.also = cut, draw, None, False, None
        self.mesh = mesh_for(**cut.axes)
        self.groups = {axis: self.mesh.get_group(axis) for axis in cut.axes}
        self.size, self.at = dict(cut.axes), {axis: self.mesh.get_local_rank(axis) for axis in cut.axes}
        self.data_axes = [axis for axis in cut.axes if axis not in ("tp", "cp")]
        self.model = nn.Sequential(*(block() for _ in range(cut.blocks))).to(cut.dtype)
        self.reference = copy.deepcopy(self.model)
        self.places = 1
        for axis in self.data_axes:
            self.places *= self.size[axis]
        self.rows = 2 + draw.base % 2
        self.length = LENGTH * self.size.get("cp", 1)
        self.total = self.rows * self.length * WIDTH * cut.count * self.places

    def true_type(self, name):
        return first_match(self.cut.true, name) or types_of(name, self.cut.way)

    def split(self):
        """Cut the model's parameters over tp, and annotate them."""
        for block in self.model:
            block.tp, block.cp, block.way = self.groups.get("tp"), self.groups.get("cp"), self.cut.way
        for name, p in list(self.model.named_parameters()):
            value, types = p.detach(), {axis: self.cut.on.get(axis, "R") for axis in self.size if axis != "tp"}
            if "tp" in self.size:
                true = self.true_type(name)
                if true[0] == "S":
                    value = value.chunk(self.size["tp"], int(true[1:]))[self.at["tp"]].clone()
                types["tp"] = first_match(self.cut.declared, name) or true
            p = nn.Parameter(value)
            annotate(p, self.groups, {axis: type_ for axis, type_ in types.items() if type_})
            if self.also:
                self.also(p)
            replace(self.model, name, p)

    def wrap(self):
        """Return (the model, the factor of its loss)."""
        cut = self.cut
        if cut.hold == "ddp":
            group = self.groups[self.data_axes[0]] if len(self.size) > 1 else None
            return DistributedDataParallel(self.model, process_group=group), self.places
        if cut.hold == "hand":
            return self.model, 1
        from torch.distributed.fsdp import DataParallelMeshDims

        replicas = tuple(axis for axis in self.data_axes if axis == "dp_replicate")
        shards = tuple(axis for axis in self.size if axis != "tp" and axis not in replicas)
        dims = DataParallelMeshDims(shard=shards if len(shards) > 1 else shards[0], replicate=replicas or None)
        more = {"mesh": self.mesh, "dp_mesh_dims": dims, **({"mp_policy": cut.policy} if cut.policy else {})}
        for block in self.model if self.draw.random() < 0.5 else ():
            fully_shard(block, **more)
        return fully_shard(self.model, **more), self.places * self.size.get("cp", 1)

    def batch(self, data, m):
        generator = self.draw.generator(data, m)
        shape = (self.rows, self.length, WIDTH)
        return torch.randn(shape, generator=generator), torch.randn(shape, generator=generator)

    def part(self, x):
        """Cut the length over cp, and over tp where rows are cut."""
        for axis in ("cp", "tp") if self.cut.way != "plain" else ("cp",):
            if axis in self.size:
                x = x.chunk(self.size[axis], 1)[self.at[axis]]
        return x.contiguous()

    def loss(self, model, batch):
        x, y = batch
        return (model(x.to(self.cut.dtype)).float() - y).square().sum() / self.total

    def sum_by_hand(self):
        for name, p in self.model.named_parameters():
            for axis in self.size if self.cut.hold == "hand" else ("tp", "cp"):
                right = self.true_type(name.removeprefix("module.")) == "R" if axis == "tp" else True
                right = right and axis in self.size
                if self.cut.sums(name, axis) if self.cut.sums else right:
                    dist.all_reduce(p.grad, group=self.groups[axis])

    def gradients(self):
        found = {}
        for name, p in self.model.named_parameters():
            grad, true = p.grad, self.true_type(name.removeprefix("module."))
            if isinstance(grad, DTensor) and first_match(self.cut.declared, name):
                grad = grad.full_tensor()
            if grad is not None and "tp" in self.size and true[0] == "S" and not isinstance(grad, DTensor):
                grad = gathered(grad, self.groups["tp"], int(true[1:]))
            found[name] = grad
        return found

    @contextlib.contextmanager
    def typecheck(self, batch):
        import spmd_types.checker

        tp = spmd.I if self.cut.way == "plain" else spmd.V
        with spmd.set_current_mesh(self.mesh), spmd_types.checker.typecheck():
            for x in batch:
                spmd.assert_type(x, {self.groups["dp"]: spmd.V, self.groups["tp"]: tp})
            yield

    def summed(self, loss):
        """The loss, which is a sum over ranks that have other rows."""
        for axis in ("dp", "tp") if self.cut.way != "plain" else ("dp",):
            loss = spmd.reinterpret(loss, self.groups[axis], src=spmd.V, dst=spmd.P) if self.checked else loss
        return loss

    def job(self):
        cut = self.cut
        self.split()
        self.model, factor = self.wrap()
        data = 0
        for axis in self.data_axes:
            data = data * self.size[axis] + self.at[axis]

        def step(watch):
            for m in range(cut.count):
                batch = tuple(map(self.part, self.batch(data, m)))
                with self.typecheck(batch) if self.checked else contextlib.nullcontext():
                    loss = self.loss(self.model, batch) * (self.factor or factor)
                    self.summed(loss).backward()
            if cut.hold != "fsdp":
                self.sum_by_hand()

        def whole():
            shares = [lambda one, r=r, m=m: self.loss(one, self.batch(r, m)) for r in range(self.places)
                      for m in range(cut.count)]  # fmt: skip
            return kinds.alone(self.reference, shares)

        watch = {"mesh": self.mesh} if cut.hold != "fsdp" else {}
        return Job(self.model, step, whole, {**watch, **cut.watch}, self.gradients, **cut.fields)


def first_match(patterns, name):
    return next((value for pattern, value in patterns.items() if fnmatch.fnmatch(name, pattern)), None)


def gathered(x, group, dim):
    parts = [torch.empty_like(x) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, x.contiguous(), group=group)
    return torch.cat(parts, dim)


# -- DTensor and fully_shard, without annotations


def words_share(draw):
    return lambda model, data, m: token_sum(model, draw.tokens(data, m)) / 20


def words_job(draw, mesh, count=1, dtype=torch.float32, late=False, model=None, **more):
    """A language model in fully_shard over a whole mesh; `late`: reduced in the last microbatch alone."""
    model = (model or Words()).to(dtype)
    reference = copy.deepcopy(model)
    for block in model.blocks:
        fully_shard(block, mesh=mesh, **more)
    model = fully_shard(model, mesh=mesh, **more)

    def step(watch):
        for m in range(count):
            if late:
                model.set_requires_gradient_sync(m == count - 1)
            (share(model, draw.rank, m) / count).backward()

    share = words_share(draw)
    places = [(r, m) for r in range(draw.world) for m in range(count)]
    narrow = dtype != torch.float32 or more
    return Job(
        model,
        step,
        lambda: kinds.alone(reference, shares_of(share, places, len(places))),
        bound=0.3 if narrow else 1e-4,
    )


@watched(2, 3, says=("holds embed.weight dp=R",))
def declared_fully_shard(draw):
    return words_job(draw, mesh_for(dp=draw.world))


@watched(4, says=("holds embed.weight dp_replicate=R", "holds embed.weight dp_shard=R"))
def declared_hsdp(draw):
    return words_job(draw, mesh_for(dp_replicate=2, dp_shard=2), draw.randint(1, 2))


def decoder_job(draw, axes, sequence, mesh_of_data):
    """A decoder whose blocks are DTensors over tp."""
    mesh = mesh_for(**axes)
    model = Decoder()
    reference = copy.deepcopy(model)
    plan = block_plan(model, sequence)
    kept = Shard(1) if sequence else Replicate()
    plan["embed"] = kinds_parallel.RowwiseParallel(input_layouts=Replicate(), output_layouts=kept)
    plan["head"] = kinds_parallel.ColwiseParallel(input_layouts=kept, output_layouts=Replicate())
    if sequence:
        plan["norm"] = kinds_parallel.SequenceParallel()
    parallelize_module(model, mesh["tp"], plan)
    replicas = draw.world // axes["tp"]
    if mesh_of_data:
        fully_shard(model, mesh=mesh[mesh_of_data])
    data = draw.rank // axes["tp"]

    def loss(one, r):
        tokens, labels = draw.tokens(r)
        return F.cross_entropy(one(tokens).flatten(0, 1), labels.flatten())

    places = [(r,) for r in range(replicas)]
    return Job(
        model, lambda watch: loss(model, data).backward(),
        lambda: kinds.alone(reference, shares_of(loss, places, replicas)),
    )  # fmt: skip


@watched(2, says=("declares blocks.0.q.weight tp=S0", "declares blocks.0.o.weight tp=S1"))
def declared_tensor_parallel(draw):
    return decoder_job(draw, {"tp": 2}, False, None)


@watched(2, 4, says=("declares blocks.0.norm1.weight tp=R",))
def declared_sequence_parallel(draw):
    """Gradients of norms are DTensors that are Partial."""
    return decoder_job(draw, {"dp": draw.world // 2, "tp": 2}, True, "dp" if draw.world == 4 else None)


@watched(8, says=("declares blocks.0.q.weight tp=S0", "holds blocks.0.q.weight dp_replicate=R"))
def declared_sequence_parallel_hsdp(draw):
    axes = {"dp_replicate": 2, "dp_shard": 2, "tp": 2}
    return decoder_job(draw, axes, draw.random() < 0.7, ("dp_replicate", "dp_shard"))


@watched(2, 3, 4, says=("declares embed.weight f32",))
def declared_reduce_dtype(draw):
    """Parameters in bf16, sums in f32: the usual policy."""
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    return words_job(draw, mesh_for(dp=draw.world), mp_policy=policy, dtype=draw.one_of(torch.bfloat16, torch.float32))


@watched(2, 3, 4)
def declared_reduce_dtype_by_rule(draw):
    """reduce_dtype is left out; PyTorch 2.15 sums in the parameters' own dtype."""
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    return words_job(draw, mesh_for(dp=draw.world), mp_policy=policy, dtype=draw.one_of(torch.bfloat16, torch.float32))


def rows_share(draw):
    return lambda model, data, m: (
        (model(draw.batch(data, m)[0].bfloat16()).float() - draw.batch(data, m)[1]).square().mean()
    )


@watched(2, 3, 4, needs=("torch>=2.15",), says=("declares up.weight f32",))
def declared_grad_dtype(draw):
    """Gradients in f32 of parameters in bf16, by Tensor.grad_dtype; summed by hand or by fully_shard."""
    return wide_gradients(draw, draw.one_of("fsdp2", "hand"))


def wide_gradients(draw, kind, hook=None):
    model = kinds.Net().bfloat16()
    for p in model.parameters():
        p.grad_dtype = torch.float32
    reference = copy.deepcopy(model)
    if kind == "hand":
        wrapped = kinds.Wrapped(model, 1, lambda: [(hook or kinds.all_reduced)([p]) for p in model.parameters()])
    else:
        wrapped = kinds.in_fsdp2(draw, model)
    return data_parallel(draw, model, rows_share(draw), 1, wrapped=wrapped, reference=reference, fields={"bound": 0.3})


@watched(2, 3)
def declared_no_sync(draw):
    """Three microbatches are added up in f32 before they are reduced."""
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    return words_job(draw, mesh_for(dp=draw.world), 3, late=True, mp_policy=policy)


@watched(2, 3)
def declared_frozen_base(draw):
    """Adapters on a frozen model, in fully_shard."""
    model = kinds.Net().requires_grad_(False)
    model.up, model.down = Adapted(model.up, True), Adapted(model.down, True)
    share = lambda model, data, m: kinds.square(model, draw.batch(data, m))  # noqa: E731
    return data_parallel(draw, model, share, kinds=("fsdp2",))


class Routed(nn.Module):
    """A mixture of experts, which are sharded over ep; each rank of ep has all scores and uses those of its experts.
    `summed`: the router's backward says that its gradient is Partial.
    """

    EXPERTS = 4

    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(kinds.IN, self.EXPERTS, bias=False)
        self.experts = nn.Parameter(torch.randn(self.EXPERTS, kinds.IN, kinds.OUT) / 3)
        self.mesh, self.summed = None, True

    def forward(self, x):
        if self.mesh is None:
            return torch.einsum("re,eri->ri", torch.softmax(self.gate(x), -1), torch.tanh(x @ self.experts))
        own, weight = self.experts.to_local(), self.gate.weight
        weight = weight.to_local(grad_placements=[Partial()]) if self.summed else weight.to_local()
        first = self.mesh.get_local_rank() * len(own)
        scores = torch.softmax(F.linear(x, weight), -1)[:, first : first + len(own)]
        part = torch.einsum("re,eri->ri", scores, torch.tanh(x @ own))
        return SumOut.apply(part, self.mesh.get_group())


def routed(draw, summed=True, **fields):
    mesh = mesh_for(dp=2, ep=2)
    model = Routed()
    reference = copy.deepcopy(model)
    model.mesh, model.summed = mesh["ep"], summed
    model.gate.weight = nn.Parameter(distribute_tensor(model.gate.weight.data, mesh["ep"], [Replicate()]))
    model.experts = nn.Parameter(distribute_tensor(model.experts.data, mesh["ep"], [Shard(0)]))
    fully_shard(model, mesh=mesh["dp"])
    loss = lambda one, r: kinds.square(one, draw.batch(r))  # noqa: E731
    return Job(
        model, lambda watch: loss(model, mesh.get_local_rank("dp")).backward(),
        lambda: kinds.alone(reference, shares_of(loss, [(0,), (1,)], 2)), **fields,
    )  # fmt: skip


@watched(4, says=("holds gate.weight ep=R", "declares experts ep=S0"))
def declared_router(draw):
    return routed(draw)


# -- annotations that fully_shard reads


def drawn(draw):
    return {"count": draw.randint(1, 2), "blocks": draw.randint(1, 2)}


@watched(
    4, needs=SHARDED_BY_SPMD, says=("holds 0.norm.weight tp=I", "holds 0.v.weight tp=R", "holds 0.up.weight tp=S0")
)
def declared_invariant_norms(draw):
    return Cut({"dp": 2, "tp": 2}, **drawn(draw)).build(draw)


@watched(4, needs=SHARDED_BY_SPMD, says=("holds 0.norm.weight tp=R", "holds 0.down.bias tp=R"))
def declared_replicated_norms(draw):
    """Sequence parallelism: fully_shard sums the norms' gradients over tp."""
    return Cut({"dp": 2, "tp": 2}, way="wrapper", **drawn(draw)).build(draw)


@watched(4, needs=SHARDED_BY_SPMD, says=("holds 0.norm.weight tp=R", "declares 0.up.weight f32"))
def declared_replicated_norms_in_bf16(draw):
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    more = {"dtype": draw.one_of(torch.bfloat16, torch.float32), "policy": policy, "fields": {"bound": 0.3}}
    return Cut({"dp": 2, "tp": 2}, way="wrapper", **more).build(draw)


@watched(8, needs=SHARDED_BY_SPMD, says=("holds 0.norm.weight tp=*", "holds 0.up.weight tp=S0"))
def declared_hsdp_beside_tp(draw):
    axes = {"dp_replicate": 2, "dp_shard": 2, "tp": 2}
    return Cut(axes, way=draw.one_of("plain", "wrapper", "module")).build(draw)


@watched(4, needs=SHARDED_BY_SPMD, says=("holds 0.norm.weight dp_shard=R", "holds 0.norm.weight cp=R"))
def declared_context_parallel_by_fully_shard(draw):
    """One group for fully_shard out of two axes, which an annotation names as one."""
    return folded(draw, {"dp_shard": 2, "cp": 2})


def folded(draw, axes):
    cut = Cut(axes, on=dict.fromkeys(axes, ""), **drawn(draw))
    built = _Built(cut, draw)
    whole = flat_mesh(built.mesh, tuple(axes), "dp").get_group()
    built.also = lambda p: spmd.assert_type(p, {whole: spmd.R})
    return built.job()


@functools.lru_cache(None)
def flat_mesh(mesh, axes, name):
    return mesh[axes]._flatten(name)


class Experts(nn.Module):
    """A router and experts; row i goes to expert i mod (number of experts). `ep` has the group that exchanges rows."""

    COUNT = 4

    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(WIDTH, self.COUNT, bias=False)
        self.experts = Bank(self.COUNT)
        self.ep = None

    def forward(self, x):
        scores = torch.softmax(self.gate(x), -1)
        own = scores.gather(-1, (torch.arange(len(x)) % self.COUNT)[:, None])
        slots = x.view(-1, self.COUNT, WIDTH).transpose(0, 1)  # shape [experts, rows, WIDTH]
        out = self.experts(slots) if self.ep is None else self.elsewhere(slots)
        return x + out.transpose(0, 1).reshape(x.shape) * own

    def elsewhere(self, slots):
        ranks, rows = dist.get_world_size(self.ep), slots.shape[1]
        sent = Exchange.apply(slots, self.ep).unflatten(0, (ranks, -1))  # shape [ranks, own experts, rows, WIDTH]
        out = self.experts(sent.transpose(0, 1).flatten(1, 2)).unflatten(1, (ranks, rows)).transpose(0, 1)
        return Exchange.apply(out.flatten(0, 1), self.ep)


class Bank(nn.Module):
    def __init__(self, count):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(count, WIDTH, WIDTH) / 3)

    def forward(self, slots):
        return torch.tanh(slots @ self.weight)


class Exchange(torch.autograd.Function):
    """An exchange of dimension 0, equal parts for each rank; the backward sends gradients back."""

    @staticmethod
    def forward(context, x, group):
        context.group, x = group, x.contiguous()
        out = torch.empty_like(x)
        dist.all_to_all_single(out, x, group=group)
        return out

    @staticmethod
    def backward(context, gradient):
        return Exchange.apply(gradient, context.group), None


def experts_batch(draw, r):
    generator = draw.generator(r)
    return torch.randn(8, WIDTH, generator=generator), torch.randn(8, WIDTH, generator=generator)


def experts_job(draw, mesh, ep, types, finish=None, wrap=None, factor=1.0, watch=None, model=None):
    """Experts over the group `ep`; `types`: axis -> type of experts and of the rest, in this order."""
    model = Experts()
    reference = copy.deepcopy(model)
    model.ep = ep
    own = model.experts.weight.detach().chunk(dist.get_world_size(ep))[dist.get_rank(ep)].clone()
    model.experts.weight = nn.Parameter(own)
    for name, p in model.named_parameters():
        declared = types["experts"] if name == "experts.weight" else types["rest"]
        spmd.assert_type(p, declared)
    if wrap:
        wrap(model)
    loss = lambda one, r: kinds.square(one, experts_batch(draw, r)) / draw.world  # noqa: E731

    def step(watch):
        (loss(model, draw.rank) * factor).backward()
        if finish:
            finish(model)

    def gradients():
        weight = model.experts.weight.grad
        weight = weight if isinstance(weight, DTensor) else gathered(weight, ep, 0)
        return {"experts.weight": weight, "gate.weight": model.gate.weight.grad}

    whole = lambda: kinds.alone(reference, shares_of(loss, [(r,) for r in range(draw.world)]))  # noqa: E731
    return Job(model, step, whole, watch or {}, gradients)


@watched(4, needs=SHARDED_BY_SPMD, says=("holds experts.weight ep=S0", "holds gate.weight ep=R"))
def declared_experts_on_a_mesh_of_their_own(draw):
    """Experts are fully_shard-ed over the ranks that share them, the rest over all; ranks that exchange rows are a part
    of the data-parallel ones."""
    from torch.distributed.fsdp import DataParallelMeshDims

    sparse, dense = mesh_for(efsdp=2, ep=2), mesh_for(dp=4)
    types = {
        "experts": {sparse.get_group("efsdp"): spmd.R, sparse.get_group("ep"): spmd.S(0)},
        "rest": {dense.get_group(): spmd.R},
    }

    def wrap(model):
        fully_shard(model.experts, mesh=sparse, dp_mesh_dims=DataParallelMeshDims(shard="efsdp"))
        fully_shard(model, mesh=dense, dp_mesh_dims=DataParallelMeshDims(shard="dp"))
        model.experts.set_force_sum_reduction_for_comms(True)  # gloo has no sum that multiplies
        model.experts.set_gradient_divide_factor(4)

    return experts_job(draw, sparse, sparse.get_group("ep"), types, None, wrap, 4, {"mesh": sparse, "expect": 0.25})


@watched(4, needs=SHARDED_BY_SPMD, says=("holds 0.v.weight tp=R", "holds 0.pos.weight tp=R"))
def declared_heads_in_common(draw):
    """Fewer value heads than ranks of tp: each rank has a copy, for other heads of the query."""
    return Cut({"dp": 2, "tp": 2}, way=draw.one_of("plain", "wrapper", "module"), **drawn(draw)).build(draw)


class Tied(nn.Module):
    """Blocks between an embedding and a head of one weight."""

    def __init__(self):
        super().__init__()
        self.embed, self.block, self.head = nn.Embedding(kinds.WORDS, WIDTH), Block(), None
        self.head = nn.Linear(WIDTH, kinds.WORDS, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        return self.head(self.block(self.embed(tokens)))


@watched(4, needs=SHARDED_BY_SPMD, says=("holds embed.weight tp=I", "holds block.v.weight tp=R"))
def declared_tied(draw):
    from torch.distributed.fsdp import DataParallelMeshDims

    mesh, model = mesh_for(dp=2, tp=2), Tied()
    reference = copy.deepcopy(model)
    groups = {axis: mesh.get_group(axis) for axis in ("dp", "tp")}
    model.block.tp = groups["tp"]
    for name, p in list(model.named_parameters()):
        inside = name.startswith("block.")
        true = types_of(name, "plain") if inside else "I"
        value = p.detach().chunk(2, int(true[1:]))[mesh.get_local_rank("tp")].clone() if true[0] == "S" else p.detach()
        own = nn.Parameter(value)
        annotate(own, groups, {"dp": "R", "tp": true})
        replace(model, name, own)
    model.head.weight = model.embed.weight
    fully_shard(model, mesh=mesh, dp_mesh_dims=DataParallelMeshDims(shard="dp"))
    share = words_share(draw)
    step = lambda watch: share(model, mesh.get_local_rank("dp"), 0).backward()  # noqa: E731
    return Job(model, step, lambda: kinds.alone(reference, shares_of(share, [(0, 0), (1, 0)], 2)))


@watched(4, needs=SHARDED_BY_SPMD, says=("holds 0.norm.weight tp=*", "holds 0.up.weight tp=S0"))
def declared_under_typecheck(draw):
    """The job runs under spmd_types' own checker."""
    cut = Cut({"dp": 2, "tp": 2}, way=draw.one_of("plain", "wrapper", "module"))
    built = _Built(cut, draw)
    built.checked = True
    return built.job()


@watched(4, needs=SHARDED_BY_SPMD, says=("holds 0.norm.weight tp=R",))
def declared_divided_by_tokens(draw):
    """Gradients are summed, and the loss is divided by a count of all ranks, which the watch is given."""
    cut = Cut({"dp": 2, "tp": 2}, way="wrapper")
    built = _Built(cut, draw)
    job = built.job()
    built.model.set_gradient_divide_factor(1.0)
    built.model.set_force_sum_reduction_for_comms(True)
    for module in built.model.modules():
        if hasattr(module, "set_gradient_divide_factor"):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
    built.factor = 1
    job.watch = {"expect": 1.0}
    return job


@watched(4, needs=SHARDED_BY_SPMD, says=("holds 0.norm.weight tp=I",))
def declared_compiled(draw):
    """The MLP's function is compiled."""
    job = Cut({"dp": 2, "tp": 2}).build(draw)
    for block in job.model.modules():
        if isinstance(block, Block):
            block.act = torch.compile(torch.tanh, backend="aot_eager")
    return job


# -- annotations on plain parameters, with sums by hand: the examples of spmd_types' guide


class Quick(nn.Module):
    """The quick start: a partial product over tp, its sum, and a square."""

    def __init__(self):
        super().__init__()
        self.weight, self.tp = nn.Parameter(torch.randn(WIDTH)), None

    def forward(self, parts):
        """`parts` has what each rank of tp adds."""
        if self.tp is None:
            return (parts * self.weight).sum(0).square()
        y = parts[dist.get_rank(self.tp)] * self.weight
        return spmd.all_reduce(y, self.tp, src=spmd.P, dst=spmd.R).square()


@watched(4, needs=SPMD, says=("holds weight dp=R", "holds weight tp=R"))
def declared_quick_start(draw):
    mesh, model = mesh_for(dp=2, tp=2), Quick()
    reference = copy.deepcopy(model)
    model.tp = mesh.get_group("tp")
    annotate(model.weight, {axis: mesh.get_group(axis) for axis in ("dp", "tp")}, {"dp": "R", "tp": "R"})
    batch = lambda r: torch.randn(2, WIDTH, generator=draw.generator(r))  # noqa: E731

    def step(watch):
        (model(batch(mesh.get_local_rank("dp"))).mean() / 2).backward()  # each rank of tp has the whole loss
        dist.all_reduce(model.weight.grad)

    loss = lambda one, r: one(batch(r)).mean()  # noqa: E731
    whole = lambda: kinds.alone(reference, shares_of(loss, [(0,), (1,)]))  # noqa: E731
    return Job(model, step, whole, {"mesh": mesh})


@watched(2, 3, needs=SPMD, says=("holds 0.norm.weight dp=R",))
def declared_data_parallel(draw):
    return Cut({"dp": draw.world}, hold="hand", **drawn(draw)).build(draw)


@watched(2, 4, needs=SPMD, says=("holds 0.norm.weight cp=R",))
def declared_context_parallel(draw):
    axes = {"dp": 2, "cp": 2} if draw.world == 4 else {"cp": 2}
    return Cut(axes, hold="hand", **drawn(draw)).build(draw)


class Gathered(nn.Module):
    """Shards that are gathered where they are used; the backward of the gather reduces and scatters."""

    def __init__(self):
        super().__init__()
        self.up, self.down, self.dp = (
            nn.Parameter(torch.randn(32, WIDTH) / 4),
            nn.Parameter(torch.randn(WIDTH, 32)),
            None,
        )

    def whole(self, p):
        return p if self.dp is None else spmd.all_gather(p, self.dp, src=spmd.S(0), dst=spmd.R)

    def forward(self, x):
        return F.linear(torch.tanh(F.linear(x, self.whole(self.up))), self.whole(self.down))


@watched(2, 4, needs=SPMD, says=("holds up dp=S0", "holds down dp=S0"))
def declared_shards_by_hand(draw):
    mesh, model = mesh_for(dp=draw.world), Gathered()
    reference = copy.deepcopy(model)
    model.dp = mesh.get_group()
    for name, p in list(model.named_parameters()):
        own = nn.Parameter(p.detach().chunk(draw.world)[draw.rank].clone())
        annotate(own, {"dp": model.dp}, {"dp": "S0"})
        setattr(model, name, own)
    loss = lambda one, r: kinds.square(one, experts_batch(draw, r)) / draw.world  # noqa: E731
    gradients = lambda: {n: gathered(p.grad, model.dp, 0) for n, p in model.named_parameters()}  # noqa: E731
    whole = lambda: kinds.alone(reference, shares_of(loss, [(r,) for r in range(draw.world)]))  # noqa: E731
    return Job(model, lambda watch: loss(model, draw.rank).backward(), whole, {"mesh": mesh}, gradients)


@watched(2, 4, needs=SPMD, says=("holds 0.norm.weight tp=I", "holds 0.v.weight tp=R"))
def declared_tensor_parallel_by_hand(draw):
    axes = {"dp": 2, "tp": 2} if draw.world == 4 else {"tp": 2}
    return Cut(axes, hold="hand", **drawn(draw)).build(draw)


class Delayed(Block):
    """All is replicated outside of the products: gradients there are summed at the end, not where they arise."""

    def enter(self, x):
        return x

    def leave(self, x):
        return x if self.tp is None else spmd.all_reduce(x, self.tp, src=spmd.V, dst=spmd.R)


@watched(2, needs=SPMD)
def declared_tensor_parallel_delayed(draw):
    """Each rank of tp has the whole loss divided by their number, and the bias behind the last product the same addend
    on all of them."""
    cut = Cut({"tp": 2}, hold="hand", true={"*.up.bias": "S0", "*.bias": "R", "*norm.*": "R"})
    built = _Built(cut, draw, Delayed)
    built.factor = 0.5
    return built.job()


@watched(2, 4, needs=SPMD, says=("holds 0.norm.weight tp=I",))
def declared_module_sums_cut_rows(draw):
    axes = {"dp": 2, "tp": 2} if draw.world == 4 else {"tp": 2}
    return Cut(axes, "module", "hand", **drawn(draw)).build(draw)


@watched(2, 4, needs=SPMD, says=("holds 0.norm.weight tp=R",))
def declared_wrapper_sums_cut_rows(draw):
    axes = {"dp": 2, "tp": 2} if draw.world == 4 else {"tp": 2}
    return Cut(axes, "wrapper", "hand", **drawn(draw)).build(draw)


def router_sums(model):
    dist.all_reduce(model.gate.weight.grad)


@watched(2, 4, needs=SPMD, says=("holds experts.weight ep=S0", "holds gate.weight ep=R"))
def declared_experts(draw):
    mesh = mesh_for(ep=draw.world)
    ep = mesh.get_group()
    types = {"experts": {ep: spmd.S(0)}, "rest": {ep: spmd.R}}
    return experts_job(draw, mesh, ep, types, router_sums, watch={"mesh": mesh})


class Together(nn.Module):
    def __init__(self):
        super().__init__()
        self.block, self.mixture = Block(), Experts()

    def forward(self, x):
        x = self.block(x)
        return self.mixture(x.flatten(0, 1)).view(x.shape)


@watched(8, needs=SPMD, says=("holds block.norm.weight tp=R", "holds mixture.experts.weight *=S0"))
def declared_all_together(draw):
    """Data, context and tensor parallelism with cut rows, and experts over the ranks of cp and tp together."""
    mesh, model = mesh_for(dp=2, cp=2, tp=2), Together()
    reference = copy.deepcopy(model)
    groups = {axis: mesh.get_group(axis) for axis in ("dp", "cp", "tp")}
    groups["ep"] = flat_mesh(mesh, ("cp", "tp"), "ep").get_group()
    at = {axis: dist.get_rank(group) for axis, group in groups.items()}
    block = model.block
    block.cp, block.tp, block.way, model.mixture.ep = groups["cp"], groups["tp"], "wrapper", groups["ep"]
    true = {}
    for name, p in list(model.named_parameters()):
        cut = types_of(name, "wrapper") if name.startswith("block.") else "R"
        types, axis, parts = {"dp": "R", "cp": "R", "tp": cut}, "tp", 2
        if name == "mixture.experts.weight":
            types, axis, parts, cut = {"dp": "R", "ep": "S0"}, "ep", 4, "S0"
        value = p.detach().chunk(parts, int(cut[1:]))[at[axis]].clone() if cut[0] == "S" else p.detach()
        own, true[name] = nn.Parameter(value), (types, axis, cut)
        annotate(own, groups, types)
        replace(model, name, own)

    def batch(r):
        generator = draw.generator(r)
        return torch.randn(2, 16, WIDTH, generator=generator), torch.randn(2, 16, WIDTH, generator=generator)

    def part(x):
        return x.chunk(2, 1)[at["cp"]].chunk(2, 1)[at["tp"]].contiguous()

    loss = lambda one, x, y: (one(x) - y).square().sum() / (4 * 16 * WIDTH)  # noqa: E731

    def step(watch):
        loss(model, *map(part, batch(at["dp"]))).backward()
        for name, p in model.named_parameters():
            for axis, type_ in true[name][0].items():
                if type_ == "R":
                    dist.all_reduce(p.grad, group=groups[axis])

    def gradients():
        found = {}
        for name, p in model.named_parameters():
            _, axis, cut = true[name]
            found[name] = gathered(p.grad, groups[axis], int(cut[1:])) if cut[0] == "S" else p.grad
        return found

    whole = lambda: kinds.alone(reference, [lambda one, r=r: whole_loss(one, *batch(r)) for r in range(2)])  # noqa: E731

    def whole_loss(one, x, y):
        """Rows go to experts by their place in the part of a rank."""
        x = one.block(x)
        parts = [
            one.mixture(piece.flatten(0, 1)).view(piece.shape) for half in x.chunk(2, 1) for piece in half.chunk(2, 1)
        ]
        return (torch.cat(parts, 1) - y).square().sum() / (4 * 16 * WIDTH)

    return Job(model, step, whole, {"mesh": mesh}, gradients)


class TwiceCut(nn.Module):
    """A weight whose rows are cut over two axes, gathered over one after the other."""

    def __init__(self):
        super().__init__()
        self.weight, self.groups = nn.Parameter(torch.randn(16, WIDTH) / 4), ()  # groups: the inner cut first

    def forward(self, x):
        weight = self.weight
        for group in self.groups:
            weight = spmd.all_gather(weight, group, src=spmd.S(0), dst=spmd.R)
        return torch.tanh(F.linear(x, weight))


def twice_cut(draw, order, declared=None, **fields):
    mesh, model = mesh_for(dp=2, tp=2), TwiceCut()
    reference = copy.deepcopy(model)
    groups = [mesh.get_group(axis) for axis in order]
    value = model.weight.detach()
    for axis in order:
        value = value.chunk(2)[mesh.get_local_rank(axis)]
    model.weight, model.groups = nn.Parameter(value.clone()), groups[::-1]
    named = tuple(spmd.normalize_axis(mesh.get_group(axis)) for axis in declared or order)
    spmd.assert_type(model.weight, {axis: spmd.V for axis in named}, partition_spec=spmd.PartitionSpec(named, None))
    loss = lambda one, r: kinds.square(one, experts_batch(draw, r)) / draw.world  # noqa: E731

    def gradients():
        whole = model.weight.grad
        for group in model.groups:
            whole = gathered(whole, group, 0)
        return {"weight": whole}

    whole = lambda: kinds.alone(reference, shares_of(loss, [(r,) for r in range(4)]))  # noqa: E731
    return Job(model, lambda watch: loss(model, draw.rank).backward(), whole, {"mesh": mesh}, gradients, **fields)


@watched(4, needs=SPMD, says=("holds weight dp=S0", "holds weight tp=S0"))
def declared_dimension_over_two_axes(draw):
    return twice_cut(draw, draw.one_of(("dp", "tp"), ("tp", "dp")))


class OwnAdapter(nn.Module):
    """A row-cut product whose ranks have adapters of their own, each for its part of the input."""

    def __init__(self, ranks):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH) / 4)
        self.a, self.b = nn.Parameter(torch.randn(ranks, 4, WIDTH // ranks)), nn.Parameter(torch.randn(ranks, WIDTH, 4))
        self.tp = None

    def forward(self, x):
        if self.tp is None:
            parts = x.chunk(len(self.a), -1)
            return F.linear(x, self.weight) + sum(part @ a.T @ b.T for part, a, b in zip(parts, self.a, self.b))
        part = x.chunk(dist.get_world_size(self.tp), -1)[dist.get_rank(self.tp)]
        y = F.linear(part, self.weight) + part @ self.a.T @ self.b.T
        return spmd.all_reduce(y, self.tp, src=spmd.V, dst=spmd.I)


@watched(2, 4, needs=SPMD, says=("holds a tp=*", "holds weight tp=S1"))
def declared_adapters_of_each_rank(draw):
    """V: values differ, and no dimension says how."""
    mesh, model = mesh_for(tp=draw.world), OwnAdapter(draw.world)
    reference = copy.deepcopy(model)
    model.tp = mesh.get_group()
    own = {"a": model.a[draw.rank], "b": model.b[draw.rank], "weight": model.weight.chunk(draw.world, 1)[draw.rank]}
    for name, value in own.items():
        p = nn.Parameter(value.detach().clone())
        annotate(p, {"tp": model.tp}, {"tp": "S1" if name == "weight" else "V"})
        setattr(model, name, p)
    share = lambda one: kinds.square(one, experts_batch(draw, 0))  # noqa: E731

    def gradients():
        found = {"weight": gathered(model.weight.grad, model.tp, 1)}
        for name in "a", "b":
            found[name] = gathered(getattr(model, name).grad[None], model.tp, 0)
        return found

    step = lambda watch: share(model).backward()  # noqa: E731
    return Job(model, step, lambda: kinds.alone(reference, [share]), {"mesh": mesh}, gradients)


@watched(2, 4, needs=SPMD, says=("holds 0.norm.weight tp=*",))
def declared_axis_of_one_rank(draw):
    axes = {"dp": 1, "cp": draw.world // 2, "tp": 2}
    return Cut(axes, draw.one_of("plain", "wrapper"), "hand", **drawn(draw)).build(draw)


@watched(4, needs=SPMD, says=("contradicted 0.v.weight tp=I", "holds 0.norm.weight tp=I"))
def declared_falsely_and_overridden(draw):
    """An annotation is false, the sum is right, and types= says what is so."""
    cut = Cut({"dp": 2, "tp": 2}, hold="hand", declared={"*.v.weight": "I"}, watch={"types": {"*.v.weight": "tp=R"}})
    return cut.build(draw)


# -- other wrappers and libraries


@watched(2, 4, needs=SPMD, says=("holds *0.norm.weight dp=R",))
def declared_in_ddp(draw):
    """DDP does not look at annotations; what it does agrees with them."""
    axes = {"dp": 2, "tp": 2} if draw.world == 4 else {"dp": 2}
    return Cut(axes, hold="ddp", **drawn(draw)).build(draw)


@watched(2, needs=("transformers",), says=("holds *.q_norm.weight tp=R", "declares *.o_proj.weight tp=S1"))
def declared_by_transformers_plan(draw):
    """tp_plan="auto", whose plan has norms of heads as replicated_with_grad_allreduce."""
    return planned(draw, "qwen3")


def planned(draw, name, plan="auto", **fields):
    with tempfile.TemporaryDirectory() as folder:
        reference, model = tp_model(draw, name, folder, plan)
    tokens, labels = draw.tokens(0, words=kinds_libraries.VOCABULARY)
    share = lambda one: one(input_ids=tokens, labels=labels, use_cache=False).loss  # noqa: E731
    step = lambda watch: share(model).backward()  # noqa: E731
    return Job(model, step, lambda: kinds.alone(reference, [share]), bound=1e-3, **fields)


def tp_model(draw, name, folder, plan):
    import transformers

    reference, path = kinds_libraries.saved(draw, name, folder)
    with contextlib.redirect_stderr(io.StringIO()):
        model = transformers.AutoModelForCausalLM.from_pretrained(path, tp_plan=plan, dtype=torch.float32)
    dist.barrier()
    return reference, model


@watched(2, needs=("transformers",), says=("declares *.experts.down_proj tp=S0", "holds *.q_norm.weight tp=R"))
def declared_by_transformers_experts_plan(draw):
    """Experts of a mixture on two ranks, its router on both."""
    import transformers
    from transformers.distributed import DistributedConfig

    with tempfile.TemporaryDirectory() as folder:
        reference, path = kinds_libraries.saved(draw, "qwen3_moe", folder)
        config = DistributedConfig(tp_plan="auto", ep_size=2)
        model = transformers.AutoModelForCausalLM.from_pretrained(path, distributed_config=config, dtype=torch.float32)
        dist.barrier()
    tokens, labels = draw.tokens(0, words=kinds_libraries.VOCABULARY)
    share = lambda one: one(input_ids=tokens, labels=labels, use_cache=False).loss  # noqa: E731
    step = lambda watch: share(model).backward()  # noqa: E731
    return Job(model, step, lambda: kinds.alone(reference, [share]), bound=1e-3)


@watched(2, 3)
def declared_fused_addends(draw):
    """A fused layer writes main_grad, a sum over microbatches; addend= says where this rank's part is."""
    return fused(draw, lambda p: dist.all_reduce(p.main_grad))


def fused(draw, reduce, count=None, **fields):
    model, count = FusedNet(), count or draw.randint(1, 3)
    reference = copy.deepcopy(model)
    for p in model.parameters():
        p.main_grad = torch.zeros_like(p)
    parts = draw.world * count

    def step(watch):
        for m in range(count):
            (kinds.square(model, draw.batch(draw.rank, m)) / parts).backward()
        for p in model.parameters():
            reduce(p)

    plain = lambda x, weight: x @ weight.t()  # noqa: E731

    def share(one, r, m):
        x, y = draw.batch(r, m)
        return (one(x, plain) - y).square().mean() / parts

    def clear():
        for p in model.parameters():
            p.grad = None
            p.main_grad.zero_()

    places = [(r, m) for r in range(draw.world) for m in range(count)]
    gradients = lambda: {name: p.main_grad for name, p in model.named_parameters()}  # noqa: E731
    reported = {"gradient": lambda p: p.main_grad, "addend": lambda p: p.main_grad}
    whole = lambda: kinds.alone(reference, shares_of(share, places))  # noqa: E731
    return Job(model, step, whole, reported, gradients, clear=clear, **fields)
