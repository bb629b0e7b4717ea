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
says() { grep -qE -- "$1" "$work/said" || fail "not said: $1"; }

setup 'NAME="Fedora Linux"\nID=fedora\n' --test
says '^  libjansson-dev +JSON output'
says '^setup: here they are installed by: dnf install .*\bcmake\b.* openblas-devel libyaml-devel jansson-devel xxhash-devel freetype-devel .*mpich-devel'
setup 'ID="rocky"\nID_LIKE="rhel centos fedora"\n'
says '^setup: here they are installed by: dnf install .*jansson-devel'
setup 'ID=arch\n' --test
says '^setup: here they are installed by: pacman -S --needed .*\bopenblas libyaml jansson xxhash freetype2 cmocka clang .*\bopenmpi\b'
says '^setup: no package here: mpich .*engine mpi or its tests'
! grep -qE 'pacman.* clang .* clang ' "$work/said" || fail "a package is named twice"
setup 'ID=manjaro\nID_LIKE=arch\n'
says 'pacman -S --needed .*jansson'
setup 'ID=debian\n'
says '^setup: apt-get is not in the path; it installs them by: apt-get install .*libjansson-dev'
setup 'ID=linuxmint\nID_LIKE="ubuntu debian"\n'
says 'apt-get install .*libjansson-dev'
setup 'ID=plan9\n'
says "this is not Debian, Fedora or Arch: .*the names are Debian's"
! grep -qE 'dnf|pacman|apt-get' "$work/said" || fail "a command for another system"

# Every row of the tables has five columns; a tool that has no package is named if the build needs it.
awk -F '|' '/_table=/ {inside = 1; next} /^'\''$/ {inside = 0} inside && NF != 5 {bad = 1; print} END {exit bad}' "$source/script/setup" >"$work/said" ||
  fail "rows without five columns"
echo "setup: all hold"
