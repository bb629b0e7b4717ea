#!/usr/bin/env bash
# Tests that `addend bench` measures and that its document has the keys that scripts rely on. Times are not judged.
# Usage: bench.sh PROGRAM SOURCE
set -euo pipefail
addend=$1 source=$2
work=$(mktemp -d) launcher=
end_all() { [ -z "$launcher" ] || kill -9 "$launcher" 2>/dev/null || true; rm -rf -- "$work"; }
trap end_all EXIT
. "$source/tests/support/draw.sh"
. "$source/tests/support/says.sh"
draw_cases "measurements" 4 all_reduce parameters startup products train_step errors parallel_step exchange experts bridge attention pipeline \
  decompose memory torch_group leaves

if is_drawn all_reduce; then
document=$("$addend" bench --quick --json --op all_reduce --ranks 2 --largest 65536 2>/dev/null)
python3 - "$document" <<'PY'
import json, sys
document = json.loads(sys.argv[1])
assert document["copy_gbps"] > 0 and document["machine"]["cores"] >= 1 and document["machine"]["openblas_core"], document
assert document["machine"]["instructions"] is None or document["machine"]["instructions"], document
rows = document["rows"]
keys = {"op", "dtype", "storage", "bytes", "ranks", "backend", "memory", "in_place", "seconds_median", "floor_seconds", "peers"}
peers = {"openmpi", "openmpi_tuned", "mpich", "gloo", "addend_openmpi", "addend_mpich", "torch_ddp", "torch_fsdp"}
for row in rows:
    assert keys <= row.keys() and peers <= row["peers"].keys(), row
    assert row["op"] == "all_reduce" and row["backend"] == "shm" and row["ranks"] == 2, row
    assert row["seconds_min"] <= row["seconds_median"] <= row["seconds_max"], row
    assert row["seconds_min"] > 0 and row["floor_seconds"] > 0, row
    assert all(seconds is None for seconds in row["peers"].values()), row
seen = {(row["dtype"], row["bytes"], row["memory"], row["in_place"]) for row in rows}
for dtype in ("f32", "bf16", "f16"):
    for size in (1024, 65536):
        for memory in ("comm", "ordinary"):
            assert (dtype, size, memory, True) in seen, (dtype, size, memory)
PY
fi

# Steps on parameters: measures each dtype and storage once, with the bytes that the floor (a plain program) moves.
if is_drawn parameters; then
for op in reducer copy_in sharded_step update; do
  document=$("$addend" bench --quick --json --op "$op" --ranks 2 2>/dev/null)
  python3 - "$op" "$document" <<'PY'
import json, sys
wanted = {
    "reducer": {("f32", "whole")},
    "copy_in": {(dtype, "whole") for dtype in ("f32", "bf16", "f16")},
    "sharded_step": {(dtype, storage) for dtype in ("f32", "bf16") for storage in ("zero1", "zero2", "zero3")},
    "update": {("f32", "zero1"), ("f32", "zero3")},
}
rows = json.loads(sys.argv[2])["rows"]
for row in rows:
    assert row["op"] == sys.argv[1] and row["seconds_min"] > 0 and row["floor_seconds"] > 0, row
assert {(row["dtype"], row["storage"]) for row in rows} == wanted[sys.argv[1]], rows
PY
done
fi

# The next documents have the numbers of ranks that --help reports.
"$addend" bench --help | tr -s ' \n' ' ' | grep -o -- '--quick [^-]*[^- ]' >"$work/quick"
says "$work/quick" "2 ranks" 3 32
if is_drawn startup; then
document=$("$addend" bench --quick --json --op startup 2>/dev/null)
python3 -c 'import json, sys; row, = json.loads(sys.argv[1])["rows"]; assert row["ranks"] == 32 and row["seconds_median"] > 0' "$document"
fi

# Matrix products: every shape in every dtype, by each library that is there.
if is_drawn products; then
table=$work/products.json
document=$("$addend" bench --quick --json --op products --write "$table" 2>/dev/null)
python3 - "$table" "$document" <<'PY'
import json, math, sys
table, rows = json.load(open(sys.argv[1])), json.loads(sys.argv[2])["rows"]
ways = ["openblas_seconds", "onednn_seconds", "widened_seconds", "onednn_own_seconds"]
for row in rows:
    assert row["op"] == "products" and row["gflops"] > 0 and row["m"] * row["n"] * row["k"] > 0, row
    assert row["openblas_seconds"] > 0 and all(row[way] is None or row[way] > 0 for way in ways), row
shapes = {(row["variant"], row["m"], row["n"], row["k"]) for row in rows}
assert len(rows) == 3 * len(shapes), len(rows)
assert {(row["dtype"], row["result"]) for row in rows} == {("f32", "f32"), ("bf16", "bf16"), ("bf16", "f32")}

# The table has the fastest way of each kind of product: the one whose times, multiplied, are least.
words = {"f32": {"openblas": "openblas_seconds", "onednn": "onednn_seconds"},
         "bf16": {"onednn": "onednn_seconds", "widened_openblas": "openblas_seconds", "widened_onednn": "widened_seconds"}}
def kind(row):
    if 1 in (row["m"], row["n"]):
        return "vector"
    return "small" if row["m"] * row["n"] * row["k"] <= 64**3 else "large"
def time(row, way):
    return math.inf if row[way] is None else math.log(row[way])
assert table["format"] == "addend products 1", table
for dtype, names in words.items():
    for shape in ("vector", "small", "large"):
        of = [row for row in rows if row["dtype"] == dtype and kind(row) == shape]
        fastest = min(names, key=lambda name: sum(time(row, names[name]) for row in of)) if of else table[dtype][shape]
        assert table[dtype][shape] == fastest, (dtype, shape, fastest, table)
PY
"$addend" bench --quick --op products 2>/dev/null | sed -n '/^weight /p' >"$work/rows"
says_facts "$work/rows" "384 x" "x 2048" bf16 f32
if grep -q '"onednn_seconds": [0-9]' <<<"$document"; then
  ADDEND_PRODUCTS=$table "$addend" check "$source/recipes/gpt-dp.yaml" --steps 1 >/dev/null
fi
! "$addend" bench --op all_reduce --write "$table" 2>"$work/err" || { echo "bench: --write alone is taken" >&2 && exit 1; }
says "$work/err" --write --op
fi

# Training steps: two models, the second twice as wide, on one rank and on two, in f32 and in bf16 with the same f32
# parameters; which library computes products, in words; and the products' share and rate in a step of either dtype.
if is_drawn train_step; then
document=$("$addend" bench --quick --json --op train_step 2>/dev/null)
python3 - "$document" <<'PY'
import json, sys
document = json.loads(sys.argv[1])
rows, instructions = document["rows"], document["machine"]["instructions"]
has_bf16 = bool(instructions) and instructions.startswith("avx512_core")  # what oneDNN wants for its products in bf16
by = {"f32": {"OpenBLAS"}, "bf16": {"widened to f32, OpenBLAS's f32 product"}}
if instructions:
    by["bf16"] |= {"oneDNN bf16", "widened to f32, oneDNN's f32 product"}
    by["f32"] |= {"oneDNN"}
for row in rows:
    model = row["model"]
    assert row["op"] == "train_step" and row["seconds_min"] > 0 and row["tokens_per_second"] > 0, row
    assert {"torch_ddp", "torch_fsdp", "torch_ddp_compiled", "torch_ddp_bf16", "torch_ddp_bf16_compiled"} <= row["peers"].keys(), row
    assert row["products_by"] in by[row["dtype"]], row
    assert row["instructions"] == (instructions if "oneDNN" in row["products_by"] else document["machine"]["openblas_core"]), row
    assert row["bytes"] > 4 * model["layers"] * 12 * model["d_model"] ** 2, row  # f32, whatever it computes in
widths = sorted({row["model"]["d_model"] for row in rows})
assert widths == [widths[0], 2 * widths[0]], widths
assert [(row["model"]["d_model"], row["ranks"], row["dtype"]) for row in rows] == [
    (width, ranks, dtype) for width in widths for ranks in (1, 2) for dtype in ("f32", "bf16")], rows
for dtype, name in (("f32", "products"), ("bf16", "products_bf16")):
    own = document[name]
    assert own["dtype"] == dtype and own["products_by"] in by[dtype] and own["shapes"] > 3, own
    assert 0 < own["gemm_share"] < 1 and own["gemm_gflops"] > 0 and own["openblas_gflops"] > 0, own
    made = {"onednn_f32_gflops": bool(instructions), "onednn_gflops": has_bf16 if dtype == "bf16" else bool(instructions)}
    for rate, is_made in made.items():
        assert own[rate] > 0 if is_made else own[rate] is None, own
PY
"$addend" bench --quick --op train_step 2>/dev/null >"$work/table"
grep -Eq '^ +2 +256 bf16 +2 .* (oneDNN|OpenBLAS)' "$work/table"
sed -n '/^[^ ].*%/p' "$work/table" >"$work/shares" # of products in a step's time, a line for each dtype
says_facts "$work/shares" bf16 GFLOP/s
fi

# Errors: every mistake reaches every other rank; two ranks have one group, so there is no circle of waits. Nothing is
# left of the worlds.
if is_drawn errors; then
document=$("$addend" bench --quick --json --op errors 2>/dev/null)
python3 - "$document" <<'PY'
import json, sys
HANGS = 60  # seconds
rows = json.loads(sys.argv[1])["rows"]
for row in rows:
    assert row["op"] == "errors" and row["backend"] == "shm" and row["rounds"] == 5 and row["peers"] == {}, row
    assert 0 < row["seconds_min"] <= row["seconds_median"] <= row["seconds_max"] < HANGS, row
seen = [(row["mistake"], row["ranks"]) for row in rows]
assert seen == [("mismatch", 2), ("mismatch", 3), ("death", 2), ("death", 3), ("circle", 3)], seen
PY
! ls /dev/shm | grep -i addend || { echo "bench --op errors: files are left in /dev/shm" >&2 && exit 1; }
"$addend" bench --quick --op errors --ranks 4 2>/dev/null | grep -Eq '^circle +4 +5 '
fi

# Steps of tensor-parallel ranks: on two ranks with and without the sequence cut too, and on four ranks with cut
# parameters.
if is_drawn parallel_step; then
document=$("$addend" bench --quick --json --op parallel_step 2>/dev/null)
python3 - "$document" <<'PY'
import json, sys
rows = json.loads(sys.argv[1])["rows"]
for row in rows:
    assert row["op"] == "parallel_step" and row["seconds_min"] > 0 and row["tokens_per_second"] > 0, row
    assert {"addend_dp", "torch_tp", "torch_fsdp_tp"} <= row["peers"].keys(), row
assert [(row["storage"], row["ranks"]) for row in rows] == [("tp", 2), ("tp_sequence", 2), ("fsdp_tp", 4)], rows
PY
fi

# Rows sent to their experts and back, with the floor's bytes; products of experts and their layer on one rank.
if is_drawn exchange; then
document=$("$addend" bench --quick --json --op exchange --ranks 2,3 2>/dev/null)
python3 - "$document" <<'PY'
import json, sys
rows = json.loads(sys.argv[1])["rows"]
for row in rows:
    assert row["op"] == "exchange" and row["seconds_min"] > 0 and row["floor_seconds"] > 0, row
assert [(row["ranks"], row["bytes"]) for row in rows] == [(ranks, size) for ranks in (2, 3) for size in (1 << 16, 1 << 20)], rows
PY
fi
if is_drawn experts; then
for op in grouped experts; do
  document=$("$addend" bench --quick --json --op "$op" 2>/dev/null)
  python3 - "$op" "$document" <<'PY'
import json, sys
row, = json.loads(sys.argv[2])["rows"]
assert row["op"] == sys.argv[1] and row["ranks"] == 1 and row["bytes"] == 2 << 20 and row["seconds_min"] > 0, row
assert {"addend_one", "torch_grouped"} <= row["peers"].keys(), row
PY
done
fi

# A batch sent over a bridge and back, with the floor's bytes if any are moved.
if is_drawn bridge; then
document=$("$addend" bench --quick --json --op bridge --ranks 2,3,4 2>/dev/null)
python3 - "$document" <<'PY'
import json, sys
rows = json.loads(sys.argv[1])["rows"]
for row in rows:
    assert row["op"] == "bridge" and row["seconds_min"] > 0, row
    assert (row["floor_seconds"] is None) == (row["storage"] == "equal"), row
assert [(row["ranks"], row["storage"], row["bytes"]) for row in rows] == [
    (ranks, way, size) for ranks in (2, 4) for way in ("fan_in", "fan_out", "equal") for size in (1 << 16, 1 << 20)], rows
PY
fi

# Attention on one rank, and each variant on two.
if is_drawn attention; then
document=$("$addend" bench --quick --json --op attention 2>/dev/null)
python3 - "$document" <<'PY'
import json, sys
rows = json.loads(sys.argv[1])["rows"]
for row in rows:
    assert row["op"] == "attention" and row["seq"] * 512 * 4 == row["bytes"] and row["peers"] == {}, row
    assert 0 < row["seconds_min"] <= row["seconds_median"] <= row["seconds_max"], row
    assert row["arithmetic_seconds"] > 0 and 1 <= row["balance"] <= row["ranks"] and 0 <= row["exposed"] < 1, row
assert [(row["variant"], row["ranks"]) for row in rows] == [("ring", 1), ("ring", 2), ("ring_plain", 2), ("gather", 2)], rows
PY
"$addend" bench --quick --op attention --ranks 3 2>/dev/null | grep -Eq '^gather +3 +256 '
fi

# A decomposition on three pools: its step and each of its exchanges, with the bytes that receivers need from others.
if is_drawn decompose; then
for op in decompose_step decompose_exchange; do
  document=$("$addend" bench --quick --json --op $op 2>/dev/null)
  python3 - $op "$document" <<'PY'
import json, sys
op, rows = sys.argv[1], json.loads(sys.argv[2])["rows"]
importances, components = 8 * 16 * (4 * 32 + 3 * 64), 4 * 64 * 32 + 3 * (32 + 96) * 64
exchanged = {"ci_blocks": importances, "ci_adv": importances, "blocks_ci": importances, "adv_ci": importances, "adv_blocks": components}
for row in rows:
    assert row["op"] == op and row["seconds_min"] > 0 and {"addend_one", "torch_one", "torch_two"} <= row["peers"].keys(), row
    copies = {3: 1, 10: 2}[row["ranks"]]
    if op == "decompose_step":
        assert row["tokens_per_second"] > 0, row
    else:
        assert row["floor_seconds"] > 0 and row["bytes"] == 2 * exchanged.get(row["storage"], copies * components), row
wanted = ["pools"] if op == "decompose_step" else ["ci_blocks", "ci_adv", "blocks_ci", "adv_ci", "blocks_adv", "adv_blocks"]
assert [(row["ranks"], row["storage"]) for row in rows] == [(ranks, storage) for ranks in (3, 10) for storage in wanted], rows
PY
done
fi

# Memory as planned and as the kernel counts it, for every ZeRO level and dtype on two ranks; and for steps in f32 and
# bf16 with one batch and with two, whose difference is activations. tests/system/test_memory.c judges how close they
# must be.
if is_drawn memory; then
document=$("$addend" bench --quick --json --op memory 2>/dev/null)
python3 - "$document" <<'PY'
import json, os, sys
document = json.loads(sys.argv[1])
rows = document["rows"]
counted = os.path.exists("/proc/self/smaps_rollup")
for row in rows:
    assert row["op"] == "memory" and row["ranks"] == 2 and row["mesh"] == "dp_shard=2" and row["peers"] == {}, row
    assert row["bytes"] == row["numel"] * (4 if row["dtype"] == "f32" else 2) and row["seconds_min"] > 0, row
    for held, planned in (("pss_rank_bytes", "planned_rank_bytes"), ("pss_node_bytes", "planned_node_bytes")):
        assert row[planned] > 3 * row["numel"], row  # two moments and a value are on some rank
        assert row[held] > 3 * row["numel"] if counted else row[held] is None, row
    assert row["planned_rank_bytes"] < row["planned_node_bytes"], row
    assert row["gradient_bytes"] > 4 * row["numel"] and abs(row["gradient_bytes"] / row["planned_gradient_bytes"] - 1) < 0.05, row
wanted = [(f"zero{zero}", dtype, False, "f32", 0) for zero in (1, 2, 3) for dtype in ("f32", "bf16")] + [("zero2", "f32", True, "f32", 0)]
wanted += [("zero1", "f32", False, compute, batches) for compute in ("f32", "bf16") for batches in (1, 2)]
assert [(row["storage"], row["dtype"], row["checkpoint"], row["compute"], row["batches"]) for row in rows] == wanted, rows
for way in ("planned", "pss") if counted else ("planned",):
    of = document["activations"][way]
    assert 0 < of["bf16_bytes"] < of["f32_bytes"] and abs(of["ratio"] - of["bf16_bytes"] / of["f32_bytes"]) < 1e-4, document["activations"]
of = [row["planned_activation_bytes"] for row in rows[-4:]]
assert document["activations"]["planned"]["bf16_bytes"] == of[3] - of[2], of
PY
fi

# Collectives through PyTorch's process groups, and steps of DDP and FSDP2, on the memory that each row names. With
# --peers the results of other programs must be right: a program with a wrong result is not measured.
if is_drawn torch_group; then
rows_of_group=$(mktemp)
cat >"$rows_of_group" <<'PY'
import json, sys
rows, through = json.loads(sys.argv[1])["rows"], sys.argv[2:]
for row in rows:
    assert row["op"] == "torch_group" and row["ranks"] == 2 and row["seconds_min"] > 0, row
    assert {"torch_group", "gloo", "deepspeed"} <= row["peers"].keys(), row
    assert all(row["peers"][name] for name in through), row
    assert ("model" in row) == (row["variant"] == "train_step"), row
wanted = [(op, dtype, size, memory) for memory in ("comm", "ordinary")
          for op, dtype in (("all_reduce", "f32"), ("all_reduce", "bf16"), ("all_gather", "f32"), ("reduce_scatter", "f32"), ("all_to_all", "f32"))
          for size in (1 << 12, 1 << 16, 1 << 20)]
steps = [row for row in rows if row["variant"] == "train_step"]
assert [(row["variant"], row["dtype"], row["bytes"], row["memory"]) for row in rows if row not in steps] == wanted, rows
assert [(row["storage"], row["memory"]) for row in steps] == [("zero3", "comm"), ("whole", "ordinary"), ("zero3", "ordinary")], steps
PY
document=$("$addend" bench --quick --json --op torch_group 2>/dev/null)
python3 "$rows_of_group" "$document"
if python=$(bash "$2/tests/support/python.sh" --find torch); then
  peers=$(mktemp -d) # DeepSpeed is left out, since it would be fetched and compiled
  ln -s "$(realpath "${addend%/*}")"/peers/* "$peers" && rm "$peers"/deepspeed*
  document=$(ADDEND_PEERS=$peers ADDEND_LIBRARY=$(realpath "${addend%/*}")/libaddend.so ADDEND_PEER_PYTHON=$python "$addend" bench --quick --peers --json --op torch_group 2>/dev/null)
  python3 "$rows_of_group" "$document" torch_group gloo
  rm -r -- "$peers"
fi
"$addend" bench --quick --op torch_group --largest 4096 2>/dev/null | grep -Eq '^all_to_all +f32 +whole +4 KiB +2 ordinary '
rm -- "$rows_of_group"
fi

# A measurement that is not possible is reported, with exit status 3.
log=$work/log
could_not() { # arguments: what judges the message, its facts with | between them, then options
  local judge=$1 facts status=0
  IFS='|' read -ra facts <<<"$2"
  shift 2
  "$addend" bench --quick "$@" >/dev/null 2>"$log" || status=$?
  [ "$status" -eq 3 ] || { cat "$log" >&2 && echo "bench $*: exit $status, not 3" >&2 && exit 1; }
  $judge "$log" "${facts[@]}"
}
# fewer file descriptors than ranks: the ranks are watched all the same
(ulimit -n 16 && "$addend" bench --quick --op startup >/dev/null)
status=0
(exec 3>&- 4>&- 5>&- 6>&- 7>&- 8>&- 9>&-; ulimit -n 4 && exec "$addend" bench --quick --op startup) >/dev/null 2>"$log" || status=$?
[ "$status" -eq 3 ] || { cat "$log" >&2 && echo "bench without file descriptors: exit $status, not 3" >&2 && exit 1; }
says "$log" "32 ranks"
ADDEND_PEERS=/nowhere could_not says "1 rank|256 tokens" --op attention
TMPDIR=/nowhere could_not says_facts "zero1|dp_shard=2|TMPDIR" --op memory # the folder's name is drawn
# every row is left out: the table has the line of the machine alone
"$addend" bench --quick --op memory --largest 1024 2>/dev/null >"$work/table"
says_facts "$work/table" GB/s
[ "$(wc -l <"$work/table")" -eq 1 ]
"$addend" bench --quick --op memory 2>/dev/null | grep -Eq '^dp_shard=2 +zero3 +bf16 +f32 +8 '

# A request to stop ends the bench: with a message while ranks run, by the signal itself between runs.
"$addend" bench --op memory >/dev/null 2>"$log" & launcher=$!
sleep 2
kill -TERM $launcher
status=0
wait $launcher || status=$?
launcher=
[ "$status" -eq 3 ] || [ "$status" -eq 143 ] || { cat "$log" >&2 && echo "bench, stopped: exit $status" >&2 && exit 1; }

# A wrong call is refused with what would be right.
for wrong in "--hosts 1" "--hosts 2x" "--hosts 2x1," "--hosts 2x17" "--hosts 9" "--qdisc tbf" "--op all_to_all" "--hosts 2 --op products" \
  "--hosts 2 --ranks 2" "--op all_reduc" "--ranks 2,x" "--ranks 0" "--largest many" "recipe.yaml"; do
  status=0
  # shellcheck disable=SC2086 # words
  "$addend" bench $wrong >/dev/null 2>&1 || status=$?
  [ "$status" -eq 2 ] || { echo "bench $wrong: exit $status, not 2" >&2 && exit 1; }
done

# A pipeline's step with each schedule, and the part of it that ranks spend in transfers between stages: some of it, not
# all.
if is_drawn pipeline; then
document=$("$addend" bench --quick --json --op pipeline 2>/dev/null)
python3 - "$document" <<'PY'
import json, sys
rows = json.loads(sys.argv[1])["rows"]
assert [row["storage"] for row in rows] == ["gpipe", "1f1b", "interleaved", "zb"], rows
for row in rows:
    assert row["op"] == "pipeline" and row["ranks"] == 2 and row["tokens_per_second"] > 0, row
    assert 0 < row["transfer_seconds"] < row["seconds_max"], row
PY
"$addend" bench --quick --op pipeline 2>/dev/null | grep -Eq '^pipeline .* zb .* [0-9.]+ %$' # with the share of transfers
fi

# A step with leaves, beside the same without: with as many microbatches and with one.
if is_drawn leaves; then
document=$("$addend" bench --quick --json --peers --op leaves 2>/dev/null)
python3 - "$document" <<'PY'
import json, sys
rows = json.loads(sys.argv[1])["rows"]
without = {"addend_microbatches", "addend_whole"}
assert {(row["dtype"], row["storage"]) for row in rows} >= {(dtype, storage) for dtype in ("f32", "bf16") for storage in ("whole", "zero1")}, rows
for row in rows:
    assert row["op"] == "leaves" and row["ranks"] == 2 and row["model"]["batch"] == 8, row
    assert all(row["peers"][name] > 0 for name in without), row
    assert row["processor_seconds"].keys() == {"addend"} | without and all(s > 0 for s in row["processor_seconds"].values()), row
PY
"$addend" bench --quick --peers --op leaves 2>/dev/null | grep -Eq '^bf16 +zero1 .*( +[0-9]+\.[0-9]+){4}$' # ratios of times and of processor seconds
fi
