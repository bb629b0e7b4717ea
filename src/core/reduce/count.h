/* What the folders above reduce/ know of a count besides its public functions. */
#ifndef REDUCE_COUNT_H
#define REDUCE_COUNT_H
#include "addend/reduce.h"
#include "base/internal.h"

AD_INTERNAL int ad_count_is_under_way(const ad_count *count); /* posted and not waited for */

/* What passes the seam AD_SEAM_DIVISOR: what a loss is about to be divided by. */
typedef struct ad_divisor_passing {
  const ad_count *count;
  double total; /* of its microbatches */
} ad_divisor_passing;

/* The vector [n]: its layout is `local` until the sum was waited for, then R where that was P. Owned by the count. */
AD_INTERNAL const ad_array *ad_count_array(const ad_count *count);

#endif
