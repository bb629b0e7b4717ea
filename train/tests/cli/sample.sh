#!/usr/bin/env bash
# Tests `addend sample`: prompts as numbers, bytes and text; where it stops; what it refuses. That its tokens are those
# of Transformers is tested in train/tests/export.
#   sample.sh ADDEND SOURCE
set -eu
addend=$1 source=$2
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
cd "$work"
fail() { echo "FAILED: $*" >&2; exit 1; }
. "$source/tests/support/says.sh"
exits() { # arguments: status, facts of the message with | between them, options
  local status=0
  "$addend" sample "${@:3}" >out 2>err || status=$?
  [ $status -eq "$1" ] || { cat out err >&2; fail "exit $status, not $1: ${*:3}"; }
  says_all err "$2"
}
model=$source/programs/tests/oracle/fixtures/hf-mistral/model

# ---- prompts of token numbers ----
"$addend" sample "$model" "3 4 5" --tokens 12 >out 2>err
[ "$(cat out)" = "3 4 5 9 22 30 9 22 6 7 12 30 30 9 6" ] || { cat out >&2; fail "numbers"; }
says err "12 tokens"
"$addend" sample "$model" "3,4 5" --tokens 3 --json >out 2>err
python3 -c 'import json; d = json.load(open("out")); assert d["prompt"] == [3, 4, 5] and d["tokens"] == [9, 22, 30] and d["text"] is None and d["ended"] is False and d["tokens_per_second"] > 0, d'
[ ! -s err ] || fail "--json says nothing else"

# ---- a sliding window: within it nothing changes, beyond it nothing is computed ----
mkdir window && cp "$model"/* window
wide() { python3 -c 'import json, sys; c = json.load(open(sys.argv[1])); c["sliding_window"] = 8; json.dump(c, open("window/config.json", "w"))' "$model/config.json"; }
wide
"$addend" sample window "3 4 5" --tokens 6 >out 2>err # the last token is not read: 3 + 5
[ "$(cat out)" = "3 4 5 9 22 30 9 22 6" ] || { cat out err >&2; fail "within the window"; }
exits 2 '8 tokens' window "3 4 5" --tokens 7
exits 2 '8 tokens' window "1 2 3 4 5 6 7 8 9" --tokens 1

# ---- random draws: a seed gives the same tokens again, another seed others ----
for seed in 1 1 2; do "$addend" sample "$model" 3 --tokens 30 --temperature 1.5 --seed $seed 2>err; done >out
[ "$(sed -n 1p out)" = "$(sed -n 2p out)" ] && [ "$(sed -n 1p out)" != "$(sed -n 3p out)" ] || { cat out >&2; fail "seeds"; }

# ---- the model ends its text (end-of-sequence token) ----
mkdir ends && cp "$model"/* ends && echo '{"eos_token_id": [41, 30]}' >ends/generation_config.json
"$addend" sample ends "3 4 5" --tokens 12 >out 2>err
[ "$(cat out)" = "3 4 5 9 22" ] || { cat out err >&2; fail "the end"; }
says err "3 tokens"
echo '{"eos_token_id": "x"}' >ends/generation_config.json
exits 2 'ends/generation_config.json|eos_token_id' ends 3

# ---- bytes, from a run's weights and from its checkpoint ----
"$addend" train "$source/recipes/gpt-dp.yaml" --set train.steps=4 --set checkpoint.every=2 >out 2>&1
"$addend" sample runs/gpt-dp "This " --tokens 7 >text 2>err
[ "$(head -c 5 text)" = "This " ] && [ "$(wc -c <text)" -eq 13 ] || fail "bytes"
"$addend" export runs/gpt-dp of-bytes >out && "$addend" sample of-bytes "This " --tokens 7 2>err | cmp - text || fail "an exported model of bytes"
"$addend" sample runs/gpt-dp "84 104 105 115 32" --numbers --tokens 7 --json >out
python3 -c 'import json; t = json.load(open("out"))["tokens"]; assert bytes(t) == open("text", "rb").read()[5:-1], t'
rm runs/gpt-dp/weights.safetensors
"$addend" sample runs/gpt-dp "This " --tokens 7 2>err | cmp - text || fail "of a checkpoint"

# ---- a run with sharded sequences (cp): the sampler does not need cp ----
"$addend" train "$source/recipes/gpt-cp.yaml" -o cut --set train.steps=2 --set train.warmup=0 >out 2>&1 || fail "train on cp"
"$addend" sample cut "This " --tokens 7 >out 2>err || { cat err >&2; fail "of a run on cp"; }

# ---- weights beside a later checkpoint belong to an earlier training if the run has not finished since ----
"$addend" train "$source/recipes/gpt-dp.yaml" -o killed --set train.steps=4 --set checkpoint.every=2 >out 2>&1
"$addend" train "$source/recipes/gpt-dp.yaml" -o other --set train.steps=4 --set train.seed=9 >out 2>&1
cp other/weights.safetensors killed/
python3 - <<'P'
import json
run = json.load(open("killed/run.json"))
del run["finished"]
json.dump(run, open("killed/run.json", "w"))
P
"$addend" sample killed "This " --tokens 7 2>err | cmp - text || fail "weights of an earlier training"

# ---- of equal logits the first token is taken; NaN logits are an error ----
mkdir zero huge && cp "$model"/* zero && cp "$model"/* huge
PYTHONPATH=$source/train/tests/cli PYTHONDONTWRITEBYTECODE=1 python3 - <<'P'
import math, struct, safetensors as s
weights = s.load("zero/model.safetensors")
def filled(names, one): return {name: ("F32", weights[name][1], struct.pack("<f", one) * math.prod(weights[name][1])) for name in names}
s.save("zero/model.safetensors", filled(weights, 0))
s.save("huge/model.safetensors", {**weights, **filled(["model.norm.weight", "lm_head.weight"], 1e30)})
P
"$addend" sample zero "3 4" --tokens 1 >out 2>err
[ "$(cut -d ' ' -f 3 out)" = 0 ] || { cat out err >&2; fail "equal logits"; }
exits 3 'token 0' huge "3 4"

# ---- experts: the next token does not depend on how many tokens are read together; a checkpoint has the bias ----
balance() { # arguments: folder, checkpoint.every
  "$addend" train "$source/recipes/moe-balance.yaml" -o "$1" --set train.steps=4 --set train.warmup=0 --set checkpoint.every="$2" >out 2>&1 || fail "train $1"
}
balance limited 2
drawn=(--numbers --dtype f64 --temperature 1)
"$addend" sample limited "$(seq -s ' ' 65 7 200)" --tokens 100 "${drawn[@]}" >whole 2>err
"$addend" sample limited "$(cut -d ' ' -f 1-60 whole)" --tokens 60 "${drawn[@]}" 2>err | cmp - whole || fail "a limit of experts drops tokens of a prompt"
balance unkept 0
exits 2 'unkept|model.blocks.0.moe.bias|weights.safetensors' unkept "The "

# ---- text: the tokenizer is a Python process; this test's own knows the letters a to z ----
mkdir text-model && cp "$model"/* text-model && echo '{}' >text-model/tokenizer.json
cat >letters <<'P'
#!/usr/bin/env bash
# In place of Python with tokenizers: called as `letters -c PROGRAM FILE`.
exec python3 -uc '
import json, sys
print("null")
for line in sys.stdin:
    asked = json.loads(line)
    print(json.dumps([ord(c) - 97 for c in asked] if isinstance(asked, str) else "".join(chr(97 + t) if t < 26 else "." for t in asked)))'
P
chmod +x letters
ADDEND_PYTHON=./letters "$addend" sample text-model def --tokens 6 >out 2>err
[ "$(cat out)" = "defjw.jwg" ] || { cat out err >&2; fail "text"; }
ADDEND_PYTHON=./letters "$addend" sample text-model def --tokens 6 --json >out
python3 -c 'import json; d = json.load(open("out")); assert d["text"] == "defjw.jwg" and d["tokens"] == [9, 22, 30, 9, 22, 6], d'
export ADDEND_PYTHON=./letters
exits 2 'PROMPT|UTF-8' text-model $'de\xff'
if grep -q Traceback err; then cat err >&2; fail "a trace of Python's"; fi
# Python may use another encoding than UTF-8: U+00E9 is one letter, token 136, in each.
PYTHONIOENCODING=latin-1 exits 2 "token 0|is 136|0 to|42" text-model $'\xc3\xa9'

# ---- if the tokenizer's process or the reader of the output ends, `sample` computes nothing more ----
cat >dies <<'P'
#!/usr/bin/env bash
exec python3 -uc '
import json, sys
print("null")
for n, line in zip(range(4), sys.stdin): print(json.dumps("abcdefg"[:n] if n else [3]))'
P
chmod +x dies
ADDEND_PYTHON=./dies exits 3 '' text-model d --tokens 1000000000
sed -i 's/range(4)/range(1)/' dies
ADDEND_PYTHON=./dies exits 3 '' text-model d --tokens 9 --json
for words in "text-model d" "$model 3"; do
  read -r folder prompt <<<"$words"
  timeout 20 "$addend" sample "$folder" "$prompt" --tokens 1000000000 2>err | head -c 3 >out
  [ "${PIPESTATUS[0]}" -eq 0 ] && [ ! -s err ] || { cat err >&2; fail "a reader that has enough: $words"; }
  status=0; timeout 20 "$addend" sample "$folder" "$prompt" --tokens 9 >&- 2>err || status=$?
  [ $status -eq 3 ] || { cat err >&2; fail "no standard output, exit $status: $words"; }
  says err
done
export ADDEND_PYTHON=./no-such-python
exits 2 './no-such-python' text-model def
exits 2 "PROMPT|def" text-model def
"$addend" sample text-model "3 4 5" --tokens 3 >out 2>err
[ "$(cat out)" = "3 4 5 9 22 30" ] || fail "numbers where there is no Python"

# ---- text: a Hugging Face tokenizer that has a NUL in a text ----
python=$HOME/.cache/addend/torch/bin/python3
[ -x "$python" ] || python=python3
if "$python" -c 'import tokenizers' 2>/dev/null; then
  "$python" - <<'P'
import tokenizers
own = tokenizers.Tokenizer(tokenizers.models.WordLevel({"[unk]": 0, **{f"w{i}": i for i in range(1, 43) if i != 22}, "a\0b": 22}, unk_token="[unk]"))
own.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
own.save("text-model/tokenizer.json")
P
  ADDEND_PYTHON=$python "$addend" sample text-model "w3 w4 w5" --tokens 3 >out 2>err
  [ "$(cat out)" = $'w3 w4 w5 w9 a\xef\xbf\xbdb w30' ] || { cat out err >&2; fail "a text with a NUL"; }
  # An interrupt, also in the middle of a question to Python, ends both, without a message.
  status=0; ADDEND_PYTHON=$python timeout -s INT 2 "$addend" sample "$work/text-model" w3 --tokens 1000000000 >out 2>err || status=$?
  [ $status -eq 124 ] && [ ! -s err ] || { cat err >&2; fail "an interrupted sample, exit $status"; }
  for _ in $(seq 600); do pgrep -f "$work/text-model" >processes || break; sleep 0.1; done
  [ ! -s processes ] || fail "an interrupted sample leaves Python"
fi

# ---- calls that are refused ----
exits 2 PROMPT "$model"
exits 2 PROMPT "$model" ""
exits 2 "4" "$model" 3 4
exits 2 "token 1|is 43|0 to|42" "$model" "3 43"
exits 2 "token 0|is -7|0 to|42" "$model" " -7"
exits 2 "--tokens|from 1|'0'" "$model" 3 --tokens 0
exits 2 "--temperature|0 to|1000000|'-1'" "$model" 3 --temperature=-1
exits 2 "--temperature|0 to|1000000|'1000001'" "$model" 3 --temperature 1000001
exits 2 "--temperature|0 to|1000000" "$model" 3 --temperature nan
exits 2 "--temperature|0 to|1000000|'1.5x'" "$model" 3 --temperature 1.5x
exits 2 "--seed|from 0|'-1'" "$model" 3 --seed=-1
exits 2 "--tokens|from 1|'2x'" "$model" 3 --tokens 2x
"$addend" sample "$model" 3 --tokens 1 --temperature 1000000 --seed 0 >out 2>err || { cat err >&2; fail "the last numbers that are accepted"; }
# Without options a hundred tokens are drawn by seed 1.
"$addend" sample "$model" 3 --temperature 1.5 >default 2>err
"$addend" sample "$model" 3 --temperature 1.5 --tokens 100 --seed 1 2>err | cmp - default && [ "$(wc -w <default)" -eq 101 ] || fail "defaults"
exits 2 "--dtype|f32,|bf16|f64,|'f16'" "$model" 3 --dtype f16
exits 2 no-such no-such 3
exits 2 "$source|config.json" "$source" 3

echo "sample: all hold"
