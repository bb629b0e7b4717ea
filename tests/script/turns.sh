#!/usr/bin/env bash
# Tests how tests are drawn: of ten seeds in a row one takes each case (take_turns of tests/support/draw.sh), one seed
# takes the same cases each time, and consecutive commits have consecutive seeds (tests/support/seed.sh).
#   turns.sh SOURCE
set -eu
source=$1
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
fail() { echo "FAILED: $*" >&2; exit 1; }
. "$source/tests/support/draw.sh"
. "$source/tests/support/says.sh"

cases_of() { (export ADDEND_TEST_SEED=$1; shift; take_turns "$@" >"$work/said" && printf '%s\n' "${drawn[@]}"); }
for count in 1 12 39; do
  mapfile -t all < <(seq "$count")
  for taken in $(((count + 9) / 10)) "$count"; do
    for seed in {1397..1406}; do cases_of "$seed" it "$taken" "${all[@]}"; done >"$work/ten"
    [ "$(sort -nu "$work/ten")" = "$(seq "$count")" ] || fail "$taken of $count: ten seeds leave some out"
    number=$(cases_of 3 it "$taken" "${all[@]}" | wc -l)
    [ "$number" -le "$taken" ] && [ "$number" -gt 0 ] || fail "$taken of $count: $number are taken"
    says_facts "$work/said" it "$number of" "$count" ADDEND_TEST_SEED=3
  done
done
[ "$(cases_of 5 it 3 {1..20})" = "$(cases_of 5 it 3 {1..20})" ] || fail "the same seed takes others"
[ "$(cases_of 5 it 3 {1..20})" != "$(cases_of 6 it 3 {1..20})" ] || fail "the next seed takes the same"
[ "$(cases_of all it 3 {1..20} | wc -l)" -eq 20 ] || fail "all are not taken"
for seed in {1401..1410..2}; do every=2 cases_of "$seed" it 4 {1..16}; done >"$work/ten"
[ "$(sort -nu "$work/ten")" = "$(seq 16)" ] || fail "4 of 16 in every second commit: ten commits leave some out"
! every=2 cases_of 5 it 3 {1..16} 2>"$work/error" || fail "a draw by which ten commits do not take a case, in every second one"
! cases_of 5 it 1 {1..11} 2>"$work/error" || fail "a draw by which one in ten commits does not take a case"
says "$work/error" it "1 of" 11

# What script/test leaves out by turns is there: another test of that name would be run by every commit. (An implementation
# of MPI, or a way to use several hosts, is no file.)
eval "$(sed -n '/^leave_long_undrawn()/,/^}/p' "$source/script/test")"
leave_undrawn() { shift 2 && printf '%s\n' "$@"; }
for one in $(leave_long_undrawn | grep -v '^mpi/'); do
  [ -n "$(ls "$source"/{,*/}tests/"${one%/*}"/{,test_}"${one#*/}".* 2>"$work/error")" ] || fail "script/test: no test is called $one"
done

mkdir -p "$work/tree/tests/support" "$work/tree"/{src,cli}
cp "$source/tests/support/seed.sh" "$work/tree/tests/support"
touch "$work/tree/src/a.c" "$work/tree/cli/a.c"
seed_of() { bash "$1/tests/support/seed.sh"; }
export GIT_CEILING_DIRECTORIES=$work
[[ $(seed_of "$work/tree") =~ ^[0-9]+$ ]] || fail "no seed without a checkout"
commit() { git -C "$work/tree" -c user.name=n -c user.email=n@example.org commit -q --allow-empty -m "$1"; }
git -C "$work/tree" init -q && git -C "$work/tree" add .
for number in 1 2 3; do
  commit "$number"
  [ "$(seed_of "$work/tree")" = "$number" ] || fail "commit $number has seed $(seed_of "$work/tree")"
done
git clone -q --depth 1 "file://$work/tree" "$work/shallow"
[ "$(seed_of "$work/shallow")" != 1 ] || fail "a shallow clone counts the commits that it has"
echo "turns: all hold"
