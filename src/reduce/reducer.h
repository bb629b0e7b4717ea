/* The reducer's own objects: parameters, buckets, rosters. Private to reduce/. */
#ifndef REDUCE_REDUCER_H
#define REDUCE_REDUCER_H
#include "addend/reduce.h"

typedef struct ad_reduced_param {
  char *name;
  ad_shape shape;
  ad_layout layout, storage, gradient;  // gradient: the dual of layout
  ad_contract contract;
  size_t bucket, offset, numel;  // of this rank's part, in elements
  int filled;                    // the bucket's memory holds a sum for it
  int arrived;                   // in this microbatch
  int64_t present;               // microbatches of this step in which it arrived
  ad_array result;               // its part of the bucket, in the storage layout
} ad_reduced_param;

/* Gradients that go the same path under the same contract, one after another in one flat array. */
typedef struct ad_bucket {
  const ad_mesh *mesh;
  ad_path_step steps[AD_AXIS_COUNT];
  int step_count;
  ad_contract contract;
  size_t *params;
  size_t param_count, numel;
  ad_layout pending, reduced;  // layouts of the flat array before and after its steps
  ad_array sum;                // pending, from launch to completion on its way, then reduced
  ad_array earlier;            // reduced sums of earlier microbatches of this step; memory only once that was needed
  int has_earlier;
  size_t arrived;  // parameters, in this microbatch
  int launched;
  ad_request request;
} ad_bucket;

/* The ranks that must agree: all of one mesh. What is compared is the same on ranks that hold different parts. */
typedef struct ad_roster {
  ad_group group;
  int64_t *words;  // what is compared, in comm memory; NULL on engine dry
  ad_request request;
  int posted;
} ad_roster;

typedef enum ad_reducer_state { AD_BETWEEN_STEPS, AD_IN_MICROBATCH, AD_BETWEEN_MICROBATCHES } ad_reducer_state;

struct ad_reducer {
  ad_comm *comm;
  ad_reducer_options options;
  ad_reduced_param *params;
  const ad_array **results;  // for the norm
  size_t param_count;
  ad_bucket *buckets;  // in launch order
  size_t bucket_count;
  ad_roster *rosters;
  size_t roster_count;
  ad_reducer_state state;
  ad_sync sync;
  size_t launched;  // buckets
  uint64_t steps;   // finished
};

/* bucket.c: how gradients are laid out in buckets. */
ad_status ad_buckets_build(ad_reducer *reducer) AD_CHECKED;
ad_status ad_buckets_allocate(ad_reducer *reducer) AD_CHECKED;
void ad_buckets_release(ad_reducer *reducer);

/* launch.c: how a bucket is summed. */
ad_status ad_bucket_launch(ad_reducer *reducer, size_t index) AD_CHECKED;    // posts its first step
ad_status ad_bucket_complete(ad_reducer *reducer, size_t index) AD_CHECKED;  // waits, runs the others
ad_status ad_buckets_launch_ready(ad_reducer *reducer,
                                  int all) AD_CHECKED;  // in order, up to the first that is not ready unless `all`

/* roster.c: whether the ranks mean the same parameters. */
ad_status ad_rosters_build(ad_reducer *reducer) AD_CHECKED;
void ad_rosters_release(ad_reducer *reducer);
ad_status ad_rosters_compare_lists(ad_reducer *reducer) AD_CHECKED;
ad_status ad_rosters_post_presence(ad_reducer *reducer) AD_CHECKED;
ad_status ad_rosters_wait_presence(ad_reducer *reducer) AD_CHECKED;

#endif
