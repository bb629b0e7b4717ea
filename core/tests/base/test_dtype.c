/* Tests the names and sizes of dtypes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>
#include "addend/dtype.h"
#include "says.h"

static const struct {
  ad_dtype dtype;
  const char *name;
  size_t size;
  int is_float;
} known[] = {{AD_F64, "f64", 8, 1}, {AD_F32, "f32", 4, 1},  {AD_BF16, "bf16", 2, 1}, {AD_F16, "f16", 2, 1},
             {AD_I32, "i32", 4, 0}, {AD_I64, "i64", 8, 0},  {AD_U8, "u8", 1, 0},     {AD_I8, "i8", 1, 0},
             {AD_I16, "i16", 2, 0}, {AD_BOOL, "bool", 1, 0}};
enum { KNOWN = sizeof known / sizeof *known };

static void every_dtype_has_its_name_size_and_kind(void **state) {
  for (int i = 0; i < KNOWN; i++) {
    assert_string_equal(ad_dtype_name(known[i].dtype), known[i].name);
    assert_int_equal(ad_dtype_size(known[i].dtype), known[i].size);
    assert_int_equal(ad_dtype_is_float(known[i].dtype), known[i].is_float);
    assert_int_equal(ad_dtype_wide(known[i].dtype), known[i].dtype == AD_F64 ? AD_F64 : AD_F32);
  }
}

static void a_name_parses_to_its_dtype(void **state) {
  for (int i = 0; i < KNOWN; i++) {
    ad_dtype parsed = 0;
    assert_int_equal(ad_dtype_parse(known[i].name, &parsed), AD_OK);
    assert_int_equal(parsed, known[i].dtype);
  }
}

static void another_name_is_refused_and_the_known_ones_are_reported(void **state) {
  const char *wrong[] = {"", "f", "F32", "f32 ", "float", "bf161", "%s%n"};
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
    ad_dtype parsed = AD_F16;
    assert_int_equal(ad_dtype_parse(wrong[i], &parsed), AD_INVALID);
    assert_int_equal(parsed, AD_F16);
    if (*wrong[i]) assert_says(wrong[i]);
    for (int j = 0; j < KNOWN; j++) assert_says(known[j].name);
  }
  ad_dtype parsed = AD_F16;
  assert_int_equal(ad_dtype_parse(NULL, &parsed), AD_INVALID);
}

static void a_number_that_is_no_dtype_is_unknown_and_has_no_size(void **state) {
  const int wrong[] = {-1, 0, AD_BOOL + 1, 1000};
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
    assert_string_equal(ad_dtype_name((ad_dtype)wrong[i]), "unknown");
    assert_int_equal(ad_dtype_size((ad_dtype)wrong[i]), 0);
    assert_false(ad_dtype_is_float((ad_dtype)wrong[i]));
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_dtype_has_its_name_size_and_kind),
      cmocka_unit_test(a_name_parses_to_its_dtype),
      cmocka_unit_test(another_name_is_refused_and_the_known_ones_are_reported),
      cmocka_unit_test(a_number_that_is_no_dtype_is_unknown_and_has_no_size),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
