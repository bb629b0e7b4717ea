/* Which way makes a product of a step, in words. */
#ifndef BENCH_WAYS_H
#define BENCH_WAYS_H
#include <jansson.h>

#include "products/gemm_ways.h"

/* As this process makes it. */
gemm_way bench_way_of(const gemm_product *product);
/* An object: `products_by`, and the `instructions` of the library that multiplies, in its own words. */
json_t *bench_way_words(gemm_way way, ad_dtype values);

#endif
