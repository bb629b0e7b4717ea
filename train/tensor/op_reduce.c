/* Reductions along one dimension, which disappears: the sum, the mean, the maximum, or the L2 norm of its elements. */
#include <math.h>
#include <string.h>
#include "tensor/along.h"

typedef struct reduce_numbers {
  int dim;
  int divides; /* 1: divides by the number of elements, for a mean */
} reduce_numbers;

static const reduce_numbers *numbers_of(const ad_tensor *out) { return out->own; }
static const ad_array *operand_of(const ad_tensor *out) { return &out->operand[0]->array; }
static along along_of(const ad_tensor *out) { return ad_along(operand_of(out), numbers_of(out)->dim); }

/* Describes the result by a rule such as "abc->ac". must_be_full 1: the reduced dimension must not be sharded. */
static ad_status describe_reduced(ad_tape *tape, ad_tensor *out, int must_be_full) {
  int dim = numbers_of(out)->dim, ndim = operand_of(out)->shape.ndim;
  char dims[2 * AD_DIMS_MAX + 3], full[2] = {0};
  AD_TRY(ad_check_dim(out, 0, dim));
  char *end = ad_put_letters(dims, ndim, -1);
  ad_put_letters(end + 2, ndim, dim);
  memcpy(end, "->", 2);
  if (must_be_full) full[0] = ad_letter_of(dim);
  return ad_operation_describe_as(tape, out, dims, full);
}

/* ---- sum and mean over a dimension ---- */

static ad_status sum_describe(ad_tape *tape, ad_tensor *out) { return describe_reduced(tape, out, 0); }

/* Returns the bytes of scratch memory: a row of the result, or of its gradient, in f64. */
static size_t sum_scratch(const ad_tensor *out) { return along_of(out).after * sizeof(double); }

/* Returns the divisor of a mean: the full size of the dimension. So if the dimension is sharded, each rank has an
 * addend of the mean. */
static double divisor_of(const ad_tensor *out) {
  return numbers_of(out)->divides ? (double)operand_of(out)->shape.dim[numbers_of(out)->dim] : 1;
}

static const void *reduced_row(const ad_tensor *out, along of, size_t before, size_t i) {
  return ad_at(out->operand[0], operand_of(out)->data, (before * of.size + i) * of.after);
}

/* Sums the elements along the dimension: neighbours in memory if it is the last dimension, else whole rows. */
static void add_up(const ad_tensor *out, along of, size_t before, double *sums) {
  ad_dtype dtype = operand_of(out)->dtype;
  if (of.after == 1) {
    sums[0] = ad_rows(dtype)->sum(reduced_row(out, of, before, 0), of.size);
    return;
  }
  for (size_t k = 0; k < of.after; k++) sums[k] = 0;
  for (size_t i = 0; i < of.size; i++) ad_accumulate(sums, AD_F64, reduced_row(out, of, before, i), dtype, 1, of.after);
}

static ad_status sum_forward(ad_tape *tape, ad_tensor *out) {
  along of = along_of(out);
  double *sums = out->scratch, divisor = divisor_of(out);
  for (size_t i = 0; i < of.before; i++) {
    add_up(out, of, i, sums);
    for (size_t k = 0; k < of.after; k++) sums[k] /= divisor;
    ad_cast(ad_at(out, out->array.data, i * of.after), out->array.dtype, sums, AD_F64, of.after);
  }
  return AD_OK;
}

/* Gives each element the gradient of the sum to which it was added. */
static void pass_on(const ad_gradient_slot *slot, along of, size_t before, const double *shares) {
  size_t first = before * of.size * of.after;
  if (of.after == 1)
    ad_rows(slot->dtype)->fill((char *)slot->data + first * ad_dtype_size(slot->dtype), shares[0], of.size, slot->adds);
  for (size_t i = 0; of.after != 1 && i < of.size; i++)
    ad_slot_put_all(slot, first + i * of.after, shares, AD_F64, of.after);
}

static ad_status sum_backward(ad_tape *tape, ad_tensor *out, const ad_gradient_slot *slot) {
  along of = along_of(out);
  double *shares = out->scratch, divisor = divisor_of(out);
  for (size_t i = 0; i < of.before; i++) {
    ad_cast(shares, AD_F64, ad_at(out, out->grad.data, i * of.after), out->grad.dtype, of.after);
    for (size_t k = 0; k < of.after; k++) shares[k] /= divisor;
    pass_on(slot, of, i, shares);
  }
  return AD_OK;
}

static const ad_operation sum_over = {.name = "sum_over",
                                      .linearity = AD_MULTILINEAR,
                                      .unread = 1,
                                      .dtypes = AD_IN_ANY_FLOAT,
                                      .raw = 1,
                                      .result = AD_LIKE_WIDE,
                                      .own_size = sizeof(reduce_numbers),
                                      .describe = sum_describe,
                                      .scratch = sum_scratch,
                                      .forward = sum_forward,
                                      .backward = sum_backward};

static const ad_operation mean_over = {.name = "mean_over",
                                       .linearity = AD_MULTILINEAR,
                                       .unread = 1,
                                       .dtypes = AD_IN_ANY_FLOAT,
                                       .raw = 1,
                                       .result = AD_LIKE_WIDE,
                                       .own_size = sizeof(reduce_numbers),
                                       .describe = sum_describe,
                                       .scratch = sum_scratch,
                                       .forward = sum_forward,
                                       .backward = sum_backward};

ad_tensor *ad_sum_over_at(ad_tape *tape, ad_tensor *x, int dim, const char *site) {
  return ad_tape_apply(tape, &sum_over, &x, 1, &(reduce_numbers){dim, 0}, site);
}

ad_tensor *ad_mean_over_at(ad_tape *tape, ad_tensor *x, int dim, const char *site) {
  return ad_tape_apply(tape, &mean_over, &x, 1, &(reduce_numbers){dim, 1}, site);
}

/* ---- the largest element along a dimension ---- */

static ad_status max_describe(ad_tape *tape, ad_tensor *out) {
  AD_TRY(describe_reduced(tape, out, 1));
  if (operand_of(out)->shape.dim[numbers_of(out)->dim]) return AD_OK;
  return ad_fail(
      AD_INVALID,
      "%s: `max_over` got dimension %d, which has no elements and so no maximum; give a dimension with elements",
      out->site, numbers_of(out)->dim);
}

/* Returns the bytes that forward saves: for each element of the result the index of the largest element. */
static size_t max_saved(const ad_tensor *out) { return ad_numel(out) * sizeof(size_t); }

/* Returns the index of the largest element: the first of equal ones; NaN counts as larger than all numbers. */
static size_t largest_of(const ad_array *x, along of, size_t before, size_t after) {
  size_t best = 0;
  double largest = ad_element(x->dtype, x->data, before * of.size * of.after + after);
  for (size_t i = 1; i < of.size && !isnan(largest); i++) {
    double value = ad_element(x->dtype, x->data, (before * of.size + i) * of.after + after);
    if (!(value > largest) && !isnan(value)) continue;
    largest = value;
    best = i;
  }
  return best;
}

static ad_status max_forward(ad_tape *tape, ad_tensor *out) {
  along of = along_of(out);
  const ad_array *x = operand_of(out);
  size_t *which = out->saved, size = ad_dtype_size(x->dtype);
  for (size_t i = 0; i < ad_numel(out); i++) {
    size_t before = i / of.after, after = i % of.after;
    which[i] = largest_of(x, of, before, after);
    memcpy((char *)out->array.data + i * size,
           (const char *)x->data + ((before * of.size + which[i]) * of.after + after) * size, size);
  }
  return AD_OK;
}

/* Passes the gradient to the largest element; all others get exactly zero. */
static ad_status max_backward(ad_tape *tape, ad_tensor *out, const ad_gradient_slot *slot) {
  along of = along_of(out);
  const size_t *which = out->saved;
  if (!slot->adds) memset(slot->data, 0, ad_numel(out->operand[0]) * ad_dtype_size(slot->dtype));
  ad_gradient_slot adding = {slot->data, 1, slot->dtype};
  for (size_t i = 0; i < ad_numel(out); i++)
    ad_slot_put(&adding, (i / of.after * of.size + which[i]) * of.after + i % of.after,
                ad_element(out->grad.dtype, out->grad.data, i));
  return AD_OK;
}

static const ad_operation max_over = {.name = "max_over",
                                      .linearity = AD_NONLINEAR,
                                      .unread = 1,
                                      .dtypes = AD_IN_ANY_FLOAT,
                                      .raw = 1,
                                      .own_size = sizeof(reduce_numbers),
                                      .describe = max_describe,
                                      .saved = max_saved,
                                      .forward = max_forward,
                                      .backward = max_backward};

ad_tensor *ad_max_over_at(ad_tape *tape, ad_tensor *x, int dim, const char *site) {
  return ad_tape_apply(tape, &max_over, &x, 1, &(reduce_numbers){dim, 0}, site);
}

/* ---- the L2 norm along a dimension ---- */

static ad_status norm_describe(ad_tape *tape, ad_tensor *out) { return describe_reduced(tape, out, 1); }

/* Returns the index, in the operand, of the first of the elements that make element i of the result. */
static size_t first_element(along of, size_t i) { return i / of.after * of.size * of.after + i % of.after; }

static ad_status norm_forward(ad_tape *tape, ad_tensor *out) {
  along of = along_of(out);
  const ad_array *x = operand_of(out);
  for (size_t i = 0; i < ad_numel(out); i++) {
    double squares = 0;
    for (size_t k = 0; k < of.size; k++) {
      double value = ad_element(x->dtype, x->data, first_element(of, i) + k * of.after);
      squares += value * value;
    }
    ad_set_element(out->array.dtype, out->array.data, i, sqrt(squares));
  }
  return AD_OK;
}

/* Computes the gradient of each element: x / norm times the gradient of the norm. If the norm is 0, the gradient is 0,
 * the smallest of the norm's subgradients. */
static ad_status norm_backward(ad_tape *tape, ad_tensor *out, const ad_gradient_slot *slot) {
  along of = along_of(out);
  const ad_array *x = operand_of(out);
  for (size_t i = 0; i < ad_numel(out); i++) {
    double norm = ad_element(out->array.dtype, out->array.data, i);
    double slope = norm == 0 ? 0 : ad_element(out->grad.dtype, out->grad.data, i) / norm;
    for (size_t k = 0; k < of.size; k++) {
      size_t at = first_element(of, i) + k * of.after;
      ad_slot_put(slot, at, slope * ad_element(x->dtype, x->data, at));
    }
  }
  return AD_OK;
}

static const ad_operation norm_over = {.name = "norm_over",
                                       .linearity = AD_NONLINEAR,
                                       .dtypes = AD_IN_ANY_FLOAT,
                                       .raw = 1,
                                       .result = AD_LIKE_WIDE,
                                       .own_size = sizeof(reduce_numbers),
                                       .describe = norm_describe,
                                       .forward = norm_forward,
                                       .backward = norm_backward};

ad_tensor *ad_norm_over_at(ad_tape *tape, ad_tensor *x, int dim, const char *site) {
  return ad_tape_apply(tape, &norm_over, &x, 1, &(reduce_numbers){dim, 0}, site);
}
