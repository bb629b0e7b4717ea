"""Test that `addend.torch.check` and `watch` look at DTensors without changing what the job computes from them."""

import unittest

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

import addend.torch
from addend.torch import _meshes, check
from addend.torch.testing import World

HANGS = 120  # seconds; many times what a check takes
VOCABULARY, WIDTH = 10, 6


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.mix, self.head = (
            nn.Embedding(VOCABULARY, WIDTH),
            nn.Linear(WIDTH, WIDTH),
            nn.Linear(WIDTH, 4),
        )
        self.between = torch.clone

    def forward(self, tokens):
        return self.head(self.mix(self.between(self.embed(tokens))))


def tokens(rank, mesh):
    return [torch.arange(15).reshape(3, 5) % VOCABULARY]


def loss(model, batch):
    return F.cross_entropy(model(batch).flatten(0, 1), (batch.flatten() % 4), reduction="sum"), batch.numel()


def vocabulary_parallel(model, mesh, inside=True):
    """The embedding's weight is sharded by rows. Its output is summed in the embedding, or (not `inside`) leaves it
    as a DTensor with a mask, which the model sums.
    """
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

    embed, plain = model.embed, nn.Embedding.forward
    embed.weight = nn.Parameter(distribute_tensor(embed.weight.detach(), mesh["tp"], [Shard(0)]))

    def looked_up(tokens):
        return plain(embed, DTensor.from_local(tokens, mesh["tp"], [Replicate()]))

    def summed(x):
        return x.redistribute(placements=[Replicate()]).to_local()

    embed.forward = (lambda tokens: summed(looked_up(tokens))) if inside else looked_up
    model.between = torch.clone if inside else summed
    return model


def outside(model, mesh):
    return vocabulary_parallel(model, mesh, inside=False)


class HalfTheGradient(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        return x.view_as(x)

    @staticmethod
    def backward(context, gradient):
        return gradient * 0.75


class HalfMixed(nn.Linear):
    def forward(self, x):
        return super().forward(HalfTheGradient.apply(x))


def with_a_wrong_mix(parallelize):
    def wrong(model, mesh):
        model.mix.__class__ = HalfMixed
        return parallelize(model, mesh)

    return wrong


def watched():
    mesh = dist.device_mesh.init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
    torch.manual_seed(1)
    model = outside(Words(), mesh)
    with addend.torch.watch(model, mesh=mesh) as seen:
        loss(model, tokens(0, None)[0])[0].backward()
    return seen.report


def looked_at():
    """A DTensor with a mask can be looked at and then summed, and rows of other ranks are seen as zeros."""
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

    mesh = dist.device_mesh.init_device_mesh("cpu", (2,))
    weight = nn.Parameter(distribute_tensor(torch.ones(4, 3), mesh, [Shard(0)]))
    rows = F.embedding(DTensor.from_local(torch.arange(4), mesh, [Replicate()]), weight)
    seen = _meshes.local_of(rows)
    own = torch.arange(4) // 2 == dist.get_rank()
    assert torch.equal(seen.bool().all(1), own) and torch.equal(seen.bool().any(1), own), seen
    assert torch.equal(rows.redistribute(placements=[Replicate()]).to_local(), torch.ones(4, 3))


class Masks(unittest.TestCase):
    def test_a_vocabulary_parallel_embedding(self):
        for parallelize in (vocabulary_parallel, outside):
            report = check(Words, parallelize, tokens, loss, {"tp": 2}, timeout=HANGS)
            self.assertTrue(report.ok, report)

    def test_its_output_is_an_addend_and_no_place_of_another_modules_bug(self):
        report = check(Words, with_a_wrong_mix(outside), tokens, loss, {"tp": 2}, timeout=HANGS)
        self.assertIs(report.ok, False)
        self.assertEqual(report.tensors.get("embed"), "addend over tp", report)
        self.assertEqual((report.begins.module, report.begins.place), ("mix", "backward"), report)

    def test_in_a_watch(self):
        for report in World(2).run(watched):
            self.assertTrue(report.ok, report)

    def test_looking_changes_nothing(self):
        World(2).run(looked_at)


if __name__ == "__main__":
    unittest.main()
