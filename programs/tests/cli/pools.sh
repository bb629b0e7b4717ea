#!/usr/bin/env bash
# Tests a decomposition on three pools: every gradient of components and importance network against one process, on
# pools that may be larger or smaller than each other, and no multiples; each loss alone; the adversary's ascent steps;
# mutants; checkpoints that are resumed bit for bit on the same pools, and on others; and recipes that do not
# fit.
#   pools.sh ADDEND SOURCE
set -eu
addend=$1 source=$2
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
cd "$work"
fail() { echo "FAILED: $*" >&2; exit 1; }
. "$source/tests/support/says.sh"
. "$source/tests/support/draw.sh"
. "$source/tests/support/check.sh"
# Checks in f64 alone; `check_recipe` checks in the recipe's own dtypes too.
check_wide() { check_recipe pools-10 precision.compute=f64 precision.param=f64 "$@"; }
pools() { echo "mesh={ci:+\"dp=$1\",+blocks:+\"block=$2+dp=$3\",+adv:+\"dp=$4\"}"; }

# ---- pools as shipped, of equal sizes, nested either way, no multiples of each other, of one rank each, random ----
cases=(pools-10 pools-square pools-inverted-a pools-inverted-b pools-ragged pools-1 "pools-1 mesh.blocks=block=6+dp=1")
for case in "${cases[@]}"; do
  cases+=("$case precision.compute=bf16" "$case precision.compute=bf16 comm_dtype={values:+f16,+gradients:+f16,+weights:+bf16} ascent.scope=batch")
done
draw_cases "named pools" 2 "${cases[@]}"
for case in "${drawn[@]}"; do check_recipe $case; done
cases=()
for ci in 1 2 3 5; do
  for block in 1 2 3; do
    for dp in 1 2 3; do
      for adv in 1 2 4; do
        [ $((ci + block * dp + adv)) -gt 16 ] && continue
        for batch in "7 train.microbatches=1" "10 train.microbatches=3"; do
          for how in "ascent.rule=sign" "losses.stochastic.divergence=kl" "ascent.steps=0 shard.zero=3" "ascent.scope=batch" \
            "ascent.scope=batch ascent.rule=sign ascent.bounds=sigmoid" "ascent.bounds=sigmoid"; do
            cases+=("$(pools $ci $block $dp $adv) train.global_batch=$batch $how --steps 3")
          done
        done
      done
    done
  done
done
draw_cases "pools" 2 "${cases[@]}"
for case in "${drawn[@]}"; do check_recipe pools-10 $case; done

check_recipe pools-10 ascent.steps=0
check_recipe pools-10 --steps 3

# ---- each loss alone; slopes without a reference (--directional) ----
none="losses.faithfulness.coefficient=0 losses.stochastic.coefficient=0 losses.sparsity.coefficient=0 losses.adversarial.coefficient=0"
draw_cases "losses alone" 1 faithfulness stochastic sparsity adversarial
for loss in "${drawn[@]}"; do
  check_wide $none losses.$loss.coefficient=2
done
check_recipe pools-10 --directional ascent.steps=0 model.plain_clamp=true

for sets in "" "--set ascent.steps=0"; do
  status=0; "$addend" check "$source/recipes/pools-10.yaml" --directional $sets >out.txt 2>&1 || status=$?
  [ $status -eq 2 ] || { cat out.txt >&2; fail "a slope that is none: exit $status"; }
  says out.txt --set model.plain_clamp=true
done

# ---- mutants ----
check_recipe pools-10 --mutate=20
python3 - <<'Y'
import json
proof = json.load(open("proof.json"))
assert proof["survivors"] == 0, proof["survivors"]
# A mean instead of a sum divides a pool's gradients by its number of ranks, so the ratio to the reference is 1/ranks.
for m in proof["mutants"]:
    if m["derived"] and m["name"].startswith("averaged") and m["killed_by"] == "number" and m["expected_ratio"]:
        assert abs(m["ratio"] / m["expected_ratio"] - 1) < 1e-9, m
Y

# With one loss alone each mistake has its known effect: faithfulness that counts on every rank of a block is too large
# by their number, and a gradient averaged over a pool is too small by its number of ranks.
signature() { # argument: loss
  check_wide $none losses.$1.coefficient=2 "$(pools 2 2 3 1)" --mutate
  python3 - "$1" <<'Y'
import json, sys
proof, loss = json.load(open("proof.json")), sys.argv[1]
assert proof["survivors"] == 0, proof["survivors"]
caught = [m for m in proof["mutants"] if m["derived"] and m["killed_by"] == "number"]
once = [m for m in caught if "once_everywhere" in m["name"] and "decompose/phases.c" in m["name"] and m["ratio"] is not None]
averaged = [m for m in caught if m["name"].startswith("averaged") and m["param"] and m["param"] in m["name"]]
if loss == "faithfulness":
    assert once and all(abs(m["ratio"] - 3) < 1e-9 for m in once), once
assert averaged and all(abs(m["ratio"] * (2 if m["param"].startswith("ci.") else 3) - 1) < 1e-9 for m in averaged), averaged
assert all(m["param"].startswith("ci.") for m in averaged) == (loss == "sparsity"), averaged
Y
}
draw_cases "signatures" 1 faithfulness sparsity
for loss in "${drawn[@]}"; do signature "$loss"; done

# ---- resuming: sources and moments of the ascent are resumed too ----
train() { local out=$1; shift; "$addend" train "$source/recipes/pools-10.yaml" --out "$out" --set checkpoint.every=4 "$@" >out.txt 2>&1 || { cat out.txt >&2; fail "train $*"; }; }
train whole --set train.steps=8
cp -r whole same && rm -rf same/checkpoints/*8 same/weights.safetensors
cp -r same other
train same --resume --set train.steps=8
cmp whole/weights.safetensors same/weights.safetensors || fail "a resumed run has other bits"
# Sources belong to microbatches, so a run with another number of microbatches cannot be resumed.
for option in "" --force; do
  status=0
  "$addend" train "$source/recipes/pools-10.yaml" --out same --set checkpoint.every=4 --resume $option --set train.steps=9 --set train.microbatches=1 >out.txt 2>&1 || status=$?
  [ $status -eq 2 ] || { cat out.txt >&2; fail "another number of microbatches: exit $status, not 2 $option"; }
  says out.txt train.microbatches 2 1 --force
done
train other --resume --set train.steps=8 --set 'mesh={ci: "dp=2", blocks: "block=3 dp=1", adv: "dp=4"}'
python3 - <<'Y'
import json
last = lambda run: json.loads(open(run + "/metrics.jsonl").read().splitlines()[-1])
whole, other = last("whole"), last("other")
assert set(whole["losses"]) == {"faithfulness", "stochastic", "sparsity", "adversarial"}, whole
for name, value in whole["losses"].items():
    assert abs(other["losses"][name] / value - 1) < 1e-4, (name, value, other["losses"][name])
Y

# ---- sparsity is divided by the positions: if every importance counts 1, it is the number of components ----
train ones --set train.steps=2 --set losses.sparsity.epsilon=1 --set losses.sparsity.power=1e-9 --set losses.sparsity.beta=0
python3 - <<'Y'
import json
found, components = json.loads(open("ones/metrics.jsonl").readline())["losses"]["sparsity"], 2 * (5 + 5 + 7)
assert abs(found / components - 1) < 1e-5, (found, components)
Y

# ---- recipes that do not fit are refused before any rank starts ----
refused() { # arguments: facts of the message with | between them, KEY=VALUE...
  local facts=$1 status=0 settings=() setting; shift
  for setting in "$@"; do settings+=(--set "$setting"); done
  "$addend" train "$source/recipes/pools-10.yaml" --out none "${settings[@]}" >out.txt 2>&1 || status=$?
  [ $status -eq 2 ] || { cat out.txt >&2; fail "$*: exit $status, not 2"; }
  says_all out.txt "$facts"
}
refused '--set sites' 'sites=[]'
refused 'sites[].components|1|0' 'sites=[{match: "*.wq", components: 0}]'
refused 'head.*|blocks.0.attn.wq|blocks.1.mlp.down' 'sites=[{match: "head.*", components: 3}]'
refused 'blocks.0.attn.wq|blocks.*|*.wq' 'sites=[{match: "blocks.*", components: 3}, {match: "*.wq", components: 2}]'
refused 'sites[].components' 'sites=[{match: "*.wq"}]'
refused 'sites[].colour' 'sites=[{match: "*.wq", components: 2, colour: 3}]'
refused '--set mesh.blocks|7|6' 'mesh.blocks=block=7 dp=1'
refused 'mesh.adv' 'mesh={ci: "dp=4", blocks: "block=2 dp=2"}'
refused 'losses.stochastic.sites' losses.stochastic.sites=1
refused 'losses.stochastic.sites' 'losses.stochastic={coefficient: 1, sites: [1]}'
refused 'losses.stochastic.coeficient|losses.stochastic.coefficient' losses.stochastic.coeficient=1
refused 'losses.other' 'losses={other: 1}'
refused 'mesh.others' 'mesh={ci: "dp=4", blocks: "dp=2", adv: "dp=2", others: "dp=2"}'
refused '--set placement' 'placement=shared'
refused '--set importance.heads|3|16' 'importance.heads=3'
refused '560|512' 'model.layers=80' 'sites=[{match: "*", components: 2}]'
refused '--set mesh.blocks|block' 'mesh.blocks=dp=2 block=2'
refused '--set mesh.adv|dp|tp' 'mesh.adv=dp=2 tp=2'
refused '--set losses|0' 'losses={faithfulness: {coefficient: 0}, stochastic: {coefficient: 0}, sparsity: {coefficient: 0}, adversarial: {coefficient: 0}}'
refused 'ascent.rule' 'ascent.rule=sgd'
refused 'losses.stochastic.divergence|l1' 'losses.stochastic.divergence=l1'
refused 'pools-10.yaml:27|dp=4|4 ranks|block=2 dp=2|2 ranks' 'placement=colocated'

# ---- a target's weight file must have exactly the target's tensors, in their shapes, as finite floats ----
target() { # arguments: name, KEY=VALUE...; writes weights of such a gpt
  local out=$1 settings=() setting; shift
  for setting in "$@"; do settings+=(--set "$setting"); done
  "$addend" train "$source/recipes/gpt-dp.yaml" --out "$out" --set 'model={kind: gpt, layers: 2, d_model: 16, heads: 2, d_hidden: 24}' \
    --set mesh=dp=1 --set train.steps=1 --set train.warmup=0 "${settings[@]}" >out.txt 2>&1 || { cat out.txt >&2; fail "train $out"; }
}
target fits
train explained --set train.steps=2 --set target.weights=fits/weights.safetensors
target narrow model.d_model=8
target more model.bias=true
PYTHONPATH=$source/train/tests/cli python3 - <<'Y'
import safetensors, struct
name, tensors = "embedding.weight", safetensors.load("fits/weights.safetensors")
dtype, shape, data = tensors[name]
safetensors.save("integers.safetensors", {**tensors, name: ("I32", shape, data)})
safetensors.save("nan.safetensors", {**tensors, name: (dtype, shape, struct.pack("<f", float("nan")) + data[4:])})
Y
refused 'embedding.weight' target.weights=whole/weights.safetensors
refused 'embedding.weight|[256, 8]|[256, 16]' target.weights=narrow/weights.safetensors
refused 'blocks.0.attn.wk_bias' target.weights=more/weights.safetensors
refused 'blocks.1.' target.weights=fits/weights.safetensors model.layers=1 'sites=[{match: "*.wq", components: 2}]' 'mesh.blocks=block=1 dp=2'
refused 'embedding.weight|i32' target.weights=integers.safetensors
refused 'embedding.weight[0, 0]' target.weights=nan.safetensors
echo "pools: all hold"
