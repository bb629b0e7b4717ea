"""Measures the cost of `addend.torch.watch`: plain and watched steps of the same model in turns, on every rank.
    PYTHONPATH=python ADDEND_LIBRARY=build/libaddend.so OMP_NUM_THREADS=1 torchrun --nproc-per-node 2 lab/bench/torch_watch.py [--turns N]
Prints the table "Watched step" of lab/measured/: for DDP and FSDP2, for 1 and 4 microbatches, a plain step and a watched one up to synchronised
gradients, judged, with the report on all ranks. Processor time of all ranks together, in ms, median of the turns; the ratio is the median of
the pairs' ratios, with the least and the most beside it. Then what a step costs that `every=` leaves out."""
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

WIDTH, LAYERS, HEADS, ROWS, LENGTH, WORDS = 512, 6, 8, 2, 128, 2048
EVERY = 1000


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


def loss_of(model):
    tokens = torch.randint(WORDS, (ROWS, LENGTH + 1))
    return nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


def step_ms(model, microbatches, watched):
    """The processor time of a step, of all ranks together, in ms."""
    model.zero_grad()
    dist.barrier()
    start = time.process_time()
    with contextlib.redirect_stdout(io.StringIO()):
        with addend.torch.watch(model) if watched else contextlib.nullcontext() as watch:
            for m in range(microbatches):
                is_last = m == microbatches - 1
                if hasattr(model, "set_requires_gradient_sync"):
                    model.set_requires_gradient_sync(is_last)
                with contextlib.nullcontext() if is_last or not hasattr(model, "no_sync") else model.no_sync():
                    loss_of(model).backward()
    took = torch.tensor(1e3 * (time.process_time() - start))
    if watched and not watch.report.ok:
        raise SystemExit(f"the watched step does not pass:\n{watch.report}")
    dist.all_reduce(took)
    return took.item()


def measure(wrap, microbatches, turns):
    """The times of each turn: [plain, watched] in ms. The first turn is not counted."""
    torch.manual_seed(0)
    model = wrap()
    torch.manual_seed(1 + dist.get_rank())
    pairs = []
    for turn in range(1 + turns):
        order = (False, True) if turn % 2 else (True, False)
        took = {watched: step_ms(model, microbatches, watched) for watched in order}
        pairs.append((took[False], took[True]))
    return pairs[1:]


def row(name, microbatches, pairs):
    plain, watched = (statistics.median(pair[i] for pair in pairs) for i in (0, 1))
    ratios = sorted(watched / plain for plain, watched in pairs)
    middle = f"{statistics.median(ratios):.3f} ({ratios[0]:.3f} .. {ratios[-1]:.3f})"
    return f"| {name}, {dist.get_world_size()} ranks | {microbatches} | {plain:.0f} | {watched:.0f} | {middle} |"


def counted_us():
    """The time in us that a step costs which `every=` leaves unwatched."""
    model, steps = nn.Linear(2, 2), 100_000
    addend.torch.watch(model, every=2 * steps).__enter__().__exit__(KeyError, KeyError(), None)
    start = time.process_time()
    for _ in range(steps):
        with addend.torch.watch(model, every=2 * steps):
            pass
    return 1e6 * (time.process_time() - start) / steps


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=9)
    turns = parser.parse_args().turns
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    lines = ["| | microbatches | plain | watched | times a plain step |", "| --- | --- | --- | --- | --- |"]
    size = f"{sum(p.numel() for p in Model().parameters()) / 1e6:.1f} M parameters"
    for name, wrap in (("DDP", in_ddp), ("FSDP2", in_fsdp2)):
        for microbatches in (1, 4):
            pairs = measure(wrap, microbatches, turns)
            lines.append(row(f"{name}, {size}", microbatches, pairs))
            if dist.get_rank() == 0:
                print("\n".join(lines), flush=True)
            lines = []
    if hasattr(addend.torch.watch, "watches"):
        reported = counted_us()
        if dist.get_rank() == 0:
            print(f"\nA step that `every={EVERY}` leaves out costs {reported:.1f} us.")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
