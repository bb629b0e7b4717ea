/* Tests the search for the first value that is not finite, at any position and after any values. */
#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "kernels/finite.h"
#include "kernels/kernels.h"
#include "kernels/kernels.h"

enum { NUMEL = 10000 };
static const ad_dtype dtypes[] = {AD_F64, AD_F32, AD_BF16, AD_F16};
enum { DTYPES = sizeof dtypes / sizeof *dtypes };

/* Data at an odd address, as in a file with a header of any length. Zeros of both signs, subnormals and the largest
 * number are finite. */
static char memory[NUMEL * sizeof(double) + 1], *const data = memory + 1;

static void put(ad_dtype dtype, size_t index, double value) {
  char element[sizeof value];
  ad_cast(element, dtype, &value, AD_F64, 1);
  memcpy(data + index * ad_dtype_size(dtype), element, ad_dtype_size(dtype));
}

static void fill(ad_dtype dtype) {
  const double largest = dtype == AD_F64 ? DBL_MAX : dtype == AD_F16 ? 65504 : dtype == AD_F32 ? FLT_MAX : 0x1.fep127;
  const double values[] = {0, -0.0, 1, -largest, largest, 0x1p-24, -0x1p-1074};
  for (size_t i = 0; i < NUMEL; i++) put(dtype, i, values[i % (sizeof values / sizeof *values)]);
}

static void finite_values_are_passed_over(void **state) {
  static const size_t counts[] = {0, 1, 7, 8, 9, 1023, 4095, 4096, 4097, 8192, NUMEL};
  for (size_t d = 0; d < DTYPES; d++) {
    fill(dtypes[d]);
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
      assert_int_equal(ad_first_not_finite(data, dtypes[d], counts[i]), counts[i]);
  }
}

static void the_first_that_is_not_is_found(void **state) {
  static const size_t places[] = {0, 1, 7, 8, 9, 1023, 4095, 4096, 8191, 8192, NUMEL - 1};
  const double values[] = {NAN, -NAN, INFINITY, -INFINITY};
  for (size_t d = 0; d < DTYPES; d++) {
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
      for (size_t v = 0; v < 4; v++) {
        fill(dtypes[d]);
        put(dtypes[d], NUMEL - 1, NAN);
        put(dtypes[d], places[i], values[v]);
        assert_int_equal(ad_first_not_finite(data, dtypes[d], NUMEL), places[i]);
        assert_int_equal(ad_first_not_finite(data, dtypes[d], places[i]), places[i]);
      }
    }
  }
}

static void what_a_narrower_dtype_has_no_room_for_is_found_by_its_size(void **state) {
  static double from[NUMEL];
  static uint16_t to[NUMEL];
  for (size_t i = 0; i < NUMEL; i++) from[i] = 60000;
  ad_cast(to, AD_F16, from, AD_F64, NUMEL);
  assert_true(ad_largest_overflow(to, AD_F16, from, AD_F64, NUMEL) == 0);
  from[3] = 1e5;
  from[NUMEL - 1] = -2e5;
  from[7] = NAN;
  from[8] = INFINITY; /* the value was infinite before the cast too */
  ad_cast(to, AD_F16, from, AD_F64, NUMEL);
  assert_true(ad_largest_overflow(to, AD_F16, from, AD_F64, NUMEL) == 2e5);
  assert_true(ad_largest_overflow(to, AD_F16, from, AD_F64, NUMEL - 1) == 1e5);
  assert_true(ad_largest_overflow(to, AD_F16, from, AD_F64, 3) == 0);
  assert_true(ad_largest_overflow(to, AD_F16, from, AD_F64, 0) == 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(what_a_narrower_dtype_has_no_room_for_is_found_by_its_size),
      cmocka_unit_test(finite_values_are_passed_over),
      cmocka_unit_test(the_first_that_is_not_is_found),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
