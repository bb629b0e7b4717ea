#!/usr/bin/env bash
# Tests that the check does not claim too much: a mutant that changes nothing is reported as without effect,
# with the reason, and the mutants beside it as killed. (train/tests/check/test_own_program.c tests a mutant that
# survives, which fails the check.)
set -eu
addend=$1 source=$2
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
cd "$work"
fail() { echo "FAILED: $*" >&2; exit 1; }
. "$source/tests/support/says.sh"

# In a text of one letter every slice is the same, so reading a wrong slice changes no number. (From such a text
# attention learns nothing: its gradient is zero but for rounding, so everything is in f64 here.)
head -c 20000 /dev/zero | tr '\0' a >letters
cat >letters.yaml <<'Y'
name: letters
model: {kind: gpt, layers: 1, d_model: 16, heads: 2}
data: {text: [letters], seq: 12}
mesh: "dp_replicate=2"
train: {seed: 4, global_batch: 8, microbatches: 2, steps: 2, lr: 1e-2}
precision: {param: f64, compute: f64}
Y
"$addend" check letters.yaml >out || fail "without a planted mistake it is proven"
"$addend" check letters.yaml --mutate --json >proof.json || fail "what has no effect is no survivor"
python3 - <<'Y'
import json
proof = json.load(open("proof.json"))
caught = {entry["name"]: entry["killed_by"] for entry in proof["mutants"]}
assert proof["summary"]["pass"] is True, "the recipe itself is sound"
assert caught["shifted-slice"] == "no_effect", caught
why = {entry["name"]: entry["message"] for entry in proof["mutants"]}
assert why["shifted-slice"], why
assert proof["survivors"] == 0 and proof["holds"] is True, caught
assert caught["last-microbatch-only"] == "number", caught
known = [entry["name"] for entry in proof["mutants"] if not entry["derived"] and entry["killed_by"] == "no_effect"]
assert "none" not in caught.values() and known == ["shifted-slice"], caught
# What no number shows in a text of one letter is no excuse for what is derived from the program.
derived = [entry for entry in proof["mutants"] if entry["derived"]]
silent = [entry["name"] for entry in derived if entry["killed_by"] == "no_effect"]
assert silent == [f"once_everywhere: blocks.0.attn.{w}: once over dp_replicate" for w in ("wq", "wk")], silent  # of norm 0
assert {entry["killed_by"] for entry in derived} == {"type", "number", "no_effect"}, derived
for operator in "averaged", "left_out", "doubled":
    numbers = [entry for entry in derived if entry["derived"]["operator"] == operator and entry["derived"]["form"] == "execution"]
    assert len(numbers) > 8 and all(entry["killed_by"] == "number" for entry in numbers), numbers
assert proof["coverage"]["survived"] == 0 and proof["coverage"]["mutants"] == len(derived), proof["coverage"]
Y
"$addend" check letters.yaml --mutate --all >out || fail "in words too"
grep "^  no_effect shifted-slice " out >line || { cat out >&2; fail "shifted-slice has an effect"; }
says line no_effect
says_nothing_of out SURVIVED
tail -n 1 out >verdict
says verdict "11 parameters"
echo "survivor: all hold"
