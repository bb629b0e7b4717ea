"""One step of hybrid sharding on 2 x 4 ranks, two microbatches, four mistakes; audit/docs/diff-map.png is its map.

OMP_NUM_THREADS=1 torchrun --nproc-per-node 8 python/examples/four_mistakes.py dump
addend diff dump --html map.html"""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy, gelu

import addend.torch

TOKENS, WIDTH, MICROBATCHES = 64, 32, 2


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attn = nn.MultiheadAttention(WIDTH, 4, batch_first=True)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x):
        y = self.norm1(x)
        x = x + self.attn(y, y, y, need_weights=False)[0]
        return x + self.down(gelu(self.up(self.norm2(x))))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(TOKENS, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(4))
        self.head = nn.Linear(WIDTH, TOKENS, bias=False)

    def forward(self, x):
        x = self.embedding(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def main(folder):
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2, 4), mesh_dim_names=("dp_replicate", "dp_shard"))
    torch.manual_seed(0)
    model = Model()
    by_hand = list(model.blocks[3].norm1.parameters())
    for block in model.blocks:
        fully_shard(block, mesh=mesh, ignored_params=set(by_hand))
    fully_shard(model, mesh=mesh, ignored_params=set(by_hand))
    torch.manual_seed(1 + dist.get_rank())  # each rank has its own batches
    with addend.torch.dump(model, folder, mesh=mesh, expect=1 / dist.get_world_size()):
        for m in range(MICROBATCHES):
            x = torch.randint(TOKENS, (4, 16))
            model.set_requires_gradient_sync(m == MICROBATCHES - 1)
            model.blocks[1].set_requires_gradient_sync(True)
            (cross_entropy(model(x).flatten(0, 1), x.roll(-1, 1).flatten()) / MICROBATCHES).backward()
            if m == 0:  # mistake 1: block 1's attention loses the first microbatch's gradients
                model.blocks[1].attn.zero_grad()
        # mistake 2: block 2's norm2 gradients are summed over the replicas a second time
        for parameter in model.blocks[2].norm2.parameters():
            dist.all_reduce(parameter.grad.to_local(), group=mesh["dp_replicate"].get_group())
        # mistake 3: the gradients that fully_shard ignores are summed by hand, over one replica's ranks only
        for parameter in by_hand:
            dist.all_reduce(parameter.grad, group=mesh["dp_shard"].get_group())
            parameter.grad /= dist.get_world_size()
        # mistake 4: the head's gradient is divided by the size of the shard group, which fully_shard did already
        model.head.weight.grad /= mesh["dp_shard"].size()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
