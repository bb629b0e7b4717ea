#!/usr/bin/env bash
# Tests by a decomposition's trace that importances travel while blocks and adversary run the target: the wait for them
# lies inside the forward pass that needs them, after the target's forward.
#   pools_trace.sh ADDEND SOURCE
set -eu
addend=$1 source=$2
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
cd "$work"
"$addend" train "$source/recipes/pools-10.yaml" --set train.steps=3 --out pools >out.txt 2>&1 || { cat out.txt >&2; exit 1; }
python3 - <<'Y'
import json
events = [event for event in json.load(open("pools/trace.json"))["traceEvents"] if event.get("ph") == "X"]
def spans(kind, rank):
    return [(event["ts"], event["ts"] + event["dur"]) for event in events if event["cat"] == kind and event["pid"] == rank]
for rank in range(4, 10):  # blocks and adversary
    forward, waits = spans("forward", rank), spans("wait for value", rank)
    assert waits, rank
    for begin, end in waits:
        assert any(first < begin and end < last for first, last in forward), f"rank {rank} waits outside its forward passes"
Y
echo "pools_trace: all hold"
