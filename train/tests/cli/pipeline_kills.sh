#!/usr/bin/env bash
# Kills a rank of a pipeline at a random time of its training: every rank ends soon, the message names the killed rank,
# and the run resumes from its checkpoint to the bits of an undisturbed run.
#   pipeline_kills.sh ADDEND SOURCE [KILLS]
set -eu
addend=$1 source=$2 kills=${3:-4}
work=$(mktemp -d) launcher=
end_all() { [ -z "$launcher" ] || kill -9 "$launcher" 2>/dev/null || true; rm -rf "$work"; }
trap end_all EXIT
cd "$work"
fail() { echo "FAILED: $*" >&2; [ ! -s err ] || cat err >&2; exit 1; }
. "$source/tests/support/says.sh"
. "$source/tests/support/draw.sh"
choose_seed
[ "$ADDEND_TEST_SEED" != all ] || ADDEND_TEST_SEED=1
RANDOM=$((ADDEND_TEST_SEED % 32768))
echo "$kills kills, ADDEND_TEST_SEED=$ADDEND_TEST_SEED"

hang=60 steps=120
# Cases: number of ranks, mesh, other keys, with + for a space.
cases=("3 pp=3" "4 pp=2+dp_shard=2 schedule.kind=gpipe shard.zero=3" "2 pp=2 schedule.kind=interleaved schedule.stages=4"
  "4 pp=2+tp=2 schedule.kind=zb" "3 pp=3 schedule.kind=zb train.microbatches=5")
choose_case() { # sets $ranks and $train, the command without its folder
  local words key
  read -ra words <<<"${cases[$1]}"
  ranks=${words[0]}
  train=("$addend" train "$source/recipes/gpt-pp.yaml" --set "mesh=\"${words[1]//+/ }\"" --set train.steps=$steps
    --set checkpoint.every=8 --set name=kills)
  for key in "${words[@]:2}"; do train+=(--set "$key"); done
}
milliseconds() { date +%s%3N; }

# Runs the case undisturbed once, and measures how long that takes.
straight() {
  local start
  start=$(milliseconds)
  [ -d "straight-$1" ] || "${train[@]}" -o "straight-$1" >out 2>err || fail "train ${cases[$1]}"
  [ -s "lasts-$1" ] || echo $(($(milliseconds) - start)) >"lasts-$1"
}

is_alive() { [ -r "/proc/$1/stat" ] && ! grep -q ') Z ' "/proc/$1/stat" 2>/dev/null; }
ranks_of_launcher() { cat "/proc/$launcher/task/$launcher/children" 2>/dev/null || true; }

# Kills a rank once all have started, and sets $victim and $took; returns 1 if the training ended before.
kill_one() {
  local delay=$1 start children
  rm -rf run
  "${train[@]}" -o run >out 2>err & launcher=$!
  start=$(milliseconds)
  until children=$(ranks_of_launcher) && [ "$(wc -w <<<"$children")" -ge "$ranks" ]; do
    is_alive $launcher && [ $(($(milliseconds) - start)) -lt $((1000 * hang)) ] || break
    sleep 0.005
  done
  sleep "$(printf '%d.%03d' $((delay / 1000)) $((delay % 1000)))"
  victim=$((RANDOM % ranks)) start=$(milliseconds)
  kill -9 "$(cut -d' ' -f$((victim + 1)) <<<"$children")" 2>/dev/null || { wait $launcher || true; return 1; }
  while is_alive $launcher && [ $(($(milliseconds) - start)) -lt $((1000 * hang)) ]; do sleep 0.01; done
  took=$(($(milliseconds) - start))
  ! is_alive $launcher || fail "${cases[$2]}: still running $hang s after rank $victim was killed"
  status=0
  wait $launcher || status=$?
  [ $status -ne 0 ] || return 1
  for child in $children; do ! is_alive "$child" || fail "rank process $child is left"; done
}

goes_on() { # argument: number of the case
  "${train[@]}" -o run --resume >out 2>err || fail "${cases[$1]}: resume"
  cmp "straight-$1/weights.safetensors" run/weights.safetensors || fail "${cases[$1]}: other weights"
  diff <(sed 's/,"seconds.*//' "straight-$1/metrics.jsonl") <(sed 's/,"seconds.*//' run/metrics.jsonl) ||
    fail "${cases[$1]}: other metrics"
}

done_ones=0 longest=0
while [ $done_ones -lt "$kills" ]; do
  number=$((RANDOM % ${#cases[@]}))
  choose_case $number
  straight $number
  kill_one $((RANDOM % $(cat "lasts-$number"))) $number || continue
  [ $status -eq 3 ] || fail "exit $status after rank $victim was killed"
  says_facts err "rank $victim" SIGKILL
  [ $took -le $longest ] || longest=$took
  goes_on $number
  done_ones=$((done_ones + 1))
done
echo "pipeline kills: $done_ones ranks were killed, all ended within $longest ms, and every run went on to the same bits"
