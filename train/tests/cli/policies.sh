#!/usr/bin/env bash
# Tests every combination of dtypes in a recipe's precision policy: either it is refused with its line before any rank
# starts, or it trains and passes the check under the recipe's own precision policy. Some of the latter are drawn.
set -eu
addend=$1 source=$2
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
cd "$work"
fail() { echo "FAILED: $*" >&2; exit 1; }
. "$source/tests/support/says.sh"
. "$source/tests/support/draw.sh"
proven=0 refused=0 meant=()

# arguments: param grad reduce accumulate compute; a precision policy has a meaning if sums form in no narrower dtype
# than is sent
means_something() {
  local grad=$2 reduce=$3 accumulate=$4
  [ "$grad" != raw ] || grad=$5
  [ "$grad" != param ] || grad=$1
  [ "$reduce" != grad ] || reduce=$grad
  [ "$reduce" != f64 ] || [ "$accumulate" != f32 ]
}

try() { # arguments: param grad reduce accumulate compute
  local status=0
  cat >contract.yaml <<Y
model: {kind: gpt, layers: 1, d_model: 8, heads: 2}
data: {text: [/usr/share/common-licenses/GPL-3], seq: 8, valid: [1, 0.5, 0.25]}
mesh: "dp_shard=2"
train: {global_batch: 4, microbatches: 2, steps: 2, lr: 1e-3, sync: [all, all]}
precision:
  {param: $1, grad: $2, reduce: $3, accumulate: $4, compute: $5}
Y
  "$addend" check contract.yaml --dtype recipe --steps 2 >out 2>err || status=$?
  if means_something "$@"; then
    [ $status -eq 0 ] || { cat out err >&2; fail "exit $status, does not match: $*"; }
    proven=$((proven + 1))
  else
    [ $status -eq 2 ] || { cat out err >&2; fail "exit $status, not refused: $*"; }
    says err contract.yaml:6 precision.accumulate f32 f64
    refused=$((refused + 1))
  fi
}

for param in f32 f64; do for grad in param raw f32 f64; do for reduce in grad f32 f64; do
  for accumulate in auto f32 f64; do for compute in f32 f64; do
    if means_something $param $grad $reduce $accumulate $compute; then
      meant+=("$param $grad $reduce $accumulate $compute")
    else
      try $param $grad $reduce $accumulate $compute
    fi
  done; done
done; done; done
draw_cases "precision policies that pass" 14 "${meant[@]}"
for contract in "${drawn[@]}"; do try $contract; done
[ ${#meant[@]} -eq 120 ] && [ $proven -eq ${#drawn[@]} ] && [ $refused -eq 24 ] || fail "$proven of ${#meant[@]} pass and $refused refused of 144"
echo "precision policies: all hold"
