#!/usr/bin/env bash
# Tests `addend train` on real text: the loss falls, and the run leaves metrics, a trace and a report that can be
# opened.
set -eu
addend=$1 source=$2
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
cd "$work"
fail() { echo "FAILED: $*" >&2; exit 1; }
. "$source/tests/support/says.sh"
"$addend" train "$source/recipes/gpt-text.yaml" --set train.steps=25 --json >story.json 2>err || { cat err >&2; fail "train"; }
python3 - <<'P'
import json
story = json.load(open("story.json"))
assert story["steps"] == 25 and story["loss"]["last"] < story["loss"]["first"] - 1, story
lines = [json.loads(line) for line in open("runs/gpt-text/metrics.jsonl")]
assert [line["step"] for line in lines] == list(range(25))
for line in lines:
    assert {"step", "loss", "norm", "lr", "tokens_per_second", "wait_seconds", "reduction_seconds"} <= set(line), line
assert "pss_rank_bytes" in lines[0] and "pss_rank_bytes" in lines[-1] and "pss_rank_bytes" not in lines[1]
assert lines[-1]["pss_rank_bytes"] < lines[-1]["pss_all_bytes"] <= 4 * lines[-1]["pss_rank_bytes"], lines[-1]
validation = [line for line in lines if "validation_loss" in line]
assert [line["step"] for line in validation] == [*range(0, 25, 3)], validation
assert all(line["validation_samples"] == validation[0]["validation_samples"] > 50 and 0 < line["validation_standard_error"] < 0.2 for line in validation), validation
last = validation[-1]
assert story["validation"] == {"step": 24, "loss": last["validation_loss"], "standard_error": story["validation"]["standard_error"], "samples": last["validation_samples"]}, story
assert abs(story["validation"]["standard_error"] - last["validation_standard_error"]) < 1e-6, story
# A mean over three batches each, and what became of each validation sample since before the first step.
tenths = [sum(line["loss"] for line in part) / 3 for part in (lines[:3], lines[-3:])]
assert story["loss"]["tenth_steps"] == 3 and abs(story["loss"]["first_tenth"] - tenths[0]) < 1e-6 > abs(story["loss"]["last_tenth"] - tenths[1]), (story["loss"], tenths)
assert (story["loss"]["first"], story["loss"]["last"]) == (lines[0]["loss"], lines[-1]["loss"]) and story["counted"] == "tokens", story
points = [json.loads(line) for line in open("runs/gpt-text/validation.jsonl")]
assert [point["step"] for point in points] == [-1, *range(0, 25, 3)], points
means = [sum(point["sums"]) / sum(point["counts"]) for point in points]
before = lines[0]["validation_before"]
assert abs(means[0] - before["loss"]) < 1e-6 > abs(means[-1] - last["validation_loss"]) and before["loss"] > lines[0]["validation_loss"], before
moved = [(b - a, c) for a, b, c in zip(points[0]["sums"], points[-1]["sums"], points[0]["counts"])]
change = sum(d for d, _ in moved) / sum(c for _, c in moved)
error = (len(moved) / (len(moved) - 1) * sum((d - change * c) ** 2 for d, c in moved)) ** 0.5 / sum(c for _, c in moved)
since = story["validation_change"]["since_first"]
assert since["step"] == -1 and since["verdict"] == "lower" and abs(since["change"] - change) < 1e-6 > abs(since["standard_error"] - error), since
assert story["validation_change"]["before"] and abs(last["validation_since_first"]["change"] - change) < 1e-6, story["validation"]
assert story["validation_change"]["since_best"]["step"] == 21, story["validation"]
trace = json.load(open("runs/gpt-text/trace.json"))
events = trace["traceEvents"] if isinstance(trace, dict) else trace
names = {event["name"] for event in events}
assert {event["pid"] for event in events} == {0, 1, 2, 3}
assert any("forward" in name for name in names) and any("backward" in name for name in names), names
buckets = [event for event in events if event["name"].startswith("bucket ")]  # from the post to the end of the wait
assert {event["pid"] for event in buckets} == {0, 1, 2, 3} and {event["ph"] for event in buckets} == {"b", "e"}
assert any(name.startswith("wait for bucket ") for name in names), names
late = {event["args"]["step"] for event in events if event["name"].startswith("step ")}
assert late >= set(range(25)) - {20}, late  # the first twenty, and the last four
report = open("runs/gpt-text/report.html").read()
[run] = json.loads(report.split('<script type="application/json" id="runs">')[1].split("</script>")[0])
assert run["folder"] == "runs/gpt-text" and run["metrics"] == lines and run["broken"] == {}, run["broken"]
assert run["timeline"]["steps"] == [1, 24] and run["timeline"]["ranks"] == 4, run["timeline"]["steps"]
assert run["run"] == json.load(open("runs/gpt-text/run.json")) and run["check"] is None
assert {"key": "train.steps", "value": "25", "default": None} in run["run"]["changed"], run["run"]["changed"]
assert "http://www.w3.org" in report and "</html>" in report
assert 'src="http' not in report and 'href="http' not in report  # self-contained
P
"$addend" train "$source/recipes/gpt-dp.yaml" --set train.steps=1 --set train.warmup=0 -o 'a "folder"' --json >quoted.json 2>err
python3 -c 'import json; story = json.load(open("quoted.json")); assert story["folder"] == "a \"folder\"", story'
sed -i '/^\(train\|evaluate\) [0-9]/d' err # progress messages, which a slow machine prints
[ ! -s err ] || { cat err >&2; fail "what goes well has nothing else to tell of"; }
# The recipe says how often and on how many samples a run is evaluated, and the last line says it. If there are too few
# samples all are used, which is reported.
validation() { python3 -c 'import json, sys; print([(line["step"], line["validation_samples"]) for line in map(json.loads, open(sys.argv[1] + "/metrics.jsonl")) if "validation_loss" in line])' "$1"; }
tiny() { "$addend" train "$source/recipes/gpt-dp.yaml" --set train.steps=8 --set data.validation=0.1 --set data.text=[few.txt] "$@" >out 2>err || { cat err >&2; fail "train $*"; }; }
head -c 6001 /usr/share/common-licenses/GPL-3 >few.txt # 600 bytes are for validation: 24 samples of 24 tokens
tiny -o three --set evaluate.every=3 --set evaluate.samples=10
[ "$(validation three)" = "[(2, 10), (5, 10), (7, 10)]" ] || fail "when and how much: $(validation three)"
says out "10 samples" "8 steps"
[ ! -s err ] || { cat err >&2; fail "nothing else is reported"; }
says out "8 steps" tokens/s three/report.html
change=$(python3 -c 'import json; print("{:.4f}".format(abs(json.loads(list(open("three/metrics.jsonl"))[-1])["validation_since_first"]["change"])))')
grep -E " [0-9.]+ \+- [0-9.]+ " out | tail -n 1 >came && says_facts came "$change" # how far it came
tiny -o twelve --set train.steps=12
says out "2 steps" "12 steps" tokens/s
python3 - <<'P' || fail "the losses are means"
import json
lines = [json.loads(line)["loss"] for line in open("twelve/metrics.jsonl")]
said = open("out").read().split()
assert said[1] == f"{sum(lines[:2]) / 2:.4f}" and said[3] == f"{sum(lines[-2:]) / 2:.4f}", (said, lines)
P
# What does not train does not change, by any sample.
tiny -o still --set train.lr=0 --set train.steps=3
grep " 0.0000 +- 0.0000 " out >came && says came "0.0000"
tiny -o more --set evaluate.samples=1000 --set evaluate.every=8
[ "$(validation more)" = "[(7, 24)]" ] || fail "all that there are: $(validation more)"
says err evaluate.samples 1000 "24 samples"
tiny -o none --set evaluate.samples=0
[ "$(validation none)" = "[]" ] && [ "$(wc -l <out)" -eq 1 ] || { cat out >&2; fail "no evaluation"; }
tiny -o uncounted-there --set 'data.valid=[0, 0]'
[ "$(validation uncounted-there)" = "[]" ] || fail "nothing that counts"
# Law 5: a step without a counted token has gradient 0, with a warning, and training continues; of several such steps
# the first is named, with their number.
"$addend" train "$source/recipes/gpt-dp.yaml" --set 'data.valid=[0]' --set train.steps=2 -o uncounted --json >uncounted.json 2>err || fail "uncounted"
says err "step 0"
says err "2 steps"
[ "$(grep -c "^addend: warning: " err)" -eq 2 ] || { cat err >&2; fail "it warns once"; }
python3 - <<'P'
import json
lines = [json.loads(line) for line in open("uncounted/metrics.jsonl")]
assert [line["step"] for line in lines] == [0, 1] and all(line["norm"] == 0 for line in lines), lines
P
echo "train: all hold"
