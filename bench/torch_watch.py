"""What `addend.torch.watch` costs: a plain step and a watched one of the same model take turns, on every rank.
    PYTHONPATH=python ADDEND_LIBRARY=build/libaddend.so OMP_NUM_THREADS=1 torchrun --nproc-per-node 4 bench/torch_watch.py [--turns N]
Prints one row for DDP and one for FSDP2: a plain step, a watched step (median and least), of the slowest rank, up to
synchronised gradients, in ms."""
import argparse
import contextlib
import io
import statistics
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import addend.torch

WIDTH, LAYERS, HEADS, ROWS, LENGTH, WORDS = 384, 5, 6, 2, 128, 2048


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, 0.0, batch_first=True) for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, tokens):
        x = self.words(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def in_ddp():
    return DistributedDataParallel(Model())


def in_fsdp2():
    model, mesh = Model(), init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("dp",))
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def step_ms(model, watched):
    tokens = torch.randint(WORDS, (ROWS, LENGTH + 1))
    model.zero_grad()
    dist.barrier()
    start = time.perf_counter()
    with contextlib.redirect_stdout(io.StringIO()):
        with addend.torch.watch(model) if watched else contextlib.nullcontext() as watch:
            loss = nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
            loss.backward()
    if watched and not watch.report.ok:
        raise SystemExit(f"the watched step does not pass:\n{watch.report}")
    took = torch.tensor(1e3 * (time.perf_counter() - start))
    dist.all_reduce(took, dist.ReduceOp.MAX)
    return took.item()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=9)
    turns = parser.parse_args().turns
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    parameters = sum(p.numel() for p in Model().parameters())
    for name, wrap in (("DDP", in_ddp), ("FSDP2", in_fsdp2)):
        torch.manual_seed(0)
        model = wrap()
        torch.manual_seed(1 + dist.get_rank())
        times = {False: [], True: []}
        for _ in range(1 + turns):
            for watched, ms in times.items():
                ms.append(step_ms(model, watched))
        plain, watched = (f"{statistics.median(times[kind][1:]):.0f} | {min(times[kind][1:]):.0f}" for kind in (False, True))
        if dist.get_rank() == 0:
            print(f"| {name}, {parameters / 1e6:.1f} M parameters, {dist.get_world_size()} ranks | {plain} | {watched} |")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
