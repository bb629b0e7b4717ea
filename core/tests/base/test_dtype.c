/* Tests the names and sizes of dtypes, their precision and their range. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <float.h>
#include <string.h>
#include "addend/dtype.h"
#include "base/dtypes.h"
#include "base/roundoff.h"
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

static void other_formats_have_their_names(void **state) {
  static const struct {
    ad_dtype dtype;
    const char *safetensors, *numpy, *torch, *dlpack;
  } names[] = {{AD_F64, "F64", "f8", "float64", "2"},    {AD_F32, "F32", "f4", "float32", "2"},
               {AD_BF16, "BF16", NULL, "bfloat16", "4"}, {AD_F16, "F16", "f2", "float16", "2"},
               {AD_I32, "I32", "i4", "int32", "0"},      {AD_I64, "I64", "i8", "int64", "0"},
               {AD_U8, "U8", "u1", "uint8", "1"},        {AD_I8, "I8", "i1", "int8", "0"},
               {AD_I16, "I16", "i2", "int16", "0"},      {AD_BOOL, "BOOL", "b1", "bool", "6"}};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    assert_string_equal(ad_dtype_name_in(names[i].dtype, "safetensors"), names[i].safetensors);
    assert_string_equal(ad_dtype_name_in(names[i].dtype, "torch"), names[i].torch);
    assert_string_equal(ad_dtype_name_in(names[i].dtype, "dlpack"), names[i].dlpack);
    if (names[i].numpy)
      assert_string_equal(ad_dtype_name_in(names[i].dtype, "numpy"), names[i].numpy);
    else
      assert_null(ad_dtype_name_in(names[i].dtype, "numpy"));
  }
  assert_null(ad_dtype_name_in(AD_F32, "yaml"));
  assert_null(ad_dtype_name_in(AD_F32, NULL));
  assert_null(ad_dtype_name_in((ad_dtype)0, "torch"));
}

static void floats_have_the_precision_and_range_of_ieee_754(void **state) {
  static const struct {
    ad_dtype dtype;
    double roundoff, smallest, largest;
    int needs_scale;
  } floats[] = {{AD_F64, 0x1p-53, 0x1p-1074, DBL_MAX, 0},
                {AD_F32, 0x1p-24, 0x1p-149, FLT_MAX, 0},
                {AD_F16, 0x1p-11, 0x1p-24, 65504, 1},
                {AD_BF16, 0x1p-8, 0x1p-133, 0x1.fep127, 0}};
  for (int i = 0; i < 4; i++) {
    assert_true(ad_unit_roundoff(floats[i].dtype) == floats[i].roundoff);
    assert_true(ad_smallest_number(floats[i].dtype) == floats[i].smallest);
    assert_true(ad_largest_number(floats[i].dtype) == floats[i].largest);
    assert_int_equal(ad_dtype_needs_scale(floats[i].dtype), floats[i].needs_scale);
    assert_int_equal(ad_dtype_is_wide(floats[i].dtype), i < 2);
    assert_int_equal(ad_dtype_coarser(floats[i].dtype), i < 3 ? floats[i + 1].dtype : 0);
    for (int j = 0; j < 4; j++)  // f16 and bf16 do not hold each other's values
      assert_int_equal(ad_dtype_holds(floats[i].dtype, floats[j].dtype), i == j || (i < j && i < 2));
  }
  assert_true(ad_unit_roundoff(AD_I32) == 1 && ad_smallest_number(AD_I32) == 0 && ad_largest_number(AD_I32) == 0);
  assert_false(ad_dtype_needs_scale(AD_I8) || ad_dtype_is_wide(AD_I64));
}

static int is_one(ad_dtype dtype) { return dtype == AD_I64; }

static void dtypes_are_listed_with_a_word_before_the_last(void **state) {
  char text[AD_DTYPES_TEXT];
  assert_string_equal(ad_dtypes_print(ad_dtype_is_float, NULL, "or", text), "f64, f32, bf16 or f16");
  assert_string_equal(ad_dtypes_print(ad_dtype_is_of_arrays, "safetensors", "and", text),
                      "F64, F32, BF16, F16, I32 and I64");
  assert_string_equal(ad_dtypes_print(is_one, NULL, "or", text), "i64");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_dtype_has_its_name_size_and_kind),
      cmocka_unit_test(a_name_parses_to_its_dtype),
      cmocka_unit_test(another_name_is_refused_and_the_known_ones_are_reported),
      cmocka_unit_test(a_number_that_is_no_dtype_is_unknown_and_has_no_size),
      cmocka_unit_test(other_formats_have_their_names),
      cmocka_unit_test(floats_have_the_precision_and_range_of_ieee_754),
      cmocka_unit_test(dtypes_are_listed_with_a_word_before_the_last),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
