#!/usr/bin/env python3
"""Writes tests/golden from what tests said: write_golden.py FOLDER AREA/NAME..., called by script/golden.

The files FOLDER/said-* have lines AREA, HEAD, SENTENCE between tabs; FOLDER/junit.xml tells which tests
passed. The lists of a test
are replaced by what it said if it passed; the lists of all others stay."""

import pathlib
import sys
import xml.etree.ElementTree as xml

import says


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
    found, passed = said_by(pathlib.Path(folder))
    failed = [test for test in wanted if not passed.get(test)]
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
    sys.exit(main(sys.argv[1], sys.argv[2:]))
