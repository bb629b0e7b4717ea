#!/usr/bin/env python3
"""Measures the memory of a watched step on the first rank: RANKS forked ranks of gloo, PARAMS parameters of SIZE x SIZE in DDP, MICROBATCHES microbatches.
    PYTHONPATH=python:python/tests/torch ADDEND_LIBRARY=build/libaddend.so OMP_NUM_THREADS=1 python3 lab/bench/torch_memory.py [--ranks 64] [--params 40] [--microbatches 1]
Prints the largest rise of the rank's resident memory while the step was collected and judged, and the largest size of temporary files on disk."""
import argparse
import contextlib
import os
import threading
import time
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn

import addend.torch
import ranks
from addend.torch import _collect

SIZE = 128


def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")


def watched(params, microbatches):
    model = nn.parallel.DistributedDataParallel(nn.Sequential(*(nn.Linear(SIZE, SIZE, bias=False) for _ in range(params))))
    most, disk, stop = [0], [0], threading.Event()

    def look():
        while not stop.wait(0.002):
            most[0] = max(most[0], resident())

    bring = _collect.Collection.bring

    def measured(collection):
        bring(collection)
        if dist.get_rank() == 0:
            files = (os.stat(os.path.join(collection._folder, name)) for name in os.listdir(collection._folder))
            disk[0] = max(disk[0], sum(512 * file.st_blocks for file in files))

    with contextlib.redirect_stdout(None), mock.patch.object(_collect.Collection, "bring", measured):
        watch = addend.torch.watch(model).__enter__()
        for m in range(microbatches):
            x = torch.randn(4, SIZE, generator=torch.Generator().manual_seed(1000 * dist.get_rank() + m))
            model(x).square().mean().backward()
        before = resident()
        watching = threading.Thread(target=look)
        watching.start()
        start = time.process_time()
        watch.__exit__(None, None, None)
        took = time.process_time() - start
        stop.set()
        watching.join()
    return watch.report.ok, most[0] - before, disk[0], took


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--params", type=int, default=40)
    parser.add_argument("--microbatches", type=int, default=1)
    call = parser.parse_args()
    ok, memory, disk, took = ranks.run(call.ranks, watched, call.params, call.microbatches)[0]
    print(f"{call.ranks} ranks, {call.params} parameters, {call.microbatches} microbatches, right: {ok}; memory {memory / 2**20:.1f} MiB, "
          f"temporary files {disk / 2**20:.1f} MiB, {took:.2f} s of the first rank's processor")


if __name__ == "__main__":
    main()
