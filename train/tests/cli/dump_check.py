"""Read one step's dump by nothing but what audit/docs/dumps.md says of the format, and add it up: every sum must be the sum
of its addends.
    dump_check.py FILE...: prints how many sums were judged; exit status 1 if a sum is another number.
"""
import itertools
import json
import math
import struct
import sys

import safetensors

CODES = {"F64": "d", "F32": "f", "F16": "e"}
ROUNDS = {"F64": 2.0**-53, "F32": 2.0**-24, "BF16": 2.0**-8, "F16": 2.0**-11}
LEAST = {"F64": 5e-324, "F32": 2.0**-149, "BF16": 2.0**-133, "F16": 2.0**-24}


def values(tensor):
    dtype, _, data = tensor
    if dtype == "BF16":
        return [struct.unpack("<f", b"\0\0" + data[i : i + 2])[0] for i in range(0, len(data), 2)]
    return struct.unpack(f"<{len(data) // struct.calcsize(CODES[dtype])}{CODES[dtype]}", data)


class File:
    def __init__(self, path):
        reported = safetensors.metadata(path)
        read = lambda key: json.loads(reported.get(f"addend.{key}", "{}"))
        assert reported["addend.version"] == "1", path
        self.kind, self.rank, self.step = reported["addend.kind"], int(reported["addend.rank"]), reported["addend.step"]
        self.mesh = [(name, int(size)) for name, size in (axis.split("=") for axis in reported["addend.mesh"].split())]
        self.types, self.shapes, self.held, self.reduce = map(read, ("types", "shapes", "held", "reduce"))
        self.tensors = safetensors.load(path)

    def box(self, name):
        shape = self.shapes[name]
        first, held = self.held.get(name, ([0] * len(shape), shape))
        assert held == self.tensors[name][1], (name, held, self.tensors[name][1])
        return itertools.product(*(range(f, f + n) for f, n in zip(first, held)))

    def elements(self, name):
        return dict(zip(self.box(name), values(self.tensors[name])))


def place(mesh, rank):
    where = {}
    for name, size in reversed(mesh):
        where[name] = rank % size
        rank //= size
    return where


def belongs(mesh, types, to, rank):
    """Return whether the rank's addend belongs in the sum of rank `to`."""
    one, other = place(mesh, to), place(mesh, rank)
    return all(kind == "R" or one[axis] == other[axis] for axis, kind in (t.split("=") for t in types.split()))


def judge(total, addends, name):
    types, dtype = total.types[name], total.tensors[name][0]
    wanted = [a for a in addends if name in a.tensors and belongs(total.mesh, types, total.rank, a.rank)]
    parts = [a.elements(name) for a in wanted]
    u = max([ROUNDS[dtype], ROUNDS[total.reduce[name].upper()]] + [ROUNDS[a.tensors[name][0]] for a in wanted])
    for at, value in total.elements(name).items():
        terms = [part[at] for part in parts]
        bound = sum(map(abs, terms)) * (len(terms) + 2) * u + LEAST[dtype] + len(terms) * LEAST[total.reduce[name].upper()]
        assert abs(value - math.fsum(terms)) <= bound, (name, total.rank, at, value, terms)
    return wanted


def main(paths):
    files = [File(path) for path in paths]
    addends, sums = [f for f in files if f.kind == "addend"], [f for f in files if f.kind == "sum"]
    world = math.prod(size for _, size in files[0].mesh)
    assert all(f.mesh == files[0].mesh and f.step == files[0].step for f in files)
    assert sorted(f.rank for f in sums) == list(range(world)), "each rank has its sums"
    most = max(len(judge(total, addends, name)) for total in sums for name in total.tensors)
    nonzero = sum(any(values(total.tensors[name])) for total in sums for name in total.tensors)
    covered = {name: set() for name in sums[0].shapes}
    for total in sums:
        for name in total.tensors:
            covered[name] |= set(total.box(name))
    for name, shape in sums[0].shapes.items():
        assert len(covered[name]) == math.prod(shape), f"{name}: the sums' parts are not the whole"
    names = " ".join(f"{name}={size}" for name, size in files[0].mesh)
    print(f"{names}: {sum(len(s.tensors) for s in sums)} sums of up to {most} addends, {nonzero} not zero")


if __name__ == "__main__":
    main(sys.argv[1:])
