#!/usr/bin/env bash
# Tests tensor, sequence and context parallelism: each recipe on meshes with 2, 3 and 4 ranks an axis, at every ZeRO
# level, with one and three microbatches, over five steps (drawn by a seed); derived mutants (drawn); a batch in which
# one token counts; plans of a million ranks; checkpoints that are resumed on other meshes; and sizes that do not fit.
#   parallel.sh ADDEND SOURCE
set -eu
addend=$1 source=$2
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
cd "$work"
fail() { echo "FAILED: $*" >&2; exit 1; }
. "$source/tests/support/says.sh"
. "$source/tests/support/draw.sh"

check() { # recipe, arguments...: the check's document is proof.json
  local recipe=$1 status=0; shift
  "$addend" check "$source/recipes/$recipe.yaml" "$@" --json >proof.json 2>proof.err || status=$?
  [ $status -eq 0 ] || { cat proof.err >&2; tail -8 proof.json >&2; fail "$recipe $*: exit $status"; }
}

# ---- every gradient compared with one process, in f64, errors below 1e-12 ----
# Options of other model families: a custom head width, a vocabulary that no tp divides, biases in some products,
# scaled rotary frequencies (in each head one pair keeps its frequency, one is slowed down, one is between).
llama="--set model.head_dim=6 --set model.kv_heads=2 --set model.vocabulary=259 --set model.bias=attention --set model.qk_norm=false"
llama+=" --set model.norm_epsilon=0.01 --set model.rotary_base=12 --set model.rotary_scaling=[8,0.5,2,16]"
qwen="--set model.head_dim=2 --set model.kv_heads=4 --set model.vocabulary=257 --set model.bias=qkv --set model.norm_epsilon=1e-6"
cases=()
for n in 1 2 3; do
  for recipe in "gpt-tp --set mesh=tp=$n" "gpt-tp-sp --set mesh=tp=$n" "gpt-cp --set mesh=cp=$n" "gpt-3d --set shard.zero=$n"; do
    cases+=("$recipe $llama" "$recipe $qwen --set model.tied=false" "$recipe $qwen --set model.bias=mlp --steps 3")
  done
done
for n in 2 3 4; do
  for steps in "--steps 2" "--steps 5 --set train.microbatches=3" "--set train.microbatches=1"; do
    cases+=("gpt-tp --set mesh=tp=$n $steps" "gpt-tp-sp --set mesh=tp=$n $steps" "gpt-cp --set mesh=cp=$n $steps"
      "gpt-tp-sp --set mesh=tp=$n --set model.convert_norms=true $steps"
      "gpt-cp --set mesh=cp=$n --set model.gather_keys=true $steps"
      "gpt-tp --set mesh=tp=$n --set model.kv_heads=1 $steps" "gpt-tp --set mesh=tp=$n --set model.tied=false $steps")
  done
done
for zero in 0 1 2 3; do
  for microbatches in 1 3; do
    cases+=("gpt-3d --set shard.zero=$zero --set train.microbatches=$microbatches --steps 5")
  done
done
draw_cases "meshes of tp and cp" 3 "${cases[@]}"
for arguments in "${drawn[@]}"; do check $arguments; done
check gpt-3d
check gpt-3d $llama
check gpt-3d $qwen --set model.tied=true --set mesh="dp_shard=1 cp=2 tp=3"
check gpt-3d --set mesh="dp_replicate=2 dp_shard=1 cp=4 tp=2"
check gpt-3d --set mesh="tp=3 dp_shard=2 cp=2" --set shard.zero=2
draw_cases "slopes" 1 gpt-tp gpt-tp-sp gpt-cp gpt-3d
for recipe in "${drawn[@]}"; do check $recipe --directional; done
# Axes of one rank leave the program unchanged.
check gpt-3d --set mesh="dp_shard=1 cp=1 tp=1"

# A single token of the step counts, on one rank of cp; the other ranks add zero to loss and count.
check gpt-cp --set 'data.valid=[0, 0, 0.02, 0, 0, 0]' --set mesh="dp_shard=1 cp=3"
check gpt-3d --set 'data.valid=[0, 0, 0, 0, 0.05, 0]'

# ---- types and conversions in the plan ----
python3 - "$addend" "$source" <<'Y'
import json, subprocess, sys
addend, source = sys.argv[1:]
def plan(recipe, *sets):
    out = subprocess.run([addend, "plan", f"{source}/recipes/{recipe}.yaml", "--json", *sum((["--set", s] for s in sets), [])],
                         capture_output=True, text=True, check=True).stdout
    return {p["name"]: p for p in json.loads(out)["params"]}
def tp(param, key="layout"):
    return next(t for t in param[key].split() if t.startswith("tp="))
name = "blocks.0.norm.attn"
assert tp(plan("gpt-tp")[name]) == "tp=I"
summed, converted = plan("gpt-tp-sp")[name], plan("gpt-tp-sp", "model.convert_norms=true")[name]
assert tp(summed) == "tp=R" and tp(summed, "gradient_layout") == "tp=P" and summed["path"], summed
assert tp(converted) == "tp=I" and not converted["path"], converted
assert tp(plan("gpt-tp", "mesh=tp=3")["blocks.0.attn.wk"], "gradient_layout") == "tp=P"
assert tp(plan("gpt-tp", "mesh=tp=2")["blocks.0.attn.wk"]) == "tp=S1"
# A million ranks, planned by real local shapes: of 50,000 along cp each has 4 of 200,000 tokens, and memory for them.
def ranks(recipe, *sets):
    out = subprocess.run([addend, "plan", f"{source}/recipes/{recipe}.yaml", "--json", *sum((["--set", s] for s in sets), [])],
                         capture_output=True, text=True, check=True).stdout
    return json.loads(out)
big = ranks("gpt-3d", "train.global_batch=60000", "mesh=dp_replicate=100 dp_shard=208 cp=12 tp=4")
assert big["world"] == 998400, big["world"]
long = ranks("gpt-cp", "mesh=dp_shard=20 cp=50000", "data.seq=200000")
assert long["world"] == 1000000, long["world"]
assert all(r["activations"] < 1 << 20 for r in long["memory_per_rank"]), long["memory_per_rank"][:3]
Y

# ---- derived mutants: none survives; those that repeat published ones say so ----
: "${ADDEND_TEST_SEED:?}"
seed=$ADDEND_TEST_SEED drawn_by=--mutate=40
[ "$seed" != all ] || seed=1 drawn_by=--mutate
draw_cases "recipes with mistakes" 1 gpt-tp gpt-tp-sp gpt-cp gpt-3d
for recipe in "${drawn[@]}"; do
  check $recipe "$drawn_by" --seed "$seed"
  python3 - "$recipe" <<'Y'
import json, sys
proof = json.load(open("proof.json"))
assert proof["survivors"] == 0 and proof["coverage"]["mutants"] >= 40, proof["coverage"]
known = {m["name"]: m for m in proof["mutants"] if not m["derived"]}
ring = [m for m in known.values() if m["name"].startswith("ring-")]
assert len(ring) == (3 if sys.argv[1] in ("gpt-cp", "gpt-3d") else 0), known.keys()
assert all(m["killed_by"] == "number" for m in ring), ring
Y
done

# ---- checkpoints: the same bits on the same mesh; any other mesh can resume ----
train() { "$addend" train "$source/recipes/gpt-3d.yaml" --set train.steps=6 --set checkpoint.every=3 "$@" >out 2>&1 || { cat out; fail "train $*"; }; }
loss() { sed -n 's/.*"step":5,"loss":\([0-9.]*\).*/\1/p' "$1/metrics.jsonl"; }
train --out whole
draw_cases "meshes to go on from" 1 "tp=3" "dp_shard=1 cp=4" "dp_replicate=2 dp_shard=1 cp=3 tp=2" "dp_shard=2"
for mesh in "dp_replicate=1 dp_shard=3 cp=2 tp=2" "${drawn[@]}"; do
  rm -rf on && mkdir -p on/checkpoints && cp -r whole/checkpoints/step-3 on/checkpoints/ && cp whole/metrics.jsonl on/
  train --out on --resume --set mesh="$mesh"
  python3 -c 'import sys; a, b = map(float, sys.argv[1:]); assert abs(a - b) < 1e-4, (a, b)' "$(loss whole)" "$(loss on)"
  [ "$mesh" != "dp_replicate=1 dp_shard=3 cp=2 tp=2" ] || cmp whole/weights.safetensors on/weights.safetensors
done

# ---- sizes that do not fit: all errors together, with numbers that would fit ----
refused() { # arguments: facts of the message with | between them, options
  local status=0
  "$addend" check "$source/recipes/gpt-3d.yaml" "${@:2}" >out 2>&1 || status=$?
  [ $status -eq 2 ] || { cat out; fail "exit $status, not 2: ${*:2}"; }
  says_all out "$1"
}
refused 'model.heads|tp=5|12|d_model 48|10' --set mesh="tp=5"
refused 'data.seq|cp=5|10|24|20|30' --set mesh="cp=5 tp=5"
refused 'model.heads|tp=5' --set mesh="cp=5 tp=5"
refused 'model.kv_heads|12|5' --set model.kv_heads=5
refused 'model.heads|tp=5|12|20' --set mesh="tp=5" --set model.head_dim=6
refused 'model.head_dim|5|4|6' --set model.head_dim=5
refused 'model.vocabulary|255|data.text|256' --set model.vocabulary=255
refused '--set mesh|tp=258|257' --set mesh="tp=258" --set model.vocabulary=257
refused 'model.rotary_scaling' --set 'model.rotary_scaling=[8, 1, 4]'
refused 'model.d_hidden|tp=4|3|4' --set mesh="tp=4" --set model.d_hidden=3
echo "parallel: all hold"
