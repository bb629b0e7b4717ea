#!/usr/bin/env bash
# `addend diff`: every verdict, forms of dumps, what is refused (diff_cases.py); the table; the exit status of a wrong call.
set -eu
addend=$1 source=$2
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
fail() { echo "FAILED: $*" >&2; exit 1; }
python3 "$source/tests/cli/diff_cases.py" "$addend" "$work"

# The table: one line for all that is right, one for each that is wrong, and the answer.
cd "$work"
PYTHONPATH=$source/tests/cli python3 - <<'P'
from dumps import Job, Param
job = Job("dp=3 tp=2", [Param("layer.weight", [6, 5]), Param("layer.bias", [7]), Param("head", [9])])
job.save("table", counts=lambda p, rank: {k: 1 / 3 for k in job.right(p, rank)} if p.name == "head" else None)
P
status=0
"$addend" diff table >table.txt 2>err || status=$?
[ $status -eq 1 ] || fail "exit $status, not 1"
[ ! -s err ] || fail "nothing on standard error: $(cat err)"
diff -u - table.txt <<'T' || fail "the table"
6 ranks, mesh dp=3 tp=2, 1 microbatch, step 3; files: 6 addends, 6 sums

  ok   2 parameters: every addend is counted once
  BAD  head          averaged over dp: every addend counts 1/3 of what is expected; divide once only, or expect what is done
  note the factor differs between parameters: 0.333333 for `head`, 1 for `layer.bias`

WRONG: 1 of 3 parameters
T
status=0
"$addend" diff 2>/dev/null || status=$?
[ $status -eq 2 ] || fail "a call without files: exit $status"
status=0
"$addend" diff --json table >/dev/full 2>err || status=$?
[ $status -eq 3 ] || fail "an answer that cannot be written: exit $status"
echo "diff: all hold"
