/* The arithmetic of attention, a block of rows of one head at a time. Heads are read where they lie in [batch, rows,
 * heads * head_dim]: no copies. */
#include "tensor/attention.h"

#include <math.h>
#include <string.h>
#include "products/gemm.h"

/* Rows whose scores exist at a time, and the positions that they are of: a block stays in the second cache. What is
 * its own wide dtype takes a part's positions all at once. */
enum { BLOCK_ROWS = 64, BLOCK_COLUMNS = 512, VECTOR = 32 };

/* One block of rows of one head against one run of columns, of which each row sees the first few, or all. */
typedef struct block {
  ad_dtype dtype, wide;
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

static char *element(ad_dtype dtype, const void *data, size_t index) {
  return (char *)(uintptr_t)data + index * ad_dtype_size(dtype);
}

static void *q_row(const block *at, ad_dtype dtype, const void *data, size_t row) {
  return element(dtype, data, at->q_at + (at->row + row) * at->width);
}

static gemm_operand q_operand(const block *at, const void *data) {
  return (gemm_operand){q_row(at, at->dtype, data, 0), (int64_t)at->width, 0};
}

static gemm_operand kv_operand(const block *at, const void *data, int transposed) {
  return (gemm_operand){element(at->dtype, data, at->kv_at), (int64_t)at->kv_width, transposed};
}

static void *scores_row(const block *at, ad_dtype dtype, void *scores, size_t row) {
  return element(dtype, scores, row * at->columns);
}

/* Kernels take whole vectors at a time, and single elements slowly: a row is taken as far as a vector reaches, with
 * scores there whose exponentials are 0. Returns how far that is. */
static size_t pad_scores(const block *at, void *scores, size_t seen) {
  size_t padded = (seen + VECTOR - 1) / VECTOR * VECTOR;
  if (padded > at->columns) padded = at->columns;
  ad_rows(at->wide)->fill(element(at->wide, scores, seen), -INFINITY, padded - seen, 0);
  return padded;
}

static void clear_after(const block *at, void *row, size_t seen) {
  memset(element(at->dtype, row, seen), 0, (at->columns - seen) * ad_dtype_size(at->dtype));
}

/* Scores or their gradients: one number of each row and column from head_dim of both. */
static void products(const block *at, double factor, gemm_operand rows, gemm_operand columns, void *scores) {
  ad_gemm(at->dtype, at->wide, (int64_t)at->rows, (int64_t)at->columns, (int64_t)at->head_dim, factor, rows, columns, 0,
          scores, (int64_t)at->columns);
}

/* To the rows of `to`, product of a block of scores with some rows. */
static void add_product(const block *at, size_t rows, size_t inner, gemm_operand scores, gemm_operand others, void *to,
                        size_t stride) {
  ad_gemm(at->dtype, at->wide, (int64_t)rows, (int64_t)at->head_dim, (int64_t)inner, 1, scores, others, 1, to,
          (int64_t)stride);
}

static double score_factor(const block *at) { return 1 / sqrt((double)at->head_dim); }

/* ---- going through the blocks ---- */

typedef void (*block_function)(const block *at, void *context);

static block head_of(const attention_sizes *size, ad_dtype dtype, size_t columns, size_t unit) {
  size_t batch = unit / size->heads, head = unit % size->heads;
  size_t kv_head = (size->first_head + head) / size->sharing - size->first_kv_head;
  return (block){.dtype = dtype,
                 .wide = ad_dtype_wide(dtype),
                 .head_dim = size->head_dim,
                 .width = size->width,
                 .kv_width = size->kv_width,
                 .visible = size->visible,
                 .q_at = batch * size->rows.count * size->width + head * size->head_dim,
                 .kv_at = batch * columns * size->kv_width + kv_head * size->head_dim,
                 .state_at = unit * size->rows.count};
}

static size_t most_columns(ad_dtype dtype, size_t columns) {
  return ad_dtype_wide(dtype) == dtype || columns < BLOCK_COLUMNS ? columns : BLOCK_COLUMNS;
}

/* The runs of columns of which the block sees any. */
static void each_run(block at, const positions *columns, block_function run, void *context) {
  for (int i = 0; i < columns->span_count; i++) {
    ad_span span = columns->span[i];
    for (size_t first = 0, count = (size_t)span.count; first < count; first += at.run) {
      at.column_position = span.first + (int64_t)first;
      at.run = most_columns(at.dtype, count - first);
      at.columns = seen_by(&at, at.rows - 1);
      if (at.columns) run(&at, context);
      at.kv_at += at.run * at.kv_width;
    }
  }
}

static void each_block(block at, const attention_sizes *size, const positions *columns, block_function run,
                       void *context) {
  size_t stored = 0;
  for (int i = 0; i < size->rows.span_count; i++) {
    ad_span span = size->rows.span[i];
    for (int64_t first = 0; first < span.count; first += BLOCK_ROWS) {
      at.row = stored + (size_t)first;
      at.row_position = (size_t)(span.first + first);
      at.rows = span.count - first < BLOCK_ROWS ? (size_t)(span.count - first) : BLOCK_ROWS;
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
  ad_dtype wide = ad_dtype_wide(at->dtype);
  size_t rows = row_count(&at->size);
  ad_rows(wide)->fill(at->state.maximum, -INFINITY, rows, 0);
  ad_rows(wide)->fill(at->state.sum, 0, rows, 0);
  memset(at->out, 0, at->size.batch * at->size.rows.count * at->size.width * ad_dtype_size(wide));
}

typedef struct forward_work {
  const attention_forward *all;
  const attention_part *part;
} forward_work;

/* Two pieces of scratch memory for scores R, then as many for what products read, which is the same where the dtype is
 * its own wide one. */
static void *scores_at(const block *at, void *scratch, size_t piece) {
  return element(at->wide, scratch, piece * at->rows * at->columns);
}
static void *read_at(const block *at, void *scratch, size_t piece) {
  if (at->dtype == at->wide) return scores_at(at, scratch, piece);
  return element(at->dtype, scores_at(at, scratch, 2), piece * at->rows * at->columns);
}

/* Takes the scores of one row into its maximum and sum, and leaves their exponentials. What earlier parts gave is
 * brought to the new maximum. */
static void take_row(const block *at, const attention_forward *all, size_t row) {
  const row_kernels *wide = ad_rows(at->wide);
  void *scores = scores_row(at, at->wide, scores_at(at, all->scores, 0), row);
  void *exponentials = scores_row(at, at->dtype, read_at(at, all->scores, 0), row);
  void *out = q_row(at, at->wide, all->out, row);
  size_t seen = seen_by(at, row), index = at->state_at + at->row + row;
  double before = ad_element(at->wide, all->state.maximum, index), sum = ad_element(at->wide, all->state.sum, index);
  size_t padded = pad_scores(at, scores, seen);
  double largest = fmax(before, wide->max(scores, padded));
  if (largest == -INFINITY) seen = 0;  // nothing of this part counts
  if (seen) {
    double kept = exp(before - largest);
    if (sum > 0 && kept < 1) wide->put_divided(out, out, 1 / kept, at->head_dim, 0);
    sum = sum * kept + ad_rows(at->dtype)->exp_sum_narrow(exponentials, scores, largest, padded);
    ad_set_element(at->wide, all->state.maximum, index, largest);
    ad_set_element(at->wide, all->state.sum, index, sum);
  }
  clear_after(at, exponentials, seen);
}

static void forward_block(const block *at, void *context) {
  const forward_work *work = context;
  const attention_forward *all = work->all;
  products(at, score_factor(at), q_operand(at, all->q), kv_operand(at, work->part->k, 1),
           scores_at(at, all->scores, 0));
  for (size_t row = 0; row < at->rows; row++) take_row(at, all, row);
  add_product(at, at->rows, at->columns, (gemm_operand){read_at(at, all->scores, 0), (int64_t)at->columns, 0},
              kv_operand(at, work->part->v, 0), q_row(at, at->wide, all->out, 0), at->width);
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
      void *out = q_row(&head, head.wide, at->out, row);
      ad_rows(head.wide)->put_divided(out, out, ad_element(head.wide, at->state.sum, head.state_at + row),
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
static void score_gradients(const block *at, const attention_backward *all) {
  const row_kernels *kernels = ad_rows(at->dtype);
  void *scores = scores_at(at, all->scores, 0), *slopes = scores_at(at, all->scores, 1);
  void *p = read_at(at, all->scores, 0), *d = read_at(at, all->scores, 1);
  for (size_t row = 0; row < at->rows; row++) {
    size_t seen = seen_by(at, row), index = at->state_at + at->row + row;
    void *p_row = scores_row(at, at->dtype, p, row), *d_row = scores_row(at, at->dtype, d, row);
    double centre =
        kernels->dot(q_row(at, at->dtype, all->out, row), q_row(at, at->dtype, all->d_out, row), at->head_dim);
    void *score = scores_row(at, at->wide, scores, row);
    kernels->softmax_backward(
        p_row, d_row, score, scores_row(at, at->wide, slopes, row), ad_element(at->wide, all->state.maximum, index),
        ad_element(at->wide, all->state.sum, index), centre, score_factor(at), pad_scores(at, score, seen));
    clear_after(at, p_row, seen);
    clear_after(at, d_row, is_alone(at, row) ? 0 : seen);
  }
}

static void backward_block(const block *at, void *context) {
  const backward_work *work = context;
  const attention_backward *all = work->all;
  int64_t stride = (int64_t)at->columns;
  const void *p = read_at(at, all->scores, 0), *d = read_at(at, all->scores, 1);
  products(at, score_factor(at), q_operand(at, all->q), kv_operand(at, work->part->k, 1),
           scores_at(at, all->scores, 0));
  products(at, 1, q_operand(at, all->d_out), kv_operand(at, work->part->v, 1), scores_at(at, all->scores, 1));
  score_gradients(at, all);
  if (all->d_q)
    add_product(at, at->rows, at->columns, (gemm_operand){d, stride, 0}, kv_operand(at, work->part->k, 0),
                q_row(at, at->wide, all->d_q, 0), at->width);
  if (work->d_k)
    add_product(at, at->columns, at->rows, (gemm_operand){d, stride, 1}, q_operand(at, all->q),
                element(at->wide, work->d_k, at->kv_at), at->kv_width);
  if (work->d_v)
    add_product(at, at->columns, at->rows, (gemm_operand){p, stride, 1}, q_operand(at, all->d_out),
                element(at->wide, work->d_v, at->kv_at), at->kv_width);
}

void ad_attention_back(const attention_backward *at, const attention_part *part, void *d_k, void *d_v) {
  backward_work work = {at, part, d_k, d_v};
  each(&at->size, at->dtype, &part->columns, backward_block, &work);
}

size_t ad_attention_scratch_bytes(ad_dtype dtype, size_t columns) {
  ad_dtype wide = ad_dtype_wide(dtype);
  size_t scores = BLOCK_ROWS * most_columns(dtype, columns);
  return 2 * scores * (ad_dtype_size(wide) + (dtype == wide ? 0 : ad_dtype_size(dtype)));
}
