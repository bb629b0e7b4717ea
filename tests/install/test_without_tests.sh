#!/usr/bin/env bash
# Tests that plain cmake, without the package that the tests need, says so and configures everything else; and that FreeType is optional.
set -eu
source=$1 compiler=$2
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
fail() { echo "FAILED: $*" >&2; cat "$work/log" >&2; exit 1; }
. "$source/tests/support/says.sh"

cmake -S "$source" -B "$work/build" -G "Unix Makefiles" -DCMAKE_C_COMPILER="$compiler" -DCMOCKA_LIBRARY= >"$work/log" 2>&1 || fail "cmake without cmocka"
tr -s ' \n' ' ' <"$work/log" >"$work/said" # cmake wraps its lines
says_facts "$work/said" "script/setup --test" "Debian: libcmocka-dev"
[ ! -e "$work/build/CTestTestfile.cmake" ] || fail "no test is described"
grep -q "addend_cli" "$work/build/Makefile" || fail "the program is"

# Without FreeType every function of lines of text is there, and refuses (train/tests/data/test_without_lines.c).
cmake -S "$source" -B "$work/plain" -G "Unix Makefiles" -DCMAKE_C_COMPILER="$compiler" -DAD_FREETYPE=OFF -DAD_TESTS=OFF >"$work/log" 2>&1 &&
  cmake --build "$work/plain" --target ad_data --parallel 2 >>"$work/log" 2>&1 || fail "a build without FreeType"
objects=$work/plain/CMakeFiles/ad_data.dir/train/data
[ ! -e "$objects/lines" ] || fail "what draws lines is not built"
nm -g --defined-only "$objects/without_lines.c.o" | grep -o 'ad_line_.*' | sort >"$work/defined"
sed -n 's/^AD_API .*\b\(ad_line_[a-z_]*\)(.*/\1/p' "$source/train/include/addend/data.h" | sort >"$work/declared"
[ "$(wc -l <"$work/declared")" -ge 7 ] && diff "$work/declared" "$work/defined" >"$work/log" || fail "the functions of lines of text"
! nm "$objects"/*.o | grep -q ' U FT_' || fail "FreeType is not called"
echo "without tests: all hold"
