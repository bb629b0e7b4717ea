#!/usr/bin/env bash
# Tests evaluate.prompts: the text with which a run continues each prompt is what `addend sample` gives with its
# weights, on every mesh; the training stays the same, bit for bit; a resumed run has each prompt once for each step;
# and wrong prompts are reported before any rank starts.
#   prompts.sh ADDEND SOURCE
set -eu
addend=$1 source=$2
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
cd "$work"
fail() { echo "FAILED: $*" >&2; [ ! -s err ] || cat err >&2; exit 1; }
. "$source/tests/support/says.sh"
recipe=$source/recipes/gpt-dp.yaml
small=(--set train.steps=9 --set data.validation=0.1 --set evaluate.samples=12 --set evaluate.every=4)
prompts=(--set 'evaluate.prompts=["The free", "a\nb", "the"]' --set evaluate.prompt_tokens=7)
train() { # arguments: folder, recipe, options
  local folder=$1 of=$2
  shift 2
  "$addend" train "$source/recipes/$of.yaml" -o "$folder" "$@" >out 2>err || fail "train $folder"
}

# The last lines of samples.jsonl are what `addend sample` gives with the run's weights.
as_sampled() { # arguments: folder, options of sample
  python3 - "$addend" "$@" <<'P' || fail "$*"
import json, subprocess, sys
addend, folder, *arguments = sys.argv[1:]
lines = [json.loads(line) for line in open(f"{folder}/samples.jsonl")]
last = [line for line in lines if line["step"] == lines[-1]["step"]]
assert last, lines
for line in last:
    said = subprocess.run([addend, "sample", folder, line["prompt"], "--tokens", str(len(line["tokens"])), "--json", *arguments],
                          check=True, capture_output=True)
    assert json.loads(said.stdout)["tokens"] == line["tokens"], (line, said.stdout)
P
}
steps() { # argument: folder; prints the steps of its lines
  python3 -c 'import json, sys; print(*[json.loads(line)["step"] for line in open(sys.argv[1] + "/samples.jsonl")])' "$1"
}
tokens() { python3 -c 'import json, sys; print(*[json.loads(line)["tokens"] for line in open(sys.argv[1] + "/samples.jsonl")])' "$1"; }

# ---- the lines that are written ----
train with gpt-dp "${small[@]}" "${prompts[@]}"
[ "$(steps with)" = "3 3 3 7 7 7 8 8 8" ] || fail "steps: $(steps with)"
as_sampled with
python3 - <<'P' || fail "lines"
import json
lines = [json.loads(line) for line in open("with/samples.jsonl")]
assert [line["prompt"] for line in lines[:3]] == ["The free", "a\nb", "the"], lines
assert all(len(line["tokens"]) == 7 and isinstance(line["text"], str) for line in lines), lines
for line in lines:
    if max(line["tokens"]) < 128 and min(line["tokens"]) > 0: assert line["text"] == bytes(line["tokens"]).decode(), line
assert len({tuple(line["tokens"]) for line in lines}) > 3, "parameters of each evaluation, prompts of their own"
page = open("with/report.html").read().split('id="runs">')[1].split("</script>")[0]
assert json.loads(page)[0]["samples"] == lines, page
P

# ---- nothing else of the run changes ----
train without gpt-dp "${small[@]}"
[ ! -e without/samples.jsonl ] || fail "a run without prompts has samples"
cmp with/weights.safetensors without/weights.safetensors || fail "other weights"
python3 - <<'P' || fail "other metrics"
import json
def of(folder):
    timed = ("seconds", "tokens_per_second", "wait_seconds", "reduction_seconds", "pss_rank_bytes", "pss_all_bytes")
    return [{key: value for key, value in json.loads(line).items() if key not in timed} for line in open(f"{folder}/metrics.jsonl")]
assert of("with") == of("without")
P

# ---- on every mesh ----
# In f64 rounding does not change a token, so the samples are the same.
wide=(--set precision.param=f64 --set precision.compute=f64)
train one gpt-dp "${small[@]}" "${prompts[@]}" "${wide[@]}" --set mesh=dp_shard=1
for mesh in "dp_replicate=1 dp_shard=3 --set shard.zero=3" "dp_shard=1 tp=2" "dp_shard=3 tp=2 --set shard.zero=3"; do
  read -ra more <<<"${mesh#*--set}"
  case $mesh in *--set*) more=(--set "${more[0]}") ;; *) more=() ;; esac
  train cut gpt-dp "${small[@]}" "${prompts[@]}" "${wide[@]}" --set mesh="${mesh%% --set*}" "${more[@]}"
  [ "$(tokens cut)" = "$(tokens one)" ] || fail "$mesh: $(tokens cut), not $(tokens one)"
  rm -r cut
done
# Pipeline stages, cut sequences, and experts with their balancing bias.
for of in moe-pp gpt-cp moe-balance; do
  train "$of" "$of" "${small[@]}" "${prompts[@]}" --set checkpoint.every=9
  as_sampled "$of"
done

# ---- resuming ----
train on gpt-dp "${small[@]}" "${prompts[@]}" --set checkpoint.every=5 --set train.steps=6 --set train.warmup=0
[ "$(steps on)" = "3 3 3 5 5 5" ] || fail "$(steps on)"
rm -r on/checkpoints/step-6
printf '{"step":5,"prompt":"cut sh' >>on/samples.jsonl
train on gpt-dp "${small[@]}" "${prompts[@]}" --set checkpoint.every=5 --set train.warmup=0 --resume
[ "$(steps on)" = "3 3 3 7 7 7 8 8 8" ] || fail "after a resume: $(steps on)"
as_sampled on
train on gpt-dp "${small[@]}" --overwrite
[ ! -e on/samples.jsonl ] || fail "--overwrite leaves samples of another run"

# ---- prompts of token numbers ----
python3 - <<'P'
import json, struct
header = b"{'descr': '<u2', 'fortran_order': False, 'shape': (1000,), }\n"
open("tokens.npy", "wb").write(b"\x93NUMPY\1\0" + struct.pack("<H", len(header)) + header + struct.pack("<1000H", *[i * 7 % 60 for i in range(1000)]))
P
of_tokens=(--set 'data.text=[]' --set 'data.tokens=[tokens.npy]' --set model.vocabulary=60)
train numbers gpt-dp "${small[@]}" "${of_tokens[@]}" --set 'evaluate.prompts=["17 4 25", "5"]' --set evaluate.prompt_tokens=3
as_sampled numbers --numbers
grep -q '"text"' numbers/samples.jsonl && fail "there is no tokenizer, and yet text"

# A model with 256 tokens and without a tokenizer reads and writes bytes, as `addend sample` does.
of_bytes=("${of_tokens[@]}" --set model.vocabulary=256)
train bytes gpt-dp "${small[@]}" "${of_bytes[@]}" --set 'evaluate.prompts=["The free", "17 4"]' --set evaluate.prompt_tokens=3
python3 - "$addend" <<'P' || fail "bytes of a model of tokens"
import json, subprocess, sys
text, numbers = [json.loads(line) for line in open("bytes/samples.jsonl")][-2:]
assert isinstance(text["text"], str) and isinstance(numbers["text"], str), (text, numbers)
for line, arguments in ((text, []), (numbers, ["--numbers"])):
    said = subprocess.run([sys.argv[1], "sample", "bytes", line["prompt"], "--tokens", "3", "--json", *arguments], check=True, capture_output=True)
    assert json.loads(said.stdout)["tokens"] == line["tokens"], (line, said.stdout)
P

# ---- the plan's memory for prompts ----
# Rank 0 alone keeps every parameter in f32, and one full parameter while it arrives; a node's peak includes both.
"$addend" plan "$source/recipes/moe-pp.yaml" --set evaluate.every=1 --set data.validation=0.1 "${prompts[@]}" --json >planned
"$addend" plan "$source/recipes/moe-pp.yaml" --set evaluate.every=1 --set data.validation=0.1 --json >planned-without
alike=("$source/recipes/gpt-dp.yaml" --set mesh=dp_shard=3 --set train.global_batch=6 --set evaluate.every=1 --set data.validation=0.1 --json)
"$addend" plan "${alike[@]}" "${prompts[@]}" >planned-alike
"$addend" plan "${alike[@]}" >planned-alike-without
"$addend" plan "$source/recipes/gpt-dp.yaml" --set mesh=dp_shard=8192 --set train.global_batch=8192 --set evaluate.every=1 --set data.validation=0.1 "${prompts[@]}" --json \
  --ranks-per-node 8 >planned-large
"$addend" plan "$source/recipes/gpt-dp.yaml" --set mesh=dp_shard=8192 --set train.global_batch=8192 --json --ranks-per-node 8 >planned-large-without
python3 - <<'P' || fail "the plan of prompts"
import json
def plans(name): return json.load(open(name)), json.load(open(name + "-without"))
for name in ("planned", "planned-alike", "planned-large"):
    plan, without = plans(name)
    sizes = [param["numel"] * 4 for param in plan["params"]]
    for rank, before in zip(plan["memory_per_rank"], without["memory_per_rank"]):
        kept = rank["peak"] - before["peak"]
        assert kept == rank.get("prompts", 0), rank
        if rank["rank"]: assert not kept, rank
        else: assert sum(sizes) + max(sizes) <= kept < sum(sizes) + max(sizes) + 4096, (kept, sum(sizes), max(sizes))
    first, before = plan["memory_per_node"][0], without["memory_per_node"][0]
    assert first["peak"] - before["peak"] == plan["memory_per_rank"][0]["prompts"], (first, before)
P

# ---- wrong prompts ----
refused() { # arguments: facts of the message with | between them, options
  local status=0
  "$addend" train "$recipe" -o refused "${small[@]}" "${@:2}" >out 2>err || status=$?
  [ $status = 2 ] || fail "exit $status, not 2: ${*:2}"
  says_all err "$1"
  [ ! -e refused ] || fail "a folder was made: ${*:2}"
}
refused '--set evaluate.prompts|evaluate.every|is 0' "${prompts[@]}" --set evaluate.every=0
refused '--set evaluate.prompts' --set 'evaluate.prompts=[""]'
refused '--set evaluate.prompts' "${of_tokens[@]}" --set 'evaluate.prompts=["3", "  "]'
refused '--set evaluate.prompts|token 1|is 60|0 to|59' \
  "${of_tokens[@]}" --set 'evaluate.prompts=["59 60"]'
refused '--set evaluate.prompts|token 0|is 2147483647' "${of_tokens[@]}" --set 'evaluate.prompts=["99999999999999999999"]'
refused '--set evaluate.prompts|4097 tokens|most 4096' --set "evaluate.prompts=[$(printf 'x%.0s' $(seq 4097))]"
refused '--set evaluate.prompts|65 prompts|most 64' --set "evaluate.prompts=[$(seq -s, 65)]"
refused '--set evaluate.prompt_tokens|most 4096|is 4097' "${prompts[@]}" --set evaluate.prompt_tokens=4097
refused 'evaluate.prompts[1]' "${of_tokens[@]}" --set 'evaluate.prompts=["3", "Once"]'
printf '%s\n' 'name: t' >line.yaml
sed 's/^train:/evaluate: {every: 2, prompts: [\n  "a",\n  ""]}\ntrain:/' "$recipe" >line.yaml
"$addend" train line.yaml -o refused >out 2>err && fail "an empty prompt"
says err "line.yaml:$(grep -n '""' line.yaml | cut -d: -f1)" evaluate.prompts
for of in ocr-equal decompose-gpt; do
  "$addend" train "$source/recipes/$of.yaml" -o refused "${prompts[@]}" >out 2>err && fail "$of has no next token"
  says err evaluate.prompts
done

# ---- prompts as text, with a tokenizer ----
python=${ADDEND_PYTHON:-}
[ -n "$python" ] || for python in "$HOME/.cache/addend/torch/bin/python3" python3; do [ ! -x "$python" ] || break; done
echo '{"version": "1.0"}' >tokenizer.json
ADDEND_PYTHON=/nowhere/python refused 'evaluate.prompts[0]|tokenizer.json' "${of_tokens[@]}" --set 'evaluate.prompts=[Once]'
if "$python" -c 'import tokenizers' 2>/dev/null; then
  export ADDEND_PYTHON=$python
  "$python" - <<'P'
import tokenizers
words = {"[unk]": 0, **{f"w{i}": i for i in range(1, 60)}, "far": 60}
own = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[unk]"))
own.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
own.save("tokenizer.json")
P
  train text gpt-dp "${small[@]}" "${of_tokens[@]}" --set 'evaluate.prompts=["w17 w4", "5 6"]' --set evaluate.prompt_tokens=3
  cmp tokenizer.json text/tokenizer.json || fail "the tokenizer is not in the run's folder"
  python3 - <<'P' || fail "text of a tokenizer"
import json
for line in map(json.loads, open("text/samples.jsonl")):
    assert line["text"] == " ".join(f"w{token}" if token else "[unk]" for token in line["tokens"]), line
P
  head -n 2 text/samples.jsonl >/dev/null
  python3 - "$addend" <<'P' || fail "a text is not gone on with as its tokens"
import json, subprocess, sys
line = [json.loads(line) for line in open("text/samples.jsonl")][-2]
said = subprocess.run([sys.argv[1], "sample", "text", "17 4", "--numbers", "--tokens", "3", "--json"], check=True, capture_output=True)
assert line["prompt"] == "w17 w4" and json.loads(said.stdout)["tokens"] == line["tokens"], (line, said.stdout)
P
  refused 'evaluate.prompts[1]|token 1|is 60' "${of_tokens[@]}" --set 'evaluate.prompts=["w17", "w3 far"]'
fi
echo "prompts: all hold"
