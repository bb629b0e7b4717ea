/* Products of activations with a weight: y = x w and y = x w^T. */
#include "products/gemm.h"
#include "tensor/operation.h"

/* Local sizes: x [rows, inner], y [rows, columns], w [inner, columns] or its transpose. */
typedef struct linear_sizes {
  int64_t rows, inner, columns;
} linear_sizes;

static linear_sizes sizes_of(const ad_tensor *out) {
  return (linear_sizes){(int64_t)ad_rows_of(out), (int64_t)ad_columns(out->operand[0]), (int64_t)ad_columns(out)};
}

static ad_matrix plain(const void *data, int64_t stride) { return (ad_matrix){data, stride, 0}; }
static ad_matrix transposed(const void *data, int64_t stride) { return (ad_matrix){data, stride, 1}; }

/* ---- linear: y = x w ---- */

static ad_status linear_forward(ad_tape *tape, ad_tensor *out) {
  linear_sizes size = sizes_of(out);
  ad_matrix x = plain(out->operand[0]->array.data, size.inner), w = plain(out->operand[1]->array.data, size.columns);
  ad_gemm(out->array.dtype, out->array.dtype, size.rows, size.columns, size.inner, 1, x, w, 0, out->array.data,
          size.columns);
  return AD_OK;
}

static ad_status linear_backward(ad_tape *tape, ad_tensor *out, const ad_gradient_slot *slot) {
  linear_sizes size = sizes_of(out);
  ad_dtype dtype = out->array.dtype;
  ad_matrix dy = plain(out->grad.data, size.columns);
  if (slot[0].data)
    ad_gemm(dtype, slot[0].dtype, size.rows, size.inner, size.columns, 1, dy,
            transposed(out->operand[1]->array.data, size.columns), slot[0].adds, slot[0].data, size.inner);
  if (slot[1].data)
    ad_gemm(dtype, slot[1].dtype, size.inner, size.columns, size.rows, 1,
            transposed(out->operand[0]->array.data, size.inner), dy, slot[1].adds, slot[1].data, size.columns);
  return AD_OK;
}

static const ad_operation linear = {.name = "linear",
                                    .dims = "...k,kn->...n",
                                    .linearity = AD_MULTILINEAR,
                                    .dtypes = AD_IN_ANY_FLOAT,
                                    .raw = 1u << 0 | 1u << 1,
                                    .forward = linear_forward,
                                    .backward = linear_backward};

ad_tensor *ad_linear_at(ad_tape *tape, ad_tensor *x, ad_tensor *w, const char *site) {
  return ad_tape_apply(tape, &linear, (ad_tensor *[]){x, w}, 2, NULL, site);
}

/* ---- linear_transposed: y = x w' ---- */

static ad_status linear_transposed_forward(ad_tape *tape, ad_tensor *out) {
  linear_sizes size = sizes_of(out);
  ad_matrix x = plain(out->operand[0]->array.data, size.inner);
  ad_matrix w = transposed(out->operand[1]->array.data, size.inner);
  ad_gemm(out->array.dtype, out->array.dtype, size.rows, size.columns, size.inner, 1, x, w, 0, out->array.data,
          size.columns);
  return AD_OK;
}

static ad_status linear_transposed_backward(ad_tape *tape, ad_tensor *out, const ad_gradient_slot *slot) {
  linear_sizes size = sizes_of(out);
  ad_dtype dtype = out->array.dtype;
  ad_matrix x = plain(out->operand[0]->array.data, size.inner), w = plain(out->operand[1]->array.data, size.inner);
  if (slot[0].data)
    ad_gemm(dtype, slot[0].dtype, size.rows, size.inner, size.columns, 1, plain(out->grad.data, size.columns), w,
            slot[0].adds, slot[0].data, size.inner);
  if (slot[1].data)
    ad_gemm(dtype, slot[1].dtype, size.columns, size.inner, size.rows, 1, transposed(out->grad.data, size.columns), x,
            slot[1].adds, slot[1].data, size.inner);
  return AD_OK;
}

static const ad_operation linear_transposed = {.name = "linear_transposed",
                                               .dims = "...k,nk->...n",
                                               .linearity = AD_MULTILINEAR,
                                               .dtypes = AD_IN_ANY_FLOAT,
                                               .raw = 1u << 0 | 1u << 1,
                                               .forward = linear_transposed_forward,
                                               .backward = linear_transposed_backward};

ad_tensor *ad_linear_transposed_at(ad_tape *tape, ad_tensor *x, ad_tensor *w, const char *site) {
  return ad_tape_apply(tape, &linear_transposed, (ad_tensor *[]){x, w}, 2, NULL, site);
}
