"""Compares the seconds of N tests on ranks that start once (addend.torch.testing) with N tests that each start ranks of
gloo (torch.multiprocessing.spawn). A test is one step of a small model in fully_shard.

    ADDEND_LIBRARY=build/libaddend.so PYTHONPATH=python python3 lab/bench/peers/torch_fixture.py [--tests 50] [--ranks 4]"""

import argparse
import os
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing
from torch import nn


def body():
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4))
    for layer in (model[0], model[2]):
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    model(torch.ones(8, 16) * (dist.get_rank() + 1)).square().mean().backward()
    optimizer.step()
    return sum(p.full_tensor().double().sum().item() for p in model.parameters())


def be_rank(rank, ranks, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=ranks)
    total = body()
    if rank == 0:
        with open(f"{folder}/total", "w", encoding="utf-8") as file:
            file.write(repr(total))
    dist.barrier()
    dist.destroy_process_group()
    os._exit(0)  # a gloo rank sometimes aborts when the interpreter ends


def spawn(tests, ranks):
    totals = []
    for _ in range(tests):
        with tempfile.TemporaryDirectory() as folder:
            torch.multiprocessing.spawn(be_rank, (ranks, folder), nprocs=ranks)
            with open(f"{folder}/total", encoding="utf-8") as file:
                totals.append(float(file.read()))
    return totals


def share(tests, ranks):
    from addend.torch.testing import World

    with World(ranks) as world:
        return [world.run(body)[0] for _ in range(tests)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tests", type=int, default=50)
    parser.add_argument("--ranks", type=int, default=4)
    given = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    totals = []
    for name, way in (("ranks that start once", share), ("ranks of gloo for each test", spawn)):
        start = time.monotonic()
        totals += way(given.tests, given.ranks)
        seconds = time.monotonic() - start
        print(f"{given.tests} tests, {given.ranks} ranks: {seconds:7.1f} s  {name}", flush=True)
    if max(totals) - min(totals) > 1e-4 * abs(totals[0]):
        raise SystemExit(f"they did not compute the same: {min(totals)} to {max(totals)}")


if __name__ == "__main__":
    main()
