/* Measures matrix products of one rank with each library. */
#ifndef BENCH_PRODUCTS_H
#define BENCH_PRODUCTS_H
#include <jansson.h>

#include "bench/bench.h"

/* Appends a row for each shape and dtype. */
ad_status bench_measure_products(const bench_options *options, json_t *rows) AD_CHECKED;

#endif
