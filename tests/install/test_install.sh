#!/usr/bin/env bash
# Installs a built tree into a folder with a space in its name, then builds and runs programs that know only what is installed:
# with pkg-config (shared, static) and with find_package. Usage: test_install.sh SOURCE BUILD COMPILER
set -euo pipefail
source=$1 build=$2 compiler=$3

work=$(mktemp -d "${TMPDIR:-/tmp}/addend install XXXXXX")
trap 'rm -rf -- "$work"' EXIT
prefix="$work/the prefix"
expected="dp_replicate=2 tp=3: 6 ranks"

fail() { echo "install: $*" >&2 && exit 1; }

must_print() {
  local what=$1 printed
  shift
  printed=$("$@") || fail "$what failed"
  [ "$printed" = "$expected" ] || fail "$what printed '$printed', not '$expected'"
  echo "$what: $printed"
}

cmake --install "$build" --prefix "$prefix" >"$work/install.log"

# Every header is there, and the manual page and completions are where their readers look.
diff -r "$source/include/addend" "$prefix/include/addend"
for file in man/man1/addend.1 bash-completion/completions/addend zsh/site-functions/_addend \
  fish/vendor_completions.d/addend.fish; do
  [ -s "$prefix/share/$file" ] || fail "share/$file is not installed"
done
for file in bash:bash-completion/completions/addend zsh:zsh/site-functions/_addend fish:fish/vendor_completions.d/addend.fish; do
  "$build/addend" --completions "${file%%:*}" | cmp - "$prefix/share/${file#*:}" || fail "completions are not this program's"
done

# With pkg-config.
package=$(find "$prefix" -name addend.pc)
PKG_CONFIG_PATH=$(dirname "$package")
export PKG_CONFIG_PATH
libraries=$(dirname "$PKG_CONFIG_PATH")
eval "shared=($(pkg-config --cflags --libs addend))"
eval "static=($(pkg-config --static --libs addend | sed 's/-laddend/-l:libaddend.a/'))"
flags=(-std=c11 -Wall -Wextra -Werror)
"$compiler" "${flags[@]}" "$source/tests/install/outside.c" -o "$work/with pkg-config" "${shared[@]}"
must_print "pkg-config, shared" env LD_LIBRARY_PATH="$libraries" "$work/with pkg-config"
"$compiler" "${flags[@]}" "-I$prefix/include" "$source/tests/install/outside.c" -o "$work/with archive" "${static[@]}"
must_print "pkg-config, static" "$work/with archive"
[ "$(pkg-config --modversion addend)" = "$(sed -n 's/^project(addend VERSION \([0-9.]*\).*/\1/p' "$source/CMakeLists.txt")" ] ||
  fail "addend.pc has another version than the project"

# Each header compiles alone.
for header in "$prefix"/include/addend/*.h; do
  echo "#include <addend/$(basename "$header")>" | "$compiler" "${flags[@]}" "-I$prefix/include" -x c -fsyntax-only - ||
    fail "$(basename "$header") does not compile alone"
done

# With find_package.
cmake -S "$source/tests/install/package" -B "$work/outside build" -DCMAKE_PREFIX_PATH="$prefix" \
  -DCMAKE_C_COMPILER="$compiler" >"$work/cmake.log" || { cat "$work/cmake.log" >&2 && fail "find_package failed"; }
cmake --build "$work/outside build" >"$work/build.log" || { cat "$work/build.log" >&2 && fail "the package does not build"; }
must_print "find_package, shared" "$work/outside build/outside_shared"
must_print "find_package, static" "$work/outside build/outside_static"

# The program knows itself without the tree that it was built in.
if [ -x "$build/addend" ]; then
  "$prefix/bin/addend" --help >/dev/null || fail "the installed addend --help failed"
fi
echo "install: all of it works from an installed tree"
