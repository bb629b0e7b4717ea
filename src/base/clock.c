/* The one reading of the monotonic clock. */
#include "base/clock.h"

#include <time.h>

int64_t ad_now(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}
