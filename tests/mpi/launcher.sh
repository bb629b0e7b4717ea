#!/usr/bin/env bash
# Engine mpi under one launcher: the bits of shm wherever ranks are placed, proofs, mistakes, deaths, other versions.
#   launcher.sh BUILD SOURCE openmpi|mpich
set -uo pipefail
export ASAN_OPTIONS=${ASAN_OPTIONS:-}:detect_leaks=0 # an MPI leaves memory of its own
build=$1 source=$2 implementation=$3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
case $implementation in
  openmpi) launch=(mpirun.openmpi --allow-run-as-root --oversubscribe) ;;
  mpich) launch=(mpirun.mpich) ;;
esac
if ! command -v "${launch[0]}" >/dev/null || [ ! -e "$build/libaddend-mpi-$implementation.so" ]; then
  echo "skipped: $implementation is not installed here (script/setup --test installs it)"
  exit 77
fi

fail() { echo "failed: $*" >&2; exit 1; }
must() { "$@" >"$work/out" 2>&1 || { cat "$work/out" >&2; fail "status $?: $*"; }; }
# refused STATUS WORDS COMMAND...
refused() {
  local status=$1 words=$2 got
  shift 2
  timeout 200 "$@" >"$work/out" 2>&1
  got=$?
  [ "$got" -eq "$status" ] || { cat "$work/out" >&2; fail "status $got instead of $status: $*"; }
  grep -qF -- "$words" "$work/out" || { cat "$work/out" >&2; fail "\"$words\" is not in what was said by: $*"; }
}

# Ranks below $1 are on the first node. Notes its process, becomes the program.
cat >"$work/place" <<'PLACE'
#!/bin/sh
rank=${OMPI_COMM_WORLD_RANK:-$PMI_RANK}
[ "$rank" -lt "$1" ] && ADDEND_NODE=first || ADDEND_NODE=second
export ADDEND_NODE
[ -z "${ADDEND_TEST_PIDS:-}" ] || echo $$ >"$ADDEND_TEST_PIDS/$rank"
shift
exec "$@"
PLACE
chmod +x "$work/place"

for ranks in 1 2 3 5; do
  must "$build/addend" run -n "$ranks" -- "$build/mpi_sums"
  expected=$(cut -d' ' -f1 "$work/out")
  for first in "$ranks" $(((ranks + 1) / 2)); do
    must timeout 200 "${launch[@]}" -n "$ranks" "$work/place" "$first" "$build/mpi_sums"
    grep -q "^$expected mpi\$" "$work/out" || fail "other bits on $ranks ranks, $first of them on the first node: $(cat "$work/out")"
  done
done
echo "bits: as on shm, on one node and on two"

recipe=$source/recipes/gpt-dp.yaml
must "${launch[@]}" -n 3 "$build/addend" check "$recipe" --steps 2 --out "$work/proof.json"
[ -s "$work/proof.json" ] || fail "the first rank writes what --out names"
must "${launch[@]}" -n 3 "$work/place" 2 "$build/addend" check "$recipe"
must "${launch[@]}" -n 4 "$work/place" 2 "$build/addend" check "$recipe" --set 'mesh="dp_replicate=2 dp_shard=2"'
# Matrices and sequence cut, on one node and with every ring across two.
must "${launch[@]}" -n 12 "$build/addend" check "$source/recipes/gpt-3d.yaml"
must "${launch[@]}" -n 4 "$work/place" 2 "$build/addend" check "$source/recipes/gpt-3d.yaml" --set 'mesh="cp=2 tp=2"'
must "${launch[@]}" -n 4 "$work/place" 2 "$build/addend" check "$source/recipes/gpt-tp-sp.yaml" --set 'mesh="tp=2 dp_shard=2"'
# Rows of experts by counts, on one node and across two.
must "${launch[@]}" -n 4 "$build/addend" check "$source/recipes/moe-dp2ep.yaml"
must "${launch[@]}" -n 4 "$work/place" 2 "$build/addend" check "$source/recipes/moe-tp2ep.yaml"
# Rows over a bridge: on one node, and with sides that lie across two.
must "${launch[@]}" -n 8 "$build/addend" check "$source/recipes/ocr-fan-in-small.yaml"
must "${launch[@]}" -n 8 "$work/place" 3 "$build/addend" check "$source/recipes/ocr-fan-out.yaml"
must "${launch[@]}" -n 6 "$work/place" 4 "$build/addend" check "$source/recipes/ocr-ragged.yaml"
# Modules on ranks of their own: on one node, each on a node, and with one that lies across two.
pools=$source/recipes/ocr-disjoint.yaml
unlike=(--set 'mesh={encoder: "dp=3", model: "cp=2"}' --set train.global_batch=9 --set train.microbatches=3)
must "${launch[@]}" -n 8 "$build/addend" check "$pools" --steps 5
must "${launch[@]}" -n 8 "$work/place" 4 "$build/addend" check "$pools" --set shard.zero=3
for first in 5 3 2; do must "${launch[@]}" -n 5 "$work/place" $first "$build/addend" check "$pools" "${unlike[@]}"; done
must "${launch[@]}" -n 8 "$work/place" 4 "$build/addend" train "$pools" --set train.steps=3 --out "$work/pools"
must "$build/addend" train "$pools" --set train.steps=3 --out "$work/pools-on-shm"
cmp "$work/pools/weights.safetensors" "$work/pools-on-shm/weights.safetensors" || fail "pools learn other bits than on shm"
# Three pools, of which one lies across two nodes.
must "${launch[@]}" -n 10 "$work/place" 5 "$build/addend" check "$source/recipes/pools-10.yaml" --steps 3
must "${launch[@]}" -n 3 "$work/place" 1 "$build/addend" train "$recipe" --set train.steps=2 --out "$work/run"
grep -q 'loss .* in 2 steps' "$work/out" || fail "the first rank did not speak"
[ "$(grep -c 'loss .* in 2 steps' "$work/out")" -eq 1 ] || fail "not only the first rank spoke"
[ -e "$work/run/report.html" ] || fail "no report"
echo "proofs and training: on one node and on two"

refused 2 'started 2 rank(s), the mesh "dp_replicate=3 dp_shard=1" of gpt-dp has 3' "${launch[@]}" -n 2 "$build/addend" train "$recipe"
refused 2 'sabotage starts ranks of its own' "${launch[@]}" -n 3 "$build/addend" check "$recipe" --sabotage
refused 2 'no-such-recipe.yaml' "${launch[@]}" -n 2 "$build/addend" check no-such-recipe.yaml
must "${launch[@]}" -n 3 "$build/addend" train "$recipe" --set train.steps=2 --resume --out "$work/begun"
[ "$(grep -c 'begun/checkpoints: there is no checkpoint to go on from: the run begins' "$work/out")" -eq 1 ] || fail "--resume begins where there is nothing, and says so once"
refused 1 'different versions of addend: rank 0 has' "${launch[@]}" -n 1 "$build/mpi_sums" : -n 1 "$build/mpi_sums_of_another_version"
refused 1 'could not be loaded' env ADDEND_MPI_MODULE=/nowhere/module.so "${launch[@]}" -n 1 "$build/mpi_sums"
cp "$build/mpi_sums" "$work/moved"
refused 1 "libaddend-mpi-$implementation.so, is not in" "${launch[@]}" -n 1 "$work/moved"
must env ADDEND_MPI_MODULE="$build/libaddend-mpi-$implementation.so" "${launch[@]}" -n 1 "$work/moved"
echo "mistakes: refused with their sentence"

# A stopped rank, here the one that else speaks for all: another one says which it is. A killed rank: the launcher says so
# and ends the others.
says() { # WORDS: the run says them sooner or later
  for _ in $(seq 600); do grep -q "$1" "$work/out" && return 0; sleep 0.1; done
  kill -CONT "$stopped"
  kill $launcher
  fail "nobody says \"$1\": $(cat "$work/out")"
}
starts() { # RECIPE RANKS FIRST: trains until it is ended
  mkdir -p "$work/pids"
  ADDEND_TEST_PIDS=$work/pids "${launch[@]}" -n "$2" "$work/place" "$3" "$build/addend" train "$1" --set train.steps=1000000 --overwrite --out "$work/killed" >"$work/out" 2>&1 &
  launcher=$!
  for _ in $(seq 600); do [ -s "$work/killed/metrics.jsonl" ] && break; sleep 0.1; done
  [ -s "$work/killed/metrics.jsonl" ] || { kill $launcher; fail "training did not start: $(cat "$work/out")"; }
}
ends_when_killed() { # RANK
  kill -KILL "$(cat "$work/pids/$1")"
  (sleep 60; kill $launcher 2>/dev/null) & guard=$!
  wait $launcher
  status=$?
  kill $guard 2>/dev/null
  [ $status -ne 0 ] && [ $status -ne 143 ] || fail "status $status after rank $1 was killed: $(cat "$work/out")"
  for pid in $(cat "$work/pids"/*); do
    for _ in $(seq 600); do kill -0 "$pid" 2>/dev/null || break; sleep 0.1; done
    ! kill -0 "$pid" 2>/dev/null || fail "process $pid is left"
  done
  rm -rf "$work/pids" "$work/killed"
}
for first in 3 2; do
  starts "$recipe" 3 "$first"
  stopped=$(cat "$work/pids/0")
  kill -STOP "$stopped"
  says "rank 0 (process $stopped) is stopped"
  [ "$first" -eq 3 ] || says "rank 2 waits for .* at src/" # alone on the other node
  kill -CONT "$stopped"
  ends_when_killed 2
done
for rank in 1 6; do # of either pool
  starts "$pools" 8 4
  ends_when_killed $rank
done
echo "deaths: the launcher's status, nothing left; stops: named"

# The suites of engine shm.
for nodes in 1 2; do
  for suite in comm_protocol comm_conformance reduce_store; do
    must env ADDEND_TEST_MPIRUN="${launch[*]}" ADDEND_TEST_NODES=$nodes "$build/test_$suite"
    grep ' are taken, ' "$work/out"
  done
done
echo "suites: protocol, conformance and the store, on one node and on two"
