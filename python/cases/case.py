"""Run the job of one case of python/docs/cases.md, once under `addend.torch.watch` and once under `addend.torch.check`,
and print what both say as one line of JSON. script/cases starts a case in the environment that has its release.
"""

import contextlib
import json
import os
import pathlib
import re
import sys
import traceback
import warnings

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests" / "torch"))
warnings.simplefilter("ignore")

import torch  # noqa: E402

import jobs  # noqa: E402
import ranks  # noqa: E402


def is_wrong():
    """Return whether the job runs with its mistake, for cases whose job has a flag; in others releases differ."""
    return "wrong" in sys.argv[1:]


def batches_of(world, microbatches):
    """Return what `check` gets as batches: a rank's microbatches, and for one process all of them in one."""

    def batches(rank, _):
        if rank is not None:
            return [jobs.draw(rank, m) for m in range(microbatches)]
        every = [jobs.draw(r, m) for r in range(world) for m in range(microbatches)]
        return [tuple(torch.cat(parts) for parts in zip(*every))]

    return batches


def by_watch(report):
    lines = [line.strip() for line in str(report).splitlines()]
    bad = [line.removeprefix("BAD").strip() for line in lines if line.startswith("BAD")]
    return "right" if report.ok else "; ".join(bad[:2]) or "; ".join(report.messages) or report.verdict


def place_of(module):
    return f"in `{module}`" if module else "in the model itself or after it"


def by_check(report):
    if report.ok:
        return "right"
    wrong = [param.name for param in report.params if not param.ok]
    if report.ok is None:
        return f"cannot tell: {len(wrong)} of {len(report.params)} parameters"
    begins = (
        f"{place_of(report.begins.module)}: {report.begins.text}"
        if report.begins
        else f"the first is `{wrong[0]}`"
        if wrong
        else "; ".join(report.reasons) or "the loss"
    )
    return f"wrong: {len(wrong)} of {len(report.params)} parameters; {begins}"


def reported(run, words):
    """Return in words what `run` returns, or raises."""
    try:
        with contextlib.redirect_stdout(sys.stderr):
            report = run()
        return report if isinstance(report, str) else words(report)
    except Exception as error:
        traceback.print_exc()
        said = (str(error).strip() or type(error).__name__).splitlines()[-1]
        if said.startswith("ValueError: "):
            return f"refused: {said.removeprefix('ValueError: ')}"
        words = re.sub(r" \(/[^)]*\)", "", " ".join(str(error).split()))  # removes paths of this machine
        return f"not run: {type(error).__name__}: {words[-300:]}"


def play(world, watched, checked):
    """Print the case's results: `watched()` gives a report of the watch on each rank of `world`; `checked()` gives
    check's report, or why there is none.
    """
    print(
        json.dumps(
            {
                "watch": reported(lambda: ranks.run(world, watched)[0], by_watch),
                "check": reported(checked, by_check),
            }
        ),
        flush=True,
    )
