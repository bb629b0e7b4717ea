#!/usr/bin/env bash
# Tests what a program built from the core alone can do; a full build must do it too. Usage: core.sh ADDEND SOURCE
set -eu
addend=$1 source=$2 build=$(dirname -- "$1")
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
fail() { echo "FAILED: $*" >&2; exit 1; }
. "$source/tests/support/says.sh"

# Ranks of a user's program join a world.
"$addend" run -n 3 -- "$build/example_join" >"$work/joined" || fail "run"
[ "$(wc -l <"$work/joined")" -eq 1 ] || fail "run printed: $(cat "$work/joined")"
says "$work/joined" "3 ranks" 3
"$build/example_plain_buffers" >"$work/buffers" || fail "plain buffers: $(cat "$work/buffers")"

# Collectives are measured beside the floor: the rows are of this operation and of no other. A build without lab/ has no bench.
if "$addend" --help | grep -q '^  bench '; then
"$addend" bench --op all_reduce --ranks 2 --largest 65536 --quick --json >"$work/bench.json" || fail "bench"
python3 - "$work/bench.json" <<'P' || fail "the bench's document"
import json, sys
document = json.load(open(sys.argv[1]))
rows = document["rows"]
assert {row["op"] for row in rows} == {"all_reduce"} and {row["dtype"] for row in rows} == {"f32", "bf16", "f16"}, rows
assert all(row["seconds_median"] > 0 and row["floor_seconds"] > 0 for row in rows), rows
assert document["copy_gbps"] > 0 and document["machine"]["cores"] > 0, document
P
else
  ! "$addend" bench 2>"$work/err" || fail "bench without lab/"
  says_facts "$work/err" bench
fi
"$addend" --completions bash | grep -q 'diff' || fail "completions"

# `addend diff` judges dumps of the example's program: the right one, and one whose loss was divided by each rank's own
# count.
judge() { # arguments: expected exit status, argument of the example
  local status=0
  rm -rf "$work/dump" && mkdir "$work/dump"
  ADDEND_DUMP=$work/dump "$build/example_own_sum" ${2-} >"$work/own_sum" || fail "own_sum ${2-}"
  "$addend" diff "$work/dump" >"$work/verdict" || status=$?
  [ $status -eq "$1" ] || fail "diff of own_sum ${2-}: exit $status, not $1: $(cat "$work/verdict")"
}
judge 0
judge 1 --own-count

if [ ! -e "$build/libaddend_train.so" ]; then
  ! "$addend" --help | grep -qE '^  (train|check|plan|report) ' || fail "--help lists what is not there"
  for command in train check plan report; do
    status=0
    "$addend" "$command" x.yaml 2>"$work/err" || status=$?
    [ $status -eq 2 ] || fail "$command without the trainer: exit $status, not 2"
    says_facts "$work/err" "$command" "./python[train]" script/setup
  done
  status=0
  "$addend" bench --op train_step 2>"$work/err" || status=$?
  [ $status -eq 2 ] || fail "bench of the trainer's step: exit $status, not 2"
fi
echo "core: all hold"
