#!/usr/bin/env bash
# Tests mixtures of experts: each recipe with scores applied before or after the experts, with and without sequence
# parallelism, with the gate typed I and R, at every ZeRO level, with one and three microbatches, over five steps, on
# several views (drawn by a seed); derived mutants (drawn); option values; the gradient's path in the plan; checkpoints
# that are resumed on other views; and recipes that do not fit.
#   moe.sh ADDEND SOURCE
set -eu
addend=$1 source=$2
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
cd "$work"
fail() { echo "FAILED: $*" >&2; exit 1; }
. "$source/tests/support/says.sh"
. "$source/tests/support/draw.sh"
. "$source/tests/support/check.sh"

# ---- every gradient compared with one process, in f64, errors below 1e-12 ----
views=("moe-tp2ep" "moe-tp2ep views.sparse=efsdp=2+ep=2+etp=1" "moe-tp2ep mesh=tp=3 views.sparse=efsdp=1+ep=3+etp=1"
  "moe-tp2ep mesh=dp_shard=3 views.sparse=efsdp=1+ep=3+etp=1" "moe-dp2ep" "moe-dp2ep mesh=dp_shard=4+tp=2 views.sparse=efsdp=2+ep=2+etp=2"
  "moe-tp" "moe-tp mesh=dp_shard=1+tp=3" "moe-cp" "moe-cp mesh=dp_shard=2+cp=2+tp=2 views.sparse=efsdp=2+ep=2+etp=2"
  "moe-tp2ep mesh=dp_replicate=2+dp_shard=1+tp=2 views.sparse=dp_replicate=2+efsdp=1+ep=2+etp=1")
cases=()
for view in "${views[@]}"; do
  for before in true false; do
    for sequence in true false; do
      for gate in true false; do
        cases+=("$view model.score_before_experts=$before model.sequence_parallel=$sequence model.summed_gate=$gate")
      done
    done
  done
  for zero in 0 1 2 3; do
    for microbatches in 1 3; do
      cases+=("$view shard.zero=$zero train.microbatches=$microbatches --steps 5")
    done
  done
  for capacity in 0.4 0.9 unlimited; do
    for sequence in true false; do
      balance="model.capacity=$capacity model.balance_loss=0.3 model.balance_rate=0.05 model.sequence_parallel=$sequence"
      cases+=("$view $balance" "$view $balance model.sigmoid=true --steps 5" "$view $balance model.summed_gate=true")
    done
  done
  for k in 2 3; do
    for sequence in true false; do
      normalised="model.normalised_scores=true model.top_k=$k model.sequence_parallel=$sequence"
      cases+=("$view $normalised model.sigmoid=true model.capacity=0.9" "$view $normalised model.score_before_experts=true --steps 3"
        "$view $normalised model.summed_gate=true model.balance_loss=0.3 model.balance_rate=0.05")
    done
  done
  for k in 1 3 4; do cases+=("$view model.top_k=$k model.sigmoid=true" "$view model.top_k=$k model.tied=false"); done
done
draw_cases "views" 3 "${cases[@]}"
for arguments in "${drawn[@]}"; do check_recipe $arguments; done
cases=()
for recipe in moe-tp2ep moe-dp2ep moe-tp moe-cp moe-empty moe-balance moe-16; do
  cases+=("$recipe" "$recipe --directional" "$recipe precision.compute=bf16 --steps 3")
done
draw_cases "recipes of experts" 2 "${cases[@]}"
for arguments in "${drawn[@]}"; do check_recipe $arguments; done
check_recipe moe-tp2ep
python3 -c '
import json
summary = json.load(open("proof.json"))["summary"]
assert 0 < summary["smallest_margin"] < 0.5, summary'
qwen="model.normalised_scores=true model.top_k=3 model.head_dim=6 model.vocabulary=259 model.bias=qkv model.qk_norm=true
  model.norm_epsilon=0.01 model.rotary_base=12 model.rotary_scaling=[8,0.5,2,16]"
check_recipe moe-tp2ep $qwen
check_recipe moe-16 $qwen model.bias=attention model.sigmoid=true
check_recipe moe-tp2ep $qwen --directional
check_recipe moe-tp2ep model.top_k=5 # every token takes all experts, so nothing is chosen
! grep -q smallest_margin proof.json || fail "a margin where every expert is chosen"
check_recipe moe-balance --steps 5
python3 -c '
import json
states = json.load(open("proof.json"))["summary"]["states"]
assert states["rel_err"] <= states["bound"] == 1e-12, states'
check_recipe moe-16 model.score_before_experts=true model.sequence_parallel=false
check_recipe moe-tp2ep mesh=dp_shard=1 views.sparse=efsdp=1+ep=1+etp=1

# ---- how often experts are chosen: the same on every topology, with drops under a limit, evened out by the bias ----
measured() { # arguments: recipe, KEY=VALUE...; last.json gets the last step of its training
  local arguments=() argument recipe=$1; shift
  for argument in "$@"; do arguments+=(--set "${argument//+/ }"); done
  "$addend" train "$source/recipes/$recipe.yaml" --out asked --overwrite "${arguments[@]}" >out 2>&1 || { cat out; fail "train $recipe $*"; }
  tail -1 asked/metrics.jsonl >last.json
}
one="mesh=dp_shard=1 views.sparse=efsdp=1+ep=1+etp=1"
measured moe-balance data.seq=8 train.steps=2 $one && mv last.json one.json
for view in "" "mesh=dp_shard=3 views.sparse=efsdp=1+ep=3+etp=1" "mesh=cp=2+tp=2 views.sparse=efsdp=1+ep=4+etp=1"; do
  measured moe-balance data.seq=8 train.steps=2 $view
  python3 - <<'Y'
import json
one, here = (json.load(open(name)) for name in ("one.json", "last.json"))
assert one["measured"] == here["measured"] and 0 < here["measured"]["dropped"] < 1, (one["measured"], here["measured"])
assert abs(one["losses"]["balance"] - here["losses"]["balance"]) < 1e-5 and here["losses"]["balance"] > 0.9, here["losses"]
assert abs(here["loss"] - here["losses"]["cross_entropy"] - 0.1 * here["losses"]["balance"]) < 1e-6, here
assert sum(here["measured"]["blocks.0.moe.tokens"]) == 5 * 8 * 2, here["measured"]
Y
done
measured moe-balance model.capacity=unlimited
python3 -c 'import json; assert json.load(open("last.json"))["measured"]["dropped"] == 0'

# ---- which ranks sum which gradients ----
python3 - "$addend" "$source" <<'Y'
import json, subprocess, sys
addend, source = sys.argv[1:]
def plan(recipe, *sets):
    out = subprocess.run([addend, "plan", f"{source}/recipes/{recipe}.yaml", "--json", *sum((["--set", s] for s in sets), [])],
                         capture_output=True, text=True, check=True).stdout
    return {p["name"]: p for p in json.loads(out)["params"]}
def over(param): return {step["axes"] for step in param["path"]}
gate, router = "blocks.0.moe.gate", "blocks.0.moe.router"
invariant, summed = plan("moe-tp2ep")[router], plan("moe-tp2ep", "model.summed_gate=true")[router]
assert over(invariant) == {"dp_shard"} and over(summed) == {"dp_shard,tp"}, (invariant, summed)
# Experts are summed over the ranks that have replicas of them and no other: ZeRO-3 over their own smaller group.
sixteen = plan("moe-16")[gate]
assert sixteen["mesh"] == "efsdp=2 ep=4 etp=2" and over(sixteen) == {"efsdp"}, sixteen
assert sixteen["storage"].startswith("ep=S0 efsdp=S0"), sixteen
assert not plan("moe-tp2ep")[gate]["path"]
Y

# ---- planned memory for even choices and for the worst ones, in a listed world and in a large one ----
python3 - "$addend" "$source" <<'Y'
import json, subprocess, sys
addend, source = sys.argv[1:]
def plan(*arguments):
    return subprocess.run([addend, "plan", f"{source}/recipes/moe-16.yaml", "--set", "train.global_batch=16384", *arguments],
                          capture_output=True, text=True, check=True).stdout
large = ["--set", "mesh=dp_shard=4096 tp=2", "--set", "views.sparse=efsdp=1024 ep=4 etp=2"]
for world in [], large:
    for rank in json.loads(plan("--json", *world))["memory_per_rank"]:
        assert rank["activations"] < rank["activations_worst"], rank
        assert rank["peak_worst"] - rank["peak"] == rank["activations_worst"] - rank["activations"], rank
    head = next(line for line in plan(*world).splitlines() if "MiB per rank" in line)
    assert head.split()[-3:] == ["peak", "activations_worst", "peak_worst"], head
Y

# ---- derived mutants: none survives ----
: "${ADDEND_TEST_SEED:?}"
seed=$ADDEND_TEST_SEED count=
[ "$seed" = all ] && seed=1 || count==40
draw_cases "recipes with mistakes" 1 moe-tp2ep moe-dp2ep moe-tp moe-cp moe-empty moe-balance moe-16
for recipe in "${drawn[@]}"; do
  check_recipe $recipe --mutate$count --seed "$seed"
  python3 -c '
import json
proof = json.load(open("proof.json"))
assert proof["survivors"] == 0 and proof["coverage"]["mutants"] >= 40, proof["coverage"]'
done

# ---- checkpoints: the same bits on the same view; any other view can resume ----
train() { "$addend" train "$source/recipes/moe-tp2ep.yaml" --set train.steps=6 --set checkpoint.every=3 "$@" >out 2>&1 || { cat out; fail "train $*"; }; }
loss() { sed -n 's/.*"step":5,"loss":\([0-9.]*\).*/\1/p' "$1/metrics.jsonl"; }
train --out whole
while IFS='|' read -r mesh view; do
  rm -rf on && mkdir -p on/checkpoints && cp -r whole/checkpoints/step-3 on/checkpoints/ && cp whole/metrics.jsonl on/
  train --out on --resume --set mesh="$mesh" --set views.sparse="$view"
  python3 -c 'import sys; a, b = map(float, sys.argv[1:]); assert abs(a - b) < 1e-4, (a, b)' "$(loss whole)" "$(loss on)"
  [ "$view" != "efsdp=1 ep=4 etp=1" ] || cmp whole/weights.safetensors on/weights.safetensors
done <<'Y'
dp_shard=2 tp=2|efsdp=1 ep=4 etp=1
dp_shard=2 tp=2|efsdp=2 ep=2 etp=1
dp_shard=2 tp=2|efsdp=1 ep=2 etp=2
tp=3|efsdp=1 ep=3 etp=1
dp_shard=1|efsdp=1 ep=1 etp=1
Y

# the balancing bias is resumed too
balanced() { "$addend" train "$source/recipes/moe-balance.yaml" --set train.steps=6 --set checkpoint.every=3 "$@" >out 2>&1 || { cat out; fail "train $*"; }; }
balanced --out even
rm -rf on && mkdir -p on/checkpoints && cp -r even/checkpoints/step-3 on/checkpoints/ && cp even/metrics.jsonl on/
balanced --out on --resume
cmp even/weights.safetensors on/weights.safetensors
rm -rf on && mkdir -p on/checkpoints && cp -r even/checkpoints/step-3 on/checkpoints/ && cp even/metrics.jsonl on/
balanced --out on --resume --set mesh=dp_shard=3 --set 'views.sparse=efsdp=1 ep=3 etp=1'
python3 -c '
import json
a, b = (json.loads(open(f"{run}/metrics.jsonl").readlines()[-1]) for run in ("even", "on"))
assert a["measured"] == b["measured"] and abs(a["loss"] - b["loss"]) < 1e-4, (a, b)'

# ---- recipes that do not fit: all errors together, with numbers that would fit ----
refused() { # arguments: facts of the message with | between them, recipe, options
  local status=0
  "$addend" check "$source/recipes/$2.yaml" "${@:3}" >out 2>&1 || status=$?
  [ $status -eq 2 ] || { cat out; fail "exit $status, not 2: ${*:2}"; }
  says_all out "$1"
}
refused 'model.top_k|model.experts|6|5' moe-tp2ep --set model.top_k=6 --set 'views.sparse=efsdp=1 ep=3 etp=1'
refused 'views.sparse|3|4|efsdp=1 ep=3 etp=1|dp_shard=2 tp=2' moe-tp2ep --set model.top_k=6 --set 'views.sparse=efsdp=1 ep=3 etp=1'
refused 'views.sparse|etp=4|1|tp=2' moe-tp2ep --set 'views.sparse=efsdp=1 ep=1 etp=4'
refused 'views.sparse|etp=2|tp|dp_shard=2 tp=2' moe-tp2ep --set 'views.sparse=etp=2 efsdp=1 ep=2'
refused 'views.sparse|efsdp|ep|etp|dp_replicate|1' moe-tp2ep --set 'views.sparse=ep=4 cp=1'
refused 'views.sparse|2|4|efsdp=1 ep=2|dp_shard=2 tp=2' moe-tp2ep --set 'views.sparse=efsdp=1 ep=2'
# An axis that is not named has size 1: the plan is that of the view with all three.
for short in ep=4 'ep=4 etp=1' 'efsdp=1 ep=4'; do
  "$addend" plan "$source/recipes/moe-tp2ep.yaml" --json --set "views.sparse=$short" >short 2>err || { cat err; fail "$short"; }
  "$addend" plan "$source/recipes/moe-tp2ep.yaml" --json >whole.json
  cmp short whole.json || fail "$short is another view than efsdp=1 ep=4 etp=1"
done
"$addend" plan "$source/recipes/moe-tp2ep.yaml" --json --set views.sparse=efsdp=4 >short 2>err || { cat err; fail "efsdp=4"; }
"$addend" plan "$source/recipes/moe-tp2ep.yaml" --json --set 'views.sparse=efsdp=4 ep=1 etp=1' | cmp - short || fail "efsdp=4"
"$addend" plan "$source/recipes/moe-tp2ep.yaml" --json --set views.sparse=etp=2 >short 2>err || { cat err; fail "etp=2"; }
"$addend" plan "$source/recipes/moe-tp2ep.yaml" --json --set 'views.sparse=efsdp=2 ep=1 etp=2' | cmp - short || fail "etp=2"
refused 'model.experts|ep=4|3|4' moe-tp2ep --set model.experts=3
refused 'model.expert_hidden|etp=2|1|2' moe-dp2ep --set model.expert_hidden=1
refused 'model.shared_experts|tp=2|1|2' moe-dp2ep --set model.shared_experts=1
refused 'model.capacity|0' moe-tp2ep --set model.capacity=0 --set model.top_k=6
refused 'model.bias' moe-tp2ep --set model.bias=mlp
refused 'model.capacity' moe-tp2ep --set model.capacity=wide
refused 'model.balance_rate|1|2' moe-tp2ep --set model.balance_rate=2
refused '--set mesh|dp_shard=1' moe-tp --set mesh=tp=2
echo "moe: all hold"
