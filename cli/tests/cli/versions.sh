#!/usr/bin/env bash
# Tests that this version reads what earlier versions wrote: dumps, checkpoints, recipes, and the keys of every
# document.
#   versions.sh ADDEND SOURCE
set -eu
addend=$1 source=$2
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
cd "$work"
fail() { echo "FAILED: $*" >&2; [ ! -s err ] || cat err >&2; exit 1; }
exits_with() { # arguments: status, command
  local expected=$1 status=0
  shift
  "$@" >out 2>err || status=$?
  [ $status -eq "$expected" ] || fail "exit $status, not $expected: $*"
}

# Every key of the old document exists, with a value of the same kind; numbers that are given agree.
has_all_of() { # arguments: today's document, old document
  python3 - "$1" "$2" <<'P' || fail "$1 does not have all that $2 has"
import json, sys
new, old = (json.load(open(path)) for path in sys.argv[1:])
def kind(value):
    return "number" if type(value) in (int, float) else type(value).__name__
def judge(new, old, place):
    if old is None or new is None:
        return
    if kind(new) != kind(old):
        sys.exit(f"{place}: {kind(old)} became {kind(new)}")
    if isinstance(old, dict):
        for key, value in old.items():
            if key not in new:
                sys.exit(f"{place}.{key} is gone")
            judge(new[key], value, f"{place}.{key}")
    if isinstance(old, list) and old and new:
        judge(new[0], old[0], f"{place}[0]")
judge(new, old, "document")
P
}

# Losses and norms of these steps agree within what another processor or mesh rounds.
steps_are() { # arguments: today's metrics, old metrics, first step
  python3 - "$@" <<'P' || fail "resumed steps differ from those of then"
import json, sys
new, old = ({line["step"]: line for line in map(json.loads, open(path))} for path in sys.argv[1:3])
steps = [step for step in old if step >= int(sys.argv[3])]
assert steps and all(step in new for step in steps), (steps, list(new))
for step in steps:
    for key in ("loss", "norm", "lr", "tokens"):
        assert abs(new[step][key] - old[step][key]) <= 1e-3 * abs(old[step][key]), (step, key, new[step][key], old[step][key])
P
}

for folder in "$source"/tests/fixtures/*/; do
  name=$(basename "$folder")
  cp -r "$folder" "$name" && cd "$name"
  exits_with 0 "$addend" diff --json dump/* && has_all_of out diff.json
  grep -q '"pass": *true' out || fail "$name: the dump adds up"
  python3 - dump/rank00000.sum.safetensors <<'P' # one number of the sum
import sys
raw = bytearray(open(sys.argv[1], "rb").read())
raw[-1] ^= 0x40
open(sys.argv[1], "wb").write(raw)
P
  exits_with 1 "$addend" diff dump/*
  exits_with 0 "$addend" plan --json tiny.yaml && has_all_of out plan.json
  exits_with 0 "$addend" check --json tiny.yaml && has_all_of out check.json
  for mesh in "dp_replicate=1 dp_shard=2" "dp_shard=1" "dp_replicate=3 dp_shard=1"; do
    rm -rf run && mkdir run && cp -r checkpoints run/
    exits_with 0 "$addend" train --json tiny.yaml -o run --resume --set "mesh=\"$mesh\"" && has_all_of out train.json
    grep -q '"first_step": *2' out || fail "$name: it resumes after step 2 on $mesh"
    steps_are run/metrics.jsonl metrics.jsonl 2
  done
  exits_with 2 "$addend" train tiny.yaml -o run --resume --set model.layers=2
  cd ..
done
echo "versions: what was written before is read"
