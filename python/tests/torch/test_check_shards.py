"""Test what `addend.torch.check` says of `fully_shard` where f64, and tied parameters in their own groups, have ways
of their own in PyTorch."""

import unittest

import torch
import torch.nn.functional as F
from says import says_facts, says_nothing_of
from torch import nn
from torch.distributed.fsdp import fully_shard

from addend.torch import check
from addend.torch._checks._tied import Tied as Ties


class Tied(nn.Module):
    """An embedding and a head that share a weight of `rows` rows."""

    def __init__(self, rows):
        super().__init__()
        self.embed, self.inside, self.head = nn.Embedding(rows, 6), nn.Linear(6, 6), nn.Linear(6, rows, bias=False)
        self.norm = nn.LayerNorm(6, elementwise_affine=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        return self.head(self.inside(self.norm(self.embed(tokens))).tanh())


def made(rows):
    torch.manual_seed(0)
    return Tied(rows)


def in_groups(model, mesh):
    """Each end of the tie in its own group, tied again afterwards, as where a checkpoint is loaded; a group of two
    modules, of which the first has no parameter."""
    model.head.weight = nn.Parameter(model.embed.weight.detach().clone())
    fully_shard(model.embed, mesh=mesh)
    fully_shard([model.norm, model.inside], mesh=mesh)
    fully_shard(model, mesh=mesh)
    model.head.weight = model.embed.weight


def tokens(rank, mesh):
    every = torch.randint(7, (4, 5), generator=torch.Generator().manual_seed(1))
    return [every if rank is None else every[rank::2]]


def loss(model, batch):
    return F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten(), reduction="sum"), batch.numel()


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.5)


def divided(model, mesh):
    """Shards on one rank, with a divisor that the job gives."""
    for module in (model.inside, model):
        fully_shard(module, mesh=mesh)
        module.set_gradient_divide_factor(2.0)


class ShardsTest(unittest.TestCase):
    def report(self, rows, **more):
        return check(lambda: made(rows), in_groups, tokens, loss, {"dp": 2}, optimizer=sgd, **more)

    def test_a_tie_between_groups_and_a_group_of_two_modules_are_left_as_they_are(self):
        report = self.report(8, steps=2)
        self.assertIs(report.ok, True, str(report))

    def test_a_tie_of_uneven_shards_is_right_in_the_first_step_alone(self):
        self.assertIs(self.report(7, steps=1).ok, True)
        report = self.report(7, steps=2)  # PyTorch pads each end's shard in memory of its own
        self.assertEqual((report.ok, report.begins.place, report.begins.step), (False, "optimizer", 2), str(report))
        says_facts(self, report.begins.text, "embed.weight", "head.weight")

    def test_a_tie_whose_values_are_the_same_is_no_cause(self):
        def decays_later(model):
            optimizer = sgd(model)
            optimizer.register_step_post_hook(lambda one, *_: one.param_groups[0].update(weight_decay=0.1 * by_ranks))
            return optimizer

        def sharded(model, mesh):
            nonlocal by_ranks
            by_ranks = 1
            in_groups(model, mesh)

        by_ranks = 0  # this process's own: ranks are others
        report = check(lambda: made(8), sharded, tokens, loss, {"dp": 2}, optimizer=decays_later, steps=2)
        self.assertEqual((report.ok, report.begins.place, report.begins.step), (False, "optimizer", 2), str(report))
        says_nothing_of(self, report.begins.text, "head.weight")

    def test_a_tie_that_differs_from_the_beginning_is_told_apart_from_one_that_parts(self):
        one, other = nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)
        both = nn.Sequential(one, other)
        tied = Ties([both], {"0.weight": ["1.weight"]}, 1e-9)
        for after in (0, 1):
            with tied.watched(after):
                both(torch.ones(1, 3))
        self.assertEqual(tied.parted, {})
        other.load_state_dict(one.state_dict())
        for after in (0, 1, 2):
            with tied.watched(after), torch.no_grad():
                both(torch.ones(1, 3))
                other.weight += after  # after the forward: what the next one has
        self.assertEqual(tied.parted, {2: [("0.weight", "1.weight")]})

    def test_f64_is_divided_as_often_as_f32(self):
        whole = torch.randint(7, (4, 5), generator=torch.Generator().manual_seed(1))
        report = check(lambda: made(8), divided, lambda rank, mesh: [whole], loss, {"dp": 1})
        self.assertIs(report.ok, True, str(report))


if __name__ == "__main__":
    unittest.main()
