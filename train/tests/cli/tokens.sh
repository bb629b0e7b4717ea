#!/usr/bin/env bash
# Tests training on token files: errors in them are reported before any rank starts, each with its sentence; the batch
# is the one that train/include/addend/data.h describes, on every mesh; a resumed run takes the steps of one that was
# never stopped; and the tokenizer beside the tokens is copied into the run's folder.
#   tokens.sh ADDEND SOURCE
set -eu
addend=$1 source=$2
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
cd "$work"
fail() { echo "FAILED: $*" >&2; [ ! -s err ] || cat err >&2; exit 1; }
. "$source/tests/support/says.sh"
recipe=$source/recipes/gpt-dp.yaml

# ---- writing token files ----
python3 - <<'P'
import struct
def npy(path, code, values, shape=None, descr=None, order="False", version=1, length=None):
    header = f"{{'descr': '{descr or code}', 'fortran_order': {order}, 'shape': {shape or f'({len(values)},)'}, }}\n".encode()
    number = struct.pack("<H" if version == 1 else "<I", len(header) if length is None else length)
    data = struct.pack(f"<{len(values)}{ {'|u1': 'B', '<u2': 'H', '<u4': 'I', '<f8': 'd'}[code] }", *values)
    open(path, "wb").write(b"\x93NUMPY" + bytes([version, 0]) + number + header + data)
    return data
one, two = [i * 7 % 251 for i in range(1001)], [i * 3 % 199 for i in range(400)]
npy("one.npy", "<u2", one), npy("two.npy", "<u4", two, version=2)
npy("one.mask.npy", "|u1", [int(i % 5 > 1) for i in range(1001)]), npy("two.mask.npy", "|u1", [int(i % 3 > 0) for i in range(400)])
npy("two.mask2.npy", "|u1", [int(i % 3 > 1) for i in range(400)])
npy("beyond.npy", "<u2", one + [256, 257]), npy("float.npy", "<f8", [1.0] * 100), npy("bytes.npy", "|u1", [1] * 100)
npy("square.npy", "<u2", [1] * 100, "(10, 10)"), npy("fortran.npy", "<u2", [1] * 100, order="True")
npy("big.npy", "<u2", [1] * 100, descr=">u2"), npy("huge.npy", "<u2", [1] * 100, version=2, length=1 << 31)
npy("cut.npy", "<u2", [1] * 99, "(100,)"), npy("none.npy", "<u2", []), npy("short.npy", "<u2", [1] * 24)
npy("list.npy", "<u2", [1] * 100, "[100]"), npy("mask3.npy", "|u1", [0, 1, 3] * 10)
npy("mostly.npy", "<u2", [1 if i % 10 else i // 10 for i in range(2000)]) # nine in ten: -0.9 log 0.9 - 0.1 log(0.1 / 200), about 0.86
npy("other.npy", "<u2", one[:-1] + [9]), npy("labels.npy", "<u2", [1] * 100 + [65536 - 100])
open("text.npy", "w").write("one two three"), open("empty.npy", "w")
P
tokens=(--set 'data.text=[]' --set 'data.tokens=[one.npy, two.npy]')
masked=("${tokens[@]}" --set 'data.mask=[one.mask.npy, two.mask.npy]' --set data.validation=0.2)

# ---- wrong token files ----
refused() { # arguments: facts of the message with | between them, options
  local status=0
  "$addend" train "$recipe" -o refused "${@:2}" >out 2>err || status=$?
  [ $status = 2 ] || fail "exit $status: ${*:2}"
  says_all err "$1"
  [ ! -e refused ] || fail "a folder was made: ${*:2}"
}
# arguments: file, facts of the message
wrong() { refused "--set data.tokens|$1.npy${2:+|$2}" --set 'data.text=[]' --set "data.tokens=[$1.npy]"; }
wrong nowhere
wrong text 'numpy.save|addend_train.tokens'
wrong empty .npy
wrong list 'fortran_order'
wrong huge '2147483648 bytes|10000'
wrong cut '100 elements|2 bytes|198 bytes'
wrong float "<f8|uint16|uint32"
wrong bytes "u1|uint16|uint32"
wrong big ">u2|array.astype('<u2')"
wrong square '2 dimensions|array.reshape(-1)'
wrong fortran 'numpy.ascontiguousarray(array)'
wrong none
wrong labels "index 100|is 65436|is 256|0 to|255|-100"
wrong beyond "index 1001|is 256|0 to|255"
refused 'one.npy|uint16|above 65535|is 65537' --set 'data.text=[]' --set 'data.tokens=[one.npy]' --set model.vocabulary=65537
refused 'seq 24|25 tokens' --set 'data.text=[]' --set 'data.tokens=[short.npy]'
refused 'data.text|data.tokens' --set 'data.text=[]'
refused '--set data.tokens|data.text' --set 'data.tokens=[one.npy]'
refused '--set data.mask|data.tokens' --set 'data.mask=[one.mask.npy]'
refused '--set data.mask|data.tokens|has 1|for 2' "${tokens[@]}" --set 'data.mask=[one.mask.npy]'
refused 'two.mask.npy|400 elements|one.npy|1001 tokens' "${tokens[@]}" --set 'data.mask=[two.mask.npy, one.mask.npy]'
refused "--set data.mask|one.npy|<u2|uint8|bool" "${tokens[@]}" --set 'data.mask=[one.npy, two.mask.npy]'
refused '--set data.mask|mask3.npy|index 2|is 3' "${tokens[@]}" --set 'data.mask=[mask3.npy, two.mask.npy]'
for kind in moe-tp decompose-gpt; do
  "$addend" plan "$source/recipes/$kind.yaml" --set 'data.text=[]' --set 'data.tokens=[beyond.npy]' >out 2>err && fail "$kind takes a token of no vocabulary"
  says err beyond.npy "index 1001" "is 256"
done
sed -e '/^data:/,/^$/d' "$recipe" >inside.yaml
printf 'data:\n  tokens:\n    - one.npy\n    - beyond.npy\n  seq: 24\n' >>inside.yaml
"$addend" plan inside.yaml >out 2>err && fail "a recipe with a wrong second file"
says err "inside.yaml:$(grep -n beyond inside.yaml | cut -d: -f1)" data.tokens beyond.npy "index 1001"

# ---- checks, and batches as data.h describes them ----
check() { "$addend" check "$@" >out 2>err || fail "check $*"; }
check "$recipe" "${masked[@]}" --dump dumped
check "$recipe" "${masked[@]}" --set mesh="dp_shard=2 cp=2 tp=2" --set train.microbatches=3 --dump dumped-cut
check "$source/recipes/gpt-pp.yaml" "${masked[@]}"
check "$source/recipes/moe-cp.yaml" "${tokens[@]}"
check "$source/recipes/pools-ragged.yaml" "${tokens[@]}"
check "$recipe" "${masked[@]}" --directional
python3 - "$source" <<'P' 2>err || fail "the batch is another than data.h says"
import math, struct, sys
sys.path[:0] = [sys.argv[1] + "/train/tests/cli", sys.argv[1] + "/programs/tests/oracle"]
import draws, safetensors
def below(n, key, stream, index): return draws.random_bits(key, stream, index) * n >> 64
def permuted(key, n, i):
    a = math.isqrt(n - 1) + 1
    b = -(-n // a)
    while True:
        l, r = divmod(i, b)
        for j in range(0, 8, 2):
            l = (l + below(a, key, j, r)) % a
            r = (r + below(b, key, j + 1, l)) % b
        i = l * b + r
        if i < n: return i
seq, batch, seed = 24, 12, 1
valid = [1, 0.5, 0.25, 1, 0, 0, 0.75, 0.125, 1, 0.5, 0, 0]
files = [([i * 7 % 251 for i in range(1001)], [i % 5 > 1 for i in range(1001)]), ([i * 3 % 199 for i in range(400)], [i % 3 > 0 for i in range(400)])]
windows = []
for tokens, mask in files:
    trained_on = len(tokens) - math.floor(len(tokens) * 0.2)
    windows += [(tokens[at:at + seq + 1], mask[at:at + seq + 1]) for at in range(0, trained_on - seq, seq)]
n = len(windows)
assert n == (801 - 1) // 24 + (320 - 1) // 24, n
for folder, microbatches in ("dumped", 2), ("dumped-cut", 3):
    for step in (0, 1):
        inputs = safetensors.load(f"{folder}/step-{step}.inputs.safetensors")
        rows = {what: [x for m in range(microbatches) for (x,) in struct.iter_unpack("<i", inputs[f"microbatch.{m}.{what}"][2])] for what in ("tokens", "targets")}
        for row in range(batch):
            i = step * batch + row
            key = draws.random_bits(seed, draws.xxh64(b"tokens"), i // n)
            tokens, mask = windows[permuted(key, n, i % n)]
            counted = math.floor(valid[row] * seq + 0.5)
            assert rows["tokens"][row * seq:][:seq] == tokens[:seq], (folder, step, row)
            wanted = [token if at < counted and counts else -1 for at, (token, counts) in enumerate(zip(tokens[1:], mask[1:]))]
            assert rows["targets"][row * seq:][:seq] == wanted, (folder, step, row)
P

# ---- training: the same losses on every mesh and after every stop ----
train() { "$addend" train "$recipe" "${masked[@]}" --set train.steps=8 --set checkpoint.every=4 --set checkpoint.keep=9 --json "$@" >out 2>err; }
echo '{"a": "tokenizer"}' >tokenizer.json
train -o one --set mesh=dp_shard=1 || fail "train on one rank"
train -o two --set mesh=dp_shard=2 || fail "train on two ranks"
python3 - one two <<'P' 2>err || fail "two ranks have other batches than one"
import json, sys
a, b = ([json.loads(line) for line in open(f"{folder}/metrics.jsonl")] for folder in sys.argv[1:])
assert len(a) == len(b) == 8
for x, y in zip(a, b):
    assert x["tokens"] == y["tokens"] > 0 and abs(x["loss"] - y["loss"]) < 1e-5 * x["loss"], (x, y)
held = [line["validation_loss"] for line in a if "validation_loss" in line]
assert held and a[-1]["loss"] < a[0]["loss"]
run = json.load(open("one/run.json"))
assert run["facts"][0] == ["tokens", "1401 tokens in 2 files, 46 samples an epoch"] and run["copied"] == ["tokenizer.json"], run
P
cp -r two stopped && rm -r stopped/checkpoints/step-8 stopped/weights.safetensors
cp -r stopped same && train -o same --resume --set mesh=dp_shard=2 || fail "resume"
cmp two/weights.safetensors same/weights.safetensors || fail "a resumed run has the weights of one that was never stopped"
diff <(sed 's/,"seconds.*//' two/metrics.jsonl) <(sed 's/,"seconds.*//' same/metrics.jsonl) || fail "the same losses"

# ---- token files are identified by their contents ----
cp one.npy moved.npy
cp -r stopped moved && train -o moved --resume --set mesh=dp_shard=2 --set 'data.tokens=[moved.npy, two.npy]' || fail "the same tokens under another name"
for change in 'data.tokens=[other.npy, two.npy]' 'data.tokens=[two.npy, one.npy]' 'data.mask=[]' 'data.mask=[one.mask.npy, two.mask2.npy]'; do
  files=("--set" "$change")
  [ "$change" != 'data.tokens=[two.npy, one.npy]' ] || files+=(--set 'data.mask=[two.mask.npy, one.mask.npy]')
  rm -rf changed && cp -r stopped changed
  if train -o changed --resume --set mesh=dp_shard=2 "${files[@]}"; then fail "resumes with $change"; fi
  says err "${change%%=*}" changed/checkpoints/step-4
done

# ---- the tokenizer is copied to the run ----
cmp tokenizer.json one/tokenizer.json || fail "the tokenizer is copied"
mkdir foreign && echo own >foreign/tokenizer.json
train -o foreign || fail "train beside another tokenizer.json"
says err foreign/tokenizer.json tokenizer.json

[ "$(cat foreign/tokenizer.json)" = own ] || fail "another tokenizer.json stays"
train -o foreign --overwrite && [ "$(cat foreign/tokenizer.json)" = own ] || fail "--overwrite leaves what is not addend's"
mv tokenizer.json away.json
train -o one --overwrite && [ ! -e one/tokenizer.json ] || fail "--overwrite removes the copy of a run before"
mkdir data && cp ./*.npy data && cp away.json data/tokenizer.json
(cd data && train -o . && cmp tokenizer.json ../away.json && train -o . --overwrite && cmp tokenizer.json ../away.json) || fail "a run in the folder of its data leaves the tokenizer there"

# ---- other programs on tokens ----
cp away.json tokenizer.json
"$addend" train "$source/recipes/moe-tp.yaml" "${tokens[@]}" --set train.steps=1 --set train.warmup=0 -o experts >out 2>err || fail "experts on tokens"
cmp tokenizer.json experts/tokenizer.json || fail "experts have the tokenizer"
"$addend" train "$source/recipes/decompose-gpt.yaml" --set "data={tokens: mostly.npy, validation: 0.1, seq: 32}" --set target.steps=3 --set target.warmup=0 --set train.steps=2 --set train.warmup=0 \
  -o decomposed >out 2>err || fail "a decomposition of a decoder of tokens"
cmp tokenizer.json decomposed/tokenizer.json && cmp tokenizer.json decomposed/target/tokenizer.json || fail "a decomposition has the tokenizer, and its target too"
python3 -c '
import json
found = json.load(open("decomposed/result.json"))
assert 0.7 < found["cross_entropy"]["unigram"] < 1.1 and found["cross_entropy"]["uniform"] > 5.5, found["cross_entropy"]' || fail "how often tokens are"
echo "tokens: all hold"
