/* Measures addend itself: its ranks join the conductor and do tasks through the public API. */
#ifndef BENCH_LIBRARY_H
#define BENCH_LIBRARY_H
#include "addend/core.h"
#include "worker.h"

/* Models whose steps, gradients and parameters are measured. bench_small: a GPT of 11 million parameters;
 * bench_small_doubled: 22 million, twice as wide with half the layers, with steps of seconds; bench_wide: 13 million;
 * bench_large: 100 million; bench_tiny and bench_tiny_doubled: for --quick. */
typedef struct bench_model {
  int layers, d_model, heads, seq, batch;
} bench_model;
extern const bench_model bench_small, bench_small_doubled, bench_wide, bench_large, bench_tiny, bench_tiny_doubled;
extern const bench_model bench_staged, bench_tiny_staged;         /* for pipelines */
extern const bench_model bench_leaves;                            /* for leaves of the batch */
extern const bench_model bench_decomposed, bench_tiny_decomposed; /* for the decomposition of their matrices */

/* Starts `ranks` ranks that join the conductor at `address`; returns when they have ended. If `plain` is not 0, they
 * do a simpler task for comparison: a parallel_step splits only the batch; `grouped` is one product of all rows;
 * `leaves` has microbatches instead of leaves or, if `plain` is 2, a single microbatch. */
int bench_library(const char *address, int ranks, const bench_model *model, int plain);
/* Does the work of one rank, started by any launcher; returns an exit status. */
int bench_library_rank(ad_comm *comm, const char *address, const bench_model *model, int plain);
/* Measures the seconds that `ranks` ranks need to start, join and leave. Fails as ad_launch does. */
ad_status bench_startup(int ranks, double *seconds) AD_CHECKED;

/* A batch that goes over a bridge between pairs of ranks, and its gradient back (sides.h). */
typedef struct bench_bridge bench_bridge;
ad_status bench_bridge_create(ad_comm *comm, const bench_task *task, bench_bridge **out) AD_CHECKED;
void bench_bridge_destroy(bench_bridge *bridge);
/* Runs forward and backward once. If `looks` is 1, also checks the results; AD_INVALID if they are wrong. */
ad_status bench_bridge_run(bench_bridge *bridge, int looks) AD_CHECKED;

#endif
