#!/usr/bin/env python3
"""Writes tests/golden from what tests said; script/golden calls it with sources of tests, as AREA/NAME:

    write_golden.py --names FOLDER AREA/NAME...    prints the names by which ctest runs them
    write_golden.py FOLDER AREA/NAME...            writes the lists again

FOLDER/tests.json is ctest's description of all tests, FOLDER/junit.xml says which of them passed, and the files
FOLDER/said-* have lines AREA, HEAD, SENTENCE between tabs. The lists of a source are replaced by what it said if all
its tests passed; the lists of all others stay."""

import json
import pathlib
import sys
import xml.etree.ElementTree as xml

import says


def names_of(folder, source):
    """The tests that ctest runs from tests/AREA/NAME.sh (or test_NAME.sh); of another source the one of its name."""
    area, name = source.split("/")
    scripts = {str(says.ROOT / "tests" / area / f"{prefix}{name}.sh") for prefix in ("", "test_")}
    tests = json.loads((folder / "tests.json").read_text(encoding="utf-8"))["tests"]
    return [test["name"] for test in tests if scripts & set(test.get("command", []))] or [source]


def said_by(folder):
    """{area: {head: sentences}}, and {test: it passed}"""
    found = {}
    for path in folder.glob("said-*"):
        for line in path.read_text(encoding="utf-8").splitlines():
            area, head, sentence = line.split("\t", 2)
            found.setdefault(area, {}).setdefault(head, set()).add(sentence)
    cases = xml.parse(folder / "junit.xml").getroot().iter("testcase")
    return found, {case.get("name"): case.get("status") == "run" for case in cases}


def main(folder, wanted):
    found, passed = said_by(folder)
    failed = [test for test in wanted if not all(passed.get(name) for name in names_of(folder, test))]
    for area in sorted({test.split("/")[0] for test in wanted}):
        kept = says.lists(area)
        for test in wanted:
            stem = test.split("/")[1]
            if test.startswith(area + "/") and test not in failed:
                kept = {head: lines for head, lines in kept.items() if head.split(".")[0] != stem}
        heads = found.get(area, {})
        kept.update({head: lines for head, lines in heads.items() if f"{area}/{head.split('.')[0]}" not in failed})
        text = "".join(f"{head}\n" + "".join(f"  {line}\n" for line in sorted(kept[head])) for head in sorted(kept))
        (says.ROOT / "tests" / "golden" / f"{area}.txt").write_text(text, encoding="utf-8")
    for test in failed:
        print(f"golden: {test} did not pass; its lists are as they were", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    if sys.argv[1] == "--names":
        print("\n".join(name for source in sys.argv[3:] for name in names_of(pathlib.Path(sys.argv[2]), source)))
    else:
        sys.exit(main(pathlib.Path(sys.argv[1]), sys.argv[2:]))
