/* What a part that is not what its types say holds instead: counts of its addends that give it. */
#ifndef DIFF_EXPLAIN_H
#define DIFF_EXPLAIN_H
#include "diff/combination.h"

/* Sets of axes: a bit for each. */
typedef struct ad_sets {
  uint64_t bits[AD_DUMP_SETS / 64];
} ad_sets;
static inline int ad_sets_has(const ad_sets *sets, uint32_t axes) { return sets->bits[axes / 64] >> axes % 64 & 1; }

enum { AD_OTHERS = 8 };
typedef struct ad_explanation {
  double *counts, *errors; /* one for each addend of the part's members, relative to the expected factor; errors: of the
                              fit, infinite where only sums of counts are known */
  int explains;            /* the counts give the sum, within rounding */
  ad_dtype rounded;        /* explains only if the sum was rounded as in this dtype; 0: need not be assumed */
  ad_sets groups;          /* the sum is one over each of these sets of axes instead; none: of its own members */
  int by_group;            /* nothing but these explains it, and counts are those of the first */
  uint32_t untried;        /* cut axes that no sample can tell a sum over: ranks along them hold other elements */
  double *others;     /* other counts that give it too: `other_count` times as many as counts, the simplest first */
  size_t other_count; /* at most AD_OTHERS */
  int more;           /* there are still others */
  int unfitted;       /* nothing that is known explains it, and its counts were not fitted: too many parts were */
  ad_fitness fitness; /* of the counts, or of the expected combination where there are none */
} ad_explanation;

typedef struct ad_known ad_known; /* known.h */
typedef struct ad_judged {
  ad_part *part;
  int holds;          /* the expected combination */
  ad_fitness fitness; /* of it */
  int apart;          /* it holds, and differs by more than rounding from a copy that holds as well */
  ad_explanation why; /* where it does not hold */
} ad_judged;

/* The weights that are expected: 1, or, where the ranks' divisors differ, each one's share. `n` of them. */
void ad_expected_counts(const ad_parts *parts, const ad_members *members, double *out);
/* Judges every part; `list` has parts->count. `known`: of the dump's parameters so far. Explanations are for
 * ad_judged_clear. */

ad_status ad_judge_parts(ad_parts *parts, ad_known *known, ad_judged *list) AD_CHECKED;
void ad_judged_clear(const ad_parts *parts, ad_judged *list);
/* Whether this rank's place is the holder's on all of `axes`. */
static inline int ad_stands_with(const ad_dump *dump, int64_t rank, int64_t holder, uint32_t axes) {
  for (int axis = 0; axis < dump->mesh.count; axis++)
    if (axes >> axis & 1 && dump->position[rank][axis] != dump->position[holder][axis]) return 0;
  return 1;
}
uint32_t ad_untried_axes(const ad_parts *parts, const ad_judged *list); /* of all parts that nothing explains */

#endif
