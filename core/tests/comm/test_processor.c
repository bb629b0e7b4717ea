/* Tests that ranks may work together only on processor architectures on which the tests of comm have run; a single
 * process may run on any. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>
#include "addend/comm.h"
#include "comm/processor.h"
#include "says.h"

static void ranks_on_a_processor_that_was_tried(void **state) {
  assert_int_equal(ad_processor_check("x86_64", 1), AD_OK);
  assert_int_equal(ad_processor_check("x86_64", 512), AD_OK);
  assert_int_equal(ad_processor_check("x86_64", INT64_MAX), AD_OK);
}

#ifndef AD_UNTRIED_COMM
#define refused(kind, ranks, ...) \
  (assert_int_equal(ad_processor_check((kind), (ranks)), AD_SYSTEM), assert_says("addend diff", __VA_ARGS__))

static void ranks_on_another_are_refused(void **state) {
  refused("aarch64", 2, "2 ranks", "aarch64");
  refused("riscv64", INT64_MAX, "riscv64");
}

static void one_process_works_on_any(void **state) {
  assert_int_equal(ad_processor_check("aarch64", 1), AD_OK);
  assert_int_equal(ad_processor_check("another processor", 1), AD_OK);
}

/* On a processor that is refused (tests/install/test_aarch64.sh) ad_launch refuses two ranks. */
static void launching_asks(void **state) {
  ad_launch_result result = {.size = sizeof result};
  char program[] = "/bin/true", *words[] = {program, NULL};
  ad_launch_options options = {.size = sizeof options, .ranks = 1, .argv = words};
  if (ad_launch(&options, &result) != AD_OK) fail_msg("%s", ad_last_error());
  if (ad_processor_check(ad_processor_kind(), 2) == AD_OK) return;
  options.ranks = 2;
  assert_int_equal(ad_launch(&options, &result), AD_SYSTEM);
  assert_says("2");
}
#endif

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(ranks_on_a_processor_that_was_tried),
#ifndef AD_UNTRIED_COMM
      cmocka_unit_test(ranks_on_another_are_refused),
      cmocka_unit_test(one_process_works_on_any),
      cmocka_unit_test(launching_asks),
#endif
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
