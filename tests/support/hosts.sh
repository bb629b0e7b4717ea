# Makes several hosts of one machine for scripts that source it: network namespaces with their own addresses and host
# names, joined by a network bridge in one more namespace, and Open MPI over TCP between them. Where that is not
# possible the script ends with status 77.
#   open_hosts BUILD COUNT   makes the hosts, and $host_folder, which is removed with them
#   on_hosts "2 2" PROGRAM   runs 2 ranks on each of the first two hosts; their output is in $host_folder/out
hosts_name=addend$$
close_hosts() {
  local i
  for i in $(seq 0 "$host_count"); do ip netns del "$hosts_name-$i" 2>/dev/null; done
  rm -rf "$host_folder"
}
open_hosts() {
  local build=$1 i
  host_count=$2
  if ! command -v mpirun.openmpi >/dev/null || [ ! -e "$build/libaddend-mpi-openmpi.so" ]; then
    echo "skipped: Open MPI is not installed here (script/setup --test installs it)"
    exit 77
  fi
  if ! command -v ip >/dev/null || ! ip netns add "$hosts_name-0" 2>/dev/null; then
    echo "skipped: no network namespaces here (needs iproute2 and root)"
    exit 77
  fi
  host_folder=$(mktemp -d)
  trap close_hosts EXIT
  # The first namespace has the network bridge, to which the hosts are connected.
  if ! ip -n "$hosts_name-0" link add bridge type bridge || ! ip -n "$hosts_name-0" link set bridge up; then
    echo "skipped: no network bridges here"
    exit 77
  fi
  for i in $(seq "$host_count"); do
    ip netns add "$hosts_name-$i" && ip link add eth netns "$hosts_name-$i" type veth peer name "port$i" netns "$hosts_name-0" &&
      ip -n "$hosts_name-$i" addr add "10.77.0.$i/24" dev eth && ip -n "$hosts_name-$i" link set eth up &&
      ip -n "$hosts_name-$i" link set lo up && ip -n "$hosts_name-0" link set "port$i" master bridge up || exit 1
  done
  # Open MPI runs this script instead of ssh: it starts a shell on the other host.
  cat >"$host_folder/shell" <<SHELL
#!/bin/sh
host=\${1##*.}
shift
exec ip netns exec $hosts_name-\$host unshare --uts sh -c "hostname host-\$host; \$*"
SHELL
  chmod +x "$host_folder/shell"
}
on_hosts() {
  local ranks i=0 all=0
  : >"$host_folder/hosts"
  for ranks in $1; do
    i=$((i + 1)) all=$((all + ranks))
    echo "10.77.0.$i slots=$ranks" >>"$host_folder/hosts"
  done
  shift
  timeout 120 "$host_folder/shell" 10.77.0.1 mpirun.openmpi --allow-run-as-root --hostfile "$host_folder/hosts" --oversubscribe \
    --mca plm rsh --mca plm_rsh_agent "$host_folder/shell" --mca pml ob1 --mca btl self,vader,tcp \
    --mca btl_tcp_if_include 10.77.0.0/24 --mca oob_tcp_if_include 10.77.0.0/24 -n "$all" "$@" >"$host_folder/out" 2>&1
}
