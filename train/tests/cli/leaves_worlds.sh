#!/usr/bin/env bash
# Tests that runs with train.leaves have the same bits in drawn worlds of 1 to 12 ranks: in each of three families (a gpt
# that computes in bf16, a custom program with absent gradients, a mixture of experts that two ranks of tp exchange among
# each other) all worlds end with one checksum of weights, losses and norms, whatever the mesh, ZeRO stage, microbatches, order of reductions, bucket size and backend. Clipping is active,
# some tokens do not count, and some leaves are empty.
# Usage: leaves_worlds.sh ADDEND SOURCE
set -eu
export ASAN_OPTIONS=${ASAN_OPTIONS:-}:detect_leaks=0 # an MPI leaves its own memory
addend=$1 source=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
. "$source/tests/support/draw.sh"
choose_seed
worlds=8
[ "$ADDEND_TEST_SEED" != all ] || worlds=30
failed=0

launch=()
if [ -e "$(dirname "$addend")/libaddend-mpi-openmpi.so" ] && command -v mpirun.openmpi >/dev/null; then
  launch=(mpirun.openmpi --allow-run-as-root --oversubscribe)
elif [ -e "$(dirname "$addend")/libaddend-mpi-mpich.so" ] && command -v mpirun.mpich >/dev/null; then
  launch=(mpirun.mpich)
else
  echo "no MPI is installed here, so no world is drawn for backend mpi (script/setup --test installs one)"
fi

"${CC:-cc}" -std=gnu11 -O1 -ffp-contract=off -shared -fPIC -I"$source/core/include" -I"$source/audit/include" \
  -I"$source/train/include" "$source/train/tests/cli/leaves_custom.c" -o leaves_custom.so
gpt=("$source/recipes/gpt-leaves.yaml" --set train.steps=5 --set model.layers=1 --set model.d_model=16 --set model.heads=2
  --set data.seq=12 --set train.leaves=13 --set 'precision={compute: bf16, grad: bf16, reduce: f32}')
moe=("$source/recipes/moe-leaves.yaml" --set train.steps=5 --set train.clip=0.3)
custom=("$source/train/tests/cli/leaves_custom.yaml" --program "$work/leaves_custom.so")

# draw_worlds FAMILY: prints a world a line: backend, ranks on the first of two hosts, and the keys that differ.
draw_worlds() {
  python3 - "$1" "$ADDEND_TEST_SEED" $worlds ${launch[0]:+mpi} <<'P'
import random, sys
family, seed, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
draw = random.Random(f"{family} {seed}")
def dealt(values): # each value as often as the others
    values = list(values) * (count // len(values) + 1)
    draw.shuffle(values)
    return values
others = {"moe": " tp=2"}.get(family, "") # beside the data-parallel axes
ranks, zeros, backends = dealt(range(1, 7 if others else 13)), dealt(range(4)), dealt(["shm", "hostile"] + sys.argv[4:])
lists = [["none", "shard", "all"], ["shard", "all", "shard", "all"]] # on three replicas of two shards
for i in range(count):
    zero, shards = zeros[i], draw.choice([n for n in range(1, ranks[i] + 1) if ranks[i] % n == 0])
    replicas = ranks[i] // shards
    sync = [draw.choice(["none", "shard", "all"] if zero != 1 else ["none"]) for _ in range(draw.randrange(4))] + ["all"]
    if i < len(lists) and not others:
        replicas, shards, sync, zero = 3, 2, lists[i], draw.choice([0, 2, 3])
    all_ranks = replicas * shards * (2 if others else 1)
    first = draw.randrange(1, max(all_ranks, 2))
    bucket = draw.choice([0.0005, 0.005, 25])
    backend = backends[i] if all_ranks > 1 else "shm"
    print(f"{backend} {first} mesh=dp_replicate={replicas} dp_shard={shards}{others}|shard.zero={zero}|"
          f"train.microbatches={len(sync)}|train.sync=[{', '.join(sync)}]|shard.bucket_mib={bucket}")
P
}

# Sets `command` to what trains in a world: command BACKEND RANKS-ON-FIRST-HOST RANKS ARGUMENTS...
set_command() {
  local backend=$1 first=$2 ranks=$3
  shift 3
  command=("$addend" train "$@")
  [ "$backend" != hostile ] || command=(env ADDEND_HOSTILE="$first" "${command[@]}")
  [ "$backend" = mpi ] || return 0
  local node="[ \${OMPI_COMM_WORLD_RANK:-\$PMI_RANK} -lt $first ] && ADDEND_NODE=first || ADDEND_NODE=second"
  command=("${launch[@]}" -n "$ranks" sh -c "$node; export ADDEND_NODE; exec \"\$@\"" place "${command[@]}")
}

# checksum RANKS BACKEND: prints the checksum of the run, which must have been there, and its parts: weights, and of each
# step what it computed, without what it took.
checksum() {
  python3 - "$@" <<'P'
import hashlib, json, sys
run = json.load(open("run/run.json"))
assert [str(run["ranks"]), run["backend"]] == sys.argv[1:], (run["ranks"], run["backend"])
measured = "seconds tokens_per_second wait_seconds reduction_seconds pss_rank_bytes pss_all_bytes".split()
parts = [("weights", open("run/weights.safetensors", "rb").read())]
for line in map(json.loads, open("run/metrics.jsonl")):
    kept = {key: value for key, value in line.items() if key not in measured}
    assert "loss" in kept and kept["norm"] > 0.5, "the norm must be above train.clip"
    parts.append((f"step {line['step']}", json.dumps(kept, sort_keys=True).encode()))
assert len(parts) == 6, [name for name, _ in parts]
print(hashlib.sha256(b"".join(data for _, data in parts)).hexdigest()[:16],
      *(f"{name.replace(' ', '-')}:{hashlib.sha256(data).hexdigest()[:8]}" for name, data in parts))
P
}

# try_world FAMILY BACKEND RANKS-ON-FIRST-HOST KEYS: the run's checksum must be that of one rank, `expected`.
try_world() {
  local family=$1 backend=$2 first=$3 keys sets=() key ranks=1 found status=0
  IFS='|' read -ra keys <<<"$4"
  for key in "${keys[@]}"; do sets+=(--set "$key"); done
  for key in $(grep -oE '(dp_[a-z]*|tp)=[0-9]+' <<<"$4"); do ranks=$((ranks * ${key#*=})); done
  declare -n arguments=$family
  set_command "$backend" "$first" "$ranks" "${arguments[@]}" --out "$work/run" --overwrite ${sets[@]+"${sets[@]}"}
  rm -rf run
  timeout 120 "${command[@]}" >out 2>err </dev/null || status=$?
  found=$([ $status -ne 0 ] || checksum "$ranks" "$backend" 2>&1) || status=$?
  [ -n "$expected" ] || expected=$found
  if [ $status -eq 0 ] && [ "$found" = "$expected" ]; then return 0; fi
  failed=$((failed + 1))
  echo "FAILED: $family on $ranks ranks, backend $backend:" && printf ' %q' "${command[@]}" && echo
  if [ $status -ne 0 ]; then echo "  exit status $status" && head -n 5 err; else echo "  is        $found" && echo "  and alone $expected"; fi
} >&2

for family in gpt custom moe; do
  expected= others=
  [ $family != moe ] || others=" tp=2"
  try_world $family shm 1 "mesh=dp_replicate=1 dp_shard=1$others"
  echo "worlds of $family: $worlds of any number are taken, ADDEND_TEST_SEED=$ADDEND_TEST_SEED"
  while read -r backend first keys; do try_world $family "$backend" "$first" "$keys"; done < <(draw_worlds $family)
  echo "$family: ${expected%% *}"
done
[ $failed -eq 0 ] || { echo "FAILED: $failed of $((3 * worlds)) worlds have other bits than one rank, or none" >&2; exit 1; }
echo "OK: $worlds worlds of each of three programs have the bits of one data-parallel rank"
