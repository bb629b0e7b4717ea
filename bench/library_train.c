/* Steps of the measured model, and the recipe that says what it is. */
#include <stdio.h>
#include <stdlib.h>

#include "library.h"

static const char RECIPE[] =
    "name: bench\n"
    "model: {kind: gpt, layers: %d, d_model: %d, heads: %d, tied: false}\n"
    "data: {text: [/usr/share/common-licenses], seq: %d}\n"
    "mesh: dp_replicate=%d\n"
    "train: {global_batch: %d, microbatches: 1, steps: 1000000, lr: 1e-4, clip: 1.0, seed: 1}\n";

ad_status bench_recipe(int ranks, ad_recipe **out) {
  char text[sizeof RECIPE + 64];
  snprintf(text, sizeof text, RECIPE, BENCH_LAYERS, BENCH_D_MODEL, BENCH_HEADS, BENCH_SEQ, ranks, BENCH_BATCH);
  return ad_recipe_parse(text, "bench", NULL, 0, out);
}

struct bench_steps {
  ad_recipe *recipe;
  ad_run *run;
  int64_t step;
};

ad_status bench_steps_create(ad_comm *comm, bench_steps **out) {
  bench_steps *steps = calloc(1, sizeof *steps);
  if (!steps) return AD_MEMORY;
  ad_status status = bench_recipe((int)ad_comm_size(comm), &steps->recipe);
  if (!status) status = ad_run_create(comm, steps->recipe, NULL, &steps->run);
  if (status) return bench_steps_destroy(steps), status;
  *out = steps;
  return AD_OK;
}

void bench_steps_destroy(bench_steps *steps) {
  if (!steps) return;
  if (steps->run) ad_run_destroy(steps->run);
  if (steps->recipe) ad_recipe_destroy(steps->recipe);
  free(steps);
}

ad_status bench_steps_run(bench_steps *steps) {
  ad_step_report report;
  return ad_run_step(steps->run, steps->step++, &report);
}
