#!/usr/bin/env python3
"""Compares rows of `addend bench` of two builds, run in turns, and prints the ratio of their times.

    git worktree add ../before COMMIT && cmake -S ../before -B ../before/build -DCMAKE_BUILD_TYPE=Release
    cmake --build ../before/build
    python3 lab/bench/row_pairs.py ../before/build/addend build/addend all_reduce reducer train_step --pairs 15

Prints a line for each row: the median of the pairs' ratios of median times, its 95 % interval (from order statistics,
so of any distribution; with fewer than six pairs it is the range), and the first build's time. The last line is the
geometric mean of all medians. `--all` adds the cases that `bench --quick` leaves out. Run nothing else on the machine
meanwhile: it makes single pairs worthless. `script/freeze` compares with these functions, too."""

import argparse
import collections
import functools
import json
import math
import statistics
import subprocess

NAMES = "op dtype storage bytes ranks backend memory in_place".split()


def rows(words, read=str, key="seconds_median"):
    """Run `addend bench --json` and return each row's seconds by its name; read(text) is parsed as the document."""
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, words))}: {done.stderr}")
    seen = collections.Counter()
    times = {}
    for row in json.loads(read(done.stdout))["rows"]:
        name = " ".join(str(row[key]) for key in NAMES if row.get(key) is not None)
        seen[name] += 1
        times[name + f" ({seen[name]})" * (seen[name] > 1)] = row[key]
    return times


def pairs_of(before, after, pairs):
    """Call two functions that return rows in turns, A B B A ..., and return each row's ratios and times before."""
    ratios, times = collections.defaultdict(list), collections.defaultdict(list)
    for i in range(pairs):
        if i % 2:
            new, old = after(), before()
        else:
            old, new = before(), after()
        for name, seconds in old.items():
            if seconds and new.get(name):
                ratios[name].append(new[name] / seconds)
                times[name].append(seconds)
    return ratios, times


def interval(ratios):
    """Return the median, and bounds that hold the true median in 95 of 100 series, from order statistics."""
    ordered, beyond, outside = sorted(ratios), 0, 0
    while 2 * (outside + math.comb(len(ordered), beyond)) <= 0.05 * 2 ** len(ordered):
        outside += math.comb(len(ordered), beyond)
        beyond += 1
    left_out = max(beyond - 1, 0)
    return statistics.median(ordered), ordered[left_out], ordered[-1 - left_out]


def parse():
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("lab/bench/row_pairs.py", description=__doc__, formatter_class=plain)
    parser.add_argument("before", help="the addend to compare with")
    parser.add_argument("after", help="the other one")
    parser.add_argument("op", nargs="+", help="operations of `addend bench`")
    parser.add_argument("--pairs", type=int, default=9, metavar="N", help="runs of each (9)")
    parser.add_argument("--ranks", default="2", metavar="LIST", help="as of `addend bench` (2)")
    parser.add_argument("--all", action="store_true", help="sizes that --quick leaves out, too")
    return parser.parse_args()


def main():
    options, medians = parse(), []
    for op in options.op:
        words = ["bench", "--json", "--op", op, "--ranks", options.ranks] + ["--quick"] * (not options.all)
        sides = [functools.partial(rows, [program, *words]) for program in (options.before, options.after)]
        ratios, before = pairs_of(*sides, options.pairs)
        for name, each in ratios.items():
            middle, low, high = interval(each)
            medians.append(middle)
            seconds = statistics.median(before[name])
            print(f"{middle:.3f}  ({low:.3f} .. {high:.3f})  {seconds:.3g} s  {name}", flush=True)
    print(f"{math.exp(statistics.fmean(map(math.log, medians))):.3f}  all {len(medians)} rows")


if __name__ == "__main__":
    main()
