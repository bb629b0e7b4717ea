/* Collectives between hosts (hosts.h): addend's engine mpi, peers and the network itself in turns. */
#ifndef BENCH_BETWEEN_H
#define BENCH_BETWEEN_H
#include <jansson.h>

#include "bench.h"

/* The operations that are measured between hosts, one by one; NULL after the last. */
const char *bench_between_op(int index);
/* Adds a row for each of them, size and world of the options. A failure has been told on standard error. */
ad_status bench_measure_between(const bench_options *options, json_t *rows) AD_CHECKED;

#endif
