#!/usr/bin/env bash
# `addend check` as users and scripts call it: documents with the promised keys, verdicts, exit statuses.
set -eu
addend=$1 source=$2
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
cd "$work"
fail() { echo "FAILED: $*" >&2; exit 1; }

prove() { # name, arguments...: the proof holds, and its document has what was promised
  local name=$1 status=0; shift
  "$addend" check "$@" --json >"$name.json" 2>"$name.err" || status=$?
  [ $status -eq 0 ] || { cat "$name.err" >&2; tail -5 "$name.json" >&2; fail "$name: exit $status"; }
  python3 "$source/tests/cli/check_document.py" "$name.json" || fail "$name: document"
}

recipe=$source/recipes/gpt-dp.yaml
prove world-3 "$recipe"
for mesh in dp_replicate=1 "dp_replicate=1 dp_shard=2" "dp_replicate=5 dp_shard=1" dp_shard=7 "dp_replicate=3 dp_shard=2"; do
  prove "mesh" "$recipe" --set mesh="$mesh"
done
prove steps "$recipe" --steps 3
prove f32 "$recipe" --dtype f32
prove recipe "$recipe" --dtype recipe
prove directional "$recipe" --directional
prove microbatches "$recipe" --set train.microbatches=5
prove no-tokens "$recipe" --set 'data.valid=[0]'
[ "$(grep -c "warning" no-tokens.err)" -eq 1 ] || fail "a step without a counted token warns, once"
"$addend" check "$recipe" --set 'data.valid=[0]' --sabotage >out 2>err || fail "a step without a counted token"
[ "$(grep -c "warning" err)" -eq 1 ] || fail "it warns once, whatever is planted"
grep -q "^nothing was counted: " out && ! grep -q proven out || fail "zeros prove nothing"
grep -q "skip-reduction .*no token of the step counts" out || fail "it says why a mistake is not planted"
python3 -c 'import json; assert json.load(open("no-tokens.json"))["summary"]["counted"] == 0'
python3 -c 'import json; assert json.load(open("world-3.json"))["summary"]["counted"] > 0'
prove sabotage "$recipe" --sabotage
prove sabotage-2x2 "$recipe" --set mesh="dp_replicate=2 dp_shard=2" --sabotage

status=0; "$addend" check "$recipe" --directional --sabotage 2>err || status=$?
[ $status -eq 2 ] || fail "contradicting options are a wrong call, not $status"
"$addend" check --help | grep -q Example || fail "help has an example"
"$addend" check "$recipe" | grep -q "^proven" || fail "the table says proven"
"$addend" check "$recipe" | grep -q "^gpt-dp  3 ranks, .* 1 step$" || fail "three ranks, one step"
"$addend" check "$recipe" --set mesh=dp_replicate=1 --steps 2 | grep -q "^gpt-dp  1 rank, .* 2 steps$" || fail "one rank, two steps"
echo "check: all hold"
