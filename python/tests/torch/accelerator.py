"""Run on one accelerator what fits it: test_accelerator.py, then the kinds of jobs (kinds.tsv) that need two ranks, and
these share the device over gloo. What is left when the time is over is named. script/accelerator calls this.

    accelerator.py [--list] [--minutes M] [--seed N]
"""

import argparse
import dataclasses
import functools
import pathlib
import re
import subprocess
import sys
import time

import kinds
import kinds_judge
import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as functional

import judge
import pool
import ranks

HERE = pathlib.Path(__file__).resolve().parent
MINUTES = 9.0
WORLD = 2
# What PyTorch says of a collective that its backend does not have for the device.
LACKING = re.compile(r"unsupported device|no backend type|not (support|implement)|NotImplementedError", re.I)


# -- which collectives there are


def collectives():
    """Return name -> a function of a tensor of two elements that calls the collective."""
    both = lambda x: [torch.empty_like(x) for _ in range(WORLD)]  # noqa: E731
    first = lambda: dist.get_rank() == 0  # noqa: E731

    def messages(x):
        dist.send(x, 1) if first() else dist.recv(x, 0)

    return {
        "all_reduce": dist.all_reduce,
        "all_reduce of bf16": lambda x: dist.all_reduce(x.bfloat16()),
        "functional all_reduce": lambda x: functional.all_reduce(x, "sum", dist.group.WORLD).wait(),
        "reduce": lambda x: dist.reduce(x, 0),
        "broadcast": lambda x: dist.broadcast(x, 0),
        "all_gather": lambda x: dist.all_gather(both(x), x),
        "all_gather_into_tensor": lambda x: dist.all_gather_into_tensor(x.repeat(WORLD), x),
        "reduce_scatter": lambda x: dist.reduce_scatter(torch.empty_like(x), both(x)),
        "reduce_scatter_tensor": lambda x: dist.reduce_scatter_tensor(x[:1].clone(), x),
        "all_to_all": lambda x: dist.all_to_all(both(x), both(x)),
        "all_to_all_single": lambda x: dist.all_to_all_single(torch.empty_like(x), x),
        "gather": lambda x: dist.gather(x, both(x) if first() else None, 0),
        "scatter": lambda x: dist.scatter(x, both(x) if first() else None, 0),
        "send and recv": messages,
    }


def call(name):
    collectives()[name](torch.ones(2))


def try_collectives(judge, show):
    """Print which collectives take tensors of the device."""
    lacking = []
    for name in collectives():
        try:
            judge.run_ranks(WORLD, call, name)
        except pool.JobError as error:
            lacking.append(f"{name} ({str(error).splitlines()[0][:120]})")
    show(f"collectives that the device's tensors have not: {'; '.join(lacking) or 'none'}")


# -- kinds of jobs


@dataclasses.dataclass
class Counts:
    good: list = dataclasses.field(default_factory=list)
    left_out: list = dataclasses.field(default_factory=list)
    bad: list = dataclasses.field(default_factory=list)


def count_answers(answers):
    """Return a Counts of (kind, answer, what was said)...: an error on a missing collective is neither good nor bad."""
    found = Counts()
    for name, answer, said in answers:
        if answer in kinds_judge.GOOD:
            found.good.append(name)
        elif answer in ("FAILED", "refused") and LACKING.search(said):
            found.left_out.append(name)
        else:
            found.bad.append(name)
    return found


class Pair(kinds.Drawn):
    world = WORLD


def kinds_of_two():
    return [
        name
        for name, kind in kinds.KINDS.items()
        if kind.under == "watch" and WORLD in kind.worlds and not kind.missing
    ]


def run_kinds(names, seed, deadline, judged, show):
    """Return (kind, answer, what was said) of each kind until the deadline, and the names that were left."""
    answers = []
    for at, name in enumerate(names):
        if time.monotonic() > deadline:
            return answers, names[at:]
        start = time.monotonic()
        answer, said = kinds_judge.ask(judged, Pair(name, seed))
        answers.append((name, answer, said))
        show(f"{name}: {answer}, {time.monotonic() - start:.1f} s")
        if count_answers(answers[-1:]).bad:
            show("\n".join(f"    {line}" for line in said.splitlines()[-12:]))
    return answers, []


def run_all(names, minutes, seed, show):
    """Run everything, and return the exit status: 1 if anything is wrong."""
    deadline, judged = time.monotonic() + 60 * minutes, judge.Judge()
    show(f"on {ranks.DEVICE}, {WORLD} ranks, {minutes:g} minutes at most")
    tests = subprocess.run([sys.executable, HERE / "test_accelerator.py"], check=False, timeout=60 * minutes).returncode
    try:
        try_collectives(judged, show)
        answers, left = run_kinds(names, seed, deadline, judged, show)
    finally:
        judged.end()
    found = count_answers(answers)
    show(f"\n{len(found.good)} kinds of jobs judged rightly, {len(found.bad)} not: {', '.join(found.bad) or '-'}")
    show(f"left out, for a collective is missing: {', '.join(found.left_out) or '-'}")
    show(f"left out, for the time was over: {', '.join(left) or '-'}")
    return 1 if tests or found.bad else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--minutes", type=float, default=MINUTES)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    names = kinds_of_two()
    if given.list:
        print("test_accelerator.py", *names, sep="\n")
        return 0
    return run_all(names, given.minutes, given.seed, functools.partial(print, flush=True))


if __name__ == "__main__":
    sys.exit(main())
