/* Makes rows of the JSON document. */
#include "row.h"

#include <stdlib.h>

static int compare(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

void bench_sort(double *seconds, int count) { qsort(seconds, (size_t)count, sizeof *seconds, compare); }

json_t *bench_row(const bench_task *task, int ranks, double *seconds, int rounds) {
  bench_sort(seconds, rounds);
  return json_pack("{ss ss ss sI si ss ss sb sf sf sf si sn sn s{}}", "op", task->op, "dtype", task->dtype, "storage",
                   task->storage, "bytes", (json_int_t)task->bytes, "ranks", ranks, "backend", "shm", "memory",
                   task->memory, "in_place", task->in_place, "seconds_median", seconds[rounds / 2], "seconds_min",
                   seconds[0], "seconds_max", seconds[rounds - 1], "rounds", rounds, "floor_seconds", "floor_ratio",
                   "peers");
}

json_t *bench_model_words(const bench_model *model) {
  return json_pack("{si si si si si}", "layers", model->layers, "d_model", model->d_model, "heads", model->heads, "seq",
                   model->seq, "batch", model->batch);
}
