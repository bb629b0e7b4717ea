"""Test each job of jobs.py, right and wrong, on real ranks. First against one process: the right version gets its
gradients, the wrong one does not. Then under `addend.torch.watch`: the right version passes; the wrong one does not,
and the report names parameters, axis and factor; without what a watch must be told of a mistake, it does not see it.
The reports make the table of python/docs/torch.md.
    test_bugs.py [NAME...]        runs the mistakes of these names, all without a name
    test_bugs.py --write          runs all, and writes the table in python/docs/torch.md
"""

import contextlib
import os
import pathlib
import re
import sys
import tempfile
import time

import safetensors.torch
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

import addend
import addend.torch
import jobs
import ranks

DOCS = pathlib.Path(__file__).parents[2] / "docs" / "torch.md"
HEAD = "| mistake | ranks | parameters | the report says | needs |\n|---|---|---|---|---|\n"
ROUNDING = 1e-5  # error of f32 sums of some hundred addends; a mistake causes 1e-2 and more
NO_SUM = float("inf")


# -- what ranks do


def prepared(bug, wrong):
    job = bug.job(wrong)
    for _ in range(job.warm):
        job.step(None)
        job.model.zero_grad()
    return job


def error_of(gradient, right):
    if gradient is None:
        return NO_SUM
    gradient = gradient.full_tensor() if isinstance(gradient, DTensor) else gradient
    return ((gradient - right).norm() / right.norm()).item()


def errors_alone(bug, wrong):
    """Return name -> the relative error of this rank's gradient against one process, and "norm" -> that of its norm."""
    job = prepared(bug, wrong)
    job.step(None)
    whole = job.whole()
    errors = {name: error_of(p.grad, whole[name]) for name, p in jobs.plain_parameters(job.model)}
    if job.norm:
        errors["norm"] = error_of(torch.tensor(job.norm()), torch.stack([x.norm() for x in whole.values()]).norm())
    return errors


def watched(bug, wrong, reported):
    """Return the report of one step; without `told` the watch is not told what the mistake needs."""
    job = prepared(bug, wrong)
    with contextlib.redirect_stdout(None), addend.torch.watch(job.model, **job.watch) as watch:
        job.step(watch if reported else None)
        if job.norm and reported:
            watch.norm(job.norm())
    return watch.report


def held_to_reference(bug, wrong, folder):
    """Return the report of one dumped step compared with full gradients from one process."""
    job = prepared(bug, wrong)
    with addend.torch.dump(job.model, folder, **job.watch):
        job.step(None)
    dist.barrier()
    if dist.get_rank() > 0:
        return None
    reference = os.path.join(folder, "reference.safetensors")
    whole = {name: x.contiguous() for name, x in job.whole().items()}
    safetensors.torch.save_file(whole, reference, {"addend.version": "1", "addend.kind": "reference"})
    return addend.diff(sorted(map(str, pathlib.Path(folder).glob("rank*"))), reference=reference)


# -- what must hold


def require(holds, *words):
    if not holds:
        raise AssertionError("\n".join(map(str, words)))


def hold_alone(bug):
    """Check that the job is what its title says, whatever addend thinks."""
    for wrong in (False, True):
        answers = ranks.run(bug.world, errors_alone, bug, wrong)
        for name in answers[0]:
            worst = max(errors[name] for errors in answers)
            if wrong and (name == "norm" if bug.needs == "norm" else name in bug.parameters):
                require(worst > 1e-2, f"{name}: the mistake does nothing")
            else:
                require(worst < ROUNDING, f"{name}: {worst} off one process")


def report_of(bug, wrong):
    if bug.needs != "reference":
        return ranks.run(bug.world, watched, bug, wrong, True)[0]
    with tempfile.TemporaryDirectory() as folder:
        return ranks.run(bug.world, held_to_reference, bug, wrong, folder)[0]


def near(value, expected):
    return expected is None or (value is not None and abs(value - expected) < 1e-3 * expected)


def hold_report(bug, report):
    require(not report.ok, "the report passes", report)
    failed = [p for p in report.params if not p.ok]
    if bug.needs == "norm":
        counted = {c["name"]: c["times"] for c in report.norm.counted}
        require(not failed and not report.norm.ok and sorted(counted) == sorted(bug.parameters), report.norm)
        require(all(near(times, bug.factor) for times in counted.values()), report.norm)
        return
    require(sorted(p.name for p in failed) == sorted(bug.parameters), "others fail than expected", report)
    for p in failed:
        verdict, axis, factor = p.kind, p.axis, p.factor
        if bug.needs == "reference":
            verdict, axis, factor = p.reference.cause.kind, p.reference.cause.axes or None, p.reference.ratio
        require((verdict, axis) == (bug.verdict, bug.axis) and near(factor, bug.factor), p, report)


def hold_watched(bug):
    """Check the reports, and return that of the mistake."""
    right = report_of(bug, False)
    require(right.ok, "the right version does not pass", right)
    wrong = report_of(bug, True)
    hold_report(bug, wrong)
    if bug.needs:
        blind = ranks.run(bug.world, watched, bug, True, False)[0]
        require(blind.ok, f"it is seen without the {bug.needs}", blind)
    return wrong


# -- the table


def said(bug, report):
    """Return the report's words; measured numbers have two digits, which are the same on every processor."""
    text = report.norm.text if bug.needs == "norm" else report[bug.parameters[0]].text
    return re.sub(r"\d+\.\d+", lambda number: f"{float(number[0]):.2g}", text)


def row(bug, report):
    names = bug.parameters
    names = "every one" if len(names) == len(report.params) else ", ".join(f"`{name}`" for name in names)
    return f"| {bug.title} | {bug.world} | {names} | {said(bug, report)} | {bug.needs or '-'} |\n"


def hold_table(reports, write):
    table = HEAD + "".join(row(bug, reports[bug.job.__name__]) for bug in jobs.BUGS)
    text = DOCS.read_text()
    begin = text.index(HEAD)
    end = text.index("\n\n", begin) + 1
    if write:
        DOCS.write_text(text[:begin] + table + text[end:])
    require(write or text[begin:end] == table, f"{DOCS.name} has another table; --write makes it:", table)


def tried(name, function, *arguments):
    """Return (whether it held, what it returned)."""
    start = time.monotonic()
    try:
        answer = function(*arguments)
    except (AssertionError, ranks.RankError) as error:
        print(f"FAILED {name}\n{error}\n")
        return False, None
    print(f"held   {name}, {time.monotonic() - start:.1f} s", flush=True)
    return True, answer


def main(arguments):
    names = [a for a in arguments if not a.startswith("-")]
    reports, held = {}, []
    for bug in jobs.BUGS:
        name = bug.job.__name__
        if names and name not in names:
            continue
        held.append(tried(f"{name} against one process", hold_alone, bug)[0])
        holds, reports[name] = tried(f"{name} watched", hold_watched, bug)
        held.append(holds)
    if not names and all(held) and ranks.FSDP2:
        held.append(tried("the table of python/docs/torch.md", hold_table, reports, "--write" in arguments)[0])
    print(f"{sum(held)} of {len(held)} held")
    return 0 if held and all(held) else 1


def test_all():
    assert main([]) == 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
