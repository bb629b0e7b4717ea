/* A test with too many cases for every run of the suite draws some of them by a seed, which it prints. The seed comes
 * from the commit (tests/support/seed.sh), so that a failing run fails again; ADDEND_TEST_SEED=N in the environment
 * draws others, ADDEND_TEST_SEED=all takes every case.
 *
 *   draw worlds = draw_cases("worlds", 13, 3, 7);
 *   for (int i = 0; i < worlds.count; i++) if (is_drawn(&worlds, i)) ... */
#ifndef TESTS_SUPPORT_DRAW_H
#define TESTS_SUPPORT_DRAW_H
#include <stdint.h>

typedef struct draw {
  const char *what;
  int count, always, taken;
  uint64_t seed;
} draw;

/* Draws `taken` of `count` cases, among them always the first `always`; with a sanitizer half of the others. Prints how
 * many and the seed, which programs that this one starts inherit. */
draw draw_cases(const char *what, int count, int always, int taken);
int is_drawn(const draw *d, int number);

#endif
