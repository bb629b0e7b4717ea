#!/usr/bin/env bash
# Tests a decomposition's result.json: the same on several pools with the same weights, and its numbers computed again
# from the weights, from the text and from the target's validation loss.
#   decompose_shown.sh ADDEND SOURCE
set -eu
addend=$1 source=$2
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
export PYTHONPATH=$source/train/tests/cli PYTHONDONTWRITEBYTECODE=1
cd "$work"
fail() { echo "FAILED: $*" >&2; cat err >&2; exit 1; }
. "$source/tests/support/says.sh"
python3 -c '
import random
draw = random.Random(1)
print(" ".join(draw.choice("adds bytes carry <data> each from gates hold".split()) for _ in range(4000)))' >words.txt
target='layers: 1, d_model: 16, heads: 2, d_hidden: 32}'
data='data: {text: [words.txt], validation: 0.1, seq: 24}'
cat >target.yaml <<Y
name: target
model: {kind: gpt, $target
$data
mesh: "dp=1"
train: {global_batch: 16, steps: 300, lr: 1e-2, warmup: 10, seed: 3}
Y
cat >decomposed.yaml <<Y
name: decomposed
model: {kind: decompose, $target
target: {weights: target/weights.safetensors}
$data
importance: {layers: 1, d_model: 16, heads: 2}
sites: [{match: "blocks.0.attn.w[vo]", components: 8}, {match: "blocks.0.mlp.down", components: 24}]
losses: {faithfulness: {coefficient: 100}, stochastic: {coefficient: 1, divergence: kl}, sparsity: {coefficient: 1e-3}, adversarial: {coefficient: 0.1}}
mesh: {ci: "dp=1", blocks: "block=1 dp=1", adv: "dp=1"}
placement: disjoint
train: {global_batch: 8, steps: 300, lr: 1e-2, warmup: 10, seed: 3}
Y
train() { # arguments: folder, recipe, KEY=VALUE...
  local folder=$1 recipe=$2 sets=() set; shift 2
  for set in "$@"; do sets+=(--set "$set"); done
  "$addend" train "$recipe.yaml" "${sets[@]}" --out "$folder" >out 2>err || fail "train $folder"
}
train target target
train learned decomposed
entropy() { python3 -c 'import json, sys; print("%.4f" % json.load(open("learned/result.json"))["cross_entropy"][sys.argv[1]])' "$1"; }
says out "$(entropy target)" "$(entropy masked)" "$(entropy random)"
python3 - <<'Y' 2>err || fail "the learned components beat random ones"
import json
entropy = json.load(open("learned/result.json"))["cross_entropy"]
assert entropy["target"] < entropy["masked"] < entropy["random"], entropy
assert entropy["target"] < entropy["unigram"] < entropy["uniform"], entropy
Y

# The same weights on other pools, in f64, on a text so short that all of it is shown.
wide="precision.compute=f64 precision.param=f64 train.lr=0 train.warmup=0 train.global_batch=2"
shown="$wide model.weights=learned/weights.safetensors train.steps=1"
train one decomposed $shown
train two decomposed $shown 'mesh={ci: "dp=1", blocks: "block=2 dp=1", adv: "dp=2"}' train.microbatches=2
train three decomposed $shown 'mesh={ci: "dp=2", blocks: "block=1 dp=2", adv: "dp=3"}'
train shared decomposed $shown 'mesh={ci: "dp=2", blocks: "block=1 dp=2", adv: "dp=2"}' placement=colocated
train frozen target $wide model.weights=target/weights.safetensors train.steps=1 evaluate.samples=16
python3 - <<'Y' 2>err || fail "numbers counted again"
import collections, json, math, struct
import safetensors

def same(a, b, where="result"):
    if isinstance(a, dict):
        assert a.keys() == b.keys(), where
        for key in a: same(a[key], b[key], f"{where}.{key}")
    elif isinstance(a, list):
        assert len(a) == len(b), where
        for i, pair in enumerate(zip(a, b)): same(*pair, f"{where}[{i}]")
    elif isinstance(a, float): assert abs(a - b) <= 1e-9 * max(1, abs(a)), (where, a, b)
    else: assert a == b, (where, a, b)

def close(a, b, allowed, what): assert abs(a - b) <= allowed, (what, a, b)

one = json.load(open("one/result.json"))
for other in "two", "three", "shared": same(one, json.load(open(f"{other}/result.json")), other)

# The target's own loss, of the same samples: the first of the validation set.
frozen = [json.loads(line) for line in open("frozen/metrics.jsonl")]
assert [line["validation_samples"] for line in frozen] == [8 * 2]
close(one["cross_entropy"]["target"], frozen[0]["validation_loss"], 1e-9, "the target's cross-entropy")

# ||W - V U|| / ||W||.
def rows(tensor):
    dtype, (height, width), data = tensor
    values = struct.unpack(f"<{height * width}{ {'F32': 'f', 'F64': 'd'}[dtype] }", data)
    return [values[i * width:(i + 1) * width] for i in range(height)]
weights, target = safetensors.load("learned/weights.safetensors"), safetensors.load("target/weights.safetensors")
errors, sizes = 0, 0
for site in one["sites"]:
    v, u, w = rows(weights[f"blocks.{site['name']}.V"]), rows(weights[f"blocks.{site['name']}.U"]), rows(target[site["name"]])
    assert (len(w), len(w[0]), len(u)) == (site["in"], site["out"], site["components"]), site["name"]
    product = [[sum(a * b for a, b in zip(row, column)) for column in zip(*u)] for row in v]
    error = sum((a - b) ** 2 for x, y in zip(product, w) for a, b in zip(x, y))
    size = sum(a * a for row in w for a in row)
    close(site["relative_error"], math.sqrt(error / size), 1e-9, site["name"])
    errors, sizes = errors + error, sizes + size
close(one["relative_error"], math.sqrt(errors / sizes), 1e-9, "all matrices")

# How often each byte is in what was trained on, each once more, against the bytes that follow in what was not.
text = open("words.txt", "rb").read()
kept = len(text) - len(text) // 10
counts = collections.Counter(text[:kept])
entropy = positions = 0
for sample in map(bytes, one["texts"]):
    at = text.index(sample, kept)
    for byte in text[at + 1:at + 1 + len(sample)]:
        entropy -= math.log((counts[byte] + 1) / (kept + 256))
        positions += 1
assert positions == one["positions"] == one["counted"] == 8 * 2 * 24, positions
close(one["cross_entropy"]["unigram"], entropy / positions, 1e-9, "unigram")
close(one["cross_entropy"]["uniform"], math.log(256), 1e-12, "uniform")

# Importances of a component, position by position, and what is reported of it.
assert one["components"] == sum(site["components"] for site in one["sites"]) == 40 and one["shown"]
for component in one["shown"]:
    values = [value / 100 for sample in component["hundredths"] for value in sample]
    assert len(values) == positions and 0 <= min(values) and max(values) <= 1
    close(sum(values) / positions, component["importance"], 0.005, component["component"])
    assert sum(value > 0 for value in values) <= component["frequency"] * positions + 1e-6, component["component"]
    used = [used for site in one["sites"] if site["name"] == component["site"] for used in site["used"]]
    for other in used:
        if other["component"] == component["component"]: assert other["importance"] == component["importance"]
small = [site for site in one["sites"] if site["components"] == 8]
assert len(small) == 2
for site in small: # all that are active are listed
    close(sum(used["frequency"] for used in site["used"]), site["active"]["above_zero"], 1e-9, site["name"])
for key in "above_zero", "above_threshold", "alive":
    close(one["active"][key], sum(site["active"][key] for site in one["sites"]), 1e-9, key)
assert 0 < one["active"]["above_threshold"] <= one["active"]["above_zero"] <= one["active"]["alive"] <= 40, one["active"]
Y
echo "decompose_shown: all hold"
