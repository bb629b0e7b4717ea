/* A step of stacks of matrices. Each full round goes there and back by itself. Rounds with empty slots of all stacks go
 * there first, then every rank transforms what it got, and then all go back: a rank that has nothing in one stack works
 * on its matrices of the others meanwhile. */
#include "optim/whole.h"

#include <string.h>
#include "array/array.h"
#include "array/transit.h"
#include "base/error.h"
#include "base/injection.h"
#include "base/memory.h"
#include "layout/shown.h"
#include "optim/orthogonal.h"
#include "optim/pieces.h"

struct ad_whole {
  ad_comm *comm;
  ad_optimizer_product product;
  ad_whole_param *params;
  size_t param_count;
  ad_stack *stacks;
  size_t count;
  void **kept;  /* for each stack, the whole matrix of its last round, if that has empty slots */
  void *memory; /* all of what follows, and `kept` */
  size_t bytes, scratch_bytes;
  void *buffers[2]; /* shards and matrices on their way: a move reads one and writes the other */
  void *scratch, *piece;
};

/* ---- arrays on their way ---- */

static ad_array describe(const ad_whole *whole, const ad_stack *stack, const ad_layout *layout) {
  const ad_shape shape = {3, {stack->ranks, stack->rows, stack->cols}};
  return ad_array_describe(whole->comm, stack->dtype, &shape, layout);
}

static ad_transit transit_of(const ad_stack *stack, const ad_stack_move *moves, int number, const char *site) {
  return (ad_transit){.move = moves[number].move,
                      .axes = AD_AXES(moves[number].axis),
                      .to = moves[number].to,
                      .site = site,
                      .what = stack->what,
                      .ordinal = moves == stack->there ? number : stack->there_count + number};
}

/* Moves *at along `moves`. Results are in the two buffers in turn, the last one in `end` unless that is NULL. */
static ad_status travel(ad_whole *whole, const ad_stack *stack, const ad_stack_move *moves, int count, ad_array *at,
                        void *end, const char *site) {
  for (int i = 0; i < count; i++) {
    ad_transit transit = transit_of(stack, moves, i, site);
    ad_array after;
    AD_TRY(ad_array_after_at(whole->comm, at, transit.move, transit.axes, transit.to, &after, site));
    after.data = at->data == whole->buffers[0] ? whole->buffers[1] : whole->buffers[0];
    if (i == count - 1 && end) after.data = end;
    AD_TRY(ad_transit_run(whole->comm, &transit, at, &after));
    *at = after;
  }
  return AD_OK;
}

/* ---- working memory ---- */

/* Raises *largest to the bytes of the largest local part on the way along `moves`, and whole->scratch_bytes to what the
 * moves take for packing. */
static ad_status measure_way(ad_whole *whole, const ad_stack *stack, const ad_stack_move *moves, int count,
                             ad_array *at, size_t *largest) {
  if (ad_array_bytes(at) > *largest) *largest = ad_array_bytes(at);
  for (int i = 0; i < count; i++) {
    ad_transit transit = transit_of(stack, moves, i, AD_HERE);
    ad_array after;
    AD_TRY(ad_array_after(whole->comm, at, transit.move, transit.axes, transit.to, &after));
    size_t scratch = ad_transit_scratch_bytes(whole->comm, &transit, at, &after);
    if (scratch > whole->scratch_bytes) whole->scratch_bytes = scratch;
    if (ad_array_bytes(&after) > *largest) *largest = ad_array_bytes(&after);
    *at = after;
  }
  return AD_OK;
}

/* Raises the sizes to what the stack's matrices take in a transform. */
static void measure_transform(const ad_stack *stack, const ad_array *at, size_t *scratch, size_t *piece_bytes) {
  ad_whole_matrix full = {NULL, stack->dtype, at->local.dim[1], at->local.dim[2], at->local.dim[2]}, view;
  for (int i = 0; i < ad_piece_count(&stack->matrices); i++) {
    ad_matrix_piece piece = ad_piece_at(&stack->matrices, full.rows, full.cols, i);
    size_t bytes = stack->record->whole->scratch_bytes(stack->options, stack->dtype, piece.rows, piece.cols);
    if (bytes > *scratch) *scratch = bytes;
    bytes = (size_t)(piece.rows * piece.cols) * ad_dtype_size(stack->dtype);
    if (!ad_piece_view(&stack->matrices, &full, i, &view) && bytes > *piece_bytes) *piece_bytes = bytes;
  }
}

static int has_last_round(const ad_stack *stack) { return stack->rounds > stack->full; }

/* A rank without a matrix in the last round keeps memory for one too, so that ranks of one kind need the same. */
static size_t kept_bytes(const ad_stack *stack) {
  if (stack->count % stack->ranks == 0) return 0;
  return ad_padded((size_t)(stack->rows * stack->cols) * ad_dtype_size(stack->dtype));
}

static void *take(char **at, size_t bytes) {
  void *taken = bytes ? *at : NULL;
  *at += bytes;
  return taken;
}

/* Measures and allocates all working memory; on backend dry, measures it. */
static ad_status make_memory(ad_whole *whole) {
  size_t largest = 0, scratch = 0, piece = 0, kept = 0;
  int moves = 0;
  for (size_t i = 0; i < whole->count; i++) {
    const ad_stack *stack = &whole->stacks[i];
    ad_array at = describe(whole, stack, &stack->begin);
    AD_TRY(measure_way(whole, stack, stack->there, stack->there_count, &at, &largest));
    measure_transform(stack, &at, &scratch, &piece);
    AD_TRY(measure_way(whole, stack, stack->back, stack->back_count, &at, &largest));
    kept += kept_bytes(stack);
    moves += stack->there_count + stack->back_count;
  }
  largest = ad_padded(largest);
  scratch = ad_padded(scratch);
  whole->bytes = (moves ? 2 : 1) * largest + scratch + ad_padded(piece) + kept;
  if (ad_comm_is_dry(whole->comm) || !whole->bytes) return AD_OK;
  AD_TRY(ad_comm_alloc(whole->comm, whole->bytes, &whole->memory));
  char *at = whole->memory;
  whole->buffers[0] = take(&at, largest);
  whole->buffers[1] = take(&at, moves ? largest : 0);
  whole->scratch = take(&at, scratch);
  whole->piece = take(&at, ad_padded(piece));
  for (size_t i = 0; i < whole->count; i++) whole->kept[i] = take(&at, kept_bytes(&whole->stacks[i]));
  return AD_OK;
}

/* ---- making and freeing ---- */

static ad_status copy_numbers(const int64_t *from, size_t count, const int64_t **out) {
  int64_t *own;
  AD_TRY(ad_new(count, &own));
  memcpy(own, from, count * sizeof *own);
  *out = own;
  return AD_OK;
}

static ad_status copy_param(ad_whole_param *param) {
  const ad_matrix_cuts cuts = param->cuts;
  const char *name = param->name;
  char *own = NULL;
  param->cuts = (ad_matrix_cuts){.row_count = cuts.row_count, .col_count = cuts.col_count};
  param->name = NULL;
  AD_TRY(ad_copy_string(name, &own));
  param->name = own;
  if (cuts.row_count) AD_TRY(copy_numbers(cuts.rows, cuts.row_count, &param->cuts.rows));
  if (cuts.col_count) AD_TRY(copy_numbers(cuts.cols, cuts.col_count, &param->cuts.cols));
  return AD_OK;
}

static ad_status copy_params(ad_whole *whole, const ad_whole_param *params, size_t count) {
  AD_TRY(ad_new(count, &whole->params));
  for (size_t i = 0; i < count; i++) {
    whole->params[i] = params[i];
    whole->param_count = i + 1;
    AD_TRY(copy_param(&whole->params[i]));
  }
  return AD_OK;
}

/* *out: 1 if the products of this parameter's ranks may have different bits. Collective. */
static ad_status compare_products(const ad_whole *whole, const ad_whole_param *param, int *out) {
  const ad_mesh *mesh = param->like.layout.mesh;
  int64_t kind = (int64_t)(whole->product.kind >> 1), most[2] = {kind, -kind};
  ad_collective call = {.size = sizeof call,
                        .op = AD_ALL_REDUCE,
                        .group = ad_mesh_group(mesh, AD_AXES_ALL, ad_comm_rank(whole->comm)),
                        .in = most,
                        .out = most,
                        .count = 2,
                        .dtype = AD_I64,
                        .reduction = AD_MAX,
                        .site = AD_HERE};
  *out = 0;
  if (ad_comm_is_dry(whole->comm) || ad_mesh_size(mesh) == 1) return AD_OK;
  AD_TRY(ad_comm_run(whole->comm, &call));
  *out = most[0] != -most[1];
  return AD_OK;
}

static ad_status fill_whole(ad_whole *whole, const ad_whole_param *params, size_t count) {
  AD_TRY(copy_params(whole, params, count));
  int differ;
  AD_TRY(compare_products(whole, &params[0], &differ));
  AD_TRY(ad_stacks_create(whole->comm, whole->params, count, differ, &whole->stacks, &whole->count));
  AD_TRY(ad_new(whole->count, &whole->kept));
  return make_memory(whole);
}

ad_status ad_whole_create(ad_comm *comm, const ad_optimizer_product *product, const ad_whole_param *params,
                          size_t count, ad_whole **out) {
  static const ad_optimizer_product plain = {.multiply = ad_plain_product};
  ad_whole *whole;
  AD_TRY(ad_new(1, &whole));
  whole->comm = comm;
  whole->product = product->multiply ? *product : plain;
  ad_status status = fill_whole(whole, params, count);
  if (status) {
    ad_whole_destroy(whole);
    return status;
  }
  *out = whole;
  return AD_OK;
}

static void release_const(const void *memory) { ad_release((void *)(uintptr_t)memory); }

void ad_whole_destroy(ad_whole *whole) {
  if (!whole) return;
  if (whole->memory) ad_comm_free(whole->comm, whole->memory);
  ad_stacks_destroy(whole->stacks, whole->count);
  for (size_t i = 0; i < whole->param_count; i++) {
    release_const(whole->params[i].name);
    release_const(whole->params[i].cuts.rows);
    release_const(whole->params[i].cuts.cols);
  }
  ad_release(whole->params);
  ad_release(whole->kept);
  ad_release(whole);
}

size_t ad_whole_bytes(const ad_whole *whole) { return whole->bytes + whole->scratch_bytes; }

const ad_stack *ad_whole_stacks(const ad_whole *whole, size_t *count) {
  *count = whole->count;
  return whole->stacks;
}

const ad_whole_param *ad_whole_params(const ad_whole *whole, size_t *count) {
  *count = whole->param_count;
  return whole->params;
}

/* ---- shards: directions, and updates ---- */

/* The elements of one matrix of a parameter that this rank stores. */
typedef struct shard {
  const ad_updating *updating;
  size_t first, numel; /* the first in the rank's part of the parameter, and how many */
} shard;

static shard shard_of(const ad_whole *whole, const ad_stack *stack, int64_t number, const ad_updating *updating) {
  const ad_sheet *sheet = &stack->sheets[number];
  const ad_updating *u = &updating[whole->params[sheet->param].index];
  const ad_shape *local = &u->param->local;
  size_t numel = (size_t)(local->dim[local->ndim - 2] * local->dim[local->ndim - 1]);
  return (shard){u, (size_t)sheet->matrix * numel, numel};
}

/* Updates the states of a matrix's shard, and writes its direction, unless that is NULL. */
static void write_direction(const shard *s, char *direction) {
  const ad_updating *u = s->updating;
  const ad_update_kernels *kernels = u->record->kernels[ad_kernels_variant()];
  ad_dtype dtype = u->param->dtype;
  size_t size = ad_dtype_size(dtype);
  double space[AD_GRADIENT_BLOCK];
  for (size_t done = 0; done < s->numel; done += AD_GRADIENT_BLOCK) {
    size_t n = s->numel - done < AD_GRADIENT_BLOCK ? s->numel - done : AD_GRADIENT_BLOCK, at = s->first + done;
    const void *grad = ad_gradient_at(dtype, u->grad, at, n, space);
    void *states[AD_OPTIMIZER_STATES_MAX], *to = direction ? direction + done * size : NULL;
    for (size_t k = 0; k < AD_OPTIMIZER_STATES_MAX; k++)
      states[k] = u->states[k].data ? (char *)u->states[k].data + at * size : NULL;
    if (dtype == AD_F64)
      kernels->direct_f64(&u->numbers, states, grad, to, n);
    else
      kernels->direct_f32(&u->numbers, states, grad, to, n);
  }
}

static void apply_result(const shard *s, const char *result) {
  const ad_updating *u = s->updating;
  const ad_update_kernels *kernels = u->record->kernels[ad_kernels_variant()];
  if (u->param->dtype == AD_F64)
    kernels->apply_f64(&u->numbers, (double *)u->param->data + s->first, (const double *)(const void *)result,
                       s->numel);
  else
    kernels->apply_f32(&u->numbers, (float *)u->param->data + s->first, (const float *)(const void *)result, s->numel);
}

/* Bytes of one slot of an array. */
static size_t slot_bytes(const ad_array *at) {
  return (size_t)(at->local.dim[1] * at->local.dim[2]) * ad_dtype_size(at->dtype);
}

/* Updates the states of a round's matrices, and fills *at with the directions of the slots that this rank has before the
 * moves. Nobody reads an empty slot. */
static void fill(const ad_whole *whole, const ad_stack *stack, int64_t round, const ad_updating *updating,
                 ad_array *at) {
  const int64_t *slots = stack->slot + round * stack->ranks;
  ad_span span = {0, 0};
  ad_layout_spans(&stack->begin, 0, stack->ranks, ad_comm_rank(whole->comm), &span, 1);
  for (int64_t slot = 0; slot < stack->ranks; slot++) {
    int here = at->data && slot >= span.first && slot < span.first + span.count;
    char *to = here ? (char *)at->data + (size_t)(slot - span.first) * slot_bytes(at) : NULL;
    if (slots[slot] < 0) continue;
    shard s = shard_of(whole, stack, slots[slot], updating);
    write_direction(&s, to);
  }
}

static void apply(const ad_whole *whole, const ad_stack *stack, int64_t round, const ad_updating *updating,
                  const ad_array *at) {
  const int64_t *slots = stack->slot + round * stack->ranks;
  for (int64_t slot = 0; slot < stack->ranks; slot++) {
    if (slots[slot] < 0) continue;
    shard s = shard_of(whole, stack, slots[slot], updating);
    if (s.numel) apply_result(&s, (const char *)at->data + (size_t)slot * slot_bytes(at));
  }
}

/* ---- whole matrices ---- */

/* What a transform works with. */
typedef struct transforming {
  const ad_whole *whole;
  const ad_stack *stack;
  const ad_param_matrices *matrices;
  const ad_update *numbers;
  void *scratch;
} transforming;

/* Transforms one of the matrices of a [rows, cols]. */
static ad_status transform_piece(const transforming *with, const ad_whole_matrix *full, int number) {
  const ad_whole_record *record = with->stack->record->whole;
  ad_matrix_piece piece = ad_piece_at(with->matrices, full->rows, full->cols, number);
  ad_whole_matrix view;
  int in_place = ad_piece_view(with->matrices, full, number, &view);
  if (!in_place) {
    view = (ad_whole_matrix){with->whole->piece, full->dtype, piece.rows, piece.cols, piece.cols};
    ad_piece_copy(with->matrices, full, number, view.data, 0);
  }
  ad_update update = *with->numbers;
  update.derived[0] = record->rate_factor(with->stack->options, piece.in, piece.out);
  AD_TRY(record->transform(&update, &view, &with->whole->product, with->scratch));
  if (!in_place) ad_piece_copy(with->matrices, full, number, view.data, 1);
  return AD_OK;
}

/* The end of a block that begins at `at`: the next cut, or the size. */
static int64_t next_cut(const int64_t *cuts, size_t count, int64_t at, int64_t size) {
  for (size_t i = 0; i < count; i++)
    if (cuts[i] > at) return cuts[i];
  return size;
}

ad_status ad_whole_transform(const ad_whole *whole, const ad_stack *stack, const ad_whole_matrix *full,
                             const ad_param_matrices *matrices, const ad_matrix_cuts *cuts, const ad_update *numbers,
                             void *scratch) {
  const transforming with = {whole, stack, matrices, numbers, scratch};
  size_t size = ad_dtype_size(full->dtype);
  int64_t row_end, col_end;
  for (int64_t row = 0; row < full->rows; row = row_end) {
    row_end = next_cut(cuts->rows, cuts->row_count, row, full->rows);
    for (int64_t col = 0; col < full->cols; col = col_end) {
      col_end = next_cut(cuts->cols, cuts->col_count, col, full->cols);
      ad_whole_matrix block = {(char *)full->data + (size_t)(row * full->stride + col) * size, full->dtype,
                               row_end - row, col_end - col, full->stride};
      for (int i = 0; i < ad_piece_count(matrices); i++) AD_TRY(transform_piece(&with, &block, i));
    }
  }
  return AD_OK;
}

/* Transforms a matrix, unless a mutation does it. */
static ad_status transform_full(const ad_whole *whole, const ad_stack *stack, const ad_whole_param *param,
                                const ad_whole_matrix *full, const ad_update *numbers) {
  ad_matrix_passing passing = {.whole = whole,
                               .stack = stack,
                               .param = param,
                               .numbers = numbers,
                               .matrix = full,
                               .scratch = whole->scratch,
                               .rank = ad_comm_rank(whole->comm)};
  ad_inject(AD_INJECT_MATRIX, &passing);
  if (passing.handled) return passing.status;
  return ad_whole_transform(whole, stack, full, &stack->matrices, &stack->cuts, numbers, whole->scratch);
}

/* Transforms the matrix that this rank has of a round, if any. */
static ad_status transform(const ad_whole *whole, const ad_stack *stack, int64_t round, const ad_updating *updating,
                           const ad_array *at, const char *site) {
  int64_t number = stack->slot[round * stack->ranks + stack->own];
  if (number < 0 || ad_comm_is_dry(whole->comm)) return AD_OK;
  const ad_whole_param *param = &whole->params[stack->sheets[number].param];
  ad_whole_matrix full = {at->data, at->dtype, at->local.dim[1], at->local.dim[2], at->local.dim[2]};
  ad_status status = transform_full(whole, stack, param, &full, &updating[param->index].numbers);
  return status ? ad_fail_in(status, "%s: in `%s`, parameter %zu (`%s`)", site, stack->record->name, param->index,
                             param->name)
                : AD_OK;
}

/* ---- a step ---- */

/* Checks that the moves led to the layout for which they were derived. */
static ad_status check_arrived(const ad_stack *stack, const ad_array *at, const ad_layout *wanted, const char *site) {
  char have[160], want[160];
  if (ad_layout_equal(&at->layout, wanted)) return AD_OK;
  ad_layouts_shown_apart(&at->layout, wanted, have, want, sizeof have);
  return ad_fail(AD_TYPE,
                 "%s: in `%s`, the matrices of `%s` came to layout \"%s\", but the layout should be \"%s\", so a move "
                 "was left out or went over the wrong axes",
                 site, stack->record->name, stack->what, have, want);
}

/* Brings a round's directions to the ranks that work on them; *at is then this rank's whole matrix, in `end` unless that
 * is NULL. */
static ad_status go_there(ad_whole *whole, const ad_stack *stack, int64_t round, const ad_updating *updating, void *end,
                          ad_array *at, const char *site) {
  *at = describe(whole, stack, &stack->begin);
  at->data = end && !stack->there_count ? end : whole->buffers[0];
  if (!ad_comm_is_dry(whole->comm)) fill(whole, stack, round, updating, at);
  AD_TRY(travel(whole, stack, stack->there, stack->there_count, at, end, site));
  return check_arrived(stack, at, &stack->dealt, site);
}

static ad_status come_back(ad_whole *whole, const ad_stack *stack, int64_t round, const ad_updating *updating,
                           ad_array *at, const char *site) {
  AD_TRY(travel(whole, stack, stack->back, stack->back_count, at, NULL, site));
  AD_TRY(check_arrived(stack, at, &stack->stored, site));
  if (ad_comm_is_dry(whole->comm)) return AD_OK;
  ad_stack_passing passing = {stack, round, at};
  ad_inject(AD_INJECT_STACK, &passing);
  apply(whole, stack, round, updating, at);
  return AD_OK;
}

static ad_status run_full_rounds(ad_whole *whole, const ad_stack *stack, const ad_updating *updating,
                                 const char *site) {
  for (int64_t round = 0; round < stack->full; round++) {
    ad_array at;
    AD_TRY(go_there(whole, stack, round, updating, NULL, &at, site));
    AD_TRY(transform(whole, stack, round, updating, &at, site));
    AD_TRY(come_back(whole, stack, round, updating, &at, site));
  }
  return AD_OK;
}

/* What the last round of a stack has on this rank when it is there. */
static ad_array kept_of(const ad_whole *whole, size_t number) {
  ad_array at = describe(whole, &whole->stacks[number], &whole->stacks[number].dealt);
  at.data = whole->kept[number];
  return at;
}

static ad_status run_last_rounds(ad_whole *whole, const ad_updating *updating, const char *site) {
  ad_array at;
  for (size_t i = 0; i < whole->count; i++)
    if (has_last_round(&whole->stacks[i]))
      AD_TRY(go_there(whole, &whole->stacks[i], whole->stacks[i].full, updating, whole->kept[i], &at, site));
  for (size_t i = 0; i < whole->count; i++) {
    at = kept_of(whole, i);
    if (has_last_round(&whole->stacks[i]))
      AD_TRY(transform(whole, &whole->stacks[i], whole->stacks[i].full, updating, &at, site));
  }
  for (size_t i = 0; i < whole->count; i++) {
    at = kept_of(whole, i);
    if (has_last_round(&whole->stacks[i]))
      AD_TRY(come_back(whole, &whole->stacks[i], whole->stacks[i].full, updating, &at, site));
  }
  return AD_OK;
}

ad_status ad_whole_step(ad_whole *whole, const ad_updating *updating, const char *site) {
  for (size_t i = 0; i < whole->count; i++) AD_TRY(run_full_rounds(whole, &whole->stacks[i], updating, site));
  return run_last_rounds(whole, updating, site);
}
