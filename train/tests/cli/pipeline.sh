#!/usr/bin/env bash
# Tests pipelines: gpt and moe on meshes with pp, with several stages on a rank and stages without layers, compared with
# one process; one norm over all stages; training with pp as without; checkpoints that are resumed on another pp; dumps
# and plans of stages; and recipes that do not fit.
#   pipeline.sh ADDEND SOURCE
set -eu
addend=$1 source=$2
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
cd "$work"
fail() { echo "FAILED: $*" >&2; exit 1; }
. "$source/tests/support/says.sh"
. "$source/tests/support/draw.sh"
. "$source/tests/support/check.sh"
is_below() { python3 -c 'import json; assert all(p["max_rel_err"] < 1e-12 == p["bound"] for p in json.load(open("proof.json"))["params"])'; }

# ---- every gradient compared with one process in one stage, in f64, errors below 1e-12 ----
cases=()
for microbatches in 1 2 3 4 5; do
  for tied in true false; do
    cases+=("gpt-dp mesh=pp=2+dp=3 train.microbatches=$microbatches model.tied=$tied"
      "gpt-dp mesh=pp=3+dp=2 train.microbatches=$microbatches model.tied=$tied --steps 3"
      "gpt-dp mesh=pp=4 train.microbatches=$microbatches model.tied=$tied"
      "gpt-pp schedule.stages=4 train.microbatches=$microbatches model.tied=$tied"
      "gpt-pp mesh=pp=3+tp=2 schedule.layers=[0,3,0] train.microbatches=$microbatches model.tied=$tied")
  done
done
for zero in 1 2 3; do
  cases+=("gpt-pp shard.zero=$zero --steps 3" "gpt-3d mesh=pp=2+dp_shard=2+cp=3 shard.zero=$zero"
    "gpt-dp mesh=pp=2+dp_replicate=2+dp_shard=2 shard.zero=$zero train.microbatches=3"
    "moe-pp shard.zero=$zero --steps 3")
done
for n in 2 3; do
  cases+=("gpt-tp mesh=pp=2+tp=$n" "gpt-tp-sp mesh=pp=$n+tp=2 model.convert_norms=true"
    "gpt-cp mesh=pp=2+cp=$n" "gpt-cp mesh=pp=$n+cp=2 model.gather_keys=true"
    "moe-cp mesh=pp=$n+dp_shard=2+cp=2" "moe-pp mesh=pp=$n+dp_shard=2+tp=2 model.tied=true")
done
cases+=("moe-dp2ep mesh=pp=2+dp_shard=2+tp=2" "moe-tp2ep mesh=pp=2+dp_shard=2+tp=2"
  "moe-balance mesh=pp=2+dp_shard=2+tp=3" "moe-pp schedule.stages=4 --steps 3"
  "gpt-text-bf16 mesh=pp=2 model.layers=2 data.seq=32 train.global_batch=4 train.microbatches=2")
for kind in gpipe zb; do
  for microbatches in 1 2 3 7 9; do
    cases+=("gpt-pp schedule.kind=$kind train.microbatches=$microbatches"
      "gpt-dp mesh=pp=4 schedule.kind=$kind train.microbatches=$microbatches --steps 2")
  done
  cases+=("moe-pp schedule.kind=$kind shard.zero=3" "gpt-tp-sp mesh=pp=2+tp=3 schedule.kind=$kind"
    "gpt-3d mesh=pp=2+dp_shard=2+cp=2 schedule.kind=$kind train.microbatches=3")
done
for microbatches in 1 3 8 9; do
  cases+=("gpt-pp schedule.stages=6 train.microbatches=$microbatches"
    "moe-pp schedule.stages=4 shard.zero=3 train.microbatches=$microbatches")
done
draw_cases "stages" 8 "${cases[@]}"
for arguments in "${drawn[@]}"; do
  read -ra words <<<"$arguments"
  check_recipe "${words[@]}" && is_below
done
check_recipe gpt-pp && is_below
check_recipe gpt-pp schedule.stages=6 train.microbatches=2 && is_below
check_recipe moe-pp --steps 3 && is_below
# The embedding table that the last stage receives has as many rows as the recipe's vocabulary.
check_recipe gpt-pp model.tied=true model.vocabulary=259 model.head_dim=6 model.bias=qkv && is_below
check_recipe moe-pp model.vocabulary=257 model.normalised_scores=true model.top_k=2 model.bias=attention && is_below
check_recipe gpt-pp --directional

# Backend hostile poisons, delays and reorders.
(export ADDEND_HOSTILE=17 && check_recipe gpt-pp schedule.kind=zb && is_below)
(export ADDEND_HOSTILE=7 && check_recipe moe-pp schedule.stages=4 shard.zero=3 && is_below)

# Stages on one rank leave the program unchanged.
check_recipe gpt-dp mesh=pp=1 schedule.stages=3 && is_below

# A single token of the step counts: microbatches without any pass through all stages too.
check_recipe gpt-pp 'data.valid=[0, 0, 0.1, 0, 0, 0, 0]' && is_below

# ---- the norm has the same bits, however layers are cut into stages ----
cat >norms.py <<'P'
import json, struct
norms = set()
for stages in "123":
    data = open(f"{stages}/step-0.gradients.safetensors", "rb").read()
    norms.add(json.loads(data[8:8 + struct.unpack("<Q", data[:8])[0]])["__metadata__"]["norm"])
assert len(norms) == 1 and float(*norms) > 0, norms
P
for recipe in gpt-pp moe-pp; do
  for stages in 1 2 3; do check_recipe $recipe mesh="pp=$stages+dp_shard=2+tp=2" model.tied=false --dump $stages; done
  python3 norms.py
  check_recipe $recipe mesh="pp=2+dp_shard=2+tp=2" schedule.stages=4 model.tied=false --dump 3 # two stages on each rank
  python3 norms.py
  rm -r 1 2 3
done

# ---- derived mutants: none survives ----
: "${ADDEND_TEST_SEED:?}"
seed=$ADDEND_TEST_SEED count=20
[ "$seed" != all ] || seed=1 count=100
draw_cases "recipes with mistakes" 1 gpt-pp moe-pp
for recipe in "${drawn[@]}"; do
  check_recipe $recipe --mutate=$count --seed "$seed"
  python3 -c 'import json; p = json.load(open("proof.json")); assert p["survivors"] == 0 and p["coverage"]["mutants"] >= 20, p["coverage"]'
done

# ---- training: the same losses and weights as without stages, in one file under the same names ----
train() { # arguments: folder, recipe, options
  local folder=$1 recipe=$2; shift 2
  "$addend" train "$source/recipes/$recipe.yaml" --set train.steps=4 --set checkpoint.every=2 \
    --set 'precision={param: f64, compute: f64}' --out "$folder" "$@" >out 2>&1 || { cat out; fail "train $recipe $*"; }
}
cat >same.py <<'P'
import array, json, math, struct, sys
def weights(path):
    data = open(path + "/weights.safetensors", "rb").read()
    (size,) = struct.unpack("<Q", data[:8])
    head = json.loads(data[8:8 + size])
    head.pop("__metadata__", None)
    return {name: array.array("d", data[8 + size + t["data_offsets"][0]:8 + size + t["data_offsets"][1]]) for name, t in head.items()}
def lines(path): return [json.loads(line) for line in open(path + "/metrics.jsonl")]
one, other, which = sys.argv[1], sys.argv[2], sys.argv[3]
a, b = weights(one), weights(other)
assert list(a) == list(b) and "blocks.1.attn.wq" in a and all(len(a[n]) == len(b[n]) for n in a), (list(a), list(b))
worst = max(abs(x - y) for n in a for x, y in zip(a[n], b[n]))
assert worst < 1e-12, worst
if which == "metrics":
    for x, y in zip(lines(one), lines(other), strict=True):
        for key in "step", "loss", "tokens", "norm", "validation_loss", "losses", "measured":
            assert x.get(key) == y.get(key), (key, x.get(key), y.get(key))
P
validation=(--set data.validation=0.1 --set evaluate.every=2 --set evaluate.samples=9)
train one gpt-pp "${validation[@]}" --set mesh=dp=1
train two gpt-pp "${validation[@]}"
train four gpt-pp "${validation[@]}" --set mesh="pp=2 tp=2" --set schedule.stages=4 --set schedule.layers=[1,0,1,1]
python3 same.py one two metrics
python3 same.py one four metrics
train experts moe-pp --set mesh="dp_shard=2 tp=2"
train staged moe-pp
python3 same.py experts staged metrics

# ---- checkpoints are resumed with another pp ----
goes_on() { # arguments: folder to resume from, recipe, options
  local from=$1 recipe=$2; shift 2
  rm -rf on && mkdir -p on/checkpoints && cp -r "$from/checkpoints/step-2" on/checkpoints/
  train on "$recipe" --resume "$@"
  says out "2 steps"
  python3 same.py "$from" on weights
}
draw_cases "meshes to go on from" 2 "mesh=pp=1" "mesh=pp=3 dp=2" "mesh=pp=4" "mesh=dp=3"
for mesh in "${drawn[@]}"; do goes_on two gpt-pp "${validation[@]}" --set "$mesh"; done
goes_on one gpt-pp "${validation[@]}"
goes_on two gpt-pp "${validation[@]}" --set schedule.stages=4 --set schedule.kind=gpipe
goes_on staged moe-pp --set mesh="pp=3 dp_shard=1" --set 'views.sparse=ep=1 etp=1'

# ---- a dump has files of each stage ----
train dumped gpt-pp --dump-step 1 --set schedule.stages=4
"$addend" diff dumped/dump-1 >out || { cat out; fail "the dump is not right"; }
says out matches "4 of" "4 modules"
found=$(find dumped/dump-1 -name 'stage*' -printf '%f\n' | cut -d. -f1 | sort -u | xargs)
[ "$found" = "stage0 stage1 stage2 stage3" ] || fail "files of $found"

# ---- plans ----
python3 - "$addend" "$source" <<'P'
import json, subprocess, sys
addend, source = sys.argv[1:]
def plan(recipe, *sets):
    words = [addend, "plan", f"{source}/recipes/{recipe}.yaml", "--json", *sum((["--set", s] for s in sets), [])]
    return json.loads(subprocess.run(words, capture_output=True, text=True, check=True).stdout)
def stages(document): # parameters' names by the pool that reduces or holds them
    return [[p["first_rank"], p["ranks"], len(p["modules"])] for p in document["pools"]]
two = plan("gpt-pp")
assert stages(two) == [[0, 6, 1], [6, 6, 1]], two["pools"]
assert stages(plan("gpt-pp", "schedule.stages=4")) == [[0, 6, 2], [6, 6, 2]]
names = [p["name"] for p in two["params"]]
assert names[0] == "embedding.weight" and names[-1] == "final.norm.weight" and len(set(names)) == len(names), names
# Each rank of a stage sends its own part, forward the stream and the embedding, and gets a gradient of as many bytes.
crossing = {}
for bridge in two["bridges"]:
    crossing.setdefault(bridge["site"], []).append(bridge)
assert set(crossing) == {"stream 0", "embedding"}, crossing
for bridge in two["bridges"]:
    for rank in bridge["bytes_per_rank"]:
        forward, back = rank["forward"], rank["backward"]
        gives = rank["rank"] < 6
        assert forward["sends" if gives else "receives"] == back["receives" if gives else "sends"], rank
        assert forward["receives" if gives else "sends"] == 0 == back["sends" if gives else "receives"], rank
table = crossing["embedding"][0]
assert {rank["forward"]["sends"] for rank in table["bytes_per_rank"][:6]} == {256 * 24 * 4 // 2}, table # tp=2 cuts it
for bridge in two["bridges"]:
    for way in "forward", "backward":
        assert bridge[way]["bytes"] == sum(route["bytes"] for route in bridge[way]["routes"]), bridge
big = plan("gpt-pp", "mesh=pp=64 dp_shard=8192 tp=2", "model.layers=64", "train.global_batch=16384", "train.microbatches=2")
assert big["world"] == 1 << 20 and len(big["pools"]) == 64, big["world"]
P

# ---- recipes that do not fit are refused with the key and a value that would fit ----
refused() { # arguments: facts of the message with | between them, recipe, options
  local status=0
  "$addend" plan "$source/recipes/$2.yaml" "${@:3}" >out 2>&1 || status=$?
  [ $status -eq 2 ] || { cat out; fail "exit $status, not 2: ${*:3}"; }
  says_all out "$1"
}
refused '--set schedule.kind|1f1b' gpt-pp --set schedule.kind=fifo
refused '--set schedule.kind|1f1b|4|2' \
  gpt-pp --set schedule.kind=1f1b --set schedule.stages=4
refused '--set schedule.stages|interleaved|2|3' gpt-pp --set schedule.stages=3
refused '--set schedule.stages|pp=2|1|2|0' gpt-pp --set schedule.stages=1
refused '--set schedule.stages|2048|5000' gpt-pp --set schedule.stages=5000
refused '--set train.sync|schedule.kind|1f1b' \
  gpt-pp --set schedule.kind=zb --set 'train.sync=[shard, all, all]'
refused '--set schedule.layers|3|2' gpt-pp --set 'schedule.layers=[1,1,1]'
refused '--set schedule.layers|0|model.layers|4|3' moe-pp --set 'schedule.layers=[2,2]'
refused '--set mesh|dp_shard=2 pp=2|pp' gpt-dp --set mesh="dp=2 pp=2"
refused '--set mesh.model|pp=2|dp_replicate|dp_shard|cp|tp' ocr-equal --set mesh.model="pp=2 dp=2"
refused '--set schedule.stages' ocr-equal --set schedule.stages=2
refused '--set mesh|dp_shard=1|etp' moe-pp --set mesh=pp=2 --set 'views.sparse=ep=1 etp=1'
refused '--set views.sparse' moe-pp --set 'views.sparse=efsdp=4 ep=2 etp=1'
echo "pipeline: all hold"
