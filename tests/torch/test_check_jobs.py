"""`addend.torch.check` of jobs that are right, none of which it may call wrong, and of jobs with real mistakes, each of
which it has to call wrong and to name where it was made. Arguments are words of the names of those to run."""

import sys
import time
import traceback

import addend.torch
import proofs
import proofs_models  # noqa: F401  its jobs are among those of proofs, as are the next ones
import proofs_wrapped  # noqa: F401

HANGS = 200  # seconds; many times what a job takes


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


def hold_wrong(mistake):
    report = checked(mistake.job)
    require(report.ok is False, "not noticed", report)
    if mistake.place == "norm":
        require(
            all(param.ok for param in report.params) and "the norm of the gradients" in str(report),
            report,
        )
        return
    begins = report.begins
    require(
        begins is not None and begins.place == mistake.place,
        f"wanted {mistake.place} {mistake.begins}",
        report,
    )
    if mistake.begins or mistake.place in ("forward", "backward"):
        require(begins.module == mistake.begins, f"wanted {mistake.begins}", report)


def held(name, function, *arguments):
    start = time.monotonic()
    try:
        function(*arguments)
    except Exception:
        print(f"FAILED {name}\n{traceback.format_exc()}\n", flush=True)
        return False
    print(f"held   {name}, {time.monotonic() - start:.1f} s", flush=True)
    return True


def main(words):
    found = [(name, hold_right, job) for name, job in proofs.RIGHT.items()]
    found += [(f"{mistake.catalogue}: {mistake.name}", hold_wrong, mistake) for mistake in proofs.WRONG]
    answers = [held(*case) for case in found if not words or any(word in case[0] for word in words)]
    print(f"{sum(answers)} of {len(answers)} held")
    return 0 if answers and all(answers) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
