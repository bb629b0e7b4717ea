/* Reads the clocks. */
#include "base/clock.h"

#include <time.h>

static int64_t read_clock(clockid_t clock) {
  struct timespec now;
  clock_gettime(clock, &now);
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

int64_t ad_now(void) { return read_clock(CLOCK_MONOTONIC); }

/* The two clocks cannot be read at the same instant. Of 16 attempts, the result of the quickest is returned. */
int64_t ad_wall_clock_ahead(void) {
  int64_t ahead = 0, least = INT64_MAX;
  for (int attempt = 0; attempt < 16; attempt++) {
    int64_t before = ad_now(), wall = read_clock(CLOCK_REALTIME), passed = ad_now() - before;
    if (passed >= least) continue;
    least = passed;
    ahead = wall - before - passed / 2;
  }
  return ahead;
}
