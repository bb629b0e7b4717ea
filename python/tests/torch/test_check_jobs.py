"""Test `addend.torch.check` on right jobs, none of which it may call wrong, and on jobs with real-world mistakes,
each of which it must call wrong and name where it was made. Some right jobs are drawn, and one mistake of each number
in the catalogue, and of kinds.tsv a few of both. Arguments are words of the names of the jobs to run; then nothing is
drawn.
"""

import sys
import time
import traceback

import kinds
import kinds_judge

import addend.torch
import draws
import judge  # noqa: F401  it has the kinds of kinds.tsv
import right_jobs
import right_models  # noqa: F401  its jobs are among those of checks, as are the next ones
import right_wrapped  # noqa: F401

HANGS = 200  # seconds; many times what a job takes
RIGHT_TAKEN = 12
KINDS_TAKEN = {"right": 3, "wrong": 2}


def checked(job, **arguments):
    return addend.torch.check(
        job.make_model,
        job.parallelize,
        job.batches,
        job.loss,
        job.mesh,
        timeout=HANGS,
        **{**job.arguments, **arguments},
    )


def require(holds, *words):
    if not holds:
        raise AssertionError("\n".join(map(str, words)))


def hold_right(job):
    report = checked(job)
    require(report.ok, "a false alarm", report)
    require(report.begins is None, report)


def hold_wrong(bug):
    report = checked(bug.job)
    require(report.ok is False, "not noticed", report)
    if bug.place == "norm":
        require(
            all(param.ok for param in report.params) and "`norm`" in str(report),
            report,
        )
        return
    begins = report.begins
    require(
        begins is not None and begins.place == bug.place,
        f"wanted {bug.place} {bug.begins}",
        report,
    )
    if bug.begins or bug.place in ("forward", "backward"):
        require(begins.module == bug.begins, f"wanted {bug.begins}", report)


def hold_kind(drawn):
    answer, said = kinds_judge.ask(None, drawn)
    require(answer in kinds_judge.GOOD, answer, drawn, said)


def held(name, function, *arguments):
    start = time.monotonic()
    try:
        function(*arguments)
    except Exception:
        print(f"FAILED {name}\n{traceback.format_exc()}\n", flush=True)
        return False
    print(f"held   {name}, {time.monotonic() - start:.1f} s", flush=True)
    return True


def cases_of_right():
    return {name: (hold_right, job) for name, job in right_jobs.RIGHT.items()}


def cases_of_wrong():
    return {f"{bug.catalogue}: {bug.name}": (hold_wrong, bug) for bug in right_jobs.WRONG}


def cases_of_kinds(what):
    seed = 1 if draws.choose_seed() == "all" else int(draws.choose_seed())
    return {f"kind {name}": (hold_kind, kinds.Drawn(name, seed)) for name in kinds_judge.suite("check", what)}


def draw():
    right, wrong = cases_of_right(), cases_of_wrong()
    numbers = {name: bug.catalogue for name, (_, bug) in wrong.items()}
    return [
        *draws.draw_cases("right jobs for check", list(right), RIGHT_TAKEN),
        *draws.draw_of_each("mistakes for check, one of each number", numbers),
        *draws.draw_cases("right kinds for check", list(cases_of_kinds("right")), KINDS_TAKEN["right"]),
        *draws.draw_cases("wrong kinds for check", list(cases_of_kinds("wrong")), KINDS_TAKEN["wrong"]),
    ]


def main(words):
    found = {**cases_of_right(), **cases_of_wrong(), **cases_of_kinds("right"), **cases_of_kinds("wrong")}
    names = [name for name in found if any(word in name for word in words)] if words else draw()
    answers = [held(name, *found[name]) for name in names]
    print(f"{sum(answers)} of {len(answers)} held")
    return 0 if answers and all(answers) else 1


def test_all():
    assert main([]) == 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
