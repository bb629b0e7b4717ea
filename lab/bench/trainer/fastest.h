/* Writes a table of the fastest libraries for matrix products, for the environment variable ADDEND_PRODUCTS. */
#ifndef BENCH_FASTEST_H
#define BENCH_FASTEST_H
#include <jansson.h>

#include "addend/status.h"

/* Writes, for each dtype and kind of shape, the fastest library ("way") in the rows of bench_measure_products: the
 * one with the least geometric mean of times over the shapes of this kind. A library that failed at one of these shapes
 * is left out. */
ad_status bench_write_fastest(const char *path, const json_t *rows) AD_CHECKED;

#endif
