#!/usr/bin/env bash
# Tests that tests which need the same Python environment and start together make it once: none removes it while another
# one fills it.
set -eu
source=$1
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
export XDG_CACHE_HOME=$work
# No package is installed: pip only prints its help, and nothing is fetched.
waited=()
for i in 1 2 3; do
  bash "$source/script/environment" made --help >"$work/said.$i" 2>&1 &
  waited+=($!)
done
for pid in "${waited[@]}"; do
  wait "$pid" || { cat "$work"/said.* >&2; echo "FAILED: one of three that began together has no environment" >&2; exit 1; }
done
"$work/addend/made/bin/python3" -m pip --version >/dev/null
[ "$(grep -c '^Usage:' "$work/addend/made.log")" = 1 ] || { echo "FAILED: it was made more than once" >&2; exit 1; }
# Asked again later the environment is made anew, since its packages may be old.
touch "$work/addend/made/old"
sleep 1
bash "$source/script/environment" made --help
[ ! -e "$work/addend/made/old" ] || { echo "FAILED: it was not made anew" >&2; exit 1; }
# With --keep an environment that another test uses stays; with other arguments, or without a Python that runs, it is
# made anew.
touch "$work/addend/made/used"
sleep 1
bash "$source/script/environment" --keep made --help
[ -e "$work/addend/made/used" ] || { echo "FAILED: it was not kept" >&2; exit 1; }
bash "$source/script/environment" --keep made --help --quiet
[ ! -e "$work/addend/made/used" ] || { echo "FAILED: what other arguments made was kept" >&2; exit 1; }
ln -sf /nowhere "$work/addend/made/bin/python3"
bash "$source/script/environment" --keep made --help --quiet
"$work/addend/made/bin/python3" -m pip --version >/dev/null || { echo "FAILED: one that does not run was kept" >&2; exit 1; }
echo "environment: all hold"
