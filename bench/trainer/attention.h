/* Ring attention on sequences cut over cp: whether its arithmetic is spread evenly and its transfers hide behind it. */
#ifndef BENCH_ATTENTION_H
#define BENCH_ATTENTION_H
#include <jansson.h>

#include "bench/bench.h"

/* Appends a row for each sequence, number of ranks (2 and 4 unless options say which; and 1) and variant. A measurement
 * that failed is told on standard error and left out; the first such status is returned. */
ad_status bench_measure_attention(const bench_options *options, json_t *rows) AD_CHECKED;

#endif
