"""Test each job of jobs.py, right and wrong, on real ranks. First against one process: the right version gets its
gradients, the wrong one does not. Then under `addend.torch.watch`: the right version passes; the wrong one does not,
and the report names parameters, axis and factor; without what a watch must be told of a mistake, it does not see it.
The reports make the table of python/docs/torch.md.
    test_mistakes.py [NAME...]        runs the mistakes of these names, all without a name
    test_mistakes.py --write          runs all, and writes the table in python/docs/torch.md
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


def prepared(mistake, wrong):
    job = mistake.job(wrong)
    for _ in range(job.warm):
        job.step(None)
        job.model.zero_grad()
    return job


def error_of(gradient, right):
    if gradient is None:
        return NO_SUM
    gradient = gradient.full_tensor() if isinstance(gradient, DTensor) else gradient
    return ((gradient - right).norm() / right.norm()).item()


def errors_alone(mistake, wrong):
    """Return name -> the relative error of this rank's gradient against one process, and "norm" -> that of its norm."""
    job = prepared(mistake, wrong)
    job.step(None)
    whole = job.whole()
    errors = {name: error_of(p.grad, whole[name]) for name, p in jobs.plain_parameters(job.model)}
    if job.norm:
        errors["norm"] = error_of(torch.tensor(job.norm()), torch.stack([x.norm() for x in whole.values()]).norm())
    return errors


def watched(mistake, wrong, told):
    """Return the report of one step; without `told` the watch is not told what the mistake needs."""
    job = prepared(mistake, wrong)
    with contextlib.redirect_stdout(None), addend.torch.watch(job.model, **job.watch) as watch:
        job.step(watch if told else None)
        if job.norm and told:
            watch.norm(job.norm())
    return watch.report


def held_to_reference(mistake, wrong, folder):
    """Return the report of one dumped step compared with whole gradients from one process."""
    job = prepared(mistake, wrong)
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


def hold_alone(mistake):
    """Check that the job is what its title says, whatever addend thinks."""
    for wrong in (False, True):
        answers = ranks.run(mistake.world, errors_alone, mistake, wrong)
        for name in answers[0]:
            worst = max(errors[name] for errors in answers)
            if wrong and (name == "norm" if mistake.needs == "norm" else name in mistake.parameters):
                require(worst > 1e-2, f"{name}: the mistake does nothing")
            else:
                require(worst < ROUNDING, f"{name}: {worst} off one process")


def report_of(mistake, wrong):
    if mistake.needs != "reference":
        return ranks.run(mistake.world, watched, mistake, wrong, True)[0]
    with tempfile.TemporaryDirectory() as folder:
        return ranks.run(mistake.world, held_to_reference, mistake, wrong, folder)[0]


def near(value, expected):
    return expected is None or (value is not None and abs(value - expected) < 1e-3 * expected)


def hold_report(mistake, report):
    require(not report.ok, "the report passes", report)
    failed = [p for p in report.params if not p.ok]
    if mistake.needs == "norm":
        counted = {c["name"]: c["times"] for c in report.norm.counted}
        require(not failed and not report.norm.ok and sorted(counted) == sorted(mistake.parameters), report.norm)
        require(all(near(times, mistake.factor) for times in counted.values()), report.norm)
        return
    require(sorted(p.name for p in failed) == sorted(mistake.parameters), "others fail than expected", report)
    for p in failed:
        verdict, axis, factor = p.kind, p.axis, p.factor
        if mistake.needs == "reference":
            verdict, axis, factor = p.reference.cause.kind, p.reference.cause.axes or None, p.reference.ratio
        require((verdict, axis) == (mistake.verdict, mistake.axis) and near(factor, mistake.factor), p, report)


def hold_watched(mistake):
    """Check the reports, and return that of the mistake."""
    right = report_of(mistake, False)
    require(right.ok, "the right version does not pass", right)
    wrong = report_of(mistake, True)
    hold_report(mistake, wrong)
    if mistake.needs:
        blind = ranks.run(mistake.world, watched, mistake, True, False)[0]
        require(blind.ok, f"it is seen without the {mistake.needs}", blind)
    return wrong


# -- the table


def said(mistake, report):
    """Return the report's words; measured numbers have two digits, which are the same on every processor."""
    text = report.norm.text if mistake.needs == "norm" else report[mistake.parameters[0]].text
    return re.sub(r"\d+\.\d+", lambda number: f"{float(number[0]):.2g}", text)


def row(mistake, report):
    names = mistake.parameters
    names = "every one" if len(names) == len(report.params) else ", ".join(f"`{name}`" for name in names)
    return f"| {mistake.title} | {mistake.world} | {names} | {said(mistake, report)} | {mistake.needs or '-'} |\n"


def hold_table(reports, write):
    table = HEAD + "".join(row(mistake, reports[mistake.job.__name__]) for mistake in jobs.MISTAKES)
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
    for mistake in jobs.MISTAKES:
        name = mistake.job.__name__
        if names and name not in names:
            continue
        held.append(tried(f"{name} against one process", hold_alone, mistake)[0])
        holds, reports[name] = tried(f"{name} watched", hold_watched, mistake)
        held.append(holds)
    if not names and all(held) and ranks.FSDP2:
        held.append(tried("the table of python/docs/torch.md", hold_table, reports, "--write" in arguments)[0])
    print(f"{sum(held)} of {len(held)} held")
    return 0 if held and all(held) else 1


def test_all():
    assert main([]) == 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
