"""Test tensor parallelism in fully_shard with different batches on the ranks of tp, which is a mistake: a watch sees
it if a parameter is used whole on all of them or if they count what they were fed; if everything is cut, only a
reference shows it (audit/docs/dumps.md).
"""

import os
import tempfile
import unittest

import torch
from says import says
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import addend
import addend.torch
import ranks

WIDTH, ROWS = 8, 6


class Block(nn.Module):
    def __init__(self, normed):
        super().__init__()
        torch.manual_seed(2)
        self.norm = nn.LayerNorm(WIDTH) if normed else nn.Identity()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH, bias=False), nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x):
        return x + self.down(torch.tanh(self.up(self.norm(x))))


def step(normed, identical, counted, folder=None):
    """Return the first rank's report of one step of four ranks, or write its dump. `alike`: ranks of tp have the same
    batch.
    """
    mesh = init_device_mesh(ranks.DEVICE.type, (2, 2), mesh_dim_names=("dp", "tp"))
    model = parallelize_module(Block(normed), mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    fully_shard(model, mesh=mesh["dp"])
    batch = mesh.get_local_rank("dp") if identical else mesh.get_rank()
    rows = ROWS + (0 if identical else mesh.get_local_rank("tp"))
    torch.manual_seed(10 + batch)
    x, y = torch.randn(2, ROWS, WIDTH)
    context = addend.torch.dump(model, folder, sample=None) if folder else addend.torch.watch(model)
    with context as watch:
        if counted:
            watch.divisor(rows)
        ((model(x) - y).square().sum() / (rows if counted else ROWS)).backward()
    return None if folder else watch.report


def report(*arguments):
    return ranks.run(4, step, *arguments)[0]


def wrong(report):
    return {param.name: param for param in report.params if not param.ok}


@unittest.skipUnless(ranks.FSDP2, "fully_shard on gloo needs PyTorch 2.15")
class Batches(unittest.TestCase):
    def test_one_batch_for_all_ranks_of_tp_is_right(self):
        for normed in False, True:
            for counted in False, True:
                reported = report(normed, True, counted)
                self.assertTrue(reported.ok, reported)
                self.assertEqual(list(reported.messages), [])

    def test_a_norm_that_all_ranks_of_tp_use_shows_different_batches(self):
        reported = report(True, False, False)
        self.assertEqual(set(wrong(reported)), {"norm.weight"})
        self.assertEqual((wrong(reported)["norm.weight"].kind, wrong(reported)["norm.weight"].axis), ("own_only", "tp"))
        says(self, "\n".join(reported.messages), "`norm.weight`", "tp")

    def test_their_counts_show_different_batches(self):
        reported = report(False, False, True)
        self.assertEqual({param.kind for param in wrong(reported).values()}, {"divided_by_own_count"})
        self.assertEqual(wrong(reported)["up.weight"].axis, "tp")
        says(self, wrong(reported)["up.weight"].text, "tp")

    def test_where_all_is_cut_only_a_reference_shows_different_batches(self):
        with tempfile.TemporaryDirectory() as work:
            right, other = os.path.join(work, "right"), os.path.join(work, "other")
            for folder, identical in (right, True), (other, False):
                os.mkdir(folder)
                ranks.run(4, step, False, identical, False, folder)
            self.assertTrue(addend.diff(other).ok)
            self.assertTrue(addend.diff(right, reference=right).ok)
            self.assertEqual(set(wrong(addend.diff(other, reference=right))), {"up.weight", "down.weight"})


if __name__ == "__main__":
    unittest.main()
