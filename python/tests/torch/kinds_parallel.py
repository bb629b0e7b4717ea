"""Right jobs that cut more than the batch: tensor, sequence and context parallelism, shards, pipelines, experts."""

import contextlib
import copy
import warnings

import kinds
import torch
import torch.distributed as dist
import torch.nn.functional as F
from kinds import IN, OUT, WORDS, Job, Net, Words, data_parallel, mesh_of, square, token_sum, watched
from kinds_right import Adapted, rows_share
from torch import nn
from torch.distributed.fsdp import (
    MixedPrecision,
    MixedPrecisionPolicy,
    ShardingStrategy,
    fully_shard,
)
from torch.distributed.pipelining import PipelineStage, schedules
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_module, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)  # fmt: skip
from torch.nn.parallel import DistributedDataParallel


def shares_of(loss, places, parts=1):
    return [lambda one, place=place: loss(one, *place) / parts for place in places]


# -- fully_shard


@watched(2, 3, 4)
def fully_shard_precision(draw):
    policy = MixedPrecisionPolicy(
        param_dtype=draw.one_of(torch.bfloat16, None), reduce_dtype=draw.one_of(torch.bfloat16, torch.float32)
    )
    share = lambda model, data, m: token_sum(model, draw.tokens(data, m)) / 20  # noqa: E731
    layers = lambda model: model.blocks  # noqa: E731
    return data_parallel(draw, Words(), share, kinds=("fsdp2",), mp_policy=policy, layers=layers, fields={"bound": 0.3})


@watched(2, 3)
def fully_shard_layers(draw):
    more = {"reshard_after_forward": draw.one_of(True, False)}
    if draw.random() < 0.3:
        more["shard_placement_fn"] = lambda p: Shard(1) if p.dim() > 1 and p.shape[1] % draw.world == 0 else Shard(0)
    share = lambda model, data, m: token_sum(model, draw.tokens(data, m)) / 20  # noqa: E731
    return data_parallel(
        draw, Words(), share, kinds=("fsdp2",), layers=lambda model: [*model.blocks, model.embed], **more
    )


@watched(2, 3)
def fully_shard_accumulates(draw):
    """The knobs of accumulation: is_last_backward, reshard_after_backward, gradient sync."""
    model, count = Net(), 3
    reference = copy.deepcopy(model)
    model = fully_shard(model, mesh=mesh_of("dp", draw.world))
    keep, late = draw.random() < 0.5, draw.random() < 0.5

    def step(watch):
        for m in range(count):
            last = m == count - 1
            model.set_is_last_backward(last)
            model.set_reshard_after_backward(last or not keep)
            model.set_requires_gradient_sync(last or not late)
            (square(model, draw.batch(draw.rank, m)) / count).backward()

    places = [(r, m) for r in range(draw.world) for m in range(count)]
    loss = lambda one, r, m: square(one, draw.batch(r, m))  # noqa: E731
    return Job(model, step, lambda: kinds.alone(reference, shares_of(loss, places, len(places))))


@watched(2, 3)
def fully_shard_divide_factor(draw):
    """Gradients are summed, and the loss is divided by the tokens of all ranks."""
    model = Words()
    reference = copy.deepcopy(model)
    model = fully_shard(model, mesh=mesh_of("dp", draw.world))
    model.set_gradient_divide_factor(1.0)
    model.set_force_sum_reduction_for_comms(True)  # gloo has no sum that multiplies
    total = sum(int((draw.tokens(r)[1] >= 0).sum()) for r in range(draw.world))

    def step(watch):
        (token_sum(model, draw.tokens(draw.rank)) / total).backward()

    loss = lambda one, r: token_sum(one, draw.tokens(r))  # noqa: E731
    places = [(r,) for r in range(draw.world)]
    reported = draw.one_of({}, {"expect": 1.0})
    return Job(model, step, lambda: kinds.alone(reference, shares_of(loss, places, total)), reported)


@watched(4)
def hsdp(draw):
    more = {}
    if draw.random() < 0.5:
        more["mp_policy"] = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    model, count = Words(), draw.randint(1, 3)
    reference = copy.deepcopy(model)
    mesh = mesh_of("dp_replicate dp_shard", 2, 2)
    for block in model.blocks:
        fully_shard(block, mesh=mesh, **more)
    model = fully_shard(model, mesh=mesh, **more)
    how = draw.one_of("each", "no_all_reduce", "no_sync")

    def step(watch):
        for m in range(count):
            last = m == count - 1
            if how == "no_all_reduce":
                model.set_requires_all_reduce(last)
            if how == "no_sync":
                model.set_requires_gradient_sync(last)
            (token_sum(model, draw.tokens(draw.rank, m)) / 20 / count).backward()

    places = [(r, m) for r in range(4) for m in range(count)]
    loss = lambda one, r, m: token_sum(one, draw.tokens(r, m)) / 20  # noqa: E731
    whole = lambda: kinds.alone(reference, shares_of(loss, places, len(places)))  # noqa: E731
    return Job(model, step, whole, bound=0.3 if more else 1e-4)


@watched(2, 3)
def fully_shard_ignores(draw):
    """A parameter that fully_shard ignores is averaged by a hook of the job."""
    model = Net()
    reference = copy.deepcopy(model)
    ignored = set(model.norm.parameters())
    model = fully_shard(model, mesh=mesh_of("dp", draw.world), ignored_params=ignored)

    def average(p):
        dist.all_reduce(p.grad)
        p.grad /= draw.world

    for p in ignored:
        p.register_post_accumulate_grad_hook(average)

    def step(watch):
        square(model, draw.batch(draw.rank)).backward()

    loss = lambda one, r: square(one, draw.batch(r))  # noqa: E731
    places = [(r,) for r in range(draw.world)]
    return Job(model, step, lambda: kinds.alone(reference, shares_of(loss, places, draw.world)))


@watched(2, 3)
def adapters_after_fully_shard(draw):
    """Adapters that are made after fully_shard, plain or as DTensors that are replicated, averaged by hooks."""
    return late_adapters(draw, draw.random() < 0.5, draw.random() < 0.4)


def late_adapters(draw, plain, typed, averages=True):
    base = Net().requires_grad_(False)
    own = copy.deepcopy(base)
    for layer in own.up, own.down:
        layer.forward = None
    reference = copy.deepcopy(base)
    reference.up, reference.down = Adapted(reference.up, True), Adapted(reference.down, True)
    factors = {n: copy.deepcopy(p.detach()) for n, p in reference.named_parameters() if p.requires_grad}
    mesh = mesh_of("dp", draw.world)
    model = base
    model.up, model.down = LateAdapted(base.up), LateAdapted(base.down)
    model = fully_shard(model, mesh=mesh)

    def average(p):
        own = kinds.local_of(p.grad)
        dist.all_reduce(own)
        own /= draw.world

    for name, value in factors.items():
        layer, _, last = name.rpartition(".")
        p = value.clone() if plain else DTensor.from_local(value.clone(), mesh, [Replicate()], run_check=False)
        p = nn.Parameter(p)
        model.get_submodule(layer).register_parameter(last, p)
        if averages:
            p.register_post_accumulate_grad_hook(average)

    def step(watch):
        square(model, draw.batch(draw.rank)).backward()

    loss = lambda one, r: square(one, draw.batch(r))  # noqa: E731
    whole = lambda: kinds.alone(reference, shares_of(loss, [(r,) for r in range(draw.world)], draw.world))  # noqa: E731
    reported = {"types": {"*.a": "dp=R", "*.b": "dp=R"}, "expect": 1 / draw.world} if typed else {}
    return Job(model, step, whole, reported)


class LateAdapted(nn.Module):
    def __init__(self, base):
        super().__init__()
        self.base = base

    def forward(self, x):
        return self.base(x) + x @ kinds.local_of(self.a).T @ kinds.local_of(self.b).T


# -- FullyShardedDataParallel


@watched(2, 3, 4)
def fsdp1(draw):
    strategy = draw.one_of(ShardingStrategy.FULL_SHARD, ShardingStrategy.SHARD_GRAD_OP, ShardingStrategy.NO_SHARD)
    more = {"sharding_strategy": strategy}
    if draw.random() < 0.4:
        more["mixed_precision"] = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    warnings.simplefilter("ignore")
    share = lambda model, data, m: token_sum(model, draw.tokens(data, m)) / 20  # noqa: E731
    return data_parallel(draw, Words(), share, kinds=("fsdp1",), fields={"bound": 0.3}, **more)


@watched(2, 3)
def fsdp1_no_sync(draw):
    model, count = Net(), 3
    reference = copy.deepcopy(model)
    wrapped = kinds.in_fsdp1(draw, model)
    wrapped.sync = lambda last: contextlib.nullcontext() if last else wrapped.model.no_sync()
    return data_parallel(draw, model, rows_share(draw), count, wrapped=wrapped, reference=reference)


# -- tensor parallelism


PLAN = {"up": ColwiseParallel, "down": RowwiseParallel}


@watched(2, 3)
def tensor_parallel(draw):
    model = Net() if draw.world == 2 else Cut3()
    reference = copy.deepcopy(model)
    parallelize_module(model, mesh_of("tp", draw.world), {name: style() for name, style in PLAN.items()})
    count = draw.randint(1, 2)

    def step(watch):
        for m in range(count):
            (square(model, draw.batch(0, m)) / count).backward()

    loss = lambda one, m: square(one, draw.batch(0, m))  # noqa: E731
    return Job(model, step, lambda: kinds.alone(reference, shares_of(loss, [(m,) for m in range(count)], count)))


class Cut3(Net):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(IN, 66), nn.Linear(66, OUT)


@watched(4)
def tensor_parallel_beside_replicas(draw):
    """Two axes: DTensor plans inside fully_shard, or summed by hand over dp."""
    mesh = mesh_of("dp tp", 2, 2)
    model = Net()
    reference = copy.deepcopy(model)
    sequence = draw.random() < 0.5
    plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    if sequence:
        plan = {
            "norm": SequenceParallel(sequence_dim=0),
            "up": ColwiseParallel(input_layouts=Shard(0)),
            "down": RowwiseParallel(output_layouts=Shard(0)),
        }
    parallelize_module(model, mesh["tp"], plan)
    by_hand = not sequence and draw.random() < 0.4
    if not by_hand:
        fully_shard(model, mesh=mesh["dp"])
    data, at = mesh.get_local_rank("dp"), mesh.get_local_rank("tp")
    reported = {"mesh": mesh, "expect": 1.0} if by_hand else {}

    def step(watch):
        x, y = draw.batch(data)
        if sequence:
            x, y = x[at::2], y[at::2]
        loss = (model(x) - y).square().sum() / (6 * OUT)
        (loss / (2 if by_hand else 1)).backward()
        if by_hand:
            for p in model.parameters():
                dist.all_reduce(kinds.local_of(p.grad), group=mesh.get_group("dp"))

    loss = lambda one, r: square(one, draw.batch(r))  # noqa: E731
    return Job(model, step, lambda: kinds.alone(reference, shares_of(loss, [(0,), (1,)], 2)), reported)


class Gated(nn.Module):
    """An attention block and a gated MLP, with norms, as language models have them."""

    def __init__(self, width=16, heads=4, per_head=False):
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.head_norm = nn.RMSNorm(width // heads) if per_head else None
        self.gate, self.up = nn.Linear(width, 32, bias=False), nn.Linear(width, 32, bias=False)
        self.down, self.size = nn.Linear(32, width, bias=False), width // heads

    def forward(self, x):
        y = self.norm1(x)
        q, k, v = (f(y).unflatten(-1, (-1, self.size)).transpose(1, 2) for f in (self.q, self.k, self.v))
        if self.head_norm is not None:
            q, k = self.head_norm(q), self.head_norm(k)
        x = x + self.o(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Decoder(nn.Module):
    def __init__(self, per_head=False):
        super().__init__()
        self.embed, self.blocks = nn.Embedding(WORDS, 16), nn.ModuleList(Gated(per_head=per_head) for _ in range(2))
        self.norm, self.head = nn.RMSNorm(16), nn.Linear(16, WORDS, bias=False)

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


BLOCK = {name: ColwiseParallel for name in ("q", "k", "v", "gate", "up")} | {
    "o": RowwiseParallel,
    "down": RowwiseParallel,
}


def block_plan(model, sequence):
    plan = {}
    for i in range(len(model.blocks)):
        for name, style in BLOCK.items():
            more = {"output_layouts": Shard(1)} if sequence and style is RowwiseParallel else {}
            plan[f"blocks.{i}.{name}"] = style(**more)
        if sequence:
            plan[f"blocks.{i}.norm1"] = SequenceParallel()
            plan[f"blocks.{i}.norm2"] = SequenceParallel()
            for name in "q", "k", "v", "gate", "up":
                plan[f"blocks.{i}.{name}"] = ColwiseParallel(input_layouts=Shard(1))
    return plan


@watched(2, 4)
def decoder_tensor_parallel(draw):
    """A decoder whose embedding and head are sharded over the vocabulary, with a loss on cut logits."""
    model = Decoder()
    reference = copy.deepcopy(model)
    mesh = mesh_of("dp tp", draw.world // 2, 2)
    sequence, loss_cut = draw.random() < 0.5, draw.random() < 0.5
    plan = block_plan(model, sequence)
    kept = Shard(1) if sequence else Replicate()
    plan["embed"] = RowwiseParallel(input_layouts=Replicate(), output_layouts=kept)
    if sequence:
        plan["norm"] = SequenceParallel()
    plan["head"] = ColwiseParallel(
        input_layouts=kept, output_layouts=Shard(-1) if loss_cut else Replicate(), use_local_output=not loss_cut
    )
    parallelize_module(model, mesh["tp"], plan)
    if draw.world == 4:
        fully_shard(model, mesh=mesh["dp"])
    data, replicas = mesh.get_local_rank("dp"), draw.world // 2

    def step(watch):
        tokens, labels = draw.tokens(data)
        with loss_parallel() if loss_cut else contextlib.nullcontext():
            logits = model(tokens)
            loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="mean")
            loss.backward()

    def loss(one, r):
        tokens, labels = draw.tokens(r)
        return F.cross_entropy(one(tokens).flatten(0, 1), labels.flatten())

    places = [(r,) for r in range(replicas)]
    return Job(model, step, lambda: kinds.alone(reference, shares_of(loss, places, replicas)))


@watched(2)
def norm_on_cut_heads(draw):
    """A plain norm on each rank's own heads, beside DTensors; a hook sums its gradient over tp."""
    return plain_norm(draw)


def plain_norm(draw, sums=True, reported=None):
    model = Decoder(per_head=True)
    reference = copy.deepcopy(model)
    mesh = mesh_of("tp", 2)
    parallelize_module(model, mesh, block_plan(model, False))
    for name, p in model.named_parameters():
        if "head_norm" in name and sums:
            p.register_post_accumulate_grad_hook(lambda p: dist.all_reduce(p.grad))
    share = lambda one: token_sum(one, draw.tokens(0)) / 20  # noqa: E731
    names = {name for name, _ in model.named_parameters() if "head_norm" in name}
    return Job(
        model, lambda watch: share(model).backward(), lambda: kinds.alone(reference, [share]), reported or {},
        affected=None if sums else names,
    )  # fmt: skip


class CopyIn(torch.autograd.Function):
    @staticmethod
    def forward(context, x, group):
        context.group = group
        return x.view_as(x)

    @staticmethod
    def backward(context, gradient):
        gradient = gradient.clone()
        dist.all_reduce(gradient, group=context.group)
        return gradient, None


class SumOut(torch.autograd.Function):
    @staticmethod
    def forward(context, x, group):
        x = x.clone()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(context, gradient):
        return gradient, None


class GatherIn(torch.autograd.Function):
    """S -> R along dimension 0; the backward sums and cuts."""

    @staticmethod
    def forward(context, x, group):
        context.group = group
        parts = [torch.empty_like(x) for _ in range(dist.get_world_size(group))]
        dist.all_gather(parts, x.contiguous(), group=group)
        return torch.cat(parts)

    @staticmethod
    def backward(context, gradient):
        gradient = gradient.clone()
        dist.all_reduce(gradient, group=context.group)
        return gradient.chunk(dist.get_world_size(context.group))[dist.get_rank(context.group)], None


class CutOut(torch.autograd.Function):
    """P -> S along dimension 0; the backward gathers."""

    @staticmethod
    def forward(context, x, group):
        context.group = group
        x = x.clone()
        dist.all_reduce(x, group=group)
        return x.chunk(dist.get_world_size(group))[dist.get_rank(group)].contiguous()

    @staticmethod
    def backward(context, gradient):
        parts = [torch.empty_like(gradient) for _ in range(dist.get_world_size(context.group))]
        dist.all_gather(parts, gradient.contiguous(), group=context.group)
        return torch.cat(parts), None


class HandCut(nn.Module):
    """Net with plain parameters, sharded over tp by hand; `sequence`: rows are cut outside of the two products."""

    def __init__(self, net, group, sequence=False, adapter=None):
        super().__init__()
        world, rank = dist.get_world_size(group), dist.get_rank(group)
        part = lambda x, dim: nn.Parameter(x.detach().chunk(world, dim)[rank].clone())  # noqa: E731
        self.norm = copy.deepcopy(net.norm)
        self.up, self.up_bias = part(net.up.weight, 0), part(net.up.bias, 0)
        self.down, self.down_bias = part(net.down.weight, 1), nn.Parameter(net.down.bias.detach().clone())
        self.group, self.sequence = group, sequence
        if adapter is not None:
            self.a, self.b = nn.Parameter(adapter.a.detach().clone()), part(adapter.b, 0)

    def forward(self, x):
        x = self.norm(x)
        x = (GatherIn if self.sequence else CopyIn).apply(x, self.group)
        y = F.linear(x, self.up, self.up_bias)
        if hasattr(self, "a"):
            y = y + x @ self.a.T @ self.b.T
        y = F.linear(torch.tanh(y), self.down)
        return (CutOut if self.sequence else SumOut).apply(y, self.group) + self.down_bias

    whole_names = {
        "up": ("up.weight", 0),
        "up_bias": ("up.bias", 0),
        "down": ("down.weight", 1),
        "down_bias": ("down.bias", None),
    }


def put_together(model, group):
    found = {}
    for name, p in model.named_parameters():
        whole, dim = {**model.whole_names, "b": ("up.b", 0), "a": ("up.a", None)}.get(name, (name, None))
        if dim is None or p.grad is None:
            found[whole] = p.grad
            continue
        parts = [torch.empty_like(p.grad) for _ in range(dist.get_world_size(group))]
        dist.all_gather(parts, p.grad.contiguous(), group=group)
        found[whole] = torch.cat(parts, dim)
    return found


HAND_TYPES = {"up": "tp=S0", "up_bias": "tp=S0", "down": "tp=S1", "b": "tp=S0"}


def hand_cut(draw, sequence, sums=(), adapted=False, missing=()):
    """Plain tensor or sequence parallelism; `sums`: names that a hook sums over tp, `missing` of them forgotten."""
    net = Net()
    reference = copy.deepcopy(net)
    adapter = None
    if adapted:
        reference.up = Adapted(reference.up, True)
        adapter = reference.up
    mesh = mesh_of("tp", draw.world)
    group = mesh.get_group()
    model = HandCut(net, group, sequence, adapter)
    for name, p in model.named_parameters():
        if name in sums and name not in missing:
            p.register_post_accumulate_grad_hook(lambda p: dist.all_reduce(p.grad, group=group))
    x, y = draw.batch(0, 0, 6 * draw.world)
    part = lambda z: z.chunk(draw.world)[draw.rank] if sequence else z  # noqa: E731

    def step(watch):
        ((model(part(x)) - part(y)).square().sum() / y.numel()).backward()

    def whole():
        found = kinds.alone(reference, [lambda one: square(one, (x, y))])
        return {name.replace("up.base.", "up."): g for name, g in found.items()}

    summed = {name: "tp=R" for name in sums}
    types = {**{"*": "tp=I"}, **HAND_TYPES, **summed}
    if not sequence:
        types["a"] = "tp=R"
    reported = {"mesh": mesh, "types": types}
    return Job(model, step, whole, reported, lambda: put_together(model, group))


@watched(2, 4)
def hand_cut_layers(draw):
    return hand_cut(draw, False)


@watched(2, 4)
def hand_cut_sequence(draw):
    """Norms and biases whose rows are cut are summed over tp by hooks, as in Megatron."""
    return hand_cut(draw, True, ("norm.weight", "norm.bias", "down_bias"))


@watched(2, 4)
def hand_cut_adapter(draw):
    """The replicated factor of an adapter on a column-cut layer has an addend on each rank of tp."""
    return hand_cut(draw, False, ("a",), adapted=True)


@watched(2, 3)
def replicated_dtensors(draw):
    """All parameters are replicated DTensors, and so is the input."""
    model = Net()
    reference = copy.deepcopy(model)
    mesh = mesh_of("dp", draw.world)
    distribute_module(model, mesh)
    x, y = draw.batch(0)
    own = lambda z: DTensor.from_local(z, mesh, [Replicate()], run_check=False)  # noqa: E731

    def step(watch):
        (model(own(x)) - own(y)).square().mean().backward()

    return Job(model, step, lambda: kinds.alone(reference, [lambda one: square(one, (x, y))]))


@watched(2, 3)
def replicated_dtensors_cut_batch(draw):
    """Parameters are replicated DTensors and the batch is a sharded one: DTensor sums the gradients itself."""
    model = Net()
    reference = copy.deepcopy(model)
    mesh = mesh_of("dp", draw.world)
    distribute_module(model, mesh)
    x, y = draw.batch(0, 0, 6 * draw.world)

    def step(watch):
        (
            model(distribute_tensor(x, mesh, [Shard(0)])) - distribute_tensor(y, mesh, [Shard(0)])
        ).square().mean().backward()

    return Job(model, step, lambda: kinds.alone(reference, [lambda one: square(one, (x, y))]))


@watched(2)
def prepared_inputs(draw):
    """PrepareModuleInput and outputs that stay DTensors."""
    model = Net()
    reference = copy.deepcopy(model)
    mesh = mesh_of("tp", 2)
    plan = {
        "up": ColwiseParallel(use_local_output=False),
        "down": RowwiseParallel(),
        "norm": PrepareModuleInput(
            input_layouts=Replicate(), desired_input_layouts=Replicate(), use_local_output=False
        ),
    }
    parallelize_module(model, mesh, plan)
    for name, p in list(model.norm.named_parameters()):
        model.norm.register_parameter(name, nn.Parameter(distribute_tensor(p.data, mesh, [Replicate()])))
    share = lambda one: square(one, draw.batch(0))  # noqa: E731
    return Job(model, lambda watch: share(model).backward(), lambda: kinds.alone(reference, [share]))


# -- context parallelism


class Causal(nn.Module):
    """Attention over a whole sequence of which each rank has a part: keys and values are gathered."""

    def __init__(self, width=16):
        super().__init__()
        self.embed, self.qkv = nn.Embedding(WORDS, width), nn.Linear(width, 3 * width)
        self.out, self.group = nn.Linear(width, WORDS), None

    def forward(self, tokens):
        q, k, v = self.qkv(self.embed(tokens)).chunk(3, -1)
        if self.group is None:
            return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True))
        k, v = (GatherIn.apply(x.transpose(0, 1), self.group).transpose(0, 1) for x in (k, v))
        first = dist.get_rank(self.group) * tokens.shape[1]
        places = torch.arange(k.shape[1])
        mask = places[None] <= first + torch.arange(tokens.shape[1])[:, None]
        return self.out(F.scaled_dot_product_attention(q, k, v, attn_mask=mask))


@watched(2, 4)
def context_parallel(draw):
    """The sequence is cut; DDP averages over all ranks a loss that counts the tokens of all."""
    replicas = draw.world // 2
    mesh = mesh_of("dp cp", replicas, 2)
    model = Causal()
    reference = copy.deepcopy(model)
    model.group = mesh.get_group("cp")
    data, at = mesh.get_local_rank("dp"), mesh.get_local_rank("cp")
    total = sum(int((draw.tokens(r)[1] >= 0).sum()) for r in range(replicas))
    kind = draw.one_of("ddp", "fsdp2")
    model = DistributedDataParallel(model) if kind == "ddp" else fully_shard(model, mesh=mesh_of("all", draw.world))

    def step(watch):
        tokens, labels = (x.chunk(2, 1)[at].contiguous() for x in draw.tokens(data))
        (token_sum(model, (tokens, labels)) * draw.world / total).backward()

    loss = lambda one, r: token_sum(one, draw.tokens(r))  # noqa: E731
    places = [(r,) for r in range(replicas)]
    return Job(model, step, lambda: kinds.alone(reference, shares_of(loss, places, total)))


# -- experts


class OwnExpert(nn.Module):
    """A router and experts, of which each rank of ep has one; tokens of all ranks go through all experts."""

    def __init__(self, count, own=None, group=None):
        super().__init__()
        self.router = nn.Linear(IN, count)
        self.experts = nn.ModuleDict({str(i): nn.Linear(IN, OUT) for i in range(count)})
        self.own, self.group = own, group

    def keep(self, own, group):
        self.own, self.group = own, group
        self.experts = nn.ModuleDict({str(own): self.experts[str(own)]})

    def forward(self, x):
        weights = self.router(x).softmax(-1)
        if self.group is None:
            return sum(weights[:, i, None] * expert(x) for i, expert in enumerate(self.experts.values()))
        from torch.distributed.nn.functional import all_gather, all_reduce

        rank, rows = dist.get_rank(self.group), len(x)
        every, own = torch.cat(all_gather(x, group=self.group)), torch.cat(all_gather(weights, group=self.group))
        part = own[:, self.own, None] * self.experts[str(self.own)](every)
        return all_reduce(part, group=self.group)[rank * rows : rank * rows + rows]


@watched(2, 3)
def experts_on_one_rank(draw):
    """Each rank has one expert, under its own name; the router is summed by hand, and experts are not."""
    model = OwnExpert(draw.world)
    reference = copy.deepcopy(model)
    mesh = mesh_of("ep", draw.world)
    model.keep(draw.rank, mesh.get_group())

    def step(watch):
        (square(model, draw.batch(draw.rank)) / draw.world).backward()
        kinds.all_reduced(model.router.parameters())

    loss = lambda one, r: square(one, draw.batch(r))  # noqa: E731

    def whole():
        found = kinds.alone(reference, shares_of(loss, [(r,) for r in range(draw.world)], draw.world))
        return {n: g for n, g in found.items() if not n.startswith("experts") or n.startswith(f"experts.{draw.rank}.")}

    return Job(model, step, whole, draw.one_of({}, {"mesh": mesh}))


# -- pipelines


class Stage(nn.Module):
    def __init__(self, index, seed, width=8):
        super().__init__()
        torch.manual_seed(seed + index)
        self.up, self.down = nn.Linear(width, 16), nn.Linear(16, width)

    def forward(self, x):
        return x + self.down(torch.tanh(self.up(x)))


def places_of(schedule, place, size):
    if issubclass(schedule, schedules.PipelineScheduleSingle):
        return [place], size
    if schedule.__name__ in ("ScheduleZBVZeroBubble", "ScheduleDualPipeV"):
        return [place, 2 * size - 1 - place], 2 * size
    return [place, place + size], 2 * size


SCHEDULES = ["ScheduleGPipe", "Schedule1F1B", "ScheduleInterleaved1F1B", "ScheduleLoopedBFS"]
SCHEDULES += ["ScheduleInterleavedZeroBubble", "ScheduleZBVZeroBubble", "ScheduleDualPipeV"]


def pipeline(draw, name, replicas=1, wrapper=None, microbatches=4, steps=1, scales=True, loss_scale=1.0, reported=None):
    warnings.simplefilter("ignore")
    schedule = getattr(schedules, name)
    size = draw.world // replicas
    mesh = mesh_of("dp pp", replicas, size)
    indices, count = places_of(schedule, mesh.get_local_rank("pp"), size)
    modules = [Stage(i, draw.base) for i in indices]
    if wrapper == "ddp":
        modules = [DistributedDataParallel(one, process_group=mesh.get_group("dp")) for one in modules]
    if wrapper == "fsdp2":
        modules = [fully_shard(one, mesh=mesh["dp"]) for one in modules]
    stages = [PipelineStage(one, i, count, draw.device, group=mesh.get_group("pp")) for one, i in zip(modules, indices)]
    several = not issubclass(schedule, schedules.PipelineScheduleSingle)
    loss = lambda out, y: (out - y).square().mean() * loss_scale  # noqa: E731
    running = schedule(stages if several else stages[0], microbatches, loss_fn=loss, scale_grads=scales)
    model = nn.ModuleList(modules) if several else modules[0]

    def batch(data, m=0):
        generator = draw.generator(data, m)
        return torch.randn(8, 8, generator=generator), torch.randn(8, 8, generator=generator)

    def step(watch):
        for m in range(steps):
            x, y = batch(mesh.get_local_rank("dp"), m)
            running.step(*((x,) if 0 in indices else ()), **({"target": y} if count - 1 in indices else {}))

    def gradients():
        found = {}
        for i, one in zip(indices, modules):
            found.update({f"{i}.{kinds_name(n)}": p.grad for n, p in one.named_parameters()})
        return found

    def whole():
        alone = nn.Sequential(*(Stage(i, draw.base) for i in range(count)))
        factor = (1 if scales else microbatches) / replicas
        shares = [
            lambda one, r=r, m=m: loss(one(batch(r, m)[0]), batch(r, m)[1]) * factor
            for r in range(replicas)
            for m in range(steps)
        ]
        found = kinds.alone(alone, shares)
        return {n: g for n, g in found.items() if int(n.split(".")[0]) in indices}

    return Job(model, step, whole, reported or {}, gradients)


def kinds_name(name):
    return name.replace("module.", "")


@watched(2)
def pipeline_schedules(draw):
    return pipeline(draw, draw.choice(SCHEDULES))


@watched(4)
def pipeline_of_four(draw):
    return pipeline(draw, draw.choice(SCHEDULES), microbatches=8)


@watched(4)
def pipeline_beside_replicas(draw):
    wrapper = draw.one_of("ddp", "fsdp2")
    name = draw.one_of("ScheduleGPipe", "Schedule1F1B", "ScheduleInterleaved1F1B")
    return pipeline(draw, name, 2, wrapper)


@watched(2)
def pipeline_without_division(draw):
    """scale_grads=False, and the loss is divided by the job, as torchtitan does."""
    return pipeline(draw, draw.choice(SCHEDULES), scales=False, loss_scale=0.25)


@watched(2)
def pipeline_in_two_steps(draw):
    """Two steps of a schedule before the optimizer's, without its division."""
    return pipeline(draw, draw.choice(SCHEDULES[:4]), steps=2, scales=False, loss_scale=1 / 8)


@watched(2)
def pipeline_scaled_loss(draw):
    """A loss scale in a pipeline, and `expect=` on top of the schedule's own factor."""
    name = draw.one_of("Schedule1F1B", "ScheduleInterleaved1F1B")
    job = pipeline(draw, name)
    step = job.step

    def unscaled(watch):
        step(watch)
        for p in job.model.parameters():
            p.grad *= 0.5

    whole = job.whole
    job.step, job.whole = unscaled, lambda: {n: g * 0.5 for n, g in whole().items()}
    job.watch = {"expect": 0.5 / 4}
    return job


class Ends(nn.Module):
    def __init__(self, embed, block, head):
        super().__init__()
        self.embed, self.block, self.head = embed, block, head

    def forward(self, x):
        x = self.block(self.embed(x) if self.embed is not None else x)
        return self.head(x) if self.head is not None else x


def tied_pipeline(draw, sums=1, reported=None):
    """An embedding and a head of one weight on two ends of a pipeline; `sums`: how often they are summed."""
    warnings.simplefilter("ignore")
    torch.manual_seed(draw.base)
    embed, head = nn.Embedding(WORDS, 8), nn.Linear(8, WORDS, bias=False)
    head.weight.data.copy_(embed.weight.data)
    parts = [Ends(embed, Stage(0, draw.base), None), Ends(None, Stage(1, draw.base), head)]
    model = parts[draw.rank]
    stage = PipelineStage(model, draw.rank, 2, draw.device, group=mesh_of("pp", 2).get_group())
    loss = lambda out, y: F.cross_entropy(out.flatten(0, -2), y.flatten())  # noqa: E731
    running = schedules.Schedule1F1B(stage, 4, loss_fn=loss)
    generator = draw.generator(0)
    words = torch.randint(WORDS, (8, 5), generator=generator)

    def step(watch):
        running.step(words) if draw.rank == 0 else running.step(target=words.flip(0))
        weight = model.embed.weight if draw.rank == 0 else model.head.weight
        for _ in range(sums):
            dist.all_reduce(weight.grad)

    def whole():
        first, last = copy.deepcopy(parts[0]), copy.deepcopy(parts[1])
        for p in [*first.parameters(), *last.parameters()]:
            p.grad = None
        last.head.weight = first.embed.weight
        loss(last(first(words)), words.flip(0)).backward()
        own = (first, last)[draw.rank]
        return kinds.gradients_of(own)

    return Job(model, step, whole, {"tied": [("embed.weight", "head.weight")]} if reported is None else reported)


@watched(2)
def tied_ends_of_a_pipeline(draw):
    return tied_pipeline(draw, reported=draw.one_of(None, {}))
