/* A table of the fastest ways, for ADDEND_PRODUCTS. */
#ifndef BENCH_FASTEST_H
#define BENCH_FASTEST_H
#include <jansson.h>

#include "addend/status.h"

/* Of the rows that bench_measure_products made: for each dtype and kind of shape the way whose times, multiplied over
 * its shapes, are least. Writes it to the file. */
ad_status bench_write_fastest(const char *path, const json_t *rows) AD_CHECKED;

#endif
