/* Measures collectives between hosts (hosts.h): addend's backend mpi, peers, and plain TCP on the same network. */
#ifndef BENCH_BETWEEN_H
#define BENCH_BETWEEN_H
#include <jansson.h>

#include "bench.h"

/* Adds a row for each operation of bench_between_op, each size and each world of the options. A failure was reported on
 * standard error. */
ad_status bench_measure_between(const bench_options *options, json_t *rows) AD_CHECKED;

#endif
