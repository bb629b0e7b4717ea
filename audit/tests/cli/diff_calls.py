"""Test what `addend diff` says of the collectives that a step's ranks noted (addend.calls): which are one entry, which are
made twice, in a wider dtype than the job asked for, for nothing, or over a group that is no axis; and the table of them.
Called by diff_calls.sh with the program and an empty folder.
"""
import json
import os
import shutil
import subprocess
import sys

sys.path.insert(0, os.path.dirname(__file__))
from dumps import Job, Param, bf16  # noqa: E402

program, work = sys.argv[1:3]
path = os.path.join(work, "dump")
done = 0


def call(operation, axes, params=(), elements=40, dtype="f32", line="train.py:31 in step", phase="backward", **more):
    size = {"f32": 4, "bf16": 2, "i64": 8}[dtype]
    backwards = more.pop("backwards", [0] if phase == "backward" else [])
    return {"operation": operation, "axes": axes, "ranks": [], "dtype": dtype, "bytes": elements * size, "count": 1,
            "phase": phase, "backwards": backwards, "line": line, "params": list(params), **more}


def judged(job, calls, declared=None, promised=None, how_it_ends=0, **how):
    """Return the document of a dump of this job; `calls`: of every rank, or a function of the rank. `how_it_ends` 2: the
    dump must be refused."""
    global done
    done += 1
    shutil.rmtree(path, ignore_errors=True)
    more = {"addend.declared": json.dumps(declared)} if declared else {}
    more.update({"addend.promised": promised} if promised else {})

    def extra(kind, rank, m):
        own = calls(rank) if callable(calls) else calls
        return {"addend.calls": json.dumps(own)} if kind == "sum" and own is not None else {}

    job.save(path, metadata=more, extra=extra, **how)
    result = subprocess.run([program, "diff", "--json", path], capture_output=True, text=True, timeout=60)
    if how_it_ends == 2:
        assert result.returncode == 2 and "addend.calls" in result.stderr, (result.returncode, result.stderr)
        return None
    assert result.returncode in (0, 1), (result.returncode, result.stderr)
    return json.loads(result.stdout)


def make(microbatches=1, tp="R", **how):
    return Job("dp=2 tp=2", [Param("w", [40], f"tp={tp}", **how), Param("v", [10]), Param("s", [])], microbatches=microbatches)


def found(document):
    """Return the finding of each entry."""
    return [entry["finding"] for entry in document["calls"]]


SAID = {"w": [{"types": "dp=R", "by": "fully_shard", "counts": True, "sums": True}]}


def ranks_share_entries():
    reduce = call("all_reduce", "dp tp", ["w", "v"], 50)
    own = call("all_gather", "tp", phase="forward", line="model.py:9 in forward")
    document = judged(make(), lambda rank: [reduce, {"unseen": "a compiled region"}] + ([own] if rank in (1, 2) else []))
    assert [(c["operation"], c["made_by"]) for c in document["calls"]] == [("all_reduce", [0, 1, 2, 3]), ("all_gather", [1, 2])]
    assert document["calls_unseen"] == ["a compiled region"] and found(document) == ["", ""]
    assert [c["needed"] for c in document["calls"]] == [200, None]
    assert document["calls"][0]["bytes"] == 200 and document["calls"][0]["line"] == "train.py:31 in step"
    without = judged(make(), None)
    assert "calls" not in without and "calls_unseen" not in without


HOOK = {"line": "model.py:40 in hook"}


def sums_that_are_made_twice_are_found():
    both = [call("all_reduce", "dp tp", ["w"], **HOOK), call("reduce_scatter", "tp", ["w", "v"], 50)]
    document = judged(make(), both, SAID)
    assert found(document) == ["twice", "twice"]
    (message,) = document["messages"]
    assert all(word in message for word in ("`w`", "over tp", "model.py:40", "train.py:31")) and "dp" not in message
    assert message == document["calls"][0]["text"]
    # a job that declares nothing gets the entries, and no message
    document = judged(make(), both)
    assert found(document) == ["twice", "twice"] and not document["messages"] and document["pass"]
    for calls in (
        [call("all_reduce", "tp", ["w"], count=2)],
        [call("all_reduce", "tp", ["w"], count=3, backwards=[0, 1])],
        [call("all_reduce", "tp", ["w"], phase="after"), call("reduce", "tp", ["w"], backwards=[1])],
        [call("all_reduce", "tp", ["w"], backwards=[0, 1], **HOOK), call("all_reduce", "tp", ["w"], backwards=[1])],
        [call("all_reduce", "tp", ["w"], phase="after", count=2)],
    ):
        document = judged(make(2), calls, SAID)
        assert found(document) == ["twice"] * len(calls) and len(document["messages"]) == 1, document["messages"]


def what_is_no_second_sum_is_not_found():
    first = call("all_reduce", "tp", ["w"])
    for microbatches, calls in (
        (1, [first, call("all_reduce", "dp", ["w"], **HOOK)]),  # another axis
        (1, [first, call("all_reduce", "tp", ["v"], 10, **HOOK)]),  # another parameter
        (1, [first, call("all_reduce", "tp", ["w"], 39, **HOOK)]),  # less than the gradient: a statistic
        (1, [call("all_reduce", "tp", ["s"], 1), call("all_reduce", "tp", ["s"], 1, **HOOK)]),  # one number: a count
        (1, [first, call("all_gather", "tp", ["w"], **HOOK)]),  # the second half of an all_reduce
        (1, [first, call("all_reduce", "tp", ["w"], phase="forward")]),
        (1, [first, call("all_reduce", "tp", (), **HOOK)]),  # nobody knows of what
        (1, [first, call("all_reduce", "", ["w"], ranks=[0, 1, 2], **HOOK)]),
        (2, [call("all_reduce", "tp", ["w"], count=2, backwards=[0, 1])]),  # once in each backward
        (2, [call("all_reduce", "tp", ["w"], backwards=[0]), call("all_reduce", "tp", ["w"], backwards=[1], **HOOK)]),
    ):
        assert "twice" not in found(judged(make(microbatches), calls, SAID)), calls
    one, other = (call("all_reduce", "tp", ["w"], **how) for how in (HOOK, {}))
    assert found(judged(make(), lambda rank: [other if rank % 2 else one], SAID)) == ["", ""]  # of different ranks
    for ranks in ([], [one], [other, one], [other]), ([], [one], [other], [one, other]):  # of one rank among others
        assert found(judged(make(), lambda rank: ranks[rank], SAID)) == ["twice", "twice"]  # noqa: B023


def shards_are_summed_after_they_were_scattered():
    job = Job("dp=2 tp=2", [Param("w", [40], held=lambda place: [[20 * place["dp"]], [20]])])
    scatter, shard = call("reduce_scatter", "dp", ["w"]), call("all_reduce", "tp", ["w"], 20)
    document = judged(job, [scatter, shard], SAID)
    assert found(document) == ["", ""] and [c["needed"] for c in document["calls"]] == [160, 80]
    assert found(judged(job, [scatter, shard, call("all_reduce", "tp", ["w"], 20, **HOOK)], SAID)) == ["", "twice", "twice"]


def asks(dtype="bf16", given=True, **more):
    return {"w": SAID["w"] + [{"dtype": dtype, "by": "fully_shard's reduce_dtype", "counts": True, "given": given, **more}]}


def dtype_row(document):
    (row,) = [r for r in document["declarations"] if r["dtype"]]
    return row


def a_wider_dtype_than_the_job_asked_for_is_found():
    job = make(dtype="BF16")
    wide = [call("reduce_scatter", "dp", ["w"]), call("all_reduce", "tp", ["w"], dtype="bf16")]
    document = judged(job, wide, asks(), "bf16")
    assert found(document) == ["wider", ""] and [c["needed"] for c in document["calls"]] == [80, 80]
    text = document["calls"][0]["text"]
    assert all(word in text for word in ("`w`", "f32", "160", "80", "bf16", "reduce_dtype")), text
    assert dtype_row(document)["holds"] is False and dtype_row(document)["why"] == "calls"
    assert document["pass"] and [m for m in document["messages"] if "`w` says bf16" in m and "train.py:31" in m]
    for declared in (asks(given=False), asks(axes="tp"), SAID):  # a default; said of another axis; nothing
        document = judged(job, wide, declared, "bf16")
        assert found(document) == ["", ""]
        assert not [r for r in document["declarations"] if r["holds"] is False]
    assert found(judged(job, [call("all_reduce", "dp", (), dtype="f32")], asks(), "bf16")) == [""]


def a_sum_that_was_formed_in_a_narrower_dtype_names_its_call():
    job = Job("dp=2 tp=2", [Param("w", [1000], dtype="BF16")])

    def in_bf16(p, rank, values):
        total = [0.0] * len(values)
        for key in sorted(job.right(p, rank)):
            total = [bf16(a + b) for a, b in zip(total, job.addends[(*key, p.name)])]
        return total

    calls = [call("all_reduce", "dp", ["w"], 1000), call("all_reduce", "tp", ["w"], 1000, "bf16", "model.py:7 in hook")]
    row = dtype_row(judged(job, calls, asks("f32"), "f32", after=in_bf16))
    assert row["holds"] is False and row["why"] == "bits" and "over tp sends bf16" in row["text"], row
    assert "model.py:7" in row["text"]


def a_sum_of_the_same_work_is_for_nothing():
    declared = {"w": SAID["w"] + [{"types": "tp=I", "by": "spmd_types", "counts": True}]}
    average = call("all_reduce", "tp", ["w"], **HOOK)
    for moves in (average, call("broadcast", "tp", ["w"], **HOOK)):
        document = judged(make(tp="I"), [call("reduce_scatter", "dp", ["w", "v"], 50), moves], declared)
        assert found(document) == ["", "for_nothing"] and document["calls"][1]["needed"] == 0, document["calls"]
        (message,) = document["messages"]
        assert all(word in message for word in ("`w`", "over tp", "model.py:40", "160")), message
    for calls, types in (
        ([call("all_reduce", "dp tp", ["w"])], declared),  # over dp, it is needed
        ([average], {"w": SAID["w"]}),  # nobody declares it
        ([call("all_gather", "tp", ["w"])], declared),
        ([call("all_reduce", "tp", ["w", "v"], 50)], declared),  # v needs it
    ):
        assert found(judged(make(tp="I"), calls, types)) == [""], calls
    doubled = judged(make(tp="I"), [average], declared, counts=lambda p, r: {k: 2.0 for k in make(tp="I").right(p, r)})
    assert found(doubled) == [""]  # the sum is wrong: what is too much is the verdict's


def a_group_that_is_no_axis_is_noted():
    declared = {"w": SAID["w"] + [{"types": "tp=R", "by": "spmd_types", "counts": True}]}
    calls = [call("all_reduce", "", ["w"], ranks=[0, 3], line="attention.py:88 in forward"),
             call("broadcast", "", ["w"], ranks=[2]), call("all_reduce", "dp tp", ["w"]),
             call("all_gather", "", ranks=[0, 3], phase="forward")]  # of no parameter: attention's own group
    document = judged(make(), calls, declared)
    assert found(document) == ["no_axis", "", "", ""] and not document["messages"]
    assert all(word in document["calls"][0]["text"] for word in ("0, 3", "attention.py:88", "dp=2 tp=2"))


def entries_that_are_no_calls_are_refused():
    for wrong in {"params": [1]}, {"params": ["w", None]}, {"ranks": ["x"]}, {"backwards": 0}, {"backwards": ["0"]}, {"unseen": 5}:
        judged(make(), [{**call("all_reduce", "dp", ["w"]), **wrong}], how_it_ends=2)


def many_ranks_with_calls_of_their_own_take_no_longer():
    """4 x 1,000 entries, each of which is compared with no other one."""
    own = lambda rank: [call("send", "", ranks=[rank, i], elements=1000 * rank + i, phase="forward") for i in range(1000)]
    assert len(judged(make(), own)["calls"]) == 4000


def tables_are_printed():
    calls = [call("reduce_scatter", "dp", ["w", "v", "s"], 1_000_000), call("all_reduce", "tp", ["w"], **HOOK),
             call("all_gather", "", ["w"], ranks=[0, 1, 2], phase="forward", dtype="i64"), {"unseen": "a compiled region"}]
    judged(make(), lambda rank: calls if rank != 1 else calls[:1])
    result = subprocess.run([program, "diff", "--calls", path], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[0] == "4 ranks, mesh dp=2 tp=2: 3 kinds of calls" and lines[1].split()[:4] == ["operation", "over", "dtype", "bytes"]
    assert "4 000 000  " in lines[2] and " all " in lines[2] and "w, v, s" in lines[2] and lines[2].endswith("train.py:31 in step")
    assert " 0, 2, 3 " in lines[3] and "ranks 0-2" in lines[4] and " i64 " in lines[4]
    assert "no axes" in lines[5] and lines[-1].endswith("a compiled region"), lines
    judged(make(), None)
    result = subprocess.run([program, "diff", "--calls", path], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0 and "no addend.calls" in result.stdout
    result = subprocess.run([program, "diff", "--calls", "--json", path], capture_output=True, text=True, timeout=60)
    assert result.returncode == 2 and "--calls" in result.stderr


def tables_have_whole_characters():
    """Names and places of any length and alphabet: columns stand under each other, and no character is cut."""
    for long in ("\N{EURO SIGN}" * 90, "x" + "\N{EURO SIGN}" * 90, "xy" + "\N{EURO SIGN}" * 90):
        calls = [call("all_reduce", "dp", ["w", long], line="s.py:1 in f"), call("all_gather", "dp", ["v"], line="sch\N{LATIN SMALL LETTER O WITH DIAERESIS}n.py:3 in f")]
        judged(make(), calls)
        result = subprocess.run([program, "diff", "--calls", path], capture_output=True, timeout=60)
        assert result.returncode == 0, result.stderr
        lines = result.stdout.decode("utf-8", "strict").splitlines()
        assert {line.index("dp") for line in lines[2:4]} == {lines[1].index("over")}, lines
        assert lines[2].index("s.py:1 in f") == lines[1].index("where"), lines
        assert lines[3].index("sch\N{LATIN SMALL LETTER O WITH DIAERESIS}n.py:3") == lines[1].index("where"), lines


ranks_share_entries()
sums_that_are_made_twice_are_found()
what_is_no_second_sum_is_not_found()
shards_are_summed_after_they_were_scattered()
a_wider_dtype_than_the_job_asked_for_is_found()
a_sum_that_was_formed_in_a_narrower_dtype_names_its_call()
a_sum_of_the_same_work_is_for_nothing()
a_group_that_is_no_axis_is_noted()
entries_that_are_no_calls_are_refused()
many_ranks_with_calls_of_their_own_take_no_longer()
tables_are_printed()
tables_have_whole_characters()
print(f"diff_calls: {done} dumps")
