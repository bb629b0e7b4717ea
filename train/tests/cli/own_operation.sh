#!/usr/bin/env bash
# Tests the program of train/docs/own-operation.md: it compiles as it is written there, as C without a warning and as
# C++, and its check passes; with a wrong slope the check fails.
set -eu
addend=$1 source=$2
build=$(dirname "$addend")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
. "$source/tests/support/says.sh"
headers=("-I$source/core/include" "-I$source/audit/include" "-I$source/train/include")
if grep -q __asan_init "$build/libaddend_train.so" || grep -q __tsan_init "$build/libaddend_train.so"; then
  echo "skipped: a stranger's program has no sanitizer's run time"
  exit 77
fi
awk '/^```c$/{on=1;next} /^```$/{on=0} on' "$source/train/docs/own-operation.md" > "$folder/huber.c"
compile() { ${CC:-cc} -std=c11 -Wall -Wextra -Werror "${headers[@]}" "$1" -o "$folder/huber" -L"$build" -laddend_train -laddend -lm -Wl,-rpath,"$build"; }
compile "$folder/huber.c"
"$folder/huber" >"$folder/said"
[ "$(wc -l <"$folder/said")" -eq 1 ]
${CXX:-c++} -std=c++17 -x c++ -Wall -Werror "${headers[@]}" -c "$folder/huber.c" -o "$folder/huber.o"
sed 's/-delta), delta));/-delta), 2 * delta));/' "$folder/huber.c" > "$folder/wrong.c"
! cmp -s "$folder/huber.c" "$folder/wrong.c"
compile "$folder/wrong.c"
if "$folder/huber" 2> "$folder/said"; then echo "a wrong slope holds" >&2; exit 1; fi
says "$folder/said" huber
cat "$folder/said"
echo "own_operation: the page's program holds, and a wrong slope is found"
