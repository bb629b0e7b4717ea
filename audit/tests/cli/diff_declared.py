"""Test what `addend diff` says of declared types: each cell of the table in audit/docs/dumps.md, with one microbatch and
with three; sharded parameters whose parts are copies; sources that are believed; what is refused. Called by
diff_declared.sh with the program and an empty folder.
"""
import json
import os
import shutil
import subprocess
import sys

sys.path.insert(0, os.path.dirname(__file__))
from dumps import Job, Param, rounded  # noqa: E402

program, work = sys.argv[1:3]
done = 0


def run(job, *arguments, folder="dump", **how):
    path = os.path.join(work, folder)
    shutil.rmtree(path, ignore_errors=True)
    job.save(path, **how)
    global done
    done += 1
    return subprocess.run([program, "diff", "--json", path, *arguments], capture_output=True, text=True, timeout=60)


def judged(job, *arguments, **how):
    """Return the document of a dump of this job."""
    result = run(job, *arguments, **how)
    assert result.returncode in (0, 1), (result.returncode, result.stderr)
    document = json.loads(result.stdout)
    assert document["pass"] == (result.returncode == 0)
    return document


def param(document, name="w"):
    return next(p for p in document["params"] if p["name"] == name)


def row(document, axis="tp", by="spmd_types", name="w"):
    (found,) = [r for r in document["declarations"] if (r["name"], r["axis"], r["by"]) == (name, axis, by)]
    return found


def said(types, by="spmd_types", counts=True, **more):
    return {"types": types, "by": by, "counts": counts, **more}


# ---- the table: how addends differ along tp, and what the sum has there ----

# Ranks 0 to 3 are at dp=0 tp=0, dp=0 tp=1, dp=1 tp=0, dp=1 tp=1. Data parallelism sums over dp, by a wrapper.
WRAPPER = said("dp=R", "fully_shard", sums=True)


def make(kind, addends, microbatches=1, dtype="F32", size=30):
    """Return a job whose parameter w has this type on tp. `addends` along tp: same, near (a part of 1/1000 of the
    largest element), apart, zero.
    """
    job = Job("dp=2 tp=2", [Param("w", [size], f"tp={kind}", dtype=dtype), Param("v", [20])], microbatches=microbatches)
    for m in range(microbatches):
        for first in 0, 2:
            own = [0.0] * size if addends == "zero" else job.addends[first, m, "w"]
            at = max(range(size), key=lambda i: abs(own[i]))
            other = [job.random.gauss(0, 1) for _ in own] if addends == "apart" else list(own)
            other[at] += own[at] / 1000 if addends == "near" else 0
            job.addends[first, m, "w"], job.addends[first + 1, m, "w"] = own, rounded(dtype, other)
    return job


def along(job, has):
    """Return counts of a sum that goes over dp, and over tp (`all`) or not (`own`), or is the mean over tp."""
    def counts(p, rank):
        if p.name != "w":
            return None
        ranks = [r for r in range(4) if has != "own" or r % 2 == rank % 2]
        return {(r, m): 0.5 if has == "mean" else 1.0 for r in ranks for m in range(job.microbatches)}
    return counts


def cell(kind, addends, has, microbatches=1, rows=None, dtype="F32", values=None, arguments=(), given=False, size=30):
    """Return the document of a job with one declaration, or with `rows`; `given`: the writer gave the type itself."""
    job = make(kind, addends, microbatches, dtype, size)
    rows = [WRAPPER, said(f"tp={kind}", "types=" if given else "spmd_types")] if rows is None else rows
    metadata = {"addend.declared": json.dumps({"w": rows})} if rows else {}
    says = lambda what, rank, m: {"addend.values": json.dumps({"w": values[rank]})} if values and what == "sum" else {}
    return judged(job, *arguments, counts=along(job, has), metadata=metadata, extra=says)


def verdict(document, *wanted, kinds=()):
    """Check verdict and row: verdict, whether the declaration holds, why."""
    found, declared = param(document), row(document)
    assert (found["verdict"], declared["holds"], declared["why"]) == wanted, (wanted, found, declared)
    assert not kinds or found["kind"] in kinds, (kinds, found)
    assert bool(declared["text"]) == (declared["why"] != ""), declared
    if declared["text"]:
        assert f"says {declared['type']} on tp (spmd_types)" in declared["text"], declared
    assert param(document, "v")["verdict"] == "right"
    return document


def messages(document, *facts):
    return [text for text in document["messages"] if all(fact in text for fact in facts)]


for microbatches in 1, 3:
    of = lambda *what, **how: cell(*what, microbatches=microbatches, **how)  # noqa: B023
    # I is declared.
    assert not verdict(of("I", "same", "own"), "right", True, "")["messages"]
    document = verdict(of("I", "same", "all"), "cannot_tell", None, "same", kinds=["not_judged"])
    assert "says I on tp (spmd_types)" in param(document)["text"] and "2 times" in param(document)["text"], document
    verdict(of("I", "same", "mean"), "right", True, "")
    document = verdict(of("I", "apart", "own"), "wrong", False, "differ", kinds=["own_only"])
    assert param(document)["axis"] == "tp" and "says I on tp (spmd_types)" in param(document)["text"], document
    assert [cause["kind"] for cause in param(document)["possible_causes"]] == ["own_only", "other_batches"]
    assert len(messages(document, "`w`", "I on tp", "(spmd_types)", "R")) == 1 == len(document["messages"]), document
    document = verdict(of("I", "apart", "own", values="abab"), "wrong", False, "values", kinds=["own_only"])
    assert messages(document, "`w`", "(S)", "(R)"), document
    document = verdict(of("R", "apart", "own", values="abab"), "wrong", None, "values", kinds=["partial", "own_only"])
    assert messages(document, "`w`", "R on tp", "(S)"), document
    document = verdict(of("I", "apart", "all"), "right", False, "summed")
    assert param(document)["types"] == "dp=R tp=R" and len(messages(document, "`w`", "I on tp", "R")) == 1, document
    assert len(document["messages"]) == 1, document
    verdict(of("I", "apart", "mean"), "cannot_tell", None, "")
    verdict(of("I", "near", "own"), "wrong", None, "near", kinds=["own_only", "replicas_differ"])
    verdict(of("I", "near", "all"), "cannot_tell", None, "")
    verdict(of("I", "zero", "own"), "cannot_tell", None, "", kinds=["not_observed"])
    # R is declared.
    document = verdict(of("R", "same", "own"), "cannot_tell", False, "same", kinds=["not_judged"])
    assert "says R on tp (spmd_types)" in param(document)["text"] and "(I)" in param(document)["text"] and "(R)" in param(document)["text"], document
    assert len(messages(document, "`w`", "R on tp", "(spmd_types)", "I")) == 1, document
    document = verdict(of("R", "same", "all"), "cannot_tell", None, "same", kinds=["identical_addends"])
    assert "says R on tp (spmd_types)" in param(document)["text"] and "2 times" in param(document)["text"], document
    verdict(of("R", "same", "all", arguments=["--allow-identical"]), "right", None, "same")
    document = verdict(of("R", "apart", "own"), "wrong", True, "unsummed", kinds=["partial", "own_only"])
    assert param(document)["axis"] == "tp" and messages(document, "`w`", "R on tp"), document
    verdict(of("R", "apart", "own", values="aabb"), "wrong", True, "unsummed", kinds=["partial", "own_only", "replicas_differ"])
    assert not verdict(of("R", "apart", "all"), "right", True, "")["messages"]
    verdict(of("R", "zero", "all"), "cannot_tell", None, "", kinds=["not_observed"])
    verdict(of("R", "zero", "own"), "cannot_tell", None, "", kinds=["not_observed"])
    # The writer's own types are believed, as where nothing is declared.
    for kind in "I", "R":
        for addends in "same", "near", "apart", "zero":
            for has in "own", "all", "mean":
                here, nothing = of(kind, addends, has, given=True), of(kind, addends, has, rows=[])
                assert here.pop("declarations") and "declarations" not in nothing
                assert here == nothing, (kind, addends, has)
    # Without its declaration the verdict is the same, but where all ranks have the same addends and R is declared. An I
    # that is not declared is one that the writer assumes.
    for kind, addends, has in ("I", "same", "own"), ("I", "same", "all"), ("I", "apart", "own"), ("I", "apart", "all"), (
            "I", "near", "own"), ("I", "near", "all"), ("R", "apart", "own"), ("R", "apart", "all"):
        job = make(kind, addends, microbatches)
        assumed = {"addend.assumed": json.dumps({"w": "tp"})} if kind == "I" else {}
        plain = param(judged(job, counts=along(job, has), metadata=assumed))
        declared = param(of(kind, addends, has))
        assert all(plain[key] == declared[key] for key in ("verdict", "kind", "axis", "ranks", "counts")), (plain, declared)

# Nearly the same addends of R that nobody sums: the same work in another order of additions, but replicas have other bits.
document = cell("R", "near", "own")
assert param(document)["verdict"] == "wrong", document
# In a narrow dtype 64 roundings are more than 1/16 of the largest element: addends that differ by that much are not "the
# same" in any sentence.
for part, holds, why in (0, False, "same"), (1 / 20, None, ""), (1 / 15, None, ""), (0.7, None, ""), (0.8, True, "unsummed"):
    job = make("R", "same", dtype="BF16", size=200)
    for rank in 1, 3:
        at = max(range(200), key=lambda i: abs(job.addends[rank, 0, "w"][i]))  # noqa: B023
        job.addends[rank, 0, "w"][at] *= 1 - part
        job.addends[rank, 0, "w"] = rounded("BF16", job.addends[rank, 0, "w"])
    document = judged(job, counts=along(job, "own"), metadata={"addend.declared": json.dumps({"w": [said("tp=R")]})})
    found = param(document)["verdict"], row(document)["holds"], row(document)["why"]
    assert found == ("wrong" if part else "cannot_tell", holds, why), (part, found)

for part, holds, why in (1 / 20, True, ""), (0.5, None, "near"):
    job = make("I", "same", dtype="BF16", size=200)
    for rank in 1, 3:
        at = max(range(200), key=lambda i: abs(job.addends[rank, 0, "w"][i]))  # noqa: B023
        job.addends[rank, 0, "w"] = rounded("BF16", [v * (1 - part * (i == at)) for i, v in enumerate(job.addends[rank, 0, "w"])])  # noqa: B023
    document = judged(job, counts=along(job, "own"), metadata={"addend.declared": json.dumps({"w": [said("tp=I")]})})
    assert (row(document)["holds"], row(document)["why"]) == (holds, why), (part, document)
# The same sums of other addends: ranks along tp have the same batches, in another order along dp.
job = make("R", "apart")
job.addends[2, 0, "w"], job.addends[3, 0, "w"] = job.addends[1, 0, "w"], job.addends[0, 0, "w"]
document = judged(job, counts=along(job, "own"), metadata={"addend.declared": json.dumps({"w": [said("tp=R")]})})
assert param(document)["verdict"] == "wrong" and row(document)["holds"] is not False, document

# ---- several sources ----

# types= overrides a declaration, which is judged all the same.
rows = [WRAPPER, said("tp=I", counts=False), said("tp=R", "types=")]
document = verdict(cell("R", "apart", "all", rows=rows), "right", False, "summed")
assert row(document)["counts"] is False and row(document, by="types=")["holds"] is True, document
assert row(document, "dp", "fully_shard")["holds"] is True
rows = [said("tp=R", counts=False), said("tp=I", "types=")]
verdict(cell("I", "same", "own", rows=rows), "right", False, "same")
verdict(cell("I", "apart", "own", rows=rows), "wrong", True, "unsummed", kinds=["own_only"])
# Where sources say different types, a verdict on the sum says whose it was read by, and who says another.
rows = [said("tp=I", counts=False), said("tp=R", "types=")]
for has, counts in ("partial", along(make("R", "apart"), "own")), ("own_only", lambda p, rank: {(rank, 0): 1.0}):
    job = make("R", "apart")
    for against in rows, rows[1:]:
        found = param(judged(job, counts=counts, metadata={"addend.declared": json.dumps({"w": against})}))
        assert found["kind"] == has, found
        assert ("types= says R on tp, and spmd_types says I" in found["text"]) == (against == rows), found
        assert ("spmd_types" in found["text"]) == (against == rows), found
job = make("I", "apart")  # types= says I, and the sum goes over tp
over_tp = lambda p, rank: {(r, 0): 1.0 for r in range(4) if r // 2 == rank // 2} if p.name == "w" else None
rows = [said("tp=R", counts=False), said("tp=I", "types=")]
found = param(judged(job, counts=over_tp, metadata={"addend.declared": json.dumps({"w": rows})}))
assert found["kind"] == "wrong_group" and "types= says I on tp, and spmd_types says R" in found["text"], found
# A wrapper that sums over the axis is a fact: equal batches on data ranks are no wrong declaration.
equal = Job("dp=2", [Param("w", [30])])
equal.addends[1, 0, "w"] = equal.addends[0, 0, "w"]
for rows, why in ([said("dp=R")], "same"), ([said("dp=R"), said("dp=R", "a wrapper", sums=True)], ""), ([WRAPPER], ""):
    document = judged(equal, metadata={"addend.declared": json.dumps({"w": rows})})
    assert param(document)["kind"] == "identical_addends", document
    assert ("dp" in param(document)["text"]) == (len(rows) == 1 and why == "same"), document
    assert row(document, "dp", rows[0]["by"])["why"] == why, document
# A placement says I where nobody said otherwise: of a sum that has each addend once, that is no false declaration.
placed = {"addend.assumed": json.dumps({"w": "tp"}), "addend.declared": json.dumps({"w": [said("tp=I", placed=True)]})}
for has, wanted in ("all", ("right", None, "")), ("own", ("wrong", False, "differ")):
    job = make("I", "apart")
    document = verdict(judged(job, counts=along(job, has), metadata=placed), *wanted)
    assert len(document["messages"]) == 1 and messages(document, "`w`", "tp", "R"), document
# What a source says itself, and where, is in its words; parameters of which the same is said share a message.
job = make("I", "apart")
job.params[1] = Param("v", [20], "tp=I")
rows = {"w": [said("tp=I dp=R", where="model.py:40")], "v": [said("tp=I", where="model.py:41")]}
document = judged(job, counts=lambda p, rank: {(r, 0): 1.0 for r in (rank % 2, rank % 2 + 2)}, metadata={"addend.declared": json.dumps(rows)})
assert "(spmd_types, model.py:40)" in row(document)["text"], document
assert row(document, "dp")["holds"] is True and row(document, "dp")["text"] == "", document
assert len(document["messages"]) == 1 and len(messages(document, "`v`", "1 other", "I on tp")) == 1, document
document = cell("I", "apart", "own", rows=[said("tp=I dp=R", words="P on tp")])
assert "says P on tp (spmd_types)" in row(document)["text"], document
job = make("R", "same")
for rank in 2, 3:
    job.addends[rank, 0, "w"] = job.addends[0, 0, "w"]
document = judged(job, metadata={"addend.declared": json.dumps({"w": [said("tp=R dp=R", words="P on tp")]})})
assert "says P on tp" in row(document)["text"] and "says R on dp" in row(document, "dp")["text"], document
# One file that declares something is enough.
for what in ("addend", 3), ("sum", 0):
    extra = lambda kind, rank, m: {"addend.declared": json.dumps({"w": [said("tp=I")]})} if (kind, rank) == what else {}  # noqa: B023
    verdict(judged(make("I", "apart"), counts=along(job, "own"), extra=extra), "wrong", False, "differ")
# A sum that is left out in one of three microbatches: that nobody makes it would be false.
job = make("R", "apart", microbatches=3)
some = lambda p, rank: {(r, m): 1.0 for r in range(4) for m in range(3) if p.name != "w" or m < 2 or r % 2 == rank % 2}
document = verdict(judged(job, counts=some, metadata={"addend.declared": json.dumps({"w": [said("tp=R")]})}), "wrong", True, "", kinds=["partial"])
assert document["messages"] == [], document
# A gradient that is still Partial when the step ends is added up, and the row says so.
job = make("R", "apart")
partial = lambda what, rank, m: {"addend.partial": json.dumps({"w": "tp"})} if what == "sum" else {}
document = judged(job, counts=along(job, "own"), extra=partial, metadata={"addend.declared": json.dumps({"w": [said("tp=R", "its gradient's placements")]})})
assert param(document)["verdict"] == "right" and document["messages"] == [], document
assert row(document, by="its gradient's placements")["why"] == "partial", document
assert row(document, by="its gradient's placements")["holds"] is None, document
# An axis of one rank is not judged; a dtype is listed.
job = Job("dp=2 tp=1", [Param("w", [30], "tp=I")])
rows = [said("tp=I"), {"dtype": "F32", "by": "grad_dtype", "counts": True}]
document = judged(job, metadata={"addend.declared": json.dumps({"w": rows})})
assert row(document)["holds"] is None and param(document)["verdict"] == "right", document
assert row(document, None, "grad_dtype") == {
    "name": "w", "by": "grad_dtype", "axis": None, "type": "", "dtype": "f32", "where": "", "words": "", "stated": False, "counts": True,
    "holds": None, "why": "", "text": ""}, document

# ---- sharded parameters ----


def sharded(values, addends, stepped=None, sample=None, constant=False, rows=None, size=32, arguments=()):
    """Return the document of a job whose w, [2 * size], is declared sharded over tp. `values`: those of the ranks."""
    job = Job("dp=2 tp=2", [Param("w", [2 * size], "tp=S0", held=None)], sample=sample)
    for first in 0, 2:
        own = job.addends[first, 0, "w"][:size]
        other = own if addends == "same" else job.addends[first + 1, 0, "w"][size:]
        job.addends[first + 1, 0, "w"] = [0.0] * size + list(other)
    shard = lambda rank: {"values": values[rank], "constant": constant, **({} if stepped is None else {"stepped": stepped})}
    extra = lambda what, rank, m: {"addend.shards": json.dumps({"w": shard(rank)})} if what == "sum" else {}
    rows = [said("tp=S0")] if rows is None else rows
    return judged(job, *arguments, extra=extra, metadata={"addend.declared": json.dumps({"w": rows})})


def shards(document, *wanted):
    found, declared = param(document), row(document)
    assert (found["verdict"], declared["holds"], declared["why"]) == wanted, (wanted, found, declared)
    return document


assert shards(sharded("abab", "apart"), "right", True, "")["messages"] == []
assert shards(sharded("aaaa", "apart", constant=True), "right", True, "")["messages"] == []
shards(sharded("aaab", "same"), "right", True, "")
document = shards(sharded("aaaa", "same"), "cannot_tell", False, "same")
assert "says S0 on tp (spmd_types)" in param(document)["text"] and messages(document, "`w`", "S0 on tp", "I"), document
shards(sharded("aaaa", "same", arguments=["--allow-identical"]), "right", False, "same")
for stepped in None, False:
    document = shards(sharded("aaaa", "apart", stepped), "right", None, "seed")
    assert messages(document, "`w`", "S0 on tp"), document
document = shards(sharded("aaaa", "apart", True), "wrong", False, "copies")
found = param(document)
assert found["kind"] == "own_only" and found["axis"] == "tp" and found["cause"]["kind"] == "own_only", found
assert len(document["messages"]) == 1 and messages(document, "`w`", "S0 on tp", "R"), document
# Few elements may be equal by chance, and samples of two shards are other elements of them.
shards(sharded("aaaa", "same", size=15), "right", None, "seed")
shards(sharded("aaaa", "same", True, sample=40), "right", None, "seed")
# What the writer declares itself is compared as well.
document = sharded("aaaa", "same", rows=[said("tp=S0", "types=")])
assert param(document)["verdict"] == "cannot_tell" and "(types=)" in param(document)["text"], document

# ---- what is listed, and what is refused ----

job = make("I", "apart")
given = {"dtype": "f32", "by": "grad_dtype", "counts": True, "given": True}
silent = [WRAPPER, said("tp=R", "a placement", placed=True), {**given, "by": "a default", "given": False}, {**given, "by": "reduce="}]
for rows, facts in (({"w": [*silent, given, said("tp=I", counts=False), said("tp=R", "types=")],
                      "v": [*silent, given, said("tp=I", "a placement", counts=False, placed=True), said("tp=R", "types=")]},
                     ("2 parameters by grad_dtype", "1 by spmd_types", "types= overrides 1")),
                    # Of what the job does not say itself nothing is said.
                    ({"w": silent, "v": [*silent, said("tp=R", "types=")]}, ())):
    job.save(os.path.join(work, "listed"), metadata={"addend.declared": json.dumps(rows)})
    table = subprocess.run([program, "diff", os.path.join(work, "listed")], capture_output=True, text=True, timeout=60).stdout
    lines = [line for line in table.splitlines() if line.startswith("declared: ")]
    assert len(lines) == bool(facts) and all(fact in lines[0] for fact in facts), lines
    assert not facts or not any(by in lines[0] for by in ("fully_shard", "a placement", "a default", "reduce=")), lines

for key, value in (("declared", "[]"), ("declared", '{"w": {}}'), ("declared", '{"w": [{"types": "tp=I"}]}'),
                   ("declared", '{"w": [{"by": "x"}]}'), ("declared", '{"w": [{"by": "x", "types": "pp=R"}]}'),
                   ("declared", '{"w": [{"by": "x", "types": "tp=V"}]}'), ("declared", '{"w": [{"by": "x", "dtype": "f31"}]}'),
                   ("declared", '{"w": [{"by": "x", "dtype": "f32", "axes": "pp"}]}'), ("promised", '{"w": "f31"}'), ("promised", "i32"),
                   ("calls", "{}"), ("calls", "[1]"), ("calls", '[{"operation": "all_reduce"}]'), ("shards", "[]"),
                   ("calls", '[{"operation": "all_reduce", "bytes": -1, "count": 1}]'), ("promised", ""), ("reduce", ""),
                   ("promised", '{"w": ""}'), ("promised", '{"w": 1}'), ("promised", "[]"),
                   *(("declared", json.dumps({"w": [{**said("tp=I"), **wrong}]})) for wrong in (
                       {"types": 5}, {"by": ["x"]}, {"where": 1}, {"words": {}}, {"counts": "yes"}, {"sums": 1}, {"placed": None},
                       {"types": "", "dtype": 32}, {"given": "x"}, {"axes": []})), ("declared", '{"w": ["tp=I"]}'),
                   *((key, json.dumps({"w": wrong})) for key in ("shards", "values", "inside") for wrong in (5, None, True, [])),
                   *((key, json.dumps({"w": {"a": 1}})) for key in ("values", "unjudged")), ("unjudged", '{"w": 1}'),
                   *(("shards", json.dumps({"w": {"values": "a", **wrong}})) for wrong in (
                       {"values": 1}, {"constant": "no"}, {"stepped": 1}, {"stepped": None})), ("shards", '{"w": {}}'),
                   ("inside", '{"w": ["1", 2]}'), ("inside", '{"w": [1]}'), ("inside", '{"w": [1, 2, 3]}')):
    refused = run(make("I", "same"), metadata={f"addend.{key}": value})
    assert refused.returncode == 2 and f"addend.{key}" in refused.stderr, (key, value, refused)
    assert f"{work}/dump/rank0" in refused.stderr and ".safetensors: " in refused.stderr, (key, value, refused)

# ---- calls ----

call = {"operation": "all_reduce", "axes": "dp", "dtype": "F32", "bytes": 120, "count": 2, "phase": "backward",
        "line": "train.py:31 in step", "params": ["w"]}
calls = lambda what, rank, m: {"addend.calls": json.dumps(
    [call] + [{**call, "operation": "broadcast", "axes": "", "ranks": [0, 1]}] * (rank < 2) + [{"unseen": "a compiled region"}] * (rank > 1))} if what == "sum" else {}
document = judged(make("I", "same"), counts=along(make("I", "same"), "own"), extra=calls)
noted = [{key: entry[key] for key in (*call, "ranks", "made_by")} for entry in document["calls"]]
assert noted == [
    {**call, "ranks": [], "made_by": [0, 1, 2, 3]},
    {**call, "operation": "broadcast", "axes": "", "ranks": [0, 1], "made_by": [0, 1]}], noted
assert document["calls_unseen"] == ["a compiled region"] and "declarations" not in document
print(f"diff_declared: {done} dumps")
