/* A batch that goes over a bridge between neighbours, ranks 2k and 2k + 1: the same parts and numbers in every measured
 * program, so this is compiled with peers too. The directions are the words of a task's `storage`. */
#ifndef BENCH_SIDES_H
#define BENCH_SIDES_H
#include "worker.h"

enum { BENCH_BATCH_ROW = 512 }; /* floats of a row */

/* A rank's part of the whole batch, in floats. */
typedef struct bench_side {
  size_t first, numel;
} bench_side;

typedef enum bench_direction {
  BENCH_FAN_IN,  /* dp=N -> dp=N/2 cp=2: neighbours bring their rows together, and sum their gradients */
  BENCH_FAN_OUT, /* dp=N/2 tp=2 -> dp=N: each keeps its rows, and neighbours bring gradients together */
  BENCH_EQUAL    /* dp=N -> dp=N: nothing moves */
} bench_direction;

typedef struct bench_sides {
  bench_direction direction;
  size_t bytes; /* of the whole; 0: none were made */
  bench_side source, destination;
} bench_sides;
/* Returns 0, or else there is no such direction, or not as many pairs. */
int bench_sides_make(const bench_task *task, int rank, int ranks, bench_sides *out);

/* Each number says where in the whole it stands, for programs to be believed; summed, it is times the addends. */
void bench_side_fill(float *part, const bench_side *side);
int bench_side_holds(const float *part, const bench_side *side, float addends);
/* What comes back to the source: as many addends as ranks left. */
float bench_sides_addends(const bench_sides *sides);

#endif
