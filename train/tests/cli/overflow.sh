#!/usr/bin/env bash
# Tests overflow in f16: a check whose steps all overflow shows nothing and says which loss scale would do; a check in
# which some steps overflow says which, and judges the others; an overflow in a transfer between modules is named, in a
# training as in a check.
#   overflow.sh ADDEND SOURCE
set -eu
addend=$1 source=$2
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
cd "$work"
fail() { echo "FAILED: $*" >&2; exit 1; }
. "$source/tests/support/says.sh"
recipe=$source/recipes/hsdp-f16.yaml

refused() { # arguments: scale that overflows, options; exit status 2, nothing on standard output, one sentence
  local status=0
  "$addend" check "$recipe" --set precision.loss_scale="$1" "${@:2}" >out 2>err || status=$?
  [ $status -eq 2 ] || { cat out err >&2; fail "$*: exit $status, not 2"; }
  [ ! -s out ] || { cat out >&2; fail "$*: nothing was checked, yet it prints"; }
  says err f16 "2^$1" precision.loss_scale embedding.weight
}
holding() { sed -n 's/.*precision\.loss_scale[^0-9-]*\(-\{0,1\}[0-9]\{1,\}\).*/\1/p' err; } # the scale that the message advises

document() { # checks the document: its numbers are finite or null, whatever happened in the steps
  ! grep -q -i -e 'nan' -e 'infinity' "$1" || fail "$1 has what is no number"
  python3 -c "
import json, sys
proof = json.load(open('$1'))
$2"
}

# ---- every step overflows ----
refused 24 --steps 1
scale=$(holding)
[ "$scale" -gt 10 ] && [ "$scale" -lt 24 ] || { cat err >&2; fail "a scale that holds"; }
"$addend" check "$recipe" --set precision.loss_scale="$scale" --steps 1 >out || { cat out >&2; fail "2^$scale does not hold"; }
refused $((scale + 1)) --steps 1
[ "$(holding)" = "$scale" ] || fail "from 2^24 and from just above the same scale"
for more in --json --mutate=1 "--dtype recipe" "--dtype recipe --json"; do
  refused 24 $more --steps 2
  [ "$(holding)" -le "$scale" ] || fail "what holds in two steps holds in one"
done

# ---- some steps overflow ----
"$addend" check "$recipe" --set precision.loss_scale=$((scale + 2)) --steps 5 --json >proof.json || fail "two of five overflow"
document proof.json "
own = proof['own_dtypes']['overflow']
assert own['steps'] >= 2 and own['scale'] == $scale + 2 and own['param'], own
assert own['checked_at'] <= $scale and proof['holds'] is True, own
assert 0 <= proof['own_dtypes']['worst_share_of_bound'] <= 1 and proof['own_dtypes']['worst_cosine'] > 0.9, proof['own_dtypes']
assert 'overflow' not in proof['summary'], 'f64 has no scale'"
skipped=$(python3 -c 'import json; print(json.load(open("proof.json"))["own_dtypes"]["overflow"]["steps"])')
"$addend" check "$recipe" --set precision.loss_scale=$((scale + 2)) --steps 5 >out || fail "in words"
says out "$skipped of" "5 steps" "2^$((scale + 2))" embedding.weight "2^$scale"
"$addend" check "$recipe" --dtype recipe --set precision.loss_scale=$((scale + 2)) --steps 5 --json >proof.json 2>err || fail "--dtype recipe"
document proof.json "assert proof['summary']['overflow']['steps'] >= 2, proof['summary']"
"$addend" check "$recipe" --set precision.loss_scale="$scale" --json >proof.json || fail "none overflows"
document proof.json "assert 'overflow' not in proof['own_dtypes'], proof['own_dtypes']"

# Mutants are tried in steps that do not overflow.
"$addend" check "$recipe" --set precision.loss_scale=$((scale + 2)) --steps 5 --mutate=1 --json >proof.json || fail "mutants beside an overflow"
document proof.json "
caught = {one['name']: one['killed_by'] for one in proof['mutants']}
assert proof['survivors'] == 0 and caught['overflow-per-rank'] in ('protocol', 'number'), caught"

# ---- only a later step overflows ----
wild=(--set train.lr=3 --set train.warmup=0 --set train.clip=0)
"$addend" check "$recipe" --dtype recipe "${wild[@]}" --set precision.loss_scale=24 --steps 1 >out 2>err && fail "2^24 overflows"
scale=$(holding)
"$addend" check "$recipe" --dtype recipe "${wild[@]}" --set precision.loss_scale="$scale" --steps 4 --json >proof.json 2>err || { cat err >&2; fail "the first step holds"; }
document proof.json "
later = proof['summary']['overflow']
assert 1 <= later['steps'] < 4 and later['scale'] == $scale and proof['holds'] is True, later"

# ---- overflow in a transfer between modules: no loss scale helps a value; an unscaled gradient is named too ----
said() { # arguments: facts with | between them, command and options; it must exit with 3 and one message
  local status=0
  "$addend" "${@:2}" >out 2>err || status=$?
  [ $status -eq 3 ] || { cat out err >&2; fail "${*:2}: exit $status, not 3"; }
  says_all err "f16|$1"
  [ "$(grep -c "^addend: " err)" -eq 1 ] || { cat err >&2; fail "${*:2}: it says what follows from it"; }
}
values='blocks.0.attn.wq.V|blocks|adv|1e+05'
gradients='blocks.0.attn.wq.V|adv|blocks'
large_values=(--set 'comm_dtype={weights: f16}' --set train.lr=1e5 --set train.warmup=0 --set train.clip=0)
large_gradients=(--set 'comm_dtype={gradients: f16}' --set losses.adversarial.coefficient=1e12 --set train.clip=0)
for where in pools-10 pools-1 "pools-1 --set placement=colocated"; do
  set -- $where
  pools=$source/recipes/$1.yaml; shift
  said "step 1|$values" check "$pools" "$@" "${large_values[@]}"
  said "step 0|$gradients" check "$pools" "$@" "${large_gradients[@]}"
  said "$values" train "$pools" "$@" --overwrite --out run "${large_values[@]}"
  said "step 0|$gradients" train "$pools" "$@" --overwrite --out run "${large_gradients[@]}"
done
said "step 1|$values" check "$source/recipes/pools-10.yaml" "${large_values[@]}" --json
[ ! -s out ] || fail "no document of a proof that was not finished"
# For a gradient that carries the loss scale, the message gives the scale.
scaled=(--set 'comm_dtype={gradients: f16}' --set 'precision={grad: f16, loss_scale: 24}' --set losses.adversarial.coefficient=1e4 --set train.clip=0)
recipe=$source/recipes/pools-10.yaml
"$addend" check "$recipe" "${scaled[@]}" --steps 1 >out 2>err && fail "what crosses overflows"
says err f16 "2^24" blocks.0.attn.wq.V precision.loss_scale

"$addend" check "$recipe" --dtype recipe "${scaled[@]}" --set precision.loss_scale="$(holding)" --steps 1 --json >proof.json || true
document proof.json "assert 'overflow' not in proof['summary'] and proof['norm']['dist'] is not None, proof['summary']"
echo "overflow: all hold"
