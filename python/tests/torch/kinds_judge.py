"""What is said of the jobs of kinds.tsv: whether a report is right about a job whose truth is known."""

import contextlib
import fnmatch
import io
import re

import kinds
import torch
from torch.distributed.tensor import DTensor

import addend.torch

VAGUE = ("unexplained", "not_distinguishable", "factor", "identical_addends", "unknown", "rounding")
# Answers that say nothing false.
GOOD = ("right", "cannot tell", "true cause", "wrong, no cause of its own", "silent by design")
# Kinds that are judged falsely yet; the suite draws the others.
OPEN = {}


def plain_name(name):
    for part in ("module.", "_orig_mod.", "_checkpoint_wrapped_module.", "_fsdp_wrapped_module."):
        name = name.replace(part, "")
    return name


def full_gradient(gradient):
    if isinstance(gradient, DTensor):
        return gradient.full_tensor()
    return gradient.to_dense() if gradient is not None and gradient.is_sparse else gradient


def error_of(found, whole):
    """Return the largest relative error of a gradient; a missing one counts as zeros."""
    if not whole:
        return 0.0
    scale = torch.stack([g.abs().square().sum().double() for g in whole.values()]).sum().sqrt()
    worst = 0.0
    for name, right in whole.items():
        own = found.get(name)
        own = torch.zeros_like(right) if own is None else own.to(right.dtype)
        wide = lambda x: torch.view_as_real(x) if x.is_complex() else x  # noqa: E731
        error = (wide(own) - wide(right)).norm() / max(wide(right).norm(), 0.02 * scale, 1e-12)
        worst = max(worst, error.item())
    return worst


def watched(drawn):
    """Return (the report or what was raised, the error against one process, affected names, the job's bound)."""
    job = drawn.build()
    clear = job.clear or job.model.zero_grad
    for _ in range(job.warm):
        job.step(None)
        clear()
    try:
        if job.report:
            report = job.report()
        else:
            with addend.torch.watch(job.model, **job.watch) as watch:
                job.step(watch)
                if job.after:
                    job.after(watch)
            report = watch.report
    except Exception as error:
        report = f"{type(error).__name__}: {error}"
    found = job.gradients() if job.gradients else {n: p.grad for n, p in job.model.named_parameters()}
    found = {plain_name(name): full_gradient(gradient) for name, gradient in found.items()}
    return report, error_of(found, job.whole()), job.affected, job.bound


def checked(drawn):
    arguments = drawn.build()
    with contextlib.redirect_stdout(io.StringIO()):
        return addend.torch.check(**{"timeout": 200, **arguments})


# -- what a report says


def reported_of(param):
    """Return (kind, axes, factor, place) of each named cause."""
    causes = [param.cause] if getattr(param, "cause", None) else list(getattr(param, "possible_causes", ()))
    if causes:
        return [(c.kind, c.axes or "", c.factor, c.place) for c in causes]
    return [(param.kind, param.axis or "", param.factor, None)]


def fits(wanted, reported):
    return all(w is None or close(w, t) for w, t in zip(wanted, reported))


def close(wanted, reported):
    if isinstance(wanted, (int, float)):
        return reported is None or abs(reported - wanted) <= 0.02 * abs(wanted)
    return wanted == reported


def is_true(truth, reported):
    return any(fits(wanted, one) for wanted in truth.causes for one in reported)


def is_false(truth, reported):
    """Return whether a cause is named, and none of those named is true."""
    return not is_true(truth, reported) and not all(kind in VAGUE for kind, *_ in reported)


def answer_right(report, error, bound):
    if error > bound:
        return "NOT RIGHT"
    if isinstance(report, str) or report is None:
        return "refused"
    return {True: "right", False: "FALSE ALARM", None: "cannot tell"}[report.ok]


def answer_wrong(truth, report, error, affected):
    if not truth.equal and not truth.silent and error < 1e-3:
        return "NOT WRONG"
    if isinstance(report, str) or report is None:
        return "refused"
    if report.ok:
        return "silent by design" if truth.silent else "MISSED"
    if report.ok is None:
        return "cannot tell"
    failing = [p for p in report.params if p.ok is False]
    for p in failing:
        if (affected is not None and p.name not in affected) or is_false(truth, reported_of(p)):
            return "FALSE CAUSE"
    named = bool(failing) and all(is_true(truth, reported_of(p)) for p in failing)
    return "true cause" if named else "wrong, no cause of its own"


def answer_check(truth, report):
    if isinstance(report, str):
        return "refused"
    if truth is None:
        return {True: "right", False: "FALSE ALARM", None: "cannot tell"}[report.ok]
    if report.ok:
        return "silent by design" if truth.silent else "MISSED"
    if report.ok is None:
        return "cannot tell"
    begins = report.begins
    if begins is None:
        return "wrong, no cause of its own" if truth.place else "true cause"
    at = truth.module is None or re.fullmatch(truth.module, begins.module or "")
    return "true cause" if at and begins.place in truth.place.split("|") else "FALSE CAUSE"


# -- what a report says of declarations and calls

HOLDS = {"holds": True, "contradicted": False, "open": None}


def rows_of(report):
    """Return each declaration and each call with a finding as a line of a kind's `says`."""
    words = {holds: word for word, holds in HOLDS.items()}
    lines = []
    for row in report.declarations:
        declared = f"{row.axis}={row.type}" if row.axis else row.dtype
        lines.append(f"{words[row.holds]} {plain_name(row.name)} {declared}")
    for call in report.calls:
        names = call.params or ("-",)
        lines += [f"call {call.finding} {plain_name(name)}" for name in names if call.finding]
    return lines


def is_said(wanted, line):
    word, _, rest = wanted.partition(" ")
    words = ("holds", "open") if word == "declares" else (word,)
    return any(fnmatch.fnmatchcase(line, f"{word} {rest}") for word in words)


def answer_declared(kind, report, answer):
    """Return (the answer, a line that says what is false or missing); the answer is that to the verdict, or another one
    if declarations or calls are judged falsely, or not as the kind wants it.
    """
    refused = [word for line in kind.says if line.startswith("refused ") for word in line.split()[1:]]
    if refused:
        named = isinstance(report, str) and all(word in report for word in refused)
        return ("true cause" if named else "MISSED"), ""
    if isinstance(report, str) or report is None or (kind.truth is not None and not kind.says):
        return answer, ""
    lines = rows_of(report)
    bad = [line for line in lines if line.startswith(("contradicted ", "call "))]
    false = [line for line in bad if not any(is_said(wanted, line) for wanted in kind.says)]
    if false:
        return "FALSE DECLARATION", f"said, and false: {'; '.join(false)}"
    unsaid = [wanted for wanted in kind.says if not any(is_said(wanted, line) for line in lines)]
    if unsaid:
        return "UNSAID", f"not said: {'; '.join(unsaid)}"
    named = any(not wanted.startswith(("holds ", "declares ")) for wanted in kind.says)
    if kind.truth is not None and named and answer in ("MISSED", "cannot tell", "wrong, no cause of its own"):
        return "true cause", ""
    return answer, ""


def suite(under, what):
    """Return the names of the kinds that the suite draws from."""
    wrong = what == "wrong"
    return [
        name
        for name, kind in kinds.KINDS.items()
        if kind.under == under and (kind.truth is not None) == wrong and name not in OPEN and not kind.missing
    ]


def ask(judge, drawn):
    """Return (the answer, what the report says); `judge` has the pools of ranks."""
    kind = kinds.KINDS[drawn.kind]
    try:
        if kind.under == "check":
            report = checked(drawn)
            return answer_check(kind.truth, report), f"{report}"
        answers = judge.run_ranks(drawn.world, watched, drawn)
    except Exception as failed:
        return "FAILED", f"{type(failed).__name__}: {failed}"
    report, _, affected, bound = answers[0]
    error = max(one[1] for one in answers)
    if kind.truth is None:
        answer = answer_right(report, error, bound)
    else:
        answer = answer_wrong(kind.truth, report, error, affected)
    answer, reason = answer_declared(kind, report, answer)
    return answer, "\n".join(filter(None, (f"{report}", f"(error against one process: {error:.2g})", reason)))
