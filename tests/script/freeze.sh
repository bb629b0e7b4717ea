#!/usr/bin/env bash
# Tests script/freeze: the same build compares equal, and each change that is made is a difference with its subject: a value of a
# document, an exit status, one byte of weights, a line of --help, a symbol, a name of the Python package, a slower program;
# a rename that is given is none.
#   freeze.sh SOURCE BUILD
set -eu
source=$1 build=$2
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
fail() { echo "FAILED: $*" >&2; cat "$work/out" "$work/err" >&2; exit 1; }
. "$source/tests/support/says.sh"

# A build whose program does what the file `plant` says to what the real one does. Its bench is a table: each call takes
# the next of nine times, once more or less of them than the recorded program takes.
mkdir "$work/build" "$work/bin"
echo "CMAKE_HOME_DIRECTORY:INTERNAL=$(cd "$source" && pwd -P)" >"$work/build/CMakeCache.txt"
ln -s "$build"/libaddend.so "$build"/libaddend_train.so "$work/build/"
cat >"$work/build/addend" <<P
#!/usr/bin/env bash
real=$build/addend work=$work
P
cat >>"$work/build/addend" <<'P'
plant=$(cat "$work/plant")
if [ "$1" = bench ]; then
  case $0/$plant in
    */build/addend/slower) seconds=1.3 ;;
    */build/addend/noisy) n=$(cat "$work/calls") seconds=$((n % 2 ? 3 : 1)) && echo $((n + 1)) >"$work/calls" ;;
    *) seconds=1 ;;
  esac
  printf '{"rows": [{"op": "%s", "dtype": "f32", "seconds_min": %s}]}\n' "$5" "$seconds"
  exit
fi
[ "$plant" != status ] || exit 3
if [ "$(cat "$work/timed")" = yes ]; then
  count=5000
  case $0/$plant in */build/addend/slower) count=15000 ;; esac
  for ((i = 0; i < count; i++)); do :; done
  exit
fi
status=0
"$real" "$@" >"$work/said" || status=$?
case $1/$plant in
  plan/value) sed -i 's/"world": 3/"world": 4/' "$work/said" ;;
  plan/word) sed -i 's/"world":/"number_of_ranks":/' "$work/said" ;;
  check/help) sed -i 's/--steps=N/--steps=M/' "$work/said" ;;
  train/byte)
    weights=$PWD/train/gpt-dp/weights.safetensors
    python3 -c 'import sys; p = sys.argv[1]; d = bytearray(open(p, "rb").read()); d[-1] ^= 1; open(p, "wb").write(d)' "$weights"
    ;;
esac
cat "$work/said"
exit $status
P
chmod +x "$work/build/addend"
echo 0 >"$work/calls"
echo no >"$work/timed"

freeze() { # arguments: exit status, what is changed, arguments of script/freeze
  local wanted=$1 status=0
  echo "$2" >"$work/plant" && shift 2
  python3 "$source/script/freeze" "$1" "$work/recorded" "$work/build" "${@:2}" >"$work/out" 2>"$work/err" || status=$?
  [ $status -eq "$wanted" ] || fail "script/freeze $*: exit $status instead of $wanted"
}
of() { # arguments: part, subject of what differs; `lines` gets what is said of it
  grep -F "$1  $2 " "$work/out" >"$work/lines" || fail "nothing is said of $1  $2"
}
differs() { # arguments: what is changed, part, subject of what differs, facts of a line with | between them, each line
  freeze 1 "$1" compare --only "$2"
  of "$2" "$3"
  for facts in "${@:4}"; do says_all "$work/lines" "$facts"; done
}

freeze 2 none compare
freeze 0 none record --match '^(train|plan) gpt-dp$|^check --help$|^abi'
freeze 0 none compare --only recipes,json,golden,symbols,bench
[ "$(grep -c '^bench  .*: 1\.000 ' "$work/out")" -eq 3 ] || fail "each row of bench holds 1.00"

differs value json 'plan gpt-dp: world' '3|4'
says_facts "$work/out" "1 facts"
differs status json 'plan gpt-dp: exit' '0|3'
differs byte recipes 'train gpt-dp: weights.safetensors' F32
says_facts "$work/out" "1 facts"
differs help golden 'check --help:' --steps=N --steps=M
differs slower bench 'all_reduce f32:' '1.300|1.300 ..'
differs noisy bench 'all_reduce f32:' f32
echo yes >"$work/timed"
differs slower processor 'plan gpt-3d:' gpt-3d
echo no >"$work/timed"
# What was recorded otherwise is not mixed with this.
freeze 2 none record --only symbols --match '^abi'

nm=$(command -v nm)
printf '#!/bin/sh\n%s "$@" | grep -v ad_mesh_create\n' "$nm" >"$work/bin/nm" && chmod +x "$work/bin/nm"
PATH=$work/bin:$PATH differs none symbols 'abi --print:' ad_mesh_create@ADDEND_0

freeze 1 word compare --only json
echo 'world number_of_ranks' >"$work/renames"
freeze 0 word compare --only json --renames "$work/renames"
freeze 1 none compare --only json --renames "$work/renames"

# What the Python package has, in its own tree: what is private may change. A name, an argument's default, a field's
# type and a keyword argument that a TypedDict declares are differences.
tree=$work/tree
mkdir -p "$tree/build" "$tree/script"
cp "$source/script/freeze" "$source/script/names" "$tree/script/"
cp -r "$source/python" "$tree/python"
mkdir "$tree/train" && cp -r "$source/train/python" "$tree/train/python"
ln -s "$(cd "$source" && pwd -P)"/{lab,tests,recipes} "$tree/" && ln -s "$(cd "$source" && pwd -P)/train/tests" "$tree/train/"
ln -s "$build"/libaddend{,_train}.so "$build"/addend "$tree/build/"
echo "CMAKE_HOME_DIRECTORY:INTERNAL=$(cd "$tree" && pwd -P)" >"$tree/build/CMakeCache.txt"
names() { # arguments: exit status, what script/freeze is to do
  local status=0
  PYTHONDONTWRITEBYTECODE=1 python3 "$tree/script/freeze" "$2" "$work/named" --only names --all >"$work/out" 2>"$work/err" || status=$?
  [ $status -eq "$1" ] || fail "script/freeze $2 --only names: exit $status instead of $1"
}
change() { # arguments: file of the package, command of sed, which must change it
  local file=$tree/python/addend/$1
  cp "$file" "$work/before" && sed -i "$2" "$file" && ! cmp -s "$file" "$work/before" || fail "$1 has nothing for $2"
}
names 0 record
grep -q '"addend: diff"' "$work/named/names.json" || fail "diff is no name of the package"
change _layout.py 's/^def propagate(/def _unused(tree): pass\n\n\ndef propagate(/'
names 0 compare
change __init__.py 's/^    "explain",$/    "explained",/; s/^    explain,$/    explain as explained,/'
change ../../train/python/addend_train/_plan.py 's/ranks_per_node: int = 0/ranks_per_node: int = 1/'
change _cause.py 's/^    text: str$/    text: bytes/'
names 1 compare
for name in explain explained; do
  of names "addend: $name" && sed 's/ (.*//' "$work/lines" >"$work/name" && says "$work/name" # without the signature
done
of names 'addend: Cause.text' && says "$work/lines" Cause.text
of names 'addend: plan' && grep -q "ranks_per_node: 'int' = 0.*ranks_per_node: 'int' = 1" "$work/lines" || fail "of plan: $(cat "$work/lines")"
says_facts "$work/out" "5 facts"
if grep -q '"addend.torch: watch"' "$work/named/names.json"; then
  change torch/_options.py '/^    reduce: /d'
  names 1 compare
  for name in assert_summed dump.__init__ watch.__init__ watch_trainer; do # the argument is in one of two signatures
    of names "addend.torch: $name" && [ "$(grep -o ' reduce: ' "$work/lines" | wc -l)" -eq 1 ] || fail "of $name: $(cat "$work/lines")"
  done
  of names 'addend.torch: WatchOptions.reduce' && says "$work/lines" WatchOptions.reduce
  says_facts "$work/out" "10 facts"
fi
echo "freeze: all hold"
