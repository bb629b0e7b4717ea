/* Collectives between hosts (hosts.h): addend's engine mpi, peers and the network itself in turns. */
#ifndef BENCH_BETWEEN_H
#define BENCH_BETWEEN_H
#include <jansson.h>

#include "bench.h"

/* Adds a row for each of bench_between_op's operations, size and world of the options. A failure has been told on
 * standard error. */
ad_status bench_measure_between(const bench_options *options, json_t *rows) AD_CHECKED;

#endif
