"""Which tests run which line: each test once with gcov, kept in build-mutate/map with what it took and how it ended."""

import collections
import concurrent.futures
import difflib
import functools
import json
import os
import pathlib
import shutil
import sys
import tempfile

from mutation.builds import COVERED, HOME, PLAIN, STOPPED, Refused, build, limited, read, slowdown, tests_of, tool

MAP = HOME / "map"
UNMAPPED = 5  # seconds that a test is taken for which the map does not know


def counted(folder, ending, least):
    """The lines that gcov's files in a folder have with a count of at least that, by file."""
    lines, files = collections.defaultdict(set), [str(path) for path in folder.rglob("*" + ending)]
    for row in tool("gcov", "--json-format", "--stdout", *files, cwd=folder).splitlines() if files else []:
        for file in json.loads(row)["files"]:
            path = os.path.relpath(COVERED / "build" / file["file"], COVERED / "source")
            lines[path] |= {line["line_number"] for line in file["lines"] if line["count"] >= least}
    return {file: sorted(rows) for file, rows in lines.items() if rows and not file.startswith("..")}


def map_test(test, heaviest):
    """Runs a test with gcov and keeps how it ended, what it took and the lines that it ran."""
    with tempfile.TemporaryDirectory(dir=HOME, ignore_cleanup_errors=True) as folder:
        built, counts = COVERED / "build", pathlib.Path(folder) / "counts"
        prefix = {"GCOV_PREFIX": str(counts), "GCOV_PREFIX_STRIP": str(len(built.parts) - 1)}
        limit = 2 * heaviest * slowdown()
        status, seconds, took = limited(test.command, limit, folder, {**test.environment, **prefix})
        if STOPPED.is_set():
            raise Refused("interrupted; the tests that are mapped are kept")
        for path in counts.rglob("*.gcda"):
            path.with_suffix(".gcno").symlink_to(built / path.relative_to(counts).with_suffix(".gcno"))
        lines = counted(counts, ".gcda", 1) if status == 0 else {}
    state = {test.skip: "skipped", 0: "held", None: "heavy"}.get(status, f"exit {status}")
    kept = {"name": test.name, "state": state, "heaviest": heaviest, "seconds": seconds, "took": took, "lines": lines}
    part = MAP / (test.name.replace("/", "-") + ".part")
    part.write_text(json.dumps(kept))
    part.rename(part.with_suffix(".json"))
    return kept


def is_old():
    """Whether more than one line in twenty of the sources is another since the map was made."""
    texts = ([path.read_text() for path in (folder / "source/src").rglob("*.c")] for folder in (COVERED, PLAIN))
    old, new = (collections.Counter(line for text in each for line in text.splitlines()) for each in texts)
    return ((old - new) + (new - old)).total() * 20 > old.total()


class Map:
    """Which tests run a line, as of the source in covered/."""

    def __init__(self, options):
        if options.map or not (MAP / "code").exists() or is_old():
            print("mutate: running all tests once with gcov, for the map from lines to tests", file=sys.stderr)
            shutil.rmtree(MAP, ignore_errors=True)
            build(COVERED, options.jobs)
            MAP.mkdir()
            (MAP / "code").write_text(json.dumps(counted(COVERED / "build", ".gcno", 0)))
        self.code = json.loads((MAP / "code").read_text())
        entries = {each["name"]: each for each in (json.loads(path.read_text()) for path in MAP.glob("*.json"))}
        wanted = [
            test
            for test in tests_of(COVERED).values()
            if test.name not in entries
            or entries[test.name]["state"] == "heavy"
            and entries[test.name]["heaviest"] < options.heaviest
        ]
        with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
            for entry in pool.map(lambda test: map_test(test, options.heaviest), wanted):
                entries[entry["name"]] = entry
        self.state = {name: each["state"] for name, each in entries.items()}
        self.seconds = {name: each["seconds"] for name, each in entries.items()}
        self.took = {name: each.get("took", 0) for name, each in entries.items()}
        self.heaviest = options.heaviest
        self.tests = collections.defaultdict(lambda: collections.defaultdict(set))  # by file, by line: names
        for name, each in entries.items():
            for file, rows in each["lines"].items():
                for line in rows:
                    self.tests[file][line].add(name)
        left = [
            f"{name} ({self.state[name]}, {self.seconds[name]:.0f} s)"
            for name in sorted(entries)
            if self.state[name] != "skipped" and not self.holds(name)
        ]
        print("mutate: left out: " + ", ".join(left) if left else "mutate: no test is left out", file=sys.stderr)

    def limit(self, name):
        """Seconds after which a test hangs that took what it took: several times that, as the machine is now or was."""
        return max((10 + 5 * self.seconds.get(name, UNMAPPED)) * slowdown(), 2 * self.took.get(name, 0))

    def holds(self, name):
        return self.state.get(name, "held") == "held" and self.seconds.get(name, 0) <= self.heaviest

    @functools.cache  # noqa: B019 (there is one map)
    def then(self, file):
        """The lines that a file's lines had when the map was made; new ones are absent."""
        old = COVERED / "source" / file
        texts = [text.splitlines() for text in (old.read_text() if old.exists() else "", read(file))]
        blocks = difflib.SequenceMatcher(None, *texts, autojunk=False).get_matching_blocks()
        return {b + k + 1: a + k + 1 for a, b, size in blocks for k in range(size)}

    def running(self, mutant):
        """The tests that run a mutant's line; its function, where the line is new or gcov saw none run it."""
        then, tests = self.then(mutant.file), self.tests[mutant.file]
        if mutant.function is None:
            return set().union(*tests.values())
        first, last = mutant.function
        code = [line for line in self.code.get(mutant.file, ()) if line <= then.get(mutant.line, 0)]
        return (
            tests[code[-1]]
            if code and tests[code[-1]]
            else set().union(*(tests[then.get(line, 0)] for line in range(first, last + 1)))
        )

    def choose(self, mutant, tests):
        """The tests of a mutant, cheapest first, where one of the file's own folder counts for a third."""
        python, own = mutant.file.endswith(".py"), pathlib.PurePath(mutant.file).parts[-2] + "/"
        taken = {name for name in tests if name.startswith(("python/", "torch/"))} if python else self.running(mutant)
        taken = taken | {name for name in tests if name.startswith(own) and name not in self.state}
        held = [name for name in taken if name in tests and self.holds(name)]
        cost = {name: self.seconds.get(name, UNMAPPED) / (3 if name.startswith(own) else 1) for name in held}
        return sorted(held, key=lambda name: (cost[name], name))
