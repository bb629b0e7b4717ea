/* A batch that goes over a bridge between pairs of ranks, 2k and 2k + 1. Its parts and numbers are equal in all
 * measured programs, so peers are compiled with this file, too. A task's `storage` names the direction. */
#ifndef BENCH_SIDES_H
#define BENCH_SIDES_H
#include "worker.h"

enum { BENCH_BATCH_ROW = 512 }; /* floats in a row of the batch */

/* A rank's part of the global batch: offset and length in floats. */
typedef struct bench_side {
  size_t first, numel;
} bench_side;

typedef enum bench_direction {
  BENCH_FAN_IN,  /* dp=N -> dp=N/2 cp=2: both ranks of a pair get the pair's rows; backward sums their gradients */
  BENCH_FAN_OUT, /* dp=N/2 tp=2 -> dp=N: each rank keeps half of the pair's rows; backward gathers the gradients */
  BENCH_EQUAL    /* dp=N -> dp=N: no data moves */
} bench_direction;

typedef struct bench_sides {
  bench_direction direction;
  size_t bytes; /* of the global batch; 0: not set yet */
  bench_side source, destination;
} bench_sides;
/* Returns 0, or 1 if there is no such direction or the number of ranks is odd. */
int bench_sides_make(const bench_task *task, int rank, int ranks, bench_sides *out);

/* Fills a part with numbers that depend on the position in the global batch. bench_side_holds checks that a part has
 * these numbers times `addends`. */
void bench_side_fill(float *part, const bench_side *side);
int bench_side_holds(const float *part, const bench_side *side, float addends);
/* Returns the number of gradients that are summed on the way back to the source. */
float bench_sides_addends(const bench_sides *sides);

#endif
