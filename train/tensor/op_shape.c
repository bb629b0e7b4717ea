/* The same elements in another shape: two dimensions swapped, or other sizes. */
#include <inttypes.h>
#include <string.h>
#include "layout/nest.h"
#include "layout/sentences.h"
#include "layout/type.h"
#include "tensor/along.h"
#include "tensor/tape.h"
#include "mesh/mesh.h"

/* ---- operation transpose: swaps two dimensions ---- */

typedef struct transpose_numbers {
  int a, b; /* a <= b */
} transpose_numbers;

static const transpose_numbers *swapped(const ad_tensor *out) { return out->own; }

static ad_status transpose_describe(ad_tape *tape, ad_tensor *out) {
  int a = swapped(out)->a, b = swapped(out)->b, ndim = out->operand[0]->array.shape.ndim;
  char dims[2 * AD_DIMS_MAX + 3];
  AD_TRY(ad_check_dim(out, 0, a));
  AD_TRY(ad_check_dim(out, 0, b));
  char *end = ad_put_letters(dims, ndim, -1), *result = end + 2;
  ad_put_letters(result, ndim, -1);
  memcpy(end, "->", 2);
  result[a] = ad_letter_of(b);
  result[b] = ad_letter_of(a);
  return ad_operation_describe_as(tape, out, dims, NULL);
}

/* A value as [before, a, between, b, after]; the dimensions a and b are swapped. */
typedef struct swap {
  size_t before, a, between, b, after;
} swap;

static swap swap_of(const ad_array *array, int a, int b) {
  along of_a = ad_along(array, a), of_b = ad_along(array, b);
  size_t size = of_b.size * of_b.after;
  if (a == b) return (swap){of_a.before, of_a.size, 1, 1, of_a.after};
  return (swap){of_a.before, of_a.size, size ? of_a.after / size : 0, of_b.size, of_b.after};
}

/* Calls `put` for each run of elements that stay together, with the run's offset before and after the swap. */
static void for_each_run(swap s, void (*put)(void *context, size_t here, size_t there), void *context) {
  for (size_t before = 0; before < s.before; before++)
    for (size_t a = 0; a < s.a; a++)
      for (size_t between = 0; between < s.between; between++)
        for (size_t b = 0; b < s.b; b++)
          put(context, (((before * s.a + a) * s.between + between) * s.b + b) * s.after,
              (((before * s.b + b) * s.between + between) * s.a + a) * s.after);
}

/* The context of the function `put` that for_each_run calls. */
typedef struct transposing {
  ad_tensor *out;
  const ad_gradient_slot *slot;
  size_t count; /* number of elements of a run */
} transposing;

static void put_value(void *context, size_t here, size_t there) {
  const transposing *of = context;
  const ad_array *x = &of->out->operand[0]->array;
  memcpy(ad_at(of->out, of->out->array.data, there), ad_at(of->out, x->data, here),
         of->count * ad_dtype_size(x->dtype));
}

static void put_gradient(void *context, size_t here, size_t there) {
  const transposing *of = context;
  const ad_array *grad = &of->out->grad;
  ad_slot_put_all(of->slot, here, (const char *)grad->data + there * ad_dtype_size(grad->dtype), grad->dtype,
                  of->count);
}

static ad_status transpose_forward(ad_tape *tape, ad_tensor *out) {
  swap s = swap_of(&out->operand[0]->array, swapped(out)->a, swapped(out)->b);
  for_each_run(s, put_value, &(transposing){out, NULL, s.after});
  return AD_OK;
}

static ad_status transpose_backward(ad_tape *tape, ad_tensor *out, const ad_gradient_slot *slot) {
  swap s = swap_of(&out->operand[0]->array, swapped(out)->a, swapped(out)->b);
  for_each_run(s, put_gradient, &(transposing){out, slot, s.after});
  return AD_OK;
}

static const ad_operation transpose = {.name = "transpose",
                                       .linearity = AD_MULTILINEAR,
                                       .unread = 1,
                                       .dtypes = AD_IN_ANY_FLOAT,
                                       .passes_on = 1,
                                       .own_size = sizeof(transpose_numbers),
                                       .describe = transpose_describe,
                                       .forward = transpose_forward,
                                       .backward = transpose_backward};

ad_tensor *ad_transpose_at(ad_tape *tape, ad_tensor *x, int dim, int other_dim, const char *site) {
  int a = dim < other_dim ? dim : other_dim, b = dim < other_dim ? other_dim : dim;
  return ad_tape_apply(tape, &transpose, &x, 1, &(transpose_numbers){a, b}, site);
}

/* ---- operation reshape: the same elements with other sizes of dimensions ---- */

typedef struct reshape_numbers {
  ad_shape shape;
} reshape_numbers;

static const ad_shape *wanted_of(const ad_tensor *out) { return &((const reshape_numbers *)out->own)->shape; }

static int64_t product(const ad_shape *shape, int first, int end) {
  int64_t all = 1;
  for (int d = first; d < end; d++) all *= shape->dim[d];
  return all;
}

/* Returns the dimension of shape `to` with as many elements before it as dimension `dim` of `from`, so that both
 * dimensions begin at the same element; -1 if there is none. Dimensions of size 1 are skipped. */
static int dim_that_takes(const ad_shape *from, int dim, const ad_shape *to) {
  int64_t before = product(from, 0, dim);
  for (int d = 0; d < to->ndim; d++)
    if (product(to, 0, d) == before && (to->dim[d] != 1 || from->dim[dim] == 1)) return d;
  return -1;
}

/* Returns 1 if both dimensions, sharded into `parts` parts (chunks, if zigzag), are divided at the same elements. */
static int sharded_identically(const ad_shape *from, int dim, const ad_shape *to, int to_dim, int64_t parts) {
  int64_t n = from->dim[dim], m = to->dim[to_dim];
  int64_t of_n = product(from, dim + 1, from->ndim), of_m = product(to, to_dim + 1, to->ndim);
  if (n == m) return 1;  // equally many elements then belong to one index of either dimension
  if (n % parts == 0 && m % parts == 0) return n / parts * of_n == m / parts * of_m;
  return 0;
}

static ad_status no_such_sharding(const ad_tensor *out, ad_axis axis, const char *why) {
  const ad_array *x = &out->operand[0]->array;
  char type[16], from[96], to[96];
  ad_type is = x->layout.type[axis];
  return ad_fail(
      AD_TYPE,
      "%s: operand 1 of `reshape`, of shape %s, is %s on `%s`, but in shape %s %s. A sharded dimension must begin "
      "where a dimension of the result begins, and both must be sharded at the same elements" AD_MAY_REPAIR
      "all_gather %s->I",
      out->site, ad_shape_print(&x->shape, from, sizeof from), ad_type_print(is, type, sizeof type), ad_axis_name(axis),
      ad_shape_print(wanted_of(out), to, sizeof to), why, type);
}

/* Returns the number of parts (chunks, if the sharding is zigzag) into which all axes together shard a dimension. */
static int64_t parts_of(const ad_layout *layout, int dim) {
  int64_t parts = ad_mesh_ranks_over(layout->mesh, ad_layout_axes_sharding(layout, dim));
  for (int axis = 0; axis < AD_AXIS_COUNT; axis++)
    if (ad_type_dim(layout->type[axis]) == dim && ad_type_is_zigzag(layout->type[axis])) parts *= 2;
  return parts;
}

/* Moves the sharding along one axis to the matching dimension of the result. */
static ad_status move_sharding(const ad_tensor *out, ad_axis axis, ad_layout *layout) {
  const ad_array *x = &out->operand[0]->array;
  int dim = ad_type_dim(x->layout.type[axis]);
  if (dim < 0) return AD_OK;
  int to = dim_that_takes(&x->shape, dim, wanted_of(out));
  if (to < 0) return no_such_sharding(out, axis, "no dimension begins where the sharded one does");
  if (!sharded_identically(&x->shape, dim, wanted_of(out), to, parts_of(&x->layout, dim)))
    return no_such_sharding(out, axis, "the parts of the ranks would be other elements");
  layout->type[axis] = ad_type_sharded_like(x->layout.type[axis], to);
  return AD_OK;
}

static ad_status move_shardings_of(const ad_tensor *out, ad_axes axes, ad_layout *layout) {
  for (int axis = 0; axis < AD_AXIS_COUNT; axis++)
    if (axes & AD_AXES(axis)) AD_TRY(move_sharding(out, (ad_axis)axis, layout));
  return AD_OK;
}

/* Moves all shardings. Axes of more than one rank come first, so that an error message names such an axis if it can. */
static ad_status move_shardings(const ad_tensor *out, ad_layout *layout) {
  ad_axes large = ad_mesh_large(layout->mesh);
  AD_TRY(move_shardings_of(out, large, layout));
  return move_shardings_of(out, ~large, layout);
}

static ad_status check_numel(const ad_tensor *out) {
  const ad_shape *from = &out->operand[0]->array.shape, *to = wanted_of(out);
  char a[96], b[96];
  int is_shape = to->ndim >= 0 && to->ndim <= AD_DIMS_MAX;
  for (int d = 0; is_shape && d < to->ndim; d++) is_shape = to->dim[d] >= 0;
  if (!is_shape)
    return ad_fail(AD_INVALID,
                   "%s: the new shape of `reshape` must have 0 to %d dimensions, and no dimension may be negative",
                   out->site, AD_DIMS_MAX);
  if (ad_shape_numel(from) == ad_shape_numel(to)) return AD_OK;
  return ad_fail(AD_INVALID,
                 "%s: `reshape` got an operand of shape %s with %" PRId64 " elements and the new shape %s with %" PRId64
                 "; give a shape with the same number",
                 out->site, ad_shape_print(from, a, sizeof a), ad_shape_numel(from), ad_shape_print(to, b, sizeof b),
                 ad_shape_numel(to));
}

static ad_status reshape_describe(ad_tape *tape, ad_tensor *out) {
  const ad_array *x = &out->operand[0]->array;
  AD_TRY(check_numel(out));
  ad_layout layout = x->layout;
  AD_TRY(move_shardings(out, &layout));
  out->array = ad_array_describe(tape->comm, x->dtype, wanted_of(out), &layout);
  return AD_OK;
}

static int shares(const ad_tensor *out) { return 1; }

static ad_status reshape_forward(ad_tape *tape, ad_tensor *out) {
  const void *from = out->operand[0]->array.data;
  if (out->array.data != from && ad_numel(out)) memcpy(out->array.data, from, ad_array_bytes(&out->array));
  return AD_OK;
}

static ad_status reshape_backward(ad_tape *tape, ad_tensor *out, const ad_gradient_slot *slot) {
  if (slot[0].data != out->grad.data) ad_slot_put_all(slot, 0, out->grad.data, out->grad.dtype, ad_numel(out));
  return AD_OK;
}

static const ad_operation reshape = {.name = "reshape",
                                     .unread = 1,
                                     .dtypes = AD_IN_ANY_FLOAT,
                                     .passes_on = 1,
                                     .own_size = sizeof(reshape_numbers),
                                     .passes_gradient_on = 1,
                                     .describe = reshape_describe,
                                     .shares = shares,
                                     .forward = reshape_forward,
                                     .backward = reshape_backward};

ad_tensor *ad_reshape_at(ad_tape *tape, ad_tensor *x, const ad_shape *shape, const char *site) {
  if (!site) site = AD_NO_SITE;
  if (!tape) return ad_tape_missing(site, reshape.name);
  if (!shape) return ad_tape_fail(tape, ad_fail(AD_INVALID, "%s: the shape of `reshape` is NULL; give a shape", site));
  return ad_tape_apply(tape, &reshape, &x, 1, &(reshape_numbers){*shape}, site);
}
