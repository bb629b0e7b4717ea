/* Fused matrices: where each is in a [rows, cols], whose number of rows or columns is that of the full parameter. */
#include "optim/pieces.h"

#include <string.h>
#include "base/error.h"

/* ---- checks ---- */

static int64_t sum_of_pieces(const ad_param_matrices *matrices) {
  int64_t sum = 0;
  for (int i = 0; i < matrices->count; i++) sum += matrices->piece[i];
  return sum;
}

static ad_status check_fused(const ad_optimizer_record *record, size_t index, const char *name, const ad_shape *shape,
                             const ad_param_matrices *matrices) {
  const char *what = matrices->along ? "columns" : "rows";
  if ((matrices->along != 0 && matrices->along != 1) || matrices->count < 1 || matrices->count > AD_FUSED_MAX ||
      matrices->repeats < 1)
    return ad_fail(
        AD_INVALID,
        "%s: parameter %zu (`%s`) has fused matrices with along %d, count %d and repeats %lld; set `along` to "
        "0 or 1, `count` to 1 to %d and `repeats` to at least 1",
        record->name, index, name, matrices->along, matrices->count, (long long)matrices->repeats, AD_FUSED_MAX);
  for (int i = 0; i < matrices->count; i++)
    if (matrices->piece[i] < 1)
      return ad_fail(AD_INVALID, "%s: parameter %zu (`%s`) has a fused matrix of %lld %s; set `piece` to at least 1",
                     record->name, index, name, (long long)matrices->piece[i], what);
  int64_t size = shape->dim[shape->ndim - 2 + matrices->along], sum = matrices->repeats * sum_of_pieces(matrices);
  if (sum == size) return AD_OK;
  return ad_fail(AD_INVALID,
                 "%s: parameter %zu (`%s`) has %lld %s, but the pieces of its fused matrices add up to %lld %s; set "
                 "`piece` and `repeats` to those of the full parameter",
                 record->name, index, name, (long long)size, what, (long long)sum, what);
}

ad_status ad_matrices_check(const ad_optimizer_record *record, size_t index, const char *name, const ad_shape *shape,
                            const ad_param_matrices *matrices) {
  if (shape->ndim != 2 && shape->ndim != 3)
    return ad_fail(
        AD_INVALID,
        "%s: parameter %zu (`%s`) has %d dimension%s, but %s updates matrices, which are the last two of 2 or "
        "3 dimensions; put the parameter into a group with another `kind`",
        record->name, index, name, shape->ndim, shape->ndim == 1 ? "" : "s", record->name);
  if (matrices->form == AD_MATRIX_NONE)
    return ad_fail(AD_INVALID,
                   "%s: parameter %zu (`%s`) is a table of rows that are looked up, but %s updates matrices of hidden "
                   "layers; put the parameter into a group with another `kind`",
                   record->name, index, name, record->name);
  return matrices->form == AD_MATRIX_FUSED ? check_fused(record, index, name, shape, matrices) : AD_OK;
}

/* ---- where a piece is ---- */

int ad_piece_count(const ad_param_matrices *matrices) {
  return matrices->form == AD_MATRIX_FUSED ? matrices->count : 1;
}

ad_matrix_piece ad_piece_at(const ad_param_matrices *matrices, int64_t rows, int64_t cols, int number) {
  if (matrices->form == AD_MATRIX_FUSED)
    *(matrices->along ? &cols : &rows) = matrices->repeats * matrices->piece[number];
  return (ad_matrix_piece){rows, cols, matrices->out_first ? cols : rows, matrices->out_first ? rows : cols};
}

/* The first row or column of a piece, in the first repetition. */
static int64_t start_of(const ad_param_matrices *matrices, int number) {
  int64_t start = 0;
  for (int i = 0; i < number; i++) start += matrices->piece[i];
  return start;
}

static char *element_at(const ad_whole_matrix *full, int64_t row, int64_t col) {
  return (char *)full->data + (size_t)(row * full->stride + col) * ad_dtype_size(full->dtype);
}

int ad_piece_view(const ad_param_matrices *matrices, const ad_whole_matrix *full, int number, ad_whole_matrix *view) {
  *view = *full;
  if (matrices->form != AD_MATRIX_FUSED) return 1;
  if (matrices->repeats > 1) return 0;
  ad_matrix_piece piece = ad_piece_at(matrices, full->rows, full->cols, number);
  int64_t start = start_of(matrices, number);
  view->rows = piece.rows;
  view->cols = piece.cols;
  if (full->data) view->data = matrices->along ? element_at(full, 0, start) : element_at(full, start, 0);
  return 1;
}

static void copy_run(char *in_full, char *in_piece, size_t bytes, int back) {
  if (back)
    memcpy(in_full, in_piece, bytes);
  else
    memcpy(in_piece, in_full, bytes);
}

void ad_piece_copy(const ad_param_matrices *matrices, const ad_whole_matrix *full, int number, void *data, int back) {
  int64_t size = matrices->piece[number], start = start_of(matrices, number), period = sum_of_pieces(matrices);
  size_t element = ad_dtype_size(full->dtype);
  char *piece = data;
  if (!matrices->along) {
    for (int64_t r = 0; r < matrices->repeats; r++)
      for (int64_t i = 0; i < size; i++, piece += (size_t)full->cols * element)
        copy_run(element_at(full, r * period + start + i, 0), piece, (size_t)full->cols * element, back);
    return;
  }
  for (int64_t i = 0; i < full->rows; i++)
    for (int64_t r = 0; r < matrices->repeats; r++, piece += (size_t)size * element)
      copy_run(element_at(full, i, r * period + start), piece, (size_t)size * element, back);
}
