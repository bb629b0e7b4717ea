#!/usr/bin/env bash
# Tests the example of a program on two pools: its own proof holds, with every planted mistake caught.
#   two_pools_example.sh ADDEND SOURCE
set -eu
addend=$1
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
cd "$work"
fail() { echo "FAILED: $*" >&2; exit 1; }

"$(dirname "$addend")/example_two_pools" >out 2>err || { cat out err >&2; fail "the example"; }
for words in '^two_pools.*5 ranks, mesh producer: dp=3, consumer: dp=2' '^proven: 2 parameters' ' 0 survived$' '^  number *shifted-slice '; do
  grep -q "$words" out || { cat out >&2; fail "it does not say: $words"; }
done
tail -1 out | grep -q '^proven: 2 parameters' && [ "$(grep -c -e '^proven' -e 'NOT PROVEN' -e '^it holds' -e 'does not hold' out)" = 1 ] || { cat out >&2; fail "the last line is the verdict, and the only one"; }
[ ! -s err ] || { cat err >&2; fail "it complains"; }
echo "two_pools_example: all hold"
