"""Test right jobs whose own hooks, or PyTorch's communication hooks and optimizers, change, sum, take or clear
gradients: none of them is called wrong, and what cannot be told names every reading.
"""

import contextlib
import os
import traceback
import unittest
import warnings

import torch
import torch.distributed as dist
from says import says
from torch import nn
from torch.distributed.algorithms._optimizer_overlap.optimizer_overlap import (
    _as_overlapped_optim,
)
from torch.distributed.algorithms.ddp_comm_hooks import (
    default_hooks,
    post_localSGD_hook,
    powerSGD_hook,
    quantization_hooks,
)
from torch.distributed.algorithms.join import Join
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.optim import (
    ZeroRedundancyOptimizer,
    _apply_optimizer_in_backward,
)
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

import addend.torch
import ranks
from jobs import IN, NET, Net, draw, mean_loss

WORLD = 2
JOBS = {}


class Job:
    """A model, its step, what the watch is given, and what it says: `answer` True (right) or None (cannot tell), and
    facts of lines of its report.
    """

    def __init__(self, model, step=None, answer=True, facts=(), open_names=NET, **reported):
        self.model, self.step, self.reported = model, step or mean_of(model), reported
        self.answer, self.facts, self.open_names = answer, facts, open_names
        self.around = contextlib.nullcontext()


def job(make):
    JOBS[make.__name__] = make
    return make


def mean_of(model, microbatches=1):
    def step():
        for m in range(microbatches):
            (mean_loss(model, draw(dist.get_rank(), m)) / microbatches).backward()

    return step


def hooked(hook, where="up.weight", microbatches=1, kind="register_hook", no_sync=False):
    """Net in DDP with a hook on one parameter."""
    net = Net()
    getattr(net.get_parameter(where), kind)(hook)
    model = DistributedDataParallel(net)

    def step():
        for m in range(microbatches):
            with model.no_sync() if no_sync and m < microbatches - 1 else contextlib.nullcontext():
                (mean_loss(model, draw(dist.get_rank(), m)) / microbatches).backward()

    return model, step


# -- hooks that scale a gradient

CHANGED = "`up.weight`"  # the subject of the note that a hook changed it


def of_hook(model, step, open_names=("up.weight",), facts=(), **reported):
    """A job whose hook may be right or not: both readings are named."""
    names = open_names[0] if len(open_names) == 1 else f"{len(open_names)} parameters"
    return Job(model, step, answer=None, open_names=open_names, facts=[facts or (names,)], **reported)


@job
def tensor_hook_tenth():
    return Job(*hooked(lambda g: g * 0.1), facts=[(CHANGED, "0.1")])


@job
def tensor_hook_half():
    return Job(*hooked(lambda g: g / 2), facts=[(CHANGED,)])


@job
def tensor_hook_zero():
    """What the optimizer gets is what the hook made, and nothing can be seen of how it was summed."""
    facts = [(CHANGED,), ("up.weight",)]
    return Job(*hooked(lambda g: g * 0), answer=None, open_names=["up.weight"], facts=facts)


@job
def tensor_hook_half_in_two_microbatches():
    return Job(*hooked(lambda g: g / 2, microbatches=2), facts=[(CHANGED,)])


@job
def tensor_hook_clamps():
    return of_hook(*hooked(lambda g: g.clamp(-1e-3, 1e-3)))


@job
def tensor_hook_flips():
    return of_hook(*hooked(lambda g: -g), facts=["-1"])


@job
def tensor_hook_in_place():
    return Job(*hooked(lambda g: g.mul_(0.25)), facts=[(CHANGED,)])


@job
def two_tensor_hooks():
    model, step = hooked(lambda g: g * 3)
    model.module.up.weight.register_hook(lambda g: g / 6)
    return Job(model, step, facts=[(CHANGED, "0.5")])


def scale_accumulated(factor):
    def hook(p):
        p.grad.mul_(factor)

    return hook


ACCUMULATED = "register_post_accumulate_grad_hook"


@job
def accumulated_half():
    return Job(*hooked(scale_accumulated(0.5), kind=ACCUMULATED), facts=[(CHANGED,)])


@job
def accumulated_zero():
    facts = [(CHANGED,), ("up.weight",)]
    made = hooked(scale_accumulated(0), kind=ACCUMULATED)
    return Job(*made, answer=None, open_names=["up.weight"], facts=facts)


@job
def accumulated_half_in_two_microbatches():
    """The second half is of the first microbatch, too."""
    return of_hook(*hooked(scale_accumulated(0.5), kind=ACCUMULATED, microbatches=2))


@job
def accumulated_half_without_synchronisation():
    return of_hook(*hooked(scale_accumulated(0.5), kind=ACCUMULATED, microbatches=3, no_sync=True))


@job
def module_hook_scales():
    net = Net()
    net.down.register_full_backward_hook(lambda module, before, after: (before[0] * 0.5,))
    return Job(DistributedDataParallel(net))


@job
def module_pre_hook_scales():
    net = Net()
    net.down.register_full_backward_pre_hook(lambda module, after: (after[0] * 0.5,))
    return Job(DistributedDataParallel(net))


@job
def late_tensor_hook():
    """The forward registers the hook, so the watch does not see it when it begins."""
    model = DistributedDataParallel(Net())

    def step():
        handle = model.module.up.weight.register_hook(lambda g: g * 0.5)
        mean_of(model)()
        handle.remove()

    return Job(model, step, facts=[(CHANGED,)])


@job
def fully_shard_tensor_hook():
    model = fully_shard(Net())
    model.unshard()
    model.up.weight.register_hook(lambda g: g * 0.5)
    return Job(model, facts=[(CHANGED,)])


@job
def fully_shard_accumulated():
    model = fully_shard(Net())
    model.up.weight.register_post_accumulate_grad_hook(scale_accumulated(0.5))
    return Job(model, facts=[(CHANGED, "0.5")])


# -- communication hooks of PyTorch's


def communicates(hook, state=None, **options):
    model = DistributedDataParallel(Net(), **options)
    model.register_comm_hook(state, hook)
    return model


@job
def fp16():
    return Job(communicates(default_hooks.fp16_compress_hook))


@job
def bf16():
    return Job(communicates(default_hooks.bf16_compress_hook))


@job
def fp16_microbatches():
    model = communicates(default_hooks.fp16_compress_hook)
    return Job(model, mean_of(model, 4))


@job
def fp16_around_allreduce():
    return Job(communicates(default_hooks.fp16_compress_wrapper(default_hooks.allreduce_hook)))


@job
def bf16_around_allreduce():
    return Job(communicates(default_hooks.bf16_compress_wrapper(default_hooks.allreduce_hook)))


@job
def fp16_in_a_view():
    return Job(communicates(default_hooks.fp16_compress_hook, gradient_as_bucket_view=True))


@job
def built_in_fp16():
    model = DistributedDataParallel(Net())
    model._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS)
    return Job(model)


@job
def built_in_allreduce():
    model = DistributedDataParallel(Net())
    model._register_builtin_comm_hook(dist.BuiltinCommHookType.ALLREDUCE)
    return Job(model)


@job
def fp16_around_power_sgd():
    state = powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=2)
    hook = default_hooks.fp16_compress_wrapper(powerSGD_hook.powerSGD_hook)
    return Job(communicates(hook, state), answer=None, facts=[("PowerSGD",)])


@job
def quantized():
    hook = quantization_hooks.quantization_pertensor_hook
    return Job(communicates(hook, dist.group.WORLD), answer=None, facts=[("4 parameters",)])


@job
def overlapped_by_class():
    model = DistributedDataParallel(Net())
    _as_overlapped_optim(torch.optim.SGD, list(model.parameters()), lr=0.01).register_ddp(model)
    return Job(model)


def local_sgd(start, subgroups):
    mine = [dist.new_group([rank]) for rank in range(WORLD)][dist.get_rank()] if subgroups else dist.group.WORLD
    state = post_localSGD_hook.PostLocalSGDState(None, mine, start)
    return communicates(post_localSGD_hook.post_localSGD_hook, state), mine


@job
def local_sgd_before_its_start():
    return Job(local_sgd(10, True)[0])


@job
def local_sgd_over_all():
    return Job(local_sgd(0, False)[0])


@job
def local_sgd_over_some():
    return Job(
        local_sgd(0, True)[0],
        answer=None,
        facts=[("PostLocalSGD", "rank 0")],
    )


def run_subgroups(pairs, halved, by_group):
    """Post-local SGD within pairs of four ranks. The job divides the sum by 2 again on the ranks `halved`."""
    groups = [dist.new_group(pair) for pair in pairs]
    own = groups[next(i for i, pair in enumerate(pairs) if dist.get_rank() in pair)]
    state = post_localSGD_hook.PostLocalSGDState(None, own, 0)
    model = communicates(post_localSGD_hook.post_localSGD_hook, state)
    reported = {"group": own} if by_group else {}
    with contextlib.redirect_stdout(None), addend.torch.watch(model, **reported) as watch:
        mean_of(model)()
        for p in model.parameters() if dist.get_rank() in halved else ():
            p.grad /= 2
    return watch.report


# -- communication hooks of the job's


def all_reduced(factor):
    def averaged(state, bucket):
        done = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
        return done.then(lambda future: future.value()[0] * (factor / WORLD))

    return averaged


@job
def custom_mean():
    return Job(communicates(all_reduced(1)))


@job
def custom_half():
    return Job(communicates(all_reduced(0.5)), answer=None, facts=[("averaged", "dp", "0.5 times")])


@job
def custom_half_as_said():
    return Job(communicates(all_reduced(0.5)), expect=0.25)


@job
def custom_sum():
    return Job(
        communicates(all_reduced(WORLD)),
        answer=None,
        facts=[("averaged", "dp")],
    )


@job
def custom_tenth():
    return Job(
        communicates(all_reduced(0.1)),
        answer=None,
        facts=[("averaged", "0.1 times")],
    )


@job
def custom_zero():
    return Job(
        communicates(all_reduced(0)),
        answer=None,
        facts=[("averaged", "0 times")],
    )


@job
def custom_signs():
    def signs(state, bucket):
        done = dist.all_reduce(bucket.buffer().sign(), async_op=True).get_future()
        return done.then(lambda future: future.value()[0].sign())

    return Job(communicates(signs), answer=None, facts=[("signs",)])


@job
def custom_around_which_fp16():
    return Job(
        communicates(default_hooks.fp16_compress_wrapper(all_reduced(0.5))),
        answer=None,
        facts=[("averaged", "0.5 times")],
    )


# -- FSDP


@job
def divide_factor():
    model = fully_shard(Net())
    model.set_force_sum_reduction_for_comms(True)  # gloo cannot multiply before it sums
    model.set_gradient_divide_factor(4.0)
    return Job(model)


@job
def reduce_scatter_divide_factor():
    model = fully_shard(Net())
    model.set_force_sum_reduction_for_comms(True)
    model.set_reduce_scatter_divide_factor(1.0)
    return Job(model)


@job
def force_sum():
    model = fully_shard(Net())
    model.set_force_sum_reduction_for_comms(True)
    return Job(model)


@job
def all_reduce_hook_scales():
    model = fully_shard(Net())
    model.set_all_reduce_hook(lambda gradient: gradient.mul_(0.5))
    return Job(model, answer=None, facts=[("dp", "1/2")])


@job
def gradient_sync():
    model = fully_shard(Net())

    def step():
        for m in range(3):
            model.set_requires_gradient_sync(m == 2)
            (mean_loss(model, draw(dist.get_rank(), m)) / 3).backward()

    return Job(model, step)


def flat(hook, state):
    model = FullyShardedDataParallel(Net(), use_orig_params=True, device_id=ranks.DEVICE)
    model.register_comm_hook(state, hook)
    return model


@job
def flat_default():
    """PyTorch's narrow hooks of FSDP1 do not run on the processor."""
    hooks = torch.distributed.algorithms._comm_hooks.default_hooks
    state = hooks.DefaultState(dist.group.WORLD)
    state.gradient_postdivide_factor = 8.0
    return Job(flat(hooks.reduce_scatter_hook, state))


@job
def flat_half():
    def half(_, whole, shard):
        dist.reduce_scatter_tensor(shard, whole)
        shard /= 2 * WORLD

    return Job(flat(half, None), answer=None, facts=[("half",)])


# -- optimizers inside the watch


@job
def step_in_a_hook():
    """Each rank sums, steps and clears in one hook."""
    model = Net()
    for p in model.parameters():
        optimizer = torch.optim.SGD([p], 0.01)

        def hook(p, optimizer=optimizer):
            dist.all_reduce(p.grad)
            optimizer.step()
            p.grad = None

        p.register_post_accumulate_grad_hook(hook)
    return Job(model)


@job
def step_in_a_hook_in_two_microbatches():
    made = step_in_a_hook()
    made.step = mean_of(made.model, 2)
    return made


@job
def fully_shard_step_in_a_hook():
    model = fully_shard(Net())
    for p in model.parameters():
        optimizer = torch.optim.AdamW([p], 0.01)

        def hook(p, optimizer=optimizer):
            optimizer.step()
            optimizer.zero_grad()

        p.register_post_accumulate_grad_hook(hook)
    return Job(model)


@job
def update_by_hand_in_a_hook():
    """No optimizer: nobody sees with what gradient the hook updates."""
    model = Net()

    def hook(p):
        dist.all_reduce(p.grad)
        with torch.no_grad():
            p -= 0.01 * p.grad
        p.grad = None

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(hook)
    return Job(model, answer=None, facts=[("gradient=",)])


@job
def optimizer_in_backward():
    """PyTorch's own, which DDP can use on devices with streams alone; here a hook sums."""
    model = Net()
    _apply_optimizer_in_backward(torch.optim.SGD, model.parameters(), {"lr": 0.01})

    def summed(gradient):
        gradient = gradient.clone()
        dist.all_reduce(gradient)
        return gradient

    for p in model.parameters():
        p.register_hook(summed)
    return Job(model, mean_of(model, 2))


@job
def whole_step_inside():
    model = DistributedDataParallel(Net())
    optimizer = torch.optim.AdamW(model.parameters())

    def step():
        mean_of(model, 2)()
        optimizer.step()
        optimizer.zero_grad()

    return Job(model, step)


@job
def two_steps_inside():
    model = DistributedDataParallel(Net())
    optimizer = torch.optim.SGD(model.parameters(), 0.01)

    def step():
        for m in range(2):
            mean_loss(model, draw(dist.get_rank(), m)).backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)

    return Job(model, step)


@job
def zero_redundancy():
    model = DistributedDataParallel(Net())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.01)

    def step():
        mean_of(model)()
        optimizer.step()
        optimizer.zero_grad()

    return Job(model, step)


def scaled(model, unscales, **reported):
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    scaler = torch.amp.GradScaler(ranks.DEVICE.type, init_scale=1024.0)

    def step():
        scaler.scale(mean_loss(model, draw(dist.get_rank()))).backward()
        unscales(scaler, optimizer)

    return Job(model, step, facts=[("GradScaler", "by 1024")], **reported)


@job
def unscaled():
    return scaled(
        DistributedDataParallel(Net()),
        lambda scaler, optimizer: scaler.unscale_(optimizer),
    )


def scaled_before(scale, unscales=None, make=DistributedDataParallel, **reported):
    """`scale(scaler, loss)` is computed before the watch, the backward and `unscales` are in it. GradScaler's division
    is right for certain only where every backward begins with a product with its own scale."""
    model = make(Net())
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    scaler = torch.amp.GradScaler(ranks.DEVICE.type, init_scale=1024.0)
    scaler.scale(torch.ones(1))  # makes the scale
    found = scale(scaler, mean_loss(model, draw(dist.get_rank())))

    def step():
        found.backward()
        unscales(scaler, optimizer) if unscales else scaler.unscale_(optimizer)

    return Job(model, step, facts=[("GradScaler", "by 1024")], **reported)


def open_scale(made):
    """A job of which it cannot be told whether its loss was scaled: the scale and both readings are named."""
    made.answer = None
    made.facts = [("1/1024", "GradScaler", "by 1024")]
    return made


@job
def loss_scaled_before():
    return scaled_before(lambda scaler, loss: scaler.scale(loss))


@job
def loss_scaled_before_and_converted():
    return scaled_before(lambda scaler, loss: scaler.scale(loss).to(torch.float64))


@job
def loss_scaled_before_and_steps():
    return scaled_before(
        lambda scaler, loss: scaler.scale(loss), lambda scaler, optimizer: scaler.step(optimizer), fully_shard
    )


@job
def loss_scaled_before_and_expected():
    """The caller's factor is that of the scale, so the division may be in it."""
    made = scaled_before(lambda scaler, loss: scaler.scale(loss), expect=0.5 / 1024)
    made.facts = ()
    return made


@job
def loss_never_scaled():
    return open_scale(scaled_before(lambda scaler, loss: loss))


@job
def loss_never_scaled_and_weighed():
    """A weight that has the scale's value is no scale."""
    return open_scale(scaled_before(lambda scaler, loss: loss * torch.tensor(1024.0)))


@job
def loss_never_scaled_and_weighed_by_a_number():
    return open_scale(scaled_before(lambda scaler, loss: loss * 1024.0))


@job
def loss_scaled_before_and_divided():
    """The last operation is no product with the scale: what was done to it is not looked into."""
    return open_scale(scaled_before(lambda scaler, loss: scaler.scale(loss) / 1024))


@job
def loss_scaled_before_by_another_scaler():
    def scale(scaler, loss):
        return torch.amp.GradScaler(ranks.DEVICE.type, init_scale=1024.0).scale(loss)

    return open_scale(scaled_before(scale))


@job
def loss_scaled_before_in_a_list():
    """GradScaler multiplies a list's losses by a copy of its scale."""
    return open_scale(scaled_before(lambda scaler, loss: scaler.scale([loss])[0]))


@job
def loss_scaled_before_where_saved_tensors_are_moved():
    def scale(scaler, loss):
        with torch.autograd.graph.saved_tensors_hooks(torch.clone, lambda kept: kept):
            return scaler.scale(loss)

    return open_scale(scaled_before(scale))


@job
def loss_scaled_on_one_rank():
    made = scaled_before(lambda scaler, loss: scaler.scale(loss) if dist.get_rank() == 0 else loss * 1024.0)
    return open_scale(made)


@job
def loss_never_scaled_and_scale_printed():
    """A scale that the job gets when the backward is over scales no loss."""

    def unscales(scaler, optimizer):
        scaler.unscale_(optimizer)
        scaler.get_scale()
        scaler.scale(torch.ones(1, requires_grad=True))

    return open_scale(scaled_before(lambda scaler, loss: loss, unscales))


@job
def loss_never_scaled_but_a_number_was():
    model = DistributedDataParallel(Net())
    optimizer, scaler = (
        torch.optim.SGD(model.parameters(), 0.01),
        torch.amp.GradScaler(ranks.DEVICE.type, init_scale=1024.0),
    )

    def step():
        scaler.scale(torch.ones(1))
        mean_of(model)()
        scaler.unscale_(optimizer)

    return open_scale(Job(model, step, facts=[("GradScaler", "by 1024")]))


@job
def one_of_two_microbatches_scaled_before():
    model = Net()
    optimizer, scaler = (
        torch.optim.SGD(model.parameters(), 0.01),
        torch.amp.GradScaler(ranks.DEVICE.type, init_scale=1024.0),
    )
    first, second = (mean_loss(model, draw(dist.get_rank(), m)) for m in range(2))
    first = scaler.scale(first)

    def step():
        first.backward()
        second.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
        scaler.unscale_(optimizer)

    return open_scale(Job(model, step, facts=[("GradScaler", "by 1024")]))


@job
def unscaled_and_said():
    made = scaled(
        DistributedDataParallel(Net()),
        lambda scaler, optimizer: scaler.unscale_(optimizer),
    )
    made.reported, made.facts = {"expect": 0.5 / 1024}, ()
    return made


@job
def scaler_steps():
    return scaled(DistributedDataParallel(Net()), lambda scaler, optimizer: scaler.step(optimizer))


@job
def fully_shard_unscaled():
    return scaled(fully_shard(Net()), lambda scaler, optimizer: scaler.unscale_(optimizer))


@job
def hook_and_unscaled():
    model, _ = hooked(lambda g: g * 0.5)
    made = scaled(model, lambda scaler, optimizer: scaler.unscale_(optimizer))
    made.facts = [("GradScaler", "by 1024"), (CHANGED,)]
    return made


@job
def joined():
    model = DistributedDataParallel(Net())

    def step():
        with Join([model]):
            mean_of(model, 2)()

    return Job(model, step)


# -- types that nobody said


def average(p):
    dist.all_reduce(p.grad)
    p.grad.div_(WORLD)


class Heads(nn.Module):
    """A norm on sharded heads, whose gradient each rank of tp has a part of."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.q, self.norm, self.o = nn.Linear(IN, 32), nn.RMSNorm(8), nn.Linear(32, IN)

    def forward(self, x):
        return self.o(self.norm(self.q(x).unflatten(-1, (-1, 8))).flatten(-2))


def heads(hook, placed=False):
    model, mesh = Heads(), init_device_mesh(ranks.DEVICE.type, (WORLD,), mesh_dim_names=("tp",))
    parallelize_module(model, mesh, {"q": ColwiseParallel(), "o": RowwiseParallel()})
    if hook:
        model.norm.weight.register_post_accumulate_grad_hook(hook)

    def step():
        model(draw(0)[0]).square().mean().backward()

    return model, step


@job
def norm_of_heads():
    return Job(*heads(lambda p: dist.all_reduce(p.grad)), facts=[("`norm.weight`", "tp")])


@job
def norm_of_heads_as_said():
    return Job(*heads(lambda p: dist.all_reduce(p.grad)), types={"norm.weight": "tp=R"})


@job
def norm_of_heads_averaged():
    return Job(*heads(average), answer=None, open_names=["norm.weight"], facts=[("norm.weight", "tp")])


class Same(nn.Module):
    """A norm before sharded layers: all ranks of tp do the same work with it."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.norm, self.q, self.o = (
            nn.LayerNorm(IN),
            nn.Linear(IN, 32),
            nn.Linear(32, IN),
        )

    def forward(self, x):
        return self.o(self.q(self.norm(x)))


def same(hook):
    model, mesh = Same(), init_device_mesh(ranks.DEVICE.type, (WORLD,), mesh_dim_names=("tp",))
    parallelize_module(model, mesh, {"q": ColwiseParallel(), "o": RowwiseParallel()})
    for p in model.norm.parameters() if hook else ():
        p.register_post_accumulate_grad_hook(hook)
    return model, lambda: model(draw(0)[0]).square().mean().backward()


@job
def same_work():
    return Job(*same(None))


@job
def same_work_averaged():
    return Job(*same(average))


@job
def same_work_summed():
    names = ["norm.weight", "norm.bias"]
    return Job(
        *same(lambda p: dist.all_reduce(p.grad)),
        answer=None,
        open_names=names,
        facts=[("tp", "R", "2 times", "I")],
    )


class Adapted(nn.Linear):
    def forward(self, x):
        a, b = (p.to_local() if isinstance(p, DTensor) else p for p in (self.a, self.b))
        return super().forward(x) + x @ a.t() @ b.t()


def adapted(plain, sums, divides=True):
    """Adapters that are made after fully_shard, and that a hook sums."""
    mesh = init_device_mesh(ranks.DEVICE.type, (WORLD,), mesh_dim_names=("dp",))
    torch.manual_seed(1)
    model = nn.Sequential(Adapted(12, 12), nn.Tanh(), Adapted(12, 12)).requires_grad_(False)
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)

    def average(p):
        gradient = p.grad.to_local() if isinstance(p.grad, DTensor) else p.grad
        dist.all_reduce(gradient)
        gradient /= WORLD if divides else 1

    for layer in (model[0], model[2]):
        for name, shape in (("a", (4, 12)), ("b", (12, 4))):
            values = torch.randn(shape) / 4
            values = values if plain else DTensor.from_local(values, mesh, [Replicate()], run_check=False)
            layer.register_parameter(name, nn.Parameter(values))
            if sums:
                getattr(layer, name).register_post_accumulate_grad_hook(average)
    x = torch.randn(8, 12, generator=torch.Generator(ranks.DEVICE).manual_seed(dist.get_rank()))
    return model, lambda: model(x).square().mean().backward()


@job
def adapters():
    return Job(*adapted(plain=False, sums=True))


@job
def plain_adapters():
    return Job(*adapted(plain=True, sums=True))


@job
def adapters_that_are_not_divided():
    return Job(*adapted(plain=False, sums=True, divides=False), facts=[("0.a",)])


@job
def adapters_as_said():
    types = {"*.a": "dp=R", "*.b": "dp=R"}
    return Job(*adapted(plain=False, sums=True), types=types, expect=1 / WORLD)


# -- further right jobs that were drawn by hand, of the same kinds


@job
def each_rank_clips_in_a_hook():
    return of_hook(*hooked(lambda g: g * min(1, 1e-3 / g.norm().item())))


@job
def one_rank_scales_in_a_hook():
    return of_hook(*hooked(lambda g: g * (0.5 if dist.get_rank() else 1)), facts=["by 1", "rank 0", "by 0.5", "rank 1"])


@job
def every_parameter_scaled():
    net = Net()
    for p in net.parameters():
        p.register_hook(lambda g: g / 3)
    return Job(DistributedDataParallel(net), facts=[("3 more",)])


@job
def divided_in_hooks_and_summed_by_hand():
    model = Net()
    for p in model.parameters():
        p.register_hook(lambda g: g / WORLD)

    def step():
        mean_of(model)()
        for p in model.parameters():
            dist.all_reduce(p.grad)

    return Job(model, step)


@job
def scaled_beside_a_hook_that_halves():
    model, _ = hooked(lambda g: g / 2)
    model.register_comm_hook(None, all_reduced(0.5))
    return Job(model, answer=None, facts=[("averaged",)])


@job
def weight_norm():
    net = Net()
    torch.nn.utils.parametrizations.weight_norm(net.up)
    return Job(DistributedDataParallel(net))


@job
def fully_shard_accumulated_thrice():
    made = fully_shard_accumulated()
    return of_hook(made.model, mean_of(made.model, 3))


@job
def fully_shard_masked():
    model = fully_shard(Net())
    model.up.weight.register_post_accumulate_grad_hook(lambda p: p.grad.to_local()[::2].zero_())
    return of_hook(model, mean_of(model))


@job
def flat_whole_step():
    model = FullyShardedDataParallel(Net(), use_orig_params=True, device_id=ranks.DEVICE)
    optimizer = torch.optim.AdamW(model.parameters())

    def step():
        mean_of(model, 2)()
        optimizer.step()
        optimizer.zero_grad()

    return Job(model, step)


@job
def encoder_beside_tensor_parallelism():
    """DDP over the ranks along which another module is cut."""
    encoder, (model, step) = DistributedDataParallel(nn.Linear(IN, IN)), same(None)

    def both():
        step()
        encoder(draw(dist.get_rank())[0]).square().mean().backward()

    return Job(nn.ModuleDict({"encoder": encoder, "model": model}), both)


# -- mistakes beside hooks: they are not called right


def mutation(made, answer=False, **others):
    made.answer, made.open_names = answer, others.get("open_names", made.open_names)
    made.reported.update(others.get("told", {}))
    return made


@job
def halved_and_not_summed():
    model, step = hooked(lambda g: g / 2)

    def unsynchronised():
        with model.no_sync():
            step()

    return mutation(Job(model, unsynchronised, facts=[("BAD", "dp")]))


@job
def summed_in_a_hook_and_by_ddp():
    model, step = hooked(lambda p: dist.all_reduce(p.grad), kind=ACCUMULATED)
    return mutation(Job(model, step))


@job
def step_in_a_hook_without_a_sum():
    model = Net()
    for p in model.parameters():
        optimizer = torch.optim.SGD([p], 0.0)

        def hook(p, optimizer=optimizer):
            optimizer.step()
            p.grad = None

        p.register_post_accumulate_grad_hook(hook)
    return mutation(Job(model, facts=[("BAD", "dp")]))


@job
def custom_that_sums_nothing():
    def nothing(state, bucket):
        done = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

    return mutation(Job(communicates(nothing), facts=[("BAD", "dp")]))


@job
def adapters_without_a_sum():
    return mutation(Job(*adapted(plain=False, sums=False), facts=[("BAD", "dp")]))


@job
def norm_of_heads_without_a_sum():
    return mutation(Job(*heads(None), facts=[("`norm.weight`", "tp")]))


def tripled(p):
    dist.all_reduce(p.grad)
    p.grad.mul_(3)


@job
def norm_of_heads_tripled():
    return Job(*heads(tripled), answer=None, open_names=["norm.weight"], facts=[("norm.weight", "tp")])


@job
def same_work_summed_though_it_is_said():
    """A factor 2 that is the number of ranks may be a hook's own, too."""
    made = Job(*same(lambda p: dist.all_reduce(p.grad)), types={"norm.*": "tp=I"}, facts=[("norm.bias", "tp")])
    return mutation(made, answer=None, open_names=["norm.weight", "norm.bias"])


@job
def shards_summed_again():
    model = fully_shard(Net())
    for p in model.parameters():
        p.register_post_accumulate_grad_hook(lambda p: dist.all_reduce(p.grad.to_local()))
    return Job(model, answer=None)


@job
def unscaled_twice():
    def twice(scaler, optimizer):
        scaler.unscale_(optimizer)
        for group in optimizer.param_groups:
            for p in group["params"]:
                p.grad.div_(1024)

    made = scaled(DistributedDataParallel(Net()), twice)
    made.facts = [("BAD", "1/1.04858e+06")]
    return mutation(made)


# -- hooks that may hide a mistake: what they made is right or is not


def on_all(hook, microbatches=1, kind="register_hook", where=(0, 1), wrapped=True, summed=1.0):
    """Net with `hook` on all its parameters, on the ranks `where`; in DDP, or summed by hand and then multiplied."""
    net = Net()
    for p in net.parameters() if dist.get_rank() in where else ():
        getattr(p, kind)(hook)
    model = DistributedDataParallel(net) if wrapped else net

    def step():
        for m in range(microbatches):
            (mean_loss(model, draw(dist.get_rank(), m)) / microbatches).backward()
        for p in () if wrapped else model.parameters():
            dist.all_reduce(p.grad)
            p.grad.mul_(summed)

    return model, step


def reduced_to_the_first(g):
    g = g.clone()
    dist.reduce(g, 0)
    return g


def first_cleared():
    seen = []

    def hook(p):
        seen.append(p)
        if len(seen) <= len(NET):
            p.grad.zero_()

    return hook


def by_its_own_norm(p):
    p.grad.mul_(1e-3 / p.grad.norm())


def sharded(hook, where=(0, 1)):
    model = fully_shard(Net())
    for p in model.parameters() if dist.get_rank() in where else ():
        p.register_post_accumulate_grad_hook(hook)
    return model, mean_of(model)


def scale_shard(factor):
    return lambda p: p.grad.to_local().mul_(factor)


# name: (a model and its step, facts of the doubt, what the watch is given)
OPEN = {
    "averages_twice": (lambda: on_all(lambda g: g / WORLD), (), {}),
    "averages_twice_by_hand": (
        lambda: on_all(scale_accumulated(1 / WORLD), kind=ACCUMULATED, wrapped=False, summed=1 / WORLD),
        (),
        {"expect": 1 / WORLD},
    ),
    "shards_averaged_twice": (lambda: sharded(scale_shard(1 / WORLD)), (), {}),
    "half_on_one_rank": (lambda: on_all(lambda g: g * 0.5, where=[1]), ("rank 0", "rank 1"), {}),
    "zero_on_one_rank": (lambda: on_all(lambda g: g * 0, where=[1]), ("rank 0", "rank 1"), {}),
    "flipped_on_one_rank": (lambda: on_all(lambda g: -g, where=[1]), ("rank 0", "rank 1"), {}),
    "doubled_on_one_rank": (lambda: on_all(lambda g: g * 2, where=[1]), ("rank 0", "rank 1"), {}),
    "a_shard_halved": (lambda: sharded(scale_shard(0.5), where=[1]), ("rank 0", "rank 1"), {}),
    "clipped_by_the_norm_of_a_shard": (lambda: sharded(by_shard), ("rank 0", "rank 1"), {}),
    "clipped_before_a_sum_by_hand": (
        lambda: on_all(by_its_own_norm, kind=ACCUMULATED, wrapped=False),
        ("rank 0", "rank 1"),
        {},
    ),
    "reduced_and_averaged": (lambda: on_all(reduced_to_the_first), (), {}),
    "noise_on_one_rank": (lambda: on_all(torch.randn_like, where=[1]), (), {}),
    "times_the_ranks": (lambda: on_all(lambda g: g * WORLD), (), {}),
    "accumulated_halved_twice": (lambda: on_all(scale_accumulated(0.5), 2, ACCUMULATED, wrapped=False), (), {}),
    "first_microbatch_cleared": (lambda: on_all(first_cleared(), 2, ACCUMULATED, wrapped=False), (), {}),
}


def by_shard(p):
    local = p.grad.to_local()
    local.mul_(1e-3 / local.norm())


for _name, (_make, _facts, _reported) in OPEN.items():
    JOBS[_name] = lambda make=_make, facts=_facts, reported=_reported: of_hook(*make(), NET, facts, **reported)


@job
def one_rank_dropped_in_a_communication_hook():
    def dropped(state, bucket):
        bucket.buffer().mul_(1 / WORLD if dist.get_rank() == 0 else 0)
        return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(lambda future: future.value()[0])

    return mutation(Job(communicates(dropped), facts=[("BAD", "rank 1")]))


@job
def looks_and_sums_nothing():
    """A hook that only looks changes nothing, although gradients accumulate."""
    model = Net()
    for p in model.parameters():
        p.register_post_accumulate_grad_hook(lambda p: None)
    return mutation(Job(model, mean_of(model, 2), facts=[("BAD", "dp")]), reported={"expect": 1 / WORLD})


# -- mutants beside the job's own hooks: none of them is hidden


def mutants(kind, hook, hook_kind, is_late, is_inside):
    net = Net()
    model = DistributedDataParallel(net)

    def attach():
        for p in net.parameters():
            getattr(p, hook_kind)(hook)

    def step():
        with addend.torch.mutate(model, kind) if is_inside else contextlib.nullcontext():
            if is_late:
                attach()
            mean_of(model)()

    if not is_late:
        attach()
    made = mutation(Job(model, step))
    if not is_inside:
        made.around = addend.torch.mutate(model, kind)
    return made


for _kind in ("average", "skip", "double"):
    for _inside in (False, True):
        for _what, _hooks in {
            "looking": (lambda g: None, "register_hook", False),
            "late": (lambda g: None, "register_hook", True),
            "late_third": (lambda g: g / 3, "register_hook", True),
            "accumulated": (lambda p: None, ACCUMULATED, False),
            "accumulated_third": (scale_accumulated(1 / 3), ACCUMULATED, False),
        }.items():
            JOBS[f"planted_{_kind}_{_what}_{'inside' if _inside else 'around'}"] = (
                lambda kind=_kind, hooks=_hooks, inside=_inside: mutants(kind, *hooks, inside)
            )


# -- what ranks do


def run_jobs(names):
    found = {}
    for name in names:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                made = JOBS[name]()
                with (
                    made.around,
                    contextlib.redirect_stdout(None),
                    addend.torch.watch(made.model, **made.reported) as watch,
                ):
                    made.step()
                found[name] = (watch.report, made.answer, made.facts, made.open_names)
            except Exception:
                found[name] = (traceback.format_exc(), True, (), ())
    return found


class Subgroups(unittest.TestCase):
    """Post-local SGD sums within subgroups of the ranks: each is judged by itself, where group= names it."""

    PAIRS = ([[0, 1], [2, 3]], [[0, 2], [1, 3]])

    def test_each_subgroup_is_judged_by_its_own_sums(self):
        for pairs in self.PAIRS:
            for halved in ([], pairs[1], [0, 1, 2, 3]):
                for rank, report in enumerate(ranks.run(4, run_subgroups, pairs, halved, True)):
                    with self.subTest(pairs=pairs, halved=halved, rank=rank):
                        self.assertEqual((report.ok, report.world), (rank not in halved, 2), report)
                        reported = {
                            (p.cause.kind, p.cause.axes, p.cause.factor) for p in report.params if p.ok is False
                        }
                        self.assertEqual(reported, {("averaged", "dp", 0.5)} if rank in halved else set(), report)

    def test_all_ranks_together_are_not_judged(self):
        for pairs in self.PAIRS:
            for halved in ([], pairs[1]):
                for report in ranks.run(4, run_subgroups, pairs, halved, False):
                    self.assertEqual([(p.ok, p.kind) for p in report.params], [(None, "not_judged")] * len(NET), report)
                    says(self, str(report), "group=", f"ranks {pairs[0][0]}", f"and {pairs[0][1]}")


class Hooks(unittest.TestCase):
    def test_right_jobs_are_not_called_wrong(self):
        names = os.environ.get("JOBS", "").split() or list(JOBS)
        for i in range(0, len(names), 12):
            for name, (report, answer, facts, open_names) in ranks.run(WORLD, run_jobs, names[i : i + 12])[0].items():
                with self.subTest(job=name):
                    self.assertIs(getattr(report, "ok", report), answer, str(report))
                    if answer is None and report.params:
                        self.assertEqual(
                            {p.name for p in report.params if not p.ok},
                            set(open_names),
                            str(report),
                        )
                    for some in facts:
                        says(self, str(report), *some, case=name)


if __name__ == "__main__":
    unittest.main()
