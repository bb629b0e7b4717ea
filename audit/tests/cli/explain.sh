#!/usr/bin/env bash
# Tests `addend explain`: it has a page, made from audit/docs/explain, for each kind that a verdict or a cause can have; its
# list is complete; an unknown name is answered with similar names; a table of `addend diff` ends with the pages that
# say more.
set -eu
addend=$1 source=$2
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
cd "$work"
fail() { echo "FAILED: $*" >&2; exit 1; }
. "$source/tests/support/says.sh"

listed=$("$addend" explain | awk '{print $1}')
files=$(cd "$source/audit/docs/explain" && LC_ALL=C ls -- *.md | sed 's/\.md$//')
[ "$listed" = "$files" ] || { diff <(echo "$listed") <(echo "$files") >&2 || true; fail "the list is audit/docs/explain"; }
! "$addend" explain | grep -vE '^  [a-z_]+ +[a-z].{10,}$' || fail "each is listed with what it is about"

# audit/say/causes.h is the list of kinds: each has a page, a row in dumps.md (but other_batches and unknown, which are no
# verdicts) and its words in the map, and none of these has more.
table=$source/audit/say/causes.h
kinds=$(sed -nE 's/^  X\([A-Z_]+, "([a-z_]+)", .*/\1/p' "$table")
[ "$(wc -l <<<"$kinds")" -gt 20 ] || fail "the table names the kinds"
sorted() { LC_ALL=C sort; }
[ "$(printf '%s\nnorm\noverflow\n' "$kinds" | sorted)" = "$files" ] || fail "each kind has a page, and each page but norm and overflow a kind"
verdicts=$(sed -n '/^| `kind` |/,/^$/p' "$source/audit/docs/dumps.md" | tail -n +3 | cut -d'|' -f2 | grep -oE '`[a-z_]+`' | tr -d '`' | sorted)
[ "$(grep -vxE 'other_batches|unknown' <<<"$kinds" | sorted)" = "$verdicts" ] || fail "the kinds of dumps.md"
for kind in $kinds norm; do
  "$addend" explain "$kind" >page || fail "there is a page for $kind"
  cmp -s page "$source/audit/docs/explain/$kind.md" || fail "the page for $kind is that of audit/docs/explain"
  [ "$(grep '^#' page | grep -vx '## A published case' | sed 's/:.*//')" = "# $kind
## What it means
## How it shows
## Where to look" ] || fail "the parts of $kind"
done
# A published case has its number in docs/catalogue.md (cli/tests/cli/docs.sh compares both) or its reference; a page without one has no
# such part.
cited=0
for page in "$source"/audit/docs/explain/*.md; do
  grep -qx '## A published case' "$page" || continue
  case=$(sed -n '/^## A published case/,$p' "$page")
  grep -qE '^Case [0-9]+( \(|:)|^[[:alnum:]-]+/[[:alnum:]._-]+#[0-9]+: ' <<<"$case" || fail "$page has no published case"
  ! grep -q '^Case ' <<<"$case" || grep -q 'docs/catalogue.md' <<<"$case" || fail "$page does not say where its cases are numbered"
  cited=$((cited + 1))
done
[ "$cited" -gt 15 ] || fail "the pages have published cases"

"$addend" explain missing norm >page
[ "$(grep -c '^# ' page)" -eq 2 ] || fail "several pages"
refused() { # arguments: facts of the message with | between them, name
  local status=0
  "$addend" explain "$2" >out 2>err || status=$?
  [ $status -eq 2 ] && [ ! -s out ] || fail "$2: exit $status"
  says_all err "$1"
}
refused "addend explain|own|divided_by_own_count|own_only" own
refused "addend explain|mising" mising
refused "addend explain|nonsense" nonsense

status=0
"$addend" explain >/dev/full 2>err || status=$?
[ $status -eq 3 ] || fail "a list that cannot be written: exit $status"

# `addend explain` knows every page that a table names.
PYTHONPATH=$source/audit/tests/cli python3 - <<'P'
from dumps import Job, Param
job = Job("dp=3 tp=2", [Param("a", [6, 5]), Param("b", [7]), Param("c", [9])])
job.save("wrong", counts=lambda p, rank: {k: {"a": 1 / 3, "b": 0, "c": 1}[p.name] for k in job.right(p, rank)})
job.save("right")
P
"$addend" diff right >table || fail "the right dump"
! grep -q 'addend explain' table || fail "nothing to explain of what is right"
"$addend" diff wrong --html map.html >table && fail "the wrong dump"
sed -nE "s/^  X\\([A-Z_]+, \"([a-z_]+)\", \"([^\"]+)\", .*/  \\1: '\\2',/p" "$source/audit/say/causes.h" >words
sed -n '/^const KINDS = {/,/^};/p' map.html | sed '1d;$d' | cmp - words || fail "the map has the words of each kind"
[ "$(tail -n 2 table | grep -o 'addend explain .*')" = "addend explain averaged missing" ] || { cat table >&2; fail "the line before the verdict"; }
# shellcheck disable=SC2046 # words
"$addend" $(tail -n 2 table | grep -o 'explain .*') >pages || fail "the line before the verdict is a command"
echo "explain: all hold"
