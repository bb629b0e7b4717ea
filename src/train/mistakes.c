/* The known mistakes around a step. Nothing here is part of what a step does. */
#include "train/mistakes.h"

#include <math.h>
#include "base/kernels.h"
#include "train/run.h"

enum { SPOILED_RANK = 1 }; /* the one rank that makes them */

static int is_spoiled(const ad_mistake_scene *scene) { return scene->rank == SPOILED_RANK; }

/* One rank's slice of the batch is shifted by one. */
static void shift_rows(void *context, void *passing) {
  ad_mistake_scene *scene = context;
  if (!is_spoiled(scene)) return;
  ((ad_span *)passing)->first++;
  scene->fired = 1;
}

/* After the reduction one rank's copy of the last gradient of which it holds something is another. */
static void perturb(void *context, void *passing) {
  ad_mistake_scene *scene = context;
  const ad_run *run = passing;
  if (!is_spoiled(scene)) return;
  for (size_t i = ad_run_param_count(run); i-- > 0;) {
    const ad_array *gradient = ad_run_part(run, i, AD_PART_GRADIENT);
    double amount = 1e-3;
    if (!gradient || !gradient->data || !ad_array_numel(gradient)) continue;
    ad_accumulate(gradient->data, gradient->dtype, &amount, AD_F64, 1, 1);
    scene->fired = 1;
    return;
  }
}

/* All gradients are averaged over the ranks whose tokens they come from, those of experts over the copies of the expert
 * alone. */
static void divide_by_own_group(void *context, void *passing) {
  ad_mistake_scene *scene = context;
  const ad_run *run = passing;
  for (size_t i = 0; i < ad_run_param_count(run); i++) {
    const ad_layout *layout = &ad_run_param_at(run, i).spec->layout;
    const ad_array *gradient = ad_run_part(run, i, AD_PART_GRADIENT);
    if (!ad_type_is_cut(layout->type[AD_EP])) continue;
    scene->ratio = (double)ad_mesh_axis_size(layout->mesh, AD_EP);
    if (!gradient || !gradient->data) continue;
    ad_cast_scaled(gradient->data, gradient->dtype, gradient->data, gradient->dtype, scene->ratio,
                   ad_array_numel(gradient));
    scene->fired = 1;
  }
}

/* The gradient overflows on one rank, which then decides for itself. */
static void overflow(void *context, void *passing) {
  ad_mistake_scene *scene = context;
  if (!is_spoiled(scene)) return;
  *(double *)passing = INFINITY;
  scene->fired = 1;
}

static const ad_mistake mistakes[] = {
    {.name = "shifted-slice",
     .words = "one rank's slice of the batch is shifted by one",
     .needs = AD_NEED_TOKENS | AD_NEED_SECOND_RANK_TOKENS,
     .at = {{AD_SEAM_ROWS, shift_rows}}},
    {.name = "perturbed-replica",
     .words = "one replica of a parameter is changed",
     .needs = AD_NEED_RANKS,
     .at = {{AD_SEAM_GRADIENTS, perturb}}},
    {.name = "experts-divided-by-own-group",
     .catalogue = 12,
     .words = "the gradients of experts are divided by the ranks that have a copy, not by those that have tokens",
     .needs = AD_NEED_TOKENS | AD_NEED_SPREAD_EXPERTS,
     .at = {{AD_SEAM_GRADIENTS, divide_by_own_group}}},
    {.name = "overflow-per-rank",
     .words = "a rank that sees an overflow skips the step alone",
     .needs = AD_NEED_F16 | AD_NEED_RANKS,
     .of_dtype = 1,
     .at = {{AD_SEAM_NORM, overflow}}},
};

const ad_mistake *ad_train_mistakes(size_t *count) {
  *count = sizeof mistakes / sizeof *mistakes;
  return mistakes;
}
