/* Facts about a reducer and a store, for plans and checks: which reductions will run, how much memory they take. */
#ifndef REDUCE_PLAN_H
#define REDUCE_PLAN_H
#include "addend/store.h"
#include "base/internal.h"

/* One reduction, for plans; ad_reducer_plan's `index` counts reductions in launch order. */
typedef struct ad_reduction_plan {
  int bucket;
  ad_move move;
  ad_axes axes;
  int64_t group_size;
  ad_dtype dtype;
  size_t bytes;         /* bytes that this rank submits: full gradients, or its parts after a reduce_scatter */
  const size_t *params; /* numbers of the parameters */
  size_t param_count;
} ad_reduction_plan;
AD_INTERNAL size_t ad_reducer_plan_count(const ad_reducer *reducer);
AD_INTERNAL ad_reduction_plan ad_reducer_plan(const ad_reducer *reducer, size_t index);
/* The memory that a bucket's gradients are written into, for plans; `index` counts buckets in launch order. */
typedef struct ad_bucket_plan {
  ad_move move; /* the first reduction, over `axes`; both 0: gradients are not reduced */
  ad_axes axes;
  ad_dtype dtype;       /* dtype of the bucket's elements */
  size_t bytes;         /* size of the bucket */
  int lasting;          /* 1: its parameters are `lasting`; these share no bucket with other parameters */
  int window;           /* buckets of one window use the same slots in turn; -1: the bucket has its own memory */
  size_t overtaken;     /* in any step so far: the most buckets of the window that were begun before this was sent */
  const size_t *params; /* indices of its parameters */
  size_t param_count;
} ad_bucket_plan;
/* The precision policy of this parameter's gradient: the spec's, with defaults filled in. */
AD_INTERNAL ad_precision_policy ad_reducer_precision_policy(const ad_reducer *reducer, size_t param);
AD_INTERNAL size_t ad_reducer_bucket_count(const ad_reducer *reducer);
AD_INTERNAL ad_bucket_plan ad_reducer_bucket(const ad_reducer *reducer, size_t index);
/* The slots that a window has needed in the steps so far. */
typedef struct ad_window_plan {
  size_t slots, bytes; /* bytes: of all slots together */
} ad_window_plan;
AD_INTERNAL ad_window_plan ad_reducer_window(const ad_reducer *reducer, int window);
/* The smallest `window` that fits, if the options gave one and steps on backend dry needed more; else 0. */
AD_INTERNAL size_t ad_reducer_window_needed(const ad_reducer *reducer);
/* Bytes of the reducer's sums outside the buckets: shards of reduced gradients, and sums of earlier microbatches. */
AD_INTERNAL size_t ad_reducer_sum_bytes(const ad_reducer *reducer);
/* Bytes on this rank: storage (values, masters), and this rank's share of the node's full copies. */
AD_INTERNAL size_t ad_store_bytes(const ad_store *store);
AD_INTERNAL size_t ad_store_gathered_bytes(const ad_store *store);

#endif
