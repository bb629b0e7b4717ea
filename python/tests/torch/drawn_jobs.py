"""Random jobs: a wrapper, a mesh, a model, a dtype, how microbatches are accumulated, hooks; and, in wrong jobs, a
mistake. A Spec is what was drawn; `build` makes one rank's job of it.
"""

import contextlib
import dataclasses
import functools
import random
import typing

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import drawn_models
import ranks

if ranks.FSDP2:
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


@dataclasses.dataclass
class Spec:
    wrapper: str
    mesh: tuple  # sizes of the axes
    model: str = "net"
    microbatches: int = 1
    dtype: str = "f32"
    options: dict = dataclasses.field(default_factory=dict)
    bug: typing.Optional[str] = None
    seed: int = 1

    @property
    def world(self):
        return torch.Size(self.mesh).numel()

    @property
    def data(self):
        """Return the number of ranks that have their own batch."""
        return self.mesh[0] if self.wrapper in ("tp", "tp_fsdp", "tp_ddp", "parts", "hand_tp") else self.world

    @property
    def factor(self):
        """Return the factor by which the wrapper, or the script in its place, multiplies the sum."""
        sums = self.wrapper in ("hooked", "tp") or (self.wrapper == "hand" and not self.options.get("divides"))
        by_shards = self.bug == "replicas_by_turns"  # the hook over replicas does not divide
        return 1.0 if sums else 1 / (self.mesh[1] if by_shards else self.data)

    @property
    def parameters(self):
        return {"f64": torch.float64, "bf16": torch.bfloat16}.get(self.dtype, torch.float32)

    def __str__(self):
        options = " ".join(f"{k}={v}" for k, v in self.options.items() if v)
        mesh = "x".join(map(str, self.mesh))
        wrong = f" MISTAKE {self.bug}" if self.bug else ""
        return f"{self.wrapper} {mesh} {self.model} {self.dtype} {self.microbatches} microbatches {options}{wrong}"


@dataclasses.dataclass
class Job:
    model: nn.Module
    step: typing.Callable  # runs, inside the watch, all microbatches, up to synchronised gradients
    watch: dict = dataclasses.field(default_factory=dict)
    gradients: typing.Callable = None  # name -> the optimizer's gradient, or its whole; None: the model's gradients
    warm: int = 0
    after: typing.Callable = None  # called with the watch inside it, after the step
    affected: typing.Optional[set] = None  # names of the parameters that the mistake makes wrong; None: all


@functools.lru_cache(None)
def mesh_of(sizes, names):
    return init_device_mesh(ranks.DEVICE.type, sizes, mesh_dim_names=names)


def plain_name(name):
    for part in ("module.", "_orig_mod.", "_checkpoint_wrapped_module."):
        name = name.replace(part, "")
    return name


# -- what all wrappers share


def hook(spec, model):
    """Add hooks of the job's own that change nothing."""
    kind = spec.options.get("hooks")
    for p in model.parameters():
        if not p.requires_grad:
            continue
        if spec.bug == "masked":
            p.register_hook(lambda gradient: gradient * (gradient > 0))
        if kind == "looks":
            p.register_hook(lambda gradient: None)
        if kind == "copies":
            p.register_hook(lambda gradient: gradient.clone())
        if kind == "accumulated":
            p.register_post_accumulate_grad_hook(lambda parameter: None)
    if kind == "module":
        model.register_full_backward_hook(lambda module, before, after: None)


def backward(spec, loss):
    if spec.options.get("call") == "function":
        torch.autograd.backward([loss])
    elif spec.options.get("call") == "retain":
        loss.backward(retain_graph=True)
    else:
        loss.backward()


def run(spec, model, data, watch, sync=None):
    """Run all microbatches of one rank; `sync(m)` is a context."""
    factor, losses = spec.factor, []
    for m in range(spec.microbatches):
        own = 0 if spec.bug == "same_batch" else data
        batch = 0 if spec.bug == "same_microbatch" else m
        if watch and spec.options.get("counts"):
            watch.divisor(own_count(spec, data, m) if spec.bug == "mean_of_means" else whole_count(spec, factor))
        with sync(m) if sync else contextlib.nullcontext():
            loss = drawn_models.share(spec, model, own, batch, **drawn_models.arguments(spec, data, m)) / factor
            if spec.bug == "mean_of_means":
                loss = loss * whole_count(spec, factor) / own_count(spec, data, m)
            if spec.options.get("call") == "together":
                losses.append(loss)
            else:
                backward(spec, loss)
        if spec.bug == "last_only" and m < spec.microbatches - 1:
            model.zero_grad()
    if losses:
        sum(losses).backward()


def whole_count(spec, factor):
    return drawn_models.total_rows(spec) * factor


def own_count(spec, data, m):
    return drawn_models.rows_of(spec, data, m) * spec.microbatches


def change(spec, model, watch=None):
    """Make mistakes in gradients that are already synchronised."""
    for p in model.parameters():
        if p.grad is None:
            continue
        local = p.grad.to_local() if isinstance(p.grad, DTensor) else p.grad
        if spec.bug == "divided_again":
            local /= dist.get_world_size()
        if spec.bug == "summed_again" and not isinstance(p.grad, DTensor):
            dist.all_reduce(local)
        if spec.bug == "unscaled_twice":
            local /= 1024
        if spec.bug == "clipped_early":
            local *= 0.3033
        if spec.bug == "decayed":
            local += 0.1 * (p.to_local() if isinstance(p, DTensor) else p).detach()
        if spec.bug == "one_rank_scaled" and dist.get_rank() == spec.world - 1:
            local *= 2


# -- DDP


def ddp_hook(spec, model):
    kind, world = spec.options.get("comm"), spec.data
    divisor = {"hook_sums": 1, "hook_divides_twice": world * world}.get(spec.bug, world)
    if spec.bug in ("hook_sums", "hook_divides_twice") or kind == "mean":

        def mean(state, bucket):
            done = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
            return done.then(lambda future: future.value()[0] / divisor)

        model.register_comm_hook(None, mean)
    elif kind:
        name = {"f16": "fp16_compress_hook", "bf16": "bf16_compress_hook", "allreduce": "allreduce_hook"}[kind]
        model.register_comm_hook(None, getattr(default_hooks, name))


def ddp(spec):
    plain, options = drawn_models.make(spec), spec.options
    hook(spec, plain)
    group = None
    if spec.bug == "half_world":
        group = [dist.new_group(half) for half in ([0, 1], [2, 3])][dist.get_rank() // 2]
    model = DistributedDataParallel(
        plain,
        process_group=group,
        find_unused_parameters=bool(options.get("idle") or options.get("spare")),
        static_graph=bool(options.get("static")),
        gradient_as_bucket_view=bool(options.get("views")),
        bucket_cap_mb=0.001 if options.get("buckets") else None,
    )
    ddp_hook(spec, model)
    if spec.bug == "other_weights" and dist.get_rank() == spec.world - 1:
        with torch.no_grad():
            next(model.parameters()).add_(0.5)
    watched = torch.compile(model, backend="aot_eager") if options.get("compiled") else model

    def sync(m):
        last = m == spec.microbatches - 1
        off = {"no_sync_left_on": True, "no_sync_off_by_one": m > 0}.get(
            spec.bug, options.get("accumulate") == "no_sync" and not last
        )
        return model.no_sync() if off else contextlib.nullcontext()

    def step(watch):
        run(spec, watched, dist.get_rank(), watch, sync)
        change(spec, model)

    watch = {"reduce": {"f16": torch.float16, "bf16": torch.bfloat16}[options["comm"]]} if narrow_sum(spec) else {}
    return Job(watched, step, watch, warm=2 if options.get("static") else 0, after=functools.partial(norm, spec, model))


def narrow_sum(spec):
    return spec.options.get("comm") in ("f16", "bf16")


def norm(spec, model, watch):
    """Tell the watch the job's global norm."""
    if not spec.options.get("norm"):
        return
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    gradients = [g.full_tensor() if isinstance(g, DTensor) else g.to_dense() for g in gradients]
    value = torch.stack([g.double().norm() for g in gradients]).norm()
    watch.norm(value * spec.world**0.5 if spec.bug == "norm_counts_copies" else value)


def replicated(spec):
    from torch.distributed._composable import replicate

    model = drawn_models.make(spec)
    hook(spec, model)
    replicate(model)
    return Job(model, lambda watch: (run(spec, model, dist.get_rank(), watch), change(spec, model)))


# -- fully_shard


def by_turns(spec):
    """HSDP by hand: a hook sums over replicas; the mistake leaves it out in every other microbatch."""
    mesh, at = mesh_of(spec.mesh, ("dp_replicate", "dp_shard")), [0]
    model = drawn_models.make(spec)
    spec.options["layers"] = False
    shard(spec, model, mesh["dp_shard"])

    def reduce(part):
        if at[0] % 2 == 0:
            dist.all_reduce(part, group=mesh.get_group("dp_replicate"))

    def sync(m):
        at[0] = m
        return contextlib.nullcontext()

    model.set_all_reduce_hook(reduce)
    step = lambda watch: run(spec, model, dist.get_rank(), watch, sync)  # noqa: E731
    return Job(model, step, {"mesh": mesh})


def shard(spec, model, mesh):
    options, arguments = spec.options, {"mesh": mesh}
    if spec.dtype == "mixed":
        arguments["mp_policy"] = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    arguments["reshard_after_forward"] = not options.get("kept_whole")
    for name, child in model.named_children() if options.get("layers") else ():
        if spec.model != "tied" and not name.startswith(("idle", "spare")) and any(True for _ in child.parameters()):
            fully_shard(child, **arguments)
    return fully_shard(model, **arguments)


def sharded_step(spec, model):
    def sync(m):
        last, setting = m == spec.microbatches - 1, spec.options.get("accumulate")
        if spec.bug == "sync_left_off":
            model.set_requires_gradient_sync(False)
        elif spec.bug == "replicas_left_off":
            model.set_requires_all_reduce(False)
        elif setting == "no_sync":
            model.set_requires_gradient_sync(last)
        elif setting == "no_all_reduce":
            model.set_requires_all_reduce(last)
        return contextlib.nullcontext()

    def step(watch):
        run(spec, model, dist.get_rank(), watch, sync)
        change(spec, model)

    return step


def fsdp(spec):
    if spec.bug == "replicas_by_turns":
        return by_turns(spec)
    names = ("dp",) if len(spec.mesh) == 1 else ("dp_replicate", "dp_shard")
    model = shard(spec, drawn_models.make(spec), mesh_of(spec.mesh, names))
    hook(spec, model)
    return Job(model, sharded_step(spec, model), after=functools.partial(norm, spec, model))


# -- sums by hand


def reduced_group(spec, mesh):
    if spec.bug == "one_axis_only":
        return mesh.get_group(mesh.mesh_dim_names[0])
    return None


def hand(spec):
    mesh = mesh_of(spec.mesh, ("dp",)) if len(spec.mesh) == 1 else mesh_of(spec.mesh, ("outer", "inner"))
    model, options, group = drawn_models.make(spec), spec.options, reduced_group(spec, mesh)
    hook(spec, model)
    divisor = 1 if spec.bug == "not_divided" else 1 / spec.factor
    sums = {}  # gradients of jobs that keep them elsewhere
    last_rank = dist.get_rank() == spec.world - 1

    def reduce(gradient):
        if spec.bug == "addend_lost" and last_rank:
            gradient.zero_()
        if spec.bug == "addend_doubled" and last_rank:
            gradient *= 2
        if spec.bug == "own_clip":
            gradient *= 0.1 / (0.1 + gradient.norm())
        dist.all_reduce(gradient, group=group)
        gradient /= divisor
        return gradient

    def keeps(name):
        return spec.bug == "forgotten" and name == first

    first = next(name for name, p in model.named_parameters() if p.requires_grad)

    def step(watch):
        def sync(m):
            if spec.bug == "reduced_each_time" and m:
                reduce_all()
            return contextlib.nullcontext()

        def reduce_all():
            for name, p in model.named_parameters():
                if p.grad is None and (not p.requires_grad or not options.get("spare")):
                    continue
                had = p.grad is not None
                gradient = p.grad.to_dense() if had and p.grad.is_sparse else p.grad
                gradient = gradient if had else torch.zeros_like(p)
                if options.get("main"):
                    sums[id(p)] = reduce(gradient.float())
                elif not keeps(name):
                    gradient = reduce(gradient)
                    if had or spec.bug != "absent_keep_none":
                        p.grad = gradient

        run(spec, model, dist.get_rank(), watch, sync)
        reduce_all()
        change(spec, model)

    watch = {"expect": spec.factor} if options.get("divides") else {}
    if len(spec.mesh) > 1:
        watch["mesh"] = mesh
    gradients = None
    if options.get("main"):
        watch["gradient"] = lambda p: sums.get(id(p))
        gradients = lambda: {name: sums.get(id(p)) for name, p in model.named_parameters()}  # noqa: E731
    affected = {"forgotten": {first}, "absent_keep_none": {"spare.weight", "spare.bias"}}.get(spec.bug)
    return Job(model, step, watch, gradients, affected=affected)


def hooked(spec):
    """Sum in hooks that run once a gradient is accumulated."""
    model, at = drawn_models.make(spec), [0]

    def reduce(p):
        if at[0] == spec.microbatches - 1:
            dist.all_reduce(p.grad)

    for p in model.parameters():
        if p.requires_grad:
            p.register_post_accumulate_grad_hook(reduce)

    def sync(m):
        at[0] = m
        return contextlib.nullcontext()

    def step(watch):
        run(spec, model, dist.get_rank(), watch, sync)
        change(spec, model)

    return Job(model, step)


# -- tensor parallelism


def tensor_parallel(spec):
    names = ("dp", "tp")
    mesh = mesh_of(spec.mesh, names) if spec.wrapper != "tp" else mesh_of((1, spec.mesh[1]), names)
    model, tp, arguments = drawn_models.make(spec), mesh["tp"], {}
    if spec.options.get("sequence"):
        plan = {"norm": SequenceParallel(sequence_dim=0), "up": ColwiseParallel(input_layouts=Shard(0))}
        plan["down"] = RowwiseParallel(output_layouts=Shard(0))
        rows = slice(tp.get_local_rank(), None, tp.size())
    else:
        plan, rows = {"up": ColwiseParallel(), "down": RowwiseParallel()}, slice(None)
    parallelize_module(model, tp, plan)
    if spec.wrapper == "tp_fsdp":
        shard(spec, model, mesh["dp"])
    if spec.wrapper == "tp_ddp":
        model = DistributedDataParallel(model, device_mesh=mesh["dp"])
        # DDP turns DTensors into plain tensors, and makes new ones in each forward; the optimizer has the first ones.
        types = {name: f"dp=R tp={'S' + str(CUT[name]) if name in CUT else 'I'}" for name in names_of(model)}
        arguments, owned = {"mesh": mesh, "types": types}, dict(model.named_parameters())
    data = mesh.get_local_rank("dp")

    def step(watch):
        for m in range(spec.microbatches):
            batch = drawn_models.batch(spec, data, m)
            # With the sequence cut, each rank has its own rows and its part of the loss.
            loss = model(batch[rows]).square().sum() / batch.shape[0] / drawn_models.OUT
            (loss / (spec.data * spec.microbatches) / spec.factor).backward()
        change(spec, model)

    if spec.wrapper != "tp_ddp":
        return Job(model, step, arguments)
    return Job(model, step, arguments, lambda: put_together(owned, tp.get_group()))


CUT = {"up.weight": 0, "up.bias": 0, "down.weight": 1}


def names_of(model):
    return [plain_name(name) for name, _ in model.named_parameters()]


def put_together(owned, group):
    """Return the full gradients of parameters that tp cuts."""
    found = {}
    for name, p in owned.items():
        plain = plain_name(name)
        everyones = [torch.empty_like(p.grad) for _ in range(dist.get_world_size(group))]
        dist.all_gather(everyones, p.grad.contiguous(), group=group)
        found[name] = torch.cat(everyones, CUT[plain]) if plain in CUT else p.grad
    return found


def parts(spec):
    """Plain tensors that are sharded over tp by hand; the caller tells the watch how."""
    mesh = mesh_of(spec.mesh, ("dp", "tp"))
    whole = drawn_models.make(spec)
    model, tp, at = nn.Module(), spec.mesh[1], mesh.get_local_rank("tp")
    model.up = nn.Linear(drawn_models.IN, drawn_models.OUT // tp, dtype=spec.parameters)
    cut = slice(at * drawn_models.OUT // tp, (at + 1) * drawn_models.OUT // tp)
    with torch.no_grad():
        model.up.weight.copy_(whole.up.weight[: drawn_models.OUT][cut])
        model.up.bias.copy_(whole.up.bias[: drawn_models.OUT][cut])
    data = mesh.get_local_rank("dp")
    wrong = {"wrong_group": "tp", "not_summed": None}
    group = wrong.get(spec.bug, "dp")

    def step(watch):
        for m in range(spec.microbatches):
            (model.up(drawn_models.batch(spec, data, m)).square().sum() / 1000).backward()
        for p in model.parameters():
            if group:
                dist.all_reduce(p.grad, group=mesh.get_group(group))

    return Job(model, step, {"mesh": mesh, "types": {"*": "dp=R tp=S0"}, "sample": None})


WRAPPERS = {
    "ddp": ddp,
    "replicate": replicated,
    "fsdp": fsdp,
    "hsdp": fsdp,
    "hand": hand,
    "hooked": hooked,
    "tp": tensor_parallel,
    "tp_fsdp": tensor_parallel,
    "tp_ddp": tensor_parallel,
    "parts": parts,
}


def build(spec):
    return WRAPPERS[spec.wrapper](spec)


def reference(spec):
    """Return name -> the job's full gradient from one process."""
    if spec.wrapper == "parts":
        model = drawn_models.make(spec)
        up = nn.Linear(drawn_models.IN, drawn_models.OUT, dtype=spec.parameters)
        with torch.no_grad():
            up.weight.copy_(model.up.weight[: drawn_models.OUT])
            up.bias.copy_(model.up.bias[: drawn_models.OUT])
        for d in range(spec.data):
            for m in range(spec.microbatches):
                (up(drawn_models.batch(spec, d, m)).square().sum() / 1000).backward()
        return {f"up.{name}": p.grad.double() for name, p in up.named_parameters()}
    return drawn_models.whole(spec)


# -- draws

META = {  # wrapper -> how often it is drawn, its meshes
    "ddp": (12, [(2,), (3,), (4,)]),
    "fsdp": (7, [(2,), (3,), (4,)]),
    "hsdp": (4, [(2, 2)]),
    "hand": (6, [(2,), (3,), (4,), (2, 2)]),
    "hooked": (2, [(2,), (3,)]),
    "tp": (2, [(1, 2)]),
    "tp_fsdp": (3, [(2, 2)]),
    "tp_ddp": (1, [(2, 2)]),
    "replicate": (1, [(2,), (3,)]),
    "parts": (1, [(2, 2)]),
}
FSDP2_ONLY = ("fsdp", "hsdp", "tp_fsdp")


def _options(draw, spec):
    """Return options that fit together."""
    o, one_of = spec.options, draw.choice
    if spec.wrapper == "parts":
        return
    if spec.wrapper.startswith("tp"):
        o["sequence"] = one_of([False, True]) and spec.wrapper != "tp_ddp"  # DDP turns DTensors into plain tensors
        return
    spec.model = one_of(["net", "net", "tied", "attention", "recurrent", "convolved", "sparse"])
    if spec.wrapper in ("fsdp", "hsdp", "hooked", "replicate") and spec.model in ("sparse", "convolved"):
        spec.model = "net"
    dtypes = {"ddp": ["f32", "f32", "f64", "autocast", "bf16"], "hand": ["f32", "f32", "f64", "autocast", "bf16"]}
    dtypes.update(fsdp=["f32", "f32", "mixed", "f64"], hsdp=["f32", "f32", "mixed"])
    spec.dtype = one_of(dtypes.get(spec.wrapper, ["f32"]))
    if spec.model in ("sparse", "convolved"):
        spec.dtype = "f32"
    o["hooks"] = one_of([None, None, "looks", "copies", "accumulated", "module"])
    o["call"] = one_of([None, None, "function", "retain"])
    o["counts"] = spec.model != "convolved" and draw.random() < 0.25
    o["norm"] = spec.wrapper in ("ddp", "fsdp", "hsdp") and draw.random() < 0.3
    if spec.model == "net":
        o["checkpoints"] = one_of([None, None, "reentrant", "plain"])
        o["frozen"] = draw.random() < 0.3
        o["idle"] = draw.random() < 0.25 and spec.wrapper != "replicate"
        if spec.wrapper in ("ddp", "hand"):
            o["spare"] = one_of([None, None, "all", "some"])
    if spec.wrapper == "ddp":
        _ddp_options(draw, spec)
    if spec.wrapper in ("fsdp", "hsdp"):
        o["layers"], o["kept_whole"] = draw.random() < 0.6, draw.random() < 0.3
        choices = ["each", "no_sync"] + (["no_all_reduce"] if spec.wrapper == "hsdp" else [])
        o["accumulate"] = one_of(choices)
        if spec.model == "tied":
            o["layers"] = False
    if spec.wrapper == "hand":
        o["divides"] = draw.random() < 0.5
        o["main"] = draw.random() < 0.25 and spec.model != "sparse" and not o.get("spare")
    if spec.wrapper in ("hand", "hooked") and draw.random() < 0.2 and spec.microbatches > 1:
        o["call"] = "together"
        spec.microbatches = 2
    if spec.wrapper == "hooked" and o["call"] == "together":
        o["call"] = None


def _ddp_options(draw, spec):
    o = spec.options
    o["static"] = not (o.get("idle") or o.get("spare")) and draw.random() < 0.2
    o["views"] = spec.model != "sparse" and draw.random() < 0.3
    o["buckets"] = draw.random() < 0.3
    o["accumulate"] = "each" if o["static"] else draw.choice(["each", "no_sync", "no_sync"])
    if o["static"]:
        spec.microbatches = 1
    if spec.model != "sparse" and spec.dtype in ("f32", "autocast"):
        o["comm"] = draw.choice([None, None, None, "mean", "allreduce", "f16", "bf16"])
    if o.get("checkpoints") == "reentrant" and (o.get("idle") or o.get("spare")):
        o["checkpoints"] = "plain"  # DDP refuses to look for unused parameters with checkpoints of the other kind


def draw_right(seed, k):
    draw = random.Random(f"{seed} right {k}")
    there = {name: how for name, how in META.items() if ranks.FSDP2 or name not in FSDP2_ONLY}
    wrapper = draw.choices(list(there), [often for often, _ in there.values()])[0]
    spec = Spec(wrapper, draw.choice(there[wrapper][1]), microbatches=draw.randint(1, 3))
    spec.seed = draw.randint(1, 1 << 20)
    _options(draw, spec)
    if draw.random() < 0.05 and spec.wrapper == "ddp" and not spec.options.get("static"):
        spec.options["compiled"] = "maybe"
    return spec
