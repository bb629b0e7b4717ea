"""Write dumps of a step (audit/docs/dumps.md) with Python's standard library alone. A job is a mesh and parameters; a
function of the addends gives what each rank's optimizer gets, so that any mistake can be made.
"""
import fnmatch
import itertools
import json
import math
import os
import random
import struct

MASK = (1 << 64) - 1


def bf16(value):
    """Return the number rounded to the dtype, to nearest even."""
    bits = struct.unpack("<I", struct.pack("<f", value))[0]
    bits += 0x7FFF + (bits >> 16 & 1)
    return struct.unpack("<f", struct.pack("<I", bits & 0xFFFF0000))[0]


def pack(dtype, values):
    if dtype == "BF16":
        return b"".join(struct.pack("<f", bf16(v))[2:] for v in values)
    return struct.pack(f"<{len(values)}{ {'F64': 'd', 'F32': 'f', 'F16': 'e'}[dtype] }", *values)


def rounded(dtype, values):
    if dtype == "BF16":
        return [bf16(v) for v in values]
    code = f"<{len(values)}{ {'F64': 'd', 'F32': 'f', 'F16': 'e'}[dtype] }"
    return list(struct.unpack(code, struct.pack(code, *values)))


def write(path, metadata, tensors):
    """Write a file; `tensors`: name -> (dtype, shape, values)."""
    header, body = {"__metadata__": metadata}, b""
    for name, (dtype, shape, values) in tensors.items():
        data = pack(dtype, values)
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + body)


def sample(name, numel, k_all):
    """Return the flat indices of the sampled elements."""
    if numel <= k_all:
        return list(range(numel))
    h = 0xCBF29CE484222325
    for byte in name.encode():
        h = (h ^ byte) * 0x100000001B3 & MASK
    out = []
    for k in range(k_all):
        first, last = k * numel // k_all, (k + 1) * numel // k_all
        z = h + k + 0x9E3779B97F4A7C15 & MASK
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & MASK
        z = (z ^ z >> 27) * 0x94D049BB133111EB & MASK
        out.append(first + (z ^ z >> 31) % (last - first))
    return out


class Param:
    def __init__(self, name, shape, types="", held=None, dtype="F32", sum_dtype=None, expect=None):
        """Describe a parameter; `held`: function from a place (axis -> position) to the box of the sum, or None: the
        types give the box.
        """
        self.name, self.shape, self.types, self.held = name, list(shape), types, held
        self.dtype, self.sum_dtype, self.expect = dtype, sum_dtype or dtype, expect
        self.type = dict(word.split("=") for word in types.split())

    def numel(self):
        return math.prod(self.shape)


def indices(shape, box):
    """Return the flat indices of a box, row-major."""
    strides = [math.prod(shape[d + 1:]) for d in range(len(shape))]
    ranges = [range(f, f + c) for f, c in zip(*box)]
    return [sum(i * s for i, s in zip(place, strides)) for place in itertools.product(*ranges)]


class Job:
    def __init__(self, mesh, params, microbatches=1, expect=1.0, step=3, sample=None, seed=1):
        self.mesh = mesh
        self.axes = [(w.split("=")[0], int(w.split("=")[1])) for w in mesh.split()]
        self.world = math.prod(n for _, n in self.axes)
        self.params, self.microbatches, self.expect, self.step, self.sample = params, microbatches, expect, step, sample
        self.random = random.Random(seed)
        self.addends = {}  # (rank, microbatch, name) -> values of the whole parameter, zero outside the rank's part
        for param in params:
            for rank in range(self.world):
                for m in range(microbatches):
                    values = [0.0] * param.numel()
                    for i in indices(param.shape, self.own_box(param, rank)):
                        values[i] = rounded(param.dtype, [self.random.gauss(0, 1)])[0]
                    self.addends[rank, m, param.name] = values
        for param in params:  # on an I axis all ranks have the same addend
            for rank in range(self.world):
                first = self.rank_at({**self.place(rank), **{a: 0 for a, t in param.type.items() if t == "I"}})
                for m in range(microbatches):
                    self.addends[rank, m, param.name] = self.addends[first, m, param.name]

    def place(self, rank):
        place = {}
        for name, size in reversed(self.axes):
            place[name] = rank % size
            rank //= size
        return place

    def rank_at(self, place):
        rank = 0
        for name, size in self.axes:
            rank = rank * size + place[name]
        return rank

    def addend_dtype(self, param, rank):
        return param.dtype

    def own_box(self, param, rank):
        """Return the part that the types give: floor cuts, slower axes outside."""
        box = [[0] * len(param.shape), list(param.shape)]
        for name, size in self.axes:
            if param.type.get(name, "R")[0] == "S":
                d, i, n = int(param.type[name][1:]), self.place(rank)[name], box[1][int(param.type[name][1:])]
                box[0][d] += i * n // size
                box[1][d] = (i + 1) * n // size - i * n // size
        return box

    def sum_box(self, param, rank):
        return param.held(self.place(rank)) if param.held else self.own_box(param, rank)

    def group(self, param, rank):
        """Return the ranks whose addends belong in this rank's sum."""
        own = self.place(rank)
        return [r for r in range(self.world)
                if all(self.place(r)[a] == own[a] for a, _ in self.axes if param.type.get(a, "R") != "R")]

    def right(self, param, rank):
        return {(r, m): 1.0 for r in self.group(param, rank) for m in range(self.microbatches)}

    def save(self, folder, counts=None, extra=None, skip=None, after=None, metadata=None):
        """Write the dump. counts(param, rank) -> {(rank, microbatch): count}, or None for what is right; extra(kind,
        rank, m) -> more metadata; skip(kind, rank, m, name): the tensor is left out; after(param, rank, values): the
        sum's values as they are written.
        """
        os.makedirs(folder, exist_ok=True)
        common = {"addend.version": "1", "addend.mesh": self.mesh, "addend.step": str(self.step),
                  "addend.shapes": json.dumps({p.name: p.shape for p in self.params}),
                  "addend.types": json.dumps({p.name: p.types for p in self.params if p.types})}
        if self.sample:
            common["addend.sample"] = str(self.sample)
        expect = {"*": self.expect, **{p.name: p.expect for p in self.params if p.expect}}
        for rank in range(self.world):
            for m in range(self.microbatches):
                tensors = {p.name: self.tensor(p, self.addend_dtype(p, rank), self.addends[rank, m, p.name], self.own_box(p, rank))
                           for p in self.params if not (skip and skip("addend", rank, m, p.name))}
                own = {"addend.kind": "addend", "addend.rank": str(rank)}
                if self.microbatches > 1:
                    own["addend.microbatch"] = str(m)
                own.update(extra("addend", rank, m) if extra else {})
                write(f"{folder}/rank{rank:05}.addend.m{m}.safetensors", {**common, **own, **(metadata or {})}, tensors)
            tensors, held = {}, {}
            for p in self.params:
                if skip and skip("sum", rank, None, p.name):
                    continue
                box = self.sum_box(p, rank)
                values = self.sum_of(p, rank, (counts and counts(p, rank)) or self.right(p, rank))
                values = after(p, rank, values) if after else values
                tensors[p.name] = self.tensor(p, p.sum_dtype, values, box)
                held[p.name] = box
            own = {"addend.kind": "sum", "addend.rank": str(rank), "addend.expect": json.dumps(expect),
                   "addend.held": json.dumps(held)}
            own.update(extra("sum", rank, None) if extra else {})
            write(f"{folder}/rank{rank:05}.sum.safetensors", {**common, **own, **(metadata or {})}, tensors)

    def sum_of(self, param, rank, counts):
        expect = param.expect or self.expect
        parts = [(count, self.addends[r, m, param.name]) for (r, m), count in counts.items()]
        return [expect * sum(count * values[i] for count, values in parts) for i in range(param.numel())]

    def tensor(self, param, dtype, values, box):
        inside = indices(param.shape, box)
        if not self.sample or param.numel() <= self.sample:
            return dtype, box[1], [values[i] for i in inside]
        inside = set(inside)
        chosen = [values[i] for i in sample(param.name, param.numel(), self.sample) if i in inside]
        return dtype, [len(chosen)], chosen


def expect_of(patterns, name):
    value = 1.0
    for pattern, factor in patterns.items():
        if fnmatch.fnmatchcase(name, pattern):
            value = factor
    return value
