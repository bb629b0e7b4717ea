/* A row of the document: the keys that every measurement has. */
#ifndef BENCH_ROW_H
#define BENCH_ROW_H
#include <jansson.h>

#include "library.h"

/* Sorts the seconds of `rounds` rounds; the median, least and most of them are in the row. It says of no floor and of
 * no peer: who compares sets `floor_seconds`, `floor_ratio` and `peers`. */
json_t *bench_row(const bench_task *task, int ranks, double *seconds, int rounds);
/* A model's sizes. */
json_t *bench_model_words(const bench_model *model);
/* Ascending; the median is then seconds[count / 2]. */
void bench_sort(double *seconds, int count);

#endif
