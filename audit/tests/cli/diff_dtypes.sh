#!/usr/bin/env bash
# Tests what `addend diff` says of the dtype in which a job declares that its sums are formed (all in diff_dtypes.py).
set -eu
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
python3 "$2/audit/tests/cli/diff_dtypes.py" "$1" "$work"
echo "diff_dtypes: all hold"
