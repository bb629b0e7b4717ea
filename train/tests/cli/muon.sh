#!/usr/bin/env bash
# Tests Muon and groups on the command line: with train.leaves the same weights from every mesh, ZeRO stage and way of
# bringing matrices together; a run that resumes on another mesh and in another way; the check on every kind of mesh.
set -eu
addend=$1 source=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
fail() { echo "FAILED: $*" >&2; [ ! -s err ] || cat err >&2; exit 1; }
. "$source/tests/support/says.sh"
recipe=$source/recipes/gpt-muon.yaml
train() { "$addend" train "$recipe" --set train.steps=4 --set checkpoint.every=2 --set train.leaves=12 "$@" >out 2>err; }
same() { cmp "$1/weights.safetensors" "$2/weights.safetensors" || fail "the weights of $2 differ from those of $1"; }

train -o one --set mesh="dp_replicate=1 dp_shard=1" --set shard.zero=0 || fail "the run on one rank fails"
worlds=("dp_replicate=3 dp_shard=2|3|dealt" "dp_replicate=3 dp_shard=2|1|dealt_to_replicas" "dp_replicate=4 dp_shard=1|0|gathered"
  "dp_replicate=1 dp_shard=5|2|cheapest")
for world in "${worlds[@]}"; do
  IFS='|' read -r mesh zero way <<<"$world"
  train -o many --overwrite --set mesh="$mesh" --set shard.zero="$zero" --set optimizer.muon.way="$way" || fail "$world fails"
  same one many
done

# A run that stopped resumes on another mesh and in another way, which is no other run; another momentum is.
cp -r many stopped && rm -r stopped/checkpoints/step-4 stopped/weights.safetensors
train -o stopped --resume --set mesh=dp_shard=2 --set shard.zero=3 --set optimizer.muon.way=dealt || fail "resuming fails"
same one stopped
cp -r many other && rm -r other/checkpoints/step-4 other/weights.safetensors
status=0; train -o other --resume --set optimizer.muon.momentum=0.5 || status=$?
[ $status -eq 2 ] || fail "a run resumes with another momentum"
says err optimizer.muon.momentum 0.95 0.5

# The rates of groups are those of the recipe's schedule.
python3 - <<'P' || fail "the rates of groups are wrong"
import json
lines = [json.loads(line) for line in open("one/metrics.jsonl")]
assert len(lines) == 4, lines
for line in lines: # both groups have a rate of 1e-3 where train.lr is 2e-2
    assert len(line["group_lr"]) == 2 and all(abs(rate * 20 / line["lr"] - 1) < 1e-6 for rate in line["group_lr"]), line
P

# The reference has whole matrices, and computes the same bits from the same gradient.
for mesh in "dp_replicate=3 dp_shard=2" "dp_shard=2 tp=2" "pp=2 dp_shard=2"; do
  "$addend" check "$recipe" --set mesh="$mesh" >out 2>err || fail "the check fails on $mesh: $(tail -n 3 out)"
done
"$addend" check "$recipe" --set optimizer.muon.dtype=bf16 >out 2>err || fail "the check fails with an iteration in bf16"
"$addend" plan "$recipe" >out 2>err || fail "the plan fails"

# Nothing takes Muon's place without a word.
status=0; "$addend" train "$recipe" --set 'groups=[]' >out 2>err || status=$?
[ $status -eq 2 ] || fail "Muon takes an embedding"
says err optimizer.kind muon embedding.weight blocks.0.norm.attn 4
