/* The reducer's own objects: parameters, buckets, rosters. Private to reduce/. */
#ifndef REDUCE_REDUCER_H
#define REDUCE_REDUCER_H
#include "addend/reduce.h"
#include "base/injection.h"
#include "base/internal.h"

typedef struct ad_reduced_param {
  char *name;
  ad_shape shape;
  ad_layout layout, storage, gradient;  // gradient: the dual of layout
  ad_precision_policy policy;
  int lasting;
  size_t bucket;         // index of the bucket in which the gradient is packed
  size_t offset, numel;  // this rank's part of the whole gradient: place in the bucket, size; in elements
  ad_segment segment;    // the same part, in rows
  int filled;            // the bucket's pending memory holds a sum of the parameter's gradients
  int arrived;           // the gradient of the present microbatch came
  int expected;          // gradients that are said to come later (ad_reducer_expect)
  int64_t present;       // microbatches of this step in which a gradient came
  ad_dtype produced;     // the dtype of this step's gradients as they came; 0: none came
  ad_array result;       // the parameter's part of the bucket's sum, in the storage layout
} ad_reduced_param;

/* What all gradients of a bucket have in common; written by key.c. The path leads from the layout in which gradients
 * arrive to the parameters' storage; a reduce_scatter is its first step or none. */
typedef struct ad_bucket_key {
  const ad_mesh *mesh;
  ad_path_step steps[AD_AXIS_COUNT];
  int step_count;
  int scatters;  // the first step is a reduce_scatter
  int lasting;   // the bucket's parameters are `lasting`, so that it has memory of its own
  ad_precision_policy policy;
  ad_dtype comm_dtype;  // dtype in which gradients travel: the reduce dtype; without a step the accumulate dtype
} ad_bucket_key;

/* The parameters whose gradients a bucket packs one after another; written by bucket.c. One entry for each
 * parameter. */
typedef struct ad_bucket_members {
  size_t *index;         // indices in reducer->params
  ad_segment *segments;  // rows of this rank's part of the whole gradient
  const char **names;    // borrowed from the parameters
  size_t count;
  size_t numel;  // elements of all these gradients on this rank
} ad_bucket_members;

/* Which addends a bucket holds; written by counters.c. */
typedef struct ad_bucket_counters {
  int sends;        // the present microbatch sends the bucket
  size_t arrived;   // parameters whose gradient of the present microbatch came
  int expected;     // gradients that are said to come later, in this microbatch or another of the step
  int64_t unsent;   // microbatches whose addends are in what is sent next
  int64_t summed;   // microbatches whose addends are in `sum`
  int has_sum;      // `sum` holds a sum of this step
  int has_earlier;  // `earlier` holds a sum of this step
} ad_bucket_counters;

/* How far a bucket that was sent is on its path; written by path.c. */
typedef struct ad_bucket_steps {
  ad_array input;  // what the posted collective reads: first `sent`, later `sum`, cast where the dtypes differ
  ad_request request;
  int next;       // steps that were posted since the bucket was sent
  int unsettled;  // 1: the step posted last was not waited for
} ad_bucket_steps;

/* The slot that holds the memory of `sent`, where the reducer reuses memory; written by slots.c. */
typedef struct ad_bucket_turn {
  int window;        // index of the window in the reducer; -1: the bucket has memory of its own
  size_t slot;       // index of the slot in the window; AD_NO_SLOT: the bucket holds none
  int is_sent_off;   // 1: the gradients in the slot were launched
  uint64_t launch;   // number of the launch that sent the slot's gradients
  uint64_t claim;    // the number of the claim, in the window, that got the bucket its slot
  size_t overtaken;  // the most buckets of its window that were begun after it and before it was sent
} ad_bucket_turn;

/* Gradients of one key, packed one after another: whole ones in `partial` and `sent`, this rank's parts of them in
 * `sum`. The layout of `sum` is that of the last transition that wrote it. Arrays are described and get memory in
 * bucket.c. */
typedef struct ad_bucket {
  ad_bucket_key key;
  ad_bucket_members members;
  ad_layout full, stored;  // of the packed gradients as they arrive, and as the parameters' storage wants them
  // Accumulate dtype: sums of microbatches that were not sent. Gets memory once it is needed, or has that of `sent`.
  ad_array partial;
  ad_array sent;      // wire dtype, scaled: what the first collective reads
  ad_array sum;       // accumulate dtype: what collectives write; in `sent`'s memory if both are one whole array
  ad_array earlier;   // reduced sums of earlier microbatches of this step; memory only once needed
  ad_array relayed;   // wire dtype: what later collectives read, if it has memory apart from `sent` and `sum`
  int past_caches;    // 1: gradients and their sums are written by stores that bypass the caches
  int keeps_partial;  // 1: some microbatch was not sent, and its sum is pending (also on engine dry)
  ad_bucket_counters counters;
  ad_bucket_steps steps;
  ad_bucket_turn turn;
} ad_bucket;

/* Memory that buckets of one key take in turn. */
#define AD_NO_SLOT SIZE_MAX
typedef struct ad_slot {
  void *memory;  // NULL on engine dry
  size_t bytes, holder;
} ad_slot;
typedef struct ad_window {
  ad_slot *slots;
  size_t count;
  size_t usual_bytes;  // bytes of a slot: those of the largest bucket that is no larger than bucket_bytes
  uint64_t claims;
} ad_window;

/* Ranks that must agree on their parameters: all ranks of one mesh. They compare numbers that do not depend on which
 * part of a parameter a rank holds. */
typedef struct ad_presence_set {
  ad_group group;
  int64_t *words;  // the numbers that ranks compare, in comm memory; NULL on engine dry
  ad_request request;
  int posted;
} ad_presence_set;

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
  char *prefix;  // what messages put before parameters' names; "": nothing
  char *files;   // prefix of the names of a dump's files
  ad_reduced_param *params;
  const ad_array **results;  // each parameter's summed gradient, for the norm; `names`: its name
  const char **names;
  size_t param_count;
  ad_bucket *buckets;  // in launch order
  size_t bucket_count;
  ad_window *windows;
  size_t window_count;
  uint64_t launches;  // number of launches of buckets in all steps so far
  size_t needed;      // on engine dry: the window that fits, if options.window was too small; else 0
  ad_presence_set *presence_sets;
  size_t presence_set_count;
  ad_reducer_state state;
  ad_sync sync;
  size_t launched;  // buckets of the present microbatch
  uint64_t steps;   // finished steps
  ad_dump *dump;    // the dump of a coming step or of this one; NULL: no dump was asked for
};

/* copy.c: whether a backward may write this gradient straight into the bucket. Engine dry, which has no memory to write
 * to, gives the same answer. */
AD_INTERNAL int ad_reducer_writes_in_place(const ad_reducer *reducer, size_t param);
/* `count` 1: one more gradient of this parameter will come, in this microbatch or a later one of the step; -1: that
 * gradient is about to be handed in. Until it was, the bucket is not reduced for the last time, and the step cannot
 * end. */
AD_INTERNAL void ad_reducer_expect(ad_reducer *reducer, size_t param, int count);

/* bucket.c: how gradients are laid out in buckets. */
ad_status ad_buckets_build(ad_reducer *reducer) AD_CHECKED;
ad_status ad_buckets_allocate(ad_reducer *reducer) AD_CHECKED;
void ad_buckets_release(ad_reducer *reducer);
/* Memory that not every step needs: for sums that are not sent, for sums that were reduced early. */
ad_status ad_bucket_keep_partial(ad_reducer *reducer, ad_bucket *bucket) AD_CHECKED;
ad_status ad_bucket_keep_earlier(ad_reducer *reducer, ad_bucket *bucket) AD_CHECKED;
/* Whether what is sent and its sum have one dtype, so that they can be one array. */
static inline int ad_bucket_is_one_array(const ad_bucket *bucket) {
  return bucket->key.comm_dtype == bucket->key.policy.accumulate;
}

/* key.c. AD_INVALID, naming the parameter: no reduction leads to its storage. */
ad_status ad_bucket_key_find(const ad_reducer *reducer, const ad_reduced_param *param, ad_bucket_key *key) AD_CHECKED;
int ad_bucket_keys_are_identical(const ad_bucket_key *a, const ad_bucket_key *b);
/* How many ranks each rank's sum is over after step number `step` of the path. */
int64_t ad_bucket_ranks(const ad_bucket_key *key, int step);

/* counters.c: what happens to a bucket in a step, in this order. */
void ad_counters_begin_step(ad_bucket *bucket);
void ad_counters_begin_sum(ad_bucket *bucket); /* the sum in `sum` was handed out or set aside */
void ad_counters_begin_microbatch(ad_bucket *bucket, ad_sync sync);
void ad_counters_arrived(ad_bucket *bucket);           /* one more gradient of this microbatch has come */
void ad_counters_expect(ad_bucket *bucket, int count); /* does what ad_reducer_expect does */
int ad_counters_are_complete(const ad_bucket *bucket,
                             ad_sync sync);    /* all gradients are there, so that it can be sent */
void ad_counters_sent(ad_bucket *bucket);      /* the bucket was sent, so its addends go into `sum` */
void ad_counters_summed(ad_bucket *bucket);    /* a step of the path wrote `sum` */
void ad_counters_set_aside(ad_bucket *bucket); /* the sum is in `earlier`, too */
void ad_counters_forget(ad_bucket *bucket);    /* there is no sum, set aside or not: for planted mistakes */

/* slots.c: memory that buckets take in turn. */
ad_status ad_slots_build(ad_reducer *reducer) AD_CHECKED; /* decides which buckets share; slots are made when needed */
void ad_slots_release(ad_reducer *reducer);
/* Before gradients are written into the bucket: gives it memory, after all ranks have read what was sent from there. */
ad_status ad_slot_claim(ad_reducer *reducer, size_t index) AD_CHECKED;
void ad_slot_send_off(ad_reducer *reducer, ad_bucket *bucket);  /* the bucket's sum is about to be posted */
int ad_slots_have(const ad_reducer *reducer, const void *data); /* `data` points into a slot */
size_t ad_slots_bytes(const ad_reducer *reducer);

/* copy.c: a gradient on its way into a bucket. */
/* The bucket's array that the gradients of this microbatch go to. */
ad_array *ad_bucket_target(ad_bucket *bucket);
/* Whether the gradient needs no cast, no scale and no sum with another array on its way to `target`. */
int ad_param_is_in_place(const ad_reduced_param *param, const ad_bucket *bucket, const ad_array *target);
/* The address of the parameter's first element in `array`, which holds whole gradients; NULL on engine dry. */
void *ad_param_in(const ad_reduced_param *param, const ad_array *array);
/* Copies a gradient into the bucket, in one pass (law 8): casts it from the producer's dtype to the gradient dtype,
 * adds the pending sum in the accumulate dtype, and rounds to the dtype and scale that travel. `grad` NULL: no
 * gradient came, and the pending sum goes alone. */
void ad_bucket_take(ad_bucket *bucket, const ad_reduced_param *param, const ad_array *grad);
/* The least k with 2^k >= addends where values are f16; 0 for wider ranges. */
int ad_scale_for(ad_dtype dtype, int64_t addends);

/* path.c: the steps of a bucket's path. */
void ad_bucket_begin_path(ad_bucket *bucket);
int ad_bucket_is_through(const ad_bucket *bucket); /* all steps were posted */
/* Posts the next step. */
ad_status ad_bucket_run_step(ad_reducer *reducer, size_t index) AD_CHECKED;
/* Passes a seam of buckets; see ad_bucket_passing. */
ad_status ad_bucket_pass(ad_injection_point point, ad_reducer *reducer, ad_bucket *bucket) AD_CHECKED;
/* Waits for the step of this bucket that was posted last. */
ad_status ad_bucket_settle(ad_reducer *reducer, size_t index) AD_CHECKED;

/* launch.c: when a bucket is summed. */
/* Waits for all buckets, runs the steps that are left, and checks that they led to the parameters' storage (law 4). */
ad_status ad_buckets_complete(ad_reducer *reducer) AD_CHECKED;
/* Launches buckets in order; stops before the first whose gradients have not all arrived, unless `all`. */
ad_status ad_buckets_launch_ready(ad_reducer *reducer, int all) AD_CHECKED;

/* Passed to the seams AD_INJECT_LAUNCH, before a bucket is sent, and AD_INJECT_REDUCED, after each step of its path. */
typedef struct ad_bucket_passing {
  ad_reducer *reducer;
  ad_bucket *bucket;
  ad_status status;
} ad_bucket_passing;
/* Passed to AD_INJECT_ORDER: which bucket comes next. It is passed before the bucket is known to be complete, and
 * again when the bucket is launched. */
typedef struct ad_order_passing {
  ad_reducer *reducer;
  size_t bucket;
  int launches;
  ad_status status;
} ad_order_passing;
/* Passed to AD_INJECT_ADDED: the sum of a gradient and those of earlier microbatches. */
typedef struct ad_added_passing {
  void *values;
  ad_dtype dtype;
  size_t numel;
} ad_added_passing;

/* presence_sets.c: whether ranks have the same parameters and the same gradients. */
ad_status ad_presence_sets_build(ad_reducer *reducer) AD_CHECKED;
void ad_presence_sets_release(ad_reducer *reducer);
ad_status ad_presence_sets_compare_lists(ad_reducer *reducer) AD_CHECKED;
ad_status ad_presence_sets_post(ad_reducer *reducer) AD_CHECKED;
ad_status ad_presence_sets_wait(ad_reducer *reducer) AD_CHECKED;

#endif
