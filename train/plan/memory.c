/* The memory of every rank and node in a plan. Ranks of one kind use the same number of bytes, so one process acts as
 * one rank of each kind. In a small world the kind of each rank is found rank by rank; in a large world rank_kinds.c
 * derives the kinds from how values are sharded. */
#include <stdlib.h>
#include <xxhash.h>
#include "base/error.h"
#include "base/memory.h"
#include "module/module.h"
#include "plan/pools.h"
#include "plan/rank_kinds.h"
#include "plan/updates.h"
#include "program/program.h"
#include "recipe/leaves.h"
#include "recipe/sharding.h"
#include "reduce/plan.h"
#include "step/run.h"

enum { LISTED_MAX = 4096 }; /* in a world of at most this many ranks each rank is listed */

/* ---- listing the values of which ranks have parts ---- */

typedef struct ad_held_list {
  ad_held *list;
  size_t count;
} ad_held_list;

/* Adds a value to the list unless a value of the same shape and layout is in it. */
static ad_status add_held(ad_held_list *to, ad_held held) {
  for (size_t i = 0; i < to->count; i++) {
    ad_held *known = &to->list[i];
    if (!ad_shape_equal(&known->shape, &held.shape) || !ad_layout_equal(&known->layout, &held.layout)) continue;
    known->is_written |= held.is_written;
    known->is_shared |= held.is_shared;
    return AD_OK;
  }
  AD_TRY(ad_grow(&to->list, to->count, to->count + 1));
  to->list[to->count++] = held;
  return AD_OK;
}

/* Returns 1 if ranks have gathered or cast copies of a parameter in addition to the part that they store. */
static int has_copies(const ad_run_param *at) {
  if (!ad_layout_equal(&at->spec->layout, &at->spec->storage)) return 1;
  return ad_module_parameters(at->held)->values[at->param]->dtype != at->spec->policy.param;
}

static ad_status add_params(ad_run *run, int is_written, ad_held_list *to) {
  for (size_t i = 0; i < ad_run_param_count(run); i++) {
    ad_run_param at = ad_run_param_at(run, i);
    if (!at.held) continue;
    AD_TRY(add_held(to, (ad_held){at.spec->shape, at.spec->storage, is_written, 0}));
    AD_TRY(add_held(to, (ad_held){at.spec->shape, *ad_param_update(at.spec), is_written, 0}));
    AD_TRY(add_held(to, (ad_held){at.spec->shape, at.spec->layout, 0, has_copies(&at)}));
  }
  return AD_OK;
}

static ad_status add_states(const ad_program *program, int is_written, ad_held_list *to) {
  for (size_t m = 0; m < ad_program_module_count(program); m++) {
    const ad_module_spec *module = ad_program_module(program, m);
    for (size_t i = 0; i < module->state_count; i++)
      AD_TRY(add_held(to, (ad_held){module->states[i].shape, module->states[i].layout, is_written, 0}));
  }
  return AD_OK;
}

/* With leaves: adds, as if they were values, the leaves and the rows of the whole batch, which data-parallel ranks
 * divide. In large worlds, where kinds are found without visiting each rank, this separates ranks with different
 * numbers of leaves or rows. In small worlds key_of_leaves() separates such ranks exactly. */
static ad_status add_leaves(const ad_program *program, ad_held_list *to) {
  const ad_program_setting *setting = ad_program_setting_of(program);
  ad_layout divided = ad_layout_all(ad_program_full_mesh(program, 0), AD_R);
  ad_layout_set(&divided, AD_AXES_DP, AD_S(0));
  AD_TRY(add_held(to, (ad_held){{1, {setting->leaves}}, divided, 0, 0}));
  return add_held(to, (ad_held){{1, {setting->global_batch}}, divided, 0, 0});
}

static ad_status add_batch(const ad_program *program, ad_held_list *to, int *lists) {
  const ad_array *array;
  if (ad_program_setting_of(program)->leaves) {
    *lists = 1;
    return add_leaves(program, to);
  }
  for (size_t i = 0; (array = ad_program_batch_array(program, i, NULL, 0)); i++, *lists = 1)
    AD_TRY(add_held(to, (ad_held){array->shape, array->layout, 0, 0}));
  return AD_OK;
}

/* Adds the rows of a batch for a program that lists no batch, as if data-parallel axes sharded each microbatch. */
static ad_status add_rows(const ad_program *program, ad_held_list *to) {
  const ad_program_setting *setting = ad_program_setting_of(program);
  for (size_t i = 0; i < ad_program_module_count(program); i++) {
    ad_layout rows = ad_layout_all(ad_program_module(program, i)->mesh, AD_R);
    ad_layout_set(&rows, AD_AXES_DP, AD_S(0));
    for (int64_t m = 0; m < setting->microbatches; m++) {
      ad_shape shape = {1, {ad_cut(setting->global_batch, m, setting->microbatches).count}};
      AD_TRY(add_held(to, (ad_held){shape, rows, 0, 0}));
    }
  }
  return AD_OK;
}

/* Lists all values on which the bytes of a rank depend: parameters, states, and the batch. The batch of a pool may be
 * known only on the pool's ranks. */
static ad_status list_held(const ad_plan_pools *pools, int is_written, ad_held_list *out) {
  int lists_batch = 0;
  for (size_t i = 0; i < pools->count; i++) AD_TRY(add_params(pools->list[i].run, is_written, out));
  AD_TRY(add_states(ad_plan_program(pools), is_written, out));
  for (size_t i = 0; i < pools->count; i++) AD_TRY(add_batch(ad_run_program(pools->list[i].run), out, &lists_batch));
  return lists_batch ? AD_OK : add_rows(ad_plan_program(pools), out);
}

/* ---- the memory of each kind of rank ---- */

typedef struct ad_planning {
  const ad_recipe *recipe;
  const ad_plan_world *world;
  const ad_plan_pools *pools;
  ad_held_list held;
  int has_updates;       /* 1: some rank updates parameters as whole matrices */
  json_t *ranks, *nodes; /* the lists memory_per_rank and memory_per_node in the document */
} ad_planning;

/* A kind of rank (ranks with equal memory), and the memory of its first rank. */
typedef struct ad_acted_kind {
  uint64_t key;
  int64_t first;
  ad_plan_memory memory;
} ad_acted_kind;

/* Finds the memory of a rank. For a pool's first rank there is already a run that acted as this rank, so that run is
 * used. */
static ad_status act(const ad_planning *plan, int64_t rank, size_t crowd, ad_plan_memory *out) {
  ad_comm *comm;
  ad_run *run;
  const ad_plan_pool *pool = &plan->pools->list[ad_plan_pool_of(plan->pools, rank)];
  if (rank == pool->first && !crowd) return ad_plan_memory_of(pool->run, out);
  AD_TRY(ad_plan_act(plan->recipe, rank, plan->world, crowd, &comm, &run));
  ad_status status = ad_plan_memory_of(run, out);
  ad_run_destroy(run);
  ad_comm_close(comm);
  return status;
}

/* Finds the worst case for a mixture of experts. A rank gets rows from other ranks, so the worst case is that all ranks
 * have as many tokens as the rank with the most, and that all tokens choose experts of this rank. */
static ad_status act_worst(const ad_planning *plan, ad_acted_kind *kinds, size_t count) {
  size_t crowd = 0;
  for (size_t i = 0; i < count; i++)
    if (kinds[i].memory.most_routed > crowd) crowd = kinds[i].memory.most_routed;
  for (size_t i = 0; crowd && i < count; i++) {
    ad_plan_memory worst;
    AD_TRY(act(plan, kinds[i].first, crowd, &worst));
    kinds[i].memory.activations_worst = worst.activations;
  }
  return AD_OK;
}

/* ---- documents of ranks and nodes ---- */

static json_t *rank_document(const ad_planning *plan, const ad_plan_memory *memory, int64_t rank) {
  json_t *document = json_pack(
      "{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "rank", (json_int_t)rank, "node",
      (json_int_t)(rank / plan->world->ranks_per_node), "pool", (json_int_t)ad_plan_pool_of(plan->pools, rank),
      "params", (json_int_t)memory->params, "gathered", (json_int_t)memory->gathered, "grads",
      (json_int_t)memory->grads, "optimizer", (json_int_t)memory->optimizer, "buckets", (json_int_t)memory->buckets,
      "activations", (json_int_t)memory->activations, "checkpoint", (json_int_t)memory->checkpoint, "runtime",
      (json_int_t)memory->runtime, "peak", (json_int_t)ad_plan_peak(memory));
  if (plan->has_updates) json_object_set_new(document, "update", json_integer((json_int_t)memory->update));
  if (plan->recipe->train.leaves) ad_plan_add_leaf_sums(memory, document);
  if (memory->prompts) json_object_set_new(document, "prompts", json_integer((json_int_t)memory->prompts));
  if (!memory->activations_worst) return document;
  json_object_set_new(document, "activations_worst", json_integer((json_int_t)memory->activations_worst));
  json_object_set_new(document, "peak_worst", json_integer((json_int_t)ad_plan_peak_worst(memory)));
  return document;
}

static json_t *node_document(int64_t node, int64_t peak) {
  return json_pack("{s:I, s:I}", "node", (json_int_t)node, "peak", (json_int_t)peak);
}

/* ---- small worlds: rank by rank ---- */

/* Mixes into *key how the rank's leaves decide its bytes: the number of rows of its leaf in each round, and where its
 * sums lie in the tree over all leaves. Trees over n consecutive leaves have the same shape if the indices of their
 * first leaves differ by a multiple of a power of two that is at least n. From ZeRO 1 on, the bytes also depend on the
 * rank's replica, because a rank then holds sums of the leaves of its replica. */
static ad_status key_of_leaves(const ad_planning *plan, int64_t rank, uint64_t *key) {
  const ad_recipe *recipe = plan->recipe;
  const ad_mesh *mesh = ad_program_full_mesh(ad_plan_program(plan->pools), 0);
  int64_t *list, rounds = ad_recipe_rounds(recipe), period = 1;
  AD_TRY(ad_recipe_list_leaves(recipe, rank, &list));
  if (ad_recipe_highest_zero(recipe)) *key += 1 + (uint64_t)ad_mesh_position(mesh, rank, AD_DP_REPLICATE);
  while (period < rounds) period *= 2;
  for (int64_t round = 0; round < rounds; round++) {
    int64_t leaf = list[round], facts[] = {-1, 0, 0};
    if (leaf >= 0) {
      facts[0] = ad_cut(recipe->train.global_batch, leaf, recipe->train.leaves).count;
      facts[1] = leaf % period;
      facts[2] = leaf + 1 == recipe->train.leaves;
    }
    *key = XXH3_64bits_withSeed(facts, sizeof facts, *key);
  }
  ad_release(list);
  return AD_OK;
}

/* Returns the memory of a rank; `of_kind` is the memory of all ranks of its kind. Only rank 0 also has a copy of the
 * parameters for prompts. */
static ad_plan_memory memory_of_rank(const ad_plan_memory *of_kind, int64_t rank) {
  ad_plan_memory memory = *of_kind;
  if (rank) memory.prompts = 0;
  return memory;
}

/* The kinds of ranks that were found so far, and the kind of each rank. */
typedef struct ad_listed_ranks {
  ad_acted_kind *kinds;
  size_t count, *kind_of; /* kind_of[rank] is the index of the rank's kind */
} ad_listed_ranks;

/* Finds the kind of a rank (the ranks with equal memory). If no earlier rank was of this kind, acts as the rank to find
 * its memory. */
static ad_status find_kind(const ad_planning *plan, int64_t rank, ad_listed_ranks *to) {
  uint64_t key = ad_rank_key(plan->held.list, plan->held.count, rank, plan->world->ranks_per_node);
  size_t at = 0;
  if (plan->recipe->train.leaves) AD_TRY(key_of_leaves(plan, rank, &key));
  while (at < to->count && to->kinds[at].key != key) at++;
  to->kind_of[rank] = at;
  if (at < to->count) return AD_OK;
  to->kinds[to->count++] = (ad_acted_kind){.key = key, .first = rank};
  return act(plan, rank, 0, &to->kinds[at].memory);
}

/* Adds an entry for each rank and each node to the document. */
static void document_ranks(const ad_planning *plan, const ad_listed_ranks *listed) {
  const ad_plan_world *world = plan->world;
  int64_t node_peak = 0;
  for (int64_t rank = 0; rank < world->ranks; rank++) {
    ad_plan_memory memory = memory_of_rank(&listed->kinds[listed->kind_of[rank]].memory, rank);
    json_array_append_new(plan->ranks, rank_document(plan, &memory, rank));
    node_peak += (int64_t)ad_plan_peak(&memory);
    if ((rank + 1) % world->ranks_per_node && rank + 1 < world->ranks) continue;
    json_array_append_new(plan->nodes, node_document(rank / world->ranks_per_node, node_peak));
    node_peak = 0;
  }
}

static ad_status list_ranks_in(const ad_planning *plan, ad_listed_ranks *listed) {
  size_t ranks = (size_t)plan->world->ranks;
  AD_TRY(ad_new(ranks, &listed->kinds));
  AD_TRY(ad_new(ranks, &listed->kind_of));
  for (int64_t rank = 0; rank < plan->world->ranks; rank++) AD_TRY(find_kind(plan, rank, listed));
  AD_TRY(act_worst(plan, listed->kinds, listed->count));
  document_ranks(plan, listed);
  return AD_OK;
}

static ad_status list_ranks(const ad_planning *plan) {
  ad_listed_ranks listed = {0};
  ad_status status = list_ranks_in(plan, &listed);
  ad_release(listed.kinds);
  ad_release(listed.kind_of);
  return status;
}

/* ---- large worlds: kind by kind ---- */

static ad_status act_kinds(const ad_planning *plan, const ad_kinds *kinds, ad_acted_kind *acted) {
  for (size_t i = 0; i < ad_kinds_count(kinds); i++) {
    acted[i].first = ad_kinds_at(kinds, i)->first;
    AD_TRY(act(plan, acted[i].first, 0, &acted[i].memory));
  }
  return act_worst(plan, acted, ad_kinds_count(kinds));
}

/* Adds an entry for the first rank of each kind, with the number of ranks of that kind. Sets peaks[i] to the peak of a
 * rank of kind i, without rank 0's copy for prompts. */
static void document_kinds(const ad_planning *plan, const ad_kinds *kinds, const ad_acted_kind *acted, size_t *peaks) {
  for (size_t i = 0; i < ad_kinds_count(kinds); i++) {
    json_t *document = rank_document(plan, &acted[i].memory, acted[i].first);
    json_object_set_new(document, "ranks", json_integer((json_int_t)ad_kinds_at(kinds, i)->ranks));
    json_array_append_new(plan->ranks, document);
    peaks[i] = ad_plan_peak(&acted[i].memory) - acted[i].memory.prompts;
  }
}

/* Adds an entry for the node that needs most memory, with the number of nodes. With prompts its bytes are an upper
 * bound: rank 0's copy is added to the most that any node needs without this copy. */
static ad_status list_node(const ad_planning *plan, const ad_kinds *kinds, const size_t *peaks, size_t prompts) {
  const ad_plan_world *world = plan->world;
  ad_node_peak most;
  AD_TRY(ad_kinds_node_peak(kinds, peaks, &most));
  if (prompts) most = (ad_node_peak){.peak = most.peak + (int64_t)prompts, .is_a_bound = most.is_a_bound || most.node};
  json_t *document = node_document(most.node, most.peak);
  int64_t nodes = (world->ranks + world->ranks_per_node - 1) / world->ranks_per_node;
  json_object_set_new(document, "nodes", json_integer((json_int_t)nodes));
  if (most.is_a_bound) json_object_set_new(document, "is_a_bound", json_true());
  json_array_append_new(plan->nodes, document);
  return AD_OK;
}

static ad_status list_kinds(const ad_planning *plan, const ad_kinds *kinds) {
  ad_acted_kind *acted = NULL;
  size_t *peaks = NULL;
  ad_status status = ad_new(ad_kinds_count(kinds), &acted);
  if (!status) status = ad_new(ad_kinds_count(kinds), &peaks);
  if (!status) status = act_kinds(plan, kinds, acted);
  if (!status) {
    document_kinds(plan, kinds, acted, peaks);
    status = list_node(plan, kinds, peaks, acted[0].memory.prompts);
  }
  ad_release(acted);
  ad_release(peaks);
  return status;
}

static ad_status list_large(const ad_planning *plan) {
  ad_kinds *kinds;
  AD_TRY(ad_kinds_find(plan->held.list, plan->held.count, plan->world->ranks, plan->world->ranks_per_node, &kinds));
  ad_status status = list_kinds(plan, kinds);
  ad_kinds_destroy(kinds);
  return status;
}

ad_status ad_plan_add_memory(const ad_recipe *recipe, const ad_plan_world *world, const ad_plan_pools *pools,
                             json_t *document) {
  ad_plan_world after = ad_plan_world_after(pools, world);
  ad_planning plan = {
      recipe, &after, pools, .has_updates = ad_plan_has_updates(pools), .ranks = json_array(), .nodes = json_array()};
  ad_status status = list_held(pools, recipe->checkpoint.every > 0, &plan.held);
  if (!status) status = world->ranks <= LISTED_MAX ? list_ranks(&plan) : list_large(&plan);
  ad_release(plan.held.list);
  json_object_set_new(document, "memory_per_rank", plan.ranks);
  json_object_set_new(document, "memory_per_node", plan.nodes);
  return status;
}
