#!/usr/bin/env bash
# Tests what is reported of a pipeline before and after a run: `addend plan` prints and draws the schedule that runs
# execute and times it by a run's trace, and the run's page has each pass with its stage and microbatch.
set -eu
addend=$1 source=$2
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
cd "$work"
fail() { echo "FAILED: $*" >&2; [ ! -s err ] || cat err >&2; exit 1; }
. "$source/tests/support/says.sh"
exits_with() { # arguments: status, command
  local expected=$1 status=0
  shift
  "$@" >out 2>err || status=$?
  [ $status -eq "$expected" ] || fail "exit $status, not $expected: $*"
}
recipe=$source/recipes/gpt-pp.yaml

# The picture has every action, and the document agrees with the schedule's table with the same costs.
cat >same.py <<'P'
"""same.py PICTURE: plan's document on standard input, beside table.json, which `addend schedule make --json` printed."""
import json, re, sys
import xml.etree.ElementTree as xml
plan = json.load(sys.stdin)
schedule, root = plan["schedule"], xml.parse(sys.argv[1]).getroot()
texts = [text.text or "" for text in root.iter("{http://www.w3.org/2000/svg}text")]
boxes = [box for box in root.iter("{http://www.w3.org/2000/svg}rect") if (box.get("class") or "").startswith("cell")]
kinds = list(schedule["costs"]["of_stage"][0])
assert len(boxes) == len(kinds) * (schedule["stages"] * schedule["microbatches"] + 1), len(boxes) # and the legend
numbers = [text for text in texts if re.fullmatch("[0-9]+", text)]
for m in range(schedule["microbatches"]):
    assert numbers.count(str(m)) <= len(kinds) * schedule["stages"]
    assert str(m) in numbers or schedule["costs"]["by"] == "trace" # beside a pass that took long others are too narrow for it
for pool in plan["pools"]:
    first, last = pool["first_rank"], pool["first_rank"] + pool["ranks"] - 1
    assert any(re.fullmatch(rf"ranks {first} [a-z]+ {last}" if last > first else f"rank {first}", text) for text in texts), texts
bubble, in_flight = f'{100 * schedule["bubble"]:.1f} % ', schedule["in_flight"]
assert any(bubble in text and re.search(rf"(?<!\d){in_flight}(?!\d)", text.split(bubble)[1]) for text in texts), texts
assert texts[0].startswith(plan["recipe"] + ": ") and texts[0].endswith(" " + schedule["kind"]), texts[0]
assert texts[1].startswith("addend plan "), texts[1]
for number, row in enumerate(schedule["per_pool"]):
    assert row["pool"] == number and row["stages"] == plan["pools"][number]["stages"]
    assert row["stages"] == list(range(number, schedule["stages"], len(plan["pools"])))
    cost = sum(sum(schedule["costs"]["of_stage"][stage].values()) for stage in row["stages"])
    assert abs(row["busy"] - cost * schedule["microbatches"]) < 1e-9 * row["busy"], row
    assert abs(row["busy"] + row["idle"] - schedule["makespan"]) < 1e-9 * schedule["makespan"]
P
# The printed table has the document's numbers.
cat >table.py <<'P'
"""The table on standard input, beside plan.json."""
import json, sys
plan, lines = json.load(open("plan.json")), sys.stdin.read().splitlines()
s = plan["schedule"]
held = f'; operands held for W: {s["deferred"]}' if s["deferred"] else ""
head = f'  schedule {s["kind"]}: {s["microbatches"]} microbatches through {s["stages"]} stages; bubble {100 * s["bubble"]:.1f} % of ' \
    f'{s["makespan"]:.4g}; activations in flight: {s["in_flight"]} at most{held}'
rows = []
for row in s["per_pool"]:
    pool = plan["pools"][row["pool"]]
    first, last = pool["first_rank"], pool["first_rank"] + pool["ranks"] - 1
    ranks, stages = f"{first} to {last}" if last > first else str(first), ", ".join(map(str, row["stages"]))
    rows.append(f'  {ranks:20} {stages:16} {row["busy"]:12.4g} {100 * row["idle"] / s["makespan"]:8.1f} {row["in_flight"]:10} {row["deferred"]:12}')
unit = {"products": "1 is the forward pass of the mean stage, by its matrix products", "trace": "seconds, as a run measured them"}
at = lines.index(head)
assert lines[at + 2 : at + 3 + len(rows)] == rows + ["  busy: " + unit[s["costs"]["by"]]], (lines[at : at + 3 + len(rows)], rows)
P
draws() { # arguments: options of plan
  exits_with 0 "$addend" plan "$recipe" "$@" --json --picture pp.svg
  python3 same.py pp.svg <out || fail "the picture of: $*"
  mv out plan.json
  exits_with 0 "$addend" plan "$recipe" "$@"
  python3 table.py <out || fail "the table of: $*"
}
draws
draws --set mesh="pp=3 dp_shard=1" --set schedule.kind=zb --set train.microbatches=4
draws --set mesh="pp=2 dp_shard=1" --set schedule.stages=6 --set model.layers=6
draws --set mesh="pp=2 tp=2 dp_shard=1" --set schedule.kind=gpipe --set schedule.layers="[3, 0]" --set train.microbatches=1
says out "stream 0" "stage 0" "stage 1"

# Times are read from a run's trace; the trace of another table is refused.
pipeline=(--set "mesh=pp=2 dp_shard=2" --set train.microbatches=4 --set train.steps=3)
exits_with 0 "$addend" train "$recipe" "${pipeline[@]}" --set schedule.kind=zb -o run
draws "${pipeline[@]}" --set schedule.kind=zb --trace run
draws "${pipeline[@]}" --set schedule.kind=1f1b --trace run
exits_with 0 "$addend" plan "$recipe" "${pipeline[@]}" --trace run --json
python3 - <<'P' || fail "costs are the means of the trace"
import collections, json
plan = json.load(open("out"))
events = [event for event in json.load(open("run/trace.json"))["traceEvents"] if event.get("ph") == "X"]
kinds = {"forward": "F", "backward": "B", "backward of weights": "B"}
spans, means = collections.defaultdict(list), collections.defaultdict(float)
for event in events:
    args = event["args"]
    if args["step"] == 0 or event["cat"] not in kinds:
        continue
    end = event["ts"] + event["dur"]
    waits = sum(wait["dur"] for wait in events if event["cat"] == "forward" and wait["cat"] == "wait for value" and wait["pid"] == event["pid"] and event["ts"] <= wait["ts"] < end)
    spans[args["stage"], event["cat"], args["index"]].append(1e-6 * (event["dur"] - waits))
for (stage, cat, _), found in spans.items():
    assert len(found) == 2 * 2 # two steps, two ranks
    means[stage, kinds[cat]] += sum(found) / len(found) / plan["schedule"]["microbatches"]
assert plan["schedule"]["costs"]["by"] == "trace"
for stage, costs in enumerate(plan["schedule"]["costs"]["of_stage"]):
    for kind, cost in costs.items():
        assert abs(cost - means[stage, kind]) < 1e-8, (stage, kind, cost, means[stage, kind])
P
exits_with 2 "$addend" plan "$recipe" "${pipeline[@]}" --set train.microbatches=3 --trace run
says err run/trace.json
exits_with 2 "$addend" plan "$source/recipes/gpt-dp.yaml" --trace run
says err --trace

# The run's page has each pass with its stage and microbatch.
python3 - run/report.html <<'P' || fail "the page has stages"
import json, sys
page = open(sys.argv[1]).read()
runs = json.loads(page.split('<script type="application/json" id="runs">')[1].split("</script>")[0])
spans = runs[0]["timeline"]["spans"]
for kind in ("forward", "backward", "backward of weights"):
    found = {(s["rank"], s["stage"], s["index"]) for s in spans if s["kind"] == kind}
    assert found == {(rank, rank // 2, m) for rank in range(4) for m in range(4)}, (kind, found)
assert all(("stage" in s) == s["kind"].startswith(("forward", "backward")) for s in spans)
P

# A plan of a large pipeline takes no longer than that of a small one.
exits_with 0 timeout 60 "$addend" plan "$recipe" --set mesh="pp=64 dp_replicate=125 dp_shard=125" --set model.layers=128 \
  --set train.global_batch=15625 --set train.microbatches=64
says out "1000000 ranks"
says out "64 microbatches" "64 stages"
says out "48 more"
[ "$(sed -n '/held for W$/,/ 48 more/p' out | wc -l)" = 18 ] || fail "sixteen rows between their head and how many more there are"
echo "plan_schedule: all hold"
