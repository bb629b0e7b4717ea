/* Rows that ranks send to experts: the same uneven numbers in every measured program, so this is compiled with peers
 * too. A rank's rows stand in the order of experts; each rank has a run of experts, as equal as they go. */
#ifndef BENCH_ROUTES_H
#define BENCH_ROUTES_H
#include "worker.h"

enum { BENCH_EXPERTS = 8, BENCH_WIDTH = 512, BENCH_RUNS_MAX = BENCH_EXPERTS * BENCH_RANKS_MAX };
static const size_t BENCH_ROW_BYTES = BENCH_WIDTH * sizeof(float);

/* The first of the rows that a rank of `rows` rows has for an expert; BENCH_EXPERTS: their end. */
size_t bench_first_row(size_t rows, int rank, int expert);
/* The first expert of a rank; rank == ranks: their end. */
int bench_first_expert(int rank, int ranks);

/* Rows that are neighbours wherever they are. */
typedef struct bench_run {
  int rank;      /* the sender, and whom they return to */
  size_t sent;   /* the first of them among the sender's rows */
  size_t came;   /* among what comes, sender after sender */
  size_t placed; /* in the order of experts */
  size_t rows;
} bench_run;

/* What one rank has for its experts. */
typedef struct bench_routes {
  int rank;
  size_t sent, received; /* rows */
  int count;
  bench_run runs[BENCH_RUNS_MAX]; /* expert after expert, of each sender after sender */
} bench_routes;
void bench_routes_make(size_t rows, int rank, int ranks, bench_routes *out);

/* Each row says where it is from, for programs to be believed. */
void bench_rows_sign(float *rows, const bench_routes *routes);
int bench_rows_are_placed(const float *rows, const bench_routes *routes);
int bench_rows_are_back(const float *rows, const bench_routes *routes);

#endif
