#!/usr/bin/env bash
# Tests low precision on one rank, where nothing is communicated and everything is rounded: the recipe passes the check
# at every ZeRO level, and mutants that can still happen on one rank are killed.
set -eu
addend=$1 source=$2
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
cd "$work"
fail() { echo "FAILED: $*" >&2; exit 1; }

for precision in "{param: bf16}" "{param: f16}" "{param: bf16, grad: raw}" "{param: f32, reduce: f16, accumulate: f64}"; do
  for zero in 0 1 3; do
    "$addend" check "$source/recipes/hsdp-2x2.yaml" --set "mesh=dp_replicate=1 dp_shard=1" --set shard.zero=$zero \
      --set "precision=$precision" --dtype recipe --steps 3 --mutate --json >proof.json 2>err || {
      cat err >&2; fail "$precision, shard.zero=$zero: exit $?"
    }
    python3 - "$precision" <<'Y'
import json, sys
proof = json.load(open("proof.json"))
assert proof["world"] == 1 and proof["dtype"] == "recipe" and proof["survivors"] == 0
assert len(proof["params"]) > 5 and all(1e-7 < param["bound"] for param in proof["params"]), proof["params"]
known = [entry for entry in proof["mutants"] if not entry["derived"]]
assert len(known) >= 3, known
# A collective over one rank changes no values, so a mistake in it may have no effect; its types are still checked.
for entry in proof["mutants"]:
    if entry["derived"]: assert entry["killed_by"] in ("type", "number", "no_effect") and (entry["message"] or entry["ratio"] is not None), entry
assert proof["coverage"]["no_effect"] > 0, proof["coverage"]
Y
  done
done
echo "alone: all hold"
