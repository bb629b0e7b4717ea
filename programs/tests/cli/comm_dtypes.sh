#!/usr/bin/env bash
# Tests decompositions in f32 whose values travel between pools in f16 and bf16, on pools of several sizes: each
# parameter's error is of the size of one process's error, whatever transfers round; and a transfer whose dtype is
# narrower than promised is found beside others that are as narrow by right.
#   comm_dtypes.sh ADDEND SOURCE
set -eu
addend=$1 source=$2
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
cd "$work"
fail() { echo "FAILED: $*" >&2; exit 1; }
. "$source/tests/support/draw.sh"
. "$source/tests/support/check.sh"

# arguments: least and largest allowed worst error of the named parameters, by one process's error or by what transfers
# round
within() {
  python3 - "$@" <<'Y'
import json, sys
what, least, most = sys.argv[1], float(sys.argv[2]), float(sys.argv[3])
params = json.load(open("proof.json"))["params"]
assert params and all(p["max_rel_err"] <= p["bound"] for p in params), params
# One process's error is itself a draw: in 60 checks of twenty recipes ranks were at most 1.9 times as far off.
assert all(p["max_rel_err"] <= 4 * p["one_process_err"] + 0.4 * p["comm_rounding_err"] + 2e-6 for p in params), params
assert least < max(p[what] for p in params) < most, params
assert what == "comm_rounding_err" or all(p["comm_rounding_err"] == 0 for p in params), params
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
draw_cases "pools" 1 "${cases[@]}"
for case in "${drawn[@]}"; do
  check_recipe pools-10 --dtype recipe $case
  within one_process_err 1e-7 1e-4
  for wire in "values:+f16" "gradients:+bf16" "weights:+bf16" "values:+f16,+gradients:+bf16,+weights:+bf16"; do
    check_recipe pools-10 --dtype recipe $case "comm_dtype={$wire}"
    within comm_rounding_err 2e-5 5e-2
  done
done

# Gradients too small for f16 are sent with the loss scale that they carry, in one process too.
check_recipe pools-10 --dtype recipe "comm_dtype={values:+f16,+gradients:+f16}" "precision={grad:+f16,+loss_scale:+16}" \
  losses.{faithfulness,stochastic,sparsity,adversarial}.coefficient=1e-6

# A transfer that promises a wider dtype travels as bf16, as the other transfers do by right.
draw_cases "transfers that promise more" 1 values:bf16-for-f16-values gradients:bf16-for-f16-gradients weights:bf16-for-f16-values
for mistake in "${drawn[@]}"; do
  promised=${mistake%:*} name=${mistake#*:} wire=
  for other in values gradients weights; do
    [ $other = $promised ] && wire+=",+$other:+f16" || wire+=",+$other:+bf16"
  done
  draw_cases "pools whose $promised are narrower than promised" 1 "${cases[@]}"
  for case in "${drawn[@]}"; do
    check_recipe pools-10 --dtype recipe --mutate=1 $case "comm_dtype={${wire#,+}}"
    python3 - "$name" <<'Y'
import json, sys
caught = {one["name"]: one["killed_by"] for one in json.load(open("proof.json"))["mutants"]}
assert caught[sys.argv[1]] == "number", caught
Y
  done
done
echo "transfers: all hold"
