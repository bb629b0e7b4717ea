/* Operations on single elements, and the sum of all elements: to_dtype, add, add_row, multiply, scale, scale_by, sum,
 * swiglu, gelu. Division by a count is in op_count.c. */
#include <math.h>
#include <string.h>
#include "tensor/tape.h"

static const row_kernels *rows_of(const ad_tensor *out) { return ad_rows(out->array.dtype); }
static const void *value(const ad_tensor *out, int i) { return out->operand[i]->array.data; }

/* ---- operation to_dtype: converts the dtype ---- */

typedef struct dtype_numbers {
  ad_dtype dtype;
} dtype_numbers;

static ad_status to_dtype_describe(ad_tape *tape, ad_tensor *out) {
  AD_TRY(ad_operation_describe(tape, out));
  out->array.dtype = ((const dtype_numbers *)out->own)->dtype;
  return AD_OK;
}

static ad_status to_dtype_forward(ad_tape *tape, ad_tensor *out) {
  ad_cast(out->array.data, out->array.dtype, value(out, 0), out->operand[0]->array.dtype, ad_numel(out));
  return AD_OK;
}

static ad_status to_dtype_backward(ad_tape *tape, ad_tensor *out, const ad_gradient_slot *slot) {
  ad_slot_put_all(&slot[0], 0, out->grad.data, out->grad.dtype, ad_numel(out));
  return AD_OK;
}

static const ad_operation to_dtype = {.name = "to_dtype",
                                      .dims = "...->...",
                                      .linearity = AD_MULTILINEAR,
                                      .dtypes = AD_IN_ANY_FLOAT,
                                      .raw = 1u << 0,
                                      .own_size = sizeof(dtype_numbers),
                                      .describe = to_dtype_describe,
                                      .forward = to_dtype_forward,
                                      .backward = to_dtype_backward};

ad_tensor *ad_to_dtype_at(ad_tape *tape, ad_tensor *x, ad_dtype dtype, const char *site) {
  if (!site) site = AD_NO_SITE;
  if (!tape) return ad_tape_missing(site, to_dtype.name);
  if (!ad_tape_has_dtype(tape, dtype))
    return ad_tape_fail(
        tape,
        ad_fail(AD_INVALID, "%s: `to_dtype` cannot convert to %s on a tape that computes in %s; give another dtype",
                site, ad_dtype_name(dtype), ad_dtype_name(ad_tape_dtype(tape))));
  if (ad_tape_owns(tape, x) && x->array.dtype == dtype) return x;
  return ad_tape_apply(tape, &to_dtype, &x, 1, &(dtype_numbers){dtype}, site);
}

/* ---- operation add: the sum of two values ---- */

/* Adds two operands. They may have two dtypes, as the result of a layer and the residual stream do; the sum has the
 * wider one. */
static ad_status add_forward(ad_tape *tape, ad_tensor *out) {
  int first_is_wide = out->operand[0]->array.dtype == out->array.dtype;
  const ad_array *wide = &out->operand[!first_is_wide]->array, *other = &out->operand[first_is_wide]->array;
  if (other->dtype == out->array.dtype)
    rows_of(out)->add(out->array.data, wide->data, other->data, ad_numel(out));
  else
    ad_rows(other->dtype)->add_wide(out->array.data, wide->data, other->data, ad_numel(out));
  return AD_OK;
}

static ad_status add_backward(ad_tape *tape, ad_tensor *out, const ad_gradient_slot *slot) {
  for (int i = 0; i < 2; i++) {
    if (slot[i].data && slot[i].data != out->grad.data)
      ad_slot_put_all(&slot[i], 0, out->grad.data, out->grad.dtype, ad_numel(out));
  }
  return AD_OK;
}

static const ad_operation add = {.name = "add",
                                 .dims = "...,...->...",
                                 .linearity = AD_ADDITIVE,
                                 .dtypes = AD_IN_ANY_FLOAT,
                                 .either = 1u << 0 | 1u << 1,
                                 .raw = 1u << 0 | 1u << 1,
                                 .result = AD_LIKE_WIDEST,
                                 .passes_gradient_on = 1,
                                 .forward = add_forward,
                                 .backward = add_backward};

ad_tensor *ad_add_at(ad_tape *tape, ad_tensor *a, ad_tensor *b, const char *site) {
  return ad_tape_apply(tape, &add, (ad_tensor *[]){a, b}, 2, NULL, site);
}

/* ---- operation add_row: adds a vector to each row ---- */

/* Adds the row, operand 1, which has the wide dtype, to each row of operand 0. */
static ad_status add_row_forward(ad_tape *tape, ad_tensor *out) {
  size_t width = ad_columns(out), rows = ad_rows_of(out);
  if (ad_numel(out)) memcpy(out->array.data, value(out, 0), ad_array_bytes(&out->array));
  for (size_t i = 0; i < rows; i++)
    rows_of(out)->put_narrow(ad_at(out, out->array.data, i * width), value(out, 1), 1, width, 1);
  return AD_OK;
}

static ad_status add_row_backward(ad_tape *tape, ad_tensor *out, const ad_gradient_slot *slot) {
  size_t width = ad_columns(out), rows = ad_rows_of(out);
  if (slot[1].data && !slot[1].adds) memset(slot[1].data, 0, width * ad_dtype_size(slot[1].dtype));
  for (size_t i = 0; slot[1].data && i < rows; i++)
    ad_accumulate(slot[1].data, slot[1].dtype, ad_at(out, out->grad.data, i * width), out->grad.dtype, 1, width);
  if (slot[0].data && slot[0].data != out->grad.data)
    rows_of(out)->put(slot[0].data, out->grad.data, 1, ad_numel(out), slot[0].adds);
  return AD_OK;
}

static const ad_operation add_row = {.name = "add_row",
                                     .dims = "...n,n->...n",
                                     .linearity = AD_ADDITIVE,
                                     .dtypes = AD_IN_ANY_FLOAT,
                                     .wide = 1u << 1,
                                     .unread = 1u << 1,
                                     .passes_gradient_on = 1,
                                     .forward = add_row_forward,
                                     .backward = add_row_backward};

ad_tensor *ad_add_row_at(ad_tape *tape, ad_tensor *x, ad_tensor *row, const char *site) {
  return ad_tape_apply(tape, &add_row, (ad_tensor *[]){x, row}, 2, NULL, site);
}

/* ---- operation multiply: the product of two values, element by element ---- */

static ad_status multiply_forward(ad_tape *tape, ad_tensor *out) {
  rows_of(out)->put_product(out->array.data, value(out, 0), value(out, 1), ad_numel(out), 0);
  return AD_OK;
}

static ad_status multiply_backward(ad_tape *tape, ad_tensor *out, const ad_gradient_slot *slot) {
  for (int i = 0; i < 2; i++) {
    if (slot[i].data)
      rows_of(out)->put_product(slot[i].data, out->grad.data, value(out, 1 - i), ad_numel(out), slot[i].adds);
  }
  return AD_OK;
}

static const ad_operation multiply = {.name = "multiply",
                                      .dims = "...,...->...",
                                      .linearity = AD_MULTILINEAR,
                                      .dtypes = AD_IN_ANY_FLOAT,
                                      .forward = multiply_forward,
                                      .backward = multiply_backward};

ad_tensor *ad_multiply_at(ad_tape *tape, ad_tensor *a, ad_tensor *b, const char *site) {
  return ad_tape_apply(tape, &multiply, (ad_tensor *[]){a, b}, 2, NULL, site);
}

/* ---- operation scale: multiplies by a number ---- */

typedef struct scale_numbers {
  double factor;
} scale_numbers;

static double factor_of(const ad_tensor *out) { return ((const scale_numbers *)out->own)->factor; }

static ad_status scale_forward(ad_tape *tape, ad_tensor *out) {
  rows_of(out)->put(out->array.data, value(out, 0), factor_of(out), ad_numel(out), 0);
  return AD_OK;
}

static ad_status scale_backward(ad_tape *tape, ad_tensor *out, const ad_gradient_slot *slot) {
  ad_rows(out->grad.dtype)->put(slot[0].data, out->grad.data, factor_of(out), ad_numel(out), slot[0].adds);
  return AD_OK;
}

static const ad_operation scale = {.name = "scale",
                                   .dims = "...->...",
                                   .linearity = AD_MULTILINEAR,
                                   .dtypes = AD_IN_ANY_FLOAT,
                                   .passes_on = 1,
                                   .own_size = sizeof(scale_numbers),
                                   .forward = scale_forward,
                                   .backward = scale_backward};

ad_tensor *ad_scale_at(ad_tape *tape, ad_tensor *a, double factor, const char *site) {
  if (!site) site = AD_NO_SITE;
  if (!tape) return ad_tape_missing(site, scale.name);
  if (!isfinite(factor))
    return ad_tape_fail(tape, ad_fail(AD_INVALID, "%s: the factor of `scale` must be finite, but is %g", site, factor));
  return ad_tape_apply(tape, &scale, &a, 1, &(scale_numbers){factor}, site);
}

/* ---- operation scale_by: multiplies a value by a tensor of one element ---- */

static ad_status scale_by_check(const ad_tape *tape, const ad_tensor *out) {
  const ad_shape *shape = &out->operand[1]->array.shape;
  if (shape->dim[0] == 1) return AD_OK;
  return ad_fail(AD_INVALID,
                 "%s: the factor of `scale_by` has %lld elements, but must have 1; give a factor of shape [1]",
                 out->site, (long long)shape->dim[0]);
}

static ad_status scale_by_forward(ad_tape *tape, ad_tensor *out) {
  double factor = ad_element(out->operand[1]->array.dtype, value(out, 1), 0);
  rows_of(out)->put(out->array.data, value(out, 0), factor, ad_numel(out), 0);
  return AD_OK;
}

static ad_status scale_by_backward(ad_tape *tape, ad_tensor *out, const ad_gradient_slot *slot) {
  if (slot[1].data) ad_slot_put(&slot[1], 0, rows_of(out)->dot(out->grad.data, value(out, 0), ad_numel(out)));
  if (slot[0].data) {
    double factor = ad_element(out->operand[1]->array.dtype, value(out, 1), 0);
    rows_of(out)->put(slot[0].data, out->grad.data, factor, ad_numel(out), slot[0].adds);
  }
  return AD_OK;
}

static const ad_operation scale_by = {.name = "scale_by",
                                      .dims = "...,u->...",
                                      .linearity = AD_MULTILINEAR,
                                      .full = "u",
                                      .dtypes = AD_IN_ANY_FLOAT,
                                      .wide = 1u << 1,
                                      .check = scale_by_check,
                                      .forward = scale_by_forward,
                                      .backward = scale_by_backward};

ad_tensor *ad_scale_by_at(ad_tape *tape, ad_tensor *x, ad_tensor *factor, const char *site) {
  return ad_tape_apply(tape, &scale_by, (ad_tensor *[]){x, factor}, 2, NULL, site);
}

/* ---- operation sum: the sum of all elements ---- */

static ad_status sum_forward(ad_tape *tape, ad_tensor *out) {
  double total = rows_of(out->operand[0])->sum(value(out, 0), ad_numel(out->operand[0]));
  ad_set_element(out->array.dtype, out->array.data, 0, total);
  return AD_OK;
}

static ad_status sum_backward(ad_tape *tape, ad_tensor *out, const ad_gradient_slot *slot) {
  double slope = ad_element(out->array.dtype, out->grad.data, 0);
  ad_rows(slot[0].dtype)->fill(slot[0].data, slope, ad_numel(out->operand[0]), slot[0].adds);
  return AD_OK;
}

static const ad_operation sum = {.name = "sum",
                                 .dims = "...->",
                                 .linearity = AD_MULTILINEAR,
                                 .dtypes = AD_IN_ANY_FLOAT,
                                 .raw = 1u << 0,
                                 .result = AD_LIKE_WIDE,
                                 .forward = sum_forward,
                                 .backward = sum_backward};

ad_tensor *ad_sum_at(ad_tape *tape, ad_tensor *a, const char *site) {
  return ad_tape_apply(tape, &sum, &a, 1, NULL, site);
}

/* ---- operation swiglu: silu(a) * b ---- */

static ad_status swiglu_forward(ad_tape *tape, ad_tensor *out) {
  rows_of(out)->swiglu(out->array.data, value(out, 0), value(out, 1), ad_numel(out));
  return AD_OK;
}

enum { SWIGLU_PIECE = 256 };

/* Returns the piece of a gradient at `at`, or `unused` if the gradient is not wanted. */
static void *piece_of(const ad_tensor *out, const ad_gradient_slot *slot, size_t at, void *unused) {
  return slot->data ? ad_at(out, slot->data, at) : unused;
}

/* Always computes both gradients, because one exponential serves both. A gradient that is not wanted is written, piece
 * by piece, to memory that nothing reads. */
static ad_status swiglu_backward(ad_tape *tape, ad_tensor *out, const ad_gradient_slot *slot) {
  double unused[SWIGLU_PIECE];
  size_t all = ad_numel(out), piece = slot[0].data && slot[1].data ? all : SWIGLU_PIECE;
  for (size_t at = 0; at < all; at += piece) {
    size_t n = all - at < piece ? all - at : piece;
    rows_of(out)->swiglu_backward(piece_of(out, &slot[0], at, unused), slot[0].adds,
                                  piece_of(out, &slot[1], at, unused), slot[1].adds, ad_at(out, value(out, 0), at),
                                  ad_at(out, value(out, 1), at), ad_at(out, out->grad.data, at), n);
  }
  return AD_OK;
}

static const ad_operation swiglu = {.name = "swiglu",
                                    .dims = "...,...->...",
                                    .linearity = AD_NONLINEAR,
                                    .dtypes = AD_IN_ANY_FLOAT,
                                    .forward = swiglu_forward,
                                    .backward = swiglu_backward};

ad_tensor *ad_swiglu_at(ad_tape *tape, ad_tensor *gate, ad_tensor *up, const char *site) {
  return ad_tape_apply(tape, &swiglu, (ad_tensor *[]){gate, up}, 2, NULL, site);
}

/* ---- operation gelu: the GELU function of each element ---- */

static ad_status gelu_forward(ad_tape *tape, ad_tensor *out) {
  rows_of(out)->gelu(out->array.data, value(out, 0), ad_numel(out));
  return AD_OK;
}

static ad_status gelu_backward(ad_tape *tape, ad_tensor *out, const ad_gradient_slot *slot) {
  rows_of(out)->gelu_backward(slot[0].data, value(out, 0), out->grad.data, ad_numel(out), slot[0].adds);
  return AD_OK;
}

static const ad_operation gelu = {.name = "gelu",
                                  .dims = "...->...",
                                  .linearity = AD_NONLINEAR,
                                  .dtypes = AD_IN_ANY_FLOAT,
                                  .forward = gelu_forward,
                                  .backward = gelu_backward};

ad_tensor *ad_gelu_at(ad_tape *tape, ad_tensor *x, const char *site) {
  return ad_tape_apply(tape, &gelu, &x, 1, NULL, site);
}
