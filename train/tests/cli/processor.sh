#!/usr/bin/env bash
# Tests what follows from the processor: OpenBLAS uses the kernels of its instructions, however new the processor is,
# unless the user chose others; and the speed of bf16 on it is reported, once.
set -eu
addend=$1 source=$2
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
cd "$work"
fail() { echo "FAILED: $*" >&2; exit 1; }
. "$source/tests/support/says.sh"
has() { grep -qwm 1 "$1" /proc/cpuinfo; }

core() { env "$@" "$addend" bench --op startup --quick --json 2>/dev/null | python3 -c 'import json, sys; print(json.load(sys.stdin)["machine"]["openblas_core"])'; }
chosen=$(core -u OPENBLAS_CORETYPE)
if has avx2; then
  case $chosen in
    Prescott | Core2 | Penryn | Dunnington | Nehalem | Sandybridge | Atom | Opteron* | Barcelona | Bobcat | Bulldozer | Piledriver | Steamroller)
      fail "OpenBLAS multiplies with kernels for $chosen, and the processor has AVX2" ;;
  esac
fi
[ "$(core OPENBLAS_CORETYPE="$chosen")" = "$chosen" ] || fail "a choice is kept"
[ "$(uname -m)" != x86_64 ] || [ "$(core OPENBLAS_CORETYPE=Nehalem)" = Nehalem ] || fail "a choice is kept that is not ours"

bf16() { "$addend" train "$source/recipes/fsdp-4-bf16.yaml" --set train.steps=2 --out "$1" >out 2>err || fail "train: $(cat err)"; }
bf16 run
said=$(grep -c "^addend: .*bf16" err || true)
# bf16 products are faster than f32 with matrix units, and on AMD's Zen 4 and 5 (train/products/gemm_choice.c).
expected=1
if has amx_bf16 && has amx_tile; then expected=0; fi
if has AuthenticAMD && has avx512_bf16; then expected=0; fi
[ "$said" = $expected ] || fail "said $said times, not $expected: $(cat err)"
if has avx512_bf16; then lacks=AMX; else lacks="bf16 instructions"; fi
[ "$expected" = 0 ] || says err bf16 f32 "$lacks"
"$addend" train "$source/recipes/fsdp-4-bf16.yaml" --set train.steps=2 --set precision.compute=f32 --out f32 >out 2>err || fail "train in f32"
says_nothing_of err bf16
echo "processor: all hold"
