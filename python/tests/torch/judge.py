"""Judge `addend.torch.watch` by random jobs: right ones, each first compared with one process so that it is known to
be right, and wrong ones whose mistake is known.

    judge.py [--right N] [--wrong N] [--seed N] [--compiled] prints a table, and each job that is judged falsely
    judge.py --seed N --only right:17 --only wrong:3         runs these jobs alone, and prints their reports
    judge.py --kinds [WORD...] [--seed N] [--seeds M]        the jobs of kinds.tsv, or those whose line has the words
    judge.py --kind K --seed N                               one of them, with its report
    judge.py --write                                         writes this PyTorch's result into python/docs/torch.md

Run it by tests/support/python.sh torch build/libaddend.so python/tests/torch/judge.py: it finds a Python with PyTorch.
"""

import argparse
import collections
import pathlib
import re
import sys
import time

import kinds
import kinds_check  # noqa: F401  its jobs are among those of kinds, as are others below
import kinds_declared  # noqa: F401
import kinds_declared_wrong  # noqa: F401
import kinds_judge
import kinds_libraries  # noqa: F401  its jobs are among those of kinds, as are the next ones
import kinds_parallel  # noqa: F401
import kinds_right  # noqa: F401
import kinds_wrong  # noqa: F401
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

import addend
import addend.torch
import drawn_bugs
import drawn_jobs
import pool
from addend.torch import _addends

DOCS = pathlib.Path(__file__).parents[2] / "docs" / "torch.md"
# What the watch does not tell yet: (answer, words of the job, the truth).
OPEN = (
    ("cannot tell", " recurrent ", "a single number in a narrow dtype is the same in two microbatches by chance"),
    (
        "cannot tell",
        "(idle.bias, idle.weight): nothing observed",
        "a job fills gradients of what it does not use by zeros",
    ),
)
VAGUE = ("unexplained", "not_distinguishable", "factor", "identical_addends")


HEAD = "| PyTorch | seed | right jobs | | wrong jobs | | minutes |\n|---|---|---|---|---|---|---|\n"
CANCELLED = 0.02  # relative to the whole norm: a smaller gradient is what is left when larger numbers cancel


# -- what ranks do


def error_of(spec, gradients, whole):
    """Return the largest relative error of a parameter's gradient; missing gradients count as 0."""
    scale, worst = torch.stack([g.norm() for g in whole.values()]).norm(), 0.0
    for name, right in whole.items():
        own = gradients.get(name)
        own = torch.zeros_like(right) if own is None else own.double()
        worst = max(worst, ((own - right).norm() / max(right.norm(), CANCELLED * scale)).item())
    return worst


def full_gradient(gradient):
    if isinstance(gradient, DTensor):
        return gradient.full_tensor()
    return gradient.to_dense() if gradient is not None and gradient.is_sparse else gradient


def gradients_of(spec, job):
    found = job.gradients() if job.gradients else {n: p.grad for n, p in job.model.named_parameters()}
    found = {drawn_jobs.plain_name(name): full_gradient(gradient) for name, gradient in found.items()}
    if spec.wrapper != "parts":
        return found
    pieces = {}
    for name, own in found.items():  # parts in the order of tp
        everyones = [torch.empty_like(own) for _ in range(spec.mesh[1])]
        dist.all_gather(everyones, own, group=job.watch["mesh"].get_group("tp"))
        pieces[name] = torch.cat(everyones)
    return pieces


def judged(spec):
    """Return (the report or the exception, the largest error against one process)."""
    job = drawn_jobs.build(spec)
    for _ in range(job.warm):
        job.step(None)
        job.model.zero_grad()
    said = None
    try:
        with addend.torch.watch(job.model, **job.watch) as watch:
            job.step(watch)
            if job.after:
                job.after(watch)
        said = watch.report
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
    return said, error_of(spec, gradients_of(spec, job), drawn_jobs.reference(spec)), job.affected


# -- what is said of a report

ANSWERS = {
    "right": ("right", "FALSE ALARM", "cannot tell", "refused", "NOT RIGHT", "FAILED"),
    "wrong": (
        "true cause",
        "wrong, no cause of its own",
        "cannot tell",
        "FALSE CAUSE",
        "MISSED",
        "refused",
        "NOT WRONG",
        "FAILED",
    ),
}
GOOD = {"right": ("right",), "wrong": ("true cause", "wrong, no cause of its own", "cannot tell", "refused")}


def bound_of(spec):
    """Return the error that a right gradient may have: f32 and f64 sums, or sums in a dtype of 8 or 11 bits."""
    accumulated = spec.dtype == "mixed" and spec.options.get("accumulate") == "no_sync"  # sums in the policy's dtype
    return 2e-2 if spec.dtype == "bf16" or drawn_jobs.narrow_sum(spec) or accumulated else 1e-6


def answer_right(spec, report, error):
    if error > bound_of(spec):
        return "NOT RIGHT"
    if isinstance(report, str):
        return "refused"
    return {True: "right", False: "FALSE ALARM", None: "cannot tell"}[report.ok]


def reported_of(param):
    """Return (kind, axes) of the named causes, and whether there is a single one."""
    if param.cause:
        return [(param.cause.kind, param.cause.axes or "")], True
    return [(c.kind, c.axes or "") for c in param.possible_causes] or [(param.kind, param.axis or "")], False


def norm_causes(norm):
    """Return what told_of returns of a norm that is wrong, in a list."""
    if norm is None or norm.ok:
        return []
    causes = [norm.cause] if norm.cause else norm.possible_causes
    return [([(c.kind, c.axes or "") for c in causes], norm.cause is not None)]


def is_true(bug, reported):
    return any(kind == k and (axes is drawn_bugs.ANY or axes == a) for kind, axes in bug.true for k, a in reported)


def answer_wrong(spec, report, error, affected):
    bug = drawn_bugs.BUGS[spec.bug]
    if not bug.equal and error < 1e-3:
        return "NOT WRONG"
    if isinstance(report, str):
        return "refused"
    noted = bug.noted and any(_addends._HOOKED in message for message in report.messages)
    if report.ok:
        return "true cause" if noted else "MISSED"
    if report.ok is None:
        open_ones = [reported_of(p)[0] for p in report.params if p.ok is None and p.possible_causes]
        if bug.unreported or noted:
            return "true cause"
        if open_ones and all(is_true(bug, reported) for reported in open_ones):
            return "true cause"
        untrue = {kind for reported in open_ones if not is_true(bug, reported) for kind, _ in reported}
        return "FALSE CAUSE" if untrue - {*VAGUE} else "cannot tell"
    failing = [p for p in report.params if p.ok is False]
    if any(affected is not None and p.name not in affected for p in failing):
        return "FALSE CAUSE"
    causes = [reported_of(p) for p in failing] + norm_causes(report.norm)
    if any(alone and not is_true(bug, reported) and reported[0][0] not in VAGUE for reported, alone in causes):
        return "FALSE CAUSE"
    found_true = bool(causes) and all(is_true(bug, reported) for reported, _ in causes)
    return "true cause" if found_true else "wrong, no cause of its own"


class Judge:
    def __init__(self):
        self.pools = {}

    def run_ranks(self, world, function, *arguments):
        if world not in self.pools:
            self.pools[world] = pool.Pool(world)
        return self.pools[world].run(function, *arguments)

    def run(self, spec):
        answers = self.run_ranks(spec.world, judged, spec)
        return answers[0][0], max(error for _, error, _ in answers), answers[0][2]

    def end(self):
        for started in self.pools.values():
            started.end()

    def ask(self, what, spec):
        """Return (the answer, the report or the exception)."""
        try:
            report, error, affected = self.run(spec)
        except pool.JobError as failed:
            return "FAILED", str(failed)
        if what == "right":
            answer = answer_right(spec, report, error)
        else:
            answer = answer_wrong(spec, report, error, affected)
        return answer, f"{report}\n(error against one process: {error:.2g})"


def draw(what, seed, k, compiled):
    spec = (drawn_jobs.draw_right if what == "right" else drawn_bugs.draw_wrong)(seed, k)
    if spec.options.get("compiled") and not compiled:
        spec.options["compiled"] = None
    return spec


def judge_all(counts, seed, only=(), compiled=False, show=print):
    """Return what -> Counter of answers, and the lines that reproduce each answer that is not good."""
    judge, tables, lines = Judge(), {}, []
    try:
        for what, count in counts.items():
            chosen = [int(word.split(":")[1]) for word in only if word.startswith(what)] if only else range(count)
            tables[what] = collections.Counter()
            for k in chosen:
                spec = draw(what, seed, k, compiled)
                answer, said = judge.ask(what, spec)
                tables[what][answer] += 1
                if only:
                    show(f"{what}:{k} {answer}: {spec}\n{said}\n")
                if answer not in GOOD[what]:
                    lines.append(f"--seed {seed} --only {what}:{k}  {answer}: {spec}\n    {reason(said)}")
                    show(lines[-1])
    finally:
        judge.end()
    return tables, lines


def judge_kinds(drawn, show=print, whole=False):
    """Return the answers, and the lines that reproduce those that are not good; `whole`: with their reports."""
    judge, found, lines = Judge(), collections.Counter(), []
    try:
        for one in drawn:
            kind, start = kinds.KINDS[one.kind], time.monotonic()
            if kind.missing:
                show(f"skipped {one}: {', '.join(kind.missing)} is not installed")
                continue
            answer, said = kinds_judge.ask(judge, one)
            what = f"{kind.under}, {'right' if kind.truth is None else 'wrong'}"
            found[what, answer] += 1
            show(f"{one}  {what}: {answer}, {time.monotonic() - start:.1f} s{said and whole and chr(10) + said or ''}")
            if answer not in kinds_judge.GOOD:
                lines.append(f"{one}  {what}: {answer}\n    {reason(said)}")
    finally:
        judge.end()
    return found, lines


def draw_kinds(words, seed):
    """Return one job of each kind whose line in the table has all the words."""
    table = kinds.table()
    has = lambda name: all(word in "\t".join((name, *table.get(name, ()))) for word in words)  # noqa: E731
    return [kinds.Drawn(name, seed) for name in kinds.KINDS if has(name)]


def is_open(line):
    """Return whether a line of judge_all is one of those that are known."""
    return any(f"  {answer}: " in line and words in line for answer, words, _ in OPEN)


def reason(said):
    lines = [line.strip() for line in said.splitlines() if re.match(r"\s+(BAD|\?\?|note)|.*Error|(not )?said", line)]
    return (lines or said.splitlines() or [""])[0][:300]


def table(tables, seed, seconds):
    """Return a line: each answer with its number."""
    said = [
        ", ".join(f"{answer} {found[answer]}" for answer in ANSWERS[what] if found[answer])
        for what, found in tables.items()
    ]
    counts = [str(sum(found.values())) for found in tables.values()]
    cells = [cell for pair in zip(counts, said) for cell in pair]
    return f"| {version()} | {seed} | {' | '.join(cells)} | {seconds / 60:.1f} |"


def version():
    return torch.__version__.split("+")[0]


def write(line):
    """Put the line into the document's table, in place of the line of this PyTorch."""
    text = DOCS.read_text(encoding="utf-8")
    begin = text.index(HEAD) + len(HEAD)
    end = text.index("\n\n", begin) + 1
    others = [row for row in text[begin:end].splitlines() if not row.startswith(f"| {version()} |")]
    DOCS.write_text(text[:begin] + "\n".join([line, *others]) + "\n" + text[end:], encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--right", type=int, default=200)
    parser.add_argument("--wrong", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--seeds", type=int, default=1, help="as many jobs of each kind, by this seed and the next ones"
    )
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--compiled", action="store_true", help="some DDP jobs are compiled (aot_eager)")
    parser.add_argument("--kinds", nargs="*", metavar="WORD")
    parser.add_argument("--kind", action="append", default=[])
    given = parser.parse_args()
    print(f"seed {given.seed}", flush=True)
    start = time.monotonic()
    show = lambda text: print(text, flush=True)  # noqa: E731
    if given.kinds is not None or given.kind:
        drawn = []
        for seed in range(given.seed, given.seed + given.seeds):
            drawn += [kinds.Drawn(name, seed) for name in given.kind] or draw_kinds(given.kinds, seed)
        found, lines = judge_kinds(drawn, show, bool(given.kind))
        print("", *lines, *(f"{what}: {answer} {count}" for (what, answer), count in sorted(found.items())), sep="\n")
        return 1 if lines else 0
    tables, lines = judge_all(
        {"right": given.right, "wrong": given.wrong}, given.seed, given.only, given.compiled, show
    )
    line = table(tables, given.seed, time.monotonic() - start)
    print(f"\n{HEAD}{line}")
    if given.write:
        write(line)
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
