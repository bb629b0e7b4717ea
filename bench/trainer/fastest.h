/* A table of the fastest ways, for ADDEND_PRODUCTS. */
#ifndef BENCH_FASTEST_H
#define BENCH_FASTEST_H
#include <jansson.h>

#include "addend/status.h"

/* Writes to the file, for each dtype and kind of shape, the way that was fastest in the rows of bench_measure_products:
 * the one whose times, multiplied over the shapes of that kind, are least. A way that failed at one of them is none. */
ad_status bench_write_fastest(const char *path, const json_t *rows) AD_CHECKED;

#endif
