/* The reference of a proof: the same program in one process, every axis of every mesh of size 1 under the same name. */
#ifndef CHECK_REFERENCE_H
#define CHECK_REFERENCE_H
#include "check/draws.h"
#include "module/module.h"

typedef struct ad_reference ad_reference;
typedef struct ad_reference_options {
  ad_dtype dtype;    /* in which optimizers are fed; 0: as the recipe says, and then f64 too is rounded to the dtypes of
                        the wires where values cross */
  int rounds;        /* that is not all f64: gradients are computed in it too */
  int cuts_formulas; /* the ranks cut formulas, not the batch alone */
  int several_steps; /* a run is kept that never restarts, for the free-running difference */
} ad_reference_options;
/* Gradients are computed in f64, without ZeRO, whatever the recipe says. */
ad_status ad_reference_create(const ad_recipe *recipe, const ad_reference_options *options,
                              ad_reference **out) AD_CHECKED;
void ad_reference_destroy(ad_reference *reference);

/* That array of the distributed run before its step, whole; the coming step starts from it. Parameters are numbered as
 * in ad_run_param_at, parts are those before AD_PART_KEPT. */
void ad_reference_restart(ad_reference *reference, size_t index, ad_param_part part, const ad_array *whole);
/* The same for state number `index` of all modules, in the order of the program. */
void ad_reference_restart_state(ad_reference *reference, size_t index, const ad_array *whole);
/* Keeps what the fed optimizers have now; start_again brings it back, with no step taken: for proofs that are repeated
 * from the first step. */
ad_status ad_reference_keep(ad_reference *reference) AD_CHECKED;
ad_status ad_reference_start_again(ad_reference *reference) AD_CHECKED;
/* The step of the gradients, from the values that restarted it, with no mistake planted. `loss_scale`: the exponent
 * that the distributed gradients carry, also where they cross. */
ad_status ad_reference_step(ad_reference *reference, int64_t step, int loss_scale, ad_step_report *out) AD_CHECKED;
/* After it: the error of a state, as ad_compare, beyond what sources may be off by (check/slack.h). */
double ad_reference_state_error(const ad_reference *reference, size_t index, const ad_array *whole);
ad_run *ad_reference_run(const ad_reference *reference); /* that takes the steps */
/* The next step's choices are these, where the program makes any; in the runs of all dtypes but the free one. */
ad_status ad_reference_decide(ad_reference *reference, const int32_t *decisions, size_t count) AD_CHECKED;
double ad_reference_margin(const ad_reference *reference); /* of the step's choices; INFINITY where there is none */
const ad_array *ad_reference_gradient(const ad_reference *reference, size_t index);
/* The same without the wires' roundings. */
const ad_array *ad_reference_exact_gradient(const ad_reference *reference, size_t index);
/* One process in the recipe's own dtypes; where the reference was told that they round. */
const ad_draws *ad_reference_draws(const ad_reference *reference);
/* The optimizers alone, from the same start, fed the whole distributed gradients as they come; `report` has the
 * distributed step's rate, norms and loss scale. */
ad_status ad_reference_feed(ad_reference *reference, const ad_array *const *gradients,
                            const ad_step_report *report) AD_CHECKED;
/* Whether that array of the distributed run is what the fed optimizer has, bit for bit: at the first step, before it,
 * whether all topologies draw the same initial values; after a step, whether it makes the same update. */
int ad_reference_agrees(ad_reference *reference, size_t index, ad_param_part part, const ad_array *whole);
const ad_array *ad_reference_free_value(const ad_reference *reference,
                                        size_t index); /* its master; NULL without several_steps */

#endif
