/* A reducer with leaves: checks that its parameters can be summed by leaves, and forms each rank's sums of leaves. The
 * stack (stack.c) adds them up in the order of the tree over the leaves. */
#include <string.h>
#include "base/error.h"
#include "base/memory.h"
#include "mesh/mesh.h"
#include "reduce/reducer.h"

/* ---- the options ---- */

static ad_status check_sync(const ad_leaf_options *options) {
  for (int64_t round = 0; round < options->rounds; round++) {
    int is_last = round + 1 == options->rounds, is_all = options->sync[round] == AD_SYNC_ALL;
    if ((unsigned)options->sync[round] <= AD_SYNC_ALL && is_last == is_all) continue;
    return ad_fail(
        AD_INVALID,
        "the reducer's options have `leaves` with `sync` %d in round %lld of %lld, but the last round, and no "
        "round before it, must have AD_SYNC_ALL",
        (int)options->sync[round], (long long)round, (long long)options->rounds);
  }
  return AD_OK;
}

static ad_status check_options(const ad_reducer *reducer, const ad_leaf_options *options) {
  if (options->leaves < 1 || options->rounds < 1 || !options->sync)
    return ad_fail(AD_INVALID,
                   "the reducer's options have `leaves` with %lld leaves, %lld rounds and `sync` %s, but there must be "
                   "at least 1 leaf and 1 round, and a `sync` for each round",
                   (long long)options->leaves, (long long)options->rounds, options->sync ? "set" : "NULL");
  if (reducer->options.reuses)
    return ad_fail(
        AD_INVALID,
        "the reducer's options have both `leaves` and `reuses`, but a reducer that reuses memory cannot keep "
        "sums of leaves; set `reuses` to 0");
  return check_sync(options);
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

void ad_leaves_release(ad_reducer *reducer) { ad_release(reducer->leaves.sync); }

/* ---- parameters that can be summed by leaves ---- */

static ad_status check_param(const ad_reducer *reducer, const ad_reduced_param *param) {
  const ad_mesh *mesh = param->layout.mesh;
  char axes[96], layout[160];
  if (!ad_mesh_equal(mesh, reducer->params[0].layout.mesh))
    return ad_fail(
        AD_INVALID,
        "parameter `%s` is on mesh \"%s\", but `%s` is on mesh \"%s\"; with leaves all parameters of a reducer "
        "must be on one mesh",
        param->name, ad_mesh_text(mesh), reducer->params[0].name, ad_mesh_text(reducer->params[0].layout.mesh));
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

static ad_status check_scatters(const ad_reducer *reducer) {
  const ad_leaf_deal *deal = &reducer->leaves.deal;
  for (int64_t round = 0; deal->scatters && round < deal->rounds; round++)
    if (deal->sync[round] == AD_SYNC_SHARD)
      return ad_fail(AD_INVALID,
                     "the reducer's options have `leaves` with AD_SYNC_SHARD in round %lld, but the storage of "
                     "parameters is sharded, and with leaves only the last round can reduce; use AD_SYNC_NONE",
                     (long long)round);
  return AD_OK;
}

/* ---- what the collectives of a path sum ---- */

/* The leaves whose sum each data-parallel position holds; `group` is the positions, in mesh order. */
typedef struct held_leaves {
  ad_group group;
  ad_span *span;    // [positions]
  int64_t *starts;  // [positions + 1], for the leaves of a collective's members
} held_leaves;

static ad_status refuse_sum(const ad_reducer *reducer, const ad_bucket *bucket, ad_path_step step, const char *why) {
  const ad_leaf_deal *deal = &reducer->leaves.deal;
  char axes[96];
  return ad_fail(AD_INVALID,
                 "the gradient of `%s` cannot be summed by leaves: %lld leaves on dp_replicate=%lld dp_shard=%lld, and "
                 "%s over %s sums %s",
                 bucket->members.names[0], (long long)deal->leaves, (long long)deal->replicas, (long long)deal->shards,
                 ad_move_name(step.move), ad_axes_print(step.axes, axes, sizeof axes), why);
}

/* Checks what the step sums in one group, and writes down that each member then holds the sum. */
static ad_status check_members(const ad_reducer *reducer, const ad_bucket *bucket, ad_path_step step,
                               const ad_group *members, held_leaves *held) {
  int64_t count = ad_group_size(members), *end = &held->starts[0];
  for (int64_t i = 0; i < count; i++) {
    ad_span own = held->span[ad_group_index(&held->group, ad_group_rank(members, i))];
    if (i && own.first != *end)
      return refuse_sum(reducer, bucket, step,
                        "ranks in another order than that of their leaves; name dp_replicate before dp_shard in the "
                        "mesh, and use one type on both in the storage");
    held->starts[i] = own.first;
    end = &held->starts[i + 1];
    *end = own.first + own.count;
  }
  if (!ad_nodes_follow_members(held->starts, (size_t)count, reducer->leaves.deal.leaves))
    return refuse_sum(reducer, bucket, step,
                      "by a tree over ranks, which is not the tree over these leaves; use powers of two, and at least "
                      "as many leaves as ranks");
  for (int64_t i = 0; i < count; i++)
    held->span[ad_group_index(&held->group, ad_group_rank(members, i))] =
        (ad_span){held->starts[0], *end - held->starts[0]};
  return AD_OK;
}

static ad_status check_path(const ad_reducer *reducer, const ad_bucket *bucket, held_leaves *held) {
  const ad_leaf_deal *deal = &reducer->leaves.deal;
  const ad_mesh *mesh = bucket->key.mesh;
  int64_t positions = ad_group_size(&held->group);
  for (int64_t i = 0; i < positions; i++) {
    int64_t rank = ad_group_rank(&held->group, i);
    held->span[i] = ad_leaves_of_position(deal, ad_mesh_position(mesh, rank, AD_DP_REPLICATE),
                                          ad_mesh_position(mesh, rank, AD_DP_SHARD), 0);
  }
  for (int k = 0; k < bucket->key.step_count; k++) {
    ad_path_step step = bucket->key.steps[k];
    for (int64_t i = 0; step.axes & AD_AXES_DP && i < positions; i++) {
      ad_group members = ad_mesh_group(mesh, step.axes, ad_group_rank(&held->group, i));
      if (ad_group_rank(&members, 0) == ad_group_rank(&held->group, i))
        AD_TRY(check_members(reducer, bucket, step, &members, held));
    }
  }
  return AD_OK;
}

static ad_status check_paths(const ad_reducer *reducer) {
  held_leaves held = {.group = ad_mesh_group(reducer->params[0].layout.mesh, AD_AXES_DP, ad_comm_rank(reducer->comm))};
  size_t positions = (size_t)ad_group_size(&held.group);
  ad_status status = ad_new(positions, &held.span);
  if (!status) status = ad_new(positions + 1, &held.starts);
  for (size_t i = 0; !status && i < reducer->bucket_count; i++)
    status = check_path(reducer, &reducer->buckets[i], &held);
  ad_release(held.span);
  ad_release(held.starts);
  return status;
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
  for (size_t i = 0; i < reducer->bucket_count; i++) leaves->deal.scatters |= reducer->buckets[i].key.scatters;
  AD_TRY(check_rounds(&leaves->deal));
  AD_TRY(check_scatters(reducer));
  return check_paths(reducer);
}

int64_t ad_reducer_leaf(const ad_reducer *reducer, int64_t round) {
  if (!reducer || round < 0 || round >= reducer->leaves.deal.rounds) return -1;
  return ad_leaf_of(&reducer->leaves.deal, reducer->leaves.replica, reducer->leaves.shard, round);
}

/* ---- a rank's sums of leaves ---- */

static ad_span own_leaves(const ad_reducer *reducer) {
  return ad_leaves_of_position(&reducer->leaves.deal, reducer->leaves.replica, reducer->leaves.shard, 0);
}

ad_node_stack ad_leaves_stack(const ad_reducer *reducer, const ad_bucket *bucket) {
  ad_span own = own_leaves(reducer);
  return ad_stack_for(own.first, own.count, reducer->leaves.deal.leaves, bucket->sent.dtype, bucket->members.numel);
}

static ad_status in_bucket(const ad_bucket *bucket, ad_status status) {
  return status ? ad_fail_in(status, "the bucket of `%s`", bucket->members.names[0]) : AD_OK;
}

ad_status ad_leaf_begin(ad_reducer *reducer, ad_bucket *bucket) {
  void *memory;
  if (ad_leaves_idle(reducer)) return AD_OK;
  AD_TRY(in_bucket(bucket, ad_stack_next(&bucket->stack, (ad_node){reducer->leaves.leaf, 1}, &memory)));
  bucket->sent.data = bucket->partial.data = memory;
  return AD_OK;
}

static ad_status push_leaf(ad_reducer *reducer, ad_bucket *bucket) {
  if (ad_leaves_idle(reducer)) return AD_OK;
  ad_bucket_take_absent(reducer, bucket);
  return in_bucket(bucket, ad_stack_push(&bucket->stack, (ad_node){reducer->leaves.leaf, 1}));
}

ad_status ad_leaves_keep(ad_reducer *reducer) {
  for (size_t i = 0; i < reducer->bucket_count; i++)
    if (!reducer->buckets[i].counters.sends) AD_TRY(push_leaf(reducer, &reducer->buckets[i]));
  return AD_OK;
}

ad_status ad_leaves_complete(ad_reducer *reducer, ad_bucket *bucket) {
  ad_span own = own_leaves(reducer);
  AD_TRY(push_leaf(reducer, bucket));
  AD_TRY(in_bucket(bucket, ad_stack_expect(&bucket->stack, (ad_node){own.first, own.count})));
  bucket->sent.data = bucket->partial.data = bucket->stack.memory;
  return AD_OK;
}
