#!/usr/bin/env bash
# Tests learning to read, small enough for a test, on random digits, which no language model can guess. After training
# on one rank the model reads validation lines and not blank pictures; trained on blank pictures it reads nothing; eight
# ranks read what one rank reads, on shared ranks and in two pools.
#   reading.sh ADDEND SOURCE
set -eu
addend=$1 source=$2
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
cd "$work"
fail() { echo "FAILED: $*" >&2; cat err >&2; exit 1; }
python3 -c '
import random
draw = random.Random(1)
print("".join(draw.choice("0123456789") for _ in range(20000)))' >digits.txt
cat >digits.yaml <<'Y'
name: digits
model: {kind: ocr, encoder_layers: 1, encoder_d_model: 32, encoder_heads: 2, patch: 4, layers: 2, d_model: 32, heads: 2, rotary_base: 100}
data: {text: [digits.txt], validation: 0.2, fonts: [/usr/share/fonts/truetype/dejavu/DejaVuSans.ttf], chars: 4, height: 12, width: 32, sizes: [9, 9]}
mesh: {encoder: "dp=1", model: "dp=1"}
train: {global_batch: 32, steps: 1000, lr: 3e-3, warmup: 20, seed: 2}
Y
train() { # arguments: folder, KEY=VALUE...
  local folder=$1 sets=() set; shift
  for set in "$@"; do sets+=(--set "$set"); done
  "$addend" train digits.yaml "${sets[@]}" --out "$folder" >out 2>err || fail "train $folder"
}
train one
train blind data.blank=true train.steps=300
again="model.weights=one/weights.safetensors train.steps=1 train.warmup=0 train.lr=0 train.microbatches=2"
train eight $again mesh.encoder="dp=4 tp=2" mesh.model="dp=2 cp=2 tp=2"
train pools $again mesh.encoder="dp=4" mesh.model="dp=2 cp=2" placement=disjoint
train few $again evaluate.lines=40
train unread $again evaluate.lines=0
python3 - >err 2>&1 <<'Y' || fail "what was read"
import base64, json, os
def result(folder): return json.load(open(f"{folder}/result.json"))
one, blind = result("one"), result("blind")
assert one["lines"] == 64 and result("few")["lines"] == 40, one
assert not os.path.exists("unread/result.json")
assert one["character_error_rate"] < 0.1 and one["blank"] > 0.7, one
assert blind["character_error_rate"] > 0.7, blind
for sample in one["samples"]:
    ink = base64.b64decode(sample["pixels"])
    assert len(ink) == sample["width"] * sample["height"] and max(ink) > 100 and 2 <= len(sample["text"]) <= 4, sample
    assert sample["validation_font"] is False and set(sample["text"]) <= set("0123456789"), sample
for again in result("eight"), result("pools"):
    for key in "character_error_rate", "blank": assert abs(one[key] - again[key]) < 0.005, (key, one, again)
    for key in "lines", "characters", "validation_font": assert one[key] == again[key], (key, one, again)
    assert [(s["text"], s["pixels"]) for s in one["samples"]] == [(s["text"], s["pixels"]) for s in again["samples"]]
Y
echo "reading: all hold"
