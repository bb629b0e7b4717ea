#!/usr/bin/env bash
# Tests that `addend bench --hosts` measures between network namespaces, counts what their interfaces send, and leaves
# none of them behind, however it ends. Times are not judged.
#   bench_hosts.sh BUILD
set -euo pipefail
addend=$1/addend source=$(cd -- "$(dirname -- "$0")/../../.." && pwd)
. "$source/tests/support/says.sh"
fail() { echo "failed: $*" >&2; exit 1; }
if [ ! -e "$1/peers/bench_rank" ] || { ! command -v mpirun.openmpi && ! command -v mpirun.mpich; } >/dev/null; then
  echo "skipped: neither Open MPI nor MPICH is installed here (script/setup --test installs them)"
  exit 77
fi
if ! command -v ip >/dev/null || ! ip netns add "addend$$" 2>/dev/null; then
  echo "skipped: no network namespaces here (needs iproute2 and root)"
  exit 77
fi
ip netns del "addend$$"
log=$(mktemp)
trap 'rm -f -- "$log"' EXIT

# Network namespaces are named by the pid of the bench that made them.
is_gone() { ! ip netns 2>/dev/null | grep -q "^addend-bench$1\b"; }
gone_soon() { # arguments: pid, words
  for _ in $(seq 300); do
    is_gone "$1" && return
    sleep 0.2
  done
  fail "$2: namespaces are left: $(ip netns)"
}
could_not() { # arguments: what judges the message, a fact of it, VARIABLE=VALUE, options
  local judge=$1 fact=$2 set=$3 status=0 bench
  shift 3
  env "$set" "$addend" bench --quick "$@" >/dev/null 2>"$log" &
  bench=$!
  wait $bench || status=$?
  [ $status -eq 3 ] || fail "bench $*: exit $status, not 3: $(cat "$log")"
  $judge "$log" "$fact"
  is_gone $bench || fail "bench $*: namespaces are left: $(ip netns)"
}

folders() { find /tmp -maxdepth 1 -name 'addend-hosts*' | wc -l; }
before=$(folders)
document=$("$addend" bench --hosts 2x1,2x2 --quick --json 2>"$log") || fail "$(cat "$log")"
[ "$(folders)" -le "$before" ] || fail "a folder is left in /tmp"
! grep -q "^addend bench: " "$log" || fail "$(cat "$log")"
python3 - "$document" <<'PY'
import json, sys
rows = json.loads(sys.argv[1])["rows"]
values = {"all_reduce": 2, "reduce_scatter": 1, "all_gather": 1}  # that must cross; of an all_to_all each rank's half
for row in rows:
    assert row["backend"] == "mpi" and row["hosts"] == 2 and row["ranks"] == 2 * row["ranks_per_host"], row
    assert 0 < row["seconds_min"] <= row["seconds_median"] <= row["seconds_max"] and row["link_seconds"] > 0, row
    assert row["peers"] == {} and row["qdisc"] is None and row["sent_bytes"].keys() == {"addend", "link"}, row
    least = row["bytes"] * values.get(row["op"], row["ranks_per_host"])
    assert row["least_bytes"] == least, row
    for sent in row["sent_bytes"].values():  # up to 8 KiB a call travels whole
        assert least <= sent and (row["bytes"] < 1 << 20 or sent <= 1.1 * least), row
    assert row["processor_seconds"]["addend"] > 0 and row["processor_seconds"]["link"] > 0, row
wanted = [(world, op, size) for world in (1, 2) for op in (*values, "all_to_all") for size in (4096, 1 << 20)]
assert [(row["ranks_per_host"], row["op"], row["bytes"]) for row in rows] == wanted, rows
PY

# Three hosts of one rank each, where no part of the summation tree lies on one host, with an odd size; training steps;
# the table; a slow network.
document=$("$addend" bench --hosts 3 --quick --json --op all_reduce --qdisc "tbf rate 1gbit burst 1mb latency 10ms" 2>"$log") || fail "$(cat "$log")"
python3 - "$document" <<'PY'
import json, sys
for row in json.loads(sys.argv[1])["rows"]:
    assert row["qdisc"] == "tbf rate 1gbit burst 1mb latency 10ms" and row["bytes"] % 12 == 0 and row["least_bytes"] == 4 * row["bytes"], row
PY
if grep -q sharded_step <<<"$("$addend" bench --help)"; then
  "$addend" bench --hosts 2 --quick --op sharded_step 2>"$log" | grep -Eq '^2 x 1 +sharded_step +zero3 ' || fail "no steps: $(cat "$log")"
fi

# A training step's row has the waiting time of the step's own report.
if grep -q sharded_step <<<"$("$addend" bench --help)"; then
  document=$("$addend" bench --hosts 2 --quick --json --op train_step 2>"$log") || fail "$(cat "$log")"
  python3 - "$document" <<'PY'
import json, sys
[row] = json.loads(sys.argv[1])["rows"]
assert row["op"] == "train_step" and row["storage"] == "zero2" and row["least_bytes"] == 2 * row["bytes"] and row["hosts"] == 2, row
assert 0 < row["wait_seconds"] < row["seconds_median"], row
assert row["least_bytes"] <= row["sent_bytes"]["addend"] <= 1.1 * row["least_bytes"], row
PY
fi

# A measurement that is not possible is reported, with exit status 3.
could_not says_facts nonsense ADDEND_PEERS= --hosts 2 --qdisc "tbf nonsense"
could_not says --hosts ADDEND_PEERS=/nowhere --hosts 2
could_not says ip PATH=/nowhere --hosts 2
nobody=$(command -v setpriv || true)
if [ -n "$nobody" ] && setpriv --reuid 65534 --clear-groups "$addend" --version >/dev/null 2>&1; then
  status=0
  setpriv --reuid 65534 --clear-groups "$addend" bench --quick --hosts 2 >/dev/null 2>"$log" || status=$?
  [ $status -eq 3 ] || fail "without root: exit $status: $(cat "$log")"
  says "$log"
fi

# However the bench ends while ranks run, its programs and namespaces end with it.
runs() { # argument: pid
  local process
  for process in $(ip netns pids "addend-bench$1-1" 2>/dev/null); do
    ! grep -q bench_rank "/proc/$process/comm" 2>/dev/null || return 0
  done
  return 1
}
cores_of() { # argument: pid; the cores on which the ranks of either host may run
  local process
  for process in $(ip netns pids "addend-bench$1-1" 2>/dev/null) $(ip netns pids "addend-bench$1-2" 2>/dev/null); do
    if grep -q bench_rank "/proc/$process/comm" 2>/dev/null; then sed -n 's/^Cpus_allowed_list:\s*//p' "/proc/$process/status" 2>/dev/null; fi
  done | sort -u
}
# Prints what tc says of every host's interface; --qdisc must be set there.
shaped() { # argument: pid
  local host words
  for host in 1 2; do
    words=$(ip netns exec "addend-bench$1-$host" tc qdisc show dev eth)
    [[ $words == "qdisc tbf "*" root "*"rate 3Gbit "*" lat 10ms"* ]] || fail "the interface of host $host has '$words', not what --qdisc says"
  done
}
for signal in INT TERM KILL; do
  env --default-signal=INT "$addend" bench --hosts 2 --qdisc "tbf rate 3gbit burst 1mb latency 10ms" >/dev/null 2>"$log" &
  bench=$!
  for _ in $(seq 300); do
    if runs $bench; then break; fi
    sleep 0.1
  done
  runs $bench || fail "no ranks run: $(cat "$log")"
  shaped $bench
  ranks=$(ip netns pids "addend-bench$bench-1")
  cores=$(cores_of $bench)
  [ "$(nproc)" -lt 2 ] || ! [[ $cores =~ ^[0-9]+$ ]] || { sleep 1; cores=$(cores_of $bench); }
  [ "$(nproc)" -lt 2 ] || ! [[ $cores =~ ^[0-9]+$ ]] || fail "the ranks of both hosts run on core $cores alone"
  python3 -c 'import os, signal, sys; os.kill(int(sys.argv[1]), getattr(signal, "SIG" + sys.argv[2]))' $bench $signal
  wait $bench 2>/dev/null && fail "SIG$signal ends it with exit 0"
  gone_soon $bench "SIG$signal"
  for rank in $ranks; do
    for _ in $(seq 100); do # a process that has ended and was not yet waited for has no command line
      if ! grep -q . "/proc/$rank/cmdline" 2>/dev/null; then continue 2; fi
      sleep 0.1
    done
    fail "SIG$signal: process $rank is left"
  done
done
echo "bench --hosts: measures, counts and leaves nothing"
