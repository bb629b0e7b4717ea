#!/usr/bin/env bash
# Tests that script/setup says what to install where it cannot install it: the packages by the names of Fedora, Arch, or
# Debian, and what no package provides. Nothing is installed here: the test's PATH has neither apt-get nor the tools
# that script/setup looks for. Usage: test_setup.sh SOURCE
set -euo pipefail
source=$1
work=$(mktemp -d) && trap 'rm -rf -- "$work"' EXIT
fail() { echo "FAILED: $*" >&2; cat "$work/said" >&2; exit 1; }

mkdir "$work/bin"
for tool in bash sed awk tr dirname id sort uname env cat grep head; do ln -s "$(command -v "$tool")" "$work/bin/$tool"; done

# setup OS-RELEASE ARGUMENT...: runs script/setup, which must exit with 1; `said` gets its message
setup() {
  local status=0 release=$1
  shift
  printf '%b' "$release" >"$work/os-release"
  ADDEND_OS_RELEASE=$work/os-release PATH=$work/bin XDG_CACHE_HOME=$work bash "$source/script/setup" "$@" >"$work/said" 2>&1 </dev/null || status=$?
  [ $status -eq 1 ] || fail "exit $status"
}
has() { grep -qE -- "$1" "$work/said" || fail "nothing has $1"; } # argument: pattern of commands and names of packages

setup 'NAME="Fedora Linux"\nID=fedora\n' --test
has '^  libjansson-dev +[A-Za-z]'
has '^setup: .*: dnf install .*\bcmake\b.* openblas-devel libyaml-devel jansson-devel xxhash-devel freetype-devel .*mpich-devel'
setup 'ID="rocky"\nID_LIKE="rhel centos fedora"\n'
has '^setup: .*: dnf install .*jansson-devel'
setup 'ID=arch\n' --test
has '^setup: .*: pacman -S --needed .*\bopenblas libyaml jansson xxhash freetype2 cmocka clang .*\bopenmpi\b'
has '^setup: .*: mpich '
! grep -qE 'pacman.* clang .* clang ' "$work/said" || fail "a package is named twice"
setup 'ID=manjaro\nID_LIKE=arch\n'
has 'pacman -S --needed .*jansson'
setup 'ID=debian\n'
has '^setup: apt-get .*: apt-get install .*libjansson-dev'
setup 'ID=linuxmint\nID_LIKE="ubuntu debian"\n'
has 'apt-get install .*libjansson-dev'
setup 'ID=plan9\n'
has 'Debian, Fedora .*Arch'
! grep -qE 'dnf|pacman|apt-get' "$work/said" || fail "a command for another system"

# Every row of the tables has five columns; a tool that has no package is named if the build needs it.
awk -F '|' '/_table=/ {inside = 1; next} /^'\''$/ {inside = 0} inside && NF != 5 {bad = 1; print} END {exit bad}' "$source/script/setup" >"$work/said" ||
  fail "rows without five columns"
echo "setup: all hold"
