#!/usr/bin/env python3
"""Compares the training steps of two builds of addend: runs the same training with each in turns, and prints the ratio of their times.

    git worktree add ../before COMMIT && cmake -S ../before -B ../before/build -DCMAKE_BUILD_TYPE=Release && cmake --build ../before/build
    python3 lab/bench/pairs.py ../before/build/addend build/addend lab/bench/slots.yaml --over "shard.zero=2;3" --over "mesh=dp_shard=2;dp_shard=4"

Prints a line for each combination of the values in --over: the median over pairs of runs of the ratio of median step times. The
first four steps of a run are not counted. Other work on the machine makes single pairs worthless: look at their range."""

import argparse
import itertools
import json
import pathlib
import statistics
import subprocess
import tempfile

WARM = 4


def step_seconds(program, recipe, settings):
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "run"
        words = [word for setting in settings for word in ("--set", setting)]
        done = subprocess.run([program, "train", recipe, *words, "--out", str(out)], capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{program} train {recipe} {' '.join(settings)}: {done.stderr}")
        lines = map(json.loads, (out / "metrics.jsonl").read_text().splitlines())
        return statistics.median(line["seconds"] for line in lines if line.get("step", -1) >= WARM and "seconds" in line)


def ratio_of_pair(options, settings, turned):
    programs = [options.before, options.after]
    seconds = {program: step_seconds(program, options.recipe, settings) for program in programs[:: -1 if turned else 1]}
    return seconds[options.after] / seconds[options.before]


def parse():
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("lab/bench/pairs.py", description=__doc__, formatter_class=plain)
    parser.add_argument("before", help="the build of addend to compare with")
    parser.add_argument("after", help="the build to measure")
    parser.add_argument("recipe")
    parser.add_argument("--pairs", type=int, default=5, metavar="N", help="runs of each for each combination (5)")
    parser.add_argument("--over", action="append", default=[], metavar="KEY=V1;V2", help="settings, all combinations")
    return parser.parse_args()


def main():
    options = parse()
    choices = [[f"{key}={value}" for value in values.split(";")] for key, _, values in (o.partition("=") for o in options.over)]
    for settings in itertools.product(*choices):
        ratios = sorted(ratio_of_pair(options, settings, i % 2) for i in range(options.pairs))
        print(f"{statistics.median(ratios):.3f}  ({ratios[0]:.3f} .. {ratios[-1]:.3f})  {' '.join(settings)}", flush=True)


main()
