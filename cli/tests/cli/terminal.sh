#!/usr/bin/env bash
# Tests what is printed to a terminal: colours and a moving bar, unless NO_COLOR or TERM=dumb refuse them; files get
# neither.
set -eu
addend=$1 source=$2
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
cd "$work"
unset NO_COLOR
export TERM=xterm
fail() { echo "FAILED: $*" >&2; exit 1; }

on_terminal() { # arguments: command; both of its outputs go to a new terminal, and from there to `seen`
  python3 -c 'import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))' "$@" >seen </dev/null
}
recipe=$source/recipes/gpt-dp.yaml
colour=$'\033[3' moves=$'\033[K'

on_terminal "$addend" check "$recipe" --steps 1
grep -qF "$colour" seen || fail "a terminal gets colours"
grep -qF "$moves" seen || fail "a terminal gets a bar that is taken away"
NO_COLOR=1 on_terminal "$addend" check "$recipe" --steps 1
! grep -qF "$colour" seen || fail "NO_COLOR is heeded"
grep -qF "$moves" seen || fail "NO_COLOR is of colours only"
NO_COLOR='' on_terminal "$addend" check "$recipe" --steps 1
grep -qF "$colour" seen || fail "an empty NO_COLOR refuses nothing"
TERM=dumb on_terminal "$addend" check "$recipe" --steps 1
! grep -qF $'\033' seen || fail "a dumb terminal gets no escape"
"$addend" check "$recipe" --steps 1 >seen 2>&1
! grep -qF $'\033' seen || fail "a file gets no escape"

# A training's bar shows the loss of the last evaluation on validation data, which the first one was before the first step.
head -c 6001 /usr/share/common-licenses/GPL-3 >text.txt
on_terminal "$addend" train "$recipe" --set train.steps=300 --set 'data.text=[text.txt]' --set data.validation=0.1 \
  --set evaluate.every=300 -o evaluated
losses_on_bars() { # prints the losses on each bar in `seen`, which has a step of 300 and a time
  python3 -c 'import re
for bar in re.split(r"[\r\n]", open("seen", errors="replace").read()):
    if re.search(r"/300 .* \d+:\d\d ", bar): print(*re.findall(r"\d+\.\d{4}", bar))'
}
losses_on_bars >losses
python3 - <<'P' || fail "the validation loss is on the bar"
import json
lines = [json.loads(line) for line in open("evaluated/validation.jsonl")]
validation = {f"{sum(line['sums']) / sum(line['counts']):.4f}" for line in lines}
bars = [bar.split() for bar in open("losses")]
assert bars and all(validation & set(bar) for bar in bars), (validation, bars)
P
# It shows the mean over the newest ten steps at most, and the time that the steps which are left will take.
python3 - <<'P' || fail "numbers on the bar"
import json, re
lines = [json.loads(line) for line in open("evaluated/metrics.jsonl")]
losses, tokens = [line["loss"] for line in lines], lines[0]["tokens"]
told = r"(\d+)/300 .*?loss (\d+\.\d{4})(?: \(mean of (\d+)\))?  validation \d+\.\d{4}  (\d+) tokens/s  (\d+):(\d\d) left"
bars = [found.groups() for found in map(lambda bar: re.search(told, bar), re.split(r"[\r\n]", open("seen", errors="replace").read())) if found]
assert len(bars) > 3, bars
for step, loss, of, rate, minutes, seconds in bars:
    newest = losses[max(0, int(step) - 10) : int(step)]
    assert abs(sum(newest) / len(newest) - float(loss)) < 1e-4, (step, loss, newest)
    left = (300 - int(step)) * tokens / int(rate)
    assert int(of or 1) == len(newest) and -0.1 < left - (60 * int(minutes) + int(seconds)) < 1.1, (step, of, rate, minutes, seconds)
P
on_terminal "$addend" train "$recipe" --set train.steps=300 --set 'data.text=[text.txt]' -o without
losses_on_bars >losses
[ "$(wc -w <losses)" -gt 0 ] && [ "$(wc -w <losses)" -eq "$(wc -l <losses)" ] || fail "without validation data there is no such loss: $(cat losses)"
echo "terminal: all hold"
