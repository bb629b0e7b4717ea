#!/usr/bin/env bash
# Tests `addend schedule`: output and exit statuses; tables that torch.distributed.pipelining dumped; pictures; large
# tables.
set -eu
addend=$1 source=$2
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
cd "$work"
fail() { echo "FAILED: $*" >&2; exit 1; }
run() { # arguments: exit status, arguments of schedule; output in `out`, errors in `err`
  local expected=$1 status=0; shift
  "$addend" schedule "$@" >out 2>err || status=$?
  [ $status -eq "$expected" ] || { cat out err >&2; fail "exit $status instead of $expected: $*"; }
}
. "$source/tests/support/says.sh"

# core/docs/pipeline.md shows what is printed.
run 0 make 1f1b --stages 3 --microbatches 4
python3 - "$source/core/docs/pipeline.md" out <<'P' || fail "core/docs/pipeline.md shows what is printed"
import sys
shown = open(sys.argv[1]).read().split("--stages 3 --microbatches 4\n")[1].split("```")[0]
assert shown == open(sys.argv[2]).read(), shown
P
printf '%s\n' 0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1 1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1 >wrong.csv
run 1 check wrong.csv
python3 - "$source/core/docs/pipeline.md" out <<'P' || fail "core/docs/pipeline.md shows what is said"
import sys
shown = open(sys.argv[1]).read().split("check wrong.csv\n")[1].split("```")[0]
assert shown == open(sys.argv[2]).read(), shown
P
run 0 make zb --stages 2 --microbatches 3 --lower --waits --csv
python3 - "$source/core/docs/pipeline.md" out <<'P' || fail "core/docs/pipeline.md shows the table with waits"
import sys
shown = open(sys.argv[1]).read().split("cat zb.csv\n")[1].split("```")[0]
assert shown == open(sys.argv[2]).read(), shown
P
cp out zb.csv && run 0 check zb.csv
run 0 check wrong.csv --buffered

# Tables of all schedules are written and read again.
for name in gpipe 1f1b interleaved zb leads accumulate; do
  ranks=4; [ $name != accumulate ] || ranks=1
  stages=4; [ $name != interleaved ] || stages=8
  run 0 make $name --stages $stages --ranks $ranks --microbatches 6 --csv; cp out table.csv
  run 0 make $name -s $stages -n $ranks -m 6 --lower --gathered 1 --json; cp out table.json
  run 0 check table.csv; says out right "$ranks"
  run 0 check table.json; says out right "$ranks"
  run 0 check table.csv --lower --reduce-each; says err
  run 0 check table.json --json
  python3 - $name <<'P' || fail "the document of $name"
import json, sys
found = json.load(open("out"))
ranks = found["ranks"]
assert found["right"] and found["broken"] == [] and found["faults"] == 0
parts = ["compute", "transfers", "gathers", "reductions", "end"]
if ranks == 1: parts.remove("transfers")
assert found["parts"] == parts, found["parts"]
assert len(found["per_rank"]) == ranks and found["microbatches"] == 6
busy = sum(rank["busy"] for rank in found["per_rank"])
assert abs(found["bubble"] - (1 - busy / (ranks * found["makespan"]))) < 1e-12
assert all(abs(rank["busy"] + rank["idle"] - found["makespan"]) < 1e-12 for rank in found["per_rank"])
assert found["in_flight"] == max(rank["in_flight"] for rank in found["per_rank"])
assert found["deferred"] == max(rank["deferred"] for rank in found["per_rank"])
expected = {"gpipe": 1 / 3, "1f1b": 1 / 3, "zb": 3 / 21, "accumulate": 0}.get(sys.argv[1], found["bubble"])
assert abs(found["bubble"] - expected) < 1e-12, found["bubble"]
P
done
run 1 check wrong.csv --json
python3 - <<'P' || fail "the document of a wrong table"
import json
found = json.load(open("out"))
assert not found["right"] and found["faults"] == 1 and "bubble" not in found
assert found["broken"][0].items() >= {"law": "circle", "rank": 0, "place": 3, "stage": 0, "microbatch": 1}.items()
P
run 0 make 1f1b -s 4 -m 8 --limit 4
run 1 make 1f1b -s 4 -m 8 --limit 3; says out in_flight "rank 0" "place 3" 0F3 4 "is 3"
run 0 make 1f1b -s 2 -m 1 --cost F=3,B=5,transfer=7 --stage-cost 1,10; says out 50.0 88 "rank 0"
run 0 make 1f1b -s 2 -m 1 --cost F=3,B=5,transfer=7 --stage-cost 1,10 --lower; says out 102 "rank 0"

# Tables of PyTorch: compute actions alone, and lowered with communication.
fixtures=$source/core/tests/schedule/pytorch
for table in "$fixtures"/*.csv; do
  case $table in */1f1b.csv | */interleaved-zb-deferred.comms.csv) continue ;; esac
  run 0 check "$table" --json
  python3 - "$table" out <<'P' || fail "$table"
import csv, json, re, sys
cells = [[cell for cell in row if cell] for row in csv.reader(open(sys.argv[1]))]
flat = [re.sub(r"[()]|OVERLAP_F_B", "", cell).split(";") for row in cells for cell in row]
found = json.load(open(sys.argv[2]))
assert found["right"] and found["pairs"] == "ranks" and found["ranks"] == len(cells) and found["actions"] == sum(map(len, flat)), found
assert ("transfers" in found["parts"]) == (".comms." in sys.argv[1])
P
done
run 0 check "$fixtures/dualpipev.compute.csv"; says err OVERLAP_F_B 6
# addend's orders of compute actions are PyTorch's.
compute() { python3 -c 'import csv, re, sys
for row in csv.reader(open(sys.argv[1])): print(",".join(cell for cell in row if re.fullmatch(r"\d+[FBIW]\d+", cell)))' "$1"; }
same_order() { # arguments: name, table, arguments of make
  run 0 make "${@:3}" --csv
  tr -d '\r' <out >ours; compute "$2" >theirs
  cmp -s ours theirs || { diff ours theirs >&2 || true; fail "$1 is PyTorch's order"; }
}
same_order gpipe "$fixtures/gpipe.csv" gpipe -s 3 -m 4
same_order interleaved "$fixtures/interleaved.compute.csv" interleaved -s 4 -n 2 -m 4
same_order zb "$fixtures/interleaved-zb.compute.csv" zb -s 4 -m 8

# the lowered table's transfers, reductions and gathers cause no waiting
for name in interleaved interleaved-zb looped-bfs zbv; do
  for form in compute comms; do run 0 check "$fixtures/$name.$form.csv" --json; grep -E '"(makespan|bubble)"' out >$form.worth; done
  cmp -s compute.worth comms.worth || { cat compute.worth comms.worth >&2; fail "$name: what PyTorch inserts costs no time"; }
done
# In PyTorch's dumped 1F1B the last rank counts microbatches from 1, which the check refuses; the other ranks' lists are
# addend's.
run 1 check "$fixtures/1f1b.csv"; says out once "rank 3" "stage 3" "microbatch 0" 3F0
run 0 make 1f1b -s 4 -m 6 --csv
tr -d '\r' <out >ours; compute "$fixtures/1f1b.csv" >theirs
cmp -s <(head -3 ours) <(head -3 theirs) || fail "1f1b is PyTorch's order on the first ranks"

# PyTorch gives a receive the next send between the two ranks, whatever their stages.
deferred=$fixtures/interleaved-zb-deferred.comms.csv
run 0 check "$deferred" --pairs edge; says out right "2 ranks" "4 stages"
run 1 check "$deferred" --pairs ranks; cp out by_ranks
run 1 check "$deferred"; cmp -s out by_ranks || fail "a CSV is judged by pairs of ranks"
python3 - "$source/core/docs/pipeline.md" out <<'P' || fail "core/docs/pipeline.md shows what is said of PyTorch's table"
import sys
shown = open(sys.argv[1]).read().split("interleaved-zb-deferred.comms.csv\n")[1].split("```")[0]
assert shown == open(sys.argv[2]).read(), shown
P
run 1 check "$deferred" --json
python3 - <<'P' || fail "the document names both transfers"
import json
found = json.load(open("out"))
assert found["pairs"] == "ranks" and found["faults"] == 1
assert found["broken"][0].items() >= {"law": "pairs", "rank": 1, "line": 2, "place": 17, "stage": 1, "microbatch": 2}.items()
assert found["broken"][0]["other"] == {"rank": 0, "place": 15, "line": 1, "action": "2SEND_B0"}
P
run 0 check "$fixtures/interleaved.comms.csv" --pairs edge --json; grep -q '"pairs": "edge"' out || fail "the document says how it judged"
run 0 check table.json --json; grep -q '"pairs": "edge"' out || fail "JSON is judged by edge"

# Tables are drawn as pictures. A title is in the picture, however long: 13 pixels are more than its mean letter takes.
long=$(printf 'a-table-with-a-long-name-%.0s' 1 2 3 4)
run 0 make zb -s 2 -m 1 --csv; cp out "$long.csv"
run 0 check "$long.csv" --picture long.svg
python3 - "$long.csv" <<'P' || fail "a long title is cut"
import sys, xml.etree.ElementTree as tree
root = tree.parse("long.svg").getroot()
title = next(text for text in root.iter("{http://www.w3.org/2000/svg}text") if text.text == sys.argv[1])
assert int(title.get("x")) + 13 * len(title.text) <= int(root.get("width")), root.get("width")
P
run 0 make zb -s 4 -m 8 --lower --picture zb.svg
run 0 check "$fixtures/interleaved.comms.csv" --picture interleaved.svg
python3 - <<'P' || fail "the picture"
import re, xml.etree.ElementTree as tree
S = "{http://www.w3.org/2000/svg}"
root = tree.parse("zb.svg").getroot()
texts = [text.text for text in root.iter(S + "text")]
assert texts[0] == root.find(S + "title").text and re.match(r"zb\b", texts[0]) and re.findall(r"\d+", texts[0]) == ["4", "8"], texts[0]
assert re.findall(r"\d[\d.]*(?: %)?", texts[1])[:2] == ["11.1 %", "27"], texts[1]
assert [text for text in texts if text.startswith("rank ")] == [f"rank {r}" for r in range(4)]
tones = [rect.get("class") for rect in root.iter(S + "rect") if rect.get("class", "").startswith("cell")]
assert {tone: tones.count(tone) for tone in set(tones)} == {"cell g0": 33, "cell g4": 33, "cell g2": 33}, tones
assert [text for text in texts if re.fullmatch(r"\d", text)].count("3") == 12
assert sum(1 for path in root.iter(S + "path") if path.get("class") == "cell") == 2 * 3 * 8
of_two = open("interleaved.svg").read() # two stages a rank: two tones each
assert all(f'class="cell {tone}"' in of_two for tone in ("g0", "g6", "g1", "g5"))
width = int(root.get("width"))
assert all(int(rect.get("x")) + int(rect.get("width")) <= width for rect in root.iter(S + "rect"))
for root in root, tree.parse("interleaved.svg").getroot():
    boxes = sorted(tuple(int(rect.get(k)) for k in ("y", "x", "width", "height")) for rect in root.iter(S + "rect") if rect.get("class", "").startswith("cell"))
    places = [(int(text.get("x")), int(text.get("y")), text.text) for text in root.iter(S + "text")]
    assert all(a[0] != b[0] or a[1] + a[2] <= b[1] for a, b in zip(boxes, boxes[1:])), "boxes overlap"
    legend = [box for box in boxes if box[0] == boxes[0][0]]
    assert all(box[2:] == (14, 14) for box in legend), legend
    assert all(sum(box[1] + 14 < x and box[0] < y <= box[0] + 14 for x, y, _ in places) for box in legend), places
    rows = sorted({box[0] for box in boxes} - {legend[0][0]})
    names = [(x, y) for x, y, text in places if text.startswith("rank ")]
    assert len(rows) == len(names) and all(row < y <= row + boxes[-1][3] and x < boxes[-1][1] for row, (x, y) in zip(rows, names)), (rows, names)
    for x, y, text in places: # a number is inside its box
        assert not re.fullmatch(r"\d+", text) or any(b[0] < y <= b[0] + b[3] and b[1] < x < b[1] + b[2] for b in boxes), (x, y, text)
    begins = {(b[1], y) for b in boxes for y in (b[0], b[0] + b[3])}
    ends = {(b[1] + b[2], y) for b in boxes for y in (b[0], b[0] + b[3])}
    lines = [tuple(int(n) for n in re.findall(r"\d+", path.get("d"))) for path in root.iter(S + "path") if path.get("class") == "cell"]
    assert lines and all(line[:2] in ends and line[2:] in begins and line[1] != line[3] for line in lines), lines
P
run 1 check wrong.csv --picture none.svg
[ ! -e none.svg ] || fail "a wrong table has a picture"
says err none.svg
run 3 make zb -s 4 -m 8 --picture /nonexistent/zb.svg

# A large table, and one with more ranks than a terminal shows.
run 0 make interleaved -s 64 -n 64 -m 512 --lower --json; cp out large.json
run 0 check large.json; says out right "64 ranks" "64 stages" "512 microbatches"
run 0 make 1f1b -s 200 -m 3; says out 136

# Wrong calls and files.
complaint() { # arguments: facts of the message with | between them, call
  run 2 "${@:2}"
  [ ! -s out ] || { cat out >&2; fail "a wrong call printed something: ${*:2}"; }
  says_all err "$1"

}
complaint "check FILE|make SCHEDULE"
complaint "check FILE|make SCHEDULE|draw" draw it
complaint FILE check
complaint "SCHEDULE|1f1b" make
complaint "b.csv" check a.csv b.csv
complaint "--stages|--microbatches" make 1f1b
complaint "--stages|--csv" check wrong.csv --stages 2
complaint "--csv|--json" make 1f1b -s 2 -m 2 --csv --json
complaint "--gathered|--lower" make 1f1b -s 2 -m 2 --gathered 1
complaint "--waits|--lower" make 1f1b -s 2 -m 2 --waits
complaint "1f1|1f1b" make 1f1 -s 2 -m 2
complaint "--limit|1|0" check wrong.csv --limit 0
complaint "--pairs|edges" check wrong.csv --pairs edges
complaint "--cost|F, B,|Q=1" check wrong.csv --cost Q=1
complaint "--cost|above 0|'0'" check wrong.csv --cost F=0
complaint "--cost|above 0|nan" check wrong.csv --cost F=nan
complaint "1 stage|has 2" check wrong.csv --buffered --stage-cost 1
complaint "nothing.csv" check nothing.csv
complaint "$work" check "$work"
printf '0F0,0Q0\n' >cells.csv
complaint "cells.csv|line 1|cell 2|0Q0" check cells.csv
printf '{"schedule": 1, "ranks": [["0F0",]]}' >cells.json
complaint "cells.json|JSON|line 1" check cells.json

status=0; "$addend" schedule make 1f1b -s 2 -m 2 >/dev/full 2>err || status=$?
[ $status -eq 3 ] || fail "a full disk: exit $status"
echo "schedule: all hold"
