/* Facts about a reducer and a store, for plans and checks: which reductions will run, and how much memory they take. */
#ifndef REDUCE_PLAN_H
#define REDUCE_PLAN_H
#include "addend/store.h"
#include "base/internal.h"

/* Returns the layout in which a parameter is updated: that of its masters, optimizer states and summed gradient. */
static inline const ad_layout *ad_param_update(const ad_param_spec *spec) {
  return spec->update.mesh ? &spec->update : &spec->storage;
}
/* Finds the path of reductions of a gradient (law 4): first to the shards of the stored values, which takes *early
 * steps, then to the layout of updates. AD_TYPE if there is none. */
AD_INTERNAL ad_status ad_gradient_path(const ad_layout *gradient, const ad_layout *storage, const ad_layout *update,
                                       ad_path_step steps[AD_AXIS_COUNT], int *count, int *early) AD_CHECKED;

/* One reduction, for plans. The argument `index` of ad_reducer_plan counts reductions in launch order. */
typedef struct ad_reduction_plan {
  int bucket;
  ad_move move;
  ad_axes axes;
  int64_t group_size;
  int early; /* 1: runs with AD_SYNC_SHARD and AD_SYNC_ALL; 0: only with AD_SYNC_ALL */
  ad_dtype dtype;
  size_t bytes; /* bytes that this rank submits: of full gradients, or of its own parts after a reduce_scatter */
  const size_t *params; /* indices of the reduced parameters */
  size_t param_count;
} ad_reduction_plan;
AD_INTERNAL size_t ad_reducer_plan_count(const ad_reducer *reducer);
AD_INTERNAL ad_reduction_plan ad_reducer_plan(const ad_reducer *reducer, size_t index);
/* The memory into which the gradients of a bucket are written, for plans. The argument `index` of ad_reducer_bucket
 * counts buckets in launch order. */
typedef struct ad_bucket_plan {
  ad_move move; /* the first reduction; `axes`: its axes; both 0: gradients are not reduced */
  ad_axes axes;
  ad_dtype dtype; /* dtype of the bucket's elements */
  /* size of the bucket; with leaves, size of all sums of leaves that this rank holds at the same time */
  size_t bytes;
  /* 0 without leaves. leaf_sums: the most sums of leaves that this rank holds at a time. If the first reduction
   * may run before the end of the step: leaf_shards is the most results of it that this rank holds at a time (after a
   * reduce_scatter, its shards of the sums), leaf_shard_bytes their size. */
  size_t leaf_sums, leaf_shards, leaf_shard_bytes;
  size_t group; /* number of the group (ad_reducer_options) whose settings the bucket has */
  int lasting;  /* 1: the bucket's parameters are `lasting`; such parameters share no bucket with others */
  /* index of the window whose slots this bucket and the window's other buckets use one after another; -1: the bucket
   * has its own memory */
  int window;
  /* the most buckets of the window, in any step so far, whose first gradient arrived after this bucket's first gradient
   * and before this bucket was sent */
  size_t overtaken;
  const size_t *params; /* indices of the bucket's parameters */
  size_t param_count;
} ad_bucket_plan;
/* The precision policy of this parameter's gradient: that of its ad_param_spec, with defaults filled in. */
AD_INTERNAL ad_precision_policy ad_reducer_precision_policy(const ad_reducer *reducer, size_t param);
AD_INTERNAL size_t ad_reducer_bucket_count(const ad_reducer *reducer);
AD_INTERNAL ad_bucket_plan ad_reducer_bucket(const ad_reducer *reducer, size_t index);
/* The slots of a window, as needed in the steps so far. */
typedef struct ad_window_plan {
  size_t slots, bytes; /* bytes: of all slots together */
} ad_window_plan;
AD_INTERNAL ad_window_plan ad_reducer_window(const ad_reducer *reducer, int window);
/* Returns the smallest `window` with which steps succeed, if the `window` of the parameter's group was too small for
 * steps on backend dry; else 0. */
AD_INTERNAL size_t ad_reducer_window_needed(const ad_reducer *reducer, size_t param);
/* Bytes of the reducer's sums outside the buckets: shards of reduced gradients, and sums of earlier microbatches. */
AD_INTERNAL size_t ad_reducer_sum_bytes(const ad_reducer *reducer);
/* ad_store_bytes: bytes of storage (values, masters) on this rank; ad_store_gathered_bytes: bytes of this rank's share
 * of the node's full copies. */
AD_INTERNAL size_t ad_store_bytes(const ad_store *store);
AD_INTERNAL size_t ad_store_gathered_bytes(const ad_store *store);

#endif
