/* Judges parts of dumped sums: is a part the combination of addends that its types require? If not, which counts of the
 * addends give the part? */
#ifndef DIFF_EXPLAIN_H
#define DIFF_EXPLAIN_H
#include "solve/combination.h"
#include "solve/patterns.h"

/* A set of sets of axes: bit number `axes` is 1 if the set `axes` (a bit set) is in it. */
typedef struct ad_sets {
  uint64_t bits[AD_DUMP_SETS / 64];
} ad_sets;
static inline int ad_sets_has(const ad_sets *sets, uint32_t axes) { return sets->bits[axes / 64] >> axes % 64 & 1; }

enum { AD_OTHERS = 8 };
typedef struct ad_explanation {
  double *counts, *errors; /* for each addend of the part's members: its count over the expected factor, and the count's
                              standard error; infinite: only this count's sum with others is known */
  int explains;            /* 1: the counts give the part, within rounding */
  /* the counts give the part only if it was rounded to this dtype; 0: no such rounding is needed */
  ad_dtype rounded;
  ad_sets groups;     /* the part is instead a sum over any of these sets of axes; empty: over none */
  int by_group;       /* 1: only `groups` explains the part; counts are those of its first set */
  uint32_t untried;   /* sharded axes over which no sum could be tried: the samples of their ranks are other elements */
  double *others;     /* `other_count` further lists of counts that give the part too, the simplest first */
  size_t other_count; /* at most AD_OTHERS */
  int more;           /* 1: more than AD_OTHERS lists of counts give the part */
  /* 1: no counts were fitted, since earlier parts used up the allowed work, and nothing else explains the part */
  int unfitted;
  double left; /* if no counts explain the part: the root mean square of the part minus the expected combination,
                  relative to the larger of the two root mean squares */
  ad_found_patterns patterns; /* other patterns that explain the part, if no counts do */
  ad_fitness fitness; /* how well the counts give the part; without counts: how well the expected combination does */
} ad_explanation;

typedef struct ad_known ad_known; /* known.h */
typedef struct ad_judged {
  ad_part *part;
  int holds;          /* 1: the part is the expected combination of addends */
  ad_fitness fitness; /* how well the expected combination gives the part */
  int apart;          /* 1: the part is right, but differs by more than rounding from a replica that is right too */
  ad_explanation why; /* the counts that explain the part; set if the part is wrong */
} ad_judged;

/* Sets out[c] to the expected count of addend c of `members`: 1 or, if ranks divided their losses by different
 * numbers, the addend's divisor over the mean divisor. */
void ad_expected_counts(const ad_parts *parts, const ad_members *members, double *out);
/* Judges every part of the sum and writes the results to `list`, which has parts->count entries; ad_judged_clear
 * releases them. `known` has the counts that explained earlier parameters of the dump. */
ad_status ad_judge_parts(ad_parts *parts, ad_known *known, ad_judged *list) AD_CHECKED;
void ad_judged_clear(const ad_parts *parts, ad_judged *list);
/* Returns 1 if rank `rank` has the same position as rank `holder` on all of `axes`. */
static inline int ad_stands_with(const ad_dump *dump, int64_t rank, int64_t holder, uint32_t axes) {
  for (int axis = 0; axis < dump->mesh.count; axis++)
    if (axes >> axis & 1 && dump->position[rank][axis] != dump->position[holder][axis]) return 0;
  return 1;
}
uint32_t ad_untried_axes(const ad_parts *parts,
                         const ad_judged *list); /* returns the union of `untried` over unexplained parts */

#endif
