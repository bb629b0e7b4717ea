/* Two custom operations that need more than a rule of dimensions (`dims`): `cumulative`, which sums along a dimension
 * that the caller chooses, and `above`, whose number of rows depends on the values. ad_check_operation tests the first;
 * the second is compared with known numbers. */
#include <stdio.h>
#include <string.h>
#include "addend/operation.h"

/* ---- cumulative: element i along a dimension is the sum of elements 0 to i ---- */

typedef struct cumulative_numbers {
  int dim; /* 0 or 1, of a matrix */
} cumulative_numbers;

static int dim_of(const ad_tensor *out) { return ((const cumulative_numbers *)ad_operation_own(out))->dim; }

/* Describes the result. The dimension must be full on each rank, because an element needs all elements before it. */
static ad_status cumulative_describe(ad_tape *tape, ad_tensor *out) {
  return ad_operation_describe_as(tape, out, "rc->rc", dim_of(out) ? "c" : "r");
}

/* step: distance between neighbouring elements along the dimension; size: number of elements along it; rows: number of
 * such runs of elements. */
typedef struct strides {
  size_t step, size, rows;
} strides;

static strides strides_of(const ad_tensor *out) {
  const ad_array *y = ad_tensor_array(out);
  size_t r = (size_t)y->local.dim[0], c = (size_t)y->local.dim[1];
  return dim_of(out) ? (strides){1, c, r} : (strides){c, r, c};
}

static size_t first_of(const ad_tensor *out, strides s, size_t row) { return dim_of(out) ? row * s.size : row; }

static ad_status cumulative_forward(ad_tape *tape, ad_tensor *out) {
  strides s = strides_of(out);
  for (size_t row = 0; row < s.rows; row++) {
    double sum = 0;
    for (size_t i = 0, at = first_of(out, s, row); i < s.size; i++, at += s.step) {
      sum += ad_array_get(ad_operand(out, 0), at);
      ad_array_set(ad_tensor_array(out), at, sum);
    }
  }
  return AD_OK;
}

static ad_status cumulative_backward(ad_tape *tape, ad_tensor *out, const ad_gradient_slot *slot) {
  strides s = strides_of(out);
  for (size_t row = 0; row < s.rows; row++) {
    double sum = 0;
    for (size_t i = s.size, at = first_of(out, s, row) + (s.size - 1) * s.step; i; i--, at -= s.step) {
      sum += ad_array_get(ad_result_grad(out), at);
      ad_slot_put(slot, at, sum);
    }
  }
  return AD_OK;
}

static const ad_operation cumulative = {.size = sizeof cumulative,
                                        .name = "cumulative",
                                        .linearity = AD_MULTILINEAR,
                                        .forward = cumulative_forward,
                                        .backward = cumulative_backward,
                                        .unread = 1,
                                        .own_size = sizeof(cumulative_numbers),
                                        .describe = cumulative_describe};

/* ---- above: the rows of x [n, width] whose first element is above that of the second operand [1] ---- */

/* Describes the result. Its number of rows is known only when forward runs; a plan assumes the most rows that are
 * possible, all rows of x. */
static ad_status above_describe(ad_tape *tape, ad_tensor *out) {
  const ad_array *x = ad_operand(out, 0);
  if (ad_operand_count(out) != 2 || x->shape.ndim != 2)
    return ad_fail(AD_INVALID, "%s: the first operand of `above` must have rows, and the second must be one threshold",
                   ad_tensor_site(out));
  ad_result_set(out, x->dtype, &x->shape, &x->layout);
  return AD_OK;
}

/* Returns the bytes that forward saves: for each row of x, the index of the same row in the result plus 1; 0 if it is
 * not there. */
static size_t above_saved(const ad_tensor *out) { return (size_t)ad_operand(out, 0)->local.dim[0] * sizeof(size_t); }

static ad_status above_forward(ad_tape *tape, ad_tensor *out) {
  const ad_array *x = ad_operand(out, 0);
  size_t *to = ad_operation_saved(out), count = 0, width = (size_t)x->local.dim[1];
  void *rows;
  for (size_t i = 0; i < (size_t)x->local.dim[0]; i++)
    to[i] = ad_array_get(x, i * width) > ad_array_get(ad_operand(out, 1), 0) ? ++count : 0;
  AD_TRY(ad_tape_take(tape, (count * width + 1) * ad_dtype_size(x->dtype), &rows));
  ad_shape shape = {2, {(int64_t)count, (int64_t)width}};
  ad_layout own = ad_layout_all(ad_tape_mesh(tape), AD_V);
  ad_result_set(out, x->dtype, &shape, &own);
  ad_result_set_data(out, rows);
  size_t bytes = width * ad_dtype_size(x->dtype);
  for (size_t i = 0; i < (size_t)x->local.dim[0]; i++)
    if (to[i]) memcpy((char *)rows + (to[i] - 1) * bytes, (const char *)x->data + i * bytes, bytes);
  return AD_OK;
}

/* A row of x that is in the result gets the gradient of that row; every other row gets zeros. */
static ad_status above_backward(ad_tape *tape, ad_tensor *out, const ad_gradient_slot *slot) {
  const ad_array *x = ad_operand(out, 0), *gradient = ad_result_grad(out);
  const size_t *to = ad_operation_saved(out);
  size_t width = (size_t)x->local.dim[1], bytes = width * ad_dtype_size(gradient->dtype);
  for (size_t i = 0; i < (size_t)x->local.dim[0]; i++) {
    if (to[i])
      ad_slot_put_all(slot, i * width, (const char *)gradient->data + (to[i] - 1) * bytes, gradient->dtype, width);
    for (size_t k = 0; !to[i] && k < width; k++) ad_slot_put(slot, i * width + k, 0);
  }
  return AD_OK;
}

static const ad_operation above = {.size = sizeof above,
                                   .name = "above",
                                   .linearity = AD_NONLINEAR,
                                   .forward = above_forward,
                                   .backward = above_backward,
                                   .fills = 1,
                                   .saved = above_saved,
                                   .makes_memory = 1,
                                   .describe = above_describe};

/* ---- trying both operations ---- */

static ad_status try_cumulative(void) {
  const ad_shape shape = {2, {4, 5}};
  for (int dim = 0; dim < 2; dim++) {
    const cumulative_numbers own = {dim};
    ad_operation_trial trial = {.size = sizeof trial, .shapes = &shape, .count = 1, .own = &own};
    AD_TRY(ad_check_operation(&cumulative, &trial));
  }
  puts("cumulative holds");
  return AD_OK;
}

static ad_status try_above(ad_comm *comm, ad_tape *t, const ad_mesh *mesh) {
  double numbers[] = {3, 1, -2, 5, 4, 7}, threshold[] = {0};
  ad_layout own = ad_layout_all(mesh, AD_V);
  ad_array x = ad_array_describe(comm, AD_F64, &(ad_shape){2, {3, 2}}, &own);
  ad_array least = ad_array_describe(comm, AD_F64, &(ad_shape){1, {1}}, &own);
  x.data = numbers;
  least.data = threshold;
  ad_tensor *leaf = ad_input(t, &x), *operands[] = {leaf, ad_constant(t, &least)};
  ad_tensor *rows = ad_operation_apply(t, &above, operands, 2, NULL);
  AD_TRY(ad_tape_status(t));
  ad_array gradient = *ad_tensor_array(rows);
  double slopes[] = {1, 2, 3, 4};
  gradient.data = slopes;
  AD_TRY(ad_backward_from(t, &rows, (const ad_array *[]){&gradient}, 1, AD_LAST_START));
  const double *found = ad_grad(leaf)->data, wanted[] = {1, 2, 0, 0, 3, 4};
  int same = ad_array_numel(ad_tensor_array(rows)) == 4;
  for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) same &= found[i] == wanted[i];
  if (!same) return ad_fail(AD_INVALID, "`above` computed other rows or gradients than expected");
  puts("above holds");
  return AD_OK;
}

int main(void) {
  ad_comm *comm;
  ad_tape *tape = NULL;
  ad_tape_options options = {.size = sizeof options, .dtype = AD_F64};
  if (ad_comm_open_alone(&comm)) return 1;
  ad_status status = ad_tape_create(comm, ad_comm_mesh(comm), &options, &tape);
  if (!status) status = try_cumulative();
  if (!status) status = try_above(comm, tape, ad_comm_mesh(comm));
  if (status) fprintf(stderr, "%s\n", ad_last_error());
  ad_tape_destroy(tape);
  ad_comm_close(comm);
  return status != AD_OK;
}
