/* Measures how soon all ranks know of an error: the seconds from one rank's mistake until the last other rank's call
 * has returned the error. */
#ifndef BENCH_ERRORS_H
#define BENCH_ERRORS_H
#include <jansson.h>

#include "bench.h"

/* Appends a row for each mistake and number of ranks in the options, with the mistake's name (`mistake`) and how often
 * it was made (`rounds`). After a failure the other cases are still measured, then the first failure is returned;
 * AD_INTERRUPTED is returned immediately. */
ad_status bench_measure_errors(const bench_options *options, json_t *rows) AD_CHECKED;

#endif
