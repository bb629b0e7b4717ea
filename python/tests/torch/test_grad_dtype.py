"""Test that the watch honours `Tensor.grad_dtype` of plain jobs, DDP, fully_shard and FullyShardedDataParallel: right
jobs are right, and a gradient or a sum in another dtype than it says is named. python/docs/torch-grad-dtype.md has the
rules; its example is run here."""

import functools
import pathlib
import re
import tempfile
import unittest

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

import addend.torch
import ranks
from addend.torch import _parameters

F32, BF16 = torch.float32, torch.bfloat16
UNSET = "unset"
WORLD = 3
PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs" / "torch-grad-dtype.md"
HAS_POLICY = hasattr(nn.Parameter(torch.ones(1)), "_has_grad_dtype_override")  # PyTorch 2.15


def averaged(parameters, wire=None):
    for p in parameters:
        gradient = p.grad if wire is None else p.grad.to(wire)
        dist.all_reduce(gradient)
        p.grad.copy_(gradient / dist.get_world_size())


def wrap(kind, model, mesh, param, reduce):
    if kind == "ddp":
        return DistributedDataParallel(model)
    if kind == "fully_shard":
        return fully_shard(model, mesh=mesh, mp_policy=MixedPrecisionPolicy(param_dtype=param, reduce_dtype=reduce))
    if kind == "fsdp1":
        policy = MixedPrecision(param_dtype=param, reduce_dtype=reduce)
        device = torch.device("cpu")
        return FullyShardedDataParallel(
            model, device_mesh=mesh, device_id=device, use_orig_params=True, mixed_precision=policy
        )
    return model


def watched(kind, stored, grad, param=None, reduce=None, wire=None, narrowed=None, microbatches=1):
    """Return what the watch says of a job: the gradient's dtype, verdict, declared dtypes, messages."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 8)).to(stored)
    for p in model.parameters() if grad != UNSET else ():
        p.grad_dtype = grad
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("dp",))
    wrapped = wrap(kind, model, mesh, param, reduce)
    torch.manual_seed(1 + dist.get_rank())
    with addend.torch.watch(wrapped, mesh=mesh, expect=1 / dist.get_world_size()) as watch:
        for m in range(microbatches):
            if kind == "fully_shard":
                wrapped.set_requires_gradient_sync(m + 1 == microbatches)
            x, y = torch.randn(16, 32).to(param or stored), torch.randn(16, 8)
            (wrapped(x).float() - y).square().mean().backward()
        if kind == "plain":
            averaged(model.parameters(), wire)
        if narrowed is not None:
            for p in wrapped.parameters():
                p.grad.data = p.grad.data.to(narrowed)
    report = watch.report
    dtypes = {(row.by, row.dtype, row.holds) for row in report.declarations if row.dtype}
    return (
        next(wrapped.parameters()).grad.dtype,
        report.verdict,
        dtypes,
        report.messages,
        {p.kind for p in report.params},
    )


POLICY = MixedPrecisionPolicy(param_dtype=BF16, reduce_dtype=F32)


class Late(nn.Module):
    """The layer `late` is used in the last microbatch alone."""

    def __init__(self):
        super().__init__()
        self.first, self.late, self.is_last = nn.Linear(8, 8), nn.Linear(8, 8), False

    def forward(self, x):
        return self.first(x) + (self.late(x) if self.is_last else 0)


def late_job():
    """Run python/cases/fsdp2_fresh_gradient.py by fully_shard itself."""
    torch.manual_seed(0)
    model = fully_shard(Late(), mp_policy=POLICY)
    torch.manual_seed(dist.get_rank())
    with addend.torch.watch(model) as watch:
        for m in range(2):
            model.is_last = m == 1
            model.set_requires_gradient_sync(model.is_last)
            model(torch.randn(4, 8)).float().square().mean().backward()
    return watch.report.verdict


class Norm(nn.Module):
    def __init__(self, mesh):
        super().__init__()
        self.weight = nn.Parameter(distribute_tensor(torch.ones(512), mesh, [Replicate()]))

    def forward(self, x):
        return x * self.weight


def norm_job():
    """Run python/cases/fsdp2_tp_norm.py by fully_shard itself; return the dtypes in which it sums, too."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    model = fully_shard(Norm(mesh["tp"]), mesh=mesh["dp"], mp_policy=POLICY)
    torch.manual_seed(dist.get_rank())
    with addend.torch.watch(model, mesh=mesh) as watch:
        x = DTensor.from_local(torch.randn(6, 512, dtype=BF16), mesh["tp"], [Shard(0)])
        model(x).to_local().float().square().sum().backward()
    sums = {(call.axes, call.dtype) for call in watch.report.calls if "reduce" in call.operation}
    return watch.report.verdict, sums


def run(*job, **how):
    return ranks.run(WORLD, functools.partial(watched, **how), *job)


class GradDtype(unittest.TestCase):
    def setUp(self):
        if not HAS_POLICY:
            self.skipTest("this PyTorch does not tell whether grad_dtype was set")

    def says(self, expected, *job, **how):
        """Run a right job; `expected`: its gradients' dtype, and who declares which dtype of the sum."""
        dtype, verdict, dtypes, messages, _ = run(*job, **how)[0]
        self.assertEqual((dtype, verdict, messages), (expected[0], "right", ()), job)
        self.assertEqual({(by, of) for by, of, _ in dtypes}, set(expected[1:]), job)
        self.assertNotIn(False, [holds for *_, holds in dtypes], job)

    def test_plain_jobs_are_right(self):
        self.says((F32, ("grad_dtype", "f32")), "plain", BF16, F32)
        self.says((F32, ("grad_dtype", "f32")), "plain", BF16, F32, microbatches=2)
        self.says((BF16, ("grad_dtype", "bf16")), "plain", F32, BF16)
        self.says((BF16,), "plain", BF16, None)
        self.says((BF16,), "plain", BF16, UNSET)

    def test_ddp_takes_any_dtype_but_no_other_one(self):
        self.says((BF16,), "ddp", BF16, None)
        self.says((BF16, ("grad_dtype", "bf16")), "ddp", BF16, BF16)
        for stored, grad in ((BF16, F32), (F32, BF16)):  # its buckets have the parameters' dtype
            with self.assertRaisesRegex(ranks.RankError, "RuntimeError: .*[Ee]xpected (BFloat16|Float), got"):
                run("ddp", stored, grad)

    def test_fully_shard_reduces_in_grad_dtype_unless_the_policy_says_another(self):
        said, default = "grad_dtype", "fully_shard's default"
        policy = "fully_shard's reduce_dtype"
        for expected, job in (
            ((F32, (said, "f32")), (BF16, F32)),
            ((BF16, (said, "bf16")), (F32, BF16)),
            ((BF16,), (BF16, None)),
            ((BF16, (default, "bf16")), (BF16, UNSET)),
            ((BF16, (said, "bf16")), (F32, BF16, BF16)),
            ((BF16,), (F32, None, BF16)),
            ((F32, (default, "f32")), (F32, UNSET, BF16)),
            ((BF16, (policy, "f32")), (F32, BF16, BF16, F32)),
            ((F32, (policy, "bf16")), (F32, F32, BF16, BF16)),
            ((F32, (policy, "f32")), (F32, UNSET, BF16, F32)),
        ):
            self.says(expected, "fully_shard", *job)
        self.says((F32, (said, "f32")), "fully_shard", BF16, F32, microbatches=2)
        self.says((BF16, (policy, "f32")), "fully_shard", BF16, BF16, None, F32, microbatches=2)

    def test_fsdp1_keeps_its_own_rule(self):
        self.says((BF16,), "fsdp1", BF16, None)
        self.says((F32, ("FullyShardedDataParallel's reduce_dtype", "f32")), "fsdp1", F32, UNSET, BF16, F32)
        self.says((F32, ("FullyShardedDataParallel's param_dtype", "bf16")), "fsdp1", F32, UNSET, BF16)
        for stored, grad in ((BF16, F32), (F32, BF16)):
            with self.assertRaisesRegex(ranks.RankError, "grad_dtype"):
                run("fsdp1", stored, grad)

    def test_a_reduction_that_rounds_is_wrong(self):
        _, verdict, dtypes, _, kinds = run("plain", BF16, F32, wire=BF16)[0]
        self.assertEqual((verdict, kinds, dtypes), ("wrong", {"rounding"}, {("grad_dtype", "f32", False)}))

    def test_a_wide_sum_of_narrow_gradients_is_right(self):
        _, verdict, *_ = run("plain", F32, BF16, wire=F32)[0]
        self.assertEqual(verdict, "right")

    def test_a_gradient_in_another_dtype_is_named(self):
        for kind in "plain", "fully_shard":
            dtype, _, _, messages, _ = run(kind, BF16, F32, narrowed=BF16)[0]
            self.assertEqual(dtype, BF16)
            (said,) = [text for text in messages if "but its gradient is" in text]
            for word in (" and 3 more: ", "grad_dtype is float32", "gradient is bfloat16"):
                self.assertIn(word, said)

    def test_what_is_repaired_in_2_15_is_right(self):
        self.assertEqual(ranks.run(2, late_job)[0], "right")
        self.assertEqual(ranks.run(4, norm_job)[0], ("right", {("tp", "f32"), ("dp", "f32")}))

    def test_the_page_prints_what_it_shows(self):
        program, printed = re.findall(r"^```\w*\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S)
        with tempfile.TemporaryDirectory() as folder:
            job = pathlib.Path(folder, "job.py")
            job.write_text(program, encoding="utf-8")
            self.assertEqual(ranks.play(WORLD, job)[0].strip(), printed.strip())

    def test_before_2_15_another_dtype_than_the_parameters_is_one_that_was_set(self):
        class Older:
            def __init__(self, dtype, grad_dtype):
                self.dtype, self.grad_dtype = dtype, grad_dtype

        asked = [_parameters.grad_dtype_of(Older(BF16, grad)) for grad in (F32, BF16, None)]
        self.assertEqual(asked, [F32, None, None])


if __name__ == "__main__":
    unittest.main()
