#!/usr/bin/env bash
# Tests that libaddend builds without the trainer and the libraries that the trainer needs: CMake finds no package of
# those libraries, including one of their headers stops the compiler, and the library holds nothing of the trainer. The
# core's tests run.
# Usage: test_core_alone.sh SOURCE COMPILER
set -euo pipefail
source=$1 compiler=$2
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
fail() { echo "FAILED: $*" >&2; tail -n 30 "$work/log" >&2; exit 1; }

# pkg-config finds jansson and xxHash, and nothing else.
mkdir "$work/packages" "$work/poison"
for package in jansson libxxhash; do
  ln -s "$(pkg-config --variable=pcfiledir $package)/$package.pc" "$work/packages/$package.pc"
done
export PKG_CONFIG_LIBDIR=$work/packages PKG_CONFIG_PATH=
! pkg-config --exists openblas || fail "openblas is still found"
for header in cblas.h f77blas.h yaml.h ft2build.h freetype2/ft2build.h oneapi/dnnl/dnnl.h mpi.h; do
  mkdir -p "$(dirname "$work/poison/$header")"
  echo "#error \"$header is no header of the core's\"" >"$work/poison/$header"
done
export C_INCLUDE_PATH=$work/poison

cmake -S "$source" -B "$work/build" -G Ninja -DCMAKE_C_COMPILER="$compiler" -DAD_TRAINER=OFF -DCMAKE_BUILD_TYPE=Release \
  -DAD_MPICC_OPENMPI= -DAD_MPICC_MPICH= >"$work/log" 2>&1 || fail "cmake"
start=$(date +%s)
cmake --build "$work/build" --target libaddend.so addend_static addend_cli examples >"$work/log" 2>&1 || fail "the build"
echo "built in $(($(date +%s) - start)) s"

# The libraries that the core needs at run time, and its symbols.
needed=$(objdump -p "$work/build/libaddend.so" | sed -n 's/^ *NEEDED *//p' | sort | tr '\n' ' ')
for library in $needed; do
  case $library in
    libc.so.* | libm.so.* | libjansson.so.* | libxxhash.so.* | ld-linux* | libpthread.so.* | libdl.so.*) ;;
    *) fail "libaddend.so needs $library" ;;
  esac
done
python3 "$source/script/check-layers" --symbols "$work/build" >"$work/log" 2>&1 || fail "its symbols"
foreign=$(nm -D --defined-only "$work/build/libaddend.so" | awk '{print $3}' |
  grep -E '^ad_(tape|tensor|gemm|recipe|run|program|plan|check|train|report)(_|@|$)' || true)
[ -z "$foreign" ] || fail "libaddend.so holds of the trainer: $foreign"

# The core's tests: one of each folder; and the program.
cmake --build "$work/build" --target test_mesh_strings test_layout_strings test_array_packed test_checkpoint_checkpoint test_say_parts test_reduce_reducer \
  >"$work/log" 2>&1 || fail "its tests do not build"
ctest --test-dir "$work/build" -R '^(mesh/strings|layout/strings|array/packed|checkpoint/checkpoint|say/parts|reduce/reducer|examples/built|cli/core|cli/core_examples|cli/diff)$' \
  --output-on-failure --no-tests=error >"$work/log" 2>&1 || fail "its tests"
grep -E 'tests passed' "$work/log"
echo "the core alone: all hold; it needs $needed"
