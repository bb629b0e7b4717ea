/* The reducer's own objects: parameters, buckets, rosters. Private to reduce/. */
#ifndef REDUCE_REDUCER_H
#define REDUCE_REDUCER_H
#include "addend/reduce.h"
#include "base/seams.h"
#include "base/internal.h"

typedef struct ad_reduced_param {
  char *name;
  ad_shape shape;
  ad_layout layout, storage, gradient;  // gradient: the dual of layout
  ad_contract contract;
  int lasting;
  size_t bucket, offset, numel;  // of this rank's part of the whole gradient, in elements
  ad_segment segment;            // the same in rows
  int filled;                    // the bucket's pending memory holds a sum for it
  int arrived;                   // in this microbatch
  int expected;                  // gradients that were said to be still to come
  int64_t present;               // microbatches of this step in which it arrived
  ad_dtype produced;             // what its gradients of this step came in; 0: none came
  ad_array result;               // its part of the bucket's sum, in the storage layout
} ad_reduced_param;

/* Gradients that go the same path under the same contract, packed one after another: whole ones in `pending` and
 * `sent`, of each the own part in `sum`. A reduce_scatter is the first step of a path or none. The layout of `sum` is
 * that of the last transition that wrote it. */
typedef struct ad_bucket {
  const ad_mesh *mesh;
  ad_path_step steps[AD_AXIS_COUNT];
  int step_count, scatters;
  int lasting;  // and so not one of those that share memory
  ad_contract contract;
  size_t *params;
  ad_segment *segments;  // of each parameter: the rows of this rank's part of the whole gradient
  const char **names;    // of each parameter; they belong to the parameters
  size_t param_count, numel;
  ad_dtype wire;            // the reduce dtype; the accumulate dtype where nothing travels
  ad_layout whole, stored;  // of the packed gradients as they arrive, and as the parameters' storage wants them
  // In the accumulate dtype: sums of microbatches that were not sent. Memory only once needed, unless it is `sent`'s.
  ad_array pending;
  ad_array sent;     // in the dtype that travels, scaled: what a step reads
  ad_array sum;      // in the accumulate dtype: what steps write; `sent`'s memory where both are one whole array
  ad_array earlier;  // reduced sums of earlier microbatches of this step; memory only once that was needed
  ad_array relayed;  // what later steps read, in the dtype that travels, where that is not `sent`'s or `sum`'s memory
  ad_array input;    // what the step under way reads: `sent`; in later steps `sum`, cast where the dtypes differ
  int has_earlier, has_sum;
  int past_caches;         // gradients are copied in past the caches, and so are their sums
  int keeps_pending;       // some microbatch was not sent; also on engine dry, where no memory says so
  int sends;               // in this microbatch
  int64_t unsent, summed;  // microbatches whose addends are in what is sent next, and in `sum`
  size_t arrived;          // parameters, in this microbatch
  int expected;            // gradients of its parameters that were said to be still to come
  int next_step;           // how many steps were posted since it was sent
  int unsettled;           // the last of them was not waited for
  ad_request request;
  // Where the reducer reuses memory (slots.c):
  int window;        // of the reducer's; -1: memory of its own
  size_t slot;       // of the window, that is `sent`'s memory; AD_NO_SLOT: none
  int is_sent_off;   // what was filled there was launched
  uint64_t launch;   // the number of that launch
  uint64_t claim;    // the number of the claim, in its window, that got it the slot
  size_t overtaken;  // at most: buckets of its window that were begun after it and before it was sent
} ad_bucket;

/* Memory that buckets of one key take in turn. */
#define AD_NO_SLOT SIZE_MAX
typedef struct ad_slot {
  void *memory;  // NULL on engine dry
  size_t bytes, holder;
} ad_slot;
typedef struct ad_window {
  ad_slot *slots;
  size_t count, usual_bytes;  // of the largest bucket that is no larger than bucket_bytes
  uint64_t claims;
} ad_window;

/* The ranks that must agree: all of one mesh. What is compared is the same on ranks that hold different parts. */
typedef struct ad_roster {
  ad_group group;
  int64_t *words;  // what is compared, in comm memory; NULL on engine dry
  ad_request request;
  int posted;
} ad_roster;

typedef enum ad_reducer_state {
  AD_BETWEEN_STEPS,
  AD_IN_MICROBATCH,
  AD_BETWEEN_MICROBATCHES,
  AD_SUMS_LOST  // a call failed halfway: only to be destroyed
} ad_reducer_state;

typedef struct ad_dump ad_dump;

struct ad_reducer {
  ad_comm *comm;
  ad_reducer_options options;
  char *prefix;  // "" where the options have none
  char *files;   // before the names of a dump's files
  ad_reduced_param *params;
  const ad_array **results;  // for the norm, with their names
  const char **names;
  size_t param_count;
  ad_bucket *buckets;  // in launch order
  size_t bucket_count;
  ad_window *windows;
  size_t window_count;
  uint64_t launches;  // of all steps
  size_t needed;      // on engine dry: slots that buckets of one key had to have beyond options.window
  ad_roster *rosters;
  size_t roster_count;
  ad_reducer_state state;
  ad_sync sync;
  size_t launched;  // buckets
  uint64_t steps;   // finished
  ad_dump *dump;    // of a step to come or under way; NULL: nobody asked
};

/* reducer.c: whether a backward may write this gradient into the bucket itself; known on engine dry too, where there is
 * no memory to write to. */
AD_INTERNAL int ad_reducer_writes_in_place(const ad_reducer *reducer, size_t param);
/* 1: a gradient of this parameter is still to come, in this microbatch or a later one of the step; -1: it is about to
 * be handed in. While any is to come its bucket is not reduced for the last time, and the step does not end: no
 * reduction before its last addend. */
AD_INTERNAL void ad_reducer_expect(ad_reducer *reducer, size_t param, int count);

/* bucket.c: how gradients are laid out in buckets. */
ad_status ad_buckets_build(ad_reducer *reducer) AD_CHECKED;
ad_status ad_buckets_allocate(ad_reducer *reducer) AD_CHECKED;
void ad_buckets_release(ad_reducer *reducer);
/* Memory that not every step needs: for sums that are not sent, for sums that were reduced early. */
ad_status ad_bucket_keep_pending(ad_reducer *reducer, ad_bucket *bucket) AD_CHECKED;
ad_status ad_bucket_keep_earlier(ad_reducer *reducer, ad_bucket *bucket) AD_CHECKED;
int ad_buckets_are_alike(const ad_bucket *a,
                         const ad_bucket *b); /* of one mesh, path and contract, and lasting or not */
static inline int ad_bucket_is_one_array(const ad_bucket *bucket) {
  return bucket->wire == bucket->contract.accumulate;
}

/* slots.c: memory that buckets take in turn. */
ad_status ad_slots_build(ad_reducer *reducer) AD_CHECKED; /* says who shares; the slots are made as they are needed */
void ad_slots_release(ad_reducer *reducer);
/* Before anything is written into the bucket: it has memory, and what was sent from there was read. */
ad_status ad_slot_claim(ad_reducer *reducer, size_t index) AD_CHECKED;
void ad_slot_send_off(ad_reducer *reducer, ad_bucket *bucket);  /* its sum is about to be posted */
int ad_slots_have(const ad_reducer *reducer, const void *data); /* whether it points into one */
size_t ad_slots_bytes(const ad_reducer *reducer);

/* copy.c: a gradient on its way into a bucket. */
/* The array that takes the gradients of this microbatch. */
ad_array *ad_bucket_target(ad_bucket *bucket);
/* The address of the parameter's first element in `array`, which holds whole gradients; NULL on engine dry. */
void *ad_param_in(const ad_reduced_param *param, const ad_array *array);
/* Law 8 in one pass: the producer's dtype to the gradient dtype, the sum with what is pending in the accumulate dtype,
 * then the dtype and scale that travel. `grad` NULL: a parameter that did not arrive; what is pending goes alone. */
void ad_bucket_take(ad_bucket *bucket, const ad_reduced_param *param, const ad_array *grad);
/* The least k with 2^k >= addends where values are f16; 0 for wider ranges. */
int ad_scale_for(ad_dtype dtype, int64_t addends);

/* launch.c: how a bucket is summed. */
/* How many ranks each rank's sum is over after step number `step`. */
int64_t ad_bucket_ranks(const ad_bucket *bucket, int step);
/* Waits for the step of this bucket that was posted last. */
ad_status ad_bucket_settle(ad_reducer *reducer, size_t index) AD_CHECKED;
/* Waits for all buckets, runs the steps that are left, and checks that they led to the parameters' storage (law 4). */
ad_status ad_buckets_complete(ad_reducer *reducer) AD_CHECKED;
/* Launches buckets in order; stops before the first whose gradients have not all arrived, unless `all`. */
ad_status ad_buckets_launch_ready(ad_reducer *reducer, int all) AD_CHECKED;

/* What passes the seams AD_SEAM_LAUNCH, before a bucket is sent, and AD_SEAM_REDUCED, after each step of its path. */
typedef struct ad_bucket_passing {
  ad_reducer *reducer;
  ad_bucket *bucket;
  ad_status status;
} ad_bucket_passing;
/* AD_SEAM_ORDER: which bucket comes next; asked before it is known to be ready, and again when it is launched. */
typedef struct ad_order_passing {
  ad_reducer *reducer;
  size_t bucket;
  int launches;
  ad_status status;
} ad_order_passing;
/* AD_SEAM_ADDED: the sum of a gradient with earlier ones. */
typedef struct ad_added_passing {
  void *values;
  ad_dtype dtype;
  size_t numel;
} ad_added_passing;

/* roster.c: whether the ranks mean the same parameters. */
ad_status ad_rosters_build(ad_reducer *reducer) AD_CHECKED;
void ad_rosters_release(ad_reducer *reducer);
ad_status ad_rosters_compare_lists(ad_reducer *reducer) AD_CHECKED;
ad_status ad_rosters_post_presence(ad_reducer *reducer) AD_CHECKED;
ad_status ad_rosters_wait_presence(ad_reducer *reducer) AD_CHECKED;

#endif
