#!/usr/bin/env bash
# Tests adversary sources that all samples of a microbatch share, and sources through a sigmoid: every gradient and the
# sources themselves against one process, on pools whose adversary has one rank, several, and more than there are
# samples; and checkpoints that are resumed bit for bit on the same pools, and on others.
#   pools_sources.sh ADDEND SOURCE
set -eu
addend=$1 source=$2
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
cd "$work"
fail() { echo "FAILED: $*" >&2; exit 1; }
. "$source/tests/support/says.sh"
. "$source/tests/support/check.sh"
check_wide() { check_recipe pools-10 precision.compute=f64 precision.param=f64 "$@"; }
pools() { echo "mesh={ci:+\"dp=$1\",+blocks:+\"block=$2+dp=$3\",+adv:+\"dp=$4\"}"; }
judged() { python3 -c "import json; states = json.load(open('proof.json'))['summary']['states']; assert 0 <= states['rel_err'] < 1e-12, states"; }

for how in "ascent.rule=adam" "ascent.rule=sign" "ascent.bounds=sigmoid" "ascent.rule=sign ascent.bounds=sigmoid"; do
  for adv in 1 3 5; do # with five adversary ranks one has no sample
    check_wide "$(pools 3 2 1 $adv)" train.global_batch=4 train.microbatches=1 ascent.scope=batch $how --steps 3
    judged
  done
  check_wide "$(pools 2 1 2 3)" train.global_batch=10 train.microbatches=3 ascent.scope=batch $how --steps 3
  judged
done
check_wide "$(pools 3 2 1 5)" train.global_batch=4 train.microbatches=1 ascent.bounds=sigmoid --steps 3
check_recipe pools-10 --directional ascent.steps=0 model.plain_clamp=true ascent.scope=batch ascent.bounds=sigmoid

# ---- resuming a stopped training ----
train() { local out=$1; shift; "$addend" train "$source/recipes/pools-10.yaml" --out "$out" --set checkpoint.every=4 --set ascent.scope=batch --set ascent.bounds=sigmoid "$@" >out.txt 2>&1 || { cat out.txt >&2; fail "train $*"; }; }
train whole --set train.steps=8
cp -r whole same && rm -rf same/checkpoints/*8 same/weights.safetensors
cp -r same other
train same --resume --set train.steps=8
cmp whole/weights.safetensors same/weights.safetensors || fail "a resumed run has other bits"
train other --resume --set train.steps=8 --set 'mesh={ci: "dp=2", blocks: "block=3 dp=1", adv: "dp=5"}'
python3 - <<'Y'
import json
last = lambda run: json.loads(open(run + "/metrics.jsonl").read().splitlines()[-1])
for name, value in last("whole")["losses"].items():
    assert abs(last("other")["losses"][name] / value - 1) < 1e-4, (name, value, last("other")["losses"][name])
Y

# ---- values that do not exist are refused ----
refused() { # arguments: fact of the message, KEY=VALUE
  local fact=$1 status=0; shift
  "$addend" train "$source/recipes/pools-10.yaml" --out none --set "$1" >out.txt 2>&1 || status=$?
  [ $status -eq 2 ] || { cat out.txt >&2; fail "$1: exit $status, not 2"; }
  says out.txt "$fact"
}
refused 'ascent.scope' 'ascent.scope=rank'
refused 'ascent.bounds' 'ascent.bounds=tanh'
echo "pools_sources: all hold"
