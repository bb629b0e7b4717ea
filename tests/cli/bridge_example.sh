#!/usr/bin/env bash
# Tests the example of a bridge on plain buffers: the gradient that comes back is the whole sum, and a mesh whose copies
# would each count in the gradient is refused.
#   bridge_example.sh ADDEND SOURCE
set -eu
addend=$1
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
cd "$work"
fail() { echo "FAILED: $*" >&2; exit 1; }

"$(dirname "$addend")/example_bridge" >out 2>err || { cat out err >&2; fail "the example"; }
diff - out <<'X' || fail "what it prints"
refused: bridge: the source is R on `tp`; the value's gradient would be counted once for each copy; this may repair it: convert I->R after the bridge, or gather S->I before
rank 0 gives 2 rows, reads 4, and gets the gradient of 2: the whole sum
X
[ ! -s err ] || { cat err >&2; fail "it complains"; }
echo "bridge_example: all hold"
