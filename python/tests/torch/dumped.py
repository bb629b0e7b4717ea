"""Read a dumped step as audit/docs/dumps.md describes it, and fit how often each sum counts each rank's addend of each
microbatch. Written independently of the package and of `addend diff`, and slow: for tests of dumps.
"""

import json
import os
import struct

import numpy

DTYPES = {"F64": numpy.float64, "F32": numpy.float32, "F16": numpy.float16}
MASK = (1 << 64) - 1


def read(path):
    with open(path, "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        data = file.read()
    metadata, tensors = header.pop("__metadata__"), {}
    for name, entry in header.items():
        part = data[slice(*entry["data_offsets"])]
        if entry["dtype"] == "BF16":
            values = (numpy.frombuffer(part, numpy.uint16).astype(numpy.uint32) << 16).view(numpy.float32)
        else:
            values = numpy.frombuffer(part, DTYPES[entry["dtype"]])
        tensors[name] = values.astype(numpy.float64)
    return metadata, tensors


def mix(z):
    z = (z + 0x9E3779B97F4A7C15) & MASK
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & MASK
    z = (z ^ z >> 27) * 0x94D049BB133111EB & MASK
    return z ^ z >> 31


def sample(name, numel, count):
    if count is None or numel <= count:
        return list(range(numel))
    h = 0xCBF29CE484222325
    for byte in name.encode():
        h = (h ^ byte) * 0x100000001B3 & MASK
    bounds = [k * numel // count for k in range(count + 1)]
    return [bounds[k] + mix(h + k & MASK) % (bounds[k + 1] - bounds[k]) for k in range(count)]


def _words(text):
    return dict(word.split("=") for word in text.split())


class Part:
    """One rank's tensor: its values by flat index in the whole."""

    def __init__(self, name, metadata, values):
        shape = json.loads(metadata["addend.shapes"])[name]
        first, count = json.loads(metadata["addend.held"])[name]
        wanted = sample(
            name, int(numpy.prod(shape)), int(metadata["addend.sample"]) if "addend.sample" in metadata else None
        )
        inside = [
            flat
            for flat in wanted
            if all(f <= i < f + c for i, f, c in zip(numpy.unravel_index(flat, shape), first, count))
        ]
        assert len(inside) == len(values), (name, len(inside), len(values), first, count)
        self.box, self.values = (tuple(first), tuple(count)), dict(zip(inside, values))
        self.coord = {axis: int(at) for axis, at in _words(metadata["addend.coord"]).items()}
        self.rank, self.microbatch = int(metadata["addend.rank"]), int(metadata.get("addend.microbatch", -1))


class Step:
    def __init__(self, folder):
        self.metadata, self.addends, self.sums = {}, {}, {}
        for file in sorted(os.listdir(folder)):
            metadata, tensors = read(os.path.join(folder, file))
            kept = self.addends if metadata["addend.kind"] == "addend" else self.sums
            for name, values in tensors.items():
                kept.setdefault(name, []).append(Part(name, metadata, values))
            self.metadata[file] = metadata
        self.last = metadata  # metadata of a sum
        self.types = {name: _words(text) for name, text in json.loads(metadata["addend.types"]).items()}

    def expect(self, name):
        found = json.loads(self.last["addend.expect"])
        return found[name] if isinstance(found, dict) else found

    def wanted(self, name, part):
        """Return the addends that belong in one part of the sum."""
        types = self.types[name]
        return [
            a
            for a in self.addends.get(name, [])
            if all(types[axis] == "R" or a.coord[axis] == at for axis, at in part.coord.items())
        ]

    def summed(self, name, part):
        """Return {flat index: sum}, adding all parts if the sum is still partial."""
        partial = json.loads(self.last.get("addend.partial", "{}")).get(name, "").split()
        parts = [
            p
            for p in self.sums[name]
            if p.box == part.box and all(axis in partial or p.coord[axis] == at for axis, at in part.coord.items())
        ]
        return {flat: sum(p.values[flat] for p in parts) for flat in part.values}

    def residual(self, name):
        """Return the worst |sum - expect x sum of wanted addends|, relative to the sum's largest element."""
        worst, top = 0, 1e-300
        for part in self.sums[name]:
            for flat, s in self.summed(name, part).items():
                a = sum(a.values[flat] for a in self.wanted(name, part) if flat in a.values)
                worst, top = max(worst, abs(s - self.expect(name) * a)), max(top, abs(s))
        return worst / top

    def counts(self, name):
        """Return {(rank, microbatch): count, divided by the expected one}, from the first part of the sum with enough
        elements.
        """
        for part in self.sums[name]:
            wanted, flats = self.wanted(name, part), list(part.values)
            if len(flats) >= 2 * len(wanted) > 0:
                columns = numpy.array([[a.values.get(flat, 0) for a in wanted] for flat in flats])
                found = numpy.linalg.lstsq(columns, numpy.array(list(self.summed(name, part).values())), rcond=None)[0]
                return {(a.rank, a.microbatch): c / self.expect(name) for a, c in zip(wanted, found)}
        return {}
