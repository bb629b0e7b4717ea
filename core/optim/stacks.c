/* Makes stacks: which matrices are one, by which moves it becomes whole, and which rank works on which matrix. */
#include "optim/stacks.h"

#include <stdio.h>
#include <string.h>
#include "base/error.h"
#include "base/memory.h"
#include "layout/nest.h"
#include "layout/type.h"
#include "mesh/mesh.h"
#include "optim/pieces.h"

/* ---- which matrices are a stack ---- */

/* *out: the layout of [slots, rows, cols] of a parameter's matrices as they are stored. A dimension before the last two
 * becomes V where it is sharded: other ranks have other matrices. Axes of one rank become R, so that nothing moves over
 * them. */
static ad_status stored_layout(const ad_whole_param *param, ad_layout *out) {
  const ad_layout *layout = &param->like.layout;
  int more = 3 - param->like.shape.ndim;
  *out = ad_layout_all(layout->mesh, AD_R);
  for (int axis = 0; axis < AD_AXIS_COUNT; axis++) {
    if (ad_mesh_axis_size(layout->mesh, (ad_axis)axis) == 1) continue;
    ad_type type = layout->type[axis];
    if (ad_type_is_zigzag(type) || type == AD_P)
      return ad_fail(
          AD_TYPE,
          "%s: parameter %zu (`%s`) is %s on `%s`, but whole matrices can only be made of shards S(d) and of "
          "replicas; store the parameter in another layout",
          param->record->name, param->index, param->name, type == AD_P ? "P" : "zigzag", ad_axis_name((ad_axis)axis));
    if (ad_type_is_sharded(type)) type = AD_V;
    ad_layout_set(out, AD_AXES(axis), type);
  }
  for (int dim = 0; dim < param->like.shape.ndim; dim++)
    for (int depth = 0; depth < AD_AXIS_COUNT; depth++) {  // outermost first: a later axis becomes the innermost
      ad_axis axis = ad_layout_sharded_at(layout, dim, depth);
      if (axis == AD_AXIS_COUNT || ad_mesh_axis_size(layout->mesh, axis) == 1 || dim + more == 0) continue;
      ad_layout_set(out, AD_AXES(axis), AD_S(dim + more));
    }
  return AD_OK;
}

static int64_t matrices_here(const ad_array *like) { return like->shape.ndim == 3 ? like->local.dim[0] : 1; }

static int same_cuts(const ad_matrix_cuts *a, const ad_matrix_cuts *b) {
  return a->row_count == b->row_count && a->col_count == b->col_count &&
         (!a->row_count || !memcmp(a->rows, b->rows, a->row_count * sizeof *a->rows)) &&
         (!a->col_count || !memcmp(a->cols, b->cols, a->col_count * sizeof *a->cols));
}

/* Returns 1 if the parameter's matrices, stored in this layout, belong to the stack. */
static int belongs(const ad_stack *stack, const ad_whole_param *param, const ad_layout *stored) {
  const int64_t *dim = &param->like.shape.dim[param->like.shape.ndim - 2];
  return stack->record == param->record && stack->options == param->options && stack->dtype == param->like.dtype &&
         stack->rows == dim[0] && stack->cols == dim[1] && ad_layout_equal(&stack->stored, stored) &&
         !memcmp(&stack->matrices, &param->matrices, sizeof stack->matrices) && same_cuts(&stack->cuts, &param->cuts);
}

/* The operations for the matrices of a [rows, cols]. */
static double operations_of(const ad_whole_param *param, int64_t rows, int64_t cols) {
  double sum = 0;
  for (int i = 0; i < ad_piece_count(&param->matrices); i++) {
    ad_matrix_piece piece = ad_piece_at(&param->matrices, rows, cols, i);
    sum += param->record->whole->operations(param->options, piece.rows, piece.cols);
  }
  return sum;
}

static void begin_stack(const ad_whole_param *param, const ad_layout *stored, ad_stack *out) {
  const int64_t *dim = &param->like.shape.dim[param->like.shape.ndim - 2];
  const int64_t *block = &param->like.local.dim[param->like.local.ndim - 2];
  const int64_t *own = ad_optimizer_is_blockwise(param->record, param->options) ? block : dim;
  *out = (ad_stack){.record = param->record,
                    .options = param->options,
                    .matrices = param->matrices,
                    .cuts = param->cuts,
                    .dtype = param->like.dtype,
                    .rows = dim[0],
                    .cols = dim[1],
                    .operations = operations_of(param, dim[0], dim[1]),
                    .own_operations = operations_of(param, own[0], own[1]),
                    .stored = *stored};
}

/* Adds the matrices of parameter number `number` to the stack. */
static ad_status add_matrices(ad_stack *stack, const ad_whole_param *param, size_t number) {
  int64_t more = matrices_here(&param->like);
  AD_TRY(ad_grow(&stack->sheets, (size_t)stack->count, (size_t)(stack->count + more)));
  for (int64_t matrix = 0; matrix < more; matrix++) stack->sheets[stack->count + matrix] = (ad_sheet){number, matrix};
  stack->count += more;
  if (!stack->params++) stack->first = number;
  return AD_OK;
}

/* Names the stack by its first parameter and the number of the others, which all ranks know; experts of other ranks are
 * other matrices of the same parameters. */
static ad_status name_stack(ad_stack *stack, const ad_whole_param *params) {
  const char *first = params[stack->first].name;
  if (stack->params == 1) return ad_copy_string(first, &stack->what);
  size_t size = strlen(first) + 48;
  AD_TRY(ad_new(size, &stack->what));
  snprintf(stack->what, size, "%s and %zu more", first, stack->params - 1);
  return AD_OK;
}

/* ---- by which moves a stack becomes whole ---- */

/* The axes on which shards of one matrix are. */
static ad_axes shard_axes(const ad_stack *stack) {
  return ad_layout_axes_sharding(&stack->stored, 1) | ad_layout_axes_sharding(&stack->stored, 2);
}

static int is_blockwise(const ad_stack *stack) { return ad_optimizer_is_blockwise(stack->record, stack->options); }

/* Returns 1 if several ranks work on one matrix, each for itself. */
static int is_repeated(const ad_stack *stack, const ad_way_case *matrices) {
  if (stack->way == AD_WAY_DEALT_TO_REPLICAS) return 0;
  int of_shards = stack->way == AD_WAY_GATHERED && !is_blockwise(stack) && matrices->shards > 1;
  return of_shards || matrices->replicas > 1;
}

static ad_status check_way(const ad_stack *stack, const ad_way_case *matrices, int differ) {
  if (differ && matrices->replicas > AD_DEALT_REPLICAS_MAX)
    return ad_fail(AD_INVALID,
                   "%s: the products of ranks may have different bits, since their processors or libraries differ, so "
                   "only one rank may work on a matrix of `%s`, which needs at most %d replicas; there are %lld: use "
                   "fewer, or machines of one kind",
                   stack->record->name, stack->what, AD_DEALT_REPLICAS_MAX, (long long)matrices->replicas);
  if (differ && is_repeated(stack, matrices))
    return ad_fail(AD_INVALID,
                   "%s: several ranks would work on each matrix of `%s`, but their products may have different bits, "
                   "since their processors or libraries differ; deal matrices to replicas, without `blockwise`",
                   stack->record->name, stack->what);
  if (!stack->cost[stack->way].refused) return AD_OK;
  return ad_fail(AD_INVALID,
                 "%s: the matrices of `%s` cannot be dealt to %lld replicas, since each would have the results of all "
                 "others in memory; at most %d replicas share the work; choose another way",
                 stack->record->name, stack->what, (long long)matrices->replicas, AD_DEALT_REPLICAS_MAX);
}

static ad_status choose_way(ad_stack *stack, int differ) {
  ad_way_case matrices = {
      .matrices = stack->count,
      .bytes = (double)(stack->rows * stack->cols) * (double)ad_dtype_size(stack->dtype),
      .operations = stack->operations,
      .scratch = (double)stack->record->whole->scratch_bytes(stack->options, stack->dtype, stack->rows, stack->cols),
      .wide = stack->dtype == AD_F64,
      .shards = ad_mesh_ranks_over(stack->stored.mesh, shard_axes(stack)),
      .replicas = ad_mesh_ranks_over(stack->stored.mesh, ad_replica_axes(&stack->stored))};
  ad_muon_way wanted = stack->record->whole->way ? stack->record->whole->way(stack->options) : AD_WAY_CHEAPEST;
  for (int way = AD_WAY_GATHERED; way < AD_WAYS && !is_blockwise(stack); way++)
    stack->cost[way] = ad_way_cost_of(&matrices, (ad_muon_way)way);
  if (is_blockwise(stack))
    stack->way = AD_WAY_GATHERED;
  else if (wanted == AD_WAY_CHEAPEST)
    stack->way = differ ? AD_WAY_DEALT_TO_REPLICAS : ad_way_cheapest(&matrices);
  else
    stack->way = wanted;
  return check_way(stack, &matrices, differ);
}

/* Lists the moves that make matrices whole, and those that shard them again. Shards are moved innermost first, which is
 * the only order that law 2 allows; the way back is the reverse, so it nests them as they were. */
static void list_shard_moves(ad_stack *stack) {
  int deals = stack->way != AD_WAY_GATHERED;
  for (int dim = 1; dim <= 2; dim++)
    for (int depth = AD_AXIS_COUNT; depth-- > 0;) {
      ad_axis axis = ad_layout_sharded_at(&stack->stored, dim, depth);
      if (axis == AD_AXIS_COUNT) continue;
      stack->there[stack->there_count++] =
          (ad_stack_move){deals ? AD_MOVE_ALL_TO_ALL : AD_MOVE_ALL_GATHER, axis, deals ? AD_S(0) : AD_R};
    }
  for (int i = stack->there_count; i-- > 0;) {
    ad_axis axis = stack->there[i].axis;
    stack->back[stack->back_count++] =
        (ad_stack_move){deals ? AD_MOVE_ALL_TO_ALL : AD_MOVE_CONVERT, axis, stack->stored.type[axis]};
  }
}

/* Gives replicas slots of their own. There, that is a conversion R->S(0), for which a rank fills only its own slots; on
 * the way back the replicas gather all results. */
static void list_replica_moves(ad_stack *stack) {
  ad_axes replicas = ad_replica_axes(&stack->stored);
  ad_layout_set(&stack->begin, replicas, AD_S(0));
  for (int depth = AD_AXIS_COUNT; depth-- > 0;) {
    ad_axis axis = ad_layout_sharded_at(&stack->begin, 0, depth);
    if (axis == AD_AXIS_COUNT) continue;
    stack->back[stack->back_count++] = (ad_stack_move){AD_MOVE_ALL_GATHER, axis, stack->stored.type[axis]};
  }
  stack->worked |= replicas;
}

static void list_moves(ad_stack *stack) {
  stack->begin = stack->stored;
  stack->ranks = 1;
  if (!is_blockwise(stack)) list_shard_moves(stack);
  if (stack->way != AD_WAY_GATHERED) stack->worked = shard_axes(stack);
  if (stack->way == AD_WAY_DEALT_TO_REPLICAS) list_replica_moves(stack);
  stack->ranks = ad_mesh_ranks_over(stack->stored.mesh, stack->worked);
  stack->dealt = stack->begin;
  for (int i = 0; i < stack->there_count; i++)
    ad_layout_set(&stack->dealt, AD_AXES(stack->there[i].axis), stack->there[i].to);
}

/* ---- which rank works on which matrix ---- */

/* The loads of the ranks of one group. Stacks that are dealt over the same axes add to the same loads. */
typedef struct loads {
  const ad_mesh *mesh;
  ad_axes axes;
  double *load; /* [ranks of the group] */
} loads;

static ad_status find_loads(loads *list, size_t *count, const ad_stack *stack, loads **out) {
  for (size_t i = 0; i < *count; i++)
    if (list[i].axes == stack->worked && ad_mesh_equal(list[i].mesh, stack->stored.mesh)) {
      *out = &list[i];
      return AD_OK;
    }
  *out = &list[*count];
  **out = (loads){stack->stored.mesh, stack->worked, NULL};
  AD_TRY(ad_new((size_t)stack->ranks, &(*out)->load));
  ++*count;
  return AD_OK;
}

/* The slot that a rank has in a round. */
static int64_t slot_of(const ad_stack *stack, int64_t rank) {
  ad_span span = {0, 1};
  ad_layout_spans(&stack->dealt, 0, stack->ranks, rank, &span, 1);
  return span.first;
}

/* Deals the stack's matrices to the members of this rank's group, and notes in which slots they are. */
static ad_status deal_stack(ad_stack *stack, int64_t rank, double *load) {
  ad_group group = ad_mesh_group(stack->stored.mesh, stack->worked, rank);
  stack->rounds = ad_owners_rounds(stack->count, stack->ranks);
  stack->full = stack->count / stack->ranks;
  stack->own = slot_of(stack, rank);
  size_t slots = (size_t)(stack->rounds * stack->ranks);
  int64_t *owned;
  AD_TRY(ad_new(slots, &stack->slot));
  AD_TRY(ad_new(slots, &owned));
  ad_owners_deal(stack->count, stack->operations, stack->ranks, load, owned);
  for (int64_t member = 0; member < stack->ranks; member++) {
    int64_t slot = slot_of(stack, ad_group_rank(&group, member));
    for (int64_t round = 0; round < stack->rounds; round++)
      stack->slot[round * stack->ranks + slot] = owned[round * stack->ranks + member];
  }
  ad_release(owned);
  return AD_OK;
}

static ad_status deal_stacks(ad_stack *stacks, size_t count, int64_t rank) {
  loads *list;
  size_t list_count = 0;
  AD_TRY(ad_new(count, &list));
  ad_status status = AD_OK;
  for (size_t i = 0; i < count && !status; i++) {
    loads *of = NULL;
    status = find_loads(list, &list_count, &stacks[i], &of);
    if (!status) status = deal_stack(&stacks[i], rank, of->load);
  }
  for (size_t i = 0; i < list_count; i++) ad_release(list[i].load);
  ad_release(list);
  return status;
}

/* ---- all stacks ---- */

/* Sorts stacks by falling operations of a matrix; those with as many keep their order. */
static void sort_stacks(ad_stack *stacks, size_t count) {
  for (size_t i = 1; i < count; i++)
    for (size_t j = i; j > 0 && stacks[j - 1].operations < stacks[j].operations; j--) {
      ad_stack larger = stacks[j];
      stacks[j] = stacks[j - 1];
      stacks[j - 1] = larger;
    }
}

static ad_status collect_stacks(const ad_whole_param *params, size_t count, ad_stack *stacks, size_t *stack_count) {
  for (size_t i = 0; i < count; i++) {
    ad_layout stored;
    AD_TRY(stored_layout(&params[i], &stored));
    size_t s = 0;
    while (s < *stack_count && !belongs(&stacks[s], &params[i], &stored)) s++;
    if (s == *stack_count) begin_stack(&params[i], &stored, &stacks[(*stack_count)++]);
    AD_TRY(add_matrices(&stacks[s], &params[i], i));
  }
  return AD_OK;
}

ad_status ad_stacks_create(const ad_comm *comm, const ad_whole_param *params, size_t count, int differ, ad_stack **out,
                           size_t *out_count) {
  ad_stack *stacks;
  size_t stack_count = 0;
  AD_TRY(ad_new(count, &stacks));
  ad_status status = collect_stacks(params, count, stacks, &stack_count);
  sort_stacks(stacks, stack_count);
  for (size_t i = 0; i < stack_count && !status; i++) {
    status = name_stack(&stacks[i], params);
    if (!status) status = choose_way(&stacks[i], differ);
    if (!status) list_moves(&stacks[i]);
  }
  if (!status) status = deal_stacks(stacks, stack_count, ad_comm_rank(comm));
  if (status) {
    ad_stacks_destroy(stacks, stack_count);
    return status;
  }
  *out = stacks;
  *out_count = stack_count;
  return AD_OK;
}

void ad_stacks_destroy(ad_stack *stacks, size_t count) {
  for (size_t i = 0; stacks && i < count; i++) {
    ad_release(stacks[i].what);
    ad_release(stacks[i].sheets);
    ad_release(stacks[i].slot);
  }
  ad_release(stacks);
}
