#!/usr/bin/env bash
# Tests that runs execute their tables: in the traces, forward and backward are in the order of each rank's list, for
# one stage, for several modules on disjoint ranks (schedules `accumulate`, `leads`), and for the stages of a pipeline,
# whose schedule the recipe names.
set -eu
addend=$1 source=$2
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
cd "$work"
fail() { echo "FAILED: $*" >&2; exit 1; }
trained() { # arguments: recipe, microbatches, settings
  local recipe=$1 microbatches=$2; shift 2
  rm -rf run
  "$addend" train "$recipe" --set train.steps=2 --set train.warmup=0 --set train.microbatches="$microbatches" --set train.global_batch=12 \
    "$@" -o run >out 2>err || { cat err >&2; fail "train $recipe"; }
}
same() { # arguments: recipe, microbatches, schedule, stages, rank of the run for each rank of the table, --, settings
  local recipe=$source/recipes/$1.yaml microbatches=$2 schedule=$3 stages=$4 ranks=(); shift 4
  while [ $# -gt 0 ] && [ "$1" != -- ]; do ranks+=("$1"); shift; done
  [ $# -eq 0 ] || shift
  trained "$recipe" "$microbatches" "$@"
  "$addend" schedule make "$schedule" --stages "$stages" --ranks "${#ranks[@]}" --microbatches "$microbatches" --json >table.json ||
    fail "make $schedule"
  python3 - run/trace.json table.json "${ranks[@]}" <<'P' || fail "$recipe, $microbatches microbatches: the order of $schedule"
import json, sys
events = json.load(open(sys.argv[1]))["traceEvents"]
table = json.load(open(sys.argv[2]))["ranks"]
assert len(table) == len(sys.argv) - 3
for row, rank in zip(table, sys.argv[3:]):
    for step in (0, 1):
        kinds = {"forward": "F", "backward": "B", "backward of weights": "W"}
        spans = [e for e in events if e.get("cat") in kinds and e["pid"] == int(rank) and e["args"]["step"] == step]
        spans.sort(key=lambda e: e["ts"])
        found = [str(e["args"]["stage"]) + kinds[e["cat"]] + str(e["args"]["index"]) for e in spans]
        assert found == [action.replace("I", "B") for action in row], (rank, step, found, row)
P
}
for microbatches in 1 3; do
  same gpt-dp $microbatches accumulate 1 0
  same ocr-disjoint $microbatches leads 2 0 4
done
pipeline=(--set 'mesh=pp=3 dp_shard=2' --set model.layers=6)
for microbatches in 2 4; do
  for schedule in 1f1b gpipe zb; do
    same gpt-dp $microbatches $schedule 3 0 2 4 -- "${pipeline[@]}" --set schedule.kind=$schedule
  done
  same gpt-dp $microbatches interleaved 6 0 2 4 -- "${pipeline[@]}" --set schedule.stages=6
done
echo "schedule_order: all hold"
