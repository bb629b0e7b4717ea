"""Wrong jobs under the watch, with what is true of each mistake."""

import contextlib
import copy

import kinds
import kinds_parallel
import torch
import torch.distributed as dist
import torch.nn.functional as F
from kinds import IN, OUT, Job, Net, Words, data_parallel, mesh_of, square, token_sum, truth, watched
from kinds_parallel import hand_cut, late_adapters, pipeline, plain_norm, tied_pipeline
from kinds_right import Bag, Branches, FusedNet, rows_share
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.debugging_hooks import noop_hook
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

ADDENDS = "it does not see an addend that is wrong itself (python/docs/torch.md)"
NOT_SUMMED = (("own_only", None, None), ("partial", None, None))


def summed_wrongly(draw, how, microbatches=None, affected=None, model=None, share=None, averages=None, reported=None):
    """A job that sums by hand: `how(parameters)` represents the sum, which is one or an average."""
    model = model or Net()
    averages = draw.random() < 0.5 if averages is None else averages
    divisor = draw.world if averages else 1

    def finish():
        how(list(model.parameters()))
        for p in model.parameters():
            p.grad /= divisor

    reported = {**({"expect": 1 / draw.world} if averages else {}), **(reported or {})}
    wrapped = kinds.Wrapped(model, divisor, finish, reported)
    fields = {"affected": affected}
    return data_parallel(draw, model, share or rows_share(draw), microbatches, wrapped=wrapped, fields=fields)


# -- the wrong collective


@watched(2, 3, 4, truth=truth("one_rank:dp", "partial", "replicas_differ", "own_only"))
def reduce_for_all_reduce(draw):
    """Rank 0 alone gets the sum."""
    return summed_wrongly(draw, lambda ps: [dist.reduce(p.grad, 0) for p in ps])


@watched(2, 3, 4, truth=truth("other_operation:dp"))
def maximum_for_sum(draw):
    operation = draw.one_of(dist.ReduceOp.MAX, dist.ReduceOp.MIN)
    return summed_wrongly(draw, lambda ps: [dist.all_reduce(p.grad, operation) for p in ps])


@watched(2, 3, truth=truth("other_operation:dp"))
def product_for_sum(draw):
    return summed_wrongly(draw, lambda ps: [dist.all_reduce(p.grad, dist.ReduceOp.PRODUCT) for p in ps])


@watched(3, 4, truth=truth("partial", "missing", "own_only"))
def broadcast_for_sum(draw):
    """Every rank gets rank 0's gradient."""
    return summed_wrongly(draw, lambda ps: [dist.broadcast(p.grad, 0) for p in ps])


@watched(3, 4, truth=truth("partial", "replicas_differ", "missing"))
def one_message_for_a_sum(draw):
    """Each rank adds its neighbour's gradient alone."""

    def ring(parameters):
        for p in parameters:
            other = torch.empty_like(p.grad)
            rank, world = draw.rank, draw.world
            for request in [dist.isend(p.grad.clone(), (rank + 1) % world), dist.irecv(other, (rank - 1) % world)]:
                request.wait()
            p.grad += other

    return summed_wrongly(draw, ring)


@watched(2, 3, 4, truth=truth("shifted"))
def shifted_bucket(draw):
    """Gradients come back from the flat buffer a few elements off."""
    off = draw.randint(1, 5)

    def flat(parameters):
        buffer = torch.cat([p.grad.flatten() for p in parameters])
        dist.all_reduce(buffer)
        buffer = buffer.roll(off)
        for p, part in zip(parameters, buffer.split([p.numel() for p in parameters])):
            p.grad = part.view_as(p).clone()

    return summed_wrongly(draw, flat)


@watched(2, 3, 4, truth=truth("other_parameters"))
def another_order_on_one_rank(draw):
    """One rank fills the flat buffer in another order of its parameters."""

    def flat(parameters):
        order = parameters[::-1] if draw.rank == draw.world - 1 else parameters
        buffer = torch.cat([p.grad.flatten() for p in order])
        dist.all_reduce(buffer)
        for p, part in zip(order, buffer.split([p.numel() for p in order])):
            p.grad = part.view_as(p).clone()

    return summed_wrongly(draw, flat)


class Twins(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.out = nn.Linear(IN, IN), nn.Linear(IN, IN), nn.Linear(IN, OUT)

    def forward(self, x):
        return self.out(torch.tanh(self.second(torch.tanh(self.first(x)))))


@watched(2, 3, truth=truth("other_parameters"))
def swapped_parameters(draw):
    """Two parameters of one shape get each other's sum."""

    def swap(parameters):
        for p in parameters:
            dist.all_reduce(p.grad)
        parameters[0].grad, parameters[2].grad = parameters[2].grad, parameters[0].grad

    return summed_wrongly(draw, swap, model=Twins(), affected={"first.weight", "second.weight"})


@watched(2, 3, truth=truth("shifted"))
def parts_in_another_order(draw):
    """ZeRO by hand: parts are gathered in the reverse order of ranks."""

    def scatter(parameters):
        for p in parameters:
            flat = F.pad(p.grad.flatten(), (0, -p.numel() % draw.world))
            dist.all_reduce(flat)
            own = flat.chunk(draw.world)[draw.rank].clone()
            parts = [torch.empty_like(own) for _ in range(draw.world)]
            dist.all_gather(parts, own)
            p.grad = torch.cat(parts[::-1])[: p.numel()].view_as(p).clone()

    return summed_wrongly(draw, scatter)


@watched(2, 3, truth=truth("other_rows"))
def sparse_values_alone(draw):
    """The values of sparse gradients are summed as if all ranks had the same indices."""
    model = Bag(False)

    def values(parameters):
        for p in parameters:
            if p.grad.is_sparse:
                one = p.grad.coalesce()
                size = torch.tensor(one.values().shape[0])
                dist.all_reduce(size, dist.ReduceOp.MIN)
                own = one.values()[:size].contiguous()
                dist.all_reduce(own)
                p.grad = torch.sparse_coo_tensor(one.indices()[:, :size], own, p.shape).to_dense()
            else:
                dist.all_reduce(p.grad)

    share = lambda one, data, m: one(draw.tokens(data, m)[0]).square().mean()  # noqa: E731
    return summed_wrongly(draw, values, 1, {"words.weight"}, model, share)


# -- the wrong group, or the wrong number of times


@watched(4, truth=truth("partial:cp", "own_only:cp", "wrong_group:cp"))
def one_axis_forgotten(draw):
    """Summed over dp, and not over cp."""
    mesh = mesh_of("dp cp", 2, 2)
    how = lambda ps: [dist.all_reduce(p.grad, group=mesh.get_group("dp")) for p in ps]  # noqa: E731
    return summed_wrongly(draw, how, averages=False, reported={"mesh": mesh})


@watched(4, truth=truth("doubled:cp:2.0", "doubled:dp:2.0"))
def one_axis_twice(draw):
    """Summed over all ranks, and over cp again."""
    mesh = mesh_of("dp cp", 2, 2)

    def how(parameters):
        for p in parameters:
            dist.all_reduce(p.grad)
            dist.all_reduce(p.grad, group=mesh.get_group("cp"))

    return summed_wrongly(draw, how, averages=False, reported={"mesh": mesh})


@watched(2, 3, 4, truth=truth("doubled:dp"))
def some_parameters_twice(draw):
    """A second list of parameters overlaps with the first, and its gradients are summed again."""
    names = draw.sample([name for name, _ in Net().named_parameters()], 2)
    model = Net()

    def how(parameters):
        for p in parameters:
            dist.all_reduce(p.grad)
        for name, p in model.named_parameters():
            if name in names:
                dist.all_reduce(p.grad)

    return summed_wrongly(draw, how, averages=False, affected=set(names), model=model)


@watched(2, 3, 4, truth=truth("own_only:dp", "no_sum"))
def a_layer_forgotten(draw):
    """Hooks that sum were attached before a layer was replaced."""
    names = draw.one_of({"down.weight", "down.bias"}, {"norm.weight", "norm.bias"})
    model = Net()

    def how(parameters):
        for name, p in model.named_parameters():
            if name not in names:
                dist.all_reduce(p.grad)

    return summed_wrongly(draw, how, averages=False, affected=names, model=model)


@watched(2, 3, 4, truth=truth("averaged:dp", "factor"))
def averaged_twice(draw):
    """Gradients are averaged by DDP, and divided by the number of ranks again."""
    job = data_parallel(draw, Net(), rows_share(draw), 1, ("ddp",))
    step = job.step

    def divided(watch):
        step(watch)
        for p in job.model.parameters():
            p.grad /= draw.world

    job.step = divided
    return job


@watched(4, truth=truth("averaged::0.5"))
def divided_by_all_ranks(draw):
    """Averaged over all ranks, where only dp has its own batches."""
    mesh = mesh_of("dp tp", 2, 2)
    model = Net()
    reference = copy.deepcopy(model)
    data = mesh.get_local_rank("dp")

    def step(watch):
        square(model, draw.batch(data)).backward()
        for p in model.parameters():
            dist.all_reduce(p.grad, group=mesh.get_group("dp"))
            p.grad /= 4

    shares = [lambda one, r=r: square(one, draw.batch(r)) / 2 for r in range(2)]
    reported = {"mesh": mesh, "types": {"*": "dp=R tp=I"}, "expect": 0.5}
    return Job(model, step, lambda: kinds.alone(reference, shares), reported)


@watched(2, 3, truth=truth("own_only:dp"))
def noop_comm_hook(draw):
    """PyTorch's debugging hook that reduces nothing was left on."""
    job = data_parallel(draw, Net(), rows_share(draw), 1, ("ddp",))
    job.model.register_comm_hook(None, noop_hook)
    return job


@watched(2, 3, truth=truth("own_only:dp", "replicas_differ"))
def ignored_and_not_averaged(draw):
    """Parameters that DDP has to ignore, and nobody averages."""
    names = {"up.weight", "up.bias"}
    model = Net()
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, sorted(names))
    return data_parallel(draw, model, rows_share(draw), 1, ("ddp",), fields={"affected": names})


@watched(4, truth=truth("partial", "wrong_group", "not_judged"))
def ddp_over_a_sub_group(draw):
    """DDP got the process group of one node."""
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    model = Net()
    reference = copy.deepcopy(model)
    model = DistributedDataParallel(model, process_group=groups[draw.rank // 2])
    shares = [lambda one, r=r: square(one, draw.batch(r)) / 4 for r in range(4)]
    step = lambda watch: square(model, draw.batch(draw.rank)).backward()  # noqa: E731
    reported = draw.one_of({}, {"mesh": mesh_of("dp", 4)})
    return Job(model, step, lambda: kinds.alone(reference, shares), reported)


# -- microbatches


@watched(2, 3, truth=truth("missing", "last_microbatch", "partial", "factor:::microbatches"))
def a_microbatch_lost(draw):
    """Gradients are cleared after a microbatch in the middle."""
    model, lost = Net(), draw.randint(0, 2)
    wrapped = kinds.wrap(draw, model, ("hand", "fsdp2"), 1)
    count = [0]

    def sync(last):
        if count[0] == lost + 1:
            wrapped.model.zero_grad()
        count[0] += 1
        return contextlib.nullcontext()

    wrapped.sync = sync
    return data_parallel(draw, model, rows_share(draw), 4, wrapped=wrapped, reference=copy.deepcopy(Net_like(model)))


def Net_like(model):
    """Return Net with the model's weights, in full."""
    one = Net()
    full = lambda p: p.full_tensor() if hasattr(p, "full_tensor") else p.detach()  # noqa: E731
    one.load_state_dict({name: full(p) for name, p in model.state_dict().items()})
    return one


@watched(2, 3, 4, truth=truth("unexplained"))
def gradients_not_cleared(draw):
    """Gradients of the step before are still there."""
    job = data_parallel(draw, Net(), rows_share(draw), 1, ("ddp", "hand"))
    model = job.model
    generator = draw.generator(0, 30)
    stale = [torch.randn(p.shape, generator=generator) / 20 for p in model.parameters()]
    step = job.step

    def kept(watch):
        for p, g in zip(model.parameters(), stale):
            p.grad = g.clone()
        step(watch)

    job.step = kept
    return job


@watched(2, 3, truth=truth("own_only"))
def lbfgs_without_the_sum(draw):
    """The closure of LBFGS sums nothing."""
    model = Net()
    reference = copy.deepcopy(model)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.01, max_iter=3)
    shares = [lambda one, r=r: square(one, draw.batch(r)) / draw.world for r in range(draw.world)]

    def closure():
        optimizer.zero_grad()
        loss = shares[draw.rank](model)
        loss.backward()
        return loss

    return Job(model, lambda watch: optimizer.step(closure), lambda: kinds.alone(reference, shares))


@watched(2, 3, truth=truth("not_judged"))
def stepped_twice(draw):
    """An optimizer takes two steps with one gradient, which is cleared then."""
    job = data_parallel(draw, Net(), rows_share(draw), 1, ("ddp", "hand"))
    optimizer, one = torch.optim.SGD(job.model.parameters(), lr=0.01), job.step

    def step(watch):
        one(watch)
        optimizer.step()
        optimizer.step()
        optimizer.zero_grad()

    job.step = step
    return job


@watched(2, 3, truth=truth("factor"))
def clipped_in_every_microbatch(draw):
    """Accumulated gradients are clipped after each microbatch, before the sum."""
    model = Net()
    wrapped = kinds.by_hand(draw, model)
    first = [True]

    def sync(last):
        if not first[0]:
            nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        first[0] = False
        return contextlib.nullcontext()

    wrapped.sync, finish = sync, wrapped.finish

    def finish_clipped():
        nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        finish()

    wrapped.finish = finish_clipped
    return data_parallel(draw, model, rows_share(draw), draw.randint(2, 3), wrapped=wrapped)


@watched(2, 3, truth=truth("factor"))
def clipped_inside(draw):
    """Clipped before the watch ends."""
    job = data_parallel(draw, Net(), rows_share(draw), kinds=("ddp", "fsdp2", "hand"))
    step = job.step

    def clipped(watch):
        step(watch)
        nn.utils.clip_grad_norm_(job.model.parameters(), 0.011)

    job.step = clipped
    return job


@watched(2, 3, truth=truth("doubled", "partial", "factor", "unexplained"))
def summed_after_each_microbatch(draw):
    """The accumulated gradient is summed after each microbatch: earlier ones count again and again."""
    model = Net()
    wrapped = kinds.Wrapped(model, 1, lambda: kinds.all_reduced(model.parameters()))
    first = [True]

    def sync(last):
        if not first[0]:
            kinds.all_reduced(model.parameters())
        first[0] = False
        return contextlib.nullcontext()

    wrapped.sync = sync
    return data_parallel(draw, model, rows_share(draw), draw.randint(2, 3), wrapped=wrapped)


@watched(2, truth=truth("factor", "averaged", "unexplained"))
def schedule_divides_earlier_steps(draw):
    """scale_grads stays on and a schedule steps twice: the first step's gradients are divided again."""
    job = pipeline(draw, draw.one_of("ScheduleGPipe", "Schedule1F1B"), steps=2, loss_scale=1.0)
    return job


@watched(2, truth=truth("doubled", "factor"))
def schedule_does_not_divide(draw):
    """scale_grads=False, and the loss is divided by nothing where a division by the microbatches is expected."""
    job = pipeline(draw, draw.one_of("ScheduleGPipe", "Schedule1F1B", "ScheduleInterleaved1F1B"), scales=False)
    whole = job.whole
    job.whole = lambda: {n: g / 4 for n, g in whole().items()}
    job.watch = {"expect": 0.25}
    return job


# -- factors


@watched(2, 3, truth=truth("divided_by_own_count", "replicas_differ", "factor"))
def divided_by_one_ranks_tokens(draw):
    """After the sum each rank divides by its own number of tokens."""
    counts = [int((draw.tokens(r)[1] >= 0).sum()) for r in range(draw.world)]
    if len(set(counts)) == 1:
        counts = [c + 2 * i for i, c in enumerate(counts)]
    model = Words()
    mean = sum(counts)

    def how(parameters):
        for p in parameters:
            dist.all_reduce(p.grad)
            p.grad /= counts[draw.rank]

    share = lambda one, data, m: token_sum(one, draw.tokens(data, m))  # noqa: E731
    job = summed_wrongly(draw, how, 1, model=model, share=share, averages=False, reported={"expect": 1 / mean})
    whole = job.whole
    job.whole = lambda: {n: g / mean for n, g in whole().items()}
    return job


@watched(2, 3, truth=truth("factor:dp:-1"))
def one_rank_has_the_wrong_sign(draw):
    def how(parameters):
        for p in parameters:
            if draw.rank == draw.world - 1:
                p.grad.neg_()
            dist.all_reduce(p.grad)

    return summed_wrongly(draw, how, 1)


@watched(2, 3, 4, truth=truth("factor", "doubled", "missing"))
def weights_of_ranks_applied_twice(draw):
    """Each rank's gradient is weighted by its share of rows, which its loss already was."""
    rows = [draw.rows(r) for r in range(draw.world)]
    if len(set(rows)) == 1:
        rows[0] += 3

    def share(model, data, m):
        return square(model, draw.batch(data, m, rows[data])) * rows[data] / sum(rows)

    def how(parameters):
        for p in parameters:
            p.grad *= rows[draw.rank] * draw.world / sum(rows)
            dist.all_reduce(p.grad)

    return summed_wrongly(draw, how, 1, share=share)


@watched(2, 3, truth=truth("rounding", equal=True))
def summed_in_bf16(draw):
    """Gradients are cut to bf16 for the sum, and nobody said so."""

    def how(parameters):
        for p in parameters:
            narrow = p.grad.bfloat16()
            dist.all_reduce(narrow)
            p.grad = narrow.float()

    return summed_wrongly(draw, how, 1)


@watched(2, 3, truth=truth("rounding", "unexplained", equal=True))
def summed_in_eight_bits(draw):
    """Gradients are quantised to eight bits by each rank's own largest element."""

    def how(parameters):
        for p in parameters:
            scale = p.grad.abs().max() / 127
            p.grad = (p.grad / scale).round() * scale
            dist.all_reduce(p.grad)

    return summed_wrongly(draw, how, 1)


@watched(2, 3, truth=truth("factor::1024"))
def never_unscaled(draw):
    """The loss scale is still in the gradients where they should be without it."""
    job = data_parallel(draw, Net(), lambda one, data, m: square(one, draw.batch(data, m)) * 1024, 1, ("ddp",))
    job.watch = {"expect": 1 / 1024 / draw.world}
    whole = job.whole
    job.whole = lambda: {n: g / 1024 for n, g in whole().items()}
    return job


@watched(2, 3, truth=truth(silent=ADDENDS))
def loss_divided_twice(draw):
    """The loss is a mean over all tokens of the step, and is divided by the number of microbatches again."""
    job = data_parallel(draw, Net(), rows_share(draw), 2, ("ddp", "fsdp2"))
    whole = job.whole
    job.whole = lambda: {n: g * 2 for n, g in whole().items()}
    return job


@watched(2, 3, truth=truth(silent=ADDENDS))
def contrastive_times_ranks(draw):
    """A contrastive loss on gathered rows is multiplied by the number of ranks, where DDP's mean is right."""
    job = kinds.KINDS["contrastive_local_rows"].make(draw)
    whole = job.whole
    job.whole = lambda: {n: g / draw.world for n, g in whole().items()}
    return job


@watched(2, 3, 4, truth=truth(silent=ADDENDS))
def gather_without_gradient(draw):
    """dist.all_gather in a contrastive loss: other ranks' rows are constants."""
    model = Net()
    reference = copy.deepcopy(model)
    model = DistributedDataParallel(model)

    def contrast(out):
        return F.cross_entropy(
            F.normalize(out, dim=-1) @ F.normalize(out.flip(0), dim=-1).T * 5, torch.arange(len(out))
        )

    def step(watch):
        own = model(draw.batch(draw.rank)[0])
        parts = [torch.empty_like(own) for _ in range(draw.world)]
        dist.all_gather(parts, own.detach())
        parts[draw.rank] = own
        contrast(torch.cat(parts)).backward()

    rows = lambda: torch.cat([draw.batch(r)[0] for r in range(draw.world)])  # noqa: E731
    return Job(model, step, lambda: kinds.alone(reference, [lambda one: contrast(one(rows()))]))


@watched(2, 3, truth=truth(silent="a mean of means needs `divisor` (python/docs/torch.md)"))
def mean_of_ranks_means(draw):
    share = lambda one, data, m: square(one, draw.batch(data, m, draw.rows(data) + 3 * data))  # noqa: E731
    job = data_parallel(draw, Net(), share, 1, ("ddp", "fsdp2"))
    reference = Net_like(job.model.module if hasattr(job.model, "module") else job.model)
    every = [draw.batch(r, 0, draw.rows(r) + 3 * r) for r in range(draw.world)]
    whole = tuple(torch.cat(part) for part in zip(*every))
    job.whole = lambda: kinds.alone(reference, [lambda one: square(one, whole)])
    return job


@watched(2, 3, truth=truth("divided_by_own_count"))
def mean_of_ranks_means_with_divisor(draw):
    share = lambda one, data, m: square(one, draw.batch(data, m, draw.rows(data) + 3 * data))  # noqa: E731
    job = data_parallel(draw, Net(), share, 1, ("ddp", "fsdp2"))
    reference = Net_like(job.model.module if hasattr(job.model, "module") else job.model)
    every = [draw.batch(r, 0, draw.rows(r) + 3 * r) for r in range(draw.world)]
    whole = tuple(torch.cat(part) for part in zip(*every))
    job.whole = lambda: kinds.alone(reference, [lambda one: square(one, whole)])
    step = job.step

    def reported(watch):
        if watch:
            watch.divisor((draw.rows(draw.rank) + 3 * draw.rank) * OUT)
        step(watch)

    job.step = reported
    return job


@watched(2, 3, truth=truth("identical_addends"))
def same_rows_on_all_ranks(draw):
    """Every rank reads the same rows: the sampler has one seed and no rank."""
    job = data_parallel(draw, Net(), lambda one, data, m: square(one, draw.batch(0, m)), 1, ("ddp", "fsdp2"))
    reference = Net_like(job.model.module if hasattr(job.model, "module") else job.model)
    shares = [lambda one, r=r: square(one, draw.batch(r)) / draw.world for r in range(draw.world)]
    job.whole = lambda: kinds.alone(reference, shares)
    return job


@watched(2, 3, truth=truth("replicas_differ", equal=True))
def weights_drawn_by_each_rank(draw):
    """Adapters are made on each rank from its own seed, after the wrapper sent the first rank's weights."""
    model = Net()
    with torch.no_grad():
        generator = draw.generator(draw.rank, 17)
        model.up.weight.copy_(torch.randn(model.up.weight.shape, generator=generator) / 5)
    return data_parallel(draw, model, rows_share(draw), 1, ("hand", "hooked"))


# -- tensor and sequence parallelism, adapters, experts, ends of a pipeline


NORMS = ("norm.weight", "norm.bias", "down_bias")


@watched(2, 4, truth=truth("own_only:tp", "partial:tp", "replicas_differ:tp"))
def norms_not_summed(draw):
    """Sequence parallelism whose norms are not summed over tp."""
    missing = draw.one_of(("norm.weight", "norm.bias"), ("down_bias",), ("norm.weight",))
    return renamed(hand_cut(draw, True, NORMS, missing=missing), missing)


def renamed(job, missing):
    job.affected = set(missing)
    return job


@watched(2, 4, truth=truth("own_only:tp", "partial:tp", "replicas_differ:tp"))
def adapter_not_summed(draw):
    """The replicated factor of an adapter on a column-cut layer is not summed over tp."""
    return renamed(hand_cut(draw, False, ("a",), adapted=True, missing=("a",)), ("a",))


@watched(2, 4, truth=truth("doubled:tp"))
def norms_summed_twice(draw):
    """Norms of sequence parallelism are summed by hooks, and once more before the step."""
    job = hand_cut(draw, True, NORMS)
    step = job.step

    def again(watch):
        step(watch)
        for name in "weight", "bias":
            dist.all_reduce(getattr(job.model.norm, name).grad)

    job.step = again
    return renamed(job, ("norm.weight", "norm.bias"))


@watched(2, truth=truth("own_only:tp", "replicas_differ:tp", "partial:tp"))
def plain_norm_not_summed(draw):
    """A plain norm on each rank's own heads beside DTensors: nobody sums it."""
    return plain_norm(draw, sums=False)


@watched(2, 3, truth=truth("own_only:dp", "replicas_differ:dp", "partial:dp"))
def adapters_after_fully_shard_not_averaged(draw):
    job = late_adapters(draw, draw.random() < 0.5, False, averages=False)
    return job


@watched(2, truth=truth("own_only:pp", "partial:pp", "missing"))
def tied_ends_not_summed(draw):
    job = tied_pipeline(draw, sums=0)
    return job


@watched(2, truth=truth("doubled:pp"))
def tied_ends_summed_twice(draw):
    return tied_pipeline(draw, sums=2)


@watched(2, 4, truth=truth("doubled", "factor"))
def experts_divided_by_their_own_group(draw):
    """One group of fully_shard is not divided by the ranks whose tokens it saw."""
    model = Net()
    reference = copy.deepcopy(model)
    mesh = mesh_of("dp", draw.world)
    fully_shard(model.down, mesh=mesh)
    model.down.set_gradient_divide_factor(1.0)
    model.down.set_force_sum_reduction_for_comms(True)
    fully_shard(model, mesh=mesh)
    shares = [lambda one, r=r: square(one, draw.batch(r)) / draw.world for r in range(draw.world)]
    step = lambda watch: square(model, draw.batch(draw.rank)).backward()  # noqa: E731
    whole = lambda: kinds.alone(reference, shares)  # noqa: E731
    reported = {"expect": 1 / draw.world}
    return Job(model, step, whole, reported, affected={"down.weight", "down.bias"})


@watched(
    2,
    3,
    truth=truth("replicas_differ", "missing", "own_only", "partial"),
)
def unused_on_a_rank_keeps_none(draw):
    """A loop over gradients skips what is None, and sums a zero in its place, which is thrown away."""
    model = Branches(2)
    reference = copy.deepcopy(model)

    def loss(one, r):
        x, y = draw.batch(r)
        return (one(x, r % 2) - y).square().mean() / draw.world

    def step(watch):
        loss(model, draw.rank).backward()
        for p in model.parameters():
            own = torch.zeros_like(p) if p.grad is None else p.grad
            dist.all_reduce(own)

    shares = [lambda one, r=r: loss(one, r) for r in range(draw.world)]
    return Job(model, step, lambda: kinds.alone(reference, shares), affected=None)


@watched(2, 3, truth=truth("no_sum", "own_only", "not_observed"))
def fused_sum_of_the_wrong_buffer(draw):
    """A fused layer writes main_grad, and the hook sums the zeros that autograd has."""
    model = FusedNet()
    reference = copy.deepcopy(model)
    for p in model.parameters():
        p.main_grad = torch.zeros_like(p)
        p.register_hook(lambda g: (dist.all_reduce(g), g)[1])
    step = lambda watch: (square(model, draw.batch(draw.rank)) / draw.world).backward()  # noqa: E731
    plain = lambda x, weight: x @ weight.t()  # noqa: E731

    def share(one, r):
        x, y = draw.batch(r)
        return (one(x, plain) - y).square().mean() / draw.world

    shares = [lambda one, r=r: share(one, r) for r in range(draw.world)]
    gradients = lambda: {name: p.main_grad for name, p in model.named_parameters()}  # noqa: E731
    reported = {"gradient": lambda p: p.main_grad}
    return Job(model, step, lambda: kinds.alone(reference, shares), reported, gradients)


@watched(2, 3, truth=truth("not_observed", equal=True))
def adapter_not_summed_in_the_first_step(draw):
    """B of an adapter is zero, so A has no gradient in the first step, and nobody would sum it."""
    from kinds_right import Adapted

    model = Net().requires_grad_(False)
    model.up = Adapted(model.up, False)
    reference = copy.deepcopy(model)

    def step(watch):
        (square(model, draw.batch(draw.rank)) / draw.world).backward()
        dist.all_reduce(model.up.b.grad)

    shares = [lambda one, r=r: square(one, draw.batch(r)) / draw.world for r in range(draw.world)]
    job = Job(model, step, lambda: kinds.alone(reference, shares))
    return job


@watched(2, 3, truth=truth("own_only:dp", "partial:dp"))
def fsdp1_no_sync_left_on(draw):
    model = Net()
    reference = copy.deepcopy(model)
    wrapped = kinds.in_fsdp1(draw, model, sharding_strategy=kinds_parallel.ShardingStrategy.NO_SHARD)
    wrapped.sync = lambda last: wrapped.model.no_sync()
    return data_parallel(draw, model, rows_share(draw), 2, wrapped=wrapped, reference=reference)


@watched(2, 3, truth=truth("unexplained", "factor"))
def clamped_after_the_sum(draw):
    """Sums are clamped element by element before the watch ends."""
    job = data_parallel(draw, Net(), rows_share(draw), 1, ("ddp", "hand"))
    step = job.step

    def clamped(watch):
        step(watch)
        nn.utils.clip_grad_value_(job.model.parameters(), 1e-3)

    job.step = clamped
    return job
