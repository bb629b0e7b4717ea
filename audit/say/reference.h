/* The causes of a difference between sums and a reference. */
#ifndef DIFF_REFERENCE_H
#define DIFF_REFERENCE_H
#include "say/cause.h"
#include "solve/compared.h"

/* Returns the causes that fit the comparison, as an array of JSON documents, worded as in `addend check`. It is empty
 * if the sum is right or there is no reference. */
json_t *ad_reference_causes(const ad_parts *parts, const ad_compared *compared);

#endif
