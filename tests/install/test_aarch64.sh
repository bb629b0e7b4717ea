#!/usr/bin/env bash
# Tests that on aarch64 layouts and diff work and ranks are refused (core/comm/processor.c). The sources of layouts
# and diff must compile without headers that only Linux or only x86-64 has; then the core is built for aarch64, and its
# tests of layouts, files and diff, and `addend diff`, run under qemu. Compiler: aarch64-linux-gnu-gcc if it is
# installed, else zig. Debian's libraries for aarch64 are fetched into the user's cache folder. Without qemu-user or
# those libraries the test only compiles. Usage: test_aarch64.sh SOURCE
set -euo pipefail
source=$1
work=$(mktemp -d) && trap 'rm -rf -- "$work"' EXIT
fail() { echo "FAILED: $*" >&2; [ ! -e "$work/log" ] || tail -n 40 "$work/log" >&2; exit 1; }
. "$source/tests/support/says.sh"
cache=${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/addend

compiler=$work/cc
if command -v aarch64-linux-gnu-gcc >/dev/null; then
  ln -s "$(command -v aarch64-linux-gnu-gcc)" "$compiler"
else
  tools=$(bash "$source/script/wheel" --tools) || { echo "skipped: no aarch64-linux-gnu-gcc here, and no zig: $tools" && exit 77; }
  printf '#!/bin/sh\nexec "%s/python3" -m ziglang cc -target aarch64-linux-gnu.2.28 -fno-sanitize=undefined "$@"\n' "$tools" >"$compiler"
  chmod +x "$compiler"
  export ZIG_GLOBAL_CACHE_DIR=$cache/zig
fi

# These system headers are the same for every processor.
mkdir "$work/include"
for header in jansson.h jansson_config.h xxhash.h cmocka.h Random123; do
  for folder in /usr/local/include /usr/include "/usr/include/$(uname -m)-linux-gnu"; do
    [ -e "$work/include/$header" ] || [ ! -e "$folder/$header" ] || ln -s "$folder/$header" "$work/include/$header"
  done
done

# Headers that only Linux or only x86-64 has are replaced by ones that stop the compiler.
mkdir -p "$work/poison"
for header in sys/prctl.h sys/syscall.h sys/signalfd.h sys/eventfd.h sys/epoll.h sys/uio.h sys/sendfile.h sys/inotify.h linux/futex.h \
  linux/mempolicy.h linux/memfd.h numaif.h immintrin.h xmmintrin.h cpuid.h; do
  mkdir -p "$(dirname "$work/poison/$header")"
  echo "#error \"$header is Linux's or x86-64's alone\"" >"$work/poison/$header"
done
flags=(-std=gnu11 -D_GNU_SOURCE -DAD_BUILDING -DAD_VERSION="\"0\"" -Wall -Wextra -Werror -Wno-unused-parameter -c
  "-I$work/poison" "-I$source/core/include" "-I$source/audit/include" "-I$source/core" "-I$source/audit" -isystem "$work/include")
for folder in core/{base,kernels,mesh,layout,files} audit/{read,solve,say}; do
  layer=${folder##*/}
  sources=()
  for file in "$source/$folder"/*.c; do
    case $file in *_avx2.c | *_avx512.c | *_avx512fp16.c) ;; *) sources+=("$file") ;; esac
  done
  (mkdir "$work/$layer" && cd "$work/$layer" && "$compiler" "${flags[@]}" "${sources[@]}") >"$work/log" 2>&1 || fail "$layer for aarch64, without Linux's headers"
done
echo "base, kernels, mesh, layout, files and the audit compile for aarch64 without Linux's headers"

compiled_only() { echo "compiled for aarch64, not run: $*" && exit 0; }
qemu=$(command -v qemu-aarch64 || command -v qemu-aarch64-static) || compiled_only "qemu-user is not installed"

# fetch_libraries: fetches Debian's libraries for aarch64 and unpacks them into the cache folder; the system's own
# packages stay as they are.
sysroot=$cache/aarch64
fetch_libraries() {
  local own=$work/apt options
  mkdir -p "$own/state/lists/partial" "$own/cache/archives/partial" "$own/debs"
  options=(-q -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o "Dir::State=$own/state" -o Dir::State::status=/dev/null -o "Dir::Cache=$own/cache")
  apt-get "${options[@]}" update
  (cd "$own/debs" && apt-get "${options[@]}" download libc6 libjansson4 libjansson-dev libxxhash0 libxxhash-dev libcmocka0 libcmocka-dev) || return 1
  mkdir -p "$sysroot.new"
  for package in "$own"/debs/*.deb; do dpkg-deb -x "$package" "$sysroot.new" || return 1; done
  rm -rf -- "$sysroot" && mv "$sysroot.new" "$sysroot"
}
libraries=$sysroot/usr/lib/aarch64-linux-gnu
if ! { [ -e "$libraries/libjansson.so" ] && [ -e "$libraries/libcmocka.so" ]; }; then
  command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null || compiled_only "only Debian's libraries for aarch64 are known here"
  fetch_libraries >"$work/log" 2>&1 || compiled_only "Debian's libraries for aarch64 cannot be had: $(tail -n 1 "$work/log")"
fi

export PKG_CONFIG_LIBDIR=$libraries/pkgconfig PKG_CONFIG_SYSROOT_DIR=$sysroot PKG_CONFIG_PATH=
cmake -S "$source" -B "$work/build" -G Ninja -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 -DCMAKE_C_COMPILER="$compiler" \
  -DCMAKE_CROSSCOMPILING_EMULATOR="$qemu;-L;$sysroot" -DCMAKE_BUILD_TYPE=Debug -DAD_TRAINER=OFF -DAD_TESTS=ON \
  -DRANDOM123_INCLUDE="$work/include" -DCMOCKA_INCLUDE="$work/include" -DCMOCKA_LIBRARY="$libraries/libcmocka.so" \
  -DAD_MPICC_OPENMPI= -DAD_MPICC_MPICH= >"$work/log" 2>&1 || fail "cmake for aarch64"
targets=(addend_cli addend_static test_comm_processor)
for test in "$source"/core/tests/{mesh,layout,files}/test_*.c "$source"/audit/tests/*/test_*.c; do
  name=$(basename "$test" .c)
  targets+=("test_$(basename "$(dirname "$test")")_${name#test_}")
done
cmake --build "$work/build" --target "${targets[@]}" >"$work/log" 2>&1 || fail "the core for aarch64"
slow='^solve/gram$' # too slow when emulated without optimisation
[ "${ADDEND_TEST_SEED-}" != all ] || slow='^$'
ctest --test-dir "$work/build" -R '^(mesh/|layout/|files/|read/|solve/|say/|comm/processor$)' -E "$slow" --output-on-failure --no-tests=error >"$work/log" 2>&1 ||
  fail "tests under qemu"
grep -E 'tests passed' "$work/log"

# The program: it judges a dump with a mistake, refuses ranks, and works as one process.
cd "$work"
addend() { "$qemu" -L "$sysroot" "$work/build/addend" "$@"; }
PYTHONPATH=$source/audit/tests/cli python3 - <<'P'
from dumps import Job, Param

job = Job("dp=3 tp=2", [Param("layer.weight", [6, 5]), Param("head", [9])])
job.save("table", counts=lambda p, rank: {k: 1 / 3 for k in job.right(p, rank)} if p.name == "head" else None)
P
status=0
addend diff table >table.txt 2>"$work/log" || status=$?
[ $status -eq 1 ] || fail "addend diff: exit $status: $(cat table.txt)"
says_facts table.txt BAD dp 1/3
status=0
addend run -n 2 -- true >"$work/log" 2>&1 || status=$?
[ $status -eq 3 ] || fail "two ranks: exit $status"
says_facts "$work/log" "2 ranks" aarch64:
addend run -n 1 -- true >"$work/log" 2>&1 || fail "one process"
echo "aarch64 holds, under $(basename "$qemu")"
