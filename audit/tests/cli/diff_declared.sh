#!/usr/bin/env bash
# Tests what `addend diff` says of declarations: types that a job declares of its parameters, beside the verdicts on their
# sums (all in diff_declared.py).
set -eu
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
python3 "$2/audit/tests/cli/diff_declared.py" "$1" "$work"
echo "diff_declared: all hold"
