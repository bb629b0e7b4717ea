/* What one parameter's sum taught about the next ones': counts that were found are tried first, and as fits take long
 * where addends are many, only so much work is put into them; what is left is held against what was found. */
#ifndef DIFF_KNOWN_H
#define DIFF_KNOWN_H
#include "diff/explain.h"

enum { AD_KNOWN_COUNTS = 16, AD_KNOWN_MANY = 64 }; /* of at most so many addends every part is fitted */

typedef struct ad_known_counts {
  double *counts; /* [rank][microbatch]; NaN: no addend of the part's */
  int64_t holder;
} ad_known_counts;

struct ad_known {
  const ad_dump *dump;
  ad_known_counts list[AD_KNOWN_COUNTS]; /* the last that held comes first */
  size_t count;
  int64_t *rank_at;    /* [place, row-major] */
  double fitted, weak; /* multiplications that fits took, of parts that fail and of those that hold */
};

ad_status ad_known_create(const ad_dump *dump, ad_known *out) AD_CHECKED;
void ad_known_destroy(ad_known *known);
/* Whether there is work left for a fit of n addends over `rows` elements, which is counted in `spent` then. */
int ad_known_affords(double *spent, size_t n, size_t rows);
/* Explains a part that has many addends by counts that were found: the same ones, or, as each rank's sum may have its
 * own, those of the same places beside its holder. */
ad_status ad_known_try(ad_known *known, const ad_parts *parts, ad_judged *judged) AD_CHECKED;
ad_status ad_known_add(ad_known *known, const ad_parts *parts, const ad_judged *judged) AD_CHECKED;

#endif
