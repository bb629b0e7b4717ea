/* Tests the table of kinds of verdicts and causes (say/causes.h). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "say/cause.h"

static void a_name_belongs_to_one_kind(void **state) {
  for (int kind = 0; kind < AD_CAUSE_COUNT; kind++)
    assert_int_equal(ad_cause_named(ad_cause_name((ad_cause_kind)kind)), kind);
  assert_int_equal(ad_cause_named("averages"), AD_CAUSE_UNKNOWN);
  assert_int_equal(ad_cause_named(""), AD_CAUSE_UNKNOWN);
  assert_int_equal(ad_cause_named(NULL), AD_CAUSE_UNKNOWN);
}

static void a_check_reports_a_kind_that_stays_itself(void **state) {
  static const struct {
    ad_cause_kind kind, checked;
  } others[] = {{AD_CAUSE_OWN_ONLY, AD_CAUSE_PARTIAL},
                {AD_CAUSE_LAST_MICROBATCH, AD_CAUSE_MISSING},
                {AD_CAUSE_EARLIER_DIVIDED, AD_CAUSE_AVERAGED},
                {AD_CAUSE_OWN_COUNT, AD_CAUSE_AVERAGED},
                {AD_CAUSE_FACTOR, AD_CAUSE_UNKNOWN}};
  for (int kind = 0; kind < AD_CAUSE_COUNT; kind++) {
    ad_cause_kind checked = ad_cause_row_of((ad_cause_kind)kind)->checked;
    assert_int_equal(ad_cause_row_of(checked)->checked, checked);
  }
  for (size_t i = 0; i < sizeof others / sizeof *others; i++)
    assert_int_equal(ad_cause_row_of(others[i].kind)->checked, others[i].checked);
}

static void one_kind_is_right_and_three_cannot_tell(void **state) {
  for (int kind = 0; kind < AD_CAUSE_COUNT; kind++) {
    int open = kind == AD_CAUSE_IDENTICAL || kind == AD_CAUSE_NOT_OBSERVED || kind == AD_CAUSE_NOT_JUDGED;
    assert_int_equal(ad_cause_row_of((ad_cause_kind)kind)->answer, kind == AD_CAUSE_RIGHT ? AD_ANSWER_RIGHT
                                                                   : open                 ? AD_ANSWER_CANNOT_TELL
                                                                                          : AD_ANSWER_WRONG);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_name_belongs_to_one_kind),
      cmocka_unit_test(a_check_reports_a_kind_that_stays_itself),
      cmocka_unit_test(one_kind_is_right_and_three_cannot_tell),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
