/* Root-mean-square normalization over the last dimension, with or without a weight, or over each head of the last
 * dimension. The weight has one element for each element of a normalized row. */
#include <math.h>
#include <string.h>
#include "base/injection.h"
#include "tensor/heads.h"

typedef struct norm_numbers {
  double epsilon;
} norm_numbers;

static size_t width_of(const ad_tensor *out) { return ad_columns(out->operand[out->operand_count - 1]); }
static size_t count_of(const ad_tensor *out) { return width_of(out) ? ad_numel(out) / width_of(out) : 0; }

// Returns the bytes that forward saves: 1 / sqrt(mean(x^2) + epsilon) of every row.
static size_t norm_saved(const ad_tensor *out) { return count_of(out) * ad_dtype_size(ad_wide_of(out)); }

/* Returns row i of the operand; the operand's dtype may be wider than the result's. */
static const void *operand_row(const ad_tensor *out, size_t i) {
  const ad_tensor *x = out->operand[0];
  return ad_at(x, x->array.data, i * width_of(out));
}

static int is_wide(const ad_tensor *out) { return out->operand[0]->array.dtype != out->array.dtype; }

// Computes row i's inverse RMS and saves it for backward.
static double take_inverse(const ad_tensor *out, size_t i) {
  const void *x = operand_row(out, i);
  double squares = ad_rows(out->operand[0]->array.dtype)->dot(x, x, width_of(out));
  double inverse = 1 / sqrt(squares / (double)width_of(out) + ((const norm_numbers *)out->own)->epsilon);
  ad_inject(AD_INJECT_STATISTIC, &inverse);
  ad_set_element(ad_wide_of(out), out->saved, i, inverse);
  return inverse;
}

static ad_status norm_forward(ad_tape *tape, ad_tensor *out) {
  const row_kernels *rows = ad_rows(out->array.dtype);
  size_t width = width_of(out), count = count_of(out);
  const void *weight = out->operand[1]->array.data;
  for (size_t i = 0; i < count; i++) {
    double inverse = take_inverse(out, i);
    (is_wide(out) ? rows->norm_wide : rows->norm)(ad_at(out, out->array.data, i * width), operand_row(out, i), weight,
                                                  inverse, width);
  }
  return AD_OK;
}

// Returns the bytes of scratch memory: a row for sums of the weight's gradient, and a row for dx, used if x carries no
// gradient.
static size_t norm_scratch(const ad_tensor *out) { return 2 * width_of(out) * ad_dtype_size(ad_wide_of(out)); }

static ad_status norm_backward(ad_tape *tape, ad_tensor *out, const ad_gradient_slot *slot) {
  const row_kernels *rows = ad_rows(out->array.dtype);
  size_t width = width_of(out), count = count_of(out);
  size_t row_bytes = width * ad_dtype_size(ad_wide_of(out));
  void *d_weight = out->scratch, *unused = (char *)out->scratch + row_bytes;
  memset(d_weight, 0, row_bytes);
  for (size_t i = 0; i < count; i++) {
    void *dx = slot[0].data ? ad_at(out->operand[0], slot[0].data, i * width) : unused;
    (is_wide(out) ? rows->norm_backward_wide : rows->norm_backward)(
        dx, slot[0].adds, d_weight, operand_row(out, i), out->operand[1]->array.data,
        ad_at(out, out->grad.data, i * width), ad_element(ad_wide_of(out), out->saved, i), width);
  }
  if (slot[1].data) ad_slot_put_all(&slot[1], 0, d_weight, ad_wide_of(out), width);
  return AD_OK;
}

static const ad_operation rms_norm = {.name = "rms_norm",
                                      .dims = "...d,d->...d",
                                      .linearity = AD_NONLINEAR,
                                      .full = "d",
                                      .dtypes = AD_IN_ANY_FLOAT,
                                      .either = 1u << 0,
                                      .wide = 1u << 1,
                                      .result = AD_LIKE_TAPE,
                                      .own_size = sizeof(norm_numbers),
                                      .saved = norm_saved,
                                      .scratch = norm_scratch,
                                      .forward = norm_forward,
                                      .backward = norm_backward};

ad_tensor *ad_rms_norm_at(ad_tape *tape, ad_tensor *x, ad_tensor *weight, double epsilon, const char *site) {
  return ad_tape_apply(tape, &rms_norm, (ad_tensor *[]){x, weight}, 2, &(norm_numbers){epsilon}, site);
}

/* ---- RMS norm without a weight ---- */

static ad_status unweighted_forward(ad_tape *tape, ad_tensor *out) {
  size_t width = width_of(out), count = count_of(out);
  for (size_t i = 0; i < count; i++) {
    double inverse = take_inverse(out, i);
    ad_cast_scaled(ad_at(out, out->array.data, i * width), out->array.dtype, operand_row(out, i),
                   out->operand[0]->array.dtype, inverse, width);
  }
  return AD_OK;
}

// Returns the bytes of scratch memory: a row of the gradient before rounding, if it must be rounded.
static size_t unweighted_scratch(const ad_tensor *out) {
  ad_dtype wide = ad_wide_of(out);
  return wide == out->array.dtype ? 0 : width_of(out) * ad_dtype_size(wide);
}

// Computes dx. With r the inverse RMS of a row, y = x r and dr/dx = -r^3 x / n, hence dx = r (dy - y <dy, y> / n).
static ad_status unweighted_backward(ad_tape *tape, ad_tensor *out, const ad_gradient_slot *slot) {
  const row_kernels *rows = ad_rows(out->array.dtype);
  size_t width = width_of(out), count = count_of(out);
  int is_narrow = ad_wide_of(out) != out->array.dtype;
  for (size_t i = 0; i < count; i++) {
    const void *y = ad_at(out, out->array.data, i * width), *dy = ad_at(out, out->grad.data, i * width);
    void *dx = ad_at(out, slot[0].data, i * width);
    void *row = is_narrow ? out->scratch : dx;
    double inverse = ad_element(ad_wide_of(out), out->saved, i);
    rows->put_wide(row, dy, inverse, width, !is_narrow && slot[0].adds);
    rows->put_wide(row, y, -inverse * rows->dot(dy, y, width) / (double)width, width, 1);
    if (is_narrow) rows->put_narrow(dx, row, 1, width, slot[0].adds);
  }
  return AD_OK;
}

static const ad_operation rms_norm_unweighted = {.name = "rms_norm_unweighted",
                                                 .dims = "...d->...d",
                                                 .linearity = AD_NONLINEAR,
                                                 .full = "d",
                                                 .dtypes = AD_IN_ANY_FLOAT,
                                                 .own_size = sizeof(norm_numbers),
                                                 .saved = norm_saved,
                                                 .scratch = unweighted_scratch,
                                                 .forward = unweighted_forward,
                                                 .backward = unweighted_backward};

ad_tensor *ad_rms_norm_unweighted_at(ad_tape *tape, ad_tensor *x, double epsilon, const char *site) {
  return ad_tape_apply(tape, &rms_norm_unweighted, &x, 1, &(norm_numbers){epsilon}, site);
}

/* ---- RMS norm over each head ---- */

static ad_status head_norm_check(const ad_tape *tape, const ad_tensor *out) {
  return ad_check_heads(tape, out, out->operand[1]->array.shape.dim[0]);
}

static const ad_operation head_norm = {.name = "head_norm",
                                       .dims = "bsd,e->bsd",
                                       .linearity = AD_NONLINEAR,
                                       .full = "e",
                                       .dtypes = AD_IN_ANY_FLOAT,
                                       .wide = 1u << 1,
                                       .result = AD_LIKE_TAPE,
                                       .own_size = sizeof(norm_numbers),
                                       .check = head_norm_check,
                                       .saved = norm_saved,
                                       .scratch = norm_scratch,
                                       .forward = norm_forward,
                                       .backward = norm_backward};

ad_tensor *ad_head_norm_at(ad_tape *tape, ad_tensor *x, ad_tensor *weight, double epsilon, const char *site) {
  return ad_tape_apply(tape, &head_norm, (ad_tensor *[]){x, weight}, 2, &(norm_numbers){epsilon}, site);
}
