#!/usr/bin/env bash
# Tests that each public function has a user and a test, and that script/surface sees one that has not, and a header that
# does not say for whom it is.
# Usage: surface.sh SOURCE
set -eu
source=$1
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
fail() { echo "FAILED: $*" >&2; exit 1; }

"$source/script/surface" "$source" || fail "a public function has no user or no test"

# In a copy, a function that only a library's source and a unit test call is found, and one that nobody tests.
mkdir "$work/tree"
for folder in core audit train programs lab cli python tests; do cp -rs "$source/$folder" "$work/tree/$folder"; done
plant() { # header, sed program
  local header=$work/tree/$1
  rm "$header"
  sed "$2" "$source/$1" >"$header"
}
plant core/include/addend/mesh.h 's/^typedef struct ad_mesh ad_mesh;$/&\nAD_API int ad_mesh_check(const ad_mesh *mesh);/'
plant train/include/addend/sample.h 's/^ \* For users\. .*$/ */'
! "$source/script/surface" "$work/tree" >"$work/found" || fail "no mistake was found"
[ "$(grep -c . "$work/found")" -eq 3 ] || fail "found: $(cat "$work/found")"
grep -q '^mesh.h: ad_mesh_check has no user' "$work/found" || fail "found: $(cat "$work/found")"
[ "$(grep -c '^sample.h: ' "$work/found")" -eq 2 ] || fail "found: $(cat "$work/found")"
echo "surface: all hold"
