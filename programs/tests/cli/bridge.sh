#!/usr/bin/env bash
# Tests recipes of two modules joined by a bridge, on the same ranks and on disjoint ranks: each recipe with and without
# cp, axes in every order on either side, one and three microbatches, at ZeRO 0 and 3, over five steps (drawn by a
# seed); one norm over both modules; known and derived mutants (drawn); checkpoints that are resumed on the same
# meshes, on other meshes, and on disjoint instead of shared ranks; weights; and recipes that do not fit.
#   bridge.sh ADDEND SOURCE
set -eu
addend=$1 source=$2
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
cd "$work"
fail() { echo "FAILED: $*" >&2; exit 1; }
. "$source/tests/support/says.sh"
. "$source/tests/support/draw.sh"
. "$source/tests/support/check.sh"

# ---- every gradient of both modules against one process, f64 below 1e-12 ----
orders() { # prints all orders of two or three axes, joined by +
  if [ $# -eq 2 ]; then echo "$1+$2 $2+$1"; else echo "$1+$2+$3 $1+$3+$2 $2+$1+$3 $2+$3+$1 $3+$1+$2 $3+$2+$1"; fi
}
meshes=()
while read -r recipe encoder model; do
  for a in ${encoder//,/ }; do
    for b in $(orders ${model//,/ }); do meshes+=("$recipe mesh.encoder=$a mesh.model=$b"); done
  done
done <<'Y'
ocr-fan-in-small dp=4+tp=2,tp=2+dp=4 dp=2,cp=2,tp=2
ocr-fan-in-small dp=4+tp=2,tp=2+dp=4 dp=2+cp=1,tp=4
ocr-fan-in-small dp_replicate=2+dp_shard=2+tp=2,dp_shard=2+tp=2+dp_replicate=2,tp=2+dp_shard=4 dp_replicate=2,cp=2,tp=2
ocr-fan-out dp=2+tp=4,tp=4+dp=2 dp=4,cp=2,tp=1
ocr-fan-out dp=2+tp=4,tp=4+dp=2 dp=4+cp=1,tp=2
ocr-fan-out dp=2+tp=4,dp_replicate=2+tp=4 dp_replicate=2,cp=2,dp_shard=2
ocr-fan-out dp=1+tp=4 dp=2,cp=2,tp=1
ocr-equal dp=2+tp=4,tp=4+dp=2 dp=2,cp=2,tp=2
ocr-equal dp=2+tp=4,tp=4+dp=2 dp=2+cp=1,tp=4
ocr-cp-both dp=4+cp=2,cp=2+dp=4 dp=2,cp=2,tp=2
ocr-cp-both dp=2+cp=2+tp=2,tp=2+cp=2+dp=2 dp=4,cp=2,tp=1
ocr-cp-both dp=4+cp=2,cp=4+dp=2 dp=4+cp=1,tp=2
Y
cases=()
for mesh in "${meshes[@]}"; do
  for zero in 0 3; do
    for batch in "8 train.microbatches=1" "24 train.microbatches=3"; do
      cases+=("$mesh shard.zero=$zero train.global_batch=$batch --steps 5")
    done
  done
  cases+=("$mesh --directional")
done
for encoder in dp=3+tp=2 tp=2+dp=3; do
  for model in $(orders dp=2 cp=3 tp=1) $(orders dp=2+cp=1 tp=3); do
    for batch in 1 2 5 7; do # batches of which some ranks have no row
      mesh="ocr-ragged mesh.encoder=$encoder mesh.model=$model model.heads=6 train.global_batch=$batch"
      cases+=("$mesh shard.zero=0 train.microbatches=1 --steps 5" "$mesh shard.zero=3 train.microbatches=3 --steps 5")
    done
  done
done
draw_cases "meshes" 2 "${cases[@]}"
for arguments in "${drawn[@]}"; do check_recipe $arguments; done

# The decoder's sequence is sharded over tp too: inside the part that cp shards, on an axis of one rank, and without cp.
check_recipe ocr-fan-in-small model.sequence_parallel=true
check_recipe ocr-fan-out model.sequence_parallel=true
check_recipe ocr-fan-out mesh.model=dp=4+tp=2 model.sequence_parallel=true
check_recipe ocr-fan-in-small mesh.model=cp=2+tp=4 model.sequence_parallel=true shard.zero=3

# The same for modules on disjoint ranks, whose numbers need not match: with copies on either side from which nobody
# receives, and with parts without a row.
cases=()
while read -r encoder model batch ragged; do
  for a in ${encoder//,/ }; do
    for b in ${model//,/ }; do
      pools="ocr-disjoint mesh.encoder=$a mesh.model=$b model.ragged=$ragged"
      for zero in 0 3; do
        cases+=("$pools shard.zero=$zero train.global_batch=$batch train.microbatches=1 --steps 5"
          "$pools shard.zero=$zero train.global_batch=$((3 * batch)) train.microbatches=3 --steps 5")
      done
      cases+=("$pools train.global_batch=$batch train.microbatches=1 --directional")
    done
  done
done <<'Y'
dp=2+tp=2,tp=2+dp=2 dp=2+cp=2,cp=2+dp=2,dp=4+cp=1 8 false
dp_replicate=2+dp_shard=2,cp=2+dp=2 cp=2+dp_shard=2,dp=2+tp=2 4 false
dp=3 cp=2,cp=2+tp=2 12 false
tp=2,dp=1 dp=2+cp=2+tp=2 4 false
dp=3,dp=5+tp=2 dp=2,cp=2+dp=4 1 true
dp=3,dp=5+tp=2 dp=2,cp=2+dp=4 7 true
Y
draw_cases "pools" 2 "${cases[@]}"
for arguments in "${drawn[@]}"; do check_recipe $arguments; done
(export ADDEND_HOSTILE=17 && check_recipe ocr-disjoint shard.zero=3 --steps 3)

cases=()
for recipe in ocr-fan-in ocr-fan-in-small ocr-fan-out ocr-equal ocr-cp-both ocr-ragged ocr-disjoint; do
  cases+=("$recipe --steps 5" "$recipe --directional" "$recipe precision.compute=bf16 --steps 3")
done
draw_cases "recipes of bridges" 2 "${cases[@]}"
for arguments in "${drawn[@]}"; do check_recipe $arguments; done

# ---- one norm over both modules, in which every distinct parameter counts once ----
check_recipe ocr-fan-out --steps 1 --dump dump
python3 - "$source/train/tests/cli" <<'Y'
import json, struct, sys
sys.path.insert(0, sys.argv[1])
import safetensors
proof = json.load(open("proof.json"))
squares = {}
for name, (_, _, data) in safetensors.load("dump/step-0.gradients.safetensors").items():
    module = name.split(".")[0]
    squares[module] = squares.get(module, 0) + sum(v * v for (v,) in struct.iter_unpack("<d", data))
assert set(squares) == {"encoder", "model"} and min(squares.values()) > 0, squares
assert abs(sum(squares.values()) ** 0.5 - proof["norm"]["dist"]) < 1e-12 * proof["norm"]["dist"], (squares, proof["norm"])
Y

# ---- mutants: none survives, and a bridge's are tried where they have an effect ----
: "${ADDEND_TEST_SEED:?}"
seed=$ADDEND_TEST_SEED count=
[ "$seed" = all ] && seed=1 || count==40
mutate() { # recipe, the mistakes of a bridge, the model's mesh if not the recipe's
  local recipe=$1 planted=${2-} mesh=${3-}
  check_recipe $recipe ${mesh:+mesh.model=$mesh} --mutate$count --seed "$seed"
  python3 - "$recipe" "$planted" <<'Y'
import json, sys
recipe, planted = sys.argv[1:]
proof = json.load(open("proof.json"))
assert proof["survivors"] == 0 and proof["coverage"]["mutants"] >= 40, proof["coverage"]
caught = {m["name"]: m["killed_by"] for m in proof["mutants"] if m["derived"] is None}
of_bridge = [name for name in caught if name.startswith(("slice", "zeros-for")) or name == "norm-over-other-mesh"]
assert ",".join(sorted(of_bridge)) == planted, (recipe, of_bridge)
for name in of_bridge:
    assert caught[name] == ("protocol" if name == "slices-gathered-across-cp" else "number"), (recipe, name, caught[name])
Y
}
draw_cases "mistakes of bridges" 1 \
  "ocr-fan-in-small" \
  "ocr-fan-in-small norm-over-other-mesh,slice-by-wrong-order-of-axes dp=2+tp=2+cp=2" \
  "ocr-fan-out norm-over-other-mesh,slice-by-wrong-order-of-axes,slice-of-first-on-cp,slices-gathered-across-cp,zeros-for-slices-of-others" \
  "ocr-equal norm-over-other-mesh" \
  "ocr-cp-both norm-over-other-mesh" \
  "ocr-cp-both norm-over-other-mesh,slice-by-wrong-order-of-axes dp=2+tp=2+cp=2" \
  "ocr-ragged norm-over-other-mesh" \
  "ocr-disjoint"
for arguments in "${drawn[@]}"; do mutate $arguments; done

# ---- checkpoints: the same bits on the same meshes; any other meshes can resume ----
train() { # arguments: recipe, options
  local recipe=$1; shift
  "$addend" train "$source/recipes/$recipe.yaml" --set train.steps=6 --set checkpoint.every=3 "$@" >out 2>&1 || { cat out; fail "train $recipe $*"; }
}
loss() { sed -n "s/.*\"step\":$2,\"loss\":\([0-9.]*\).*/\1/p" "$1/metrics.jsonl"; }
are_close() { python3 -c 'import sys; a, b = map(float, sys.argv[1:]); assert abs(a - b) < 1e-4, (a, b)' "$@" || fail "losses $*"; }
for recipe in ocr-fan-in-small ocr-disjoint; do train $recipe --out $recipe; done
draw_cases "meshes to go on from" 1 \
  'ocr-fan-in-small|colocated|dp=4 tp=2|dp=2 cp=2 tp=2' \
  'ocr-fan-in-small|colocated|tp=4 dp=2|dp=2 cp=2 tp=2' \
  'ocr-fan-in-small|colocated|dp=4 tp=2|cp=2 tp=1 dp=4' \
  'ocr-fan-in-small|colocated|dp=2 cp=2|dp=4 cp=1' \
  'ocr-fan-in-small|colocated|dp=1|dp=1' \
  'ocr-fan-in-small|disjoint|dp=2 tp=2|dp=2 cp=2' \
  'ocr-disjoint|disjoint|dp=2 tp=2|dp=2 cp=2' \
  'ocr-disjoint|disjoint|dp=4|cp=4' \
  'ocr-disjoint|colocated|dp=2 tp=2|dp=2 cp=2' \
  'ocr-disjoint|colocated|dp=1|dp=1'
while IFS='|' read -r recipe placement encoder model; do
  rm -rf on && mkdir -p on/checkpoints && cp -r $recipe/checkpoints/step-3 on/checkpoints/ && cp $recipe/metrics.jsonl on/
  options=(--set placement=$placement --set mesh.encoder="$encoder" --set mesh.model="$model")
  train $recipe --out on --resume "${options[@]}"
  grep -q '"first_step": 3' on/run.json || fail "$recipe resumes after three steps"
  are_close "$(loss $recipe 5)" "$(loss on 5)"
  case "$recipe|$placement|$encoder|$model" in
    'ocr-fan-in-small|colocated|dp=4 tp=2|dp=2 cp=2 tp=2' | 'ocr-disjoint|disjoint|dp=2 tp=2|dp=2 cp=2')
      cmp $recipe/weights.safetensors on/weights.safetensors
      for step in 3 4 5; do [ "$(loss $recipe $step)" = "$(loss on $step)" ] || fail "$recipe: another loss in step $step"; done ;;
  esac
done < <(printf '%s\n' "${drawn[@]}")

# ---- weights: shared ranks read the file that pools write, and the reverse ----
for from in ocr-disjoint ocr-fan-in-small; do
  for to in ocr-disjoint ocr-fan-in-small; do
    train $to --set model.weights="$work/$from/weights.safetensors" --set train.global_batch=8 --set train.microbatches=2 \
      --overwrite --out begun
    loss begun 0 >>losses-$from
  done
  are_close $(cat losses-$from)
done

# ---- recipes that do not fit: all errors together, with numbers that would fit ----
refused() { # arguments: lines of facts with | between them, a line for each line of the message, recipe, options
  local status=0 facts
  "$addend" check "$source/recipes/$2.yaml" "${@:3}" >out 2>&1 || status=$?
  [ $status -eq 2 ] || { cat out; fail "exit $status, not 2: ${*:2}"; }
  while IFS= read -r facts; do says_all out "$facts"; done <<<"$1"
}
refused 'dp=4 tp=2|8 ranks|cp=2 tp=1|4 ranks
dp_shard=4 tp=2|8 ranks|0 to|7|dp_shard=2 cp=2 tp=1|has 4|3' \
  ocr-fan-in-small --set 'mesh.model=dp=2 cp=2 tp=1'
refused 'ocr-ragged.yaml|mesh.model|3|2|4' \
  ocr-ragged --set model.ragged=false
refused 'data.chars|cp=2|4|8|7' ocr-fan-in-small --set data.chars=7
refused 'model.heads|tp=2|3|tp|2|4' ocr-fan-in-small --set model.heads=3
refused 'ocr-fan-in-small.yaml|mesh.model|pp=2|pp=1' ocr-fan-in-small --set 'mesh.encoder=dp=2 pp=2 tp=2'
refused '--set mesh.model|pp=2|pp=1' ocr-fan-in-small --set 'mesh.model=dp=2 pp=2 tp=2'
refused 'train.global_batch|6|1|2|3|4|8|16|model.ragged' \
  ocr-fan-in-small --set train.global_batch=6
refused 'train.global_batch|16|1|8|2|4|32|64|model.ragged' \
  ocr-fan-out --set train.microbatches=8
refused "model.encoder_heads|tp=2|3|4
model.patch|data.width|64|7|63|70
--set mesh.model|pp=2|pp=1
train.global_batch|6|1|2|3" \
  ocr-fan-in-small --set 'mesh.model=dp=2 pp=2 tp=2' --set model.encoder_heads=3 --set model.patch=7 --set train.global_batch=6
refused '--set placement' ocr-disjoint --set placement=apart
refused 'dp=2|tp=2|4|cp=2|2' \
  ocr-disjoint --set placement=colocated --set 'mesh.model=cp=2'
refused '--set mesh|3|2|4' \
  ocr-disjoint --set 'mesh={encoder: "dp=3", model: "dp=2"}'
refused 'train.global_batch|16|1|4|3|12|24' \
  ocr-disjoint --set 'mesh={encoder: "dp=3", model: "cp=2"}'
refused 'train.global_batch|6|1|4|3|12|24' \
  ocr-disjoint --set 'mesh={encoder: "dp=3", model: "dp=3"}' --set train.global_batch=6 --set train.microbatches=4
refused 'ocr-disjoint.yaml|mesh.model|pp=2|pp=1' ocr-disjoint --set 'mesh.encoder=dp=2 pp=2'
echo "bridge: all hold"
