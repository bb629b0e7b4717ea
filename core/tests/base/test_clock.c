/* Tests the two clocks (wall time and time since an arbitrary start), and the measured offset between them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>
#include <cmocka.h>
#include "base/clock.h"

static void what_is_added_makes_the_time_of_day(void **state) {
  enum { SECONDS = 60 }; /* most time between the two readings, on a busy machine */
  int64_t wall = (ad_now() + ad_wall_clock_ahead()) / 1000000000;
  assert_true(llabs((long long)time(NULL) - wall) <= SECONDS);
}

static void it_is_the_same_at_each_reading(void **state) {
  int64_t first = ad_wall_clock_ahead();
  for (int i = 0; i < 100; i++) assert_true(llabs(ad_wall_clock_ahead() - first) < 1000000000);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(what_is_added_makes_the_time_of_day),
                                     cmocka_unit_test(it_is_the_same_at_each_reading)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
