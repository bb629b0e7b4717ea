#!/usr/bin/env bash
# Tests the wheel of script/wheel, installed where the libraries that it was built with cannot be found: `import
# addend`, `addend diff`, what the package says of the trainer, and, if there is a PyTorch, the watch of a job with a
# mistake. Usage: test_wheel.sh SOURCE
set -euo pipefail
source=$1
work=$(mktemp -d) && trap 'rm -rf -- "$work"' EXIT
fail() { echo "FAILED: $*" >&2; exit 1; }
. "$source/tests/support/says.sh"

status=0
bash "$source/script/wheel" --out "$work" >"$work/log" 2>&1 || status=$?
cat "$work/log"
[ $status -ne 77 ] || exit 77
[ $status -eq 0 ] || fail "script/wheel: exit $status"
wheel=$(echo "$work"/addend-*-py3-none-manylinux_*_x86_64.whl)

# A Python that sees PyTorch, if there is one, and otherwise nothing but its own packages.
torch=$(bash "$source/tests/support/python.sh" --find torch) || torch=
"${torch:-python3}" -m venv "$work/venv"
python=$work/venv/bin/python3
"$python" -m pip install --quiet --disable-pip-version-check --no-index --no-deps "$wheel"

# The loader finds these files before the system's libraries, and none of them is a library.
mkdir "$work/poison"
for library in libjansson.so.4 libxxhash.so.0 libopenblas.so.0 libyaml-0.so.2 libfreetype.so.6 libaddend.so.0; do
  echo "no library" >"$work/poison/$library"
done
export LD_LIBRARY_PATH=$work/poison
unset ADDEND_LIBRARY PYTHONPATH
cd "$work"

"$python" - <<'P' || fail "import addend"
import pathlib, sys
import addend

folder = pathlib.Path(addend.__file__).resolve().parents[1]
assert folder.is_relative_to(pathlib.Path(sys.prefix).resolve()), folder
mapped = {line.split()[-1] for line in open("/proc/self/maps") if ".so" in line}
named = [path for path in mapped if any(word in path for word in ("addend", "jansson", "xxhash", "openblas"))]
print(*sorted(named), sep="\n")
assert any("libaddend.so" in path for path in named), mapped
assert all(pathlib.Path(path).is_relative_to(folder) for path in named), named
mesh = addend.Mesh("dp_shard=2 tp=4")
assert str(mesh.layout("dp_shard=R tp=S1").dual) == "dp_shard=P tp=S1"
for call in (addend.check, addend.plan, addend.train):
    try:
        call("recipe.yaml")
    except addend.MissingTrainerError as error:
        facts = f"addend.{call.__name__}", "pip install './python[train]'", "script/setup"
        assert all(fact in str(error) for fact in facts), error
    else:
        raise AssertionError(call)
P

# The pytest plugin, and the pages of `addend explain`.
"$python" - <<'P' || fail "the pytest plugin"
import importlib.metadata, importlib.util
plugins = [one for one in importlib.metadata.distribution("addend").entry_points if one.group == "pytest11"]
assert [(one.name, one.value) for one in plugins] == [("addend", "pytest_addend")], plugins
backends = [one.value for one in importlib.metadata.distribution("addend").entry_points if one.group == "torch.backends"]
assert backends == ["torch_addend:register"] and importlib.util.find_spec("torch_addend"), backends
assert importlib.util.find_spec("pytest_addend") and importlib.util.find_spec("addend._pytest_rank")
P
"$work/venv/bin/addend" explain own_only | grep -q '^# own_only: ' || fail "addend explain"

# A dump with a mistake is judged by the program and by the package.
PYTHONPATH=$source/audit/tests/cli "$python" - <<'P'
from dumps import Job, Param

job = Job("dp=3 tp=2", [Param("layer.weight", [6, 5]), Param("layer.bias", [7]), Param("head", [9])])
job.save("table", counts=lambda p, rank: {k: 1 / 3 for k in job.right(p, rank)} if p.name == "head" else None)
P
status=0
"$work/venv/bin/addend" diff table >table.txt || status=$?
[ $status -eq 1 ] || fail "addend diff: exit $status"
says_facts table.txt BAD dp 1/3
"$python" -c 'import addend; report = addend.diff("table"); print(report); assert report.ok is False' || fail "addend.diff"

status=0
"$work/venv/bin/addend" train recipe.yaml 2>err || status=$?
[ $status -eq 2 ] || fail "addend train: exit $status"
says_facts err train "./python[train]" script/setup
"$work/venv/bin/addend" run -n 2 -- "$python" -c '
import addend
with addend.Comm("dp=2") as comm:
    print(f"{comm.size}\n", end="")' >ranks.txt || fail "addend run"
[ "$(cat ranks.txt)" = "$(printf '2\n2')" ] || fail "addend run says: $(cat ranks.txt)"

if [ -z "$torch" ]; then
  echo "the wheel holds; no python3 here has PyTorch (script/test --torch makes one), so no job was watched"
  exit 0
fi
"$torch" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' >"$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/torch.pth"
OMP_NUM_THREADS=1 timeout 300 "$python" -m torch.distributed.run --nproc-per-node 2 "$source/python/examples/ddp.py" --bug \
  >job.txt 2>job.err || { cat job.err >&2 && fail "ddp.py --bug"; }
says_facts job.txt BAD "4 parameters" dp
says_facts job.txt MATCH "4 of" "4 parameters"
cat job.txt
echo "the wheel holds"
