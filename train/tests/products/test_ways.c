/* Tests the table of ways to compute products (which library takes which shape) as a file: written, read, sent to other
 * ranks, followed; and refused if it does not apply. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "products/ways.h"
#include "says.h"

static char path[] = "/tmp/addend-ways-XXXXXX";

enum { SHAPES = 3 };
static const gemm_way f32_ways[] = {GEMM_BLAS, GEMM_ONEDNN};
static const gemm_way bf16_ways[] = {GEMM_ONEDNN, GEMM_WIDEN_BLAS, GEMM_WIDEN_ONEDNN};

/* The table with this number, of all 216. */
static uint32_t table_of(int number) {
  uint32_t ways = 0;
  for (gemm_shape shape = GEMM_VECTOR; shape <= GEMM_LARGE; shape++, number /= 6) {
    ways = ad_ways_with(ways, AD_F32, shape, f32_ways[number % 2]);
    ways = ad_ways_with(ways, AD_BF16, shape, bf16_ways[number / 2 % 3]);
  }
  return ways;
}

static void every_table_holds_what_was_put_there(void **state) {
  for (int number = 0; number < 216; number++) {
    uint32_t ways = table_of(number);
    assert_true(ways < 1u << AD_WAYS_BITS);
    for (int shape = 0, rest = number; shape < SHAPES; shape++, rest /= 6) {
      assert_int_equal(ad_ways_at(ways, AD_F32, (gemm_shape)shape), f32_ways[rest % 2]);
      assert_int_equal(ad_ways_at(ways, AD_BF16, (gemm_shape)shape), bf16_ways[rest / 2 % 3]);
    }
  }
}

static void a_file_gives_what_was_written(void **state) {
  if (!ad_onednn_version()) skip();
  for (int number = 0; number < 216; number += 5) {
    uint32_t read = 0;
    assert_int_equal(ad_ways_write(path, AD_UNITS_AVX2, table_of(number)), AD_OK);
    assert_int_equal(ad_ways_read(path, AD_UNITS_AVX512, &read), AD_OK);
    assert_int_equal(read, table_of(number));
  }
}

static void it_is_printed_by_shape(void **state) {
  char text[128];
  uint32_t ways = ad_ways_with(0, AD_F32, GEMM_LARGE, GEMM_ONEDNN);
  ways = ad_ways_with(ways, AD_BF16, GEMM_SMALL, GEMM_WIDEN_BLAS);
  assert_string_equal(ad_ways_print(ways, text, sizeof text),
                      "f32 openblas openblas onednn, bf16 onednn widened_openblas onednn");
}

static void ranks_report_all_of_it_to_each_other(void **state) {
  for (int number = 0; number < 216; number++) {
    ad_products mine = {AD_UNITS_AMX, AD_LIBRARY_BY_FILE, 130000, table_of(number)}, other = mine;
    ad_products reported = ad_products_unpacked(ad_products_packed(mine));
    assert_memory_equal(&reported, &mine, sizeof reported);
    other.ways ^= 1;
    assert_int_equal(ad_products_common(mine, mine).ways, mine.ways);
    assert_int_equal(ad_products_common(mine, other).library, AD_LIBRARY_BY_TABLE);
    assert_int_equal(ad_products_common(mine, other).ways, 0);
  }
}

static gemm_way way_of(uint32_t ways, ad_dtype values, int64_t m, int64_t n, int64_t k) {
  ad_products with = {AD_UNITS_AMX, AD_LIBRARY_BY_FILE, 20603, ways};
  gemm_product of = {.values = values, .m = m, .n = n, .k = k, .a.stride = k, .b.stride = n};
  return ad_gemm_choose(&with, &of);
}

static void products_are_made_as_it_says(void **state) {
  uint32_t ways = ad_ways_with(0, AD_F32, GEMM_SMALL, GEMM_ONEDNN);
  ways = ad_ways_with(ways, AD_BF16, GEMM_VECTOR, GEMM_WIDEN_BLAS);
  ways = ad_ways_with(ways, AD_BF16, GEMM_LARGE, GEMM_WIDEN_ONEDNN);
  assert_int_equal(way_of(ways, AD_F32, 1, 8, 8), GEMM_BLAS);
  assert_int_equal(way_of(ways, AD_F32, 8, 8, 8), GEMM_ONEDNN);
  assert_int_equal(way_of(ways, AD_F32, 512, 512, 512), GEMM_BLAS);
  assert_int_equal(way_of(ways, AD_BF16, 512, 1, 512), GEMM_WIDEN_BLAS);
  assert_int_equal(way_of(ways, AD_BF16, 8, 8, 8), GEMM_ONEDNN);
  assert_int_equal(way_of(ways, AD_BF16, 512, 512, 512), GEMM_WIDEN_ONEDNN);
  assert_int_equal(way_of(ways, AD_F64, 8, 8, 8), GEMM_BLAS);
}

/* ---- files that are no table ---- */

static void write_text(const char *text) {
  FILE *file = fopen(path, "w");
  assert_non_null(file);
  assert_true(fputs(text, file) >= 0);
  assert_int_equal(fclose(file), 0);
}

static void is_no_table(const char *text) {
  uint32_t ways = 7;
  write_text(text);
  assert_int_not_equal(ad_ways_read(path, AD_UNITS_AVX2, &ways), AD_OK);
  assert_int_equal(ways, 7);
}
#define is_refused(text, ...) (is_no_table(text), assert_says(path, __VA_ARGS__))

#define HEAD "{\"format\": \"addend products 1\", \"instructions\": "
#define F32 ", \"f32\": {\"vector\": \"openblas\", \"small\": \"openblas\", \"large\": \"onednn\"}"

static void what_is_no_table_is_refused(void **state) {
  is_refused("", "JSON");
  is_refused("[1]", "JSON");
  is_refused("{}", "format");
  is_refused("{\"format\": 3}", "format");
  is_refused(HEAD "\"avx1024\"}", "instructions", "avx1024");
  is_refused(HEAD "null}", "instructions");
  is_refused(HEAD "\"amx\"" F32 "}", "avx2");
  is_refused(HEAD "\"avx2\"}", "f32.vector");
  is_refused(HEAD "\"avx2\"" F32 "}", "bf16.vector", "widened_openblas", "widened_onednn");
  is_refused(HEAD "\"avx2\"" F32 ", \"bf16\": {\"vector\": \"openblas\"}}", "bf16.vector", "widened_openblas");
}

static void ranks_are_refused_before_they_start(void **state) {
  write_text("{}");
  setenv("ADDEND_PRODUCTS", path, 1);
  assert_int_equal(ad_products_check(), AD_INVALID);
  assert_says("ADDEND_PRODUCTS");
  assert_int_equal(ad_products_own().library, AD_LIBRARY_BY_TABLE);
  setenv("ADDEND_PRODUCTS", "/nowhere/table.json", 1);
  assert_int_equal(ad_products_check(), AD_INVALID);
  assert_listed();
  unsetenv("ADDEND_PRODUCTS");
}

static void a_named_file_counts(void **state) {
  if (!ad_onednn_version()) skip();
  assert_int_equal(ad_ways_write(path, AD_UNITS_PLAIN, table_of(77)), AD_OK);
  setenv("ADDEND_PRODUCTS", path, 1);
  assert_int_equal(ad_products_check(), AD_OK);
  assert_int_equal(ad_products_own().library, AD_LIBRARY_BY_FILE);
  assert_int_equal(ad_products_own().ways, table_of(77));
  unsetenv("ADDEND_PRODUCTS");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_table_holds_what_was_put_there),
      cmocka_unit_test(a_file_gives_what_was_written),
      cmocka_unit_test(it_is_printed_by_shape),
      cmocka_unit_test(ranks_report_all_of_it_to_each_other),
      cmocka_unit_test(products_are_made_as_it_says),
      cmocka_unit_test(what_is_no_table_is_refused),
      cmocka_unit_test(ranks_are_refused_before_they_start),
      cmocka_unit_test(a_named_file_counts),
  };
  int fd = mkstemp(path);
  if (fd < 0) return 1;
  close(fd);
  unsetenv("ADDEND_PRODUCTS");
  int failed = cmocka_run_group_tests(tests, NULL, NULL);
  unlink(path);
  return failed;
}
