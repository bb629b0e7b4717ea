#!/usr/bin/env bash
# Tests `addend plan --picture`: the picture is XML, its numbers are those of `addend plan --json`, a world of any size
# has a picture of readable size, and it never overwrites a file that it should not.
set -eu
addend=$1 source=$2
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
cd "$work"
ln -s "$source/recipes" recipes
fail() { echo "FAILED: $*" >&2; [ ! -s err ] || cat err >&2; exit 1; }
. "$source/tests/support/says.sh"
exits_with() { # arguments: status, command
  local expected=$1 status=0
  shift
  "$@" >out 2>err || status=$?
  [ $status -eq "$expected" ] || fail "exit $status, not $expected: $*"
}

cat >compare.py <<'E2'
"""compare.py PICTURE: holds it against the document on standard input."""
import collections, json, re, sys
import xml.etree.ElementTree as xml

plan = json.load(sys.stdin)
root = xml.parse(sys.argv[1]).getroot()
assert root.tag == "{http://www.w3.org/2000/svg}svg" and not list(root.iter("{http://www.w3.org/2000/svg}script"))
texts = [text.text or "" for text in root.iter("{http://www.w3.org/2000/svg}text")]
assert texts[0] == plan["recipe"] == root.find("{http://www.w3.org/2000/svg}title").text, texts[0]
assert texts[1].split()[0] == f"{plan['world']:,}", texts[1]

# Collectives: what the entries of the cards say. Each has four texts: the operation, bytes, what they are and when, calls
# and dtype.
sites = {bridge["site"] for bridge in plan["bridges"]}
expected, calls = collections.Counter(), collections.Counter()
for step in plan["collectives"] + plan["activations"]:
    if "site" in step:
        carries = "bridge" if step["site"] in sites else "activations"
    else:
        carries = "parameters" if step["op"] == "all_gather" else "gradients"
    if step["group_size"] > 1:
        key = (step["mesh"], step["axes"], step["op"], carries, step["when"].replace("_", " "), step["dtype"], step["pool"])
        expected[key] += step["bytes"] * step["times"]
        calls[key] += step["times"]
wanted = sorted((key[2], f"{expected[key]:,} B", key[4], f"{n:,}", key[5]) for key, n in calls.items())
entries = [(*texts[i - 3:i - 1], *reversed(texts[i - 1].rsplit(", ", 1)), *re.fullmatch(r"([\d,]+) \w+, (\w+)", text).groups())
           for i, text in enumerate(texts) if re.fullmatch(r"[\d,]+ \w+, \w+", text) and re.fullmatch(r"[\d,]+ B", texts[i - 2])]
shown = sorted((op, size, when, *how) for op, size, when, _, *how in entries)
assert wanted == shown, (wanted, shown)
assert len({entry[3] for entry in entries}) == len({key[3] for key in calls}), entries  # each kind of values has its name

# Groups: one card for each set of axes of each mesh, with all groups of its pool.
groups = {(step["mesh"], step["pool"], step["axes"]): step["group_size"] for step in plan["collectives"] + plan["activations"]}
ranks = [pool["ranks"] for pool in plan["pools"]]
wanted = sorted((axes, size, ranks[pool] // size) for (_, pool, axes), size in groups.items() if size > 1)
cards = [(texts[i - 1].split(" ", 1)[-1], re.match(r"([\d,]+) \w+ of ([\d,]+) \w+", text)) for i, text in enumerate(texts)]
shown = sorted((axes, *(int(number.replace(",", "")) for number in (found[2], found[1]))) for axes, found in cards if found)
assert wanted == shown, (wanted, shown)

# A rank's number has room in its cell, where each rank has one.
boxes = [item for item in root.iter() if item.tag.endswith(("}rect", "}text"))]
for cell, number in zip(boxes, boxes[1:]):
    if (cell.get("class") or "").startswith("cell") and re.fullmatch("[0-9]+", number.text or ""):
        assert int(cell.get("width")) >= 7 * len(number.text), (number.text, cell.attrib)

# Several pools are each drawn with their ranks, and every bridge between two pools with its bytes, forward and back.
names = [", ".join(pool["modules"]) for pool in plan["pools"]]
places = {texts[i - 1]: re.findall("[0-9,]+", text) for i, text in enumerate(texts)
          if re.fullmatch("[a-z]+ [0-9,]+( [a-z]+ [0-9,]+)?", text) and texts[i - 1] in names}
def place(pool):
    first, last = pool["first_rank"], pool["first_rank"] + pool["ranks"] - 1
    return [f"{first:,}", f"{last:,}"] if last > first else [f"{first:,}"]
assert places == (dict(zip(names, map(place, plan["pools"]))) if len(names) > 1 else {}), places
between = [bridge for bridge in plan["bridges"] if bridge["from"]["pool"] != bridge["to"]["pool"]]
wanted = [(bridge["site"], way == "backward", f"{bridge[way]['bytes']:,}", str(bridge["times"]))
          for bridge in between for way in ("forward", "backward")]
found = [re.fullmatch(r"(.* )?(\S+): ([\d,]+) B, (\d+)( [a-z]+)+", text) for text in texts]
shown = [(one[2], bool(one[1]), one[3], one[4]) for one in found if one and one[2] in sites] # the gradient's name is longer
assert wanted == shown, (wanted, shown)
ends = [[int(number) for number in re.findall("[0-9]+", path.get("d"))] for path in root.iter("{http://www.w3.org/2000/svg}path") if path.get("marker-end")]
for i, bridge in enumerate(between):
    there, back = ends[2 * i], ends[2 * i + 1]
    assert (there[0], there[-2]) == (back[-2], back[0]) and (there[0] < there[-2]) == (bridge["from"]["pool"] < bridge["to"]["pool"]), (there, back)
for bridge in plan["bridges"]:
    for way in (bridge["forward"], bridge["backward"]):
        if way["senders"] == way["senders_listed"] and not way["routes_left_out"]:
            assert way["bytes"] == sum(route["bytes"] for route in way["routes"]), way

# Bridges: every route (the first ones if there are many) is an arrow labelled with its rows and bytes.
DRAWN = 160
ways = [bridge[way] for bridge in plan["bridges"] for way in ("forward", "backward")]
routes = [route for way in ways for route in way["routes"][:DRAWN]]
def label(route):
    first, last = route["first_row"], route["first_row"] + route["rows"] - 1
    return (str(first), None if first == last else str(last), f"{route['bytes']:,}")
rows = [re.fullmatch(r"[a-z]+ (\d+)(?: [a-z]+ (\d+))?, ([\d,]+) B", text) for text in texts]
assert collections.Counter(map(label, routes)) == collections.Counter(row.groups() for row in rows if row)
arrows = [path.get("class") for path in root.iter("{http://www.w3.org/2000/svg}path") if path.get("marker-end")]
assert arrows.count("arrow stays") == sum(route["from"] == route["to"] for route in routes)
assert len(arrows) == len(routes) + 2 * len(between)
for way in ways:
    moved = sum(route["bytes"] for route in way["routes"] if route["from"] != route["to"])
    undrawn = len(way["routes"][DRAWN:]) + way["routes_left_out"]
    more = [f"{undrawn:,}"] if undrawn else []
    both = [text.split(" B ") for text in texts if text.count(" B ") == 2] # what moves, what stays, what is not drawn
    assert any(of[0].endswith(f" {moved:,}") and re.findall("[0-9,]*[0-9]", of[2]) == more for of in both), (moved, more)
height = int(root.get("height"))
assert all(int(box.get("y")) + int(box.get("height")) <= height for box in root.iter("{http://www.w3.org/2000/svg}rect"))
assert height < 6000, height
E2
draws() { # the call's arguments: the picture is what the document says
  exits_with 0 "$addend" plan "$@" --json --picture picture.svg
  python3 compare.py picture.svg <out || fail "the picture of: $*"
}
draws recipes/gpt-dp.yaml
draws recipes/hsdp-3x2.yaml
draws recipes/gpt-3d.yaml
draws recipes/gpt-3d.yaml --set mesh="dp_replicate=2 dp_shard=2 cp=2 tp=2"
draws recipes/moe-16.yaml
draws recipes/gpt-dp.yaml --set mesh="dp_replicate=1 dp_shard=1" # one rank: nothing is communicated
draws recipes/gpt-dp.yaml --set mesh="dp_replicate=37 dp_shard=1"
draws recipes/gpt-dp.yaml --set mesh="dp_replicate=256 dp_shard=256" --set shard.zero=2
says_facts picture.svg "256 groups" "256 ranks"
draws recipes/gpt-dp.yaml --set mesh="dp_replicate=1048576 dp_shard=1048576"
draws recipes/ocr-fan-in-small.yaml
draws recipes/ocr-fan-in-small.yaml --set mesh.encoder="dp=2 tp=4" --set mesh.model="dp=4 cp=2 tp=1"
draws recipes/ocr-fan-in-small.yaml --set mesh.encoder="dp=6" --set mesh.model="dp=3 cp=2" --set model.ragged=true \
  --set train.global_batch=7
draws recipes/ocr-fan-in-small.yaml --set mesh.encoder="dp=32" --set mesh.model="dp=4 cp=4 tp=2" --set train.global_batch=64
python3 -c 'import json; bridges = json.load(open("out"))["bridges"]; assert max(len(bridge[way]["routes"]) for bridge in bridges for way in ("forward", "backward")) > 160' ||
  fail "no arrow is left out"
draws recipes/ocr-fan-in-small.yaml --set mesh.encoder="dp=256 tp=2" --set mesh.model="dp=128 cp=2 tp=2" --set train.global_batch=1024
says_facts picture.svg "Rank 0" "512 senders"

# A bridge that moves nothing is drawn all the same; pools are drawn too, and pools with the same mesh are drawn apart.
draws recipes/ocr-equal.yaml
draws recipes/ocr-fan-in.yaml --set mesh.encoder="dp=4 tp=2" --set mesh.model="dp=4 cp=2"
[ "$(grep -c '"arrow stays"' picture.svg)" -eq 16 ] || fail "every rank keeps its rows, forward and backward"
for meshes in '{encoder: "dp=2 tp=2", model: "dp=2 cp=2 tp=1"}' '{encoder: "dp=2 tp=2", model: "dp=2 tp=2"}' \
  '{encoder: "dp=1", model: "dp=4 cp=2"}' '{encoder: "dp=3 tp=2", model: "dp=2 cp=2"}' '{encoder: "dp=32 tp=2", model: "dp=64 cp=2"}'; do
  draws recipes/ocr-fan-in.yaml --set placement=disjoint --set mesh="$meshes" --set model.ragged=true --set train.global_batch=64
done
says_facts picture.svg "Rank 64" "128 senders"
draws recipes/ocr-fan-in.yaml --set placement=disjoint --set mesh='{encoder: "dp=8 tp=16", model: "dp=16"}' --set train.global_batch=32 \
  --set model.encoder_heads=16
grep -q '>143<' picture.svg || fail "of a pool whose ranks have three digits each is drawn"

# Several values between the same pools are drawn as one exchange.
cat >exchanges.py <<'E2'
"""exchanges.py PICTURE TABLE EXCHANGES: holds both against the document on standard input."""
import json, re, sys
import xml.etree.ElementTree as xml

plan = json.load(sys.stdin)
root = xml.parse(sys.argv[1]).getroot()
texts = [text.text or "" for text in root.iter("{http://www.w3.org/2000/svg}text")]
WAYS = ("forward", "backward")
exchanges = {} # (names and pools of both ends, their layouts, dtypes) -> values, bytes in a step
for bridge in plan["bridges"]:
    key = (*(bridge[side][what] for side in ("from", "to") for what in ("module", "pool", "layout")), *(bridge[way]["dtype"] for way in WAYS))
    values, sums = exchanges.setdefault(key, (set(), [0, 0]))
    values.add(bridge["site"])
    for i, way in enumerate(WAYS):
        sums[i] += bridge["times"] * bridge[way]["bytes"]
assert len(exchanges) == int(sys.argv[3]), len(exchanges)

# Labels of the exchange between two pools, forward and back; each exchange is drawn as two opposite arrows.
def labels(key, values, sums):
    return next(iter(values)) if len(values) == 1 else str(len(values)), f"{sums[0]:,}", key[-2], f"{sums[1]:,}", key[-1]
moved = [re.fullmatch(r"(.*): ([\d,]+) B, (\w+)", text) for text in texts]
shown = [(re.sub(r"^(?:.*, )?(\d+) \w+$", r"\1", there[1]), *there.groups()[1:], *back.groups()[1:])
         for there, back in zip(moved, moved[1:]) if there and back and back[1].isalpha()]
wanted = [labels(key, *what) for key, what in exchanges.items()]
assert sorted(shown) == sorted(wanted), (shown, wanted)
arrows = [[int(n) for n in re.findall("[0-9]+", path.get("d"))] for path in root.iter("{http://www.w3.org/2000/svg}path") if path.get("marker-end")]
assert len(arrows) == 2 * len(exchanges)
assert all((a[0], a[-2]) == (b[-2], b[0]) and a[0] != b[0] for a, b in zip(arrows[::2], arrows[1::2])), arrows
for values, _ in exchanges.values():
    prefix = [text.split("*, ")[0] for text in texts if re.search(rf"\*, {len(values)} \w+: ", text)]
    assert len(values) == 1 or any(all(value.startswith(p) for value in values) for p in prefix), (values, prefix)

# The table has a line for each.
lines = re.findall(r"^ .* (\d+) +(b?f\d+) +(\d+) +(b?f\d+)$", open(sys.argv[2]).read(), re.M)
assert sorted(lines) == sorted((str(sums[0]), key[-2], str(sums[1]), key[-1]) for key, (_, sums) in exchanges.items()), lines

# Modules are side by side: no two boxes overlap but for the frame around those of one name, and all are inside.
boxes = [tuple(int(box.get(k)) for k in ("x", "y", "width", "height")) for box in root.iter("{http://www.w3.org/2000/svg}rect")
         if re.fullmatch("cell g[0-7]", box.get("class")) and int(box.get("height")) > 40]
assert len(boxes) == len({(m["name"], m["pool"]) for m in plan["modules"]}) and len({box[1] for box in boxes}) == 1, boxes
assert all(a[0] + a[2] < b[0] for a, b in zip(boxes, boxes[1:])), boxes
width, height = int(root.get("width")), int(root.get("height"))
assert all(int(box.get("x")) + int(box.get("width")) <= width and int(box.get("y")) + int(box.get("height")) <= height
           for box in root.iter("{http://www.w3.org/2000/svg}rect"))
assert height <= 900, height
E2
exchanges() { # how many, the call's arguments
  local count=$1
  shift
  "$addend" plan "$@" >table
  exits_with 0 "$addend" plan "$@" --json --picture picture.svg
  python3 exchanges.py picture.svg table "$count" <out || fail "the exchanges of: $*"
}
exchanges 5 recipes/pools-10.yaml
exchanges 5 recipes/pools-10.yaml --set 'comm_dtype={values: f16, gradients: bf16, weights: f16}'
exchanges 3 recipes/pools-ragged.yaml # microbatches have two sizes
exchanges 3 recipes/pools-10.yaml --set placement=colocated --set 'mesh={ci: "dp=4", blocks: "block=2 dp=4", adv: "dp=4"}'
exits_with 0 "$addend" plan recipes/decompose-gpt.yaml --set 'mesh={ci: "dp=3", blocks: "block=8 dp=2", adv: "dp=2"}' --picture picture.svg
[ "$(grep -c 'marker-end' picture.svg)" -eq 6 ] || fail "many blocks are one"
grep -q '>blocks, [a-z ]*8<' picture.svg || fail "of many blocks the first one's sums are shown"

# The command is shown quoted as for a shell, and no character in it breaks the picture.
draws recipes/gpt-dp.yaml --set 'train.steps=20 # <b> & ]]> it'"'"'s "x"' --set train.lr=1e-3
grep -q "addend plan recipes/gpt-dp.yaml --set 'train.steps=20 # &lt;b&gt; &amp; \]\]&gt; it'\\\\''s \"x\"' " picture.svg || fail "the command is there"
exits_with 0 "$addend" plan recipes/gpt-dp.yaml --json --picture $'no-text-\xff.svg'
python3 compare.py $'no-text-\xff.svg' <out || fail "bytes that are no text"

# Without --json the table is printed as it is without a picture.
"$addend" plan recipes/gpt-dp.yaml >table
exits_with 0 "$addend" plan recipes/gpt-dp.yaml --picture picture.svg
cmp table out || fail "the table is the same"

# Names that --picture refuses.
mkdir folder && mkfifo pipe && ln -s picture.svg link
for path in folder folder/ pipe link '' metrics.jsonl folder/weights.safetensors; do
  exits_with 2 timeout 60 "$addend" plan recipes/gpt-dp.yaml --picture "$path"
  says err --picture
  [ ! -s out ] || fail "and prints no plan"
done
exits_with 3 "$addend" plan recipes/gpt-dp.yaml --picture nowhere/picture.svg
says err nowhere/picture.svg
echo kept >kept.svg
exits_with 2 "$addend" plan recipes/gpt-dp.yaml --set train.steps=0 --picture kept.svg
grep -q kept kept.svg || fail "a recipe that is refused leaves what is there"
echo "plan_picture: all hold"
