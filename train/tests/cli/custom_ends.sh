#!/usr/bin/env bash
# Tests that a custom program, loaded by --program or linked, which ends its process is reported with the function and
# the phase, and exit status 3: while the command plans, and on ranks; by exit, _exit, abort and faults. What the
# command asks for by signals still works.
# Usage: custom_ends.sh ADDEND SOURCE
set -eu
addend=$1 source=$2
work=$(mktemp -d) launcher=
end_all() { [ -z "$launcher" ] || kill -9 "$launcher" 2>/dev/null || true; rm -rf "$work"; }
trap end_all EXIT
cd "$work"
fail() { echo "FAILED: $*" >&2 && exit 1; }
. "$source/tests/support/says.sh"
headers=("-I$source/core/include" "-I$source/audit/include" "-I$source/train/include")
cat >ends.yaml <<'Y'
name: ends
model: {kind: ends}
mesh: dp_shard=2
train: {global_batch: 6, microbatches: 1, steps: 2, lr: 0.01}
Y
"${CC:-cc}" -std=gnu11 -shared -fPIC "${headers[@]}" "$source/train/tests/cli/custom_ends.c" -o ends.so

# ends FACTS COMMAND KEY=VALUE...: exit status 3, and the message has these facts (with | between them).
ends() {
  local facts=$1 command=$2 status=0 sets=() set
  shift 2
  for set in "$@"; do sets+=(--set "model.$set"); done
  timeout 120 "$addend" $command ends.yaml --program ./ends.so "${sets[@]}" >out 2>error || status=$?
  [ $status -eq 3 ] || fail "$command $*: exit status $status: $(cat error)"
  says_all error "$facts"
}

"$addend" check ends.yaml --program ./ends.so >out || fail "the program is right: $(tail -n 3 out)"
for how in exit exit5 _exit abort null divide; do
  for where in create read run complete; do
    ends "$where|ends" check where=$where how=$how
  done
done
ends 'create|ends|status 5' plan where=create how=exit5
ends 'run|squares|ends|SIGSEGV' plan where=run how=null
ends 'run|squares|ends' plan where=run how=_exit
ends 'read|ends' "train --out run --overwrite" where=read how=exit

# On ranks: on all of them, and on one while the other waits.
for rank in -1 0 1; do
  for how in exit _exit null; do
    ends 'run|squares|ends' check where=run how=$how really=1 rank=$rank
  done
  ends 'open|ends' check where=open how=exit really=1 rank=$rank
  ends 'read|ends' "train --out run --overwrite" where=read how=_exit really=1 rank=$rank
  ends 'squares|ends' check where=backward how=exit really=1 rank=$rank
  ends 'after|squares|ends' check where=after how=abort really=1 rank=$rank
done

# Ranks that `addend run` started.
for how in exit _exit null; do
  for where in create read run; do
    status=0
    timeout 120 "$addend" run -n 2 -- "$addend" check ends.yaml --program ./ends.so --set model.where=$where \
      --set model.how=$how --set model.really=1 >out 2>error || status=$?
    [ $status -eq 3 ] || fail "addend run: $where $how: exit status $status: $(cat error)"
    says error "$where" ends
  done
done
"$addend" run -n 2 -- "$addend" check ends.yaml --program ./ends.so >out || fail "addend run: $(tail -n 3 out)"

# An error of the program's own keeps its status, and a request to stop reaches the training.
status=0
"$addend" check ends.yaml --program ./ends.so --set model.nothing=1 2>error || status=$?
[ $status -eq 2 ] || fail "an unknown key: exit status $status"
"$addend" train ends.yaml --program ./ends.so --set train.steps=100000000 --out long >out 2>error &
launcher=$!
for _ in $(seq 100); do [ ! -s long/metrics.jsonl ] || break; sleep 0.1; done
kill -TERM $launcher
status=0; wait $launcher || status=$?
launcher=
grep -q -e --resume error out || [ $status -ne 0 ] || fail "a stopped training: exit status $status: $(cat error)"

# A program that is linked with the library and calls ad_main; a sanitizer's run time is not in it.
build=$(dirname "$addend")
if ! grep -qE '__(asan|tsan)_init' "$build/libaddend_train.so"; then
  "${CC:-cc}" -std=gnu11 "${headers[@]}" "$source/train/tests/cli/custom_ends.c" -o ends -L"$build" -laddend_train -laddend \
    -Wl,-rpath,"$build"
  ./ends check ends.yaml >out || fail "ad_main: the program is right: $(tail -n 3 out)"
  for how in exit _exit null; do
    status=0
    ./ends plan ends.yaml --set model.where=run --set model.how=$how >out 2>error || status=$?
    [ $status -eq 3 ] || fail "ad_main: $how: exit status $status: $(cat error)"
    says error run squares ends
  done
fi

echo "custom_ends: all hold"
