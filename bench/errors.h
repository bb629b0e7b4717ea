/* How soon an error is known to all: from a rank's mistake to the last other rank that has the error in hand. */
#ifndef BENCH_ERRORS_H
#define BENCH_ERRORS_H
#include <jansson.h>

#include "bench.h"

/* Appends a row for every mistake and number of ranks that the options leave; `mistake` says which, `rounds` how many
 * worlds made it. The first failure is told when the others are measured, AD_INTERRUPTED at once. */
ad_status bench_measure_errors(const bench_options *options, json_t *rows) AD_CHECKED;

#endif
