#!/usr/bin/env bash
# Tests sharded storage, accumulation and the precision policy: every recipe of its kind, at every ZeRO level, with one,
# two and five microbatches (drawn by a seed), in f64 and under precision policies that round; training steps; and
# mistakes that only these can show.
set -eu
addend=$1 source=$2
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
cd "$work"
fail() { echo "FAILED: $*" >&2; exit 1; }
. "$source/tests/support/says.sh"
. "$source/tests/support/draw.sh"

check_recipe() { # arguments: recipe, options
  local recipe=$1 status=0; shift
  "$addend" check "$source/recipes/$recipe.yaml" "$@" --json >proof.json 2>proof.err || status=$?
  [ $status -eq 0 ] || { cat proof.err >&2; tail -8 proof.json >&2; fail "$recipe $*: exit $status"; }
}

# ---- checks in f64: errors below 1e-12 ----
cases=() whole=()
for recipe in hsdp-2x2 hsdp-3x2 fsdp-4 ddp-4 fsdp-uneven hsdp-f16; do
  for zero in 1 2 3; do
    for microbatches in 1 2 5; do cases+=("$recipe --set shard.zero=$zero --set train.microbatches=$microbatches"); done
  done
  whole+=("$recipe --set shard.zero=0" "$recipe --steps 10")
done
draw_cases "levels and microbatches" 2 "${cases[@]}"
for arguments in "${drawn[@]}"; do check_recipe $arguments; done
draw_cases "values whole, and ten steps" 1 "${whole[@]}"
for arguments in "${drawn[@]}"; do check_recipe $arguments; done
# HFSDP: each replica updates a part of its shards, whatever is stored, and in whatever order the axes are named.
cases=()
for mesh in "dp_replicate=2 dp_shard=3" "dp_replicate=3 dp_shard=2" "dp_shard=3 dp_replicate=2" "dp_replicate=3 dp_shard=1" "dp_replicate=3" \
  "dp_replicate=2 dp_shard=2 tp=2"; do
  for zero in 1 2 3; do cases+=("$zero $mesh"); done
done
draw_cases "replicas that update parts" 3 "${cases[@]}"
for case in "${drawn[@]}"; do
  check_recipe hsdp-3x2 --set shard.outer_zero=1 --set "shard.zero=${case%% *}" --set "mesh=${case#* }" --set train.microbatches=3
done
for sync in "[none, shard, all]" "[all, shard, all]"; do check_recipe hfsdp-2x3 --set "train.sync=$sync" --set shard.zero=2 --steps 3; done
draw_cases "thirty-two ranks" 1 shard.zero={1,3} train.microbatches={1,5}
for setting in "${drawn[@]}"; do check_recipe hsdp-4x8 --set $setting; done
check_recipe hsdp-4x8
python3 - <<'Y'
import json
proof = json.load(open("proof.json"))
assert proof["world"] == 32 and len(proof["params"]) > 10
for param in proof["params"]:
    assert param["bound"] == 1e-12 and param["storage"].startswith("dp_replicate=R dp_shard=S0"), param
    assert param["reduced_over"] == "dp_replicate,dp_shard", param
Y

# Any order of reductions that ends in `all`; gathers that run further ahead than there are layers, and none ahead.
cases=()
for sync in "[none, shard, all]" "[all, none, all]" "[shard, none, all]" "[all, shard, all]" "[none, none, all]"; do
  for zero in 0 1 3; do cases+=("$zero $sync"); done
done
draw_cases "orders of reductions" 3 "${cases[@]}"
for case in "${drawn[@]}"; do
  check_recipe hsdp-3x2 --set train.microbatches=3 --set "train.sync=${case#* }" --set "shard.zero=${case%% *}"
done
for prefetch in 0 5; do check_recipe fsdp-4 --set shard.prefetch=$prefetch --set model.layers=3 --steps 2; done
status=0; "$addend" check "$source/recipes/fsdp-uneven.yaml" --set 'data.valid=[0]' --json >proof.json 2>err || status=$?
[ $status -eq 1 ] || fail "nothing was counted, yet exit $status"
python3 - <<'Y'
import json
proof = json.load(open("proof.json"))
assert proof["reason"] and proof["summary"]["counted"] == 0 and proof["summary"]["worst_rel_err"] == 0, proof["summary"]
Y
check_recipe hsdp-2x2 --directional
check_recipe fsdp-uneven --directional --set shard.zero=3

# ---- precision policies that round: errors within the rounding that they allow ----
draw_cases "precision policies" 2 "{param: f32}" "{param: bf16}" "{param: bf16, reduce: f32}" "{param: bf16, grad: raw}" "{param: f16}" \
  "{param: f32, reduce: f16, accumulate: f64}" '{param: bf16, overrides: {"*.norm.*": {param: f32}}}'
for contract in "${drawn[@]}"; do
  check_recipe hsdp-3x2 --dtype recipe --set "precision=$contract" --steps 10
  check_recipe fsdp-uneven --dtype recipe --set "precision=$contract" --set train.microbatches=5 --set shard.zero=1
done
check_recipe hsdp-f16 --dtype recipe --steps 10
check_recipe hsdp-4x8 --dtype recipe --set "precision={param: bf16}"
python3 - <<'Y'
import json
params = json.load(open("proof.json"))["params"]
assert any(param["max_rel_err"] > 0.1 * param["bound"] for param in params), "the bound is a loose one"
assert all(1e-5 < param["bound"] < 1 for param in params)
Y

# ---- mutants ----
planted() { # arguments: names of mutants that must have been tried; all mutants must be killed
  cp proof.json "mutants-$((++proofs)).json"
  python3 - "$@" <<'Y'
import json, sys
proof = json.load(open("proof.json"))
assert proof["survivors"] == 0
for entry in proof["not_applicable"]:
    assert len(entry["why"].split()) > 3, entry
names = {entry["name"]: entry for entry in proof["mutants"]}
for name in sys.argv[1:]:
    assert name in names, name
for name in "overflow-per-rank", "narrow-accumulate", "bucket-by-raw-dtype":
    assert name not in names or names[name]["dtype"] == "recipe", name
if "partial-after-all-reduce" in names:
    assert names["partial-after-all-reduce"]["killed_by"] == "type"
Y
}
proofs=0
seed=$ADDEND_TEST_SEED drawn_by=--mutate=20 # options that draw derived mutants; known bugs are always tried
[ "$seed" != all ] || seed=1 drawn_by=--mutate
check_recipe hsdp-3x2 $drawn_by --seed "$seed"
planted partial-after-all-reduce both-factors-when-one-runs factor-wrong-width bucket-by-raw-dtype narrow-accumulate \
  last-microbatch-only bucket-reused-early
check_recipe hsdp-f16 $drawn_by --seed "$seed"
planted overflow-per-rank padding-counted
check_recipe hfsdp-2x3 $drawn_by --seed "$seed"
planted summed-over-replicas-twice updated-parts-not-gathered updated-parts-in-other-order partial-after-all-reduce padding-counted
check_recipe ddp-4 $drawn_by --seed "$seed"
planted add-to-itself-in-group-of-one
check_recipe gpt-cp --mutate=1
planted ring-without-last-turn ring-masked-by-own-positions ring-gradients-overwritten positions-from-zero
check_recipe moe-tp2ep --mutate=1
planted scores-of-other-ranks-slots-dropped experts-divided-by-own-group experts-averaged-over-replicas
check_recipe ocr-fan-out --mutate=1
planted slice-of-first-on-cp slice-by-wrong-order-of-axes slices-gathered-across-cp zeros-for-slices-of-others norm-over-other-mesh
check_recipe pools-10 --mutate=1 --set 'comm_dtype={values: f16, gradients: f16}'
planted bf16-for-f16-values bf16-for-f16-gradients
check_recipe fsdp-4-bf16 --mutate=1
planted product-sums-in-bf16 statistics-in-bf16 residual-in-bf16 master-in-bf16 bucket-by-raw-dtype narrow-accumulate
check_recipe gpt-pp --mutate=1
planted head-left-out-of-tied-gradient head-alone-in-tied-gradient embedding-twice-in-norm norm-of-each-stage averaged-over-stages \
  divided-by-one-microbatch divided-by-microbatches-too divided-at-each-stage accumulated-divided-again divided-behind-backward
check_recipe gpt-muon --mutate=1
planted rate-of-another-group muon-partly-reduced muon-before-sum muon-per-shard muon-halves-not-exchanged \
  muon-not-orthogonalised muon-silently-off muon-flat-goes-to-adamw muon-norm-per-shard muon-not-nesterov
check_recipe gpt-muon --mutate=1 --set mesh="dp_shard=2 tp=2" \
  --set 'groups=[{match: "embedding.*", frozen: true}, {match: "*norm*", kind: adamw, lr: 1e-3, decay: 0}]'
planted frozen-moves muon-per-tp-shard muon-result-of-another-matrix muon-rate-by-shard-shape muon-decay-after-adjusted-rate
check_recipe moe-groups --mutate=1
planted group-sum-lost group-launched-late group-copies-stale
check_recipe moe-recompute --mutate=1
planted recomputed-tokens-routed-again recomputed-choices-counted-again recomputed-bias-corrected-again
check_recipe hfsdp-2x3 --mutate=1 --set 'train.sync=[all, shard, all]'
planted partial-after-all-reduce updated-parts-not-gathered updated-parts-in-other-order
# Each known bug is tried and killed in some shipped recipe, except for mistakes of transfers. No recipe has fused matrices,
# none has dropout (programs have no such layer).
python3 - mutants-*.json <<'Y'
import json, sys
planted, known = set(), set()
for path in sys.argv[1:]:
    proof = json.load(open(path))
    here = {entry["name"] for entry in proof["mutants"] if entry["killed_by"] != "none" and not entry["derived"]}
    absent = {entry["name"] for entry in proof["not_applicable"]}
    assert not here & absent, here & absent
    planted |= here
    known |= here | absent
missed = {"muon-split-by-shard-rows", "recomputed-dropout-drawn-again"}
assert known - planted == missed and planted <= known and len(known) > 15, known - planted
Y
check_recipe fsdp-uneven $drawn_by --seed "$seed" --set 'precision={param: f16}'
planted overflow-per-rank padding-counted add-to-itself-in-group-of-one
check_recipe hsdp-2x2 $drawn_by --seed "$seed" --set mesh="dp_replicate=1 dp_shard=3" --set 'precision={param: f32, reduce: f16}'
planted overflow-per-rank padding-counted add-to-itself-in-group-of-one partial-after-all-reduce

# ---- a step that overflows is skipped on every rank, and training continues ----
"$addend" train "$source/recipes/hsdp-2x2.yaml" --set 'precision={param: f16, loss_scale: 24}' --set train.steps=12 \
  --set name=overflow >/dev/null 2>train.err || { cat train.err >&2; fail "training in f16"; }
python3 - <<'Y'
import json
steps = [json.loads(line) for line in open("runs/overflow/metrics.jsonl")]
skipped = [bool(step.get("skipped")) for step in steps]
assert skipped[0] and not all(skipped), skipped
assert steps[0]["norm"] is None and steps[0]["loss_scale"] == 24
for now, after, was_skipped in zip(steps, steps[1:], skipped):
    assert after["loss_scale"] == now["loss_scale"] - was_skipped, after
Y
says train.err "step 0" f16 "2^23"

# ---- plans ----
"$addend" plan "$source/recipes/hsdp-4x8.yaml" --set shard.zero=3 --set 'precision={param: bf16, reduce: f32}' --json >plan.json
python3 - <<'Y'
import json
plan = json.load(open("plan.json"))
for param in plan["params"]:
    steps = [(step["op"], step["axes"], step["dtype"], step["when"], step["times"]) for step in param["path"]]
    assert steps == [("all_gather", "dp_shard", "bf16", "forward", 2), ("all_gather", "dp_shard", "bf16", "backward", 2),
                     ("reduce_scatter", "dp_shard", "f32", "every_microbatch", 2),
                     ("all_reduce", "dp_replicate", "f32", "last_microbatch", 1)], steps
    assert param["storage"].startswith("dp_replicate=R dp_shard=S0"), param
ranks = plan["memory_per_rank"]
assert len(ranks) == 32 and all(rank["gathered"] >= 0 and rank["peak"] >= rank["params"] for rank in ranks)
Y
"$addend" plan "$source/recipes/hsdp-2x2.yaml" --set shard.zero=1 --json | python3 -c '
import json, sys
whens = {(step["op"], step["when"]) for param in json.load(sys.stdin)["params"] for step in param["path"]}
assert whens == {("reduce_scatter", "last_microbatch"), ("all_reduce", "last_microbatch"), ("all_gather", "step")}, whens'

# With shard.outer_zero the second reduction is a reduce_scatter of half an all_reduce's bytes, and values are gathered once.
"$addend" plan "$source/recipes/hfsdp-2x3.yaml" --json >plan.json
python3 - <<'Y'
import json
plan = json.load(open("plan.json"))
for param in plan["params"]:
    steps = [(step["op"], step["axes"], step["dtype"], step["when"], step["times"]) for step in param["path"]]
    assert steps == [("all_gather", "dp_shard", "bf16", "forward", 3), ("all_gather", "dp_shard", "bf16", "backward", 3),
                     ("reduce_scatter", "dp_shard", "f32", "every_microbatch", 3),
                     ("reduce_scatter", "dp_replicate", "f32", "last_microbatch", 1),
                     ("all_gather", "dp_replicate", "bf16", "step", 1)], steps
    assert param["storage"] == "dp_replicate=R dp_shard=S0" and param["update"] == "dp_shard=S0 dp_replicate=S0", param
# Elements of rank 0: of `embedding` [256, 4] a third is stored and a half of that updated; AdamW has two states of f32.
embedding = next(param for param in plan["params"] if param["name"] == "embedding.weight")
assert embedding["numel"] == 1024
rows = lambda n, i, g: (i + 1) * n // g - i * n // g
shapes = [(256, 4)] + 2 * [(4, 1)] + 4 * [(4, 4)] + 2 * [(4, 10)] + [(10, 4)] + [(4, 1)]
stored = [[rows(n, shard, 3) * m for n, m in shapes] for shard in range(3)]
updated = [[rows(rows(n, rank % 3, 3), rank // 3, 2) * m for n, m in shapes] for rank in range(6)]
assert any(0 in own for own in updated), updated
for rank in plan["memory_per_rank"]:
    own, held = updated[rank["rank"]], stored[rank["rank"] % 3]
    assert rank["optimizer"] == 8 * sum(own), (rank, own)
    assert rank["grads"] == 4 * sum(own) + 4 * sum(held), (rank, own, held)
    sent = max(own[0], sum(own[1:-1]), own[-1])
    assert rank["params"] == 2 * sum(held) + 4 * sum(own) + 2 * sent, (rank, own, held)
Y

# The table has one row for a layer's gathers in forward and backward; the document lists every collective.
"$addend" plan "$source/recipes/fsdp-4.yaml" >plan.txt
[ "$(grep -c "^  [0-9]* *all_gather" plan.txt)" -eq 3 ] || { cat plan.txt >&2; fail "a row for each of three units"; }
[ "$(grep -c "^  1  *all_gather .* 13440 forward, backward 9$" plan.txt)" -eq 1 ] || { cat plan.txt >&2; fail "the row of the block"; }
says plan.txt blocks.0.attn.wq all_gather dp_shard "unit 1" reduce_scatter "bucket 1" # of a parameter too they are one step

# ---- settings without a meaning are refused, with a sentence that helps ----
refused() { # arguments: facts of the message with | between them, options
  local status=0
  "$addend" plan "$source/recipes/hsdp-2x2.yaml" "${@:2}" >/dev/null 2>err || status=$?
  [ $status -eq 2 ] || { cat err >&2; fail "${*:2}: exit $status, not 2"; }
  says_all err "$1"
}
refused "--set precision|f32|f64" --set 'precision={reduce: f64, accumulate: f32}'
refused "precision.accumulate|f64|f32,|bf16" --set 'precision={param: bf16, accumulate: bf16}'
refused "--set shard.bucket_mib|above 0|is 0" --set shard.bucket_mib=0
refused "--set train.sync|has 1|train.microbatches|is 2" --set 'train.sync=[all]'
refused "--set train.sync" --set 'train.sync=[all, shard]'
refused "--set shard.zero|most 3|is 4" --set shard.zero=4
refused "--set shard.outer_zero|1|shard.zero|0" --set shard.zero=0 --set shard.outer_zero=1
echo "hsdp: all hold"
