"""Jobs for `addend.torch.check`: right ones, and wrong ones with the place of their mistake."""

import contextlib
import copy
import warnings

import kinds
import kinds_libraries
import kinds_parallel
import kinds_right
import torch
import torch.distributed as dist
import torch.nn.functional as F
from kinds import IN, OUT, WORDS, Net, Truth, Words
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, schedules
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

ROWS, LENGTH = 12, 8


def right(make, needs=()):
    kinds.checked(make.__name__, make, None, needs)
    return make


def wrong(place, module=None, needs=(), silent=""):
    def keep(make):
        kinds.checked(make.__name__, make, Truth(place=place, module=module, silent=silent), needs)
        return make

    return keep


def needing(*needs):
    return lambda make: right(make, needs)


# -- batches and losses


def tokens_of(draw):
    def whole():
        generator = torch.Generator().manual_seed(draw.base)
        tokens = torch.randint(WORDS, (ROWS, LENGTH), generator=generator)
        labels = torch.randint(WORDS, (ROWS, LENGTH), generator=generator)
        chances = torch.linspace(0.1, 0.6, ROWS)[:, None]
        labels[torch.rand(ROWS, LENGTH, generator=generator) < chances] = -100
        labels[:, -1] = 1
        return tokens, labels

    return whole


def rows_of(draw, rows=ROWS):
    def whole():
        generator = torch.Generator().manual_seed(draw.base)
        return torch.randn(rows, IN, generator=generator), torch.randn(rows, OUT, generator=generator)

    return whole


def cut_rows(axes=("dp",), microbatches=1):
    def cut(batch, rank, mesh):
        parts, at = 1, 0
        for axis in axes:
            parts, at = parts * mesh.size(axis), at * mesh.size(axis) + mesh.get_local_rank(axis)
        own = [x.chunk(parts)[at] for x in batch]
        return list(zip(*(x.chunk(microbatches) for x in own)))

    return cut


def token_loss(model, batch):
    tokens, labels = batch
    logits = model(tokens)
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum"), (labels >= 0).sum()


def square_loss(model, batch):
    x, y = batch
    return (model(x) - y).square().sum(), y.numel()


def ddp(model, mesh, **more):
    group = mesh.get_group("dp") if mesh.ndim > 1 else None
    return DistributedDataParallel(model, process_group=group, **more)


def sharded(layers=lambda model: ()):
    def parallelize(model, mesh):
        mesh = mesh["dp"] if mesh.ndim > 1 else mesh
        for layer in layers(model):
            fully_shard(layer, mesh=mesh)
        return fully_shard(model, mesh=mesh)

    return parallelize


def no_sync(model, microbatches, loss_of):
    for m, batch in enumerate(microbatches):
        with contextlib.nullcontext() if m == len(microbatches) - 1 else model.no_sync():
            loss_of(model, batch).backward()


def by_hand(model, microbatches, loss_of):
    for batch in microbatches:
        loss_of(model, batch).backward()
    kinds.all_reduced(model.parameters())


def job(
    draw, make_model, parallelize=ddp, mesh=None, whole=None, loss=token_loss, microbatches=1, axes=("dp",), **more
):
    mesh = mesh or {"dp": draw.randint(2, 3)}
    whole = whole or tokens_of(draw)
    batches = more.pop("batches", (whole, cut_rows(axes, microbatches)))
    return dict(make_model=make_model, parallelize=parallelize, batches=batches, loss=loss, mesh=mesh, **more)


# -- right


@right
def check_ddp(draw):
    count = draw.randint(1, 2)
    more = {"run": no_sync} if draw.random() < 0.5 else {}
    return job(draw, draw.one_of(Words, lambda: Words(tied=True)), microbatches=count, **more)


@right
def check_fully_shard(draw):
    layers = draw.one_of(lambda model: (), lambda model: model.blocks)
    return job(draw, Words, sharded(layers), microbatches=draw.randint(1, 2))


@right
def check_hsdp(draw):
    def parallelize(model, mesh):
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        return fully_shard(model, mesh=mesh)

    axes = ("dp_replicate", "dp_shard")
    return job(draw, Words, parallelize, {"dp_replicate": 2, "dp_shard": draw.one_of(1, 2)}, axes=axes)


@right
def check_loss_of_the_window(draw):
    """A scalar loss: the sum over a microbatch, divided by the tokens of all ranks and microbatches, times ranks."""
    whole, ranks, count = tokens_of(draw), draw.randint(2, 3), draw.randint(1, 3)
    total = int((whole()[1] >= 0).sum())

    def loss(model, batch):
        numerator, _ = token_loss(model, batch)
        return numerator / total * (ranks if dist.is_initialized() else 1)

    wrapper = draw.one_of(ddp, sharded())
    return job(draw, Words, wrapper, {"dp": ranks}, whole, loss, count)


@right
def check_mean_loss(draw):
    """A scalar loss that is a mean, of equal parts."""
    wrapper = draw.one_of(ddp, sharded())
    loss = lambda model, batch: (model(batch[0]) - batch[1]).square().mean()  # noqa: E731
    return job(draw, Net, wrapper, whole=rows_of(draw), loss=loss)


@right
def check_optimizers(draw):
    name = draw.one_of("SGD", "AdamW", "Adam", "foreach", "Adagrad", "RMSprop", "Muon")
    arguments = {"SGD": {"momentum": 0.9}, "foreach": {"foreach": True}}.get(name, {})
    kind = getattr(torch.optim, {"foreach": "AdamW"}.get(name, name))
    plain = lambda: nn.Sequential(nn.Linear(IN, 16, bias=False), nn.Tanh(), nn.Linear(16, OUT, bias=False))  # noqa: E731
    optimizer = lambda model: kind(model.parameters(), lr=1e-2, **arguments)  # noqa: E731
    wrapper = draw.one_of(ddp, sharded())
    return job(
        draw, plain, wrapper, whole=rows_of(draw), loss=square_loss, optimizer=optimizer, steps=draw.randint(1, 3)
    )


@right
def check_muon_on_shards(draw):
    plain = lambda: nn.Sequential(nn.Linear(IN, 16, bias=False), nn.Tanh(), nn.Linear(16, OUT, bias=False))  # noqa: E731
    optimizer = lambda model: torch.optim.Muon(model.parameters(), lr=1e-2)  # noqa: E731
    return job(draw, plain, sharded(), whole=rows_of(draw), loss=square_loss, optimizer=optimizer, steps=2)


def decoder_plan(model, sequence, loss_cut=False):
    plan = kinds_parallel.block_plan(model, sequence)
    kept = Shard(1) if sequence else Replicate()
    plan["embed"] = RowwiseParallel(input_layouts=Replicate(), output_layouts=kept)
    if sequence:
        plan["norm"] = SequenceParallel()
    out = Shard(-1) if loss_cut else Replicate()
    plan["head"] = ColwiseParallel(input_layouts=kept, output_layouts=out, use_local_output=not loss_cut)
    return plan


@right
def check_vocabulary_parallel(draw):
    """An embedding and a head sharded over the vocabulary."""
    sequence, beside = draw.random() < 0.5, draw.random() < 0.5

    def parallelize(model, mesh):
        parallelize_module(model, mesh["tp"], decoder_plan(model, sequence))
        return fully_shard(model, mesh=mesh["dp"]) if beside else model

    mesh = {"dp": 2, "tp": 2} if beside else {"dp": 1, "tp": 2}
    return job(draw, kinds_parallel.Decoder, parallelize, mesh)


@right
def check_loss_parallel(draw):
    def parallelize(model, mesh):
        parallelize_module(model, mesh["tp"], decoder_plan(model, False, True))
        return model

    def run(model, microbatches, loss_of):
        with loss_parallel():
            for batch in microbatches:
                loss_of(model, batch).backward()

    return job(draw, kinds_parallel.Decoder, parallelize, {"dp": 1, "tp": 2}, run=run)


@right
def check_norm_on_cut_heads(draw):
    """A plain norm on each rank's own heads beside DTensors; a hook sums its gradient over tp."""

    def parallelize(model, mesh):
        parallelize_module(model, mesh["tp"], kinds_parallel.block_plan(model, False))
        for name, p in model.named_parameters():
            if "head_norm" in name:
                p.register_post_accumulate_grad_hook(lambda p: dist.all_reduce(p.grad, group=mesh.get_group("tp")))
        return model

    return job(draw, lambda: kinds_parallel.Decoder(per_head=True), parallelize, {"dp": 1, "tp": 2})


def transformers_model(draw, name, **more):
    return lambda: kinds_libraries.new_model(draw, name, **more)


def transformers_loss(model, batch):
    tokens, labels = batch
    logits = model(input_ids=tokens, use_cache=False).logits
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum"), (labels >= 0).sum()


def own_plan(model, mesh):
    """Cut by the model's own plan, as from_pretrained(tp_plan="auto") does."""
    from transformers.distributed import DistributedConfig, tensor_parallel

    plan = model._resolve_parallel_plans(DistributedConfig(tp_size=mesh["tp"].size(), tp_plan="auto"))[0]
    return tensor_parallel.apply_tensor_parallelism(model, mesh["tp"], plan)


@needing("transformers")
def check_transformers_tensor_parallel(draw):
    name = draw.one_of("llama", "qwen3")
    return job(draw, transformers_model(draw, name), own_plan, {"dp": 1, "tp": 2}, loss=transformers_loss)


@needing("transformers")
def check_transformers(draw):
    name = draw.one_of("llama", "qwen3", "mixtral", "qwen3_moe", "gpt2")
    wrapper = draw.one_of(ddp, sharded())
    return job(draw, transformers_model(draw, name), wrapper, loss=transformers_loss)


@needing("transformers", "peft")
def check_peft(draw):
    import peft

    config = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    make = lambda: peft.get_peft_model(kinds_libraries.new_model(draw, "llama"), config)  # noqa: E731
    return job(draw, make, draw.one_of(ddp, sharded()), loss=transformers_loss)


def pipelined(draw, name, late=False, doubled=None):
    """Stages of the schedule's kind on two ranks of pp. `late`: stages and the schedule are made again in each step;
    `doubled`: a stage whose backward returns twice.
    """
    warnings.simplefilter("ignore")
    schedule = getattr(schedules, name)
    several = not issubclass(schedule, schedules.PipelineScheduleSingle)
    count, kept = 4 if several else 2, {}

    def make_model():
        return nn.Sequential(*(kinds_parallel.Stage(i, 3) for i in range(count)))

    def started(modules, mesh):
        indices, _ = kinds_parallel.places_of(schedule, mesh.get_local_rank("pp"), 2)
        places = [(part, i, count, torch.device("cpu")) for part, i in zip(modules, indices)]
        stages = [PipelineStage(*place, group=mesh.get_group("pp")) for place in places]
        loss = lambda *arguments: kept["loss"](*arguments)  # noqa: E731
        return indices, schedule(stages if several else stages[0], 4, loss_fn=loss, scale_grads=False)

    def parallelize(model, mesh):
        indices, _ = kinds_parallel.places_of(schedule, mesh.get_local_rank("pp"), 2)
        modules = [copy.deepcopy(model) for _ in indices]
        for part, i in zip(modules, indices):
            part._modules = {str(i): part._modules[str(i)]}
            if i == doubled:
                part.register_full_backward_hook(lambda module, before, after: tuple(2 * g for g in before))
        kept["running"] = started(modules, mesh)
        kept["again"] = lambda: started(modules, mesh)
        return modules

    def run(model, microbatches, loss_of):
        indices, running = kept["again"]() if late else kept["running"]
        kept["loss"] = lambda out, target: loss_of(lambda _: out, (None, target))
        for x, y in microbatches:
            running.step(*((x,) if 0 in indices else ()), **({"target": y} if count - 1 in indices else {}))

    def whole():
        generator = torch.Generator().manual_seed(draw.base)
        return torch.randn(8, 8, generator=generator), torch.randn(8, 8, generator=generator)

    batches = (whole, lambda batch, rank, mesh: [batch])
    return dict(
        make_model=make_model, parallelize=parallelize, batches=batches, loss=square_loss, mesh={"pp": 2}, run=run
    )


@right
def check_stages_made_in_each_step(draw):
    return pipelined(draw, draw.choice(kinds_parallel.SCHEDULES[:4]), late=True)


@right
def check_pipelines(draw):
    return pipelined(draw, draw.choice(kinds_parallel.SCHEDULES[:4]))


@right
def check_zero_bubbles(draw):
    return pipelined(draw, draw.choice(kinds_parallel.SCHEDULES[4:]))


class Gather(torch.autograd.Function):
    @staticmethod
    def forward(context, x, sums):
        context.sums = sums
        parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, x.contiguous())
        return torch.cat(parts)

    @staticmethod
    def backward(context, gradient):
        if context.sums:
            gradient = gradient.clone()
            dist.all_reduce(gradient)
        return gradient.chunk(dist.get_world_size())[dist.get_rank()], None


def contrastive(draw, sums=True):
    """Each rank's rows against those of all ranks."""

    def loss(model, batch):
        own = F.normalize(model(batch[0]), dim=-1)
        every, first = own, 0
        if dist.is_initialized():
            every, first = Gather.apply(own, sums), dist.get_rank() * len(own)
        return F.cross_entropy(own @ every.T * 5, first + torch.arange(len(own)), reduction="sum"), len(own)

    return job(draw, Net, draw.one_of(ddp, sharded()), whole=rows_of(draw), loss=loss)


@right
def check_contrastive(draw):
    return contrastive(draw)


@right
def check_batch_norm_over_ranks(draw):
    def make_model():
        return nn.Sequential(nn.Linear(IN, 32), kinds_right.SyncNorm(32, over=False), nn.Tanh(), nn.Linear(32, OUT))

    def parallelize(model, mesh):
        model[1].over = True
        return ddp(model, mesh, broadcast_buffers=False)

    return job(draw, make_model, parallelize, whole=rows_of(draw), loss=square_loss)


class Adapter(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = Net()
        self.net.up = kinds_right.Adapted(self.net.up, True)

    def forward(self, x):
        return self.net(x)


@right
def check_adapters(draw):
    return job(draw, Adapter, draw.one_of(ddp, sharded()), whole=rows_of(draw), loss=square_loss)


def hand_cut(draw, sequence=False, adapted=False, missing=()):
    """Layers that are sharded over tp by hand, in place, under their own names; `missing`: what no hook sums."""

    def make_model():
        model = Net()
        if adapted:
            model.up = kinds_right.Adapted(model.up, True)
        return model

    def parallelize(model, mesh):
        group = mesh.get_group("tp")
        model.up, model.down = Column(model.up, group, sequence), Row(model.down, group, sequence)
        summed = ["norm.weight", "norm.bias", "down.bias"] if sequence else []
        for name, p in model.named_parameters():
            if name in summed + ["up.a"] and name not in missing:
                p.register_post_accumulate_grad_hook(lambda p: dist.all_reduce(p.grad, group=group))
        return ddp(model, mesh) if mesh["dp"].size() > 1 else model

    def cut(batch, rank, mesh):
        own = [x.chunk(mesh.size("dp"))[mesh.get_local_rank("dp")] for x in batch]
        return [tuple(x.chunk(2)[mesh.get_local_rank("tp")] if sequence else x for x in own)]

    mesh = {"dp": draw.one_of(1, 2, 3), "tp": 2}
    made = job(draw, make_model, parallelize, mesh, rows_of(draw), square_loss)
    return {**made, "batches": (rows_of(draw), cut)}


class Column(nn.Module):
    def __init__(self, linear, group, sequence):
        super().__init__()
        base = getattr(linear, "base", linear)
        part = lambda x: nn.Parameter(x.detach().chunk(2)[dist.get_rank(group)].clone())  # noqa: E731
        if base is not linear:
            self.base = nn.Module()
            self.base.weight, self.base.bias = part(base.weight), part(base.bias)
            self.a, self.b = linear.a, part(linear.b)
        else:
            self.weight, self.bias = part(base.weight), part(base.bias)
        self.group, self.sequence = group, sequence

    def forward(self, x):
        x = (kinds_parallel.GatherIn if self.sequence else kinds_parallel.CopyIn).apply(x, self.group)
        base = getattr(self, "base", self)
        y = F.linear(x, base.weight, base.bias)
        return y + x @ self.a.T @ self.b.T if hasattr(self, "a") else y


class Row(nn.Module):
    def __init__(self, linear, group, sequence):
        super().__init__()
        self.weight = nn.Parameter(linear.weight.detach().chunk(2, 1)[dist.get_rank(group)].clone())
        self.bias, self.group, self.sequence = linear.bias, group, sequence

    def forward(self, x):
        y = (kinds_parallel.CutOut if self.sequence else kinds_parallel.SumOut).apply(
            F.linear(x, self.weight), self.group
        )
        return y + self.bias


@right
def check_hand_cut(draw):
    return hand_cut(draw)


@right
def check_hand_cut_adapter(draw):
    return hand_cut(draw, adapted=True)


@right
def check_preference_pairs(draw):
    def whole():
        generator = torch.Generator().manual_seed(draw.base)
        return tuple(torch.randint(WORDS, (ROWS, LENGTH), generator=generator) for _ in range(2))

    loss = lambda model, batch: (model(*batch).sum(), len(batch[0]))  # noqa: E731
    return job(draw, kinds_right.Preference, draw.one_of(ddp, sharded()), whole=whole, loss=loss)


@right
def check_context_parallel(draw):
    def parallelize(model, mesh):
        model.group = mesh.get_group("cp")
        return DistributedDataParallel(model)

    def cut(batch, rank, mesh):
        own = [x.chunk(mesh.size("dp"))[mesh.get_local_rank("dp")] for x in batch]
        return [tuple(x.chunk(2, 1)[mesh.get_local_rank("cp")].contiguous() for x in own)]

    mesh = {"dp": draw.one_of(1, 2), "cp": 2}
    return {**job(draw, kinds_parallel.Causal, parallelize, mesh), "batches": (tokens_of(draw), cut)}


@right
def check_experts_on_one_rank(draw):
    """Each rank has one expert, under its own name."""
    ranks = draw.randint(2, 3)

    def parallelize(model, mesh):
        model.keep(mesh.get_local_rank("dp"), mesh.get_group())
        return model

    def run(model, microbatches, loss_of):
        for batch in microbatches:
            loss_of(model, batch).backward()
        kinds.all_reduced(model.router.parameters())

    make = lambda: kinds_parallel.OwnExpert(ranks)  # noqa: E731
    return job(draw, make, parallelize, {"dp": ranks}, rows_of(draw), square_loss, run=run)


@right
def check_checkpointing(draw):
    how = draw.one_of("plain", "sequential", "selective", "reentrant")
    make = lambda: kinds_right.Checkpointed(how)  # noqa: E731
    return job(draw, make, draw.one_of(ddp, sharded()), whole=rows_of(draw), loss=square_loss)


@right
def check_compiled(draw):
    backend = draw.one_of("eager", "aot_eager")
    parallelize = lambda model, mesh: torch.compile(ddp(model, mesh), backend=backend)  # noqa: E731
    return job(draw, Net, parallelize, {"dp": 2}, rows_of(draw), square_loss)


class HookedNet(Net):
    """A gradient hook of the model scales a layer's gradient."""

    def __init__(self):
        super().__init__()
        self.up.weight.register_hook(lambda g: g * 0.5)


@right
def check_hook_of_the_model(draw):
    return job(draw, HookedNet, ddp, whole=rows_of(draw), loss=square_loss)


@right
def check_gradient_reversal(draw):
    def loss(model, batch):
        out, domain = model(batch[0])
        numerator = (out - batch[1]).square().sum() + domain.square().sum()
        return numerator, batch[1].numel()

    make = lambda: kinds_right.Adversary(0.3)  # noqa: E731
    return job(draw, make, draw.one_of(ddp, sharded()), whole=rows_of(draw), loss=loss)


@right
def check_uneven_rows(draw):
    """Ranks have different numbers of rows, and one may have none."""
    empty = draw.random() < 0.5

    def cut(batch, rank, mesh):
        at, last = mesh.get_local_rank("dp"), mesh.size("dp") - 1
        places = {0: slice(0, 7), 1: slice(7, 12)} if last == 1 else {0: slice(0, 8), 1: slice(8, 12), 2: slice(12, 12)}
        if not empty and last == 2:
            places = {0: slice(0, 3), 1: slice(3, 10), 2: slice(10, 12)}
        return [tuple(x[places[at]] for x in batch)]

    made = job(draw, Net, draw.one_of(ddp, sharded()), None, rows_of(draw), square_loss)
    return {**made, "batches": (rows_of(draw), cut)}


@right
def check_labels_ignored_on_one_rank(draw):
    def whole():
        tokens, labels = tokens_of(draw)()
        labels[: ROWS // 2] = -100
        return tokens, labels

    return job(draw, Words, draw.one_of(ddp, sharded()), {"dp": 2}, whole)


@right
def check_label_smoothing(draw):
    def loss(model, batch):
        tokens, labels = batch
        logits = model(tokens).flatten(0, 1)
        total = F.cross_entropy(logits, labels.flatten(), reduction="sum", label_smoothing=0.1)
        return total, (labels >= 0).sum()

    return job(draw, Words, draw.one_of(ddp, sharded()), loss=loss, microbatches=draw.randint(1, 2))


@right
def check_distillation(draw):
    class Taught(nn.Module):
        def __init__(self):
            super().__init__()
            self.student, self.teacher = Words(), Words().requires_grad_(False)

        def forward(self, tokens):
            with torch.no_grad():
                wanted = self.teacher(tokens).softmax(-1)
            return F.kl_div(self.student(tokens).log_softmax(-1), wanted, reduction="sum")

    loss = lambda model, batch: (model(batch[0]), batch[0].numel())  # noqa: E731
    return job(draw, Taught, draw.one_of(ddp, sharded(lambda model: [])), loss=loss)


@right
def check_gradient_penalty(draw):
    def loss(model, batch):
        x = batch[0].detach().requires_grad_()
        out = model(x)
        (slope,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        return (out - batch[1]).square().sum() + (slope.norm(dim=1) - 1).square().sum(), batch[1].numel()

    plain = lambda model, mesh: model  # noqa: E731
    return job(draw, Net, plain, None, rows_of(draw), loss, run=by_hand)


@right
def check_by_hand(draw):
    plain = lambda model, mesh: model  # noqa: E731
    make = draw.one_of(Words, lambda: Words(tied=True))
    return job(draw, make, plain, run=by_hand, microbatches=draw.randint(1, 3))


@right
def check_sparse(draw):
    bag = draw.random() < 0.5
    loss = lambda model, batch: (model(batch[0]).square().sum(), len(batch[0]))  # noqa: E731
    return job(draw, lambda: kinds_right.Bag(bag), ddp, loss=loss)


@right
def check_recurrent(draw):
    kind = draw.one_of(nn.LSTM, nn.GRU)
    return job(draw, lambda: kinds_right.Recurrent(kind), draw.one_of(ddp, sharded()))


@right
def check_unused(draw):
    loss = lambda model, batch: ((model(batch[0], 0) - batch[1]).square().sum(), batch[1].numel())  # noqa: E731
    wrapper = lambda model, mesh: ddp(model, mesh, find_unused_parameters=True)  # noqa: E731
    return job(draw, lambda: kinds_right.Branches(2), wrapper, whole=rows_of(draw), loss=loss)


@right
def check_adapters_after_fully_shard(draw):
    plain = draw.random() < 0.5

    def parallelize(model, mesh):
        return late(model, mesh, plain, True)

    return job(draw, Adapter, parallelize, whole=rows_of(draw), loss=square_loss)


def late(model, mesh, plain, averages):
    """Shard all but the adapter, whose factors stay plain or become replicated DTensors, averaged by hooks."""
    up = model.net.up
    factors = {"a": up.a, "b": up.b}
    fully_shard(model, mesh=mesh, ignored_params=set(factors.values()))

    def average(p):
        own = kinds.local_of(p.grad)
        dist.all_reduce(own)
        own /= dist.get_world_size()

    for name, p in factors.items():
        if not plain:
            p = nn.Parameter(DTensor.from_local(p.detach(), mesh, [Replicate()], run_check=False))
            up.register_parameter(name, p)
        if averages:
            p.register_post_accumulate_grad_hook(average)
    if not plain:
        up.forward = lambda x: up.base(x) + x @ up.a.to_local().T @ up.b.to_local().T
    return model


# -- wrong


@wrong("reduction")
def check_adapters_not_averaged(draw):
    plain = draw.random() < 0.5
    parallelize = lambda model, mesh: late(model, mesh, plain, False)  # noqa: E731
    return job(draw, Adapter, parallelize, whole=rows_of(draw), loss=square_loss)


@wrong("reduction")
def check_factor_not_summed(draw):
    """The replicated factor of an adapter on a column-cut layer."""
    return hand_cut(draw, adapted=True, missing=["up.a"])


@wrong("loss")
def check_window_divided_twice(draw):
    """The loss is divided by the tokens of the window, and by the number of microbatches again."""
    whole, ranks = tokens_of(draw), draw.randint(2, 3)
    total = int((whole()[1] >= 0).sum())

    def loss(model, batch):
        numerator, _ = token_loss(model, batch)
        return numerator / total * (ranks / 2 if dist.is_initialized() else 1)

    return job(draw, Words, ddp, {"dp": ranks}, whole, loss, 2)


@wrong("loss")
def check_mean_of_means(draw):
    """Each rank divides by its own number of tokens."""

    def loss(model, batch):
        numerator, count = token_loss(model, batch)
        return numerator / count

    return job(draw, Words, draw.one_of(ddp, sharded()), loss=loss)


@wrong("reduction")
def check_averaged_twice(draw):
    def run(model, microbatches, loss_of):
        for batch in microbatches:
            loss_of(model, batch).backward()
        for p in model.parameters():
            kinds.local_of(p.grad).div_(dist.get_world_size())

    return job(draw, Words, draw.one_of(ddp, sharded()), run=run)


def stepped_wrongly(draw, change):
    """The gradients are right; `change(optimizer)` wraps its step."""
    plain = lambda: nn.Sequential(nn.Linear(IN, 16, bias=False), nn.Tanh(), nn.Linear(16, OUT, bias=False))  # noqa: E731

    def optimizer(model):
        made = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        if dist.is_initialized():
            change(made)
        return made

    return job(draw, plain, ddp, whole=rows_of(draw), loss=square_loss, optimizer=optimizer, steps=2)


@wrong("optimizer")
def check_rate_times_ranks(draw):
    """The learning rate is multiplied by the number of ranks."""

    def change(optimizer):
        for group in optimizer.param_groups:
            group["lr"] *= 3

    return stepped_wrongly(draw, change)


@wrong("optimizer")
def check_momentum_lost(draw):
    """The optimizer's state is lost between two steps."""

    def change(optimizer):
        optimizer.register_step_pre_hook(lambda *_: optimizer.state.clear())

    return stepped_wrongly(draw, change)


@wrong("backward|loss")
def check_gather_without_sum(draw):
    """A gather of a contrastive loss whose backward returns the own slice alone."""
    return contrastive(draw, sums=False)


@wrong("loss")
def check_loss_times_ranks(draw):
    ranks = draw.randint(2, 3)

    def loss(model, batch):
        numerator, count = square_loss(model, batch)
        return numerator * (ranks if dist.is_initialized() else 1), count

    return job(draw, Net, ddp, {"dp": ranks}, rows_of(draw), loss)


@wrong("forward", "1")
def check_statistics_of_one_rank(draw):
    """Batch normalisation with each rank's own statistics."""

    def make_model():
        return nn.Sequential(nn.Linear(IN, 32), kinds_right.SyncNorm(32, over=False), nn.Tanh(), nn.Linear(32, OUT))

    return job(
        draw,
        make_model,
        lambda model, mesh: ddp(model, mesh, broadcast_buffers=False),
        whole=rows_of(draw),
        loss=square_loss,
    )


class AverageIn(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        return x.view_as(x)

    @staticmethod
    def backward(context, gradient):
        gradient = gradient.clone()
        dist.all_reduce(gradient)
        return gradient / dist.get_world_size()


class Detour(nn.Linear):
    """A layer whose backward averages over ranks what belongs to each."""

    wrong = False

    def forward(self, x):
        y = super().forward(x)
        return AverageIn.apply(y) if self.wrong else y


@wrong("backward", "2")
def check_backward_averages(draw):
    def make_model():
        return nn.Sequential(nn.Linear(IN, 20), nn.Tanh(), Detour(20, 20), nn.Tanh(), nn.Linear(20, OUT))

    def parallelize(model, mesh):
        model[2].wrong = True
        return ddp(model, mesh)

    return job(draw, make_model, parallelize, None, rows_of(draw), square_loss)


class Offset(nn.Module):
    """Positions of a cut sequence that begin at 0 on every rank."""

    def __init__(self):
        super().__init__()
        self.embed, self.places, self.out = nn.Embedding(WORDS, 16), nn.Embedding(LENGTH, 16), nn.Linear(16, WORDS)
        self.first = 0

    def forward(self, tokens):
        return self.out(self.embed(tokens) + self.places(self.first + torch.arange(tokens.shape[1])))


@wrong("forward", "places|")
def check_positions_of_the_part(draw):
    def cut(batch, rank, mesh):
        return [tuple(x.chunk(2, 1)[mesh.get_local_rank("dp")].contiguous() for x in batch)]

    return {**job(draw, Offset, ddp, {"dp": 2}), "batches": (tokens_of(draw), cut)}


@wrong("reduction")
def check_a_layer_is_not_wrapped(draw):
    """Part of the model is in DDP, and a layer is not."""

    def parallelize(model, mesh):
        model.up = ddp(model.up, mesh)
        model.down = ddp(model.down, mesh)
        return model

    return job(draw, Net, parallelize, None, rows_of(draw), square_loss, averaged=None)


@wrong("reduction")
def check_router_not_summed(draw):
    made = check_experts_on_one_rank(draw)

    def run(model, microbatches, loss_of):
        for batch in microbatches:
            loss_of(model, batch).backward()

    return {**made, "run": run}


@wrong("reduction")
def check_microbatch_lost(draw):
    def run(model, microbatches, loss_of):
        for m, batch in enumerate(microbatches):
            if m == 1:
                model.zero_grad()
            loss_of(model, batch).backward()

    return job(draw, Words, draw.one_of(ddp, sharded()), run=run, microbatches=2)


@wrong("reduction")
def check_a_bucket_divided_twice(draw):
    """A hook divides by the ranks twice in one bucket of DDP."""

    def parallelize(model, mesh):
        model = ddp(model, mesh, bucket_cap_mb=0.001)

        def hook(state, bucket):
            work = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
            divisor = dist.get_world_size() ** (2 if bucket.index() == 1 else 1)
            return work.then(lambda future: future.value()[0] / divisor)

        model.register_comm_hook(None, hook)
        return model

    return job(draw, Words, parallelize)


@wrong("")
def check_of_nothing(draw):
    """The loss is multiplied by 0: nothing is compared."""
    loss = lambda model, batch: (square_loss(model, batch)[0] * 0, batch[1].numel())  # noqa: E731
    return job(draw, Net, ddp, whole=rows_of(draw), loss=loss)
