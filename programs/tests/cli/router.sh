#!/usr/bin/env bash
# Tests the published mistakes of expert parallelism, by their numbers in the catalogue, on views drawn by a seed: the
# router's gradient is taken for the final sum (1), score gradients of other ranks' slots are dropped (4), experts'
# gradients are divided by the size of their smaller group (12), an exchange's sum is averaged over replicas alone (13).
# Also tests the example that shows the first.
#   router.sh ADDEND SOURCE
set -eu
addend=$1 source=$2
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
cd "$work"
fail() { echo "FAILED: $*" >&2; exit 1; }
. "$source/tests/support/says.sh"
. "$source/tests/support/draw.sh"
. "$source/tests/support/check.sh"

cat >judge.py <<'Y'
import json, sys
tp, ep, is_balanced_whole = sys.argv[1] == "tp", int(sys.argv[2]), sys.argv[3] == "whole"
proof = json.load(open("proof.json"))
assert proof["survivors"] == 0, proof["survivors"]
all_derived = proof["coverage"]["mutants"] == proof["coverage"]["drawn_from"]

def numbered(n, derived):
    return [m for m in proof["mutants"] if m["catalogue"] == n and bool(m["derived"]) == derived]

def causes_of(mistake):
    return [mistake["cause"]] if mistake["cause"] else mistake["possible_causes"]


# 1: refused where it is written; where it is done the replicas of the router differ over tp, and each holds a part,
# which may be one of a sum before; and where tp shards no tokens, each has the balancing loss's full gradient, so that
# they are no parts of one sum.
if all_derived:
    final = numbered(1, True)
    assert {m["derived"]["form"] for m in final} <= {"record", "execution"}, final
    written = [m for m in final if m["derived"]["form"] == "record"]
    done = [m for m in final if m["derived"]["form"] == "execution"]
    assert bool(written) == bool(done) == tp, final
    for m in written:
        assert m["killed_by"] == "type" and m["message"], m
    for m in done:
        assert m["killed_by"] == "number" and m["param"].endswith(".moe.router"), m
        told = {cause["kind"] for cause in causes_of(m) if cause["axes"] == "tp"}
        assert told and ("partial" in told) != is_balanced_whole, m

spread = {4: "scores-of-other-ranks-slots-dropped", 12: "experts-divided-by-own-group", 13: "experts-averaged-over-replicas"}
if ep == 1:
    why = {m["name"]: m["why"] for m in proof["not_applicable"]}
    assert all(why[name] == "no experts are spread over several ranks (ep)" for name in spread.values()), why
    sys.exit()
for n, name in spread.items():
    [m] = numbered(n, False)
    assert m["name"] == name and m["killed_by"] == "number", m
# 4: all replicas agree, and miss what went through experts on other ranks.
[dropped] = numbered(4, False)
assert dropped["param"].endswith(".moe.router"), dropped
assert bool(numbered(4, True)) == all_derived, numbered(4, True)
for m in numbered(4, True) + [dropped]:
    left_out = [cause for cause in causes_of(m) if cause["axes"] and "left out" in cause["text"]]
    assert m["killed_by"] == "number" and left_out and {cause["kind"] for cause in left_out} == {"unknown"}, m
# 12 and 13: exactly ep times.
for m in numbered(12, False) + numbered(13, False):
    assert ".moe." in m["param"] and m["param"].split(".")[-1] in ("gate", "up", "down"), m
    assert m["expected_ratio"] == ep and abs(m["ratio"] / ep - 1) < 1e-9, m
    own = [cause for cause in causes_of(m) if cause["axes"] == "ep"]
    assert own and all(cause["kind"] == "doubled" and abs(cause["factor"] / ep - 1) < 1e-6 for cause in own), m
Y

# Views: whether there is a tp, ranks of ep, recipe, KEY=VALUE...
views=("tp 4 moe-tp2ep" "tp 2 moe-tp2ep views.sparse=efsdp=2+ep=2+etp=1" "tp 2 moe-dp2ep" "tp 1 moe-tp" "tp 3 moe-empty" "tp 2 moe-balance"
  "tp 3 moe-tp2ep mesh=dp_shard=1+tp=3 views.sparse=efsdp=1+ep=3+etp=1"
  "tp 2 moe-dp2ep mesh=dp_shard=4+tp=2 views.sparse=efsdp=2+ep=2+etp=2"
  "tp 2 moe-tp2ep mesh=dp_replicate=2+dp_shard=1+tp=2 views.sparse=dp_replicate=2+efsdp=1+ep=2+etp=1")
cases=()
for before in true false; do
  for gate in summed_gate=true sequence_parallel=true sequence_parallel=false; do
    for view in "${views[@]}"; do cases+=("$view model.score_before_experts=$before model.$gate"); done
  done
  for view in "- 4 moe-cp" "- 3 moe-tp2ep mesh=dp_shard=3 views.sparse=efsdp=1+ep=3+etp=1"; do
    cases+=("$view model.score_before_experts=$before")
  done
done
draw_cases "mistakes of experts" 1 "${cases[@]}"
for case in "${drawn[@]}" "tp 4 moe-16"; do
  read -r tp ep recipe arguments <<<"$case"
  [ "$recipe" = moe-16 ] && mutants=--mutate=1 || mutants=--mutate
  check_recipe "$recipe" $arguments model.layers=1 "$mutants"
  case $case in *moe-balance*sequence_parallel=false*) balanced=whole ;; *) balanced= ;; esac
  python3 judge.py "$tp" "$ep" "$balanced" || fail "$case"
done

# ---- the example program ----
"$(dirname "$addend")/example_router" >out 2>err || { cat out err >&2; fail "the example"; }
[ "$(grep -c ' train/examples/router.c:[0-9]*: ' out)" -eq 3 ] || { cat out >&2; fail "three layers are refused where they are written"; }
says out train/examples/router.c tp
[ "$(grep -c 'repaired: .*: right; ' out)" -eq 3 ] || { cat out >&2; fail "three layers are repaired"; }
says out repaired
says_nothing_of out WRONG
echo "router: all hold"
