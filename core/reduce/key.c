/* The key of a bucket: the path of its gradients (the collectives that bring a gradient from its own layout to that of
 * its parameter's updates) and the precision policy of its sums. Gradients with the same key may share a bucket. */
#include <string.h>
#include "base/error.h"
#include "layout/nest.h"
#include "reduce/plan.h"
#include "reduce/reducer.h"
#include "mesh/mesh.h"

static ad_status refuse_step(const ad_reduced_param *param, ad_path_step step, const char *why) {
  char axes[96], layout[160], storage[160], update[160];
  int differ = !ad_layout_equal(&param->storage, &param->update);
  ad_layout_print(&param->update, update, sizeof update);
  return ad_fail(AD_INVALID,
                 "parameter `%s` cannot be stored as \"%s\"%s%s with layout \"%s\", because the reduction of its "
                 "gradient needs %s over %s, and %s",
                 param->name, ad_layout_print(&param->storage, storage, sizeof storage),
                 differ ? " and updated as " : "", differ ? update : "",
                 ad_layout_print(&param->layout, layout, sizeof layout), ad_move_name(step.move),
                 ad_axes_print(step.axes, axes, sizeof axes), why);
}

/* Returns 1 if a reduce_scatter by rows gives each rank the rows that it has by the layout `to`, out of `rows` rows. */
static int is_sharded_by_rows(const ad_reducer *reducer, const ad_reduced_param *param, const ad_layout *to,
                              ad_axes axes, int64_t rows) {
  return ad_layout_is_sharded_once(to, param->shape.dim[0], axes, ad_comm_rank(reducer->comm), rows);
}

/* Checks step number `index` of a path whose first `early` steps lead to the shards of the stored values. */
static ad_status check_step(const ad_reducer *reducer, const ad_reduced_param *param, const ad_bucket_key *key,
                            int early, int index) {
  ad_path_step step = key->steps[index];
  const ad_layout *to = index < early ? &param->storage : &param->update;
  if (step.move == AD_MOVE_ALL_REDUCE) return AD_OK;
  if (step.move != AD_MOVE_REDUCE_SCATTER)
    return refuse_step(
        param, step,
        "gradients can be sharded only on axes where they are summed; on other axes storage must equal the layout");
  if (index && index != early)
    return refuse_step(param, step, "a gradient must be sharded in one step; shard the storage on neighbouring axes");
  if (step.to != AD_S(0) || !param->shape.ndim)
    return refuse_step(param, step, "storage can be sharded only along the first dimension: S0");
  ad_shape stored = ad_layout_local_shape(&param->storage, &param->shape, ad_comm_rank(reducer->comm));
  if (!is_sharded_by_rows(reducer, param, to, step.axes, index < early ? param->segment.rows : stored.dim[0]))
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

/* Returns the gradient's layout after the reductions that also give each rank the rows of its stored values: sharded as
 * the storage is, P where the storage is replicated. */
static ad_layout sharded_as_stored(const ad_layout *gradient, const ad_layout *storage) {
  ad_layout sharded = *gradient;
  for (int dim = 0; dim < AD_DIMS_MAX; dim++)
    for (int depth = 0; depth < AD_AXIS_COUNT; depth++) {
      ad_axis axis = ad_layout_sharded_at(storage, dim, depth);
      if (axis != AD_AXIS_COUNT && gradient->type[axis] != storage->type[axis])
        ad_layout_set(&sharded, AD_AXES(axis), storage->type[axis]);
    }
  return sharded;
}

ad_status ad_gradient_path(const ad_layout *gradient, const ad_layout *storage, const ad_layout *update,
                           ad_path_step steps[AD_AXIS_COUNT], int *count, int *early) {
  ad_layout sharded = sharded_as_stored(gradient, storage);
  ad_path_step later[AD_AXIS_COUNT];
  int more;
  AD_TRY(ad_layout_path(gradient, &sharded, steps, early));
  AD_TRY(ad_layout_path(&sharded, update, later, &more));
  memcpy(steps + *early, later, (size_t)more * sizeof *later);  // each axis takes one step at most
  *count = *early + more;
  return AD_OK;
}

ad_status ad_bucket_key_find(const ad_reducer *reducer, const ad_reduced_param *param, ad_bucket_key *key) {
  int early;
  ad_status status =
      ad_gradient_path(&param->gradient, &param->storage, &param->update, key->steps, &key->step_count, &early);
  if (status) return ad_fail_in(status, "parameter `%s`", param->name);
  if (ad_reducer_has_leaves(reducer)) AD_TRY(put_leaves_first(param, key));
  for (int i = 0; i < key->step_count; i++) AD_TRY(check_step(reducer, param, key, early, i));
  key->mesh = param->layout.mesh;
  key->policy = param->policy;
  key->scatters = key->step_count && key->steps[0].move == AD_MOVE_REDUCE_SCATTER;
  key->rescatters = key->step_count > 1 && key->steps[1].move == AD_MOVE_REDUCE_SCATTER;
  key->early = early && key->scatters;
  key->group = param->group;
  key->lasting = reducer->groups[param->group].reuses && param->lasting;
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
  if (a->step_count != b->step_count || a->early != b->early) return 0;
  if (a->lasting != b->lasting || a->group != b->group) return 0;
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
