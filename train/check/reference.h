/* The reference of a check: the same program in one process, on meshes with the same axes, each of size 1. */
#ifndef CHECK_REFERENCE_H
#define CHECK_REFERENCE_H
#include "check/cuts.h"
#include "check/draws.h"
#include "module/module.h"

typedef struct ad_reference ad_reference;
typedef struct ad_reference_options {
  /* dtype in which parameters are updated; 0: the recipe's dtypes. With 0 the run in f64, too, rounds values that
   * travel between modules to their communication dtypes */
  ad_dtype dtype;
  const ad_cuts *cuts; /* where the distributed run divides parameters; needed while the reference is created. NULL:
                        * nowhere */
  int rounds;          /* 1: `dtype` is not f64, and gradients are computed in `dtype`, too */
  int shards_formulas; /* 1: the ranks' meshes shard formulas, and not only the batch */
  /* 1: the check has several steps, so a further run is kept that never restarts from the distributed values (the
   * free-running difference) */
  int several_steps;
} ad_reference_options;
/* Creates the reference. Its f64 run computes gradients without ZeRO, whatever the recipe has. */
ad_status ad_reference_create(const ad_recipe *recipe, const ad_reference_options *options,
                              ad_reference **out) AD_CHECKED;
void ad_reference_destroy(ad_reference *reference);

/* Copies a parameter's full array, as the distributed run had it before its step; the reference's next step starts from
 * it. Parameters are numbered as in ad_run_param_at; `part` must be before AD_PART_KEPT. */
void ad_reference_restart(ad_reference *reference, size_t index, ad_param_part part, const ad_array *full);
/* Copies state `index` of the distributed run, counted over all modules in the order of the program. */
void ad_reference_restart_state(ad_reference *reference, size_t index, const ad_array *full);
/* ad_reference_keep saves the parameters and states that the fed run has now; ad_reference_start_again restores them,
 * with no step taken. For checks that are repeated from the first step. The fed run is the reference's run that is
 * updated with the distributed gradients (ad_reference_feed). */
ad_status ad_reference_keep(ad_reference *reference) AD_CHECKED;
ad_status ad_reference_start_again(ad_reference *reference) AD_CHECKED;
/* Computes the gradients of a step from the values that were copied, without any mutation. `loss_scale` is the exponent
 * of the loss scale that the distributed gradients have, also in transfers. */
ad_status ad_reference_step(ad_reference *reference, int64_t step, int loss_scale, ad_step_report *out) AD_CHECKED;
/* Returns, after the step, the relative error of a state (as ad_compare computes it) beyond what the state may be off
 * by (check/slack.h). */
double ad_reference_state_error(const ad_reference *reference, size_t index, const ad_array *full);
ad_run *ad_reference_run(const ad_reference *reference); /* returns the run that computes in f64 */
/* Makes the f64 run and the fed run (ad_reference_feed) use `decisions` as their programs' next choices; does nothing
 * if the program makes no choices. */
ad_status ad_reference_decide(ad_reference *reference, const int32_t *decisions, size_t count) AD_CHECKED;
/* returns the smallest margin of the step's choices; INFINITY: there are none */
double ad_reference_margin(const ad_reference *reference);
/* Returns the parameter's gradient in f64; NULL if it is frozen. */
const ad_array *ad_reference_gradient(const ad_reference *reference, size_t index);
/* Returns the parameter's gradient in f64, without the roundings of transfers between modules. */
const ad_array *ad_reference_exact_gradient(const ad_reference *reference, size_t index);
/* Returns the gradients of one process in the recipe's own dtypes, if the reference was created for dtypes that
 * round. */
const ad_draws *ad_reference_draws(const ad_reference *reference);
/* Updates the parameters of the fed run, one of the reference's runs, with the full distributed gradients, which are NULL
 * for frozen parameters. `report` has
 * the distributed step's learning rate, norms and loss scale. */
ad_status ad_reference_feed(ad_reference *reference, const ad_array *const *gradients,
                            const ad_step_report *report) AD_CHECKED;
/* Returns 1 if this array of the distributed run has the same bits as that of the fed run (ad_reference_feed). Before
 * the first step this means that all meshes draw the same initial values; after a step, that both made the same
 * update. */
int ad_reference_agrees(ad_reference *reference, size_t index, ad_param_part part, const ad_array *full);
/* Returns the master weights of the run that never restarts from distributed values; NULL without several_steps. */
const ad_array *ad_reference_free_value(const ad_reference *reference, size_t index);

#endif
