/* Columns of the last dimension: values side by side, and some columns of one. No rank's columns are another's: the
 * last dimension is whole. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "tensor/tape.h"

static int last_dim(const ad_tensor *tensor) { return tensor->array.shape.ndim - 1; }

/* The value with another number of columns. */
static ad_array with_columns(const ad_tape *tape, const ad_array *x, int64_t columns, const ad_layout *layout) {
  ad_shape shape = x->shape;
  shape.dim[shape.ndim - 1] = columns;
  return ad_array_describe(tape->comm, x->dtype, &shape, layout);
}

/* Columns of a matrix: of rows that are so wide, those from `first` on. */
typedef struct columns {
  size_t first, width;
  const void *data;
} columns;

static void *row_of(ad_dtype dtype, columns of, size_t i) {
  return (char *)(uintptr_t)of.data + (i * of.width + of.first) * ad_dtype_size(dtype);
}

static void put_columns(ad_dtype dtype, columns to, columns from, size_t count, size_t rows, int adds) {
  for (size_t i = 0; count && i < rows; i++)
    ad_rows(dtype)->put(row_of(dtype, to, i), row_of(dtype, from, i), 1, count, adds);
}

/* ---- concat ---- */

static ad_status check_part(const ad_tensor *out, int i) {
  const ad_tensor *first = out->operand[0], *part = out->operand[i];
  char a[96], b[96];
  int last = last_dim(first);
  if (part->array.dtype != first->array.dtype)
    return ad_fail(AD_INVALID, "%s: concat: operand %d is %s, but must be %s", out->site, i + 1,
                   ad_dtype_name(part->array.dtype), ad_dtype_name(first->array.dtype));
  size_t leading = last < 0 ? 0 : (size_t)last * sizeof(int64_t);
  if (last >= 0 && last_dim(part) == last && !memcmp(part->array.shape.dim, first->array.shape.dim, leading))
    return AD_OK;
  return ad_fail(AD_INVALID,
                 "%s: concat: operand %d has shape %s, operand 1 %s; they must be equal but for the last dimension",
                 out->site, i + 1, ad_shape_print(&part->array.shape, b, sizeof b),
                 ad_shape_print(&first->array.shape, a, sizeof a));
}

/* Types as of a sum: a part that is P beside one that is not would leave the latter once on each rank. */
static ad_status layout_of_parts(const ad_tensor *out, ad_layout *layout) {
  static const char letters[] = "abcdef";
  const ad_layout *layouts[AD_OPERANDS_MAX];
  int constant[AD_OPERANDS_MAX], ndim = out->operand[0]->array.shape.ndim;
  char dims[(AD_OPERANDS_MAX + 1) * (AD_DIMS_MAX + 1) + 2], *end = dims;
  for (int i = 0; i < out->operand_count; i++) {
    layouts[i] = &out->operand[i]->array.layout;
    constant[i] = !out->operand[i]->carries;
    end += sprintf(end, "%.*s%s", ndim, letters, i + 1 < out->operand_count ? "," : "->");
  }
  sprintf(end, "%.*s", ndim, letters);
  ad_rule rule = {
      .size = sizeof rule, .name = "concat", .dims = dims, .linearity = AD_ADDITIVE, .whole = letters + ndim - 1};
  return ad_layout_propagate_at(&rule, layouts, constant, (size_t)out->operand_count, layout, out->site);
}

static ad_status concat_describe(ad_tape *tape, ad_tensor *out) {
  ad_layout layout;
  int64_t width = 0;
  for (int i = 0; i < out->operand_count; i++) AD_TRY(check_part(out, i));
  AD_TRY(layout_of_parts(out, &layout));
  for (int i = 0; i < out->operand_count; i++) width += out->operand[i]->array.shape.dim[last_dim(out->operand[i])];
  out->array = with_columns(tape, &out->operand[0]->array, width, &layout);
  return AD_OK;
}

static ad_status concat_forward(ad_tape *tape, ad_tensor *out) {
  columns to = {0, ad_columns(out), out->array.data};
  for (int i = 0; i < out->operand_count; i++) {
    size_t width = ad_columns(out->operand[i]);
    put_columns(out->array.dtype, to, (columns){0, width, out->operand[i]->array.data}, width, ad_rows_of(out), 0);
    to.first += width;
  }
  return AD_OK;
}

static ad_status concat_backward(ad_tape *tape, ad_tensor *out, const ad_gradient_slot *slot) {
  columns from = {0, ad_columns(out), out->grad.data};
  for (int i = 0; i < out->operand_count; i++) {
    size_t width = ad_columns(out->operand[i]);
    if (slot[i].data)
      put_columns(out->array.dtype, (columns){0, width, slot[i].data}, from, width, ad_rows_of(out), slot[i].adds);
    from.first += width;
  }
  return AD_OK;
}

static const ad_operation concat = {.name = "concat",
                                    .unread = UINT64_MAX,
                                    .dtypes = AD_IN_ANY_FLOAT,
                                    .describe = concat_describe,
                                    .forward = concat_forward,
                                    .backward = concat_backward};

/* More than one operation takes: groups of them, then those. */
static ad_tensor *concat_groups(ad_tape *tape, ad_tensor *const *parts, size_t n, const char *site) {
  ad_tensor *groups[AD_OPERANDS_MAX];
  size_t count = 0;
  for (size_t first = 0; first < n; first += AD_OPERANDS_MAX) {
    size_t some = n - first < AD_OPERANDS_MAX ? n - first : AD_OPERANDS_MAX;
    groups[count++] = ad_concat_at(tape, parts + first, some, site);
  }
  return ad_concat_at(tape, groups, count, site);
}

ad_tensor *ad_concat_at(ad_tape *tape, ad_tensor *const *parts, size_t n, const char *site) {
  enum { PARTS_MAX = AD_OPERANDS_MAX * AD_OPERANDS_MAX };
  if (!site) site = AD_NO_SITE;
  if (!tape) return ad_tape_missing(site, concat.name);
  if (!parts || !n || n > PARTS_MAX)
    return ad_tape_fail(tape, ad_fail(AD_INVALID, "%s: concat: of %zu values; 1 to %d can stand side by side", site,
                                      parts ? n : 0, PARTS_MAX));
  if (n > AD_OPERANDS_MAX) return concat_groups(tape, parts, n, site);
  return ad_tape_apply(tape, &concat, parts, (int)n, NULL, site);
}

/* ---- slice ---- */

typedef struct slice_numbers {
  int64_t first, count;
} slice_numbers;

static const slice_numbers *slice_of(const ad_tensor *out) { return out->own; }

static ad_status slice_describe(ad_tape *tape, ad_tensor *out) {
  const slice_numbers *own = slice_of(out);
  AD_TRY(ad_operation_describe(tape, out));
  int64_t width = out->array.shape.dim[last_dim(out)];
  if (own->first < 0 || own->count < 0 || own->first > width || own->count > width - own->first)
    return ad_fail(AD_INVALID, "%s: slice: %" PRId64 " columns from %" PRId64 " on, but there are %" PRId64, out->site,
                   own->count, own->first, width);
  ad_layout layout = out->array.layout;
  out->array = with_columns(tape, &out->operand[0]->array, own->count, &layout);
  return AD_OK;
}

static columns sliced(const ad_tensor *out, const void *data) {
  return (columns){(size_t)slice_of(out)->first, ad_columns(out->operand[0]), data};
}

static ad_status slice_forward(ad_tape *tape, ad_tensor *out) {
  size_t width = ad_columns(out);
  put_columns(out->array.dtype, (columns){0, width, out->array.data}, sliced(out, out->operand[0]->array.data), width,
              ad_rows_of(out), 0);
  return AD_OK;
}

/* The columns that were not taken have a gradient of exactly zero. */
static ad_status slice_backward(ad_tape *tape, ad_tensor *out, const ad_gradient_slot *slot) {
  size_t width = ad_columns(out);
  if (!slot[0].adds) memset(slot[0].data, 0, ad_array_bytes(&out->operand[0]->array));
  put_columns(out->array.dtype, sliced(out, slot[0].data), (columns){0, width, out->grad.data}, width, ad_rows_of(out),
              1);
  return AD_OK;
}

static const ad_operation slice = {.name = "slice",
                                   .dims = "...n->...n",
                                   .linearity = AD_MULTILINEAR,
                                   .whole = "n",
                                   .unread = 1,
                                   .dtypes = AD_IN_ANY_FLOAT,
                                   .own_size = sizeof(slice_numbers),
                                   .describe = slice_describe,
                                   .forward = slice_forward,
                                   .backward = slice_backward};

ad_tensor *ad_slice_at(ad_tape *tape, ad_tensor *x, int64_t first, int64_t count, const char *site) {
  return ad_tape_apply(tape, &slice, &x, 1, &(slice_numbers){first, count}, site);
}
