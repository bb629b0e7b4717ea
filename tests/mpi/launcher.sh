#!/usr/bin/env bash
# Tests backend mpi under one launcher: the bits are those of backend shm wherever ranks are placed; checks, mistakes,
# deaths of ranks, and ranks of different versions.
#   launcher.sh BUILD SOURCE openmpi|mpich
set -uo pipefail
export ASAN_OPTIONS=${ASAN_OPTIONS:-}:detect_leaks=0 # an MPI leaves its own memory
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
. "$source/tests/support/says.sh"
must() { "$@" >"$work/out" 2>&1 || { cat "$work/out" >&2; fail "status $?: $*"; }; }
# refused STATUS FACTS COMMAND...: the command must exit with this status and a message with these facts (| between them)
refused() {
  local status=$1 facts=$2 got
  shift 2
  timeout 200 "$@" >"$work/out" 2>&1
  got=$?
  [ "$got" -eq "$status" ] || { cat "$work/out" >&2; fail "status $got instead of $status: $*"; }
  says_all "$work/out" "$facts"
}

# place NODES PROGRAM...: NODES has a letter for each rank, which names its node; or it is the number of ranks on the
# first node, with the others on a second. Notes its pid and becomes the program.
cat >"$work/place" <<'PLACE'
#!/bin/sh
rank=${OMPI_COMM_WORLD_RANK:-$PMI_RANK}
case $1 in
  *[a-z]*) ADDEND_NODE=$(printf %s "$1" | cut -c$((rank + 1))) ;;
  *) [ "$rank" -lt "$1" ] && ADDEND_NODE=first || ADDEND_NODE=second ;;
esac
export ADDEND_NODE
[ -z "${ADDEND_TEST_PIDS:-}" ] || echo $$ >"$ADDEND_TEST_PIDS/$rank"
shift
exec "$@"
PLACE
chmod +x "$work/place"

. "$source/tests/support/draw.sh"
# Of the implementations each second commit runs this one (script/test), so turns are taken by every second commit.
# Nodes that hold whole parts of the summation tree, that cut it, and that hold every other rank.
every=2 take_turns "placings under $implementation" 3 a aa ab aaa aab abc aabb abab aaaaa aaabb aaabbb aabbcc abbcca
for nodes in "${drawn[@]}"; do
  expected=$("$build/addend" run -n ${#nodes} -- "$build/mpi_sums" | cut -d' ' -f1)
  must timeout 200 "${launch[@]}" -n ${#nodes} "$work/place" "$nodes" "$build/mpi_sums"
  grep -q "^$expected mpi\$" "$work/out" || fail "other bits on ranks placed as $nodes: $(cat "$work/out")"
done
echo "bits: as on shm, on one node and on several"

recipe=$source/recipes/gpt-dp.yaml
# arguments: number of ranks, how many of them are on the first node (`all`: nodes are not set), recipe, options with +
# for a space
checks() {
  local ranks=$1 first=$2 name=$3 on=()
  shift 3
  [ "$first" = all ] || on=("$work/place" "$first")
  must "${launch[@]}" -n "$ranks" ${on[@]+"${on[@]}"} "$build/addend" check "$source/recipes/$name.yaml" "${@//+/ }"
}
must "${launch[@]}" -n 3 "$build/addend" check "$recipe" --steps 2 --out "$work/proof.json"
[ -s "$work/proof.json" ] || fail "the first rank writes what --out names"
# Checks with cut parameters, matrices and sequences, experts' rows, rows over a bridge, and modules on disjoint ranks:
# on one node, and with rings, groups and pools that span two nodes or lie on one each.
unlike='ocr-disjoint --set mesh={encoder:+"dp=3",+model:+"cp=2"} --set train.global_batch=9 --set train.microbatches=3'
draw_cases "checks under $implementation" 1 \
  "3 2 gpt-dp" "4 2 gpt-dp --set mesh=dp_replicate=2+dp_shard=2" \
  "12 all gpt-3d" "4 2 gpt-3d --set mesh=cp=2+tp=2" "4 2 gpt-tp-sp --set mesh=tp=2+dp_shard=2" \
  "4 all moe-dp2ep" "4 2 moe-tp2ep" \
  "8 all ocr-fan-in-small" "8 3 ocr-fan-out" "6 4 ocr-ragged" \
  "8 all ocr-disjoint --steps 5" "8 4 ocr-disjoint --set shard.zero=3" "5 5 $unlike" "5 3 $unlike" "5 2 $unlike" \
  "4 3 gpt-pp --set mesh=pp=2+tp=2" "4 2 gpt-pp --set mesh=pp=2+dp_shard=2 --set schedule.kind=zb" \
  "10 5 pools-10 --steps 3" # one of the three pools spans two nodes
for arguments in "${drawn[@]}"; do checks $arguments; done
# Which ranks share memory decides whether they gather or read directly, and so the collectives that a check expects;
# nodes of different sizes.
checks 3 2 gpt-dp --set mesh=dp_shard=3 --set shard.zero=3 --steps 1
checks 5 3 gpt-dp --set mesh=dp_shard=5 --set shard.zero=1 --steps 1
# With train.leaves the first ranks take a second run, the reference for bits; here its two ranks are on two nodes.
checks 4 1 moe-leaves --set mesh=dp_shard=2+tp=2 --set shard.zero=3
says_facts "$work/out" 6 2 # in a terminal, which Open MPI gives it, the line has colours
pools=$source/recipes/ocr-disjoint.yaml
must "${launch[@]}" -n 8 "$work/place" 4 "$build/addend" train "$pools" --set train.steps=3 --out "$work/pools"
must "$build/addend" train "$pools" --set train.steps=3 --out "$work/pools-on-shm"
cmp "$work/pools/weights.safetensors" "$work/pools-on-shm/weights.safetensors" || fail "pools learn other bits than on shm"
must "${launch[@]}" -n 3 "$work/place" 1 "$build/addend" train "$recipe" --set train.steps=2 --out "$work/run"
says "$work/out" "2 steps" "$work/run/report.html"
[ "$(grep -c '/run/report.html' "$work/out")" -eq 1 ] || fail "not only the first rank spoke"
[ -e "$work/run/report.html" ] || fail "no report"
echo "checks and training: on one node and on two"

# A dump: each rank writes its own files, which are those of ranks on backend shm.
must "${launch[@]}" -n 3 "$work/place" 2 "$build/addend" train "$recipe" --set train.steps=2 --dump-step 1 --out "$work/dumped"
must "$build/addend" train "$recipe" --set train.steps=2 --dump-step 1 --out "$work/dumped-on-shm"
must diff -r "$work/dumped/dump-1" "$work/dumped-on-shm/dump-1"
must "$build/addend" diff --json "$work/dumped/dump-1"
python3 -c 'import json, sys; norm = json.load(open(sys.argv[1]))["norm"]; assert norm["pass"] and norm["reported"] > 0, norm' "$work/out" || fail "no norm in the dump"
mkdir "$work/own"
must env ADDEND_DUMP="$work/own" "${launch[@]}" -n 4 "$build/example_own_sum" --own-count
refused 1 BAD "$build/addend" diff "$work/own"
status=0; ADDEND_DUMP=$work/own timeout 200 "${launch[@]}" -n 4 "$build/example_own_sum" >"$work/out" 2>&1 || status=$?
[ $status -eq 1 ] || { cat "$work/out" >&2; fail "status $status instead of 1: a dump over another"; }
says_facts "$work/out" ADDEND_DUMP .addend.m0.safetensors # whichever rank speaks first
refused 2 "ADDEND_DUMP_STEP|0 to|4294967295|x" env ADDEND_DUMP_STEP=x "${launch[@]}" -n 3 "$build/addend" train "$recipe" --out "$work/nothing"
[ ! -e "$work/nothing" ] || fail "a folder is made for what does not begin"
echo "dumps: as on shm"

refused 2 '2 rank(s)|dp_replicate=3 dp_shard=1|has 3' "${launch[@]}" -n 2 "$build/addend" train "$recipe"
refused 2 '--mutate' "${launch[@]}" -n 3 "$build/addend" check "$recipe" --mutate
refused 2 'no-such-recipe.yaml' "${launch[@]}" -n 2 "$build/addend" check no-such-recipe.yaml
must "${launch[@]}" -n 3 "$build/addend" train "$recipe" --set train.steps=2 --resume --out "$work/begun"
says "$work/out" "$work/begun/checkpoints"
[ "$(grep -c 'begun/checkpoints: ' "$work/out")" -eq 1 ] || fail "--resume begins where there is nothing, and says so once"
refused 1 'rank 0|0.0.0' "${launch[@]}" -n 1 "$build/mpi_sums" : -n 1 "$build/mpi_sums_of_another_version"
refused 1 /nowhere/module.so env ADDEND_MPI_MODULE=/nowhere/module.so "${launch[@]}" -n 1 "$build/mpi_sums"
cp "$build/mpi_sums" "$work/moved"
refused 1 "libaddend-mpi-$implementation.so" "${launch[@]}" -n 1 "$work/moved"
must env ADDEND_MPI_MODULE="$build/libaddend-mpi-$implementation.so" "${launch[@]}" -n 1 "$work/moved"
echo "mistakes: refused with their sentence"

# A stopped rank (here the one that usually reports): another rank reports it. A killed rank: the launcher reports it
# and ends the others.
waits_for() { # argument: pattern of a line that the run must print within a minute
  for _ in $(seq 600); do grep -q "$1" "$work/out" && return 0; sleep 0.1; done
  kill -CONT "$stopped"
  kill $launcher
  fail "nobody says \"$1\": $(cat "$work/out")"
}
starts() { # arguments: recipe, number of ranks, number on the first node; trains until it is ended
  mkdir -p "$work/pids"
  ADDEND_TEST_PIDS=$work/pids "${launch[@]}" -n "$2" "$work/place" "$3" "$build/addend" train "$1" --set train.steps=1000000 --overwrite --out "$work/killed" >"$work/out" 2>&1 &
  launcher=$!
  for _ in $(seq 600); do [ -s "$work/killed/metrics.jsonl" ] && break; sleep 0.1; done
  [ -s "$work/killed/metrics.jsonl" ] || { kill $launcher; fail "training did not start: $(cat "$work/out")"; }
}
ends_when_killed() { # argument: rank
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
  waits_for "rank 0 .*$stopped"
  says_facts "$work/out" "rank 0" "process $stopped"
  [ "$first" -eq 3 ] || waits_for "rank 2 .* \\(core\\|train\\)/" # rank 2 is alone on the other node
  kill -CONT "$stopped"
  ends_when_killed 2
done
draw_cases "killed ranks under $implementation" 1 1 6 # a rank of either pool
for rank in "${drawn[@]}"; do
  starts "$pools" 8 4
  ends_when_killed $rank
done
echo "deaths: the launcher's status, nothing left; stops: named"

# The test suites of backend shm, on one node and on two.
every=2 take_turns "suites under $implementation" 4 {1,2}" "{comm_protocol,comm_conformance,comm_operations,comm_dtypes,comm_transfer,comm_ranks,reduce_store,reduce_slots,bridge_identical}
for case in "${drawn[@]}"; do
  read -r nodes suite <<<"$case"
  must env ADDEND_TEST_MPIRUN="${launch[*]}" ADDEND_TEST_NODES=$nodes "$build/test_$suite"
  grep ' are taken, ' "$work/out"
done
echo "suites: protocol, conformance, added operations, dtypes, transfers, lists, the store and slots, bridges between identical meshes"
