#!/usr/bin/env bash
# Tests train/examples/classifier.c, a user's model as a command: it is checked with all its mutants on three
# topologies, trained, resumed and planned; --help lists its keys, shell completions are its own, and errors in its file
# or its recipe are reported.
# Usage: classifier.sh ADDEND SOURCE
set -eu
addend=$1 source=$2 mine=$(dirname "$1")/example_classifier
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
cd "$source"
recipe=train/examples/classifier.yaml
fail() { echo "FAILED: $*" >&2 && exit 1; }
. "$source/tests/support/says.sh"

check_recipe() {
  "$mine" check $recipe "$@" --mutate --json >"$work/check.json" || fail "check $*: $(tail -c 300 "$work/check.json")"
  python3 - "$work/check.json" <<'P'
import json, sys
d = json.load(open(sys.argv[1]))
assert d["holds"] and d["survivors"] == 0 and len(d["params"]) == 4, d["reason"]
assert all(p["max_rel_err"] <= 1e-12 for p in d["params"]), d["params"]
caught = [s["killed_by"] for s in d["mutants"]]
assert caught.count("number") >= 20 and caught.count("type") >= 10, caught
assert any("classifier.c" in s["name"] for s in d["mutants"]) or "tp=" not in d["mesh"], "no mistake at a line of its own"
print(f'{d["mesh"]}: {len(caught)} mistakes')
P
}
check_recipe
check_recipe --set mesh='dp_shard=2 tp=2' --set shard.zero=3
check_recipe --set mesh='dp_replicate=1 dp_shard=3 tp=1' --set shard.zero=2 --set train.global_batch=7
"$mine" check $recipe --dtype recipe --set precision.compute=bf16 >/dev/null || fail "bf16"
"$mine" check $recipe --directional >/dev/null || fail "--directional"

# Training: 95 % of the rows of the last fifty steps are classified right.
"$mine" train $recipe --set mesh='dp_shard=2 tp=2' --set shard.zero=3 --out "$work/run" >"$work/trained"
python3 - "$work/run" <<'P'
import json, sys
steps = [json.loads(line) for line in open(sys.argv[1] + "/metrics.jsonl")]
hits = [s["losses"]["accuracy"] for s in steps[-50:]]
assert len(steps) == 300 and sum(hits) / 50 >= 0.95, sum(hits) / 50
assert steps[-1]["validation_samples"] == 30 and steps[-1]["validation_loss"] < 0.4, steps[-1]
run = json.load(open(sys.argv[1] + "/run.json"))
assert "flops_per_step" not in run and run["kind"] == "classifier" and run["counted"] == "rows", run
P
# What is printed: the loss and the rows, the validation loss, and what it was before the first step.
says "$work/trained" "300 steps" rows/s "$work/run/report.html"
says_nothing_of "$work/trained" tokens/s
read -r last before < <(python3 - "$work/run" <<'P'
import json, sys
steps = [json.loads(line) for line in open(sys.argv[1] + "/metrics.jsonl")]
print(f'{steps[-1]["validation_loss"]:.4f}', f'{steps[0]["validation_before"]["loss"]:.4f}')
P
)
says "$work/trained" "$last" "30 samples"
says "$work/trained" "$before"
[ -s "$work/run/report.html" ] || fail "report.html"

# What only addend's own decoders can do says so, and advises nothing that does not help.
for call in "sample $work/run hi" "export $work/run $work/out"; do
  status=0; "$addend" $call >"$work/out.txt" 2>&1 || status=$?
  [ $status = 2 ] || fail "$call: $(cat "$work/out.txt")"
  says "$work/out.txt" "$work/run" classifier
  says_nothing_of "$work/out.txt" --program
  status=0; "$addend" ${call%% *} --program mine.so ${call#* } >"$work/out.txt" 2>&1 || status=$?
  [ $status = 2 ] || fail "--program is ignored: $(cat "$work/out.txt")"
  says "$work/out.txt" --program
done

# A resumed run continues from half way, bit for bit.
"$mine" train $recipe --set train.steps=300 --set checkpoint.every=150 --set checkpoint.keep=9 --out "$work/whole" >/dev/null
cp -r "$work/whole" "$work/half"
rm -rf "$work/half/checkpoints/"*299* "$work/half/checkpoints/"*300* "$work/half"/weights.safetensors
[ "$(ls "$work/half/checkpoints" | wc -l)" = 1 ] || fail "one checkpoint is left: $(ls "$work/half/checkpoints")"
"$mine" train $recipe --set train.steps=300 --set checkpoint.every=150 --set checkpoint.keep=9 --resume --out "$work/half" >/dev/null
cmp "$work/whole/weights.safetensors" "$work/half/weights.safetensors" || fail "a run that went on has other weights"

"$mine" plan $recipe --set mesh='dp_shard=64 tp=8' --set train.global_batch=4096 --set model.hidden=4096 --picture "$work/plan.svg" >"$work/plan"
grep -q "dense.in" "$work/plan" && grep -q "<svg" "$work/plan.svg" || fail "plan"

# --help lists the program's own keys.
"$mine" --help >"$work/help"
says "$work/help" Usage: example_classifier
says "$work/help" model.kind
says "$work/help" model.hidden 16
says "$work/help" data.rows CSV
"$mine" check --help >"$work/help"
says "$work/help" Usage: example_classifier RECIPE
"$mine" --completions bash >"$work/completions"
grep -q "complete -F _example_classifier example_classifier" "$work/completions" || fail "completions"
grep -q "model.hidden" "$work/completions" || fail "completions have its keys"
! grep -q "_addend" "$work/completions" || fail "completions have functions of addend's"
bash -n "$work/completions"
cp "$mine" "$work/my-model.2"
"$work/my-model.2" --completions bash | grep -q "complete -F _my_model_2 my-model.2" || fail "completions of a name that is no identifier"
! "$mine" bench 2>"$work/error" || fail "bench is none of its commands"
says "$work/error" bench "example_classifier --help"

# Errors are reported before any rank starts, or with the sentence of the program's own code.
refused() { # arguments: facts of the message with | between them, call
  local facts
  IFS='|' read -ra facts <<<"$1"
  shift
  ! "$mine" "$@" >"$work/said" 2>&1 || fail "$* should not hold"
  says "$work/said" "${facts[@]}"
}
refused model.features check $recipe --set model='{kind: classifier, classes: 3}'
refused "model.classes|is 1" check $recipe --set model.classes=1
refused /nowhere.csv check $recipe --set data.rows=/nowhere.csv
printf 'a,b,class\n1,2,0\n1,x,0\n' >"$work/bad.csv"
refused "bad.csv|row 1|2 numbers" check $recipe --set data.rows="$work/bad.csv" --set model.features=2
refused "row 3|4 numbers" check $recipe --set data.rows=<(head -4 train/examples/iris.csv | sed 's/,0$/,7/;1,3s/,7$/,0/')
refused model.kind train $recipe --set model.kind=mine
"$addend" check $recipe >"$work/said" 2>&1 && fail "addend itself does not know it"
says "$work/said" classifier.yaml:4 model.kind --program
echo "classifier: all hold"
