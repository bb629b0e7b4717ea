#!/usr/bin/env bash
# Tests faults while ranks run: killed ranks and launchers, requests to stop, exhausted memory, NaN, an unwritable
# folder. Nothing hangs, and no process or file is left.
set -eu
addend=$1 source=$2
work=$(mktemp -d) launcher= ranks=
end_all() { [ -z "$launcher" ] || kill -9 "$launcher" 2>/dev/null || true; rm -rf "$work"; }
trap end_all EXIT
cd "$work"
fail() { echo "FAILED: $*" >&2; exit 1; }
. "$source/tests/support/says.sh"
recipe=$source/recipes/gpt-dp.yaml

hang=60 # seconds after which a call counts as hanging: twice what a rank has to answer, since the machine may be busy

in_background() { "$addend" "$@" >out 2>err & launcher=$!; }
ranks_of_launcher() { cat "/proc/$launcher/task/$launcher/children" 2>/dev/null || true; }
wait_for_ranks() { # argument: number of ranks
  local start=$SECONDS
  while [ $((SECONDS - start)) -lt $hang ]; do
    ranks=$(ranks_of_launcher)
    [ "$(wc -w <<<"$ranks")" -lt "$1" ] || return 0
    sleep 0.005
  done
  cat err >&2; fail "no ranks after $hang s"
}
start() { start_on "$recipe" 3; }
start_on() { # arguments: recipe, number of its ranks; starts a long training and waits until it has begun
  rm -rf run
  in_background train "$1" --set train.steps=100000 --set name=faults -o "$work/run"
  for _ in $(seq $((10 * hang))); do
    [ ! -s "$work/run/metrics.jsonl" ] || break
    sleep 0.1
  done
  [ -s "$work/run/metrics.jsonl" ] || { cat err >&2; fail "no step after $hang s"; }
  wait_for_ranks "$2"
}
is_alive() { [ -r "/proc/$1/stat" ] && ! grep -q ') Z ' "/proc/$1/stat" 2>/dev/null; }
wait_for_end() { # sets $status
  local start=$SECONDS
  while is_alive $launcher && [ $((SECONDS - start)) -lt $hang ]; do sleep 0.05; done
  ! is_alive $launcher || fail "still running after $hang s"
  status=0; wait $launcher || status=$?
}
# argument: signal, sent until the launcher ends, since a second signal too soon counts as the same request
ask_twice() {
  for _ in $(seq $((2 * hang))); do
    kill -"$1" $launcher 2>/dev/null && is_alive $launcher || break
    sleep 0.5
  done
  wait_for_end
  [ $status -eq 3 ] && grep "SIG$1.*SIG$1" err >twice || { cat err >&2; fail "a second $1 did not end the ranks with exit 3 and its message: exit $status"; }
  says twice "SIG$1"
  nothing_left
}
nothing_left() {
  local pid
  for pid in $ranks; do
    for _ in $(seq $((20 * hang))); do is_alive "$pid" || break; sleep 0.05; done
    ! is_alive "$pid" || fail "rank process $pid is left"
  done
  [ -z "$(ls /dev/shm | grep -i addend || true)" ] || fail "files are left in /dev/shm"
}
# argument: rank to kill; the others must stop, and the message must name the rank and what killed it
killed_rank_is_named() {
  local victim; victim=$(cut -d' ' -f$(($1 + 1)) <<<"$ranks")
  kill -9 "$victim"
  wait_for_end
  [ $status -eq 3 ] || fail "a killed rank is exit 3, not $status: $(cat err)"
  says_facts err "rank $1" SIGKILL
  nothing_left
}

for delay in 0.0 0.3 0.7; do start; sleep $delay; killed_rank_is_named 1; done # a rank dies in training
start; killed_rank_is_named 0 # rank 0, which writes the files
for rank in 0 2; do # ranks die while they start and join
  rm -rf run
  in_background train "$recipe" --set train.steps=100000 -o "$work/run"
  wait_for_ranks 3; killed_rank_is_named $rank
done
for rank in 0 1; do # ranks die in a check, in which rank 0 also runs the reference
  in_background check "$recipe" --steps 100000
  wait_for_ranks 3; sleep 0.4; killed_rank_is_named $rank
done
in_background check "$recipe" --set mesh=dp_replicate=8 --set train.global_batch=64 --steps 100000
wait_for_ranks 8; sleep 0.2; killed_rank_is_named 7

for rank in 2 5; do # a rank of either pool dies, while the other pool waits for its values
  start_on "$source/recipes/ocr-disjoint.yaml" 8; killed_rank_is_named $rank
done

start; kill -9 $launcher; wait $launcher 2>/dev/null || true; nothing_left # if the launcher dies its ranks die too

# after a stop: the step is finished, all files are written, and there is a checkpoint, though the recipe has none
stopped_cleanly() {
  wait_for_end
  [ $status -eq 3 ] || fail "a stopped run is exit 3, not $status: $(cat err)"
  says err "$(wc -l <run/metrics.jsonl) of" "100000 steps" "$work/run/report.html"
  says err "$work/run/checkpoints"
  [ -s "run/checkpoints/step-$(wc -l <run/metrics.jsonl)/index.json" ] || { ls run/checkpoints; fail "there is no checkpoint of the last step"; }
  [ ! -s out ] || fail "a stopped run printed a result"
  nothing_left
  python3 - <<'P'
import json
text = open("run/metrics.jsonl").read()
assert text.endswith("\n")
steps = [json.loads(line)["step"] for line in text.splitlines()]
assert steps == list(range(len(steps))) and steps
assert json.load(open("run/trace.json"))["traceEvents"]
assert "</html>" in open("run/report.html").read()
P
}
goes_on() { # the run resumes from the step at which it was stopped
  local taken; taken=$(wc -l <run/metrics.jsonl)
  "$addend" train "$recipe" --set train.steps=$((taken + 1)) -o run --resume >out 2>err || { cat err >&2; fail "resuming the stopped run fails"; }
  says_facts err "after $taken" && [ "$(wc -l <run/metrics.jsonl)" -eq $((taken + 1)) ] || { cat err >&2; fail "the resumed run did not continue after step $taken"; }
}
# the signals of Ctrl-C, kill and Slurm
for name in INT TERM HUP; do start; kill -$name $launcher; stopped_cleanly; goes_on; done
# a terminal sends the signal to all processes
start; for pid in $launcher $ranks; do kill -INT "$pid"; done; stopped_cleanly
start; kill -TERM "$(cut -d' ' -f2 <<<"$ranks")"; stopped_cleanly # only one rank gets the signal
start; kill -QUIT $launcher; wait_for_end # SIGQUIT ends the ranks, with a message
[ $status -eq 3 ] && says err "signal 3" SIGQUIT || { cat err >&2; fail "SIGQUIT is exit $status"; }
nothing_left

start; kill -USR1 $launcher # SIGUSR1 stops the run with a checkpoint, though the recipe has none, and it can be resumed
for _ in $(seq $((10 * hang))); do [ -z "$(ls run/checkpoints 2>/dev/null | grep -v tmp)" ] || break; sleep 0.1; done
[ -n "$(ls run/checkpoints)" ] && is_alive $launcher || { cat err >&2; fail "USR1 wrote no checkpoint, or ended the run"; }
kill -TERM $launcher; stopped_cleanly
# under nohup SIGHUP is ignored
trap '' HUP; rm -rf run; in_background train "$recipe" --set train.steps=100000 -o "$work/run"; trap - HUP
wait_for_ranks 3; kill -HUP $launcher; sleep 1; is_alive $launcher || fail "a hangup ended a run under nohup"
kill -INT $launcher; wait_for_end; nothing_left

start; kill -STOP "$(cut -d' ' -f2 <<<"$ranks")"; kill -TERM $launcher # a stopped rank does not answer
wait_for_end
[ $status -eq 3 ] && says err SIGTERM "rank 1" || { cat err >&2; fail "SIGTERM with a rank that does not answer: exit $status"; }
nothing_left
start; kill -STOP "$(cut -d' ' -f2 <<<"$ranks")"; ask_twice TERM

rm -rf run
in_background train "$recipe" --set train.steps=100000 -o "$work/run"
wait_for_ranks 3; kill -INT $launcher; wait_for_end # a stop before the first step
[ $status -eq 3 ] || fail "a run stopped early is exit 3, not $status"
nothing_left

# A job in the background of a script is started with SIGINT ignored. A check takes that signal all the same: waits until
# each of its ranks does.
wait_for_heed() {
  local pid
  for pid in $ranks; do
    for _ in $(seq $((10 * hang))); do
      [ $((0x$(sed -n 's/^SigIgn:[[:space:]]*//p' "/proc/$pid/status") & 2)) -ne 0 ] || continue 2
      sleep 0.1
    done
    fail "a rank of a check ignores SIGINT"
  done
}
in_background check "$recipe" --steps 100000
wait_for_ranks 3; wait_for_heed; kill -INT $launcher; wait_for_end
[ $status -eq 3 ] && says err "signal 2" SIGINT || { cat err >&2; fail "an interrupted check is exit $status"; }
nothing_left
in_background run -n 3 -- "$addend" check "$recipe" --steps 100000
wait_for_ranks 3; wait_for_heed; kill -INT $launcher; wait_for_end
[ $status -eq 3 ] && says err "signal 2" SIGINT || { cat err >&2; fail "an interrupted check under addend run is exit $status"; }
nothing_left

# the ranks ignore the first request, and the second ends them
in_background run -n 2 -- sh -c 'trap "" INT; touch "deaf-$$"; sleep 1000'
wait_for_ranks 2
for _ in $(seq $((10 * hang))); do [ "$(ls deaf-* 2>/dev/null | wc -l)" -lt 2 ] || break; sleep 0.1; done
ask_twice INT
launcher=

could_not() { # arguments: what judges the message, its facts with | between them, command, which must exit with 3
  local judge=$1 facts
  IFS='|' read -ra facts <<<"$2"
  shift 2
  status=0; "$@" >out 2>err || status=$?
  [ $status -eq 3 ] || { cat err >&2; fail "exit $status instead of 3: $*"; }
  $judge err ${facts[@]+"${facts[@]}"}
  [ ! -s out ] || fail "a failed command printed to standard output: $*"
}
limited() { (ulimit "$1" "$2" && exec "$addend" "${@:3}"); } # arguments: option of ulimit, its limit, call
touch taken
# an unwritable folder is found before any rank starts, and reported once
for folder in /proc/nowhere/run taken taken/run; do
  could_not says "${folder%/run}" "$addend" train "$recipe" -o $folder
  [ "$(wc -l <err)" -eq 1 ] || { cat err >&2; fail "the error about $folder is not one line"; }
done
# arguments: NAME=VALUE, facts of what it must be, COMMAND...; refused before any rank starts, so no rank is named
not_in_environment() {
  local variable=$1 facts=$2 status=0
  shift 2
  env "$variable" "$addend" "$@" >out 2>err || status=$?
  [ $status -eq 2 ] && says err "${variable%%=*}" "${variable#*=}" $facts ||
    { cat err >&2; fail "$variable: exit $status: $*"; }
}
for threads in none 0 2x -1; do not_in_environment ADDEND_BLAS_THREADS=$threads "1 1024" check "$recipe"; done
for staging in x 2 true; do not_in_environment ADDEND_STAGING=$staging "0 1" check "$recipe"; done
for command in "check $recipe" "train $recipe -o run --overwrite" "run -n 2 -- true"; do
  not_in_environment ADDEND_KERNELS=foo "avx2 avx512 avx512fp16" $command
  not_in_environment ADDEND_HOSTILE=foo "0 4294967295" $command
  not_in_environment ADDEND_FLIGHT_DIR=/nonexist "" $command
done
# the loss of a step is not a finite number: the message names the step, which no line of metrics has
diverges=(--set train.lr=100 --set train.weight_decay=1000 --set train.warmup=0 --set train.clip=0)
names_step() { says_facts "$1" "step $(wc -l <"$2/metrics.jsonl")" && [ "$(grep -c "^addend: " "$1")" -eq 1 ] || { cat "$1" >&2; fail "the error is reported as a crash too"; }; }
could_not says_facts "" "$addend" train "$recipe" -o run --overwrite "${diverges[@]}" --json && names_step err run
# the first rank's message has its bytes, of which a number has at least eleven digits
for call in "check $recipe --set model.d_model=65536 --json" "train $recipe -o big --set model.d_model=262144"; do
  could_not says_facts "" "$addend" $call
  grep -Eq "^addend: rank [0-2]: .* [0-9]{11,} " err || { cat err >&2; fail "$call"; }
done
if ! grep -q __asan_init "$addend"; then # a sanitizer reserves terabytes of addresses
  could_not says "-v|ADDEND_ADDRESSES=1" limited -v 400000 check "$recipe"
fi
could_not says "ADDEND_SHM_FD|0.0.0" "$addend" run -n 2 -- "$(dirname "$addend")/mpi_sums_of_another_version"
could_not says_facts "status 7" "$addend" run -n 3 -- sh -c 'exit 7'
status=0; "$addend" run -n 2 -- "$addend" check "$recipe" >out 2>err || status=$?
[ $status -eq 3 ] && says err "2 rank(s)" "has 3" || { cat err >&2; fail "more ranks in a mesh than were started: exit $status"; }
status=0; "$addend" run -n 3 -- ./no-such-program >out 2>err || status=$?
[ $status -eq 2 ] && says err ./no-such-program || { cat err >&2; fail "a program that is not there is exit 2, not $status"; }
status=0; "$addend" train "$recipe" -o full --set train.steps=2 >/dev/full 2>err || status=$?
[ $status -eq 3 ] || { cat err >&2; fail "a full standard output is exit 3, not $status"; }
tail -n 1 err >last && says last
for call in "train --help" "plan --help" --help "plan $recipe"; do
  status=0; "$addend" $call >/dev/full 2>err || status=$?
  [ $status -eq 3 ] && [ "$(wc -l <err)" -eq 1 ] || { cat err >&2; fail "$call >/dev/full: exit $status"; }
  says err
done
set +e; "$addend" plan "$recipe" --set model.layers=200 2>err | sed -n 1q; status=${PIPESTATUS[0]}; set -e
[ $status -eq 0 ] && [ ! -s err ] || { cat err >&2; fail "a reader that has enough is no error: exit $status"; }
if ! grep -q __asan_init "$addend"; then # sanitizers need more threads and memory themselves
  could_not says "64 KiB|-s" limited -s 64 check "$recipe"
fi
few_processes() { # runs addend as a user who may start no more processes; `ulimit -u` does not hold for root
  (ulimit -u 1; OPENBLAS_NUM_THREADS= exec setpriv --reuid=65534 --clear-groups --inh-caps=-all env -u OPENBLAS_NUM_THREADS "$@")
}
chmod 755 .
if [ "$(id -u)" -eq 0 ] && few_processes "$addend" --version >/dev/null 2>err; then
  status=0; few_processes "$addend" check "$recipe" >out 2>err || status=$?
  [ $status -eq 3 ] && says err "rank 0" "of 3" || { cat err >&2; fail "no processes: exit $status"; }
fi
start # ranks have names in ps
[ "$(cat /proc/$launcher/comm)" = addend ] && [ "$(cat "/proc/$(cut -d' ' -f2 <<<"$ranks")/comm")" = addend:1 ] ||
  fail "the processes lack their names (addend, addend:1) in ps"
kill -KILL $launcher; wait $launcher 2>/dev/null || true; nothing_left; launcher=
could_not says_facts "" "$addend" train "$recipe" -o run2 "${diverges[@]}" && names_step err run2
could_not says -f limited -f 1 train "$recipe" -o small

"$addend" run -n 3 -- true 2>err || fail "a program that never joins and returns 0 makes the run fail"
says err ad_comm_open "3 of" "3 processes"
"$addend" run -n 3 -- "$addend" plan "$recipe" >out 2>err || { cat err >&2; fail "a program that sums nothing makes the run fail"; }
says err ad_comm_open "3 of" "3 processes"
examples=$(dirname "$addend")
"$addend" run -n 3 -- "$examples/example_join" >out 2>err && [ ! -s err ] && [ "$(wc -l <out)" -eq 1 ] ||
  { cat out err >&2; fail "a program that joins the ranks fails"; }
says out "3 ranks" 3
"$addend" run -n 3 -- "$examples/example_plain_buffers" >out 2>err && [ "$(grep -c "step 40" out)" -eq 1 ] ||
  { cat out err >&2; fail "an example does not join the world that it was started in"; }
"$examples/example_plain_buffers" >alone && diff <(cut -c1-40 out) <(cut -c1-40 alone) || fail "an example prints other numbers on 4 ranks than alone"
for call in "check $recipe" "train $recipe -o elsewhere" "run -n 2 -- true"; do
  status=0; RANK=1 WORLD_SIZE=3 "$addend" $call >out 2>err || status=$?
  [ $status -eq 2 ] && says err "-n 3" || { cat err >&2; fail "under torchrun: exit $status: $call"; }
done
"$addend" run -n 32 -- true || fail "starting 32 processes fails"
"$addend" check "$recipe" --set mesh=dp_replicate=32 >out || fail "check on 32 ranks fails"
tail -n 1 out >verdict && says verdict "20 parameters"
echo "faults: all hold"
