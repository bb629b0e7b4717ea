#!/usr/bin/env bash
# Tests train.leaves on the command line, but for the worlds that leaves_worlds.sh draws: a run that resumes on another
# mesh writes the same bytes; the check, the plan and samples work; another number of leaves is another run.
set -eu
addend=$1 source=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
fail() { echo "FAILED: $*" >&2; [ ! -s err ] || cat err >&2; exit 1; }
. "$source/tests/support/says.sh"
recipe=$source/recipes/gpt-leaves.yaml
train() { "$addend" train "$recipe" --set train.steps=6 --set checkpoint.every=3 "$@" >out 2>err; }
same() { # arguments: two runs
  cmp "$1/weights.safetensors" "$2/weights.safetensors" || fail "the weights of $2 differ from those of $1"
  python3 - "$1" "$2" <<'P' || fail "the losses and norms of $2 differ from those of $1"
import json, sys
def lines(run): # what a step computed, without what it took
    measured = "seconds tokens_per_second wait_seconds reduction_seconds pss_rank_bytes pss_all_bytes".split()
    for line in open(f"{run}/metrics.jsonl"): yield {key: value for key, value in json.loads(line).items() if key not in measured}
one, other = map(list, map(lines, sys.argv[1:]))
assert len(one) == 6 and all("norm" in line and "validation_loss" in line for line in one), one
assert one == other, [pair for pair in zip(one, other) if pair[0] != pair[1]][0]
P
}

train -o one || fail "the run on one rank fails"
train -o other --set mesh="dp_replicate=2 dp_shard=2" --set shard.zero=1 || fail "the run on four ranks fails"
same one other

# A run that stopped on four ranks resumes on two, to the bits of the run that nothing stopped.
cp -r other stopped && rm -r stopped/checkpoints/step-6 stopped/weights.safetensors
train -o stopped --resume --set mesh=dp_shard=2 || fail "resuming on two ranks fails"
same one stopped

# Another number of leaves has other bits, so it is another run.
cp -r other stopped2 && rm -r stopped2/checkpoints/step-6 stopped2/weights.safetensors
status=0; train -o stopped2 --resume --set train.leaves=4 || status=$?
[ $status -eq 2 ] || fail "a run resumes with another number of leaves"
says err train.leaves 8 4

# A dump is refused before the run that it would replace is touched.
status=0; train -o stopped --overwrite --dump-step=1 || status=$?
[ $status -eq 2 ] || fail "a step with leaves is dumped"
says_facts err --dump-step train.leaves 1 8
same one stopped

"$addend" check "$recipe" --set mesh="dp_replicate=2 dp_shard=2" >out 2>err || fail "the check fails"
"$addend" run -n 4 -- "$addend" check "$recipe" --set mesh="dp_replicate=2 dp_shard=2" --json >check.json 2>err || fail "the check on ranks that have started fails"
python3 - <<'P' || fail "ranks that have started compare no bits"
import json
bits = json.load(open("check.json"))["bits"]
assert bits["equal"] and bits["ranks"] == 1 and bits["compared"] > 1000, bits
P
# The known bugs are killed on three replicas of two shards, whatever ranks send when; and a derived mutant or two.
. "$source/tests/support/draw.sh"
draw_cases "orders of reductions with mutants" 1 "0 0 8 [all]" "1 0 11 [none, all]" "2 0 14 [shard, all, shard, all]" "3 0 13 [none, shard, all]"
mutants=("${drawn[@]}") # the first number is shard.zero, the second shard.outer_zero
draw_cases "orders of reductions with mutants, in parts" 1 "1 1 11 [none, all]" "2 1 14 [shard, all, shard, all]" "3 1 13 [none, shard, all]"
drawn+=("${mutants[@]}")
for case in "${drawn[@]}"; do
  read -r zero outer leaves sync <<<"$case"
  microbatches=$(wc -w <<<"$sync")
  "$addend" check "$recipe" --set mesh="dp_replicate=3 dp_shard=2" --set model.layers=1 --set shard.zero="$zero" --set shard.outer_zero="$outer" \
    --set train.leaves="$leaves" --set train.microbatches="$microbatches" --set train.sync="$sync" --mutate=2 --json >check.json 2>err || fail "the check of $case fails"
  python3 - <<'P' || fail "the mutants of $case"
import json
check = json.load(open("check.json"))
of_bits = [mutant["name"] for mutant in check["mutants"] if mutant["killed_by"] == "bits"]
assert check["holds"] and check["survivors"] == 0 and check["bits"]["equal"] and check["bits"]["ranks"] == 1, check["reason"]
assert {"leaf-into-running-sum", "leaf-lost", "leaf-twice"} <= set(of_bits), of_bits
P
done
"$addend" check "$recipe" --set mesh="dp_shard=3" --set train.leaves=13 >out 2>err || fail "the check of rounds without a leaf fails"
"$addend" plan "$recipe" --set mesh="dp_shard=3 tp=2" --set train.leaves=13 --json >plan.json 2>err || fail "the plan fails"
python3 - <<'P'
import json
ranks = json.load(open("plan.json"))["memory_per_rank"]
assert len(ranks) == 6, ranks
P
# Of 13 leaves and samples the third rank has one more than the others.
"$addend" plan "$recipe" --set mesh="dp_shard=3" --set train.leaves=13 --set train.global_batch=13 --json >plan.json 2>err || fail "the plan of 13 samples fails"
python3 - <<'P' || fail "in the plan, not just the rank with one leaf more needs more"
import json
peaks = [rank["peak"] for rank in json.load(open("plan.json"))["memory_per_rank"]]
assert len(peaks) == 3 and peaks[0] == peaks[1] < peaks[2], peaks
P
"$addend" sample one "the " --tokens 3 >out 2>err || fail "a sample of a run with leaves fails"
echo "OK: two worlds, a resume, checks and plans"
