#!/usr/bin/env bash
# Tests wrong calls and wrong recipes: all errors are reported together, with their lines, before any rank starts; exit
# status 2.
set -eu
addend=$1 source=$2
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
cd "$work"
fail() { echo "FAILED: $*" >&2; exit 1; }
. "$source/tests/support/says.sh"
refused() { # arguments: lines of facts with | between them, a line for each line of the message, call
  local lines=$1 status=0 facts; shift
  "$addend" "$@" >out 2>err || status=$?
  [ $status -eq 2 ] || { cat err >&2; fail "exit $status instead of 2: $*"; }
  [ ! -s out ] || fail "a refused call prints nothing on standard output: $*"
  while IFS= read -r facts; do says_all err "$facts"; done <<<"$lines"
}
cp "$source/recipes/gpt-dp.yaml" good.yaml
cat >bad.yaml <<'Y'
name: bad
model: {kind: gpt, layers: many, d_model: 30, heads: 4}
data:
  text: [/usr/share/common-licenses/GPL-3]
  seq: 64
mesh: "dp_replicate=2 dq=2"
train: {global_batch: 16, microbatchs: 2, steps: 0, lr: fast}
Y
refused $'bad.yaml:2|model.layers\nbad.yaml:2|model.heads|30|4|3|5\nbad.yaml:6|dq=2\nbad.yaml:7|train.microbatchs|train.microbatches\nbad.yaml:7|train.steps|0\nbad.yaml:7|train.lr' check bad.yaml
refused 'no-such.yaml' train no-such.yaml
refused '--set data.text|/no/such/folder' plan good.yaml --set 'data.text=[/no/such/folder]'
refused '--set data.text|data.tokens' train good.yaml --set 'data.text=[]'
mkdir none
refused '--set data.text|none' train good.yaml --set 'data.text=[none]'
: >empty.txt
refused '--set data.text|empty.txt' check good.yaml --set 'data.text=[empty.txt]'
echo short >short.txt
refused 'good.yaml:14|data.seq|6 bytes' check good.yaml --set 'data.text=[short.txt]'
refused '--set model.heads|5' check good.yaml --set model.heads=5
refused '--set train.sync|has 1|train.microbatches|is 2' check good.yaml --set 'train.sync=[none]'
refused '--set train.sync' check good.yaml --set 'train.sync=[none, shard]'
refused '--set precision|f32|f64' train good.yaml --set 'precision={reduce: f64, accumulate: f32}'
refused 'precision.accumulate|f64|f32,|bf16' train good.yaml --set 'precision={accumulate: bf16}'
refused '--set shard.bucket_mib|above 0|is 0' train good.yaml --set shard.bucket_mib=0
refused 'train.stepz' check good.yaml --set train.stepz=1
refused '--set mesh|pp' check good.yaml --set mesh="dp_shard=2 pp=2"
refused '--steps|none' check good.yaml --steps none
refused '--set views.sparse' plan good.yaml --set views.sparse=x
refused '--out' train good.yaml --out ''
refused 'RECIPE' check
refused frobnicate frobnicate
refused '-n' run -- true
printf 'model: {kind: gpt\nname: [' >broken.yaml
refused 'broken.yaml:2' plan broken.yaml
for command in train check plan bench run; do
  "$addend" $command --help >help && grep -q Example help || fail "$command --help has an example"
done
"$addend" --help | grep -q check || fail "addend --help lists the commands"
"$addend" plan good.yaml --json | python3 -c '
import json, sys
plan = json.load(sys.stdin)
assert plan["world"] == 3 and plan["params"] and plan["collectives"], plan.keys()
for param in plan["params"]:
    assert set("name numel mesh layout storage gradient_layout precision path".split()) <= set(param)
    for step in param["path"]:
        assert set("op axes group_size dtype bytes bucket when".split()) <= set(step)
assert len(plan["memory_per_rank"]) == 3 and plan["memory_per_rank"][0]["peak"] > 0
assert plan["memory_per_node"][0]["peak"] >= plan["memory_per_rank"][0]["peak"]
names = [name for step in plan["collectives"] for name in step["params"]]
assert sorted(names) == sorted(param["name"] for param in plan["params"])'
"$addend" plan good.yaml --set mesh="dp_replicate=1024 dp_shard=1024" --json | python3 -c '
import json, sys
plan = json.load(sys.stdin)
assert plan["world"] == 1 << 20
assert sum(entry.get("ranks", 1) for entry in plan["memory_per_rank"]) == 1 << 20'
# Sixteen ranks on one node, then on two: a node holds what its ranks hold, and ranks of two nodes share no copy.
for ranks in 16 8; do
  "$addend" plan good.yaml --set mesh="dp_replicate=1 dp_shard=16" --set shard.zero=1 --ranks-per-node $ranks --json >nodes-of-$ranks
done
python3 - <<'N'
import json
gathered = {}
for size in (16, 8):
    plan = json.load(open(f"nodes-of-{size}"))
    assert [node["node"] for node in plan["memory_per_node"]] == list(range(16 // size))
    for node in plan["memory_per_node"]:
        ranks = [rank for rank in plan["memory_per_rank"] if rank["node"] == node["node"]]
        assert node["peak"] == sum(rank["peak"] for rank in ranks) and len(ranks) == size
    for rank in plan["memory_per_rank"]:
        parts = "params gathered grads optimizer buckets activations checkpoint runtime".split()
        assert rank["peak"] == sum(rank[part] for part in parts) and rank["grads"] > 0, rank
    gathered[size] = plan["memory_per_rank"][0]["gathered"]
assert gathered[8] > 15 * gathered[16], gathered
N
refused '--ranks-per-node|0' plan good.yaml --ranks-per-node 0
refused '--spmd|--picture' plan good.yaml --spmd --picture types.svg
refused '--spmd|--compare' plan good.yaml --spmd --compare shard.zero=1,2
refused '--spmd|--trace' plan good.yaml --spmd --trace run
# A model of 170 billion parameters: a plan holds none of them.
python3 - "$addend" <<'Y'
import json, resource, subprocess, sys
sizes = ["model.layers=96", "model.d_model=12288", "model.heads=96"]
command = [sys.argv[1], "plan", "good.yaml", "--json"] + [word for size in sizes for word in ("--set", size)]
plan = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
numel, rank = sum(param["numel"] for param in plan["params"]), plan["memory_per_rank"][0]
assert numel > 170e9, numel
assert rank["params"] == rank["buckets"] == 4 * numel and rank["optimizer"] == 8 * numel, rank
assert rank["activations"] > 1e9, rank
held = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss # KiB
assert held < 1 << 20, held
Y
echo "recipes: all hold"
