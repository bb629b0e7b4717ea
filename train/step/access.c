/* Functions that return the parts of a run. */
#include "program/program.h"
#include "recipe/precision_policy.h"
#include "step/run.h"

ad_comm *ad_run_comm(const ad_run *run) { return run->comm; }
const ad_recipe *ad_run_recipe(const ad_run *run) { return run->recipe; }
ad_program *ad_run_program(const ad_run *run) { return run->program; }

ad_dtype ad_run_compute_dtype(const ad_run *run) { return ad_recipe_compute(run->recipe, run->options.dtype); }

ad_loss_scale *ad_run_loss_scale(ad_run *run) { return &run->loss_scale; }

/* Returns the present exponent of the loss scale, which changes only when a step's norm is judged; 0 if there is no
 * loss scale. */
int ad_run_loss_scale_exponent(const ad_run *run) { return run->loss_scale.enabled ? run->loss_scale.exponent : 0; }

size_t ad_run_data_bytes(const ad_run *run) { return ad_program_data_bytes(run->program); }

double ad_run_transfer_seconds(const ad_run *run) { return 1e-9 * (double)run->trace.transfer; }
