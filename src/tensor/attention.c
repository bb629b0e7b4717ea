/* The arithmetic of attention, a block of rows of one head at a time. Heads are read where they lie in [batch, rows,
 * heads * head_dim]: no copies. */
#include "tensor/attention.h"

#include <math.h>
#include <string.h>
#include "tensor/gemm.h"

/* One block of rows of one head against one run of columns, of which each row sees the first few, or all. */
typedef struct block {
  ad_dtype dtype;
  size_t head_dim;
  size_t width, kv_width;
  size_t row, rows, row_position; /* the first row: where it is stored, and its position */
  size_t q_at, kv_at;             /* first element of this head in row 0, and in column 0 of the run */
  size_t state_at;                /* of row 0 */
  size_t visible;                 /* as in attention_sizes */
  int64_t column_position;
  size_t run, columns; /* columns of the run; that the last row sees */
} block;

/* The mask: how many positions, from the first on, a row sees. */
static size_t horizon(const block *at, size_t row) { return at->visible ? at->visible : at->row_position + row + 1; }

/* Those in the run of columns. */
static size_t seen_by(const block *at, size_t row) {
  int64_t seen = (int64_t)horizon(at, row) - at->column_position;
  return seen < 0 ? 0 : (size_t)seen > at->run ? at->run : (size_t)seen;
}

static char *element(const block *at, const void *data, size_t index) {
  return (char *)(uintptr_t)data + index * ad_dtype_size(at->dtype);
}

static void *q_row(const block *at, const void *data, size_t row) {
  return element(at, data, at->q_at + (at->row + row) * at->width);
}

static gemm_operand q_operand(const block *at, const void *data) {
  return (gemm_operand){q_row(at, data, 0), (int64_t)at->width, 0};
}

static gemm_operand kv_operand(const block *at, const void *data, int transposed) {
  return (gemm_operand){element(at, data, at->kv_at), (int64_t)at->kv_width, transposed};
}

static void *scores_row(const block *at, void *scores, size_t row) { return element(at, scores, row * at->columns); }

static void clear_after(const block *at, void *row, size_t seen) {
  memset(element(at, row, seen), 0, (at->columns - seen) * ad_dtype_size(at->dtype));
}

static void products(const block *at, double factor, gemm_operand rows, gemm_operand columns, void *scores) {
  ad_gemm(at->dtype, at->dtype, (int64_t)at->rows, (int64_t)at->columns, (int64_t)at->head_dim, factor, rows, columns,
          0, scores, (int64_t)at->columns);
}

static double score_factor(const block *at) { return 1 / sqrt((double)at->head_dim); }

/* ---- going through the blocks ---- */

typedef void (*block_function)(const block *at, void *context);

static block head_of(const attention_sizes *size, ad_dtype dtype, size_t columns, size_t unit) {
  size_t batch = unit / size->heads, head = unit % size->heads;
  size_t kv_head = (size->first_head + head) / size->sharing - size->first_kv_head;
  return (block){.dtype = dtype,
                 .head_dim = size->head_dim,
                 .width = size->width,
                 .kv_width = size->kv_width,
                 .visible = size->visible,
                 .q_at = batch * size->rows.count * size->width + head * size->head_dim,
                 .kv_at = batch * columns * size->kv_width + kv_head * size->head_dim,
                 .state_at = unit * size->rows.count};
}

/* The runs of columns of which the block sees any. */
static void each_run(block at, const positions *columns, block_function run, void *context) {
  size_t stored = 0, kv_at = at.kv_at;
  for (int i = 0; i < columns->span_count; i++) {
    at.column_position = columns->span[i].first;
    at.run = (size_t)columns->span[i].count;
    at.columns = seen_by(&at, at.rows - 1);
    at.kv_at = kv_at + stored * at.kv_width;
    if (at.columns) run(&at, context);
    stored += at.run;
  }
}

static void each_block(block at, const attention_sizes *size, const positions *columns, block_function run,
                       void *context) {
  size_t stored = 0;
  for (int i = 0; i < size->rows.span_count; i++) {
    ad_span span = size->rows.span[i];
    for (int64_t first = 0; first < span.count; first += ATTENTION_BLOCK) {
      at.row = stored + (size_t)first;
      at.row_position = (size_t)(span.first + first);
      at.rows = span.count - first < ATTENTION_BLOCK ? (size_t)(span.count - first) : ATTENTION_BLOCK;
      each_run(at, columns, run, context);
    }
    stored += (size_t)span.count;
  }
}

static void each(const attention_sizes *size, ad_dtype dtype, const positions *columns, block_function run,
                 void *context) {
  for (size_t unit = 0; unit < size->batch * size->heads; unit++)
    each_block(head_of(size, dtype, columns->count, unit), size, columns, run, context);
}

/* ---- forward ---- */

static size_t row_count(const attention_sizes *size) { return size->batch * size->heads * size->rows.count; }

void ad_attention_begin(const attention_forward *at) {
  size_t rows = row_count(&at->size);
  ad_rows(at->dtype)->fill(at->state.maximum, -INFINITY, rows, 0);
  ad_rows(at->dtype)->fill(at->state.sum, 0, rows, 0);
  memset(at->out, 0, at->size.batch * at->size.rows.count * at->size.width * ad_dtype_size(at->dtype));
}

typedef struct forward_work {
  const attention_forward *all;
  const attention_part *part;
} forward_work;

/* Takes the scores of one row into its maximum and sum, and leaves their exponentials. What earlier parts gave is
 * brought to the new maximum. */
static void take_row(const block *at, const attention_forward *all, size_t row) {
  const row_kernels *kernels = ad_rows(at->dtype);
  void *scores = scores_row(at, all->scores, row), *out = q_row(at, all->out, row);
  size_t seen = seen_by(at, row), index = at->state_at + at->row + row;
  double before = ad_element(at->dtype, all->state.maximum, index), sum = ad_element(at->dtype, all->state.sum, index);
  double largest = fmax(before, kernels->max(scores, seen));
  if (largest == -INFINITY) seen = 0;  // nothing of this part counts
  if (seen) {
    double kept = exp(before - largest);
    if (sum > 0 && kept < 1) kernels->put_divided(out, out, 1 / kept, at->head_dim, 0);
    sum = sum * kept + kernels->exp_sum(scores, scores, largest, seen);
    ad_set_element(at->dtype, all->state.maximum, index, largest);
    ad_set_element(at->dtype, all->state.sum, index, sum);
  }
  clear_after(at, scores, seen);
}

static void forward_block(const block *at, void *context) {
  const forward_work *work = context;
  const attention_forward *all = work->all;
  products(at, score_factor(at), q_operand(at, all->q), kv_operand(at, work->part->k, 1), all->scores);
  for (size_t row = 0; row < at->rows; row++) take_row(at, all, row);
  ad_gemm(at->dtype, at->dtype, (int64_t)at->rows, (int64_t)at->head_dim, (int64_t)at->columns, 1,
          (gemm_operand){all->scores, (int64_t)at->columns, 0}, kv_operand(at, work->part->v, 0), 1,
          q_row(at, all->out, 0), (int64_t)at->width);
}

void ad_attention_add(const attention_forward *at, const attention_part *part) {
  forward_work work = {at, part};
  each(&at->size, at->dtype, &part->columns, forward_block, &work);
}

void ad_attention_end(const attention_forward *at) {
  const attention_sizes *size = &at->size;
  for (size_t unit = 0; unit < size->batch * size->heads; unit++) {
    block head = head_of(size, at->dtype, 0, unit);
    for (size_t row = 0; row < size->rows.count; row++) {
      void *out = q_row(&head, at->out, row);
      ad_rows(at->dtype)->put_divided(out, out, ad_element(at->dtype, at->state.sum, head.state_at + row),
                                      size->head_dim, 0);
    }
  }
}

/* ---- backward ---- */

typedef struct backward_work {
  const attention_backward *all;
  const attention_part *part;
  void *d_k, *d_v;
} backward_work;

/* Who sees itself alone, as the first of a causal mask does: whatever its score is, the result is v. Exactly 0, where
 * the terms below would cancel but for their rounding. */
static int is_alone(const block *at, size_t row) { return horizon(at, row) == 1; }

/* Scores to probabilities p, their gradients dp to the scores' gradients p (dp - sum(p dp)) / sqrt(head_dim). The sum
 * is that of out * d_out over the head. */
static void score_gradients(const block *at, const attention_backward *all, void *scores, void *slopes) {
  const row_kernels *kernels = ad_rows(at->dtype);
  for (size_t row = 0; row < at->rows; row++) {
    size_t seen = seen_by(at, row), index = at->state_at + at->row + row;
    void *score = scores_row(at, scores, row), *slope = scores_row(at, slopes, row);
    double centre = kernels->dot(q_row(at, all->out, row), q_row(at, all->d_out, row), at->head_dim);
    kernels->softmax_backward(score, slope, score, slope, ad_element(at->dtype, all->state.maximum, index),
                              ad_element(at->dtype, all->state.sum, index), centre, score_factor(at), seen);
    clear_after(at, score, seen);
    clear_after(at, slope, is_alone(at, row) ? 0 : seen);
  }
}

/* To the rows of `to`, product of a block of scores with some rows. */
static void add_product(const block *at, size_t rows, size_t inner, gemm_operand scores, gemm_operand others, void *to,
                        size_t stride) {
  ad_gemm(at->dtype, at->dtype, (int64_t)rows, (int64_t)at->head_dim, (int64_t)inner, 1, scores, others, 1, to,
          (int64_t)stride);
}

static void backward_block(const block *at, void *context) {
  const backward_work *work = context;
  const attention_backward *all = work->all;
  int64_t stride = (int64_t)at->columns;
  void *scores = all->scores, *slopes = element(at, scores, at->rows * at->columns);
  products(at, score_factor(at), q_operand(at, all->q), kv_operand(at, work->part->k, 1), scores);
  products(at, 1, q_operand(at, all->d_out), kv_operand(at, work->part->v, 1), slopes);
  score_gradients(at, all, scores, slopes);
  if (all->d_q)
    add_product(at, at->rows, at->columns, (gemm_operand){slopes, stride, 0}, kv_operand(at, work->part->k, 0),
                q_row(at, all->d_q, 0), at->width);
  if (work->d_k)
    add_product(at, at->columns, at->rows, (gemm_operand){slopes, stride, 1}, q_operand(at, all->q),
                element(at, work->d_k, at->kv_at), at->kv_width);
  if (work->d_v)
    add_product(at, at->columns, at->rows, (gemm_operand){scores, stride, 1}, q_operand(at, all->d_out),
                element(at, work->d_v, at->kv_at), at->kv_width);
}

void ad_attention_back(const attention_backward *at, const attention_part *part, void *d_k, void *d_v) {
  backward_work work = {at, part, d_k, d_v};
  each(&at->size, at->dtype, &part->columns, backward_block, &work);
}

size_t ad_attention_scratch_bytes(ad_dtype dtype, size_t columns) {
  return 2 * ATTENTION_BLOCK * columns * ad_dtype_size(dtype);
}
