/* Finds the fastest library for matrix products from rows of `addend bench --op products`. */
#include "fastest.h"

#include <math.h>
#include <string.h>

#include "products/ways.h"

static const struct candidate {
  ad_dtype values;
  gemm_way way;
  const char *seconds; /* the key, in a row, of the seconds of this library */
} candidates[] = {{AD_F32, GEMM_BLAS, "openblas_seconds"},
                  {AD_F32, GEMM_ONEDNN, "onednn_seconds"},
                  {AD_BF16, GEMM_ONEDNN, "onednn_seconds"},
                  {AD_BF16, GEMM_WIDEN_BLAS, "openblas_seconds"},
                  {AD_BF16, GEMM_WIDEN_ONEDNN, "widened_seconds"}};

static int is_of(const json_t *row, ad_dtype values, gemm_shape shape) {
  gemm_product of = {.m = json_integer_value(json_object_get(row, "m")),
                     .n = json_integer_value(json_object_get(row, "n")),
                     .k = json_integer_value(json_object_get(row, "k"))};
  const char *dtype = json_string_value(json_object_get(row, "dtype"));
  return dtype && of.k && !strcmp(dtype, ad_dtype_name(values)) && ad_gemm_shape_of(&of) == shape;
}

/* Returns the sum of the logarithms of the candidate's times over all products of this shape; infinity if it has no
 * time for one of them. */
static double time_of(const json_t *rows, const struct candidate *candidate, gemm_shape shape) {
  double sum = 0;
  size_t i;
  json_t *row;
  json_array_foreach((json_t *)(size_t)rows, i, row) {
    if (!is_of(row, candidate->values, shape)) continue;
    const json_t *seconds = json_object_get(row, candidate->seconds);
    if (!json_is_number(seconds)) return INFINITY;
    sum += log(json_number_value(seconds));
  }
  return sum;
}

static uint32_t with_fastest(uint32_t ways, const json_t *rows, ad_dtype values, gemm_shape shape) {
  double least = INFINITY;
  for (size_t i = 0; i < sizeof candidates / sizeof *candidates; i++) {
    if (candidates[i].values != values) continue;
    double time = time_of(rows, &candidates[i], shape);
    if (time >= least) continue;
    least = time;
    ways = ad_ways_with(ways, values, shape, candidates[i].way);
  }
  return ways;
}

ad_status bench_write_fastest(const char *path, const json_t *rows) {
  uint32_t ways = 0;
  for (gemm_shape shape = GEMM_VECTOR; shape <= GEMM_LARGE; shape++) {
    ways = with_fastest(ways, rows, AD_F32, shape);
    ways = with_fastest(ways, rows, AD_BF16, shape);
  }
  return ad_ways_write(path, ad_products_own().units, ways);
}
