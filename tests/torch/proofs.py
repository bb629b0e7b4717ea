"""Jobs for `addend.torch.check`, each right, and with mistakes that were really made: a decoder on the usual axes. A
mistake says where it was made: the module in whose forward or backward it is, or the place if it is in none."""

import contextlib
import dataclasses
import typing

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.autograd import Function

VOCABULARY, WIDTH, HEADS, LENGTH, ROWS = 20, 12, 4, 6, 12


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.wq, self.wk, self.wv = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.wo = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return self.wo(attend(self.wq(x), self.wk(x), self.wv(x)))


def attend(q, k, v):
    q, k, v = (split_heads(y) for y in (q, k, v))
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return y.transpose(1, 2).flatten(2)


def split_heads(x):
    return x.unflatten(2, (-1, WIDTH // HEADS)).transpose(1, 2)


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        return self.down(F.gelu(self.up(x)))


class Block(nn.Module):
    def __init__(self, mlp=Mlp):
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(WIDTH), Attention()
        self.norm2, self.mlp = nn.LayerNorm(WIDTH), mlp()

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Decoder(nn.Module):
    def __init__(self, blocks=2, mlp=Mlp):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block(mlp) for _ in range(blocks))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def whole():
    generator = torch.Generator().manual_seed(11)
    tokens = torch.randint(VOCABULARY, (ROWS, LENGTH), generator=generator)
    targets = torch.randint(VOCABULARY, (ROWS, LENGTH), generator=generator)
    targets[torch.rand(ROWS, LENGTH, generator=generator) < 0.3] = -100  # ranks' counts differ
    targets[0, 0], targets[-1] = 1, -100
    return tokens, targets


def cut(batch, rank, mesh, microbatches=1):
    tokens, targets = (x.chunk(mesh.size("dp"))[mesh.get_local_rank("dp")] for x in batch)
    return list(zip(tokens.chunk(microbatches), targets.chunk(microbatches)))


def cut_twice(batch, rank, mesh):
    return cut(batch, rank, mesh, 2)


def loss(model, batch):
    tokens, targets = batch
    logits = model(tokens)
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum"), (targets >= 0).sum()


@dataclasses.dataclass
class Job:
    """The arguments of check, and what it has to say of a mistake."""

    parallelize: typing.Callable
    mesh: dict
    arguments: dict = dataclasses.field(default_factory=dict)
    make_model: typing.Callable = Decoder
    batches: typing.Any = (whole, cut)
    loss: typing.Callable = loss


@dataclasses.dataclass
class Mistake:
    name: str
    catalogue: int  # its number in docs/torch-check.md
    job: Job
    begins: str  # the module, or the place if it is in no module
    place: str


RIGHT, WRONG = {}, []


def right(name, job):
    RIGHT[name] = job


def wrong(name, catalogue, job, place, begins):
    WRONG.append(Mistake(name, catalogue, job, begins, place))


# -- data parallelism


def ddp(model, mesh):
    return nn.parallel.DistributedDataParallel(model, process_group=mesh.get_group("dp") if mesh.ndim > 1 else None)


def no_sync(model, microbatches, loss_of):
    for m, batch in enumerate(microbatches):
        with contextlib.nullcontext() if m == len(microbatches) - 1 else model.no_sync():
            loss_of(model, batch).backward()


def never_sync(model, microbatches, loss_of):
    with model.no_sync():
        for batch in microbatches:
            loss_of(model, batch).backward()


def cleared(model, microbatches, loss_of):
    for batch in microbatches:
        model.zero_grad()
        loss_of(model, batch).backward()


def summed_by_hand(model, microbatches, loss_of, early=False, divisor=1):
    """Without a wrapper: one all_reduce at the end. `early`: after each microbatch, of what was accumulated."""
    for m, batch in enumerate(microbatches):
        loss_of(model, batch).backward()
        if early or m == len(microbatches) - 1:
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
                parameter.grad /= divisor


def summed_early(model, microbatches, loss_of):
    """What the first microbatch left is averaged over ranks, and then once more with the second."""
    ranks = dist.get_world_size()
    loss_of(model, microbatches[0]).backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= ranks
    earlier = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    loss_of(model, microbatches[1]).backward()
    for parameter, mean in zip(model.parameters(), earlier):
        dist.all_reduce(parameter.grad)
        parameter.grad = (parameter.grad + mean) / ranks


def plain(model, mesh):
    return model


def own_mean(model, batch):
    numerator, count = loss(model, batch)
    return numerator / count


def whole_of_equal_means():
    """For losses that are taken as they are: all targets count."""
    tokens, targets = whole()
    return tokens, targets.abs() % VOCABULARY


def local_count(model, batch):
    """The job divides by its own count and calls that the numerator."""
    numerator, count = loss(model, batch)
    return numerator / count.clamp(min=1) * 10, torch.tensor(10.0)


def hooked(model, mesh, at_once=True):
    """Sums by hooks; those of the first step come too late where not `at_once`."""

    def attach(*_):
        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(lambda p: dist.all_reduce(p.grad))
        return None

    if at_once:
        attach()
    else:
        handle = model.register_full_backward_hook(lambda *_: (handle.remove(), attach()) and None)
    return model


def hooked_late(model, mesh):
    """Attached at the end of the first backward, on the way to the second."""
    done = []

    def attach(*_):
        if len(done) == 1:
            for parameter in model.parameters():
                parameter.register_post_accumulate_grad_hook(lambda p: dist.all_reduce(p.grad))
        done.append(1)

    model.register_forward_pre_hook(attach)
    return model


def averaging_hook(model, mesh, divisor):
    """DDP whose communication hook divides by another number than the ranks."""

    def hook(state, bucket):
        future = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
        return future.then(lambda done: done.value()[0] / divisor)

    model = ddp(model, mesh)
    model.register_comm_hook(None, hook)
    return model


DP = {"dp": 3}
right("ddp", Job(ddp, DP))
right("ddp with no_sync", Job(ddp, DP, {"run": no_sync}, batches=(whole, cut_twice)))
right("ddp with a hook", Job(lambda model, mesh: averaging_hook(model, mesh, 3), DP))
right("sums by hand", Job(plain, DP, {"run": summed_by_hand}, batches=(whole, cut_twice)))
right("sums by hooks", Job(hooked, DP))
wrong("a hook that is attached after the first step", 6, Job(hooked_late, DP), "reduction", "")
wrong("no_sync stays on", 20, Job(ddp, DP, {"run": never_sync}, batches=(whole, cut_twice)), "reduction", "")
wrong("gradients are cleared in every microbatch", 19, Job(ddp, DP, {"run": cleared}, batches=(whole, cut_twice)), "reduction", "")
wrong(
    "the second microbatch is added to a mean",
    21,
    Job(plain, DP, {"run": summed_early, "averaged": 3}, batches=(whole, cut_twice)),
    "reduction",
    "",
)
wrong("a hook divides by ranks twice", 22, Job(lambda model, mesh: averaging_hook(model, mesh, 9), DP), "reduction", "")
wrong("each rank divides by its own count", 17, Job(ddp, DP, loss=own_mean), "loss", "")
wrong("each microbatch is divided by its own count", 16, Job(ddp, DP, loss=own_mean, batches=(whole, cut_twice)), "loss", "")


# -- fully_shard


def sharded(model, mesh):
    from torch.distributed.fsdp import fully_shard

    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)


def sharded_wrongly(model, mesh):
    sharded(model, mesh)
    model.blocks[0].set_gradient_divide_factor(1.0)


def sync_of_the_root_alone(model, microbatches, loss_of):
    for m, batch in enumerate(microbatches):
        model.set_requires_gradient_sync(m == 1, recurse=m == 0)
        loss_of(model, batch).backward()


def norm_of_all_ranks(model):
    squares = sum(parameter.grad.to_local().square().sum() for parameter in model.parameters())
    dist.all_reduce(squares)
    return squares.sqrt()


def norm_of_shards(model):
    return nn.utils.get_total_norm([parameter.grad for parameter in model.parameters()]).full_tensor()


HSDP = {"dp_replicate": 2, "dp_shard": 2}


def cut_hsdp(batch, rank, mesh, microbatches=1):
    tokens, targets = (x.chunk(4)[rank] for x in batch)
    return list(zip(tokens.chunk(microbatches), targets.chunk(microbatches)))


right("fully_shard", Job(sharded, DP))
right("fully_shard, two microbatches", Job(sharded, DP, batches=(whole, cut_twice)))
right("fully_shard on two axes", Job(sharded, HSDP, {"norm": norm_of_shards}, batches=(whole, cut_hsdp)))
wrong("one group is not divided", 12, Job(sharded_wrongly, DP), "reduction", "")
wrong(
    "synchronisation is off below the root",
    20,
    Job(sharded, DP, {"run": sync_of_the_root_alone}, batches=(whole, cut_twice)),
    "reduction",
    "",
)
wrong("the norm counts replicas", 27, Job(sharded, HSDP, {"norm": norm_of_all_ranks}, batches=(whole, cut_hsdp)), "norm", "")


# -- tensor parallelism by hand


class CopyIn(Function):
    """I -> R: each rank goes on with something else, so the backward sums."""

    @staticmethod
    def forward(context, x, group):
        context.group = group
        return x.view_as(x)

    @staticmethod
    def backward(context, gradient):
        gradient = gradient.clone()
        dist.all_reduce(gradient, group=context.group)
        return gradient, None


class ReduceOut(Function):
    """P -> I: all ranks go on alike, so the backward is the identity; or a mistake, a sum."""

    @staticmethod
    def forward(context, x, group, sums_again=False):
        context.group, context.sums_again = group, sums_again
        x = x.clone()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(context, gradient):
        if context.sums_again:
            gradient = gradient.clone()
            dist.all_reduce(gradient, group=context.group)
        return gradient, None, None


class Gather(Function):
    """S -> R along a dimension: the backward sums and cuts; or, a mistake, cuts only."""

    @staticmethod
    def forward(context, x, group, dim, sums):
        context.group, context.dim, context.sums = group, dim, sums
        parts = [torch.empty_like(x) for _ in range(dist.get_world_size(group))]
        dist.all_gather(parts, x.contiguous(), group=group)
        return torch.cat(parts, dim)

    @staticmethod
    def backward(context, gradient):
        if context.sums:
            gradient = gradient.clone()
            dist.all_reduce(gradient, group=context.group)
        world, rank = dist.get_world_size(context.group), dist.get_rank(context.group)
        return gradient.chunk(world, context.dim)[rank], None, None, None


class Scatter(Function):
    """P -> S along a dimension: sums and cuts; the backward gathers."""

    @staticmethod
    def forward(context, x, group, dim):
        context.group, context.dim = group, dim
        x = x.clone()
        dist.all_reduce(x, group=group)
        return x.chunk(dist.get_world_size(group), dim)[dist.get_rank(group)].contiguous()

    @staticmethod
    def backward(context, gradient):
        parts = [torch.empty_like(gradient) for _ in range(dist.get_world_size(context.group))]
        dist.all_gather(parts, gradient.contiguous(), group=context.group)
        return torch.cat(parts, context.dim), None, None


def part_of(x, group, dim):
    return nn.Parameter(x.detach().chunk(dist.get_world_size(group), dim)[dist.get_rank(group)].clone())


class Column(nn.Module):
    """The output dimension is cut."""

    def __init__(self, linear, group, copies=True):
        super().__init__()
        self.weight, self.bias = part_of(linear.weight, group, 0), part_of(linear.bias, group, 0)
        self.group, self.copies = group, copies

    def forward(self, x):
        return F.linear(CopyIn.apply(x, self.group) if self.copies else x, self.weight, self.bias)


class Row(nn.Module):
    """The input dimension is cut."""

    def __init__(self, linear, group, reduces=True, bias_in_parts=False, sums_again=False):
        super().__init__()
        self.weight, self.bias = part_of(linear.weight, group, 1), nn.Parameter(linear.bias.detach().clone())
        self.group, self.reduces, self.bias_in_parts, self.sums_again = group, reduces, bias_in_parts, sums_again

    def forward(self, x):
        y = F.linear(x, self.weight, self.bias if self.bias_in_parts else None)
        if self.reduces:
            y = ReduceOut.apply(y, self.group, self.sums_again)
        return y if self.bias_in_parts else y + self.bias


TP = {"dp": 2, "tp": 3}
MIXED = {"dp": 3, "tp": 2}


def megatron(model, mesh, at=lambda name: {}, wrap=True):
    """`at(name)`: arguments of that layer, with which a mistake is made."""
    group = mesh.get_group("tp")
    for i, block in enumerate(model.blocks):
        for parent, name, kind in (
            ("attention", "wq", Column), ("attention", "wk", Column), ("attention", "wv", Column),
            ("attention", "wo", Row), ("mlp", "up", Column), ("mlp", "down", Row),
        ):  # fmt: skip
            module = getattr(block, parent)
            arguments = at(f"blocks.{i}.{parent}.{name}")
            setattr(module, name, kind(getattr(module, name), group, **arguments))
    return ddp(model, mesh) if wrap else model


def at(where, **arguments):
    return lambda model, mesh: megatron(model, mesh, lambda name: arguments if name == where else {})


class CopyingAttention(Attention):
    """Megatron's way: the copy into the cut region is made once, by the attention."""

    def forward(self, x):
        x = CopyIn.apply(x, self.wo.group) if self.copies else x
        return self.wo(attend(self.wq(x), self.wk(x), self.wv(x)))


def copied_once(copies):
    def parallelize(model, mesh):
        for block in model.blocks:
            block.attention.__class__, block.attention.copies = CopyingAttention, True
        model.blocks[1].attention.copies = copies
        return megatron(model, mesh, lambda name: {"copies": False} if name[-2:] in ("wq", "wk", "wv") else {})

    return parallelize


class OneKeyHead(Attention):
    """Keys and values of one head, which all heads share; their layers are whole on every rank of tp."""

    group, copies = None, True

    def __init__(self):
        super().__init__()
        self.wk, self.wv = (nn.Linear(WIDTH, WIDTH // HEADS) for _ in range(2))

    def forward(self, x):
        k, v = self.wk(x), self.wv(x)
        if self.group is not None and self.copies:
            k, v = CopyIn.apply(k, self.group), CopyIn.apply(v, self.group)
        q = self.wq(x)
        heads = q.shape[2] // (WIDTH // HEADS)
        return self.wo(attend(q, k.repeat(1, 1, heads), v.repeat(1, 1, heads)))


class SharedHeads(Decoder):
    def __init__(self):
        super().__init__()
        for block in self.blocks:
            block.attention = OneKeyHead()


def one_key_head(copies):
    """Not `copies`: gradients of the weights are summed over tp by hand, the input's is not."""

    def parallelize(model, mesh):
        group = mesh.get_group("tp")
        for block in model.blocks:
            attention = block.attention
            attention.group, attention.copies = group, copies
            attention.wq, attention.wo = Column(attention.wq, group), Row(attention.wo, group)
            block.mlp.up, block.mlp.down = Column(block.mlp.up, group), Row(block.mlp.down, group)
            if not copies:
                for parameter in (*attention.wk.parameters(), *attention.wv.parameters()):
                    parameter.register_hook(lambda g: sum_of(g, group))
        return ddp(model, mesh)

    return parallelize


def sum_of(gradient, group):
    gradient = gradient.clone()
    dist.all_reduce(gradient, group=group)
    return gradient


def summed_loss(model, batch):
    """The loss is summed over tp in the graph, and divided by the ranks, whose backward sums again."""
    numerator, count = loss(model, batch)
    return numerator, count


right("tensor parallelism by hand", Job(megatron, MIXED))
right("tensor parallelism by hand, three ways", Job(lambda m, mesh: megatron_wide(m, mesh), {"dp": 1, "tp": 4}))
right("the copy is made by the attention", Job(copied_once(True), MIXED))
right("one head of keys", Job(one_key_head(True), MIXED, make_model=SharedHeads))


def megatron_wide(model, mesh):
    return megatron(model, mesh, wrap=False)


for place in ("blocks.0.mlp.up", "blocks.1.attention.wk", "blocks.1.mlp.up"):
    wrong(f"no sum behind {place}", 5, Job(at(place, copies=False), MIXED), "backward", place)
wrong("no sum behind an attention", 5, Job(copied_once(False), MIXED), "backward", "blocks.1.attention")
for place in ("blocks.0.attention.wo", "blocks.1.mlp.down"):
    wrong(f"no sum in the forward of {place}", 5, Job(at(place, reduces=False), MIXED), "forward", place)
    wrong(f"a bias on every rank, {place}", 8, Job(at(place, bias_in_parts=True), MIXED), "forward", place)
    wrong(f"the backward of a sum sums, {place}", 15, Job(at(place, sums_again=True), MIXED), "backward", place)
wrong("one head of keys, its input", 3, Job(one_key_head(False), MIXED, make_model=SharedHeads), "backward", "blocks.1.attention.wv")
