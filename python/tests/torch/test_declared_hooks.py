"""Test that sums which hooks of a parameter make are declarations: over which axes, where, and what the addends say."""

import unittest

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from says import says_facts
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import addend.torch
import ranks

IN, OUT = 8, 6


def model_of():
    torch.manual_seed(1)
    return nn.Linear(IN, OUT, bias=False)


def rows_of(report, by="hook"):
    return [(r.name, r.axis, r.type, r.holds, r.why, r.counts) for r in report.declarations if r.by == by]


def judged(model, seed=None, **options):
    """A watched step of two microbatches of this rank's own batch, or of that of the rank `seed`."""
    with addend.torch.watch(model, **options) as watch:
        for m in range(2):
            generator = torch.Generator().manual_seed(10 * (dist.get_rank() if seed is None else seed) + m)
            model(torch.randn(4, IN, generator=generator)).square().mean().backward()
    return watch.report


def summed(gradient):
    gradient = gradient.clone()
    dist.all_reduce(gradient)
    return gradient


def sum_grad(p):
    """Sums what the last microbatch left."""
    sum_grad.calls += 1
    if sum_grad.calls == 2:
        p.grad = summed(p.grad)


def largest(gradient):
    gradient = gradient.clone()
    dist.all_reduce(gradient, op=dist.ReduceOp.MAX)
    return gradient


def looked_at(gradient):
    """The job looks at what the sum would be, and changes nothing."""
    dist.all_reduce(gradient.clone())


def clipped(gradient):
    square = gradient.square().sum()
    dist.all_reduce(square)
    return gradient * (0.5 / square.sqrt())


def mean(gradient):
    return summed(gradient) / dist.get_world_size()


HOOKS = {
    "summed": summed,
    "functional": lambda gradient: functional.all_reduce(gradient, "sum", dist.group.WORLD).wait(),
    "largest": largest,
    "functional_largest": lambda gradient: functional.all_reduce(gradient, "max", dist.group.WORLD).wait(),
    "looked_at": looked_at,
    "clipped": clipped,
    "mean": mean,
    "sum_grad": sum_grad,
}


def hooked(name, seed=None, types=None):
    model = model_of()
    sum_grad.calls = 0
    if name == "sum_grad":
        model.weight.register_post_accumulate_grad_hook(sum_grad)
    else:
        model.weight.register_hook(HOOKS[name])
    report = judged(model, seed, types=types)
    return rows_of(report), report.ok, [row.where for row in report.declarations], str(report)


def on_a_mesh(by="hook", types=None, **said):
    """The data of four ranks differ over dp and over tp; a hook sums over tp, the job over dp."""
    mesh = init_device_mesh(ranks.DEVICE.type, (2, 2), mesh_dim_names=("dp", "tp"))
    model = model_of()

    def over_tp(gradient):
        gradient = gradient.clone()
        dist.all_reduce(gradient, group=mesh.get_group("tp"))
        return gradient

    model.weight.register_hook(over_tp)
    with addend.torch.watch(model, mesh=mesh, types=types) as watch:
        model(torch.randn(4, IN, generator=torch.Generator().manual_seed(dist.get_rank()))).square().mean().backward()
        dist.all_reduce(model.weight.grad, group=mesh.get_group("dp"))
    return rows_of(watch.report), watch.report.ok


def in_ddp(over_axis="tp", repeated=False):
    """DDP over dp, hooks sum over tp; `repeated`: over dp once more."""
    mesh = init_device_mesh(ranks.DEVICE.type, (2, 2), mesh_dim_names=("dp", "tp"))
    model = model_of()
    model.weight.register_hook(summed_over(mesh.get_group("dp" if repeated else "tp")))
    model = DistributedDataParallel(model, device_mesh=mesh["dp"])
    with addend.torch.watch(model, mesh=mesh, types={"*": "tp=R"}) as watch:
        model(torch.randn(4, IN, generator=torch.Generator().manual_seed(dist.get_rank()))).square().mean().backward()
    every = {(r.by, r.axis, r.type, r.counts) for r in watch.report.declarations}
    return rows_of(watch.report), every, watch.report.ok


def summed_over(group):
    def over(gradient):
        gradient = gradient.clone()
        dist.all_reduce(gradient, group=group)
        return gradient

    return over


def of_some_ranks():
    """Rank 1 has no gradient of a parameter, and calls no hook of it; the groups' other rank is not in the sum."""
    model = nn.ModuleDict({"all": model_of(), "first": model_of()})
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    model["first"].weight.register_hook(summed_over(groups[dist.get_rank() // 2]))
    mesh = init_device_mesh(ranks.DEVICE.type, (2, 2), mesh_dim_names=("dp", "tp"))
    with addend.torch.watch(model, mesh=mesh) as watch:
        x = torch.randn(4, IN, generator=torch.Generator().manual_seed(dist.get_rank()))
        used = ("all", "first") if dist.get_rank() < 2 else ("all",)
        sum(model[name](x).square().mean() for name in used).backward()
        for p in model.parameters():
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            dist.all_reduce(p.grad, group=None if p is model["all"].weight else mesh.get_group("dp"))
    return rows_of(watch.report), watch.report.ok


def behind_fully_shard():
    """A hook on what fully_shard reduced, over the axis that it does not know."""
    mesh = init_device_mesh(ranks.DEVICE.type, (2, 2), mesh_dim_names=("dp", "tp"))
    model = fully_shard(model_of(), mesh=mesh["dp"])
    model.weight.register_post_accumulate_grad_hook(
        lambda p: dist.all_reduce(p.grad.to_local(), group=mesh.get_group("tp"))
    )
    with addend.torch.watch(model, mesh=mesh) as watch:
        model(torch.randn(4, IN, generator=torch.Generator().manual_seed(dist.get_rank()))).square().mean().backward()
    return rows_of(watch.report), {r.by for r in watch.report.declarations}


class Hooks(unittest.TestCase):
    def test_a_sum_of_a_hook_is_a_declaration(self):
        for name in ("summed", "functional", "sum_grad"):
            rows, ok, where, _ = ranks.run(2, hooked, name)[0]
            self.assertEqual((rows, ok), ([("weight", "dp", "R", True, "", True)], True), name)
            self.assertRegex(where[0], r"(^|/)test_declared_hooks\.py:\d+ in ")

    def test_what_is_no_sum_of_the_gradient(self):
        for name in ("largest", "functional_largest", "looked_at", "clipped"):
            self.assertEqual(ranks.run(2, hooked, name)[0][0], [], name)

    def test_ranks_that_did_the_same_work(self):
        rows, ok, _, text = ranks.run(2, hooked, "summed", 0)[0]
        self.assertEqual((rows, ok), ([("weight", "dp", "R", None, "same", True)], None))
        says_facts(self, text, "test_declared_hooks.py:", "2 times")

    def test_a_mean_of_the_same_work_is_no_fault(self):
        rows, ok, *_ = ranks.run(3, hooked, "mean", 0, {"*": "dp=I"})[0]
        self.assertEqual((rows, ok), ([("weight", "dp", "R", None, "same", False)], True))

    def test_over_one_axis_of_several(self):
        self.assertEqual(ranks.run(4, on_a_mesh)[0], ([("weight", "tp", "R", True, "", True)], True))

    def test_types_of_the_caller_count_before_it(self):
        """I where the hook sums what differs: types= is believed, and the hook's row does not count."""
        rows, ok = ranks.run(4, on_a_mesh, "hook", {"*": "tp=I"})[0]
        self.assertEqual([(row[1], row[-1]) for row in rows], [("tp", False)])
        self.assertFalse(ok)

    def test_beside_a_wrapper(self):
        rows, every, ok = ranks.run(4, in_ddp)[0]
        self.assertEqual((rows, ok), ([("weight", "tp", "R", True, "", True)], True))
        self.assertIn(("DistributedDataParallel", "dp", "R", True), every)
        rows, _, ok = ranks.run(4, in_ddp, "dp", True)[0]
        self.assertEqual([row[1] for row in rows], ["dp"])
        self.assertFalse(ok)

    def test_a_rank_that_calls_no_hook(self):
        for rows, ok in ranks.run(4, of_some_ranks):
            self.assertEqual((rows, ok), ([("first.weight", "tp", "R", True, "", True)], True))

    @unittest.skipUnless(ranks.FSDP2, "this PyTorch's fully_shard is not right on gloo")
    def test_a_hook_on_what_fully_shard_reduced(self):
        rows, by = ranks.run(4, behind_fully_shard)[0]
        self.assertEqual([(row[:4]) for row in rows], [("weight", "tp", "R", True)])
        self.assertLessEqual({"hook", "fully_shard"}, by)


if __name__ == "__main__":
    unittest.main()
