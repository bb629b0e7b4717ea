"""Test which bugs of docs/catalogue.md numbers catch (`addend.torch.check`), and which types do (spmd_types' checker,
by check(typecheck=True)): each job of spmd_jobs.py, right and wrong, as it is and with values in between typed. The
answers are the table of python/docs/spmd.md. Some are drawn.
    test_spmd_catalogue.py [NUMBER...]   runs the bugs of these numbers, draws some without a number
    test_spmd_catalogue.py --write       runs all, and writes the table
"""

import pathlib
import re
import sys
import time
import traceback

import test_check_jobs
from skips import skip_file

import draws

try:
    import spmd_types  # noqa: F401
except ImportError:
    skip_file(__name__, "this python3 has no spmd_types")

import spmd_jobs

DOCS = pathlib.Path(__file__).parents[2] / "docs"
CATALOGUE = pathlib.Path(__file__).parents[3] / "docs" / "catalogue.md"
HEAD = "| | what went wrong | by numbers | by types |\n|---|---|---|---|\n"
SAID = re.compile(r"Of \d+ bugs numbers find \d+, and types \d+ as they are and \d+ more")
TAKEN = 4
NO_JOB = {30}  # ranks that reduce buffers of different sizes: gloo stops them, or hangs


def require(holds, *words):
    if not holds:
        raise AssertionError("\n".join(map(str, words)))


def asked(bug, wrong, typed):
    return test_check_jobs.checked(bug.make(spmd_jobs.Made(wrong, typed)), typecheck=True)


def hold(bug):
    """Check the right jobs and the wrong ones; `typed` ones only where that makes a difference."""
    for typed in (False, True)[: 1 + bool(bug.where_typed)]:
        report = asked(bug, False, typed)
        require(report.ok and report.typecheck.ok, "the right job is refused", f"typed: {typed}", report)
        report, is_found = asked(bug, True, typed), bug.by_types or (typed and bool(bug.where_typed))
        require(report.ok is not bug.by_numbers, f"by numbers: {report.ok}", f"typed: {typed}", report)
        require(report.typecheck.ok is not is_found, f"by types: {report.typecheck.ok}", f"typed: {typed}", report)
        require(report.typecheck.ok is not None, "something has no type", f"typed: {typed}", report)


# -- the table


def by_types(bug):
    if bug.by_types:
        return "found"
    return f"found where typed: {bug.where_typed}" if bug.where_typed else "not found"


def table():
    rows = {number: bug for bug in spmd_jobs.BUGS for number in bug.numbers}
    lines = [
        f"| {number} | {bug.title} | {'found' if bug.by_numbers else 'not found in f64'} | {by_types(bug)} |\n"
        for number, bug in sorted(rows.items())
    ]
    return HEAD + "".join(lines)


def said():
    """Return the sentence that counts what each of the two catches."""
    rows = [bug for bug in spmd_jobs.BUGS for _ in bug.numbers]
    typed = sum(bool(bug.where_typed) and not bug.by_types for bug in rows)
    numbers, types = sum(bug.by_numbers for bug in rows), sum(bug.by_types for bug in rows)
    return f"Of {len(rows)} bugs numbers find {numbers}, and types {types} as they are and {typed} more"


def hold_table(write):
    page = DOCS / "spmd.md"
    text = page.read_text()
    begin = text.index(HEAD)
    end = text.index("\n\n", begin) + 1
    wanted = SAID.sub(said(), text[:begin]) + table() + text[end:]
    if write:
        page.write_text(wanted)
    require(write or text == wanted, "python/docs/spmd.md has another table; --write makes it:", said(), table())


def hold_numbers():
    """Each number of the catalogue has a job, or a reason why it has none."""
    published = set(map(int, re.findall(r"^\| (\d+) \|", CATALOGUE.read_text(), re.MULTILINE)))
    have = [number for bug in spmd_jobs.BUGS for number in bug.numbers]
    require(sorted([*have, *NO_JOB]) == sorted(published), sorted(have))


def tried(name, function, *arguments):
    start = time.monotonic()
    try:
        function(*arguments)
    except Exception:
        print(f"FAILED {name}\n{traceback.format_exc()}\n", flush=True)
        return False
    print(f"held   {name}, {time.monotonic() - start:.1f} s", flush=True)
    return True


def main(arguments):
    words, write = [word for word in arguments if not word.startswith("-")], "--write" in arguments
    named = {", ".join(map(str, bug.numbers)): bug for bug in spmd_jobs.BUGS}
    names = [name for name in named if set(words) & set(name.split(", "))] or list(named)
    if not words and not write:
        names = draws.draw_cases("bugs of the catalogue by numbers and by types", names, TAKEN)
    held = [tried(f"{name}: {named[name].title}", hold, named[name]) for name in names]
    if not words and all(held):
        held += [tried("every number has a job", hold_numbers), tried("the table of spmd.md", hold_table, write)]
    print(f"{sum(held)} of {len(held)} held")
    return 0 if held and all(held) else 1


def test_all():
    assert main([]) == 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
