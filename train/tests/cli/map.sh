#!/usr/bin/env bash
# Tests the page of `addend diff --html`: it holds the full document, as text; wrong parameters are first and can be
# pointed at; it fits a narrow window, and hundreds of parameters on hundreds of ranks. The page is drawn by chromium;
# if that is not installed the test is skipped.
#   map.sh ADDEND SOURCE
set -eu
addend=$1 source=$2
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
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

# A run in which one parameter's sums are twice what they should be, and another parameter's name is markup.
exits_with 0 "$addend" train "$source/recipes/hsdp-2x2.yaml" --set train.steps=2 --dump-step 0 -o run
python3 - run/dump-0/* <<'P'
import array, json, struct, sys
odd = "</script><img src=x onerror=\"document.title='taken'\">"
for path in sys.argv[1:]:
    raw = open(path, "rb").read()
    size = struct.unpack("<Q", raw[:8])[0]
    header, data = json.loads(raw[8 : 8 + size]), bytearray(raw[8 + size :])
    if header["__metadata__"]["addend.kind"] == "sum":
        for name, times in ("blocks.0.attn.wq", 2), ("final.norm.weight", 0.5):
            begin, end = header[name]["data_offsets"]
            data[begin:end] = array.array("f", [times * x for x in array.array("f", bytes(data[begin:end]))]).tobytes()
    header[odd] = header.pop("final.norm.weight")
    told = header["__metadata__"]
    for key in told: told[key] = told[key].replace('"final.norm.weight"', json.dumps(odd))
    text = json.dumps(header).encode()
    open(path, "wb").write(struct.pack("<Q", len(text)) + text + data)
P
exits_with 1 "$addend" diff run/dump-0 --json --html map.html
cp out document.json
python3 - <<'P' || fail "the page has the document"
import json, math
page = open("map.html").read()
inside = page.split('<script type="application/json" id="diff">')[1].split("</script>")[0]
document = json.load(open("document.json"))
def same(a, b):
    if isinstance(a, float): return isinstance(b, float) and math.isclose(a, b, rel_tol=1e-13)
    if isinstance(a, dict): return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list): return len(a) == len(b) and all(map(same, a, b))
    return a == b
assert same(document, json.loads(inside)), (document, inside)
assert sum(not param["pass"] for param in document["params"]) == 2, document
assert document["verdict"] == "wrong", document
assert page.count("<script") == 2 and "<img" not in page
P
exits_with 1 "$addend" diff run/dump-0 --html map.html
says out "NOT MATCH" "of 11" # the table is printed beside it
exits_with 3 "$addend" diff run/dump-0 --html nowhere/map.html
says err nowhere/map.html
exits_with 2 "$addend" diff run/dump-0 --html run/metrics.jsonl
echo "map: the document holds"

command -v chromium >/dev/null || { echo "map: SKIPPED: chromium is not installed, so no page was drawn"; exit 77; }
draw() { # argument: page; `drawn` gets what chromium makes of it, `texts` its texts; a script's console message is an error
  timeout $hang chromium --headless --no-sandbox --disable-gpu --window-size="${width:-1400},3000" --user-data-dir="$work/chromium" --enable-logging=stderr \
    ${dark:+--blink-settings=preferredColorScheme=0} --virtual-time-budget=5000 --dump-dom "file://$work/$1" >drawn 2>log || { cat log >&2; fail "chromium cannot draw $1"; }
  # Chromium's hint on reading pixels back is about this test, which reads them; the page does not.
  ! grep CONSOLE log | grep -v 'Canvas2D: Multiple readback operations' >err || fail "$1: a script has something to say"
  grep -o '<title>.*</title>' drawn >title || true
  sed -i -n '/<main/,/<script/p' drawn # leaves out the data and the scripts themselves
  python3 "$source/tests/support/page_texts.py" drawn >texts
}
shows() { # arguments: least number, pattern
  [ "$({ grep -o -e "$2" drawn || true; } | wc -l)" -ge "$1" ] || fail "fewer than $1 of $2"
}
act() { # arguments: page, script; writes the page in which the script has run
  cp "$1" acted.html && echo "<script>addEventListener('load', () => setTimeout(() => { $2 }, 500))</script>" >>acted.html && draw acted.html
}
draw map.html
says title "2 wrong"
says texts "NOT MATCH" "2 of" 11
shows 11 '<canvas class="strip"'
shows 1 '<code>blocks\.0\.attn\.wq</code>'
shows 1 '<code>&lt;/script&gt;&lt;img src=x'
shows 1 '>doubled<'
shows 1 '>averaged<'
says texts "9 parameters"
! grep -q '<img' drawn || fail "a name is read as markup"

# The keyboard moves from rank to rank and from microbatch to microbatch, also in folded parts; the pointer too.
act map.html 'const strip = document.querySelectorAll(".strip")[1];
  for (const key of ["ArrowRight", "ArrowRight", "ArrowRight", "ArrowDown"]) strip.dispatchEvent(new KeyboardEvent("keydown", {key}))'
says texts blocks.0.attn.wq "rank 2" "dp_replicate=1 dp_shard=0" "microbatch 1" "2 times"
act map.html 'const strip = document.querySelector(".strip"), box = strip.getBoundingClientRect();
  strip.dispatchEvent(new PointerEvent("pointermove", {clientX: box.left + 10, clientY: box.top + 4}))'
says texts "rank 0" "dp_replicate=0 dp_shard=0" "microbatch 0" "0.5 times"
find_name='const input = document.querySelector("input"); input.value = "WK blocks"; input.dispatchEvent(new Event("input"));
  document.getElementById("page").dataset.shown = [...document.querySelectorAll(".row code")].filter((code) => code.checkVisibility()).map((code) => code.textContent).join()'
act map.html "$find_name"
shows 1 'data-shown="blocks\.0\.attn\.wk"'
says texts "1 of" 11

# Equal addends are hatched, and the page says what to do.
python3 - <<'P'
import json
page, document = open("map.html").read(), json.load(open("document.json"))
before, rest = page.split('<script type="application/json" id="diff">')
rows = [dict(param, verdict="right", kind="right", counts=None, **{"pass": True}) for param in document["params"]]
rows[1].update(verdict="cannot_tell", kind="identical_addends", ranks=[0, 1], text="cannot tell: ranks 0 and 1 hold the same addend",
               counts=[[None] * 2, [None] * 2, [1, 1], [1, 1]], **{"pass": False})
data = dict(document, verdict="cannot_tell", params=rows, **{"pass": False})
open("undecided.html", "w").write(before + '<script type="application/json" id="diff">' + json.dumps(data).replace("<", "\\u003c") + "</script>" + rest.split("</script>", 1)[1])
P
# Chromium draws canvases in its own time, which its virtual clock does not know: a page that it had not drawn is drawn again.
for _ in 1 2 3; do
  act undecided.html 'const strip = document.querySelector(".strip"), ratio = devicePixelRatio || 1;
  const look = (tries) => { // it is drawn when it comes into sight
    const row = strip.getContext("2d").getImageData(0, 4, strip.width, 1).data;
    if (tries && !row.some((part) => part)) return setTimeout(() => look(tries - 1), 100);
    const colours = (rank) => new Set(Array.from({length: 9}, (_, i) => row.slice(4 * Math.round((72 * rank + 20 + i) * ratio)).slice(0, 4).join()));
    document.getElementById("page").dataset.hatched = [0, 1, 2, 3].map((rank) => colours(rank).size > 1).join();
    strip.dispatchEvent(new KeyboardEvent("keydown", {key: "ArrowRight"}));
  };
  look(30)'
  grep -q 'data-hatched="false,false,false,false"' drawn || break
done
says title 1
says texts CANNOT "1 of" 11
says texts --allow-identical
shows 1 'data-hatched="true,true,false,false"'
says texts "rank 0" "microbatch 0"
says_nothing_of texts "1 times"

# In a narrow window and in dark mode nothing is wider than the page.
for mode in '' yes; do
  width=500 dark=$mode act map.html 'const root = document.documentElement;
    for (const fold of document.querySelectorAll("details")) fold.open = true;
    document.getElementById("page").dataset.cut = root.scrollWidth > root.clientWidth'
  shows 1 'data-cut="false"'
done

# A large page: 200 parameters on 256 ranks with 4 microbatches, half of the parameters wrong; more ranks than pixels.
python3 - <<'P'
import json
page, document = open("map.html").read(), json.load(open("document.json"))
before, rest = page.split('<script type="application/json" id="diff">')
wrong = next(param for param in document["params"] if not param["pass"])
def many(path, world, mesh, params):
    counts = [[0 if rank % 7 == 3 else 1] * 4 for rank in range(world)]
    rows = [dict(wrong, name=f"p.{i}", counts=counts, errors=None, **{"pass": False}) if i % 2 else
            dict(wrong, name=f"p.{i}", counts=None, errors=None, verdict="right", kind="right", **{"pass": True}) for i in range(params)]
    data = dict(document, world=world, mesh=mesh, microbatches=4, params=rows)
    open(path, "w").write(before + '<script type="application/json" id="diff">' + json.dumps(data).replace("<", "\\u003c") + "</script>" + rest.split("</script>", 1)[1])
many("many.html", 256, "dp=32 tp=8", 200)
many("ranks.html", 10000, "dp=1250 tp=8", 4)
P
draw many.html
shows 200 '<canvas class="strip"'
says texts "NOT MATCH" "100 of" 200
act ranks.html 'document.querySelector(".strip").dispatchEvent(new KeyboardEvent("keydown", {key: "ArrowRight"}))'
says texts "rank 3" "dp=0 tp=3" "microbatch 0" "0 times"
echo "map: all hold"
