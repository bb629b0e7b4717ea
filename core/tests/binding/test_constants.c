/* Tests what a language binding (Python) asks the library: its version, and constants by name. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>
#include "addend/addend.h"
#include "says.h"

static int64_t constant(const char *name) {
  int64_t value = -1;
  if (ad_header_constant(name, &value)) fail_msg("%s", ad_last_error());
  return value;
}

static void enumerators_and_sizes_are_those_of_the_headers(void **state) {
  assert_int_equal(constant("AD_F32"), AD_F32);
  assert_int_equal(constant("AD_TYPE"), AD_TYPE);
  assert_int_equal(constant("AD_EP"), AD_EP);
  assert_int_equal(constant("AD_AXIS_COUNT"), AD_AXIS_COUNT);
  assert_int_equal(constant("AD_S(0)"), AD_S(0));
  assert_int_equal(constant("sizeof(ad_layout)"), sizeof(ad_layout));
  assert_int_equal(constant("sizeof(ad_collective)"), sizeof(ad_collective));
}

static void offsets_are_those_of_the_headers(void **state) {
  assert_int_equal(constant("offsetof(ad_layout, mesh)"), offsetof(ad_layout, mesh));
  assert_int_equal(constant("offsetof(ad_layout, depth)"), offsetof(ad_layout, depth));
  assert_int_equal(constant("offsetof(ad_collective, ranks)"), offsetof(ad_collective, ranks));
}

static void what_is_no_constant_is_refused_by_name(void **state) {
  int64_t value = 7;
  assert_int_equal(ad_header_constant("AD_F31", &value), AD_INVALID);
  assert_says("AD_F31");
  assert_int_equal(value, 7);
  assert_int_equal(ad_header_constant(NULL, &value), AD_INVALID);
}

static void the_version_is_three_numbers(void **state) {
  int a, b, c, length = 0;
  assert_int_equal(sscanf(ad_version(), "%d.%d.%d%n", &a, &b, &c, &length), 3);
  assert_int_equal(length, strlen(ad_version()));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(enumerators_and_sizes_are_those_of_the_headers),
      cmocka_unit_test(offsets_are_those_of_the_headers),
      cmocka_unit_test(what_is_no_constant_is_refused_by_name),
      cmocka_unit_test(the_version_is_three_numbers),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
