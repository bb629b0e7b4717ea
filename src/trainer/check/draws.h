/* One process's gradients in the recipe's own dtypes, several times over, each time rounded in another way: how far
 * they lie apart is what rounding does to this step. */
#ifndef CHECK_DRAWS_H
#define CHECK_DRAWS_H
#include "check/addends.h"

/* The first is taken as one process computes, the others with every product cut in two at places of their own. */
enum { AD_DRAWS = 8 };

typedef struct ad_draws {
  ad_addends addends;               /* of the run that takes them; run NULL: none are taken */
  float **deviations;               /* [parameters][AD_DRAWS][numel]: each draw's gradient minus the gradient in f64 */
  ad_step_report reports[AD_DRAWS]; /* their losses */
  int cuts_formulas;                /* ranks cut formulas, so products are cut also where their result rounds */
} ad_draws;

/* `run` has one rank. */
ad_status ad_draws_create(ad_run *run, int cuts_formulas, ad_draws *out) AD_CHECKED;
void ad_draws_destroy(ad_draws *draws);
/* Takes them at the run's present values; `reference` has the gradients in f64, of the same step. */
ad_status ad_draws_take(ad_draws *draws, int64_t step, const ad_run *reference) AD_CHECKED;
const float *ad_draws_deviation(const ad_draws *draws, size_t param, int draw);

#endif
