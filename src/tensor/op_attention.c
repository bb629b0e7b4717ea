/* Causal attention. Scores exist for one block of rows of one head at a time; backward makes them again from the rows'
 * log-sum-exp (Dao et al. 2022). Heads are read where they lie in [batch, seq, heads * head_dim]: no copies. */
#include <math.h>
#include <string.h>
#include "tensor/gemm.h"
#include "tensor/heads.h"

enum { BLOCK = 64 };  // rows

typedef struct attention_numbers {
  int64_t head_dim; /* elements of one head */
} attention_numbers;

static const attention_numbers *numbers_of(const ad_tensor *out) { return out->own; }
static head_sizes sizes_of(const ad_tensor *out) { return ad_head_sizes(out, numbers_of(out)->head_dim); }

static ad_status attention_check(const ad_tape *tape, const ad_tensor *out) {
  return ad_check_heads(tape, out, numbers_of(out)->head_dim);
}

static size_t block_rows(const head_sizes *size, size_t first) {
  return size->seq - first < BLOCK ? size->seq - first : BLOCK;
}

// The log-sum-exp of every row of every head: [batch, heads, seq].
static size_t attention_saved(const ad_tensor *out) {
  head_sizes size = sizes_of(out);
  return size.batch * size.heads * size.seq * ad_dtype_size(out->array.dtype);
}

// Scores of a block and, in backward, their gradients.
static size_t attention_scratch(const ad_tensor *out) {
  head_sizes size = sizes_of(out);
  return 2 * block_rows(&size, 0) * size.seq * ad_dtype_size(out->array.dtype);
}

/* One block of rows of one head. Rows are first .. first + rows - 1, they see the columns 0 .. columns - 1. */
typedef struct block {
  const ad_tensor *out;
  head_sizes size;
  size_t head; /* first element of this head in the first row of its batch */
  size_t first, rows, columns;
  void *lse; /* of this head */
} block;

static block block_of(const ad_tensor *out, size_t batch, size_t head, size_t first) {
  head_sizes size = sizes_of(out);
  size_t rows = block_rows(&size, first);
  return (block){out,  size,         batch * size.seq * size.width + head * size.head_dim,          first,
                 rows, first + rows, ad_at(out, out->saved, (batch * size.heads + head) * size.seq)};
}

// This head's part of an activation, from row `row` of its batch.
static void *part(const block *at, const void *data, size_t row) {
  return ad_at(at->out, data, at->head + row * at->size.width);
}

static gemm_operand part_operand(const block *at, const void *data, size_t row, int transposed) {
  return (gemm_operand){part(at, data, row), (int64_t)at->size.width, transposed};
}

static const void *value(const block *at, int i) { return at->out->operand[i]->array.data; }

static void make_scores(const block *at, void *scores) {
  ad_gemm(at->out->array.dtype, (int64_t)at->rows, (int64_t)at->columns, (int64_t)at->size.head_dim,
          1 / sqrt((double)at->size.head_dim), part_operand(at, value(at, 0), at->first, 0),
          part_operand(at, value(at, 1), 0, 1), 0, scores, (int64_t)at->columns);
}

static void clear_after(const block *at, void *row, size_t seen) {
  memset(ad_at(at->out, row, seen), 0, (at->columns - seen) * ad_dtype_size(at->out->array.dtype));
}

/* ---- forward ---- */

// Scores to exp(score - largest), zero behind each row's own position; factor[i] is what row i must be divided by.
static void exponentials(const block *at, void *scores, double *divisor) {
  ad_dtype dtype = at->out->array.dtype;
  const row_kernels *kernels = ad_rows(dtype);
  for (size_t i = 0; i < at->rows; i++) {
    void *row = ad_at(at->out, scores, i * at->columns);
    size_t seen = at->first + i + 1;
    double largest = kernels->max(row, seen);
    divisor[i] = kernels->exp_sum(row, row, largest, seen);
    ad_set_element(dtype, at->lse, at->first + i, largest + log(divisor[i]));
    clear_after(at, row, seen);
  }
}

static void forward_block(const block *at, void *scores) {
  double divisor[BLOCK];
  ad_dtype dtype = at->out->array.dtype;
  make_scores(at, scores);
  exponentials(at, scores, divisor);
  void *result = part(at, at->out->array.data, at->first);
  ad_gemm(dtype, (int64_t)at->rows, (int64_t)at->size.head_dim, (int64_t)at->columns, 1,
          (gemm_operand){scores, (int64_t)at->columns, 0}, part_operand(at, value(at, 2), 0, 0), 0, result,
          (int64_t)at->size.width);
  for (size_t i = 0; i < at->rows; i++) {
    void *row = part(at, at->out->array.data, at->first + i);
    ad_rows(dtype)->put_divided(row, row, divisor[i], at->size.head_dim, 0);
  }
}

static ad_status attention_forward(ad_tape *tape, ad_tensor *out) {
  head_sizes size = sizes_of(out);
  for (size_t unit = 0; unit < size.batch * size.heads; unit++) {
    for (size_t first = 0; first < size.seq; first += BLOCK) {
      block at = block_of(out, unit / size.heads, unit % size.heads, first);
      forward_block(&at, out->scratch);
    }
  }
  return AD_OK;
}

/* ---- backward ---- */

// Scores to probabilities p, their gradients dp to the scores' gradients p (dp - sum(p dp)) / sqrt(head_dim). The sum
// is that of out * d_out over the head.
static void score_gradients(const block *at, void *scores, void *slopes) {
  ad_dtype dtype = at->out->array.dtype;
  const row_kernels *kernels = ad_rows(dtype);
  double scale = 1 / sqrt((double)at->size.head_dim);
  for (size_t i = 0; i < at->rows; i++) {
    size_t position = at->first + i, seen = position + 1;
    void *row = ad_at(at->out, scores, i * at->columns), *slope = ad_at(at->out, slopes, i * at->columns);
    double centre = kernels->dot(part(at, at->out->array.data, position), part(at, at->out->grad.data, position),
                                 at->size.head_dim);
    kernels->softmax_backward(row, slope, ad_element(dtype, at->lse, position), centre, scale, seen);
    clear_after(at, row, seen);
    clear_after(at, slope, seen);
  }
}

// One product of backward: into the rows of `slot` from `row` on.
static void into(const block *at, const gradient_slot *slot, int adds, size_t row, size_t rows, size_t inner,
                 gemm_operand left, gemm_operand right) {
  if (!slot->data) return;
  ad_gemm(at->out->array.dtype, (int64_t)rows, (int64_t)at->size.head_dim, (int64_t)inner, 1, left, right, adds,
          part(at, slot->data, row), (int64_t)at->size.width);
}

static void backward_block(const block *at, const gradient_slot *slot) {
  int64_t stride = (int64_t)at->columns;
  void *scores = at->out->scratch, *slopes = ad_at(at->out, scores, at->rows * at->columns);
  gemm_operand d_out = part_operand(at, at->out->grad.data, at->first, 0);
  make_scores(at, scores);
  ad_gemm(at->out->array.dtype, (int64_t)at->rows, (int64_t)at->columns, (int64_t)at->size.head_dim, 1, d_out,
          part_operand(at, value(at, 2), 0, 1), 0, slopes, stride);
  score_gradients(at, scores, slopes);
  // Blocks come last to first: the last one writes every row of k and v, the others add.
  int is_last = at->columns == at->size.seq;
  into(at, &slot[0], slot[0].adds, at->first, at->rows, at->columns, (gemm_operand){slopes, stride, 0},
       part_operand(at, value(at, 1), 0, 0));
  into(at, &slot[1], slot[1].adds || !is_last, 0, at->columns, at->rows, (gemm_operand){slopes, stride, 1},
       part_operand(at, value(at, 0), at->first, 0));
  into(at, &slot[2], slot[2].adds || !is_last, 0, at->columns, at->rows, (gemm_operand){scores, stride, 1}, d_out);
}

static ad_status attention_backward(ad_tape *tape, ad_tensor *out, const gradient_slot *slot) {
  head_sizes size = sizes_of(out);
  size_t blocks = (size.seq + BLOCK - 1) / BLOCK;
  for (size_t unit = 0; unit < size.batch * size.heads; unit++) {
    for (size_t i = blocks; i-- > 0;) {
      block at = block_of(out, unit / size.heads, unit % size.heads, i * BLOCK);
      backward_block(&at, slot);
    }
  }
  return AD_OK;
}

static const operation attention = {.name = "attention",
                                    .dims = "bsd,bsd,bsd->bsd",
                                    .linearity = AD_NONLINEAR,
                                    .whole = "s",
                                    .dtypes = IN_F32_F64,
                                    .own_size = sizeof(attention_numbers),
                                    .check = attention_check,
                                    .saved = attention_saved,
                                    .scratch = attention_scratch,
                                    .forward = attention_forward,
                                    .backward = attention_backward};

ad_tensor *ad_attention_at(ad_tape *tape, ad_tensor *q, ad_tensor *k, ad_tensor *v, int64_t head_dim,
                           const char *site) {
  return ad_tape_apply(tape, &attention, (ad_tensor *[]){q, k, v}, 3, &(attention_numbers){head_dim}, site);
}
