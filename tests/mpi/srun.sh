#!/usr/bin/env bash
# Tests backend mpi under srun: a Slurm cluster of this one machine is started for this test alone; then the same
# training and check run with each MPI that is built; and the message if tasks and MPI do not fit together.
#   srun.sh BUILD SOURCE
set -uo pipefail
export ASAN_OPTIONS=${ASAN_OPTIONS:-}:detect_leaks=0 # an MPI leaves its own memory
build=$1 source=$2
PATH=$PATH:/usr/sbin
for program in srun slurmctld slurmd munged; do
  command -v $program >/dev/null || { echo "skipped: no $program here (script/setup --test installs it)"; exit 77; }
done
[ "$(id -u)" -eq 0 ] || { echo "skipped: slurmd runs as root only"; exit 77; }

unset "${!SLURM_@}" # an outer Slurm job must not be taken for this test's cluster
work=$(mktemp -d)
chmod 711 "$work" # every user must be able to reach munged's socket
export SLURM_CONF=$work/slurm.conf
daemons=()
clean_up() {
  for pid in "${daemons[@]}"; do kill "$pid" 2>/dev/null; wait "$pid" 2>/dev/null; done
  rm -rf "$work"
}
trap clean_up EXIT
fail() { echo "failed: $*" >&2; exit 1; }
. "$source/tests/support/says.sh"

host=$(hostname -s)
read -r controller node < <(python3 -c '
import socket
sockets = [socket.socket() for _ in range(2)]
for one in sockets: one.bind(("127.0.0.1", 0))
print(*[one.getsockname()[1] for one in sockets])')
mkdir "$work/state" "$work/spool"
cat >"$SLURM_CONF" <<C
ClusterName=addend
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$controller
SlurmdPort=$node
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=$work/munge.socket
CredType=cred/munge
StateSaveLocation=$work/state
SlurmdSpoolDir=$work/spool
SlurmctldPidFile=$work/slurmctld.pid
SlurmdPidFile=$work/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
MpiDefault=none
ReturnToService=2
SlurmdParameters=config_overrides
NodeName=$host NodeAddr=127.0.0.1 CPUs=8 State=UNKNOWN
PartitionName=test Nodes=ALL Default=YES State=UP
C
# The cluster has its own key: the daemons listen on ports, and nobody else may start programs through them.
(umask 077; head -c 1024 /dev/urandom >"$work/munge.key")
daemon() { # arguments: program, its arguments; its messages are in PROGRAM.log
  "$@" >"$work/$1.log" 2>&1 & daemons+=($!)
}
daemon munged --foreground --force --key-file="$work/munge.key" --socket="$work/munge.socket" --pid-file="$work/munge.pid" \
  --seed-file="$work/munge.seed" --num-threads=1
daemon slurmctld -D
daemon slurmd -D -N "$host"
all_live() { kill -0 "${daemons[@]}" 2>/dev/null; }
for _ in $(seq 600); do all_live && [ "$(sinfo -h -o %t 2>/dev/null)" != idle ] || break; sleep 0.1; done
if ! all_live || [ "$(timeout 60 srun -n 2 echo task 2>"$work/srun.log" | grep -c task)" -ne 2 ]; then
  echo "skipped: this machine does not run a cluster: $(tail -n 2 "$work"/*.log | tr '\n' ' ')"
  exit 77
fi

recipe=$source/recipes/hsdp-2x2.yaml
start() { timeout 120 srun "$@" >"$work/out" 2>&1; }
refused() { # arguments: facts of the message with | between them, arguments of srun
  local facts=$1 status
  shift
  start "$@" && status=0 || status=$?
  [ $status -eq 2 ] || { cat "$work/out" >&2; fail "status $status instead of 2: srun $*"; }
  says_all "$work/out" "$facts"
  [ "$(grep -cwF -- "${facts%%|*}" "$work/out")" -eq 1 ] || { cat "$work/out" >&2; fail "\"${facts%%|*}\" is not said once by: srun $*"; }
}

tried=0
speaks() { # arguments: MPI implementation, srun's --mpi type
  [ -e "$build/libaddend-mpi-$1.so" ] || return 0
  if ! srun --mpi=list 2>&1 | grep -qw "$2"; then echo "srun --mpi=$2 is not here: $1 is not tried"; return 0; fi
  tried=$((tried + 1))
  start -K --mpi="$2" -n 4 "$build/addend" train "$recipe" --set train.steps=2 --out "$work/run-$1" || { cat "$work/out" >&2; fail "training, $1"; }
  says "$work/out" "2 steps" "$work/run-$1/report.html"
  [ "$(grep -c "/run-$1/report.html" "$work/out")" -eq 1 ] || { cat "$work/out" >&2; fail "not only the first rank speaks, $1"; }
  start -K --mpi="$2" -n 4 "$build/addend" check "$recipe" || { cat "$work/out" >&2; fail "the check, $1"; }
  refused 'dp_replicate=2 dp_shard=2|3 rank(s)|has 4' --mpi="$2" -n 3 "$build/addend" train "$recipe"
  echo "$1: trained and checked under srun --mpi=$2"
}
speaks openmpi pmix
speaks mpich pmi2

refused "--mpi=pmix|task 0|of 3" --mpi=none -n 3 "$build/addend" train "$recipe"
if [ -e "$build/libaddend-mpi-mpich.so" ] && srun --mpi=list 2>&1 | grep -qw pmix; then
  export ADDEND_MPI_MODULE=mpich
  refused "--mpi=pmix|4 ranks|MPICH" --mpi=pmix -n 4 "$build/addend" train "$recipe"
  unset ADDEND_MPI_MODULE
fi
start --mpi=none -n 1 "$build/addend" train "$recipe" --set train.steps=2 --out "$work/alone" || { cat "$work/out" >&2; fail "one task starts its own ranks"; }
echo "srun: $tried implementations, all hold"
