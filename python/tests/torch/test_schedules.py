"""Test the tables of `addend schedule make` in the runtime of torch.distributed.pipelining: compute actions alone, to
which PyTorch adds communication, and tables with addend's communication. Ranks of gloo execute each in f64, and its
gradients are compared with one process. Tables of PyTorch itself are executed too, right and wrong ones: what `addend
schedule check` says of a table is what happens.
"""

import csv
import functools
import json
import os
import pathlib
import re
import runpy
import subprocess
import tempfile
import unittest
import warnings

import torch
from says import raises_facts
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
    generator = torch.Generator(ranks.DEVICE).manual_seed(replica)
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


def rows_of(table):
    with open(table, newline="") as file:
        return [[cell for cell in row if cell] for row in csv.reader(file)]


def execute(table, form, stages, microbatches, replicas=1, scales=False):
    """Execute a table; each rank has the stages that its row computes."""
    warnings.simplefilter("ignore")
    torch.set_default_dtype(torch.float64)
    world = torch.distributed.get_world_size()
    mesh = init_device_mesh(ranks.DEVICE.type, (replicas, world // replicas), mesh_dim_names=("dp", "pp"))
    wrap = functools.partial(fully_shard, mesh=mesh["dp"]) if replicas > 1 else lambda module: module
    row = ",".join(rows_of(table)[mesh.get_local_rank("pp")])
    modules = {stage: wrap(Block(stage)) for stage in sorted({int(stage) for stage in re.findall(r"(\d+)F\d", row)})}
    parts = [PipelineStage(m, s, stages, ranks.DEVICE, group=mesh.get_group("pp")) for s, m in modules.items()]
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
        for name, reported in zip(names, zip(*ranks.run(pipeline * replicas, execute_all, jobs))):
            with self.subTest(table=name):
                self.assertLess(max(reported), 1e-12)

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
        """Stages are gathered where the table says so: all stages of a rank together, or one at a time."""
        ways = [("compute_comms", [*LOWERED[1], "--gathered", most]) for most in ("1", "2")]
        self.hold(2, [("1f1b", 2, 4), ("zb", 2, 4), ("interleaved", 4, 4)], ways, replicas=2)

    def test_what_is_wrong_is_seen(self):
        table = self.make("1f1b", 2, 2, 3, LOWERED[1])
        divided = ranks.run(2, execute, table, "compute_comms", 2, 3, 1, True)
        self.assertGreater(min(divided), 1e-3)
        without = self.make("1f1b", 2, 2, 3, ["--lower"])
        with raises_facts(self, ranks.RankError, "WAIT_REDUCE_GRAD"):
            ranks.run(2, execute, without, "compute_comms", 2, 3)


GENERATE = runpy.run_path(str(pathlib.Path(__file__).resolve().parents[3] / "core/tests/schedule/pytorch/generate.py"))
LOOPED = ("ScheduleInterleaved1F1B", "ScheduleLoopedBFS", "ScheduleInterleavedZeroBubble")
IN_A_V = ("ScheduleZBVZeroBubble", "ScheduleDualPipeV")
RIGHT, WRONG = 1e-12, 1e-3  # gradients are at most, or at least, so far from those of one process


def torch_shapes():
    """Return (schedule, ranks, stages of a rank, microbatches) of 48 tables."""
    shapes = [(name, r, each, m) for name in LOOPED for r in (2, 3, 4) for each in (2, 3) for m in (r, 2 * r)]
    zbv = [(IN_A_V[0], r, 2, m) for r in (2, 3, 4) for m in (r, 2 * r)]
    return shapes + zbv + [(IN_A_V[1], r, 2, 2 * m) for r in (2, 3, 4) for m in (r, 2 * r)]


@unittest.skipUnless(hasattr(schedules, "WAIT_SEND_F"), "this PyTorch has no word for waits; 2.15 has")
class TablesOfPyTorch(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def dump(self, name, pipeline, each, microbatches, **options):
        """Write the table that PyTorch lowered."""
        stages = GENERATE["stages_of_v"](pipeline) if name in IN_A_V else GENERATE["stages_of"](pipeline, each)
        schedule = getattr(schedules, name)(stages, microbatches, loss_fn=loss, **options)
        path = self.folder / f"{name}-{pipeline}-{each}-{microbatches}-{len(options)}.csv"
        schedule._dump_csv(path, format="compute_comms")
        return str(path)

    def judged(self, table, *options):
        done = subprocess.run([PROGRAM, "schedule", "check", table, "--json", *options], capture_output=True)
        self.assertIn(done.returncode, (0, 1), done.stderr)
        return json.loads(done.stdout)

    def moved(self, table, rank, action, other):
        """Write the table anew with one rank's action behind another."""
        rows = rows_of(table)
        here, there = rows[rank].index(action), rows[rank].index(other)
        self.assertLess(here, there)
        rows[rank].insert(there, rows[rank].pop(here))
        path = self.folder / f"moved-{action}.csv"
        with open(path, "w", newline="") as file:
            csv.writer(file).writerows(rows)
        return str(path)

    def happens(self, pipeline, cases):
        """Execute (table, stages, microbatches, whether it is right) and compare what happens with the verdict."""
        jobs = [(table, "compute_comms", stages, microbatches) for table, stages, microbatches, _ in cases]
        errors = [max(reported) for reported in zip(*ranks.run(pipeline, execute_all, jobs))]
        for (table, *_, right), error in zip(cases, errors):
            with self.subTest(table=table):
                found = self.judged(table)
                self.assertEqual(found["right"], right, found["broken"])
                self.assertEqual({fault["law"] for fault in found["broken"]}, set() if right else {"pairs"})
                if right:
                    self.assertLess(error, RIGHT)
                else:
                    self.assertGreater(error, WRONG)
                    self.assertTrue(self.judged(table, "--pairs", "edge")["right"])

    def test_two_ranks_take_messages_in_the_order_of_sending(self):
        zero_bubble, one_f_one_b = LOOPED[2], LOOPED[0]
        plain = self.dump(one_f_one_b, 2, 2, 4)
        self.happens(
            2,
            [
                (self.dump(zero_bubble, 2, 2, 4), 4, 4, True),
                (self.dump(zero_bubble, 2, 2, 4, defer_pp_recv=True), 4, 4, False),
                (self.dump(one_f_one_b, 2, 2, 4, defer_pp_recv=True), 4, 4, True),
                (self.dump(IN_A_V[0], 2, 2, 4), 4, 4, True),
                (self.dump(IN_A_V[0], 2, 2, 4, defer_pp_recv=True), 4, 4, False),
                (plain, 4, 4, True),
                (self.moved(plain, 0, "0SEND_F2", "2SEND_B0"), 4, 4, False),
                (self.moved(plain, 1, "1SEND_F3", "1SEND_B1"), 4, 4, False),
            ],
        )

    def test_three_ranks_do_too(self):
        self.happens(
            3,
            [
                (self.dump(LOOPED[2], 3, 2, 6, defer_pp_recv=True), 6, 6, True),
                (self.dump(IN_A_V[0], 3, 2, 6), 6, 6, True),
                (self.dump(IN_A_V[0], 3, 2, 6, defer_pp_recv=True), 6, 6, False),
            ],
        )

    def test_which_tables_of_pytorch_keep_that_order(self):
        """core/docs/pipeline.md says how many."""
        deferred, plain = (
            [self.judged(self.dump(*shape, **options))["right"] for shape in torch_shapes()]
            for options in ({"defer_pp_recv": True}, {})
        )
        self.assertEqual((len(deferred), deferred.count(False), plain.count(False)), (48, 9, 0))


if __name__ == "__main__":
    unittest.main()
