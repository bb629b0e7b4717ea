"""Test PyTorch's pipeline schedules on backend "addend": gradients are compared with gloo's and with one process's."""

import unittest

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import pipelining

import addend.torch.group  # noqa: F401  registers the backend
import ranks

WIDTH, BATCH, MICROBATCHES = 6, 16, 8
ONE_STAGE = ("ScheduleGPipe", "Schedule1F1B")
MORE_STAGES = ("ScheduleInterleaved1F1B", "ScheduleLoopedBFS", "ScheduleInterleavedZeroBubble", "ScheduleZBVZeroBubble")


def layer(index):
    torch.manual_seed(index)
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()).double()


def values():
    made = torch.Generator().manual_seed(3)
    return [torch.randn(BATCH, WIDTH, generator=made, dtype=torch.float64) for _ in range(2)]


def loss_of(output, target):
    return (output - target).square().mean()


def run_alone(stages):
    net = nn.Sequential(*[layer(index) for index in range(stages)])
    input, target = values()
    loss_of(net(input), target).backward()
    return [[param.grad.numpy() for param in one.parameters()] for one in net]


def places(name, rank, world):
    """Return the stages of a rank."""
    if name in ONE_STAGE:
        return [rank]
    if name == "ScheduleZBVZeroBubble":
        return [rank, 2 * world - 1 - rank]
    return [rank, rank + world]


def run_schedule(name):
    """Return {stage: gradients}."""
    rank, world = dist.get_rank(), dist.get_world_size()
    mine = places(name, rank, world)
    layers = [layer(index) for index in mine]
    count = world * len(mine)
    stages = [pipelining.PipelineStage(one, index, count, torch.device("cpu")) for one, index in zip(layers, mine)]
    kind = getattr(pipelining, name)
    schedule = kind(stages if name in MORE_STAGES else stages[0], MICROBATCHES, loss_fn=loss_of)
    input, target = values()
    last = count - 1 in mine
    for _ in range(2):  # the second step uses the first one's buffers again
        for one in layers:
            one.zero_grad()
        schedule.step(*([input] if rank == 0 else []), **({"target": target} if last else {}))
    return {index: [param.grad.numpy() for param in one.parameters()] for index, one in zip(mine, layers)}


def close(one, other):
    return all(abs(a - b).max() <= 1e-12 * max(1e-6, abs(b).max()) for a, b in zip(one, other))


# On gloo PyTorch 2.6 hangs, and in 2.9 a stage sends 8 bytes to one that receives 4.
@unittest.skipUnless(
    tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 15), "this PyTorch's pipelines do not run on gloo"
)
class Pipelines(unittest.TestCase):
    def hold(self, world):
        for name in (*ONE_STAGE, *MORE_STAGES):
            with self.subTest(name, world=world):
                ours = ranks.run(world, run_schedule, name, backend="addend")
                gloos = ranks.run(world, run_schedule, name)
                reference = run_alone(world * (1 if name in ONE_STAGE else 2))
                for one, other in zip(ours, gloos):
                    for stage, gradients in one.items():
                        self.assertTrue(close(gradients, reference[stage]), stage)
                        self.assertTrue(close(gradients, other[stage]), stage)

    def test_on_two_ranks(self):
        self.hold(2)

    def test_on_four_ranks(self):
        self.hold(4)


if __name__ == "__main__":
    unittest.main()
