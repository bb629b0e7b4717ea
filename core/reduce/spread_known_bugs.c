/* Known bugs of parameters that are updated in smaller parts than they are stored (shard.outer_zero), as mutations. */
#include <string.h>
#include "array/array.h"
#include "array/packed.h"
#include "array/transit.h"
#include "base/memory.h"
#include "kernels/kernels.h"
#include "mesh/mesh.h"
#include "reduce/known_bugs.h"
#include "reduce/reducer.h"
#include "reduce/store.h"

/* Known bug: the shards of every microbatch are summed over the replicas at once, but are still added to the sum that
 * is summed over them at the end. What earlier microbatches left then counts once for each replica. */
static void sum_over_replicas_twice(void *context, void *passing) {
  const ad_bucket_passing *pass = passing;
  const ad_bucket *bucket = pass->bucket;
  if (pass->reducer->sync != AD_SYNC_ALL || !bucket->key.rescatters || !bucket->counters.has_sum) return;
  double replicas = (double)ad_mesh_ranks_over(bucket->key.mesh, bucket->key.steps[1].axes);
  const ad_node_stack *sums = &bucket->early_sums;
  size_t numel = sums->levels ? sums->count * sums->numel : ad_array_numel(&bucket->scattered);
  void *values = bucket->scattered.data;
  if (values) ad_cast_scaled(values, bucket->scattered.dtype, values, bucket->scattered.dtype, replicas, numel);
  ((ad_known_bug_scene *)context)->fired = 1;
}

static int gathers_updated(const ad_transit *transit) {
  return transit->what && !strcmp(transit->what, AD_WHAT_UPDATED);
}

/* Known bug: after an update each rank has only the part of its shard that it has updated; the rest is as before. */
static void leave_gather_out(void *context, void *passing) {
  ad_transit_passing *pass = passing;
  if (!gathers_updated(pass->transit)) return;
  if (pass->out->data) ad_packed_copy_common(ad_comm_rank(pass->comm), pass->in, pass->out);
  pass->handled = 1;
  ((ad_known_bug_scene *)context)->fired = 1;
}

/* Writes the members' parts of a packed array, which follow one another, in the reverse order. */
static ad_status reverse_parts(const ad_transit_passing *pass, ad_known_bug_scene *scene) {
  const ad_array *out = pass->out;
  int64_t rank = ad_comm_rank(pass->comm);
  ad_group group = ad_array_group(pass->comm, out, pass->transit->axes);
  size_t size = ad_dtype_size(out->dtype);
  char *copy;
  if (!out->data || ad_group_size(&group) == 1) return AD_OK;
  AD_TRY(ad_new(ad_array_bytes(out), &copy));
  memcpy(copy, out->data, ad_array_bytes(out));
  for (size_t i = 0; i < out->segment_count; i++) {
    size_t start, numel, row = out->segments[i].row;
    ad_packed_stretch(out, rank, i, &start, &numel);
    char *to = (char *)out->data + start * size;
    for (int64_t member = ad_group_size(&group); row && member-- > 0;) {
      ad_span rows = ad_cut((int64_t)(numel / row), member, ad_group_size(&group));
      size_t bytes = (size_t)rows.count * row * size;
      memcpy(to, copy + (start + (size_t)rows.first * row) * size, bytes);
      to += bytes;
    }
    scene->fired |= row && numel / row > 1;
  }
  ad_release(copy);
  return AD_OK;
}

/* Known bug: the updated parts of a shard are put together in another order than that in which they were cut, as if the
 * axes that shard the rows were nested in another order. */
static void gather_in_other_order(void *context, void *passing) {
  ad_transit_passing *pass = passing;
  if (!gathers_updated(pass->transit)) return;
  ad_injection own = ad_injection_set(AD_INJECT_TRANSIT, (ad_injection){0});
  pass->handled = 1;
  pass->status = ad_transit_run(pass->comm, pass->transit, pass->in, pass->out);
  ad_injection_set(AD_INJECT_TRANSIT, own);
  if (!pass->status) pass->status = reverse_parts(pass, context);
}

static const ad_known_bug bugs[] = {
    {.name = "summed-over-replicas-twice",
     .words = "every microbatch's shards are summed over replicas, and their sum again",
     .needs = AD_NEED_TOKENS | AD_NEED_PARTLY_UPDATED | AD_NEED_OVER_REPLICAS | AD_NEED_SHARDS_KEPT,
     .at = {{AD_INJECT_LAUNCH, sum_over_replicas_twice}}},
    {.name = "updated-parts-not-gathered",
     .words = "each rank has only its own part of what was updated",
     .needs = AD_NEED_TOKENS | AD_NEED_PARTLY_UPDATED,
     .at = {{AD_INJECT_TRANSIT, leave_gather_out}}},
    {.name = "updated-parts-in-other-order",
     .words = "updated parts are put together in another order than they were cut in",
     .needs = AD_NEED_TOKENS | AD_NEED_PARTLY_UPDATED,
     .at = {{AD_INJECT_TRANSIT, gather_in_other_order}}},
};

const ad_known_bug *ad_reduce_spread_bugs(size_t *count) {
  *count = sizeof bugs / sizeof *bugs;
  return bugs;
}
