#!/usr/bin/env bash
# Tests the example of two stages that execute a schedule table: every schedule is proven, and one that does not fit two
# ranks is refused.
#   pipeline_example.sh ADDEND SOURCE
set -eu
addend=$1
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
cd "$work"
fail() { echo "FAILED: $*" >&2; exit 1; }
example=$(dirname "$addend")/example_pipeline

for schedule in gpipe 1f1b interleaved zb leads; do
  "$example" $schedule >out 2>err || { cat out err >&2; fail "the example with $schedule"; }
  [ "$(grep -c '^stage [01]: proven, .*e-1[5-9] apart$' out)" = 2 ] || { cat out >&2; fail "$schedule is not proven on two stages"; }
  "$addend" schedule make $schedule --stages 2 --microbatches 4 | grep -e '^rank' -e '^bubble' >drawn
  grep -e '^rank' -e '^bubble' out | diff drawn - || fail "$schedule is not drawn as the command draws it"
  [ ! -s err ] || { cat err >&2; fail "$schedule: it complains"; }
done
"$example" >out 2>err || fail "the example without a name"
grep -q '^rank 0    F0 F1       B0---' out || { cat out >&2; fail "without a name it is 1f1b"; }
refuses() { # arguments: schedule, words of the message
  if "$example" "$1" >out 2>err; then fail "$1 is not refused"; fi
  grep -q "^pipeline: $2" err && [ ! -s out ] || { cat out err >&2; fail "how $1 is refused"; }
}
refuses accumulate 'schedule accumulate has all stages on one rank'
refuses nothing "there is no schedule 'nothing'"
echo "pipeline_example: all hold"
