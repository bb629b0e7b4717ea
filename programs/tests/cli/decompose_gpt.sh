#!/usr/bin/env bash
# Tests a small version of recipes/decompose-gpt.yaml: the target of a decomposition is trained by its recipe, in a
# separate folder that is resumed, kept and refused like any run's; the exponent of importances falls with the steps.
#   decompose_gpt.sh ADDEND SOURCE
set -eu
addend=$1 source=$2
work=$(mktemp -d) launcher=
end_all() { [ -z "$launcher" ] || kill -9 "$launcher" 2>/dev/null || true; rm -rf "$work"; }
trap end_all EXIT
cd "$work"
fail() { echo "FAILED: $*" >&2; [ ! -s err ] || cat err >&2; exit 1; }
. "$source/tests/support/says.sh"
small=(--set 'model={kind: decompose, layers: 1, d_model: 16, heads: 2, d_hidden: 24}' --set data.seq=16
  --set 'importance={layers: 1, d_model: 16, heads: 2}'
  --set 'sites=[{match: "blocks.*.attn.w[qo]", components: 6}, {match: "blocks.*.mlp.*", components: 8}]'
  --set 'mesh={ci: "dp=2", blocks: "block=2 dp=1", adv: "dp=1"}' --set train.global_batch=4 --set train.steps=8
  --set train.warmup=2 --set target.steps=300 --set target.warmup=10 --set checkpoint.every=4)
train() { "$addend" train "$source/recipes/decompose-gpt.yaml" "${small[@]}" "$@" >out 2>err; }
exits_with() { # arguments: status, command
  local expected=$1 status=0
  shift
  "$@" || status=$?
  [ $status -eq "$expected" ] || fail "exit $status, not $expected: $*"
}

# ---- the target: its training is its own run, whose weights are then decomposed ----
train -o whole || fail "training fails"
for file in metrics.jsonl report.html run.json trace.json weights.safetensors; do
  [ -s whole/target/$file ] && [ -s whole/$file ] || fail "$file of the target's run or of the decomposition is missing"
done
python3 - <<'P' || fail "what the target learned"
import json
lines = [json.loads(line) for line in open("whole/target/metrics.jsonl")]
validation = [line["validation_loss"] for line in lines if "validation_loss" in line]
assert len(lines) == 300 and validation[0] > 5 and validation[-1] < 3.2, validation
assert json.load(open("whole/target/run.json"))["kind"] == "gpt"
assert len(open("whole/metrics.jsonl").readlines()) == 8
P
train -o given --set target.steps=0 --set target.weights=whole/target/weights.safetensors || fail "training with given target weights fails"
[ ! -e given/target ] && cmp whole/weights.safetensors given/weights.safetensors || fail "a target read from a file gives another decomposition"
train -o drawn --set target.steps=0 || fail "training on a target with random weights fails"
cmp -s whole/weights.safetensors drawn/weights.safetensors && fail "an untrained target gives the decomposition of the trained one"

# ---- resuming: bit for bit on the same pools, possible on others, without training the target again ----
cp -r whole stopped && rm -r stopped/checkpoints/step-8 stopped/weights.safetensors
cp -r stopped other
cp -r stopped read && rm -r read/target
train -o stopped --resume || fail "resuming fails"
cmp whole/weights.safetensors stopped/weights.safetensors || fail "the resumed run has other weights"
train -o other --resume --set 'mesh={ci: "dp=1", blocks: "block=1 dp=2", adv: "dp=1"}' || fail "resuming on other pools fails"
for run in stopped other; do
  cmp whole/target/metrics.jsonl $run/target/metrics.jsonl || fail "$run: resuming changed the target's metrics"
  cmp whole/target/weights.safetensors $run/target/weights.safetensors || fail "$run: resuming changed the target's weights"
  [ "$(wc -l <$run/metrics.jsonl)" -eq 8 ] || fail "$run: metrics.jsonl has not all 8 steps"
done
train -o read --resume --set target.steps=0 --set target.weights=whole/target/weights.safetensors || fail "resuming with the same target from a file fails"
cmp whole/weights.safetensors read/weights.safetensors || fail "a run resumed with the same target from a file has other weights"
train -o whole --resume && says out "8 steps" || fail "resuming a finished run fails"

# ---- Ctrl-C while the target trains: it leaves a checkpoint, and resumes with the same bits ----
"$addend" train "$source/recipes/decompose-gpt.yaml" "${small[@]}" --set target.steps=100000 -o long >out 2>err & launcher=$!
for _ in $(seq 600); do [ ! -s long/target/metrics.jsonl ] || break; sleep 0.1; done
exits_with 3 train -o long --resume
grep -w -e "$(pgrep -P $launcher | sed 's/^/process /')" err >held && says_facts held long || fail "no message that a rank of the first run has the folder locked"
kill -INT $launcher
exits_with 3 wait $launcher
launcher=
step=$(ls long/target/checkpoints | sed -n 's/step-//p' | sort -n | tail -1)
[ "$(wc -l <long/target/metrics.jsonl)" = "$step" ] && [ ! -e long/metrics.jsonl ] || fail "the run was not stopped in the target's training, or has no metrics of it"
exits_with 2 train -o long --set target.steps=100000
says err long/target "$step of" "100000 steps"
train -o long --resume --set target.steps=$((step + 5)) || fail "resuming in the target's training fails"
says_facts err "after $step"
[ "$(wc -l <long/target/metrics.jsonl)" -eq $((step + 5)) ] && [ "$(wc -l <long/metrics.jsonl)" -eq 8 ] || fail "the target or the decomposition has not taken all steps"

# A killed rank of the target's training ends the whole run.
"$addend" train "$source/recipes/decompose-gpt.yaml" "${small[@]}" --set target.steps=100000 -o killed >out 2>err & launcher=$!
for _ in $(seq 600); do [ ! -s killed/target/metrics.jsonl ] || break; sleep 0.1; done
kill -9 "$(pgrep -P $launcher | tail -1)"
exits_with 3 wait $launcher
launcher=
says_facts err SIGKILL
[ ! -e killed/metrics.jsonl ] && [ ! -e killed/target/weights.safetensors ] || fail "a run whose target's training was killed decomposed something"

# ---- a checkpoint's target is not replaced by another; errors are reported before any rank starts ----
cp -r whole changed
exits_with 2 train -o changed --resume --set target.lr=0.5
says err "train.*" "target.*" train.lr "checkpoint: 0.01" "recipe: 0.5"
rm -r changed/checkpoints/step-8 changed/weights.safetensors
exits_with 2 train -o changed --resume --set target.steps=0 --set target.weights=long/target/weights.safetensors
says err target.weights
cmp whole/target/weights.safetensors changed/target/weights.safetensors || fail "a refused run changed the trained target"
train -o changed --overwrite --set target.steps=20 --set checkpoint.every=0 || fail "training with --overwrite fails"
[ "$(wc -l <changed/target/metrics.jsonl)" -eq 20 ] && [ ! -e changed/checkpoints ] || fail "--overwrite did not replace both runs"
refused() { # facts with | between them, KEY=VALUE...
  local facts sets=() set
  IFS='|' read -ra facts <<<"$1"
  shift
  for set in "$@"; do sets+=(--set "$set"); done
  exits_with 2 train -o none "${sets[@]}"
  says err "${facts[@]}"
  [ ! -e none ] || fail "a refused run left a folder: $*"
}
refused 'target.weights|target.steps' target.weights=whole/target/weights.safetensors
refused 'target.warmup|is 400|target.steps 300|to 300|to 400' target.warmup=400
refused 'target.steps|least 0|is -1' target.steps=-1
refused 'losses.sparsity.anneal_to|is 0.5|anneal_from 0.5' losses.sparsity.anneal_from=0.5 losses.sparsity.anneal_to=0.5
refused 'losses.sparsity.anneal_from|is 1|anneal_to 1' losses.sparsity.anneal_from=1 losses.sparsity.anneal_to=1
refused 'losses.sparsity.anneal_to|is 0.25|anneal_from 0.75' losses.sparsity.last_power=power losses.sparsity.anneal_from=0.75 losses.sparsity.anneal_to=0.25
sed 's/anneal_to: 0.9/anneal_to: 0.2/' "$source/recipes/decompose-gpt.yaml" >falls.yaml
exits_with 2 "$addend" plan falls.yaml 2>err
says err falls.yaml:28 losses.sparsity.anneal_to "is 0.2" "anneal_from 0.3"
refused 'losses.sparsity.last_power|above 0|is -1' losses.sparsity.last_power=-1
"$addend" plan "$source/recipes/decompose-gpt.yaml" "${small[@]}" >out 2>err || fail "plan fails"
says err "addend train"

# ---- the exponent of importances at step s: constant until anneal_from, then linear to last_power at anneal_to ----
anneal() { # arguments: folder, KEY=VALUE...
  local out=$1 sets=() set
  shift
  for set in "$@"; do sets+=(--set "losses.sparsity.$set"); done
  train -o "$out" --set target.steps=0 --set train.lr=0 --set checkpoint.every=0 "${sets[@]}" || fail "training $out fails"
}
anneal falls power=2 last_power=0.5 anneal_from=0.25 anneal_to=0.75
for power in 2 1.625 1.25 0.875 0.5; do anneal "stays-$power" power=$power last_power=power; done
python3 - <<'P' || fail "the sparsity power does not fall with the steps"
import json
def sparsity(run): return [json.loads(line)["losses"]["sparsity"] for line in open(run + "/metrics.jsonl")]
falls = sparsity("falls")
for step, power in enumerate((2, 2, 2, 1.625, 1.25, 0.875, 0.5, 0.5)):
    stays = sparsity(f"stays-{power}")[step]
    assert falls[step] == stays, (step, power, falls[step], stays)
assert len({round(sparsity(f"stays-{power}")[4], 3) for power in (2, 1.625, 1.25, 0.875, 0.5)}) == 5
P
"$addend" check "$source/recipes/decompose-gpt.yaml" "${small[@]}" --steps 3 --set losses.sparsity.anneal_from=0 >out 2>err || { cat out; fail "its gradients match"; }
says err "addend train"
echo "decompose_gpt: all hold"
