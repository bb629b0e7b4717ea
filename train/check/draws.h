/* Computes one process's gradients in the recipe's own dtypes several times, each time rounded differently. How far
 * these results, the draws, differ shows what rounding does to this step. */
#ifndef CHECK_DRAWS_H
#define CHECK_DRAWS_H
#include "check/addends.h"

/* The number of draws. The first draw is computed as one process usually computes; in the others every matrix product
 * is split in two, at a place that depends on the draw. */
enum { AD_DRAWS = 8 };

typedef struct ad_draws {
  /* sums of the addends of the run that takes the draws; `addends.run` is NULL if no draws are taken */
  ad_addends addends;
  float **deviations;               /* [parameters][AD_DRAWS][numel]: each draw's gradient minus the gradient in f64 */
  ad_step_report reports[AD_DRAWS]; /* the report of each draw, with its losses */
  /* 1: the ranks' mesh shards formulas, so products are split even if their results are rounded */
  int shards_formulas;
} ad_draws;

/* Makes memory for the draws that `run`, a run of one rank, will take. */
ad_status ad_draws_create(ad_run *run, int shards_formulas, ad_draws *out) AD_CHECKED;
void ad_draws_destroy(ad_draws *draws);
/* Computes the gradients of step `step` AD_DRAWS times, from the values that the run's parameters have now, each time
 * with another order of summation. `reference` has the same step's gradients in f64. */
ad_status ad_draws_take(ad_draws *draws, int64_t step, const ad_run *reference) AD_CHECKED;
/* Returns [numel]: draw number `draw`'s gradient of parameter `param` minus the parameter's gradient in f64. */
const float *ad_draws_deviation(const ad_draws *draws, size_t param, int draw);

#endif
