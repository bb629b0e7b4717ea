/* Compares replicas: their values of a parameter before the step, and whether each rank that should have a sum has
 * one. */
#ifndef DIFF_REPLICAS_H
#define DIFF_REPLICAS_H
#include "read/part.h"

/* Sets *axes to the axes along which the checksums of the parameter's values differ (addend.values): between ranks
 * whose positions differ on one axis only or, if there are none, between any two ranks; 0 if all values are equal. If
 * `ranks` ([world]) is not NULL, marks in it each rank whose values differ from those of the first rank with the same
 * elements. */
ad_status ad_values_compare(const ad_parts *parts, unsigned char *ranks, uint32_t *axes) AD_CHECKED;
/* Sets ranks[rank] ([world]) to 1 for each rank that has no replica of a sum that should be replicated, to 0 for
 * every other rank, and returns the number of ranks without a replica. It is 0 if the sum is not full on each rank that
 * has it. */
size_t ad_replicas_missing(const ad_parts *parts, unsigned char *ranks);

#endif
