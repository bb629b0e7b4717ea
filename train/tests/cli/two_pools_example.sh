#!/usr/bin/env bash
# Tests the example of a program on two pools: its own check holds, and every mutant is killed.
#   two_pools_example.sh ADDEND SOURCE
set -eu
addend=$1 source=$2
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
cd "$work"
fail() { echo "FAILED: $*" >&2; exit 1; }
. "$source/tests/support/says.sh"

"$(dirname "$addend")/example_two_pools" >out 2>err || { cat out err >&2; fail "the example"; }
says out two_pools "5 ranks" dp=3 dp=2
says out "0 survived"
grep -q '^  number *shifted-slice ' out || { cat out >&2; fail "shifted-slice is not killed by its number"; }
tail -n 1 out >verdict
says verdict "2 parameters"
[ ! -s err ] || { cat err >&2; fail "it complains"; }
echo "two_pools_example: all hold"
