#!/usr/bin/env bash
# Tests gradients that share memory slots in turn: how many slots a plan counts, which gradients keep memory of their
# own and why, and a window that is too small.
#   gradient_memory.sh ADDEND SOURCE
set -eu
addend=$1 source=$2
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
cd "$work"
fail() { echo "FAILED: $*" >&2; exit 1; }
. "$source/tests/support/says.sh"

rows() { # arguments: recipe, a Python condition on `rows` (of gradient_memory), `ranks`, `why` and `mib`, options
  local recipe=$source/recipes/$1.yaml holds=$2
  shift 2
  "$addend" plan "$recipe" "$@" --json >plan.json
  "$addend" plan "$recipe" "$@" >plan.txt
  python3 - "$holds" <<'Y' || fail "$recipe $*: $holds"
import json, sys
plan, text = json.load(open("plan.json")), open("plan.txt").read()
rows, ranks = plan["gradient_memory"], plan["memory_per_rank"]
assert sum(row["bytes"] for row in rows if row["pool"] == 0) == ranks[0]["buckets"], (rows, ranks[0])
for row in rows:
    assert row["slots"] == row["buckets"] or "full_because" not in row, row
def is_shown(row):
    numbers = f" {row['dtype']:<6} {row['buckets']:8} {row['slots']:6} {row['bytes'] / 2**20:12.2f}"
    lines = [line.split(numbers)[0] for line in text.splitlines() if numbers in line]
    reduction = {row["op"], row["axes"]} if row["axes"] else set()
    return any(reduction <= set(line.split()) for line in lines)
assert len({is_shown(row) for row in rows}) <= 1, text  # the table shows all of them, or none
why = [row.get("full_because") for row in rows]
print(*filter(None, why), sep="\n", file=open("why", "w"))
assert eval(sys.argv[1]), rows
Y
}

# From ZeRO 2 on, buckets share two slots, and a tied embedding has its own memory; below ZeRO 2, and with microbatches
# that are not reduced, every bucket has its own memory.
large=(--set model.layers=12 --set model.d_model=256 --set shard.bucket_mib=1)
for zero in 2 3; do
  rows fsdp-4 'rows[0]["slots"] == 2 and rows[0]["buckets"] > 12 and not rows[0]["open"] and len(rows) == 2 and why[1] and rows[1]["bytes"] == 256 * 256 * 4' \
    "${large[@]}" --set shard.zero=$zero
  says why # its uses lie far apart
done
for zero in 0 1; do rows fsdp-4 'len(rows) == 1 and rows[0]["slots"] > 12' "${large[@]}" --set shard.zero=$zero; done
rows fsdp-4 'len(why) == 1' "${large[@]}" --set shard.zero=1
says why shard.zero 2
rows fsdp-4 'len(rows) == 1' "${large[@]}" --set shard.zero=3 --set train.microbatches=3 --set 'train.sync=[shard, none, all]'
says why train.sync none
rows fsdp-4 'why[0] is None' "${large[@]}" --set shard.zero=3 --set train.microbatches=3 --set 'train.sync=[shard, all, all]'
rows fsdp-4 'rows[0]["slots"] == 5' "${large[@]}" --set shard.window=5
rows moe-dp2ep 'rows[0]["op"] == "none" and len(rows) == 3' --set shard.zero=2
rows ddp-4 'len(why) == 1' --set mesh=dp_replicate=4
says why
rows ocr-disjoint 'len({row["module"] for row in rows}) == 2' --set shard.zero=2

# With a window of at most an eighth of the gradients, all ranks together need less than half of the memory of ZeRO 1's
# gradients on 4 ranks, and less than a sixth on 32.
whole() { "$addend" plan "$source/recipes/$1.yaml" "${@:2}" --json | python3 -c '
import json, sys
print(sum(rank["buckets"] + rank["grads"] for rank in json.load(sys.stdin)["memory_per_rank"]))'; }
one=$(whole fsdp-4 "${large[@]}" --set shard.zero=1)
of_32=(--set model.layers=24 --set model.d_model=512)
one_of_32=$(whole hsdp-4x8 "${of_32[@]}" --set shard.zero=1)
for zero in 2 3; do
  [ $((2 * $(whole fsdp-4 "${large[@]}" --set shard.zero=$zero))) -lt "$one" ] || fail "zero $zero on 4 ranks"
  [ $((6 * $(whole hsdp-4x8 "${of_32[@]}" --set shard.zero=$zero))) -lt "$one_of_32" ] || fail "zero $zero on 32 ranks"
done

# A window that is too small for the buckets in use at the same time is refused before a rank starts, and the number
# that the message names fits.
small=(--set shard.zero=3 --set shard.bucket_mib=0.000001)
for command in check plan "train --out run"; do
  read -ra words <<<"$command"
  if "$addend" "${words[0]}" "$source/recipes/gpt-3d.yaml" "${words[@]:1}" "${small[@]}" --set shard.window=1 >out 2>err; then fail "$command took a window of 1"; fi
  says err shard.window 1 model 2 0
  [ ! -s out ] && [ ! -e run ] || fail "$command began"
done
"$addend" check "$source/recipes/gpt-3d.yaml" "${small[@]}" --set shard.window=2 >out || { cat out && fail "a window of 2"; }

# Filling a slot again before its sum was taken is a mistake that the check catches.
"$addend" check "$source/recipes/fsdp-4.yaml" --set shard.bucket_mib=0.001 --mutate --json >proof.json || fail "the mistakes of slots"
python3 - <<'Y' || fail "slot-filled-again is not caught"
import json
found = [m for m in json.load(open("proof.json"))["mutants"] if m["name"] == "slot-filled-again"]
assert len(found) == 1 and found[0]["killed_by"] == "number", found
Y
echo "gradient_memory: all hold"
