#!/usr/bin/env bash
# Tests that a training removes only files that addend wrote: nothing through a symbolic link, and no foreign file.
#   links.sh ADDEND SOURCE
set -eu
addend=$1 source=$2
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
cd "$work"
fail() { echo "FAILED: $*" >&2; [ ! -s err ] || cat err >&2; exit 1; }
. "$source/tests/support/says.sh"
train() { "$addend" train "$source/recipes/gpt-dp.yaml" --set train.steps=4 --set train.warmup=0 --set mesh=dp=1 --set checkpoint.every=2 "$@" >out 2>err; }
refused() { # arguments: facts of the message with | between them, options
  local status=0
  train "${@:2}" || status=$?
  [ $status -eq 2 ] || fail "exit $status, not 2: ${*:2}"
  says_all err "$1"
}
sums() { (cd "$1" && find . -type f ! -name .lock -exec cksum {} + | sort); }

train -o precious --dump-step 1 || fail "train"
echo mine >precious/checkpoints/notes.txt && echo mine >precious/checkpoints/step-2/notes.txt && echo mine >precious/dump-1/notes.txt
# names that are similar to addend's but not its own
alike="my-rank00000.sum.safetensors rank00000.notes.sum.safetensors rank00000.sum.safetensors.mine.tmp rank0.sum.safetensors"
for name in $alike; do echo mine >"precious/dump-1/$name"; done
sums precious >before
unchanged() { sums precious >after && cmp before after || fail "another run's files: $*"; }

# A link may be the run's folder, its checkpoints, a checkpoint, a dump, or a result.
ln -s precious linked
for folder in linked linked/ "$work/linked//"; do
  refused "$folder" -o "$folder" --overwrite
  unchanged "the folder is a link, $folder"
done
train -o own || fail "train"
rm -r own/checkpoints && ln -s ../precious/checkpoints own/checkpoints
for option in --overwrite --resume; do
  refused "own/checkpoints|../precious/checkpoints" -o own $option
  unchanged "checkpoints are a link, $option"
done
rm own/checkpoints && mkdir own/checkpoints && ln -s ../../precious/checkpoints/step-2 own/checkpoints/step-2
rm own/weights.safetensors && ln -s ../precious/weights.safetensors own/weights.safetensors && ln -s ../precious/dump-1 own/dump-1
refused "own/dump-1" -o own --overwrite --dump-step 1
unchanged "a dump is a link"
train -o own --overwrite || fail "links to files of another run"
unchanged "a checkpoint is a link"
[ ! -L own/weights.safetensors ] && [ -L own/dump-1 ] && [ -d own/checkpoints/step-2 ] && [ ! -L own/checkpoints/step-2 ] || fail "links make way for the new run, but not one that it does not need"
"$addend" train "$source/recipes/gpt-dp.yaml" --set train.steps=8 --set mesh=dp=1 --set checkpoint.every=2 --set checkpoint.keep=1 -o linked --resume --force >out 2>err || fail "a link is as good a name of the run as any"

# Foreign files stay, in checkpoints that are removed one by one and in those that are overwritten.
[ "$(ls -d precious/checkpoints/step-? | wc -l)" -eq 1 ] && [ "$(cat precious/checkpoints/step-2*.others/*)" = mine ] || fail "pruned, but for a note"
train -o precious --overwrite --dump-step 1 || fail "overwrite"
[ "$(cat precious/checkpoints/notes.txt precious/checkpoints/*.others/notes.txt precious/dump-1/notes.txt | grep -c mine)" -eq 3 ] || fail "notes stay"
for name in $alike; do [ "$(cat "precious/dump-1/$name")" = mine ] || fail "$name stays"; done
mv precious/dump-1/rank00000.sum.safetensors kept && mkdir precious/dump-1/rank00000.sum.safetensors && sums precious >before
refused "precious/dump-1/rank00000.sum.safetensors" -o precious --overwrite --dump-step 1
unchanged "a folder has the name of a file of the dump"
rmdir precious/dump-1/rank00000.sum.safetensors && mv kept precious/dump-1/rank00000.sum.safetensors
[ -s precious/dump-1/rank00000.sum.safetensors ] && [ "$(ls -d precious/checkpoints/step-[0-9] | wc -l)" -eq 2 ] || fail "and the new run has its files"

# Something in a result's place that cannot be replaced is reported before anything is removed or trained.
stands() { # arguments: status, further fact of the message or "", name, which it has too, options; nothing may be changed
  local expected=$1 fact=$2 name=$3 status=0
  shift 3
  sums precious >before
  train -o precious "$@" || status=$?
  [ $status -eq "$expected" ] || fail "exit $status, not $expected: $name stands in the way: $*"
  says err "precious/$name" ${fact:+"$fact"}
  [ "$(wc -l <err)" -eq 1 ] || fail "it is reported before the training: $name"
  unchanged "$name stands in the way: $*"
}
for name in weights.safetensors report.html trace.json run.json metrics.jsonl; do
  mv precious/$name kept && mkdir precious/$name && echo mine >precious/$name/mine
  stands 3 "Is a" $name --overwrite
  [ $name = metrics.jsonl ] || stands 3 "Is a" $name --resume --set train.steps=6
  rm -r precious/$name && mkfifo precious/$name
  [ $name = metrics.jsonl ] || stands 3 "" $name --resume --set train.steps=6
  rm precious/$name && mv kept precious/$name
done
mv precious/checkpoints kept && echo mine >precious/checkpoints
for option in --overwrite --resume; do stands 2 "" checkpoints $option; done
rm precious/checkpoints && mv kept precious/checkpoints
train -o precious --resume --set train.steps=6 || fail "what stood there is gone"
echo "links: all hold"
