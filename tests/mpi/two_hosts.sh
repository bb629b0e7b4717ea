#!/usr/bin/env bash
# Engine mpi on two hosts: two network namespaces with addresses and host names of their own, Open MPI over TCP between
# them. The same bits as on shm, and a proof.
#   two_hosts.sh BUILD SOURCE
set -uo pipefail
export ASAN_OPTIONS=${ASAN_OPTIONS:-}:detect_leaks=0 # an MPI leaves memory of its own
build=$1 source=$2
if ! command -v mpirun.openmpi >/dev/null || [ ! -e "$build/libaddend-mpi-openmpi.so" ]; then
  echo "skipped: Open MPI is not installed here (script/setup --test installs it)"
  exit 77
fi
name=addend$$
if ! command -v ip >/dev/null || ! ip netns add "$name-a" 2>/dev/null; then
  echo "skipped: no network namespaces here (needs iproute2 and root)"
  exit 77
fi
work=$(mktemp -d)
trap 'ip netns del $name-a 2>/dev/null; ip netns del $name-b 2>/dev/null; rm -rf "$work"' EXIT
fail() { echo "failed: $*" >&2; exit 1; }
# The shells between the hosts take their words apart at spaces: names without any.
ln -s "$build" "$work/build" && ln -s "$source" "$work/source" && build=$work/build source=$work/source

ip netns add "$name-b" || fail "no second namespace"
ip link add va$$ netns "$name-a" type veth peer name vb$$ netns "$name-b" || fail "no pair of network devices"
for side in a b; do
  number=$([ $side = a ] && echo 1 || echo 2)
  ip -n "$name-$side" addr add 10.77.0.$number/24 dev v$side$$
  ip -n "$name-$side" link set v$side$$ up
  ip -n "$name-$side" link set lo up
done

# What Open MPI takes for ssh: a shell on the other host.
cat >"$work/shell" <<SHELL
#!/bin/sh
case \$1 in 10.77.0.1) side=a ;; 10.77.0.2) side=b ;; *) echo "no host \$1" >&2; exit 1 ;; esac
shift
exec ip netns exec $name-\$side unshare --uts sh -c "hostname host-\$side; \$*"
SHELL
chmod +x "$work/shell"
# on A B PROGRAM...: A ranks on the first host, B on the second
on() {
  local a=$1 b=$2
  shift 2
  printf '10.77.0.1 slots=%d\n10.77.0.2 slots=%d\n' "$a" "$b" >"$work/hosts"
  timeout 120 "$work/shell" 10.77.0.1 mpirun.openmpi --allow-run-as-root --hostfile "$work/hosts" --oversubscribe \
    --mca plm rsh --mca plm_rsh_agent "$work/shell" --mca pml ob1 --mca btl self,vader,tcp \
    --mca btl_tcp_if_include 10.77.0.0/24 --mca oob_tcp_if_include 10.77.0.0/24 -n $((a + b)) "$@" >"$work/out" 2>&1
}

for ranks in "1 1" "2 1" "3 2"; do
  set -- $ranks
  expected=$("$build/addend" run -n $(($1 + $2)) -- "$build/mpi_sums" | cut -d' ' -f1)
  on "$1" "$2" "$build/mpi_sums" || fail "$ranks: $(cat "$work/out")"
  grep -q "^$expected mpi\$" "$work/out" || fail "other bits on hosts of $ranks ranks: $(cat "$work/out")"
done
before=$(ip -n "$name-a" -s link show va$$ | awk '/RX:/ {getline; print $1}')
on 2 2 "$build/addend" check "$source/recipes/gpt-dp.yaml" --set "'mesh=\"dp_replicate=2 dp_shard=2\"'" || fail "$(cat "$work/out")"
grep -q proven "$work/out" || fail "not proven: $(cat "$work/out")"
# Matrices cut on a host, the sequence's ring across both; then a group of tp across both.
for mesh in "dp_shard=1 cp=2 tp=2" "dp_shard=2 tp=2 cp=1" "tp=2 cp=2"; do
  on 2 2 "$build/addend" check "$source/recipes/gpt-3d.yaml" --set "'mesh=\"$mesh\"'" || fail "$mesh: $(cat "$work/out")"
  grep -q proven "$work/out" || fail "$mesh is not proven: $(cat "$work/out")"
done
after=$(ip -n "$name-a" -s link show va$$ | awk '/RX:/ {getline; print $1}')
[ $((after - before)) -gt 100000 ] || fail "only $((after - before)) bytes came over the network"
echo "two hosts: the bits of shm, and proofs"
