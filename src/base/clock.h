/* The clock that durations are measured by. */
#ifndef BASE_CLOCK_H
#define BASE_CLOCK_H
#include <stdint.h>

/* Nanoseconds of CLOCK_MONOTONIC, which all processes of a machine share. */
int64_t ad_now(void);
static inline double ad_seconds(void) { return 1e-9 * (double)ad_now(); }

#endif
