"""More jobs for `addend.torch.check`: wrappers that change names and parameters, ring attention, and mistakes in
pipelines and in DTensor's plans.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.autograd import Function

import ranks
import right_jobs
from right_jobs import DP, HSDP, MIXED, Attention, Job, right, split_heads, whole, wrong

# -- torch.compile around the job


def compiled(model, mesh, inner=lambda model, mesh: model):
    """Compile with the backend that traces forward and backward without a C++ compiler."""
    return right_jobs.ddp(torch.compile(inner(model, mesh), backend="aot_eager"), mesh)


def compiled_blocks(model, mesh):
    for block in model.blocks.values():
        block.compile(backend="aot_eager")
    return right_jobs.ddp(model, mesh)


def megatron_compiled(forgotten):
    def parallelize(model, mesh):
        layers = right_jobs.at(forgotten, copies=False) if forgotten else right_jobs.megatron
        return torch.compile(layers(model, mesh), backend="aot_eager")

    return parallelize


right("compiled in DDP", Job(compiled, DP))
right("blocks that are compiled, in DDP", Job(compiled_blocks, DP))
right("tensor parallelism by hand, compiled", Job(megatron_compiled(""), MIXED))
wrong(
    "compiled, no sum behind blocks.1.mlp.up", 5, Job(megatron_compiled("blocks.1.mlp.up"), MIXED), "backward",
    "blocks.1.mlp.up",
)  # fmt: skip


# -- FullyShardedDataParallel


def flat(strategy="FULL_SHARD", axes=("dp",), wrapped=True):
    def parallelize(model, mesh):
        from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy

        arguments = {
            "sharding_strategy": ShardingStrategy[strategy],
            "use_orig_params": True,
            "device_id": ranks.DEVICE,
            "device_mesh": mesh[axes] if len(axes) > 1 else mesh[axes[0]],
        }
        if wrapped:
            for name, block in model.blocks.items():
                model.blocks[name] = FullyShardedDataParallel(block, **arguments)
        return FullyShardedDataParallel(model, **arguments)

    return parallelize


def averaged_again(model, microbatches, loss_of):
    for batch in microbatches:
        loss_of(model, batch).backward()
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad /= dist.get_world_size()


def flat_around_cut(forgotten=""):
    """Layers sharded by hand over tp, in FullyShardedDataParallel's flat buffers, which are sharded over dp."""

    def parallelize(model, mesh):
        arguments = {"copies": False}
        model = right_jobs.megatron(model, mesh, lambda name: arguments if name == forgotten else {}, wrap=False)
        return flat()(model, mesh)

    return parallelize


right("FullyShardedDataParallel", Job(flat(), DP))
right("FullyShardedDataParallel around layers cut by hand", Job(flat_around_cut(), MIXED))
right("FullyShardedDataParallel, SHARD_GRAD_OP", Job(flat("SHARD_GRAD_OP"), DP))
right(
    "FullyShardedDataParallel, HYBRID_SHARD",
    Job(flat("HYBRID_SHARD", tuple(HSDP)), HSDP, batches=(whole, right_jobs.cut_hsdp)),
)
right(
    "FullyShardedDataParallel, no_sync",
    Job(flat(), DP, {"run": right_jobs.no_sync}, batches=(whole, right_jobs.cut_twice)),
)
wrong(
    "FullyShardedDataParallel, divided by own counts", 17, Job(flat(), DP, loss=right_jobs.own_mean), "loss", ""
)  # fmt: skip
wrong(
    "FullyShardedDataParallel, averaged again",
    22,
    Job(flat(), DP, {"run": averaged_again}),
    "reduction",
    "",
)
wrong(
    "FullyShardedDataParallel around layers cut by hand, averaged again",
    22,
    Job(flat_around_cut(), MIXED, {"run": averaged_again}),
    "reduction",
    "",
)
wrong(
    "FullyShardedDataParallel around layers cut by hand, no sum behind blocks.1.mlp.up", 5,
    Job(flat_around_cut("blocks.1.mlp.up"), MIXED), "backward", "blocks.1.mlp.up",
)  # fmt: skip


# -- ring attention: keys and values go from rank to rank, in one batch of sends and receives


class Pass(Function):
    """To the next rank of a ring; the backward goes the other way (the mistake: the same way)."""

    @staticmethod
    def forward(context, x, group, returns):
        context.group, context.returns = group, returns
        return passed(x, group, 1)

    @staticmethod
    def backward(context, gradient):
        return passed(gradient, context.group, -1 if context.returns else 1), None, None


def passed(x, group, step):
    world, rank = dist.get_world_size(group), dist.get_rank(group)
    x, out = x.contiguous(), torch.empty_like(x, memory_format=torch.contiguous_format)
    after, before = (dist.get_global_rank(group, (rank + by) % world) for by in (step, -step))
    pair = [
        dist.P2POp(dist.isend, x, after, group),
        dist.P2POp(dist.irecv, out, before, group),
    ]
    for work in dist.batch_isend_irecv(pair):
        work.wait()
    return out


class RingAttention(Attention):
    group, returns, keeps = None, True, True

    def forward(self, x):
        q, k, v = self.wq(x), self.wk(x), self.wv(x)
        world, rank = dist.get_world_size(self.group), dist.get_rank(self.group)
        pair, scores, values = torch.stack([k, v]), [], []
        for step in range(world):
            k, v = (split_heads(y) for y in pair)
            own = torch.arange(x.shape[1])
            mask = (own + rank * len(own))[:, None] >= own + (rank - step) % world * len(own)
            score = split_heads(q) @ k.transpose(-1, -2) / k.shape[-1] ** 0.5
            scores.append(score.masked_fill(~mask, float("-inf")))
            values.append(v)
            if step < world - 1:
                pair = Pass.apply(pair if self.keeps else pair.detach(), self.group, self.returns)
        y = torch.softmax(torch.cat(scores, -1), -1) @ torch.cat(values, 2)
        return self.wo(y.transpose(1, 2).flatten(2))


def ring(**flags):
    def parallelize(model, mesh):
        for block in model.blocks.values():
            block.attention.__class__ = RingAttention
            block.attention.group = mesh.get_group("cp")
        for name, value in flags.items():
            setattr(model.blocks["1"].attention, name, value)
        return nn.parallel.DistributedDataParallel(model)

    return parallelize


def cut_runs(batch, rank, mesh):
    tokens, targets = (x.chunk(mesh.size("dp"))[mesh.get_local_rank("dp")] for x in batch)
    at = mesh.get_local_rank("cp")
    return [(tokens.chunk(mesh.size("cp"), 1)[at], targets.chunk(mesh.size("cp"), 1)[at])]


RING = {"dp": 2, "cp": 3}
right("ring attention", Job(ring(), RING, batches=(whole, cut_runs)))
wrong(
    "a ring whose gradients go on instead of back", 5, Job(ring(returns=False), RING, batches=(whole, cut_runs)),
    "backward", "blocks.1.attention",
)  # fmt: skip
wrong(
    "a ring that detaches what it passes on", 4, Job(ring(keeps=False), RING, batches=(whole, cut_runs)), "backward",
    "blocks.1.attention",
)  # fmt: skip


# -- mistakes in pipelines


def staged_wrongly(schedule, stages, forgotten):
    """`forgotten`(stage modules, rank) makes the mistake in a stage."""
    made = right_jobs.staged(schedule, stages)

    def parallelize(model, mesh):
        modules = made(model, mesh)
        forgotten(modules, dist.get_rank())
        return modules

    return parallelize


def doubled_backward(modules, rank):
    """Mistake: a block returns twice the gradient."""
    for module in modules:
        if "1" in module.blocks:
            module.blocks["1"].mlp.__class__ = DoublingMlp


class Twice(Function):
    @staticmethod
    def forward(context, x):
        return x.view_as(x)

    @staticmethod
    def backward(context, gradient):
        return 2 * gradient


class DoublingMlp(right_jobs.Mlp):
    def forward(self, x):
        return super().forward(Twice.apply(x))


def scaled_again(model, microbatches, loss_of):
    """Mistake: the schedule accumulates gradients, and a stage also divides its own by the number of microbatches."""
    right_jobs.run_stages(model, microbatches, loss_of)
    if dist.get_rank() == 0:
        for module in model:
            for parameter in module.parameters():
                parameter.grad /= right_jobs.PIECES


PP = right_jobs.PP
SCHEDULES = (("1F1B", right_jobs.one_each), ("ZBVZeroBubble", right_jobs.there_and_back))
for name, stages in SCHEDULES:
    job = {"make_model": right_jobs.four_blocks, "batches": (whole, right_jobs.whole_on_each)}
    arguments = {"run": right_jobs.run_stages}
    wrong(
        f"a pipeline, {name}, a block hands back twice", 15,
        Job(staged_wrongly(name, stages, doubled_backward), PP, arguments, **job), "backward", "blocks.1.mlp",
    )  # fmt: skip
    wrong(
        f"a pipeline, {name}, each piece is divided by its own count", 16,
        Job(right_jobs.staged(name, stages), PP, arguments, loss=right_jobs.own_mean, **job), "loss", "",
    )  # fmt: skip
    wrong(
        f"a pipeline, {name}, a stage scales once more", 22,
        Job(right_jobs.staged(name, stages), PP, {"run": scaled_again}, **job), "reduction", "",
    )  # fmt: skip


# -- stages in DistributedDataParallel


def in_ddp(part, mesh):
    return nn.parallel.DistributedDataParallel(part, process_group=mesh.get_group("dp"))


def first_stage_alone(part, mesh):
    """In the other stages the mistake leaves out DDP."""
    return in_ddp(part, mesh) if part.embed is not None else part


def doubled_in_ddp(part, mesh):
    doubled_backward([part], None)
    return in_ddp(part, mesh)


def stages_in(wrap, loss=right_jobs.loss, **arguments):
    return Job(
        right_jobs.staged("1F1B", right_jobs.one_each, wrap), {"dp": 3, "pp": 2},
        {"run": right_jobs.run_stages, **arguments},
        make_model=right_jobs.four_blocks, loss=loss,
    )  # fmt: skip


right("a pipeline of stages in DDP", stages_in(in_ddp))
wrong("a pipeline, one stage is not in DDP", 20, stages_in(first_stage_alone, averaged=3), "reduction", "")
wrong(
    "a pipeline of stages in DDP, a block hands back twice", 15, stages_in(doubled_in_ddp), "backward", "blocks.1.mlp"
)
wrong(
    "a pipeline of stages in DDP, each piece is divided by its own count",
    16,
    stages_in(in_ddp, loss=right_jobs.own_mean),
    "loss",
    "",
)


# -- embeddings that the first stage and the last have together


def tied_blocks():
    model = right_jobs.four_blocks()
    model.head.weight = model.embed.weight
    return model


def tied_head_first():
    """In one process the parameter is called head.weight."""
    model = tied_blocks()
    embed = model.embed
    del model.embed
    model.embed = embed
    return model


def sums_of_tied(times):
    def run(model, microbatches, loss_of):
        right_jobs.run_stages(model, microbatches, loss_of)
        for module in model:
            end = module.embed or module.head
            for _ in range(times if end is not None else 0):
                dist.all_reduce(end.weight.grad)

    return run


def tied_job(times, make_model=tied_blocks):
    return Job(
        right_jobs.staged("1F1B", right_jobs.one_each), PP, {"run": sums_of_tied(times)}, make_model=make_model,
        batches=(whole, right_jobs.whole_on_each),
    )  # fmt: skip


def of_one_rank(modules, rank):
    """Rank 0 has the first stage and the last."""
    if rank == 0:
        modules[1].head.weight = modules[0].embed.weight


right("a pipeline whose ends are tied", tied_job(1))
right(
    "a pipeline whose ends are one parameter of one rank",
    Job(
        staged_wrongly("ZBVZeroBubble", right_jobs.there_and_back, of_one_rank), PP, {"run": right_jobs.run_stages},
        make_model=tied_blocks, batches=(whole, right_jobs.whole_on_each),
    ),
)  # fmt: skip
wrong("a pipeline whose ends are tied and not summed", 2, tied_job(0), "reduction", "embed")
wrong("a pipeline whose ends are tied and not summed, head first", 2, tied_job(0, tied_head_first), "reduction", "head")
wrong("a pipeline whose ends are tied and summed twice", 7, tied_job(2), "reduction", "embed")


# -- attention as models have it, whose code has a number of heads and reads sizes


class CountingAttention(Attention):
    """Attention with a number of `heads`, which parallelize divides; the scale uses the model's width, or (the mistake)
    the width of a rank's part.
    """

    reads_own = False

    def __init__(self):
        super().__init__()
        self.heads, self.width = 6, right_jobs.WIDTH

    def forward(self, x):
        q, k, v = self.wq(x), self.wk(x), self.wv(x)
        width = q.shape[2] if self.reads_own else self.width
        q, k, v = (y.view(*x.shape[:2], self.heads, -1).transpose(1, 2) for y in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=width**-0.5)
        return self.wo(y.transpose(1, 2).flatten(2))


def counting():
    model = right_jobs.Decoder()
    for block in model.blocks.values():
        block.attention = CountingAttention()
    return model


def heads_divided(reads_own=False, divided=True):
    def parallelize(model, mesh):
        for block in model.blocks.values():
            block.attention.heads //= mesh.size() if divided else 1
        model.blocks["1"].attention.reads_own = reads_own
        return right_jobs.dtensor_plain(model, mesh)

    return parallelize


def counting_job(**flags):
    return Job(heads_divided(**flags), {"tp": 2}, make_model=counting, batches=(whole, right_jobs.whole_on_each))


right("heads that are counted, DTensor", counting_job())
wrong(
    "attention that reads the width of its own part", 11, counting_job(reads_own=True), "forward", "blocks.1.attention"
)  # fmt: skip
wrong(
    "heads are not divided, and are narrower for it", 11, counting_job(divided=False), "forward", "blocks.0.attention"
)  # fmt: skip


# -- the whole batch in several parts, of each of which every rank has a piece


def halves():
    return [tuple(x[i * 6 : i * 6 + 6] for x in whole()) for i in range(2)]


def cut_each(batches, rank, mesh):
    return [pair for batch in batches for pair in right_jobs.cut(batch, rank, mesh)]


right("the whole in two batches", Job(right_jobs.megatron, MIXED, batches=(halves, cut_each)))
for place in ("blocks.0.mlp.up", "blocks.1.attention.wk"):
    wrong(
        f"the whole in two batches, no sum behind {place}",
        5,
        Job(right_jobs.at(place, copies=False), MIXED, batches=(halves, cut_each)),
        "backward",
        place,
    )
wrong(
    "the whole in two batches, each piece is divided by its own count",
    16,
    Job(right_jobs.ddp, DP, batches=(halves, cut_each), loss=right_jobs.own_mean),
    "loss",
    "",
)


# -- mistakes in what is averaged, in which width, and when


def penalised(factor=1.0):
    """A loss with a second term, which has the weight of the rank's share of the count; `factor`: the mistake of a
    producer that scales for its own pool, which is not the one that averages. The term reads a parameter outside any
    module, so check names the module that has the parameter.
    """

    def loss_of(model, batch):
        numerator, count = right_jobs.loss(model, batch)
        head = (model.module if dist.is_initialized() else model).head
        return numerator + head.weight.square().sum() * count * (factor if dist.is_initialized() else 1), count

    return loss_of


right("a term of its own", Job(right_jobs.ddp, DP, loss=penalised()))
wrong(
    "a producer forgets what its pool averages",
    9,
    Job(right_jobs.ddp, DP, loss=penalised(1 / 3)),
    "backward",
    "head",
)
wrong(
    "a seed of a pool that averages over others",
    10,
    Job(right_jobs.ddp, DP, loss=penalised(0.5)),
    "backward",
    "head",
)


def read_in_another_width(model, microbatches, loss_of):
    """Mistake: 1/3 is stored as f64 and its lower half read as f32, which is almost nothing."""
    for batch in microbatches:
        loss_of(model, batch).backward()
    factor = torch.tensor([0.5], dtype=torch.float64).view(torch.float32)[0].item()
    for parameter in model.parameters():
        parameter.grad *= factor


def reused(model, microbatches, loss_of):
    """Mistake: one buffer serves all sums, and is filled for the next parameter before the sum before has read it."""
    loss_of(model, microbatches[0]).backward()
    buffer = torch.empty(max(parameter.numel() for parameter in model.parameters()), dtype=torch.float64)
    before = None
    for parameter in model.parameters():
        place = buffer[: parameter.numel()].view_as(parameter)
        place.copy_(parameter.grad)
        if before is not None:
            dist.all_reduce(buffer[: before.numel()].view_as(before))
            before.grad.copy_(buffer[: before.numel()].view_as(before))
        before = parameter
    dist.all_reduce(before.grad)


wrong(
    "a factor is read in another width",
    23,
    Job(right_jobs.ddp, DP, {"run": read_in_another_width}),
    "reduction",
    "",
)
wrong(
    "a buffer is filled again before it was read",
    26,
    Job(right_jobs.plain, DP, {"run": reused}),
    "reduction",
    "",
)


# -- DTensor's plans


def partial_gradient(model, mesh):
    """Mistake: a cut layer's input is taken for whole, by to_local() without the gradient's placement."""
    from torch.distributed.tensor import DTensor, Replicate

    right_jobs.dtensor_plain(model, mesh)
    up, group = model.blocks["1"].mlp.up, mesh["tp"]

    def forward(x, weight=None):
        x = DTensor.from_local(x, group, [Replicate()]).to_local()  # grad_placements=[Partial()] is missing
        return F.linear(x, up.weight.to_local(), up.bias.to_local())

    up.forward = forward
    up._forward_hooks.clear()
    up._forward_pre_hooks.clear()
    return model


TP = {"tp": 2}
wrong(
    "to_local without the gradient's placement",
    5,
    Job(partial_gradient, TP, batches=(whole, right_jobs.whole_on_each)),
    "backward",
    "blocks.1.mlp.up",
)
wrong(
    "loss parallel, each rank divides by its own count",
    17,
    Job(
        right_jobs.vocabulary_parallel,
        MIXED,
        {"run": right_jobs.loss_in_parts},
        loss=lambda model, batch: mean_of(*right_jobs.loss_of_parts(model, batch)),
    ),
    "loss",
    "",
)


def mean_of(numerator, count):
    return numerator / count
