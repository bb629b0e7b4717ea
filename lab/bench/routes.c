/* Computes which rank sends how many rows to which expert. peers/torch_exchange.py has the same numbers in Python. */
#include "routes.h"

enum { SHARES = 7 };

/* Returns an expert's share of a rank's rows, relative to the shares of other experts: 1 to SHARES. */
static size_t share(int rank, int expert) { return 1 + (size_t)(3 * rank + 5 * expert) % SHARES; }

static size_t shares_before(int rank, int expert) {
  size_t sum = 0;
  for (int e = 0; e < expert; e++) sum += share(rank, e);
  return sum;
}

size_t bench_first_row(size_t rows, int rank, int expert) {
  return rows * shares_before(rank, expert) / shares_before(rank, BENCH_EXPERTS);
}

int bench_first_expert(int rank, int ranks) { return rank * BENCH_EXPERTS / ranks; }

static void add_run(bench_routes *out, int sender, int expert, int first, size_t before) {
  bench_run *run = &out->runs[out->count++];
  size_t start = bench_first_row(out->sent, sender, expert);
  run->rank = sender;
  run->sent = start;
  run->came = before + start - bench_first_row(out->sent, sender, first);
  run->placed = out->received;
  run->rows = bench_first_row(out->sent, sender, expert + 1) - start;
  out->received += run->rows;
}

void bench_routes_make(size_t rows, int rank, int ranks, bench_routes *out) {
  int first = bench_first_expert(rank, ranks), end = bench_first_expert(rank + 1, ranks);
  out->rank = rank, out->sent = rows, out->received = 0, out->count = 0;
  for (int expert = first; expert < end; expert++) {
    size_t before = 0;
    for (int sender = 0; sender < ranks; sender++) {
      add_run(out, sender, expert, first, before);
      before += bench_first_row(rows, sender, end) - bench_first_row(rows, sender, first);
    }
  }
}

static float signature(int rank, size_t row) { return (float)((size_t)rank << 16 | (row & 0xffff)); }

static int is_signed(const float *row, int rank, size_t sent) {
  return row[0] == signature(rank, sent) && row[BENCH_WIDTH - 1] == row[0];
}

void bench_rows_sign(float *rows, const bench_routes *routes) {
  for (size_t i = 0; i < routes->sent; i++)
    for (size_t k = 0; k < BENCH_WIDTH; k++) rows[i * BENCH_WIDTH + k] = signature(routes->rank, i);
}

int bench_rows_are_placed(const float *rows, const bench_routes *routes) {
  for (int n = 0; n < routes->count; n++) {
    const bench_run *run = &routes->runs[n];
    for (size_t i = 0; i < run->rows; i++)
      if (!is_signed(rows + (run->placed + i) * BENCH_WIDTH, run->rank, run->sent + i)) return 0;
  }
  return 1;
}

int bench_rows_are_back(const float *rows, const bench_routes *routes) {
  for (size_t i = 0; i < routes->sent; i++)
    if (!is_signed(rows + i * BENCH_WIDTH, routes->rank, i)) return 0;
  return 1;
}
