"""Test what `addend.torch.dump` writes of right jobs of every kind, and that neither `dump` nor `watch` changes
anything.
"""

import contextlib
import functools
import io
import json
import os
import pickle
import tempfile
import unittest

import torch
import torch.distributed as dist
from says import raises, says
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import addend
import addend.torch
import dumped
import ranks

try:
    from torch.distributed.fsdp import DataParallelMeshDims
except ImportError:  # older versions do not have it
    DataParallelMeshDims = None

IN, HIDDEN, OUT, ROWS = 6, 10, 5, 8


class Net(nn.Module):
    """A network in which `spare` is used if asked for, and `idle` never."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.norm = nn.LayerNorm(IN)
        self.up = nn.Linear(IN, HIDDEN)
        self.down = nn.Linear(HIDDEN, OUT)
        self.spare = nn.Linear(IN, OUT)
        self.idle = nn.Linear(3, 2)

    def forward(self, x, spare=True):
        x = self.norm(x)
        out = self.down(torch.tanh(self.up(x)))
        return out + self.spare(x) if spare else out


def batch(rank, microbatch):
    generator = torch.Generator().manual_seed(100 * rank + microbatch + 7)
    return torch.randn(ROWS, IN, generator=generator)


def loss(model, microbatch, rank=None, **kwargs):
    return model(batch(dist.get_rank() if rank is None else rank, microbatch), **kwargs).square().mean()


class Job:
    def __init__(self, model, step, watch=None):
        self.model, self.step, self.watch = model, step, watch or {}


def ddp_job(microbatches=1, no_sync=False, hook=None, **options):
    model = DistributedDataParallel(Net(), find_unused_parameters=not options.get("static_graph"), **options)
    if hook:
        model.register_comm_hook(None, hook)

    def step():
        for m in range(microbatches):
            with model.no_sync() if no_sync and m < microbatches - 1 else contextlib.nullcontext():
                loss(model, m).backward()

    return Job(model, step)


def average(state, bucket):
    done = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
    return done.then(lambda future: future.value()[0] / dist.get_world_size())


def fsdp(model, **arguments):
    for module in (model.up, model.down):
        fully_shard(module, **arguments)
    fully_shard(model, **arguments)
    return model


def fsdp_job(shape, names, microbatches=1, sync=None, **options):
    model = fsdp(Net(), mesh=init_device_mesh(ranks.DEVICE.type, shape, mesh_dim_names=names), **options)

    def step():
        for m in range(microbatches):
            if sync:
                getattr(model, sync)(m == microbatches - 1)
            loss(model, m).backward()

    return Job(model, step)


@functools.lru_cache(None)
def one_mesh():
    """Return one mesh object for all jobs of a process: PyTorch keeps the first of equal ones, and fully_shard asks for
    that.
    """
    return init_device_mesh(ranks.DEVICE.type, (2, 2), mesh_dim_names=("dp", "tp"))


def one_mesh_job():
    """All parameters are on one mesh, and fully_shard gets its data dimension; the gradient of `down.weight`, which is
    whole on all ranks of tp, is made in parts there.
    """
    mesh = one_mesh()
    model = Net()
    for name, parameter in list(model.named_parameters()):
        folder, _, last = name.rpartition(".")
        placements = [Replicate(), Shard(0) if folder == "up" else Replicate()]
        setattr(model.get_submodule(folder), last, nn.Parameter(distribute_tensor(parameter.data, mesh, placements)))
    fsdp(model, mesh=mesh, dp_mesh_dims=DataParallelMeshDims(shard="dp"))

    def step():
        for m in range(2):
            x = DTensor.from_local(
                batch(mesh.get_local_rank("dp"), m), mesh, [Replicate(), Replicate()], run_check=False
            )
            model(x).square().mean().to_local().backward()

    return Job(model, step)


def default_mesh_job():
    model = fsdp(Net())
    return Job(model, lambda: loss(model, 0).backward())


def by_hand_job():
    model = Net()

    def step():
        for m in range(2):
            loss(model, m, spare=m == 0 or dist.get_rank() == 1).backward()  # the ranks use spare at different times
        for p in model.parameters():
            if p.grad is not None:
                dist.all_reduce(p.grad)

    return Job(model, step)


def hooked_job():
    """Tensor hooks of the job's own make the sum."""
    model = Net()

    def summed(gradient):
        gradient = gradient.clone()
        dist.all_reduce(gradient)
        return gradient

    for p in model.parameters():
        p.register_hook(summed)
    return Job(model, lambda: loss(model, 0).backward())


def some_ranks_job():
    model = DistributedDataParallel(Net(), find_unused_parameters=True)
    return Job(model, lambda: loss(model, 0, spare=dist.get_rank() % 2 == 0).backward())


class Tied(nn.Module):
    """A network whose input and output share one parameter."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(2)
        self.words, self.mix, self.head = nn.Embedding(20, IN), nn.Linear(IN, IN), nn.Linear(IN, 20, bias=False)
        self.head.weight = self.words.weight

    def forward(self, x):
        return self.head(torch.tanh(self.mix(self.words((x * 3).long() % 20))))


def tied_job(wrapper):
    model = Tied()
    if wrapper == "fsdp2":
        fully_shard(model.mix)
        fully_shard(model)
    else:
        model = DistributedDataParallel(model)
    if wrapper == "compiled":
        model = torch.compile(model, backend="aot_eager")
    return Job(model, lambda: loss(model, 0).backward())


def grad_function_job():
    """The job puts gradients from torch.autograd.grad in place by hand."""
    model = Tied()

    def step():
        parameters = list(model.parameters())
        for parameter, gradient in zip(parameters, torch.autograd.grad(loss(model, 0), parameters)):
            dist.all_reduce(gradient)
            parameter.grad = gradient

    return Job(model, step)


class Stack(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.norm, self.up, self.down = nn.LayerNorm(IN), nn.Linear(IN, HIDDEN), nn.Linear(HIDDEN, OUT)
        self.plain = nn.Linear(OUT, 3)

    def forward(self, x):
        return self.plain(self.down(torch.tanh(self.up(self.norm(x)))))


def tp_job(dp=None):
    shape, names = ((dp, 2), ("dp", "tp")) if dp else ((2,), ("tp",))
    mesh = init_device_mesh(ranks.DEVICE.type, shape, mesh_dim_names=names)
    plan = {
        "norm": SequenceParallel(sequence_dim=0),
        "up": ColwiseParallel(input_layouts=Shard(0)),
        "down": RowwiseParallel(),
    }
    model = parallelize_module(Stack(), mesh["tp"] if dp else mesh, plan)
    if dp:
        fsdp(model, mesh=mesh["dp"])

    def step():
        for m in range(2):
            loss(model, m).backward()  # each rank has its own rows of the sequence, so the norm's addends differ

    return Job(model, step)


def checkpointed(model, x, reentrant):
    x = checkpoint(model.norm, x.requires_grad_(), use_reentrant=reentrant)
    x = checkpoint(model.up, x, use_reentrant=reentrant)
    return model.down(x)


def checkpoint_job(reentrant):
    model = Net()

    def step():
        for m in range(2):
            checkpointed(model, batch(dist.get_rank(), m), reentrant).square().mean().backward()
        for p in model.parameters():
            if p.grad is not None:
                dist.all_reduce(p.grad)

    return Job(model, step)


def parts_job():
    """Plain tensors that are uneven parts of a whole; the caller tells the watch so."""
    model = nn.Linear(IN, dist.get_rank() % 2 + 2)
    mesh = init_device_mesh(ranks.DEVICE.type, (2, 2), mesh_dim_names=("dp", "tp"))

    def step():
        loss(model, 0, rank=dist.get_rank()).backward()
        for p in model.parameters():
            dist.all_reduce(p.grad, group=mesh.get_group("dp"))

    return Job(model, step, watch={"mesh": mesh, "types": {"*": "dp=R tp=S0"}})


def bf16_job():
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    return fsdp_job((4,), ("dp",), mp_policy=policy)


JOBS = {
    "ddp": (3, ddp_job),
    "ddp, two backwards": (2, lambda: ddp_job(2)),
    "ddp, no_sync": (3, lambda: ddp_job(3, no_sync=True)),
    "ddp, bucket views": (2, lambda: ddp_job(2, no_sync=True, gradient_as_bucket_view=True)),
    "ddp, static graph": (2, lambda: ddp_job(1, static_graph=True)),
    "ddp, comm hook": (3, lambda: ddp_job(1, hook=average)),
    "ddp, a parameter on some ranks": (4, some_ranks_job),
    "fsdp2": (3, lambda: fsdp_job((3,), ("dp",))),
    "fsdp2, no mesh": (2, default_mesh_job),
    "fsdp2, kept whole": (2, lambda: fsdp_job((2,), ("dp",), 2, reshard_after_forward=False)),
    "fsdp2, set_requires_gradient_sync": (4, lambda: fsdp_job((4,), ("dp",), 3, "set_requires_gradient_sync")),
    "fsdp2, two backwards": (2, lambda: fsdp_job((2,), ("dp",), 2)),
    "fsdp2, bf16": (4, bf16_job),
    "hsdp": (4, lambda: fsdp_job((2, 2), ("dp_replicate", "dp_shard"))),
    "hsdp, set_requires_all_reduce": (
        4,
        lambda: fsdp_job((2, 2), ("dp_replicate", "dp_shard"), 3, "set_requires_all_reduce"),
    ),
    "all_reduce by hand": (3, by_hand_job),
    "all_reduce in hooks": (2, hooked_job),
    "tensor parallel": (2, tp_job),
    "fsdp2 and tensor parallel": (4, lambda: tp_job(2)),
    "checkpoints": (2, lambda: checkpoint_job(False)),
    "reentrant checkpoints": (2, lambda: checkpoint_job(True)),
    "parts by hand": (4, parts_job),
    "ddp, tied": (2, lambda: tied_job("ddp")),
    "ddp, compiled": (2, lambda: tied_job("compiled")),
    "fsdp2, tied": (2, lambda: tied_job("fsdp2")),
    "torch.autograd.grad": (2, grad_function_job),
}
if DataParallelMeshDims:
    JOBS["fsdp2, dp_mesh_dims"] = (4, one_mesh_job)
if not ranks.FSDP2:
    JOBS = {name: job for name, job in JOBS.items() if not name.startswith(("fsdp2", "hsdp"))}


SAMPLES = (None, 16)


AT_ONCE = 5  # number of jobs that ranks run one after another


def by_world(names):
    """Yield (number of ranks, a few jobs for so many ranks)."""
    found = {}
    for name in names:
        found.setdefault(JOBS[name][0], []).append(name)
    return [
        (world, of_world[i : i + AT_ONCE])
        for world, of_world in found.items()
        for i in range(0, len(of_world), AT_ONCE)
    ]


def state_of(model, optimizer):
    """Return the bytes of everything that a step leaves."""

    def plain(x):
        x = x.to_local() if isinstance(x, DTensor) else x
        flat = x.detach().contiguous().view(-1) if isinstance(x, torch.Tensor) else None
        return x if flat is None else flat.view(torch.uint8).numpy().tobytes()

    found = {name: plain(p) for name, p in model.named_parameters()}
    found.update((f"grad {name}", plain(p.grad)) for name, p in model.named_parameters() if p.grad is not None)
    for i, entry in enumerate(optimizer.state.values()):
        found.update((f"state {i} {key}", plain(value)) for key, value in entry.items())
    found["random numbers"] = plain(torch.get_rng_state())
    found["sharded"] = [isinstance(p, DTensor) for p in model.parameters()]
    return found


def hooks_of(model):
    for module in model.modules():
        if hasattr(module, "unshard"):
            module.unshard()
    found = sum(len(p._backward_hooks or ()) for p in model.parameters())
    for module in model.modules():
        if hasattr(module, "reshard"):
            module.reshard()
    return found


def values_reported(step):
    """Return {rank: {name: checksum}}."""
    sums = [metadata for metadata in step.metadata.values() if metadata["addend.kind"] == "sum"]
    return {int(metadata["addend.rank"]): json.loads(metadata["addend.values"]) for metadata in sums}


def run_replicas_by_hand(folder):
    """fully_shard knows half of the ranks; the others have copies of their values."""
    mesh = init_device_mesh(ranks.DEVICE.type, (2, 2), mesh_dim_names=("copies", "shard"))
    model = fully_shard(nn.Linear(6, 4, bias=False), mesh=mesh["shard"])
    with addend.torch.dump(model, folder, types={"*": "copies=R shard=R"}):
        model(torch.randn(3, 6)).sum().backward()


def run_dumps(names, folder):
    """Dump each job with all elements and with a sample; return the hooks that are left, for each."""
    left = []
    for name in names:
        for sample in SAMPLES:
            job = JOBS[name][1]()
            before = hooks_of(job.model)
            with addend.torch.dump(job.model, os.path.join(folder, name, str(sample)), sample=sample, **job.watch):
                job.step()
            left.append((hooks_of(job.model) - before, torch.autograd.backward.__module__))
    return left


def run_steps(names, folder):
    """Return what is left of three steps of each job, without a dump and with the second step dumped."""
    return {name: [run_three(JOBS[name][1](), where) for where in (None, os.path.join(folder, name))] for name in names}


def run_three(job, folder):
    torch.manual_seed(5)
    optimizer = torch.optim.AdamW(job.model.parameters(), lr=0.01, foreach=False)
    for at in range(3):
        optimizer.zero_grad()
        dump = addend.torch.dump(job.model, folder, sample=16, **job.watch) if at == 1 and folder else None
        with dump or contextlib.nullcontext():
            job.step()
        optimizer.step()
    return state_of(job.model, optimizer)


def run_mutated(names, folder):
    for name, kind, outside in names:
        job = JOBS[name][1]()
        where = os.path.join(folder, name, kind, str(outside))
        put_bug, look = addend.torch.mutate(job.model, kind), addend.torch.dump(job.model, where, **job.watch)
        with put_bug if outside else look, look if outside else put_bug:
            job.step()


def run_mutated_watch():
    """Return the kinds of parameters in a watch, by (mutant, whether the watch is the outer context)."""
    job, found = ddp_job(), {}
    for kind in ("average", "skip", "double"):
        for outside in (True, False):
            job.model.zero_grad()
            put_bug, watch = addend.torch.mutate(job.model, kind), addend.torch.watch(job.model)
            with contextlib.redirect_stdout(io.StringIO()):
                with watch if outside else put_bug, put_bug if outside else watch:
                    job.step()
            found[kind, outside] = {param.kind for param in watch.report.params if param.verdict == "wrong"}
    return found


def run_reported(folder):
    model = DistributedDataParallel(Net(), find_unused_parameters=True)
    expect, types = {"*": 0.5, "down.*": 3}, {"down.*": "dp=I"}
    with addend.torch.dump(model, folder, norm=lambda: torch.tensor(2.5), divisor=7, expect=expect, types=types) as w:
        for m in range(3):
            if m:
                w.divisor(100 * dist.get_rank() + m)
            loss(model, m).backward()


REFUSED = {
    "watched twice": ("watch", "dump"),
    "a gradient is there": ("zero_grad",),
    "types of no axis": ("pp=R", "AXIS=R"),
    "a mesh of other ranks": ("2 ranks", "[0, 1]"),
    "on one rank only": ("zero_grad",),
    "set_requires_gradient_sync": ("set_requires_gradient_sync",),
    "set_requires_all_reduce": ("set_requires_gradient_sync",),
    "mixed precision": ("set_requires_gradient_sync",),
}
if not ranks.FSDP2:
    REFUSED = {what: facts for what, facts in REFUSED.items() if facts[0] != "set_requires_gradient_sync"}


def unsynchronised(what):
    """A model whose last step was not summed, although it is told to sum now and its gradients were zeroed."""
    dtypes = (torch.bfloat16, torch.float32) if what == "mixed precision" else ()
    setting = what if what.startswith("set_") else "set_requires_gradient_sync"
    mesh = init_device_mesh(ranks.DEVICE.type, (2, 1), mesh_dim_names=("dp_replicate", "dp_shard"))
    model = fsdp(Net(), mesh=mesh, mp_policy=MixedPrecisionPolicy(*dtypes))
    getattr(model, setting)(False)
    loss(model, 0).backward()
    getattr(model, setting)(True)
    model.zero_grad()
    return model


def run_refused(what):
    model, arguments = Net(), {}
    if what.startswith("set_") or what == "mixed precision":
        model = unsynchronised(what)
    if what == "a gradient is there" or (what == "on one rank only" and dist.get_rank() == 1):
        loss(model, 0).backward()
    if what == "types of no axis":
        arguments["types"] = {"*": "pp=R"}
    if what == "a mesh of other ranks":
        arguments["mesh"] = torch.distributed.device_mesh.DeviceMesh(ranks.DEVICE.type, [dist.get_rank()])
    try:
        with addend.torch.dump(model, "", **arguments):
            if what == "watched twice":
                with addend.torch.dump(model, ""):
                    pass
    except (ValueError, RuntimeError) as error:
        return str(error)
    return "nothing"


def run_raising(job):
    job = JOBS[job][1]()
    before, original, said = hooks_of(job.model), torch.autograd.backward, ""
    try:
        with addend.torch.dump(job.model, ""):
            job.step()
            raise KeyError("mine")
    except KeyError as error:
        said = error.args[0]
    job.model.zero_grad()
    with tempfile.TemporaryDirectory() as folder:
        with addend.torch.dump(job.model, folder):
            job.step()
        count = len(dumped.Step(folder).sums) if dist.get_rank() == 0 else 8
    return said, hooks_of(job.model) - before, torch.autograd.backward is original, count


class Turn(torch.autograd.Function):
    """An operation that returns a gradient in column-major order."""

    @staticmethod
    def forward(context, weight):
        return weight.view_as(weight)

    @staticmethod
    def backward(context, gradient):
        return gradient.t().contiguous().t()


class Turned(nn.Module):
    """A model whose weight has more elements than are sampled."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.weight = nn.Parameter(torch.randn(80, 90))

    def forward(self, x):
        return (x @ Turn.apply(self.weight)).square().mean()


def run_turned():
    model, strides = DistributedDataParallel(Turned()), []
    model.module.weight.register_hook(lambda gradient: strides.append(gradient.stride()))
    torch.manual_seed(2 + dist.get_rank())
    with contextlib.redirect_stdout(io.StringIO()), addend.torch.watch(model) as watch:
        model(torch.randn(4, 80)).backward()
    return strides[0], watch.report.ok, str(watch.report)


def run_watched(names):
    """Return (job, report, printed text) of each job."""
    reported = []
    for name in names:
        job, printed = JOBS[name][1](), io.StringIO()
        with contextlib.redirect_stdout(printed):
            with addend.torch.watch(job.model, show=True, **job.watch) as w:
                job.step()
        reported.append((name, w.report, printed.getvalue()))
    return reported


def run_judged():
    """Return what `raises` and assert_summed say of a mistake, and of a right step."""
    job, reported = ddp_job(), []
    with addend.torch.mutate(job.model, "average"):
        for judge in (watch_and_raise, addend.torch.assert_summed):
            job.model.zero_grad()
            try:
                judge(job.step, job.model)
            except addend.GradientError as error:
                error = pickle.loads(pickle.dumps(error))
                reported.append((type(error).__name__, str(error.report), error.report.params[0].kind))
            except AssertionError as error:
                reported.append((type(error).__name__, str(error), "averaged"))
    job.model.zero_grad()
    return reported, addend.torch.assert_summed(job.step, job.model, sample=16).ok


def watch_and_raise(step, model):
    with contextlib.redirect_stdout(None), addend.torch.watch(model, raises=True):
        step()


def run_unjudged():
    """addend.diff refuses the dump on the first rank."""
    job = ddp_job()
    try:
        with addend.torch.watch(job.model, expect=float("nan")):
            job.step()
    except addend.AddendError as error:
        return type(error).__name__, str(error)


def run_silent(show):
    """Return whether a wrong step was seen, and what was printed of it."""
    job, printed = ddp_job(), io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        with addend.torch.mutate(job.model, "average"), addend.torch.watch(job.model, **show) as watch:
            job.step()
    return watch.report.ok, bool(printed.getvalue())


def run_patterns(options):
    """Return the messages of a right step, or what was raised; one of two ranks has a parameter of its own."""
    model = Net()
    if dist.get_rank():
        model.own = nn.Linear(2, 2)
    model.up.bias.requires_grad = False
    try:
        with addend.torch.watch(model, **options) as watch:
            loss(model, 0).backward()
            for p in model.parameters():
                if p.grad is not None:
                    dist.all_reduce(p.grad)
    except ValueError as error:
        return str(error)
    return [message for message in watch.report.messages if "=: " in message]


class Options(unittest.TestCase):
    def test_patterns_that_match_nothing_are_told(self):
        for options in (
            {"types": {"up.*": "dp=R", "*.bias": "dp=R", "own.*": "dp=R"}},
            {"types": {"up.bias": "dp=R"}},  # a frozen parameter
            {"expect": {"own.weight": 1}, "unused": ["own.*", "up.bias"]},  # one of another rank
        ):
            self.assertEqual(ranks.run(2, run_patterns, options), [[]] * 2, options)
        for options, pattern, near in (
            ({"types": {"*.wieght": "dp=R"}}, '"*.wieght"', "`up.weight`"),
            ({"expect": {"donw.*": 2}}, '"donw.*"', "`down.weight`"),
            ({"unused": ["heads"]}, '"heads"', ""),
        ):
            for found in ranks.run(2, run_patterns, options):
                self.assertEqual(len(found), 1, found)
                for fact in (f"{[*options][0]}=", pattern, near):
                    self.assertIn(fact, found[0])

    def test_names_that_no_rank_has_are_refused(self):
        for options in ({"types": {"up.wieght": "dp=R"}}, {"expect": {"up.wieght": 2}}):
            found = ranks.run(2, run_patterns, options)
            self.assertEqual(len(set(found)), 1)
            for fact in (f"{[*options][0]}:", "up.wieght", "`up.weight`"):
                self.assertIn(fact, found[0])

    def test_nothing_is_printed_unless_asked(self):
        self.assertEqual(ranks.run(2, run_silent, {}), [(False, False)] * 2)
        self.assertEqual(ranks.run(2, run_silent, {"show": True}), [(False, True), (False, False)])

    def test_one_dictionary_is_the_same_as_keywords(self):
        options = addend.torch.WatchOptions(every=7, raises=True, unused=["head"], wait=3)
        watch = addend.torch.watch(Net(), **options)
        self.assertEqual((watch._every, watch._raises, watch._meant_unused, watch._wait), (7, True, ["head"], 3))
        watch = addend.torch.watch(Net())
        self.assertEqual((watch._every, watch._raises, watch._meant_unused, watch._wait), (1, False, (), 10))

    def test_options_that_come_by_position_or_do_not_exist_are_refused(self):
        model, step = Net(), lambda: self.fail("a step that is not watched was run")
        calls = {
            "watch": lambda *more, **options: addend.torch.watch(model, *more, **options),
            "dump": lambda *more, **options: addend.torch.dump(model, "", *more, **options),
            "assert_summed": lambda *more, **options: addend.torch.assert_summed(step, model, *more, **options),
            "watch_trainer": lambda *more, **options: addend.torch.watch_trainer(None, *more, **options),
        }
        for name, call in calls.items():
            with self.subTest(call=name):
                with raises(self, TypeError, "2.5"):
                    call(2.5)
                with raises(self, TypeError, "allow_identicl="):
                    call(allow_identicl=True)
        for option in "raises", "every", "show", "allow_identical":
            with raises(self, TypeError, f"{option}="):
                calls["dump"](**{option: True})


class Watch(unittest.TestCase):
    def test_jobs_that_are_right_pass_on_all_ranks(self):
        for world, names in by_world(JOBS):
            reported = ranks.run(world, run_watched, names)
            for of_job in zip(*reported):
                with self.subTest(job=of_job[0][0]):
                    reports = [report for _, report, _ in of_job]
                    self.assertTrue(reports[0].ok, str(reports[0]))
                    self.assertEqual(reports, [reports[0]] * world)
                    self.assertEqual([printed for _, _, printed in of_job], [f"{reports[0]}\n"] + [""] * (world - 1))

    def test_a_bug_is_raised_on_all_ranks(self):
        for reported, right in ranks.run(3, run_judged):
            self.assertTrue(right)
            self.assertEqual([kind for kind, _, _ in reported], ["GradientError", "AssertionError"])
            for _, text, verdict in reported:
                says(self, text, "BAD", "dp", "1/3")
                self.assertEqual(verdict, "averaged")

    def test_what_stops_the_judgement_is_said_on_all_ranks(self):
        reported = ranks.run(2, run_unjudged)
        self.assertEqual(reported, [reported[0]] * 2)
        says(self, reported[0][1], "addend.expect")

    def test_what_there_is_not_yet_is_said(self):
        watch = addend.torch.watch(Net())
        with raises(self, RuntimeError, "with"):
            watch.divisor(3)
        with raises(self, RuntimeError, "with", "every="):
            print(watch.report)

    def test_a_parameter_that_no_rank_uses_is_said(self):
        for reported in ranks.run(2, run_watched, ["ddp, two backwards"]):
            report = reported[0][1]
            says(self, "\n".join(report.messages), "idle.weight", "idle.bias")
            (said,) = (text for text in report.messages if "idle.weight" in text)
            self.assertIn(said, report.document["messages"])
            for text in (str(report), report.full_table(), report.github(), report.html()):
                self.assertIn(said, text)

    def test_a_gradient_may_lie_otherwise_than_its_parameter(self):
        for strides, right, text in ranks.run(2, run_turned):
            self.assertEqual(strides, (1, 80))
            self.assertTrue(right, text)


class Dump(unittest.TestCase):
    def test_every_addend_is_counted_once_in_jobs_that_are_right(self):
        with tempfile.TemporaryDirectory() as folder:
            for world, names in by_world(JOBS):
                left = ranks.run(world, run_dumps, names, folder)
                self.assertEqual(left, [[(0, "torch.autograd")] * len(names) * len(SAMPLES)] * world)
            for name in JOBS:
                for sample in SAMPLES:
                    with self.subTest(job=name, sample=sample):
                        step = dumped.Step(os.path.join(folder, name, str(sample)))
                        self.hold_right(step, 1e-2 if "bf16" in name else 1e-5)
                        self.hold_values(step)
                        if name == "fsdp2":
                            self.assertFalse(any(values_reported(step).values()))

    def hold_right(self, step, bound):
        self.assertTrue(step.sums)
        self.assertFalse([name for name in step.sums if name.startswith(("module.", "idle"))])
        for name in step.sums:
            self.assertLess(step.residual(name), bound, name)
            for at, count in step.counts(name).items():
                self.assertAlmostEqual(count, 1, delta=max(1e-2, 10 * bound), msg=(name, at))

    def hold_values(self, step):
        """If two ranks have the same part, both tell its checksum."""
        reported = values_reported(step)
        for name, parts in step.sums.items():
            for part in parts:
                if part.values and len([other for other in parts if other.box == part.box]) > 1:
                    self.assertIn(name, reported[part.rank])

    @unittest.skipUnless(ranks.FSDP2, "this PyTorch has no fully_shard")
    def test_replicas_beside_a_smaller_mesh_tell_their_values(self):
        with tempfile.TemporaryDirectory() as folder:
            ranks.run(4, run_replicas_by_hand, folder)
            step = dumped.Step(folder)
            self.hold_values(step)
            self.assertEqual([sorted(reported) for reported in values_reported(step).values()], [["weight"]] * 4)

    def test_a_dumped_step_leaves_the_same_bits(self):
        with tempfile.TemporaryDirectory() as folder:
            for world, names in by_world(JOBS):
                for left in ranks.run(world, run_steps, names, folder):
                    for name, (without, watched) in left.items():
                        self.assertEqual(list(without), list(watched), name)
                        self.assertEqual([key for key in without if without[key] != watched[key]], [], name)

    def test_a_mutation_is_in_what_was_dumped(self):
        jobs = ("ddp, no_sync", "fsdp2", "hsdp", "all_reduce by hand", "fsdp2 and tensor parallel")
        jobs = [name for name in jobs if name in JOBS]
        mutants = [
            (name, kind, outside)
            for name in jobs
            for kind in ("average", "skip", "double")
            for outside in (True, False)
        ]
        with tempfile.TemporaryDirectory() as folder:
            for world, names in by_world(jobs):
                ranks.run(world, run_mutated, [entry for entry in mutants if entry[0] in names], folder)
            for name, kind, outside in mutants:
                with self.subTest(job=name, kind=kind, outside=outside):
                    self.hold_mutated(dumped.Step(os.path.join(folder, name, kind, str(outside))), name, kind)

    def test_a_mutation_is_wrong_inside_the_watch_and_around_it(self):
        found = ranks.run(2, run_mutated_watch)[0]
        kinds = {"average": {"averaged"}, "skip": {"missing"}, "double": {"doubled"}}
        for (kind, outside), reported in found.items():
            with self.subTest(kind=kind, watch_is_outside=outside):
                self.assertTrue(reported, "called right")
                self.assertLessEqual(reported, kinds[kind] | {"factor"})

    def hold_mutated(self, step, job, kind):
        world = JOBS[job][0]
        wrong = [name for name in step.sums if step.residual(name) > 1e-5]
        if kind == "average":
            self.assertEqual(sorted(wrong), sorted(step.sums))
            data = 2 if "tensor" in job else world
            self.assertTrue(all(abs(c - 1 / data) < 1e-2 for name in wrong for c in step.counts(name).values()))
            return
        self.assertEqual(len(wrong), 1)
        for (rank, _), count in step.counts(wrong[0]).items():
            self.assertAlmostEqual(count, {"skip": 0, "double": 2}[kind] if rank == world - 1 else 1, delta=1e-2)

    def test_what_the_caller_says_is_what_is_dumped(self):
        with tempfile.TemporaryDirectory() as folder:
            ranks.run(2, run_reported, folder)
            step = dumped.Step(folder)
        self.assertEqual(step.last["addend.norm"], "2.5")
        self.assertEqual((step.expect("up.weight"), step.expect("down.bias")), (0.5, 3))
        self.assertEqual(step.types["down.bias"], {"dp": "I"})
        divisors = [step.metadata[f"rank00001.addend.m{m}.safetensors"]["addend.divisor"] for m in range(3)]
        self.assertEqual(divisors, ["7.0", "101.0", "102.0"])

    def test_one_process_alone(self):
        model = Net()
        with tempfile.TemporaryDirectory() as folder:
            with addend.torch.dump(model, folder):
                model(batch(0, 0)).square().mean().backward()
            step = dumped.Step(folder)
        self.assertEqual({step.residual(name) for name in step.sums}, {0})

    def test_a_backward_inside_another_is_of_its_microbatch(self):
        for reentrant in (False, True):
            model = Net()
            with self.subTest(reentrant=reentrant), tempfile.TemporaryDirectory() as folder:
                with addend.torch.dump(model, folder):
                    for m in range(3):
                        checkpointed(model, batch(0, m), reentrant).square().mean().backward()
                step = dumped.Step(folder)
                addends = {f"rank00000.addend.m{m}.safetensors" for m in range(3)}
                self.assertEqual(set(step.metadata), addends | {"rank00000.sum.safetensors"})
                for addend_file in addends:
                    self.assertEqual(
                        set(json.loads(step.metadata[addend_file]["addend.shapes"])), set(step.sums), addend_file
                    )

    def test_a_step_is_refused_on_all_ranks(self):
        for what, facts in REFUSED.items():
            with self.subTest(what):
                texts = ranks.run(2, run_refused, what)
                self.assertEqual(len(set(texts)), 1)
                says(self, texts[0], *facts)

    def test_an_exception_takes_the_hooks_away(self):
        for job in {"ddp", "fsdp2", "all_reduce by hand"} & set(JOBS):
            with self.subTest(job):
                self.assertEqual(set(ranks.run(JOBS[job][0], run_raising, job)), {("mine", 0, True, 8)})


if __name__ == "__main__":
    unittest.main()
