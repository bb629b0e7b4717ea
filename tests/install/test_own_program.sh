#!/usr/bin/env bash
# Builds train/examples/classifier.c as a user does, knowing only what is installed: as a program, with shared libraries and
# with archives, in C and in C++17; and as a shared object, which the installed `addend --program` and the Python
# package run. Shared objects that do not fit are refused with a sentence.
# Usage: test_own_program.sh SOURCE BUILD COMPILER
set -euo pipefail
source=$1 build=$2 compiler=$3
work=$(mktemp -d "${TMPDIR:-/tmp}/addend own XXXXXX")
trap 'rm -rf -- "$work"' EXIT
fail() { echo "own program: $*" >&2 && exit 1; }
. "$source/tests/support/says.sh"
cmake --install "$build" --prefix "$work/prefix" >"$work/install.log"
PKG_CONFIG_PATH=$(dirname "$(find "$work/prefix" -name addend-train.pc)")
export PKG_CONFIG_PATH
libraries=$(dirname "$PKG_CONFIG_PATH")
cp "$source/train/examples/classifier.c" "$source/train/examples/classifier.yaml" "$work"
mkdir -p "$work/train/examples" && cp "$source/train/examples/iris.csv" "$work/train/examples"
cd "$work"
eval "cflags=($(pkg-config --cflags addend-train))"
eval "shared=($(pkg-config --libs addend-train))"
eval "static=($(pkg-config --static --libs addend-train | sed -E 's/-l(addend(_train)?)( |$)/-l:lib\1.a\3/g'))"
strict=(-Wall -Wextra -Werror -Wno-unused-parameter)

checked() { # arguments: what is tried, command
  local what=$1
  shift
  "$@" --json >printed 2>errors || fail "$what: $(tail -n 3 errors)"
  python3 -c 'import json; found = json.load(open("printed")); assert found["holds"] is True and found["summary"]["params"] == 4, found["summary"]' || fail "$what"
  echo "$what: holds"
}
three=(--set "mesh=dp_shard=2 tp=2" --set shard.zero=3 --mutate=12)
"$compiler" -std=c11 "${strict[@]}" "${cflags[@]}" classifier.c -o classifier "${shared[@]}"
export LD_LIBRARY_PATH=$libraries
checked "a program" ./classifier check classifier.yaml "${three[@]}"
./classifier train classifier.yaml --json >trained && python3 -c 'import json; loss = json.load(open("trained"))["loss"]; assert loss["last"] < loss["first"], loss' ||
  fail "training: $(cat trained)"
unset LD_LIBRARY_PATH
"$compiler" -std=c11 "${strict[@]}" "${cflags[@]}" classifier.c -o classifier_from_archives "${static[@]}"
checked "from archives" ./classifier_from_archives check classifier.yaml "${three[@]}"
for cxx in g++ clang++; do
  command -v $cxx >/dev/null || continue
  words=(-Wall -Wextra -Werror -Wno-unused-parameter -Wno-missing-field-initializers)
  [ $cxx = g++ ] || words+=(-Wno-c99-designator)
  $cxx -x c++ -std=c++17 "${words[@]}" "${cflags[@]}" classifier.c -o classifier_$cxx "${shared[@]}"
  checked "in C++17 by $cxx" env LD_LIBRARY_PATH="$libraries" ./classifier_$cxx check classifier.yaml
done

# ---- programs built as a shared object, linked without addend's library and with the shared library ----
addend=$work/prefix/bin/addend
"$compiler" -std=c11 "${strict[@]}" -shared -fPIC "${cflags[@]}" classifier.c -o classifier.so
checked "a shared object" "$addend" check classifier.yaml --program ./classifier.so "${three[@]}"
checked "named without a slash" "$addend" check classifier.yaml --program classifier.so
"$addend" plan classifier.yaml --program classifier.so --picture plan.svg >planned && [ -s plan.svg ] || fail "plan: $(cat planned)"
"$addend" train classifier.yaml --program classifier.so --out run >trained && [ -s run/report.html ] || fail "train: $(cat trained)"
"$addend" report run --out again.html >/dev/null && [ -s again.html ] || fail "report"
"$compiler" -shared -fPIC "${cflags[@]}" classifier.c -o linked.so "${shared[@]}"
checked "linked with the shared library" env LD_LIBRARY_PATH="$libraries" "$addend" check classifier.yaml --program linked.so

# A mixture of experts, on the installed headers alone.
cat >experts.yaml <<END
name: experts
model: {kind: mixture}
mesh: dp=2 tp=2
train: {global_batch: 8, microbatches: 2, steps: 3, lr: 0.01}
END
"$compiler" -std=c11 "${strict[@]}" -shared -fPIC "${cflags[@]}" "$source/tests/install/experts.c" -o experts.so
for view in "ep=2 etp=2" "ep=4 etp=1"; do
  "$addend" check experts.yaml --program ./experts.so --set views.sparse="$view" --mutate=20 --json >check.json || fail "experts on $view"
  grep -q '"smallest_margin"' check.json || fail "experts on $view: no margin"
done
g++ -x c++ -std=c++17 "${strict[@]}" -Wno-missing-field-initializers -shared -fPIC "${cflags[@]}" "$source/tests/install/experts.c" -o experts.so
"$addend" check experts.yaml --program ./experts.so >printed || fail "experts in C++17: $(tail -n 3 printed)"
! "$addend" check experts.yaml --program ./experts.so --set views.sparse="etp=2 ep=2" 2>printed || fail "etp that is not tp"
says printed etp tp etp=1

refused() { # arguments: facts of the message with | between them, file
  ! "$addend" check classifier.yaml --program "$2" >printed 2>&1 || fail "$2 should be refused"
  says_all printed "$1"
}
refused missing.so missing.so
mkdir folder.so && refused folder.so folder.so
mkfifo pipe.so && refused pipe.so pipe.so
for bytes in 60 400 4000 9000; do
  head -c "$bytes" classifier.so >cut.so
  refused cut.so cut.so
done
sed 's/^static const ad_program_kind \*const kinds\[\] = .*/static const ad_program_kind *const kinds[] = {NULL};/' classifier.c >empty.c
"$compiler" -shared -fPIC "${cflags[@]}" empty.c -o empty.so
refused empty.so empty.so
refused classifier.c classifier.c
sed 's/^AD_PROGRAM_OBJECT.*//' classifier.c >none.c
"$compiler" -shared -fPIC "${cflags[@]}" none.c -o none.so
refused "none.so|AD_PROGRAM_OBJECT" none.so
sed 's/#include "addend\/addend.h"/&\n#undef AD_HEADER_VERSION\n#define AD_HEADER_VERSION "9.9.9"/' classifier.c >other.c
"$compiler" -shared -fPIC "${cflags[@]}" other.c -o other.so
refused "other.so|9.9.9|$("$addend" --version | sed 's/addend //')" other.so
sed 's/\.size = sizeof kind,/.size = sizeof kind - 8,/' classifier.c >size.c
"$compiler" -shared -fPIC "${cflags[@]}" size.c -o size.so
refused "size.so|ad_program_kind|size" size.so
"$compiler" -shared -fPIC "${cflags[@]}" classifier.c -o archives.so -Wl,-Bsymbolic "${static[@]}"
refused archives.so archives.so
sed 's/"classifier"/"gpt"/' classifier.c >taken.c
"$compiler" -shared -fPIC "${cflags[@]}" taken.c -o taken.so
refused "taken.so|gpt" taken.so
printf 'name: c\nprogram: ./classifier.so\n' | cat - classifier.yaml | sed '/^name: classifier/d' >named.yaml
! "$addend" check named.yaml --program ./classifier.so >printed 2>&1 || fail "a recipe names a program"
says printed named.yaml:2 program

# The shared object is checked from Python.
python=$(bash "$source/tests/support/python.sh" --find numpy) || { echo "own program: Python was not tried: no NumPy" && exit 0; }
PYTHONPATH=$source/python:$source/train/python ADDEND_LIBRARY=$libraries/libaddend.so "$python" - <<'P'
import addend
report = addend.check("classifier.yaml", program="./classifier.so", set={"mesh": "dp=2"}, mutate=4)
assert report.ok and report.mesh == "dp=2" and len(report.params) == 4, report
for mesh in ("dp=5", "dp=2 tp=2"):  # twice: it is loaded once
    assert len(addend.plan("classifier.yaml", program="./classifier.so", set={"mesh": mesh}).params) == 4
result = addend.train("classifier.yaml", program="./classifier.so", steps=200, out="python-run")
assert result.last_loss < result.first_loss, result
for function in (addend.check, addend.plan, addend.train):
    try:
        function("classifier.yaml", program="none.so")
    except addend.InvalidError as error:
        assert str(error).startswith("none.so ") and "AD_PROGRAM_OBJECT" in str(error), error
    else:
        raise AssertionError(function)
print("from Python: all hold")
P
