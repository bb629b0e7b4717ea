/* Tests by its bits whether a sum was formed in the dtype that the job promises. All sums that additions in a dtype can
 * give lie in an interval around the exact one, and a sum that is stored in a narrower dtype was rounded once more, to a
 * number beside the interval or in it. A sum outside was formed in a narrower dtype, whatever the order of the
 * additions and however the last rounding was done. */
#ifndef DIFF_FORMED_H
#define DIFF_FORMED_H
#include "read/part.h"

typedef enum ad_formed {
  AD_FORMED_UNTESTED,    /* the bits do not tell; `why` says for which reason */
  AD_FORMED_AS_PROMISED, /* enough elements would show a narrower sum, and none or few of them do */
  AD_FORMED_NARROWER,    /* addends, partial sums or their result were rounded to a narrower dtype than promised */
  /* the bits are those of a sum in the promised dtype whose result alone was rounded to a narrower one (`dtype`), to
   * nearest, and then stored in a wider one; enough elements would show another sum */
  AD_FORMED_THEN_ROUNDED
} ad_formed;

typedef struct ad_formed_found {
  ad_formed formed;
  int64_t tested;  /* elements that a narrower sum may change visibly */
  int64_t outside; /* elements that no sum in the promised dtype gives */
  /* AD_FORMED_NARROWER: the narrowest dtype that there is, if the sum is stored in a wider one and all its values are
   * numbers of it; else 0: what was rounded, the values do not show */
  ad_dtype dtype;
  int before;      /* AD_FORMED_NARROWER with a dtype: 1: no rounding of the result to it gives the sum */
  const char *why; /* a clause, such as "there is one addend"; NULL unless it is untested */
} ad_formed_found;

/* Tests a parameter whose sums are all right: each the sum of its members' addends with the expected counts and factor.
 * `promised` is the dtype in which the job says that the sums are formed. Only the first AD_ROWS values of `parts`'
 * scratch arrays are used. AD_MEMORY is the only error. */
ad_status ad_formed_find(const ad_parts *parts, ad_dtype promised, ad_formed_found *out) AD_CHECKED;

#endif
