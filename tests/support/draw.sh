# Draws some of a script's cases by ADDEND_TEST_SEED, as tests/support/draw.h says, if they are too many for every run.

# The seed is the commit's, if none is given.
choose_seed() {
  export ADDEND_TEST_SEED=${ADDEND_TEST_SEED:-$(bash "$(dirname -- "${BASH_SOURCE[0]}")/seed.sh")}
}

# draw_cases WHAT TAKEN CASE...: draws TAKEN of the cases into the array `drawn`; prints how many and the seed.
draw_cases() {
  local what=$1 taken=$2 one
  shift 2
  choose_seed
  [ "$ADDEND_TEST_SEED" != all ] || taken=$#
  echo "$what: $taken of $# are taken, ADDEND_TEST_SEED=$ADDEND_TEST_SEED"
  mapfile -t drawn < <(for one in "$@"; do
    echo "$(md5sum <<<"$ADDEND_TEST_SEED $what $one" | cut -c 1-16) $one"
  done | sort | sed -n "1,${taken}s/[^ ]* //p")
}

# take_turns WHAT TAKEN CASE...: like draw_cases, but the cases take turns, in an order drawn once: of ten seeds in a row
# at least one takes each case, and a seed takes TAKEN or one less. Fails if TAKEN is too small for that.
# every=K take_turns ...: in a script that itself is run by every K-th commit alone (script/test).
take_turns() {
  local what=$1 taken=$2 every=${every:-1} one turns
  shift 2
  choose_seed
  turns=$((($# + taken - 1) / taken))
  [ $((turns * every)) -le 10 ] || { echo "$what: $taken of $# would not take each once in ten commits" >&2 && return 1; }
  [ "$ADDEND_TEST_SEED" != all ] || turns=1 every=1
  mapfile -t drawn < <(for one in "$@"; do
    echo "$(md5sum <<<"$what $one" | cut -c 1-16) $one"
  done | sort | awk -v turns=$turns -v turn=$((ADDEND_TEST_SEED / every % turns)) 'NR % turns == turn {sub(/[^ ]* /, ""); print}')
  echo "$what: ${#drawn[@]} of $# are taken, ADDEND_TEST_SEED=$ADDEND_TEST_SEED"
}

# is_drawn CASE: whether the last draw_cases took this case.
is_drawn() {
  local one
  for one in "${drawn[@]}"; do [ "$one" != "$1" ] || return 0; done
  return 1
}
