/* Setting switches by name. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <string.h>
#include "base/switches.h"

static int how_many_on(void) {
  int on = 0;
  for (int i = 0; i < AD_SWITCH_COUNT; i++) on += ad_switched((ad_switch)i);
  return on;
}

static int all_off(void **state) { return ad_switch_set(NULL) != AD_OK; }

static void all_are_off_at_first(void **state) { assert_int_equal(how_many_on(), 0); }

static void every_switch_is_set_by_its_name_alone(void **state) {
  for (int i = 0; i < AD_SWITCH_COUNT; i++) {
    assert_int_equal(ad_switch_set(ad_switch_at((ad_switch)i)->name), AD_OK);
    assert_true(ad_switched((ad_switch)i));
    assert_int_equal(how_many_on(), 1);
    assert_true(strlen(ad_switch_at((ad_switch)i)->words) > 0);
  }
  assert_int_equal(ad_switch_set(""), AD_OK);
  assert_int_equal(how_many_on(), 0);
}

static void a_switch_with_an_axis_is_on_for_that_axis_alone(void **state) {
  for (int i = 0; i < AD_SWITCH_COUNT; i++) {
    char text[64];
    snprintf(text, sizeof text, "%s:dp_shard", ad_switch_at((ad_switch)i)->name);
    if (!ad_switch_at((ad_switch)i)->per_axis) {
      assert_int_equal(ad_switch_set(text), AD_INVALID);
      continue;
    }
    assert_int_equal(ad_switch_set(text), AD_OK);
    assert_true(ad_switched_on_axis((ad_switch)i, "dp_shard"));
    assert_false(ad_switched_on_axis((ad_switch)i, "tp"));
    assert_false(ad_switched_on_axis((ad_switch)i, "dp_shar"));
  }
}

static void a_switch_without_an_axis_is_on_for_all_of_them(void **state) {
  assert_int_equal(ad_switch_set("skip-reduction"), AD_OK);
  assert_true(ad_switched_on_axis(AD_SWITCH_SKIP_REDUCTION, "tp"));
  assert_true(ad_switched_on_axis(AD_SWITCH_SKIP_REDUCTION, "cp"));
  assert_false(ad_switched_on_axis(AD_SWITCH_AVERAGE, "tp"));
}

static void wrong_text_changes_nothing_and_names_the_known(void **state) {
  const char *wrong[] = {
      "skip", "skip-reductionx", ":tp", "skip-reduction:", "skip-reduction:an_axis_name_too_long", "local-count:tp"};
  assert_int_equal(ad_switch_set("average-instead-of-sum:cp"), AD_OK);
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
    assert_int_equal(ad_switch_set(wrong[i]), AD_INVALID);
    assert_true(ad_switched_on_axis(AD_SWITCH_AVERAGE, "cp"));
    assert_int_equal(how_many_on(), 1);
  }
  assert_int_equal(ad_switch_set("nonsense"), AD_INVALID);
  for (int i = 0; i < AD_SWITCH_COUNT; i++) assert_non_null(strstr(ad_last_error(), ad_switch_at((ad_switch)i)->name));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_teardown(all_are_off_at_first, all_off),
      cmocka_unit_test_teardown(every_switch_is_set_by_its_name_alone, all_off),
      cmocka_unit_test_teardown(a_switch_with_an_axis_is_on_for_that_axis_alone, all_off),
      cmocka_unit_test_teardown(a_switch_without_an_axis_is_on_for_all_of_them, all_off),
      cmocka_unit_test_teardown(wrong_text_changes_nothing_and_names_the_known, all_off),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
