/* Asks whether the parts of a sharded parameter are really different parts: a type S(d) on an axis may be declared of what
 * are replicas. */
#ifndef DIFF_SHARDS_H
#define DIFF_SHARDS_H
#include "solve/assumed.h"

/* What ranks along axes of type S have in common: their values (addend.shards) and addends, element by element as they
 * lie in memory. */
typedef struct ad_shards {
  uint32_t equal;        /* axes along which all ranks have equal values: many, and not all one number */
  uint32_t alike, apart; /* those of `equal` along which all addends are the same, or some differ clearly */
  int stepped;           /* 1: an optimizer step has changed the values of every rank, and they are still equal */
} ad_shards;

/* Compares the parameter's ranks along those of `axes` that are of type S and have more than one rank. */
ad_status ad_shards_compare(const ad_parts *parts, uint32_t axes, ad_shards *out) AD_CHECKED;

#endif
