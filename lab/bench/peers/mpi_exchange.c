/* The exchange of expert parallelism in MPI: ranks exchange counts, then rows by MPI_Alltoallv, and sort them by
 * expert; then the same back. */
#include "mpi_exchange.h"

#include <mpi.h>
#include <stdlib.h>
#include <string.h>

#include "routes.h"

typedef struct side {
  int counts[BENCH_RANKS_MAX], starts[BENCH_RANKS_MAX]; /* number and offset of the floats for or from each rank */
} side;

static struct {
  bench_routes routes;
  side sent, received;
  int reported[BENCH_EXPERTS * BENCH_RANKS_MAX];
  float *rows, *came, *placed, *back;
} held;

static void let_go(void) {
  float *const memory[] = {held.rows, held.came, held.placed, held.back};
  for (int i = 0; i < 4; i++) free(memory[i]);
  memset(&held, 0, sizeof held);
}

static void count(const bench_team *team) {
  const int own = bench_first_expert(team->rank, team->ranks), end = bench_first_expert(team->rank + 1, team->ranks);
  size_t rows = held.routes.sent, before = 0;
  for (int r = 0; r < team->ranks; r++) {
    size_t start = bench_first_row(rows, team->rank, bench_first_expert(r, team->ranks));
    size_t stop = bench_first_row(rows, team->rank, bench_first_expert(r + 1, team->ranks));
    size_t comes = bench_first_row(rows, r, end) - bench_first_row(rows, r, own);
    held.sent.counts[r] = (int)(stop - start) * BENCH_WIDTH;
    held.sent.starts[r] = (int)start * BENCH_WIDTH;
    held.received.counts[r] = (int)comes * BENCH_WIDTH;
    held.received.starts[r] = (int)before * BENCH_WIDTH;
    before += comes;
  }
}

static int hold(const bench_team *team, size_t rows) {
  if (held.rows && held.routes.sent == rows) return 0;
  let_go();
  bench_routes_make(rows, team->rank, team->ranks, &held.routes);
  count(team);
  held.rows = malloc(rows * BENCH_ROW_BYTES);
  held.back = calloc(rows, BENCH_ROW_BYTES);
  held.came = calloc(held.routes.received, BENCH_ROW_BYTES);
  held.placed = calloc(held.routes.received, BENCH_ROW_BYTES);
  if (!held.rows || !held.back || !held.came || !held.placed) return 1;
  bench_rows_sign(held.rows, &held.routes);
  return 0;
}

static void copy_runs(int back) {
  for (int n = 0; n < held.routes.count; n++) {
    const bench_run *run = &held.routes.runs[n];
    float *came = held.came + run->came * BENCH_WIDTH, *placed = held.placed + run->placed * BENCH_WIDTH;
    memcpy(back ? came : placed, back ? placed : came, run->rows * BENCH_ROW_BYTES);
  }
}

static int report_counts(const bench_team *team) {
  int each = BENCH_EXPERTS / team->ranks, counts[BENCH_EXPERTS];
  for (int e = 0; e < BENCH_EXPERTS; e++)
    counts[e] =
        (int)(bench_first_row(held.routes.sent, team->rank, e + 1) - bench_first_row(held.routes.sent, team->rank, e));
  return MPI_Alltoall(counts, each, MPI_INT, held.reported, each, MPI_INT, MPI_COMM_WORLD);
}

static int send(const float *from, const side *sent, float *to, const side *received) {
  return MPI_Alltoallv(from, sent->counts, sent->starts, MPI_FLOAT, to, received->counts, received->starts, MPI_FLOAT,
                       MPI_COMM_WORLD);
}

int mpi_exchange(const bench_team *team, const bench_task *task) {
  if (BENCH_EXPERTS % team->ranks || hold(team, task->bytes / BENCH_ROW_BYTES) || report_counts(team)) return 1;
  if (send(held.rows, &held.sent, held.came, &held.received)) return 1;
  copy_runs(0);
  int placed = task->iterations || bench_rows_are_placed(held.placed, &held.routes);
  copy_runs(1);
  if (send(held.came, &held.received, held.back, &held.sent)) return 1;
  return !placed || (!task->iterations && !bench_rows_are_back(held.back, &held.routes));
}
