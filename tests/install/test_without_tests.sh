#!/usr/bin/env bash
# Tests that plain cmake, without the package that the tests need, says so and configures everything else.
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
echo "without tests: all hold"
