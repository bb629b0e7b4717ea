#!/usr/bin/env bash
# Tests checkpoints and --resume on the command line: bit for bit on the same mesh, on other meshes, after damage, after
# Ctrl-C, on a full disk.
set -eu
addend=$1 source=$2
work=$(mktemp -d) mounted= launcher=
clean_up() {
  [ -z "$launcher" ] || kill -9 "$launcher" 2>/dev/null || true
  [ -z "$mounted" ] || umount "$mounted"
  rm -rf "$work"
}
trap clean_up EXIT
cd "$work"
fail() { echo "FAILED: $*" >&2; [ ! -s err ] || cat err >&2; exit 1; }
. "$source/tests/support/says.sh"
recipe=$source/recipes/gpt-dp.yaml
train() { "$addend" train "$recipe" --set train.steps=10 --set checkpoint.every=5 --json "$@" >out 2>err; }
first_step() { python3 -c 'import json; print(json.load(open("out"))["first_step"])'; }
exits_with() { # arguments: status, command
  local expected=$1 status=0
  shift
  "$@" || status=$?
  [ $status -eq "$expected" ] || fail "exit $status, not $expected: $*"
}

train -o straight || fail "the run that nothing interrupts fails"
[ "$(ls straight/checkpoints | tr '\n' ' ')" = "step-10 step-5 " ] || fail "the run did not write checkpoints of steps 5 and 10 alone"
cp -r straight stopped && rm -r stopped/checkpoints/step-10 stopped/weights.safetensors

cp -r stopped same && train -o same --resume || fail "the resumed run fails"
[ "$(first_step)" = 5 ] || fail "the resumed run did not continue after step 5"
for file in checkpoints/step-10/rank-0.safetensors checkpoints/step-10/index.json weights.safetensors; do
  cmp "straight/$file" "same/$file" || fail "$file of the resumed run differs from the uninterrupted run's"
done
diff <(sed 's/,"seconds.*//' straight/metrics.jsonl) <(sed 's/,"seconds.*//' same/metrics.jsonl) || fail "metrics.jsonl of the resumed run differs from the uninterrupted run's"

for mesh in dp_shard=2 dp_shard=1 "dp_replicate=2 dp_shard=2"; do
  rm -rf other && cp -r stopped other && train -o other --resume --set "mesh=\"$mesh\"" || fail "resuming on $mesh fails"
  [ "$(first_step)" = 5 ] || fail "the run resumed on $mesh did not continue after step 5"
done

# Sharded storage and narrow precision policies: bit for bit with the same sharding, resharded with any other.
sharded() { # arguments: recipe, options
  local name=$1
  shift
  "$addend" train "$source/recipes/$name.yaml" --set train.steps=4 --set checkpoint.every=2 --json "$@" >out 2>err
}
for case in "hsdp-2x2 1 {param: f16, loss_scale: 19}" "hsdp-3x2 2 {param: bf16, reduce: f32}" "fsdp-uneven 3 {param: bf16}"; do
  read -r name zero contract <<<"$case"
  contract=(--set "precision=$contract")
  rm -rf whole cut && sharded "$name" --set shard.zero="$zero" "${contract[@]}" -o whole || fail "training $name fails"
  cp -r whole cut && rm -r cut/checkpoints/step-4 cut/weights.safetensors && cp -r cut "other-$name"
  sharded "$name" --set shard.zero="$zero" "${contract[@]}" -o cut --resume || fail "resuming $name fails"
  [ "$(first_step)" = 2 ] || fail "the resumed run of $name did not continue after step 2"
  for file in whole/checkpoints/step-4/* whole/weights.safetensors; do
    cmp "$file" "cut/${file#whole/}" || fail "$file of the resumed run of $name differs"
  done
  sharded "$name" --set shard.zero=$((3 - zero)) --set mesh="dp_replicate=1 dp_shard=3" "${contract[@]}" -o "other-$name" --resume ||
    fail "resuming $name with another sharding fails"
  [ "$(first_step)" = 2 ] || fail "the run of $name resumed with another sharding did not continue after step 2"
done

# Leaves keep every bit: a run whose replicas update parts of their shards stops, and resumes where they do not, and back.
leaves() { # arguments: folder, options
  "$addend" train "$source/recipes/gpt-leaves.yaml" --set train.steps=4 --set checkpoint.every=2 --json -o "$@" >out 2>err
}
for contract in "{param: f32}" "{param: bf16, reduce: f32}"; do
  rm -rf alone parts whole
  leaves alone --set "precision=$contract" || fail "training with leaves fails"
  leaves parts --set "precision=$contract" --set mesh="dp_replicate=2 dp_shard=2" --set shard.zero=2 --set shard.outer_zero=1 ||
    fail "training whose replicas update parts fails"
  cmp alone/weights.safetensors parts/weights.safetensors || fail "replicas that update parts change bits of the weights"
  leaves whole --set "precision=$contract" --set mesh="dp_replicate=3 dp_shard=2" --set shard.zero=3 || fail "training on shards fails"
  rm -r {parts,whole}/checkpoints/step-4 {parts,whole}/weights.safetensors
  leaves parts --resume --set "precision=$contract" --set mesh=dp_shard=3 --set shard.zero=1 || fail "resuming without parts fails"
  leaves whole --resume --set "precision=$contract" --set mesh="dp_replicate=2 dp_shard=3" --set shard.zero=3 --set shard.outer_zero=1 ||
    fail "resuming with parts fails"
  [ "$(first_step)" = 2 ] || fail "the run that resumed with parts did not continue after step 2"
  for other in parts whole; do
    for file in checkpoints/step-4/index.json weights.safetensors; do [ -s "$other/$file" ] || fail "$other has no $file"; done
    cmp alone/weights.safetensors $other/weights.safetensors || fail "a resumed run with other parts changes bits: $other"
  done
done

# An existing run is not overwritten unasked, and the message says which run it is.
refuses() { # arguments: folder, further option or "", facts of the message
  (cd "$1" && find . -type f ! -name .lock -exec cksum {} + | sort) >before
  exits_with 2 train -o "$1" ${2:+"$2"}
  says err "${@:3}"
  (cd "$1" && find . -type f ! -name .lock -exec cksum {} + | sort) >after
  cmp before after || fail "a refused training changed files of $1"
}
refuses straight "" "10 steps" "after 10" train.steps
refuses stopped "" "10 of" "10 steps" "after 5"
cp -r straight bare && rm -r bare/checkpoints
refuses bare "" "10 steps"
exits_with 2 train -o bare --resume --set train.steps=11
says err "10 steps" model.weights=bare/weights.safetensors checkpoint.every
exits_with 2 train -o bare --resume --set train.lr=0.5
says err "10 steps"
rm bare/report.html
for _ in missing there; do
  train -o bare --resume || fail "resuming a finished run without checkpoints fails"
  [ -s bare/report.html ] || fail "the resumed finished run has no report"
  python3 -c 'import json; s = json.load(open("out")); assert (s["steps"], s["first_step"], s["steps_taken"]) == (10, 10, 0), s'
  for file in weights.safetensors metrics.jsonl; do cmp straight/$file bare/$file || fail "resuming a finished run changed $file"; done
done
rm bare/weights.safetensors
refuses bare "" "10 of" "10 steps"
head -n 4 straight/metrics.jsonl >bare/metrics.jsonl
refuses bare --set=train.steps=3 "4 of" "10 steps"
train -o bare --resume || fail "resuming a run that lost its weights fails"
[ "$(first_step)" = 0 ] && cmp straight/weights.safetensors bare/weights.safetensors || fail "a run without weights and checkpoints was not trained again from step 0"
"$addend" train "$recipe" --set train.steps=1 --set train.warmup=0 -o one >out 2>err && says out "1 step" one/report.html || fail "a run of one step fails"
"$addend" train "$recipe" --set train.steps=1 --set train.warmup=0 -o one --resume >out 2>err && says out "1 step" || fail "resuming a finished run of one step fails"
cp -r straight replaced && echo kept >replaced/notes && touch replaced/check.json
train -o replaced --overwrite --set train.steps=3 --set checkpoint.every=0 || fail "training with --overwrite fails"
[ "$(wc -l <replaced/metrics.jsonl)" -eq 3 ] && [ ! -e replaced/checkpoints ] || fail "--overwrite left parts of the earlier run"
[ -e replaced/notes ] && [ -e replaced/check.json ] || fail "--overwrite removed files that are not the run's"
cp -r straight gone # replaces it by a run that ends without results
exits_with 3 train -o gone --overwrite --set train.steps=100 --set train.lr=100 --set train.weight_decay=1000 --set train.warmup=0 --set train.clip=0
[ ! -e gone/weights.safetensors ] && [ ! -e gone/report.html ] && [ ! -e gone/trace.json ] || fail "results of the overwritten run are left"
exits_with 2 train -o replaced --overwrite --resume
says err
# A run that died between its last checkpoint and its weights is finished; a finished run stays unchanged.
cp -r straight nearly && rm nearly/weights.safetensors nearly/report.html
for _ in missing there; do
  train -o nearly --resume || fail "resuming a run that took all its steps fails"
  cmp straight/weights.safetensors nearly/weights.safetensors || fail "resuming a run that took all its steps wrote other weights"
  [ -s nearly/report.html ] || fail "resuming a run that took all its steps wrote no report"
  cmp straight/metrics.jsonl nearly/metrics.jsonl || fail "resuming a run that took all its steps changed its metrics"
  python3 -c 'import json; s = json.load(open("out")); assert (s["steps"], s["first_step"], s["steps_taken"], s["loss"]["last"]) == (10, 10, 0, None), s'
done
"$addend" train "$recipe" --set train.steps=10 --set checkpoint.every=5 -o nearly --resume >out 2>err || fail "resuming without --json fails"
says out "10 steps"
# The same if the only checkpoint is of an earlier step, on whatever mesh the run is resumed.
cp -r straight early && rm -r early/checkpoints/step-10
touch --date=@1 early/*.* # files that are written again are newer
for mesh in "dp_replicate=3 dp_shard=1" dp_shard=2; do
  train -o early --resume --set "mesh=\"$mesh\"" || fail "resuming a finished run with an early checkpoint fails"
  python3 -c 'import json; s = json.load(open("out")); assert (s["steps"], s["first_step"], s["steps_taken"]) == (10, 10, 0), s'
  [ -z "$(find early -name '*.*' -type f -newermt @2 ! -name .lock ! -path '*/checkpoints/*')" ] || fail "it stays as it is: $(find early -newermt @2)"
done
refuses early "" "10 steps" "after 5" train.steps
exits_with 2 train -o early --resume --set train.steps=9
says err "10 steps" "for 9" train.steps
train -o early --resume --set train.steps=12 --set checkpoint.keep=3 && [ "$(first_step)" = 5 ] || fail "a finished run resumed for more steps did not continue after step 5"
says err early/checkpoints "10 steps" "step 5"
python3 -c 'import json; run = json.load(open("early/run.json")); run.pop("finished"); json.dump(run, open("early/run.json", "w"))'
head -n 10 early/metrics.jsonl >some && mv some early/metrics.jsonl && rm -r early/checkpoints/step-1?
train -o early --resume && [ "$(first_step)" = 5 ] || fail "a run killed while it trained more steps counts as finished"
exits_with 2 train -o straight --resume --set train.steps=9
says err "10 steps" "for 9"
mkdir -p empty/checkpoints
for folder in nowhere empty; do
  train -o $folder --resume || fail "--resume fails in a folder without a run"
  says err "$folder/checkpoints"
  cmp straight/weights.safetensors $folder/weights.safetensors || fail "--resume in $folder, without a run, did not train all steps"
done
cp -r stopped counted
"$addend" train "$recipe" --set train.steps=10 --set checkpoint.every=5 -o counted --resume >out 2>err || fail "resuming without --json fails"
says out "5 steps" "5 before"

# A setting that changes the meaning of the numbers is refused with both values; other changed settings are listed.
while read -r key value old; do
  rm -rf other && cp -r stopped other
  exits_with 2 train -o other --resume --set "$key=$value"
  says err "$key" "$old" "recipe: $value"
  train -o other --resume --force --set "$key=$value" || fail "--force with another $key fails"
  grep "^addend: warning: " err >warned && says warned "$key" "$old" "recipe: $value"
done <<'KEYS'
model.heads 2 4
model.rotary_base 500 10000
data.seq 8 24
data.valid [0.5] [1, 0.5, 0.25, 1, 0, 0, 0.75, 0.125, 1, 0.5, 0, 0]
train.lr 0.5 0.001
train.beta2 0.99 0.95
train.seed 7 1
precision.compute f64 f32
KEYS
exits_with 2 train -o stopped --resume --force --set model.d_model=64
says err value.embedding.weight
exits_with 2 train -o stopped --force
says err
# Another optimizer is refused by the names of parameters, unless their states begin anew.
rm -rf other && cp -r stopped other
exits_with 2 train -o other --resume --set optimizer.kind=sgd
says err embedding.weight --fresh-states
exits_with 2 train -o other --resume --set optimizer.kind=sgd --fresh-states 'embedding.*'
says err blocks.0.norm.attn --fresh-states
train -o other --resume --set optimizer.kind=sgd --fresh-states 'embedding.*' --fresh-states '[!e]*' || fail "resuming with fresh states of all parameters fails"
says err --fresh-states embedding.weight "5 steps"
[ "$(first_step)" = 5 ] || fail "the run with fresh states did not continue after step 5"
train -o other --resume --set optimizer.kind=sgd --set train.steps=11 || fail "resuming after states began anew fails"
exits_with 2 train -o stopped --fresh-states '*'
says err --fresh-states
cp -r stopped listed
train -o listed --resume --set train.steps=11 --set shard.zero=1 || fail "resuming with changed keys that may change fails"
says err shard.zero "checkpoint: 0" "recipe: 1" train.steps "checkpoint: 10" "recipe: 11"
# Another library for matrix products gives other bits, which is reported.
cp -r stopped otherwise
ADDEND_PRODUCTS=openblas train -o otherwise --resume || fail "resuming with another library for matrix products fails"
grep "^addend: warning: " err >warned && says_facts warned OpenBLAS # and the processor
grep -q '"products": "OpenBLAS; ' otherwise/run.json || fail "run.json does not name the library of the matrix products"
train -o same --resume --set train.steps=11 && ! grep -q "^addend: warning: " err || fail "the same matrix products cause a warning, or resuming fails"
# A text is identified by its contents.
mkdir text && cp /usr/share/common-licenses/GPL-2 text/a
train -o texts --set 'data.text=[text]' --set train.steps=5 || fail "training on a text of the test's own fails"
mv text moved
train -o texts --resume --set 'data.text=[moved]' || fail "resuming with the same text under another name fails"
echo "one line more" >>moved/a
exits_with 2 train -o texts --resume --set 'data.text=[moved]'
says err data.text

cp -r straight damaged
truncate -s 100000 damaged/checkpoints/step-10/rank-0.safetensors
train -o damaged --resume || fail "resuming beside a damaged checkpoint fails"
[ "$(first_step)" = 5 ] || fail "the run did not continue from the checkpoint before the damaged one"
says err "step 10" rank-0.safetensors 100000
cmp straight/weights.safetensors damaged/weights.safetensors || fail "a run resumed beside a damaged checkpoint has other weights"
rm damaged/checkpoints/*/index.json
exits_with 3 train -o damaged --resume --set train.steps=11
says err damaged/checkpoints "step 10" "step 5" step-10/index.json step-5/index.json
grep "^addend: warning: " err >warned
says warned "step 10" step-10/index.json
says warned "step 5" step-5/index.json

# Ctrl-C leaves a checkpoint.
"$addend" train "$recipe" --set train.steps=100000 --set checkpoint.every=100000 -o long >out 2>err & launcher=$!
for _ in $(seq 600); do [ ! -s long/metrics.jsonl ] || break; sleep 0.1; done
kill -INT $launcher
exits_with 3 wait $launcher
launcher=
says err long/checkpoints
step=$(ls long/checkpoints) && step=${step#step-}
[ "$(wc -l <long/metrics.jsonl)" = "$step" ] || fail "the checkpoint after Ctrl-C is not of the last step taken"
train -o long --resume --set train.steps=$((step + 2)) || fail "resuming after Ctrl-C fails"
[ "$(first_step)" = "$step" ] || fail "the resumed run did not continue after the step it was stopped at"

# Two runs in one folder: the second is refused, with and without --resume; a killed run leaves no lock.
"$addend" train "$recipe" --set train.steps=100000 -o shared >out 2>err & launcher=$!
for _ in $(seq 600); do [ ! -s shared/metrics.jsonl ] || break; sleep 0.1; done
lines=$(wc -l <shared/metrics.jsonl)
for more in --resume ""; do
  exits_with 3 train -o shared $more
  grep -w -e "$(pgrep -P $launcher | sed 's/^/process /')" err >held && says_facts held shared || fail "no message that a rank of the first run has the folder locked"
done
kill -9 $launcher && wait $launcher 2>/dev/null || true
launcher=
[ "$(wc -l <shared/metrics.jsonl)" -ge "$lines" ] || fail "a second run in the folder shortened the first run's metrics"
train -o shared --resume || fail "resuming after the run that held the lock was killed fails"

# A run killed while it writes one checkpoint after another: every checkpoint with a final name is whole.
for steps in 3 6 9; do
  rm -rf killed && mkdir -p killed
  "$addend" train "$recipe" --set train.steps=100000 --set checkpoint="{every: 1, keep: 2}" -o "$work/killed" >out 2>err & launcher=$!
  for _ in $(seq 6000); do [ "$(wc -l 2>/dev/null <killed/metrics.jsonl || echo 0)" -lt $steps ] || break; sleep 0.01; done
  kill -9 $launcher && wait $launcher 2>/dev/null || true
  launcher=
  for _ in $(seq 1200); do pgrep -f -- "$work/killed" >/dev/null || break; sleep 0.05; done # its ranks end with it
  newest=$(ls killed/checkpoints | sed -n 's/^step-\([0-9]*\)$/\1/p' | sort -n | tail -n 1)
  [ -n "$newest" ] || fail "no checkpoint after $steps steps"
  train -o killed --resume --set train.steps=$((newest + 1)) || fail "resuming after a kill fails"
  [ "$(first_step)" = "$newest" ] || fail "the run did not continue from the newest checkpoint"
  [ -z "$(ls killed/checkpoints | grep tmp || true)" ] || fail "half-written files of checkpoints are left"
done

# A full disk has room for one checkpoint and half of another. Mounting needs privileges that not everybody has.
mkdir -p full/checkpoints
if mount -t tmpfs -o size=700k none full/checkpoints 2>/dev/null; then
  mounted=$work/full/checkpoints
  exits_with 3 train -o full
  says err "step 10" rank-0.safetensors "No space"
  [ "$(ls full/checkpoints)" = step-5 ] || fail "step-5 is not the only checkpoint after the disk was full"
  train -o full --resume --set train.steps=5 || fail "resuming from the checkpoint before the full disk fails"
else
  echo "resume: a full disk is not tried here: no right to mount"
fi

# Links laid in the folder are not written through, and unfinished files of a killed run are removed.
mkdir trapped && touch victim && chmod 600 victim
for name in weights.safetensors metrics.jsonl trace.json run.json report.html; do
  ln -s "$work/victim" trapped/$name.tmp
  echo half >trapped/$name.0123456789abcdef.tmp
  echo mine >trapped/$name.note.tmp
done
ln -s "$work/victim" trapped/trace.json && ln -s "$work/victim" trapped/report.html
train -o trapped || fail "training in a folder with symbolic links fails"
[ ! -s victim ] || fail "a link was followed"
[ -z "$(ls trapped | grep 0123456789abcdef || true)" ] || fail "temporary files of a killed run are left"
[ "$(ls trapped | grep -c note.tmp)" -eq 5 ] || fail "files with other names were removed"
[ ! -L trapped/trace.json ] && [ -s trapped/trace.json ] || fail "trace.json is still a symbolic link, or empty"

# Checkpoints are written only if the recipe asks for them.
train -o unasked --set checkpoint.every=0 || fail "training without checkpoints fails"
[ ! -e unasked/checkpoints ] || fail "checkpoints were written though the recipe asks for none"

echo "resume: all hold"
