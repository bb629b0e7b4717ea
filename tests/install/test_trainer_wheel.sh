#!/usr/bin/env bash
# Tests that `pip install './python[train]'` builds the core and the trainer, each a distribution, without asking a
# package index for either; that the package then finds the trainer, and no longer after `pip uninstall addend-train`;
# and that a missing library is named in one sentence, with script/setup. Usage: test_trainer_wheel.sh SOURCE
set -euo pipefail
source=$1
work=$(mktemp -d) && trap 'rm -rf -- "$work"' EXIT
fail() { echo "FAILED: $*" >&2; tail -n 40 "$work/log" >&2; exit 1; }
. "$source/tests/support/says.sh"

# script/wheel provides the build tools.
tools=$(bash "$source/script/wheel" --tools) || { echo "${tools:-skipped: no tools}" && exit 77; }
python3 -m venv "$work/venv"
python=$work/venv/bin/python3
"$tools/python3" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' >"$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/tools.pth"
unset ADDEND_LIBRARY PYTHONPATH
# a debug build is faster to make, and nothing is measured
export SKBUILD_CMAKE_BUILD_TYPE=Debug CMAKE_BUILD_PARALLEL_LEVEL=${CMAKE_BUILD_PARALLEL_LEVEL:-$(nproc)}
pip() { "$python" -m pip --disable-pip-version-check "$@" >"$work/log" 2>&1; }
cd "$source"

pip install --no-index --no-build-isolation './python[train]' || fail "pip install './python[train]'"
cd "$work"
"$python" - "$source" <<'P' >"$work/log" 2>&1 || fail "the trainer of addend-train"
import importlib.metadata, pathlib, sys
import addend

assert "addend_train" not in sys.modules
import addend_train

assert importlib.metadata.metadata("addend-train").get_all("Provides-Extra") == ["tokens"]
assert sorted(importlib.metadata.metadata("addend").get_all("Provides-Extra")) == ["torch", "train"]
recipe = sys.argv[1] + "/recipes/gpt-dp.yaml"
assert addend.plan(recipe).world == 3
assert addend.check(recipe, steps=1).ok
mapped = {line.split()[-1] for line in open("/proc/self/maps")}
native = pathlib.Path(addend_train.__file__).parent / "_native"
cores = [path for path in mapped if "libaddend.so" in path]
assert len(cores) == 1 and str(native / "libaddend_train.so.0") in mapped, (cores, mapped)
P
"$work/venv/bin/addend" check "$source/recipes/gpt-dp.yaml" --steps 1 >"$work/log" 2>&1 || fail "addend check"
# The trainer's library finds the core's by itself.
"$python" -c 'import ctypes, importlib.util, pathlib
folder = pathlib.Path(importlib.util.find_spec("addend_train").origin).parent
ctypes.CDLL(str(folder / "_native/libaddend_train.so.0"))' >"$work/log" 2>&1 || fail "the trainer does not find the core"

# A trainer that cannot be loaded is reported.
native=$(dirname "$(find "$work/venv" -name libaddend_train.so.0)")
echo "no library" >"$native/libaddend_train.so.0"
"$python" - "$source" <<'P' >"$work/log" 2>&1 || fail "a trainer that cannot be loaded"
import sys
import addend
try:
    addend.plan(sys.argv[1] + "/recipes/gpt-dp.yaml")
except addend.MissingTrainerError as error:
    assert "libaddend_train.so.0" in str(error) and "pip install './python[train]'" in str(error), error
else:
    raise AssertionError
P
pip uninstall -y addend-train || fail "pip uninstall addend-train"
"$python" -c 'import addend
try: addend.plan("recipe.yaml")
except addend.MissingTrainerError: print("missing")' >"$work/log" 2>&1 && grep -qx missing "$work/log" || fail "without addend-train"

# The libraries of the trainer are missing.
mkdir "$work/packages"
for package in jansson libxxhash; do
  ln -s "$(pkg-config --variable=pcfiledir $package)/$package.pc" "$work/packages/$package.pc"
done
cd "$source"
! PKG_CONFIG_LIBDIR=$work/packages PKG_CONFIG_PATH='' pip install --no-index --no-build-isolation --no-deps ./train/python ||
  fail "it builds where its libraries are missing"
# CMake breaks the message into lines; before it pkg-config says nothing.
said=$(tr -s ' \n' ' ' <"$work/log")
grep -oE '[^:]*: openblas, yaml-0\.1; [^ ]*( [a-z]\S*)*' <<<"$said" | sed 's/^ //' >"$work/missing" || fail "what is missing is not reported"
says "$work/missing" yaml-0.1 script/setup
case ${said%%openblas, yaml-0.1*} in *"not found"* | *"required package"*) fail "pkg-config speaks first" ;; esac
echo "the trainer's wheel holds"
