"""Test every verdict of `addend diff` on dumps that hold one mistake each; which forms a dump may have; and what is
refused. Called by diff.sh with the program and an empty folder.
"""
import itertools
import json
import math
import os
import random
import shutil
import subprocess
import sys

sys.path.insert(0, os.path.dirname(__file__))
from dumps import Job, Param, expect_of, indices, rounded, sample, write  # noqa: E402

program, work = sys.argv[1:3]
done = 0


def run(folder, *arguments):
    return subprocess.run([program, "diff", "--json", folder, *arguments], capture_output=True, text=True, timeout=60)


def judged(job, *arguments, status=1, folder="dump", **how):
    """Return the document of a dump of this job."""
    path = os.path.join(work, folder)
    shutil.rmtree(path, ignore_errors=True)
    job.save(path, **how)
    result = run(path, *arguments)
    assert result.returncode == status, (result.returncode, status, result.stdout[-3000:], result.stderr)
    document = json.loads(result.stdout)
    assert document["pass"] == (status == 0) and (document["verdict"] == "right") == (status == 0), document["verdict"]
    assert all(p["pass"] == (p["verdict"] == "right") for p in document["params"])
    global done
    done += 1
    return document


def param(document, name="w"):
    return next(p for p in document["params"] if p["name"] == name)


# every other kind of verdict is "wrong"
WORDS = {"right": "right", **dict.fromkeys(("identical_addends", "not_judged", "not_observed"), "cannot_tell")}


def verdict(document, kind, axis=None, ranks=(), factor=None, name="w", words=""):
    found = param(document, name)
    reported = found["kind"], found["axis"], found["ranks"], found["text"]
    assert found["kind"] == kind and found["axis"] == axis and found["ranks"] == list(ranks), reported
    assert factor is None or abs(found["factor"] - factor) < 1e-6, found["factor"]
    assert words in found["text"], reported
    assert found["verdict"] == WORDS.get(kind, "wrong"), found["verdict"]
    assert bool(causes_of(found)) == (found["verdict"] == "wrong"), found
    return found


def causes_of(found):
    return [found["cause"]] if found["cause"] else found["possible_causes"]


def causes(document, *reported, name="w", of=lambda found: found):
    """`told`: the axes of each possible cause, or its place if it has no axes."""
    found = of(param(document, name) if name else document)
    listed = causes_of(found)
    assert bool(found["cause"]) == (len(listed) == 1) and (not found["cause"] or found["possible_causes"] == []), found
    assert all(set(cause) == {"kind", "axes", "factor", "text", "place"} for cause in listed), listed
    assert [cause["axes"] or cause["place"] for cause in listed] == list(reported), listed
    return listed


def times(job, factor):
    return lambda p, rank: {key: factor for key in job.right(p, rank)}


def only(job, holds):
    """Return counts that are 1 where holds(place of the addend's rank, place of the sum's rank, microbatch)."""
    return lambda p, rank: {(r, m): 1.0 for r, m in job.right(p, rank) if holds(job.place(r), job.place(rank), m)}


def shard(axis, size, rows, width):
    """Return the part of a sum cut as PyTorch cuts: by ceil, with empty tails."""
    def held(place):
        each = -(-rows // size)
        first = min(rows, place[axis] * each)
        return [[first, 0], [min(each, rows - first), width]]
    return held


# Dumps of correct jobs, in every form, are judged right.
mesh = "pp=1 dp=3 tp=2"
cut = [Param("w", [5, 6], "tp=S0", held=None), Param("emb", [4, 9], "dp=R tp=S1", expect=1 / 3),
       Param("norm", [7], "tp=I"), Param("bias", [3], "tp=R"), Param("scalar", [], "tp=I"), Param("none", [0, 4])]
job = Job(mesh, cut, microbatches=2, expect=1 / 6)
document = judged(job, status=0)
assert document["world"] == 6 and document["mesh"] == mesh and document["microbatches"] == 2 and document["step"] == 3
assert document["dumped"] == {"addends": 12, "sums": 6, "reference": False} and document["messages"] == []
assert all(p["kind"] == "right" and p["counts"] is None and p["residual"] <= p["bound"] for p in document["params"])
assert param(document, "emb")["expect"] == 1 / 3 and param(document)["types"] == "pp=R dp=R tp=S0"
for dtype, sum_dtype in ("BF16", "BF16"), ("F32", "BF16"), ("F16", "F32"), ("F64", "F64"):
    judged(Job("dp=3 tp=2", [Param("w", [4, 5], "tp=S0", dtype=dtype, sum_dtype=sum_dtype)], microbatches=2), status=0)
# Sums that are reduce-scattered over the axis of their sum, cut by ceil: the last rank has no part.
fsdp = Job("dp=4", [Param("w", [5, 3], held=shard("dp", 4, 5, 3)), Param("b", [9])], expect=0.25)
judged(fsdp, status=0)
sampled = Job("dp=3 tp=2", [Param("w", [50, 20], "tp=S0", held=None), Param("v", [40, 30], held=shard("dp", 3, 40, 30)),
                            Param("small", [7]),
                            # The sample of 64 has some elements of a block of columns, with others between them.
                            Param("columns", [40, 30], held=lambda place: [[0, 10 * place["dp"]], [40, 10]])], sample=64)
document = judged(sampled, status=0)
assert param(document)["sampled"] == 64 and param(document)["numel"] == 1000 and param(document, "small")["sampled"] == 7
# A rank that did not use a parameter, and a rank that did not use one in one microbatch.
judged(Job("dp=3", [Param("w", [20])], microbatches=2), status=0, counts=None,
       skip=lambda kind, rank, m, name: False)
job = Job("dp=3", [Param("w", [20])])
judged(job, status=0, skip=lambda kind, rank, m, name: kind == "addend" and rank == 1,
       counts=lambda p, rank: {(0, 0): 1.0, (2, 0): 1.0})

# All sums are wrong by one factor.
mesh = "one=1 dp=3 tp=2"
w = [Param("w", [8, 5]), Param("b", [3])]
job = Job(mesh, w, expect=1.0)
found = verdict(judged(job, counts=times(job, 1 / 3)), "averaged", "dp", factor=1 / 3, words="1/3")
assert found["counts"] == [[1 / 3]] * 6, found["counts"]
verdict(judged(job, counts=times(job, 1 / 3)), "averaged", "dp", factor=1 / 3, name="b")
verdict(judged(job, counts=times(job, 1 / 6)), "averaged", "dp,tp", factor=1 / 6)
verdict(judged(job, counts=times(job, 2)), "doubled", "tp", factor=2)
verdict(judged(job, counts=times(job, 3)), "doubled", "dp", factor=3)
found = verdict(judged(job, counts=times(job, 0.7)), "factor", factor=0.7, words="no group's size")
assert abs(found["counts"][4][0] - 0.7) < 1e-6 and found["errors"][4][0] < 1e-6
verdict(judged(job, counts=times(job, 0)), "missing", factor=0)
mean = Job(mesh, w, expect=1 / 6)
verdict(judged(mean, counts=times(mean, 6)), "doubled", "dp,tp", factor=6, words="not divided")
verdict(judged(mean, counts=times(mean, 1 / 6)), "averaged", "dp,tp", factor=1 / 6)
document = judged(job, counts=lambda p, rank: times(job, 0.5)(p, rank) if p.name == "b" else None)
verdict(document, "right")
verdict(document, "averaged", "tp", name="b")
assert any("factor differs between parameters" in m for m in document["messages"])
# A factor does not distinguish axes of one size, or sets of them, whatever their order and whether they are summed over.
for names in itertools.permutations("a=2 b=2 c=4".split()):
    tied = Job(" ".join(names), [Param("w", [8, 5], "c=S0"), Param("b", [3], "c=I"), Param("d", [40])])
    a_b = ",".join(name[0] for name in names if name != "c=4")
    document = judged(tied, counts=times(tied, 1 / 4))
    for name in "w", "b", "d":
        found = verdict(document, "averaged", None, factor=1 / 4, name=name, words="every addend counts 1/4 of what is expected")
        assert found["text"].endswith(f"possible causes: averaged over c; averaged over {a_b}"), found["text"]
        for cause in causes(document, "c", a_b, name=name):
            assert cause["kind"] == "averaged" and cause["factor"] == 1 / 4 and cause["place"] is None, cause
    document = judged(tied, counts=times(tied, 4))
    verdict(document, "doubled", None, factor=4, words="4 times what is expected; possible causes: ")
    causes(document, "c", a_b)
    document = judged(tied, counts=times(tied, 1 / 2))
    causes(document, *a_b.split(","))
    listed = causes_of(param(judged(tied, counts=times(tied, 1 / 8))))
    assert sorted("".join(sorted(cause["axes"])) for cause in listed) == [",ac", ",bc"], listed
    causes(judged(tied, counts=times(tied, 1 / 16)), ",".join(name[0] for name in names))
# Sums that were divided by the number of microbatches as well.
stepped = Job("dp=4 tp=2", [Param("w", [40])], microbatches=4)
found = verdict(judged(stepped, counts=times(stepped, 1 / 4)), "averaged", None, factor=1 / 4, words="divided by the number of microbatches")
causes(judged(stepped, counts=times(stepped, 1 / 4)), "dp", "microbatches")
causes(judged(stepped, counts=times(stepped, 4)), "dp", "microbatches")
causes(judged(stepped, counts=times(stepped, 1 / 2)), "tp")
alone = Job("dp=3", [Param("w", [40])], microbatches=4)
verdict(judged(alone, counts=times(alone, 1 / 4)), "averaged", None, factor=1 / 4, words="divided by the number of microbatches: every addend")
three = Job("dp=3", w)
verdict(judged(three, counts=times(three, 2)), "doubled", factor=2)
# Narrow sums do not hide a factor from the fit: the bound of 48 bf16 addends is wider than many an addend.
narrow = Job("dp=48", [Param("w", [300], dtype="BF16")])
judged(narrow, status=0)
verdict(judged(narrow, counts=times(narrow, 1 / 48)), "averaged", "dp")
verdict(judged(narrow, counts=only(narrow, lambda a, s, m: a["dp"] != 7)), "missing", "dp", [7])

# Addends of some ranks are missing.
verdict(judged(job, counts=only(job, lambda a, s, m: a["dp"] != 1)), "missing", "dp", [2, 3], 0, words="ranks 2 and 3")
verdict(judged(job, counts=only(job, lambda a, s, m: a["dp"] != 1)), "missing", "dp", [2, 3], 0, name="b")
verdict(judged(job, counts=only(job, lambda a, s, m: (a["dp"], a["tp"]) != (2, 1))), "missing", None, [5], 0)
verdict(judged(job, counts=only(job, lambda a, s, m: (a["dp"], a["tp"]) != (2, 1))), "missing", None, [5], 0, name="b")
# Each part has fewer elements than there are addends; all parts together have enough.
shards = Job("dp=8", [Param("w", [16, 2], held=shard("dp", 8, 16, 2))])
verdict(judged(shards, counts=only(shards, lambda a, s, m: a["dp"] not in (2, 5))), "missing", "dp", [2, 5], 0)
# One shard is wrong, or some: the verdict names the ranks that hold it.
shard_of = lambda job, ranks, factor: lambda p, rank: times(job, factor)(p, rank) if rank in ranks else None
document = judged(fsdp, counts=shard_of(fsdp, [1], 2))
verdict(document, "doubled", None, [1], 2, words="2 times what is expected; in the shard of rank 1 only")
assert param(document, "b")["kind"] == "replicas_differ" and document["messages"] == []
verdict(judged(shards, counts=shard_of(shards, [2, 6], 2)), "doubled", None, [2, 6], 2, words="in the shard of ranks 2 and 6 only")
verdict(judged(shards, counts=shard_of(shards, [5], 1 / 8)), "averaged", "dp", [5], 1 / 8, words="in the shard of rank 5 only")
verdict(judged(shards, counts=shard_of(shards, [3], 0)), "missing", None, [3], 0, words="in the shard of rank 3 only")
both = lambda p, rank: times(shards, {3: 2, 4: 3}.get(rank, 1))(p, rank)
verdict(judged(shards, counts=both), "doubled", None, [3], 2, words="in the shard of rank 3, and in others something else")
# `ranks` says which addends are wrong, and the text in which shard.
lost = lambda p, rank: {key: 1.0 for key in fsdp.right(p, rank) if rank != 0 or key[0] != 2}
verdict(judged(fsdp, counts=lost), "missing", "dp", [2], 0, words="addends of rank 2 are not in the sum; in the shard of rank 0 only")
two = Job("dp=3 tp=2", [Param("w", [8, 5], "tp=S0")])
# A sum over tp, where nothing is summed, is no other number than a sum that was added to itself.
verdict(judged(two, counts=shard_of(two, [1, 3, 5], 2)), "doubled", None, [1, 3, 5], 2, words="summed, or not divided, over tp; doubled; in the shard of ranks 1, 3 and 5 only")
own_shard = lambda p, rank: {(r, 0): 1.0 for r in range(4) if r == rank or rank != 1}
verdict(judged(fsdp, counts=own_shard), "own_only", "dp", [1], 1, words="in the shard of rank 1 only")
own_copy = lambda p, rank: {(rank, 0): 1.0} if rank == 3 else None
verdict(judged(job, counts=own_copy), "own_only", "dp,tp", [3], 1, words="in the copy of rank 3 only")
more = lambda p, rank: {key: 2.0 if key[0] == 4 else 1.0 for key in job.right(p, rank)}
verdict(judged(job, counts=more), "doubled", None, [4], 2)
less = lambda p, rank: {key: 0.25 if key[0] == 4 else 1.0 for key in job.right(p, rank)}
verdict(judged(job, counts=less), "factor", None, [4], 0.25)
half = lambda p, rank: {key: 0.5 for key in job.right(p, rank) if key[0] != 0}
verdict(judged(job, counts=half), "missing", None, [0], 0.5, words="the others count 0.5 times")
odd = lambda p, rank: {key: 1 + 0.1 * key[0] for key in job.right(p, rank)}
verdict(judged(job, counts=odd), "factor", None, [], words="from 1 to 1.5")

# Sums that were not summed over some axes.
own = lambda a, s, m: a == s
verdict(judged(job, counts=only(job, own)), "own_only", "dp,tp", factor=1)
verdict(judged(job, counts=only(job, own)), "own_only", "dp,tp", factor=1, name="b")
verdict(judged(job, counts=only(job, lambda a, s, m: a["tp"] == s["tp"])), "partial", "tp", words="not summed over tp")
verdict(judged(job, counts=only(job, lambda a, s, m: a["dp"] == s["dp"])), "partial", "dp")
verdict(judged(fsdp, counts=only(fsdp, own)), "own_only", "dp")
pairs = Job("dp=6", [Param("w", [40])])
verdict(judged(pairs, counts=only(pairs, lambda a, s, m: a["dp"] // 2 == s["dp"] // 2)), "partial", None, range(6))
verdict(judged(pairs, counts=only(pairs, lambda a, s, m: a["dp"] // 2 == (s["dp"] // 2 + 1) % 3)), "wrong_group", None,
        range(6))
# Sums over tp, on which each rank has its own part, instead of over dp.
group = Job("dp=3 tp=2", [Param("w", [4, 6], "tp=S1"), Param("n", [30], "tp=I")])


def over_tp(p, rank, values):
    if p.name != "w":
        return values
    out, mine = [0.0] * p.numel(), indices(p.shape, group.own_box(p, rank))
    for other in (r for r in range(6) if group.place(r)["dp"] == group.place(rank)["dp"]):
        theirs = indices(p.shape, group.own_box(p, other))
        for i, j in zip(mine, theirs):
            out[i] += group.addends[other, 0, p.name][j]
    return out


verdict(judged(group, after=over_tp), "wrong_group", "tp", range(6), words="over tp")
# The same with samples: those of one part lie at other places than those of another. The report says so, on the page
# too.
group.sample = 8
document = judged(group, after=over_tp)
verdict(document, "unexplained", None, range(6), words="or is summed over tp, which a sample does not show")
says = "`w`: sampled, and sharded over tp, so ranks there hold other elements: this dump cannot say whether the sum goes over tp; dump full tensors"
assert len(document["messages"]) == 1 and document["messages"][0].startswith(says), document["messages"]
page = os.path.join(work, "sampled.html")
reported = subprocess.run([program, "diff", "--html", page, os.path.join(work, "dump")], capture_output=True, text=True, timeout=60)
assert reported.returncode == 1 and "note " + says in reported.stdout and says in open(page).read(), reported

# Copies that differ.
found = verdict(judged(job, counts=lambda p, rank: {(0, 0): 1.0} if rank == 3 else None), "replicas_differ", "dp,tp", [3])
assert found["counts"][0] == [1] and found["counts"][1] == [0]
drift = lambda p, rank, values: rounded("F32", [v * (1 + (2e-7 if rank == 1 else 0)) for v in values])
verdict(judged(three, after=drift), "replicas_differ", "dp", [0, 1, 2], words="rounding only")
# The types say that all ranks of tp do the same, but each has its own addend, as with `to_local()` without
# grad_placements.
router = Job("dp=2 tp=3", [Param("w", [20], "tp=I"), Param("b", [2], "tp=I")])
for r in range(6):
    for p in router.params:
        router.addends[r, 0, p.name] = rounded("F32", [router.random.gauss(0, 1) for _ in range(p.numel())])
for name in "w", "b":
    verdict(judged(router), "own_only", "tp", factor=1, name=name, words="own addend only")
# Or those ranks worked on different batches: this is said once for all parameters that differ.
document = judged(router)
assert [cause["kind"] for cause in causes(document, "tp", "tp")] == ["own_only", "other_batches"]
assert len(document["messages"]) == 1 and "fed different batches" in document["messages"][0], document["messages"]
assert document["messages"][0].startswith("`b` and 1 other parameter: all ranks along tp"), document["messages"]
# Addends of some ranks may be missing for more than one reason.
corner = Job("a=2 b=2", [Param("w", [20])])
others = lambda kind, rank, m, name: kind == "addend" and rank in (1, 2)
judged(corner, status=0, skip=others, counts=lambda p, rank: {(0, 0): 1.0, (3, 0): 1.0})
document = judged(corner, skip=others, counts=lambda p, rank: {(0 if rank == 0 else 3, 0): 1.0})
own_sums = lambda p, rank: {(rank, 0): 1.0} if rank in (0, 3) else {(0, 0): 1.0, (3, 0): 1.0}
document = judged(corner, skip=others, counts=own_sums)
verdict(document, "not_distinguishable", None, [0, 3], words="possible causes: partial: not summed over a")
assert [cause["kind"] for cause in causes(document, "a", "b", "a,b")] == ["partial", "partial", "own_only"]
document = judged(corner, skip=others, counts=lambda p, rank: {(3, 0): 1.0})
verdict(document, "missing", None, [0], 0)
# Ranks that do the same along two axes: the sum may have gone over either axis.
either = Job("a=2 b=2", [Param("w", [20], "a=I b=I"), Param("s", [1], "a=I b=I")])
for p in either.params:
    for rank in 1, 2, 3:
        either.addends[rank, 0, p.name] = rounded("F32", [either.random.gauss(0, 1) for _ in range(p.numel())])
    either.addends[2, 0, p.name] = either.addends[1, 0, p.name]
document = judged(either, counts=lambda p, rank: {(0, 0): 1.0, (1, 0): 1.0} if rank == 0 else None)
verdict(document, "wrong_group", None, [0], words="possible causes: wrong group: summed over a, and its types want the sum over no axis")
causes(document, "a", "b")
# A single number is a multiple of every other number.
assert any(cause["kind"] == "wrong_group" and cause["axes"] == "a" for cause in param(document, "s")["possible_causes"]), param(document, "s")
# One copy differs from the others, whichever rank has it.
for odd in range(6):
    verdict(judged(job, counts=lambda p, rank: {(0 if odd else 1, 0): 1.0} if rank == odd else None), "replicas_differ", "dp,tp", [odd])
# The optimizers of some ranks get no gradients, those of the other ranks do.
used = judged(pairs, skip=lambda kind, rank, m, name: rank % 2, counts=only(pairs, lambda a, s, m: a["dp"] % 2 == 0))
verdict(used, "replicas_differ", "dp", [1, 3, 5], words="ranks 1, 3 and 5 have no sum")
both = Job("dp=2", [Param("w", [20])])
used = judged(both, skip=lambda kind, rank, m, name: rank and kind == "sum")
verdict(used, "replicas_differ", "dp", [1], words="rank 1 has no sum")
# A rank of which no file says that it has the parameter, where other files do, is no replica: ranks 1, 3 and 5 of pp.
pairs_of = Job("dp=3 pp=2", [Param("w", [20]), Param("v", [9])])
odd_has_none = lambda kind, rank, m, name: rank % 2 and name == "w"
of_those_that_have_it = only(pairs_of, lambda a, s, m: a["pp"] == 0)
types = lambda of: lambda kind, rank, m: {"addend.types": json.dumps({name: "dp=R pp=R" for name in of(rank)})}
some = lambda p, rank: of_those_that_have_it(p, rank) if p.name == "w" else None
judged(pairs_of, status=0, skip=odd_has_none, counts=some, extra=types(lambda rank: "v" if rank % 2 else "wv"))
for of in (lambda rank: "wv"), (lambda rank: ""):
    verdict(judged(pairs_of, skip=odd_has_none, counts=some, extra=types(of)), "replicas_differ", "dp,pp", [1, 3, 5], words="have no sum")
stages = Job("pp=2 dp=3", [Param("w", [20], "pp=I")])
judged(stages, status=0, skip=lambda kind, rank, m, name: rank > 2)

# Mistakes in microbatches.
steps = Job("dp=3", w, microbatches=3)
judged(steps, status=0)
for name in "w", "b":
    verdict(judged(steps, counts=only(steps, lambda a, s, m: m == 2)), "last_microbatch", factor=1, name=name)
    earlier = lambda p, rank: {key: 1 if key[1] == 2 else 1 / 3 for key in steps.right(p, rank)}
    verdict(judged(steps, counts=earlier), "earlier_microbatches_divided", "dp", factor=1 / 3, name=name)
late = lambda p, rank: {k: 1.0 if k[1] == 2 else 3.0 for k in steps.right(p, rank) if k[1] == 2 or k[0] == rank}
for name in "w", "b":
    verdict(judged(steps, counts=late), "partial", "dp", factor=3, name=name, words="earlier microbatches")
later = lambda p, rank: {k: 1.0 for k in steps.right(p, rank) if k[1] == 0 or k[0] == rank}
for name in "w", "b":
    found = verdict(judged(steps, counts=later), "partial", "dp", factor=1, name=name, words="in all microbatches but the first: not summed over dp")
    assert found["cause"]["place"] == "microbatches", found
# The same with shards too small for a fit, where a rank had no addend in the second microbatch, so that its count stays
# unknown.
idle = Job("dp=3", [Param("w", [9, 1], held=shard("dp", 3, 9, 1), dtype="F64")], microbatches=2)
idle.addends[2, 1, "w"] = [0.0] * 9
found = verdict(judged(idle, counts=lambda p, rank: {k: 1.0 for k in idle.right(p, rank) if k[1] == 0 or k[0] == rank}), "partial", "dp",
                words="in all microbatches but the first: not summed over dp")
assert found["counts"][2][1] is None, found["counts"]
each = judged(steps, counts=lambda p, rank: {key: (1, 1 / 4, 1 / 4)[key[1]] for key in steps.right(p, rank)})
found = verdict(each, "factor", None, words="microbatch 0 counts 1, microbatches 1 and 2 count 1/4 times what is expected")
assert found["cause"]["place"] == "microbatches", found
other = judged(steps, counts=lambda p, rank: {key: (1.5, 1, 0.25)[key[1]] for key in steps.right(p, rank)})
verdict(other, "factor", None, words="microbatch 0 counts 1.5, microbatch 1 counts 1, microbatch 2 counts 1/4 times")
tied = Job("a=2 b=2", [Param("w", [40])], microbatches=3)
document = judged(tied, counts=lambda p, rank: {key: 1 if key[1] == 2 else 1 / 2 for key in tied.right(p, rank)})
verdict(document, "earlier_microbatches_divided", None, factor=1 / 2, words="earlier microbatches count 1/2; possible causes: ")
causes(document, "a", "b")
verdict(judged(steps, counts=lambda p, rank: {k: 1.0 for k in steps.right(p, rank) if k != (1, 1)}), "missing", None, [1],
        words="in microbatch 1")
# Some microbatches are right, and in others each rank has its own addend: which ones, and over which axes they were not
# summed.
four = Job("a=2 b=2", [Param("w", [40]), Param("v", [60])], microbatches=4)
own = lambda axes, wrong: lambda p, rank: {
    (r, m): 4.0 if m in wrong and axes == "ab" else 1.0 for r, m in four.right(p, rank)
    if m not in wrong or all(four.place(r)[axis] == four.place(rank)[axis] for axis in axes)}
verdict(judged(four, counts=own("a", (1, 3))), "partial", "a", factor=1, words="partial in microbatches 1 and 3: not summed over a")
verdict(judged(four, counts=own("ab", (3,))), "partial", "a,b", factor=4,
        words="partial in microbatch 3: not summed over a,b: each rank's sum has only the addends of its own place there, 4 times")

# Each rank has its own addend of one microbatch, or a pair of ranks has the pair's: no addend of ranks of another
# group.
verdict(judged(steps, counts=lambda p, rank: {(rank, 2): 1.0}), "own_only", "dp", range(3), factor=1,
        words="own addend only, in microbatch 2 alone: not summed over dp")
paired = Job("dp=4", [Param("w", [40])], microbatches=2)
pair = lambda p, rank: {(r, 1): 1.0 for r in range(4) if r // 2 == rank // 2}
verdict(judged(paired, counts=pair), "partial", None, range(4), factor=1, words="2 of 4 ranks are summed: each rank's replica has the addends of some "
        "ranks only, in microbatch 1 alone, its own among them")
at_once = Job("dp=4", [Param("w", [40])])
pair = lambda p, rank: {(r, 0): 1.0 for r in range(4) if r // 2 == rank // 2}
verdict(judged(at_once, counts=pair), "partial", None, range(4), factor=1, words="addends of some ranks only, its own among them")
crossed = lambda p, rank: {(r, 1): 1.0 for r in range(4) if r // 2 != rank // 2}
verdict(judged(paired, counts=crossed), "wrong_group", None, range(4), words="addends of other ranks than their own group's")

# Factors that show their cause: a loss scale, a clip on each rank, a clip of the sums.
found = verdict(judged(job, counts=times(job, 1 / 1024)), "factor", factor=1 / 1024, words="1/1024 times what is expected, a power of two")
verdict(judged(job, counts=times(job, 65536)), "factor", factor=65536, words="65536 times what is expected, a power of two")
scales = {0: 0.3, 1: 0.71, 2: 0.52}
verdict(judged(three, counts=lambda p, rank: {key: scales[key[0]] for key in three.right(p, rank)}), "factor", words="clipped or scaled before the sum")
document = judged(three, counts=times(three, 0.303))
for name in "w", "b":
    found = verdict(document, "factor", factor=0.303, name=name, words="0.303 times what is expected: a factor that is no group's size, and all parameters carry it: were they clipped before this point?")
    assert found["cause"]["text"] == found["text"], found
document = judged(three, counts=lambda p, rank: {key: 0.303 if p.name == "b" else 0.4 for key in three.right(p, rank)})
verdict(document, "factor", factor=0.4, words="0.4 times what is expected: a factor that is no group's size")
assert "clipped" not in param(document)["text"], param(document)["text"]

# Values before the step: replicas that differ, and what is then unknown of a sum.
values = lambda which: lambda kind, rank, m: {"addend.values": json.dumps({"w": which[rank]})} if kind == "sum" else {}
judged(three, status=0, extra=values(["aa"] * 3))
document = judged(three, extra=values(["aa", "aa", "bb"]))
found = verdict(document, "replicas_differ", "dp", [2], words="values differ before the step along dp: rank 2")
assert not any("before the step as well" in text for text in document["messages"]), document["messages"]
assert param(judged(three, extra=values(["aa", "aa", "bb"])), "b")["pass"]
both = judged(three, extra=values(["aa", "aa", "bb"]), counts=times(three, 1 / 3))
verdict(both, "averaged", "dp")
assert any("values differ along dp before the step as well" in text for text in both["messages"]), both["messages"]
parts = Job("dp=2 tp=2", [Param("w", [8, 5], "tp=S0")])  # ranks 0 and 2 have the same part
judged(parts, status=0, extra=values(["aa", "bb", "aa", "bb"]))
verdict(judged(parts, extra=values(["aa", "bb", "aa", "cc"])), "replicas_differ", "dp", [3])


def unequal(job, p, reported):
    """Compare every pair of ranks that have the same elements: find the axes along which values differ between
    neighbours, if there are any, and the ranks whose values are not the first rank's.
    """
    beside, anywhere, ranks = set(), set(), []
    for b in range(job.world):
        same = [a for a in range(b) if reported[a] and reported[b] and job.own_box(p, a) == job.own_box(p, b)]
        for a in same:
            axes = {axis for axis, _ in job.axes if job.place(a)[axis] != job.place(b)[axis]} if reported[a] != reported[b] else set()
            anywhere |= axes
            beside |= axes if len(axes) == 1 else set()
        ranks += [b] if same and reported[b] != reported[same[0]] else []
    return ",".join(axis for axis, _ in job.axes if axis in (beside or anywhere)), ranks


draws = random.Random(7)
for types in "", "b=S0":
    drawn = Job("a=2 b=3 c=2", [Param("w", [7], types)])
    by_axis = [[{"w": f"at {drawn.place(r)[axis]}"} for r in range(drawn.world)] for axis in "abc"]
    some = [[{"w": draws.choice(["aa", "aa", "bb"])} if draws.randrange(20) > most else {} for _ in range(drawn.world)] for most in (0, 5, 9, 15)]
    for reported in by_axis + some:
        axes, ranks = unequal(drawn, drawn.params[0], [own.get("w") for own in reported])
        how = {"extra": lambda kind, rank, m: {"addend.values": json.dumps(reported[rank])} if kind == "sum" else {}}
        verdict(judged(drawn, **how), "replicas_differ", axes, ranks) if ranks else judged(drawn, status=0, **how)
# Two ranks that are no neighbours: all axes on which they are apart are named.
two_reported = {2: {"w": "aa"}, 9: {"w": "bb"}}
document = judged(drawn, extra=lambda kind, rank, m: {"addend.values": json.dumps(two_reported[rank])} if kind == "sum" and rank in two_reported else {})
verdict(document, "replicas_differ", "a,c", [9])
unjudged = judged(three, counts=times(three, 0.7), extra=lambda kind, rank, m: {"addend.unjudged": '{"w": "it is compressed"}'})
verdict(unjudged, "not_judged", words="cannot tell: it is compressed")
assert unjudged["verdict"] == "wrong", unjudged["verdict"]  # the verdict of the other parameters
alone = judged(Job("dp=3", [Param("w", [20])]), extra=lambda kind, rank, m: {"addend.unjudged": '{"w": "it is compressed"}'})
assert alone["verdict"] == "cannot_tell", alone["verdict"]

# Divisors of the losses.
counts = {0: 4, 1: 5, 2: 9}
divisor = lambda kind, rank, m: {"addend.divisor": str(counts[rank])} if kind == "addend" else {}
verdict(judged(three, extra=divisor), "divided_by_own_count", factor=1, words="4 to 9")
verdict(judged(three, extra=divisor), "divided_by_own_count", factor=1, name="b")
weighted = lambda p, rank: {(r, m): counts[r] / 6 for r, m in three.right(p, rank)}
judged(three, status=0, extra=divisor, counts=weighted)
judged(three, status=0, extra=lambda kind, rank, m: {"addend.divisor": "6"} if kind == "addend" else {})
# Ranks of tp, over which nothing is summed, work on one batch and must have one count. Those of ep have their own
# batches.
parallel = Job("dp=2 tp=2", [Param("w", [8, 5], "tp=S0"), Param("n", [7], "tp=I")])
by_axis = lambda job, axis: lambda kind, rank, m: {"addend.divisor": str(10 + 3 * job.place(rank)[axis])} if kind == "addend" else {}
document = judged(parallel, extra=by_axis(parallel, "tp"))
for name in "w", "n":
    verdict(document, "divided_by_own_count", "tp", factor=1, name=name, words="along tp divided their losses by different counts (10 to 13)")
    verdict(judged(parallel, extra=by_axis(parallel, "dp")), "divided_by_own_count", factor=1, name=name, words="10 to 13")
by_microbatch = lambda kind, rank, m: {"addend.divisor": str(10 + 3 * m)} if kind == "addend" else {}
verdict(judged(steps, extra=by_microbatch), "divided_by_own_count", factor=1, words="divide each by the mean count of all microbatches")
experts = Job("dp=2 ep=2", [Param("w", [8, 5], "ep=S0"), Param("dense", [9])])
for name in "w", "dense":
    verdict(judged(experts, extra=by_axis(experts, "ep")), "divided_by_own_count", factor=1, name=name, words="each rank divided")

# Rounding, of a dtype that the dump names or does not name.
coarse = lambda p, rank, values: rounded("BF16", values)
verdict(judged(three, after=coarse), "rounding", factor=1, words="bf16")
judged(three, status=0, after=coarse, extra=lambda kind, rank, m: {"addend.reduce": "bf16"} if kind == "sum" else {})
judged(three, status=0, after=coarse,
       extra=lambda kind, rank, m: {"addend.reduce": '{"*": "bf16"}'} if kind == "sum" else {})


class Mixed(Job):
    """The dtype of a rank's addends: bf16 on the last rank."""
    def addend_dtype(self, p, rank):
        return "BF16" if rank == self.world - 1 else p.dtype


# Addends may have different dtypes: the widest counts, even if one rank alone has it; none counts if the dump names the
# dtype of the sum; those of another group count as well.
judged(Mixed("dp=3", [Param("w", [40])]), status=0, after=coarse)
verdict(judged(Job("dp=3", [Param("w", [40], dtype="BF16", sum_dtype="F32")]), after=coarse,
               extra=lambda kind, rank, m: {"addend.reduce": "f32"} if kind == "sum" else {}), "rounding", factor=1)
mixed = Mixed("dp=3 tp=2", [Param("w", [40], "tp=I")])
over_all = {(r, 0): 1.0 for r in range(6)}
for r in range(6):
    mixed.addends[r, 0, "w"] = rounded("BF16", [mixed.random.gauss(0, 1) for _ in range(40)])
verdict(judged(mixed, counts=lambda p, rank: over_all, after=coarse), "wrong_group", "dp,tp", range(6))
# Values below the smallest number of the widest dtype are lost; here the last rank alone has f16.
class Tiny(Job):
    def addend_dtype(self, p, rank):
        return "F16" if rank == self.world - 1 else p.dtype


tiny = Tiny("dp=3", [Param("w", [40])], expect=1 / 3)
for r in range(3):
    tiny.addends[r, 0, "w"] = rounded("F16", [v * 1e-6 for v in tiny.addends[r, 0, "w"]])
judged(tiny, status=0, after=lambda p, rank, values: rounded("F16", values))
# Sums inside an addend, of the last rank alone.
inside = lambda kind, rank, m: {"addend.inside": '{"w": [10000, 1000]}'} if (kind, rank) == ("addend", 2) else {}
near = lambda p, rank, values: [v + 0.3 * (p.name == "w") for v in values]
verdict(judged(three, after=near), "unexplained", ranks=range(3))
judged(three, status=0, after=near, extra=inside)
# Another term was added to the sum.
other = lambda p, rank, values: [v + ((i * 7919) % 13 - 6) / 10 for i, v in enumerate(values)]
document = judged(job, after=other)
verdict(document, "unexplained", None, range(6))
assert any("3 elements for 6 addends" in m for m in document["messages"])
several = Job(group.mesh, [*group.params, Param("v", [4, 6], "tp=S0")], sample=8)
assert "`v` and 1 other parameter: sampled" in judged(several, after=other)["messages"][0]

def says(document, kind, axis=None, ranks=None, name="w", words=""):
    """As verdict(), of which only what is given is looked at."""
    found = param(document, name)
    return verdict(document, kind, axis or found["axis"], found["ranks"] if ranks is None else ranks, name=name, words=words)


# Another operation than a sum, over all ranks or over one axis; summed by microbatch, or all microbatches together.
several = Job("dp=3 tp=2", [Param("w", [8, 5]), Param("v", [60])], microbatches=2)


def joined(job, operation, axes, each_microbatch=False, first=lambda a: a, factor=1):
    """Sums that are the operation over these axes of what ranks should add."""
    def after(p, rank, values):
        of_rank = lambda r, ms: [sum(v) for v in zip(*(job.addends[r, m, p.name] for m in ms))]
        out = [0.0] * p.numel()
        for ms in [[m] for m in range(job.microbatches)] if each_microbatch else [range(job.microbatches)]:
            places = {}
            for r in job.group(p, rank):
                places.setdefault(tuple(job.place(r)[axis] for axis in axes), []).append(of_rank(r, ms))
            totals = [[sum(v) for v in zip(*ranks)] for ranks in places.values()]
            out = [a + factor * operation(v) for a, v in zip(out, zip(*totals))]
        return rounded(p.sum_dtype, out)
    return after


for operation, word in (max, "maximum"), (min, "minimum"), (math.prod, "product"):
    for axes in ("dp", "tp"), ("tp",):
        for each in True, False:
            document = judged(several, after=joined(several, operation, axes, each))
            for name in "w", "v":
                found = says(document, "other_operation", ",".join(axes), range(6), name=name, words=f"the {word} of the ranks along {','.join(axes)}, and not")
                assert found["cause"]["axes"] == ",".join(axes) and found["counts"] is None, found
                assert found["cause"]["operation"] == word, found
mean = Job("dp=4", [Param("w", [50])], expect=1 / 4)
says(judged(mean, after=joined(mean, max, ["dp"], factor=1 / 4)), "other_operation", "dp", range(4), words="along dp, and not")
says(judged(mean, after=joined(mean, max, ["dp"])), "other_operation", "dp", range(4), words="along dp, and not")
says(judged(mean, after=joined(mean, max, ["dp"], factor=1 / 16)), "other_operation", "dp", range(4), words="times 0.0625")
# One element that is not the maximum, or too few elements, and nothing is said of it.
almost = lambda p, rank, values: [v + (1e-3 if i == 41 else 0) for i, v in enumerate(joined(mean, max, ["dp"])(p, rank, values))]
says(judged(mean, after=almost), "unexplained", ranks=range(4))
for numel, kind in (3, "unexplained"), (4, "other_operation"):
    few = Job("dp=5", [Param("w", [numel])])
    says(judged(few, after=joined(few, max, ["dp"])), kind)
for dtype, numel, kind in ("BF16", 9, "unexplained"), ("BF16", 24, "other_operation"):
    few = Job("dp=3", [Param("w", [numel], dtype=dtype)])
    says(judged(few, after=joined(few, max, ["dp"])), kind)
# The right sum at another place: half of a parameter at least, and every element of that.
def shifted(job, by, but=()):
    def after(p, rank, values):
        out = [values[i + by] if 0 <= i + by < len(values) else 3.0 + i for i in range(len(values))]
        return [v + 1e-3 if i in but else v for i, v in enumerate(out)]
    return after


for most in None, 200:
    flat = Job("dp=3", [Param("w", [12, 20]), Param("v", [50])], sample=most)
    for by in 3, -3, 1, -17:
        document = judged(flat, after=shifted(flat, by))
        says(document, "shifted", None, range(3), name="v", words=f"shifted by {abs(by)} element{'s' if abs(by) > 1 else ''}: element i holds what element i {'+' if by > 0 else '-'} {abs(by)} should")
        if not most:
            says(document, "shifted")
    says(judged(flat, after=shifted(flat, 3, [20])), "unexplained", name="v")
    for by, kind in (25, "shifted"), (26, "unexplained"):
        says(judged(flat, after=shifted(flat, by)), kind, name="v")
# Parts of the right sum at other places, with zeros where a part was padded: every element is one of the right sum.
def arranged(name, length, order):
    """The parameter's parts of `length` elements, the last padded by zeros, in another order."""
    def after(p, rank, values):
        if p.name != name:
            return values
        padded = [*values, *[0.0] * (-len(values) % length)]
        return [v for part in order for v in padded[part * length : (part + 1) * length]][: len(values)]
    return after


parts = Job("dp=3", [Param("w", [12, 20]), Param("v", [50])])
for length, order in (80, (2, 1, 0)), (80, (0, 2, 1)), (48, (4, 3, 2, 1, 0)), (40, (1, 0, 3, 2, 5, 4)):
    moves = sorted({(part - at) * length for at, part in enumerate(order)} - {0})
    document = judged(parts, after=arranged("w", length, order))
    found = says(document, "shifted", None, range(3), name="w", words="parts of it at other places")
    reported = int("".join(found["text"].split("element i ", 2)[2].split(" should")[0].split()))
    assert reported in moves, (reported, moves)
    more = len(moves) - 1
    assert (f"{more} other part" in found["text"]) if more else "other part" not in found["text"], found
    assert param(document, "v")["pass"]
says(judged(parts, after=arranged("v", 17, (2, 1, 0))), "shifted", name="v", words="parts of it at other places")  # one zero
changed = lambda p, rank, values: [v + 1e-3 * (i == 41) for i, v in enumerate(arranged("w", 80, (2, 1, 0))(p, rank, values))]
says(judged(parts, after=changed), "unexplained", name="w")
# A part that moves has two elements or more, and zeros are half of the parameter at most.
for width, kind in (1, "unexplained"), (2, "shifted"):
    few = lambda p, rank, values: [*values[10:20], *values[:10], *values[-width:], *values[20 + width : -width], *values[20 : 20 + width]]
    says(judged(parts, after=few), kind, name="v")
for kept, kind in (25, "shifted"), (24, "unexplained"):
    cleared = lambda p, rank, values: [*values[10:20], *values[:10], *values[20:kept], *[0.0] * (len(values) - kept)]
    says(judged(parts, after=cleared), kind, name="v")
# One rank's parameters are in another order; here it swaps two, and every rank's copy shows it.
trio = Job("dp=3", [Param(name, [6, 5]) for name in "abc"])


def swapped(job, odd, names, kept=1.0):
    """Rank `odd` adds its gradients of each of two parameters to the others' gradients of the other one."""
    other = dict(zip(names, reversed(names)))
    def after(p, rank, values):
        if p.name not in other:
            return values
        name = lambda r: p.name if (r == odd) == (rank == odd) else other[p.name]
        return rounded("F32", [job.expect * sum(v) for v in zip(*(job.addends[r, 0, name(r)] for r in range(job.world)))])
    return after


for odd in range(3):
    document = judged(trio, after=swapped(trio, odd, "ac"))
    assert param(document, "b")["pass"]
    for name, other in "ac", "ca":
        found = says(document, "other_parameters", None, [odd], name=name, words=f"rank {odd} added its gradient of `{other}` in place of this one")
        assert found["cause"]["kind"] == "other_parameters", found
# Of two ranks either may be the one; with one element more than that, none is.
pair = Job("dp=2", [Param(name, [6, 5]) for name in "ab"])
document = judged(pair, after=swapped(pair, 1, "ab"))
says(document, "other_parameters", None, [0, 1], name="a", words="; rank 0 added")
changed = lambda p, rank, values: [v + 1e-2 * (i == 7) for i, v in enumerate(swapped(trio, 1, "ac")(p, rank, values))]
says(judged(trio, after=changed), "unexplained", name="a")
# All ranks gave the sums to other parameters.
given = lambda p, rank, values: trio.sum_of(trio.params[("abc".index(p.name) + 1) % 3], rank, {(r, 0): 1.0 for r in range(3)})
found = says(judged(trio, after=given), "other_parameters", None, range(3), name="a", words="the right sum of `b`")
# A value agrees by chance as often as its dtype is coarse: three elements that are not zero are enough in f32, for all
# of a sum as for one of its segments.
for n in 2, 3:
    kind = "other_parameters" if n == 3 else "unexplained"
    few_of = Job("dp=3", [Param(name, [30]) for name in "bcd"])
    for r in range(3):
        few_of.addends[r, 0, "d"] = few_of.addends[r, 0, "d"][:n] + [0.0] * (30 - n)
    right_of = {p.name: few_of.sum_of(p, 0, few_of.right(p, 0)) for p in few_of.params}
    given_to_b = lambda made: judged(few_of, after=lambda p, rank, values: made if p.name == "b" else values)  # noqa: B023
    says(given_to_b(right_of["d"]), kind, name="b")
    says(given_to_b(right_of["c"][:-n] + right_of["d"][:n]), kind, name="b", words="`c` and 1 other parameter" if n == 3 else "")
says(given_to_b(right_of["c"][15:] + right_of["c"][:15]), "other_parameters", name="b", words="the right sum of `c`: ")
# An element that one segment gives counts for no other: `d` is `c` in 15 elements, and gives few beside those.
identical = Job("dp=3", [Param(name, [30]) for name in "bcd"])
for r in range(3):
    identical.addends[r, 0, "d"] = identical.addends[r, 0, "c"][:15] + identical.addends[r, 0, "d"][15:]
right_of = {p.name: identical.sum_of(p, 0, identical.right(p, 0)) for p in identical.params}
for n, kind in (2, "unexplained"), (3, "other_parameters"):
    made = right_of["c"][:-n] + right_of["d"][-n:]
    says(judged(identical, after=lambda p, rank, values: made if p.name == "b" else values), kind, name="b")  # noqa: B023
# What another parameter's sum should be goes by its own factor.
halved = Job("dp=3", [Param("b", [30]), Param("c", [30], expect=0.5)])
given = lambda p, rank, values: halved.sum_of(halved.params[1], rank, halved.right(p, rank))
document = judged(halved, after=given)
assert param(document, "c")["pass"]
says(document, "other_parameters", name="b", words="the right sum of `c`: ")
# The same with exact zeros at the same elements, in a dtype whose smallest allowance is less than any other number.
zeros = Job("dp=3 tp=2", [Param("a", [6, 5], "tp=S0", dtype="F64"), *(Param(name, [6, 5], dtype="F64") for name in "bc")])
for (rank, m, name), values in zeros.addends.items():
    zeros.addends[rank, m, name] = [0.0 if i % 5 == 2 and name != "a" else v for i, v in enumerate(values)]
other_of = {"b": "c", "c": "b"}
by_name = {p.name: p for p in zeros.params}
given = lambda p, rank, values: values if p.name == "a" else zeros.sum_of(by_name[other_of[p.name]], rank, zeros.right(p, rank))
document = judged(zeros, after=given)
assert param(document, "a")["pass"]
for name, other in other_of.items():
    says(document, "other_parameters", None, range(6), name=name, words=f"the right sum of `{other}`")
# Rows of sparse gradients that were added in their order.
sparse = Job("dp=3", [Param("w", [10, 7]), Param("v", [9])])
own_rows = {0: [1, 3, 8], 1: [0, 3, 5], 2: [2, 4, 8]}
for r, of_rank in own_rows.items():
    sparse.addends[r, 0, "w"] = [v if i // 7 in of_rank else 0.0 for i, v in enumerate(sparse.addends[r, 0, "w"])]


def without_indices(p, rank, values):
    if p.name != "w":
        return values
    out = [0.0] * 70
    for r, of_rank in own_rows.items():
        for to, row in zip(own_rows[rank], of_rank):
            for i in range(7):
                out[to * 7 + i] += sparse.addends[r, 0, "w"][row * 7 + i]
    return rounded("F32", out)


judged(sparse, status=0)
says(judged(sparse, after=without_indices), "other_rows", None, range(3), words="without their indices")
more = lambda p, rank, values: [v + 1e-3 * (p.name == "w" and i == 7 * own_rows[rank][0]) for i, v in enumerate(without_indices(p, rank, values))]
says(judged(sparse, after=more), "unexplained")
# The same, as many rows as the rank with fewest has: the others' rows beyond that are left out.
own_rows = {0: [1, 3, 8], 1: [0, 3, 5, 6], 2: [2, 4]}
for r, of_rank in own_rows.items():
    sparse.addends[r, 0, "w"] = [0.1 + r + i % 13 if i // 7 in of_rank else 0.0 for i in range(70)]


def by_number(p, rank, values):
    if p.name != "w":
        return values
    out = [0.0] * 70
    for r, of_rank in own_rows.items():
        for to, row in zip(own_rows[rank][:2], of_rank):
            for i in range(7):
                out[to * 7 + i] += sparse.addends[r, 0, "w"][row * 7 + i]
    return rounded("F32", out)


found = says(judged(sparse, after=by_number), "other_rows", None, range(3), words="the first 2 rows")
more = lambda p, rank, values: [v + 1e-3 * (p.name == "w" and i == 7 * own_rows[rank][0]) for i, v in enumerate(by_number(p, rank, values))]
says(judged(sparse, after=more), "unexplained")
# Where all ranks have the same rows, the same sum is the right one but for the rows that are left out.
own_rows = {r: [1, 3, 8] for r in range(3)}
for r, of_rank in own_rows.items():
    sparse.addends[r, 0, "w"] = [0.1 + r + i % 13 if i // 7 in of_rank else 0.0 for i in range(70)]
assert param(judged(sparse, after=by_number), "w")["kind"] != "other_rows"
# One copy is right, and the others are not: a reduce, or a change after the sum. If the others hold their own addends,
# that is said, and a reduce is one of its causes.
three_copies = Job("dp=3", [Param("w", [40]), Param("v", [9])])
partial_sums = lambda p, rank, values: [v + 0.3 * rank * (i % 5) for i, v in enumerate(values)]
document = judged(three_copies, after=partial_sums)
says(document, "one_rank", "dp", [1, 2], words="right on rank 0 alone")
assert [cause["kind"] for cause in causes(document, "dp", "dp")] == ["one_rank", "replicas_differ"]
document = judged(three_copies, counts=lambda p, rank: {(rank, 0): 1.0} if rank else None)
says(document, "own_only", "dp", [1, 2], words="not summed over dp")
assert [cause["kind"] for cause in causes(document, "dp", "dp")] == ["own_only", "one_rank"]
grouped = Job("dp=3 tp=2", [Param("w", [8, 5], "tp=S0")])  # ranks 0 and 1 have the right sums of two groups
partial_sums = lambda p, rank, values: [v + 0.3 * (rank // 2) * (i % 5) for i, v in enumerate(values)]
says(judged(grouped, after=partial_sums), "one_rank", "dp", [2, 3, 4, 5], words="right on one rank of each group alone")
# A mesh of as many axes as a dump may have.
most_axes = Job("a=2 b=1 c=1 d=1 e=1 f=1 g=1 h=2", [Param("w", [40])])
last_differs = lambda p, rank, values: [v + 0.3 * (rank % 2 == 1) * (i % 5) for i, v in enumerate(values)]
says(judged(most_axes, after=last_differs), "replicas_differ", "h", [1, 3])
two_right = lambda p, rank, values: [v + 0.3 * (rank == 2) * (i % 5) for i, v in enumerate(values)]
says(judged(three_copies, after=two_right), "replicas_differ", "dp", [2], words="wrong on rank 2 and right elsewhere")
# Dumps of PyTorch jobs on gloo, whose makers are in audit/tests/dumps/generate.py.
FIXTURES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../dumps")
LAYERS = {"up.weight", "up.bias", "down.weight", "down.bias"}
for job_name, kind, axis, names in (
    ("maximum", "other_operation", "dp", LAYERS),
    ("one_rank", "one_rank", "dp", LAYERS),
    ("shifted", "shifted", None, LAYERS - {"down.bias"}),  # whose four elements are too few
    ("order", "other_parameters", None, LAYERS),
    ("sparse", "other_rows", None, {"words.weight"}),
):
    result = run(os.path.join(FIXTURES, job_name))
    assert result.returncode == 1, (job_name, result)
    found = {p["name"]: p for p in json.loads(result.stdout)["params"]}
    assert {name for name, p in found.items() if p["kind"] == kind} == names, (job_name, found)
    assert all(found[name]["axis"] == axis for name in names), (job_name, found)
    right = set(found) - LAYERS if "words.weight" not in names else LAYERS
    assert all(found[name]["pass"] for name in right), (job_name, found)
    done += 1

# Clipped after every microbatch: the earlier one counts less. A later one that counts less is no clip of that kind.
clips = {0: (0.2, 0.5, 0.9), 1: (0.3, 0.35, 1.0), 2: (0.1, 0.6, 0.8)}
by_rank = lambda table: lambda p, rank: {(r, m): table[r][m] for r in range(3) for m in range(3)}
wide = Job("dp=3", [Param("w", [40])], microbatches=3)
document = judged(wide, counts=by_rank(clips))
says(document, "factor", words="addends count less the earlier their microbatch, from 0.1 to 1 times")
assert [cause["text"] for cause in causes(document, "microbatches", "microbatches")] == ["clipped after every microbatch", "scaled after every microbatch"]
for table in ({**clips, 1: (0.3, 0.35, 0.34)}, {**clips, 1: (0.3, 0.35, 1.1)}, {**clips, 0: (-0.2, 0.5, 0.9)}):
    says(judged(wide, counts=by_rank(table)), "factor", words="addends count differently")
says(judged(wide, counts=by_rank({**clips, 0: (0, 0.5, 0.9)})), "missing", None, [0], words="1 addend of rank 0 in microbatch 0 is not")
# Which microbatch is said where it is one, however many ranks' addends are missing there.
lost = lambda places: lambda p, rank: {(r, m): 0.0 if (r, m) in places else 1.0 for r in range(3) for m in range(3)}
says(judged(wide, counts=lost({(0, 1), (1, 1)})), "missing", None, [0, 1], words="2 addends of ranks 0 and 1 in microbatch 1 ")
says(judged(wide, counts=lost({(1, 1), (2, 2)})), "missing", None, [1, 2], words="2 addends of ranks 1 and 2 are")
# An addend of zeros counts any number of times: it is not missing, and no part of what the others count.
idle = Job("dp=3", [Param("w", [40])])
idle.addends[1, 0, "w"] = [0.0] * 40
says(judged(idle, counts=lambda p, rank: {(0, 0): 0.5, (2, 0): 0.9}), "factor", words="from 0.5 to 0.9")
says(judged(idle, counts=lambda p, rank: {(0, 0): 1.0}), "missing", None, [2], words="addends of rank 2 are")
# Few elements do not determine counts, however coarse the dtype is taken to be.
draws_of = random.Random(3)
for _ in range(12):
    noise = [draws_of.gauss(0, 1) for _ in range(4)]
    four = Job("dp=3", [Param("w", [4])], seed=draws_of.randrange(1000))
    says(judged(four, after=lambda p, rank, values: rounded("F32", noise)), "unexplained")

# Addends that are equal cannot be distinguished: that looks like sums made too early, so right sums give no verdict on
# them.
identical = Job("dp=4", [Param("w", [20]), Param("v", [30])])
for name in "w", "v":
    identical.addends[3, 0, name] = identical.addends[2, 0, name]
document = judged(identical)
assert document["verdict"] == "cannot_tell", document["verdict"]
for name in "w", "v":
    found = verdict(document, "identical_addends", None, [2, 3], name=name, words="ranks 2 and 3 hold the same addend")
    assert found["counts"] == [[1], [1], [None], [None]], found["counts"]
same = "ranks 2 and 3 hold the same addend, so only the sum of their counts is known"
assert document["messages"] == [same + "; give each rank its own batch, or allow it (--allow-identical) where they are meant to "
                                "be equal"], document["messages"]
document = judged(identical, "--allow-identical", status=0)
assert document["messages"] == [same], document["messages"]
assert param(document)["counts"] is None and param(document)["ranks"] == []
# A sum that is wrong whichever of the equal addends were counted is still called wrong.
document = judged(identical, counts=lambda p, rank: {(r, 0): 1.0 for r in (1, 2, 3)})
assert document["verdict"] == "wrong"
verdict(document, "missing", "dp", [0])
for r in range(4):
    identical.addends[r, 0, "w"] = identical.addends[0, 0, "w"]
fourth = lambda p, rank: {(r, 0): 0.25 for r in range(4)} if p.name == "w" else None
document = judged(identical, counts=fourth)
assert document["verdict"] == "wrong"
verdict(document, "not_distinguishable", words="averaged over dp")
verdict(document, "identical_addends", None, [2, 3], name="v")
assert any("ranks 0, 1, 2 and 3 hold the same addend (1 of 2 parameters)" in m for m in document["messages"])
judged(identical, "--allow-identical", counts=fourth)
# The same with microbatches; and one rank's first addend may be another's second.
twice = Job("dp=2", [Param("w", [20]), Param("v", [9])], microbatches=2)
twice.addends[1, 1, "w"] = twice.addends[1, 0, "w"]
twice.addends[1, 1, "v"] = twice.addends[0, 0, "v"]
document = judged(twice)
found = verdict(document, "identical_addends", None, [1], words="microbatches of rank 1 hold the same addend")
assert found["counts"] == [[1, 1], [None, None]], found["counts"]
assert verdict(document, "identical_addends", None, [0, 1], name="v")["counts"] == [[None, 1], [1, None]]
# On an axis on which all ranks do the same, addends have to be equal.
judged(Job("dp=2 tp=2", [Param("w", [20], "tp=I")]), status=0)
# The sum of zeros is zero however it is made: a parameter whose addends are all zero is not called right. One element
# of one addend that is not zero is enough for a judgement.
for zero in 0.0, -0.0:
    unused = Job("dp=3", [Param("w", [20]), Param("v", [9])])
    for r in range(3):
        unused.addends[r, 0, "w"] = [zero] * 20
    document = judged(unused)
    assert document["verdict"] == "cannot_tell", document["verdict"]
    found = verdict(document, "not_observed", words="a later step")
    assert found["counts"] is None and param(document, "v")["pass"], found
    # The sum of what no hook saw, or nothing but zeros in the sample.
    verdict(judged(unused, after=lambda p, rank, values: [1 + v for v in values] if p.name == "w" else values), "not_observed",
            words="its sum is not")
    verdict(judged(unused, skip=lambda kind, rank, m, name: kind == "addend" and name == "w"), "not_observed")
    unused.addends[1, 0, "w"] = [zero] * 19 + [1e-30]
    judged(unused, status=0)
    # A mistake that shows although the addends are zero stays one.
    verdict(judged(unused, counts=lambda p, rank: {(0, 0): 1.0, (2, 0): 1.0} if p.name == "w" else None), "missing")
wide = Job("dp=3", [Param("w", [50, 20]), Param("v", [9])], sample=16)
for r in range(3):
    wide.addends[r, 0, "w"] = [float(i not in sample("w", 1000, 16)) for i in range(1000)]
verdict(judged(wide), "not_observed", words="16 elements that were sampled")
wide.sample = None
judged(wide, "--allow-identical", status=0)
# One shard without a gradient is no parameter without one; and a reference that is zero too shows that zero is right.
halves = Job("dp=2 ep=2", [Param("w", [8, 5], "ep=S0"), Param("v", [9])])
for r in (0, 2):
    halves.addends[r, 0, "w"] = [0.0] * 40
judged(halves, status=0)
for r in (1, 3):
    halves.addends[r, 0, "w"] = [0.0] * 40
verdict(judged(halves), "not_observed")
zeros = os.path.join(work, "zeros.safetensors")
write(zeros, {}, {p.name: ("F32", p.shape, halves.sum_of(p, 0, halves.right(p, 0))) for p in halves.params})
judged(halves, "--reference", zeros, status=0)
# Ranks that ran different numbers of backwards: an addend file without tensors is no addend.
uneven = Job("dp=3", [Param("w", [20]), Param("v", [9])], microbatches=3)
ran = {0: 3, 1: 3, 2: 2}
less = lambda kind, rank, m, name: kind == "addend" and m >= ran[rank]
run_only = lambda p, rank: {(r, m): 1.0 for r in range(3) for m in range(ran[r])}
document = judged(uneven, status=0, skip=less, counts=run_only)
assert document["dumped"] == {"addends": 8, "sums": 3, "reference": False}, document["dumped"]
assert document["messages"] == ["ranks ran different numbers of backwards: 3 on ranks 0 and 1, 2 on rank 2"], document["messages"]
assert judged(uneven, status=0)["messages"] == []
# Divisors of the backwards that ran still say what each rank divided by.
divided = lambda kind, rank, m: {"addend.divisor": str(4 + rank)} if kind == "addend" and m < ran[rank] else {}
verdict(judged(uneven, skip=less, counts=run_only, extra=divided), "divided_by_own_count", words="4 to 6")
identical_divided = lambda kind, rank, m: {"addend.divisor": "4"} if kind == "addend" and m < ran[rank] else {}
judged(uneven, status=0, skip=less, counts=run_only, extra=identical_divided)
# Two bf16 numbers are equal by chance in one of some hundred cases; three, or one f32 number, are not.
for dtype, numel, status in ("BF16", 1, 0), ("BF16", 2, 0), ("BF16", 3, 1), ("F16", 2, 0), ("F16", 3, 1), ("F32", 1, 1), ("F64", 1, 1):
    few = Job("dp=3", [Param("w", [numel], dtype=dtype)])
    few.addends[1, 0, "w"] = few.addends[0, 0, "w"]
    judged(few, status=status)
# Addends that agree at the beginning and differ far behind are not equal; of equal ones every set is found.
long = Job("dp=6", [Param("w", [200]), Param("v", [200])])
for r in range(6):
    long.addends[r, 0, "w"][:150] = long.addends[0, 0, "w"][:150]
    long.addends[r, 0, "v"] = long.addends[r // 2 * 2, 0, "v"]
long.addends[5, 0, "v"] = long.addends[3, 0, "v"] = long.addends[2, 0, "v"]
document = judged(long)
assert param(document)["pass"] and not param(document, "v")["pass"]
assert [m.split(" hold")[0] for m in sorted(document["messages"])] == ["ranks 0 and 1", "ranks 2, 3 and 5"], document["messages"]
# A reference shows what the sum should be.
whole = os.path.join(work, "alike.safetensors")
write(whole, {}, {p.name: ("F32", p.shape, identical.sum_of(p, 0, identical.right(p, 0))) for p in identical.params})
judged(identical, "--reference", whole, status=0)
# The sentences that are printed.
reported = subprocess.run([program, "diff", os.path.join(work, "dump")], capture_output=True, text=True, timeout=60)
assert reported.returncode == 1 and "  ??   v" in reported.stdout and "CANNOT TELL: 2 of 2 parameters; give each rank its own batch, or " \
    "--allow-identical where addends are meant to be equal\n" in reported.stdout, reported.stdout
judged(identical, counts=fourth)
reported = subprocess.run([program, "diff", os.path.join(work, "dump")], capture_output=True, text=True, timeout=60)
assert reported.returncode == 1 and "DOES NOT MATCH: 1 of 2 parameters; of 1 more it cannot tell" in reported.stdout, reported.stdout

# Sums that are still partial, and sums that no rank has.
part = Job("dp=3 tp=2", [Param("w", [10])])
split = lambda p, rank: {(r, 0): 1.0 for r in range(6) if part.place(r)["tp"] == part.place(rank)["tp"]}
says = lambda kind, rank, m: {"addend.partial": '{"w": "tp"}'} if kind == "sum" else {}
judged(part, status=0, counts=split, extra=says)
verdict(judged(part, counts=split), "partial", "tp")
verdict(judged(job, skip=lambda kind, rank, m, name: kind == "sum" and name == "w"), "no_sum", words="has no sum")
verdict(judged(fsdp, skip=lambda kind, rank, m, name: kind == "sum" and name == "w" and rank == 1), "no_sum",
        words="6 of 15 elements")

# Positions that are not row-major: rank r stands where the axes in reverse order would put it.
class Turned(Job):
    def place(self, rank):
        return {"dp": rank % 3, "tp": rank // 3}

    def rank_at(self, place):
        return place["tp"] * 3 + place["dp"]


turned = Turned("dp=3 tp=2", [Param("w", [4, 5], "tp=S0")])
coord = lambda kind, rank, m: {"addend.coord": " ".join(f"{a}={i}" for a, i in turned.place(rank).items())}
judged(turned, status=0, extra=coord)

# Comparisons with a reference.
whole = Job("dp=3 tp=2", [Param("w", [8, 5], "tp=S1"), Param("b", [3], "tp=I")], expect=1 / 3)
truth = {p.name: ("F32", p.shape, [sum(v) for v in zip(*(whole.sum_of(p, r, whole.right(p, r)) for r in range(2)))])
         for p in whole.params}
truth["b"] = "F32", [3], whole.sum_of(whole.params[1], 0, whole.right(whole.params[1], 0))
reference = os.path.join(work, "reference.safetensors")
write(reference, {}, truth)
document = judged(whole, "--reference", reference, status=0)
assert document["dumped"]["reference"] and param(document)["reference"]["pass"]
assert abs(param(document)["reference"]["ratio"] - 1) < 1e-6 and param(document)["reference"]["cause"] is None
for factor, kind, axes in (3, "averaged", "dp"), (0.5, "doubled", "tp"), (0.77, "unknown", ""):
    write(reference, {"addend.kind": "reference"}, {**truth, "w": ("F32", [8, 5], [factor * v for v in truth["w"][2]])})
    document = judged(whole, "--reference", reference)
    found = param(document)
    assert found["kind"] == "right" and found["verdict"] == "wrong", found
    assert found["reference"]["cause"]["kind"] == kind and found["reference"]["cause"]["axes"] == axes, found["reference"]
    assert abs(found["reference"]["ratio"] * factor - 1) < 1e-5 and param(document, "b")["pass"]
# Several axes may have as many ranks as the factor.
tied = Job("a=2 b=2", [Param("w", [8, 5])])
write(reference, {}, {"w": ("F32", [8, 5], tied.sum_of(tied.params[0], 0, {key: 2.0 for key in tied.right(tied.params[0], 0)}))})
document = judged(tied, "--reference", reference)
assert param(document)["kind"] == "right" and param(document)["verdict"] == "wrong"
assert param(document)["text"].endswith("not to the reference: possible causes: averaged, or divided by a count that was summed twice, over a; averaged, or divided by a count that was summed twice, over b"), param(document)["text"]
causes(document, "a", "b")
causes(document, "a", "b", of=lambda found: found["reference"])
write(reference, {}, {"b": truth["b"], "w": ("F32", [8, 5], [v + (i % 2) for i, v in enumerate(truth["w"][2])])})
found = param(judged(whole, "--reference", reference))
assert found["reference"]["cause"]["kind"] == "missing" and "not to the reference" in found["text"], found
write(reference, {}, {"b": truth["b"]})
document = judged(whole, "--reference", reference, status=0)
assert document["messages"] == ["the reference has no `w`"] and param(document)["reference"] is None
# The reference may be another dump of the model, on another mesh, whose sums are put together; and it may have sums
# without addends.
other = Job("dp=2", [Param("w", [8, 5], held=shard("dp", 2, 8, 5)), Param("b", [3])])
other.sum_of = lambda p, rank, counts: truth[p.name][2]
other.save(os.path.join(work, "other"))
document = judged(whole, "--reference", os.path.join(work, "other"), status=0)
assert param(document)["reference"]["max_rel_err"] < 1e-6
for name in os.listdir(os.path.join(work, "dump")):
    if "addend" in name:
        os.remove(os.path.join(work, "dump", name))
result = run(os.path.join(work, "dump"), "--reference", os.path.join(work, "other"))
assert result.returncode == 0, result
result = run(os.path.join(work, "dump"))
assert result.returncode == 2 and "the right sums are not known" in result.stderr

# The global norm.
normed = Job("dp=3 tp=2", [Param("w", [8, 5], "tp=S1"), Param("b", [13], "tp=I"), Param("c", [11])])
squares = {}
for p in normed.params:
    values = [0.0] * p.numel()
    for rank in range(2):
        for i in indices(p.shape, normed.own_box(p, rank)):
            values[i] = normed.sum_of(p, rank, normed.right(p, rank))[i]
    squares[p.name] = sum(v * v for v in values)
says = lambda square: lambda kind, rank, m: {"addend.norm": repr(square ** 0.5)} if kind == "sum" else {}
document = judged(normed, status=0, extra=says(sum(squares.values())))
assert document["norm"]["pass"] and document["norm"]["counted"] == []
document = judged(normed, extra=says(squares["w"] + 2 * squares["b"] + 2 * squares["c"]))
assert not document["norm"]["pass"] and "along tp" in document["norm"]["text"], document["norm"]
assert document["norm"]["counted"] == [{"name": "b", "times": 2}, {"name": "c", "times": 2}]
document = judged(normed, extra=says(squares["w"] + squares["b"]))
assert document["norm"]["counted"] == [{"name": "c", "times": 0}], document["norm"]
square = Job("a=2 b=2", [Param("w", [40], "a=I b=I"), Param("v", [7], "a=I b=I")])
own = {p.name: sum(v * v for v in square.sum_of(p, 0, square.right(p, 0))) for p in square.params}
document = judged(square, extra=says(2 * sum(own.values())))
causes(document, "a", "b", name=None, of=lambda found: found["norm"])
assert "possible causes: each replica along a was counted; each replica along b" in document["norm"]["text"], document["norm"]
assert document["norm"]["counted"] == [{"name": "v", "times": 2}, {"name": "w", "times": 2}], document["norm"]
# Causes that count other parameters agree on none.
twins = Job("dp=3", [Param("b", [13]), Param("c", [13]), Param("d", [20])])
for r in range(3):
    twins.addends[r, 0, "c"] = [-v for v in twins.addends[r, 0, "b"]]
each = {p.name: sum(v * v for v in rounded("F32", twins.sum_of(p, 0, twins.right(p, 0)))) for p in twins.params}
found = judged(twins, extra=says(sum(each.values()) + each["b"]))["norm"]
assert [cause["text"] for cause in found["possible_causes"]] == ["`b` was counted 2 times", "`c` was counted 2 times"], found
assert found["counted"] == [], found
document = judged(normed, extra=says(1.2345 * sum(squares.values())))
assert document["norm"]["counted"] == [] and "no count" in document["norm"]["text"]
document = judged(normed, extra=lambda kind, rank, m: {"addend.norm": str(1 + rank)} if kind == "sum" else {})
assert "different norms" in document["norm"]["text"]


# Check that a dump with this change is refused by name.
def refused(change, *words, status=2, job=None, **how):
    path = os.path.join(work, "refused")
    shutil.rmtree(path, ignore_errors=True)
    (job or Job("dp=3", [Param("w", [6, 2], "dp=R"), Param("b", [3])])).save(path, **how)
    change(path)
    result = run(path)
    assert result.returncode == status and not result.stdout, (result.returncode, result.stdout, result.stderr)
    for word in words:
        assert word in result.stderr, (word, result.stderr)
    global done
    done += 1


def again(name, metadata=None, tensors=None):
    """Return the file with other metadata or tensors."""
    def change(path):
        file = os.path.join(path, name)
        data = open(file, "rb").read()
        length = int.from_bytes(data[:8], "little")
        header = json.loads(data[8:8 + length])
        header["__metadata__"].update(metadata or {})
        for key in [k for k, v in header["__metadata__"].items() if v is None]:
            del header["__metadata__"][key]
        write(file, header["__metadata__"], tensors or {"w": ("F32", [6, 2], [0.0] * 12), "b": ("F32", [3], [0.0] * 3)})
    return change


one, two = "rank00001.addend.m0.safetensors", "rank00002.sum.safetensors"
refused(lambda path: os.truncate(os.path.join(path, one), os.path.getsize(os.path.join(path, one)) - 8), one, "cut short")
refused(lambda path: (os.remove(os.path.join(path, one)), os.remove(os.path.join(path, two))), "rank 1 has no addend file",
        "rank 2 has no sum file")
refused(lambda path: shutil.copy(os.path.join(path, one), os.path.join(path, "copy.safetensors")), one, "copy", "so is")
refused(lambda path: [write(os.path.join(path, name + ".safetensors"), {"addend.kind": "reference"}, {"b": ("F32", [3], [0.0] * 3)})
                      for name in ("first", "second")], "first", "second", "is a reference, and so is")
refused(again(one, tensors={"w": ("F32", [5, 2], [0.0] * 10), "b": ("F32", [3], [0.0] * 3)}), one, '"w"', "[5, 2]", "[6, 2]")
refused(again(one, tensors={"w": ("F32", [6, 2], [float("nan")] * 12)}), one, "nan", "w[0, 0]")
refused(again(one, {"addend.shapes": '{"w": [7, 2]}'}), one, "[7, 2]", "[6, 2]")
refused(again(one, {"addend.types": '{"b": "tp=S0"}'}), "tp=S0", "name of an axis")
refused(again(one, {"addend.types": '{"w": "dp=I"}'}), "dp=I", "dp=R")
refused(again(one, {"addend.types": '{"b": "dp=Q"}'}), "is not a type")
refused(again(one, {"addend.step": "4"}), one, "step")
refused(again(one, {"addend.mesh": "dp=2"}), one, "mesh")
refused(again(one, {"addend.mesh": None}), one, "no addend.mesh")
refused(again(one, {"addend.rank": "3"}), one, "addend.rank is 3")
refused(again(one, {"addend.rank": "x"}), one, "addend.rank", "x")
refused(again(one, {"addend.kind": "grad"}), one, "grad", "addend, sum or reference")
refused(again(one, {"addend.version": "2"}), one, "addend.version")
refused(again(one, {"addend.expect": "0"}), one, "addend.expect")
refused(again(one, {"addend.divisor": "-1"}), one, "addend.divisor")
refused(again(one, {"addend.coord": "dp=0"}), "coord")
refused(again(two, {"addend.held": '{"w": [[4, 0], [6, 2]]}'}), two, "addend.held")
refused(again(two, {"addend.reduce": "f8"}), two, "addend.reduce")
refused(again(two, {"addend.reduce": "u8"}), two, "addend.reduce", "cannot be summed in u8; use f64, f32, bf16 or f16")
refused(again(two, {"addend.reduce": '{"*": "i32"}'}), two, "addend.reduce", "cannot be summed in i32")
refused(again(one, {"DCP_SHARDING_INFO": '{"w": {"saved_offsets": [1, 0]}}'}), one, "DCP_SHARDING_INFO")
refused(lambda path: [os.remove(os.path.join(path, name)) for name in os.listdir(path)], "refused")
assert run(os.path.join(work, "nowhere")).returncode == 2
assert expect_of({"*": 1, "a.*": 2}, "a.b") == 2

# Files with equal maps and tensors are read and checked once, if nothing is cut. Here all files but one are equal; that
# one's contents count, whichever kind of file it is.
same = {"addend.expect": '{"*": 1.0}', "addend.held": '{"w": [[0, 0], [6, 2]], "b": [[0], [3]]}'}
every = [f"rank{rank:05}.{kind}.safetensors" for rank in range(3) for kind in ("addend.m0", "sum")]
short = {"w": ("F32", [5, 2], [0.0] * 10), "b": ("F32", [3], [0.0] * 3)}
for name in one, two:
    refused(again(name, {"addend.held": '{"w": [[0, 0], [3, 2]], "b": [[0], [3]]}'}), name, "[6, 2], but must have shape [3, 2]", metadata=same)
    refused(again(name, {"addend.expect": '{"*": 2.0}'}), name, "addend.expect", "in another file", metadata=same)
    refused(again(name, {"addend.shapes": '{"w": [12], "b": [3]}'}), name, "[12]", "[6, 2]", metadata=same)
refused(lambda path: [again(name, tensors=short)(path) for name in every], *every, metadata=same)
refused(lambda path: [again(name, tensors=short)(path) for name in every if "sum" in name], *every[1::2], metadata=same)
cut = Job("dp=2", [Param("w", [5, 2], "dp=S0")])  # one part of two rows and one of three
refused(again(one, tensors={"w": ("F32", [2, 2], [0.0] * 4)}), one, "must have shape [3, 2]", job=cut)
said = {"addend.expect": '{"*": 1.0}', "addend.held": '{"w": [[0], [10]]}'}
judged(part, status=0, counts=split, metadata={**said, "addend.partial": '{"w": "tp"}'})
says = lambda kind, rank, m: {"addend.partial": '{"w": "tp"}'} if (kind, rank) == ("sum", 4) else {}
judged(part, status=0, counts=split, metadata=said, extra=says)
rounds = lambda kind, rank, m: {"addend.reduce": '{"*": "bf16"}'} if (kind, rank) == ("sum", 2) else {}
judged(Job("dp=3", [Param("w", [10])]), status=0, after=coarse, metadata=said, extra=rounds)
says = lambda kind, rank, m: {"addend.unjudged": '{"w": "it is compressed"}'} if (kind, rank) == ("addend", 1) else {}
verdict(judged(Job("dp=3", [Param("w", [10])]), metadata=said, extra=says), "not_judged", words="cannot tell: it is compressed")
# A file without maps does not repeat another file that has other tensors.
bare, path = {key: None for key in (*same, "addend.shapes", "addend.types")}, os.path.join(work, "bare")
Job("dp=3", [Param("w", [6, 2])]).save(path)
for name in every:
    again(name, bare, {"w": ("F32", [3], [1.0 + 2 * ("sum" in name)] * 3), **({"v": ("F32", [2], [1.0] * 2)} if name == one else {})})(path)
verdict(json.loads(run(path, "--allow-identical").stdout), "no_sum", words="has no sum", name="v")

print(f"diff: {done} dumps judged")
