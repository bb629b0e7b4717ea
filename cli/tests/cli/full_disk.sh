#!/usr/bin/env bash
# Tests files that cannot be written whole, over files that exist: the old file stays, nothing else is left, the message
# names the file, and the exit status is 3. Where no ranks start, a limit on file size takes the place of the full disk (ranks'
# shared memory is itself a file); if a small file system can be mounted, it is filled, for all commands.
set -eu
addend=$1 source=$2
work=$(mktemp -d) mounted=
leave() { cd /; [ -z "$mounted" ] || umount "$work/small"; rm -rf "$work"; }
trap leave EXIT
cd "$work"
fail() { echo "FAILED: $*" >&2; exit 1; }
recipe=$source/recipes/gpt-dp.yaml few="--set train.steps=2 --set checkpoint.every=1"
"$addend" train "$recipe" $few -o run --dump-step 0 >out 2>err || { cat err >&2; fail "a run to begin with"; }
"$addend" check "$recipe" --steps 1 --dump dumped >out 2>err || { cat err >&2; fail "a check to begin with"; }
"$addend" export run exported >out 2>err || { cat err >&2; fail "an export to begin with"; }
listed() { (cd "$1" && find . -type f ! -name .lock -exec sha256sum {} + | sort); }

without_room() { "$@"; } # runs a call where it finds no room; redefined below
keeps() { # arguments: file or folder, pattern of the place that the message names, call that would write there; the old contents must stay
  local what=$1 place=$2 status=0
  shift 2
  listed . >"$work/before"
  without_room "$addend" "$@" >"$work/out" 2>"$work/err" || status=$?
  listed . | diff "$work/before" - >"$work/changes" || { cat "$work/changes" "$work/err" >&2; fail "$what is as it was: $*"; }
  [ $status -eq 3 ] && grep -q "$place" "$work/err" || { cat "$work/err" >&2; fail "exit $status, the message names $what: $*"; }
}
keeps_alone() { # commands that start no ranks, in a folder that has a run and a check's dump
  keeps picture.svg "picture.svg: " plan "$recipe" --picture picture.svg
  keeps report.html "report.html: " report run --out report.html
  keeps run/report.html "run/report.html: " report run
  keeps map.html "map.html: " diff run/dump-0 --html map.html
  keeps exported "exported[.0-9a-f]*.tmp[a-z./]*: " export run exported --overwrite
}
keeps_of_ranks() {
  keeps check.json "check.json: " check "$recipe" --steps 1 --out check.json
  keeps dumped "dumped/step-0.weights.safetensors: " check "$recipe" --steps 1 --dump dumped
  keeps run "run/metrics.jsonl: " train "$recipe" $few -o run --overwrite
  keeps run "run/[a-z./-]*: " train "$recipe" --set train.steps=4 --set checkpoint.every=1 -o run --resume
}
put_old() { # writes the old files over which the calls write
  cp -r "$work/run" "$work/dumped" "$work/exported" .
  echo old >picture.svg; cp picture.svg report.html; cp picture.svg map.html; cp picture.svg check.json
}

mkdir limited && cd limited && put_old
without_room() { (ulimit -f 1; exec "$@"); } # the limit is 1 KiB
keeps_alone
cd ..

mkdir small
if [ "$(id -u)" -eq 0 ] && mount -t tmpfs -o size=8m none small 2>/dev/null; then
  mounted=1
  cd small && put_old
  dd if=/dev/zero of=filling bs=1k 2>/dev/null || true
  without_room() { "$@"; }
  keeps_alone
  keeps_of_ranks
  cd ..
else
  echo "full_disk: no small file system can be mounted here: what ranks write was not tried"
fi

# Names under which no file can be written are refused, also by the library's own functions, which take any path.
cat >write.py <<'P'
import ctypes, os, sys
library = ctypes.CDLL(sys.argv[1])
library.ad_last_error.restype = ctypes.c_char_p
os.mkdir("folder"); os.mkfifo("pipe"); os.symlink("pipe", "to_pipe"); os.symlink("/proc/self/fd/1", "to_output")
open("file", "w").write("old"); os.symlink("file", "link"); os.symlink("nowhere", "to_nowhere")
before = {name: os.lstat(name).st_ino for name in ("folder", "pipe", "to_pipe", "to_output")}
for name in (*before, "/dev/null", "/dev/full"):
    assert library.ad_write_text(b"new", name.encode()) != 0, name
    assert library.ad_last_error().startswith(name.encode() + b": "), library.ad_last_error()
assert before == {name: os.lstat(name).st_ino for name in before}
for name in ("file", "to_nowhere", "new"):
    assert library.ad_write_text(b"new", name.encode()) == 0 and open(name).read() == "new"
open("file", "w").write("old")
assert library.ad_write_text(b"new", b"link") == 0 and not os.path.islink("link") and open("file").read() == "old"
assert not [name for name in os.listdir() if name.endswith(".tmp")]
P
mkdir names && cd names
library=$(dirname "$addend")/libaddend_train.so
if [ -e "$library" ] && ! grep -q __asan_init "$addend"; then python3 ../write.py "$library" >/dev/null || fail "names of other things than files"; fi
echo "full_disk: all hold"
