#!/usr/bin/env bash
# Faults while ranks run: a killed rank, a killed launcher, Ctrl-C, an unwritable folder. Nothing hangs, nothing is left.
set -eu
addend=$1 source=$2
work=$(mktemp -d) && trap 'pkill -9 -f "$work" 2>/dev/null; rm -rf "$work"' EXIT
cd "$work"
fail() { echo "FAILED: $*" >&2; exit 1; }
recipe=$source/recipes/gpt-dp.yaml

start() { # trains long enough to be disturbed; sets launcher and waits for its ranks
  "$addend" train "$recipe" --set train.steps=100000 --set name=faults -o "$work/run" >out 2>err &
  launcher=$!
  for _ in $(seq 100); do
    [ "$(pgrep -P $launcher | wc -l)" -eq 3 ] && [ -s "$work/run/metrics.jsonl" ] && return
    sleep 0.1
  done
  cat err >&2; fail "no ranks after 10 s"
}
wait_for_end() { # seconds: how long the launcher may still live; sets status
  local start=$SECONDS
  while kill -0 $launcher 2>/dev/null && [ $((SECONDS - start)) -lt "$1" ]; do sleep 0.1; done
  kill -0 $launcher 2>/dev/null && fail "still running after $1 s"
  status=0; wait $launcher || status=$?
}
nothing_left() {
  sleep 0.3
  for pid in $ranks; do kill -0 "$pid" 2>/dev/null && fail "rank process $pid is left"; done
  [ -z "$(ls /dev/shm | grep -i addend || true)" ] || fail "files are left in /dev/shm"
}

for delay in 0.0 0.3 0.7; do # kill -9 of a rank at several moments
  rm -rf run; start; sleep $delay
  ranks=$(pgrep -P $launcher); victim=$(echo "$ranks" | sed -n 2p)
  kill -9 "$victim"
  wait_for_end 6
  [ $status -eq 3 ] || fail "a killed rank is exit 3, not $status: $(cat err)"
  grep -q "rank 1" err && grep -Eq "SIGKILL|signal 9" err || { cat err >&2; fail "the message names rank and signal"; }
  nothing_left
done

rm -rf run; start; ranks=$(pgrep -P $launcher) # the launcher itself is killed: its ranks go with it
kill -9 $launcher; wait $launcher 2>/dev/null || true; sleep 1; nothing_left

rm -rf run; start; ranks=$(pgrep -P $launcher) # Ctrl-C
kill -INT $launcher; wait_for_end 6
[ $status -eq 3 ] || fail "an interrupted run is exit 3, not $status"
nothing_left
[ "$(tail -c1 run/metrics.jsonl | xxd -p)" = 0a ] || fail "metrics end in a whole line"

status=0; "$addend" train "$recipe" -o /proc/nowhere >out 2>err || status=$?
[ $status -eq 3 ] && grep -q /proc/nowhere err || { cat err >&2; fail "an unwritable folder is exit 3 and named"; }
status=0; "$addend" run -n 3 -- sh -c 'exit 7' >out 2>err || status=$?
[ $status -eq 3 ] || fail "a failing program is exit 3, not $status"
"$addend" run -n 3 -- true || fail "a program that never joins and returns 0 is fine"
echo "faults: all hold"
