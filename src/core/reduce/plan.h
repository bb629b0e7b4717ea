/* What will be reduced and what memory that takes, as plans and proofs read it from a reducer and a store. */
#ifndef REDUCE_PLAN_H
#define REDUCE_PLAN_H
#include "addend/store.h"
#include "base/internal.h"

/* What will be reduced, for plans: `index` counts reductions in launch order. */
typedef struct ad_reduction_plan {
  int bucket;
  ad_move move;
  ad_axes axes;
  int64_t group_size;
  ad_dtype dtype;
  size_t bytes;         /* of what this rank hands in: whole gradients, after a reduce_scatter its parts */
  const size_t *params; /* their indices */
  size_t param_count;
} ad_reduction_plan;
AD_INTERNAL size_t ad_reducer_plan_count(const ad_reducer *reducer);
AD_INTERNAL ad_reduction_plan ad_reducer_plan(const ad_reducer *reducer, size_t index);
/* The memory that a bucket's gradients are written into, for plans; `index` counts buckets in launch order. */
typedef struct ad_bucket_plan {
  ad_move move; /* of the first reduction, over these axes; 0, 0: none, the gradients stay as they are */
  ad_axes axes;
  ad_dtype dtype;       /* of its elements */
  size_t bytes;         /* of the bucket */
  int lasting;          /* of parameters that are `lasting`, and apart for that */
  int window;           /* buckets of one window take slots in turn; -1: memory of its own */
  size_t overtaken;     /* how many others of its window were begun, in a step so far, before it was sent */
  const size_t *params; /* their indices */
  size_t param_count;
} ad_bucket_plan;
/* By which this parameter's gradient got its bucket: its spec's, complete. */
AD_INTERNAL ad_contract ad_reducer_contract(const ad_reducer *reducer, size_t param);
AD_INTERNAL size_t ad_reducer_bucket_count(const ad_reducer *reducer);
AD_INTERNAL ad_bucket_plan ad_reducer_bucket(const ad_reducer *reducer, size_t index);
/* The slots that steps so far took. */
typedef struct ad_window_plan {
  size_t slots, bytes; /* all of them together */
} ad_window_plan;
AD_INTERNAL ad_window_plan ad_reducer_window(const ad_reducer *reducer, int window);
/* Where `window` was given and steps on engine dry needed more: the least that fits; else 0. */
AD_INTERNAL size_t ad_reducer_window_needed(const ad_reducer *reducer);
/* The bytes of these that hold sums beside the buckets: shards of the reduced gradient, sums between microbatches. */
AD_INTERNAL size_t ad_reducer_sum_bytes(const ad_reducer *reducer);
/* Bytes on this rank: storage (values, masters), and this rank's share of the node's whole copies. */
AD_INTERNAL size_t ad_store_bytes(const ad_store *store);
AD_INTERNAL size_t ad_store_gathered_bytes(const ad_store *store);

#endif
