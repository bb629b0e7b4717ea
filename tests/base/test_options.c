/* Options whose first field is their size. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>
#include "base/options.h"

typedef struct grown {
  size_t size;
  int first;
  int64_t later; /* a field that an earlier library did not have */
} grown;

static const grown untouched = {7, 8, 9};

static void none_means_all_defaults(void **state) {
  grown own = untouched;
  assert_int_equal(ad_options_take(&own, sizeof own, NULL, "grown"), AD_OK);
  assert_true(own.size == sizeof own && own.first == 0 && own.later == 0);
}

static void what_was_given_is_taken(void **state) {
  grown own = untouched, given = {sizeof given, 3, 4};
  assert_int_equal(ad_options_take(&own, sizeof own, &given, "grown"), AD_OK);
  assert_memory_equal(&own, &given, sizeof own);
}

static void a_shorter_struct_means_defaults_for_the_rest(void **state) {
  grown own = untouched, given = {offsetof(grown, later), 3, 4};
  assert_int_equal(ad_options_take(&own, sizeof own, &given, "grown"), AD_OK);
  assert_true(own.size == sizeof own && own.first == 3 && own.later == 0);
}

static void a_wrong_size_is_refused_and_says_the_right_one(void **state) {
  static const size_t sizes[] = {0, 1, sizeof(size_t) - 1, sizeof(grown) + 1, SIZE_MAX};
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
    grown own = untouched, given = {sizes[i], 3, 4};
    assert_int_equal(ad_options_take(&own, sizeof own, &given, "grown"), AD_INVALID);
    assert_true(own.size == untouched.size && own.first == untouched.first && own.later == untouched.later);
    assert_non_null(strstr(ad_last_error(), "set it to sizeof(grown)"));
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(none_means_all_defaults),
      cmocka_unit_test(what_was_given_is_taken),
      cmocka_unit_test(a_shorter_struct_means_defaults_for_the_rest),
      cmocka_unit_test(a_wrong_size_is_refused_and_says_the_right_one),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
