/* The key of a bucket: the path of its gradients (the collectives that bring a gradient from its own layout to its
 * parameter's storage layout) and the precision policy of its sums. Gradients with the same key may share a bucket. */
#include <string.h>
#include "base/error.h"
#include "layout/nest.h"
#include "reduce/reducer.h"
#include "mesh/mesh.h"

static ad_status refuse_step(const ad_reduced_param *param, ad_path_step step, const char *why) {
  char axes[96], layout[160], storage[160];
  return ad_fail(AD_INVALID,
                 "parameter `%s` cannot be stored as \"%s\" with layout \"%s\", because the reduction of its gradient "
                 "needs %s over %s, and %s",
                 param->name, ad_layout_print(&param->storage, storage, sizeof storage),
                 ad_layout_print(&param->layout, layout, sizeof layout), ad_move_name(step.move),
                 ad_axes_print(step.axes, axes, sizeof axes), why);
}

/* Returns 1 if a reduce_scatter by rows gives each rank the rows that it has by the storage layout, else 0. */
static int is_sharded_by_rows(const ad_reducer *reducer, const ad_reduced_param *param, ad_axes axes) {
  return ad_layout_is_sharded_once(&param->storage, param->shape.dim[0], axes, ad_comm_rank(reducer->comm),
                                   param->segment.rows);
}

static ad_status check_step(const ad_reducer *reducer, const ad_reduced_param *param, const ad_bucket_key *key,
                            int index) {
  ad_path_step step = key->steps[index];
  if (step.move == AD_MOVE_ALL_REDUCE) return AD_OK;
  if (step.move != AD_MOVE_REDUCE_SCATTER)
    return refuse_step(
        param, step,
        "gradients can be sharded only on axes where they are summed; on other axes storage must equal the layout");
  if (index)
    return refuse_step(param, step, "a gradient must be sharded in one step; shard the storage on neighbouring axes");
  if (step.to != AD_S(0) || !param->shape.ndim)
    return refuse_step(param, step, "storage can be sharded only along the first dimension: S0");
  if (!is_sharded_by_rows(reducer, param, step.axes))
    return refuse_step(param, step,
                       "the parts of the storage differ from the parts of one sharding over all these ranks; shard the "
                       "storage on one axis");
  return AD_OK;
}

/* For leaves: makes steps over data-parallel axes separate from steps over other axes, and puts them first. They sum by
 * the tree over the leaves. If a sum over another axis came before, its bits would depend on which leaves a rank has
 * already added, and so on the number of ranks. */
static ad_status put_leaves_first(const ad_reduced_param *param, ad_bucket_key *key) {
  ad_path_step steps[AD_AXIS_COUNT] = {0};
  int count = 0;
  for (int others = 0; others < 2; others++)
    for (int i = 0; i < key->step_count; i++) {
      ad_path_step step = key->steps[i];
      if (step.move != AD_MOVE_ALL_REDUCE && step.axes & ~AD_AXES_DP)
        return refuse_step(param, step, "with leaves a gradient can be sharded only over dp_replicate and dp_shard");
      step.axes &= others ? ~AD_AXES_DP : AD_AXES_DP;
      if (step.axes) steps[count++] = step;
    }
  memcpy(key->steps, steps, sizeof steps);
  key->step_count = count;
  return AD_OK;
}

ad_status ad_bucket_key_find(const ad_reducer *reducer, const ad_reduced_param *param, ad_bucket_key *key) {
  ad_status status = ad_layout_path(&param->gradient, &param->storage, key->steps, &key->step_count);
  if (status) return ad_fail_in(status, "parameter `%s`", param->name);
  if (ad_reducer_has_leaves(reducer)) AD_TRY(put_leaves_first(param, key));
  for (int i = 0; i < key->step_count; i++) AD_TRY(check_step(reducer, param, key, i));
  key->mesh = param->layout.mesh;
  key->policy = param->policy;
  key->scatters = key->step_count && key->steps[0].move == AD_MOVE_REDUCE_SCATTER;
  key->early = key->scatters;
  key->lasting = reducer->options.reuses && param->lasting;
  key->comm_dtype = key->step_count ? key->policy.reduce : key->policy.accumulate;
  return AD_OK;
}

static int same_policy(const ad_precision_policy *a, const ad_precision_policy *b) {
  return a->param == b->param && a->grad == b->grad && a->raw == b->raw && a->reduce == b->reduce &&
         a->accumulate == b->accumulate;
}

static int same_step(ad_path_step a, ad_path_step b) {
  return a.move == b.move && a.axes == b.axes && a.from == b.from && a.to == b.to;
}

int ad_bucket_keys_are_identical(const ad_bucket_key *a, const ad_bucket_key *b) {
  if (!ad_mesh_equal(a->mesh, b->mesh) || !same_policy(&a->policy, &b->policy)) return 0;
  if (a->step_count != b->step_count || a->lasting != b->lasting) return 0;
  for (int i = 0; i < a->step_count; i++) {
    if (!same_step(a->steps[i], b->steps[i])) return 0;
  }
  return 1;
}

int64_t ad_bucket_ranks(const ad_bucket_key *key, int step) {
  int64_t ranks = 1;
  for (int i = 0; i <= step && i < key->step_count; i++) ranks *= ad_mesh_ranks_over(key->mesh, key->steps[i].axes);
  return ranks;
}
