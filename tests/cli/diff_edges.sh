#!/usr/bin/env bash
# `addend diff` at the edges of its bounds: of each threshold a dump just within and one just beyond (diff_edges.py).
set -eu
addend=$1 source=$2
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
python3 "$source/tests/cli/diff_edges.py" "$addend" "$work"
