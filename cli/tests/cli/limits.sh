#!/usr/bin/env bash
# Tests every command under limits on a process's memory, from tiny to ample: it ends, and if it cannot do its work it
# says so.
set -eu
addend=$1 source=$2
if grep -q __asan_init "$addend"; then echo "limits: skipped: a sanitizer takes terabytes of addresses for itself"; exit 0; fi
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
cd "$work"
fail() { echo "FAILED: $*" >&2; exit 1; }
. "$source/tests/support/says.sh"
hang=120 # seconds after which a command counts as hanging: it takes one, but the machine may be busy
recipe=$source/recipes/gpt-dp.yaml few="--set train.steps=1 --set train.warmup=0"
"$addend" train "$recipe" $few -o dumped --dump-step 0 >out 2>err || { cat err >&2; fail "a dump to read"; }

ends() { # arguments: -v or -d, KiB, call; the call must end, with a message if it fails
  local kind=$1 kibibytes=$2 status=0
  shift 2
  (ulimit "$kind" "$kibibytes"; exec timeout -k 1 $hang "$addend" "$@") >out 2>err || status=$?
  case $status in
    0) ran=$((ran + 1)) ;;
    1 | 3) [ -s err ] || fail "exit $status without a word: ulimit $kind $kibibytes: $*" ;;
    127) grep -Eq "error while loading shared libraries|cannot allocate" err || fail "exit 127: ulimit $kind $kibibytes: $*" ;;
    *) cat err >&2; fail "exit $status: ulimit $kind $kibibytes: $*" ;;
  esac
}
for call in "check $recipe --steps 1" "train $recipe $few -o run --overwrite" "plan $recipe" "diff dumped/dump-0" "bench --quick --op attention"; do
  ran=0
  for kibibytes in 2000 6000 20000 100000 132000 136000 140000 170000 400000; do ends -d "$kibibytes" $call; done
  [ $ran -gt 0 ] || { cat err >&2; fail "400 MB are enough for $call"; }
  for kibibytes in 50000 100000 150000 250000 300000 1000000; do ends -v "$kibibytes" $call; done
done

ends -d 140000 bench --quick --op products

ends -d 2000 bench --quick --op attention # too little memory for OpenBLAS to start
! grep -Eq "rank [0-9]+: *$" err || { cat err >&2; fail "a rank says why it failed"; }
files=4 # file descriptors with which a program starts beside those that are open
until (ulimit -n $files; exec true) 2>/dev/null; do files=$((files + 1)); done
ends -n $files bench --quick --op attention
says err bench_attention "Too many"

refuses() { # arguments: facts with | between them, -v or -d, KiB, call; it must exit with 3 before any rank starts
  local facts=$1 kind=$2 kibibytes=$3 status=0
  shift 3
  (ulimit "$kind" "$kibibytes"; exec timeout -k 1 $hang "$addend" "$@") >out 2>err || status=$?
  [ $status -eq 3 ] && ! grep -q "rank [0-9]*:" err || { cat err >&2; fail "exit $status: $*"; }
  says_all err "$facts"
}
needs="OpenBLAS|128 MiB|-d"
refuses "$needs" -d 100000 check "$recipe"
refuses "$needs" -d 10000 check "$recipe"
refuses "$needs" -d 100000 train "$recipe" $few -o run --overwrite
refuses "$needs" -v 200000 check "$recipe"
ADDEND_BLAS_THREADS=3 refuses "OpenBLAS|384 MiB|-d" -d 200000 check "$recipe"
# Fewer addresses than ranks' shared memory usually takes are enough if ADDEND_ADDRESSES says how many there are.
refuses "ADDEND_ADDRESSES" -v 6000000 check "$recipe" --steps 1
(ulimit -v 6000000; export ADDEND_ADDRESSES=2; exec timeout -k 1 $hang "$addend" check "$recipe" --steps 1 --json) >out 2>err && grep -q '"pass": true' out ||
  { cat out err >&2; fail "2 GiB of addresses, and as many again while ranks start, are enough"; }
ADDEND_ADDRESSES=1 "$addend" check "$recipe" --steps 1 --set mesh=dp_replicate=32 --set train.global_batch=64 --json >out 2>err && grep -q '"pass": true' out ||
  { cat out err >&2; fail "32 ranks in 1 GiB"; }
for addresses in 0 16385 x; do
  status=0; ADDEND_ADDRESSES=$addresses "$addend" check "$recipe" >out 2>err || status=$?
  [ $status -eq 2 ] || { cat err >&2; fail "ADDEND_ADDRESSES=$addresses: exit $status"; }
  says err ADDEND_ADDRESSES "1 to" 16384 "$addresses"

done
echo "limits: all hold"
