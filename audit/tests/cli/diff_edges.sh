#!/usr/bin/env bash
# Tests each threshold of `addend diff` with a dump just within it and one just beyond it (diff_edges.py).
set -eu
addend=$1 source=$2
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
python3 "$source/audit/tests/cli/diff_edges.py" "$addend" "$work"
