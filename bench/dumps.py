#!/usr/bin/env python3
"""A large dump for measuring `addend diff` (docs/dumps.md): RANKS ranks, PARAMS parameters of SAMPLED sampled elements, f32, all sums
right but WRONG of them, which lack one rank's addend. Needs NumPy.

    bench/dumps.py FOLDER [--ranks 256] [--params 200] [--sampled 4096] [--wrong 10]
    /usr/bin/time -v addend diff FOLDER"""
import argparse
import json
import pathlib
import struct

import numpy

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("folder", type=pathlib.Path)
parser.add_argument("--ranks", type=int, default=256)
parser.add_argument("--params", type=int, default=200)
parser.add_argument("--sampled", type=int, default=4096)
parser.add_argument("--wrong", type=int, default=10)
call = parser.parse_args()

names = [f"blocks.{i:03}.weight" for i in range(call.params)]
shape = [1024, 1024]
common = {"addend.version": "1", "addend.mesh": f"dp_replicate=2 dp_shard={call.ranks // 2}", "addend.step": "1",
          "addend.sample": str(call.sampled), "addend.shapes": json.dumps({name: shape for name in names}),
          "addend.expect": repr(1 / call.ranks)}


def write(path, metadata, values):
    """`values`: [params, sampled]"""
    header = {"__metadata__": {**common, **metadata}}
    size = call.sampled * 4
    for i, name in enumerate(names):
        header[name] = {"dtype": "F32", "shape": [call.sampled], "data_offsets": [i * size, (i + 1) * size]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + values.tobytes())


call.folder.mkdir()
random = numpy.random.default_rng(1)
total = numpy.zeros((call.params, call.sampled))
for rank in range(call.ranks):
    addend = random.standard_normal((call.params, call.sampled), dtype=numpy.float32)
    counted = numpy.ones((call.params, 1))
    counted[: call.wrong] = numpy.arange(call.wrong)[:, None] != rank
    total += counted * addend
    write(call.folder / f"rank{rank:05}.addend.safetensors", {"addend.kind": "addend", "addend.rank": str(rank)}, addend)
sums = (total / call.ranks).astype(numpy.float32)
for rank in range(call.ranks):
    write(call.folder / f"rank{rank:05}.sum.safetensors", {"addend.kind": "sum", "addend.rank": str(rank)}, sums)
