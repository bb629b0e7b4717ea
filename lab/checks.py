#!/usr/bin/env python3
"""Measures how often `addend check` is wrong with a recipe's own dtypes: draws right programs (recipe, mesh, seed, dtypes, kernels of
products and rows) and counts those that it calls wrong. With --mutate it tries the known mistakes of dtypes in each, and lists those
that survive. Draws that are not possible (rows that do not divide) or that this processor cannot run are skipped and counted.

    lab/checks.py build/addend 3600
    lab/checks.py build/addend 320 --mutate --out mistakes.jsonl"""
import argparse
import json
import os
import pathlib
import random
import subprocess

RECIPES = pathlib.Path(__file__).resolve().parent.parent / "recipes"
NAMES = """gpt-dp gpt-tp gpt-tp-sp gpt-cp gpt-3d hsdp-3x2 hsdp-2x2 fsdp-uneven fsdp-4 fsdp-4-bf16 ddp-4 hsdp-f16 moe-tp2ep
moe-dp2ep moe-tp moe-cp moe-empty moe-balance ocr-fan-in-small ocr-ragged ocr-fan-out ocr-equal ocr-cp-both pools-10 pools-square
pools-ragged pools-inverted-a pools-inverted-b pools-1""".split()
MESHES = {"gpt-dp": ["dp_replicate=2", "dp_shard=3", "dp_replicate=2 dp_shard=3"],
          "gpt-tp": ["dp=1 tp=2", "dp=2 tp=2", "tp=4"],
          "hsdp-3x2": ["dp_replicate=2 dp_shard=3", "dp_shard=4", "dp_replicate=5"],
          "gpt-cp": ["cp=2", "dp=2 cp=3", "cp=4"]}
KERNELS = {"OPENBLAS_CORETYPE": ["Zen", "SkylakeX", "Prescott", "Haswell", "Nehalem", "Sandybridge", "Bulldozer"],
           "ADDEND_PRODUCTS": ["openblas", "onednn", ""], "ADDEND_KERNELS": ["plain", "avx2", "avx512", ""]}


def draw_dtypes(drawn, name):
    """Draws dtypes, as --set arguments of the command line."""
    chance = drawn.random()
    if chance < 0.35:
        return [] if "f16" in name else ["precision.compute=bf16"]
    if chance < 0.5:
        return ["precision.reduce=bf16"]
    if chance < 0.6:
        return [] if name.startswith("pools") else ["precision.reduce=f16"]
    if chance < 0.7 and name.startswith("pools"):
        return ["comm_dtype={values: f16, gradients: bf16, weights: bf16}"]
    return []


def draw(number):
    """Draws a recipe's name, its --set arguments, and the kernels to use."""
    drawn = random.Random(f"right {number}")
    name = drawn.choice(NAMES)
    sets = [f"train.seed={drawn.randrange(1, 100000)}"]
    if name in MESHES and drawn.random() < 0.7:
        sets.append("mesh=" + drawn.choice(MESHES[name]))
    sets += draw_dtypes(drawn, name)
    if drawn.random() < 0.2:
        sets.append("train.microbatches=3")
    return name, sets, {variable: drawn.choice(values) for variable, values in KERNELS.items()}


def check_one(number, call):
    """The draw and its check; without a check if the draw is not possible here."""
    name, sets, kernels = draw(number)
    words = [call.addend, "check", RECIPES / f"{name}.yaml", "--dtype", "recipe", "--json"]
    words += [word for text in sets for word in ("--set", text)] + ["--mutate=1"] * call.mutate
    done = subprocess.run(words, capture_output=True, text=True, env={**os.environ, **kernels})
    row = {"draw": number, "recipe": name, "set": sets, **kernels, "status": done.returncode}
    if not done.stdout.startswith("{"):
        return {**row, "reported": done.stderr.strip()[-200:]}
    check = json.loads(done.stdout)
    if call.mutate:
        mutants = [bug for bug in check["mutants"] if bug["dtype"] == "recipe"]
        row["mutants"] = {bug["name"]: bug["killed_by"] for bug in mutants}
    return {**row, "passed": check["summary"]["pass"], "gradients": check["steps"] * len(check["params"]),
            "process_share": max(param.get("process_share") or 0 for param in check["params"])}


def report(rows):
    """Prints the counts over all draws; returns whether none was judged wrongly."""
    checks = [row for row in rows if "passed" in row]
    wrong = [row for row in checks if not row["passed"]]
    mutants = [(row, name, killed_by) for row in checks for name, killed_by in row.get("mutants", {}).items()]
    living = [(row, name) for row, name, killed_by in mutants if killed_by in (None, "", "none")]
    print(f"{len(checks)} checks of right programs with {sum(row['gradients'] for row in checks)} gradients, {len(wrong)} called wrong, "
          f"{len(rows) - len(checks)} draws passed over; the most of a bound that one took was "
          f"{max((row['process_share'] for row in checks), default=0):.2f}")
    if mutants:
        print(f"{len(mutants)} mutants of dtypes, {len(living)} survived")
    for row in wrong + [row for row, _ in living]:
        print(json.dumps(row))
    return not wrong and not living


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("addend", type=pathlib.Path)
parser.add_argument("draws", type=int)
parser.add_argument("--first", type=int, default=0, help="the first draw's number")
parser.add_argument("--mutate", action="store_true", help="try the known mistakes of dtypes in each")
parser.add_argument("--out", type=argparse.FileType("w"), help="a line of JSON for each draw")
call = parser.parse_args()
rows = []
for number in range(call.first, call.first + call.draws):
    rows.append(check_one(number, call))
    if call.out:
        print(json.dumps(rows[-1]), file=call.out, flush=True)
raise SystemExit(0 if report(rows) else 1)
