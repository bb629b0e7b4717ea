#!/usr/bin/env bash
# Tests the example of two stages that execute a schedule table: every schedule passes the check, and one that does not
# fit two ranks is refused.
#   pipeline_example.sh ADDEND SOURCE
set -eu
addend=$1 source=$2
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
cd "$work"
fail() { echo "FAILED: $*" >&2; exit 1; }
. "$source/tests/support/says.sh"
example=$(dirname "$addend")/example_pipeline

for schedule in gpipe 1f1b interleaved zb leads; do
  "$example" $schedule >out 2>err || { cat out err >&2; fail "the example with $schedule"; }
  for stage in 0 1; do says out "stage $stage"; done
  python3 -c 'import re; found = re.findall(r"^stage [01]:.* (\d\S*e-\d+)\b", open("out").read(), re.M); assert len(found) == 2 and all(float(one) < 1e-14 for one in found), found' ||
    { cat out >&2; fail "$schedule does not match on two stages"; }
  "$addend" schedule make $schedule --stages 2 --microbatches 4 | grep -e '^rank' -e '^bubble' >drawn
  grep -e '^rank' -e '^bubble' out | diff drawn - || fail "$schedule is not drawn as the command draws it"
  [ ! -s err ] || { cat err >&2; fail "$schedule: it complains"; }
done
"$example" >out 2>err || fail "the example without a name"
grep -q '^rank 0    F0 F1       B0---' out || { cat out >&2; fail "without a name it is 1f1b"; }
refuses() { # argument: schedule, which the message has
  if "$example" "$1" >out 2>err; then fail "$1 is not refused"; fi
  [ ! -s out ] || { cat out >&2; fail "$1 prints something"; }
  says err "$1"
}
refuses accumulate
refuses nothing

echo "pipeline_example: all hold"
