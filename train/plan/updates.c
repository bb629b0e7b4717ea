/* Makes and prints "updates" and "owners" of a plan, from the stacks of the optimizers. */
#include "plan/updates.h"

#include <string.h>
#include "array/array.h"
#include "base/error.h"
#include "base/memory.h"
#include "files/json.h"
#include "mesh/mesh.h"
#include "module/module.h"
#include "program/program.h"
#include "recipe/schema.h"
#include "step/run.h"

enum { OWNERS_LISTED_MAX = 4096 }; /* in a world of more ranks it is not found what each of them works on */
static const double MIB = 1 << 20;

static const char *const way_names[] = {
    [AD_WAY_GATHERED] = "gathered", [AD_WAY_DEALT] = "dealt", [AD_WAY_DEALT_TO_REPLICAS] = "dealt_to_replicas"};

static const ad_whole *whole_of(const ad_run *run, size_t module) {
  ad_module *held = ad_run_module(run, module);
  ad_optimizer *optimizer = held ? ad_module_optimizer(held) : NULL;
  return optimizer ? ad_optimizer_whole(optimizer) : NULL;
}

const ad_stack *ad_plan_stacks(const ad_run *run, size_t module, size_t *count) {
  const ad_whole *whole = whole_of(run, module);
  *count = 0;
  return whole ? ad_whole_stacks(whole, count) : NULL;
}

int ad_plan_has_updates(const ad_plan_pools *pools) {
  for (size_t i = 0; i < pools->count; i++)
    for (size_t m = 0; m < ad_program_module_count(pools->list[i].run->program); m++)
      if (whole_of(pools->list[i].run, m)) return 1;
  return 0;
}

/* ---- the moves of a stack ---- */

void ad_plan_stack_params(const ad_run *run, size_t module, const ad_stack *stack, size_t *params) {
  size_t whole_count, count = 0;
  const ad_whole_param *whole = ad_whole_params(whole_of(run, module), &whole_count);
  for (int64_t i = 0; i < stack->count; i++)
    if (!i || stack->sheets[i].param != stack->sheets[i - 1].param)
      params[count++] = whole[stack->sheets[i].param].index;
}

static const ad_stack_move *move_at(const ad_stack *stack, int index) {
  if (index < stack->there_count) return &stack->there[index];
  return index < stack->there_count + stack->back_count ? &stack->back[index - stack->there_count] : NULL;
}

/* Returns this rank's part of a round before move number `index`. */
static ad_array part_before(const ad_run *run, const ad_stack *stack, int index) {
  const ad_shape shape = {3, {stack->ranks, stack->rows, stack->cols}};
  ad_layout layout = stack->begin;
  for (int i = 0; i < index; i++) ad_layout_set(&layout, AD_AXES(move_at(stack, i)->axis), move_at(stack, i)->to);
  return ad_array_describe(run->comm, stack->dtype, &shape, &layout);
}

int ad_plan_stack_move(const ad_run *run, const ad_stack *stack, size_t number, int index, ad_reduction_plan *out) {
  const ad_stack_move *move = move_at(stack, index);
  if (!move) return 0;
  int gathers = move->move == AD_MOVE_ALL_GATHER;
  ad_array part = part_before(run, stack, gathers ? index + 1 : index);
  *out = (ad_reduction_plan){.bucket = (int)number,
                             .move = move->move,
                             .axes = AD_AXES(move->axis),
                             .group_size = ad_mesh_axis_size(stack->stored.mesh, move->axis),
                             .dtype = stack->dtype,
                             .bytes = ad_move_moves_bytes(move->move) ? ad_array_bytes(&part) : 0};
  return 1;
}

/* ---- the document of stacks ---- */

static json_t *cost_document(const ad_way_cost *cost) {
  if (cost->refused) return json_null();
  return json_pack("{s:f, s:f, s:f, s:f}", "bytes", cost->bytes, "operations", cost->operations, "seconds",
                   cost->seconds, "memory", cost->memory);
}

/* Returns into how many blocks storage cuts each matrix. */
static int64_t block_count(const ad_stack *stack) {
  return ad_mesh_ranks_over(stack->stored.mesh, ad_layout_sharded_axes(&stack->stored));
}

static void add_ways(const ad_stack *stack, json_t *document) {
  if (ad_optimizer_is_blockwise(stack->record, stack->options)) {
    json_object_set_new(document, "blocks", json_integer((json_int_t)block_count(stack)));
    return;
  }
  json_t *ways = json_object();
  for (int way = AD_WAY_GATHERED; way < AD_WAYS; way++)
    json_object_set_new(ways, way_names[way], cost_document(&stack->cost[way]));
  json_object_set_new(document, "way", json_string(way_names[stack->way]));
  json_object_set_new(document, "ways", ways);
}

static json_t *stack_document(const ad_run *run, size_t pool, size_t module, const ad_stack *stack) {
  char axes[80];
  json_t *document =
      json_pack("{s:s, s:s, s:I, s:s, s:I, s:[I, I], s:s, s:s, s:I, s:I, s:I, s:f}", "what", stack->what, "module",
                ad_program_module(run->program, module)->name, "pool", (json_int_t)pool, "optimizer",
                ad_optimizer_names[stack->options->kind], "matrices", (json_int_t)stack->count, "shape",
                (json_int_t)stack->rows, (json_int_t)stack->cols, "dtype", ad_dtype_name(stack->dtype), "over",
                ad_axes_print(stack->worked, axes, sizeof axes), "ranks", (json_int_t)stack->ranks, "rounds",
                (json_int_t)stack->rounds, "empty", (json_int_t)(stack->rounds * stack->ranks - stack->count),
                "operations", stack->own_operations);
  ad_plan_add_stage(run->program, module, document);
  add_ways(stack, document);
  return document;
}

/* ---- who works on how much ---- */

/* The stacks of a module as one group of ranks has them. Groups have other stacks where experts are divided unevenly, or
 * matrices into blocks of which each is updated by itself. */
typedef struct group_stacks {
  ad_whole_param *params; /* with this group's parts; NULL for the stacks of the run, which owns them */
  ad_stack *stacks;
  size_t count;
} group_stacks;

/* The stacks of a module in all groups of ranks of a pool. */
typedef struct module_stacks {
  const ad_whole_param *params; /* as the pool's first rank has them */
  size_t param_count;
  group_stacks *groups;
  size_t group_count;
} module_stacks;

/* What ranks work on in a step, in multiplications and additions. */
typedef struct pool_loads {
  double most;        /* of the rank with the most */
  double mean, bound; /* the largest mean of a group, and the bound of its ranks */
} pool_loads;

static int64_t matrices_here(const ad_shape *local) { return local->ndim == 3 ? local->dim[0] : 1; }

/* Returns 1 if the rank has as much to do with each parameter as the ranks of this group: as many matrices and, of a
 * blockwise optimizer, blocks of the same shape. */
static int is_of_group(const module_stacks *of, const group_stacks *group, int64_t rank) {
  const ad_whole_param *params = group->params ? group->params : of->params;
  for (size_t i = 0; i < of->param_count; i++) {
    const ad_array *like = &params[i].like;
    ad_shape local = ad_layout_local_shape(&like->layout, &like->shape, rank);
    if (matrices_here(&local) != matrices_here(&like->local)) return 0;
    if (ad_optimizer_is_blockwise(params[i].record, params[i].options) && !ad_shape_equal(&local, &like->local))
      return 0;
  }
  return 1;
}

/* Makes the stacks of the rank's group. */
static ad_status add_group(const ad_run *run, module_stacks *of, int64_t rank) {
  AD_TRY(ad_grow(&of->groups, of->group_count, of->group_count + 1));
  group_stacks *group = &of->groups[of->group_count++];
  ad_comm *there;
  AD_TRY(ad_new(of->param_count, &group->params));
  AD_TRY(ad_comm_open_dry(rank, ad_comm_size(run->comm), &there));
  for (size_t i = 0; i < of->param_count; i++) {
    const ad_array *like = &of->params[i].like;
    group->params[i] = of->params[i];
    group->params[i].like = ad_array_describe(there, like->dtype, &like->shape, &like->layout);
  }
  ad_status status = ad_stacks_create(there, group->params, of->param_count, 0, &group->stacks, &group->count);
  ad_comm_close(there);
  return status;
}

static ad_status find_group(const ad_run *run, module_stacks *of, int64_t rank, const group_stacks **out) {
  size_t i = 0;
  while (i < of->group_count && !is_of_group(of, &of->groups[i], rank)) i++;
  if (i == of->group_count) AD_TRY(add_group(run, of, rank));
  *out = &of->groups[i];
  return AD_OK;
}

static ad_status begin_module(const ad_run *run, size_t module, module_stacks *out) {
  const ad_whole *whole = whole_of(run, module);
  *out = (module_stacks){0};
  if (!whole) return AD_OK;
  out->params = ad_whole_params(whole, &out->param_count);
  AD_TRY(ad_new(1, &out->groups));
  out->group_count = 1;
  out->groups[0].stacks = (ad_stack *)(uintptr_t)ad_whole_stacks(whole, &out->groups[0].count);
  return AD_OK;
}

static void release_module(module_stacks *of) {
  for (size_t i = 1; i < of->group_count; i++) {
    ad_stacks_destroy(of->groups[i].stacks, of->groups[i].count);
    ad_release(of->groups[i].params);
  }
  ad_release(of->groups);
}

/* Returns the slot that a rank has in each round of a stack. */
static int64_t slot_of(const ad_stack *stack, int64_t rank) {
  ad_span span = {0, 1};
  ad_layout_spans(&stack->dealt, 0, stack->ranks, rank, &span, 1);
  return span.first;
}

static int64_t matrices_of(const ad_stack *stack, int64_t rank) {
  int64_t slot = slot_of(stack, rank), count = 0;
  for (int64_t round = 0; round < stack->rounds; round++) count += stack->slot[round * stack->ranks + slot] >= 0;
  return count;
}

/* Returns 1 if an earlier stack is dealt to the same ranks. */
static int has_earlier(const ad_stack *stacks, size_t index) {
  for (size_t i = 0; i < index; i++)
    if (stacks[i].worked == stacks[index].worked && ad_mesh_equal(stacks[i].stored.mesh, stacks[index].stored.mesh))
      return 1;
  return 0;
}

/* Adds the mean and the bound of a group: no rank has more than the mean and the largest matrix. Stacks are sorted, so
 * the first that is dealt to some ranks has the largest. */
static void add_bound(const group_stacks *group, double *mean, double *bound) {
  for (size_t i = 0; i < group->count; i++) {
    const ad_stack *stack = &group->stacks[i];
    double each = (double)stack->count * stack->own_operations / (double)stack->ranks;
    *mean += each;
    *bound += each + (has_earlier(group->stacks, i) ? 0 : stack->own_operations);
  }
}

/* Adds what one rank of the pool works on to `loads`, and to `owners` unless that is NULL. */
static ad_status add_owner(const ad_run *run, module_stacks *modules, int64_t rank, pool_loads *loads, json_t *owners) {
  double operations = 0, mean = 0, bound = 0;
  int64_t matrices = 0;
  for (size_t m = 0; m < ad_program_module_count(run->program); m++) {
    const group_stacks *group;
    if (!modules[m].group_count) continue;
    AD_TRY(find_group(run, &modules[m], rank, &group));
    add_bound(group, &mean, &bound);
    for (size_t i = 0; i < group->count; i++) {
      int64_t own = matrices_of(&group->stacks[i], rank);
      matrices += own;
      operations += (double)own * group->stacks[i].own_operations;
    }
  }
  if (operations > loads->most) loads->most = operations;
  if (mean > loads->mean) loads->mean = mean;
  if (bound > loads->bound) loads->bound = bound;
  if (owners)
    json_array_append_new(owners, json_pack("{s:I, s:I, s:f}", "rank", (json_int_t)rank, "matrices",
                                            (json_int_t)matrices, "operations", operations));
  return AD_OK;
}

/* Adds what the ranks of a pool work on; without `owners`, only the mean and the bound of the first rank's group. */
static ad_status add_owners(const ad_plan_pool *pool, module_stacks *modules, pool_loads *loads, json_t *owners) {
  int64_t ranks = owners ? pool->ranks : 1;
  ad_status status = AD_OK;
  for (size_t m = 0; !status && m < ad_program_module_count(pool->run->program); m++)
    status = begin_module(pool->run, m, &modules[m]);
  for (int64_t i = 0; !status && i < ranks; i++) status = add_owner(pool->run, modules, pool->first + i, loads, owners);
  for (size_t m = 0; m < ad_program_module_count(pool->run->program); m++) release_module(&modules[m]);
  return status;
}

/* Adds the stacks of a pool, as its first rank has them, and what its ranks work on. */
static ad_status add_pool(const ad_plan_pools *pools, size_t index, json_t *updates, json_t *owners, json_t *most) {
  const ad_plan_pool *pool = &pools->list[index];
  pool_loads loads = {0};
  size_t count, all = 0, module_count = ad_program_module_count(pool->run->program);
  for (size_t m = 0; m < module_count; m++) {
    const ad_stack *stacks = ad_plan_stacks(pool->run, m, &count);
    for (size_t i = 0; i < count; i++) json_array_append_new(updates, stack_document(pool->run, index, m, &stacks[i]));
    all += whole_of(pool->run, m) != NULL;
  }
  if (!all) return AD_OK;
  module_stacks *modules;
  AD_TRY(ad_new(module_count, &modules));
  ad_status status = add_owners(pool, modules, &loads, owners);
  ad_release(modules);
  json_t *load = json_pack("{s:I, s:f, s:f}", "pool", (json_int_t)index, "mean", loads.mean, "bound", loads.bound);
  if (owners) json_object_set_new(load, "operations", json_real(loads.most));
  json_array_append_new(most, load);
  return status;
}

ad_status ad_plan_add_updates(const ad_plan_pools *pools, const ad_plan_world *world, json_t *document) {
  json_t *updates = json_array(), *most = json_array();
  json_t *owners = world->ranks <= OWNERS_LISTED_MAX ? json_array() : NULL;
  ad_status status = AD_OK;
  for (size_t i = 0; i < pools->count && !status; i++) status = add_pool(pools, i, updates, owners, most);
  if (json_array_size(most)) {
    json_object_set(document, "updates", updates);
    if (owners) json_object_set(document, "owners", owners);
    json_object_set(document, "owners_most", most);
  }
  json_decref(updates);
  json_decref(owners);
  json_decref(most);
  return status;
}

/* ---- printing ---- */

/* Prints what each way takes of the busiest rank, a line for each. */
static void print_costs(FILE *file, const json_t *update) {
  const json_t *cost;
  const char *name;
  json_object_foreach(json_object_get(update, "ways"), name, cost) {
    if (json_is_null(cost))
      fprintf(file, "    %-17s -\n", name);
    else
      fprintf(file, "    %-17s %9.3g ms: receives %.3g MiB, computes %.3g operations, has %.3g MiB in flight\n", name,
              1e3 * ad_number_of(cost, "seconds"), ad_number_of(cost, "bytes") / MIB, ad_number_of(cost, "operations"),
              ad_number_of(cost, "memory") / MIB);
  }
}

static void print_way(FILE *file, const json_t *update) {
  long long blocks = ad_integer_of(update, "blocks");
  if (blocks)
    fprintf(file, "none: each of %lld blocks of a matrix by itself\n", blocks);
  else
    fprintf(file, "%s\n", ad_text_of(update, "way"));
  print_costs(file, update);
}

static void print_update(FILE *file, const json_t *update) {
  const json_t *shape = json_object_get(update, "shape");
  char size[48];
  const char *over = ad_text_of(update, "over");
  snprintf(size, sizeof size, "%lld x %lld", (long long)json_integer_value(json_array_get(shape, 0)),
           (long long)json_integer_value(json_array_get(shape, 1)));
  fprintf(file, "  %-34s %-9s %8lld %14s  %-22s %6lld %6lld  ", ad_text_of(update, "what"),
          ad_text_of(update, "optimizer"), ad_integer_of(update, "matrices"), size, *over ? over : "-",
          ad_integer_of(update, "rounds"), ad_integer_of(update, "empty"));
  print_way(file, update);
}

void ad_plan_print_updates(FILE *file, const json_t *plan) {
  const json_t *updates = json_object_get(plan, "updates"), *most = json_object_get(plan, "owners_most"), *entry;
  size_t i;
  if (!updates) return;
  fprintf(file, "\n  %-34s %-9s %8s %14s  %-22s %6s %6s  %s\n", "updated as whole matrices", "by", "matrices", "shape",
          "dealt over", "rounds", "empty", "way");
  json_array_foreach(updates, i, entry) print_update(file, entry);
  json_array_foreach(most, i, entry) {
    int listed = json_object_get(entry, "operations") != NULL;
    fprintf(file, "    a rank works on at most %.3g operations of %s, on average on %.3g",
            ad_number_of(entry, listed ? "operations" : "bound"),
            ad_integer_of(json_array_get(updates, 0), "blocks") ? "its blocks" : "whole matrices",
            ad_number_of(entry, "mean"));
    if (listed) fprintf(file, " (bound: %.3g)", ad_number_of(entry, "bound"));
    if (json_array_size(most) > 1) fprintf(file, ", in pool %lld", ad_integer_of(entry, "pool"));
    fprintf(file, "\n");
  }
}
