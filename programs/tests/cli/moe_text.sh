#!/usr/bin/env bash
# Tests the recipe that trains a mixture of experts on real text, shortened: its check holds, its loss falls, every
# step's expert choices are measured, the first steps drop some tokens; and the dense model with which programs/docs/moe.md
# compares it does as many multiplications for each token.
set -eu
addend=$1 source=$2
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
cd "$work"
fail() { echo "FAILED: $*" >&2; cat err >&2; exit 1; }
"$addend" check "$source/recipes/moe-text.yaml" --steps 1 >out 2>err || fail "check"
for recipe in moe-text moe-text-dense; do
  "$addend" train "$source/recipes/$recipe.yaml" --set train.steps=25 >out 2>err || fail "train $recipe"
done
python3 - <<'P'
import json
def of(name):
    lines = [json.loads(line) for line in open(f"runs/{name}/metrics.jsonl")]
    assert len(lines) == 25 and lines[-1]["loss"] < lines[0]["loss"] - 1, lines[-1]
    return json.load(open(f"runs/{name}/run.json")), lines
experts, lines = of("moe-text")
dense, dense_lines = of("moe-text-dense")
assert sum(line["tokens"] for line in lines) == sum(line["tokens"] for line in dense_lines)
assert 1 <= dense["flops_per_step"] / experts["flops_per_step"] < 1.002, (dense["flops_per_step"], experts["flops_per_step"])
assert max(line["measured"]["dropped"] for line in lines) > 0.1
for line in lines:
    measured = line["measured"]
    asked = [measured[f"blocks.{block}.moe.tokens"] for block in range(2)]
    assert all(len(own) == 8 and sum(own) == 2 * line["tokens"] for own in asked), asked
    assert abs(measured["imbalance"] - max(max(own) * 8 / sum(own) for own in asked)) < 1e-6, measured
    assert 0 <= measured["dropped"] < 1 and set(line["losses"]) == {"cross_entropy", "balance"}, line
P
echo "moe_text: all hold"
