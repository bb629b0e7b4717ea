/* Distances between two values: the sum of squared differences, the binary cross-entropy of probabilities given by
 * logits, and the Kullback-Leibler divergence of two distributions given by rows of logits. These operations give only
 * the numerator of a loss, as cross-entropy does (op_loss.c). Differences and exponentials have the wide dtype; a
 * gradient is rounded once, after the subtraction. */
#include <math.h>
#include "tensor/tape.h"

static const void *values(const ad_tensor *out, int i, size_t at) {
  return ad_at(out->operand[i], out->operand[i]->array.data, at);
}

/* ---- operation squared_error: the sum of squared differences ---- */

enum { PIECE = 256 }; /* elements at a time, so that their differences stay in the first-level cache */

static size_t piece_at(const ad_tensor *out, size_t at) {
  size_t left = ad_numel(out->operand[0]) - at;
  return left < PIECE ? left : PIECE;
}

static size_t difference_scratch(const ad_tensor *out) { return PIECE * ad_dtype_size(out->array.dtype); }

/* Returns a - b, for the piece that begins at element `at`. */
static const void *difference(const ad_tensor *out, size_t at) {
  const row_kernels *rows = ad_rows(out->operand[0]->array.dtype);
  rows->put_wide(out->scratch, values(out, 1, at), -1, piece_at(out, at), 0);
  rows->put_wide(out->scratch, values(out, 0, at), 1, piece_at(out, at), 1);
  return out->scratch;
}

static void *element_of(const ad_gradient_slot *slot, size_t at) {
  return (char *)slot->data + at * ad_dtype_size(slot->dtype);
}

static ad_status squared_error_forward(ad_tape *tape, ad_tensor *out) {
  double total = 0;
  for (size_t at = 0; at < ad_numel(out->operand[0]); at += PIECE) {
    const void *d = difference(out, at);
    total += ad_rows(out->array.dtype)->dot(d, d, piece_at(out, at));
  }
  ad_set_element(out->array.dtype, out->array.data, 0, total);
  return AD_OK;
}

static ad_status squared_error_backward(ad_tape *tape, ad_tensor *out, const ad_gradient_slot *slot) {
  double slope = 2 * ad_element(out->array.dtype, out->grad.data, 0);
  for (size_t at = 0; at < ad_numel(out->operand[0]); at += PIECE) {
    const void *d = difference(out, at);
    for (int i = 0; i < 2; i++)
      if (slot[i].data)
        ad_rows(slot[i].dtype)
            ->put_narrow(element_of(&slot[i], at), d, i ? -slope : slope, piece_at(out, at), slot[i].adds);
  }
  return AD_OK;
}

static const ad_operation squared_error = {.name = "squared_error",
                                           .dims = "...,...->",
                                           .linearity = AD_NONLINEAR,
                                           .dtypes = AD_IN_ANY_FLOAT,
                                           .raw = 1u << 0 | 1u << 1,
                                           .result = AD_LIKE_WIDE,
                                           .scratch = difference_scratch,
                                           .forward = squared_error_forward,
                                           .backward = squared_error_backward};

ad_tensor *ad_squared_error_at(ad_tape *tape, ad_tensor *a, ad_tensor *b, const char *site) {
  return ad_tape_apply(tape, &squared_error, (ad_tensor *[]){a, b}, 2, NULL, site);
}

/* ---- operation binary_cross_entropy: of each logit's sigmoid and its target ---- */

/* Reads a piece of an operand as f64. */
static void read_piece(const ad_tensor *out, int i, size_t at, double to[PIECE]) {
  ad_cast(to, AD_F64, values(out, i, at), out->operand[i]->array.dtype, piece_at(out, at));
}

/* Adds up -y log sigmoid(x) - (1 - y) log(1 - sigmoid(x)), written as max(x, 0) - x y + log(1 + exp(-|x|)), in which
 * nothing overflows or cancels. */
static ad_status binary_forward(ad_tape *tape, ad_tensor *out) {
  double x[PIECE], y[PIECE], total = 0;
  for (size_t at = 0; at < ad_numel(out->operand[0]); at += PIECE) {
    read_piece(out, 0, at, x);
    read_piece(out, 1, at, y);
    for (size_t i = 0; i < piece_at(out, at); i++) total += fmax(x[i], 0) - x[i] * y[i] + log1p(exp(-fabs(x[i])));
  }
  ad_set_element(out->array.dtype, out->array.data, 0, total);
  return AD_OK;
}

/* Computes the gradient of the logits, (sigmoid(x) - y) times the gradient of the loss. Where x and y are large or
 * near 1, sigmoid(x) - y is (1 - y) - sigmoid(-x), which does not cancel. */
static ad_status binary_backward(ad_tape *tape, ad_tensor *out, const ad_gradient_slot *slot) {
  double x[PIECE], y[PIECE], slope = ad_element(out->array.dtype, out->grad.data, 0);
  for (size_t at = 0; at < ad_numel(out->operand[0]); at += PIECE) {
    size_t n = piece_at(out, at);
    read_piece(out, 0, at, x);
    read_piece(out, 1, at, y);
    for (size_t i = 0; i < n; i++) {
      double rare = 1 / (1 + exp(fabs(x[i])));  // the smaller of sigmoid(x) and sigmoid(-x)
      x[i] = slope * (x[i] > 0 ? (1 - y[i]) - rare : rare - y[i]);
    }
    ad_slot_put_all(&slot[0], at, x, AD_F64, n);
  }
  return AD_OK;
}

static const ad_operation binary_cross_entropy = {.name = "binary_cross_entropy",
                                                  .dims = "...,...->",
                                                  .linearity = AD_NONLINEAR,
                                                  .dtypes = AD_IN_ANY_FLOAT,
                                                  .fills = 1u << 0,
                                                  .raw = 1u << 0,
                                                  .result = AD_LIKE_WIDE,
                                                  .forward = binary_forward,
                                                  .backward = binary_backward};

ad_tensor *ad_binary_cross_entropy_at(ad_tape *tape, ad_tensor *logits, ad_tensor *targets, const char *site) {
  return ad_tape_apply(tape, &binary_cross_entropy, (ad_tensor *[]){logits, targets}, 2, NULL, site);
}

/* ---- operation kl_divergence: Kullback-Leibler divergence of softmaxes ---- */

enum { LOGITS, TARGET };

/* Numbers that turn a row of logits into a distribution: exp(logit - largest) / sum. */
typedef struct scaling {
  double largest, sum;
} scaling;

static size_t divergence_saved(const ad_tensor *out) { return ad_rows_of(out->operand[0]) * 2 * sizeof(scaling); }

static int is_narrow(const ad_tensor *out) { return out->operand[LOGITS]->array.dtype != out->array.dtype; }
static size_t row_bytes(const ad_tensor *out) {
  return ad_columns(out->operand[LOGITS]) * ad_dtype_size(out->array.dtype);
}

// Returns the bytes of scratch memory: the exponentials of a row of the target, or a row of the gradient; for a narrow
// dtype one more row, in the wide dtype.
static size_t divergence_scratch(const ad_tensor *out) { return (is_narrow(out) ? 2 : 1) * row_bytes(out); }

/* Returns row `row` of operand i in the wide dtype; valid until the next call. */
static const void *wide_row(const ad_tensor *out, size_t row, int i) {
  size_t width = ad_columns(out->operand[i]);
  const void *x = values(out, i, row * width);
  void *wide = (char *)out->scratch + row_bytes(out);
  if (!is_narrow(out)) return x;
  ad_rows(out->operand[i]->array.dtype)->put_wide(wide, x, 1, width, 0);
  return wide;
}

static scaling *scaling_of(const ad_tensor *out, size_t row, int i) { return (scaling *)out->saved + 2 * row + i; }

/* Computes the scaling of a row, and leaves its exponentials in scratch memory. */
static scaling scale(const ad_tensor *out, size_t row, int i) {
  const row_kernels *rows = ad_rows(out->array.dtype);
  size_t width = ad_columns(out->operand[i]);
  const void *x = wide_row(out, row, i);
  double largest = rows->max(x, width);
  return *scaling_of(out, row, i) = (scaling){largest, rows->exp_sum(out->scratch, x, largest, width)};
}

/* Returns an element of a row minus the largest element of this row. */
static double below(const ad_tensor *out, scaling s, int i, size_t at) {
  return ad_element(out->operand[i]->array.dtype, out->operand[i]->array.data, at) - s.largest;
}

/* Returns the divergence of one row. Elements with target probability 0 contribute nothing, whatever the logits. */
static double divergence_of_row(const ad_tensor *out, size_t row) {
  size_t width = ad_columns(out->operand[LOGITS]);
  scaling logits = scale(out, row, LOGITS), target = scale(out, row, TARGET);
  double total = 0, constant = log(logits.sum) - log(target.sum);
  for (size_t i = 0, at = row * width; i < width; i++, at++) {
    double share = ad_element(out->array.dtype, out->scratch, i) / target.sum;
    if (share != 0) total += share * (below(out, target, TARGET, at) - below(out, logits, LOGITS, at) + constant);
  }
  return total;
}

static ad_status divergence_forward(ad_tape *tape, ad_tensor *out) {
  double total = 0;
  size_t rows = ad_columns(out->operand[LOGITS]) ? ad_rows_of(out->operand[LOGITS]) : 0;
  for (size_t i = 0; i < rows; i++) total += divergence_of_row(out, i);
  ad_set_element(out->array.dtype, out->array.data, 0, total);
  return AD_OK;
}

/* Computes the gradient of the logits: (softmax of the logits - softmax of the target) times the gradient of the
 * loss. */
static ad_status divergence_backward(ad_tape *tape, ad_tensor *out, const ad_gradient_slot *slot) {
  const row_kernels *rows = ad_rows(out->array.dtype);
  size_t width = ad_columns(out->operand[LOGITS]);
  double slope = ad_element(out->array.dtype, out->grad.data, 0);
  int is_wide = slot[LOGITS].dtype == out->array.dtype;
  for (size_t i = 0; i < ad_rows_of(out->operand[LOGITS]); i++) {
    const scaling *logits = scaling_of(out, i, LOGITS), *target = scaling_of(out, i, TARGET);
    void *row = is_wide ? element_of(&slot[LOGITS], i * width) : out->scratch;
    rows->put_exp(row, wide_row(out, i, LOGITS), logits->largest, slope / logits->sum, width,
                  is_wide && slot[LOGITS].adds);
    rows->put_exp(row, wide_row(out, i, TARGET), target->largest, -slope / target->sum, width, 1);
    if (!is_wide) ad_slot_put_all(&slot[LOGITS], i * width, row, out->array.dtype, width);
  }
  return AD_OK;
}

static const ad_operation kl_divergence = {.name = "kl_divergence",
                                           .dims = "...v,...v->",
                                           .linearity = AD_NONLINEAR,
                                           .full = "v",
                                           .dtypes = AD_IN_ANY_FLOAT,
                                           .fills = 1u << LOGITS,
                                           .raw = 1u << LOGITS,
                                           .result = AD_LIKE_WIDE,
                                           .saved = divergence_saved,
                                           .scratch = divergence_scratch,
                                           .forward = divergence_forward,
                                           .backward = divergence_backward};

ad_tensor *ad_kl_divergence_at(ad_tape *tape, ad_tensor *logits, ad_tensor *target, const char *site) {
  return ad_tape_apply(tape, &kl_divergence, (ad_tensor *[]){logits, target}, 2, NULL, site);
}
