"""Test FullyShardedDataParallel: right jobs of each strategy pass, and mistakes are named."""

import contextlib
import tempfile
import unittest
import warnings
from unittest import mock

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from says import says
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, ShardingStrategy
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import addend.torch
import ranks
from jobs import IN, NET, OUT, Net, all_batches, draw, mean_loss, whole_mean

WORLD = 4
RIGHT, WRONG = {}, {}


def right(make):
    """Register a right job: for use_orig_params True and False it returns the model, and what the watch is given."""
    RIGHT[make.__name__] = make
    return make


def wrong(kind, axis, parameters=NET, **others):
    def keep(make):
        WRONG[make.__name__] = (make, kind, axis, parameters, others)
        return make

    return keep


def wrap(model, originals, **reported):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # silences the warning that NO_SHARD is deprecated
        return FullyShardedDataParallel(model, use_orig_params=originals, device_id=ranks.DEVICE, **reported)


def mesh_of(*sizes):
    return init_device_mesh(ranks.DEVICE.type, sizes, mesh_dim_names=("copies", "shards"))


def hybrid(originals, *sizes):
    return wrap(Net(), originals, sharding_strategy=ShardingStrategy.HYBRID_SHARD, device_mesh=mesh_of(*sizes))


# -- right jobs


@right
def full_shard(originals):
    return wrap(Net(), originals), {}


@right
def shard_grad_op(originals):
    return wrap(Net(), originals, sharding_strategy=ShardingStrategy.SHARD_GRAD_OP), {}


@right
def no_shard(originals):
    return wrap(Net(), originals, sharding_strategy=ShardingStrategy.NO_SHARD), {}


@right
def hybrid_shard(originals):
    return hybrid(originals, 2, 2), {}


@right
def hybrid_shard_by_groups(originals):
    inner, outer = [[0, 1], [2, 3]], [[0, 2], [1, 3]]
    shards, copies = [dist.new_group(of) for of in inner], [dist.new_group(of) for of in outer]
    groups = (shards[dist.get_rank() // 2], copies[dist.get_rank() % 2])
    return wrap(Net(), originals, sharding_strategy=ShardingStrategy.HYBRID_SHARD, process_group=groups), {}


@right
def reduced_in_bf16(originals):
    return wrap(Net(), originals, mixed_precision=MixedPrecision(reduce_dtype=torch.bfloat16)), {}


@right
def computed_in_bf16(originals):
    mixed = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    return wrap(Net(), originals, mixed_precision=mixed), {}


@right
def checkpointed_in_two_wrappers(originals):
    model = Net()
    model.up = checkpoint_wrapper(wrap(model.up, originals))
    return wrap(model, originals), {}


@right
def with_its_norm(originals):
    model = wrap(Net(), originals)
    return model, {"norm": lambda: model.clip_grad_norm_(1e9)}


class Mixed(Net):
    """A model with frozen, tied and unused parameters."""

    def __init__(self):
        super().__init__()
        self.into, self.again, self.frozen, self.idle = (nn.Linear(IN, IN) for _ in range(4))
        self.again.weight = self.into.weight
        self.frozen.requires_grad_(False)
        self.one = nn.Parameter(torch.ones(1))

    def forward(self, x):
        return super().forward(self.again(self.frozen(self.into(x)))) * self.one


def mixed():
    torch.manual_seed(2)
    return wrap(Mixed(), True), {}


# -- mistakes


@wrong("doubled", "dp", verdict="cannot_tell", factor=WORLD)
def hook_forgets_to_divide(originals):
    model = wrap(Net(), originals)
    model.register_comm_hook(None, lambda _, whole, shard: dist.reduce_scatter_tensor(shard, whole))
    return model, {}


@wrong("averaged", "dp", verdict="cannot_tell", factor=1 / WORLD)
def hook_divides_twice(originals):
    def hook(_, whole, shard):
        dist.reduce_scatter_tensor(shard, whole)
        shard /= WORLD**2

    model = wrap(Net(), originals)
    model.register_comm_hook(None, hook)
    return model, {}


@wrong("own_only", "dp", synchronised=())
def no_sync_stays_on(originals):
    return wrap(Net(), originals), {}


@wrong("partial", "dp", synchronised=(0,))
def no_sync_in_the_last(originals):
    """Without shards: with shards the optimizer would get a gradient of another shape, and say so itself."""
    return wrap(Net(), originals, sharding_strategy=ShardingStrategy.NO_SHARD), {}


@wrong("own_only", "copies")
def shards_of_one_rank(originals):
    """FullyShardedDataParallel then takes NO_SHARD, and sums over the shards alone."""
    return hybrid(originals, WORLD, 1), {}


@wrong("partial", "copies")
def not_summed_over_copies(originals):
    model = hybrid(originals, 2, 2)
    model._inter_node_pg = [dist.new_group([rank]) for rank in range(WORLD)][dist.get_rank()]
    return model, {}


@wrong("own_only", "dp", parameters=["down.bias"])
def ignored_and_not_summed(originals):
    model = Net()
    return wrap(model, originals, ignored_states=[model.down.bias]), {}


@wrong("replicas_differ", "copies", parameters=["up.weight"])
def other_weights(originals):
    model = Net()
    with torch.no_grad():
        model.up.weight += 0.1 * (dist.get_rank() // 2)
    return wrap(model, originals, sharding_strategy=ShardingStrategy.HYBRID_SHARD, device_mesh=mesh_of(2, 2)), {}


# -- what ranks do


def full_gradients(model):
    """Return full gradients by name, put together from all ranks' parts of each buffer; and whether rows of the
    original parameters agree.
    """
    found = {}
    for module in FullyShardedDataParallel.fsdp_modules(model):
        buffer, state = module._handle.flat_param, module
        own = buffer.grad.float().reshape(-1)
        parts = [torch.empty_like(own) for _ in range(dist.get_world_size(state.process_group))]
        dist.all_gather(parts, own, group=state.process_group)
        whole, at = torch.cat(parts), 0
        for name, count in zip(buffer._fqns, buffer._numels):
            found[name] = whole[at : at + count]
            at += count
    return found


def errors_of(model, microbatches):
    """Return the worst relative error against one process."""
    expected = whole_mean(all_batches(WORLD, microbatches))
    found = full_gradients(model)
    by_end = {name: gradient for name in expected for own, gradient in found.items() if name.endswith(own)}
    return max(((by_end[name] - e.reshape(-1)).norm() / e.norm()).item() for name, e in expected.items())


def run_step(model, reported, microbatches=3, synchronised=(2,)):
    with contextlib.redirect_stdout(None), addend.torch.watch(model, **reported) as watch:
        for m in range(microbatches):
            with contextlib.nullcontext() if m in synchronised else model.no_sync():
                (mean_loss(model, draw(dist.get_rank(), m)) / microbatches).backward()
    return watch.report


def run_right(names, originals):
    found = {}
    for name in names:
        model, reported = RIGHT[name](originals)
        reports = []
        for synchronised in ((2,), (0, 1, 2)):
            model.zero_grad()
            reports.append(run_step(model, reported, synchronised=synchronised))
        found[name] = (reports, errors_of(model, 3) if name in ("full_shard", "hybrid_shard") else 0)
    return found


def run_wrong(names, originals):
    found = {}
    for name in names:
        make, *_, others = WRONG[name]
        model, reported = make(originals)
        found[name] = run_step(model, reported, synchronised=others.get("synchronised", (2,)))
    return found


def run_mixed(**arguments):
    model, reported = mixed()
    return run_step(model, {**reported, **arguments})


def run_mixed_but_idle():
    return run_mixed(unused=["idle.*"])


def run_bits(watched):
    """Return the parameters after two steps."""
    model = wrap(Net(), True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for m in range(2):
        optimizer.zero_grad()
        with contextlib.redirect_stdout(None), addend.torch.watch(model) if watched else contextlib.nullcontext():
            mean_loss(model, draw(dist.get_rank(), m)).backward()
        optimizer.step()
    buffer = model._handle.flat_param
    return buffer._local_shard.tolist(), len(buffer._backward_hooks or {})


def run_refused(what):
    if what == "a DTensor":
        mesh = init_device_mesh(ranks.DEVICE.type, (2, 2), mesh_dim_names=("dp", "tp"))
        parts = parallelize_module(Net(), mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
        model = wrap(parts, True, device_mesh=mesh["dp"])
    else:
        model = wrap(Net(), what == "a gradient of an original")
        mean_loss(model, draw(dist.get_rank())).backward()
    try:
        with addend.torch.watch(model):
            pass
    except ValueError as error:
        return str(error)
    return "nothing"


def run_dumped(folder, reference):
    """A model with parameters of more elements than are sampled."""
    torch.manual_seed(1)
    wide = nn.Sequential(nn.Linear(IN, 300), nn.Linear(300, OUT))
    whole = {name: parameter.detach().clone() for name, parameter in wide.named_parameters()}
    model = wrap(wide, True)
    with addend.torch.dump(model, folder):
        mean_loss(model, draw(dist.get_rank())).backward()
    if dist.get_rank() == 0:
        one = nn.Sequential(nn.Linear(IN, 300), nn.Linear(300, OUT))
        one.load_state_dict(whole)
        save_file({name: g.reshape(-1) for name, g in whole_mean(all_batches(WORLD), one).items()}, reference)


def run_promised(policy, rounded=False):
    """Rows on dtypes, and the report. `rounded`: the job's sums are formed in bf16, whatever the policy says."""
    model = wrap(Net(), True, mixed_precision=policy and MixedPrecision(**policy))
    name = "reduce_scatter_single" if hasattr(dist, "reduce_scatter_single") else "reduce_scatter_tensor"
    scatter = getattr(dist, name)

    def narrow(output, given, **more):
        own = output.to(torch.bfloat16)
        scatter(own, given.to(torch.bfloat16), **more)
        output.copy_(own)

    with contextlib.ExitStack() as stack:
        if rounded:
            stack.enter_context(mock.patch.object(dist, name, narrow))
        watch = stack.enter_context(addend.torch.watch(model))
        mean_loss(model, draw(dist.get_rank())).backward()
    rows = {(r.name, r.by, r.dtype, r.holds, r.counts) for r in watch.report.declarations if r.dtype}
    return rows, watch.report.ok, {p.name for p in watch.report.params if p.kind == "rounding"}


def run_hooked():
    """A communication hook forms the sum: what mixed precision says of it is no promise."""
    model = wrap(Net(), True, mixed_precision=MixedPrecision(reduce_dtype=torch.float32))
    model.register_comm_hook(None, lambda _, gradient, output: dist.reduce_scatter_tensor(output, gradient))
    with addend.torch.watch(model) as watch:
        mean_loss(model, draw(dist.get_rank())).backward()
    return [row for row in watch.report.declarations if row.dtype]


class Fsdp1(unittest.TestCase):
    def test_the_dtype_of_mixed_precision_is_a_promise(self):
        asked, followed = (f"FullyShardedDataParallel's {name}_dtype" for name in ("reduce", "param"))
        f32, bf16 = torch.float32, torch.bfloat16
        for policy, by, dtype in (
            ({"param_dtype": bf16, "reduce_dtype": f32}, asked, "f32"),
            ({"reduce_dtype": f32}, asked, "f32"),
            ({"reduce_dtype": bf16}, asked, "bf16"),
            ({"param_dtype": bf16}, followed, "bf16"),
        ):
            rows, ok, _ = ranks.run(WORLD, run_promised, policy)[0]
            self.assertEqual({row[:3] for row in rows}, {(name, by, dtype) for name in NET}, policy)
            self.assertNotIn(False, {row[3] for row in rows})
            self.assertTrue(ok)
        for policy in (None, {"buffer_dtype": f32}):
            self.assertEqual(ranks.run(WORLD, run_promised, policy)[0][:2], (set(), True))
        self.assertEqual(ranks.run(WORLD, run_hooked)[0], [])

    def test_a_sum_in_a_narrower_dtype_than_was_asked_for(self):
        for policy in ({"reduce_dtype": torch.float32}, {"param_dtype": torch.bfloat16, "reduce_dtype": torch.float32}):
            _, ok, rounded = ranks.run(WORLD, run_promised, policy, True)[0]
            self.assertFalse(ok)
            self.assertTrue(rounded)

    def test_right_jobs_are_right(self):
        for originals in (False, True):
            for name, (reports, error) in ranks.run(WORLD, run_right, sorted(RIGHT), originals)[0].items():
                for report in reports:
                    with self.subTest(job=name, originals=originals):
                        self.assertTrue(report.ok, str(report))
                        self.assertEqual({p.name for p in report.params}, set(NET))
                self.assertLess(error, 1e-5)

    def test_bugs_are_named(self):
        for originals in (False, True):
            for name, report in ranks.run(WORLD, run_wrong, sorted(WRONG), originals)[0].items():
                _, kind, axis, parameters, others = WRONG[name]
                with self.subTest(job=name, originals=originals):
                    verdict = others.get("verdict", "wrong")  # a hook of the job may mean the factor of its sums
                    found = {(p.name, p.kind, p.axis, p.verdict) for p in report.params if p.verdict != "right"}
                    self.assertEqual(found, {(name, kind, axis, verdict) for name in parameters}, str(report))
                    self.assertNotIn("types={", str(report))
                    if "factor" in others:
                        self.assertEqual({p.factor for p in report.params}, {others["factor"]})

    def test_what_is_frozen_tied_or_not_used(self):
        report = ranks.run(WORLD, run_mixed)[0]
        # Of what is not used FSDP1 sums zeros, which show nothing.
        unreported = {p.name for p in report.params if p.verdict != "right"}
        self.assertEqual((report.verdict, unreported), ("cannot_tell", {"idle.weight", "idle.bias"}), str(report))
        self.assertEqual({report[name].kind for name in unreported}, {"not_observed"})
        names = {p.name for p in report.params}
        self.assertLessEqual({*NET, "into.weight", "into.bias", "again.bias", "one"}, names)
        self.assertFalse({name for name in names if name.startswith("frozen")})
        self.assertTrue(ranks.run(WORLD, run_mixed_but_idle)[0].ok)

    def test_the_step_has_the_same_bits(self):
        for (plain, none), (watched, left) in zip(ranks.run(2, run_bits, False), ranks.run(2, run_bits, True)):
            self.assertEqual(plain, watched)
            self.assertEqual((none, left), (0, 0))

    def test_what_is_refused(self):
        for what, *facts in (
            ("a DTensor", "up.weight", "DTensor", "FullyShardedDataParallel"),
            ("a gradient", "zero_grad"),
            ("a gradient of an original", "zero_grad"),
        ):
            with self.subTest(what=what):
                for reported in ranks.run(WORLD, run_refused, what):
                    says(self, reported, *facts)

    def test_dumps_are_held_against_one_process(self):
        """The dump has a row of elements for each parameter of a flat buffer: the whole parameter's, in order."""
        with tempfile.TemporaryDirectory() as folder:
            ranks.run(WORLD, run_dumped, f"{folder}/dump", f"{folder}/whole.safetensors")
            report = addend.diff(f"{folder}/dump", reference=f"{folder}/whole.safetensors")
            self.assertTrue(report.ok, str(report))
            says(self, str(report), "4 parameters")


if __name__ == "__main__":
    unittest.main()
