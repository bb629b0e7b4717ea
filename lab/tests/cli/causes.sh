#!/usr/bin/env bash
# Tests that lab/causes.py names only kinds that a check reports by audit/say/causes.h, and refuses another one.
# Usage: causes.sh PROGRAM SOURCE
set -eu
addend=$1 source=$2
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
fail() { echo "FAILED: $*" >&2; exit 1; }
echo '{"recipe": "none", "params": [], "mutants": []}' >"$work/none.json"
python3 "$source/lab/causes.py" "$addend" "$work/none.json" >"$work/table" || fail "it names a kind that a check does not report"
grep -q '^| none | 0 | 0 | 0 | 0 |$' "$work/table" || fail "the row of a check without mutants"

mkdir -p "$work/lab" "$work/audit/say"
cp "$source/lab/causes.py" "$work/lab"
sed 's/"doubled"/"twice"/' "$source/audit/say/causes.h" >"$work/audit/say/causes.h"
if python3 "$work/lab/causes.py" "$addend" "$work/none.json" >/dev/null 2>"$work/err"; then fail "a kind that was renamed"; fi
grep -q doubled "$work/err" || fail "the message names the kind"
echo "causes: all hold"
