/* Known bugs of updates on whole matrices. The rank that has a whole matrix does to it what the bug would have made of
 * its shards, so the bugs are the same whichever way matrices take. */
#include "optim/whole_known_bugs.h"

#include <math.h>
#include <string.h>
#include "array/array.h"
#include "base/known_bugs.h"
#include "base/memory.h"
#include "layout/nest.h"
#include "mesh/mesh.h"
#include "optim/orthogonal.h"
#include "optim/whole.h"
#include "reduce/reducer.h"

static void fires(void *context) { ((ad_known_bug_scene *)context)->fired = 1; }

/* ---- how storage divides a matrix ---- */

static ad_axes shard_axes(const ad_stack *stack) {
  return ad_layout_axes_sharding(&stack->stored, 1) | ad_layout_axes_sharding(&stack->stored, 2);
}

/* Writes the indices at which shards over `axes` begin along dimension `dim` of n indices, ascending and without 0, to
 * `cuts`, which has an element for each rank of the group. Returns how many there are. */
static size_t list_cuts(const ad_stack *stack, ad_axes axes, int64_t rank, int dim, int64_t n, int64_t *cuts) {
  ad_layout layout = stack->stored;
  ad_layout_set(&layout, AD_AXES_ALL & ~axes, AD_R);
  ad_group group = ad_mesh_group(layout.mesh, axes, rank);
  size_t count = 0;
  for (int64_t member = 0; member < ad_group_size(&group); member++) {
    ad_span span = {0, 0};
    ad_layout_spans(&layout, dim, n, ad_group_rank(&group, member), &span, 1);
    size_t at = 0;
    while (at < count && cuts[at] < span.first) at++;
    if (!span.count || !span.first || (at < count && cuts[at] == span.first)) continue;
    memmove(&cuts[at + 1], &cuts[at], (count++ - at) * sizeof *cuts);
    cuts[at] = span.first;
  }
  return count;
}

/* *out: where shards over `axes` divide the matrix; its numbers are in memory at *out->rows, to be released. */
static ad_status cuts_over(const ad_matrix_passing *pass, ad_axes axes, ad_matrix_cuts *out) {
  size_t ranks = (size_t)ad_mesh_ranks_over(pass->stack->stored.mesh, axes);
  int64_t *cuts;
  AD_TRY(ad_new(2 * ranks, &cuts));
  *out = (ad_matrix_cuts){.rows = cuts, .cols = cuts + ranks};
  out->row_count = list_cuts(pass->stack, axes, pass->rank, 1, pass->matrix->rows, cuts);
  out->col_count = list_cuts(pass->stack, axes, pass->rank, 2, pass->matrix->cols, cuts + ranks);
  return AD_OK;
}

static void release_cuts(const ad_matrix_cuts *cuts) { ad_release((void *)(uintptr_t)cuts->rows); }

/* The rows and columns of a matrix that this rank stores. */
typedef struct own_part {
  ad_span rows, cols;
} own_part;

static own_part part_of(const ad_matrix_passing *pass) {
  own_part part = {{0, 0}, {0, 0}};
  ad_layout_spans(&pass->stack->stored, 1, pass->matrix->rows, pass->rank, &part.rows, 1);
  ad_layout_spans(&pass->stack->stored, 2, pass->matrix->cols, pass->rank, &part.cols, 1);
  return part;
}

static int has(const own_part *part, int64_t row, int64_t col) {
  return row >= part->rows.first && row < part->rows.first + part->rows.count && col >= part->cols.first &&
         col < part->cols.first + part->cols.count;
}

static int is_full(const own_part *part, const ad_whole_matrix *matrix) {
  return part->rows.count == matrix->rows && part->cols.count == matrix->cols;
}

/* ---- elements of a matrix ---- */

static char *row_at(const ad_whole_matrix *matrix, int64_t row) {
  return (char *)matrix->data + (size_t)(row * matrix->stride) * ad_dtype_size(matrix->dtype);
}

static double get(const ad_whole_matrix *matrix, int64_t row, int64_t col) {
  double value;
  ad_cast(&value, AD_F64, row_at(matrix, row) + (size_t)col * ad_dtype_size(matrix->dtype), matrix->dtype, 1);
  return value;
}

static void set(const ad_whole_matrix *matrix, int64_t row, int64_t col, double value) {
  ad_cast(row_at(matrix, row) + (size_t)col * ad_dtype_size(matrix->dtype), matrix->dtype, &value, AD_F64, 1);
}

static void scale(const ad_whole_matrix *matrix, double factor) {
  for (int64_t row = 0; row < matrix->rows; row++)
    ad_cast_scaled(row_at(matrix, row), matrix->dtype, row_at(matrix, row), matrix->dtype, factor,
                   (size_t)matrix->cols);
}

/* Transforms the matrix divided in another way, in scratch memory for the largest possible piece. */
static void transform_divided(ad_matrix_passing *pass, const ad_param_matrices *matrices, const ad_matrix_cuts *cuts) {
  size_t bytes = pass->stack->record->whole->scratch_bytes(pass->stack->options, pass->matrix->dtype,
                                                           pass->matrix->rows, pass->matrix->cols);
  char *memory;
  pass->handled = 1;
  pass->status = ad_new(bytes + 64, &memory);
  if (pass->status) return;
  char *aligned = memory + (64 - (uintptr_t)memory % 64) % 64;
  pass->status = ad_whole_transform(pass->whole, pass->stack, pass->matrix, matrices, cuts, pass->numbers, aligned);
  ad_release(memory);
}

/* ---- matrices that are not whole ---- */

static void transform_shards(void *context, ad_matrix_passing *pass, ad_axes axes) {
  const ad_param_matrices plain = {.out_first = pass->stack->matrices.out_first};
  ad_matrix_cuts cuts;
  pass->status = cuts_over(pass, axes, &cuts);
  pass->handled = pass->status != AD_OK;
  if (pass->handled) return;
  if (cuts.row_count || cuts.col_count) {
    transform_divided(pass, &plain, &cuts);
    fires(context);
  }
  release_cuts(&cuts);
}

/* Known bug: each rank of tp orthogonalises the part of the matrix that it computes with. */
void ad_bug_matrix_per_tp_shard(void *context, void *passing) {
  ad_matrix_passing *pass = passing;
  transform_shards(context, pass, shard_axes(pass->stack) & (AD_AXES(AD_TP) | AD_AXES(AD_ETP)));
}

/* Known bug: each rank orthogonalises the part of the matrix that it stores. */
void ad_bug_matrix_per_shard(void *context, void *passing) {
  ad_matrix_passing *pass = passing;
  transform_shards(context, pass, shard_axes(pass->stack));
}

/* Known bug: ranks do not exchange their parts, so all others are 0 where a matrix is orthogonalised. */
void ad_bug_matrix_of_own_part(void *context, void *passing) {
  const ad_matrix_passing *pass = passing;
  own_part part = part_of(pass);
  for (int64_t row = 0; row < pass->matrix->rows; row++)
    for (int64_t col = 0; col < pass->matrix->cols; col++)
      if (!has(&part, row, col)) set(pass->matrix, row, col, 0);
  if (!is_full(&part, pass->matrix)) fires(context);
}

/* Known bug: fused matrices are orthogonalised as one, because the rule that splits them asks the shard's size. */
void ad_bug_fused_matrix_in_one(void *context, void *passing) {
  ad_matrix_passing *pass = passing;
  const ad_param_matrices plain = {.out_first = pass->stack->matrices.out_first};
  const ad_matrix_cuts none = {0};
  if (pass->stack->matrices.form != AD_MATRIX_FUSED) return;
  transform_divided(pass, &plain, &none);
  fires(context);
}

/* ---- addends in place of sums ---- */

/* This rank's addends of a parameter's gradient, as they were last sent. */
typedef struct kept_addend {
  char name[AD_PARAM_NAME_SIZE];
  int64_t rows, cols;
  double *values;
} kept_addend;
static struct {
  kept_addend *list;
  size_t count;
} kept;

static kept_addend *find_kept(const char *name) {
  for (size_t i = 0; i < kept.count; i++)
    if (!strcmp(kept.list[i].name, name)) return &kept.list[i];
  return NULL;
}

static ad_status keep_addend(const ad_reduced_param *param, const ad_array *sent) {
  size_t numel = (size_t)param->segment.rows * param->segment.row;
  kept_addend *one = find_kept(param->name);
  if (!one) {
    AD_TRY(ad_grow(&kept.list, kept.count, kept.count + 1));
    one = &kept.list[kept.count++];
    memcpy(one->name, param->name, strnlen(param->name, sizeof one->name - 1));
  }
  ad_release(one->values);
  one->values = NULL;
  AD_TRY(ad_new(numel, &one->values));
  one->rows = param->segment.rows;
  one->cols = (int64_t)param->segment.row;
  ad_cast_scaled(one->values, AD_F64, ad_param_in(param, sent), sent->dtype, ldexp(1, sent->scale), numel);
  return AD_OK;
}

void ad_bug_keep_addends(void *context, void *passing) {
  ad_bucket_passing *pass = passing;
  const ad_bucket *bucket = pass->bucket;
  for (size_t i = 0; i < bucket->members.count && bucket->sent.data && !pass->status; i++) {
    const ad_reduced_param *param = &pass->reducer->params[bucket->members.index[i]];
    if (param->shape.ndim != 2) continue;
    pass->status = keep_addend(param, &bucket->sent);
    fires(context);
  }
}

/* Known bug: a matrix's gradient is reduce-scattered, so each rank has the sum of its own part; the rest of the buffer,
 * where there is its own addend still, is orthogonalised with it. */
void ad_bug_matrix_partly_reduced(void *context, void *passing) {
  const ad_matrix_passing *pass = passing;
  const ad_whole_matrix *matrix = pass->matrix;
  const kept_addend *addend = find_kept(pass->param->name);
  own_part part = part_of(pass);
  if (!addend || !addend->values || addend->rows != matrix->rows || addend->cols != matrix->cols) return;
  if (is_full(&part, matrix)) return;
  for (int64_t row = 0; row < matrix->rows; row++)
    for (int64_t col = 0; col < matrix->cols; col++)
      if (!has(&part, row, col))
        set(matrix, row, col, pass->numbers->factor * addend->values[row * matrix->cols + col]);
}

/* Orthogonalises the rows of one gradient in a bucket. */
static ad_status orthogonalise_addend(const ad_reduced_param *param, const ad_array *sent) {
  static const ad_optimizer_product plain = {.multiply = ad_plain_product};
  static const ad_optimizer_options options = {
      .muon = {.a = 3.4445, .b = -4.7750, .c = 2.0315, .steps = 5, .epsilon = 1e-7, .dtype = AD_F64}};
  const ad_update update = {.options = &options, .derived = {1}};
  const int64_t rows = param->segment.rows, cols = (int64_t)param->segment.row;
  char *memory;
  AD_TRY(ad_new(ad_orthogonal_scratch(&options, sent->dtype, rows, cols) + 64, &memory));
  const ad_whole_matrix matrix = {ad_param_in(param, sent), sent->dtype, rows, cols, cols};
  ad_status status = ad_orthogonalise(&update, &matrix, &plain, memory + (64 - (uintptr_t)memory % 64) % 64);
  ad_release(memory);
  return status;
}

/* Known bug: each rank orthogonalises its addend of a matrix's gradient, before the sum. */
void ad_bug_orthogonalise_addends(void *context, void *passing) {
  ad_bucket_passing *pass = passing;
  const ad_bucket *bucket = pass->bucket;
  for (size_t i = 0; i < bucket->members.count && bucket->sent.data && !pass->status; i++) {
    const ad_reduced_param *param = &pass->reducer->params[bucket->members.index[i]];
    if (param->shape.ndim != 2) continue;
    pass->status = orthogonalise_addend(param, &bucket->sent);
    fires(context);
  }
}

/* ---- matrices that another optimizer gets ---- */

/* Known bug: the direction itself is the update. */
void ad_bug_matrix_not_orthogonalised(void *context, void *passing) {
  ((ad_matrix_passing *)passing)->handled = 1;
  fires(context);
}

/* Known bug: a matrix whose shards are flat arrays has one dimension, so AdamW updates it: here its first step. */
void ad_bug_matrix_to_adamw(void *context, void *passing) {
  ad_matrix_passing *pass = passing;
  for (int64_t row = 0; row < pass->matrix->rows; row++)
    for (int64_t col = 0; col < pass->matrix->cols; col++) {
      double value = get(pass->matrix, row, col);
      set(pass->matrix, row, col, value / (fabs(value) + 1e-8));
    }
  pass->handled = 1;
  fires(context);
}

void ad_bug_sharded_matrix_to_adamw(void *context, void *passing) {
  if (shard_axes(((ad_matrix_passing *)passing)->stack)) ad_bug_matrix_to_adamw(context, passing);
}

/* ---- norms, rates and results ---- */

static double norm_of(const ad_whole_matrix *matrix) {
  double sum = 0;
  for (int64_t i = 0; i < matrix->rows; i++)
    for (int64_t j = 0; j < matrix->cols; j++) sum += get(matrix, i, j) * get(matrix, i, j);
  return sqrt(sum);
}

static void divide_shards(const ad_whole_matrix *matrix, const ad_matrix_cuts *cuts) {
  for (size_t r = 0; r <= cuts->row_count; r++)
    for (size_t c = 0; c <= cuts->col_count; c++) {
      int64_t row = r ? cuts->rows[r - 1] : 0, row_end = r < cuts->row_count ? cuts->rows[r] : matrix->rows;
      int64_t col = c ? cuts->cols[c - 1] : 0, col_end = c < cuts->col_count ? cuts->cols[c] : matrix->cols;
      ad_whole_matrix part = *matrix;
      part.data = row_at(matrix, row) + (size_t)col * ad_dtype_size(matrix->dtype);
      part.rows = row_end - row;
      part.cols = col_end - col;
      double norm = norm_of(&part);
      if (norm > 0) scale(&part, 1 / norm);
    }
}

/* Known bug: each rank divides its part by the norm of its part. */
void ad_bug_matrix_norm_per_shard(void *context, void *passing) {
  ad_matrix_passing *pass = passing;
  ad_matrix_cuts cuts;
  pass->status = cuts_over(pass, shard_axes(pass->stack), &cuts);
  pass->handled = pass->status != AD_OK;
  if (pass->handled) return;
  if (cuts.row_count || cuts.col_count) {
    divide_shards(pass->matrix, &cuts);
    fires(context);
  }
  release_cuts(&cuts);
}

/* Known bug: the factor of the rate is that of the shard's shape. */
void ad_bug_matrix_rate_by_shard(void *context, void *passing) {
  ad_matrix_passing *pass = passing;
  const ad_stack *stack = pass->stack;
  const ad_whole_matrix *matrix = pass->matrix;
  own_part part = part_of(pass);
  if (!part.rows.count || !part.cols.count || stack->matrices.form == AD_MATRIX_FUSED) {
    fires(context);
    return;
  }
  int out_first = stack->matrices.out_first;
  double (*factor)(const ad_optimizer_options *, int64_t, int64_t) = stack->record->whole->rate_factor;
  double right =
      factor(stack->options, out_first ? matrix->cols : matrix->rows, out_first ? matrix->rows : matrix->cols);
  double wrong = factor(stack->options, out_first ? part.cols.count : part.rows.count,
                        out_first ? part.rows.count : part.cols.count);
  if (is_full(&part, matrix)) return;
  transform_divided(pass, &stack->matrices, &stack->cuts);
  scale(matrix, wrong / right);
  fires(context);
}

/* Known bug: each matrix gets the result of the one before it in its stack. */
void ad_bug_result_of_another_matrix(void *context, void *passing) {
  static struct {
    char *memory;
    size_t bytes;
    const ad_stack *stack;
  } last;
  const ad_stack_passing *pass = passing;
  const ad_stack *stack = pass->stack;
  const int64_t *slots = stack->slot + pass->round * stack->ranks;
  size_t bytes = ad_array_bytes(pass->results) / (size_t)stack->ranks;
  if (last.stack != stack || last.bytes != bytes || !pass->round) {
    ad_release(last.memory);
    last.memory = NULL;
    last.bytes = bytes;
    last.stack = stack;
  }
  for (int64_t slot = 0; slot < stack->ranks; slot++) {
    char *result = (char *)pass->results->data + (size_t)slot * bytes, *right;
    if (slots[slot] < 0 || ad_new(bytes + 1, &right)) continue;
    memcpy(right, result, bytes);
    if (last.memory) memcpy(result, last.memory, bytes);
    fires(context);
    ad_release(last.memory);
    last.memory = right;
  }
}

/* ---- numbers of an update ---- */

/* Known bug: the direction is the average of gradients itself. */
void ad_bug_not_nesterov(void *context, void *passing) {
  enum { GROUPS = 64 };
  static ad_optimizer_options options[GROUPS];
  ad_updating *updating = passing;
  if (!updating->record->whole || updating->group >= GROUPS) return;
  options[updating->group] = *updating->numbers.options;
  options[updating->group].muon.nesterov = 0;
  updating->numbers.options = &options[updating->group];
  fires(context);
}

/* Known bug: decay has the rate that was adjusted to the matrix's shape. */
void ad_bug_decay_by_adjusted_rate(void *context, void *passing) {
  ad_updating *updating = passing;
  if (!updating->record->whole) return;
  const int64_t *dim = &updating->param->shape.dim[updating->param->shape.ndim - 2];
  double factor = updating->record->whole->rate_factor(updating->numbers.options, dim[0], dim[1]);
  if (updating->numbers.decay == 0) return;
  updating->numbers.decay *= factor;
  fires(context);
}
