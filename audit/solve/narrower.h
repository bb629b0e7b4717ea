/* Tests whether a part of a sum was rounded to a narrower dtype than the dump's. Rounding explains small differences that
 * a few elements also give to a factor on the addends: which of the two it was is told by bits. */
#ifndef DIFF_NARROWER_H
#define DIFF_NARROWER_H
#include "solve/combination.h"

/* A part as a combination of addends that was rounded to a narrower dtype. */
typedef struct ad_narrower {
  ad_dtype dtype; /* the finest dtype whose rounding is enough; 0: there is none */
  double share;   /* the error that rounding to it allows, as a share of the addends' absolute sum */
  ad_fitness fitness;
} ad_narrower;

/* Finds the finest dtype, narrower than those of the dump, in which the counts give the part. `bits`: as many bits must
 * agree in `spare` elements; 0: in any. */
ad_status ad_narrower_find(const ad_parts *parts, const ad_part *part, const double *counts, size_t spare, double bits,
                           ad_narrower *out) AD_CHECKED;
/* Returns by how many bits each of `spare` elements agrees better with a combination that holds in the dump's own dtypes
 * than with one that was rounded to the narrower dtype. */
double ad_narrower_bits(const ad_parts *parts, const ad_part *part, const ad_narrower *narrower, size_t spare);
/* Returns 1 if all values of the part are numbers of a dtype narrower than their own, although the combination of addends
 * is none: then the part was rounded to it, whatever else happened. Only the part's first AD_ROWS elements are read. */
int ad_narrower_is_shown(const ad_parts *parts, const ad_part *part, const double *counts);

#endif
