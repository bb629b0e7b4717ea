#!/usr/bin/env bash
# Tests `addend check` as users and scripts call it: the keys of its document, verdicts, exit statuses.
set -eu
addend=$1 source=$2
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
cd "$work"
fail() { echo "FAILED: $*" >&2; exit 1; }
. "$source/tests/support/says.sh"
. "$source/tests/support/draw.sh"

check_recipe() { # arguments: name, options of check; the check must hold, and its document NAME.json have the promised keys
  local name=$1 status=0; shift
  "$addend" check "$@" --json >"$name.json" 2>"$name.err" || status=$?
  [ $status -eq 0 ] || { cat "$name.err" >&2; tail -5 "$name.json" >&2; fail "$name: exit $status"; }
  python3 "$source/train/tests/cli/check_document.py" "$name.json" || fail "$name: document"
}

recipe=$source/recipes/gpt-dp.yaml
check_recipe world-3 "$recipe"
for mesh in dp_replicate=1 "dp_replicate=1 dp_shard=2" "dp_replicate=5 dp_shard=1" dp_shard=7 "dp_replicate=3 dp_shard=2"; do
  check_recipe "mesh" "$recipe" --set mesh="$mesh"
done
check_recipe steps "$recipe" --steps 3
check_recipe f32 "$recipe" --dtype f32
check_recipe recipe "$recipe" --dtype recipe
check_recipe directional "$recipe" --directional
check_recipe microbatches "$recipe" --set train.microbatches=5

# A check without anything to judge does not match, and says why.
no() { # arguments: options of check, which must exit with 1
  local status=0
  "$addend" check "$recipe" "$@" >out 2>err || status=$?
  [ $status -eq 1 ] || { cat err out >&2; fail "$*: nothing was checked, yet exit $status"; }
}
no --set 'data.valid=[0]' --json
[ "$(grep -c "^addend: warning: " err)" -eq 1 ] || fail "two steps without a counted token are reported once"
python3 - <<'Y'
import json
document = json.load(open("out"))
summary = document["summary"]
assert summary["counted"] == 0 and summary["pass"] is False and document["own_dtypes"]["pass"] is False, summary
assert document["holds"] is False and document["reason"], document["reason"]
Y
begins_and_ends() { # arguments: file, words; its first line and its last are the verdict, and the same
  [ "$(head -n 1 "$1")" = "$(tail -n 1 "$1")" ] || { cat "$1" >&2; fail "the first line and the last are one verdict"; }
  case $(head -n 1 "$1") in "$2"*) ;; *) cat "$1" >&2; fail "the verdict is $2" ;; esac
}
no --set 'data.valid=[0]' --all
! grep -q "^  ok " out && [ "$(grep -c "^  -    " out)" -eq 20 ] || fail "no row says that zeros match"
begins_and_ends out "NOT CHECKED"
no --set 'data.valid=[0]'
! grep -q "^  ok " out && [ "$(grep -c "^  -    " out)" -eq 1 ] || fail "one line has all parameters without a gradient"
says_nothing_of out "does NOT"
no --set 'data.valid=[0]' --directional
says out "NOT CHECKED"
begins_and_ends out "NOT CHECKED"
no --set 'data.valid=[0]' --mutate --all
[ "$(grep -c "^addend: warning: " err)" -eq 1 ] || fail "it warns once, whatever is planted"
tail -n 1 out >verdict
says verdict "NOT CHECKED"
grep "^  - *last-microbatch-only " out >why && says why # a mutant is not tried
python3 - <<'Y'
import json
held = json.load(open("world-3.json"))
assert held["holds"] is True and held["reason"] is None and held["summary"]["counted"] > 0, held["reason"]
Y
draw_cases "meshes with mistakes" 1 "dp_replicate=3 dp_shard=1" "dp_replicate=2 dp_shard=2"
for mesh in "${drawn[@]}"; do check_recipe mutants "$recipe" --set mesh="$mesh" --mutate; done

# A sum over axes of four ranks and of one: without the axis of one rank the sum is the same, bit for bit.
check_recipe one_of "$recipe" --set mesh="dp_replicate=2 dp_shard=1 tp=2" --set model.sequence_parallel=true --set model.layers=1 --mutate

# Some of the mistakes are drawn by a seed.
one_layer=("$recipe" --set model.layers=1)
check_recipe all "${one_layer[@]}" --mutate
check_recipe drawn "${one_layer[@]}" --mutate=12 --seed 3
check_recipe again "${one_layer[@]}" --mutate=12 --seed 3
check_recipe others "${one_layer[@]}" --mutate=12 --seed 4
check_recipe more "${one_layer[@]}" --mutate=100000
python3 - <<'Y'
import json
def names(path): return [entry["name"] for entry in json.load(open(path + ".json"))["mutants"] if entry["derived"]]
assert len(names("drawn")) == 12 and names("drawn") == names("again") != names("others")
assert names("more") == names("all") and set(names("drawn")) < set(names("all"))
Y

# The files of a step's inputs and results, for other programs, are consistent.
check_recipe dumped "$recipe" --dump dump
python3 - <<'Y'
import json, math, struct
def load(path):
    data = open(path, "rb").read()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + size])
    meta = header.pop("__metadata__", {})
    body = data[8 + size:]
    def values(entry):
        first, end = entry["data_offsets"]
        letter, width = {"F64": ("d", 8), "I32": ("i", 4)}[entry["dtype"]]
        return struct.unpack(f"<{(end - first) // width}{letter}", body[first:end])
    return meta, {name: values(entry) for name, entry in header.items()}
proof = json.load(open("dumped.json"))
for step in 0, 1:
    meta, gradients = load(f"dump/step-{step}.gradients.safetensors")
    _, weights = load(f"dump/step-{step}.weights.safetensors")
    _, inputs = load(f"dump/step-{step}.inputs.safetensors")
    assert set(gradients) == set(weights) == {param["name"] for param in proof["params"]}
    norm = math.sqrt(sum(value * value for values in gradients.values() for value in values))
    assert abs(norm - float(meta["norm"])) < 1e-12 * norm, (norm, meta)
    counted = sum(target >= 0 for name, values in inputs.items() if name.endswith("targets") for target in values)
    assert counted == int(meta["count"]) > 0, (counted, meta)
    assert {name.split(".")[1] for name in inputs} == {"0", "1"}
Y
status=0; "$addend" check "$recipe" --dump /dev/null/no 2>err || status=$?
[ $status -eq 3 ] || fail "a folder that cannot be made is exit 3, not $status"
says err /dev/null

# A recipe with dtypes that round is checked in f64 and in its own dtypes, unless only the latter are asked for, or
# nothing rounds.
python3 - <<'Y'
import json
own = json.load(open("world-3.json"))["own_dtypes"]
assert own["pass"] is True and 0 < own["worst_share_of_bound"] <= 1 and own["param"], own
for name in "f32", "recipe", "directional": assert "own_dtypes" not in json.load(open(name + ".json")), name
Y
check_recipe wide "$recipe" --set 'precision={param: f64, compute: f64}'
python3 -c 'import json; assert "own_dtypes" not in json.load(open("wide.json"))'

status=0; "$addend" check "$recipe" --directional --mutate 2>err || status=$?
[ $status -eq 2 ] || fail "contradicting options are a wrong call, not $status"
"$addend" check --help | grep -q Example || fail "help has an example"
"$addend" check "$recipe" >out
begins_and_ends out "matches one process"
[ "$(grep -c "^  ok " out)" -eq 1 ] || fail "what matches has one line"
says out "3 ranks" "2 steps"
tail -n 1 out >verdict
says verdict "20 parameters"
"$addend" check "$recipe" --set mesh=dp_replicate=1 --steps 1 >out
says out "1 rank" "1 step"
echo "check: all hold"
