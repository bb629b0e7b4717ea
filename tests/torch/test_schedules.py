"""Test the tables of `addend schedule make` in the runtime of torch.distributed.pipelining: compute actions alone, to
which PyTorch adds communication, and tables with addend's communication. Ranks of gloo execute each in f64, and its
gradients are compared with one process.
"""

import functools
import os
import pathlib
import subprocess
import tempfile
import unittest
import warnings

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.pipelining import PipelineStage, schedules

import ranks

PROGRAM = pathlib.Path(os.environ["ADDEND_LIBRARY"]).resolve().parent / "addend"
WIDTH, ROWS = 5, 3  # ROWS: of a microbatch
COMPUTE, LOWERED = ("compute_only", []), ("compute_comms", ["--lower", "--waits"])


class Block(nn.Module):
    def __init__(self, stage):
        super().__init__()
        torch.manual_seed(10 + stage)
        self.up, self.down = nn.Linear(WIDTH, 7), nn.Linear(7, WIDTH)

    def forward(self, x):
        return x + self.down(torch.tanh(self.up(x)))


def loss(y, target):
    return (y - target).square().sum()


def batch(replica, microbatches):
    generator = torch.Generator().manual_seed(replica)
    return [torch.randn(ROWS * microbatches, WIDTH, generator=generator) for _ in range(2)]


def apart(modules, stages, replicas, microbatches):
    """Return the error of this rank's gradients against one process; PyTorch averages over replicas."""
    alone = nn.Sequential(*map(Block, range(stages)))
    for replica in range(replicas):
        x, target = batch(replica, microbatches)
        (loss(alone(x), target) / replicas).backward()
    worst = 0.0
    for stage, module in modules.items():
        for ours, right in zip(module.parameters(), alone[stage].parameters()):
            grad = ours.grad.full_tensor() if isinstance(module, FSDPModule) else ours.grad
            worst = max(worst, (grad - right.grad).abs().max().item())
    return worst


def execute(table, form, stages, microbatches, replicas=1, scales=False):
    """Execute a table whose stage s lies on rank s modulo the pipeline's ranks."""
    warnings.simplefilter("ignore")
    torch.set_default_dtype(torch.float64)
    world = torch.distributed.get_world_size()
    mesh = init_device_mesh("cpu", (replicas, world // replicas), mesh_dim_names=("dp", "pp"))
    wrap = functools.partial(fully_shard, mesh=mesh["dp"]) if replicas > 1 else lambda module: module
    modules = {stage: wrap(Block(stage)) for stage in range(mesh.get_local_rank("pp"), stages, mesh.size(1))}
    parts = [PipelineStage(m, s, stages, torch.device("cpu"), group=mesh.get_group("pp")) for s, m in modules.items()]
    runtime = schedules._PipelineScheduleRuntime(parts, microbatches, loss_fn=loss, scale_grads=scales)
    runtime._load_csv(table, format=form)
    x, target = batch(mesh.get_local_rank("dp"), microbatches)
    runtime.step(*([x] if 0 in modules else []), **({"target": target} if stages - 1 in modules else {}))
    return apart(modules, stages, replicas, microbatches)


def execute_all(jobs):
    return [execute(*job) for job in jobs]


@unittest.skipUnless(hasattr(schedules, "WAIT_SEND_F"), "this PyTorch has no word for waits; 2.15 has")
class Tables(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def make(self, name, stages, pipeline, microbatches, options=()):
        shape = ["--stages", stages, "--ranks", pipeline, "--microbatches", microbatches]
        command = [PROGRAM, "schedule", "make", name, *map(str, shape), "--csv", *options]
        done = subprocess.run(command, check=True, capture_output=True)
        path = self.folder / f"{len(list(self.folder.iterdir()))}.csv"
        path.write_bytes(done.stdout)
        return str(path)

    def hold(self, pipeline, cases, ways=(COMPUTE, LOWERED), replicas=1):
        """Run each of (schedule, stages, microbatches) in each way."""
        jobs, names = [], []
        for (name, stages, microbatches), (form, options) in ((case, way) for case in cases for way in ways):
            table = self.make(name, stages, pipeline, microbatches, options)
            jobs.append((table, form, stages, microbatches, replicas))
            names.append((name, stages, microbatches, form, options))
        for name, told in zip(names, zip(*ranks.run(pipeline * replicas, execute_all, jobs))):
            with self.subTest(table=name):
                self.assertLess(max(told), 1e-12)

    def test_a_stage_a_rank(self):
        self.hold(3, [(name, 3, microbatches) for name in ("gpipe", "1f1b", "zb", "leads") for microbatches in (2, 5)])

    def test_several_stages_a_rank(self):
        self.hold(2, [("gpipe", 4, 3), ("interleaved", 4, 3), ("interleaved", 6, 4)])

    def test_four_ranks(self):
        self.hold(4, [("1f1b", 4, 6), ("zb", 4, 6)])

    def test_one_rank(self):
        self.hold(1, [("accumulate", 1, 3), ("accumulate", 3, 2)])

    @unittest.skipIf(not ranks.FSDP2, "fully_shard on gloo")
    def test_sharded_stages(self):
        """Stages are gathered where the table says so: all stages of a rank at once, or one at a time."""
        ways = [("compute_comms", [*LOWERED[1], "--gathered", most]) for most in ("1", "2")]
        self.hold(2, [("1f1b", 2, 4), ("zb", 2, 4), ("interleaved", 4, 4)], ways, replicas=2)

    def test_what_is_wrong_is_seen(self):
        table = self.make("1f1b", 2, 2, 3, LOWERED[1])
        divided = ranks.run(2, execute, table, "compute_comms", 2, 3, 1, True)
        self.assertGreater(min(divided), 1e-3)
        without = self.make("1f1b", 2, 2, 3, ["--lower"])
        with self.assertRaisesRegex(ranks.RankError, "without WAIT_REDUCE_GRAD"):
            ranks.run(2, execute, without, "compute_comms", 2, 3)


if __name__ == "__main__":
    unittest.main()
