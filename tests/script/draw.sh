#!/usr/bin/env bash
# Tests script/draw-comments: it draws every comment and every message once, never a string that only looks like one,
# and the same ones by the same seed.
#   draw.sh SOURCE
set -eu
source=$1
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
fail() { echo "FAILED: $*" >&2; exit 1; }
. "$source/tests/support/says.sh"
cat >"$work/a.c" <<'C'
/* The first comment,
 * of two lines. */
static const char *no_comment = "/* a string */ // and another";
int quoted = '"'; /* the second comment, beside code */
// The third comment
// goes on.
int f(void) {
  fprintf(stderr, "three words here %d\n", quoted);
  fprintf(file, "no message of ours");
  ad_log(AD_LOG_WARNING, "two words");
  return ad_fail(AD_INVALID, "%s: is; " "no word"
                             " of two lines", name);
}
C
draw() { python3 "$source/script/draw-comments" "$@" "$work"; }
comments=$(draw 9)
says <(tail -n 1 <<<"$comments") "3 of" 3 "seed 0"
for words in 'a.c:1$' 'of two lines. \*/$' '^static const char' 'a.c:4$' 'a.c:5$' '^// goes on.$' '^int f(void) {$'; do
  grep -q "$words" <<<"$comments" || fail "no '$words': $comments"
done
messages=$(draw 9 --messages)
says <(tail -n 1 <<<"$messages") "2 of" 2 "seed 0"
grep -q 'three words here' <<<"$messages" || fail "$messages"
grep -q ' of two lines", name)' <<<"$messages" || fail "a message is cut off: $messages"
[ "$(draw 2 --seed 5)" = "$(draw 2 --seed 5)" ] || fail "the same seed draws others"
says <(draw 2 --seed 5) "2 of" 3 "seed 5"
echo "draw: all hold"
