#!/usr/bin/env bash
# Tests that every number of `addend plan --compare` is that of `addend plan` with the compared value set.
#   plan_compare.sh ADDEND SOURCE
set -eu
addend=$1 source=$2
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
cd "$work"
fail() { echo "FAILED: $*" >&2; exit 1; }
. "$source/tests/support/says.sh"

compare() { # arguments: recipe, KEY, values, options of both; compares every number with single plans
  local recipe=$source/recipes/$1.yaml key=$2 values=() value
  shift 2
  while [ $# -gt 0 ] && [ "$1" != with ]; do values+=("$1"); shift; done
  shift || :
  "$addend" plan "$recipe" "$@" --compare "$key=$(IFS=, && echo "${values[*]}")" --json >compared.json
  "$addend" plan "$recipe" "$@" --compare "$key=$(IFS=, && echo "${values[*]}")" >compared.txt
  for value in "${values[@]}"; do "$addend" plan "$recipe" "$@" --set "$key=$value" --json; done >plans.json
  python3 - "$key" "${values[@]}" <<'Y' || fail "$recipe: $key"
import json, sys
key, values = sys.argv[1], sys.argv[2:]
text, decoder, plans = open("plans.json").read(), json.JSONDecoder(), []
while text.strip():
    plan, end = decoder.raw_decode(text.lstrip())
    plans.append(plan)
    text = text.lstrip()[end:]
compared, table = json.load(open("compared.json")), open("compared.txt").read()
assert compared["key"] == key and [entry["value"] for entry in compared["plans"]] == values, compared
for entry, plan in zip(compared["plans"], plans):
    most = max(rank["peak"] for rank in plan["memory_per_rank"])
    assert entry["rank"] == next(rank for rank in plan["memory_per_rank"] if rank["peak"] == most), entry["rank"]
    assert entry["node_peak"] == max(node["peak"] for node in plan["memory_per_node"])
    assert entry["world"] == plan["world"]
    moved = {}
    def mean(step, count): # over all ranks, of what those of its pool move
        return count * plan["pools"][step["pool"]]["ranks"] // plan["world"]
    def add(what, op, axes, count):
        moved[what, op, axes] = moved.get((what, op, axes), 0) + count
    for step in plan["collectives"]:
        what = "parameters" if step["op"] == "all_gather" else "gradients"
        add(what, step["op"], step["axes"], mean(step, step["bytes"] * step["times"]))
    for step in plan["activations"]:
        add("activations", step["op"], step["axes"], mean(step, step["bytes"] * step["times"] // step["group_size"]))
    for bridge in plan["bridges"]:
        both = bridge["forward"]["bytes"] + bridge["backward"]["bytes"]
        add("bridge", bridge["site"], "", both * bridge["times"] // plan["world"])
    if "schedule" in plan:
        for key in ("kind", "stages", "microbatches", "makespan", "bubble", "in_flight", "deferred"):
            assert entry["schedule"][key] == plan["schedule"][key], key
        assert entry["schedule"]["activations"] == max(rank["activations"] for rank in plan["memory_per_rank"])
        row = next(line for line in table.splitlines() if line.startswith(f'  {entry["value"]} ')).split()
        assert row[-6:-3] == [f'{100 * plan["schedule"]["bubble"]:.1f}', str(plan["schedule"]["in_flight"]), str(plan["schedule"]["deferred"])], row
        sizes = entry["schedule"]["activations"], most, sum(moved.values())
        assert row[-3:] == [f"{size / 2**20:.2f}" for size in sizes], (row, sizes)
    assert ("schedule" in plan) == ("schedule" in entry)
    assert moved == {(m["what"], m["op"], m["axes"]): m["bytes"] for m in entry["moved"]}, (moved, entry["moved"])
    assert len(moved) > 0
    assert f'{entry["rank"]["peak"] / 2**20:.2f}' in table and f'{entry["node_peak"] / 2**20:.2f}' in table, table
    for (what, op, axes), count in moved.items():
        rows = [line.split(f" {what}: {op} ", 1)[1].split() for line in table.splitlines() if f" {what}: {op} " in line]
        row = next(row for row in rows if (axes in row[:2] if axes else row[0][0].isdigit()))
        assert f"{count / 2**20:.2f}" in row, (row, count)
Y
}

compare hsdp-4x8 shard.zero 0 1 2 3
compare hsdp-4x8 shard.outer_zero 0 1 with --set shard.zero=2
compare hsdp-2x2 train.sync '[none, shard, all]' '[shard,shard,all]' '[all,all,all]' with --set train.microbatches=3
compare gpt-3d mesh '"dp_shard=3 tp=2 cp=2"' '"dp_shard=2 tp=2"' with --ranks-per-node 3
compare ocr-fan-in-small train.microbatches 1 2
compare moe-dp2ep precision.reduce f32 bf16
compare gpt-pp schedule.kind gpipe 1f1b zb with --set train.microbatches=5
compare moe-pp mesh '"pp=3 dp_shard=2"' '"pp=1 dp_shard=2"' with --set views.sparse="ep=2 etp=1"
compare gpt-pp schedule '{kind: gpipe, stages: 6}' '{kind: interleaved, stages: 6}' with --set mesh="pp=3 dp_shard=2"

# Schedules that the recipe cannot have are reported in their row; if it can have none, the comparison is refused.
pipeline=$source/recipes/gpt-pp.yaml
"$addend" plan "$pipeline" --compare schedule=gpipe,1f1b,interleaved,zb >kinds.txt || fail "kinds"
"$addend" plan "$pipeline" --compare schedule=gpipe,1f1b,interleaved,zb --json >kinds.json || fail "kinds"
grep -q '^  interleaved  .*1f1b' kinds.txt && says kinds.txt 1f1b "stages: N" || fail "interleaved of one stage a rank"
"$addend" plan "$pipeline" --set schedule.stages=4 --compare schedule=gpipe,1f1b,interleaved,zb --json >several.json || fail "several stages"
python3 - <<'Y' || fail "which schedules fit"
import json
def unfit(name):
    return {plan["value"]: plan.get("unfit") for plan in json.load(open(name))["plans"]}
kinds, several = unfit("kinds.json"), unfit("several.json")
assert [value for value in kinds if kinds[value]] == ["interleaved"], kinds
assert [value for value in several if several[value]] == ["1f1b", "zb"], several
Y
none=0
"$addend" plan "$pipeline" --set schedule.stages=4 --compare schedule=1f1b,zb >out 2>err || none=$?
[ $none -eq 2 ] && [ ! -s out ] || fail "no schedule fits: exit $none"
for kind in 1f1b zb; do says err "$kind" 4 2; done

refused() { # arguments: facts of the message with | between them, options
  local status=0
  "$addend" plan "$source/recipes/hsdp-4x8.yaml" "${@:2}" >out 2>err || status=$?
  [ $status -eq 2 ] && [ ! -s out ] || { cat out err >&2; fail "exit $status, not 2: ${*:2}"; }
  says_all err "$1"
}
refused "shard.zero|most 3|is 7" --compare shard.zero=0,7
refused "--compare|shard.zero=0,1,2,3|'shard.zero'" --compare shard.zero
refused "--compare|shard.zero=0,1,2,3|'=1'" --compare =1
refused "shard.zreo|shard.zero" --compare shard.zreo=1,2
refused "--picture|--compare" --compare shard.zero=0,1 --picture p.svg
refused "schedule.kind|1f1b|1f1c" --compare schedule=gpipe,1f1c
refused "--compare|64 values" --compare "train.seed=$(seq -s , 65)"
[ ! -e p.svg ] || fail "a picture of nothing"
echo "plan_compare: all hold"
