#!/usr/bin/env python3
"""Compares rows of `addend bench` of two builds, run in turns, and prints the ratio of their times.

    git worktree add ../before COMMIT && cmake -S ../before -B ../before/build -DCMAKE_BUILD_TYPE=Release && cmake --build ../before/build
    python3 bench/row_pairs.py ../before/build/addend build/addend all_reduce reducer train_step --pairs 15

Prints a line for each row: the median of the pairs' ratios of median times, its quartiles, and the first build's time. The
last line is the geometric mean of all medians. `--all` adds the cases that `bench --quick` leaves out. Run nothing else on
the machine meanwhile: it makes single pairs worthless."""

import argparse
import collections
import json
import math
import statistics
import subprocess

NAMES = "op dtype storage bytes ranks engine memory in_place".split()


def rows(program, op, options):
    words = [program, "bench", "--json", "--op", op, "--ranks", options.ranks] + ["--quick"] * (not options.all)
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(words)}: {done.stderr}")
    seen = collections.Counter()
    times = {}
    for row in json.loads(done.stdout)["rows"]:
        name = " ".join(str(row[key]) for key in NAMES if row.get(key) is not None)
        seen[name] += 1
        times[name + f" ({seen[name]})" * (seen[name] > 1)] = row["seconds_median"]
    return times


def pairs_of(op, options):
    ratios, before = collections.defaultdict(list), collections.defaultdict(list)
    for i in range(options.pairs):
        programs = [options.before, options.after][:: -1 if i % 2 else 1]
        times = {program: rows(program, op, options) for program in programs}
        for name, seconds in times[options.before].items():
            if seconds and times[options.after].get(name):
                ratios[name].append(times[options.after][name] / seconds)
                before[name].append(seconds)
    return ratios, before


def parse():
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("bench/row_pairs.py", description=__doc__, formatter_class=plain)
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
        ratios, before = pairs_of(op, options)
        for name, each in ratios.items():
            low, middle, high = statistics.quantiles(each, n=4) if len(each) > 1 else each * 3
            medians.append(middle)
            print(f"{middle:.3f}  ({low:.3f} .. {high:.3f})  {statistics.median(before[name]):.3g} s  {name}", flush=True)
    print(f"{math.exp(statistics.fmean(map(math.log, medians))):.3f}  all {len(medians)} rows")


main()
