"""Test right jobs that an earlier watch called wrong, and wrong ones that it called right or something else: what a
watch says of them, and what it must be given.
"""

import contextlib
import unittest
import warnings

import torch
import torch.distributed as dist
from says import says
from torch import nn
from torch.distributed._composable.replicate import replicate
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import addend.torch
import ranks
from jobs import HIDDEN, IN, NET, OUT, Net, SumForward, all_batches, ddp, draw, mean_loss, whole_mean

JOBS = {}


def job(world, fsdp2=False):
    """Register a job: its model, its step, what the watch is given."""

    def keep(make):
        if ranks.FSDP2 or not fsdp2:
            JOBS[make.__name__] = (world, make)
        return make

    return keep


def mean_of(model, microbatches=1):
    def step():
        for m in range(microbatches):
            (mean_loss(model, draw(dist.get_rank(), m)) / microbatches).backward()

    return model, step


# -- DDP over some of the ranks


def half_of_the_ranks():
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    return groups[dist.get_rank() // 2]


@job(4)
def half():
    return *mean_of(DistributedDataParallel(Net(), process_group=half_of_the_ranks())), {}


def run_half_twice():
    """One watch of two steps says the same of both."""
    model, step = mean_of(DistributedDataParallel(Net(), process_group=half_of_the_ranks()))
    watch, kinds = addend.torch.watch(model), []
    for _ in range(2):
        model.zero_grad()
        with contextlib.redirect_stdout(None), watch:
            step()
        kinds.append({p.kind for p in watch.report.params})
    return kinds


@job(4)
def half_that_is_all():
    group = half_of_the_ranks()
    return *mean_of(DistributedDataParallel(Net(), process_group=group)), {"group": group}


@job(4)
def half_of_a_mesh():
    model = DistributedDataParallel(Net(), process_group=half_of_the_ranks())
    return *mean_of(model), {"mesh": init_device_mesh(ranks.DEVICE.type, (4,), mesh_dim_names=("dp",))}


# -- other wrappers


@job(2)
def replicated():
    return *mean_of(replicate(Net())), {}


@job(2)
def replicated_before():
    model, step = mean_of(replicate(Net()))
    step()
    model.zero_grad()
    return model, step, {}


@job(2)
def compressed():
    model = ddp()
    state = powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=2, min_compression_rate=0.5)
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    for _ in range(3):
        mean_of(model)[1]()
    model.zero_grad()
    return *mean_of(model), {}


def ignored(divides):
    model = Net()
    fully_shard(model, ignored_params={model.down.bias})

    def step():
        mean_of(model)[1]()
        dist.all_reduce(model.down.bias.grad)
        if divides:
            model.down.bias.grad /= dist.get_world_size()

    return model, step


@job(2, fsdp2=True)
def ignored_and_averaged():
    return *ignored(True), {}


@job(2, fsdp2=True)
def ignored_and_summed():
    return *ignored(False), {}


@job(2, fsdp2=True)
def ignored_and_summed_as_said():
    return *ignored(False), {"expect": {"*": 0.5, "down.bias": 1}}


# -- tensor parallelism under DDP


def tensor_parallel():
    mesh = init_device_mesh(ranks.DEVICE.type, (2, 2), mesh_dim_names=("dp", "tp"))
    model = parallelize_module(Net(), mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    model = DistributedDataParallel(model, device_mesh=mesh["dp"])
    return mesh, model, lambda: mean_loss(model, draw(mesh.get_local_rank("dp"))).backward()


@job(4)
def tp_in_ddp():
    return *tensor_parallel()[1:], {}


@job(4)
def tp_in_ddp_later():
    """The parameters are no attributes of the model any more; only the optimizer has them."""
    _, model, step = tensor_parallel()
    optimizer = torch.optim.SGD(model.parameters())
    step()
    optimizer.zero_grad()
    return model, step, {}


@job(4)
def tp_in_ddp_with_a_mesh():
    mesh, model, step = tensor_parallel()
    return model, step, {"mesh": mesh}


class CutByHand(nn.Module):
    """A model in which `down.bias` is whole on all ranks and the rest is in parts."""

    def __init__(self, mesh):
        super().__init__()
        whole, half = (
            Net(),
            slice(mesh.get_local_rank("tp") * HIDDEN // 2, (mesh.get_local_rank("tp") + 1) * HIDDEN // 2),
        )
        self.group = mesh.get_group("tp")
        self.up, self.down = nn.Linear(IN, HIDDEN // 2), nn.Linear(HIDDEN // 2, OUT)
        with torch.no_grad():
            self.up.weight.copy_(whole.up.weight[half])
            self.up.bias.copy_(whole.up.bias[half])
            self.down.weight.copy_(whole.down.weight[:, half])
            self.down.bias.copy_(whole.down.bias)

    def forward(self, x):
        part = torch.tanh(self.up(x)) @ self.down.weight.T
        return SumForward.apply(part, self.group) + self.down.bias


def by_hand():
    mesh = init_device_mesh(ranks.DEVICE.type, (2, 2), mesh_dim_names=("dp", "tp"))
    model = DistributedDataParallel(CutByHand(mesh), process_group=mesh.get_group("dp"))
    return mesh, model, lambda: mean_loss(model, draw(mesh.get_local_rank("dp"))).backward()


@job(4)
def tp_by_hand():
    mesh, model, step = by_hand()
    return model, step, {"mesh": mesh}


@job(4)
def tp_by_hand_as_said():
    mesh, model, step = by_hand()
    types = {"up.*": "tp=S0", "down.weight": "tp=S1", "down.bias": "tp=I"}
    return model, step, {"mesh": mesh, "types": types}


# -- values, names, hooks


def one_batch():
    model = ddp()

    def step():
        for m in range(2):
            (mean_loss(model, draw(0, m)) / 2).backward()

    return model, step


@job(2)
def one_batch_for_all():
    return *one_batch(), {}


@job(2)
def one_batch_as_said():
    return *one_batch(), {"allow_identical": True}


@job(2)
def other_weights():
    model = Net()
    with torch.no_grad():
        model.up.weight += 0.1 * dist.get_rank()

    def step():
        mean_of(model)[1]()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)

    return model, step, {}


def sampled_twice(apart):
    """Of 200 elements whose sums are sampled, fewer values are. `apart`: difference of the ranks' weights."""
    torch.manual_seed(0)
    model = nn.Linear(40, 30, bias=False)
    with torch.no_grad():
        model.weight += apart * dist.get_rank()

    def step():
        torch.manual_seed(dist.get_rank())
        (model(torch.randn(4, 40)).square().mean() / 2).backward()
        dist.all_reduce(model.weight.grad)

    return model, step, {"sample": 200, "expect": 1.0}


@job(2)
def other_weights_of_which_some_are_read():
    return sampled_twice(0.1)


@job(2)
def equal_weights_of_which_some_are_read():
    return sampled_twice(0.0)


class Likely(nn.Module):
    """A model with `b.weight` and another parameter whose name, without the wrapper's parts, is `b.weight` too."""

    def __init__(self):
        super().__init__()
        self.b = nn.Linear(IN, OUT)
        self.b._orig_mod = nn.Linear(IN, OUT)

    def forward(self, x):
        return self.b(x) * self.b._orig_mod(x)


@job(2)
def names_that_would_be_one():
    torch.manual_seed(1)
    return *mean_of(DistributedDataParallel(Likely())), {}


def masked(mask_of):
    model = ddp()
    weight = model.module.up.weight
    mask = (torch.rand(weight.shape, generator=torch.Generator().manual_seed(3)) > 0.5).float()
    weight.register_hook(mask_of(mask))
    return model


@job(2)
def masked_by_a_hook():
    return *mean_of(masked(lambda mask: lambda gradient: gradient * mask), 2), {}


@job(2)
def halved_by_a_hook():
    return *mean_of(masked(lambda mask: lambda gradient: gradient / 2)), {}


@job(2)
def masked_and_not_summed():
    model = masked(lambda mask: lambda gradient: gradient * mask)
    step = mean_of(model)[1]

    def unsynchronised():
        with model.no_sync():
            step()

    return model, unsynchronised, {}


# -- sparse gradients


class Words(nn.Module):
    COUNT = 7

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.words, self.out = nn.Embedding(self.COUNT, OUT, sparse=True), nn.Linear(OUT, OUT)

    def forward(self, x):
        return self.out(self.words(x))


def sparse_step(model, seed):
    """A row of the gradient is a sum of hundreds of numbers, most of which cancel."""
    generator = torch.Generator().manual_seed(100 * seed + dist.get_rank())
    words = torch.randint(0, Words.COUNT, (2000,), generator=generator)
    target = 100 * torch.randn(2000, OUT, generator=generator)
    ((model(words) - target) * target).sum().backward()


def run_sparse(seeds):
    kinds = []
    for seed in seeds:
        model = DistributedDataParallel(Words())
        with contextlib.redirect_stdout(None), addend.torch.watch(model) as watch:
            sparse_step(model, seed)
        kinds.append(watch.report["words.weight"].kind)
    model.zero_grad()
    with contextlib.redirect_stdout(None), addend.torch.watch(model, expect=1) as watch:
        sparse_step(model, 0)
    return kinds, watch.report["words.weight"].kind


# -- what ranks do


def run_jobs(names):
    reports = {}
    for name in names:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model, step, reported = JOBS[name][1]()
            with contextlib.redirect_stdout(None), addend.torch.watch(model, **reported) as watch:
                step()
            reports[name] = watch.report
    return reports


def run_errors(names):
    """Return the worst relative error of this rank's gradients against one process."""
    errors = {}
    for name in names:
        model, step, _ = JOBS[name][1]()
        step()
        right = whole_mean(all_batches(dist.get_world_size()))
        worst = 0.0
        for at, parameter in model.named_parameters():
            grad = parameter.grad.full_tensor() if isinstance(parameter.grad, DTensor) else parameter.grad
            expected = right[at.removeprefix("module.")]
            worst = max(worst, ((grad - expected).norm() / expected.norm()).item())
        errors[name] = worst
    return errors


class Wrappers(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.reports = {}
        for world in {world for world, _ in JOBS.values()}:
            names = [name for name, (of_job, _) in JOBS.items() if of_job == world]
            for i in range(0, len(names), 6):
                reported = ranks.run(world, run_jobs, names[i : i + 6])
                cls.reports.update(reported[0])

    def test_right_jobs_are_right(self):
        held = {"replicated", "replicated_before", "ignored_and_averaged"} & set(JOBS)
        for errors in ranks.run(2, run_errors, sorted(held)):
            self.assertLess(max(errors.values()), 1e-5, errors)
        more = {"half_that_is_all", "ignored_and_summed_as_said", "names_that_would_be_one", "halved_by_a_hook"}
        more |= {"tp_in_ddp", "tp_in_ddp_later", "tp_in_ddp_with_a_mesh", "tp_by_hand_as_said", "one_batch_as_said"}
        for name in held | more & set(JOBS):
            with self.subTest(job=name):
                self.assertTrue(self.reports[name].ok, str(self.reports[name]))

    def hold(self, name, verdict, kind, parameters, *facts):
        with self.subTest(job=name):
            report = self.reports[name]
            found = {p.name for p in report.params if (p.verdict, p.kind) == (verdict, kind)}
            self.assertEqual(found, set(parameters), str(report))
            if facts:
                says(self, str(report), *facts)

    def test_what_is_said_of_some_of_the_ranks(self):
        self.hold(
            "half",
            "cannot_tell",
            "not_judged",
            NET,
            "process_group",
            "2 of",
            "4 ranks",
            "mesh=",
            "group=",
        )
        self.assertEqual(ranks.run(4, run_half_twice), [[{"not_judged"}] * 2] * 4)
        self.hold("half_of_a_mesh", "wrong", "partial", NET, "2 of", "4 ranks")

    def test_what_no_wrapper_sums(self):
        if ranks.FSDP2:
            facts = ["down.bias", 'expect={"down.bias"']
            self.hold("ignored_and_summed", "wrong", "doubled", ["down.bias"], *facts)
        self.hold("compressed", "cannot_tell", "not_judged", NET, "PowerSGD")

    def test_the_argument_of_an_axis_that_nobody_spoke_of(self):
        self.assertFalse(self.reports["tp_by_hand"].ok)
        says(self, str(self.reports["tp_by_hand"]), "tp", 'types={"*": "tp=S0"}')

    def test_the_same_batch(self):
        self.hold("one_batch_for_all", "cannot_tell", "identical_addends", NET, "ranks 0", "and 1")

    def test_replicas_that_begin_with_other_weights(self):
        self.hold("other_weights", "wrong", "replicas_differ", ["up.weight"], "dp", "rank 1")
        self.hold("other_weights_of_which_some_are_read", "wrong", "replicas_differ", ["weight"], "dp", "rank 1")
        self.assertTrue(self.reports["equal_weights_of_which_some_are_read"].ok)

    def test_names_are_kept_apart(self):
        names = {p.name for p in self.reports["names_that_would_be_one"].params}
        self.assertEqual(
            names, {f"module.b{between}.{kind}" for between in ("", "._orig_mod") for kind in ("weight", "bias")}
        )

    def test_what_a_hook_changed(self):
        for name in "masked_by_a_hook", "halved_by_a_hook", "masked_and_not_summed":
            says(self, "\n".join(self.reports[name].messages), "up.weight")
        self.hold("masked_by_a_hook", "cannot_tell", "unexplained", ["up.weight"])
        says(self, self.reports["masked_by_a_hook"]["up.weight"].text)
        self.assertFalse(self.reports["masked_and_not_summed"].ok)

    def test_sparse_gradients(self):
        """Numbers that cancel inside an addend leave rounding errors too."""
        kinds, undivided = ranks.run(2, run_sparse, range(8))[0]
        self.assertEqual(set(kinds), {"right"})
        self.assertEqual(undivided, "averaged")


if __name__ == "__main__":
    unittest.main()
