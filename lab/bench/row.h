/* A row of the JSON document, with the keys that every measurement has. */
#ifndef BENCH_ROW_H
#define BENCH_ROW_H
#include <jansson.h>

#include "library.h"

/* Makes a row with median, least and most of the seconds of `rounds` rounds, which it sorts. floor_seconds and
 * floor_ratio are null and `peers` is empty; the caller sets them. */
json_t *bench_row(const bench_task *task, int ranks, double *seconds, int rounds);
/* A model's sizes as a JSON object. */
json_t *bench_model_words(const bench_model *model);
/* Sorts in ascending order; the median is then seconds[count / 2]. */
void bench_sort(double *seconds, int count);

#endif
