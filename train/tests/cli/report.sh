#!/usr/bin/env bash
# Tests `addend report`: the page that training wrote is made again; several runs on one page; runs that are in flight,
# stopped, resumed or killed; folders that hold no run. The pages are drawn by chromium; if that is not installed the
# test is skipped.
set -eu
addend=$1 source=$2
work=$(mktemp -d) training=
clean_up() { [ -z "$training" ] || kill -9 "$training" 2>/dev/null || true; rm -rf "$work"; }
trap clean_up EXIT
cd "$work"
hang=60
fail() { echo "FAILED: $*" >&2; [ ! -s err ] || cat err >&2; exit 1; }
. "$source/tests/support/says.sh"
exits_with() { # arguments: status, command
  local expected=$1 status=0
  shift
  "$@" >out 2>err || status=$?
  [ $status -eq "$expected" ] || fail "exit $status, not $expected: $*"
}
recipe=$source/recipes/gpt-dp.yaml
data() { # argument: page; prints its data
  python3 -c 'import sys; print(open(sys.argv[1]).read().split("<script type=\"application/json\" id=\"runs\">")[1].split("</script>")[0])' "$1"
}
holds() { # arguments: page, Python condition on its `runs`
  data "$1" | python3 -c 'import json, re, sys; runs = json.load(sys.stdin); assert eval(sys.argv[1]), runs' "$2" || fail "$1: $2"
}

# The page is the same whichever command makes it, except for one word; and every name is in it unchanged.
odd='a "run" <!--<script> & <b>'
mkdir "$odd" other
exits_with 0 "$addend" check "$recipe" --steps 1 --mutate=3 --out "$odd/check.json"
exits_with 0 "$addend" train "$recipe" --set train.steps=30 -o "$odd"
cp "$odd/report.html" written.html
exits_with 0 "$addend" report "$odd"
[ "$(cat out)" = "$odd/report.html" ] || fail "the page is named: $(cat out)"
cmp written.html "$odd/report.html" || fail "it is the page that training wrote"
exits_with 0 "$addend" report "$odd//"
cmp written.html "$odd/report.html" || fail "a slash at the end changes nothing"
exits_with 0 "$addend" report "$odd" --out elsewhere.html
[ "$(cat out)" = elsewhere.html ] || fail "it goes where --out says"
cmp written.html elsewhere.html || fail "it is the same page there"
holds written.html 'len(runs) == 1 and runs[0]["folder"] == "a \"run\" <!--<script> & <b>" and runs[0]["broken"] == {}'
holds written.html 'runs[0]["run"]["command"][1] == "train" and runs[0]["run"]["command"][-1] == runs[0]["folder"]'
holds written.html '[s["first_step"] for s in runs[0]["run"]["starts"]] == [0] and runs[0]["run"]["finished"]'
holds written.html 'runs[0]["timeline"]["steps"] == [1, 29] and {s["rank"] for s in runs[0]["timeline"]["spans"]} == {0, 1, 2}'
holds written.html 'all(0 < s["begin"] <= s["end"] for s in runs[0]["timeline"]["spans"])'
holds written.html 'all({"wait_seconds", "reduction_seconds"} <= set(line) for line in runs[0]["metrics"])'

# Several runs on one page.
exits_with 0 "$addend" train "$recipe" --set train.steps=20 --set train.lr=1e-2 --set data.validation=0.1 --set train.microbatches=1 -o other
exits_with 0 "$addend" report other "$odd"
[ "$(cat out)" = other/report.html ] || fail "their page is beside the first"
cp other/report.html both.html
holds both.html '[len(run["metrics"]) for run in runs] == [20, 30]'
holds both.html '[re.findall("[0-9]+", run["run"]["facts"][1][1])[-1] for run in runs] == ["1", "2"]' # microbatches

# Several losses and metrics: five experts in each of two blocks; and sixty-four, of which one gets all tokens.
exits_with 0 "$addend" train "$source/recipes/moe-balance.yaml" --set train.steps=12 -o experts
holds experts/report.html 'set(runs[0]["metrics"][-1]["losses"]) == {"cross_entropy", "balance"}'
holds experts/report.html 'len(runs[0]["metrics"][-1]["measured"]["blocks.1.moe.tokens"]) == 5'
mkdir sixty-four
python3 - experts/metrics.jsonl >sixty-four/metrics.jsonl <<'Y'
import json, sys
for line in map(json.loads, open(sys.argv[1])):
    line["measured"] = {"blocks.0.moe.tokens": [1] * 64, "blocks.1.moe.tokens": [0] * 63 + [64], "unheard_of": 7, "unheard.of": [1, 3]}
    print(json.dumps(line))
Y
exits_with 0 "$addend" report sixty-four
exits_with 0 "$addend" report experts sixty-four -o experts-both.html

# Groups of parameters: each entry has a rate of its own, a frozen one has none.
exits_with 0 "$addend" train "$source/recipes/gpt-muon.yaml" --set train.steps=12 -o grouped \
  --set 'groups=[{match: "blocks.0.norm.*", frozen: true}, {match: "embedding.*", kind: adamw, lr: 0.01}, {match: "*norm*", kind: adamw}]'
holds grouped/report.html 'all(line["group_lr"][0] is None and abs(line["group_lr"][1] / line["lr"] - 0.5) < 1e-6 for line in runs[0]["metrics"])'

# Lines that a program read: right, with a wrong letter, with one too many, one missing, empty; and names that are
# markup.
cp -r other read
python3 - >read/result.json <<'Y'
import base64, json
pairs = ("right", "right"), ("wrong", "wrung"), ("many", "manny"), ("missing", "mising"), ("none", ""), ("<b>", "<i>")
ink = base64.b64encode(bytes([0, 255] * 6)).decode()
samples = [{"text": text, "read": read, "width": 4, "height": 3, "pixels": ink, "validation_font": i == 1} for i, (text, read) in enumerate(pairs)]
print(json.dumps({"lines": 6, "characters": 28, "character_error_rate": 0.25, "blank": 0.875, "validation_font": 0.2, "samples": samples}))
Y
exits_with 0 "$addend" report read
holds read/report.html 'len(runs[0]["result"]["samples"]) == 6'

# Texts of components: markup, control characters and bytes that are not UTF-8.
cp -r other components
python3 - >components/result.json <<'Y'
import json
text = list(b"<b>\n\x1b\xe2\x80\x9cx\xff\xe2\x80")
site = lambda name, used: {"name": name, "in": 8, "out": 4, "components": 5, "relative_error": 0.25, "used": used,
                           "active": {"above_zero": 1.5, "above_threshold": 0.5, "alive": 3}}
one = {"component": 2, "importance": 0.125, "frequency": 0.5}
shown = [{**one, "component": c, "site": "<i>.wq", "hundredths": [[(7 * c + i) % 100 for i in range(len(text))]]} for c in (2, 4)]
entropy = {"target": 1.5, "masked": 2.5, "rounded": 3, "random": 5, "uniform": 5.5452}
print(json.dumps({"positions": 24, "components": 10, "threshold": 0.5, "active": {"above_zero": 3, "above_threshold": 1, "alive": 6},
                  "cross_entropy": entropy, "divergence": {"masked": 0.75}, "relative_error": 0.25,
                  "sites": [site("<i>.wq", [one]), site("wo", [])], "texts": [text], "shown": shown}))
Y
exits_with 0 "$addend" report components

# Modules on disjoint ranks work at the same time: the encoder runs backward of a microbatch while the model runs the
# next.
exits_with 0 "$addend" train "$source/recipes/ocr-disjoint.yaml" -o pools
python3 - pools/trace.json <<'Y' || fail "both pools are at work at the same time"
import json, sys
def spans(kind, ranks):
    found = {}
    for event in events:
        if event.get("cat") == kind and event["pid"] in ranks:
            at = event["args"]["step"], event["args"]["index"]
            found.setdefault(at, []).append((event["ts"], event["ts"] + event["dur"]))
    return found
events = json.load(open(sys.argv[1]))["traceEvents"]
backward, forward = spans("backward", range(0, 4)), spans("forward", range(4, 8))
assert len(backward) == len(forward) == 20 * 4, (len(backward), len(forward))
overlap = lambda some, others: any(a < d and c < b for a, b in some for c, d in others)
pairs = [(backward[step, m], forward[step, m + 1]) for step, m in backward if (step, m + 1) in forward]
assert any(overlap(*pair) for pair in pairs), "no backward of a microbatch overlaps the forward of the next"
Y
pools='[("encoder", 0, 4), ("model", 4, 4)]'
holds pools/report.html 'runs[0]["run"]["placement"] == "disjoint"'
holds pools/report.html "[(p['module'], p['first_rank'], p['ranks']) for p in runs[0]['run']['pools']] == $pools"
holds pools/report.html 'len(runs[0]["timeline"]["idle"]) == 8 and all(0 < share < 1 for share in runs[0]["timeline"]["idle"])'
exits_with 0 "$addend" train "$source/recipes/ocr-equal.yaml" --set train.steps=2 -o shared
holds shared/report.html 'runs[0]["run"]["placement"] == "colocated" and "pools" not in runs[0]["run"]'
holds written.html '"placement" not in runs[0]["run"]'

# Folders without a run, and pages that cannot be written.
mkdir empty
exits_with 2 "$addend" report
exits_with 2 "$addend" report other --out ''
for folder in nowhere empty; do
  exits_with 2 "$addend" report other $folder --out none.html
  says err "$folder/metrics.jsonl"
  [ ! -e none.html ] || fail "and writes no page"
done

# report and plan have the same rule for the name of --out.
judges_out() { # arguments: command
  mkfifo pipe && ln -s metrics.jsonl link && echo old >there
  for out in pipe link other other/ other/metrics.jsonl other/weights.safetensors other/run.json; do
    exits_with 2 timeout $hang "$addend" "$@" --out $out
    grep -q -e "--out $out: " err || fail "$1: it says why $out is not written"
  done
  [ -p pipe ] && [ -L link ] && grep -q '"step"' other/metrics.jsonl || fail "$1: what was named stands as it did"
  exits_with 0 "$addend" "$@" --out there
  ! grep -q "^old" there || fail "$1: a regular file is replaced"
  rm pipe link there
}
judges_out report other
judges_out check "$recipe" --steps 1
exits_with 2 "$addend" report other --out other/check.json
exits_with 2 "$addend" check "$recipe" --out other/report.html
exits_with 3 "$addend" report other --out nowhere/page.html
says err nowhere/page.html

# Missing and broken files are reported, and the rest is shown.
cp -r other broken && echo '{"half' >broken/check.json && echo '[]' >broken/trace.json && rm broken/run.json
exits_with 0 "$addend" report broken
holds broken/report.html 'sorted(runs[0]["broken"]) == ["check.json", "trace.json"] and len(runs[0]["metrics"]) == 20'
holds broken/report.html 'runs[0]["run"] is None and runs[0]["timeline"] is None and runs[0]["check"] is None'

# A run that is in flight, then stopped, then resumed; and one that was killed.
start() { # argument: folder; trains there, for some steps at least, until it is stopped
  "$addend" train "$recipe" --set train.steps=1000000 --set checkpoint.every=1000000 -o "$1" >out 2>err &
  training=$!
  for _ in $(seq $((hang * 10))); do
    [ ! -s "$1/metrics.jsonl" ] || [ "$(wc -l <"$1/metrics.jsonl")" -le 10 ] || return 0 # a tenth needs more than ten lines
    sleep 0.1
  done
  fail "no ten steps in $1 after $hang s"
}
start stopped
"$addend" report stopped >page || fail "a run that is in flight"
holds stopped/report.html 'runs[0]["metrics"] and runs[0]["timeline"] is None and "finished" not in runs[0]["run"]'
kill -TERM "$training" && wait "$training" || true
training=
holds stopped/report.html '"ended" in runs[0]["run"]["starts"][0] and "finished" not in runs[0]["run"] and runs[0]["timeline"]'
steps=$(wc -l <stopped/metrics.jsonl)
exits_with 0 "$addend" train "$recipe" --set train.steps=$((steps + 3)) -o stopped --resume
cp stopped/report.html resumed.html
exits_with 0 "$addend" report stopped
cmp resumed.html stopped/report.html || fail "it is the page that the resumed training wrote"
holds resumed.html "[s['first_step'] for s in runs[0]['run']['starts']] == [0, $steps] and runs[0]['run']['finished']"
holds resumed.html "runs[0]['run']['starts'][1]['command'][-1] == '--resume' and runs[0]['run']['steps'] == $((steps + 3))"
holds resumed.html "[line['step'] for line in runs[0]['metrics']][-4:] == [$((steps - 1)), $steps, $((steps + 1)), $((steps + 2))]"
holds resumed.html "runs[0]['timeline']['steps'] == [$((steps + 1)), $((steps + 2))]"
start killed
kill -9 "$training" && wait "$training" || true
training=
exits_with 0 "$addend" report killed
holds killed/report.html 'runs[0]["metrics"] and runs[0]["timeline"] is None and "ended" not in runs[0]["run"]["starts"][0]'
echo "report: the documents hold"

# The page as a reader sees it.
command -v chromium >/dev/null || { echo "report: SKIPPED: chromium is not installed, so no page was drawn"; exit 77; }
draw() { # argument: page; `drawn` gets what chromium makes of it, `texts` its texts; a script's console message is an error
  timeout $hang chromium --headless --no-sandbox --disable-gpu --window-size="${width:-1200},3000" --user-data-dir="$work/chromium" --enable-logging=stderr \
    --virtual-time-budget=5000 --dump-dom "file://$work/$1" >drawn 2>log || { cat log >&2; fail "chromium cannot draw $1"; }
  ! grep CONSOLE log >err || fail "$1: a script has something to say"
  sed -i -n '/<main/,/<script/p' drawn # leaves out the data and the scripts themselves
  python3 "$source/tests/support/page_texts.py" drawn >texts
}
shows() { # arguments: least number, pattern
  [ "$({ grep -o -e "$2" drawn || true; } | wc -l)" -ge "$1" ] || fail "fewer than $1 of $2"
}
hides() { ! grep -e "$1" drawn >err || fail "$1 is there"; } # argument: pattern
cp "$odd/report.html" odd.html
draw odd.html
shows 5 'class="tile"'
shows 8 '<canvas' # two for each of the four charts
shows 2 '<svg'
shows 18 '<code>blocks\.[01]\.[a-z.]*[a-z0-9_]*</code>'
shows 1 'class="value good"'
says_facts texts "20 parameters" "3 ranks" "dp_replicate=3 dp_shard=1" f64 # and the worst parameter
shows 1 'train\.steps'
grep '^[0-9.]* MiB .* MiB ' texts >line && says line MiB # of all ranks and of one
shows 1 'a "run" &lt;!--&lt;script&gt; &amp; &lt;b&gt;'
parts() { [ "$(grep -o '<section' drawn | wc -l)" -eq "$1" ] || fail "$1 parts: $(cat texts)"; } # argument: how many the page has
parts 6 # a program that measures nothing has none about that
# Every axis of every chart is labelled.
measured='document.getElementById("page").dataset.axes = [...document.querySelectorAll(".chart")].map((plot) =>
  [".dygraph-xlabel", ".dygraph-ylabel"].map((name) => (plot.querySelector(name) || {textContent: ""}).textContent || "nothing").join(": ")).join("; ")'
act() { # arguments: page, script; writes the page in which the script has run
  cp "$1" acted.html && echo "<script>$2</script>" >>acted.html && draw acted.html
}
act odd.html "$measured"
shows 1 'data-axes="\(step: [^;"]*; \)\{4\}step: ms [^;"]*"'
says texts axes
shows 6 '>[0-9.]* ms</text>'
act odd.html "[...document.querySelectorAll('label')].at(-1).firstChild.click(); $measured" # the last chart's other unit
shows 1 'data-axes="\(step: [^;"]*; \)\{4\}step: % [^;"]*"'
says texts axes
act experts/report.html "$measured"
shows 1 'data-axes="\(step: [^;"]*; \)\{8\}step: % [^;"]*; step: % [^;"]*"'
says texts axes # of five charts, and of five measured values
parts 7
act sixty-four/report.html "$measured"
! grep -q 'data-axes="[^"]*nothing' drawn || fail "an axis says nothing of its unit"
draw experts/report.html
shows 20 '<canvas' # two for each of the five charts and for each of as many measured values
shows 1 '>cross_entropy <b>[0-9.]*<'
shows 1 '>balance <b>[0-9.]*<'
shows 1 '>imbalance <b>[0-9.]*<' # these three are keys of metrics.jsonl
for block in 0 1; do shows 1 "<h3>[^<]*, blocks\\.$block<"; done
for expert in 0 1 2 3 4; do shows 2 ">#$expert <b>[0-9.]* %<"; done
shows 2 '[a-z], 20 %\.<' # an even share
draw sixty-four/report.html
shows 5 '>[a-z ]* <b>1\.563 %<' # five quantiles
shows 1 '>[a-z ]* <b>100 %<'
shows 4 '>[a-z ]* <b>0 %<'
says texts "100 %"
shows 2 '[a-z], 1\.563 %\.<'
shows 1 '>unheard_of <b>7<'
shows 1 '>#1 <b>75 %<'
draw read/report.html
says texts "6 lines" "25.0 %" "20.0 %" "87.5 %"
shows 6 '<canvas[^>]* class="line"'
shows 1 '<mark>u</mark>ng</span><small>' # the line in a font that nobody trained on has a note
[ "$(grep -o '<small>' drawn | wc -l)" -eq 1 ] || fail "other lines have it, too"
shows 1 '>right</span>'
shows 1 '>wr<mark>u</mark>ng</span>'
shows 1 '<mark>n</mark>'
shows 1 '<del>s</del>'
shows 1 '<del>n</del><del>o</del><del>n</del><del>e</del></span>'
shows 1 '>&lt;<mark>i</mark>&gt;</span>'

draw components/report.html
says texts "24 positions" "3 of" "10 components" "2 matrices" 6
[ "$(grep -oE '>[0-9]\.[0-9]{4}</td>' drawn | xargs)" = ">1.5000</td> >2.5000</td> >3.0000</td> >5.0000</td> >5.5452</td>" ] || fail "five entropies: $(cat texts)"
grep '[a-z] 0\.5$' texts >line && says line 0.5 # the threshold
shows 1 '>0\.75<'
shows 2 '>25 %<'
shows 1 '<option value="&lt;i&gt;\.wq">&lt;i&gt;\.wq<'
! grep -q '<option value="wo">' drawn || fail "a matrix without a component to be shown is no choice"
shows 1 'aria-pressed="true"><b>#2<'
shows 1 'aria-pressed="false"><b>#4<'
# Each byte has a place: bytes that cannot be seen have a mark, and the later bytes of a character have nothing.
shows 1 '%;">&lt;</span><span style="--need: 15%;">b</span><span style="--need: 16%;">&gt;</span><span style="--need: 17%;">⏎$'
shows 1 '^</span><span style="--need: 18%;">·</span><span style="--need: 19%;">“</span><span style="--need: 20%;"></span><span style="--need: 21%;"></span>'
shows 1 '>x</span><span style="--need: 23%;">·</span><span style="--need: 24%;">·</span><span style="--need: 25%;">·</span></p>'
draw pools/report.html
says texts "dp=2 tp=2" "dp=2 cp=2"
idle='<td class="number" data-title="[^"]*">[0-9.]* %<' # a share of the steps, for each pool
shows 2 "$idle"
says texts trace.json
shows 1 '>wait for value, wait for gradient' # kinds of the spans in trace.json
draw shared/report.html
says texts "dp=2 tp=4" "cp=2 tp=2"
hides "$idle" # modules that share their ranks have no pools
draw experts-both.html
shows 1 '>sixty-four, [a-z ]* <b>100 %<'
shows 1 '>moe-balance, [a-z ]* <b>[0-9.]* %<'
draw both.html
shows 8 '<canvas'
shows 2 'type="checkbox"'
shows 5 '"quiet step">[a-z]*<'
says texts "5 steps" "10 %" "90 %"

# A reader moves by keyboard to the last step, at which the shorter run has no value.
act both.html 'const plot = document.querySelector(".chart");
  for (let i = 0; i < 30; i++) plot.dispatchEvent(new KeyboardEvent("keydown", {key: "ArrowRight"}))'
shows 5 '"quiet step">step 29<'
shows 1 '>other, [a-z ]* <b>–<'
shows 1 '>other, [a-z ]* <b>[0-9.]* (step 19)<'
# Choosing another component colours the text anew; the keyboard moves through it and skips bytes that show nothing.
act components/report.html 'document.querySelectorAll(".choices button")[1].click(); const text = document.querySelector(".texts");
  for (let i = 0; i < 7; i++) text.dispatchEvent(new KeyboardEvent("keydown", {key: "ArrowRight"}))'
shows 1 'aria-pressed="true"><b>#4<'
shows 1 'style="--need: 28%;"[^>]*>&lt;<'
says texts "#4" "<i>.wq" 0.36 "“x”" "text 1" "position 8"

# The last validation loss is compared by the differences of samples, as train judged them; standard errors of the
# losses themselves decide nothing, and without differences nothing is said.
rank() { # arguments: JSON of the last line's changes; makes the page of a run whose evaluations are 2.5 +- 0.1 and 2.4 +- 0.1
  mkdir -p ranked && python3 - "$1" >ranked/metrics.jsonl <<'Y'
import json, sys
for step, value in (0, 2.5), (1, 2.4):
    more = json.loads(sys.argv[1]) if step else {"validation_before": {"loss": 5, "samples": 64}}
    print(json.dumps({"step": step, "loss": 2, "validation_loss": value, "validation_samples": 64, "validation_standard_error": 0.1, **more}))
Y
  exits_with 0 "$addend" report ranked && draw ranked/report.html
}
compares() { # arguments: name of the case; numbers of the sentence that compares the last evaluation with others
  grep ' 64 samples' texts | sed "s/^/$1: /" >line
  says line "$1" "step 1" "64 samples" "${@:2}"
}
change() { echo "\"validation_since_$1\": {\"step\": $2, \"change\": $3, \"standard_error\": 0.009, \"verdict\": \"$4\"}"; }
rank "{$(change first -1 -0.5 lower), $(change best 0 -0.034 lower)}"
shows 1 '>2.4000 ± 0.1000<'
compares lower-and-best 0.5000 "± 0.0090"
rank "{$(change first -1 -0.5 lower), $(change best 0 0.01 noise)}"
compares lower-and-as-good 0.5000 "± 0.0090"
rank "{$(change first -1 -0.5 lower), $(change best 0 0.034 higher)}"
compares lower-and-worse 0.5000 "± 0.0090" 0.0340 "step 0"
rank "{$(change first -1 0.01 noise), $(change best -1 0.01 noise)}"
compares unchanged 0.0100 "± 0.0090"
rank '{}'
compares not-judged 5.0000
says_nothing_of texts metrics.jsonl "1 value"
rank '{"validation_since_first": {"step": "x"}}'
says texts metrics.jsonl "1 value"

# The loss of a run is the mean over a tenth of its steps, without those in which nothing counted; a page says what steps count.
mkdir -p means && python3 - >means/metrics.jsonl <<'Y'
import json
for step in range(41):
    value = {0: 9.0, 1: 7.0, 37: 1.0, 40: 3.0}.get(step, 5.0)
    print(json.dumps({"step": step, "loss": 0.0 if step == 38 else value, "tokens": 0 if step == 38 else 8, "tokens_per_second": 8}))
Y
exits_with 0 "$addend" report means && draw means/report.html
shows 1 '>3.5000<'                                            # of steps 36, 37, 39 and 40: 5, 1, 5, 3
says texts 6.5000 # of the first tenth: 9, 7, 5, 5
says texts Tokens
echo '{"counted": "rows", "steps": 41}' >means/run.json
exits_with 0 "$addend" report means && draw means/report.html
says texts Rows
for counted in Tokens tokens; do says_nothing_of texts $counted; done

# On a narrow screen nothing but a map is wider than the page, not even a failing parameter's cause.
python3 - "$odd/check.json" other/check.json <<'Y'
import json, sys
check = json.load(open(sys.argv[1]))
cause = {"kind": "averaged", "axes": "dp_replicate", "factor": 1 / 3, "text": "averaged over dp_replicate, " * 4}
check["params"][1].update(max_rel_err=0.5, cause=cause)
other = [dict(cause, axes=axes, text=f"summed twice over {axes}") for axes in ("dp_shard", "tp")]
check["params"][2].update(max_rel_err=0.5, cause=None, possible_causes=other)
json.dump(check, open(sys.argv[2], "w"))
Y
exits_with 0 "$addend" report other "$odd" -o narrow.html
count_cut='for (const fold of document.querySelectorAll("details")) fold.open = true;
  const cut = [...document.querySelectorAll(".wide:not(:has(.map)), .texts")].filter((box) => box.scrollWidth > box.clientWidth);
  document.getElementById("page").dataset.cut = cut.length'
width=500 act components/report.html "$count_cut"
shows 1 'data-cut="0"'
width=500 act narrow.html "$count_cut"
shows 1 'averaged over dp_replicate'
shows 1 'summed twice over dp_shard; summed twice over tp<'
shows 1 'data-cut="0"'
rm other/check.json
draw broken/report.html
shows 8 '<canvas'
says texts check.json check.json: JSON
says texts trace.json trace.json: JSON
says texts run.json
draw grouped/report.html
hides "cannot be drawn"
for entry in 2 3; do shows 1 "groups, entry $entry"; done
hides "groups, entry 1"
# Valid JSON with unexpected contents is reported, and the rest is drawn without a script error.
cp -r experts mixed
python3 - mixed/metrics.jsonl "$odd/check.json" mixed/check.json <<'Y'
import json, sys
lines = [json.loads(line) for line in open(sys.argv[1])]
tokens = "blocks.0.moe.tokens"
lines[1]["measured"][tokens] = "many"
lines[2]["measured"][tokens] = [1, None, "2", [3], {}]
lines[3].update(measured=[1], losses="none")
lines[4].update(loss="0.5", norm=None, seconds=[1])
lines[5]["measured"][tokens] = 7
lines[6]["losses"]["balance"] = {"a": 1}
del lines[7]["step"]
lines[8]["step"] = "8"
with open(sys.argv[1], "w") as file: file.writelines(json.dumps(line) + "\n" for line in lines)
check = json.load(open(sys.argv[2]))
check["params"][1] = None
json.dump(check, open(sys.argv[3], "w"))
Y
exits_with 0 "$addend" report mixed
draw mixed/report.html
shows 20 '<canvas'
says texts metrics.jsonl "9 values"
refuses() { # arguments: file, key; the page says what that key is not
  grep -F ": $2 " texts | sed "s/^/$2: /" >line
  says line "$1" "$2"
}
refuses check.json 'params[1]'
for wrong in 'document["params"][0]["name"] = 5|params[0].name' \
  'document["mutants"] = "some"|mutants' 'document["mutants"][0]["derived"] = {"place": 1}|mutants[0].derived.place' \
  'document["params"][0]["cause"] = "averaged"|params[0].cause' 'document["summary"] = []|summary'; do
  python3 -c 'import json, sys; document = json.load(open(sys.argv[1])); exec(sys.argv[2]); json.dump(document, open(sys.argv[3], "w"))' \
    "$odd/check.json" "${wrong%%|*}" mixed/check.json
  exits_with 0 "$addend" report mixed
  draw mixed/report.html
  refuses check.json "${wrong#*|}"
  shows 20 '<canvas'
done
echo '{"name": "mixed", "command": "addend train", "steps": 12}' >mixed/run.json
exits_with 0 "$addend" report mixed other
draw mixed/report.html
refuses run.json command
cp -r other nothing
exits_with 1 "$addend" check "$recipe" --set 'data.valid=[0]' --out nothing/check.json
exits_with 0 "$addend" report nothing
draw nothing/report.html
shows 1 'class="value bad"'
reason=$(python3 -c 'import json; print(json.load(open("nothing/check.json"))["reason"])')
[ "$(grep -cF "$reason" texts)" -eq 2 ] || fail "the reason stands in the tile and in the part about the check: $(cat texts)"
says texts "20 parameters" "3 ranks" "dp_replicate=3 dp_shard=1" f64
grep -E '^[a-z.0-9]+: [0-9]+ parameters?, ' texts >folds && says folds embedding "1 parameter" # layers have no error
! grep -qE ', .*[0-9]' folds || fail "a check of nothing has one verdict: $(cat folds)"
draw killed/report.html
says texts trace.json
grep '[0-9,]* of 1,000,000 steps; ' texts >line && says line "1,000,000 steps" # with the means of tenths
echo "report: all hold"
