"""Right jobs of data parallelism: hooks, losses, models, accumulation, communication hooks, sums by hand."""

import contextlib
import copy

import kinds
import torch
import torch.distributed as dist
import torch.nn.functional as F
from kinds import HIDDEN, IN, OUT, WORDS, Job, Net, Words, data_parallel, square, token_sum, watched, wrap
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, post_localSGD_hook
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

import ranks

ANY = ("ddp", "fsdp2", "hand", "hooked", "fsdp1")


def rows_share(draw):
    return lambda model, data, m: square(model, draw.batch(data, m))


# -- hooks that change gradients


def hooked_tensors(draw, hook, which=None):
    """Register `hook` on some parameters of Net and of the copy that one process has."""
    model = Net()
    names = which or draw.sample([name for name, _ in model.named_parameters()], draw.randint(1, 3))

    def attach(one):
        for name, p in one.named_parameters():
            if name in names:
                p.register_hook(hook)

    return model, attach


def with_hooks(draw, hook):
    model, attach = hooked_tensors(draw, hook)
    reference = copy.deepcopy(model)
    attach(reference)
    attach(model)
    return data_parallel(draw, model, rows_share(draw), kinds=("ddp", "hand"), reference=reference)


@watched(2, 3, 4)
def tensor_hook_scales(draw):
    factor = draw.one_of(0.1, 0.5, 0.25, 2.0, 1 / 3)
    return with_hooks(draw, lambda g: g * factor)


@watched(2, 3, 4)
def tensor_hook_scales_by_ranks(draw):
    factor = draw.one_of(1 / draw.world, float(draw.world))
    return with_hooks(draw, lambda g: g * factor)


@watched(2, 3)
def tensor_hook_zeroes(draw):
    return with_hooks(draw, lambda g: g * 0)


@watched(2, 3)
def tensor_hook_masks_rows(draw):
    """Only some rows are trained, as of new tokens of an embedding."""
    model = Words()
    mask = torch.zeros(WORDS, 1)
    mask[-7:] = 1
    model.embed.weight.register_hook(lambda g: g * mask)
    reference = copy.deepcopy(model)
    reference.embed.weight.register_hook(lambda g: g * mask)
    share = lambda one, data, m: token_sum(one, draw.tokens(data, m)) / 24  # noqa: E731
    return data_parallel(draw, model, share, 1, ("ddp", "hand"), reference=reference)


def per_addend(draw, model, change, microbatches):
    """A job whose hooks change each addend, not linearly: one process changes each addend alone."""
    reference, share = copy.deepcopy(model), rows_share(draw)
    wrapped = wrap(draw, model, ("ddp", "hand"), microbatches)
    job = data_parallel(draw, model, share, microbatches, wrapped=wrapped, reference=reference)
    parts = draw.world * microbatches

    def whole():
        sums = {}
        for r in range(draw.world):
            for m in range(microbatches):
                reference.zero_grad()
                (share(reference, r, m) * wrapped.scale / parts).backward()
                for name, p in reference.named_parameters():
                    sums[name] = sums.get(name, 0) + change(name, p.grad, r).double() / wrapped.scale
        return sums

    job.whole = whole
    return job


@watched(2, 3, 4)
def tensor_hook_clamps(draw):
    bound, model = draw.one_of(1e-3, 3e-3), Net()
    job = per_addend(draw, model, lambda name, g, r: g.clamp(-bound, bound), draw.randint(1, 2))
    for p in model.parameters():
        p.register_hook(lambda g: g.clamp(-bound, bound))
    return job


@watched(2, 3)
def tensor_hook_clips_norms(draw):
    bound, model = draw.one_of(1e-2, 2e-3), Net()
    clip = lambda g: g * (bound / (g.norm() + 1e-6)).clamp(max=1.0)  # noqa: E731
    job = per_addend(draw, model, lambda name, g, r: clip(g), 1)
    for p in model.parameters():
        p.register_hook(clip)
    return job


@watched(2, 3)
def tensor_hook_adds_noise(draw):
    model, scale = Net(), draw.one_of(1e-3, 1e-2)

    def noise(name, g, data):
        generator = draw.generator(data, 40 + len(name))
        return g + scale * torch.randn(g.shape, generator=generator)

    job = per_addend(draw, model, noise, 1)
    for name, p in model.named_parameters():
        p.register_hook(lambda g, name=name: noise(name, g, draw.rank))
    return job


@watched(2, 3)
def module_hook_scales(draw):
    factor = draw.one_of(0.1, 0.5, -1.0)
    model = Net()

    def attach(one):
        one.up.register_full_backward_hook(lambda module, before, after: tuple(g * factor for g in before))

    reference = copy.deepcopy(model)
    attach(model)
    attach(reference)
    return data_parallel(draw, model, rows_share(draw), reference=reference)


class Reverse(torch.autograd.Function):
    @staticmethod
    def forward(context, x, factor):
        context.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(context, gradient):
        return -context.factor * gradient, None


class Adversary(nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.body, self.domain, self.factor = Net(), nn.Linear(OUT, 2), factor

    def forward(self, x):
        y = self.body(x)
        return y, self.domain(Reverse.apply(y, self.factor))


@watched(2, 3, 4)
def gradient_reversal(draw):
    def share(model, data, m):
        x, y = draw.batch(data, m)
        out, domain = model(x)
        return (out - y).square().mean() + F.cross_entropy(domain, torch.full((len(x),), data % 2))

    return data_parallel(draw, Adversary(draw.one_of(0.1, 1.0)), share)


@watched(2, 3, 4)
def sum_in_tensor_hook(draw):
    """A tensor hook sums each microbatch's gradient and returns the sum."""
    model, averages = Net(), draw.random() < 0.5
    divisor = draw.world if averages else 1

    def reduce(g):
        g = g.clone()
        dist.all_reduce(g)
        return g / divisor

    reference = copy.deepcopy(model)
    for p in model.parameters():
        p.register_hook(reduce)
    wrapped = kinds.Wrapped(model, divisor, watch={"expect": 1 / divisor} if averages else {})
    return data_parallel(draw, model, rows_share(draw), wrapped=wrapped, reference=reference)


@watched(2, 3)
def sum_in_async_hooks(draw):
    model, works = Net(), []
    job = data_parallel(draw, model, rows_share(draw), 1, ("hand",))
    for p in model.parameters():
        p.register_post_accumulate_grad_hook(lambda p: works.append(dist.all_reduce(p.grad, async_op=True)))

    def step(watch):
        works.clear()
        (square(model, draw.batch(draw.rank)) / draw.world).backward()
        for work in works:
            work.wait()

    job.step, job.watch = step, {}
    return job


# -- communication hooks


def hooked_ddp(draw, register, microbatches=None, bound=1e-4, watch=None, **more):
    model = DistributedDataParallel(Net(), **more)
    reference = Net()
    reference.load_state_dict(model.module.state_dict())
    register(model)
    microbatches = microbatches or draw.randint(1, 2)

    def step(watch):
        for m in range(microbatches):
            with contextlib.nullcontext() if m == microbatches - 1 else model.no_sync():
                (square(model, draw.batch(draw.rank, m)) / microbatches).backward()

    def whole():
        parts = draw.world * microbatches
        shares = [
            lambda one, r=r, m=m: square(one, draw.batch(r, m)) / parts
            for r in range(draw.world)
            for m in range(microbatches)
        ]
        return kinds.alone(reference, shares)

    return Job(model, step, whole, watch or {}, bound=bound)


@watched(2, 3, 4)
def fp16_compress_hook(draw):
    return hooked_ddp(draw, lambda model: model.register_comm_hook(None, default_hooks.fp16_compress_hook), bound=1e-2)


@watched(2, 3, 4)
def bf16_compress_hook(draw):
    return hooked_ddp(draw, lambda model: model.register_comm_hook(None, default_hooks.bf16_compress_hook), bound=3e-2)


@watched(2, 4)
def fp16_compress_wrapper(draw):
    wrapper = default_hooks.fp16_compress_wrapper(default_hooks.allreduce_hook)
    return hooked_ddp(draw, lambda model: model.register_comm_hook(None, wrapper), bound=1e-2)


@watched(2, 4)
def bf16_compress_wrapper(draw):
    wrapper = default_hooks.bf16_compress_wrapper(default_hooks.allreduce_hook)
    return hooked_ddp(draw, lambda model: model.register_comm_hook(None, wrapper), bound=3e-2)


@watched(2, 3)
def compress_hook_with_reduce(draw):
    register = lambda model: model.register_comm_hook(None, default_hooks.bf16_compress_hook)  # noqa: E731
    return hooked_ddp(draw, register, bound=3e-2, watch={"reduce": torch.bfloat16})


@watched(2, 3)
def built_in_comm_hook(draw):
    kind = draw.one_of(dist.BuiltinCommHookType.ALLREDUCE, dist.BuiltinCommHookType.FP16_COMPRESS)
    return hooked_ddp(draw, lambda model: model._register_builtin_comm_hook(kind), bound=1e-2)


@watched(2, 3)
def powersgd_hook(draw):
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

    def register(model):
        state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=2)
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)

    return hooked_ddp(draw, register, 1, bound=1e9)


@watched(4)
def post_local_sgd(draw):
    """In its second phase gradients are averaged within sub groups; parameters are averaged by another step."""
    warm = draw.one_of(0, 3)
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    own = groups[draw.rank // 2]
    phase = 1000 if draw.random() < 0.4 else 0
    state = post_localSGD_hook.PostLocalSGDState(None, own, start_localSGD_iter=phase)
    job = hooked_ddp(draw, lambda model: model.register_comm_hook(state, post_localSGD_hook.post_localSGD_hook), 1)
    job.warm = warm
    if phase == 0:
        reference = Net()
        reference.load_state_dict(job.model.module.state_dict())
        first = draw.rank // 2 * 2
        shares = [lambda one, r=r: square(one, draw.batch(r)) / 2 for r in (first, first + 1)]
        job.whole = lambda: kinds.alone(reference, shares)
    return job


# -- losses


def language(draw, make_share, kinds_=("ddp", "fsdp2", "hand", "hooked"), microbatches=None, model=None, **more):
    return data_parallel(draw, model or Words(), make_share, microbatches, kinds_, **more)


def global_count(draw, microbatches, labels_of=None):
    labels = labels_of or (lambda r, m: draw.tokens(r, m)[1])
    return sum(int((labels(r, m) >= 0).sum()) for r in range(draw.world) for m in range(microbatches))


@watched(2, 3, 4)
def token_mean_by_global_count(draw):
    count = draw.randint(1, 3)
    total = global_count(draw, count)
    share = lambda model, data, m: token_sum(model, draw.tokens(data, m)) / total  # noqa: E731
    return language(draw, share, microbatches=count, summed=True)


@watched(2, 3)
def token_mean_with_divisor(draw):
    """The same, and the watch is given each divisor."""
    count = draw.randint(1, 2)
    total = global_count(draw, count)
    share = lambda model, data, m: token_sum(model, draw.tokens(data, m)) / total  # noqa: E731
    job = language(draw, share, ("ddp", "fsdp2"), count, summed=True)
    step = job.step

    def reported(watch):
        if watch:
            watch.divisor(total / draw.world)
        step(watch)

    job.step = reported if count == 1 else step
    return job


@watched(2, 3, 4)
def label_smoothing(draw):
    count = draw.randint(1, 2)
    total = global_count(draw, count)
    share = lambda model, data, m: token_sum(model, draw.tokens(data, m), label_smoothing=0.1) / total  # noqa: E731
    return language(draw, share, microbatches=count, summed=True)


@watched(2, 3, 4)
def sample_mean_of_uneven_rows(draw):
    total = sum(draw.rows(r) for r in range(draw.world))

    def share(model, data, m):
        rows = draw.rows(data)
        return square(model, draw.batch(data, m, rows)) * rows / total

    return data_parallel(draw, Net(), share, 1, summed=True)


@watched(2, 3, 4)
def ranks_with_empty_batches(draw):
    """The last rank has no rows in this step; its loss is an empty sum."""
    empty = draw.world - 1
    total = sum(draw.rows(r) for r in range(draw.world - 1)) * OUT

    def share(model, data, m):
        x, y = draw.batch(data, m, 0 if data == empty else draw.rows(data))
        return (model(x) - y).square().sum() / total

    return data_parallel(draw, Net(), share, 1, summed=True)


@watched(2, 3)
def all_labels_ignored_on_one_rank(draw):
    def labels(r, m):
        own = draw.tokens(r, m)[1]
        return torch.full_like(own, -100) if r == 0 else own

    total = global_count(draw, 1, labels)

    def share(model, data, m):
        return token_sum(model, (draw.tokens(data, m)[0], labels(data, m))) / total

    return language(draw, share, microbatches=1, summed=True)


@watched(2, 3)
def uneven_microbatches(draw):
    """Rank 0 has one microbatch more than the others; the last of each is synchronised."""
    model = Net()
    reference = copy.deepcopy(model)
    model = DistributedDataParallel(model)
    counts = [3 if r == 0 else 2 for r in range(draw.world)]
    total = sum(counts)

    def step(watch):
        for m in range(counts[draw.rank]):
            last = m == counts[draw.rank] - 1
            with contextlib.nullcontext() if last else model.no_sync():
                (square(model, draw.batch(draw.rank, m)) * draw.world / total).backward()

    shares = [
        lambda one, r=r, m=m: square(one, draw.batch(r, m)) / total for r in range(draw.world) for m in range(counts[r])
    ]
    return Job(model, step, lambda: kinds.alone(reference, shares))


class Preference(nn.Module):
    """A policy and a frozen reference, as DPO has them."""

    def __init__(self):
        super().__init__()
        self.policy, self.reference = Words(), Words()
        self.reference.requires_grad_(False)

    def forward(self, chosen, rejected):
        def score(model, tokens):
            logits = model(tokens[:, :-1]).log_softmax(-1)
            return logits.gather(-1, tokens[:, 1:, None]).sum((1, 2))

        with torch.no_grad():
            base = score(self.reference, chosen) - score(self.reference, rejected)
        return -F.logsigmoid(0.3 * (score(self.policy, chosen) - score(self.policy, rejected) - base))


@watched(2, 3)
def preference_pairs(draw):
    def share(model, data, m):
        return model(draw.tokens(data, m)[0], draw.tokens(data, m + 20)[0]).mean()

    return data_parallel(draw, Preference(), share, kinds=("ddp", "hand", "fsdp2"))


@watched(2, 3)
def distillation(draw):
    teacher = Words().requires_grad_(False)

    def share(model, data, m):
        tokens = draw.tokens(data, m)[0]
        with torch.no_grad():
            wanted = teacher(tokens).softmax(-1)
        return F.kl_div(model(tokens).log_softmax(-1), wanted, reduction="batchmean")

    return language(draw, share)


@watched(2, 3)
def masked_words(draw):
    """The mean over masked words alone, divided by their number on all ranks."""
    places = [(r, m) for r in range(draw.world) for m in range(2)]
    masks = {(r, m): torch.rand(3, 8, generator=draw.generator(r, m + 9)) < 0.3 for r, m in places}
    total = sum(int(mask.sum()) for mask in masks.values())

    def share(model, data, m):
        tokens, mask = draw.tokens(data, m)[0], masks[data, m]
        losses = F.cross_entropy(model(tokens.masked_fill(mask, 0)).flatten(0, 1), tokens.flatten(), reduction="none")
        return (losses * mask.flatten()).sum() / total

    return language(draw, share, microbatches=2, summed=True)


@watched(2, 3)
def policy_gradient(draw):
    """Advantages per sequence, a ratio that is clipped, token sums divided by the longest length."""

    def share(model, data, m):
        tokens, labels = draw.tokens(data, m)
        logp = model(tokens).log_softmax(-1).gather(-1, labels.clamp(min=0)[..., None])[..., 0]
        generator = draw.generator(data, m + 7)
        advantages = torch.randn(len(tokens), 1, generator=generator)
        ratio = (logp - logp.detach() + 0.3 * torch.randn(logp.shape, generator=generator)).exp()
        loss = -torch.min(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)
        return (loss * (labels >= 0)).sum() / labels.numel()

    return language(draw, share)


# -- contrastive losses and statistics over ranks


@watched(2, 3, 4)
def contrastive_gather(draw):
    """All ranks' embeddings by a gather that can be differentiated; each rank computes the loss of all of them."""
    from torch.distributed.nn.functional import all_gather

    model = Net()
    reference = copy.deepcopy(model)
    model = DistributedDataParallel(model)

    def contrast(out):
        out = F.normalize(out, dim=-1)
        return F.cross_entropy(out @ out.flip(0).T * 5, torch.arange(len(out)))

    def step(watch):
        contrast(torch.cat(all_gather(model(draw.batch(draw.rank)[0])))).backward()

    rows = lambda: torch.cat([draw.batch(r)[0] for r in range(draw.world)])  # noqa: E731
    return Job(model, step, lambda: kinds.alone(reference, [lambda one: contrast(one(rows()))]))


@watched(2, 4)
def contrastive_local_rows(draw):
    """Each rank's own rows against all ranks' columns: the mean over ranks is the loss of all."""
    from torch.distributed.nn.functional import all_gather

    model = Net()
    reference = copy.deepcopy(model)
    model = DistributedDataParallel(model)

    def contrast(own, everyones, first):
        return F.cross_entropy(
            F.normalize(own, dim=-1) @ F.normalize(everyones, dim=-1).T * 5, first + torch.arange(len(own))
        )

    def step(watch):
        own = model(draw.batch(draw.rank)[0])
        contrast(own, torch.cat(all_gather(own)), draw.rank * len(own)).backward()

    def share(one):
        every = one(torch.cat([draw.batch(r)[0] for r in range(draw.world)]))
        return contrast(every, every, 0)

    return Job(model, step, lambda: kinds.alone(reference, [share]))


class SumOver(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(context, gradient):
        gradient = gradient.clone()
        dist.all_reduce(gradient)
        return gradient


class SyncNorm(nn.Module):
    """Batch normalisation with statistics of all ranks."""

    def __init__(self, width, over=True):
        super().__init__()
        self.weight, self.bias, self.over = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width)), over
        self.register_buffer("mean", torch.zeros(width))

    def forward(self, x):
        sums = torch.cat([x.sum(0), x.square().sum(0), torch.tensor([float(len(x))])])
        sums = SumOver.apply(sums) if self.over else sums
        width = x.shape[1]
        mean = sums[:width] / sums[-1]
        variance = sums[width : 2 * width] / sums[-1] - mean.square()
        self.mean.lerp_(mean.detach(), 0.1)
        return (x - mean) * (variance + 1e-5).rsqrt() * self.weight + self.bias


@watched(2, 3)
def batch_norm_over_ranks(draw):
    model = nn.Sequential(nn.Linear(IN, HIDDEN), SyncNorm(HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, OUT))
    reference = copy.deepcopy(model)
    reference[1].over = False
    model = DistributedDataParallel(model, broadcast_buffers=draw.random() < 0.5)
    batches = [draw.batch(r) for r in range(draw.world)]

    def step(watch):
        square(model, batches[draw.rank]).backward()

    every = tuple(torch.cat(part) for part in zip(*batches))
    return Job(model, step, lambda: kinds.alone(reference, [lambda one: square(one, every)]), bound=1e-3)


@watched(2, 3, 4)
def batch_norm_per_rank(draw):
    model = nn.Sequential(nn.Linear(IN, HIDDEN), nn.BatchNorm1d(HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, OUT))
    return data_parallel(draw, model, rows_share(draw), kinds=("ddp", "hand"))


# -- what a step does besides one backward


@watched(2, 3)
def several_losses(draw):
    """Two losses of one forward, each with its own backward."""
    model = Net()
    reference = copy.deepcopy(model)
    both = draw.one_of("retain_graph", "two forwards")

    def losses(one, data):
        x, y = draw.batch(data)
        out = one(x)
        other = one(x * 0.5) if both == "two forwards" else out
        return (out - y).square().mean(), other.abs().mean()

    def step(watch):
        first, second = losses(model, draw.rank)
        (first / draw.world).backward(retain_graph=True)
        (second / draw.world).backward()
        kinds.all_reduced(model.parameters())

    shares = [lambda one, r=r: sum(losses(one, r)) / draw.world for r in range(draw.world)]
    return Job(model, step, lambda: kinds.alone(reference, shares))


@watched(2, 3)
def gradient_penalty(draw):
    """The norm of the gradient of the inputs is in the loss: a backward through a backward."""
    model = Net()
    reference = copy.deepcopy(model)

    def loss(one, data):
        x, y = draw.batch(data)
        x.requires_grad_()
        out = one(x)
        (slope,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        return (out - y).square().mean() + (slope.norm(dim=1) - 1).square().mean()

    def step(watch):
        (loss(model, draw.rank) / draw.world).backward()
        kinds.all_reduced(model.parameters())

    shares = [lambda one, r=r: loss(one, r) / draw.world for r in range(draw.world)]
    return Job(model, step, lambda: kinds.alone(reference, shares))


class Rivals(nn.Module):
    def __init__(self):
        super().__init__()
        self.generator, self.critic = Net(), nn.Sequential(nn.Linear(OUT, 32), nn.Tanh(), nn.Linear(32, 1))


@watched(2, 3)
def two_models_in_one_step(draw):
    """A critic on real and made rows, then its generator through the critic, in one watch of both."""
    model = Rivals()
    reference = copy.deepcopy(model)
    parts = {name: DistributedDataParallel(part) for name, part in model.named_children()}

    def critic_loss(one, parts, data):
        x, y = draw.batch(data)
        return F.softplus(parts["critic"](torch.cat([parts["generator"](x).detach(), y]))).mean()

    def generator_loss(one, parts, data):
        for p in one.critic.parameters():
            p.requires_grad_(False)
        return -one.critic(parts["generator"](draw.batch(data)[0])).mean()

    def step(watch):
        critic_loss(model, parts, draw.rank).backward()
        generator_loss(model, parts, draw.rank).backward()
        for p in model.critic.parameters():
            p.requires_grad_(True)

    def whole():
        own = dict(reference.named_children())
        for r in range(draw.world):
            (critic_loss(reference, own, r) / draw.world).backward()
        for r in range(draw.world):
            (generator_loss(reference, own, r) / draw.world).backward()
        return kinds.gradients_of(reference)

    return Job(nn.ModuleList(parts.values()), step, lambda: renamed(whole()))


def renamed(found):
    return {n.replace("generator.", "0.", 1).replace("critic.", "1.", 1): g for n, g in found.items()}


class Averaged(nn.Module):
    def __init__(self):
        super().__init__()
        self.online = Net()
        self.target = copy.deepcopy(self.online).requires_grad_(False)

    def forward(self, x):
        with torch.no_grad():
            wanted = self.target(x + 0.1)
        return (self.online(x) - wanted).square().mean()

    @torch.no_grad()
    def follow(self):
        for slow, fast in zip(self.target.parameters(), self.online.parameters()):
            slow.lerp_(fast, 0.01)


@watched(2, 3)
def moving_average_of_weights(draw):
    model = Averaged()
    with torch.no_grad():
        for p in model.target.parameters():
            p.add_(0.1)
    share = lambda one, data, m: one(draw.batch(data, m)[0])  # noqa: E731
    job = data_parallel(draw, model, share, 1, ("ddp", "hand"))
    step = job.step
    job.step = lambda watch: (step(watch), model.follow())
    return job


@watched(2, 3)
def functional_call(draw):
    model = Net()

    def share(one, data, m):
        x, y = draw.batch(data, m)
        out = torch.func.functional_call(one, dict(one.named_parameters()), (x,))
        return (out - y).square().mean()

    return data_parallel(draw, model, share, kinds=("hand", "hooked"))


@watched(2, 3)
def gradients_by_autograd_grad(draw):
    """torch.autograd.grad, and gradients that are put there by hand."""
    model = Net()
    reference = copy.deepcopy(model)

    def step(watch):
        loss = square(model, draw.batch(draw.rank)) / draw.world
        parameters = list(model.parameters())
        for p, g in zip(parameters, torch.autograd.grad(loss, parameters)):
            dist.all_reduce(g)
            p.grad = g

    shares = [lambda one, r=r: square(one, draw.batch(r)) / draw.world for r in range(draw.world)]
    return Job(model, step, lambda: kinds.alone(reference, shares))


@watched(2, 3)
def learned_step(draw):
    """An inner step of gradient descent whose outcome the loss is of, as meta learning has it."""
    model = Net()
    reference = copy.deepcopy(model)

    def loss(one, data):
        own = dict(one.named_parameters())
        inner = (torch.func.functional_call(one, own, (draw.batch(data)[0],)) - draw.batch(data)[1]).square().mean()
        slopes = torch.autograd.grad(inner, list(own.values()), create_graph=True)
        fast = {name: p - 0.1 * g for (name, p), g in zip(own.items(), slopes)}
        x, y = draw.batch(data, 1)
        return (torch.func.functional_call(one, fast, (x,)) - y).square().mean()

    def step(watch):
        (loss(model, draw.rank) / draw.world).backward()
        kinds.all_reduced(model.parameters())

    shares = [lambda one, r=r: loss(one, r) / draw.world for r in range(draw.world)]
    return Job(model, step, lambda: kinds.alone(reference, shares))


@watched(2, 3)
def loss_scaler_unscales_inside(draw):
    """GradScaler.unscale_ inside the watched step, as before clipping."""
    return scaled(draw, True)


@watched(2, 3)
def loss_scaler_outside(draw):
    return scaled(draw, False)


def scaled(draw, inside):
    model = Net()
    reference = copy.deepcopy(model)
    model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler(ranks.DEVICE.type, init_scale=draw.one_of(2.0**10, 2.0**16))
    scale = scaler.get_scale()

    def step(watch):
        scaler.scale(square(model, draw.batch(draw.rank))).backward()
        if inside:
            scaler.unscale_(optimizer)

    factor = 1 if inside else scale
    shares = [lambda one, r=r: square(one, draw.batch(r)) * factor / draw.world for r in range(draw.world)]
    return Job(model, step, lambda: kinds.alone(reference, shares))


@watched(2, 3)
def optimizer_step_inside(draw):
    """The optimizer steps inside the watch; gradients stay."""
    names = ["SGD", "AdamW", "Adam", "Adagrad", "RMSprop", "Adafactor", "Muon", "foreach", "fused"]
    name = draw.choice([n for n in names if n in ("foreach", "fused") or hasattr(torch.optim, n)])
    model = nn.Sequential(nn.Linear(IN, HIDDEN, bias=False), nn.Tanh(), nn.Linear(HIDDEN, OUT, bias=False))
    arguments = {"foreach": {"foreach": True}, "fused": {"fused": True}}.get(name, {})
    job = data_parallel(draw, model, rows_share(draw), kinds=("ddp", "hand"))
    kind = getattr(torch.optim, "AdamW" if arguments else name)
    optimizer, step = kind(job.model.parameters(), lr=1e-3, **arguments), job.step

    def stepped(watch):
        step(watch)
        optimizer.step()

    job.step = stepped
    return job


@watched(2, 3)
def optimizer_step_in_hooks(draw):
    """The optimizer steps in hooks on accumulated gradients, and drops each gradient."""
    model = Net()
    reference = copy.deepcopy(model)
    kept = {}

    def reduce_and_step(p):
        dist.all_reduce(p.grad)
        kept[names[p]] = p.grad
        with torch.no_grad():
            p -= 0.01 * p.grad
        p.grad = None

    names = {p: name for name, p in model.named_parameters()}
    for p in model.parameters():
        p.register_post_accumulate_grad_hook(reduce_and_step)

    def step(watch):
        (square(model, draw.batch(draw.rank)) / draw.world).backward()

    shares = [lambda one, r=r: square(one, draw.batch(r)) / draw.world for r in range(draw.world)]
    return Job(model, step, lambda: kinds.alone(reference, shares), gradients=lambda: kept)


@watched(2, 3)
def lbfgs_closures(draw):
    """LBFGS runs a backward in each call of its closure, which first clears the gradients of the call before."""
    model = Net()
    reference, wrapped = copy.deepcopy(model), DistributedDataParallel(model)
    set_to_none = bool(draw.randint(0, 2))

    def minimise(model, loss_of):
        optimizer = torch.optim.LBFGS(model.parameters(), lr=0.01, max_iter=3)

        def closure():
            optimizer.zero_grad(set_to_none)
            loss = loss_of()
            loss.backward()
            return loss

        optimizer.step(closure)
        return {name: p.grad for name, p in model.named_parameters()}

    def whole():
        return minimise(
            reference, lambda: sum(square(reference, draw.batch(r)) for r in range(draw.world)) / draw.world
        )

    return Job(wrapped, lambda watch: minimise(model, lambda: square(wrapped, draw.batch(draw.rank))), whole)


# -- accumulation


@watched(2, 3)
def zeroed_gradients_that_stay(draw):
    """zero_grad(set_to_none=False) before the step."""
    job = data_parallel(draw, Net(), rows_share(draw), kinds=("ddp", "hand", "hooked"))
    job.warm, job.clear = 1, lambda: job.model.zero_grad(set_to_none=False)
    return job


@watched(2, 3)
def gradients_as_bucket_views(draw):
    job = data_parallel(draw, Net(), rows_share(draw), kinds=("ddp",), gradient_as_bucket_view=True)
    job.warm, job.clear = 1, lambda: job.model.zero_grad(set_to_none=draw.random() < 0.5)
    return job


@watched(2, 3)
def sync_flag_by_hand(draw):
    """require_backward_grad_sync is set by hand."""
    model = Net()
    reference = copy.deepcopy(model)
    model, count = DistributedDataParallel(model), draw.randint(2, 3)

    def step(watch):
        for m in range(count):
            model.require_backward_grad_sync = m == count - 1
            (square(model, draw.batch(draw.rank, m)) / count).backward()

    parts = draw.world * count
    shares = [
        lambda one, r=r, m=m: square(one, draw.batch(r, m)) / parts for r in range(draw.world) for m in range(count)
    ]
    return Job(model, step, lambda: kinds.alone(reference, shares))


class Branches(nn.Module):
    def __init__(self, count):
        super().__init__()
        self.first = nn.Linear(IN, HIDDEN)
        self.heads = nn.ModuleList(nn.Linear(HIDDEN, OUT) for _ in range(count))

    def forward(self, x, which):
        return self.heads[which](torch.tanh(self.first(x)))


@watched(2, 3, 4)
def another_head_on_each_rank(draw):
    """Multi-task training: each rank's batch is of one task."""
    shift = draw.randint(0, 3)

    def share(model, data, m):
        x, y = draw.batch(data, m)
        return (model(x, (data + m + shift) % 2) - y).square().mean()

    model, count = Branches(2), draw.randint(1, 2)
    if draw.random() < 0.5:
        return data_parallel(draw, model, share, count, ("hand",))
    return data_parallel(draw, model, share, 1, ("ddp",), find_unused_parameters=True)


@watched(2, 3)
def another_head_in_each_microbatch(draw):
    """find_unused_parameters with no_sync, where the last microbatch does not use what an earlier one did."""
    count = draw.randint(2, 3)

    def share(model, data, m):
        x, y = draw.batch(data, m)
        return (model(x, m % 2) - y).square().mean()

    return data_parallel(draw, Branches(2), share, count, ("ddp",), find_unused_parameters=True)


class Dropped(nn.Module):
    """Whole layers are left out at random, in each rank others."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(IN, HIDDEN)
        self.layers = nn.ModuleList(nn.Linear(HIDDEN, HIDDEN) for _ in range(3))
        self.last = nn.Linear(HIDDEN, OUT)

    def forward(self, x):
        x = self.first(x)
        for layer in self.layers:
            if torch.rand(()) < 0.6:
                x = x + torch.tanh(layer(x))
        return self.last(x)


@watched(2, 3)
def layer_drop(draw):
    def share(model, data, m):
        with draw.seeded(data, m):
            return square(model, draw.batch(data, m))

    return data_parallel(draw, Dropped(), share, kinds=("ddp",), find_unused_parameters=True)


@watched(2, 3)
def dropout(draw):
    def share(model, data, m):
        with draw.seeded(data, m):
            return token_sum(model, draw.tokens(data, m)) / 20

    return language(draw, share, ("ddp", "fsdp2", "hand", "hooked"), model=Words(dropout=0.1))


@watched(2, 3)
def static_graph(draw):
    job = data_parallel(draw, Net(), rows_share(draw), 1, ("ddp",), static_graph=True)
    job.warm = draw.randint(0, 2)
    return job


@watched(2, 3)
def static_graph_with_unused(draw):
    share = lambda model, data, m: ((model(draw.batch(data, m)[0], 0)) - draw.batch(data, m)[1]).square().mean()  # noqa: E731
    job = data_parallel(draw, Branches(2), share, 1, ("ddp",), static_graph=True)
    job.warm = draw.randint(0, 2)
    return job


# -- checkpointing, compiling


class Checkpointed(nn.Module):
    def __init__(self, how):
        super().__init__()
        self.layers = nn.Sequential(*[nn.Sequential(nn.Linear(IN, IN), nn.Tanh()) for _ in range(4)])
        self.last, self.how = nn.Linear(IN, OUT), how

    def forward(self, x):
        if self.how == "sequential":
            return self.last(checkpoint_sequential(self.layers, 2, x, use_reentrant=False))
        if self.how == "selective":
            from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

            keep = {torch.ops.aten.addmm.default}
            policy = lambda context, op, *a, **k: (  # noqa: E731
                CheckpointPolicy.MUST_SAVE if op in keep else CheckpointPolicy.PREFER_RECOMPUTE
            )
            context = lambda: create_selective_checkpoint_contexts(policy)  # noqa: E731
            return self.last(checkpoint(self.layers, x, use_reentrant=False, context_fn=context))
        for layer in self.layers:
            x = checkpoint(
                layer, x.requires_grad_() if not x.requires_grad else x, use_reentrant=self.how == "reentrant"
            )
        return self.last(x)


@watched(2, 3)
def activation_checkpointing(draw):
    model = Checkpointed(draw.one_of("plain", "reentrant", "sequential", "selective"))
    return data_parallel(draw, model, rows_share(draw), kinds=("ddp", "fsdp2", "hand"))


@watched(2)
def compiled(draw):
    model, count = Net(), draw.randint(1, 2)
    reference = copy.deepcopy(model)
    wrapped = wrap(draw, model, ("ddp", "hand"), count)
    wrapped.model, wrapped.sync = torch.compile(wrapped.model, backend=draw.one_of("eager", "aot_eager")), None
    return data_parallel(draw, model, rows_share(draw), count, wrapped=wrapped, reference=reference)


# -- models


class Odd(nn.Module):
    """Parameters of no dimension, of one element, of none, not contiguous, and complex ones."""

    def __init__(self, which):
        super().__init__()
        self.net, self.which = Net(), which
        self.scale = nn.Parameter(torch.tensor(0.7) if "scalar" in which else torch.full((1,), 0.7))
        if "empty" in which:
            self.empty = nn.Parameter(torch.zeros(0, 4))
        if "transposed" in which:
            self.turned = nn.Parameter(torch.randn(OUT, OUT).t() / 8)
        if "complex" in which:
            self.phase = nn.Parameter(torch.randn(OUT, dtype=torch.complex64))

    def forward(self, x):
        y = self.net(x) * self.scale
        if "transposed" in self.which:
            y = y @ self.turned
        if "complex" in self.which:
            y = (y * self.phase).abs()
        return y + (self.empty.sum() if "empty" in self.which else 0)


@watched(2, 3, 4)
def odd_parameters(draw):
    which = draw.sample(["scalar", "empty", "transposed", "complex"], 2)
    return data_parallel(draw, Odd(which), rows_share(draw), kinds=("hand", "hooked"))


@watched(2, 3)
def tied_weights(draw):
    share = lambda model, data, m: token_sum(model, draw.tokens(data, m)) / 20  # noqa: E731
    return data_parallel(draw, Words(tied=True), share, kinds=ANY)


@watched(2, 3)
def frozen_weights(draw):
    model = Words()
    for name, p in model.named_parameters():
        p.requires_grad_(draw.random() < 0.6 or name.startswith("head"))
    share = lambda one, data, m: token_sum(one, draw.tokens(data, m)) / 20  # noqa: E731
    return data_parallel(draw, model, share)


@watched(2, 3)
def unused_everywhere(draw):
    share = lambda model, data, m: ((model(draw.batch(data, m)[0], 0)) - draw.batch(data, m)[1]).square().mean()  # noqa: E731
    if draw.random() < 0.5:
        return data_parallel(draw, Branches(2), share, 1, ("ddp",), find_unused_parameters=True)
    return data_parallel(draw, Branches(2), share, kinds=("hooked", "fsdp2"))


class Bag(nn.Module):
    def __init__(self, bag):
        super().__init__()
        self.words = nn.EmbeddingBag(WORDS, 16, sparse=True) if bag else nn.Embedding(WORDS, 16, sparse=True)
        self.out = nn.Linear(16, OUT)

    def forward(self, tokens):
        x = self.words(tokens)
        return self.out(x if x.dim() == 2 else x.mean(1))


@watched(2, 3)
def sparse_embeddings(draw):
    share = lambda model, data, m: (model(draw.tokens(data, m)[0])).square().mean()  # noqa: E731
    return data_parallel(draw, Bag(draw.random() < 0.5), share, 1, ("ddp", "hand"))


@watched(2, 3)
def parametrized_weights(draw):
    model = Net()
    kind = draw.one_of("weight_norm", "spectral_norm", "orthogonal")
    getattr(parametrizations, kind)(model.up)
    share = rows_share(draw)
    if kind == "spectral_norm":  # its buffers move in each forward
        model.eval()
    return data_parallel(draw, model, share, kinds=("ddp", "hand", "hooked"))


class Recurrent(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.words, self.layer = nn.Embedding(WORDS, 16), kind(16, 24, 2, batch_first=True)
        self.out = nn.Linear(24, WORDS)

    def forward(self, tokens):
        return self.out(self.layer(self.words(tokens))[0])


@watched(2, 3)
def recurrent(draw):
    share = lambda model, data, m: token_sum(model, draw.tokens(data, m)) / 20  # noqa: E731
    return data_parallel(draw, Recurrent(draw.one_of(nn.LSTM, nn.GRU)), share, kinds=("ddp", "hand", "hooked"))


class Picture(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(8, 8, 3, groups=4)
        self.norm, self.out = nn.GroupNorm(2, 8), nn.Linear(8 * 2 * 4, OUT)
        self.to(memory_format=torch.channels_last)

    def forward(self, x):
        x = x.view(-1, 1, 4, 6)
        return self.out(self.second(torch.relu(self.norm(self.first(x)))).flatten(1))


@watched(2, 3)
def convolutions(draw):
    return data_parallel(draw, Picture(), rows_share(draw), kinds=("ddp", "hand"))


@watched(2, 3)
def lora_by_hand(draw):
    """Adapters beside frozen layers; B begins at zero, so in the first step A has no gradient."""
    model = Net()
    model.requires_grad_(False)
    model.up, model.down = Adapted(model.up, draw.random() < 0.5), Adapted(model.down, True)
    return data_parallel(draw, model, rows_share(draw), kinds=("ddp", "hand", "fsdp2"))


class Adapted(nn.Module):
    def __init__(self, base, started, rank=4):
        super().__init__()
        self.base = base
        self.a = nn.Parameter(torch.randn(rank, base.in_features) / 4)
        self.b = nn.Parameter(torch.randn(base.out_features, rank) * (0.3 if started else 0))

    def forward(self, x):
        return self.base(x) + x @ self.a.T @ self.b.T


@watched(2, 3)
def half_precision(draw):
    """Parameters in bf16, or autocast."""
    if draw.random() < 0.5:

        def share(model, data, m):
            with torch.autocast(ranks.DEVICE.type, torch.bfloat16):
                x, y = draw.batch(data, m)
                return (model(x).float() - y).square().mean()

        job = data_parallel(draw, Net(), share, kinds=("ddp", "hand", "fsdp2"))
    else:

        def share(model, data, m):
            x, y = draw.batch(data, m)
            return (model(x.bfloat16()).float() - y).square().mean()

        job = data_parallel(draw, Net().bfloat16(), share, kinds=("ddp", "hand"))
    job.bound = 5e-2
    return job


# -- sums by hand


def flat_sum(gradients):
    flat = torch.cat([g.flatten() for g in gradients])
    dist.all_reduce(flat)
    for g, part in zip(gradients, flat.split([g.numel() for g in gradients])):
        g.copy_(part.view_as(g))


def reduce_and_broadcast(gradients):
    for g in gradients:
        dist.reduce(g, 0)
        dist.broadcast(g, 0)


def scatter_and_gather(gradients):
    """As ZeRO does by hand: each rank sums its part, and all gather the parts."""
    world = dist.get_world_size()
    for g in gradients:
        flat = F.pad(g.flatten(), (0, -g.numel() % world))
        dist.all_reduce(flat)
        parts = list(flat.chunk(world))
        own = parts[dist.get_rank()].clone()
        gathered = [torch.empty_like(own) for _ in range(world)]
        dist.all_gather(gathered, own)
        g.copy_(torch.cat(gathered)[: g.numel()].view_as(g))


def gather_and_add(gradients):
    for g in gradients:
        parts = [torch.empty_like(g) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, g)
        g.copy_(sum(parts))


def tree_sum(gradients):
    """Sums of pairs, then of pairs of pairs: recursive doubling by messages."""
    rank, world = dist.get_rank(), dist.get_world_size()
    for g in gradients:
        step = 1
        while step < world:
            other = torch.empty_like(g)
            for request in [dist.isend(g.clone(), rank ^ step), dist.irecv(other, rank ^ step)]:
                request.wait()
            g += other
            step *= 2


@watched(2, 4)
def sums_by_other_collectives(draw):
    how = draw.one_of(flat_sum, reduce_and_broadcast, scatter_and_gather, gather_and_add, tree_sum)
    model, count = Net(), draw.randint(1, 2)
    averages = draw.random() < 0.5
    divisor = draw.world if averages else 1

    def finish():
        gradients = [p.grad for p in model.parameters()]
        how(gradients)
        torch._foreach_div_(gradients, divisor)

    wrapped = kinds.Wrapped(model, divisor, finish, {"expect": 1 / draw.world} if averages else {})
    return data_parallel(draw, model, rows_share(draw), count, wrapped=wrapped)


@watched(4)
def sums_over_two_axes_in_turn(draw):
    mesh = kinds.mesh_of("dp cp", 2, 2)
    model = Net()

    def finish():
        for p in model.parameters():
            for axis in ("dp", "cp"):
                dist.all_reduce(p.grad, group=mesh.get_group(axis))

    wrapped = kinds.Wrapped(model, 1, finish, {"mesh": mesh})
    return data_parallel(draw, model, rows_share(draw), wrapped=wrapped)


@watched(2, 3)
def sums_kept_elsewhere(draw):
    """Each accumulated gradient is moved into a buffer of f32, which is summed: main_grad."""
    model = Net()
    if draw.random() < 0.5:
        model.bfloat16()
    dtype = next(model.parameters()).dtype
    mains, reference = {}, copy.deepcopy(model)

    def move(p):
        mains[p] += p.grad.float()
        p.grad = None

    for p in model.parameters():
        mains[p] = torch.zeros(p.shape)
        p.register_post_accumulate_grad_hook(move)

    def share(one, data, m):
        x, y = draw.batch(data, m)
        return (one(x.to(dtype)).float() - y).square().mean()

    def finish():
        for p in model.parameters():
            dist.all_reduce(mains[p])

    reported = {"gradient": mains.get}
    names = {p: name for name, p in model.named_parameters()}
    wrapped = kinds.Wrapped(model, 1, finish, reported, gradients=lambda: {names[p]: g for p, g in mains.items()})
    job = data_parallel(draw, model, share, draw.randint(1, 2), wrapped=wrapped, reference=reference)
    job.bound = 1e-4 if dtype == torch.float32 else 5e-2
    return job


class Fused(torch.autograd.Function):
    """A linear layer that writes the weight's gradient into main_grad and gives autograd zeros."""

    @staticmethod
    def forward(context, x, weight):
        context.save_for_backward(x, weight)
        return x @ weight.t()

    @staticmethod
    def backward(context, gradient):
        x, weight = context.saved_tensors
        weight.main_grad += gradient.t() @ x
        return gradient @ weight, torch.zeros_like(weight)


class FusedNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Parameter(torch.randn(HIDDEN, IN) / 5), nn.Parameter(torch.randn(OUT, HIDDEN) / 8)

    def forward(self, x, apply=Fused.apply):
        return apply(torch.tanh(apply(x, self.up)), self.down)


@watched(2, 3)
def fused_accumulation(draw):
    model = FusedNet()
    reference = copy.deepcopy(model)
    for p in model.parameters():
        p.main_grad = torch.zeros_like(p)

    def step(watch):
        (square(model, draw.batch(draw.rank)) / draw.world).backward()
        for p in model.parameters():
            dist.all_reduce(p.main_grad)

    plain = lambda x, weight: x @ weight.t()  # noqa: E731

    def share(one, r):
        x, y = draw.batch(r)
        return (one(x, plain) - y).square().mean() / draw.world

    shares = [lambda one, r=r: share(one, r) for r in range(draw.world)]
    gradients = lambda: {name: p.main_grad for name, p in model.named_parameters()}  # noqa: E731
    reported = {"gradient": lambda p: p.main_grad}
    return Job(model, step, lambda: kinds.alone(reference, shares), reported, gradients)


# -- groups of some ranks


@watched(4)
def two_teams(draw):
    """Two models on two halves of the ranks, each watched with its group."""
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    team, first = groups[draw.rank // 2], draw.rank // 2 * 2
    torch.manual_seed(draw.base + first)
    model = Net()
    reference = copy.deepcopy(model)
    model = DistributedDataParallel(model, process_group=team)

    def step(watch):
        square(model, draw.batch(draw.rank)).backward()

    shares = [lambda one, r=r: square(one, draw.batch(r)) / 2 for r in (first, first + 1)]
    return Job(model, step, lambda: kinds.alone(reference, shares), {"group": team})


@watched(4)
def ddp_over_one_axis(draw):
    """DDP over dp; along the other axis ranks do the same work."""
    mesh = kinds.mesh_of("dp tp", 2, 2)
    data = mesh.get_local_rank("dp")
    model = Net()
    reference = copy.deepcopy(model)
    model = DistributedDataParallel(model, process_group=mesh.get_group("dp"))

    def step(watch):
        square(model, draw.batch(data)).backward()

    shares = [lambda one, r=r: square(one, draw.batch(r)) / 2 for r in range(2)]
    reported = {"mesh": mesh, "types": {"*": "dp=R tp=I"}}
    return Job(model, step, lambda: kinds.alone(reference, shares), reported)


@watched(2, 3)
def ignored_by_ddp(draw):
    """Parameters that DDP has to ignore are averaged by hand."""
    model = Net()
    ignored = ["up.weight", "up.bias"]
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, ignored)
    job = data_parallel(draw, model, rows_share(draw), 1, ("ddp",))
    step = job.step

    def both(watch):
        step(watch)
        for p in model.up.parameters():
            dist.all_reduce(p.grad)
            p.grad /= draw.world

    job.step = both
    return job


@watched(2, 3)
def two_wrappers(draw):
    """Two parts of a model, each in DDP of its own."""
    first, second = nn.Sequential(nn.Linear(IN, HIDDEN), nn.Tanh()), nn.Linear(HIDDEN, OUT)
    reference = copy.deepcopy(nn.Sequential(first, second))
    model = nn.Sequential(DistributedDataParallel(first), DistributedDataParallel(second))
    count = draw.randint(1, 2)

    def step(watch):
        for m in range(count):
            (square(model, draw.batch(draw.rank, m)) / count).backward()

    parts = count * draw.world
    shares = [
        lambda one, r=r, m=m: square(one, draw.batch(r, m)) / parts for r in range(draw.world) for m in range(count)
    ]
    return Job(model, step, lambda: kinds.alone(reference, shares))


@watched(2, 3)
def replicate_of_composable(draw):
    from torch.distributed._composable import replicate

    model = Net()
    reference = copy.deepcopy(model)
    replicate(model)

    def step(watch):
        square(model, draw.batch(draw.rank)).backward()

    shares = [lambda one, r=r: square(one, draw.batch(r)) / draw.world for r in range(draw.world)]
    return Job(model, step, lambda: kinds.alone(reference, shares))


@watched(2, 3)
def every_second_step(draw):
    """A loop of steps with one watch."""
    import addend.torch

    job = data_parallel(draw, Net(), rows_share(draw), kinds=("ddp", "hand", "hooked"))
    reports = []

    def report():
        watch = addend.torch.watch(job.model, every=2, **job.watch)
        for _ in range(4):
            job.model.zero_grad()
            watched = watch.watches
            with watch:
                job.step(watch)
            if watched:
                reports.append(watch.report)
        return next((one for one in reports if not one.ok), reports[-1])

    job.report = report
    return job
