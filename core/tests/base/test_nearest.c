/* Tests which known name is suggested for a wrong one: only a name that differs by a letter or two. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>
#include "base/nearest.h"
#include "addend/helpers.h"

static void distances_count_letters(void **state) {
  static const struct {
    const char *a, *b;
    int distance;
  } pairs[] = {{"", "", 0},           {"", "abc", 3},       {"steps", "steps", 0},
               {"steps", "stesp", 1}, {"steps", "step", 1}, {"set", "seed", 2},
               {"train", "traim", 1}, {"seed", "json", 4},  {"kitten", "sitting", 3}};
  for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
    assert_int_equal(ad_name_distance(pairs[i].a, pairs[i].b), pairs[i].distance);
    assert_int_equal(ad_name_distance(pairs[i].b, pairs[i].a), pairs[i].distance);
  }
}

static void a_long_name_is_near_nothing(void **state) {
  char name[2 * AD_NAME_COMPARED_MAX];
  memset(name, 'a', sizeof name - 1);
  name[sizeof name - 1] = 0;
  assert_int_equal(ad_name_distance(name, name), AD_NAME_COMPARED_MAX);
  name[AD_NAME_COMPARED_MAX] = 0;
  assert_int_equal(ad_name_distance(name, name), 0);
}

static void the_nearest_of_several_is_found(void **state) {
  static const char *const names[] = {"set", "seed", "steps", "stop"};
  assert_string_equal(ad_nearest_name("stesp", names, 4), "steps");
  assert_string_equal(ad_nearest_name("sed", names, 4), "set"); /* of several equally near names the first */
  assert_string_equal(ad_nearest_name("stopp", names, 4), "stop");
  assert_null(ad_nearest_name("mutants", names, 4));
  assert_null(ad_nearest_name("xyz", names, 4));
  assert_null(ad_nearest_name("stesp", names, 0));
  assert_null(ad_nearest_name(NULL, names, 4));
  assert_null(ad_nearest_name("stesp", NULL, 0));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(distances_count_letters),
      cmocka_unit_test(a_long_name_is_near_nothing),
      cmocka_unit_test(the_nearest_of_several_is_found),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
