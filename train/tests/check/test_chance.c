/* Tests the F distribution against closed forms, far into the tails from which the check takes its bounds. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>

#include "check/chance.h"

static void assert_near(double value, double expected, double tolerance) {
  if (!(fabs(value / expected - 1) < tolerance)) fail_msg("%.17g, expected %.17g", value, expected);
}

/* With two degrees of freedom in the numerator the tail of F is (1 + 2 f / n)^(-n/2). */
static void two_squares_above_have_a_closed_form(void **state) {
  for (double n = 1; n < 3000; n *= 3)
    for (double f = 0.01; f < 1e4; f *= 3)
      if (pow(1 + 2 * f / n, -n / 2) > 1e-290)
        assert_near(ad_chance_of_ratio(f, 2, n), pow(1 + 2 * f / n, -n / 2), 1e-10);
}

/* F with (1, 1) degrees of freedom is a squared Cauchy variable; F with (1, 2) a squared Student's t with two. */
static void one_square_above_has_a_closed_form(void **state) {
  for (double x = 0.01; x < 1e6; x *= 7) {
    assert_near(ad_chance_of_ratio(x * x, 1, 1), 2 / M_PI * atan(1 / x), 1e-10);
    double root = sqrt(2 + x * x);
    assert_near(ad_chance_of_ratio(x * x, 1, 2), 2 / (root * (root + x)), 1e-10);
  }
}

static void critical_values_of_the_printed_tables_are_met(void **state) {
  assert_near(ad_ratio_of_chance(0.05, 10, 30), 2.165, 1e-3);
  assert_near(ad_ratio_of_chance(0.01, 5, 20), 4.103, 1e-3);
  assert_near(ad_ratio_of_chance(0.001, 4, 60), 5.307, 1e-3);
}

static void a_ratio_is_exceeded_with_its_chance(void **state) {
  static const double freedoms[] = {1, 1.5, 3, 10, 200, 1e6};
  for (double chance = 0.3; chance > 1e-15; chance /= 30)
    for (int i = 0; i < 6; i++) {
      double ratio = ad_ratio_of_chance(chance, freedoms[i], 7 * freedoms[i]);
      assert_near(ad_chance_of_ratio(ratio, freedoms[i], 7 * freedoms[i]), chance, 1e-6);
    }
}

static void nothing_is_beyond_no_ratio_and_no_number_is_certain(void **state) {
  assert_true(ad_chance_of_ratio(0, 3, 5) == 1);
  assert_true(ad_chance_of_ratio(INFINITY, 3, 5) == 0);
  assert_true(ad_chance_of_ratio(NAN, 3, 5) == 1);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(two_squares_above_have_a_closed_form),
      cmocka_unit_test(one_square_above_has_a_closed_form),
      cmocka_unit_test(critical_values_of_the_printed_tables_are_met),
      cmocka_unit_test(a_ratio_is_exceeded_with_its_chance),
      cmocka_unit_test(nothing_is_beyond_no_ratio_and_no_number_is_certain),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
