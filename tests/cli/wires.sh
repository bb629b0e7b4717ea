#!/usr/bin/env bash
# A decomposition in f32 and with values that travel in f16 and bf16, on pools of several sizes: each parameter's error
# stands beside that of one process with the same roundings, and is no more than twice as large.
#   wires.sh ADDEND SOURCE
set -eu
addend=$1 source=$2
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
cd "$work"
fail() { echo "FAILED: $*" >&2; exit 1; }
. "$source/tests/support/draw.sh"
. "$source/tests/support/prove.sh"

within() { # least and most that the worst error of one process may be
  python3 - "$@" <<'Y'
import json, sys
least, most = map(float, sys.argv[1:])
params = json.load(open("proof.json"))["params"]
assert params and all(p["max_rel_err"] <= p["bound"] for p in params), params
assert all(p["max_rel_err"] <= 2 * p["one_process_err"] + 2e-6 for p in params), params
assert least < max(p["one_process_err"] for p in params) < most, params
assert all(1 - p["cosine"] <= most**2 for p in params), params
Y
}

cases=()
for pools in "4 2 2 2" "2 1 4 4" "1 1 1 1" "5 1 3 4" "1 3 1 2" "1 6 1 1"; do
  set -- $pools
  for how in "train.global_batch=13" "losses.stochastic.divergence=kl" "train.microbatches=3"; do
    cases+=("mesh={ci:+\"dp=$1\",+blocks:+\"block=$2+dp=$3\",+adv:+\"dp=$4\"} $how")
  done
done
set -- "$addend" "$source"
draw_cases "pools" 3 "${cases[@]}"
for case in "${drawn[@]}"; do
  prove pools-10 --dtype recipe $case
  within 1e-7 1e-4
  for wire in "values:+f16" "gradients:+bf16" "weights:+bf16" "values:+f16,+gradients:+bf16,+weights:+bf16"; do
    prove pools-10 --dtype recipe $case "wire={$wire}"
    within 2e-5 5e-2
  done
done
echo "wires: all hold"
