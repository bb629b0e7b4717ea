#!/usr/bin/env bash
# Tests lab/mutate on a project of two sources: mutants of the tested source are killed by the test that runs their
# line, those of the other one survive and are reported, survivors can be tried again, and the source tree stays
# unchanged.
set -eu
source=$1
for program in git gcov ninja ctest; do
  command -v "$program" >/dev/null || { echo "skipped: there is no $program" && exit 77; }
done
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
fail() { echo "FAILED: $*" >&2; tail -n 40 "$work/out" "$work/err" >&2; exit 1; }
. "$source/tests/support/says.sh"
cp -r "$source/lab/tests/script/tiny" "$work/tiny"
mkdir "$work/tiny/lab"
cp -r "$source/lab/mutate" "$source/lab/mutation" "$work/tiny/lab/"
cd "$work/tiny"
printf '/build-mutate/\n__pycache__/\n' >.gitignore
git() { command git -c user.name=tiny -c user.email=tiny@localhost "$@"; }
{ git init -q -b main && git add -A && git commit -q -m tiny; } >"$work/out" 2>"$work/err"
mutate() { # arguments: exit status, arguments of lab/mutate
  local wanted=$1 status=0; shift
  python3 lab/mutate "$@" --jobs 2 >"$work/out" 2>"$work/err" || status=$?
  [ $status -eq "$wanted" ] || fail "lab/mutate $*: exit $status instead of $wanted"
}
counted() { # arguments: how many were tried, were killed, survived
  grep -qE -- "^$1 [a-z]+, $2 [a-z]+, $3 [a-z]+, " "$work/out" || fail "not counted: $*"
}

mutate 0 src/tiny/judged.c 8 --seed 7
counted 8 8 0
kept=build-mutate/last.jsonl
for row in '"line": 3,.*"by": "tiny/tiny"' '"line": 7,.*"by": "tiny/other"'; do
  grep -q "$row" $kept || fail "no mutant is killed so: $row"
done
! grep -E '"line": [34],.*"tiny/other"|"line": 7,.*"tiny/tiny"' $kept || fail "a test runs where it does not run the line"
mutate 1 src/tiny/judged.c 8 --seed 7 --without '/other$'
says_facts "$work/out" src/tiny/judged.c:7
! grep tiny/other $kept || fail "a test is run that is left out"
mutate 1 src/tiny/ignored.c 3 --seed 7 --out "$work/mutants.jsonl"
counted 3 0 3
says_facts "$work/out" src/tiny/ignored.c:2
grep -q '^  - int tiny_ignored.* return a + 2 \* b;.*a comment with a < b' "$work/out" || fail "the line is not shown" # code of tiny/
says "$work/out" tiny/tiny
[ "$(grep -c '"state": "survived"' "$work/mutants.jsonl")" -eq 3 ] || fail "three survivors are recorded"
sort "$work/out" >"$work/first"
cp "$work/mutants.jsonl" "$work/more.jsonl"
mutate 1 src/tiny/ignored.c 4 --seed 7 --out "$work/more.jsonl"
counted 4 0 4
[ "$(grep -c '^src/tiny/ignored.c:[0-9]*: ' "$work/out")" -eq 1 ] || fail "of four mutants three are in the file, and one is tried"
[ -z "$(sort "$work/more.jsonl" | uniq -d)" ] || fail "what a file has is tried again"

# A line inserted above moves the survivors; the changed test then kills them.
sed -i '1i /* Moved. */' src/tiny/ignored.c
sed -i 's/^  tiny_ignored(1, 2);/  if (tiny_ignored(1, 2) != 5 || tiny_ignored(0, 1) != 2) return 1;/' tests/test_tiny.c
mutate 0 --again "$work/mutants.jsonl"
counted 3 3 0

# --change makes mutants only in changed lines: one line of judged.c.
git commit -q -a -m moved
sed -i 's/return a;/return 1 * a;/' src/tiny/judged.c
mutate 0 --change 9 --out "$work/change.jsonl"
grep -q '"line": 4' "$work/change.jsonl" || fail "the line that changed has mutants"
! grep -qv '"file": "src/tiny/judged.c", "line": 4' "$work/change.jsonl" || fail "and no other has"
[ "$(git status --porcelain)" = " M src/tiny/judged.c" ] || fail "the tree is not as it was: $(git status --porcelain)"
mutate 2 no/such/file.c
says "$work/err" no/such/file.c
