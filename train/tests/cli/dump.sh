#!/usr/bin/env bash
# Tests the dump of a training step: every sum is the sum of its addends, whatever the mesh, the sharding and the
# dtypes; training gives the same with a dump as without; a program that uses only the reducer dumps as well; and what
# cannot be dumped is reported before a step.
#   dump.sh ADDEND SOURCE
set -eu
addend=$1 source=$2
work=$(mktemp -d) mounted=
clean_up() { [ -z "$mounted" ] || umount "$mounted"; rm -rf "$work"; }
trap clean_up EXIT
cd "$work"
fail() { echo "FAILED: $*" >&2; [ ! -s err ] || cat err >&2; exit 1; }
exits_with() { # arguments: status, command
  local expected=$1 status=0
  shift
  "$@" >out 2>err || status=$?
  [ $status -eq "$expected" ] || fail "exit $status, not $expected: $*"
}
export PYTHONPATH=$source/audit/tests/cli # dumps.py
. "$source/tests/support/says.sh"
adds_up() { # arguments: dump files; `sums` gets what dump_check.py prints of them
  python3 "$source/train/tests/cli/dump_check.py" "$@" >sums 2>err || fail "the dumped addends do not sum to the gradients: $*"
  exits_with 0 "$addend" diff "$@"
}
train() { # arguments: recipe, options
  local recipe=$1; shift
  exits_with 0 "$addend" train "$source/recipes/$recipe.yaml" --set train.steps=2 "$@"
}

# Each file of sums has the norm that train reported, which is the sums' norm; if all losses have one divisor, the
# addends' files have it.
tells_norm_and_divisor() { # argument: folder of the run
  exits_with 0 "$addend" diff --json "$1"/dump-1/*
  python3 - "$source/train/tests/cli" "$1" <<'P' 2>err || fail "$1: the dumped norm or divisor differs from the expected number"
import sys; sys.path.insert(0, sys.argv[1])
import glob, json, safetensors
step = [json.loads(line) for line in open(sys.argv[2] + "/metrics.jsonl")][1]
told = lambda kind: [safetensors.metadata(file) for file in glob.glob(f"{sys.argv[2]}/dump-1/*.{kind}.*")]
norms, divisors = {m["addend.norm"] for m in told("sum")}, {m.get("addend.divisor") for m in told("addend*")}
assert len(norms) == 1 and abs(float(norms.pop()) / 2 ** step.get("loss_scale", 0) / step["norm"] - 1) < 1e-8, (norms, step)
assert divisors == {str(step["tokens"])}, divisors
norm = json.load(open("out"))["norm"]
assert norm["pass"] and abs(norm["computed"] / norm["reported"] - 1) < 1e-6, norm
P
}

# Dumps on several meshes, ZeRO levels, experts on a view, more ranks than rows, several dtypes; the weights are the
# same with a dump.
while read -r recipe mesh settings; do
  read -ra sets <<<"$settings"
  train "$recipe" "${sets[@]}" --dump-step 1 -o with --overwrite
  train "$recipe" "${sets[@]}" -o without --overwrite
  cmp with/weights.safetensors without/weights.safetensors || fail "$recipe: writing a dump changed the trained weights"
  adds_up with/dump-1/*
  tells_norm_and_divisor with
  grep -q "^$mesh: " sums || fail "$recipe: $(cat sums)"
done <<'X'
gpt-dp dp_replicate=3
gpt-dp dp_replicate=3 --set train.microbatches=3 --set train.sync=[none,all,all]
gpt-dp dp_replicate=3 --set precision.grad=bf16 --set precision.reduce=bf16
hsdp-2x2 dp_replicate=2.dp_shard=2
hsdp-2x2 dp_replicate=2.dp_shard=2 --set shard.zero=1
hsdp-2x2 dp_replicate=2.dp_shard=2 --set precision.reduce=bf16 --set train.microbatches=3
hsdp-f16 dp_replicate=2.dp_shard=3
gpt-tp-sp tp=2
fsdp-uneven dp_shard=7
fsdp-uneven dp_shard=7 --set precision.reduce=bf16 --set train.microbatches=3
moe-tp2ep dp_shard=2.tp=2
moe-16 efsdp=2.ep=4.tp=2
X

# If each microbatch divides its loss by its own share, there is no single divisor.
train moe-balance --dump-step 1 -o balance
adds_up balance/dump-1/*
! grep -q addend.divisor balance/dump-1/* || fail "a dump has a divisor though the program's two losses have different ones"

# A norm in which each rank counts all that it holds counts the replicas along tp several times.
train gpt-tp-sp --dump-step 0 -o copies
python3 - "$source/train/tests/cli" copies/dump-0/*.sum.* <<'P'
import sys; sys.path.insert(0, sys.argv[1])
import dump_check, dumps, safetensors
told = {file: safetensors.metadata(file) for file in sys.argv[2:]}
sums = {file: {name: (t[0], t[1], dump_check.values(t)) for name, t in safetensors.load(file).items()} for file in told}
wrong = sum(v * v for tensors in sums.values() for _, _, values in tensors.values() for v in values) ** 0.5
for file in told:
    dumps.write(file, {**told[file], "addend.norm": str(wrong)}, sums[file])
P
exits_with 1 "$addend" diff copies/dump-0/*
says out BAD tp

# Each module has its own files, and so have blocks of a pool that share a name.
train ocr-disjoint --dump-step 0 -o modules
adds_up modules/dump-0/encoder.rank*
adds_up modules/dump-0/model.at00004.rank*
train pools-10 --dump-step 0 -o pools
for files in ci.rank blocks.at00004.rank blocks.at00006.rank; do adds_up pools/dump-0/$files*; done

# diff judges each module of a folder by itself and gives one verdict; a reference of the same modules is split in the
# same way.
exits_with 0 "$addend" diff modules/dump-0 --html modules.html
says out encoder "4 ranks"
says out model.at00004 "4 ranks"
says out matches "2 of" "2 modules"
exits_with 0 "$addend" diff --json --reference modules/dump-0 modules/dump-0
python3 - out <<'P' || fail "the JSON document of two modules is wrong"
import json, sys
document = json.load(open(sys.argv[1]))
assert document["pass"] and document["verdict"] == "right" and "params" not in document, document.keys()
names = [module["module"] for module in document["modules"]]
assert names == ["encoder", "model.at00004"], names
for module in document["modules"]:
    assert module["pass"] and module["dumped"]["reference"] and module["world"] == 4, module["world"]
    assert all(param["reference"]["pass"] for param in module["params"]), module["module"]
P
mkdir spoilt && cp modules/dump-0/* spoilt/
python3 - "$source/train/tests/cli" spoilt/encoder.*.sum.* <<'P'
import sys; sys.path.insert(0, sys.argv[1])
import dump_check, dumps, safetensors
for file in sys.argv[2:]:
    sums = {name: (t[0], t[1], [2 * v for v in dump_check.values(t)]) for name, t in safetensors.load(file).items()}
    dumps.write(file, safetensors.metadata(file), sums)
P
exits_with 1 "$addend" diff spoilt
says out "NOT MATCH" "1 of" "2 modules"
rm spoilt/model.at00004.rank00000.sum.safetensors
exits_with 2 "$addend" diff spoilt
says err model.at00004 "rank 0"
exits_with 2 "$addend" diff modules/dump-0 nowhere
says err nowhere
mkdir empty
exits_with 2 "$addend" diff modules/dump-0 empty
says err empty
exits_with 2 "$addend" diff --reference pools/dump-0 modules/dump-0
says err encoder pools/dump-0
ln -s "$PWD/modules/dump-0/encoder.rank00000.sum.safetensors" modules/dump-0/again.safetensors
exits_with 0 "$addend" diff modules/dump-0
says err modules/dump-0/again.safetensors
rm modules/dump-0/again.safetensors

# A changed addend is noticed by the reader.
python3 - "$source/train/tests/cli" with/dump-1 <<'P'
import sys; sys.path.insert(0, sys.argv[1])
import json, struct, safetensors
path = sys.argv[2] + "/rank00000.addend.m0.safetensors"
raw = bytearray(open(path, "rb").read())
size = struct.unpack("<Q", raw[:8])[0]
begin = 8 + size + json.loads(raw[8 : 8 + size])["final.norm.weight"]["data_offsets"][0]
raw[begin : begin + 4] = struct.pack("<f", 1000)
open(path, "wb").write(raw)
P
! python3 "$source/train/tests/cli/dump_check.py" with/dump-1/* >out 2>err || fail "an addend of 1000 went unnoticed"
says_facts err final.norm.weight

# ADDEND_DUMP dumps the same from any program that uses the reducer, and from ranks of `addend run`.
mkdir own later joined
ADDEND_DUMP=own exits_with 0 "$(dirname "$addend")/example_plain_buffers"
adds_up own/*
ADDEND_DUMP=own exits_with 1 "$(dirname "$addend")/example_plain_buffers"
says_facts err ADDEND_DUMP .addend.m0.safetensors
ADDEND_DUMP=later ADDEND_DUMP_STEP=30 exits_with 0 "$(dirname "$addend")/example_plain_buffers"
adds_up later/*
! cmp -s own/rank00000.sum.safetensors later/rank00000.sum.safetensors || fail "the dumps of two steps are equal"
ADDEND_DUMP=joined exits_with 0 "$addend" run -n 3 -- "$(dirname "$addend")/example_plain_buffers"
adds_up joined/*
mkdir trained
ADDEND_DUMP=trained ADDEND_DUMP_STEP=1 train gpt-dp -o from-environment
train gpt-dp -o asked --dump-step 1
diff -r trained asked/dump-1 || fail "--dump-step writes another dump than ADDEND_DUMP"

# Types do not see mistakes that are made before a gradient is submitted, but the dump shows them.
dumped() { # arguments: folder, arguments of the program
  mkdir "$1"
  ADDEND_DUMP=$1 exits_with 0 "$(dirname "$addend")/example_own_sum" "${@:2}"
  python3 "$source/train/tests/cli/dump_check.py" "$1"/* >sums 2>err || fail "$1: the dumped addends do not sum to the gradients"
  python3 - "$source/train/tests/cli" "$1" <<'P'
import sys; sys.path.insert(0, sys.argv[1])
import safetensors
files = [f"{sys.argv[2]}/rank{rank:05d}.addend.m0.safetensors" for rank in range(4)]
divisors = {safetensors.metadata(file)["addend.divisor"] for file in files}
addends = {safetensors.load(file)["w"][2] for file in files}
print(f"{len(divisors)} divisors, {len(addends)} addends")
P
}
[ "$(dumped honest --reference whole.safetensors)" = "1 divisors, 4 addends" ] || fail "the dump of a correct job has not 1 divisor and 4 addends"
[ "$(dumped by-hand --by-hand)" = "1 divisors, 1 addends" ] || fail "the dump of gradients summed by hand has not 1 divisor and 1 addend"
[ "$(dumped own-count --own-count)" = "2 divisors, 4 addends" ] || fail "the dump of ranks that divide by their own counts has not 2 divisors and 4 addends"
exits_with 0 "$addend" diff --reference whole.safetensors honest/*
exits_with 1 "$addend" diff --reference whole.safetensors by-hand/*
exits_with 1 "$addend" diff own-count/*
exits_with 1 "$addend" diff by-hand/*
says out "0, 1," "2 and" 3
says out "CANNOT TELL" "1 of" "1 parameter" --allow-identical
exits_with 0 "$addend" diff --allow-identical by-hand/*

# Dumps that are not possible are refused.
recipe=$source/recipes/gpt-dp.yaml
exits_with 2 "$addend" train "$recipe" --set train.steps=2 -o no --dump-step 2
says err "step 2" "steps 0" 1
[ ! -e no ] || fail "a refused dump left the folder no"
exits_with 2 "$addend" train "$recipe" -o no --dump-step -1
exits_with 2 "$addend" train "$recipe" --set train.steps=3 --resume -o asked --dump-step 1
says err asked/dump-1
train gpt-dp --set checkpoint.every=1 -o begun
exits_with 2 "$addend" train "$recipe" --set train.steps=4 --resume -o begun --dump-step 1
says err "step 1" "2 steps"
train gpt-dp --set train.steps=4 --set checkpoint.every=1 --resume -o begun --dump-step 3
adds_up begun/dump-3/*
train gpt-dp -o begun --overwrite
[ ! -e begun/dump-3 ] || fail "--overwrite left the dump of the earlier run"
exits_with 2 "$addend" train "$source/recipes/moe-empty.yaml" -o views --dump-step 0
says err "dp_shard=3 tp=2" "efsdp=2 ep=3"
ADDEND_DUMP=nowhere exits_with 2 "$addend" train "$recipe" -o nothing
says err ADDEND_DUMP nowhere
mkdir untouched
export ADDEND_DUMP=untouched
ADDEND_DUMP_STEP=first exits_with 2 "$addend" train "$recipe" -o nothing
says err ADDEND_DUMP_STEP "0 to" 4294967295 first
ADDEND_DUMP_STEP=2 exits_with 2 "$addend" train "$recipe" --set train.steps=2 -o nothing
says err "step 2" "steps 0" 1
exits_with 2 "$addend" train "$recipe" --dump-step 1 -o nothing
says err "--dump-step 1" 'ADDEND_DUMP="untouched"'
exits_with 2 "$addend" check "$recipe"
says err ADDEND_DUMP
ADDEND_DUMP_STEP=5 exits_with 0 "$(dirname "$addend")/example_own_sum"
says err "step 5"
[ "$(grep -cw "step 5" err)" -eq 1 ] || fail "the step that does not come is not reported exactly once"
unset ADDEND_DUMP
rmdir untouched
[ ! -e nothing ] || fail "a folder was made for a run that did not begin"

# A full disk: it is reported, and no file under its final name is incomplete. Mounting needs privileges that not
# everybody has.
mkdir full
if mount -t tmpfs -o size=100k none full 2>/dev/null; then
  mounted=$work/full
  ADDEND_DUMP=full exits_with 3 "$addend" train "$recipe" -o into-full
  says_facts err .safetensors "No space"
  for file in full/*; do
    [ ! -e "$file" ] || python3 -c 'import sys; sys.path.insert(0, sys.argv[1]); import safetensors
tensors = safetensors.load(sys.argv[2]); assert all(len(data) for _, _, data in tensors.values())' "$source/train/tests/cli" "$file" || fail "$file is not whole"
    case $file in *.tmp) fail "$file is left" ;; esac
  done
else
  echo "dump: no file system can be mounted here, so no disk was filled"
fi
echo "dump: all hold"
