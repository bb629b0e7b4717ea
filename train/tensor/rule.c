/* The rule of an operation: the letters of its dimensions. This file computes the shapes of full values; layout/
 * propagates types. */
#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "base/text.h"
#include "tensor/tape.h"

static const char dots[] = "...";

/* DIMS_TEXT: the longest text of dimensions that record.c accepts, of AD_OPERANDS_MAX terms and the result's, with
 * each "..." replaced by letters. */
enum { LETTERS = 128, DIMS_TEXT = AD_OPERANDS_MAX * (AD_DIMS_MAX + 1) + (AD_OPERANDS_MAX + 1) * (AD_DIMS_MAX - 3) + 1 };

static int count_letters(const char *term) {
  int count = 0;
  for (; *term && *term != ',' && *term != '-'; term++) count += isalpha((unsigned char)*term) != 0;
  return count;
}

static const char *next_term(const char *term) {
  const char *end = term + strcspn(term, ",-");
  return end + (*end == ',');
}

// Returns the number of dimensions that "..." means: those of the first operand whose term has "...", minus the letters
// of that term.
static int leading_dims(const char *dims, const ad_tensor *out) {
  const char *term = dims;
  for (int i = 0; i < out->operand_count; i++, term = next_term(term)) {
    if (!strncmp(term, dots, 3)) return out->operand[i]->array.shape.ndim - count_letters(term);
  }
  return 0;
}

// Chooses letters for the dimensions of "..." among those that `dims` does not use.
static void free_letters(const char *dims, int count, char *out) {
  char letter = 'a';
  for (int i = 0; i < count; i++, letter++) {
    while (strchr(dims, letter)) letter++;
    out[i] = letter;
  }
  out[count > 0 ? count : 0] = 0;
}

// Writes `dims` with the letters `leading` in place of every "...".
static void expand(const char *dims, const char *leading, char *out) {
  while (*dims) {
    if (strncmp(dims, dots, 3)) {
      *out++ = *dims++;
    } else {
      out = stpcpy(out, leading);
      dims += 3;
    }
  }
  *out = 0;
}

static ad_status wrong_ndim(const ad_tensor *out, int i, const char *term, const char *dims) {
  char shape[96];
  return ad_fail(
      AD_INVALID,
      "%s: operand %d of `%s` has shape %s, but must have %d dimension%s, the letters '%.*s' of the rule \"%s\"",
      out->site, i + 1, out->op->name, ad_shape_print(&out->operand[i]->array.shape, shape, sizeof shape),
      count_letters(term), ad_plural(count_letters(term)), (int)strcspn(term, ",-"), term, dims);
}

/* The size that each letter means. */
typedef struct binding {
  int64_t size[LETTERS];
  int operand[LETTERS];  // number of the operand, from 1, that gave the letter its size; 0: none yet
} binding;

/* Binds the letters of one operand to the sizes of its dimensions. A letter that is bound already must have the same
 * size. */
static ad_status bind_operand(const ad_tensor *out, int i, const char *term, binding *bound) {
  const ad_shape *shape = &out->operand[i]->array.shape;
  for (int d = 0; d < shape->ndim; d++) {
    unsigned char letter = (unsigned char)term[d];
    if (!bound->operand[letter]) {
      bound->operand[letter] = i + 1;
      bound->size[letter] = shape->dim[d];
    }
    if (bound->size[letter] == shape->dim[d]) continue;
    char text[96];
    return ad_fail(AD_INVALID,
                   "%s: dimension %d of operand %d (shape %s) of `%s` has size %" PRId64
                   ", but the corresponding dimension of operand %d has size %" PRId64
                   "; give operands whose sizes are equal there",
                   out->site, d, i + 1, ad_shape_print(shape, text, sizeof text), out->op->name, shape->dim[d],
                   bound->operand[letter], bound->size[letter]);
  }
  return AD_OK;
}

/* Computes the shape of the result; checks the operands' shapes. */
static ad_status shape_by_letters(const ad_tensor *out, const char *letters, const char *dims, ad_shape *shape) {
  binding bound;
  memset(&bound, 0, sizeof bound);
  const char *term = letters;
  for (int i = 0; i < out->operand_count; i++, term = next_term(term)) {
    if (count_letters(term) != out->operand[i]->array.shape.ndim) return wrong_ndim(out, i, term, dims);
    AD_TRY(bind_operand(out, i, term, &bound));
  }
  term = strchr(letters, '>') + 1;
  int ndim = count_letters(term);
  if (ndim > AD_DIMS_MAX)
    return ad_fail(AD_INVALID,
                   "%s: the result of `%s` would have %d dimensions, but at most %d are allowed; give operands with "
                   "fewer dimensions",
                   out->site, out->op->name, ndim, AD_DIMS_MAX);
  memset(shape, 0, sizeof *shape);
  shape->ndim = ndim;
  for (int d = 0; d < ndim; d++) shape->dim[d] = bound.size[(unsigned char)term[d]];
  return AD_OK;
}

/* Returns the dtype that operand i must have. */
static ad_dtype wanted_dtype(const ad_tape *tape, const ad_tensor *out, int i) {
  const ad_operation *op = out->op;
  ad_dtype is = out->operand[i]->array.dtype;
  if (op->indices >> i & 1) return AD_I32;
  if (op->wide >> i & 1) return ad_dtype_wide(tape->options.dtype);
  if (i == 0 || op->either >> i & 1) return ad_tape_has_dtype(tape, is) ? is : tape->options.dtype;
  return out->operand[0]->array.dtype;
}

/* Returns the widest floating dtype among the operands. */
static ad_dtype widest(const ad_tensor *out) {
  ad_dtype dtype = out->operand[0]->array.dtype;
  for (int i = 1; i < out->operand_count; i++) {
    ad_dtype other = out->operand[i]->array.dtype;
    if (ad_dtype_is_float(other) && ad_dtype_size(other) > ad_dtype_size(dtype)) dtype = other;
  }
  return dtype;
}

static ad_dtype result_of(const ad_tape *tape, const ad_tensor *out) {
  switch (out->op->result) {
    case AD_LIKE_TAPE:
      return tape->options.dtype;
    case AD_LIKE_WIDE:
      return ad_dtype_wide(tape->options.dtype);
    case AD_LIKE_WIDEST:
      return widest(out);
    default:
      return out->operand[0]->array.dtype;
  }
}

static ad_status check_dtypes(const ad_tape *tape, const ad_tensor *out) {
  for (int i = 0; i < out->operand_count; i++) {
    ad_dtype wanted = wanted_dtype(tape, out, i), is = out->operand[i]->array.dtype;
    if (is == wanted) continue;
    return ad_fail(AD_INVALID, "%s: operand %d of `%s` has dtype %s, but must have %s; convert the operand first",
                   out->site, i + 1, out->op->name, ad_dtype_name(is), ad_dtype_name(wanted));
  }
  return AD_OK;
}

/* Describes the result of operands with these layouts by the rule `dims` and `full`. */
static ad_status describe_by_rule(const ad_tape *tape, ad_tensor *out, const ad_layout *const *layouts,
                                  const char *dims, const char *full) {
  AD_TRY(check_dtypes(tape, out));
  char leading[AD_DIMS_MAX + 1], letters[DIMS_TEXT] = {0};
  free_letters(dims, leading_dims(dims, out), leading);
  expand(dims, leading, letters);
  ad_shape shape;
  AD_TRY(shape_by_letters(out, letters, dims, &shape));
  int constant[AD_OPERANDS_MAX];
  for (int i = 0; i < out->operand_count; i++) constant[i] = ad_is_constant(out->operand[i]);
  ad_rule rule = {
      .size = sizeof rule, .name = out->op->name, .dims = letters, .linearity = out->op->linearity, .full = full};
  ad_layout layout;
  AD_TRY(ad_layout_propagate_at(&rule, layouts, constant, (size_t)out->operand_count, &layout, out->site));
  out->array = ad_array_describe(tape->comm, result_of(tape, out), &shape, &layout);
  return AD_OK;
}

ad_status ad_operation_describe_by(const ad_tape *tape, ad_tensor *out, const ad_layout *const *layouts) {
  return describe_by_rule(tape, out, layouts, out->op->dims, out->op->full);
}

ad_status ad_operation_describe_as(const ad_tape *tape, ad_tensor *out, const char *dims, const char *full) {
  const ad_layout *layouts[AD_OPERANDS_MAX];
  for (int i = 0; i < out->operand_count; i++) layouts[i] = &out->operand[i]->array.layout;
  return describe_by_rule(tape, out, layouts, dims, full);
}

ad_status ad_operation_describe(const ad_tape *tape, ad_tensor *out) {
  return ad_operation_describe_as(tape, out, out->op->dims, out->op->full);
}

size_t ad_columns(const ad_tensor *tensor) {
  const ad_shape *local = &tensor->array.local;
  return (size_t)local->dim[local->ndim - 1];
}

size_t ad_rows_of(const ad_tensor *tensor) {
  size_t rows = 1;
  for (int d = 0; d < tensor->array.local.ndim - 1; d++) rows *= (size_t)tensor->array.local.dim[d];
  return rows;
}
