#!/usr/bin/env bash
# Tests the example of a bridge on plain buffers: the gradient that comes back is the whole sum, and a mesh whose copies
# would each count in the gradient is refused.
#   bridge_example.sh ADDEND SOURCE
set -eu
addend=$1 source=$2
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
cd "$work"
fail() { echo "FAILED: $*" >&2; exit 1; }
. "$source/tests/support/says.sh"

"$(dirname "$addend")/example_bridge" >out 2>err || { cat out err >&2; fail "the example"; }
says out refused R tp "I->R" "S->I"
says out "rank 0" "2 rows" "of 2"
[ "$(wc -l <out)" -eq 2 ] || { cat out >&2; fail "it prints more"; }
[ ! -s err ] || { cat err >&2; fail "it complains"; }
echo "bridge_example: all hold"
