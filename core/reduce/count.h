/* Functions of a count that are not public, for other folders of the library. */
#ifndef REDUCE_COUNT_H
#define REDUCE_COUNT_H
#include "addend/reduce.h"
#include "base/internal.h"

/* returns 1 if the counts were posted but not yet waited for, else 0 */
AD_INTERNAL int ad_count_is_in_flight(const ad_count *count);

/* Argument of the injection point AD_INJECT_DIVISOR: the number by which a loss is about to be divided. */
typedef struct ad_divisor_passing {
  const ad_count *count;
  double total; /* the count's sum over all microbatches */
} ad_divisor_passing;

/* Returns the counts of the n microbatches: an array [n] that the count owns. Until ad_count_wait has returned the
 * array has the layout given to ad_count_create; after that, every axis that was P is R. */
AD_INTERNAL const ad_array *ad_count_array(const ad_count *count);

#endif
