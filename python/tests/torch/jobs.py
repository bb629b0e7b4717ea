"""Small training jobs, each with a real-world mistake behind a flag. A job is one step of one rank: its model, what
runs the microbatches, what one process would have got from the whole batch, and what `addend.torch.watch` is told.

The data of a rank and microbatch depend on their numbers alone, so one process can make all of them.
"""

import contextlib
import dataclasses
import typing

import torch
import torch.distributed as dist
from torch import nn
from torch.autograd import Function
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

import ranks

IN, HIDDEN, OUT, ROWS = 24, 64, 40, 6  # a part of the smallest bias has more elements than it has addends


@dataclasses.dataclass
class Job:
    model: nn.Module
    step: typing.Callable  # runs all microbatches, up to synchronised gradients; gets the watch, or None
    whole: typing.Callable  # name -> the gradient that one process gets from the whole batch
    watch: dict = dataclasses.field(default_factory=dict)
    warm: int = 0  # steps before the one that is watched
    norm: typing.Callable = None  # the global gradient norm as the job computes it


@dataclasses.dataclass
class Bug:
    """A job, and what the report must say of its mistake."""

    job: typing.Callable  # job(True): with the mistake
    title: str
    world: int
    parameters: list  # parameters that the mistake makes wrong; every other one has to pass
    verdict: str  # of these parameters; if a reference is needed, the cause that it shows
    axis: typing.Optional[str]
    factor: typing.Optional[float]  # relative to the expected gradient; None: no single factor
    needs: str = ""  # "reference", "divisor", "norm": without this the watch cannot see the mistake


BUGS = []


def bug(title, fsdp2=False, **expected):
    def keep(job):
        if ranks.FSDP2 or not fsdp2:
            BUGS.append(Bug(job, title, **expected))
        return job

    return keep


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.up = nn.Linear(IN, HIDDEN)
        self.down = nn.Linear(HIDDEN, OUT)

    def forward(self, x):
        return self.down(torch.tanh(self.up(x)))


NET = ["up.weight", "up.bias", "down.weight", "down.bias"]


def draw(rank, microbatch=0, rows=ROWS):
    generator = torch.Generator(ranks.DEVICE).manual_seed(1000 * rank + microbatch)
    return torch.randn(rows, IN, generator=generator), torch.randn(rows, OUT, generator=generator)


def mean_loss(model, batch):
    x, y = batch
    return (model(x) - y).square().mean()


def sum_loss(model, batch):
    x, y = batch
    return (model(x) - y).square().sum()


def gradients_of(model, loss):
    loss.backward()
    return {name: p.grad for name, p in model.named_parameters()}


def whole_mean(batches, model=None):
    """Return the gradient of the mean over all elements of all batches: one process, no wrapper."""
    model = model or Net()
    return gradients_of(model, sum(sum_loss(model, b) for b in batches) / sum(y.numel() for _, y in batches))


def run_step(model):
    """One microbatch: the mean loss of this rank's rows."""

    def step(watch):
        mean_loss(model, draw(dist.get_rank())).backward()

    return step


def all_batches(world, microbatches=1):
    return [draw(rank, m) for rank in range(world) for m in range(microbatches)]


def ddp():
    return DistributedDataParallel(Net())


def plain_parameters(model):
    """Return the parameters by the names that the model has without DDP."""
    return [(name.removeprefix("module."), p) for name, p in model.named_parameters()]


# -- DDP


def _hook_job(world, divisor):
    def hook(state, bucket):
        done = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
        return done.then(lambda future: future.value()[0] / divisor)

    model = ddp()
    model.register_comm_hook(None, hook)
    return Job(model, run_step(model), lambda: whole_mean(all_batches(world)))


@bug(
    "a DDP communication hook forgets to divide by the number of ranks",
    world=3,
    parameters=NET,
    verdict="doubled",
    axis="dp",
    factor=3,
)
def hook_forgets_to_divide(wrong):
    return _hook_job(3, 1 if wrong else 3)


@bug("a DDP communication hook divides twice", world=4, parameters=NET, verdict="averaged", axis="dp", factor=0.25)
def hook_divides_twice(wrong):
    return _hook_job(4, 16 if wrong else 4)


@bug(
    "`no_sync()` stays on in the last microbatch of DDP",
    world=4,
    parameters=NET,
    verdict="own_only",
    axis="dp",
    factor=None,
)
def no_sync_left_on(wrong):
    model = ddp()

    def step(watch):
        for m in range(2):
            with model.no_sync() if wrong or m == 0 else contextlib.nullcontext():
                (mean_loss(model, draw(dist.get_rank(), m)) / 2).backward()

    return Job(model, step, lambda: whole_mean(all_batches(4, 2)))


@bug(
    "each rank divides its loss by its own number of tokens: a mean of means",
    world=4,
    parameters=NET,
    verdict="divided_by_own_count",
    axis=None,
    factor=None,
    needs="divisor",
)
def mean_of_means(wrong):
    model, rows = ddp(), [2, 9, 4, 5]

    def step(watch):
        own = rows[dist.get_rank()] * OUT
        divisor = own if wrong else sum(rows) * OUT / 4  # DDP divides by 4 again
        if watch:
            watch.divisor(divisor)
        (sum_loss(model, draw(dist.get_rank(), 0, rows[dist.get_rank()])) / divisor).backward()

    return Job(model, step, lambda: whole_mean([draw(rank, 0, rows[rank]) for rank in range(4)]))


@bug(
    "each microbatch's loss is divided by its own number of tokens",
    world=2,
    parameters=NET,
    verdict="divided_by_own_count",
    axis=None,
    factor=None,
    needs="divisor",
)
def mean_of_microbatches(wrong):
    model, rows = ddp(), [2, 9, 4]

    def step(watch):
        for m in range(3):
            divisor = rows[m] * OUT * 3 if wrong else sum(rows) * OUT  # DDP divides by the number of ranks
            if watch:
                watch.divisor(divisor)
            with model.no_sync() if m < 2 else contextlib.nullcontext():
                (sum_loss(model, draw(dist.get_rank(), m, rows[m])) / divisor).backward()

    return Job(model, step, lambda: whole_mean([draw(rank, m, rows[m]) for rank in range(2) for m in range(3)]))


@bug(
    "`no_sync()` is left one microbatch too early: the last one is synchronised with nobody",
    world=2,
    parameters=NET,
    verdict="partial",
    axis="dp",
    factor=2,
)
def no_sync_off_by_one(wrong):
    model, last = ddp(), 2 if wrong else 3

    def step(watch):
        for m in range(4):
            with contextlib.nullcontext() if m == last else model.no_sync():
                (mean_loss(model, draw(dist.get_rank(), m)) / 4).backward()

    return Job(model, step, lambda: whole_mean(all_batches(2, 4)))


@bug(
    "DDP's process group has half of the ranks",
    world=4,
    parameters=NET,
    verdict="partial",
    axis=None,
    factor=None,
)
def half_of_the_ranks(wrong):
    halves = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    model = DistributedDataParallel(Net(), process_group=halves[dist.get_rank() // 2] if wrong else None)
    mesh = init_device_mesh(ranks.DEVICE.type, (4,), mesh_dim_names=("dp",))
    return Job(model, run_step(model), lambda: whole_mean(all_batches(4)), {"mesh": mesh})


# -- by hand


def summed_by_hand(model, before=None, after=None):
    def step(watch):
        (mean_loss(model, draw(dist.get_rank())) / dist.get_world_size()).backward()
        if before:
            before()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        if after:
            after()

    return Job(model, step, lambda: whole_mean(all_batches(dist.get_world_size())))


@bug(
    "each rank begins with different weights, for nobody sent the first one's to the others",
    world=3,
    parameters=NET,
    verdict="replicas_differ",
    axis="dp",
    factor=None,
)
def other_weights(wrong):
    model = Net()
    if wrong:
        torch.manual_seed(dist.get_rank())
        model.up.reset_parameters()
        model.down.reset_parameters()
    return summed_by_hand(model)


@bug(
    "each rank clips its gradients before they are summed",
    world=3,
    parameters=NET,
    verdict="factor",
    axis=None,
    factor=None,
)
def clipped_before_the_sum(wrong):
    model = Net()
    before = lambda: nn.utils.clip_grad_norm_(model.parameters(), 0.01)  # noqa: E731
    return summed_by_hand(model, before if wrong else None)


@bug(
    "what was accumulated is clipped after every microbatch",
    world=2,
    parameters=NET,
    verdict="factor",
    axis=None,
    factor=None,
)
def clipped_in_every_microbatch(wrong):
    model = Net()

    def step(watch):
        for m in range(2):
            (mean_loss(model, draw(dist.get_rank(), m)) / 4).backward()
            if wrong:
                nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)

    return Job(model, step, lambda: whole_mean(all_batches(2, 2)))


def _by_hand(collective):
    """`collective` makes the sums of a model's parameters, which are those of one process if they are right."""
    model = Net()

    def step(watch):
        (mean_loss(model, draw(dist.get_rank())) / dist.get_world_size()).backward()
        collective(list(model.parameters()))

    return Job(model, step, lambda: whole_mean(all_batches(dist.get_world_size())))


def _each(collective):
    return _by_hand(lambda parameters: [collective(parameter.grad) for parameter in parameters])


@bug(
    "the gradients are reduced to the first rank, and not to all",
    world=3,
    parameters=NET,
    verdict="one_rank",
    axis="dp",
    factor=None,
)
def reduced_to_one(wrong):
    return _each((lambda gradient: dist.reduce(gradient, 0)) if wrong else dist.all_reduce)


@bug(
    "a helper that takes maxima is used for gradients",
    world=3,
    parameters=NET,
    verdict="other_operation",
    axis="dp",
    factor=None,
)
def maximum_for_sum(wrong):
    operation = dist.ReduceOp.MAX if wrong else dist.ReduceOp.SUM
    return _each(lambda gradient: dist.all_reduce(gradient, op=operation))


@bug(
    "a buffer of all gradients begins with a number, and is read as if it did not",
    world=3,
    parameters=NET,
    verdict="shifted",
    axis=None,
    factor=None,
)
def read_beside(wrong):
    def collective(parameters):
        buffer = torch.cat([torch.zeros(1), *(parameter.grad.reshape(-1) for parameter in parameters)])
        dist.all_reduce(buffer)
        at = 0 if wrong else 1
        for parameter in parameters:
            parameter.grad.copy_(buffer[at : at + parameter.numel()].view_as(parameter))
            at += parameter.numel()

    return _by_hand(collective)


@bug(
    "one rank packs its parameters in another order",
    world=3,
    parameters=NET,
    verdict="other_parameters",
    axis=None,
    factor=None,
)
def another_order(wrong):
    def collective(parameters):
        ordered = parameters[::-1] if wrong and dist.get_rank() == 1 else parameters
        buffer = torch.cat([parameter.grad.reshape(-1) for parameter in ordered])
        dist.all_reduce(buffer)
        for parameter, part in zip(ordered, buffer.split([p.numel() for p in ordered])):
            parameter.grad.copy_(part.view_as(parameter))

    return _by_hand(collective)


@bug(
    "gradients are clipped before the watch ends",
    world=3,
    parameters=NET,
    verdict="factor",
    axis=None,
    factor=None,
)
def clipped_too_early(wrong):
    model = Net()
    after = lambda: nn.utils.clip_grad_norm_(model.parameters(), 0.03)  # noqa: E731
    return summed_by_hand(model, after=after if wrong else None)


@bug(
    "gradients are unscaled twice",
    world=2,
    parameters=NET,
    verdict="factor",
    axis=None,
    factor=1 / 1024,
)
def unscaled_twice(wrong):
    model, scale = ddp(), 1024.0

    def step(watch):
        (scale * mean_loss(model, draw(dist.get_rank()))).backward()
        for parameter in model.parameters():
            parameter.grad /= scale**2 if wrong else scale

    return Job(model, step, lambda: whole_mean(all_batches(2)), {"expect": 1 / 2 / scale})


class PartsOverTp(nn.Module):
    """A norm over rows that tp cuts: each rank of tp uses the norm's weight for its rows and leaves an addend."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(IN)
        self.net = Net()

    def forward(self, x):
        return self.net(self.norm(x))


@bug(
    "DDP with `static_graph`, and the sum over tp in a hook of the gradient's node that is attached after DDP's own: "
    "right in the first step, lost from the second on",
    world=4,
    parameters=["norm.weight", "norm.bias"],
    verdict="partial",
    axis="tp",
    factor=None,
)
def late_hook(wrong):
    mesh = init_device_mesh(ranks.DEVICE.type, (2, 2), mesh_dim_names=("dp", "tp"))
    plain, nodes = PartsOverTp(), []

    def attach(module):
        for parameter in module.parameters():
            node = parameter.view_as(parameter).grad_fn.next_functions[0][0]
            node.register_hook(lambda *_, p=parameter: dist.all_reduce(p.grad, group=mesh.get_group("tp")))
            nodes.append(node)  # a node lives as long as somebody holds it

    attach(plain.net)
    if not wrong:
        attach(plain.norm)
    model = DistributedDataParallel(plain, process_group=mesh.get_group("dp"), static_graph=True)
    if wrong:
        attach(plain.norm)
    model.nodes = nodes

    def step(watch):
        (mean_loss(model, draw(dist.get_rank())) / 2).backward()

    return Job(model, step, lambda: whole_mean(all_batches(4), PartsOverTp()), {"mesh": mesh, "expect": 0.5}, warm=2)


# -- a parameter that some ranks do not use, reduced by hand


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = Net()
        self.extra = nn.Linear(IN, OUT)

    def forward(self, x, use_extra):
        return self.net(x) + self.extra(x) if use_extra else self.net(x)


@bug(
    "a loop over gradients sums a zero where a rank did not use the parameter, and does not give that rank the sum",
    world=4,
    parameters=["extra.weight", "extra.bias"],
    verdict="replicas_differ",
    axis="dp",
    factor=None,
)
def used_on_some_ranks(wrong):
    def uses(rank):
        return rank % 2 == 0

    def loss(model, rank):
        x, y = draw(rank)
        return (model(x, uses(rank)) - y).square().mean() / 4

    model = Branches()

    def step(watch):
        loss(model, dist.get_rank()).backward()
        for parameter in model.parameters():
            gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            dist.all_reduce(gradient)
            if parameter.grad is not None or not wrong:
                parameter.grad = gradient

    def whole():
        alone = Branches()
        return gradients_of(alone, sum(loss(alone, rank) for rank in range(4)))

    return Job(model, step, whole)


# -- FSDP2


def sharded(mesh):
    model = Net()
    fully_shard(model.up, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


@bug(
    "`set_requires_gradient_sync(True, recurse=False)` in the last microbatch: the layers below stay off",
    world=4,
    parameters=["up.weight", "up.bias"],
    verdict="no_sum",
    axis=None,
    factor=None,
    fsdp2=True,
)
def sync_left_off(wrong):
    model = sharded(init_device_mesh(ranks.DEVICE.type, (4,), mesh_dim_names=("dp",)))

    def step(watch):
        for m in range(2):
            model.set_requires_gradient_sync(m == 1, recurse=m == 0 or not wrong)
            (mean_loss(model, draw(dist.get_rank(), m)) / 2).backward()

    return Job(model, step, lambda: whole_mean(all_batches(4, 2)))


@bug(
    "HSDP that all-reduces what the last microbatch's reduce-scatter left, and adds the earlier partial afterwards",
    world=8,
    parameters=NET,
    verdict="partial",
    axis="dp_replicate",
    factor=4,
    fsdp2=True,
)
def partial_added_late(wrong):
    mesh = init_device_mesh(ranks.DEVICE.type, (4, 2), mesh_dim_names=("dp_replicate", "dp_shard"))
    model = sharded(mesh["dp_shard"] if wrong else mesh)
    last = False

    def reduce_over_replicas(shard):
        if last:
            dist.all_reduce(shard, group=mesh.get_group("dp_replicate"))
            shard /= 4

    if wrong:
        model.set_all_reduce_hook(reduce_over_replicas)
        model.up.set_all_reduce_hook(reduce_over_replicas)

    def step(watch):
        nonlocal last
        for m in range(2):
            last = m == 1
            if not wrong:
                model.set_requires_all_reduce(last)
            (mean_loss(model, draw(dist.get_rank(), m)) / 2).backward()

    arguments = {"mesh": mesh, "expect": 1 / 8} if wrong else {}
    return Job(model, step, lambda: whole_mean(all_batches(8, 2)), arguments)


@bug(
    "HSDP whose hook sums over the replicas in every other microbatch",
    world=4,
    parameters=NET,
    verdict="partial",
    axis="dp_replicate",
    factor=None,
    fsdp2=True,
)
def replicas_in_every_other(wrong):
    mesh = init_device_mesh(ranks.DEVICE.type, (2, 2), mesh_dim_names=("dp_replicate", "dp_shard"))
    model, number = sharded(mesh["dp_shard"]), 0

    def reduce_over_replicas(shard):
        if not wrong or number % 2 == 0:
            dist.all_reduce(shard, group=mesh.get_group("dp_replicate"))
        shard /= 2

    model.set_all_reduce_hook(reduce_over_replicas)
    model.up.set_all_reduce_hook(reduce_over_replicas)

    def step(watch):
        nonlocal number
        for number in range(4):
            (mean_loss(model, draw(dist.get_rank(), number)) / 4).backward()

    return Job(model, step, lambda: whole_mean(all_batches(4, 4)), {"mesh": mesh, "expect": 1 / 4})


@bug(
    "a global norm that counts every replica of HSDP",
    world=4,
    parameters=NET,
    verdict="norm",
    axis=None,
    factor=2,
    needs="norm",
    fsdp2=True,
)
def norm_counts_replicas(wrong):
    mesh = init_device_mesh(ranks.DEVICE.type, (2, 2), mesh_dim_names=("dp_replicate", "dp_shard"))
    model = sharded(mesh)

    def norm():
        squares = sum(p.grad.to_local().square().sum() for p in model.parameters())
        dist.all_reduce(squares, group=None if wrong else mesh.get_group("dp_shard"))
        return squares.sqrt().item()

    return Job(model, run_step(model), lambda: whole_mean(all_batches(4)), norm=norm)


# -- experts, sharded over ep; each rank's tokens go to all experts


class Exchange(Function):
    """An exchange of [ranks of the group, rows, ...]: block r goes to rank r; backward sends gradients back in the same
    way.
    """

    @staticmethod
    def forward(context, x, group):
        context.group, x = group, x.contiguous()
        out = torch.empty_like(x)
        dist.all_to_all_single(out, x, group=group)
        return out

    @staticmethod
    def backward(context, gradient):
        return Exchange.apply(gradient, context.group), None


class Experts(nn.Module):
    """Experts: row i of a rank's batch goes to expert i mod (number of experts)."""

    COUNT = 2

    def __init__(self):
        super().__init__()
        torch.manual_seed(2)
        self.weight = nn.Parameter(torch.randn(self.COUNT, IN, IN) / 3)
        self.group = None

    def forward(self, x):
        slots = x.view(-1, self.COUNT, IN).transpose(0, 1)  # shape [experts, rows, IN]
        if self.group is None:
            out = torch.tanh(slots @ self.weight)
        else:
            mine = Exchange.apply(slots, self.group)  # shape [ranks of ep, rows, IN], all for this rank's expert
            out = Exchange.apply(torch.tanh(mine @ self.weight.to_local()), self.group)
        return out.transpose(0, 1).reshape(x.shape)


class MixtureOfExperts(nn.Module):
    def __init__(self):
        super().__init__()
        self.experts = Experts()
        self.net = Net()

    def forward(self, x):
        return self.net(x + self.experts(x))


@bug(
    "FSDP2 divides experts by the ranks that share them, not by all ranks whose tokens they saw",
    world=4,
    parameters=["experts.weight"],
    verdict="doubled",
    axis=None,  # efsdp and ep have the same size, so the axis is not told
    factor=2,
    fsdp2=True,
)
def divide_factor_of_experts(wrong):
    mesh = init_device_mesh(ranks.DEVICE.type, (2, 2), mesh_dim_names=("efsdp", "ep"))
    everyone = init_device_mesh(ranks.DEVICE.type, (4,), mesh_dim_names=("dp",))
    model = MixtureOfExperts()
    model.experts.group = mesh.get_group("ep")
    model.experts.weight = nn.Parameter(distribute_tensor(model.experts.weight.data, mesh["ep"], [Shard(0)]))
    fully_shard(model.experts, mesh=mesh["efsdp"], shard_placement_fn=lambda p: Shard(1))
    fully_shard(model, mesh=everyone)
    if not wrong:
        model.experts.set_force_sum_reduction_for_comms(True)  # gloo has no scaled sum
        model.experts.set_gradient_divide_factor(4)
    return Job(
        model, run_step(model), lambda: whole_mean(all_batches(4), MixtureOfExperts()), {"mesh": mesh, "expect": 0.25}
    )


# -- tensor parallelism


class SumForward(Function):
    """P -> I: the forward sums; the backward is the identity, since every rank continues with the same value."""

    @staticmethod
    def forward(context, x, group):
        x = x.clone()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(context, gradient):
        return gradient, None


class Router(nn.Module):
    """A router: every rank of tp computes all scores and uses those of its own experts."""

    EXPERTS = 4

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.gate = nn.Linear(IN, self.EXPERTS, bias=False)
        self.weight = nn.Parameter(torch.randn(self.EXPERTS, IN, OUT) / 3)
        self.mesh, self.gradients_of_scores = None, None

    def forward(self, x):
        if self.mesh is None:
            return torch.einsum("re,eri->ri", torch.softmax(self.gate(x), -1), torch.tanh(x @ self.weight))
        x_everywhere = DTensor.from_local(x, self.mesh, [Replicate()], run_check=False)
        scores = torch.softmax(self.gate(x_everywhere), -1).to_local(grad_placements=self.gradients_of_scores)
        own = self.weight.to_local()
        first = self.mesh.get_local_rank() * len(own)
        part = torch.einsum("re,eri->ri", scores[:, first : first + len(own)], torch.tanh(x @ own))
        return SumForward.apply(part, self.mesh.get_group())


@bug(
    "the router of a mixture of experts: `to_local()` without `grad_placements`",
    world=4,
    parameters=["gate.weight"],
    verdict="own_only",
    axis="tp",
    factor=None,
    fsdp2=True,
)
def router(wrong):
    mesh = init_device_mesh(ranks.DEVICE.type, (2, 2), mesh_dim_names=("dp", "tp"))
    model = Router()
    model.mesh, model.gradients_of_scores = mesh["tp"], None if wrong else [Partial()]
    model.gate.weight = nn.Parameter(distribute_tensor(model.gate.weight.data, mesh["tp"], [Replicate()]))
    model.weight = nn.Parameter(distribute_tensor(model.weight.data, mesh["tp"], [Shard(0)]))
    fully_shard(model, mesh=mesh["dp"])

    def step(watch):
        mean_loss(model, draw(mesh.get_local_rank("dp"))).backward()

    return Job(model, step, lambda: whole_mean(all_batches(2), Router()))


class SumBackward(Function):
    """I -> R: the forward is the identity; the backward sums, since each rank uses the value for something else."""

    @staticmethod
    def forward(context, x, group):
        context.group = group
        return x.view_as(x)

    @staticmethod
    def backward(context, gradient):
        return SumForward.apply(gradient, context.group), None


class RowLinear(nn.Module):
    """A linear layer whose input dimension is sharded over tp."""

    def __init__(self):
        super().__init__()
        self.net = Net()
        torch.manual_seed(4)
        self.weight = nn.Parameter(torch.randn(OUT, OUT) / 2)
        self.bias = nn.Parameter(torch.randn(OUT))
        self.mesh, self.bias_in_parts = None, False

    def forward(self, x):
        if self.mesh is None:
            return torch.tanh(self.net(x)) @ self.weight.T + self.bias
        x = DTensor.from_local(x, self.mesh, [Replicate()], run_check=False)
        x = torch.tanh(self.net(x)).to_local(grad_placements=[Replicate()])
        own, bias, group = self.weight.to_local(), self.bias.to_local(), self.mesh.get_group()
        first = self.mesh.get_local_rank() * own.shape[1]
        part = SumBackward.apply(x, group)[:, first : first + own.shape[1]] @ own.T
        return SumForward.apply(part + bias, group) if self.bias_in_parts else SumForward.apply(part, group) + bias


@bug(
    "a replicated bias is added on every tp rank, before the sum",
    world=2,
    parameters=["net." + name for name in NET] + ["weight", "bias"],
    verdict="missing",
    axis=None,
    factor=None,
    needs="reference",
)
def bias_on_every_rank(wrong):
    mesh = init_device_mesh(ranks.DEVICE.type, (2,), mesh_dim_names=("tp",))
    model = RowLinear()
    model.mesh, model.bias_in_parts = mesh, wrong
    for name, parameter in list(model.named_parameters()):
        folder, _, last = name.rpartition(".")
        cut = [Shard(1)] if name == "weight" else [Replicate()]
        setattr(model.get_submodule(folder), last, nn.Parameter(distribute_tensor(parameter.data, mesh, cut)))

    def step(watch):
        mean_loss(model, draw(0)).backward()

    return Job(model, step, lambda: whole_mean(all_batches(1), RowLinear()))


# -- data parallelism whose loss needs all ranks' outputs


class GatherRows(Function):
    """All ranks' rows. Each rank's loss uses all of them, so the gradient of a rank's rows is a sum over ranks."""

    @staticmethod
    def forward(context, x, sums):
        context.sums, context.rows = sums, len(x)
        parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, x.contiguous())
        return torch.cat(parts)

    @staticmethod
    def backward(context, gradient):
        if context.sums:
            gradient = gradient.clone()
            dist.all_reduce(gradient)
        first = dist.get_rank() * context.rows
        return gradient[first : first + context.rows], None


def contrast(outputs):
    """A contrastive loss of all rows at once: different rows shall be far apart."""
    likeness = outputs @ outputs.T
    return torch.logsumexp(likeness - 9 * torch.eye(len(outputs)), 1).mean()


@bug(
    "a differentiable all_gather whose backward returns the own slice of the own gradient",
    world=4,
    parameters=NET,
    verdict="averaged",
    axis="dp",
    factor=0.25,
    needs="reference",
)
def gather_without_sum(wrong):
    model = ddp()

    def step(watch):
        contrast(GatherRows.apply(model(draw(dist.get_rank())[0]), not wrong)).backward()

    def whole():
        alone = Net()
        return gradients_of(alone, contrast(alone(torch.cat([x for x, _ in all_batches(4)]))))

    return Job(model, step, whole)
