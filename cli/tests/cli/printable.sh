#!/usr/bin/env bash
# Tests that control characters that were typed, matched by a file pattern or read from a file never reach a terminal;
# and that files in a dump's folder that are not read are named.
set -eu
addend=$1 source=$2
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
cd "$work"
fail() { echo "FAILED: $*" >&2; exit 1; }
. "$source/tests/support/says.sh"
hang=120
on_terminal() { # arguments: command; both of its outputs go to a new terminal, and from there to `seen`
  status=0
  TERM=dumb NO_COLOR=1 timeout $hang python3 -c 'import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))' "$@" >seen </dev/null || status=$?
}
evil=$'a\e[31mb\a\xc2\x9b\u202ec' shown='a\x1b[31mb'
shows() { # arguments: exit status, call whose message has the name
  local expected=$1; shift
  on_terminal "$addend" "$@"
  [ $status -eq "$expected" ] || { cat -v seen >&2; fail "exit $status instead of $expected: $(printf '%q ' "$@")"; }
  ! LC_ALL=C grep -q $'[\x01-\x08\x0b\x0c\x0e-\x1f\x7f]\|\xc2[\x80-\x9f]\|\xe2\x80[\x8e\x8f\xa8-\xae]\|\xe2\x81[\xa6-\xa9]' seen || { cat -v seen >&2; fail "control characters reach the terminal: $(printf '%q ' "$@")"; }
}
names() { shows "$@"; grep -qF "$shown" seen || { cat -v seen >&2; fail "the name is shown: $(printf '%q ' "$@")"; }; }

recipe=$source/recipes/gpt-dp.yaml few="--set train.steps=2 --set train.warmup=0"
names 2 check "$evil.yaml"
cp "$recipe" "$evil.yaml" && echo "nonsense: 1" >>"$evil.yaml"
names 2 check "$evil.yaml"
names 2 check "$recipe" --set "train.$evil=1"
shows 2 check "$recipe" --set "data.text=[\"$evil\"]"
names 2 "$evil"
names 2 check "$recipe" "$evil"
names 2 check "$recipe" "--$evil"
names 2 plan "$recipe" --ranks-per-node "$evil"
names 3 plan "$recipe" --picture "$evil/picture.svg"
names 2 report "$evil"
names 2 diff "$evil"
names 2 run -n 1 -- "./$evil"
names 2 schedule check "$evil"
names 2 schedule "$evil"
names 2 schedule make "$evil" --stages 2 --microbatches 2
names 2 schedule make 1f1b --stages "$evil" --microbatches 2
printf '0F0,%s0\n' "$evil" >cells.csv && names 2 schedule check cells.csv
printf '0B0,0F0\n' >wrong.csv && names 1 schedule check wrong.csv --picture "$evil.svg"
names 0 train "$recipe" $few -o "$evil" --dump-step 0
names 2 train "$recipe" $few -o "$evil"
names 0 report "$evil"
printf '0F0,0B0\n' >$'turned\u202e.csv' && "$addend" schedule check $'turned\u202e.csv' --picture turned.svg >/dev/null && grep -q turned turned.svg ||
  fail "a picture with the name of its file"
! LC_ALL=C grep -q $'\xe2\x80\xae' turned.svg || fail "a picture turns the direction of text"
path=$("$addend" report "$evil") && [ "$path" = "$evil/report.html" ] || fail "a script gets the path as it is"
"$addend" train "$recipe" $few -o $'b\e' --json 2>err >out && python3 -c 'import json; assert json.load(open("out"))["folder"] == "b\x1b"' ||
  { cat err out >&2; fail "a JSON document has it with JSON's escapes"; }

# Texts in the documents of trained models.
is_quiet() { ! LC_ALL=C grep -q $'\x7f\|\xc2[\x80-\x9f]\|\xe2\x80\xae' out || { cat -v out >&2; fail "control characters reach the terminal: $1"; }; }
turned=$'b\x7f\xc2\x9b\u202e\u00e4'
"$addend" train "$recipe" $few -o "$turned" --json 2>err >out && grep -qF 'b\u007f\u009b\u202e'$'\u00e4' out || { cat err out >&2; fail "train --json"; }
is_quiet "train --json" && python3 -c 'import json; assert json.load(open("out"))["folder"] == "b\x7f\x9b\u202e\u00e4"' || fail "train --json has the folder as it is"
"$addend" sample "$turned" "$turned" --json 2>err >out && is_quiet "sample --json" || { cat err out >&2; fail "sample --json"; }

# Names in files of other programs' jobs.
cat >dump.py <<'P'
import json, struct
def write(path, metadata, name, values):
    data = struct.pack(f"<{len(values)}f", *values)
    header = {"__metadata__": metadata, name: {"dtype": "F32", "shape": [len(values)], "data_offsets": [0, len(data)]}}
    text = json.dumps(header).encode()
    open(path, "wb").write(struct.pack("<Q", len(text)) + text + data)
name = "w\x1b[31m\x9b\u202e\u2066"
for rank in range(2):
    of = {"addend.version": "1", "addend.mesh": "dp_replicate=2", "addend.rank": str(rank)}
    values = [rank + 0.5, 2.0, 3.0 - rank, 7.0 * rank + 1]
    write(f"dumped/rank{rank}.addend.safetensors", {**of, "addend.kind": "addend"}, name, values)
    write(f"dumped/rank{rank}.sum.safetensors", {**of, "addend.kind": "sum"}, name, [0.5, 2.0, 3.0, 1.0])
write("wrong.safetensors", {"addend.version": "1", "addend.mesh": "dp\x1b[31m=2", "addend.rank": "\x1b[32m", "addend.kind": "\x07"}, name, [1.0])
P
mkdir dumped && python3 dump.py
shown='w\x1b[31m\xc2\x9b\xe2\x80\xae\xe2\x81\xa6'
names 1 diff dumped
names 1 diff dumped --format github
shown='\u202e\u2066'
names 1 diff dumped --json
"$addend" diff dumped --html page.html >out || [ $? -eq 1 ]
grep -qiF 'w\u001b[31m' page.html && grep -qF '\\xe2\\x80\\xae\\xe2\\x81\\xa6' page.html || fail "the page has the name"
! LC_ALL=C grep -q $'\xe2\x80\xae' page.html || fail "the page turns the direction of text"
shows 2 diff wrong.safetensors
"$addend" diff dumped --json >out || [ $? -eq 1 ]
python3 -c 'import json; assert json.load(open("out"))["params"][0]["name"] == "w\x1b[31m\x9b\u202e\u2066"' || fail "JSON has the name as it is"

# A dump's folder with things that are no dump files.
mkdir elsewhere && mv dumped/rank1.sum.safetensors elsewhere && ln -s ../elsewhere/rank1.sum.safetensors dumped
mkfifo dumped/pipe.safetensors dumped/other && mkdir dumped/folder.safetensors
status=0; timeout $hang "$addend" diff dumped >out 2>err || status=$?
[ $status -le 2 ] || { cat err >&2; fail "exit $status: a folder with links and pipes"; }
says err dumped/rank1.sum.safetensors
says err dumped/pipe.safetensors
says_nothing_of err dumped/other
rm dumped/pipe.safetensors
status=0; timeout $hang "$addend" diff dumped dumped/rank1.sum.safetensors >out 2>err || status=$?
[ $status -eq 1 ] || { cat err >&2; fail "exit $status: a link that is named itself is read"; }
status=0; timeout $hang "$addend" diff dumped/other >out 2>err || status=$?
[ $status -eq 2 ] && says err dumped/other || { cat err >&2; fail "a pipe: exit $status"; }
echo "printable: all hold"
