"""Test each threshold of `addend diff` from both sides: dumps whose error is just below what audit/docs/dumps.md and the
sources allow, and just above. Called by diff_edges.sh with the program and an empty folder.
"""
import json
import math
import os
import shutil
import struct
import subprocess
import sys

sys.path.insert(0, os.path.dirname(__file__))
from dumps import Job, Param, rounded, sample, write  # noqa: E402

program, work = sys.argv[1:3]
ROWS = 4096  # elements that are judged in one block
U = {"F64": 2.0**-53, "F32": 2.0**-24, "F16": 2.0**-11, "BF16": 2.0**-8}
done = 0


def reported(job, *arguments, **how):
    """Return the document of a dump of this job."""
    path = os.path.join(work, "dump")
    shutil.rmtree(path, ignore_errors=True)
    job.save(path, **how)
    result = subprocess.run([program, "diff", "--json", path, *arguments], capture_output=True, text=True, timeout=60)
    assert result.returncode in (0, 1), (result.returncode, result.stderr)
    document = json.loads(result.stdout)
    assert document["pass"] == (result.returncode == 0)
    global done
    done += 1
    return document


def param(document, name="w"):
    return next(p for p in document["params"] if p["name"] == name)


def kind(job, name="w", **how):
    return param(reported(job, **how), name)["kind"]


def both(what, allowed, wrong, judge, right="right", little=0.01):
    """Check both sides of a threshold; `judge(off)` gives the verdict on a dump that is wrong by `off`."""
    for sign in 1, -1:
        within, beyond = judge(sign * allowed * (1 - little)), judge(sign * allowed * (1 + little))
        assert within == right and beyond == wrong, (what, sign, within, beyond)


# ---- a sum against its addends, element by element ----

# The bound of an element, relative to the addends' absolute sum: (n + 1) roundings of the dtype that adds, one of the
# dtype that holds for each microbatch, and (n + 2) of f64. The sums are f64, so that their error can be chosen; f32
# addends are added in f32, unless the dump says otherwise.
def bound_of(n, microbatches, reduce, held="F64"):
    return (n + 1) * U[reduce] + microbatches * U[held] + (n + 2) * U["F64"]


def off_at(element, part, job):
    """Change an element of the sum by this part of its addends' absolute sum."""
    def after(p, rank, values):
        size = sum(abs(job.addends[r, m, p.name][element]) for r, m in job.right(p, rank))
        values[element] += part * size * (p.expect or job.expect)
        return values
    return after


for microbatches, dtype, reduce, expect in (1, "F32", None, 1.0), (3, "F32", None, 1 / 6), (1, "F16", None, 1.0), (2, "F64", None, -0.5), \
        (1, "F32", "bf16", 1.0), (1, "F64", "f16", 0.25):
    job = Job("dp=3", [Param("w", [40], dtype=dtype, sum_dtype="F64")], microbatches=microbatches, expect=expect)
    says = lambda k, rank, m: {"addend.reduce": reduce} if reduce and k == "sum" else {}  # noqa: B023
    n = 3 * microbatches
    bound = bound_of(n, microbatches, reduce.upper() if reduce else dtype)
    for element in 0, 17, 39:
        judge = lambda part: "right" if kind(job, after=off_at(element, part, job), extra=says) == "right" else "wrong"  # noqa: B023
        # An f64 sum is rounded itself, to a tenth of such a bound.
        both(f"a sum of {dtype} at {element}", bound, "wrong", judge, little=0.15 if dtype == "F64" and not reduce else 0.01)
# Sums held in f32 are rounded once more for each microbatch; where addends cancel, the sum's own rounding is small.
job = Job("dp=3", [Param("w", [40])], microbatches=2)
for m in range(2):
    for i in range(40):
        large = rounded("F32", [1000 + i / 7 + m])[0]
        small = rounded("F32", [0.001 * (i + m + 1)])[0]
        job.addends[0, m, "w"][i], job.addends[1, m, "w"][i], job.addends[2, m, "w"][i] = large, -large, small
both("a sum in f32", bound_of(6, 2, "F32", "F32"), "wrong",
     lambda part: "right" if kind(job, after=off_at(20, part, job)) == "right" else "wrong")
# The wrong element is in the first, second or last block of rows, also at its end.
blocks = Job("dp=2", [Param("w", [2 * ROWS + 3], dtype="F32", sum_dtype="F64")])
for element in 0, ROWS - 1, ROWS, 2 * ROWS - 1, 2 * ROWS, 2 * ROWS + 2:
    for part, wanted in (0.99, "right"), (1.01, "wrong"):
        found = kind(blocks, after=off_at(element, part * bound_of(2, 1, "F32"), blocks))
        assert (found == "right") == (wanted == "right"), (element, part, found)
# Where all addends are zero, a sum may be off by one smallest f16 number (2^-24) for each rounding.
tiny = Job("dp=2", [Param("w", [5], dtype="F16")])
for r in range(2):
    tiny.addends[r, 0, "w"] = [0.0, 1.0, 2.0, 0.0, 3.0 + r]
for steps, wanted in (3, "right"), (4, "wrong"):
    put = lambda p, rank, values: [steps * 2.0**-24 if i == 3 else v for i, v in enumerate(values)]  # noqa: B023
    assert (kind(tiny, after=put) == "right") == (wanted == "right"), steps
# A sum that overflows in f64 is not right, whatever follows it.
huge = Job("dp=2", [Param("w", [6], dtype="F64")])
for element in 0, 3, 5:
    for r in range(2):
        huge.addends[r, 0, "w"] = [1.7e308 if i == element else 1.0 + r + i for i in range(6)]
    cut = lambda p, rank, values: [min(v, 1e308) for v in values]
    assert kind(huge, after=cut) != "right", element

# ---- copies ----

# Two ranks do the same work, and each sum is right by its own addends: copies may differ by 64 times a sum's bound,
# relative to the largest element.
apart = Job("dp=2 tp=2", [Param("w", [30], "tp=I", sum_dtype="F64")])
bound = 64 * bound_of(2, 1, "F32")
largest = max(abs(sum(apart.addends[r, 0, "w"][i] for r in (0, 2))) for i in range(30))


def copies(element, part):
    """The addend of rank 1, and so the sum of the ranks at its place on tp, is wrong by this part of the largest
    element.
    """
    other = Job("dp=2 tp=2", [Param("w", [30], "tp=I", dtype="F32", sum_dtype="F64")])
    kept = list(other.addends[1, 0, "w"])
    kept[element] += part * largest
    other.addends[1, 0, "w"] = rounded("F32", kept)
    return kind(other)


for element in 0, 14, 29:
    both("copies", bound, "own_only", lambda part: copies(element, part), right="replicas_differ", little=0.03)  # noqa: B023
# The very bits of a sum are another's where its members are others: by those it is wrong.
merged = Job("dp=2 tp=2", [Param("w", [30], "tp=I")])
for r in 1, 3:
    merged.addends[r, 0, "w"] = rounded("F32", [merged.random.gauss(0, 1) for _ in range(30)])
same = merged.sum_of(merged.params[0], 0, merged.right(merged.params[0], 0))
assert param(reported(merged))["kind"] == "own_only"
document = reported(merged, after=lambda p, rank, values: same)
assert param(document)["kind"] != "right" and not document["pass"], param(document)["text"]
assert set(param(document)["ranks"]) == {1, 3}, param(document)

# ---- small factors ----

# A loss scale that was divided out twice leaves all counts near zero, which is no missing addend beside them.
small = Job("dp=2", [Param("w", [30])])
for factor in 1 / 1024, 2.0**-16, 2.0**-20:
    found = param(reported(small, counts=lambda p, rank: dict.fromkeys([(0, 0), (1, 0)], factor)))
    assert found["kind"] == "factor" and "loss scale" in found["text"], found["text"]
    found = param(reported(small, counts=lambda p, rank: {(rank, 0): factor}))
    assert found["kind"] == "own_only" and abs(found["factor"] - factor) < 1e-3 * factor, found["text"]

# ---- axes whose type I is only assumed ----

# Ranks 0 to 3 are at dp=0 tp=0, dp=0 tp=1, dp=1 tp=0, dp=1 tp=1. The addends of tp=1 differ from those of tp=0 by a part
# of the largest element; the sum is `factor` times that over all ranks of `summed`.
ASSUMED = {"addend.assumed": json.dumps({"w": "tp"})}


def assumed(part, factor=1.0, metadata=ASSUMED, summed=(0, 1, 2, 3), dtype="F32"):
    job = Job("dp=2 tp=2", [Param("w", [30], "tp=I", dtype=dtype)])
    for r in 1, 3:
        kept = list(job.addends[r, 0, "w"])
        at = max(range(30), key=lambda i: abs(kept[i]))
        kept[at] -= part * kept[at]
        job.addends[r, 0, "w"] = rounded(dtype, kept)
    ranks = lambda rank: summed if len(summed) == 4 else [r for r in range(4) if r % 2 == rank % 2]
    return reported(job, counts=lambda p, rank: {(r, 0): factor for r in ranks(rank)}, metadata=metadata)


def answers(part, **how):
    document = assumed(part, **how)
    found = param(document)
    return found["verdict"], found["types"], bool(document["messages"]), found["text"]


# Addends that differ by more than 1/16 of the largest element are parts of a gradient, and their sum is right; by less,
# ranks may have done the same work, in a narrow dtype or without difference, and the verdict is "cannot tell".
RIGHT = ("right", "dp=R tp=R", True)
assert answers(1 / 16 + 1e-3)[:3] == RIGHT and answers(0.9)[:3] == RIGHT, answers(0.9)
for part in 0, 1e-6, 1 / 16 - 1e-3:
    verdict, types, _, text = answers(part)
    assert verdict == "cannot_tell" and "(R)" in text and "(I)" in text and "2 times" in text, (part, text)
# The mean of the same addends is each of them; the mean of others may be meant or not; no other factor is explained.
assert answers(0, factor=0.5)[0] == "right" and answers(1e-6, factor=0.5)[0] == "right"
assert answers(0.9, factor=0.5)[0] == "cannot_tell" and "1/2" in answers(0.9, factor=0.5)[3]
assert answers(0.9, factor=0.7)[0] == "wrong" and answers(0, factor=3.0)[0] == "wrong"
# Nobody sums over tp: wrong where addends differ, right where they are the same.
assert answers(0.9, summed=())[0] == "wrong" and "no type was given" in answers(0.9, summed=())[3]
assert answers(0, summed=())[:2] == ("right", "dp=R tp=I")
# A type that was given stays.
assert answers(0.9, metadata={})[0] == "wrong" and answers(0, metadata={})[0] == "wrong"
assert answers(0.9, metadata={}, summed=())[0] == "wrong"
# An axis that is no axis of the mesh, and a value that is no text, are refused.
for value in '{"w": "pp"}', '{"w": 1}', '["w"]':
    job = Job("dp=2 tp=2", [Param("w", [30], "tp=I")])
    shutil.rmtree(os.path.join(work, "dump"))
    job.save(os.path.join(work, "dump"), metadata={"addend.assumed": value})
    refused = subprocess.run([program, "diff", os.path.join(work, "dump")], capture_output=True, text=True, timeout=60)
    assert refused.returncode == 2 and "addend.assumed" in refused.stderr, refused

# The same bytes are other numbers in another dtype.
class Twofold(Job):
    def tensor(self, param, dtype, values, box):
        if dtype != "F16" or self.rank != 1:
            return super().tensor(param, dtype, values, box)
        bits = struct.unpack(f"<{len(values)}H", struct.pack(f"<{len(values)}e", *values))
        return "BF16", box[1], [struct.unpack("<f", struct.pack("<I", b << 16))[0] for b in bits]


twofold = Twofold("dp=3", [Param("w", [30], sum_dtype="F16")])
twofold.rank = None


def note_rank(p, rank, values):
    twofold.rank = rank
    return values


assert set(param(reported(twofold, after=note_rank))["ranks"]) == {1}, param(reported(twofold, after=note_rank))

# ---- norms ----

def squares_of(job, p):
    """Return the sum of squares of a parameter that no axis cuts, as far as its elements are in a dump."""
    values = rounded("F32", job.sum_of(p, 0, job.right(p, 0)))
    chosen = sample(p.name, p.numel(), job.sample) if job.sample and p.numel() > job.sample else range(p.numel())
    return [values[i] ** 2 for i in chosen]


def norm_of(job, square, off=()):
    """`off`: by which part each rank's norm is wrong"""
    says = lambda k, rank, m: {"addend.norm": repr(math.sqrt(square) * (1 + dict(off).get(rank, 0)))} if k == "sum" else {}
    return reported(job, extra=says)["norm"]


def words(norm):
    return norm["text"].split(": ", 1)[1] if ": " in norm["text"] else "so"


normed = Job("dp=2 tp=2", [Param("w", [30], "tp=I"), Param("v", [24]), Param("c", [9], "tp=I")])
own = {p.name: sum(squares_of(normed, p)) for p in normed.params}
total = sum(own.values())
both("a norm's square", 1e-4, False, lambda off: norm_of(normed, total * (1 + off))["pass"], right=True)
for rank in range(1, 4):
    both("a rank's norm", 1e-6, False, lambda off: norm_of(normed, total, {rank: off})["pass"], right=True)  # noqa: B023
assert f"on rank {rank}" in norm_of(normed, total, {rank: 1.01e-6})["text"]
# Copies that were counted are found by their squares in the norm; a parameter by what it adds, up to once for each
# rank.
twice = total + own["w"] + own["c"] + own["v"]
both("copies' square", 1e-4, False, lambda off: "each replica along dp" in norm_of(normed, twice * (1 + off))["text"], right=True)
for count in 0, 2, 4:
    said = f"`c` was counted {count} times"
    both(said, 1e-4 * total, False, lambda off: said in norm_of(normed, total + (count - 1) * own["c"] + off)["text"], right=True)  # noqa: B023
for count in 5, 6:
    assert "`c`" not in norm_of(normed, total + (count - 1) * own["c"])["text"]
# A parameter whose square is within the norm's error is not named; one of twice that is.
for part, named in (0.98, False), (1.03, True):
    faint = Job("dp=2", [Param("w", [50]), Param("s", [7])])
    square = sum(squares_of(faint, faint.params[0]))
    scale = math.sqrt(part * 2e-4 * square / (1 - 2e-4) / sum(squares_of(faint, faint.params[1])))
    for r in range(2):
        faint.addends[r, 0, "s"] = rounded("F32", [scale * v for v in faint.addends[r, 0, "s"]])
    small = sum(squares_of(faint, faint.params[1]))
    norm = norm_of(faint, square + small + small)
    assert not norm["pass"] and ("`s` was counted 2 times" in norm["text"]) == named, (part, norm["text"])
# With a sample, the norm is known within six standard deviations of what the sample leaves open.
few = Job("dp=2", [Param("w", [500]), Param("v", [200, 3]), Param("all", [20])], sample=40)
square, variance = 0, 0
for p in few.params:
    own = squares_of(few, p)
    scale = p.numel() / len(own)
    square += scale * sum(own)
    variance += scale**2 * (sum(v**2 for v in own) - sum(own) ** 2 / len(own)) if scale > 1 else 0
both("a sample's norm", 1e-4 * square + 6 * math.sqrt(variance), False, lambda off: norm_of(few, square + off)["pass"], right=True)

# ---- counts ----


def times(job, factor, names=("w",)):
    return lambda p, rank: {key: factor for key in job.right(p, rank)} if p.name in names else None


job = Job("dp=4 tp=3", [Param("w", [60], sum_dtype="F64"), Param("b", [5], sum_dtype="F64")])
both("a group's inverse", 1e-4, "factor", lambda off: kind(job, counts=times(job, 1 / (4 * (1 + off)))), right="averaged")
both("a group's size", 1e-4, "factor", lambda off: kind(job, counts=times(job, 4 * (1 + off))), right="doubled")
both("two", 1e-4, "factor", lambda off: kind(job, counts=times(job, 2 + off)), right="doubled")
stepped = Job("dp=2", [Param("w", [60], sum_dtype="F64")], microbatches=5)
both("microbatches", 1e-4, "factor", lambda off: kind(stepped, counts=times(stepped, 1 / (5 * (1 + off)))), right="averaged")
# Whether one division was left out follows from the expected count.
for off, said in (0, True), (0.9e-4, True), (-0.9e-4, True), (1.1e-4, False), (-1.1e-4, False):
    mean = Job("dp=4 tp=3", [Param("w", [60], sum_dtype="F64")], expect=(1 + off) / 12)
    text = param(reported(mean, counts=times(mean, 12)))["text"]
    assert text.startswith("not divided over dp,tp") == said and "12 times" in text, (off, text)
both("factors of two parameters", 1e-4, True, right=False, judge=lambda off: any(
    "factor differs" in m for m in reported(job, counts=lambda p, rank: times(job, 0.7 * (1 + off if p.name == "b" else 1), "wb")(p, rank))["messages"]))
# A negative count is no mistake of a sum: below -1/2, the sum is none of these addends.
for factor, wanted in (-0.499, "factor"), (-0.501, "unexplained"):
    assert kind(job, "b", counts=times(job, factor, "b")) == wanted, factor
# An addend that is not counted rounds nothing: a rank's own addend alone has the bound of one addend.
alone = Job("dp=6", [Param("w", [3], sum_dtype="F64")])
for part, wanted in (0.98, "own_only"), (1.02, "other"):
    def nearly(p, rank, values):
        return [v + part * bound_of(1, 1, "F32") * abs(v) for v in values]  # noqa: B023
    found = kind(alone, counts=lambda p, rank: {(rank, 0): 1.0}, after=nearly)
    assert (found == "own_only") == (wanted == "own_only"), (part, found)
# One rank's addend counts four times, and every element is as wrong as rounding so many addends allows.
level = Job("dp=3", [Param("w", [2], dtype="F16", sum_dtype="F64")])
for r in range(3):
    level.addends[r, 0, "w"] = rounded("F16", [1 + r / 64, 1 - r * r / 50])
four = lambda p, rank: {(r, 0): 4.0 if r == 2 else 1.0 for r in range(3)}
for part, wanted in (0.98, "factor"), (1.02, "unexplained"):
    far = lambda p, rank, values: [v * (1 + part * bound_of(3, 1, "F16")) for v in values]  # noqa: B023
    found = param(reported(level, counts=four, after=far))
    assert found["kind"] == wanted and (found["ranks"] == [2]) == (part < 1), (part, found)
# The same with the smallest numbers of f16: one step for each rounding.
steps = Job("dp=3", [Param("w", [2], dtype="F16")])
for r, values in enumerate(((10, 22), (13, 9), (20, 20))):
    steps.addends[r, 0, "w"] = [v * 2.0**-24 for v in values]
for more, wanted in (4, "factor"), (5, "unexplained"):
    far = lambda p, rank, values: [values[0] + more * 2.0**-24, values[1] - more * 2.0**-24]  # noqa: B023
    found = param(reported(steps, counts=four, after=far))
    assert found["kind"] == wanted and (found["ranks"] == [2]) == (more < 5), (more, found)
# A dtype that is not narrower than the one that adds explains no difference.
plain = Job("dp=3", [Param("w", [3], sum_dtype="F64")])
text = param(reported(plain, after=off_at(1, bound_of(3, 1, "F32") + 0.5 * U["F32"], plain)))["text"]
assert "as if it was summed in f16 or bf16," in text, text
held = Job("dp=3", [Param("w", [3], dtype="F64")])
text = param(reported(held, after=off_at(1, bound_of(3, 1, "F32", "F32") * 0.9, held)))["text"]
assert "as if it was summed in f32, f16 or bf16," in text, text
# Fewer elements than addends: any one microbatch may be wrong, or all ranks at any one place of an axis.
three = Job("dp=2", [Param("w", [4])], microbatches=3)
for m in range(3):
    found = param(reported(three, counts=lambda p, rank: {(r, k): 2.0 if k == m else 1.0 for r, k in three.right(p, rank)}))  # noqa: B023
    assert found["kind"] == "factor" and found["counts"] == [[2 if k == m else 1 for k in range(3)]] * 2, found
places = Job("dp=3 tp=2", [Param("w", [4])])
for axis, size in ("dp", 3), ("tp", 2):
    for place in range(size):
        found = param(reported(places, counts=lambda p, rank: {k: 1.0 for k in places.right(p, rank) if places.place(k[0])[axis] != place}))  # noqa: B023
        assert found["kind"] == "missing" and found["axis"] == axis, found
        assert found["ranks"] == [r for r in range(6) if places.place(r)[axis] == place], found
# A single number is a multiple of any other: its possible causes are listed, up to nine.
for mesh, readings in ("dp=2 tp=2", 4), ("a=2 b=2 c=2 d=2", 9):
    one = Job(mesh, [Param("w", [1])])
    for r in range(one.world):
        one.addends[r, 0, "w"] = rounded("F32", [1 + r * r / 7])
    found = param(reported(one, counts=times(one, 0.7123)))
    assert len(found["possible_causes"]) == readings, found
    assert ("; or still others" in found["text"]) == (readings == 9), found["text"]
    assert len([r for r in found["possible_causes"] if r["text"] in found["text"]]) >= 2, found["text"]
# A rank's addend that is nearly missing: a count within 1/20 of a simple number counts as that number.
for left, wanted in (0.0495, "missing"), (-0.0495, "missing"), (0.0505, "rounding"), (-0.0505, "rounding"):
    hidden = Job("dp=6", [Param("w", [3], sum_dtype="F64")])
    for i in range(3):
        size = sum(abs(hidden.addends[r, 0, "w"][i]) for r in range(6))
        hidden.addends[4, 0, "w"][i] = rounded("F32", [3e-6 * size])[0]
    found = param(reported(hidden, counts=lambda p, rank: {(r, 0): left if r == 4 else 1.0 for r in range(6)}))  # noqa: B023
    assert found["kind"] == wanted and found["ranks"] == ([4] if wanted == "missing" else []), (left, found)
# Addends that a narrow dtype's rounding hides are found by their counts, if there are so many addends that the bound
# may hide one.
for ranks, numel, wanted in (10, 300, "right"), (11, 300, "missing"), (11, 20, "missing"), (11, 11, "right"):
    weak = Job(f"dp={ranks}", [Param("w", [numel], dtype="BF16")])
    weak.addends[7, 0, "w"] = rounded("BF16", [0.04 if i % 3 else -0.05 for i in range(numel)])
    for r in range(ranks):  # large enough everywhere that one addend is hidden
        weak.addends[r, 0, "w"] = rounded("BF16", [v + math.copysign(0.5, v) if r != 7 else v for v in weak.addends[r, 0, "w"]])
    found = param(reported(weak, counts=lambda p, rank: {(r, 0): 0.0 if r == 7 else 1.0 for r in range(ranks)}))  # noqa: B023
    assert found["kind"] == wanted and found["ranks"] == ([7] if wanted == "missing" else []), found
# A factor that gives the sum to its last digit is not rounding, however near to one it is.
near = Job("dp=3", [Param("w", [40], sum_dtype="F64")])
for factor in 1.00005, 0.99995:
    found = param(reported(near, counts=times(near, factor)))
    assert found["kind"] == "factor" and abs(found["factor"] - factor) < 1e-6, found
# Rounding in a dtype explains a difference if it is at most a quarter of the addends.
for ranks, wanted in (61, "rounding"), (62, "unexplained"):
    many = Job(f"dp={ranks}", [Param("w", [3], sum_dtype="F64")])
    assert kind(many, after=off_at(1, 0.2, many)) == wanted, ranks

# Each shard has fewer elements than there are addends; all shards together have more, or as many.
for rows, wanted in (6, "factor"), (4, "unexplained"):
    cut = Job("dp=4", [Param("w", [rows, 1], held=lambda place: [[min(rows, 2 * place["dp"]), 0], [max(0, min(2, rows - 2 * place["dp"])), 1]],  # noqa: B023
                             sum_dtype="F64")])
    assert kind(cut, counts=lambda p, rank: {(r, 0): 1 + 0.1 * r for r in range(4)}) == wanted, rows  # noqa: B023
# An addend of nothing has no count: it is not what the others' differ from.
idle = Job("dp=3", [Param("w", [40])])
idle.addends[1, 0, "w"] = [0.0] * 40
assert kind(idle, counts=times(idle, 1 / 3)) == "averaged"

# If no addend of a rank's own group is in its sum, the sum is "nothing".
gone = Job("dp=3", [Param("w", [40])])
found = param(reported(gone, skip=lambda k, rank, m, name: k == "addend" and rank == 1,
                   counts=lambda p, rank: {(r, 0): 0.0 if rank == 1 else 1.0 for r in (0, 2)}))
assert found["kind"] == "replicas_differ" and found["ranks"] == [1], found
# If several sets of ranks hold equal addends, the message names two sets and counts the others.
for sets, said in (2, None), (3, ", and so does 1 other set of ranks"), (4, ", and so do 2 other sets of ranks"):
    equal = Job(f"dp={2 * sets}", [Param("w", [40])])
    for r in range(1, 2 * sets, 2):
        equal.addends[r, 0, "w"] = equal.addends[r - 1, 0, "w"]
    text = param(reported(equal))["text"]
    assert text.count("hold the same addend") == 2, text
    assert said in text if said else "and so do" not in text, text

# ---- microbatches ----

# The last microbatch alone counts, or earlier ones were divided again: if one of the earlier ones differs from the
# others, it is neither.
third = 1 / 3
for counts in (0, 0, 0, 1), (third, third, third, 1), (0, 0, 1), (third, third, 1), (0, 1), (third, 1):
    steps = Job("dp=3", [Param("w", [60])], microbatches=len(counts))
    pattern = lambda given: lambda p, rank: {(r, m): given[m] for r, m in steps.right(p, rank)}  # noqa: B023
    alone = counts[0] == 0
    assert kind(steps, counts=pattern(counts)) == ("last_microbatch" if alone else "earlier_microbatches_divided"), counts
    for m in range(len(counts) - 1) if len(counts) > 2 else ():
        other = [0.5 if i == m else c for i, c in enumerate(counts)]
        assert kind(steps, counts=pattern(other)) not in ("last_microbatch", "earlier_microbatches_divided"), other

doubled = Job("dp=3", [Param("w", [60])], microbatches=3)  # nor if the last one itself is wrong
assert kind(doubled, counts=lambda p, rank: {(r, m): (third, third, 2)[m] for r, m in doubled.right(p, rank)}) == "factor"

# ---- a reference ----

model = Job("dp=3", [Param("w", [40]), Param("d", [40], dtype="F64"), Param("n", [40], dtype="BF16")])
truth = {p.name: ("F64", p.shape, rounded(p.dtype, model.sum_of(p, 0, model.right(p, 0)))) for p in model.params}
reference = os.path.join(work, "reference.safetensors")


def referred(name, values):
    write(reference, {}, {**truth, name: ("F64", [40], values)})
    return param(reported(model, "--reference", reference), name)["reference"]


# The bound is 1024 roundings of the narrower dtype, at least 1e-12 and at most 1/32, relative to the reference's
# largest element.
for name, bound, straight in ("w", 1024 * U["F32"], 1024 * U["F32"]), ("d", 1e-12, 1e-5), ("n", 1 / 32, 1 / 32):
    values = truth[name][2]
    largest = max(abs(v) for v in values)
    for at in [i for i in range(40) if abs(values[i]) < 0.9 * largest][::11]:
        moved = lambda off: [v + off * largest if i == at else v for i, v in enumerate(values)]  # noqa: B023
        both(f"a reference of {name}", bound, False, lambda off: referred(name, moved(off))["pass"], right=True)  # noqa: B023
    # Three times the sum and something else: a factor as long as what is left is within the bound, or within 1e-5.
    beside = [values[i ^ 1] * (-1) ** i for i in range(40)]
    turned = lambda part: [3 * v + 3 * math.tan(math.asin(part)) * b for v, b in zip(values, beside)]  # noqa: B023
    both(f"a factor to a reference of {name}", straight, "missing", right="a factor",
         judge=lambda part: {"missing": "missing"}.get(referred(name, turned(part))["cause"]["kind"], "a factor"))  # noqa: B023

# The reference is a dump itself, in which no rank has some elements.
half = Job("dp=2", [Param("w", [40], held=lambda place: [[20 * place["dp"]], [20]])])
half.sum_of = lambda p, rank, counts: truth["w"][2]
only_w = Job("dp=3", [Param("w", [40])])
only_w.addends = {key: values for key, values in model.addends.items() if key[2] == "w"}
other = os.path.join(work, "half")
half.save(other)
assert reported(only_w, "--reference", other)["pass"]
half.save(other, skip=lambda k, rank, m, name: k == "sum" and rank == 1)
missing = subprocess.run([program, "diff", os.path.join(work, "dump"), "--reference", other], capture_output=True, text=True, timeout=60)
assert missing.returncode == 2 and "20 elements are missing" in missing.stderr, missing

print(f"diff at its edges: {done} dumps judged")
