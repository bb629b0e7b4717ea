/* Matrix products of one rank, by each library. */
#ifndef BENCH_PRODUCTS_H
#define BENCH_PRODUCTS_H
#include <jansson.h>

#include "bench/bench.h"

/* Appends a row for every shape and dtype. */
ad_status bench_measure_products(const bench_options *options, json_t *rows) AD_CHECKED;

#endif
