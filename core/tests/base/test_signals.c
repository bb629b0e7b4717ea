/* Tests that signals are named as the C library of this machine names them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <signal.h>
#include <string.h>
#include "base/signals.h"

static void every_signal_has_the_c_library_s_name(void **state) {
  for (int number = -1; number <= SIGRTMAX + 1; number++) {
    const char *theirs = number > 0 ? sigabbrev_np(number) : NULL;
    assert_string_equal(ad_signal_name(number), theirs ? theirs : "unknown");
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_signal_has_the_c_library_s_name),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
