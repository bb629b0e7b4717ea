#!/usr/bin/env bash
# Tests printed tables character by character, without what differs from run to run: seconds, digits of rounding,
# which of several equally wrong parameters is shown, which rank saw a mismatch first; and pictures of plans, byte by
# byte: a browser shows them. A third argument `update` writes the expected tables and pictures anew.
set -eu
addend=$1 source=$2 update=${3:-}
golden=$source/train/tests/cli/golden
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
cd "$work"
seq 1 4000 >text.txt # the text is the same on every machine
export ADDEND_PRODUCTS=openblas # the math library too: a plan counts the memory of each library
recipe=$source/recipes/gpt-dp.yaml

without_noise() {
  sed -E -e 's/error [^,]+, that of one process [^;]+; smallest cosine .*/error SMALL, that of one process SMALL; smallest cosine 1/' -e 's/[0-9.]+e-1[0-9]+ */TINY /g' -e 's/(steps?), [0-9.]+ s$/\1, SECONDS s/' \
    -e 's/(loss|reference|norm|quotient|direction>) -?([0-9]+\.[0-9]{6})[0-9]*/\1 \2/g' \
    -e 's/relative error [0-9.e-]+/relative error SMALL/' \
    -e 's/(ratio +[0-9.]+ +)[a-z0-9.]+: /\1PARAMETER: /' \
    -e 's/ratio [0-9.]+ +(PARAMETER: differs by rounding)/ratio NEAR1 \1/' \
    -e 's/( 1 +)0 +equal/\1TINY equal/' -e 's/: `[^`]*` (comes nearest .*), [0-9.e-]+ of it/: PARAMETER \1, SHARE of it/' \
    -e 's/(collectives do not match: ).*/\1BOTH SIDES/'
}
same() { # arguments: name, options; the output must be golden/NAME.txt
  local name=$1; shift
  "$addend" "$@" --set 'data.text=[text.txt]' 2>err | without_noise >"$name.txt"
  sed -i '/^check [0-9]/d' err # progress messages, which a slow machine prints
  [ ! -s err ] || { cat err >&2; echo "FAILED: $name: nothing on standard error" >&2; exit 1; }
  if [ "$update" = update ]; then cp "$name.txt" "$golden/$name.txt"; fi
  diff -u "$golden/$name.txt" "$name.txt" || { echo "FAILED: $name" >&2; exit 1; }
}
same check check "$recipe"
same check-all check "$recipe" --all
same check-mutate check "$recipe" --mutate
same check-directional check "$recipe" --directional
same plan plan "$recipe"
same plan-every-microbatch plan "$recipe" --set mesh="dp_replicate=2 dp_shard=2" --set 'train.sync=[all, all]'
same plan-large plan "$recipe" --set mesh="dp_replicate=100 dp_shard=100"
same plan-zero3 plan "$source/recipes/fsdp-4.yaml"
same plan-zero1 plan "$source/recipes/fsdp-4.yaml" --set shard.zero=1 --set mesh="dp_replicate=2 dp_shard=2"
same plan-disjoint plan "$source/recipes/ocr-disjoint.yaml" --set 'mesh={encoder: "dp=3 tp=2", model: "dp=2 cp=2"}' --set model.ragged=true

# Documents: a line for each entry of a list. Comparisons and the tables of what is not in the plans above.
json() { # arguments: name, options; the plan's document must be golden/NAME.json
  local name=$1; shift
  "$addend" plan "$@" --json >out 2>err || { cat err >&2; echo "FAILED: $name" >&2; exit 1; }
  python3 - out >"$name.json" <<'E2'
import json, sys
for key, value in json.load(open(sys.argv[1])).items():
    print(key + ":", *([json.dumps(entry) for entry in value] if isinstance(value, list) else [json.dumps(value)]), sep="\n ")
E2
  if [ "$update" = update ]; then cp "$name.json" "$golden/$name.json"; fi
  diff -u "$golden/$name.json" "$name.json" || { echo "FAILED: $name" >&2; exit 1; }
}
ln -s "$source/recipes" recipes
same_plan() { # arguments: name, options of `plan`; the output must be golden/NAME.txt
  local name=$1; shift
  "$addend" plan "$@" >"$name.txt" 2>err || { cat err >&2; echo "FAILED: $name" >&2; exit 1; }
  if [ "$update" = update ]; then cp "$name.txt" "$golden/$name.txt"; fi
  diff -u "$golden/$name.txt" "$name.txt" || { echo "FAILED: $name" >&2; exit 1; }
}
same_plan plan-bridge recipes/ocr-fan-in-small.yaml
same_plan plan-exchanges recipes/pools-10.yaml
same_plan plan-pipeline recipes/gpt-pp.yaml
same_plan plan-moe recipes/moe-16.yaml --ranks-per-node 4
same_plan plan-bf16 recipes/fsdp-4-bf16.yaml
same_plan plan-spmd recipes/moe-16.yaml --set model.layers=1 --spmd
same_plan plan-compare recipes/hsdp-4x8.yaml --compare shard.zero=0,1,2,3
same_plan plan-compare-bridge recipes/ocr-disjoint.yaml --compare model.ragged=true,false
same_plan plan-compare-schedules recipes/gpt-pp.yaml --compare schedule=gpipe,1f1b,interleaved,zb
json plan-zero2 recipes/hsdp-3x2.yaml --set model.layers=1 --ranks-per-node 4
json plan-stages recipes/gpt-pp.yaml --set model.layers=2
json plan-experts recipes/moe-tp2ep.yaml --set model.layers=1
json plan-pools recipes/ocr-disjoint.yaml --set model.layers=1
json plan-types recipes/gpt-tp-sp.yaml --set model.layers=1 --spmd
drawn() { # arguments: name, options; the picture must be golden/NAME.svg
  local name=$1; shift
  "$addend" plan "$@" --picture "$name.svg" >out 2>err || { cat err >&2; echo "FAILED: $name" >&2; exit 1; }
  if [ "$update" = update ]; then cp "$name.svg" "$golden/$name.svg"; fi
  diff -u "$golden/$name.svg" "$name.svg" || { echo "FAILED: $name" >&2; exit 1; }
}
drawn picture-3d recipes/gpt-3d.yaml
drawn picture-turned recipes/gpt-dp.yaml --set mesh="dp_shard=8 tp=2" --set train.global_batch=16
drawn picture-wrapped recipes/gpt-dp.yaml --set mesh="dp_replicate=37 dp_shard=1"
drawn picture-large recipes/gpt-dp.yaml --set mesh="dp_replicate=256 dp_shard=256" --set shard.zero=2
drawn picture-bridge recipes/ocr-fan-in-small.yaml --set mesh.encoder="dp=2 tp=4" --set mesh.model="dp=4 cp=2 tp=1"
drawn picture-disjoint recipes/ocr-fan-in.yaml --set placement=disjoint --set mesh='{encoder: "dp=3 tp=2", model: "dp=2 cp=2"}' \
  --set model.ragged=true --set train.global_batch=64
drawn picture-stages recipes/gpt-pp.yaml
drawn picture-pools recipes/pools-10.yaml
drawn picture-blocks recipes/decompose-gpt.yaml --set 'mesh={ci: "dp=3", blocks: "block=8 dp=2", adv: "dp=2"}'
echo "golden: all hold"
