#!/usr/bin/env bash
# Tests gradients of distributed runs against Transformers: `addend check --dump` of the models in
# programs/tests/oracle/fixtures/hf-*, on meshes, is compared with expected.safetensors (generate_transformers.py); each
# parameter's error is below 1e-12.
#   transformers.sh ADDEND SOURCE
set -eu
addend=$1 source=$2
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
fail() { echo "FAILED: $*" >&2; exit 1; }
. "$source/tests/support/draw.sh"

cat >"$work/same.py" <<'P'
import array, json, struct, sys
def read(path):
    data = open(path, "rb").read()
    (size,) = struct.unpack("<Q", data[:8])
    head = json.loads(data[8:8 + size])
    told = head.pop("__metadata__", {})
    return {n: array.array("d", data[8 + size + t["data_offsets"][0]:8 + size + t["data_offsets"][1]])
            for n, t in head.items() if t["dtype"] == "F64"}, told
expected, _ = read(sys.argv[1])
worst = 0
for step in 0, 1:
    found, told = read(f"{sys.argv[2]}/step-{step}.gradients.safetensors")
    names = [n[len(f"gradient.{step}:"):] for n in expected if n.startswith(f"gradient.{step}:")]
    assert sorted(names) == sorted(found), (names, list(found))
    largest = max(abs(x) for n in names for x in expected[f"gradient.{step}:{n}"])
    for name in names:
        there, here = expected[f"gradient.{step}:{name}"], found[name]
        assert len(there) == len(here), name
        scale = max(max(map(abs, there)), 1e-6 * largest)
        worst = max(worst, max(abs(a - b) for a, b in zip(there, here)) / scale)
        assert worst < 1e-12, (step, name, worst)
    for number in "loss", "norm":
        assert abs(float(told[number]) / expected[number][step] - 1) < 1e-12, (step, number, told)
print(f"worst {worst:.1e}")
P

cd "$source" # recipes name their files relative to this folder
draw_cases "models of Transformers on meshes" 5 \
  "hf-llama mesh=dp_shard=3+tp=3 shard.zero=3" "hf-llama mesh=pp=2+dp=2" \
  "hf-llama-scaled mesh=cp=3+tp=2 shard.zero=1" "hf-llama-scaled mesh=dp_replicate=3+dp_shard=1" \
  "hf-qwen2 mesh=tp=3+cp=2 model.sequence_parallel=true" "hf-qwen3 mesh=pp=2+tp=3" "hf-mistral mesh=dp_shard=5 shard.zero=2" \
  "hf-mixtral mesh=dp_shard=3 views.sparse=ep=3+etp=1 shard.zero=3" "hf-mixtral mesh=dp_shard=2+tp=3 views.sparse=ep=1+etp=3" \
  "hf-qwen3-moe mesh=pp=2+dp_shard=3 views.sparse=ep=3+etp=1" "hf-qwen3-moe-raw mesh=dp_shard=2+tp=3 views.sparse=ep=2+etp=3"
for words in "${drawn[@]}"; do
  read -ra keys <<<"$words"
  name=${keys[0]} arguments=()
  for key in "${keys[@]:1}"; do arguments+=(--set "${key//+/ }"); done
  rm -rf "$work/dump"
  "$addend" check "programs/tests/oracle/fixtures/$name/recipe.yaml" "${arguments[@]}" --dump "$work/dump" >"$work/out" 2>&1 ||
    { cat "$work/out" >&2; fail "$words"; }
  echo "$words: $(python3 "$work/same.py" "programs/tests/oracle/fixtures/$name/expected.safetensors" "$work/dump")"
done
echo "transformers: all hold"
