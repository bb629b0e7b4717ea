/* Known bugs of reducers, as mutations: `addend check --mutate` installs them at injection points, to see that its
 * checks kill them. The reducer itself uses nothing from this file. */
#include "reduce/known_bugs.h"

#include <string.h>
#include "array/array.h"
#include "array/packed.h"
#include "array/transit.h"
#include "base/dtypes.h"
#include "kernels/kernels.h"
#include "reduce/count.h"
#include "reduce/reducer.h"
#include "reduce/store.h"
#include "mesh/mesh.h"

static void multiply(const ad_array *array, double factor) {
  if (array->data) ad_cast_scaled(array->data, array->dtype, array->data, array->dtype, factor, ad_array_numel(array));
}

/* ---- bugs of microbatches ---- */

static void note_microbatch(void *context, void *passing) {
  ((ad_known_bug_scene *)context)->microbatch = (int64_t) * (const size_t *)passing;
}

static void end_step(void *context, void *passing) {
  ad_known_bug_scene *scene = context;
  scene->microbatch = -1;
  scene->steps++;
}

/* Known bug: every microbatch finishes its reductions and clears the buffer in which microbatches accumulate. */
static void clear_earlier(void *context, void *passing) {
  ad_known_bug_scene *scene = context;
  ad_reducer *reducer = passing;
  for (size_t i = 0; i < reducer->param_count; i++) {
    scene->fired |= reducer->params[i].filled;
    reducer->params[i].filled = 0;
  }
  for (size_t i = 0; i < reducer->bucket_count; i++) {
    if (ad_bucket_settle(reducer, i)) return;
    const ad_bucket_counters *has = &reducer->buckets[i].counters;
    scene->fired |= has->has_sum || has->has_earlier || reducer->buckets[i].stack.count;
    reducer->buckets[i].stack.count = reducer->buckets[i].stack.apart = 0;
    reducer->buckets[i].early_sums.count = reducer->buckets[i].early_sums.apart = 0;
    reducer->buckets[i].late_sums.count = 0;
    ad_counters_forget(&reducer->buckets[i]);
  }
}

/* Known bug: each microbatch is divided by its own count, and the step's gradient is the mean of the results. */
static void divide_by_own_count(void *context, void *passing) {
  ad_known_bug_scene *scene = context;
  ad_divisor_passing *divisor = passing;
  if (scene->microbatch < 0) return;
  divisor->total = (double)ad_count_of(divisor->count, (size_t)scene->microbatch) * (double)scene->microbatches;
  scene->fired = 1;
}

/* ---- bugs before a bucket is sent ---- */

/* Known bug: the sum of earlier microbatches, which is reduced over the shard axis alone, is added only after the last
 * microbatch was reduced over all axes. The check of law 6 (like adds to like) refuses this addition. */
static void put_partial_off(void *context, void *passing) {
  ad_known_bug_scene *scene = context;
  ad_bucket_passing *pass = passing;
  ad_bucket *bucket = pass->bucket;
  if (bucket->counters.sync != AD_SYNC_ALL || !bucket->key.scatters || !bucket->counters.has_sum) return;
  // `earlier` has the size of a result, which is smaller than the sum if the path scatters twice; the layout that it
  // then has is refused before its elements are read
  int fits = !bucket->key.rescatters;
  pass->status = ad_bucket_keep_earlier(pass->reducer, bucket);
  if (pass->status) return;
  if (fits && bucket->sum.data) ad_copy(bucket->earlier.data, bucket->sum.data, ad_array_bytes(&bucket->sum));
  bucket->earlier.layout = bucket->sum.layout;
  ad_counters_forget(bucket);
  ad_counters_set_aside(bucket);
  scene->fired = 1;
}

/* Known bug: a microbatch that is reduced only by the first step of the path is divided by the number of ranks of all
 * steps. */
static void apply_both_factors(void *context, void *passing) {
  ad_bucket_passing *pass = passing;
  if (pass->bucket->counters.sync == AD_SYNC_ALL) return;
  int64_t all = ad_bucket_ranks(&pass->bucket->key, pass->bucket->key.step_count),
          first = ad_bucket_ranks(&pass->bucket->key, 0);
  multiply(&pass->bucket->sent, (double)first / (double)all);
  ((ad_known_bug_scene *)context)->fired = 1;
}

/* Known bug: a factor of 1 that was stored as f64 is read as f32. */
static void apply_factor_of_wrong_width(void *context, void *passing) {
  ad_bucket_passing *pass = passing;
  double stored = 1;
  float read;
  memcpy(&read, &stored, sizeof read);
  multiply(&pass->bucket->sent, (double)read);
  ((ad_known_bug_scene *)context)->fired = 1;
}

/* Known bug: the bucket's memory is reused before the collective has read it: its second half is overwritten. */
static void reuse_early(void *context, void *passing) {
  const ad_array *sent = &((ad_bucket_passing *)passing)->bucket->sent;
  size_t bytes = ad_array_bytes(sent);
  if (!sent->data) return;
  memset((char *)sent->data + bytes / 2, 0, bytes - bytes / 2);
  ((ad_known_bug_scene *)context)->fired = 1;
}

/* Known bug: the slot is filled with another bucket's gradients before the collective has read the gradients in it. */
static void fill_again(void *context, void *passing) {
  const ad_bucket_passing *pass = passing;
  const ad_bucket *bucket = pass->bucket;
  if (bucket->turn.window < 0 || !bucket->sent.data) return;
  const ad_window *window = &pass->reducer->windows[bucket->turn.window];
  for (size_t i = 0; i < window->count; i++) {
    size_t bytes = ad_array_bytes(&bucket->sent), there = window->slots[i].bytes;
    if (i == bucket->turn.slot) continue;
    ad_copy(bucket->sent.data, window->slots[i].memory, bytes < there ? bytes : there);
    ((ad_known_bug_scene *)context)->fired = 1;
    return;
  }
}

/* ---- bugs of groups of parameters that are reduced, or stored, in another way than others ---- */

/* Returns 1 if all microbatches before the present one were reduced completely, for some bucket but not for all. */
static int some_sums_are_aside(const ad_reducer *reducer) {
  size_t aside = 0;
  for (size_t i = 0; i < reducer->bucket_count; i++) aside += (size_t)reducer->buckets[i].counters.has_earlier;
  return aside && aside < reducer->bucket_count;
}

/* Known bug: whether a bucket's sum is complete, so that it must be set aside before the next microbatch, is asked of
 * the sync of another group. */
static void lose_sums_aside(void *context, void *passing) {
  ad_reducer *reducer = passing;
  if (!some_sums_are_aside(reducer)) return;
  for (size_t i = 0; i < reducer->bucket_count; i++)
    if (reducer->buckets[i].counters.has_earlier) ad_counters_forget(&reducer->buckets[i]);
  ((ad_known_bug_scene *)context)->fired = 1;
}

/* Known bug: the buckets of a group with another sync are launched a microbatch late: after the sums of the step were
 * taken. What the last launch of the step would have sent is missing. */
static void launch_group_late(void *context, void *passing) {
  const ad_bucket_passing *pass = passing;
  const ad_reduced_group *group = ad_bucket_group(pass->reducer, pass->bucket);
  if (!group->sync || pass->reducer->microbatches != group->sync_count) return;
  multiply(&pass->bucket->sent, 0);
  ((ad_known_bug_scene *)context)->fired = 1;
}

/* Known bug: copies that stay are taken for released ones, as those of another group are, which the next use gathers
 * again. So they have the values from before the update. */
static void keep_old_copies(void *context, void *passing) {
  ad_refill_passing *pass = passing;
  if (!pass->store->releases || !pass->window->kind_count) return;
  pass->is_left_out = 1;
  ((ad_known_bug_scene *)context)->fired = 1;
}

/* ---- bugs that replace a collective of the step ---- */

/* Returns 1 if the transition is a step of a bucket's path. */
static int is_gradient(const ad_transit *transit) { return transit->names && transit->move != AD_MOVE_ALL_GATHER; }

/* Replaces a collective: writes this rank's own addend into the result, or for a reduce_scatter this rank's rows of
 * it. */
static void take_own(const ad_transit_passing *pass) {
  const ad_array *in = pass->in, *out = pass->out;
  int64_t rank = ad_comm_rank(pass->comm);
  ad_group group = ad_array_group(pass->comm, in, pass->transit->axes);
  int64_t members = pass->transit->move == AD_MOVE_REDUCE_SCATTER ? ad_group_size(&group) : 1;
  int64_t index = members > 1 ? ad_group_index(&group, rank) : 0;
  ad_reducing how = {.dtype = in->dtype, .accumulate = pass->transit->accumulate, .out_dtype = out->dtype};
  how.shift = in->scale;
  how.adds = pass->transit->adds;
  for (size_t i = 0; i < in->segment_count; i++) {
    size_t from, to, whole, own, row = in->segments[i].row;
    ad_packed_stretch(in, rank, i, &from, &whole);
    ad_packed_stretch(out, rank, i, &to, &own);
    from += row ? (size_t)ad_cut((int64_t)(whole / row), index, members).first * row : 0;
    const void *source = (const char *)in->data + from * ad_dtype_size(in->dtype);
    void *target = (char *)out->data + to * ad_dtype_size(out->dtype);
    ad_reduce(&target, 1, &source, 1, &how, own);
  }
}

/* Known bug: in the first step, each rank keeps its own addend instead of the collective's result. */
static void leave_first_step(void *context, void *passing) {
  ad_known_bug_scene *scene = context;
  ad_transit_passing *pass = passing;
  if (scene->steps || !is_gradient(pass->transit) || ad_comm_is_dry(pass->comm)) return;
  take_own(pass);
  pass->handled = 1;
  scene->fired = 1;
}

/* Known bug: rank 1 of the group submits one element, or one row, fewer than the others. */
static void shorten(void *context, void *passing) {
  ad_known_bug_scene *scene = context;
  ad_transit_passing *pass = passing;
  ad_group group = ad_array_group(pass->comm, pass->in, pass->transit->axes);
  int64_t rank = ad_comm_rank(pass->comm);
  size_t numel = ad_array_numel(pass->in);
  if (!is_gradient(pass->transit) || !pass->request || !numel || ad_group_index(&group, rank) != 1) return;
  ad_collective call = {
      .size = sizeof call, .op = AD_ALL_REDUCE, .group = group, .in = pass->in->data, .out = pass->in->data};
  call.count = numel - 1;
  call.dtype = pass->in->dtype;
  call.site = AD_HERE;
  pass->status = ad_comm_post(pass->comm, &call, pass->request);
  pass->handled = 1;
  scene->fired = 1;
}

/* ---- bugs in the order of collectives ---- */

static int sums_over_many(const ad_bucket *bucket) {
  return bucket->key.step_count && ad_mesh_ranks_over(bucket->key.mesh, bucket->key.steps[0].axes) > 1;
}

static int same_group(const ad_bucket *a, const ad_bucket *b) {
  return sums_over_many(a) && sums_over_many(b) && ad_mesh_equal(a->key.mesh, b->key.mesh) &&
         a->key.steps[0].axes == b->key.steps[0].axes;
}

/* Finds the first two buckets that are summed over the same group of several ranks. If there are no two such buckets,
 * sets both results to the first bucket that is summed over several ranks. Returns 0 if there is none. */
static int find_swap(const ad_reducer *reducer, size_t *first, size_t *second) {
  for (*first = 0; *first < reducer->bucket_count; ++*first) {
    for (*second = *first + 1; *second < reducer->bucket_count; ++*second) {
      if (same_group(&reducer->buckets[*first], &reducer->buckets[*second])) return 1;
    }
  }
  for (*first = 0; *first < reducer->bucket_count; ++*first) {
    *second = *first;
    if (sums_over_many(&reducer->buckets[*first])) return 1;
  }
  return 0;
}

/* Posts the presence set's comparison (whether ranks had gradients of the same parameters) too early: before the bucket
 * that is summed over this group. */
static ad_status compare_first(ad_reducer *reducer, const ad_group *group) {
  ad_presence_set *set = &reducer->presence_sets[0];
  ad_collective call = {
      .size = sizeof call, .op = AD_ALL_REDUCE, .group = *group, .in = set->words, .out = set->words, .count = 1};
  call.dtype = AD_I64;
  call.reduction = AD_MAX;
  call.site = AD_HERE;
  return ad_comm_post(reducer->comm, &call, &set->request);
}

/* Known bug: the second rank of a group launches its first two buckets in reverse order. If find_swap finds only one
 * bucket, the rank posts the presence set's comparison before this bucket instead of after it. */
static void change_order(void *context, void *passing) {
  ad_order_passing *pass = passing;
  const ad_reducer *reducer = pass->reducer;
  size_t first, second;
  if (!reducer->presence_set_count || !find_swap(reducer, &first, &second)) return;
  const ad_bucket *bucket = &reducer->buckets[first];
  ad_group group = ad_mesh_group(bucket->key.mesh, bucket->key.steps[0].axes, ad_comm_rank(reducer->comm));
  if (ad_group_index(&group, ad_comm_rank(reducer->comm)) != 1) return;
  ((ad_known_bug_scene *)context)->fired = 1;
  if (first != second)
    pass->bucket = pass->bucket == first ? second : pass->bucket == second ? first : pass->bucket;
  else if (pass->launches && pass->bucket == first)
    pass->status = compare_first(pass->reducer, &group);
}

/* ---- bugs of dtypes ---- */

/* Known bug: a gradient is rounded to bf16 before it is put into the bucket. */
static void bring_to_bf16(void *context, void *passing) {
  *(ad_dtype *)passing = AD_BF16;
  ((ad_known_bug_scene *)context)->fired = 1;
}

static int is_narrow(ad_dtype dtype) { return ad_dtype_is_float(dtype) && !ad_dtype_is_wide(dtype); }

/* Known bug: the backward of a matrix product produces an f32 gradient, and f32 replaces the gradient dtype of the
 * policy. */
static void take_raw_for_policy(void *context, void *passing) {
  ad_precision_policy *policy = passing;
  if (policy->raw || !is_narrow(policy->grad)) return;
  policy->param = policy->grad = AD_F32;
  if (is_narrow(policy->reduce)) policy->reduce = AD_F32;
  ((ad_known_bug_scene *)context)->fired = 1;
}

static void write_nothing_in_place(void *context, void *passing) { *(int *)passing = 0; }

static void round_added(void *context, void *passing) {
  const ad_added_passing *pass = passing;
  ad_round_to_bf16(pass->values, pass->dtype, pass->numel);
  ((ad_known_bug_scene *)context)->fired = 1;
}

static void round_reduced(void *context, void *passing) {
  const ad_array *sum = &((ad_bucket_passing *)passing)->bucket->sum;
  if (!sum->data) return;
  ad_round_to_bf16(sum->data, sum->dtype, ad_array_numel(sum));
  ((ad_known_bug_scene *)context)->fired = 1;
}

/* ---- bugs after a step ---- */

static ad_path_step step_behind(const ad_bucket *bucket) { return bucket->key.steps[bucket->steps.next - 1]; }

/* Known bug: in a group of one rank, the sum is added to itself as if it were another rank's sum. */
static void add_to_itself(void *context, void *passing) {
  const ad_bucket *bucket = ((ad_bucket_passing *)passing)->bucket;
  if (ad_mesh_ranks_over(bucket->key.mesh, step_behind(bucket).axes) != 1) return;
  multiply(&bucket->sum, 2);
  ((ad_known_bug_scene *)context)->fired = 1;
}

/* Known bug: shards are padded to an equal number of rows, and the padding of a smaller shard, a second copy of its
 * last row, is summed, too. */
static void count_padding(void *context, void *passing) {
  const ad_bucket_passing *pass = passing;
  const ad_bucket *bucket = pass->bucket;
  ad_path_step step = step_behind(bucket);
  if (step.move != AD_MOVE_REDUCE_SCATTER || !bucket->sum.data) return;
  int64_t members = ad_mesh_ranks_over(bucket->key.mesh, step.axes);
  size_t size = ad_dtype_size(bucket->sum.dtype);
  char *end = bucket->sum.data;
  for (size_t i = 0; i < bucket->members.count; i++) {
    ad_segment segment = bucket->members.segments[i];
    int64_t own = ad_bucket_rows_after(pass->reducer, bucket, i, bucket->steps.next).count;
    int64_t rows = ad_bucket_rows_after(pass->reducer, bucket, i, bucket->steps.next - 1).count;
    int64_t padded = (rows + members - 1) / members;
    end += (size_t)own * segment.row * size;
    char *last = end - segment.row * size;
    if (!own || own >= padded) continue;
    ad_accumulate(last, bucket->sum.dtype, last, bucket->sum.dtype, 1, segment.row);
    ((ad_known_bug_scene *)context)->fired = 1;
  }
}

/* ---- the list of a reducer's known bugs ---- */

static const ad_known_bug bugs[] = {
    {.name = "mean-of-microbatch-means",
     .catalogue = 16,
     .words = "each microbatch is averaged by its own count",
     .needs = AD_NEED_TOKENS | AD_NEED_DIVIDED | AD_NEED_MICROBATCHES | AD_NEED_UNEQUAL_MICROBATCHES,
     .at = {{AD_INJECT_DIVISOR, divide_by_own_count},
            {AD_INJECT_PHASE, note_microbatch},
            {AD_INJECT_GRADIENTS, end_step}}},
    {.name = "last-microbatch-only",
     .catalogue = 19,
     .words = "the accumulation buffer is cleared on every microbatch",
     .needs = AD_NEED_TOKENS | AD_NEED_MICROBATCHES | AD_NEED_ROUNDS,
     .at = {{AD_INJECT_MICROBATCH, clear_earlier}}},
    {.name = "first-step-unsynchronised",
     .catalogue = 6,
     .words = "the first step's gradients are not reduced",
     .needs = AD_NEED_TOKENS | AD_NEED_SUMMED,
     .at = {{AD_INJECT_TRANSIT, leave_first_step}, {AD_INJECT_GRADIENTS, end_step}}},
    {.name = "bucket-order",
     .words = "two ranks launch buckets in different order",
     .needs = AD_NEED_FIRST_OVER_MANY,
     .at = {{AD_INJECT_ORDER, change_order}}},
    {.name = "bucket-size",
     .catalogue = 30,
     .words = "two ranks reduce buffers of different sizes",
     .needs = AD_NEED_FIRST_OVER_MANY,
     .at = {{AD_INJECT_TRANSIT, shorten}}},
    {.name = "partial-after-all-reduce",
     .catalogue = 21,
     .words = "earlier microbatches are added after the all-reduce",
     .needs = AD_NEED_TOKENS | AD_NEED_SCATTERED_FIRST | AD_NEED_SHARDS_KEPT,
     .at = {{AD_INJECT_LAUNCH, put_partial_off}}},
    {.name = "both-factors-when-one-runs",
     .catalogue = 22,
     .words = "the factor of two reductions is applied to one",
     .needs = AD_NEED_TOKENS | AD_NEED_OVER_REPLICAS | AD_NEED_SHARDS_KEPT,
     .at = {{AD_INJECT_LAUNCH, apply_both_factors}}},
    {.name = "factor-wrong-width",
     .catalogue = 23,
     .words = "a factor is stored in one width and read in another",
     .needs = AD_NEED_TOKENS | AD_NEED_REDUCED,
     .at = {{AD_INJECT_LAUNCH, apply_factor_of_wrong_width}}},
    {.name = "bucket-by-raw-dtype",
     .catalogue = 24,
     .words = "a gradient is summed in the dtype it was produced in",
     .needs = AD_NEED_TOKENS | AD_NEED_REDUCED | AD_NEED_WIDE_SUMS,
     .of_dtype = 1,
     .at = {{AD_INJECT_BROUGHT, bring_to_bf16}, {AD_INJECT_IN_PLACE, write_nothing_in_place}}},
    {.name = "bucket-by-wide-gradient",
     .words = "a narrow parameter's gradient gets the bucket of the wide dtype it was produced in",
     .needs = AD_NEED_NARROW_GRADIENTS,
     .of_dtype = 1,
     .at_creation = 1,
     .at = {{AD_INJECT_POLICY, take_raw_for_policy}}},
    {.name = "narrow-accumulate",
     .catalogue = 25,
     .words = "sums are formed in bf16 although the precision policy has a wider dtype",
     .needs = AD_NEED_TOKENS | AD_NEED_REDUCED | AD_NEED_WIDE_SUMS,
     .of_dtype = 1,
     .at = {{AD_INJECT_ADDED, round_added},
            {AD_INJECT_REDUCED, round_reduced},
            {AD_INJECT_IN_PLACE, write_nothing_in_place}}},
    {.name = "bucket-reused-early",
     .catalogue = 26,
     .words = "a bucket is reused before its reduction has read it",
     .needs = AD_NEED_TOKENS | AD_NEED_REDUCED,
     .at = {{AD_INJECT_LAUNCH, reuse_early}}},
    {.name = "slot-filled-again",
     .words = "a slot is filled again before its sum was taken",
     .needs = AD_NEED_TOKENS | AD_NEED_TURNS,
     .at = {{AD_INJECT_LAUNCH, fill_again}}},
    {.name = "group-sum-lost",
     .words = "a sum that is complete early is set aside by the sync of another group",
     .needs = AD_NEED_TOKENS | AD_NEED_GROUP_SUMS,
     .at = {{AD_INJECT_MICROBATCH, lose_sums_aside}}},
    {.name = "group-launched-late",
     .words = "a group's buckets are launched after the step's sums were taken",
     .needs = AD_NEED_TOKENS | AD_NEED_GROUP_SYNC,
     .at = {{AD_INJECT_LAUNCH, launch_group_late}}},
    {.name = "group-copies-stale",
     .words = "copies that stay are not gathered after the update, as if they were released",
     .needs = AD_NEED_TOKENS | AD_NEED_GROUP_LEVELS,
     .at = {{AD_INJECT_REFILL, keep_old_copies}}},
    {.name = "add-to-itself-in-group-of-one",
     .words = "in a group of one rank a sum is added to itself",
     .needs = AD_NEED_TOKENS | AD_NEED_OVER_ONE,
     .at = {{AD_INJECT_REDUCED, add_to_itself}}},
    {.name = "padding-counted",
     .words = "the padding of uneven shards is counted",
     .needs = AD_NEED_TOKENS | AD_NEED_UNEVEN,
     .at = {{AD_INJECT_REDUCED, count_padding}}},
};

const ad_known_bug *ad_reduce_known_bugs(size_t *count) {
  *count = sizeof bugs / sizeof *bugs;
  return bugs;
}
