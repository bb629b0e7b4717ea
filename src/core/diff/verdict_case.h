/* Finding a verdict: one parameter's judged parts, and what the files that look for a pattern in them share. A try_
 * returns 1 where it found its pattern and said so. */
#ifndef DIFF_VERDICT_CASE_H
#define DIFF_VERDICT_CASE_H
#include "diff/verdict.h"

typedef struct ad_case {
  const ad_parts *parts;
  const ad_dump *dump;
  const ad_judged *list;
  size_t count;
  const ad_judged *first; /* wrong part; NULL: none */
  ad_verdict *out;
} ad_case;

const ad_members *ad_case_members(const ad_case *c, const ad_judged *judged);
int ad_case_some_hold(const ad_case *c);
int ad_counts_close(double a, double b, double error); /* error: of the fit */
void ad_case_say(ad_case *c, ad_verdict_kind kind, uint32_t axes, double factor);
/* Adds a cause that fits, unless it is there. `place`: "" or as of ad_cause_document. */
void ad_case_add(ad_case *c, ad_verdict_kind kind, uint32_t axes, double factor, const char *place, const char *format,
                 ...) AD_PRINTF(6, 7);
void ad_case_add_all(ad_case *c, const json_t *causes); /* the same of documents of causes */
/* Makes the verdict of those that were added, if there are any: kind and axes where they agree, and their texts with
 * `fact`, what is true whichever it is ("": nothing), behind. 0: there are none. */
int ad_case_settle(ad_case *c, double factor, const char *fact);
void ad_case_mark_holders(const ad_case *c, int wrong); /* wrong: only those of wrong parts */
const char *ad_case_axes(const ad_case *c, uint32_t axes, char *buffer, size_t size);
const char *ad_case_ranks(const ad_case *c, char *buffer, size_t size); /* those that are marked */

/* verdict_counts.c: of the first wrong part; always says something. */
void ad_case_say_counts(ad_case *c);

/* verdict_places.c */
int ad_case_try_local(ad_case *c);   /* not summed over some axes */
int ad_case_try_group(ad_case *c);   /* summed over other axes */
void ad_case_add_groups(ad_case *c); /* the same, as causes alone */
int ad_case_try_some(ad_case *c);    /* each has the addends of some ranks, and not all of the same */

/* verdict_copies.c */
int ad_case_copies_differ(const ad_case *c); /* parts of the same elements with other bits */
void ad_case_say_replicas(ad_case *c);
int ad_case_try_lacking(ad_case *c); /* of a sum of which each rank has a copy some ranks have none */

#endif
