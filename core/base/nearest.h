/* Compares names by the number of typing errors between them. */
#ifndef BASE_NEAREST_H
#define BASE_NEAREST_H
#include "addend/status.h"
#include "base/internal.h"

enum { AD_NAME_COMPARED_MAX = 32 };

/* Returns how many letters must be inserted, removed, changed or swapped with their neighbour to make one name of the
 * other (optimal string alignment); AD_NAME_COMPARED_MAX if a name is longer than that. */
AD_INTERNAL int ad_name_distance(const char *a, const char *b);
/* Returns the largest distance at which a name counts as a typing error for `unknown`. */
AD_INTERNAL int ad_name_distance_max(const char *unknown);

#endif
