#!/usr/bin/env bash
# Tests weight files on the command line: other programs can read what addend writes, addend reads what others write, in
# one file or in shards, and weights that do not fit the model are refused before any rank starts.
set -eu
addend=$1 source=$2
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
export PYTHONPATH=$source/train/tests/cli PYTHONDONTWRITEBYTECODE=1
cd "$work"
fail() { echo "FAILED: $*" >&2; [ ! -s err ] || cat err >&2; exit 1; }
. "$source/tests/support/says.sh"
recipe=$source/recipes/gpt-dp.yaml
train() { "$addend" train "$recipe" --set train.steps=4 "$@" >out 2>err; }

# The file has the safetensors format, and the checkpoint's values.
train -o straight --set checkpoint.every=4 || fail "train"
python3 - <<'P'
import safetensors as s
weights, pieces = s.load("straight/weights.safetensors"), s.load("straight/checkpoints/step-4/rank-0.safetensors")
assert weights["embedding.weight"][:2] == ("F32", [256, 32]), weights["embedding.weight"][:2]
for name, value in weights.items():
    assert value == pieces["value." + name], name
names = sorted(weights, reverse=True)
wide = {name: s.widen(weights[name]) for name in names}
s.save("foreign.safetensors", wide)
s.save_shards("m.safetensors.index.json", {
    "m-00001-of-00002.safetensors": {name: wide[name] for name in names[::2]},
    "m-00002-of-00002.safetensors": {name: weights[name] for name in names[1::2]}})
P

# A single file, another program's file with another dtype and order, and shards begin the same run.
train -o fine --set model.weights=straight/weights.safetensors || fail "model.weights"
! cmp -s fine/weights.safetensors straight/weights.safetensors || fail "weights are where a run begins"
mkdir linked && ln -s "$work"/m-* "$work/m.safetensors.index.json" linked # links, as download caches have them
for file in foreign.safetensors m.safetensors.index.json "$work/m.safetensors.index.json" linked/m.safetensors.index.json; do
  train -o other --overwrite --set model.weights="$file" || fail "$file"
  cmp fine/weights.safetensors other/weights.safetensors || fail "the same weights from $file"
  "$addend" check "$recipe" --set model.weights="$file" --set mesh=dp_shard=3 --set shard.zero=3 >out 2>err || fail "$file under the check"
done

# Every command reports all errors together, with the key's line, and starts no rank.
sed 's/^model: .*/model:\n  kind: gpt\n  layers: 2\n  d_model: 32\n  heads: 4\n  weights: WEIGHTS/' "$recipe" >with.yaml
line=$(grep -n WEIGHTS with.yaml | cut -d: -f1)
with() { sed "s|WEIGHTS|$1|" with.yaml >recipe.yaml; } # argument: weight file
refused() { # arguments: facts of each line about the weights, with | between them
  local command status facts
  for command in train check plan; do
    status=0; "$addend" $command recipe.yaml >out 2>err || status=$?
    [ $status -eq 2 ] && [ ! -s out ] || fail "$command: exit $status, not 2"
    for facts in "$@"; do says_all err "recipe.yaml:$line|model.weights|$facts"; done
    [ "$(grep -c "model.weights" err)" -eq $# ] || fail "$command says more"
  done
  [ ! -e runs ] || fail "no run has begun"
}
python3 - <<'P'
import json
import safetensors as s
weights = s.load("straight/weights.safetensors")
def but(name, *changes):
    tensor = weights[name]
    for index, value in changes:
        tensor = s.put(tensor, index, value)
    return tensor
not_finite = but("embedding.weight", (32 * 7 + 3, float("nan")), (32 * 9, float("inf")))
dtype, shape, data = weights["blocks.1.mlp.down"]
odd = {name: value for name, value in weights.items() if name not in ("blocks.0.attn.wq", "final.norm.weight")}
odd |= {"blocks.0.attn.weight": weights["blocks.0.attn.wq"],
        "blocks.0.norm.attn": but("blocks.0.norm.attn", (31, float("-inf"))),
        "blocks.1.mlp.down": (dtype, shape[::-1], data),
        "blocks.1.norm.mlp": ("I32", *weights["blocks.1.norm.mlp"][1:]),
        "embedding.weight": not_finite}
rest = {name: value for name, value in weights.items() if name != "embedding.weight"}
s.save("odd", odd)
s.save("nan", weights | {"embedding.weight": not_finite})
s.save("m-nan", {"embedding.weight": not_finite})
s.save("m-rest", rest)
def index(path, embedding, others):
    json.dump({"weight_map": {"embedding.weight": embedding, **{name: "m-rest" for name in others}}}, open(path, "w"))
index("nan.json", "m-nan", rest)
index("missing.json", "m-nowhere", rest)
index("lacking.json", "m-rest", [name for name in rest if name != "final.norm.weight"])
index("outside.json", "../m-nan", rest)
P
with odd
refused "odd|blocks.0.attn.wq|final.norm.weight|blocks.0.attn.weight|blocks.1.norm.mlp|i32|blocks.1.mlp.down|[32, 96]|[96, 32]" \
  "odd|blocks.0.norm.attn[31]|embedding.weight[7, 3]"
with nan; refused "nan|embedding.weight[7, 3]"
with nan.json; refused "./m-nan|embedding.weight[7, 3]"
with missing.json; refused "missing.json|./m-nowhere"
with lacking.json; refused "lacking.json|embedding.weight|final.norm.weight"
with outside.json; refused "outside.json|embedding.weight|../m-nan"
with nowhere; refused nowhere
head -c 1000 straight/weights.safetensors >short
with ./short; refused ./short
# heads: 5 does not fit the model, but the values can still be checked
with odd; sed -i 's/heads: 4/heads: 5/' recipe.yaml
refused "odd|blocks.0.norm.attn[31]|embedding.weight[7, 3]"
says err model.heads
echo "weights: all hold"
