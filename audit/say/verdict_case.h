/* The search for a verdict on one parameter: the state and the helpers that verdict_*.c share. A function named try_
 * returns 1 if it found its pattern and wrote the verdict. */
#ifndef DIFF_VERDICT_CASE_H
#define DIFF_VERDICT_CASE_H
#include "say/verdict.h"

/* One parameter while its verdict is searched for. */
typedef struct ad_case {
  const ad_parts *parts;
  const ad_dump *dump;
  const ad_judged *list;
  size_t count;
  const ad_judged *first; /* the first wrong part; NULL: all parts are right */
  ad_verdict *out;
} ad_case;

const ad_members *ad_case_members(const ad_case *c, const ad_judged *judged);
/* Returns 1 if some part is right. */
int ad_case_some_hold(const ad_case *c);
/* Sets kind, axes and factor of the verdict. */
void ad_case_report(ad_case *c, ad_cause_kind kind, uint32_t axes, double factor);
/* Appends a possible cause, unless the same cause is listed already. `place` is that of ad_cause_document. */
void ad_case_add(ad_case *c, ad_cause_kind kind, uint32_t axes, double factor, const char *place, const char *format,
                 ...) AD_PRINTF(6, 7);
void ad_case_add_document(ad_case *c, json_t *cause);   /* appends a cause unless an equal one is listed */
void ad_case_add_all(ad_case *c, const json_t *causes); /* appends an array of cause documents */
/* Makes the verdict from the listed causes: kind and axes are set if all causes agree on them, and the text names all
 * causes and ends with `fact`, which is true whichever cause is the real one ("": no fact). Returns 0 if no cause is
 * listed. */
int ad_case_settle(ad_case *c, double factor, const char *fact);
void ad_case_mark_holders(const ad_case *c, int wrong); /* marks ranks that hold parts; `wrong`: of wrong parts only */
const char *ad_case_axes(const ad_case *c, uint32_t axes, char *buffer, size_t size);
const char *ad_case_ranks(const ad_case *c, char *buffer, size_t size); /* prints the ranks that the verdict marks */

/* Writes the verdict that follows from the counts of the first wrong part (verdict_counts.c). It always finds one. */
void ad_case_report_counts(ad_case *c);

/* Patterns that depend on the position of the rank that holds the sum (verdict_places.c). */
int ad_case_try_local(ad_case *c);   /* tries: the sum was not formed over some axes */
int ad_case_try_group(ad_case *c);   /* tries: the sum was formed over other axes than its types say */
void ad_case_add_groups(ad_case *c); /* appends the causes that try_group finds, without writing a verdict */
int ad_case_try_some(ad_case *c); /* tries: each part has only some ranks' addends, other parts those of other ranks */

/* Looks for patterns in sums that no counts give (verdict_patterns.c). */
int ad_case_try_patterns(ad_case *c);

/* Replicas of a sum (verdict_replicas.c). */
int ad_case_replicas_differ(const ad_case *c); /* returns 1 if parts with the same elements have different bits */
void ad_case_report_replicas(ad_case *c);
/* If one replica is right and all others are wrong: appends the cause that the sum was made for one rank alone, prints
 * this rank to `who`, and returns 1. */
int ad_case_add_one_rank(ad_case *c, char *who, size_t size);
/* Reports that the ranks marked in the verdict, `missing` in number, have no replica of a replicated sum. */
void ad_case_report_missing(ad_case *c, size_t missing);

#endif
