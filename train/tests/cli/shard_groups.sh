#!/usr/bin/env bash
# Tests shard.groups on the command line: the check in worlds that are not square and on axes of 1 and 3, also where a
# rank has no rows and levels are mixed in one layer; known bugs of groups; one checksum with leaves; a run that resumes
# with other groups; memory as planned; and what is refused before a rank starts.
set -eu
addend=$1 source=$2
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
cd "$work"
fail() { echo "FAILED: $*" >&2; [ ! -s err ] || cat err >&2; exit 1; }
. "$source/tests/support/says.sh"
. "$source/tests/support/draw.sh"
recipe=$source/recipes/moe-groups.yaml
mixed='shard.groups=[{match: "*.moe.[gud]*", zero: 0, sync: [all, shard, all]}, {match: "blocks.0*", zero: 2, window: 2}, {match: "*norm*", prefetch: 0}]'

# ---- the check ----
draw_cases "worlds" 2 "dp_replicate=1 dp_shard=3" "dp_replicate=3 dp_shard=1" "dp_replicate=3 dp_shard=2" "dp_replicate=1 dp_shard=5"
for mesh in "${drawn[@]}"; do
  "$addend" check "$recipe" --set mesh="$mesh" --set train.global_batch=7 >out 2>err || fail "the check on $mesh"
  "$addend" check "$recipe" --set mesh="$mesh" --set train.global_batch=2 --set "$mixed" >out 2>err || fail "the check of mixed levels on $mesh"
done
ADDEND_HOSTILE=1 "$addend" check "$recipe" >out 2>err || fail "the check on the hostile backend"
"$addend" check "$recipe" --mutate=40 --json >check.json 2>err || fail "mutants"
python3 - <<'Y' || fail "a known bug of groups is not killed"
import json
mutants = {m["name"]: m for m in json.load(open("check.json"))["mutants"] if m["derived"] is None}
for name in ("group-sum-lost", "group-launched-late", "group-copies-stale"):
    assert mutants[name]["killed_by"] == "number", (name, mutants.get(name))
Y
"$addend" check "$source/recipes/hsdp-3x2.yaml" --mutate=8 --json >check.json 2>err || fail "mutants without groups"
python3 - <<'Y' || fail "bugs of groups are tried without groups"
import json
for m in json.load(open("check.json"))["mutants"]:
    assert not m["name"].startswith("group-") or m["killed_by"] == "not_applicable", m
Y

# ---- leaves: one checksum ----
leaves=$source/recipes/gpt-leaves.yaml
train() { "$addend" train "$@" --overwrite >out 2>err; }
settings=(--set train.steps=4 --set train.leaves=14 --set train.global_batch=14 --set checkpoint.every=2)
groups='shard.groups=[{match: "*.attn.*", zero: 1, bucket_mib: 0.003}, {match: "embedding.*", zero: 0}, {match: "blocks.1.mlp.*", zero: 2, window: 3}, {match: "*norm*", prefetch: 0}]'
train "$leaves" -o one "${settings[@]}" || fail "the run on one rank"
for zero in 0 3; do
  train "$leaves" -o other "${settings[@]}" --set mesh="dp_replicate=2 dp_shard=3" --set shard.zero=$zero --set "$groups" || fail "the run with groups"
  cmp one/weights.safetensors other/weights.safetensors || fail "groups over ZeRO $zero have other bits"
done
"$addend" check "$source/recipes/moe-leaves.yaml" --set shard.zero=3 --set 'shard.groups=[{match: "*.moe.[gud]*", zero: 1}, {match: "blocks.0*", zero: 2, prefetch: 3}]' >out 2>err || fail "leaves that leave out experts"

# A run that stopped resumes with other groups, and without any, to the same bits.
for sets in 'shard.groups=[{match: "*.mlp.*", zero: 3, prefetch: 0}, {match: "*", zero: 1}]' 'shard.groups=[]'; do
  rm -rf stopped && cp -r other stopped && rm -r stopped/checkpoints/step-4 stopped/weights.safetensors
  "$addend" train "$leaves" -o stopped --resume "${settings[@]}" --set mesh="dp_replicate=3 dp_shard=1" --set "$sets" >out 2>err || fail "resuming with $sets"
  cmp one/weights.safetensors stopped/weights.safetensors || fail "resuming with $sets has other bits"
done

# ---- the plan ----
"$addend" plan "$recipe" --json >plan.json || fail "the plan"
"$addend" plan "$recipe" --set shard.groups='[]' --json >one_level.json || fail "the plan without groups"
python3 - <<'Y' || fail "the plan of groups"
import json
plan, one = json.load(open("plan.json")), json.load(open("one_level.json"))
params = {p["name"]: p for p in plan["params"]}
expert, query, embedding = params["blocks.0.moe.gate"], params["blocks.0.attn.wq"], params["embedding.weight"]
assert (expert["shard_group"], query["shard_group"], embedding["shard_group"]) == ("*.moe.[gud]*", None, "embedding.*")
def steps(param): return [(s["op"], s["when"], s["times"]) for s in param["path"]]
assert steps(expert) == [("reduce_scatter", "last_microbatch", 1), ("all_gather", "step", 1)], steps(expert)
assert steps(query)[:3] == [("all_gather", "forward", 3), ("all_gather", "backward", 3), ("reduce_scatter", "every_microbatch", 3)]
assert ("all_reduce", "every_microbatch", 3) in steps(embedding) and ("all_reduce", "last_microbatch", 1) in steps(query)
rows = {row.get("shard_group"): row for row in plan["gradient_memory"]}
assert rows["*.moe.[gud]*"]["slots"] == rows["*.moe.[gud]*"]["buckets"] == 6, rows
assert rows[None]["slots"] == 2 < rows[None]["buckets"], rows
assert all("shard_group" not in p for p in one["params"])
at, before = plan["memory_per_rank"][0], one["memory_per_rank"][0]
assert at["params"] == before["params"] and at["optimizer"] == before["optimizer"]
assert at["buckets"] > before["buckets"] and at["grads"] > before["grads"], (at, before)
def gathered(p): return sum(c["bytes"] * c["times"] for c in p["collectives"] if c["op"] == "all_gather")
assert gathered(plan) < gathered(one), (gathered(plan), gathered(one))
Y

# ---- what is refused before a rank starts ----
small='shard.groups=[{match: "*", zero: 3, bucket_mib: 0.000001, window: 1}]'
for command in check plan "train --out run"; do
  read -ra words <<<"$command"
  if "$addend" "${words[0]}" "$source/recipes/gpt-3d.yaml" "${words[@]:1}" --set "$small" >out 2>err; then fail "$command took a window of 1"; fi
  says_facts err 'shard.groups[0].window' 1 model 2
  [ ! -s out ] && [ ! -e run ] || fail "$command began"
done
status=0; "$addend" check "$leaves" --set 'shard.groups=[{match: "*norm*", sync: all}]' --set train.microbatches=2 >out 2>err || status=$?
[ $status -eq 2 ] || fail "leaves took another sync of a group"
says_facts err 'shard.groups[0].sync' train.sync train.leaves
echo "shard_groups: all hold"
