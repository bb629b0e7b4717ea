/* Measures attention on sequences sharded over cp: whether its arithmetic is balanced and hides its transfers. */
#ifndef BENCH_ATTENTION_H
#define BENCH_ATTENTION_H
#include <jansson.h>

#include "bench/bench.h"

/* Appends a row for each sequence length, number of ranks (1, and 2 and 4 or those of the options) and variant. A
 * failed measurement is reported on standard error and left out; returns the status of the first. */
ad_status bench_measure_attention(const bench_options *options, json_t *rows) AD_CHECKED;

#endif
