#!/usr/bin/env bash
# Tests backend mpi on two hosts and on three, which are network namespaces: the same bits as on shm, checks, and how
# many bytes leave the hosts.
#   two_hosts.sh BUILD SOURCE
set -uo pipefail
export ASAN_OPTIONS=${ASAN_OPTIONS:-}:detect_leaks=0 # an MPI leaves its own memory
build=$1 source=$2
. "$source/tests/support/hosts.sh"
open_hosts "$build" 3
out=$host_folder/out
fail() { echo "failed: $*" >&2; exit 1; }
# The shells between the hosts split words at spaces, so these links have names without any.
ln -s "$build" "$host_folder/build" && ln -s "$source" "$host_folder/source" && build=$host_folder/build source=$host_folder/source

for ranks in "1 1" "2 1" "2 2" "3 3" "3 2" "1 1 1"; do
  expected=$("$build/addend" run -n $((${ranks// /+})) -- "$build/mpi_sums" | cut -d' ' -f1)
  on_hosts "$ranks" "$build/mpi_sums" || fail "$ranks: $(cat "$out")"
  grep -q "^$expected mpi\$" "$out" || fail "other bits on hosts of $ranks ranks: $(cat "$out")"
done
holds() { grep -q '"holds": true' "$out" || fail "$1: $(cat "$out")"; } # argument: what does not hold, if the document in `out` says so
on_hosts "2 2" "$build/addend" check --json "$source/recipes/gpt-dp.yaml" --set "'mesh=\"dp_replicate=2 dp_shard=2\"'" || fail "$(cat "$out")"
holds gpt-dp
# Matrices are cut on a host while the sequence's ring spans both hosts; then a tp group spans both.
for mesh in "dp_shard=1 cp=2 tp=2" "dp_shard=2 tp=2 cp=1" "tp=2 cp=2"; do
  on_hosts "2 2" "$build/addend" check --json "$source/recipes/gpt-3d.yaml" --set "'mesh=\"$mesh\"'" || fail "$mesh: $(cat "$out")"
  holds "$mesh"
done
# Several stages on each host, and one of three stages alone.
for case in "2 2;pp=2 tp=2;zb" "2 1;pp=3;1f1b"; do
  IFS=';' read -r ranks mesh kind <<<"$case"
  on_hosts "$ranks" "$build/addend" check --json "$source/recipes/gpt-pp.yaml" --set "'mesh=\"$mesh\"'" --set schedule.kind="$kind" || fail "$case: $(cat "$out")"
  holds "$case"
done
echo "hosts: the bits of shm, and checks"

# What leaves the hosts, in units of the value's size. A sum: one value for each slice and each other host that is a
# part of the summation tree (bf16 travels as f32). A value for all ranks: one for each other host. A tenth more is
# allowed for headers and acknowledgements.
sends() { # arguments: "RANKS...", "OPERATION DTYPE VALUES" ...
  local ranks=$1 each
  shift
  on_hosts "$ranks" "$build/mpi_link" || fail "$ranks: $(cat "$out")"
  for each in "$@"; do
    awk -v wanted="$each" 'BEGIN { split(wanted, w, " ") } $1 == w[1] && $2 == w[2] { found = $3 >= w[3] && $3 <= w[3] * 1.1 }
      END { exit !found }' "$out" || fail "hosts of $ranks ranks: $each is not what they send: $(cat "$out")"
  done
}
sends "1 1" "all_reduce f32 2" "reduce_scatter f32 1" "all_gather f32 1"
for ranks in "2 2" "3 3"; do
  sends "$ranks" "all_reduce f32 2" "reduce_scatter f32 1" "reduce_scatter bf16 2" "reduce_scatter_elsewhere f32 1" \
    "all_gather f32 1" "all_gather_elsewhere f32 1"
done
sends "1 1 1" "all_reduce f32 4" "reduce_scatter f32 2" "reduce_scatter bf16 2" "all_gather f32 2"
echo "hosts: no byte too many"
