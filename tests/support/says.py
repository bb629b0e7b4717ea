#!/usr/bin/env python3
"""What a command says: the facts of one line of its output, and that line's sentence in the golden file.

    says.py AREA/NAME FILE FACT...    one line of FILE has all facts, and tests/golden/AREA.txt lists it for them
    says.py --has FILE FACT...        the same without the golden file, for lines that differ from run to run
    says.py --lacks FILE FACT...      no line of FILE has all facts

    from says import says, raises     in a test in Python: says(self, text, "dp", "1/3")
                                      with raises(self, ValueError, "dp"): ...
                                      says_facts, says_nothing_of, raises_facts: as --has and --lacks

tests/support/says.h says what a fact is and what the golden file has; both follow the same rules."""

import contextlib
import os
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
AXES = {"pp", "dp", "cp", "tp", "ep", "etp", "sp", "efsdp", "bool"}
FOLDERS = [os.environ.get("TMPDIR", ""), "/tmp", "/dev/shm", "/var/tmp"]
PLACE = re.compile(
    r"(?<!\w)(?:"
    + re.escape(str(ROOT))
    + r"(?:/build[\w.-]*)?(?!\w)|(?:"
    + "|".join(re.escape(f) for f in FOLDERS if f)
    + r")/[\w.+@-]+)"
)
RANDOM = r"(?<!\w)(?=[a-f]*\d)[0-9a-f]{8,}(?!\w)"
OPTION = re.compile(r"--?[A-Za-z]")
NUMBER = re.compile(RANDOM + r"|(?<!\w)\d+(?:(?:\.\d+)?(?:e[+-]?\d+)?(?!\w))?")

VERDICTS = ("matches", "DOES NOT MATCH", "CANNOT TELL", "NOT CHECKED")


def has(text, fact):
    """Whether the fact is in the text, and no part of a longer name, option or number."""
    of_a_name = r"[\w-]" if OPTION.match(fact) else r"\w"
    left = f"(?<!{of_a_name})" if re.match(of_a_name, fact) else ""
    right = f"(?!{of_a_name})" if re.search(of_a_name + "$", fact) else ""
    return re.search(left + re.escape(fact) + right, text) is not None


def is_fact(text, fact):
    """Whether the text prints the fact as a name or a value, so that it is no word of prose."""
    if AXES.issuperset(fact.split(",")) or any(f"{quote}{fact}{quote}" in text for quote in "`\"'") or fact[0] == "[":
        return True
    if OPTION.match(fact) or (" " not in fact and re.search(rf"(?:^ *|: ){re.escape(fact)}:", text)):
        return True
    return fact.count(" ") < 2 and re.search(r"[\d/.=_]|[^\W\d_a-z]|[^\x00-\x7f]", fact) is not None


def sentence_of(text):
    """The text as the golden file has it: on one line, without numbers and random names."""
    return NUMBER.sub("#", PLACE.sub("...", text)).replace("\n", "\\n").replace("\033", "\\e")


def lists(area):
    """The sentences that tests/golden/AREA.txt lists for each of its heads."""
    found, head, path = {}, "", ROOT / "tests" / "golden" / f"{area}.txt"
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        if line.startswith("  "):
            found[head].add(line[2:])
        else:
            head = line
            found.setdefault(head, set())
    return found


def wrong_line(text, facts, area, head, verdicts=True):
    """What is wrong with the line of the text that has the facts; None if nothing is. `area` None: no golden file.
    `verdicts` false: the verdict, a report's first line and last, is taken only if no other line has the facts."""
    lines = [line for line in text.splitlines() if all(has(line, fact) for fact in facts)]
    rows = [line for line in lines if verdicts or not line.startswith(VERDICTS)]
    line = next(iter(rows or lines), None)
    if line is None:
        return f"no line has {' '.join(facts)}:\n{text}"
    prose = [fact for fact in facts if not is_fact(line, fact)]
    if prose:
        return (
            f"{prose} is prose: name a fact of the line (tests/support/says.h), its sentence is in the golden file"
        )
    if area is None:
        return None
    sentence, folder = sentence_of(line), os.environ.get("ADDEND_GOLDEN")
    if folder:
        with open(pathlib.Path(folder, f"said-{os.getpid()}"), "ab", buffering=0) as said:
            said.write(f"{area}\t{head}\t{sentence}\n".encode())
    elif sentence not in lists(area).get(head, ()):
        return (
            f"tests/golden/{area}.txt does not list, for {head}:\n  {sentence}\n"
            f"If it should say so: script/golden {area}, and read the diff"
        )
    return None


def says(test, text, *facts, case=""):
    """Fails the test case unless a line of the text has the facts, and its sentence is listed for the test, or for this
    case of its table. Without facts it is the first line, of a text whose subject is the field that has it."""
    path = pathlib.Path(sys.modules[type(test).__module__].__file__)
    head = " ".join(filter(None, [f"{path.stem.removeprefix('test_')}.{test.id().split('.')[-1]}", case]))
    wrong = wrong_line(text, facts, path.parent.name, head, verdicts=not facts)
    if wrong:
        test.fail(wrong)


def says_facts(test, text, *facts):
    """Fails the test case unless a line of the text has the facts: for lines that differ from run to run."""
    wrong = wrong_line(text, facts, None, None)
    if wrong:
        test.fail(wrong)


def says_nothing_of(test, text, *facts):
    """Fails the test case if a line of the text has the facts."""
    wrong = unwanted_line(text, facts)
    if wrong:
        test.fail(wrong)


@contextlib.contextmanager
def raises(test, error, *facts):
    """Fails the test case unless the block raises the error, whose message says the facts."""
    with test.assertRaises(error) as caught:
        yield caught
    says(test, str(caught.exception), *facts)


@contextlib.contextmanager
def raises_facts(test, error, *facts):
    """The same without the golden file."""
    with test.assertRaises(error) as caught:
        yield caught
    says_facts(test, str(caught.exception), *facts)


def unwanted_line(text, facts):
    """What is wrong with the text if a line of it has the facts; None if none has."""
    line = next((line for line in text.splitlines() if all(has(line, fact) for fact in facts)), None)
    return line and f"a line has {' '.join(facts)}:\n{line}"


def main(arguments):
    of, facts = arguments[0], arguments[2:]
    text = pathlib.Path(arguments[1]).read_text(encoding="utf-8", errors="replace")
    if of == "--lacks":
        wrong = unwanted_line(text, facts)
    elif of == "--has":
        wrong = wrong_line(text, facts, None, None)
    else:
        area, name = of.split("/")
        wrong = wrong_line(text, facts, area, " ".join([name + ".", *map(sentence_of, facts)]))
    if wrong:
        print(wrong, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
