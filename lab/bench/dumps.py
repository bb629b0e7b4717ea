#!/usr/bin/env python3
"""Writes a large dump for measuring `addend diff` (audit/docs/dumps.md): RANKS ranks, MICROBATCHES microbatches, PARAMS parameters with SAMPLED
sampled elements, f32 or f16; the sums of WRONG parameters are wrong. Needs NumPy.

    lab/bench/dumps.py FOLDER [--ranks 256] [--microbatches 1] [--params 200] [--sampled 4096] [--wrong 10] [--bugs missing] [--dtype f32]
    /usr/bin/time -v addend diff FOLDER

--bugs: the kinds of wrong sums, in turn
    missing   one rank's addends are left out, another rank's for each parameter
    last      only the last microbatch is in the sum
    half      the second half of the ranks is left out
    twice     all addends are counted twice
    factor    all addends are multiplied by one factor, another one for each parameter
    own       each rank has only its own addends
    random    every addend has another count
    term      the sum contains something that is not an addend"""
import argparse
import json
import pathlib
import struct

import numpy

BUGS = ("missing", "last", "half", "twice", "factor", "own", "random", "term")
POOL = 1 << 24  # number of random numbers; each addend is a slice of them

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("folder", type=pathlib.Path)
parser.add_argument("--ranks", type=int, default=256)
parser.add_argument("--microbatches", type=int, default=1)
parser.add_argument("--params", type=int, default=200)
parser.add_argument("--sampled", type=int, default=4096)
parser.add_argument("--wrong", type=int, default=10)
parser.add_argument("--dtype", choices=("f32", "f16"), default="f32")
parser.add_argument("--bugs", default="missing", help="separated by commas, or all")
call = parser.parse_args()

bugs = BUGS if call.bugs == "all" else call.bugs.split(",")
names = [f"blocks.{i:04}.weight" for i in range(call.params)]
bug_of = [bugs[i % len(bugs)] if i < call.wrong else "" for i in range(call.params)]
shape = [1024, 1024]
common = {"addend.version": "1", "addend.mesh": f"dp_replicate=2 dp_shard={call.ranks // 2}", "addend.step": "1",
          "addend.sample": str(call.sampled), "addend.shapes": json.dumps({name: shape for name in names}),
          "addend.held": json.dumps({name: [[0] * len(shape), shape] for name in names}),
          "addend.expect": repr(1 / call.ranks)}
random = numpy.random.default_rng(1)
numel = call.params * call.sampled
dtype = {"f32": numpy.float32, "f16": numpy.float16}[call.dtype]
pool = random.standard_normal(POOL + numel, dtype=numpy.float32).astype(dtype)


def write(path, metadata, values):
    """Writes one file of the dump. `values`: [params, sampled]"""
    header = {"__metadata__": {**common, **metadata}}
    size = values.itemsize * call.sampled
    for i, name in enumerate(names):
        header[name] = {"dtype": call.dtype.upper(), "shape": [call.sampled], "data_offsets": [i * size, (i + 1) * size]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + values.tobytes())


def count(param, rank, microbatch):
    """How often the addend is counted in the sum."""
    bug = bug_of[param]
    wrong = {"missing": rank != param % call.ranks, "last": microbatch == call.microbatches - 1, "half": rank < call.ranks / 2,
             "twice": 2, "factor": 1 + (param + 0.5) / call.params, "random": random.uniform(0.5, 1.5)}
    return float(wrong.get(bug, 1))


call.folder.mkdir()
total = numpy.zeros((call.params, call.sampled))
own = numpy.zeros((call.ranks, call.params, call.sampled), dtype=numpy.float32) if "own" in bugs else None
for rank in range(call.ranks):
    for microbatch in range(call.microbatches):
        at = random.integers(POOL)
        addend = pool[at : at + numel].reshape(call.params, call.sampled)
        total += numpy.array([[count(param, rank, microbatch)] for param in range(call.params)]) * addend
        if own is not None:
            own[rank] += addend
        metadata = {"addend.kind": "addend", "addend.rank": str(rank), "addend.microbatch": str(microbatch)}
        write(call.folder / f"rank{rank:05}.addend.m{microbatch}.safetensors", metadata, addend)
for param in range(call.params):
    if bug_of[param] == "term":
        total[param] += random.standard_normal(call.sampled)
sums = (total / call.ranks).astype(dtype)
is_own = numpy.array([bug == "own" for bug in bug_of])[:, None]
for rank in range(call.ranks):
    values = sums if own is None else numpy.where(is_own, own[rank] / call.ranks, sums).astype(dtype)
    write(call.folder / f"rank{rank:05}.sum.safetensors", {"addend.kind": "sum", "addend.rank": str(rank)}, values)
