#!/usr/bin/env bash
# Installs a built tree into a folder with a space in its name, then builds and runs programs that know only what is
# installed: with pkg-config (shared, static) and with find_package, on the core alone and on the trainer, in C and in
# C++.
# Usage: test_install.sh SOURCE BUILD COMPILER
set -euo pipefail
source=$1 build=$2 compiler=$3

work=$(mktemp -d "${TMPDIR:-/tmp}/addend install XXXXXX")
trap 'rm -rf -- "$work"' EXIT
prefix="$work/the prefix"
expected="dp_replicate=2 tp=3: 6 ranks"

fail() { echo "install: $*" >&2 && exit 1; }
. "$source/tests/support/says.sh"

must_print() {
  local what=$1 printed
  shift
  printed=$("$@") || fail "$what failed"
  [ "$printed" = "$expected" ] || fail "$what printed '$printed', not '$expected'"
  echo "$what: $printed"
}

cmake --install "$build" --prefix "$prefix" >"$work/install.log"

# Every header is installed, and the manual page and completions are where programs look for them.
mkdir "$work/headers"
cp "$source"/{core,audit,train}/include/addend/*.h "$work/headers"
diff -r "$work/headers" "$prefix/include/addend"
for file in man/man1/addend.1 bash-completion/completions/addend zsh/site-functions/_addend \
  fish/vendor_completions.d/addend.fish; do
  [ -s "$prefix/share/$file" ] || fail "share/$file is not installed"
done
for file in bash:bash-completion/completions/addend zsh:zsh/site-functions/_addend fish:fish/vendor_completions.d/addend.fish; do
  "$build/addend" --completions "${file%%:*}" | cmp - "$prefix/share/${file#*:}" || fail "completions are not this program's"
done

# A release is installed without debug information, which is four fifths of its bytes.
mapfile -t binaries < <(find "$prefix" -name 'lib*.so.*.*.*' -o -path '*/bin/addend')
[ ${#binaries[@]} -eq 3 ] || fail "libaddend, libaddend_train and the program are not what is installed: ${binaries[*]}"
for binary in "${binaries[@]}"; do
  ! grep -q '\.debug_info' <<<"$(readelf -WS "$binary")" || fail "$binary has debug information"
done

# Builds with pkg-config, the core and then the trainer.
package=$(find "$prefix" -name addend.pc)
PKG_CONFIG_PATH=$(dirname "$package")
export PKG_CONFIG_PATH
libraries=$(dirname "$PKG_CONFIG_PATH")
flags=(-std=c11 -Wall -Wextra -Werror)
build_with_pkg_config() { # package, source, name of the program; with "static" as fourth the archives are linked
  local words
  if [ "${4-}" = static ]; then
    eval "words=($(pkg-config --static --cflags --libs "$1" | sed -E 's/-l(addend(_train)?)( |$)/-l:lib\1.a\3/g'))"
  else
    eval "words=($(pkg-config --cflags --libs "$1"))"
  fi
  "$compiler" "${flags[@]}" "$source/tests/install/$2" -o "$work/$3" "${words[@]}"
}
recipe=$source/recipes/gpt-dp.yaml
build_with_pkg_config addend outside.c "with pkg-config"
must_print "pkg-config, shared" env LD_LIBRARY_PATH="$libraries" "$work/with pkg-config"
build_with_pkg_config addend outside.c "with archive" static
must_print "pkg-config, static" "$work/with archive"
expected="3 ranks"
build_with_pkg_config addend-train trainer.c "trainer"
must_print "the trainer, pkg-config, shared" env LD_LIBRARY_PATH="$libraries" "$work/trainer" "$recipe"
build_with_pkg_config addend-train trainer.c "trainer from archives" static
must_print "the trainer, pkg-config, static" "$work/trainer from archives" "$recipe"
for name in addend addend-train; do
  [ "$(pkg-config --modversion $name)" = "$(sed -n 's/^project(addend VERSION \([0-9.]*\).*/\1/p' "$source/CMakeLists.txt")" ] ||
    fail "$name.pc has another version than the project"
done

# Loads both libraries into one process.
"$compiler" "${flags[@]}" "-I$prefix/include" "$source/tests/install/both.c" -o "$work/both" -ldl
expected="one core"
must_print "both libraries in one process" "$work/both" "$libraries"

# Each header compiles alone, as C and as C++.
for header in "$prefix"/include/addend/*.h; do
  echo "#include <addend/$(basename "$header")>" | "$compiler" "${flags[@]}" "-I$prefix/include" -x c -fsyntax-only - ||
    fail "$(basename "$header") does not compile alone"
done
echo '#include <addend/addend.h>' | c++ -std=c++17 -Wall -Wextra -Werror "-I$prefix/include" -x c++ -fsyntax-only - ||
  fail "addend.h is no C++"

# Builds with find_package.
cmake -S "$source/tests/install/package" -B "$work/outside build" -DCMAKE_PREFIX_PATH="$prefix" -DTRAINER=ON \
  -DCMAKE_C_COMPILER="$compiler" >"$work/cmake.log" || { cat "$work/cmake.log" >&2 && fail "find_package failed"; }
cmake --build "$work/outside build" >"$work/build.log" || { cat "$work/build.log" >&2 && fail "the package does not build"; }
expected="dp_replicate=2 tp=3: 6 ranks"
for program in addend static cpp; do must_print "find_package, $program" "$work/outside build/outside_$program"; done
expected="3 ranks"
for program in train train_static; do must_print "find_package, $program" "$work/outside build/outside_$program" "$recipe"; done

# The core is an install component: its headers and libraries, and a package that knows no trainer.
for component in core; do cmake --install "$build" --prefix "$work/core" --component $component >"$work/install.log"; done
[ -e "$work/core/include/addend/core.h" ] || fail "core.h is no part of the component core"
for foreign in tensor.h recipe.h addend.h; do
  [ ! -e "$work/core/include/addend/$foreign" ] || fail "$foreign is part of the component core"
done
! find "$work/core" -name '*train*' | grep -q . || fail "the component core has of the trainer: $(find "$work/core" -name '*train*')"
echo '#include <addend/core.h>' | "$compiler" "${flags[@]}" "-I$work/core/include" -x c -fsyntax-only - || fail "core.h needs more"
cmake -S "$source/tests/install/package" -B "$work/core build" -DCMAKE_PREFIX_PATH="$work/core" -DTRAINER=OFF \
  -DCMAKE_C_COMPILER="$compiler" >"$work/cmake.log" || { cat "$work/cmake.log" >&2 && fail "find_package of the core failed"; }
! cmake -S "$source/tests/install/package" -B "$work/no trainer" -DCMAKE_PREFIX_PATH="$work/core" -DTRAINER=ON \
  -DCMAKE_C_COMPILER="$compiler" >"$work/cmake.log" 2>&1 || fail "a trainer that is not there was found"
tr -s ' \n' ' ' <"$work/cmake.log" >"$work/said" # cmake wraps its lines
says_facts "$work/said" -DAD_TRAINER=OFF

# The installed program works without the build tree.
if [ -x "$build/addend" ]; then
  "$prefix/bin/addend" --help >/dev/null || fail "the installed addend --help failed"
fi
echo "install: all of it works from an installed tree"
