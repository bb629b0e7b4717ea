#!/usr/bin/env bash
# Tests `addend diff`: every verdict, forms of dumps, what is refused (all in diff_cases.py); the printed table; the
# exit status of a wrong call.
set -eu
addend=$1 source=$2
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
fail() { echo "FAILED: $*" >&2; exit 1; }
. "$source/tests/support/says.sh"
python3 "$source/audit/tests/cli/diff_cases.py" "$addend" "$work"

# The table has one line for all right parameters, one for each group with the same verdict, and the verdict before and after them.
cd "$work"
PYTHONPATH=$source/audit/tests/cli python3 - <<'P'
from dumps import Job, Param
job = Job("dp=3 tp=2", [Param("layer.weight", [6, 5]), Param("layer.bias", [7]), Param("head", [9])])
job.save("table", counts=lambda p, rank: {k: 1 / 3 for k in job.right(p, rank)} if p.name == "head" else None)
job = Job("dp=3 tp=2", [Param(f"layer{i}.weight", [6, 5]) for i in range(4)] + [Param("head", [9]), Param("a", [9]), Param("b", [9])])
thirds = lambda p, rank: {k: 1 / 3 for k in job.right(p, rank)}
twice = lambda p, rank: {k: 2 for k in job.right(p, rank)}
job.save("groups", counts=lambda p, rank: thirds(p, rank) if "layer" in p.name else twice(p, rank) if len(p.name) == 1 else None)
job = Job("dp=3", [Param(f"layer{i}.weight", [60]) for i in range(3)])
job.save("other_data", after=lambda p, rank, values: [v + (i * 7919 % 13) / int(p.name[5] + "1") for i, v in enumerate(values)])
P
status=0
"$addend" diff table >table.txt 2>err || status=$?
[ $status -eq 1 ] || fail "exit $status, not 1"
[ ! -s err ] || fail "nothing on standard error: $(cat err)"
rows() { sed -nE 's/^  (ok|BAD|note) +.*/\1/p' "$1" | xargs; } # argument: table; the verdicts of its lines
[ "$(rows table.txt)" = "ok BAD note" ] && [ "$(wc -l <table.txt)" -eq 10 ] || { cat table.txt >&2; fail "the table"; }
says table.txt "6 ranks" "dp=3 tp=2" "1 microbatch" "step 3" "6 addends" "6 sums"
says table.txt "2 parameters"
says table.txt BAD dp 1/3
says table.txt 0.333333 head layer.bias
says table.txt "NOT MATCH" "1 of" "3 parameters"
[ "$(head -n 1 table.txt)" = "$(tail -n 1 table.txt)" ] || fail "the first line and the last are one verdict"
[ "$(tail -n 2 table.txt | grep -o 'addend explain .*')" = "addend explain averaged" ] || fail "the page that says more"
grep -q '^  BAD  head  ' table.txt || fail "the parameter"

# Equal lines become one; --all prints each. GitHub annotations use the same groups.
shown() { # arguments: file, options; FILE gets what diff prints of the dump with equal lines
  local status=0 file=$1
  shift
  "$addend" diff "$@" groups >"$file" 2>err || status=$?
  [ $status -eq 1 ] && [ ! -s err ] || fail "exit $status: $* $(cat err)"
}
shown groups.txt
sed -nE 's/^  BAD  .*\(a, b\): //p' groups.txt >doubled && says doubled tp "2 times"
sed -nE 's/^  BAD  .*\(layer0\.weight \.\.\. layer3\.weight\): //p' groups.txt >averaged && says averaged dp 1/3
says groups.txt "2 parameters"
says groups.txt "4 parameters" layer0.weight layer3.weight
[ "$(rows groups.txt)" = "ok BAD BAD note" ] || { cat groups.txt >&2; fail "equal lines"; }
shown all.txt --all
diff -u - <(grep -E '^  BAD' all.txt) <<T || fail "all lines"
  BAD  a              $(cat doubled)
  BAD  b              $(cat doubled)
  BAD  layer0.weight  $(cat averaged)
  BAD  layer1.weight  $(cat averaged)
  BAD  layer2.weight  $(cat averaged)
  BAD  layer3.weight  $(cat averaged)
T
shown github.txt --format github
diff -u - <(grep -E '^::error' github.txt) <<T || fail "annotations"
::error title=addend%3A doubled::$(grep -o '2 parameters .*' groups.txt)
::error title=addend%3A averaged::$(grep -o '4 parameters .*' groups.txt)
T
[ "$(grep -c '^::' github.txt)" -eq 3 ] && [ "$(wc -l <github.txt)" -eq 3 ] || { cat github.txt >&2; fail "annotations"; }
says github.txt a head
# Lines that differ only in a measured number become one too, which says so.
status=0
"$addend" diff other_data >other.txt || status=$?
[ $status -eq 1 ] || fail "what nothing explains: exit $status: $(cat other.txt)"
says other.txt BAD "3 parameters" layer0.weight layer2.weight
[ "$("$addend" diff --all other_data | grep -c '^  BAD  layer[012].weight ')" -eq 3 ] || fail "all of what nothing explains"
shown one.json --format json
shown other.json --json
cmp one.json other.json || fail "--format json is --json"
shown one.html --format html --html other.html
cmp one.html other.html || fail "--format html is the page of --html"
shown text.txt --format text
cmp text.txt groups.txt || fail "--format text is the table"
status=0
"$addend" diff --format htm groups 2>err || status=$?
[ $status -eq 2 ] || fail "another format: exit $status"
says err --format htm

# Any number of threads gives the same document; an impossible number is refused.
for threads in 1 2 4 64; do
  shown threads.json --json --threads $threads
  cmp one.json threads.json || fail "--threads $threads gives another document"
done
for threads in 0 65 -1 two; do
  status=0
  "$addend" diff --threads=$threads groups >out 2>err || status=$?
  [ $status -eq 2 ] && [ ! -s out ] || fail "--threads $threads: exit $status: $(cat err)"
  says err --threads "$threads"

done
status=0
"$addend" diff 2>/dev/null || status=$?
[ $status -eq 2 ] || fail "a call without files: exit $status"
status=0
"$addend" diff --json table >/dev/full 2>err || status=$?
[ $status -eq 3 ] || fail "an answer that cannot be written: exit $status"
echo "diff: all hold"
