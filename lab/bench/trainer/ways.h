/* Finds which library (way) computes a matrix product of a step. */
#ifndef BENCH_WAYS_H
#define BENCH_WAYS_H
#include <jansson.h>

#include "products/gemm_ways.h"

/* Returns the library ("way") with which this process computes the product. */
gemm_way bench_way_of(const gemm_product *product);
/* Returns a JSON object with `products_by` (the library's name) and `instructions` (the instruction set, as the
 * library names it). */
json_t *bench_way_words(gemm_way way, ad_dtype values);

#endif
