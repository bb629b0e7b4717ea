"""Jobs for `addend.torch.check`, each right and with real-world mistakes: a decoder on the usual mesh axes. A mistake
says where it was made: the module in whose forward or backward it is, or another place.
"""

import contextlib
import dataclasses
import typing

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.autograd import Function

import ranks

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
        self.blocks = nn.ModuleDict({str(i): Block(mlp) for i in range(blocks)})
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens):
        # a pipeline stage has no embedding if it is not the first
        x = tokens if self.embed is None else self.embed(tokens)
        for block in self.blocks.values():
            x = block(x)
        return x if self.head is None else self.head(self.norm(x))


def whole():
    generator = torch.Generator(ranks.DEVICE).manual_seed(11)
    tokens = torch.randint(VOCABULARY, (ROWS, LENGTH), generator=generator)
    targets = torch.randint(VOCABULARY, (ROWS, LENGTH), generator=generator)
    targets[torch.rand(ROWS, LENGTH, generator=generator) < 0.3] = -100  # so the ranks' counts differ
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
    """The arguments of check, and what it must say of a mistake."""

    parallelize: typing.Callable
    mesh: dict
    arguments: dict = dataclasses.field(default_factory=dict)
    make_model: typing.Callable = Decoder
    batches: typing.Any = (whole, cut)
    loss: typing.Callable = loss


@dataclasses.dataclass
class Bug:
    name: str
    catalogue: int  # number of the published bug in docs/catalogue.md that this one repeats
    job: Job
    begins: str  # the module where it begins, or another place
    place: str


RIGHT, WRONG = {}, []


def right(name, job):
    RIGHT[name] = job


def wrong(name, catalogue, job, place, begins):
    WRONG.append(Bug(name, catalogue, job, begins, place))


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
    """Without a wrapper: one all_reduce at the end. `early`: after each microbatch, of what was accumulated so far."""
    for m, batch in enumerate(microbatches):
        loss_of(model, batch).backward()
        if early or m == len(microbatches) - 1:
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
                parameter.grad /= divisor


def summed_early(model, microbatches, loss_of):
    """Mistake: the first microbatch's gradient is averaged over ranks, and then again with the second's."""
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


def local_count(model, batch):
    """Mistake: the job divides by its own count and passes that on as the numerator."""
    numerator, count = loss(model, batch)
    return numerator / count.clamp(min=1) * 10, torch.tensor(10.0)


def hooked(model, mesh):
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda p: dist.all_reduce(p.grad))
    return model


def hooked_late(model, mesh):
    """Mistake: hooks are attached only at the end of the first backward."""
    done = []

    def attach(*_):
        if len(done) == 1:
            for parameter in model.parameters():
                parameter.register_post_accumulate_grad_hook(lambda p: dist.all_reduce(p.grad))
        done.append(1)

    model.register_forward_pre_hook(attach)
    return model


def averaging_hook(model, mesh, divisor):
    """Mistake: a communication hook of DDP divides by another number than the ranks."""

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
wrong(
    "gradients are cleared in every microbatch",
    19,
    Job(ddp, DP, {"run": cleared}, batches=(whole, cut_twice)),
    "reduction",
    "",
)
wrong(
    "the second microbatch is added to a mean",
    21,
    Job(plain, DP, {"run": summed_early, "averaged": 3}, batches=(whole, cut_twice)),
    "reduction",
    "",
)
wrong("a hook divides by ranks twice", 22, Job(lambda model, mesh: averaging_hook(model, mesh, 9), DP), "reduction", "")
wrong("each rank divides by its own count", 17, Job(ddp, DP, loss=own_mean), "loss", "")
wrong(
    "each microbatch is divided by its own count",
    16,
    Job(ddp, DP, loss=own_mean, batches=(whole, cut_twice)),
    "loss",
    "",
)


# -- fully_shard


def sharded(model, mesh):
    from torch.distributed.fsdp import fully_shard

    for block in model.blocks.values():
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)


def sharded_wrongly(model, mesh):
    sharded(model, mesh)
    model.blocks["0"].set_gradient_divide_factor(1.0)


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
wrong(
    "the norm counts replicas",
    27,
    Job(sharded, HSDP, {"norm": norm_of_all_ranks}, batches=(whole, cut_hsdp)),
    "norm",
    "",
)


# -- tensor parallelism by hand


class CopyIn(Function):
    """I -> R: each rank continues with something else, so the backward sums."""

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
    """P -> I: all ranks continue in the same way, so the backward is the identity; the mistake is a sum."""

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
    """S -> R along a dimension: the backward reduce-scatters; the mistake only cuts."""

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
    """P -> S along a dimension: the forward reduce-scatters; the backward gathers."""

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
    """A linear layer whose output dimension is cut."""

    def __init__(self, linear, group, copies=True):
        super().__init__()
        self.weight, self.bias = part_of(linear.weight, group, 0), part_of(linear.bias, group, 0)
        self.group, self.copies = group, copies

    def forward(self, x):
        return F.linear(CopyIn.apply(x, self.group) if self.copies else x, self.weight, self.bias)


class Row(nn.Module):
    """A linear layer whose input dimension is cut."""

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
    """`at(name)`: arguments of that layer, by which a mistake is made."""
    group = mesh.get_group("tp")
    for i, block in model.blocks.items():
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
    """Megatron's way: attention copies its input into the cut region once."""

    def forward(self, x):
        x = CopyIn.apply(x, self.wo.group) if self.copies else x
        return self.wo(attend(self.wq(x), self.wk(x), self.wv(x)))


def copied_once(copies):
    def parallelize(model, mesh):
        for block in model.blocks.values():
            block.attention.__class__, block.attention.copies = CopyingAttention, True
        model.blocks["1"].attention.copies = copies
        return megatron(model, mesh, lambda name: {"copies": False} if name[-2:] in ("wq", "wk", "wv") else {})

    return parallelize


class OneKeyHead(Attention):
    """Attention in which all heads share one head of keys and values, whose layers are whole on every rank of tp."""

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
        for block in self.blocks.values():
            block.attention = OneKeyHead()


def one_key_head(copies):
    """Without `copies`: gradients of the weights are summed over tp by hand, the input's is not."""

    def parallelize(model, mesh):
        group = mesh.get_group("tp")
        for block in model.blocks.values():
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


right("tensor parallelism by hand", Job(megatron, MIXED))
right(
    "tensor parallelism by hand, without data ranks",
    Job(lambda m, mesh: megatron(m, mesh, wrap=False), {"dp": 1, "tp": 4}),
)
right("the copy is made by the attention", Job(copied_once(True), MIXED))
right("one head of keys", Job(one_key_head(True), MIXED, make_model=SharedHeads))


for place in ("blocks.0.mlp.up", "blocks.1.attention.wk", "blocks.1.mlp.up"):
    wrong(f"no sum behind {place}", 5, Job(at(place, copies=False), MIXED), "backward", place)
wrong("no sum behind an attention", 5, Job(copied_once(False), MIXED), "backward", "blocks.1.attention")
for place in ("blocks.0.attention.wo", "blocks.1.mlp.down"):
    wrong(f"no sum in the forward of {place}", 5, Job(at(place, reduces=False), MIXED), "forward", place)
    wrong(f"a bias on every rank, {place}", 8, Job(at(place, bias_in_parts=True), MIXED), "forward", place)
    wrong(f"the backward of a sum sums, {place}", 15, Job(at(place, sums_again=True), MIXED), "backward", place)
wrong(
    "one head of keys, its input",
    3,
    Job(one_key_head(False), MIXED, make_model=SharedHeads),
    "backward",
    "blocks.1.attention",
)


# -- sequence parallelism by hand: between the cut layers each rank of tp has its own stretch of every sequence


class Split(Function):
    """I -> S: the forward cuts; the backward gathers."""

    @staticmethod
    def forward(context, x, group, dim):
        context.group, context.dim = group, dim
        return x.chunk(dist.get_world_size(group), dim)[dist.get_rank(group)].contiguous()

    @staticmethod
    def backward(context, gradient):
        parts = [torch.empty_like(gradient) for _ in range(dist.get_world_size(context.group))]
        dist.all_gather(parts, gradient.contiguous(), group=context.group)
        return torch.cat(parts, context.dim), None, None


class SplitEmbedding(nn.Embedding):
    def forward(self, tokens):
        return Split.apply(super().forward(tokens), self.group, 1)


class GatheredNorm(nn.LayerNorm):
    """All ranks continue in the same way, so the backward of the gather only cuts."""

    def forward(self, x):
        return Gather.apply(super().forward(x), self.group, 1, False)


class SequenceColumn(Column):
    sums = True

    def forward(self, x):
        return F.linear(Gather.apply(x, self.group, 1, self.sums), self.weight, self.bias)


class SequenceRow(Row):
    def forward(self, x):
        return Scatter.apply(F.linear(x, self.weight), self.group, 1) + self.bias


def sequence(model, mesh, summed=lambda name: 1, sums=lambda name: True):
    """`summed(name)`: how often the gradient is summed over tp, of which each rank has an addend for its part of the
    sequence.
    """
    group = mesh.get_group("tp")
    for i, block in model.blocks.items():
        for parent in ("attention", "mlp"):
            module = getattr(block, parent)
            for name, linear in list(module.named_children()):
                setattr(module, name, (SequenceRow if name in ("wo", "down") else SequenceColumn)(linear, group))
                getattr(module, name).sums = sums(f"blocks.{i}.{parent}.{name}")
    model.embed.__class__, model.norm.__class__ = SplitEmbedding, GatheredNorm
    model.embed.group = model.norm.group = group
    for name, parameter in model.named_parameters():
        if "norm" in name or name.endswith(("wo.bias", "down.bias")):
            for _ in range(summed(name)):
                parameter.register_hook(lambda gradient: sum_of(gradient, group))
    return ddp(model, mesh)


def summed_at(where, times):
    return lambda model, mesh: sequence(model, mesh, lambda name: times if name.startswith(where) else 1)


def slices_at(where):
    return lambda model, mesh: sequence(model, mesh, sums=lambda name: name != where)


right("sequence parallelism by hand", Job(sequence, MIXED))
wrong("norms are not summed over tp", 2, Job(summed_at("blocks.0.norm1", 0), MIXED), "reduction", "blocks.0.norm1")
wrong("no norm is summed over tp", 2, Job(lambda m, mesh: sequence(m, mesh, lambda name: 0), MIXED), "reduction", "")
wrong("norms are summed over tp twice", 7, Job(summed_at("blocks.1.norm2", 2), MIXED), "reduction", "blocks.1.norm2")
for place in ("blocks.0.mlp.up", "blocks.1.attention.wq"):
    wrong(f"a gather's backward cuts only, {place}", 5, Job(slices_at(place), MIXED), "backward", place)


# -- tensor and sequence parallelism by DTensor


def plan(mesh, head_output=None, **changed):
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        RowwiseParallel,
        SequenceParallel,
    )

    found = {
        "embed": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "head": ColwiseParallel(
            input_layouts=Shard(1), output_layouts=head_output or Replicate(), use_local_output=head_output is None
        ),
    }
    for i in range(2):
        at = f"blocks.{i}."
        found.update({at + "norm1": SequenceParallel(), at + "norm2": SequenceParallel()})
        for parent, columns, row in (("attention", ("wq", "wk", "wv"), "wo"), ("mlp", ("up",), "down")):
            found[at + parent] = PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))
            found.update({f"{at}{parent}.{column}": ColwiseParallel() for column in columns})
            found[f"{at}{parent}.{row}"] = RowwiseParallel(output_layouts=Shard(1))
    found.update(changed)
    return found


def dtensor(model, mesh, **changed):
    from torch.distributed.tensor.parallel import parallelize_module

    parallelize_module(model, mesh["tp"], plan(mesh, **changed))
    sharded(model, mesh["dp"])


def dtensor_plain(model, mesh):
    """Column and row cuts alone: activations are whole between them."""
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    columns = {
        f"blocks.{i}.{name}": ColwiseParallel()
        for i in range(2)
        for name in ("attention.wq", "attention.wk", "attention.wv", "mlp.up")
    }
    rows = {f"blocks.{i}.{name}": RowwiseParallel() for i in range(2) for name in ("attention.wo", "mlp.down")}
    parallelize_module(model, mesh["tp"], {**columns, **rows})
    return model


def vocabulary_parallel(model, mesh):
    from torch.distributed.tensor import Shard

    dtensor(model, mesh, head_output=Shard(-1))


def loss_in_parts(model, microbatches, loss_of):
    from torch.distributed.tensor.parallel import loss_parallel

    for batch in microbatches:
        with loss_parallel():
            loss_of(model, batch).backward()


def loss_of_parts(model, batch):
    """Loss parallel cannot flatten logits [rows, length, vocabulary], and takes no DTensor as a count."""
    tokens, targets = batch
    logits = model(tokens)
    sums = [F.cross_entropy(logits[:, i], targets[:, i], reduction="sum") for i in range(LENGTH)]
    return sum(sums), (targets >= 0).sum()


def forgetful(model, mesh):
    """Mistake: the output of a row-wise cut layer is Partial, and to_local() makes it this rank's own."""
    from torch.distributed.tensor import Partial
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    columns = {
        f"blocks.{i}.{name}": ColwiseParallel()
        for i in range(2)
        for name in ("attention.wq", "attention.wk", "attention.wv", "mlp.up")
    }
    rows = {f"blocks.{i}.{name}": RowwiseParallel() for i in range(2) for name in ("attention.wo", "mlp.down")}
    rows["blocks.1.mlp.down"] = RowwiseParallel(output_layouts=Partial())
    parallelize_module(model, mesh["tp"], {**columns, **rows})
    return model


def whole_on_each(batch, rank, mesh):
    return [batch]


right("DTensor, columns and rows", Job(dtensor_plain, {"tp": 2}, batches=(whole, whole_on_each)))
right("DTensor, sequences, in fully_shard", Job(dtensor, MIXED))
right("DTensor, loss parallel", Job(vocabulary_parallel, MIXED, {"run": loss_in_parts}, loss=loss_of_parts))
wrong(
    "a Partial is taken for the whole",
    5,
    Job(forgetful, {"tp": 2}, batches=(whole, whole_on_each)),
    "forward",
    "blocks.1.mlp.down",
)


# -- experts: a token goes to the expert that its router likes best, on whatever rank it is


class Exchange(Function):
    """An exchange of rows in pieces of given sizes between the ranks of a group; backward sends gradients back."""

    @staticmethod
    def forward(context, x, sent, received, group, averages):
        context.sizes, context.averages = (sent, received, group), averages
        out = x.new_empty(sum(received), *x.shape[1:])
        dist.all_to_all_single(out, x.contiguous(), received, sent, group=group)
        return out

    @staticmethod
    def backward(context, gradient):
        sent, received, group = context.sizes
        out = gradient.new_empty(sum(sent), *gradient.shape[1:])
        dist.all_to_all_single(out, gradient.contiguous(), sent, received, group=group)
        return out / dist.get_world_size(group) if context.averages else out, None, None, None, None


class Experts(nn.Module):
    COUNT = 4

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(self.COUNT, WIDTH, WIDTH) / 3)

    def forward(self, x, counts):
        pieces = x.split(counts)
        return torch.cat([torch.tanh(piece @ weight) for piece, weight in zip(pieces, self.weight)])


class Moe(nn.Module):
    group, drops, averages = None, False, False

    def __init__(self):
        super().__init__()
        self.gate, self.experts = nn.Linear(WIDTH, Experts.COUNT), Experts()

    def forward(self, x):
        tokens = x.flatten(0, 1)
        score, expert = torch.softmax(self.gate(tokens), -1).max(-1)
        order = torch.argsort(expert, stable=True)
        counts = torch.bincount(expert, minlength=Experts.COUNT)
        if self.group is None:
            y = self.experts(tokens[order], counts.tolist())
        else:
            y = self.exchanged(tokens[order], counts)
            if self.drops:
                mine = expert // len(self.experts.weight) == dist.get_rank(self.group)
                score = torch.where(mine, score, score.detach())
        back = torch.empty_like(order)
        back[order] = torch.arange(len(order))
        return (score[:, None] * y[back]).view_as(x)

    def exchanged(self, sorted_tokens, counts):
        """Experts: every rank gets the tokens of its experts, rank by rank, and sorts them by expert."""
        world = dist.get_world_size(self.group)
        theirs = torch.empty_like(counts)
        dist.all_to_all_single(theirs, counts, group=self.group)
        sent, received = counts.view(world, -1).sum(1).tolist(), theirs.view(world, -1).sum(1).tolist()
        got = Exchange.apply(sorted_tokens, sent, received, self.group, self.averages)
        own = len(self.experts.weight)
        order = torch.argsort(torch.arange(own).repeat(world).repeat_interleave(theirs), stable=True)
        y = self.experts(got[order], theirs.view(world, own).sum(0).tolist())
        back = torch.empty_like(order)
        back[order] = torch.arange(len(order))
        return Exchange.apply(y[back], received, sent, self.group, False)


def mixture():
    return Decoder(mlp=Moe)


def experts_on(mesh_axis="ep", **flags):
    def parallelize(model, mesh):
        for block in model.blocks.values():
            block.mlp.group = mesh.get_group(mesh_axis)
            block.mlp.experts.weight = part_of(block.mlp.experts.weight, block.mlp.group, 0)
        for name, value in flags.items():
            setattr(model.blocks["1"].mlp, name, value)
        model.mesh = mesh
        return model

    return parallelize


def sums_of_experts(divisor=1):
    def run(model, microbatches, loss_of):
        for batch in microbatches:
            loss_of(model, batch).backward()
        for name, parameter in model.named_parameters():
            dist.all_reduce(parameter.grad, group=model.mesh.get_group("dp"))
            if "experts" in name:
                parameter.grad /= divisor
            else:
                dist.all_reduce(parameter.grad, group=model.mesh.get_group("ep"))

    return run


def cut_over_all(batch, rank, mesh):
    tokens, targets = (x.chunk(mesh.size())[rank] for x in batch)
    return [(tokens, targets)]


EP = {"dp": 3, "ep": 2}


def experts_job(divisor=1, **flags):
    return Job(
        experts_on(**flags), EP, {"run": sums_of_experts(divisor)}, make_model=mixture, batches=(whole, cut_over_all)
    )


right("experts", experts_job())
wrong("scores of experts elsewhere have no gradient", 4, experts_job(drops=True), "backward", "blocks.1.mlp")
wrong("experts are divided by their own group", 12, experts_job(divisor=3), "reduction", "")
wrong("the exchange averages on the way back", 13, experts_job(averages=True), "backward", "blocks.1.mlp")


# -- context parallelism: each rank of cp has a stretch of every sequence, in zigzag


class ContextAttention(Attention):
    """Attention that gathers keys and values of all parts of the sequence; the backward sums and cuts."""

    group, sums = None, True

    def forward(self, x):
        q, k, v = self.wq(x), self.wk(x), self.wv(x)
        world, rank = dist.get_world_size(self.group), dist.get_rank(self.group)
        k, v = Gather.apply(k, self.group, 1, self.sums), Gather.apply(v, self.group, 1, self.sums)
        at = torch.cat([stretch(r, world, k.shape[1]) for r in range(world)])
        mask = stretch(rank, world, k.shape[1])[:, None] >= at[None]
        y = F.scaled_dot_product_attention(split_heads(q), split_heads(k), split_heads(v), attn_mask=mask)
        return self.wo(y.transpose(1, 2).flatten(2))


def stretch(rank, world, length):
    """Cut in zigzag: a piece from the front and one from the back, so that all ranks have the same work."""
    pieces = torch.arange(length).chunk(2 * world)
    return torch.cat([pieces[rank], pieces[2 * world - 1 - rank]])


def context(model, mesh, sums=True):
    for i, block in model.blocks.items():
        block.attention.__class__ = ContextAttention
        block.attention.group, block.attention.sums = mesh.get_group("cp"), sums or i == "0"
    return nn.parallel.DistributedDataParallel(model)


def longer():
    tokens, targets = whole()
    return torch.cat([tokens, tokens[:, :2]], 1), torch.cat([targets, targets[:, 2:4]], 1)


def cut_stretches(batch, rank, mesh):
    at = stretch(mesh.get_local_rank("cp"), mesh.size("cp"), batch[0].shape[1])
    return [tuple(x.chunk(mesh.size("dp"))[mesh.get_local_rank("dp")][:, at] for x in batch)]


CP = {"dp": 3, "cp": 2}
right("context parallelism", Job(context, CP, batches=(longer, cut_stretches)))
wrong(
    "a gather of keys whose backward cuts only",
    5,
    Job(lambda model, mesh: context(model, mesh, False), CP, batches=(longer, cut_stretches)),
    "backward",
    "blocks.1.attention",
)
wrong(
    "each stretch is divided by its own count",
    18,
    Job(context, CP, batches=(longer, cut_stretches), loss=own_mean),
    "loss",
    "",
)
wrong(
    "ranks of cp are divided by too",
    14,
    Job(context, CP, {"averaged": 3}, batches=(longer, cut_stretches)),
    "reduction",
    "",
)
wrong(
    "a term is divided by its local count",
    11,
    Job(context, CP, batches=(longer, cut_stretches), loss=local_count),
    "loss",
    "",
)


# -- stages of a pipeline


PIECES = 4


def staged(schedule_name, stages_of_rank, wrap=lambda part, mesh: part):
    """Cut the model into stages over pp; `wrap`(module, mesh) wraps a stage's module."""

    def parallelize(model, mesh):
        import copy

        from torch.distributed.pipelining import PipelineStage
        from torch.distributed.pipelining.schedules import get_schedule_class

        group = mesh.get_group("pp")
        world, rank = dist.get_world_size(group), dist.get_rank(group)
        made, count = [], world * len(stages_of_rank(0, world))
        for stage in stages_of_rank(rank, world):
            part = copy.deepcopy(model)
            kept = [k for i, k in enumerate(part.blocks) if i * count // len(part.blocks) == stage]
            part.blocks = nn.ModuleDict({k: part.blocks[k] for k in kept})
            if stage > 0:
                part.embed = None
            if stage < count - 1:
                part.norm = part.head = None
            made.append(PipelineStage(wrap(part, mesh), stage, count, ranks.DEVICE, group=group))
        kind = get_schedule_class(schedule_name)
        losses = {}
        schedule = kind(
            made if len(made) > 1 else made[0], PIECES, loss_fn=lambda *a: losses["fn"](*a), scale_grads=False
        )
        modules = [stage.submod for stage in made]
        own = stages_of_rank(rank, world)
        modules[0].stages = schedule, losses, 0 in own, count - 1 in own
        return modules

    return parallelize


def run_stages(model, microbatches, loss_of):
    schedule, losses, first, last = model[0].stages
    losses["fn"] = lambda output, target: loss_of(lambda _: output, (None, target))
    for tokens, targets in microbatches:
        arguments = (tokens,) if first else ()
        schedule.step(*arguments, **({"target": targets} if last else {}))


def four_blocks():
    return Decoder(blocks=4)


def one_each(rank, world):
    return [rank]


def two_each(rank, world):
    return [rank, rank + world]


def there_and_back(rank, world):
    return [rank, 2 * world - 1 - rank]


PP = {"pp": 2}
for name, stages in (("1F1B", one_each), ("InterleavedZeroBubble", two_each), ("ZBVZeroBubble", there_and_back)):
    right(
        f"a pipeline, {name}",
        Job(staged(name, stages), PP, {"run": run_stages}, make_model=four_blocks, batches=(whole, whole_on_each)),
    )


# -- wrappers that change names and compute twice


def checkpointed(reentrant):
    def parallelize(model, mesh):
        from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointImpl, checkpoint_wrapper

        kind = CheckpointImpl.REENTRANT if reentrant else CheckpointImpl.NO_REENTRANT
        for i, block in model.blocks.items():
            model.blocks[i] = checkpoint_wrapper(block, checkpoint_impl=kind)
        return ddp(model, mesh)

    return parallelize


right("checkpoints", Job(checkpointed(False), DP))
right("reentrant checkpoints", Job(checkpointed(True), DP))


# -- a router that every rank of tp computes, and whose scores each uses for its own experts


class SharedRouter(nn.Module):
    COUNT, group, copies = 4, None, True

    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(WIDTH, self.COUNT)
        self.weight = nn.Parameter(torch.randn(self.COUNT, WIDTH, WIDTH) / 3)

    def forward(self, x):
        scores = torch.softmax(self.gate(x), -1)
        if self.group is None:
            return torch.einsum("bse,besd->bsd", scores, torch.tanh(x[:, None] @ self.weight))
        own, scores = len(self.weight), CopyIn.apply(scores, self.group) if self.copies else scores
        first, x = dist.get_rank(self.group) * own, CopyIn.apply(x, self.group)
        scores = scores[:, :, first : first + own]
        part = torch.einsum("bse,besd->bsd", scores, torch.tanh(x[:, None] @ self.weight))
        return ReduceOut.apply(part, self.group)


def routed():
    return Decoder(mlp=SharedRouter)


def routers(copies):
    def parallelize(model, mesh):
        for block in model.blocks.values():
            block.mlp.group = mesh.get_group("tp")
            block.mlp.weight = part_of(block.mlp.weight, block.mlp.group, 0)
        model.blocks["0"].mlp.copies = copies
        return ddp(model, mesh)

    return parallelize


right("a router on tp", Job(routers(True), MIXED, make_model=routed))
wrong(
    "the router's gradient is taken for final",
    1,
    Job(routers(False), MIXED, make_model=routed),
    "backward",
    "blocks.0.mlp",
)
