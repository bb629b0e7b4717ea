/* The reference of a check: the same program in one process, on meshes with the same axes, each of size 1. */
#ifndef CHECK_REFERENCE_H
#define CHECK_REFERENCE_H
#include "check/draws.h"
#include "module/module.h"

typedef struct ad_reference ad_reference;
typedef struct ad_reference_options {
  ad_dtype dtype;      /* dtype in which parameters are updated; 0: the recipe's, and then the f64 run too rounds values
                      * that travel between modules to the communication dtypes */
  int rounds;          /* 1: `dtype` is not f64, and gradients are computed in it too */
  int shards_formulas; /* 1: the ranks' meshes shard formulas, and not only the batch */
  int several_steps; /* the check has several steps, so that a run is kept that is never restarted (for the free-running
                      * difference) */
} ad_reference_options;
/* The reference computes its gradients in f64 without ZeRO, whatever the recipe says. */
ad_status ad_reference_create(const ad_recipe *recipe, const ad_reference_options *options,
                              ad_reference **out) AD_CHECKED;
void ad_reference_destroy(ad_reference *reference);

/* Takes over a parameter's array of the distributed run, in full, from before its step; the next step starts from it.
 * Parameters are numbered as in ad_run_param_at; parts are those before AD_PART_KEPT. */
void ad_reference_restart(ad_reference *reference, size_t index, ad_param_part part, const ad_array *full);
/* Takes over state number `index` of the distributed run, counted over all modules in the order of the program. */
void ad_reference_restart_state(ad_reference *reference, size_t index, const ad_array *full);
/* ad_reference_keep keeps what the fed run has now; ad_reference_start_again brings it back, with no step taken. For
 * checks that are repeated from the first step. */
ad_status ad_reference_keep(ad_reference *reference) AD_CHECKED;
ad_status ad_reference_start_again(ad_reference *reference) AD_CHECKED;
/* Computes the gradients of a step from the values that were taken over, with all injections lifted. `loss_scale`: the
 * exponent that the distributed gradients carry, also in transfers. */
ad_status ad_reference_step(ad_reference *reference, int64_t step, int loss_scale, ad_step_report *out) AD_CHECKED;
/* After the step: the relative error of a state (as ad_compare) beyond what the state may be off by (check/slack.h). */
double ad_reference_state_error(const ad_reference *reference, size_t index, const ad_array *full);
ad_run *ad_reference_run(const ad_reference *reference); /* the f64 run */
/* Makes the f64 run and the fed run take `decisions` as their programs' next choices; does nothing if the program
 * makes none. */
ad_status ad_reference_decide(ad_reference *reference, const int32_t *decisions, size_t count) AD_CHECKED;
double ad_reference_margin(const ad_reference *reference); /* smallest margin of the step's choices; INFINITY: none */
const ad_array *ad_reference_gradient(const ad_reference *reference, size_t index);
/* The parameter's gradient in f64, without the roundings of transfers between modules. */
const ad_array *ad_reference_exact_gradient(const ad_reference *reference, size_t index);
/* The gradients of one process in the recipe's own dtypes, if the reference was created for dtypes that round. */
const ad_draws *ad_reference_draws(const ad_reference *reference);
/* Updates the fed run's parameters with the full distributed gradients; `report`: the distributed step's learning
 * rate, norms and loss scale. */
ad_status ad_reference_feed(ad_reference *reference, const ad_array *const *gradients,
                            const ad_step_report *report) AD_CHECKED;
/* Returns 1 if this array of the distributed run has the fed run's bits: before the first step, if all meshes draw the
 * same initial values; after a step, if both made the same update. */
int ad_reference_agrees(ad_reference *reference, size_t index, ad_param_part part, const ad_array *full);
const ad_array *ad_reference_free_value(const ad_reference *reference,
                                        size_t index); /* the free run's master weights; NULL without several_steps */

#endif
