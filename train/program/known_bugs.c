/* The known bugs inside the phases of programs. They act at injection points; the phases themselves contain none of
 * them. */
#include "program/known_bugs.h"

#include "array/array.h"
#include "mesh/mesh.h"

/* Returns 1 if the samples of the gradient are sharded over several ranks in equal parts. */
static int is_shared_out(const ad_array *gradient) {
  int64_t ranks = ad_mesh_ranks_over(gradient->layout.mesh, ad_layout_sharded_axes(&gradient->layout));
  return ranks > 1 && ad_array_numel(gradient) && gradient->shape.dim[0] % ranks == 0;
}

ad_needs ad_program_known_bugs_show(const ad_state_passing *at) {
  return is_shared_out(at->gradient) ? AD_NEED_OWN_SOURCES : 0;
}

/* The bug: sums the gradient of sources over ranks, although each rank's sources belong to its own samples. */
static void sum_over_samples(void *context, void *passing) {
  const ad_state_passing *at = passing;
  const ad_array *gradient = at->gradient;
  ad_collective sum = {
      .size = sizeof sum, .op = AD_ALL_REDUCE, .in = gradient->data, .out = gradient->data, .site = AD_HERE};
  if (!is_shared_out(gradient)) return;
  sum.group = ad_mesh_group(gradient->layout.mesh, ad_layout_sharded_axes(&gradient->layout), ad_comm_rank(at->comm));
  sum.count = ad_array_numel(gradient);
  sum.dtype = gradient->dtype;
  if (!ad_comm_run(at->comm, &sum)) ((ad_known_bug_scene *)context)->fired = 1;
}

static const ad_known_bug bugs[] = {
    {.name = "sources-summed-over-samples",
     .words = "the gradient of sources that belong to a rank's samples is summed over the ranks",
     .needs = AD_NEED_TOKENS | AD_NEED_OWN_SOURCES,
     .at = {{AD_INJECT_STATE, sum_over_samples}}},
};

const ad_known_bug *ad_program_known_bugs(size_t *count) {
  *count = sizeof bugs / sizeof *bugs;
  return bugs;
}
