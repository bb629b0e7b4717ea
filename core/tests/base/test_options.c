/* Tests how option structs are read, whose first field is their size, so that they can grow in later versions. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>
#include "base/memory.h"
#include "base/options.h"
#include "says.h"

typedef struct grown {
  size_t size;
  int first;
  int64_t later; /* a field that an earlier version of the library did not have */
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
    assert_listed();
  }
}

static void a_list_is_taken_by_the_size_that_its_structs_have(void **state) {
  struct {
    size_t size;
    int first;
  } given[] = {{offsetof(grown, later), 3}, {offsetof(grown, later), 4}};
  // a program built with an earlier header has this shorter struct
  assert_int_equal(sizeof *given, offsetof(grown, later));
  void *taken;
  assert_int_equal(ad_options_take_all(&taken, sizeof(grown), given, 2, "grown"), AD_OK);
  const grown *own = taken;
  assert_true(own[0].first == 3 && own[1].first == 4 && own[1].size == sizeof(grown) && own[1].later == 0);
  ad_release(taken);
  given[1].size = sizeof(grown);
  assert_int_equal(ad_options_take_all(&taken, sizeof(grown), given, 2, "grown"), AD_INVALID);
  assert_says("1", "0");
  assert_null(taken);
  given[0].size = 0;
  assert_int_equal(ad_options_take_all(&taken, sizeof(grown), given, 1, "grown"), AD_INVALID);
  assert_int_equal(ad_options_take_all(&taken, sizeof(grown), NULL, 0, "grown"), AD_OK);
  assert_null(taken);
}

static void of_a_result_an_earlier_program_gets_what_it_knows(void **state) {
  grown own = {sizeof own, 3, 4}, out = {offsetof(grown, later), 8, 9}, wrong = {sizeof own + 1, 8, 9};
  assert_int_equal(ad_result_check(&out, sizeof own, "grown"), AD_OK);
  ad_result_give(&out, &own);
  assert_true(out.size == offsetof(grown, later) && out.first == 3 && out.later == 9);
  assert_int_equal(ad_result_check(&wrong, sizeof own, "grown"), AD_INVALID);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(none_means_all_defaults),
      cmocka_unit_test(what_was_given_is_taken),
      cmocka_unit_test(a_shorter_struct_means_defaults_for_the_rest),
      cmocka_unit_test(a_list_is_taken_by_the_size_that_its_structs_have),
      cmocka_unit_test(of_a_result_an_earlier_program_gets_what_it_knows),
      cmocka_unit_test(a_wrong_size_is_refused_and_says_the_right_one),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
