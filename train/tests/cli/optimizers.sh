#!/usr/bin/env bash
# Runs the commands of train/docs/optimizers.md as they are written there: Muon has the same bits on every mesh and in
# every way, the plan prints what the page shows, and a run changes its optimizer.
set -eu
addend=$1 source=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
fail() { echo "FAILED: $*" >&2; [ ! -s err ] || cat err >&2; exit 1; }
. "$source/tests/support/says.sh"
page=$source/train/docs/optimizers.md
ln -s "$source/recipes" recipes
addend() { "$addend" "$@"; }

commands=0
while IFS= read -r command; do
  commands=$((commands + 1))
  eval "$command" >out 2>err || fail "$command"
  case $command in
    "addend check "*) grep -q "all others (muon, .*updates equal" out || fail "the check does not compare Muon's updates" ;;
    sha256sum*) [ "$(sed 's/ .*//' out | sort -u | wc -l)" = 1 ] && [ "$(wc -l <out)" = 3 ] || fail "the weights differ: $(cat out)" ;;
    "addend plan "*)
      # The lines of the page's next block are those of the plan.
      sed -n '/^  updated as whole matrices/,/^```/p' "$page" | sed '$d' >shown
      [ "$(wc -l <shown)" -ge 5 ] || fail "the page shows no plan"
      while IFS= read -r line; do grep -qxF -- "$line" out || fail "the plan does not print: $line"; done <shown ;;
    *--fresh-states*) says err --fresh-states "14 parameters" "4 steps" ;;
  esac
done < <(awk '/^```/ { block = !block } block' "$page" | grep -E '^(addend|sha256sum) ')
[ $commands -ge 8 ] || fail "the page has only $commands commands"

# Without the option the change is refused by the names of parameters.
status=0
addend train recipes/gpt-dp.yaml --set train.steps=12 --out run --resume >out 2>err || status=$?
[ $status -eq 2 ] || fail "a run resumes without its optimizer: exit $status"
says err blocks.0.attn.wq --fresh-states
echo "optimizers: all hold"
