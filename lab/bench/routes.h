/* The numbers of rows that each rank sends to each expert: uneven, but equal in all measured programs; peers use this
 * file, too. A rank's rows are sorted by expert; each rank has consecutive experts, in numbers as equal as possible. */
#ifndef BENCH_ROUTES_H
#define BENCH_ROUTES_H
#include "worker.h"

enum { BENCH_EXPERTS = 8, BENCH_WIDTH = 512, BENCH_RUNS_MAX = BENCH_EXPERTS * BENCH_RANKS_MAX };
static const size_t BENCH_ROW_BYTES = BENCH_WIDTH * sizeof(float);

/* Returns the index, among a rank's `rows` rows, of the first row for this expert; for expert BENCH_EXPERTS, `rows`. */
size_t bench_first_row(size_t rows, int rank, int expert);
/* Returns the first expert of a rank; for rank == ranks, BENCH_EXPERTS. */
int bench_first_expert(int rank, int ranks);

/* Consecutive rows from one sender to one expert, with the index of the first row in three orders. */
typedef struct bench_run {
  int rank;      /* the sender, to which the rows return */
  size_t sent;   /* index among the sender's rows */
  size_t came;   /* index among the received rows, sorted by sender */
  size_t placed; /* index among the received rows, sorted by expert */
  size_t rows;   /* number of rows */
} bench_run;

/* The rows that one rank receives for its experts. */
typedef struct bench_routes {
  int rank;
  size_t sent, received; /* numbers of rows */
  int count;
  bench_run runs[BENCH_RUNS_MAX]; /* sorted by expert, then by sender */
} bench_routes;
void bench_routes_make(size_t rows, int rank, int ranks, bench_routes *out);

/* Writes into each row its rank and index. bench_rows_are_placed and the function after it check by these that rows
 * arrived and returned. */
void bench_rows_sign(float *rows, const bench_routes *routes);
int bench_rows_are_placed(const float *rows, const bench_routes *routes);
int bench_rows_are_back(const float *rows, const bench_routes *routes);

#endif
