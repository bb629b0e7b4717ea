/* addend itself, measured: ranks that join the conductor through the public API. */
#ifndef BENCH_LIBRARY_H
#define BENCH_LIBRARY_H
#include "addend/addend.h"
#include "worker.h"

/* The model whose steps and gradients are measured. */
enum { BENCH_BATCH = 8, BENCH_SEQ = 256, BENCH_LAYERS = 6, BENCH_D_MODEL = 384, BENCH_HEADS = 6 };
ad_status bench_recipe(int ranks, ad_recipe **out) AD_CHECKED;

/* Starts `ranks` ranks that join the conductor at `address`; returns when they have ended. */
int bench_library(const char *address, int ranks);
/* Seconds that `ranks` ranks need to start, join and leave; -1 if they do not. */
double bench_startup(int ranks);

/* Steps of that model on this rank. */
typedef struct bench_steps bench_steps;
ad_status bench_steps_create(ad_comm *comm, bench_steps **out) AD_CHECKED;
void bench_steps_destroy(bench_steps *steps);
ad_status bench_steps_run(bench_steps *steps) AD_CHECKED; /* one more */

/* That model's gradients going through the reducer, without the model: summed over all ranks, or, `alone`, only copied
 * into buckets. */
typedef struct bench_gradients bench_gradients;
ad_status bench_gradients_create(ad_comm *comm, int alone, bench_gradients **out) AD_CHECKED;
void bench_gradients_destroy(bench_gradients *gradients);
/* One step; the gradients lie in the buckets already (`in_place`) or in memory of their own. */
ad_status bench_gradients_run(bench_gradients *gradients, int in_place) AD_CHECKED;
size_t bench_gradient_bytes(void); /* of all of them on one rank; 0 if the model cannot be made */

#endif
