/* The clocks: durations are measured with CLOCK_MONOTONIC, which all processes of a machine share. */
#ifndef BASE_CLOCK_H
#define BASE_CLOCK_H
#include <stdint.h>
#include "base/internal.h"

/* Returns the present time of CLOCK_MONOTONIC in nanoseconds. */
AD_INTERNAL int64_t ad_now(void);
/* Returns how many nanoseconds the wall clock (time since 1970, on which different machines agree) is ahead of
 * ad_now. */
AD_INTERNAL int64_t ad_wall_clock_ahead(void);
static inline double ad_seconds(void) { return 1e-9 * (double)ad_now(); }

#endif
