/* Draws some of a test's cases by a seed. */
#include "draw.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/random.h"

static const char variable[] = "ADDEND_TEST_SEED";

static void choose_seed(void) {
  char text[32] = "";
  if (getenv(variable)) return;
  FILE *seed = popen("bash '" AD_TEST_SOURCE "/tests/support/seed.sh'", "r");
  if (!seed || !fgets(text, sizeof text, seed)) {
    fputs("tests/support/seed.sh gives no seed\n", stderr);
    exit(1);
  }
  pclose(seed);
  text[strcspn(text, "\n")] = 0;
  setenv(variable, text, 1);
}

// With a sanitizer a test takes a half of the cases, since it is several times as slow.
#if defined(AD_SANITIZED)
enum { SHARE = 2 };
#else
enum { SHARE = 1 };
#endif

draw draw_cases(const char *what, int count, int always, int taken) {
  choose_seed();
  taken = always + (taken - always + SHARE - 1) / SHARE;
  const char *seed = getenv(variable);
  draw d = {what, count, always, taken, strtoull(seed, NULL, 10)};
  if (!strcmp(seed, "all")) d.always = d.taken = count;
  printf("%s: %d of %d are taken, %s=%s\n", what, d.taken, count, variable, seed);
  fflush(stdout);
  return d;
}

static uint64_t lot(const draw *d, int number) {
  return ad_random_bits(d->seed, ad_random_stream(d->what), (uint64_t)number);
}

// A case is drawn if its lot is among the smallest.
int is_drawn(const draw *d, int number) {
  int smaller = 0;
  for (int i = d->always; i < d->count; i++) smaller += lot(d, i) < lot(d, number);
  return number < d->always || smaller < d->taken - d->always;
}
