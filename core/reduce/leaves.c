/* A reducer with leaves: checks that its parameters can be summed by leaves, and decides which sums of leaves each rank
 * has after each collective. The stack (stack.c) adds a rank's sums in the order of the tree over the leaves. */
#include <string.h>
#include "base/error.h"
#include "base/memory.h"
#include "mesh/mesh.h"
#include "reduce/reducer.h"

/* ---- the options ---- */

static int some_reuse(const ad_reducer *reducer) {
  int reuses = 0;
  for (size_t g = 0; g < reducer->group_count; g++) reuses |= reducer->groups[g].reuses;
  return reuses;
}

static ad_status check_sync(const ad_reducer *reducer, const ad_leaf_options *options) {
  for (int64_t round = 0; round < options->rounds; round++) {
    ad_sync sync = options->sync[round];
    int is_last = round + 1 == options->rounds;
    if ((unsigned)sync > AD_SYNC_ALL || (is_last && sync != AD_SYNC_ALL))
      return ad_fail(
          AD_INVALID,
          "the reducer's options have `leaves` with `sync` %d in round %lld of %lld, but it must be AD_SYNC_NONE, "
          "AD_SYNC_SHARD or AD_SYNC_ALL, and AD_SYNC_ALL in the last round",
          (int)sync, (long long)round, (long long)options->rounds);
    if (sync == AD_SYNC_NONE && some_reuse(reducer))
      return ad_fail(AD_INVALID,
                     "the reducer's options have `reuses`, and `leaves` with AD_SYNC_NONE in round %lld, but a reducer "
                     "that reuses "
                     "memory cannot keep sums of leaves that are not sent; set `reuses` to 0, or use AD_SYNC_SHARD",
                     (long long)round);
  }
  return AD_OK;
}

static ad_status check_options(const ad_reducer *reducer, const ad_leaf_options *options) {
  if (options->leaves >= 1 && options->rounds >= 1 && options->sync) return check_sync(reducer, options);
  return ad_fail(AD_INVALID,
                 "the reducer's options have `leaves` with %lld leaves, %lld rounds and `sync` %s, but there must be "
                 "at least 1 leaf and 1 round, and a `sync` for each round",
                 (long long)options->leaves, (long long)options->rounds, options->sync ? "set" : "NULL");
}

ad_status ad_leaves_take(ad_reducer *reducer, const ad_leaf_options *options) {
  ad_reducer_leaves *leaves = &reducer->leaves;
  AD_TRY(check_options(reducer, options));
  AD_TRY(ad_new((size_t)options->rounds, &leaves->sync));
  memcpy(leaves->sync, options->sync, (size_t)options->rounds * sizeof *leaves->sync);
  leaves->deal = (ad_leaf_deal){.leaves = options->leaves, .rounds = options->rounds, .sync = leaves->sync};
  leaves->leaf = -1;
  return AD_OK;
}

void ad_leaves_release(ad_reducer *reducer) {
  ad_release(reducer->leaves.sync);
  ad_release(reducer->leaves.starts);
}

/* ---- parameters that can be summed by leaves ---- */

/* Returns 1 if both meshes have the same ranks, and each rank has the same positions on the data-parallel axes of
 * both. */
static int same_positions(const ad_mesh *a, const ad_mesh *b) {
  const ad_axis axes[] = {AD_DP_REPLICATE, AD_DP_SHARD};
  if (!ad_mesh_same_ranks(a, b)) return 0;
  for (size_t i = 0; i < sizeof axes / sizeof *axes; i++) {
    int64_t size = ad_mesh_axis_size(a, axes[i]);
    if (size != ad_mesh_axis_size(b, axes[i])) return 0;
    if (size > 1 && ad_mesh_stride(a, axes[i]) != ad_mesh_stride(b, axes[i])) return 0;
  }
  return 1;
}

static ad_status check_param(const ad_reducer *reducer, const ad_reduced_param *param) {
  const ad_mesh *mesh = param->layout.mesh;
  char axes[96], layout[160];
  if (!same_positions(mesh, reducer->params[0].layout.mesh))
    return ad_fail(
        AD_INVALID,
        "parameter `%s` is on mesh \"%s\", but `%s` is on mesh \"%s\"; with leaves each rank must have the same "
        "positions on dp_replicate and dp_shard in the meshes of all parameters of a reducer",
        param->name, ad_mesh_text(mesh), reducer->params[0].name, ad_mesh_text(reducer->params[0].layout.mesh));
  if (param->frozen) return AD_OK;
  ad_axes other = ad_mesh_named(mesh) & AD_AXES_DP & ~ad_layout_axes_of(&param->layout, AD_R);
  if (other)
    return ad_fail(
        AD_TYPE,
        "parameter `%s` has layout \"%s\", but with leaves a parameter must be R on `%s`, so that each leaf's "
        "gradient is an addend",
        param->name, ad_layout_print(&param->layout, layout, sizeof layout), ad_axes_print(other, axes, sizeof axes));
  if (param->policy.reduce == param->policy.accumulate) return AD_OK;
  return ad_fail(
      AD_INVALID,
      "the precision policy of parameter `%s` has `reduce` %s and `accumulate` %s, but with leaves nothing is "
      "rounded between leaves; set `reduce` to %s",
      param->name, ad_dtype_name(param->policy.reduce), ad_dtype_name(param->policy.accumulate),
      ad_dtype_name(param->policy.accumulate));
}

static ad_status check_rounds(const ad_leaf_deal *deal) {
  int64_t positions = deal->replicas * deal->shards;
  int64_t needed = deal->leaves / positions + (deal->leaves % positions != 0);
  if (deal->rounds >= needed) return AD_OK;
  return ad_fail(AD_INVALID,
                 "the reducer's options have %lld leaves and %lld rounds, but %lld data-parallel ranks compute so many "
                 "leaves in %lld rounds, one leaf each in a round; use as many rounds",
                 (long long)deal->leaves, (long long)deal->rounds, (long long)positions, (long long)needed);
}

/* ---- which leaves a rank's sums have ---- */

static int sends(const ad_reducer *reducer, const ad_bucket *bucket, int64_t round) {
  ad_sync sync = reducer->leaves.deal.sync[round];
  return sync == AD_SYNC_ALL || (sync == AD_SYNC_SHARD && bucket->key.early);
}

/* Returns the first round of the segment that contains `round` (deal.h). */
static int64_t segment_begin(const ad_reducer *reducer, int64_t round) {
  while (round > 0 && reducer->leaves.deal.sync[round - 1] != AD_SYNC_ALL) round--;
  return round;
}

/* Returns the first of the rounds whose leaves the bucket sends together at the end of `round`. */
static int64_t unit_begin(const ad_reducer *reducer, const ad_bucket *bucket, int64_t round) {
  while (round > 0 && !sends(reducer, bucket, round - 1)) round--;
  return round;
}

/* The rounds from the unit of one round to the unit of another (deal.h). */
typedef struct unit_range {
  ad_leaf_rounds from, to;
} unit_range;

static unit_range units_from(const ad_reducer *reducer, int64_t from, int64_t to) {
  const ad_leaf_deal *deal = &reducer->leaves.deal;
  return (unit_range){ad_leaf_rounds_of(deal, from), ad_leaf_rounds_of(deal, to)};
}

/* Returns the leaves that several ranks compute in these units. The ranks are those of `rank`'s group over the
 * data-parallel axes among `axes`. */
static ad_node leaves_over(const ad_reducer *reducer, const ad_mesh *mesh, int64_t rank, ad_axes axes,
                           unit_range units) {
  ad_group group = ad_mesh_group(mesh, axes & AD_AXES_DP, rank);
  int64_t first = reducer->leaves.deal.leaves, end = 0;
  for (int64_t i = 0; i < ad_group_size(&group); i++) {
    int64_t member = ad_group_rank(&group, i), replica = ad_mesh_position(mesh, member, AD_DP_REPLICATE),
            shard = ad_mesh_position(mesh, member, AD_DP_SHARD);
    ad_span early = ad_leaves_in_rounds(&reducer->leaves.deal, units.from, replica, shard),
            late = ad_leaves_in_rounds(&reducer->leaves.deal, units.to, replica, shard);
    if (early.first < first) first = early.first;
    if (late.first + late.count > end) end = late.first + late.count;
  }
  return (ad_node){first, end - first};
}

/* Returns the units whose leaves the bucket sends together at the end of `round`. */
static unit_range units_sent(const ad_reducer *reducer, const ad_bucket *bucket, int64_t round) {
  return units_from(reducer, unit_begin(reducer, bucket, round), round);
}

static ad_node leaves_of_segment(const ad_reducer *reducer, int64_t round) {
  ad_span span = ad_leaves_of_segment(&reducer->leaves.deal, round);
  return (ad_node){span.first, span.count};
}

/* ---- what the collectives of a path sum ---- */

/* While a path is checked: the leaves whose sum each data-parallel position has after the steps so far. `group` has the
 * positions in mesh order. */
typedef struct held_leaves {
  ad_group group;
  ad_node *sum;     // [positions]: the leaves that the position's sum has
  int64_t *starts;  // [positions + 1]: where the leaves of a collective's members begin
} held_leaves;

static ad_status refuse_order(const ad_bucket *bucket, ad_path_step step) {
  char axes[96];
  return ad_fail(AD_INVALID,
                 "the gradient of `%s` cannot be summed by leaves, because %s over %s sums ranks in another order than "
                 "that of their leaves; name dp_replicate before dp_shard in the mesh, and use one type on both in the "
                 "storage",
                 bucket->members.names[0], ad_move_name(step.move), ad_axes_print(step.axes, axes, sizeof axes));
}

/* Checks that the leaves of the group's members follow one another, and records that after the step each member has the
 * sum of all these leaves. */
static ad_status check_members(const ad_bucket *bucket, ad_path_step step, const ad_group *members, held_leaves *held) {
  int64_t count = ad_group_size(members), *end = &held->starts[0];
  for (int64_t i = 0; i < count; i++) {
    ad_node own = held->sum[ad_group_index(&held->group, ad_group_rank(members, i))];
    if (i && own.first != *end) return refuse_order(bucket, step);
    held->starts[i] = own.first;
    end = &held->starts[i + 1];
    *end = own.first + own.count;
  }
  for (int64_t i = 0; i < count; i++)
    held->sum[ad_group_index(&held->group, ad_group_rank(members, i))] =
        (ad_node){held->starts[0], *end - held->starts[0]};
  return AD_OK;
}

static ad_status check_step(const ad_bucket *bucket, ad_path_step step, held_leaves *held) {
  for (int64_t i = 0; i < ad_group_size(&held->group); i++) {
    ad_group members = ad_mesh_group(bucket->key.mesh, step.axes, ad_group_rank(&held->group, i));
    if (ad_group_rank(&members, 0) == ad_group_rank(&held->group, i))
      AD_TRY(check_members(bucket, step, &members, held));
  }
  return AD_OK;
}

/* Records that each position's sum is that of all leaves of these units on the ranks of the step's group. */
static void hold_segment(const ad_reducer *reducer, const ad_bucket *bucket, ad_path_step step, unit_range segment,
                         held_leaves *held) {
  for (int64_t i = 0; i < ad_group_size(&held->group); i++) {
    int64_t rank = ad_group_rank(&held->group, i);
    ad_group members = ad_mesh_group(bucket->key.mesh, step.axes, rank);
    if (ad_group_rank(&members, 0) != rank) continue;
    ad_node sum = leaves_over(reducer, bucket->key.mesh, rank, step.axes, segment);
    for (int64_t k = 0; k < ad_group_size(&members); k++)
      held->sum[ad_group_index(&held->group, ad_group_rank(&members, k))] = sum;
  }
}

/* Checks the collectives that the bucket runs if it is launched in `round`. */
static ad_status check_round(const ad_reducer *reducer, const ad_bucket *bucket, int64_t round, held_leaves *held) {
  int is_all = reducer->leaves.deal.sync[round] == AD_SYNC_ALL;
  unit_range sent = units_sent(reducer, bucket, round),
             segment = units_from(reducer, segment_begin(reducer, round), round);
  for (int64_t i = 0; i < ad_group_size(&held->group); i++)
    held->sum[i] = leaves_over(reducer, bucket->key.mesh, ad_group_rank(&held->group, i), 0, sent);
  for (int k = 0; k < bucket->key.step_count && (k == 0 || is_all); k++) {
    ad_path_step step = bucket->key.steps[k];
    if (!(step.axes & AD_AXES_DP)) continue;
    AD_TRY(check_step(bucket, step, held));
    if (!k && ad_bucket_sums_apart(bucket)) hold_segment(reducer, bucket, step, segment, held);
  }
  return AD_OK;
}

static ad_status check_path(const ad_reducer *reducer, const ad_bucket *bucket, held_leaves *held) {
  for (int64_t round = 0; round < reducer->leaves.deal.rounds; round++)
    if (sends(reducer, bucket, round)) AD_TRY(check_round(reducer, bucket, round, held));
  return AD_OK;
}

static ad_status check_paths(const ad_reducer *reducer) {
  held_leaves held = {.group = ad_mesh_group(reducer->params[0].layout.mesh, AD_AXES_DP, ad_comm_rank(reducer->comm))};
  size_t positions = (size_t)ad_group_size(&held.group);
  ad_status status = ad_new(positions, &held.sum);
  if (!status) status = ad_new(positions + 1, &held.starts);
  for (size_t i = 0; !status && i < reducer->bucket_count; i++)
    status = check_path(reducer, &reducer->buckets[i], &held);
  ad_release(held.sum);
  ad_release(held.starts);
  return status;
}

/* For a path that does not begin with a reduce_scatter over dp_shard: makes the sum over dp_shard the path's first step,
 * and marks this step as early. */
static void sum_shards_first(ad_bucket_key *key) {
  ad_path_step steps[AD_AXIS_COUNT] = {0};
  int count = 1;
  for (int i = 0; i < key->step_count; i++) {
    ad_path_step step = key->steps[i];
    if (step.axes & AD_AXES(AD_DP_SHARD)) steps[0] = step;
    step.axes &= ~AD_AXES(AD_DP_SHARD);
    if (step.axes) steps[count++] = step;
  }
  steps[0].axes = AD_AXES(AD_DP_SHARD);
  memcpy(key->steps, steps, sizeof steps);
  key->step_count = count;
  key->scatters = 0;
  key->rescatters = count > 1 && steps[1].move == AD_MOVE_REDUCE_SCATTER;
  key->early = 1;
}

/* If some buckets are reduce-scattered early, in AD_SYNC_SHARD rounds, all other buckets are summed over dp_shard in
 * these rounds, too. For after each such round the ranks get other leaves: the leaves that a rank has computed before
 * and after it do not follow one another, so the rank cannot keep them in one sum. */
static void find_early_sums(ad_reducer *reducer) {
  ad_leaf_deal *deal = &reducer->leaves.deal;
  int is_early = 0;
  for (size_t i = 0; i < reducer->bucket_count; i++) deal->scatters |= reducer->buckets[i].key.early;
  for (int64_t round = 0; round < deal->rounds; round++) is_early |= deal->sync[round] == AD_SYNC_SHARD;
  if (!is_early || !deal->scatters || deal->shards == 1) return;
  for (size_t i = 0; i < reducer->bucket_count; i++)
    if (!reducer->buckets[i].key.early) sum_shards_first(&reducer->buckets[i].key);
}

ad_status ad_leaves_deal(ad_reducer *reducer) {
  ad_reducer_leaves *leaves = &reducer->leaves;
  if (!reducer->param_count)
    return ad_fail(AD_INVALID,
                   "the reducer's options have `leaves`, but it has no parameters, whose mesh says which "
                   "ranks share the leaves; create it without `leaves`");
  for (size_t i = 0; i < reducer->param_count; i++) AD_TRY(check_param(reducer, &reducer->params[i]));
  const ad_mesh *mesh = reducer->params[0].layout.mesh;
  int64_t rank = ad_comm_rank(reducer->comm);
  leaves->deal.replicas = ad_mesh_axis_size(mesh, AD_DP_REPLICATE);
  leaves->deal.shards = ad_mesh_axis_size(mesh, AD_DP_SHARD);
  leaves->replica = ad_mesh_position(mesh, rank, AD_DP_REPLICATE);
  leaves->shard = ad_mesh_position(mesh, rank, AD_DP_SHARD);
  find_early_sums(reducer);
  AD_TRY(check_rounds(&leaves->deal));
  AD_TRY(ad_new((size_t)(leaves->deal.replicas * leaves->deal.shards) + 1, &leaves->starts));
  return check_paths(reducer);
}

int64_t ad_reducer_leaf(const ad_reducer *reducer, int64_t round) {
  if (!reducer || round < 0 || round >= reducer->leaves.deal.rounds) return -1;
  return ad_leaf_of(&reducer->leaves.deal, reducer->leaves.replica, reducer->leaves.shard, round);
}

/* ---- a rank's sums of leaves ---- */

static ad_status in_bucket(const ad_bucket *bucket, ad_status status) {
  return status ? ad_fail_in(status, "the bucket of `%s`", bucket->members.names[0]) : AD_OK;
}

/* Returns how many steps of the path sum leaves, which are the steps over data-parallel axes. They come first in the
 * path. */
static int leaf_steps(const ad_bucket *bucket) {
  int count = 0;
  while (count < bucket->key.step_count && bucket->key.steps[count].axes & AD_AXES_DP) count++;
  return count;
}

/* Returns 1 if the sums of a segment (deal.h) are at first sums over some of the ranks, and collectives add the other
 * ranks' sums when the segment ends; else 0. */
static int sums_are_widened(const ad_bucket *bucket) {
  ad_axes axes = 0;
  int first = bucket->key.rescatters ? 2 : ad_bucket_sums_apart(bucket);
  for (int k = first; k < leaf_steps(bucket); k++) axes |= bucket->key.steps[k].axes;
  return (axes & ad_mesh_large(bucket->key.mesh)) != 0;
}

/* Returns 1 if the reduce_scatter that sends `node` can add its result to the top of the stack; else 0. It cannot if
 * the top is a sum of an earlier segment, which is already a sum over all ranks and therefore has another layout. */
static int adds_to_top(const ad_reducer *reducer, const ad_node_stack *stack, ad_node node, int64_t round) {
  return node.first != leaves_of_segment(reducer, round).first && ad_stack_adds(stack, node);
}

/* Records in the stack that the sums of the nodes of `range`, which a round sends, are arriving. *adds: 1 if this is
 * one sum, which the reduce_scatter adds to the top of the stack. */
static ad_status place_sums(const ad_reducer *reducer, ad_node_stack *stack, ad_node range, int64_t round, int scatters,
                            int *adds) {
  ad_node nodes[AD_NODES_MAX];
  size_t count = ad_nodes_of(range.first, range.count, stack->leaves, nodes);
  *adds = scatters && adds_to_top(reducer, stack, range, round);
  for (size_t i = 0; i < count; i++) AD_TRY(ad_stack_place(stack, nodes[i], *adds));
  return AD_OK;
}

/* Returns the axes over which the first `count` steps of the path sum. */
static ad_axes axes_of(const ad_bucket *bucket, int count) {
  ad_axes axes = 0;
  for (int k = 0; k < count; k++) axes |= bucket->key.steps[k].axes;
  return axes;
}

/* Records in the bucket's stacks which sums arrive from step `k` of the path if the bucket is launched in this round. If
 * the sums arrive in another stack than that of the step's input, that stack is then empty. After the last step that
 * sums leaves, all sums of the segment are sums over all ranks, so no sums are set apart any more. */
static ad_status note_step(const ad_reducer *reducer, ad_bucket *bucket, int64_t round, int k, int *adds) {
  const ad_mesh *mesh = bucket->key.mesh;
  ad_node_stack *input = ad_bucket_sums_after(bucket, k), *sums = ad_bucket_sums_after(bucket, k + 1);
  int64_t rank = ad_comm_rank(reducer->comm);
  ad_axes axes = bucket->key.steps[k].axes;
  *adds = 0;
  if (input != sums && !k) input->count = 0;
  if (input != sums && !k)
    return place_sums(reducer, sums, leaves_over(reducer, mesh, rank, axes, units_sent(reducer, bucket, round)), round,
                      bucket->key.scatters, adds);
  unit_range segment = units_from(reducer, segment_begin(reducer, round), round);
  ad_node own = leaves_over(reducer, mesh, rank, axes_of(bucket, k), segment),
          range = leaves_over(reducer, mesh, rank, axes_of(bucket, k + 1), segment);
  if (input != sums) {
    AD_TRY(ad_stack_expect(input, own.first, own.count));
    input->count = 0;
    return place_sums(reducer, sums, range, round, 0, adds);
  }
  if (ad_mesh_ranks_over(mesh, axes) > 1 && range.count) {
    AD_TRY(ad_stack_expect(sums, own.first, own.count));
    AD_TRY(ad_stack_widen(sums, range));
  }
  if (k + 1 == leaf_steps(bucket)) sums->apart = 0;
  return AD_OK;
}

/* Calls ad_stack_settle until nothing is left to do, on a stack that has nodes but no values. *most is raised to the
 * number of levels that the stack uses. */
static void settle_on_paper(ad_node_stack *stack, size_t *most) {
  if (ad_stack_used(stack) > *most) *most = ad_stack_used(stack);
  while (ad_stack_settle(stack)) {
  }
}

/* The stacks of a bucket: of its leaves, of early sums, of late sums. */
enum { STACKS = 3 };

/* Changes the nodes of the bucket's stacks, which have no values, as the steps of the path do if the bucket is launched
 * in this round. most[k] is raised to the number of levels that the stack of the sums after k steps uses. */
static ad_status launch_on_paper(const ad_reducer *reducer, ad_bucket *bucket, int64_t round, size_t most[STACKS]) {
  int adds, is_all = reducer->leaves.deal.sync[round] == AD_SYNC_ALL;
  for (int k = 0; k < leaf_steps(bucket) && (k == 0 || is_all); k++) {
    ad_node_stack *sums = ad_bucket_sums_after(bucket, k + 1);
    AD_TRY(note_step(reducer, bucket, round, k, &adds));
    settle_on_paper(sums, &most[sums == &bucket->late_sums ? 2 : sums == &bucket->early_sums]);
  }
  if (is_all && sums_are_widened(bucket)) ad_bucket_sums(bucket)->apart = ad_bucket_sums(bucket)->count;
  return AD_OK;
}

/* Sets the levels of each stack to the most levels that the rounds of a step need. */
static ad_status count_levels(const ad_reducer *reducer, ad_bucket *bucket) {
  ad_node_stack *stacks[STACKS] = {&bucket->stack, &bucket->early_sums, &bucket->late_sums};
  size_t most[STACKS] = {1, ad_bucket_sums_apart(bucket), bucket->key.rescatters};
  for (int i = 0; i < STACKS; i++) stacks[i]->levels = AD_NODES_MAX;
  for (int64_t round = 0; round < reducer->leaves.deal.rounds; round++) {
    int64_t leaf = ad_reducer_leaf(reducer, round);
    if (leaf >= 0) AD_TRY(ad_stack_place(&bucket->stack, (ad_node){leaf, 1}, 0));
    settle_on_paper(&bucket->stack, &most[0]);
    if (sends(reducer, bucket, round)) AD_TRY(launch_on_paper(reducer, bucket, round, most));
  }
  for (int i = 0; i < STACKS; i++) {
    stacks[i]->levels = most[i];
    stacks[i]->count = stacks[i]->apart = 0;
  }
  return AD_OK;
}

ad_status ad_leaves_make_stacks(const ad_reducer *reducer, ad_bucket *bucket) {
  const ad_node_stack empty = {.leaves = reducer->leaves.deal.leaves, .dtype = bucket->sum.dtype};
  bucket->stack = bucket->early_sums = bucket->late_sums = empty;
  bucket->stack.dtype = bucket->sent.dtype;
  bucket->stack.numel = bucket->members.numel;
  bucket->early_sums.numel = ad_array_numel(&bucket->sum);
  if (bucket->key.rescatters) bucket->late_sums.numel = ad_array_numel(&bucket->rescattered);
  return in_bucket(bucket, count_levels(reducer, bucket));
}

void ad_leaves_begin_segment(ad_bucket *bucket) {
  ad_node_stack *sums = ad_bucket_sums(bucket);
  sums->apart = sums_are_widened(bucket) ? sums->count : 0;
}

/* Points the bucket's arrays of full gradients to `memory`, a level of the stack, unless the bucket uses a slot. */
static void point_to(ad_bucket *bucket, void *memory) {
  if (bucket->turn.window < 0) bucket->sent.data = bucket->partial.data = memory;
}

ad_status ad_leaf_begin(ad_reducer *reducer, ad_bucket *bucket) {
  void *memory;
  if (ad_leaves_idle(reducer)) return AD_OK;
  AD_TRY(in_bucket(bucket, ad_stack_next(&bucket->stack, (ad_node){reducer->leaves.leaf, 1}, &memory)));
  point_to(bucket, memory);
  return AD_OK;
}

/* Puts the arriving nodes on the stack, and replaces siblings by their sums. `steps` is the number of steps of the path
 * that the nodes' values have passed. */
static void settle(ad_reducer *reducer, ad_bucket *bucket, ad_node_stack *stack, int steps) {
  ad_stack_change change;
  while ((change = ad_stack_settle(stack)) != AD_STACK_SETTLED) {
    ad_node_passing passing = {reducer, bucket, stack, steps, change == AD_STACK_BROUGHT};
    ad_inject(AD_INJECT_NODE, &passing);
  }
}

ad_status ad_leaf_keep(ad_reducer *reducer, ad_bucket *bucket) {
  if (ad_leaves_idle(reducer)) return AD_OK;
  ad_bucket_take_absent(reducer, bucket);
  AD_TRY(ad_bucket_pass(AD_INJECT_LEAF, reducer, bucket));
  AD_TRY(in_bucket(bucket, ad_stack_place(&bucket->stack, (ad_node){reducer->leaves.leaf, 1}, 0)));
  settle(reducer, bucket, &bucket->stack, 0);
  return AD_OK;
}

ad_status ad_leaves_complete(ad_reducer *reducer, ad_bucket *bucket) {
  ad_node_stack *stack = &bucket->stack;
  int64_t round = reducer->leaves.rounds - 1;
  ad_node own =
      leaves_over(reducer, bucket->key.mesh, ad_comm_rank(reducer->comm), 0, units_sent(reducer, bucket, round));
  int64_t first = ad_bucket_sums_apart(bucket) || sums_are_widened(bucket) ? own.first : 0;
  AD_TRY(ad_leaf_keep(reducer, bucket));
  AD_TRY(in_bucket(bucket, ad_stack_expect(stack, first, own.first + own.count - first)));
  point_to(bucket, ad_stack_level(stack, stack->apart));
  return AD_OK;
}

/* ---- the steps of a path ---- */

void ad_leaves_ranges(const ad_reducer *reducer, const ad_bucket *bucket, ad_leaf_ranges *out) {
  ad_path_step step = bucket->key.steps[bucket->steps.next];
  int64_t round = bucket->steps.round, *starts = reducer->leaves.starts;
  ad_group group = ad_mesh_group(bucket->key.mesh, step.axes, ad_comm_rank(reducer->comm));
  ad_axes before = 0;
  *out = (ad_leaf_ranges){.starts = starts};
  if (!(step.axes & AD_AXES_DP)) return;
  for (int k = 0; k < bucket->steps.next; k++) before |= bucket->key.steps[k].axes;
  unit_range units = bucket->steps.next && ad_bucket_sums_apart(bucket)
                         ? units_from(reducer, segment_begin(reducer, round), round)
                         : units_sent(reducer, bucket, round);
  for (int64_t i = 0; i < ad_group_size(&group); i++) {
    ad_node held = leaves_over(reducer, bucket->key.mesh, ad_group_rank(&group, i), before, units);
    starts[i] = held.first;
    starts[i + 1] = held.first + held.count;
  }
  out->leaves = reducer->leaves.deal.leaves;
}

int ad_leaves_steps(const ad_reducer *reducer, const ad_bucket *bucket) {
  int is_last = reducer->leaves.rounds == reducer->leaves.deal.rounds;
  return is_last ? bucket->key.step_count : leaf_steps(bucket);
}

ad_status ad_leaves_post(const ad_reducer *reducer, ad_bucket *bucket) {
  int k = bucket->steps.next;
  ad_node_stack *sums = ad_bucket_sums_after(bucket, k + 1);
  size_t lowest = sums->apart;
  bucket->steps.adds = 0;
  if (k < leaf_steps(bucket))
    AD_TRY(in_bucket(bucket, note_step(reducer, bucket, bucket->steps.round, k, &bucket->steps.adds)));
  bucket->sum.data = ad_stack_level(sums, sums->arriving ? sums->at : lowest);
  return AD_OK;
}

void ad_leaves_settle(ad_reducer *reducer, ad_bucket *bucket) {
  ad_node_stack *sums = ad_bucket_sums_after(bucket, bucket->steps.next);
  settle(reducer, bucket, sums, bucket->steps.next);
  bucket->sum.data = ad_stack_level(sums, sums->apart);
}

ad_status ad_leaves_check(const ad_reducer *reducer, ad_bucket *bucket) {
  ad_node_stack sums = *ad_bucket_sums(bucket);
  ad_node segment = leaves_of_segment(reducer, bucket->steps.round);
  sums.apart = 0;
  return in_bucket(bucket, ad_stack_expect(&sums, 0, segment.first + segment.count));
}
