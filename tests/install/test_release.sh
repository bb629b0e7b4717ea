#!/usr/bin/env bash
# Tests that script/release's source archive holds every file of the commit, and that from the archive alone, without
# git, the core builds, its fast tests run, and tests draw their cases. Usage: test_release.sh SOURCE COMPILER
set -euo pipefail
source=$1 compiler=$2
work=$(mktemp -d) && trap 'rm -rf -- "$work"' EXIT
fail() { echo "FAILED: $*" >&2; [ ! -e "$work/log" ] || tail -n 30 "$work/log" >&2; exit 1; }
[ -e "$source/.git" ] || { echo "skipped: an archive is made of a git checkout, and this is none" && exit 77; }

bash "$source/script/release" --out "$work/dist" >"$work/log" 2>&1 || fail "script/release"
cat "$work/log"
bash "$source/script/release" --out "$work/again" >"$work/log" 2>&1 || fail "script/release, again"
diff -r "$work/dist" "$work/again" || fail "one commit gives two archives"
(cd "$work/dist" && sha256sum --quiet -c SHA256SUMS) || fail "SHA256SUMS"
tar -C "$work" -xzf "$work"/dist/addend-*.tar.gz
tree=$(echo "$work"/addend-*)
(cd "$source" && git ls-tree -r --name-only HEAD | LC_ALL=C sort) >"$work/committed"
(cd "$tree" && find . -type f -o -type l | cut -c 3- | LC_ALL=C sort) >"$work/unpacked"
diff "$work/committed" "$work/unpacked" || fail "the archive is not the commit"
for name in jansson xxHash Random123 dygraphs; do
  grep -q "$name" "$tree/THIRD-PARTY.md" || fail "THIRD-PARTY.md has no $name"
done

# Hides any git checkout above the folder, whose hash could be taken.
export GIT_CEILING_DIRECTORIES=$work
seed=$(bash "$tree/tests/support/seed.sh") || fail "seed.sh"
[[ $seed =~ ^[0-9]+$ ]] && [ "$seed" = "$(bash "$tree/tests/support/seed.sh")" ] || fail "the seed is '$seed'"
python3 "$tree/script/check-layers" >"$work/log" 2>&1 || fail "script/check-layers"
cmake -S "$tree" -B "$work/build" -G Ninja -DCMAKE_C_COMPILER="$compiler" -DCMAKE_BUILD_TYPE=Debug -DAD_TRAINER=OFF -DAD_TESTS=ON \
  >"$work/log" 2>&1 || fail "cmake"
targets=(addend_cli)
for test in "$tree"/core/tests/{mesh,layout,array}/test_*.c; do
  name=$(basename "$test" .c)
  targets+=("test_$(basename "$(dirname "$test")")_${name#test_}")
done
cmake --build "$work/build" --target "${targets[@]}" >"$work/log" 2>&1 || fail "the build"
ctest --test-dir "$work/build" -R '^(mesh|layout|array)/' --output-on-failure --no-tests=error >"$work/log" 2>&1 || fail "its tests"
grep -E 'tests passed' "$work/log"
"$work/build/addend" --version | grep -qx "addend $(basename "$tree" | sed 's/addend-//')" || fail "its version"
echo "the archive holds"
