"""Test schedules of torch.distributed.pipelining under a plain `addend.torch.watch`: it reads stages, microbatches
and the schedule's divisor from the schedule, so it is told nothing. Each job is compared with one process first.
"""

import contextlib
import unittest
import warnings

import torch
import torch.distributed as dist
from says import raises, says, says_nothing_of
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, schedules
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import addend.torch
import ranks
from addend.torch import _pipeline

WIDTH, ROWS, MICROBATCHES = 8, 8, 4


class Block(nn.Module):
    def __init__(self, stage):
        super().__init__()
        torch.manual_seed(10 + stage)
        self.up, self.down = nn.Linear(WIDTH, 16), nn.Linear(16, WIDTH)

    def forward(self, x):
        return x + self.down(torch.tanh(self.up(x)))


class Wide(Block):
    """A stage whose parameters have another shape in each stage, under the same names."""

    def __init__(self, stage):
        super().__init__(stage)
        self.up, self.down = nn.Linear(WIDTH, 16 + 4 * stage), nn.Linear(16 + 4 * stage, WIDTH)


def loss(y, target):
    return (y - target).square().mean()


def batch(replica):
    generator = torch.Generator(ranks.DEVICE).manual_seed(replica)
    return torch.randn(ROWS, WIDTH, generator=generator), torch.randn(ROWS, WIDTH, generator=generator)


def stages_of(schedule, place, size):
    """Return (the stages of this place of the pipeline, their number)."""
    if issubclass(schedule, schedules.PipelineScheduleSingle):
        return [place], size
    if schedule.__name__ in ("ScheduleZBVZeroBubble", "ScheduleDualPipeV"):
        return [place, 2 * size - 1 - place], 2 * size
    return [place, place + size], 2 * size


class Deep(nn.Module):
    """A stage whose layers are each sharded, and resharded after their forward."""

    def __init__(self, stage):
        super().__init__()
        self.layers = nn.ModuleList(Block(3 * stage + i) for i in range(2))

    def forward(self, x):
        return self.layers[1](self.layers[0](x))


def wrapped(block, wrapper, mesh):
    if wrapper == "fsdp2":
        for layer in getattr(block, "layers", ()):
            fully_shard(layer, mesh=mesh["dp"])
        return fully_shard(block, mesh=mesh["dp"])
    return DistributedDataParallel(block, process_group=mesh.get_group("dp")) if wrapper == "ddp" else block


class Pipeline:
    def __init__(self, schedule, replicas, wrapper, block):
        warnings.simplefilter("ignore")
        schedule = getattr(schedules, schedule)
        mesh = init_device_mesh(
            ranks.DEVICE.type, (replicas, dist.get_world_size() // replicas), mesh_dim_names=("dp", "pp")
        )
        self.block, self.replicas, self.mesh = block, replicas, mesh
        self.indices, self.count = stages_of(schedule, mesh.get_local_rank("pp"), mesh.size(1))
        modules = [wrapped(block(index), wrapper, mesh) for index in self.indices]
        stages = [
            PipelineStage(module, index, self.count, ranks.DEVICE, group=mesh.get_group("pp"))
            for module, index in zip(modules, self.indices)
        ]
        several = not issubclass(schedule, schedules.PipelineScheduleSingle)
        self.schedule = schedule(stages if several else stages[0], MICROBATCHES, loss_fn=loss)
        self.model = nn.ModuleList(modules) if several else modules[0]

    def step(self):
        x, target = batch(self.mesh.get_local_rank("dp"))
        inputs = (x,) if 0 in self.indices else ()
        self.schedule.step(*inputs, **({"target": target} if self.count - 1 in self.indices else {}))

    def error(self):
        """Return the worst relative error of this rank's gradients against one process."""
        alone = nn.Sequential(*map(self.block, range(self.count)))
        sum(loss(alone(x), target) for x, target in map(batch, range(self.replicas))).div(self.replicas).backward()
        modules = self.model if isinstance(self.model, nn.ModuleList) else [self.model]
        worst = 0.0
        for index, module in zip(self.indices, modules):
            for ours, right in zip(module.parameters(), alone[index].parameters()):
                if ours.grad is None:
                    worst = float("inf")
                    continue
                grad = ours.grad.full_tensor() if isinstance(ours.grad, DTensor) else ours.grad
                worst = max(worst, ((grad - right.grad).norm() / right.grad.norm()).item())
        return worst


def watched(jobs, reported=None):
    reports = []
    for job in jobs:
        pipeline = Pipeline(*job)
        with contextlib.redirect_stdout(None), addend.torch.watch(pipeline.model, **(reported or {})) as watch:
            pipeline.step()
        reports.append((watch.report, pipeline.error()))
    return reports


def fails_inside():
    """A microbatch fails; return the step's error against one process, and what is said."""
    pipeline = Pipeline("Schedule1F1B", 1, None, Block)

    def fail(*arguments):
        raise KeyError("number")

    _pipeline.Observer._number = fail
    said = "nothing"
    try:
        with addend.torch.watch(pipeline.model):
            pipeline.step()
    except ValueError as error:
        said = str(error)
    return pipeline.error(), said


ALONE = [
    "ScheduleGPipe",
    "Schedule1F1B",
    "ScheduleInterleaved1F1B",
    "ScheduleLoopedBFS",
    "ScheduleInterleavedZeroBubble",
    "ScheduleZBVZeroBubble",
]
BESIDE = [("Schedule1F1B", "ddp"), ("Schedule1F1B", "fsdp2"), ("ScheduleInterleavedZeroBubble", "fsdp2")]
BESIDE = [(schedule, wrapper) for schedule, wrapper in BESIDE if ranks.FSDP2 or wrapper != "fsdp2"]
# What zero-bubble schedules do to the layers of fully_shard is known for this version.
ZERO_BUBBLES = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 15)
if not ZERO_BUBBLES:
    BESIDE = [(schedule, wrapper) for schedule, wrapper in BESIDE if "Zero" not in schedule or wrapper != "fsdp2"]


class Pipelines(unittest.TestCase):
    def hold(self, reported, job, mesh, names):
        report, errors = reported[0][0], [error for _, error in reported]
        with self.subTest(job=job):
            self.assertLess(max(errors), 1e-5)
            self.assertTrue(report.ok, str(report))
            self.assertEqual((report.mesh, report.microbatches), (mesh, MICROBATCHES))
            self.assertEqual(sorted(p.name for p in report.params), sorted(names), str(report))

    def test_schedules_alone(self):
        jobs = [(schedule, 1, None, Block) for schedule in ALONE]
        for job, reported in zip(jobs, zip(*ranks.run(2, watched, jobs))):
            count = 2 if job[0] in ("ScheduleGPipe", "Schedule1F1B") else 4
            self.hold(reported, job, "dp=1 pp=2", names_of(count))

    def test_schedules_beside_replicas(self):
        jobs = [(schedule, 2, wrapper, Block) for schedule, wrapper in BESIDE]
        for job, reported in zip(jobs, zip(*ranks.run(4, watched, jobs))):
            self.hold(reported, job, "dp=2 pp=2", names_of(2 if "1F1B" in job[0] else 4))

    def test_an_expected_factor_with_and_without_the_schedules(self):
        """Which of the two somebody means who gives the factor of DDP is found by the sum; another factor is wrong."""
        job = ("Schedule1F1B", 2, "ddp", Block)
        for factor, is_beside in (1 / 2, True), (1 / 2 / MICROBATCHES, False):
            reported = [of_rank[0] for of_rank in ranks.run(4, watched, [job], {"expect": factor})]
            self.hold(reported, factor, "dp=2 pp=2", names_of(2))
            if is_beside:
                says(self, str(reported[0][0]), "expect=", str(MICROBATCHES))
            else:
                says_nothing_of(self, str(reported[0][0]), "expect=")
        report, _ = ranks.run(4, watched, [job], {"expect": 1 / 4})[0][0]
        self.assertEqual({p.verdict for p in report.params}, {"wrong"}, str(report))

    def test_other_shapes_under_one_name(self):
        reported = [of_rank[0] for of_rank in ranks.run(2, watched, [("Schedule1F1B", 1, None, Wide)])]
        self.hold(reported, "wide", "dp=1 pp=2", names_of(2))

    def test_what_fails_inside_ends_no_schedule(self):
        for error, said in ranks.run(2, fails_inside):
            self.assertLess(error, 1e-5)
            self.assertIn("KeyError: 'number'", said)

    def test_parts_that_some_stages_have(self):
        """Ranks of the other stage have no shapes of these parameters to tell."""
        reported = {"types": {"stage1.*": "dp=S0", "stage0.*": "dp=I"}}
        report, _ = ranks.run(4, watched, [("ScheduleGPipe", 2, None, Block)], reported)[0][0]
        self.assertEqual(
            {name: report[name].numel for name in names_of(2) if name.endswith("up.bias")},
            {"stage0.up.bias": 16, "stage1.up.bias": 32},
        )
        self.assertTrue(report["stage1.up.bias"].ok, str(report))

    def test_replicas_that_are_not_summed(self):
        report, _ = ranks.run(4, watched, [("ScheduleGPipe", 2, None, Block)])[0][0]
        self.assertEqual({(p.kind, p.axis) for p in report.params}, {("own_only", "dp")}, str(report))

    def test_ddp_is_not_asked_by_the_weights_of_a_zero_bubble(self):
        """All but the first stage's gradients are put in place without DDP."""
        report, error = ranks.run(4, watched, [("ScheduleInterleavedZeroBubble", 2, "ddp", Block)])[0][0]
        self.assertGreater(error, 1e-2)
        wrong = {p.name for p in report.params if not p.ok}
        self.assertEqual(wrong, {name for name in names_of(4) if not name.startswith("stage0.")}, str(report))

    @unittest.skipIf(not ZERO_BUBBLES, "which gradients are lost was seen with PyTorch 2.15")
    def test_a_zero_bubble_loses_gradients_of_layers_that_are_resharded(self):
        """All gradients of the last stage, and some microbatches of others: none of these is called right."""
        reported = [
            of_rank[0] for of_rank in ranks.run(4, watched, [("ScheduleInterleavedZeroBubble", 2, "fsdp2", Deep)])
        ]
        report = reported[0][0]
        self.assertEqual(max(error for _, error in reported), float("inf"))
        self.assertIsNone(report.ok, str(report))
        self.assertEqual({p.kind for p in report.params}, {"right", "not_judged"}, str(report))
        self.assertTrue(all(p.name.startswith("stage0.") for p in report.params if p.ok), str(report))
        says(self, report["stage3.layers.0.up.weight"].text, "unused=")
        says(self, report["stage2.layers.0.up.weight"].text, "only 2", "unused=")
        meant = ranks.run(4, watched, [("ScheduleInterleavedZeroBubble", 2, "fsdp2", Deep)], {"unused": ["stage*"]})
        says(self, str(meant[0][0][0]), "stage3.layers.0.up.weight")


class Ends(nn.Module):
    """A model in which the first stage's `embed.weight` and the second's `head.weight` are one parameter."""

    def __init__(self, stage):
        super().__init__()
        torch.manual_seed(5)
        weight = torch.randn(20, WIDTH)
        if stage == 0:
            self.embed = nn.Embedding(20, WIDTH, _weight=weight)
        else:
            self.head = nn.Linear(WIDTH, 20, bias=False)
            self.head.weight = nn.Parameter(weight)
        self.mix = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return torch.tanh(self.mix(self.embed(x))) if hasattr(self, "embed") else self.head(self.mix(x))


def run_tied(schedule, summed, reported):
    """A step of a pipeline over two ranks, or of stages that are called by hand."""
    warnings.simplefilter("ignore")
    rank = dist.get_rank()
    module = Ends(rank)
    stage = PipelineStage(module, rank, 2, ranks.DEVICE)
    schedule = getattr(schedules, schedule)(stage, MICROBATCHES, loss_fn=lambda y, t: nn.functional.cross_entropy(y, t))
    words = torch.randint(0, 20, (ROWS,), generator=torch.Generator(ranks.DEVICE).manual_seed(3))
    with contextlib.redirect_stdout(None), addend.torch.watch(module, **reported) as watch:
        schedule.step(words) if rank == 0 else schedule.step(target=words.flip(0))
        if summed:
            dist.all_reduce((module.head if rank else module.embed).weight.grad)
    return watch.report


class TiedEnds(unittest.TestCase):
    def report(self, summed, **reported):
        return ranks.run(2, run_tied, "Schedule1F1B", summed, reported)[0]

    def test_summed(self):
        for reported in {}, {"tied": [("embed.weight", "head.weight")]}:
            report = self.report(True, **reported)
            self.assertTrue(report.ok, str(report))
            says(self, str(report), "stage0.embed.weight", "stage1.head.weight")

    def test_types_by_pattern_that_name_tied_ends_too(self):
        """A tie, found or given, counts before types= of all parameters, and the report says so."""
        tied = [("embed.weight", "head.weight")]
        for reported in {"types": {"*": "pp=I"}}, {"types": {"*": "dp=I pp=I"}, "tied": tied}:
            report = self.report(True, **reported)
            self.assertTrue(report.ok, str(report))
            says(self, str(report), "types=", "stage0.embed.weight", "stage1.head.weight", "pp=I", "tied=()")
        report = self.report(False, types={"*": "pp=I"}, tied=tied)
        self.assertEqual(report["stage0.embed.weight"].kind, "own_only", str(report))
        self.assertTrue(self.report(False, types={"*": "pp=I"}, tied=()).ok)

    def test_one_name_of_tied_ends_is_enough(self):
        """types= and expect= may name either end."""
        for name in "stage0.embed.weight", "stage1.head.weight":
            report = self.report(True, expect={name: 1 / MICROBATCHES / 2, "*mix*": 1 / MICROBATCHES})
            wrong = {p.name: p.factor for p in report.params if not p.ok}
            self.assertEqual(wrong, {"stage0.embed.weight": 2.0}, str(report))

    def test_left_out(self):
        report = self.report(False)
        self.assertIsNone(report.ok, str(report))
        says(self, report["stage0.embed.weight"].text, "stage0.embed.weight", "stage1.head.weight", "tied=")
        report = self.report(False, tied=[("embed.weight", "head.weight")])
        self.assertEqual(
            (report["stage0.embed.weight"].kind, report["stage0.embed.weight"].axis), ("own_only", "pp"), str(report)
        )

    def test_meant_apart(self):
        report = self.report(False, tied=())
        self.assertTrue(report.ok, str(report))
        self.assertIn("stage1.head.weight", {p.name for p in report.params})

    def test_a_name_that_nobody_has(self):
        for name in "words.weight", "mix.weight":  # no parameter, and one of several stages
            with raises(self, ranks.RankError, "tied", name):
                self.report(True, tied=[("embed.weight", name)])


def names_of(count):
    return [f"stage{i}.{layer}.{kind}" for i in range(count) for layer in ("up", "down") for kind in ("weight", "bias")]


if __name__ == "__main__":
    unittest.main()
