/* The clock that durations are measured by. */
#ifndef BASE_CLOCK_H
#define BASE_CLOCK_H
#include <stdint.h>
#include "base/internal.h"

/* Nanoseconds of CLOCK_MONOTONIC, which all processes of a machine share. */
AD_INTERNAL int64_t ad_now(void);
/* What has to be added to ad_now for nanoseconds since 1970 of the wall clock, which machines keep in step. */
AD_INTERNAL int64_t ad_wall_clock_ahead(void);
static inline double ad_seconds(void) { return 1e-9 * (double)ad_now(); }

#endif
