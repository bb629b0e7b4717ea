/* How far a name is from the one that was probably meant. */
#ifndef BASE_NEAREST_H
#define BASE_NEAREST_H
#include "addend/status.h"
#include "base/internal.h"

enum { AD_NAME_COMPARED_MAX = 32 };

/* Letters to insert, remove, change or swap with their neighbour (optimal string alignment); AD_NAME_COMPARED_MAX where
 * a name is longer than that. */
AD_INTERNAL int ad_name_distance(const char *a, const char *b);
/* As far as this a name is a slip of the finger. */
AD_INTERNAL int ad_name_distance_max(const char *unknown);

#endif
