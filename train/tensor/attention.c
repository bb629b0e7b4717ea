/* The arithmetic of attention, one block of rows of one head at a time. Heads are read in place from [batch, rows,
 * heads * head_dim]; heads of a narrow dtype are first copied, one at a time, into matrices without gaps. */
#include "tensor/attention.h"

#include <math.h>
#include <string.h>
#include "array/array.h"
#include "products/gemm.h"

/* Sizes of a block of scores. BLOCK_ROWS rows by BLOCK_COLUMNS positions fit in the second-level cache. BLOCK_COLUMNS
 * limits only blocks of narrow dtypes; a block of another dtype has all positions of the part. */
enum { BLOCK_ROWS = 64, BLOCK_COLUMNS = 512, VECTOR = 32 };

/* One block of rows of one head of q, together with one run of columns (consecutive positions of k). Each row sees all
 * columns of the run, or only the first few. */
typedef struct block {
  ad_dtype dtype, wide;
  size_t head_dim;
  size_t width, kv_width;
  /* row_position: the position in the sequence of the block's first row; row: its index in memory; rows: number of
   * rows */
  size_t row, rows, row_position;
  /* q_at: index of this head's first element in row 0 of q; kv_at: the same in the run's column 0 of k and v */
  size_t q_at, kv_at;
  size_t state_at; /* index of row 0 in row_state */
  size_t visible;  /* as in attention_sizes */
  /* position of the run's first column */
  int64_t column_position;
  size_t run, columns; /* run: number of columns in the run; columns: number of these that the block's last row sees */
} block;

/* The mask: returns the number of positions that a row sees, counted from position 0. */
static size_t horizon(const block *at, size_t row) { return at->visible ? at->visible : at->row_position + row + 1; }

/* Returns how many columns of the run the row sees. */
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

static ad_matrix q_operand(const block *at, const void *data) {
  return (ad_matrix){q_row(at, at->dtype, data, 0), (int64_t)at->width, 0};
}

static ad_matrix kv_operand(const block *at, const void *data, int transposed) {
  return (ad_matrix){element(at->dtype, data, at->kv_at), (int64_t)at->kv_width, transposed};
}

static void *scores_row(const block *at, ad_dtype dtype, void *scores, size_t row) {
  return element(dtype, scores, row * at->columns);
}

/* Fills the row with scores of -infinity (exponential 0) up to a multiple of a vector's length, because kernels
 * handle whole vectors fast and single elements slowly. Returns the padded length. */
static size_t pad_scores(const block *at, void *scores, size_t seen) {
  size_t padded = (seen + VECTOR - 1) / VECTOR * VECTOR;
  if (padded > at->columns) padded = at->columns;
  ad_rows(at->wide)->fill(element(at->wide, scores, seen), -INFINITY, padded - seen, 0);
  return padded;
}

/* Zeroes the part of a row after the columns that the row sees. */
static void clear_after(const block *at, void *row, size_t seen) {
  memset(element(at->dtype, row, seen), 0, (at->columns - seen) * ad_dtype_size(at->dtype));
}

/* Computes scores = factor * rows * columns^T: one number for each row and column, a sum over head_dim. */
static void products(const block *at, double factor, ad_matrix rows, ad_matrix columns, void *scores) {
  ad_gemm(at->dtype, at->wide, (int64_t)at->rows, (int64_t)at->columns, (int64_t)at->head_dim, factor, rows, columns, 0,
          scores, (int64_t)at->columns);
}

/* Computes to += scores * others. `to` has `rows` rows; `inner` is the dimension that the product sums over. */
static void add_product(const block *at, size_t rows, size_t inner, ad_matrix scores, ad_matrix others, void *to,
                        size_t stride) {
  ad_gemm(at->dtype, at->wide, (int64_t)rows, (int64_t)at->head_dim, (int64_t)inner, 1, scores, others, 1, to,
          (int64_t)stride);
}

static double score_factor(const block *at) { return 1 / sqrt((double)at->head_dim); }

/* ---- iterating over blocks of rows, head by head ---- */

typedef void (*block_function)(const block *at, void *context);

/* Returns the local head of k and v that serves head `unit` of q; `unit` counts the heads of all samples. */
static size_t kv_head_of(const attention_sizes *size, size_t unit) {
  return (size->first_head + unit % size->heads) / size->sharing - size->first_kv_head;
}

/* Describes the block of head `unit` of q, without its rows and columns; `unit` counts the heads of all samples. */
static block head_of(const attention_sizes *size, ad_dtype dtype, size_t columns, size_t unit) {
  size_t batch = unit / size->heads, head = unit % size->heads, kv_head = kv_head_of(size, unit);
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

/* Returns the most columns that a run may have. */
static size_t most_columns(ad_dtype dtype, size_t columns) {
  return ad_dtype_wide(dtype) == dtype || columns < BLOCK_COLUMNS ? columns : BLOCK_COLUMNS;
}

/* Calls `run` for each run of columns, except runs of which the block sees no column. */
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

/* Goes through the rows of one head, block by block: calls `run` for each block and each run of columns. */
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

/* Goes through all heads of all samples: calls `run` for each block of rows and each run of columns. */
static void each(const attention_sizes *size, ad_dtype dtype, const positions *columns, block_function run,
                 void *context) {
  for (size_t unit = 0; unit < size->batch * size->heads; unit++)
    each_block(head_of(size, dtype, columns->count, unit), size, columns, run, context);
}

/* ---- heads of a narrow dtype, one at a time ---- */

/* Libraries multiply narrow matrices two or three times as fast if operands and result have no gaps. So the rows of one
 * head are copied to the beginning of the scratch memory, and the functions above treat that head as an attention with
 * one head; this function returns its sizes. */

static attention_sizes one_head(const attention_sizes *all) {
  attention_sizes one = *all;
  one.batch = one.heads = one.kv_heads = one.sharing = 1;
  one.width = one.kv_width = all->head_dim;
  one.first_head = one.first_kv_head = 0;
  return one;
}

static size_t copy_bytes(ad_dtype dtype, size_t rows, size_t head_dim) {
  return ad_padded(rows * head_dim * ad_dtype_size(dtype));
}

/* Copies the rows of a head, beginning at from[first], to *next, and moves *next to the end of the copy. */
static const void *copy_rows(const block *head, const void *from, size_t first, size_t stride, size_t rows,
                             char **next) {
  char *copy = *next;
  size_t bytes = head->head_dim * ad_dtype_size(head->dtype);
  for (size_t i = 0; i < rows; i++) memcpy(copy + i * bytes, element(head->dtype, from, first + i * stride), bytes);
  *next += copy_bytes(head->dtype, rows, head->head_dim);
  return copy;
}

static const void *copy_q(const block *head, const attention_sizes *size, const void *from, char **next) {
  return copy_rows(head, from, head->q_at, size->width, size->rows.count, next);
}

static attention_part copy_part(const block *head, const attention_sizes *size, const attention_part *part,
                                char **next) {
  attention_part copy = *part;
  copy.k = copy_rows(head, part->k, head->kv_at, size->kv_width, part->columns.count, next);
  copy.v = copy_rows(head, part->v, head->kv_at, size->kv_width, part->columns.count, next);
  return copy;
}

static row_state state_of(const block *head, row_state all) {
  return (row_state){element(head->wide, all.maximum, head->state_at), element(head->wide, all.sum, head->state_at)};
}

/* Returns one head's part of the sums of a narrow dtype, which are [batch, heads, rows, head_dim]; NULL if `sums` is
 * NULL. */
static void *head_sums(const block *head, void *sums, size_t first_row) {
  return sums ? element(head->wide, sums, first_row * head->head_dim) : NULL;
}

/* ---- forward: results from parts ---- */

static size_t row_count(const attention_sizes *size) { return size->batch * size->heads * size->rows.count; }

void ad_attention_begin(const attention_forward *at) {
  ad_dtype wide = ad_dtype_wide(at->dtype);
  size_t rows = row_count(&at->size);
  ad_rows(wide)->fill(at->state.maximum, -INFINITY, rows, 0);
  ad_rows(wide)->fill(at->state.sum, 0, rows, 0);
  memset(at->out, 0, at->size.batch * at->size.rows.count * at->size.width * ad_dtype_size(wide));
}

/* The arguments of forward_block. */
typedef struct forward_work {
  const attention_forward *all;
  const attention_part *part;
} forward_work;

/* Return blocks of scratch memory. scores_at: one of two blocks of scores in the wide dtype. read_at: one of the two
 * blocks that products read: for a narrow dtype two further blocks in that dtype, for other dtypes those of scores_at.
 */
static void *scores_at(const block *at, void *scratch, size_t piece) {
  return element(at->wide, scratch, piece * at->rows * at->columns);
}
static void *read_at(const block *at, void *scratch, size_t piece) {
  if (at->dtype == at->wide) return scores_at(at, scratch, piece);
  return element(at->dtype, scores_at(at, scratch, 2), piece * at->rows * at->columns);
}

/* Adds the scores of one row to the row's running maximum and sum of exponentials, and replaces the scores by their
 * exponentials for the product with v. The row's result so far is rescaled to the new maximum. */
static void take_row(const block *at, const attention_forward *all, size_t row) {
  const row_kernels *wide = ad_rows(at->wide);
  void *scores = scores_row(at, at->wide, scores_at(at, all->scratch, 0), row);
  void *exponentials = scores_row(at, at->dtype, read_at(at, all->scratch, 0), row);
  void *out = q_row(at, at->wide, all->out, row);
  size_t seen = seen_by(at, row), index = at->state_at + at->row + row;
  double before = ad_element(at->wide, all->state.maximum, index), sum = ad_element(at->wide, all->state.sum, index);
  size_t padded = pad_scores(at, scores, seen);
  double largest = fmax(before, wide->max(scores, padded));
  if (largest == -INFINITY) seen = 0;  // the row sees no key of this part
  if (seen) {
    double kept = exp(before - largest);
    if (sum > 0 && kept < 1) wide->put_divided(out, out, 1 / kept, at->head_dim, 0);
    sum = sum * kept + ad_rows(at->dtype)->exp_sum_narrow(exponentials, scores, largest, padded);
    ad_set_element(at->wide, all->state.maximum, index, largest);
    ad_set_element(at->wide, all->state.sum, index, sum);
  }
  clear_after(at, exponentials, seen);
}

/* Computes the scores of the block and their exponentials, and adds the exponentials times v to the result. */
static void forward_block(const block *at, void *context) {
  const forward_work *work = context;
  const attention_forward *all = work->all;
  products(at, score_factor(at), q_operand(at, all->q), kv_operand(at, work->part->k, 1),
           scores_at(at, all->scratch, 0));
  for (size_t row = 0; row < at->rows; row++) take_row(at, all, row);
  add_product(at, at->rows, at->columns, (ad_matrix){read_at(at, all->scratch, 0), (int64_t)at->columns, 0},
              kv_operand(at, work->part->v, 0), q_row(at, at->wide, all->out, 0), at->width);
}

static void add_part(const attention_forward *at, const attention_part *part) {
  forward_work work = {at, part};
  each(&at->size, at->dtype, &part->columns, forward_block, &work);
}

/* Adds one part of the keys and values (on a ring: those of one rank) to the results of one head of a narrow dtype. */
static void add_to_head(const block *head, const attention_forward *all, const attention_part *part) {
  char *next = all->scratch;
  attention_forward one = *all;
  attention_part copy = copy_part(head, &all->size, part, &next);
  one.size = one_head(&all->size);
  one.q = copy_q(head, &all->size, all->q, &next);
  one.out = head_sums(head, all->out, head->state_at);
  one.state = state_of(head, all->state);
  one.scratch = next;
  add_part(&one, &copy);
}

void ad_attention_add(const attention_forward *at, const attention_part *part) {
  if (ad_dtype_wide(at->dtype) == at->dtype) {
    add_part(at, part);
    return;
  }
  for (size_t unit = 0; unit < at->size.batch * at->size.heads; unit++) {
    block head = head_of(&at->size, at->dtype, part->columns.count, unit);
    add_to_head(&head, at, part);
  }
}

/* Returns a row of a head in the sums. */
static void *sums_row(const block *head, void *sums, size_t row) {
  return head->dtype == head->wide ? q_row(head, head->wide, sums, row) : head_sums(head, sums, head->state_at + row);
}

void ad_attention_end(const attention_forward *at) {
  const attention_sizes *size = &at->size;
  for (size_t unit = 0; unit < size->batch * size->heads; unit++) {
    block head = head_of(size, at->dtype, 0, unit);
    for (size_t row = 0; row < size->rows.count; row++) {
      void *out = sums_row(&head, at->out, row);
      ad_rows(head.wide)->put_divided(out, out, ad_element(head.wide, at->state.sum, head.state_at + row),
                                      size->head_dim, 0);
    }
  }
}

/* ---- backward: gradients from parts ---- */

/* The arguments of backward_block. */
typedef struct backward_work {
  const attention_backward *all;
  const attention_part *part;
  void *d_k, *d_v;
} backward_work;

/* Returns 1 if the row sees only itself, as the first row of a causal mask does. The result of such a row is v,
 * whatever the score, so the score's gradient is exactly 0. Computed as for other rows, it would be 0 only up to
 * rounding. */
static int is_alone(const block *at, size_t row) { return horizon(at, row) == 1; }

/* Turns scores into probabilities p, and their gradients dp into the scores' gradients p (dp - sum(p dp)) /
 * sqrt(head_dim). The sum equals that of out * d_out over the head. */
static void score_gradients(const block *at, const attention_backward *all) {
  const row_kernels *kernels = ad_rows(at->dtype);
  void *scores = scores_at(at, all->scratch, 0), *slopes = scores_at(at, all->scratch, 1);
  void *p = read_at(at, all->scratch, 0), *d = read_at(at, all->scratch, 1);
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

/* Recomputes the probabilities of the block and adds the block's share to d_q, d_k and d_v. */
static void backward_block(const block *at, void *context) {
  const backward_work *work = context;
  const attention_backward *all = work->all;
  int64_t stride = (int64_t)at->columns;
  const void *p = read_at(at, all->scratch, 0), *d = read_at(at, all->scratch, 1);
  products(at, score_factor(at), q_operand(at, all->q), kv_operand(at, work->part->k, 1),
           scores_at(at, all->scratch, 0));
  products(at, 1, q_operand(at, all->d_out), kv_operand(at, work->part->v, 1), scores_at(at, all->scratch, 1));
  score_gradients(at, all);
  if (all->d_q)
    add_product(at, at->rows, at->columns, (ad_matrix){d, stride, 0}, kv_operand(at, work->part->k, 0),
                q_row(at, at->wide, all->d_q, 0), at->width);
  if (work->d_k)
    add_product(at, at->columns, at->rows, (ad_matrix){d, stride, 1}, q_operand(at, all->q),
                element(at->wide, work->d_k, at->kv_at), at->kv_width);
  if (work->d_v)
    add_product(at, at->columns, at->rows, (ad_matrix){p, stride, 1}, q_operand(at, all->d_out),
                element(at->wide, work->d_v, at->kv_at), at->kv_width);
}

static void back_part(const attention_backward *at, const attention_part *part, void *d_k, void *d_v) {
  backward_work work = {at, part, d_k, d_v};
  each(&at->size, at->dtype, &part->columns, backward_block, &work);
}

/* Adds the gradients from one part of the keys and values (on a ring: those of one rank), for one head of a narrow
 * dtype. */
static void back_of_head(const block *head, size_t kv_row, const attention_backward *all, const attention_part *part,
                         void *d_k, void *d_v) {
  char *next = all->scratch;
  attention_backward one = *all;
  attention_part copy = copy_part(head, &all->size, part, &next);
  one.size = one_head(&all->size);
  one.q = copy_q(head, &all->size, all->q, &next);
  one.out = copy_q(head, &all->size, all->out, &next);
  one.d_out = copy_q(head, &all->size, all->d_out, &next);
  one.d_q = head_sums(head, all->d_q, head->state_at);
  one.state = state_of(head, all->state);
  one.scratch = next;
  back_part(&one, &copy, head_sums(head, d_k, kv_row), head_sums(head, d_v, kv_row));
}

void ad_attention_back(const attention_backward *at, const attention_part *part, void *d_k, void *d_v) {
  if (ad_dtype_wide(at->dtype) == at->dtype) {
    back_part(at, part, d_k, d_v);
    return;
  }
  size_t columns = part->columns.count;
  for (size_t unit = 0; unit < at->size.batch * at->size.heads; unit++) {
    block head = head_of(&at->size, at->dtype, columns, unit);
    back_of_head(&head, (unit / at->size.heads * at->size.kv_heads + kv_head_of(&at->size, unit)) * columns, at, part,
                 d_k, d_v);
  }
}

void ad_attention_round(void *to, ad_dtype dtype, const void *sums, head_sizes of, int adds) {
  ad_dtype wide = ad_dtype_wide(dtype);
  size_t heads = wide == dtype ? 1 : of.heads, length = wide == dtype ? of.width : of.head_dim;
  for (size_t unit = 0; unit < of.batch * heads; unit++)
    for (size_t row = 0; row < of.seq; row++)
      ad_rows(dtype)->put_narrow(element(dtype, to, (unit / heads * of.seq + row) * of.width + unit % heads * length),
                                 element(wide, sums, (unit * of.seq + row) * length), 1, length, adds);
}

size_t ad_attention_scratch_bytes(ad_dtype dtype, size_t rows, size_t columns, size_t head_dim) {
  ad_dtype wide = ad_dtype_wide(dtype);
  size_t scores = BLOCK_ROWS * most_columns(dtype, columns);
  if (dtype == wide) return 2 * scores * ad_dtype_size(wide);
  return 2 * scores * (ad_dtype_size(wide) + ad_dtype_size(dtype)) + 3 * copy_bytes(dtype, rows, head_dim) +
         2 * copy_bytes(dtype, columns, head_dim);
}
