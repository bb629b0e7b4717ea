#!/usr/bin/env bash
# Tests that a kind is added by its row in audit/say/causes.h and its page alone: a toy kind is then in C's enum and
# records, in the map's words and among the pages of `addend explain`. Without its page nothing is built.
# Usage: toy_cause.sh PROGRAM SOURCE
set -eu
source=$2
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
fail() { echo "FAILED: $*" >&2; exit 1; }

mkdir -p "$work/say"
sed 's/^  X(UNKNOWN,/  X(TOY, "toy", "a toy", CANNOT_TELL, AVERAGED, 0) \\\n&/' "$source/audit/say/causes.h" >"$work/say/causes.h"
[ "$(diff "$source/audit/say/causes.h" "$work/say/causes.h" | grep -c '^[<>]')" -eq 1 ] || fail "one row more"
cp -R "$source/audit/docs/explain" "$work/explain"

make_lists() {
  cmake -DTABLE="$work/say/causes.h" -DPAGES="$work/explain" -DWORDS="$work/causes.js" -DGUIDE="$work/guide_pages.c" \
    -P "$source/cmake/causes.cmake" 2>"$work/err"
}
! make_lists || fail "a kind without a page"
grep -qF toy.md "$work/err" || fail "the message names the page"
printf '# toy: a kind of a test\n' >"$work/explain/toy.md"
make_lists || { cat "$work/err" >&2; fail "a kind with its page"; }
grep -qx "  toy: 'a toy'," "$work/causes.js" || fail "the map has the words"

cat >"$work/toy.c" <<'C'
#include <stdio.h>
#include <string.h>
#include "addend/diff.h"
#include "say/cause.h"
#include "say/guide.h"

int main(void) {
  const ad_cause_row *row = ad_cause_row_of(AD_CAUSE_TOY);
  const ad_guide_page *page = ad_guide_pages;
  while (page->name && strcmp(page->name, row->name)) page++;
  printf("%s %d %d %d %d: %s", row->name, ad_cause_named("toy") == AD_CAUSE_TOY, row->answer == AD_ANSWER_CANNOT_TELL,
         row->checked == AD_CAUSE_AVERAGED, ad_kind_is_counted("toy"), page->name ? page->text : "no page");
  return 0;
}
C
# The folder of the changed table precedes that of the table itself.
${CC:-cc} -std=gnu11 -Wall -Werror -I"$work" -I"$source/audit" -I"$source/audit/include" -I"$source/core" -I"$source/core/include" "$work/toy.c" \
  "$work/guide_pages.c" "$source/audit/say/cause.c" "$source/core/base/text.c" -ljansson -lm -o "$work/toy"
[ "$("$work/toy")" = "toy 1 1 1 0: # toy: a kind of a test" ] || { "$work/toy" >&2; fail "the row in C"; }

# Two rows on one line would be one row of the map, and two of C.
sed -i -e '/^  X(TOY,/{N;s/ *\\\n *X/ X/}' "$work/say/causes.h"
! make_lists || fail "two rows on one line"
grep -q TOY "$work/err" || fail "the message has the row"
echo "toy_cause: all hold"
