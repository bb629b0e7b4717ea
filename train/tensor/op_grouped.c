/* Products of rows with their expert's matrix; rows are sorted by expert. */
#include <inttypes.h>
#include <string.h>
#include "layout/nest.h"
#include "products/gemm.h"
#include "tensor/routing.h"
#include "tensor/tape.h"

typedef struct grouped_numbers {
  const ad_routing *routing;
} grouped_numbers;

static const ad_routing *routing_of(const ad_tensor *out) { return ((const grouped_numbers *)out->own)->routing; }

/* Describes the result. A rank has the matrices of its own experts, so a type S(0) of the matrices is treated as V,
 * without the copy that a declaration V would make of a parameter; the gradient is S(0) again. */
static ad_status grouped_describe(ad_tape *tape, ad_tensor *out) {
  const ad_layout *matrices = &out->operand[1]->array.layout;
  ad_layout own = *matrices;
  ad_layout_set(&own, ad_layout_axes_sharding(matrices, 0), AD_V);
  return ad_operation_describe_by(tape, out, (const ad_layout *[]){&out->operand[0]->array.layout, &own});
}

static ad_status grouped_check(const ad_tape *tape, const ad_tensor *out) {
  const ad_routing *routing = routing_of(out);
  const ad_array *x = &out->operand[0]->array, *w = &out->operand[1]->array;
  if ((size_t)x->local.dim[0] == routing->received && (size_t)w->local.dim[0] == routing->own_experts) return AD_OK;
  return ad_fail(AD_INVALID,
                 "%s: `grouped_linear` got operand 1 with %" PRId64 " rows and operand 2 with %" PRId64
                 " matrices, but the routing brought %zu rows for %zu experts. Give the rows that `dispatch` returned, "
                 "and a matrix for each expert of this rank",
                 out->site, x->local.dim[0], w->local.dim[0], routing->received, routing->own_experts);
}

/* Sizes of one expert's product: of its rows and its matrix. */
typedef struct group_sizes {
  int64_t rows, inner, columns;
  size_t first_row;
  size_t matrix; /* number of elements before this matrix */
} group_sizes;

static group_sizes first_group(const ad_tensor *out) {
  return (group_sizes){0, out->operand[1]->array.local.dim[1], out->operand[1]->array.local.dim[2], 0, 0};
}

static void take_group(const ad_tensor *out, size_t expert, group_sizes *at) {
  at->rows = (int64_t)routing_of(out)->rows_of_expert[expert];
  at->matrix = expert * (size_t)(at->inner * at->columns);
}

static ad_status grouped_forward(ad_tape *tape, ad_tensor *out) {
  group_sizes at = first_group(out);
  for (size_t e = 0; e < routing_of(out)->own_experts; e++, at.first_row += (size_t)at.rows) {
    take_group(out, e, &at);
    ad_matrix x = {ad_at(out, out->operand[0]->array.data, at.first_row * (size_t)at.inner), at.inner, 0};
    ad_matrix w = {ad_at(out, out->operand[1]->array.data, at.matrix), at.columns, 0};
    if (at.rows)
      ad_gemm(out->array.dtype, out->array.dtype, at.rows, at.columns, at.inner, 1, x, w, 0,
              ad_at(out, out->array.data, at.first_row * (size_t)at.columns), at.columns);
  }
  return AD_OK;
}

static ad_matrix arriving_rows(const ad_tensor *out, const group_sizes *at) {
  return (ad_matrix){ad_at(out, out->grad.data, at->first_row * (size_t)at->columns), at->columns, 0};
}

/* Computes dx = dy w^T for one expert. */
static void gradient_of_rows(const ad_tensor *out, const ad_gradient_slot *slot, const group_sizes *at) {
  ad_matrix w = {ad_at(out, out->operand[1]->array.data, at->matrix), at->columns, 1};
  if (at->rows)
    ad_gemm(out->array.dtype, slot->dtype, at->rows, at->inner, at->columns, 1, arriving_rows(out, at), w, slot->adds,
            ad_at(out, slot->data, at->first_row * (size_t)at->inner), at->inner);
}

/* Computes dw = x^T dy for one expert. An expert without rows gets a gradient of zeros, since its gradient must not
 * stay undefined. */
static void gradient_of_matrix(const ad_tensor *out, const ad_gradient_slot *slot, const group_sizes *at) {
  ad_matrix x = {ad_at(out, out->operand[0]->array.data, at->first_row * (size_t)at->inner), at->inner, 1};
  size_t size = ad_dtype_size(slot->dtype);
  void *dw = (char *)slot->data + at->matrix * size;
  if (at->rows)
    ad_gemm(out->array.dtype, slot->dtype, at->inner, at->columns, at->rows, 1, x, arriving_rows(out, at), slot->adds,
            dw, at->columns);
  else if (!slot->adds)
    memset(dw, 0, (size_t)(at->inner * at->columns) * size);
}

static ad_status grouped_backward(ad_tape *tape, ad_tensor *out, const ad_gradient_slot *slot) {
  group_sizes at = first_group(out);
  for (size_t e = 0; e < routing_of(out)->own_experts; e++, at.first_row += (size_t)at.rows) {
    take_group(out, e, &at);
    if (slot[0].data) gradient_of_rows(out, &slot[0], &at);
    if (slot[1].data) gradient_of_matrix(out, &slot[1], &at);
  }
  return AD_OK;
}

static const ad_operation grouped_linear = {.name = "grouped_linear",
                                            .dims = "nk,ekm->nm",
                                            .linearity = AD_MULTILINEAR,
                                            .full = "ne",
                                            .dtypes = AD_IN_ANY_FLOAT,
                                            .raw = 1u << 0 | 1u << 1,
                                            .own_size = sizeof(grouped_numbers),
                                            .describe = grouped_describe,
                                            .check = grouped_check,
                                            .forward = grouped_forward,
                                            .backward = grouped_backward};

ad_tensor *ad_grouped_linear_at(ad_tape *tape, ad_tensor *x, ad_tensor *w, const ad_routing *routing,
                                const char *site) {
  return ad_tape_apply(tape, &grouped_linear, (ad_tensor *[]){x, w}, 2, &(grouped_numbers){routing}, site);
}
