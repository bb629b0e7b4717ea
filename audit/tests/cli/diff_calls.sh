#!/usr/bin/env bash
# Tests what `addend diff` says of the collectives that a step's ranks noted, and `--calls` (all in diff_calls.py).
set -eu
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
python3 "$2/audit/tests/cli/diff_calls.py" "$1" "$work"
echo "diff_calls: all hold"
