#!/usr/bin/env bash
# Tests the core's examples that train and send: a trainer with ZeRO takes the same steps on any number of ranks, resumes
# on another number, and its dump is right; rows reach their owners; leaves and Muon have the same bits; a table of one's
# own is checked.
# Usage: core_examples.sh ADDEND SOURCE
set -eu
addend=$1 source=$2 build=$(dirname -- "$1")
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
fail() { echo "FAILED: $*" >&2; exit 1; }
. "$source/tests/support/says.sh"

zero() { # arguments: number of ranks, then those of the example
  local ranks=$1
  shift
  "$addend" run -n "$ranks" -- "$build/example_zero" "$@" || fail "zero on $ranks ranks: $*"
}

# The same losses, norms and parameters on one rank, on four and on five, which do not divide the parameters' nine rows.
same_numbers() { # files whose numbers must be equal, except for the rounding of sums over other numbers of ranks
  python3 - "$@" <<'P'
import re, sys
rows = [[float(x) for x in re.findall(r"-?\d+\.\d+", open(path).read())] for path in sys.argv[1:]]
for other in rows[1:]:
    assert rows[0] and len(other) == len(rows[0]), rows
    assert all(abs(a - b) <= 2e-9 * (1 + abs(a)) for a, b in zip(rows[0], other)), (rows[0], other)
P
}
for ranks in 1 4 5; do zero $ranks --export "$work/$ranks.safetensors" >"$work/$ranks"; done
[ "$(wc -l <"$work/1")" -eq 5 ] || fail "zero printed: $(cat "$work/1")"
same_numbers "$work/1" "$work/4" "$work/5" || fail "the numbers of ranks differ"
python3 - "$work/1" <<'P' || fail "nothing was learned: $(cat "$work/1")"
import re, sys
losses = [float(x) for x in re.findall(r"loss (\S+)", open(sys.argv[1]).read())]
assert len(losses) == 4 and losses[-1] < 0.3 * losses[0], losses
P

# Half the steps on four ranks and the rest on three are all the steps.
zero 4 --steps 20 --checkpoints "$work/half" >"$work/first"
zero 3 --resume "$work/half" --checkpoints "$work/rest" >"$work/second"
tail -n +3 "$work/4" >"$work/last"
same_numbers "$work/last" "$work/second" || fail "a resumed trainer takes other steps: $(cat "$work/second")"
ls "$work/rest" | grep -qx 'step-40' || fail "no checkpoint after step 40: $(ls "$work/rest")"

# Replicas that update parts of their rows take the same steps, also the rest of others' steps; uneven and empty parts.
for replicas in 2 3; do zero 6 --replicas $replicas >"$work/parts"; same_numbers "$work/1" "$work/parts" || fail "$replicas replicas: $(cat "$work/parts")"; done
zero 4 --replicas 4 --resume "$work/half" >"$work/second"
same_numbers "$work/last" "$work/second" || fail "replicas that resume take other steps: $(cat "$work/second")"
zero 4 --replicas 2 --steps 20 --checkpoints "$work/half-in-parts" >"$work/first"
zero 3 --resume "$work/half-in-parts" >"$work/second"
same_numbers "$work/last" "$work/second" || fail "the checkpoint of replicas leads to other steps: $(cat "$work/second")"

# Weights go out to a file and in from it.
for replicas in 1 2; do
  zero 2 --steps 0 --from "$work/4.safetensors" --replicas $replicas >"$work/read"
  same_numbers <(tail -1 "$work/read") <(tail -1 "$work/4") || fail "other weights were read: $(cat "$work/read")"
done
python3 - "$work/4.safetensors" "$work/short.safetensors" <<'P'
import json, struct, sys
data = open(sys.argv[1], "rb").read()
n = struct.unpack("<Q", data[:8])[0]
header = json.loads(data[8:8 + n])
for name in [k for k in header if k != "__metadata__"]:
    if name == "w2":
        header["v2"] = header.pop(name)
text = json.dumps(header).encode()
open(sys.argv[2], "wb").write(struct.pack("<Q", len(text)) + text + data[8 + n:])
P
! "$addend" run -n 2 -- "$build/example_zero" --from "$work/short.safetensors" >"$work/out" 2>&1 || fail "a file without w2 was taken"
grep -q 'the tensor w2 must have shape \[9\], but is missing' "$work/out" || fail "w2 is not named: $(cat "$work/out")"

# The gradients of a step are the right sums.
mkdir "$work/dump"
zero 3 --steps 1 --dump "$work/dump" >/dev/null
"$addend" diff "$work/dump" >"$work/verdict" || fail "diff: $(cat "$work/verdict")"
mkdir "$work/parts-dump"
zero 4 --steps 1 --dump "$work/parts-dump" --replicas 2 >/dev/null
"$addend" diff "$work/parts-dump" >"$work/verdict" || fail "diff of parts: $(cat "$work/verdict")"

# Rows, a ring and a list of ranks, on three numbers of ranks.
for ranks in 1 3 4; do
  "$addend" run -n $ranks -- "$build/example_messages" >"$work/messages" || fail "messages on $ranks"
  grep -qx "around the ring: $((ranks * (ranks - 1) / 2))" "$work/messages" || fail "messages: $(cat "$work/messages")"
done
grep -q '^rank 0 owns 10 of 40 rows$' "$work/messages" || fail "messages: $(cat "$work/messages")"
grep -q '^2 even ranks, from 2 to 0; rank 0 is number 1 of them; their sum is 2$' "$work/messages" || fail "messages: $(cat "$work/messages")"

# The same bits on one rank, on two and on four.
"$build/example_leaves" >"$work/leaves" || fail "leaves: $(cat "$work/leaves")"
[ "$(wc -l <"$work/leaves")" -eq 4 ] || fail "leaves printed: $(cat "$work/leaves")"
[ "$(sed 's/.*: norm //' "$work/leaves" | sort -u | wc -l)" -eq 1 ] || fail "other bits: $(cat "$work/leaves")"

# Groups with settings of their own have the sums of all.
"$build/example_groups" >"$work/groups" || fail "groups: $(cat "$work/groups")"
[ "$(grep -c 'as expected' "$work/groups")" -eq 3 ] && [ "$(grep -c 'stays$' "$work/groups")" -eq 1 ] || fail "groups printed: $(cat "$work/groups")"

# Muon: the same bits on 1 to 4 ranks and in every way, and fewer products where matrices are dealt.
"$build/example_muon" >"$work/muon" || fail "muon: $(cat "$work/muon")"
[ "$(wc -l <"$work/muon")" -eq 12 ] || fail "muon printed: $(cat "$work/muon")"
[ "$(sed 's/.*: distance //' "$work/muon" | sort -u | wc -l)" -eq 1 ] || fail "other bits: $(cat "$work/muon")"
grep -q '^4 ranks, each rank gathers all matrices, 1350 products' "$work/muon" || fail "muon: $(cat "$work/muon")"
grep -q '^4 ranks, matrices are dealt to the ranks, 450 products' "$work/muon" || fail "muon: $(cat "$work/muon")"

# A schedule of one's own.
"$build/example_own_schedule" "$work/table.svg" >"$work/table" || fail "own_schedule"
grep -q '^3 ranks, 3 stages, 4 microbatches; rank 0: .*0SEND_F0>2 (SEND_F to 2)' "$work/table" || fail "own_schedule: $(cat "$work/table")"
grep -q '^refused: .*rank 1' "$work/table" || fail "own_schedule: $(cat "$work/table")"
grep -q '<svg' "$work/table.svg" || fail "no picture"
echo "core_examples: all hold"
