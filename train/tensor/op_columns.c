/* Concatenation of values along a dimension, and a slice of a value along it. The dimension must be full on each rank;
 * no rank then needs elements of other ranks. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "tensor/along.h"
#include "tensor/tape.h"

enum { LAST = -1 }; /* a value of `dim`: the last dimension, whatever the shape */

static int dim_of(const ad_array *x, int dim) { return dim == LAST ? x->shape.ndim - 1 : dim; }

/* Describes the value x with another size of dimension `dim`. */
static ad_array resized(const ad_tape *tape, const ad_array *x, int dim, int64_t size, const ad_layout *layout) {
  ad_shape shape = x->shape;
  shape.dim[dim] = size;
  return ad_array_describe(tape->comm, x->dtype, &shape, layout);
}

/* A stretch of each row: elements from `first` on. A row has `width` elements: those of the dimension and of all that
 * follow it. */
typedef struct stretch {
  size_t first, width;
  const void *data;
} stretch;

static size_t width_of(const ad_array *array, int dim) {
  along of = ad_along(array, dim);
  return of.size * of.after;
}

static void *stretch_row(ad_dtype dtype, stretch of, size_t i) {
  return (char *)(uintptr_t)of.data + (i * of.width + of.first) * ad_dtype_size(dtype);
}

/* Copies `count` elements of a stretch (a range of elements in each row) in every row or, with `adds`, adds them. */
static void put_stretch(ad_dtype dtype, stretch to, stretch from, size_t count, size_t rows, int adds) {
  for (size_t i = 0; count && i < rows; i++)
    ad_rows(dtype)->put(stretch_row(dtype, to, i), stretch_row(dtype, from, i), 1, count, adds);
}

/* ---- concat: values one after the other along a dimension ---- */

typedef struct concat_numbers {
  int dim; /* the dimension, or LAST */
} concat_numbers;

static int dim_of_parts(const ad_tensor *out) {
  return dim_of(&out->operand[0]->array, ((const concat_numbers *)out->own)->dim);
}

/* Returns 1 if two shapes are equal except for the size of this dimension. */
static int same_but_for(const ad_shape *a, const ad_shape *b, int dim) {
  ad_shape other = *b;
  if (a->ndim != b->ndim || dim < 0 || dim >= a->ndim) return 0;
  other.dim[dim] = a->dim[dim];
  return ad_shape_equal(a, &other);
}

static const char *print_dim(const ad_array *x, int dim, char *text, size_t size) {
  if (dim == x->shape.ndim - 1)
    snprintf(text, size, "the last dimension");
  else
    snprintf(text, size, "dimension %d", dim);
  return text;
}

static ad_status check_part(const ad_tensor *out, int i) {
  const ad_array *first = &out->operand[0]->array, *part = &out->operand[i]->array;
  char a[96], b[96], name[40];
  int dim = dim_of_parts(out);
  if (part->dtype != first->dtype)
    return ad_fail(AD_INVALID, "%s: operand %d of `concat` has dtype %s, but operand 1 has %s; convert one of the two",
                   out->site, i + 1, ad_dtype_name(part->dtype), ad_dtype_name(first->dtype));
  if (same_but_for(&first->shape, &part->shape, dim)) return AD_OK;
  return ad_fail(AD_INVALID,
                 "%s: operand %d of `concat` has shape %s, but operand 1 has %s; give operands whose shapes are equal "
                 "except in %s",
                 out->site, i + 1, ad_shape_print(&part->shape, b, sizeof b),
                 ad_shape_print(&first->shape, a, sizeof a), print_dim(first, dim, name, sizeof name));
}

/* Finds the layout of the result. Types propagate as for a sum: if one part is P, all parts must be P, because a part
 * that is not P would be counted once on each rank. */
static ad_status layout_of_parts(const ad_tensor *out, ad_layout *layout) {
  const ad_layout *layouts[AD_OPERANDS_MAX];
  int constant[AD_OPERANDS_MAX], ndim = out->operand[0]->array.shape.ndim;
  char dims[(AD_OPERANDS_MAX + 1) * (AD_DIMS_MAX + 1) + 2], *end = dims;
  for (int i = 0; i < out->operand_count; i++) {
    layouts[i] = &out->operand[i]->array.layout;
    constant[i] = ad_is_constant(out->operand[i]);
    end = ad_put_letters(end, ndim, -1);
    end += sprintf(end, "%s", i + 1 < out->operand_count ? "," : "->");
  }
  ad_put_letters(end, ndim, -1);
  const char full[] = {ad_letter_of(dim_of_parts(out)), 0};
  ad_rule rule = {.size = sizeof rule, .name = "concat", .dims = dims, .linearity = AD_ADDITIVE, .full = full};
  return ad_layout_propagate_at(&rule, layouts, constant, (size_t)out->operand_count, layout, out->site);
}

static ad_status concat_describe(ad_tape *tape, ad_tensor *out) {
  ad_layout layout;
  int64_t size = 0;
  int dim = dim_of_parts(out);
  if (out->operand[0]->array.shape.ndim) AD_TRY(ad_check_dim(out, 0, dim));
  for (int i = 0; i < out->operand_count; i++) AD_TRY(check_part(out, i));
  AD_TRY(layout_of_parts(out, &layout));
  for (int i = 0; i < out->operand_count; i++) size += out->operand[i]->array.shape.dim[dim];
  out->array = resized(tape, &out->operand[0]->array, dim, size, &layout);
  return AD_OK;
}

static ad_status concat_forward(ad_tape *tape, ad_tensor *out) {
  int dim = dim_of_parts(out);
  stretch to = {0, width_of(&out->array, dim), out->array.data};
  for (int i = 0; i < out->operand_count; i++) {
    const ad_array *part = &out->operand[i]->array;
    size_t width = width_of(part, dim);
    put_stretch(out->array.dtype, to, (stretch){0, width, part->data}, width, ad_along(part, dim).before, 0);
    to.first += width;
  }
  return AD_OK;
}

static ad_status concat_backward(ad_tape *tape, ad_tensor *out, const ad_gradient_slot *slot) {
  int dim = dim_of_parts(out);
  size_t rows = ad_along(&out->array, dim).before;
  stretch from = {0, width_of(&out->array, dim), out->grad.data};
  for (int i = 0; i < out->operand_count; i++) {
    size_t width = width_of(&out->operand[i]->array, dim);
    if (slot[i].data) put_stretch(out->array.dtype, (stretch){0, width, slot[i].data}, from, width, rows, slot[i].adds);
    from.first += width;
  }
  return AD_OK;
}

static const ad_operation concat = {.name = "concat",
                                    .unread = UINT64_MAX,
                                    .dtypes = AD_IN_ANY_FLOAT,
                                    .own_size = sizeof(concat_numbers),
                                    .describe = concat_describe,
                                    .forward = concat_forward,
                                    .backward = concat_backward};

/* Concatenates more values than an operation can have operands: first the values of each group, then the groups. */
static ad_tensor *concat_groups(ad_tape *tape, ad_tensor *const *parts, size_t n, int dim, const char *site) {
  ad_tensor *groups[AD_OPERANDS_MAX];
  size_t count = 0;
  for (size_t first = 0; first < n; first += AD_OPERANDS_MAX) {
    size_t some = n - first < AD_OPERANDS_MAX ? n - first : AD_OPERANDS_MAX;
    groups[count++] = ad_concat_at(tape, parts + first, some, dim, site);
  }
  return ad_concat_at(tape, groups, count, dim, site);
}

ad_tensor *ad_concat_at(ad_tape *tape, ad_tensor *const *parts, size_t n, int dim, const char *site) {
  enum { PARTS_MAX = AD_OPERANDS_MAX * AD_OPERANDS_MAX };
  if (!site) site = AD_NO_SITE;
  if (!tape) return ad_tape_missing(site, concat.name);
  if (!parts || !n || n > PARTS_MAX)
    return ad_tape_fail(
        tape, ad_fail(AD_INVALID, "%s: `concat` got %zu operands, but takes 1 to %d; give fewer, or at least one", site,
                      parts ? n : 0, PARTS_MAX));
  if (n > AD_OPERANDS_MAX) return concat_groups(tape, parts, n, dim, site);
  return ad_tape_apply(tape, &concat, parts, (int)n, &(concat_numbers){dim}, site);
}

/* ---- slice: a stretch of a value along a dimension ---- */

typedef struct slice_numbers {
  int64_t first, count;
  int dim; /* the dimension, or LAST */
} slice_numbers;

static const slice_numbers *slice_of(const ad_tensor *out) { return out->own; }
static int dim_of_slice(const ad_tensor *out) { return dim_of(&out->operand[0]->array, slice_of(out)->dim); }

static ad_status check_stretch(const ad_tensor *out, int dim, int64_t size) {
  const slice_numbers *own = slice_of(out);
  char name[40];
  if (own->first >= 0 && own->count >= 0 && own->first <= size && own->count <= size - own->first) return AD_OK;
  if (own->dim == LAST)
    return ad_fail(AD_INVALID,
                   "%s: `slice` was asked for %" PRId64 " columns from column %" PRId64
                   " on, but the operand has only %" PRId64 " columns; give a range inside these",
                   out->site, own->count, own->first, size);
  return ad_fail(AD_INVALID,
                 "%s: `slice` was asked for %" PRId64 " elements from element %" PRId64
                 " on of %s, which has only %" PRId64 " elements; give a range inside these",
                 out->site, own->count, own->first, print_dim(&out->operand[0]->array, dim, name, sizeof name), size);
}

static ad_status slice_describe(ad_tape *tape, ad_tensor *out) {
  int dim = dim_of_slice(out), ndim = out->operand[0]->array.shape.ndim;
  char dims[2 * AD_DIMS_MAX + 3];
  AD_TRY(ad_check_dim(out, 0, dim));
  char *end = ad_put_letters(dims, ndim, -1);
  ad_put_letters(end + 2, ndim, -1);
  memcpy(end, "->", 2);
  AD_TRY(ad_operation_describe_as(tape, out, dims, (const char[]){ad_letter_of(dim), 0}));
  AD_TRY(check_stretch(out, dim, out->array.shape.dim[dim]));
  ad_layout layout = out->array.layout;
  out->array = resized(tape, &out->operand[0]->array, dim, slice_of(out)->count, &layout);
  return AD_OK;
}

/* Returns the stretch (a range of elements in each row) of the operand that the slice takes. */
static stretch sliced(const ad_tensor *out, const void *data) {
  along of = ad_along(&out->operand[0]->array, dim_of_slice(out));
  return (stretch){(size_t)slice_of(out)->first * of.after, of.size * of.after, data};
}

static ad_status slice_forward(ad_tape *tape, ad_tensor *out) {
  int dim = dim_of_slice(out);
  size_t width = width_of(&out->array, dim);
  put_stretch(out->array.dtype, (stretch){0, width, out->array.data}, sliced(out, out->operand[0]->array.data), width,
              ad_along(&out->array, dim).before, 0);
  return AD_OK;
}

/* Computes the gradient of x: elements outside the slice get exactly zero. */
static ad_status slice_backward(ad_tape *tape, ad_tensor *out, const ad_gradient_slot *slot) {
  int dim = dim_of_slice(out);
  size_t width = width_of(&out->array, dim);
  if (!slot[0].adds) memset(slot[0].data, 0, ad_array_bytes(&out->operand[0]->array));
  put_stretch(out->array.dtype, sliced(out, slot[0].data), (stretch){0, width, out->grad.data}, width,
              ad_along(&out->array, dim).before, 1);
  return AD_OK;
}

static const ad_operation slice = {.name = "slice",
                                   .linearity = AD_MULTILINEAR,
                                   .unread = 1,
                                   .dtypes = AD_IN_ANY_FLOAT,
                                   .own_size = sizeof(slice_numbers),
                                   .describe = slice_describe,
                                   .forward = slice_forward,
                                   .backward = slice_backward};

ad_tensor *ad_slice_at(ad_tape *tape, ad_tensor *x, int dim, int64_t first, int64_t count, const char *site) {
  return ad_tape_apply(tape, &slice, &x, 1, &(slice_numbers){first, count, dim}, site);
}
