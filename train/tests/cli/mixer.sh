#!/usr/bin/env bash
# Tests train/examples/mixer.c, a model of operations alone: checked with all its mutants, and trained.
# Usage: mixer.sh ADDEND SOURCE
set -eu
addend=$1 source=$2 mine=$(dirname "$1")/example_mixer
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
cd "$source"
recipe=train/examples/mixer.yaml
fail() { echo "FAILED: $*" >&2 && exit 1; }

check_recipe() {
  "$mine" check $recipe "$@" --mutate --json >"$work/check.json" || fail "check $*: $(tail -c 300 "$work/check.json")"
  python3 - "$work/check.json" <<'P'
import json, sys
d = json.load(open(sys.argv[1]))
assert d["holds"] and d["survivors"] == 0 and len(d["params"]) == 8, d["reason"]
assert all(p["max_rel_err"] <= 1e-12 for p in d["params"]), d["params"]
P
}
check_recipe
check_recipe --set mesh='dp_replicate=1 dp_shard=3' --set shard.zero=3 --set train.global_batch=7
"$mine" check $recipe --directional >/dev/null || fail "--directional"

# What dropout drops depends on a sample's number in the step, not on its microbatch.
for parts in 1 2; do
  "$mine" train $recipe --set train.steps=1 --set train.warmup=0 --set train.microbatches=$parts --out "$work/$parts" >/dev/null || fail "one step"
done
python3 - "$work/1" "$work/2" <<'P' || fail "microbatches drop other elements than the batch"
import json, sys
one, two = (json.loads(open(folder + "/metrics.jsonl").readline())["loss"] for folder in sys.argv[1:])
assert abs(one - two) <= 1e-6 * abs(one), (one, two)
P

"$mine" train $recipe --out "$work/run" >/dev/null || fail "train"
python3 - "$work/run" <<'P' || fail "what was learned"
import json, sys
steps = [json.loads(line) for line in open(sys.argv[1] + "/metrics.jsonl")]
before = steps[0]["validation_before"]["loss"]
assert len(steps) == 200 and steps[-1]["validation_loss"] < 0.6 * before, (before, steps[-1]["validation_loss"])
P
echo "mixer: all hold"
