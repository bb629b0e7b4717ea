#!/usr/bin/env bash
# Tests models in Transformers' format on the command line: what model.from reads, what it refuses before any rank
# starts, and what `addend export` writes, refuses and leaves alone. That Transformers reads the result is tested in
# python/tests/torch.
set -eu
addend=$1 source=$2
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
export PYTHONPATH=$source/train/tests/cli PYTHONDONTWRITEBYTECODE=1
cd "$work"
fail() { echo "FAILED: $*" >&2; [ ! -s err ] || cat err >&2; exit 1; }
. "$source/tests/support/says.sh"
models=$source/train/tests/architecture/models
for _ in $(seq 500); do echo "words and more words"; done >text
cat >recipe.yaml <<'Y'
name: tiny
model:
  from: model
data: {text: [text], seq: 8}
mesh: "dp_shard=1"
train: {global_batch: 4, steps: 1, lr: 0, clip: 0}
evaluate: {samples: 0}
Y
take() { rm -rf model runs; cp -r "$models/$1" model; } # argument: name of the committed model to begin with
edit() { python3 - "$1" <<'P'
import json, sys
config = json.load(open("model/config.json"))
config.update(json.loads(sys.argv[1]))
json.dump(config, open("model/config.json", "w"))
P
}
tensors() { python3 - "$@" <<'P'
import glob, sys
import safetensors as s
both = []
for folder in sys.argv[1:3]:
    both.append({name: value for file in glob.glob(folder + "/*.safetensors") for name, value in s.load(file).items()})
assert both[0] and both[0] == both[1], "tensors differ, or there are none"
P
}
exits() { # arguments: status, facts of the message with | between them, call
  local status=0
  "$addend" "${@:3}" >out 2>err || status=$?
  [ $status -eq "$1" ] || fail "exit $status, not $1: ${*:3}"
  says_all err "$2"
}

# Every model is written back byte for byte, whatever mesh and sharding read it.
for model in "$models"/*/; do
  take "$(basename "$model")"
  for mesh in "dp_shard=1" "dp_shard=3" "dp_shard=2 cp=1"; do
    "$addend" train recipe.yaml --overwrite --set mesh="$mesh" --set shard.zero=3 >out 2>err || fail "training $model on $mesh fails"
    "$addend" export runs/tiny written --overwrite >out 2>err || fail "exporting $model fails"
    tensors model written || fail "the exported tensors of $model on $mesh differ from the model's"
    cmp model/config.json written/config.json || fail "the exported config.json differs from the model's"
    says out written "$(python3 -c 'import json; print(json.load(open("model/config.json"))["architectures"][0])')" 0.0 "1 file"
  done
done

# Sequences longer than those the model was trained on are allowed with a warning; shorter ones without.
take llama
edit '{"max_position_embeddings": 8, "is_llama_config": true, "transformers.js_config": {"kv_cache_dtype": {"fp16": "float16"}}}'
"$addend" plan recipe.yaml >out 2>err && [ ! -s err ] || fail "plan fails or warns though data.seq equals max_position_embeddings"
"$addend" plan recipe.yaml --set data.seq=9 >out 2>err || fail "plan fails if data.seq exceeds max_position_embeddings"
says err data.seq "is 9" max_position_embeddings model/config.json "is 8"

# A sliding window of fewer tokens than a sample has is refused, since addend attends to all; a wider one changes nothing.
take mistral
edit '{"sliding_window": 8}'
"$addend" plan recipe.yaml >out 2>err || fail "a window of as many tokens as a sample has"
status=0
"$addend" plan recipe.yaml --set data.seq=9 >out 2>err || status=$?
[ $status -eq 2 ] || fail "exit status $status where a sample is longer than the window"
says err sliding_window "is 8" data.seq "is 9"

# tp must divide the numbers of heads; experts may lie on their own ranks.
take mixtral
"$addend" train recipe.yaml --set mesh="dp_shard=3" --set views.sparse="ep=3 etp=1" --set shard.zero=2 >out 2>err || fail "training on ep=3 fails"
"$addend" export runs/tiny written --overwrite >out 2>err && tensors model written || fail "the tensors exported from a run on ep=3 differ from the model's"

# check uses real weights; plan reads only the headers of weight files.
"$addend" check recipe.yaml --steps 1 >out 2>err || fail "check fails"
python3 - <<'P'
import safetensors as s
weights = s.load("model/model.safetensors")
dtype, shape, data = weights["model.norm.weight"]
weights["model.norm.weight"] = dtype, shape, data[:4] + b"\xc0\x7f" + data[6:]
s.save("model/model.safetensors", weights)
P
"$addend" plan recipe.yaml >out 2>err || fail "plan fails though it need not read the weights"
rm -rf runs
exits 2 "recipe.yaml:3|model.from|model/model.safetensors|model.norm.weight[2]" train recipe.yaml
[ ! -e runs ] || fail "a refused training made the folder runs"

# Keys in the recipe beside model.from must agree with config.json; the error names both places.
take llama3
exits 2 "--set model.heads|is 4|num_attention_heads|model/config.json|it 3" plan recipe.yaml --set model.heads=4
exits 2 "--set model.kind|model/config.json" plan recipe.yaml --set model.kind=moe
exits 2 "--set model.qk_norm|LlamaForCausalLM|model/config.json" plan recipe.yaml --set model.qk_norm=true
exits 2 "--set model.rotary_scaling|rope_parameters|model/config.json|[8, 1, 4, 32]" \
  plan recipe.yaml --set 'model.rotary_scaling=[8, 1, 4, 64]'
exits 2 "--set model.weights|model.from" plan recipe.yaml --set model.weights=model/model.safetensors
"$addend" plan recipe.yaml --set 'model={from: model, sequence_parallel: true}' >out 2>err || fail "plan fails if --set gives the whole model"
"$addend" plan recipe.yaml --set model.heads=3 --set model.norm_epsilon=0.00001 --set 'model.rotary_scaling=[8.0, 1, 4, 32]' \
  >out 2>err || fail "plan refuses a key that agrees with config.json"
edit '{"hidden_act": "gelu", "logit_scale": 2, "num_attention_heads": 3.5}'
exits 2 'model/config.json|hidden_act|silu|gelu' plan recipe.yaml
says err model/config.json logit_scale "is 2"
says err model/config.json model.heads "'3.5'"
take qwen2
edit '{"tie_word_embeddings": false}'
for command in train check plan; do
  exits 2 "recipe.yaml:3|model.from|model/model.safetensors|lm_head.weight" $command recipe.yaml
done
mv model/config.json away
exits 2 "recipe.yaml:3|model.from|model|config.json" train recipe.yaml
nobody=(setpriv --reuid 65534 --clear-groups)
if [ "$(id -u)" = 0 ] && "${nobody[@]}" "$addend" --version >out 2>err; then
  chmod 755 "$work" && chmod 700 model
  status=0; "${nobody[@]}" "$addend" sample model T >out 2>err || status=$?
  [ $status -eq 3 ] || fail "a folder that may not be read, exit $status"
  says err model
  chmod 755 model
fi
touch model/consolidated.00.pth
exits 2 "recipe.yaml:3|model.from|model|consolidated.00.pth" train recipe.yaml
mv away model/config.json && rm model/consolidated.00.pth && mv model/model.safetensors model/pytorch_model.bin
exits 2 "recipe.yaml:3|model.from|model|pytorch_model.bin" train recipe.yaml

# Exports of a trained run, and wrong calls.
take qwen3
echo '{"a": 1}' >model/tokenizer.json
"$addend" train recipe.yaml --set train.lr=0.1 --set checkpoint.every=1 >out 2>err || fail "training fails"
mv model gone
"$addend" export runs/tiny new/written --json >out 2>err || fail "export fails if only the run's folder is there"
python3 - <<'P' || fail "the JSON document of export is wrong"
import json
done = json.load(open("out"))
assert done == {"folder": "new/written", "architecture": "Qwen3ForCausalLM", "tensors": 13, "bytes": done["bytes"], "files": 1}, done
P
cmp gone/tokenizer.json new/written/tokenizer.json || fail "the tokenizer was not exported"
! tensors gone new/written 2>/dev/null || fail "the exported weights are those from before training"
exits 2 "new/written|--overwrite" export runs/tiny new/written/
[ "$(ls new)" = written ] || fail "export left other files: $(ls new)"
cp -r new/written before
rm runs/tiny/weights.safetensors
"$addend" export runs/tiny new/written --overwrite >out 2>err || fail "exporting from a checkpoint fails"
tensors before new/written || fail "the weights exported from a checkpoint differ"
echo notes >new/written/README.md
exits 2 "new/written|README.md" export runs/tiny new/written --overwrite
rm new/written/README.md || fail "it stays"
exits 2 "runs/tiny" export runs/tiny runs/tiny --overwrite
status=0; (ulimit -f 4; exec "$addend" export runs/tiny new/written --overwrite >out 2>err) || status=$?
[ $status -eq 3 ] && [ "$(ls new)" = written ] && tensors before new/written || fail "an export beyond the file size limit changed the earlier export, or exit $status is not 3"
exits 2 "nothing" export nothing written2
rm -rf runs/tiny/checkpoints
exits 3 "runs/tiny|weights.safetensors" export runs/tiny written2
exits 2 "--dtype|f32,|bf16|f16,|f8" export runs/tiny written2 --dtype f8
exits 2 "RUN|FOLDER" export runs/tiny
[ ! -e written2 ] || fail "a refused export made the folder written2"

# A model that no architecture can express is refused by name; settings of the recipe alone are written.
own() { # argument: keys of `model`
  rm -rf runs
  sed "s/^model:/model: {$1}/; /from:/d" recipe.yaml >own.yaml
  "$addend" train own.yaml >out 2>err || fail "training $1 fails"
}
own "kind: gpt, layers: 1, d_model: 6, heads: 3, qk_norm: true, bias: all"
exits 2 "LlamaForCausalLM|model.qk_norm true|Qwen3ForCausalLM|model.bias all" export runs/tiny own
own "kind: moe, layers: 1, d_model: 6, heads: 3, experts: 3, expert_hidden: 4, normalised_scores: true, sigmoid: true"
exits 2 "MixtralForCausalLM|model.sigmoid true" export runs/tiny own
own "kind: moe, layers: 1, d_model: 6, heads: 3, experts: 3, expert_hidden: 4, balance_rate: 0.1, qk_norm: true"
exits 2 "Qwen3MoeForCausalLM" export runs/tiny own

own "kind: gpt, layers: 1, d_model: 6, heads: 3"
cp runs/tiny/weights.safetensors own.safetensors
"$addend" export runs/tiny model >out 2>err || fail "export fails"
rm -rf runs && "$addend" train recipe.yaml >out 2>err || fail "training from an exported model fails"
cmp own.safetensors runs/tiny/weights.safetensors || fail "a run from the exported model has other weights"
echo "pretrained: ok"
