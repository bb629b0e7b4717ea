/* addend itself, measured: ranks that join the conductor through the public API. */
#ifndef BENCH_LIBRARY_H
#define BENCH_LIBRARY_H
#include "addend/core.h"
#include "worker.h"

/* The models whose steps, gradients and parameters are measured: GPTs of 11 million parameters, of 22 million twice as
 * wide in half the layers, so that a step takes seconds with every program, of 13 million, and of 100 million; tiny
 * ones where it must be quick. */
typedef struct bench_model {
  int layers, d_model, heads, seq, batch;
} bench_model;
extern const bench_model bench_small, bench_small_doubled, bench_wide, bench_large, bench_tiny, bench_tiny_doubled;
extern const bench_model bench_staged, bench_tiny_staged;         /* cut over the ranks of a pipeline */
extern const bench_model bench_decomposed, bench_tiny_decomposed; /* whose matrices are decomposed */

/* Starts `ranks` ranks that join the conductor at `address`; returns when they have ended. `plain`: they do what a
 * task is compared with. In a parallel_step they split the batch, in `grouped` there is one
 * product. */
int bench_library(const char *address, int ranks, const bench_model *model, int plain);
/* One rank, whoever started it; returns an exit status. */
int bench_library_rank(ad_comm *comm, const char *address, const bench_model *model, int plain);
/* Seconds that `ranks` ranks need to start, join and leave. The errors of ad_launch. */
ad_status bench_startup(int ranks, double *seconds) AD_CHECKED;

/* Memory of the process's own, on huge pages, as a tape's values and Open MPI's heap at its best are: the kernel reads
 * another process page by page. NULL: there is none. Freed with free(). */
void *bench_ordinary_alloc(size_t bytes);

/* A batch that goes over a bridge between neighbours, and its gradient back (sides.h). */
typedef struct bench_bridge bench_bridge;
ad_status bench_bridge_create(ad_comm *comm, const bench_task *task, bench_bridge **out) AD_CHECKED;
void bench_bridge_destroy(bench_bridge *bridge);
/* There and back; `looks`: AD_INVALID unless all is where it belongs. */
ad_status bench_bridge_run(bench_bridge *bridge, int looks) AD_CHECKED;

#endif
