/* Tests the environment variables that choose kernels and products by a word: any other word is refused before a rank
 * starts. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>
#include "comm/settings.h"
#include "products/gemm_ways.h"
#include "products/products.h"
#include "products/ways.h"
#include "says.h"

static void are_refused(const char *name, const char *value) {
  setenv(name, value, 1);
  assert_int_equal(ad_settings_check(), AD_INVALID);
  unsetenv(name);
}
#define is_refused(name, value, ...) \
  (are_refused((name), (value)), assert_says_in((name), ad_last_error(), SAYS_FACTS((name), __VA_ARGS__)))

static void is_taken(const char *name, const char *value) {
  setenv(name, value, 1);
  assert_int_equal(ad_settings_check(), AD_OK);
  unsetenv(name);
}

static void a_word_that_means_nothing_is_refused_by_name(void **state) {
  is_refused("ADDEND_KERNELS", "foo", "foo");
  is_refused("ADDEND_PRODUCTS", "foo", "foo");
  is_refused("ADDEND_STAGING", "2", "2", "0", "1");
}

static void words_that_mean_something_are_taken(void **state) {
  is_taken("ADDEND_KERNELS", "plain");
  is_taken("ADDEND_KERNELS", "");
  is_taken("ADDEND_PRODUCTS", "openblas");
  is_taken("ADDEND_PRODUCTS", "");
}

static void a_library_that_is_not_there_is_refused(void **state) {
  if (ad_onednn_version())
    is_taken("ADDEND_PRODUCTS", "onednn");
  else
    is_refused("ADDEND_PRODUCTS", "onednn", "oneDNN");
}

/* A version is one number, 10000 major + 100 minor + patch, and is printed as three. */
static void the_version_of_onednn_is_printed_as_three_numbers(void **state) {
  char text[AD_PRODUCTS_TEXT];
  ad_products_choose((ad_products){.units = AD_UNITS_AVX2, .onednn = 31207});
  assert_non_null(strstr(ad_products_print(text), " 3.12.7"));
  assert_non_null(strstr(text, ad_units_name(AD_UNITS_AVX2)));
  ad_products_choose((ad_products){.units = AD_UNITS_AVX2});
  assert_null(strstr(ad_products_print(text), "oneDNN"));
}

/* The first word of the text, of each library, with the ways of a file. */
static void the_choice_of_a_library_is_printed(void **state) {
  static const struct {
    ad_library library;
    const char *begins;
  } choices[] = {{AD_LIBRARY_BY_TABLE, "by table; avx512; "},
                 {AD_LIBRARY_OPENBLAS, "OpenBLAS; avx512; "},
                 {AD_LIBRARY_ONEDNN, "oneDNN; avx512; "},
                 {AD_LIBRARY_BY_FILE, "by file: f32 openblas onednn openblas, bf16 onednn onednn widened_onednn; "}};
  char text[AD_PRODUCTS_TEXT];
  uint32_t ways = ad_ways_with(0, AD_F32, GEMM_SMALL, GEMM_ONEDNN);
  ways = ad_ways_with(ways, AD_BF16, GEMM_LARGE, GEMM_WIDEN_ONEDNN);
  for (size_t i = 0; i < sizeof choices / sizeof *choices; i++) {
    ad_products_choose((ad_products){.units = AD_UNITS_AVX512, .library = choices[i].library, .ways = ways});
    assert_memory_equal(ad_products_print(text), choices[i].begins, strlen(choices[i].begins));
  }
  static const char *const units[] = {"plain", "avx2", "avx512", "avx512bf16", "fast avx512bf16", "amx", "unknown"};
  for (int i = 0; i < 7; i++) assert_string_equal(ad_units_name((ad_units)i), units[i]);
  assert_string_equal(ad_units_name((ad_units)-1), "unknown");
}

/* oneDNN's product of f32, which finds no memory here: dnnl_out_of_memory is 1. */
int __wrap_dnnl_sgemm(void);
static int asked;

int __wrap_dnnl_sgemm(void) {
  asked++;
  return 1;
}

static void a_product_that_onednn_cannot_make_is_named(void **state) {
  float values[12] = {0};
  gemm_product product = {.values = AD_F32,
                          .result = AD_F32,
                          .m = 3,
                          .n = 2,
                          .k = 4,
                          .factor = 1,
                          .a = {values, 4, 0},
                          .b = {values, 2, 0},
                          .c = (float[6]){0},
                          .c_stride = 2};
  if (!ad_onednn_version()) skip();
  assert_int_equal(ad_gemm_onednn(ad_gemm_kept(), &product), AD_MEMORY);
  assert_int_equal(asked, 1);
  assert_facts(ad_last_error(), "3", "2", "4", "f32", "out_of_memory");
  assert_string_equal(strrchr(ad_last_error(), ' '), " out_of_memory"); /* last, behind the dtypes */
}

int main(void) {
  unsetenv("ADDEND_KERNELS");
  unsetenv("ADDEND_PRODUCTS");
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_word_that_means_nothing_is_refused_by_name),
      cmocka_unit_test(words_that_mean_something_are_taken),
      cmocka_unit_test(a_library_that_is_not_there_is_refused),
      cmocka_unit_test(the_version_of_onednn_is_printed_as_three_numbers),
      cmocka_unit_test(the_choice_of_a_library_is_printed),
      cmocka_unit_test(a_product_that_onednn_cannot_make_is_named),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
