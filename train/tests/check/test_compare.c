/* Tests the two numbers by which a check compares gradients: the ratio and the worst error. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "check/result.h"

static void equal_arrays_have_ratio_1_and_error_0(void **state) {
  double values[] = {1, -2, 3}, ratio, error;
  ad_compare(values, values, AD_F64, 3, 3, &ratio, &error);
  assert_true(ratio == 1 && error == 0);
}

static void an_averaged_gradient_has_the_ratio_of_the_group(void **state) {
  double dist[] = {0.25, -0.5, 0.75}, ref[] = {1, -2, 3}, ratio, error;
  ad_compare(dist, ref, AD_F64, 3, 3, &ratio, &error);
  assert_true(ratio == 0.25);
  assert_true(error == 0.75);
}

static void a_zero_reference_asks_for_a_zero_gradient(void **state) {
  float zero[] = {0, 0}, one[] = {0, 1};
  double ratio, error;
  ad_compare(zero, zero, AD_F32, 2, 5, &ratio, &error);
  assert_true(ratio == 1 && error == 0);
  ad_compare(one, zero, AD_F32, 2, 5, &ratio, &error);
  assert_true(isnan(ratio));
  assert_true(error >= 1);
}

static void an_error_is_never_measured_against_less_than_a_millionth_of_the_model(void **state) {
  double dist[] = {2e-20}, ref[] = {1e-20}, ratio, error;
  ad_compare(dist, ref, AD_F64, 1, 1, &ratio, &error);
  assert_true(fabs(error - 1e-14) < 1e-20);
}

static void a_nan_anywhere_is_no_number(void **state) {
  double dist[] = {1, NAN}, ref[] = {1, 2}, ratio, error;
  ad_compare(dist, ref, AD_F64, 2, 2, &ratio, &error);
  assert_true(isnan(error));
  ad_compare(ref, dist, AD_F64, 2, 2, &ratio, &error);
  assert_true(isnan(error));
}

static void an_empty_parameter_is_equal(void **state) {
  double ratio, error, none = 0;
  ad_compare(&none, &none, AD_F64, 0, 1, &ratio, &error);
  assert_true(ratio == 1 && error == 0);
}

static void relative_differences_are_symmetric_and_refuse_infinities(void **state) {
  assert_true(ad_relative_difference(0, 0) == 0);
  assert_true(ad_relative_difference(1, 2) == ad_relative_difference(2, 1));
  assert_true(isnan(ad_relative_difference(INFINITY, INFINITY)));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(equal_arrays_have_ratio_1_and_error_0),
      cmocka_unit_test(an_averaged_gradient_has_the_ratio_of_the_group),
      cmocka_unit_test(a_zero_reference_asks_for_a_zero_gradient),
      cmocka_unit_test(an_error_is_never_measured_against_less_than_a_millionth_of_the_model),
      cmocka_unit_test(a_nan_anywhere_is_no_number),
      cmocka_unit_test(an_empty_parameter_is_equal),
      cmocka_unit_test(relative_differences_are_symmetric_and_refuse_infinities),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
