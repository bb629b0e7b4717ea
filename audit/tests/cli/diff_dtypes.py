"""Test what `addend diff` says of the dtype in which a job declares that sums are formed: against exact fractions, and
which sums are wrong, which only contradict their declaration, and which are not tested. Called by diff_dtypes.sh with the
program and an empty folder; with a number too, it counts so many dumps of each kind of sum that is rounded to bf16 and
stored in f32, and of each kind of small shards, and prints what is said of them.
"""
import json
import os
import shutil
import subprocess
import sys
from fractions import Fraction

sys.path.insert(0, os.path.dirname(__file__))
from dumps import Job, Param, bf16, rounded  # noqa: E402

program, work = sys.argv[1:3]
counted = int(sys.argv[3]) if len(sys.argv) > 3 else 0
done = 0


def judged(job, rows, promised="f32", **how):
    """Return the document of a dump of this job whose parameters have these rows of addend.declared."""
    global done
    done += 1
    path = os.path.join(work, "dump")
    shutil.rmtree(path, ignore_errors=True)
    declared = {p.name: rows for p in job.params}
    job.save(path, metadata={"addend.declared": json.dumps(declared), "addend.promised": promised}, **how)
    result = subprocess.run([program, "diff", "--json", path], capture_output=True, text=True, timeout=120)
    assert result.returncode in (0, 1), (result.returncode, result.stderr)
    return json.loads(result.stdout)


def said(by="fully_shard's reduce_dtype", dtype="f32", given=True, **more):
    return {"dtype": dtype, "by": by, "counts": True, "given": given, **more}


def row(document, name="w", by="fully_shard's reduce_dtype"):
    (found,) = [r for r in document["declarations"] if r["name"] == name and r["by"] == by and r["axis"] is None]
    return found


def param(document, name="w"):
    return next(p for p in document["params"] if p["name"] == name)


# ---- exactly ----

STORED = {"BF16": (8, -133), "F16": (11, -24), "F32": (24, -149)}  # digits, and the exponent of the smallest number


def beside(value, dtype):
    """Return the largest number of the dtype that is not above the fraction, and the smallest that is not below."""
    digits, smallest = STORED[dtype]
    size = abs(value)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    exponent -= size < Fraction(2) ** exponent  # 2^exponent <= size < 2^(exponent + 1)
    step = Fraction(2) ** max(exponent - digits + 1, smallest)
    below = value // step * step
    return below, below if below == value else below + step


def is_outside(addends, expect, stored, dtype):
    """Whether no sum of these addends in f32, in any order, rounded up or down to the dtype, is the stored number."""
    total, size = sum(addends), sum(map(abs, addends))
    share = (len(addends) + 6) * Fraction(2) ** -23
    width = abs(expect) * size * share / (1 - share) + (len(addends) + 6) * max(1, abs(expect)) * Fraction(2) ** -126
    middle = expect * total
    least, most = beside(middle - width, dtype)[0] if size else -width, beside(middle + width, dtype)[1] if size else width
    return not least <= stored <= most


def near(job, dtype):
    """Return a function that moves each element of a sum to one of the numbers of the dtype around it, a step or two."""

    def move(p, rank, values):
        random = __import__("random").Random(p.name)  # the same on all ranks
        step = 2.0 ** (1 - STORED[dtype][0])
        return rounded(dtype, [value * (1 + step * random.choice((0, 0, 0, 0.4, -0.4, 1, -1, 1.3, -1.3))) for value in values])

    return move


def counts_are_exact():
    """The numbers of 6 x 16384 elements that are outside, at different expected factors, numbers of ranks and dtypes."""
    for ranks, addends, dtype, expect in (
        (3, "BF16", "BF16", 1.0), (4, "F32", "BF16", 0.25), (5, "BF16", "F16", 1 / 3), (2, "F32", "BF16", 2.0),
        (8, "BF16", "BF16", 1 / 7), (3, "F32", "F16", 1.0),
    ):
        job = Job(f"dp={ranks}", [Param("w", [16384], dtype=addends, sum_dtype=dtype)], expect=expect, seed=ranks)
        moved = {}

        def keep(p, rank, values, moved=moved, move=near(job, dtype)):
            moved[p.name] = moved.get(p.name) or move(p, rank, values)
            return moved[p.name]

        document = judged(job, [said(given=False)], after=keep)
        assert param(document)["kind"] == "right", param(document)
        found = row(document)
        factor = 1 / Fraction(round(1 / expect)) if expect < 1 else Fraction(expect)
        outside = sum(
            is_outside([Fraction(job.addends[r, 0, "w"][i]) for r in range(ranks)], factor, Fraction(stored), dtype)
            for i, stored in enumerate(moved["w"])
        )
        assert outside > 1000 and found["outside"] == outside, (ranks, dtype, found["outside"], outside)


# ---- verdicts and rows ----

def in_turn(job, add, store):
    """Return a function that gives sums whose every addition is rounded by `add`, and which are rounded by `store`."""

    def sums(p, rank, values):
        total = [0.0] * len(values)
        for key in sorted(job.right(p, rank)):
            total = add([a + b for a, b in zip(total, job.addends[(*key, p.name)])])
        return store([job.expect * value for value in total])

    return sums


def in_f32(values):
    return rounded("F32", values)


def in_bf16(values):
    return [bf16(value) for value in values]


def make(mesh="dp=4", types="", addends="BF16", stored="BF16", elements=2000, **how):
    return Job(mesh, [Param("w", [elements], types, dtype=addends, sum_dtype=stored)], **how)


def check(document, kind, holds, why="", name="w"):
    found = row(document, name)
    assert param(document, name)["kind"] == kind, param(document, name)
    assert found["holds"] is holds and found["why"] == why, found
    if holds is False:
        assert any(f"`{name}` says f32" in message for message in document["messages"]), document["messages"]
    return found


def dtypes_are_judged():
    for stored in ("BF16", "F32"):
        job = make(stored=stored)
        check(judged(job, [said()], after=in_turn(job, in_f32, in_f32)), "right", True)
        document = judged(job, [said()], after=in_turn(job, in_bf16, in_bf16))
        found = check(document, "rounding", False, "bits")
        assert found["outside"] > 100 and document["verdict"] == "wrong"
        assert ("bf16" in found["text"]) == (stored == "F32"), found["text"]  # bf16 hides what was rounded before
        assert "fully_shard's reduce_dtype" in param(document)["text"] and param(document)["cause"]["kind"] == "rounding"
        # a default of a library, and a dtype that is said of other axes only, make no sum wrong
        check(judged(job, [said(given=False)], after=in_turn(job, in_bf16, in_bf16)), "right", False, "bits")
    job = make("dp=2 tp=2")
    after = in_turn(job, in_bf16, in_bf16)
    check(judged(job, [said(axes="dp")], after=after), "right", False, "bits")
    check(judged(job, [said(axes="dp tp")], after=after), "rounding", False, "bits")
    job = make("dp=4 tp=1")  # an axis of one rank is no sum
    check(judged(job, [said(axes="dp")], after=in_turn(job, in_bf16, in_bf16)), "rounding", False, "bits")


def f32_addends_in_bf16_are_wrong_without_a_promise_too():
    job = make(addends="F32", stored="F32")
    after = in_turn(job, in_bf16, in_bf16)
    without = judged(job, [said(dtype="bf16", by="other")], promised="bf16", after=after)
    assert param(without)["kind"] == "rounding" and "addend.reduce" in param(without)["text"]
    document = judged(job, [said()], after=after)
    check(document, "rounding", False, "bits")
    assert "addend.reduce" not in param(document)["text"]


def the_row_that_is_tested_is_the_promised_one():
    job = make()
    rows = [said("grad_dtype", dtype="bf16"), said()]
    document = judged(job, rows, after=in_turn(job, in_bf16, in_bf16))
    check(document, "rounding", False, "bits")
    assert row(document, by="grad_dtype")["holds"] is None
    # without a row nobody declares a dtype, and nothing is said
    document = judged(job, [], after=in_turn(job, in_bf16, in_bf16))
    assert param(document)["kind"] == "right" and not document.get("declarations") and not document["messages"]


def sums_that_bits_do_not_judge_are_untested():
    wrong = {"after": None}
    for job, words in (
        (make(microbatches=2), "microbatches"),
        (make("dp=2"), "two addends"),
        (make("dp=2", types="dp=I"), "one addend"),
        (make(expect=0.3334), "rounded number"),
        (make(elements=100), "too few"),
    ):
        wrong["after"] = in_turn(job, in_bf16, in_bf16) if words != "too few" else in_turn(job, in_f32, in_bf16)
        found = check(judged(job, [said()], **wrong), "right", None, "untested")
        assert words in found["text"], found
    job = make()  # of a sum that is wrong anyway, nothing is said of its dtype
    found = row(judged(job, [said()], counts=lambda p, rank: {key: 2.0 for key in job.right(p, rank)}))
    assert found["holds"] is None and not found["text"]


# ---- sums that are rounded to bf16 and stored in f32 ----

def sent_in_bf16(job):
    """Return a function that rounds addends to bf16, adds them in f32, and rounds the result."""

    def sums(p, rank, values):
        total = [0.0] * len(values)
        for key in sorted(job.right(p, rank)):
            total = in_f32([a + b for a, b in zip(total, in_bf16(job.addends[(*key, p.name)]))])
        return in_bf16([job.expect * value for value in total])

    return sums


def correlated(job, noise):
    """Make the addends of all ranks those of the first, but for a part of each element."""
    for (rank, m, name), values in job.addends.items():
        first = job.addends[0, m, name]
        job.addends[rank, m, name] = in_f32([a + noise * b for a, b in zip(first, values)]) if rank else first


SUMS = {
    "formed in f32, result rounded": (lambda job: in_turn(job, in_f32, in_bf16), "stored"),
    "sent in bf16, added in f32": (sent_in_bf16, "bits"),
    "added in bf16": (lambda job: in_turn(job, in_bf16, in_bf16), "bits"),
}


def is_other(addends, expect, stored, dtype):
    """Whether the stored number is not that number of the dtype which is nearest to the sum, but for roundings in f32."""
    total, size = expect * sum(addends), abs(expect) * sum(map(abs, addends))
    below, above = beside(total, dtype)
    return abs(stored - total) > (above - below) / 2 + size * (len(addends) + 6) * Fraction(2) ** -22


def of_result_alone(document, elements_outside, others, name):
    """Check one dump's words against the exact counts of elements that no rounding of a sum in f32 gives, and no rounding
    to nearest; return what is said.
    """
    found, text = row(document), param(document)["text"]
    assert param(document)["kind"] == "rounding" and found["outside"] >= 4, document
    if found["why"] == "stored":
        assert found["holds"] is True and elements_outside == others == 0, (name, elements_outside, others)
        assert "has the bits of one formed in f32" in text and "result was rounded to bf16" in text, text
        return "its result alone"
    assert (found["why"], found["holds"]) == ("bits", False) and "bf16" in text, document
    if "partial sums or result" in text:
        assert elements_outside < 4, (name, elements_outside)
        return "not told"
    assert elements_outside >= 4, (name, elements_outside)
    return "before it"


def what_was_rounded_is_said(times):
    """Of so many dumps of each kind: what is said, counted. `its result alone` is true of the first kind only."""
    said_of = {}
    for elements in (300, 2000) if times > 1 else (300,):
        for (name, (how, why)), ranks, noise in __import__("itertools").product(SUMS.items(), (2, 4, 8), (1, 1 / 16, 1 / 4096)):
            answers = said_of.setdefault((name, ranks, elements, noise), {})
            for seed in range(times):
                job = make(f"dp={ranks}", addends="F32", stored="F32", elements=elements, expect=0.25, seed=seed)
                if noise < 1:
                    correlated(job, noise)
                after, kept = how(job), {}

                def once(p, rank, values, after=after, kept=kept):
                    kept["w"] = kept.get("w") or after(p, rank, values)
                    return kept["w"]

                document = judged(job, [said()], after=once)
                exact = [tuple(map(Fraction, of)) for of in zip(kept["w"], *(job.addends[r, 0, "w"] for r in range(ranks)))]
                outside, others = (
                    sum(is_so(addends, Fraction(1, 4), stored, "BF16") for stored, *addends in exact)
                    for is_so in (is_outside, is_other)
                )
                answer = of_result_alone(document, outside, others, name)
                assert (answer == "its result alone") <= (why == "stored"), (name, ranks, noise)
                answers[answer] = answers.get(answer, 0) + 1
    return said_of


def sharded(each, ranks=4, expect=0.25, seed=1):
    """Return a job with f32 addends whose sum is in shards of so many elements on each rank."""
    held = lambda place: [[place["dp"] * each], [each]]
    return Job(f"dp={ranks}", [Param("w", [each * ranks], held=held)], expect=expect, seed=seed)


def said_of_small_shards(times):
    """Of dumps whose shards have 1 to 8 elements: what is said of sums that were rounded, and of sums with a factor."""
    said_of = {}
    for each, expect in __import__("itertools").product((1, 2, 3, 5, 8), (0.25, 1 / 3)):
        for seed in range(times):
            job = sharded(each, expect=expect, seed=seed)
            odd = {key: 0.9987 for key in job.right(job.params[0], 0)}
            for name, how in {
                "result rounded to bf16": {"after": in_turn(job, in_f32, in_bf16)},
                "added in bf16, scaled in f32": {"after": in_turn(job, in_bf16, in_f32)},
                "0.9987 of it": {"counts": lambda p, rank, odd=odd: odd},
            }.items():
                found = param(judged(job, [], **how))
                causes = [cause["kind"] for cause in found["possible_causes"] or [found["cause"]]]
                said = found["kind"] if found["kind"] != "not_distinguishable" else " or ".join(sorted(set(causes)))
                right = "factor" if name[0] == "0" else "rounding"
                assert right in causes and (len(causes) == 1 or each < 3), (name, each, found)
                assert name[0] != "r" or causes == ["rounding"], found
                answers = said_of.setdefault((name, each, expect), {})
                answers[said] = answers.get(said, 0) + 1
    return said_of


def short_numbers_show_no_rounding():
    """A sum of whole numbers is one of bf16 without having been rounded: a rank that is missing is said, too."""
    job = sharded(1, expect=1.0)
    for (rank, m, name) in job.addends:
        job.addends[rank, m, name] = [float((60, 1, 20, 10)[rank])] * 4
    found = param(judged(job, [], counts=lambda p, rank: {(r, 0): 1.0 for r in (0, 2, 3)}))
    assert {"rounding", "missing"} <= {cause["kind"] for cause in found["possible_causes"]}, found


if counted:
    for (name, each, expect), answers in said_of_small_shards(counted).items():
        print(f"{name:30} {each} elements on each of 4 ranks, expect {expect:.2}", answers)
    for (name, ranks, elements, noise), answers in what_was_rounded_is_said(counted).items():
        print(f"{name:30} {ranks} ranks {elements:5} elements, addends differ by {noise:<10}", answers)
    sys.exit()
assert all(set(answers) == {"its result alone" if "result" in name else "before it"}
           for (name, _, _, noise), answers in what_was_rounded_is_said(1).items() if noise == 1)
assert len(said_of_small_shards(2)) == 30
short_numbers_show_no_rounding()
counts_are_exact()
dtypes_are_judged()
f32_addends_in_bf16_are_wrong_without_a_promise_too()
the_row_that_is_tested_is_the_promised_one()
sums_that_bits_do_not_judge_are_untested()
print(f"diff_dtypes: {done} dumps")
