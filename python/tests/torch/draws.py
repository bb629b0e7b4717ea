"""Draw some cases by ADDEND_TEST_SEED, as tests/support/draw.h says, if they are too many for every run."""

import hashlib
import os
import pathlib
import subprocess

SUPPORT = pathlib.Path(__file__).resolve().parents[3] / "tests" / "support"


def choose_seed():
    """Return the seed of the environment, or the commit's if none is given."""
    if "ADDEND_TEST_SEED" not in os.environ:
        said = subprocess.run(["bash", SUPPORT / "seed.sh"], check=True, capture_output=True, text=True)
        os.environ["ADDEND_TEST_SEED"] = said.stdout.strip()
    return os.environ["ADDEND_TEST_SEED"]


def _lot(what, case):
    return hashlib.md5(f"{choose_seed()} {what} {case}".encode()).hexdigest()


def _say(what, taken, cases):
    print(f"{what}: {len(taken)} of {len(cases)} are taken, ADDEND_TEST_SEED={choose_seed()}", flush=True)
    return taken


def draw_cases(what, cases, count):
    """Draw `count` of the names, in their order, and print how many and the seed."""
    lots = sorted(cases, key=lambda case: _lot(what, case))
    kept = set(lots if choose_seed() == "all" else lots[:count])
    return _say(what, [case for case in cases if case in kept], cases)


def draw_of_each(what, kinds):
    """Draw one name of each kind; `kinds`: each name's kind."""
    if choose_seed() == "all":
        return _say(what, list(kinds), kinds)
    first = {}
    for case in sorted(kinds, key=lambda case: _lot(what, case)):
        first.setdefault(kinds[case], case)
    return _say(what, [case for case in kinds if first[kinds[case]] == case], kinds)
