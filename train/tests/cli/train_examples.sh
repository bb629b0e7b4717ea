#!/usr/bin/env bash
# Tests the trainer's examples that are no program of a recipe's: a tape by hand, routing by hand, operations of one's
# own, a loop around addend's step, and the perplexity of a text.
# Usage: train_examples.sh ADDEND SOURCE
set -eu
addend=$1 source=$2 build=$(dirname -- "$1")
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
cd "$source"
fail() { echo "FAILED: $*" >&2; exit 1; }

"$build/example_tape" >"$work/tape" || fail "tape: $(cat "$work/tape")"
grep -q 'are those of one rank: yes$' "$work/tape" || fail "tape: $(cat "$work/tape")"
"$build/example_routing" >"$work/routing" || fail "routing: $(cat "$work/routing")"
grep -Eq '; [1-9][0-9]* of 48 choices found their expert full; gradients as on one rank: yes$' "$work/routing" || fail "routing: $(cat "$work/routing")"
"$build/example_operations" >"$work/operations" || fail "operations: $(cat "$work/operations")"
[ "$(cat "$work/operations")" = $'cumulative holds\nabove holds' ] || fail "operations: $(cat "$work/operations")"

# A loop of one's own: the second call continues from the first's checkpoint, and ends with the best weights.
python3 - "$work/text" <<'P'
import sys
open(sys.argv[1], "w").write("abcd efgh ijkl mnop " * 200)
P
cat >"$work/loop.yaml" <<R
name: loop
model: {kind: gpt, layers: 1, d_model: 16, heads: 2, d_hidden: 32}
data: {text: [$work/text], seq: 16, validation: 0.2}
mesh: dp=2
train: {global_batch: 4, microbatches: 1, steps: 40, lr: 0.01}
evaluate: {samples: 8}
R
mkdir "$work/loop"
"$build/example_own_loop" "$work/loop.yaml" "$work/loop" 12 >"$work/first" 2>"$work/err" || fail "own_loop: $(cat "$work/err")"
"$build/example_own_loop" "$work/loop.yaml" "$work/loop" 24 >"$work/second" 2>"$work/err" || fail "own_loop: $(cat "$work/err")"
grep -qx 'continues after step 12' "$work/second" || fail "own_loop: $(cat "$work/second")"
python3 - "$work/first" "$work/second" <<'P' || fail "own_loop: $(cat "$work/first" "$work/second")"
import re, sys
for path in sys.argv[1:]:
    losses = [float(x) for x in re.findall(r"loss ([\d.]+)", open(path).read())]
    assert len(losses) in (4, 5) and losses[-1] == min(losses[:-1]), losses  # the last line is of the best weights
first, second = (open(path).read().split("\n") for path in sys.argv[1:])
assert second[0].endswith(first[-2].split()[-1]), (first, second)  # the second call knows the first one's best
P
grep -Eq '^name: "?loop"?$' "$work/loop/recipe.yaml" || fail "no recipe: $(head -3 "$work/loop/recipe.yaml")"

# Perplexity: a trained model predicts its text better than one of another text.
"$addend" train "$work/loop.yaml" --out "$work/run" --set train.steps=60 --set mesh=dp=1 >/dev/null || fail "train"
printf 'abcd efgh ijkl\nmnop abcd efgh\n' >"$work/known"
printf 'zyxw vuts\n' >"$work/unknown"
for text in known unknown; do
  "$build/example_perplexity" "$work/run" "$work/$text" >"$work/$text.bits" || fail "perplexity of $text"
done
printf 'abcd efgh\n' >"$work/once"
printf 'abcd efgh\nabcd efgh\n' >"$work/twice" # a line says nothing about the next
for text in once twice; do "$build/example_perplexity" "$work/run" "$work/$text" | cut -d' ' -f1 >"$work/$text.bits"; done
cmp "$work/once.bits" "$work/twice.bits" || fail "a line is read after another"
python3 - "$work/known.bits" "$work/unknown.bits" <<'P' || fail "perplexity: $(cat "$work/known.bits" "$work/unknown.bits")"
import sys
known, unknown = (open(path).read().split() for path in sys.argv[1:])
assert known[5:] == ["26", "bytes"] and unknown[5:] == ["8", "bytes"], (known, unknown)
assert 0 < float(known[0]) < 6 and float(unknown[0]) > float(known[0]) + 2, (known, unknown)
P
echo "train_examples: all hold"
