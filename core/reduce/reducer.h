/* The reducer's own objects: parameters, buckets, presence sets. For the files of reduce/ only. */
#ifndef REDUCE_REDUCER_H
#define REDUCE_REDUCER_H
#include "addend/reduce.h"
#include "addend/store.h"
#include "base/injection.h"
#include "base/internal.h"
#include "reduce/deal.h"
#include "reduce/stack.h"

typedef struct ad_reduced_param {
  char *name;
  ad_shape shape;
  // storage: of the value; update: of the summed gradient; gradient: the dual of layout
  ad_layout layout, storage, update, gradient;
  ad_precision_policy policy;
  int lasting;
  int frozen;            // 1: the parameter has no gradient, and is in no bucket
  size_t bucket;         // index of the bucket in which the gradient is packed
  size_t offset, numel;  // this rank's part of the full gradient: offset in the bucket, size; in elements
  ad_segment segment;    // this rank's part of the full gradient, in rows
  int filled;            // 1: the bucket's memory contains a sum of the parameter's gradients that is not sent yet
  int arrived;           // 1: the gradient of the present microbatch has arrived
  int comes;             // 1: backward will submit the gradient in the present microbatch (ad_reducer_announce)
  int is_left_out;       // 1: the present microbatch has no such gradient, and the bucket does not wait for it
  int expected;          // number of gradients that ad_reducer_expect announced and that have not arrived
  // number of this step's microbatches in which a gradient of the parameter arrived; with leaves, after the step, 1 if
  // a gradient arrived on any rank
  int64_t present;
  ad_dtype produced;  // the dtype in which this step's gradients arrived; 0: none has arrived
  ad_array result;    // the parameter's part of the bucket's sum, in the layout of updates
  size_t group;       // index in reducer->groups: the first of the groups with the settings of the parameter's
} ad_reduced_param;

/* The settings of a group of parameters; group 0 has the reducer's options. Written by groups.c. */
typedef struct ad_reduced_group {
  size_t bucket_bytes, window;
  int reuses;
  ad_sync *sync;  // [sync_count]: of each microbatch of a step; NULL: that with which the microbatch begins
  size_t sync_count;
  size_t needed;  // on backend dry, if `window` was too small: the least size with which steps succeed; else 0
} ad_reduced_group;

/* The properties that all gradients of a bucket share; written by key.c. Their path is the list of collectives (steps)
 * that lead from the gradients' layout to that of the parameters' updates. Only the first step, or the first two, can be
 * a reduce_scatter: the first to the shards of the stored values, the second from these to the parts that are updated. */
typedef struct ad_bucket_key {
  const ad_mesh *mesh;
  ad_path_step steps[AD_AXIS_COUNT];
  int step_count;
  int scatters;    // 1: the first step is a reduce_scatter
  int rescatters;  // 1: the second step is a reduce_scatter
  // 1: the first step runs with AD_SYNC_SHARD, too: it is a reduce_scatter to the shards of the stored values or, with
  // leaves, another bucket's first step is one (leaves.c)
  int early;
  int lasting;   // 1: the bucket's parameters are `lasting`, so that it has its own memory
  size_t group;  // index in reducer->groups
  ad_precision_policy policy;
  // communication dtype: the policy's reduce dtype, or the accumulate dtype if the path has no step
  ad_dtype comm_dtype;
} ad_bucket_key;

/* The parameters of a bucket; their gradients are packed in it one after another. Written by bucket.c. Each array has
 * one entry for each parameter. */
typedef struct ad_bucket_members {
  size_t *index;         // indices of the parameters in reducer->params
  ad_segment *segments;  // rows of this rank's part of each full gradient
  const char **names;    // borrowed from the parameters
  size_t count;
  size_t numel;  // number of elements of all these gradients on this rank
} ad_bucket_members;

/* Which addends a bucket contains; written by counters.c. */
typedef struct ad_bucket_counters {
  ad_sync sync;    // how far the present microbatch reduces the bucket
  int sends;       // 1: the present microbatch sends the bucket
  size_t arrived;  // how many parameters' gradients of the present microbatch have arrived
  // number of gradients that ad_reducer_expect announced for this or a later microbatch of the step and that have not
  // arrived
  int expected;
  int64_t unsent;   // number of microbatches whose addends the next launch sends
  int64_t summed;   // number of microbatches whose addends are in `sum`
  int has_sum;      // 1: `sum` is a sum of this step
  int has_earlier;  // 1: `earlier` is a sum of this step
} ad_bucket_counters;

/* How many steps of a bucket's path were posted since it was launched; written by path.c. */
typedef struct ad_bucket_steps {
  // the input of the step posted last: of the first step `sent`, of a later one `sum`, cast if the dtypes differ
  ad_array input;
  ad_request request;
  int next;  // number of steps posted since the bucket was launched, and so the index of the next step
  // number of steps to post: all steps of the path; with leaves, in launches before the last round, only the steps that
  // sum leaves
  int count;
  int unsettled;  // 1: ad_bucket_settle has not yet waited for the step that was posted last
  int adds;       // 1: the step that was posted last adds its result to the contents of `sum`
  int64_t round;  // with leaves, the round in which the bucket was launched
} ad_bucket_steps;

/* The slot that a bucket uses as the memory of `sent`, if the reducer reuses memory; written by slots.c. */
typedef struct ad_bucket_turn {
  int window;        // index of the window in the reducer; -1: the bucket has its own memory
  size_t slot;       // index of the slot in the window; AD_NO_SLOT: the bucket has no slot now
  int is_sent_off;   // 1: the gradients in the slot were launched
  uint64_t launch;   // number of the launch that sent the slot's gradients, counted over all buckets
  uint64_t claim;    // number of the claim that gave the bucket its slot, counted over all buckets of the window
  size_t overtaken;  // the most buckets of the window that got a slot after this bucket's claim and before its launch
} ad_bucket_turn;

/* Gradients with one key, packed one after another: full gradients in `partial` and `sent`, this rank's parts of them
 * in `sum`. The layout of `sum` is the result of the last transition that wrote `sum`. bucket.c describes the arrays
 * and allocates their memory. */
typedef struct ad_bucket {
  ad_bucket_key key;
  ad_bucket_members members;
  // layouts of the packed gradients: `full` as they arrive, `updated` as the parameters are updated
  ad_layout full, updated;
  // accumulate dtype: sums of microbatches that were not sent; memory is allocated when needed, or is that of `sent`
  ad_array partial;
  ad_array sent;  // communication dtype, scaled: the input of the first collective
  ad_array sum;  // accumulate dtype: the output of collectives; uses the memory of `sent` if the two are one full array
  // If the path scatters twice (key.rescatters): `sum` after the first step, which `sum` is again when the bucket is
  // launched; and `sum` after the second step, which has its own memory.
  ad_array scattered, rescattered;
  ad_array earlier;   // reduced sums of earlier microbatches of this step; memory is allocated when needed
  ad_array relayed;   // communication dtype: the input of later collectives, if it is neither `sent` nor `sum`
  int past_caches;    // 1: gradients and their sums are written by stores that bypass the caches
  int keeps_partial;  // 1: some microbatch was not sent, so that `partial` was needed (also set on backend dry)
  ad_bucket_counters counters;
  ad_bucket_steps steps;
  ad_bucket_turn turn;
  // In a reducer with leaves: this rank's sums of leaves. Their memory begins where that of `sent` begins, or is the bucket's slot.
  // In a microbatch `sent` and `partial` point to the stack's level into which the leaf's gradients are written.
  ad_node_stack stack;
  // If the path's first step is early or a reduce_scatter, in a reducer with leaves: the results of this step on this
  // rank (only its shards of the sums, if the step is a reduce_scatter). Their memory begins where that of `sum` begins.
  // In a step of the path `sum` points to the level that the collective writes, or that the next collective reads.
  ad_node_stack early_sums;
  // If the path scatters twice, in a reducer with leaves: the results of the second step; their memory begins where that
  // of `rescattered` begins.
  ad_node_stack late_sums;
} ad_bucket;

/* Slots: pieces of memory that the buckets of one key use one after another. A window is all slots of one key. */
#define AD_NO_SLOT SIZE_MAX
typedef struct ad_slot {
  void *memory;  // NULL on backend dry
  size_t bytes, holder;
} ad_slot;
typedef struct ad_window {
  ad_slot *slots;
  size_t count;
  size_t usual_bytes;  // size of a normal slot: that of the window's largest bucket that does not exceed bucket_bytes
  uint64_t claims;
} ad_window;

/* A group of ranks that must agree on their parameters: all ranks of one mesh. They compare numbers that do not depend
 * on which part of a parameter a rank stores. */
typedef struct ad_presence_set {
  ad_group group;
  int64_t *words;  // the numbers that ranks compare, in comm memory; NULL on backend dry
  ad_request request;
  int posted;
  int trains;  // 1: some parameter of the mesh is not frozen, so that there are gradients to compare
} ad_presence_set;

typedef enum ad_reducer_state {
  AD_BETWEEN_STEPS,
  AD_IN_MICROBATCH,
  AD_BETWEEN_MICROBATCHES,
  AD_SUMS_LOST  // a call failed halfway: the reducer can only be destroyed
} ad_reducer_state;

typedef struct ad_dump ad_dump;

/* Which leaves a reducer with leaves sums; written by leaves.c. Each microbatch of its steps is a round. */
typedef struct ad_reducer_leaves {
  ad_leaf_deal deal;       // how leaves are assigned to ranks and rounds; deal.leaves 0: the reducer has no leaves
  ad_sync *sync;           // the memory of deal.sync
  int64_t *starts;         // [data-parallel positions + 1]: memory for `starts` of ad_leaf_ranges
  int64_t replica, shard;  // this rank's data-parallel position
  int64_t rounds;          // number of rounds of this step that have begun
  int64_t leaf;            // the leaf of this round; -1: this rank has none
} ad_reducer_leaves;

struct ad_reducer {
  ad_comm *comm;
  ad_reducer_options options;
  char *prefix;  // text before parameters' names in messages; may be ""
  char *files;   // prefix of the names of a dump's files
  ad_reduced_param *params;
  size_t param_count;
  // the summed gradient of each parameter that is not frozen, and that parameter's name, for the norm
  const ad_array **results;
  const char **names;
  size_t result_count;
  ad_bucket *buckets;  // in launch order
  size_t bucket_count;
  ad_window *windows;
  size_t window_count;
  uint64_t launches;         // number of launches of buckets in all steps so far
  ad_reduced_group *groups;  // group 0: the options
  size_t group_count;
  ad_presence_set *presence_sets;
  size_t presence_set_count;
  ad_reducer_state state;
  ad_sync sync;         // how far the present microbatch reduces the buckets whose group has no `sync` of its own
  size_t microbatches;  // number of microbatches of this step that have begun
  ad_reducer_leaves leaves;
  ad_store *store;  // the store of the parameters, if its passes are ordered (ad_store_follow); else NULL
  int sends;        // 1: the present microbatch may send buckets
  size_t launched;  // number of buckets launched in the present microbatch
  uint64_t steps;   // number of finished steps
  ad_dump *dump;    // the dump of this or a later step; NULL: none
};

/* Returns 1 if a backward may write this gradient directly into the bucket, else 0. Returns the same on backend dry,
 * which has no memory to write to. (copy.c) */
AD_INTERNAL int ad_reducer_writes_in_place(const ad_reducer *reducer, size_t param);
/* With `count` 1, announces one more gradient of this parameter, in this microbatch or a later one of the step. With
 * `count` -1, reports that an announced gradient is about to be submitted. Between the two calls the bucket's last
 * reduction waits, and the step cannot end. */
AD_INTERNAL void ad_reducer_expect(ad_reducer *reducer, size_t param, int count);

/* Announces that backward will submit the gradient of this parameter in the present microbatch. */
AD_INTERNAL void ad_reducer_announce(ad_reducer *reducer, size_t param);
/* Called when backward has passed the parameter's unit (unit_order.c): if the gradient was not announced, counts it as
 * arrived, so that its bucket is sent where ranks that have the gradient send it. */
ad_status ad_reducer_leave_out(ad_reducer *reducer, size_t param) AD_CHECKED;

/* bucket.c: lays gradients out in buckets. */
ad_status ad_buckets_build(ad_reducer *reducer) AD_CHECKED;
ad_status ad_buckets_allocate(ad_reducer *reducer) AD_CHECKED;
void ad_buckets_release(ad_reducer *reducer);
/* These functions allocate memory that not every step needs: `partial` for sums of microbatches that are not sent,
 * `earlier` for sums that are reduced before the last microbatch. */
ad_status ad_bucket_keep_partial(ad_reducer *reducer, ad_bucket *bucket) AD_CHECKED;
ad_status ad_bucket_keep_earlier(ad_reducer *reducer, ad_bucket *bucket) AD_CHECKED;
/* Returns the size in bytes of the memory of `sent`, which has one value or, with leaves, a stack of values. */
static inline size_t ad_bucket_bytes(const ad_bucket *bucket) {
  return bucket->stack.levels ? ad_stack_bytes(&bucket->stack) : ad_array_bytes(&bucket->sent);
}
/* Returns 1 if the results of the path's first step have their own memory, apart from that of `sent`, even if dtype and
 * size would allow one array. */
static inline int ad_bucket_sums_apart(const ad_bucket *bucket) { return bucket->key.early || bucket->key.scatters; }
/* Returns the size in bytes of the memory of `sum`, and of `rescattered`. Only for a bucket whose `sum` does not use the
 * memory of `sent`. */
static inline size_t ad_bucket_sum_bytes(const ad_bucket *bucket) {
  const ad_array *sum = bucket->key.rescatters ? &bucket->scattered : &bucket->sum;
  size_t bytes = bucket->early_sums.levels ? ad_stack_bytes(&bucket->early_sums) : ad_array_bytes(sum);
  if (!bucket->key.rescatters) return bytes;
  return bytes + (bucket->late_sums.levels ? ad_stack_bytes(&bucket->late_sums) : ad_array_bytes(&bucket->rescattered));
}
/* Returns the stack that has the results of the first `steps` steps of the path, in a reducer with leaves; with 0 steps,
 * this rank's sums of its own leaves. */
static inline ad_node_stack *ad_bucket_sums_after(ad_bucket *bucket, int steps) {
  if (bucket->key.rescatters && steps > 1) return &bucket->late_sums;
  return ad_bucket_sums_apart(bucket) && steps ? &bucket->early_sums : &bucket->stack;
}
/* Returns the stack that has the results of earlier segments of the step (deal.h), in a reducer with leaves. */
static inline ad_node_stack *ad_bucket_sums(ad_bucket *bucket) {
  return ad_bucket_sums_after(bucket, bucket->key.rescatters ? 2 : 1);
}
/* Returns 1 if the sent gradients and their sum have the same dtype, so that they can be one array; else 0. */
static inline int ad_bucket_is_one_array(const ad_bucket *bucket) {
  return bucket->key.comm_dtype == bucket->key.policy.accumulate;
}

/* groups.c: the settings of groups of parameters. */
ad_status ad_reducer_groups_take(ad_reducer *reducer, const ad_reducer_options *options, size_t params) AD_CHECKED;
void ad_reducer_groups_release(ad_reducer *reducer);
size_t ad_reducer_group_first(const ad_reducer *reducer, size_t group); /* returns the first group with its settings */
/* Returns how far the present microbatch reduces the gradients of a group. */
ad_sync ad_group_sync(const ad_reducer *reducer, size_t group);
/* AD_INVALID unless every group can have a microbatch with this number in the step, where the caller gives `sync`; at the
 * end of a step: unless no group's `sync` has further entries. */
ad_status ad_groups_check_microbatch(const ad_reducer *reducer, size_t microbatch, ad_sync sync,
                                     const char *site) AD_CHECKED;
ad_status ad_groups_check_end(const ad_reducer *reducer, const char *site) AD_CHECKED;
static inline const ad_reduced_group *ad_bucket_group(const ad_reducer *reducer, const ad_bucket *bucket) {
  return &reducer->groups[bucket->key.group];
}

/* key.c: finds the bucket key of a parameter. AD_INVALID, with the parameter's name, if no reductions lead to the layout
 * of its updates. */
ad_status ad_bucket_key_find(const ad_reducer *reducer, const ad_reduced_param *param, ad_bucket_key *key) AD_CHECKED;
int ad_bucket_keys_are_identical(const ad_bucket_key *a, const ad_bucket_key *b);
/* Returns the number of ranks whose addends are in each rank's sum after step number `step` of the path. */
int64_t ad_bucket_ranks(const ad_bucket_key *key, int step);

/* counters.c: records what happens to a bucket in a step. The functions are called in this order. */
void ad_counters_begin_step(ad_bucket *bucket);
void ad_counters_begin_sum(ad_bucket *bucket); /* begins a new sum: the values in `sum` were returned or set aside */
void ad_counters_begin_microbatch(ad_bucket *bucket, ad_sync sync);
void ad_counters_arrived(ad_bucket *bucket);           /* one more gradient of this microbatch has arrived */
void ad_counters_expect(ad_bucket *bucket, int count); /* does the bucket's part of ad_reducer_expect */
int ad_counters_are_complete(const ad_bucket *bucket); /* returns 1 if all gradients have arrived, so that the bucket
                                                        * can be sent */
void ad_counters_sent(ad_bucket *bucket);              /* the bucket was sent, so its addends go into `sum` */
void ad_counters_summed(ad_bucket *bucket);            /* a step of the path wrote `sum` */
void ad_counters_set_aside(ad_bucket *bucket);         /* the sum was copied into `earlier` */
void ad_counters_forget(ad_bucket *bucket); /* there is no sum any more, in `sum` or in `earlier`: used by known bugs */

/* slots.c: memory that buckets use one after another. */
ad_status ad_slots_build(ad_reducer *reducer) AD_CHECKED; /* decides which buckets share slots; allocates none yet */
void ad_slots_release(ad_reducer *reducer);
/* Gives the bucket a slot, after all ranks have read what was in it. Called before gradients are written into the
 * bucket. */
ad_status ad_slot_claim(ad_reducer *reducer, size_t index) AD_CHECKED;
void ad_slot_send_off(ad_reducer *reducer, ad_bucket *bucket);  /* the reduction of the bucket is about to be posted */
int ad_slots_have(const ad_reducer *reducer, const void *data); /* returns 1 if `data` points into a slot */
size_t ad_slots_bytes(const ad_reducer *reducer);

/* copy.c: copies a gradient into its bucket. */
/* Returns the bucket's array for the gradients of this microbatch: `sent` or `partial`. */
ad_array *ad_bucket_target(ad_bucket *bucket);
/* Returns 1 if the gradient can be written to `target` without a cast, a scale or a sum with another array; else 0. */
int ad_param_is_in_place(const ad_reduced_param *param, const ad_bucket *bucket, const ad_array *target);
/* Returns the address of the parameter's first element in `array`, an array of full gradients; NULL on backend dry. */
void *ad_param_in(const ad_reduced_param *param, const ad_array *array);
/* Copies a gradient into the bucket, in one pass (law 8, precision): casts it from the backward's dtype to the gradient
 * dtype, adds the accumulated gradient in the accumulate dtype, and rounds to the communication dtype and scale. If
 * `grad` is NULL, no gradient arrived, and only the accumulated gradient is copied. */
void ad_bucket_take(ad_bucket *bucket, const ad_reduced_param *param, const ad_array *grad);
/* Does the same for each parameter of the bucket that has no gradient in this microbatch: copies its accumulated
 * gradient, or zeros if there is none. Afterwards no parameter of the bucket has an accumulated gradient. */
void ad_bucket_take_absent(ad_reducer *reducer, ad_bucket *bucket);
/* Returns the least k with 2^k >= addends if the dtype is f16, so that their sum does not overflow; 0 for dtypes of
 * wider range. */
int ad_scale_for(ad_dtype dtype, int64_t addends);

/* path.c: runs the steps of a bucket's path. */
/* Returns the rows of a member's full gradient (bucket->members) that this rank has after the first `steps` steps of the
 * path. */
ad_span ad_bucket_rows_after(const ad_reducer *reducer, const ad_bucket *bucket, size_t member, int steps);
void ad_bucket_begin_path(const ad_reducer *reducer, ad_bucket *bucket);
int ad_bucket_is_through(const ad_bucket *bucket); /* returns 1 if all steps of the path were posted */
/* Posts the next step of the bucket's path. */
ad_status ad_bucket_run_step(ad_reducer *reducer, size_t index) AD_CHECKED;
/* Waits for the step of this bucket that was posted last. */
ad_status ad_bucket_settle(ad_reducer *reducer, size_t index) AD_CHECKED;

/* launch.c: decides when a bucket is summed. */
/* Waits for the buckets that the latest microbatch reduces completely, runs the steps that remain of their paths, and
 * checks that the steps led to the parameters' storage (law 4). */
ad_status ad_buckets_complete(ad_reducer *reducer) AD_CHECKED;
/* Launches buckets in order. Unless `all` is 1, stops before the first bucket whose gradients have not all arrived. */
ad_status ad_buckets_launch_ready(ad_reducer *reducer, int all) AD_CHECKED;

/* Argument of the injection points AD_INJECT_LAUNCH (before a bucket is sent) and AD_INJECT_REDUCED (after each step of
 * a bucket's path). */
typedef struct ad_bucket_passing {
  ad_reducer *reducer;
  ad_bucket *bucket;
  ad_status status;
} ad_bucket_passing;
/* Calls the mutation at an injection point, if there is one, for this bucket. */
static inline AD_CHECKED ad_status ad_bucket_pass(ad_injection_point point, ad_reducer *reducer, ad_bucket *bucket) {
  ad_bucket_passing passing = {reducer, bucket, AD_OK};
  ad_inject(point, &passing);
  return passing.status;
}
/* Argument of the injection point AD_INJECT_ORDER: which bucket is launched next. The point is reached when the
 * bucket's readiness is queried (`launches` 0), and again when the bucket is launched (`launches` 1). */
typedef struct ad_order_passing {
  ad_reducer *reducer;
  size_t bucket;
  int launches;
  ad_status status;
} ad_order_passing;
/* Argument of the injection point AD_INJECT_NODE, which is reached when a stack of the bucket has a new node on top. */
typedef struct ad_node_passing {
  ad_reducer *reducer;
  ad_bucket *bucket;
  ad_node_stack *stack;
  int steps;  // how many steps of the bucket's path the node's values have passed
  // 1: the node is a leaf, or a result of the last of these steps; 0: it is the sum of two nodes that this rank added
  int is_brought;
} ad_node_passing;
/* Argument of the injection point AD_INJECT_ADDED: the sum of a gradient and the gradients of earlier microbatches. */
typedef struct ad_added_passing {
  void *values;
  ad_dtype dtype;
  size_t numel;
} ad_added_passing;

/* leaves.c: the functions that only a reducer with leaves needs. */
static inline int ad_reducer_has_leaves(const ad_reducer *reducer) { return reducer->leaves.deal.leaves > 0; }
ad_status ad_leaves_take(ad_reducer *reducer, const ad_leaf_options *options) AD_CHECKED;
void ad_leaves_release(ad_reducer *reducer);
/* Finds the data-parallel positions in the parameters' mesh, and assigns leaves to them. The buckets must be built.
 * AD_INVALID or AD_TYPE, with a parameter's name, if the parameters cannot be summed by leaves, or if the collectives
 * of a bucket's path would not sum by the tree over the leaves. */
ad_status ad_leaves_deal(ad_reducer *reducer) AD_CHECKED;
/* Makes the bucket's stacks, and computes how many levels they need. Does not allocate their memory. */
ad_status ad_leaves_make_stacks(const ad_reducer *reducer, ad_bucket *bucket) AD_CHECKED;
/* Returns 1 if this rank has no leaf in this round, so that its gradients are discarded; else 0. */
static inline int ad_leaves_idle(const ad_reducer *reducer) {
  return ad_reducer_has_leaves(reducer) && reducer->leaves.leaf < 0;
}
/* Begins a segment of the step (deal.h). All sums that the bucket has so far are sums over all ranks. If the sums of
 * the new segment are at first sums over fewer ranks, the earlier sums are set apart in the stack. */
void ad_leaves_begin_segment(ad_bucket *bucket);
/* Points the bucket's arrays to the memory for this round's leaf. */
ad_status ad_leaf_begin(ad_reducer *reducer, ad_bucket *bucket) AD_CHECKED;
/* Ends a round for a bucket that the round does not send: adds the round's leaf to this rank's sums. Parameters without
 * a gradient have zeros in the leaf. */
ad_status ad_leaf_keep(ad_reducer *reducer, ad_bucket *bucket) AD_CHECKED;
/* Ends a round for a bucket that the round sends: adds the round's leaf to this rank's sums, and points the bucket's
 * arrays to the sums that are to be sent. */
ad_status ad_leaves_complete(ad_reducer *reducer, ad_bucket *bucket) AD_CHECKED;
/* Returns how many steps of its path the bucket runs if it is launched in this round. */
int ad_leaves_steps(const ad_reducer *reducer, const ad_bucket *bucket);
/* Call before the next step of the path is posted: records in the stack which sums of leaves the step computes, and
 * points `sum` to the memory that the step writes. */
ad_status ad_leaves_post(const ad_reducer *reducer, ad_bucket *bucket) AD_CHECKED;
/* *out: the leaves whose sums the members submit in the next step of the path; out->leaves is 0 if the step sums no
 * leaves. Valid until the next call for this reducer. */
void ad_leaves_ranges(const ad_reducer *reducer, const ad_bucket *bucket, ad_leaf_ranges *out);
/* Call when the step posted last is complete: adds its results to this rank's other sums, and points `sum` to the
 * lowest of the sums that the next step reads. */
void ad_leaves_settle(ad_reducer *reducer, ad_bucket *bucket);
/* AD_TYPE unless the bucket has the sums of all leaves up to the round in which it was launched. */
ad_status ad_leaves_check(const ad_reducer *reducer, ad_bucket *bucket) AD_CHECKED;

/* presence_sets.c: checks that all ranks have the same parameters, and gradients of the same parameters. */
ad_status ad_presence_sets_build(ad_reducer *reducer) AD_CHECKED;
void ad_presence_sets_release(ad_reducer *reducer);
ad_status ad_presence_sets_compare_lists(ad_reducer *reducer) AD_CHECKED;
ad_status ad_presence_sets_post(ad_reducer *reducer) AD_CHECKED;
ad_status ad_presence_sets_wait(ad_reducer *reducer) AD_CHECKED;

#endif
