#!/usr/bin/env bash
# Tests that correct programs pass in their own dtypes on every processor: other OpenBLAS and row kernels act
# as other processors. Some of these checks once failed wrongly, when the distributed error was compared with a single
# run's error.
#   rounding.sh ADDEND SOURCE
set -eu
addend=$1 source=$2
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
cd "$work"
fail() { echo "FAILED: $*" >&2; exit 1; }
. "$source/tests/support/says.sh"
. "$source/tests/support/draw.sh"
. "$source/tests/support/check.sh"

runs() { # argument: kernels of OpenBLAS; whether the processor has the instructions that they use
  case $1 in
    SkylakeX) grep -qwm 1 avx512vl /proc/cpuinfo ;;
    Zen | Haswell) grep -qwm 1 avx2 /proc/cpuinfo ;;
    *) [ "$(uname -m)" = x86_64 ] ;;
  esac
}

check_on() { # OpenBLAS's kernels, library of products, kernels of rows, then as check
  local core=$1 products=$2 kernels=$3; shift 3
  runs "$core" || return 0
  OPENBLAS_CORETYPE=$core ADDEND_PRODUCTS=$products ADDEND_KERNELS=$kernels check_recipe "$@"
}

check_on Zen "" "" moe-dp2ep model.score_before_experts=false model.sequence_parallel=false model.summed_gate=true
check_on Haswell openblas avx2 ocr-fan-in-small train.seed=5
check_on SkylakeX openblas "" gpt-tp-sp train.seed=35

# A mistake in computing is found though the reference's repeated runs round some values to either side.
check_on Haswell "" "" gpt-dp mesh=dp_replicate=2+dp_shard=3 train.seed=31728 precision.compute=bf16 --dtype recipe --mutate=1

# If a source's gradient is zero but for rounding, Adam still moves it, differently on every processor.
check_on Nehalem "" "" pools-10 train.seed=40972 train.microbatches=3

# The report states the chance of a false alarm, and prints a share near 1 with enough digits to show on which side it
# is.
"$addend" check "$source/recipes/gpt-tp.yaml" >table.txt
check_recipe gpt-tp
says table.txt 1e-07
python3 - <<'Y' || fail "proof.json"
import json
proof = json.load(open("proof.json"))["own_dtypes"]
assert 0 < proof["false_alarm"] <= 1e-6 and 0 < proof["process_share"] < 1 and 0 < proof["worst_share_of_bound"] < 1, proof
Y

recipes=(gpt-dp gpt-tp gpt-tp-sp gpt-cp gpt-3d hsdp-3x2 fsdp-uneven fsdp-4-bf16 hsdp-f16 moe-tp2ep moe-dp2ep moe-tp moe-cp
  moe-balance ocr-fan-in-small ocr-ragged ocr-fan-out pools-10 pools-square pools-inverted-a)
cases=()
for recipe in "${recipes[@]}"; do
  for core in Zen Haswell SkylakeX Prescott Nehalem; do
    for products in openblas onednn; do
      cases+=("$core $products plain $recipe" "$core $products avx2 $recipe precision.compute=bf16")
    done
  done
done
set -- "$addend" "$source"
draw_cases "checks on other processors" 3 "${cases[@]}"
for case in "${drawn[@]}"; do
  seed=$((16#$(md5sum <<<"$ADDEND_TEST_SEED $case" | cut -c 1-6) % 1000))
  # shellcheck disable=SC2086 # words without spaces
  check_on $case --dtype recipe train.seed=$seed
done
echo "all hold"
