/* Tests where fused matrices are in a [rows, cols], and which descriptions of matrices are refused. Tests pieces.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>
#include "optim/pieces.h"
#include "says.h"

static const ad_optimizer_record record = {.name = "Muon"};

/* Checks that piece `number` of a matrix whose element (i, j) is 100 i + j has the element (rows[i], cols[j]) at (i, j),
 * and that it goes back to where it was. */
static void piece_is(const ad_param_matrices *matrices, int64_t rows, int64_t cols, int number, int64_t piece_rows,
                     const int *row_of, int64_t piece_cols, const int *col_of) {
  enum { STRIDE = 14 };
  double values[12 * STRIDE], before[12 * STRIDE], piece[12 * 12 + 1];
  for (int i = 0; i < 12 * STRIDE; i++) values[i] = before[i] = 100.0 * (i / STRIDE) + i % STRIDE;
  ad_whole_matrix full = {values, AD_F64, rows, cols, STRIDE}, view;
  ad_matrix_piece sizes = ad_piece_at(matrices, rows, cols, number);
  assert_true(sizes.rows == piece_rows && sizes.cols == piece_cols);
  assert_true(sizes.in == (matrices->out_first ? piece_cols : piece_rows));
  assert_true(sizes.out == (matrices->out_first ? piece_rows : piece_cols));
  int is_view = ad_piece_view(matrices, &full, number, &view);
  assert_int_equal(is_view, matrices->form != AD_MATRIX_FUSED || matrices->repeats == 1);
  piece[piece_rows * piece_cols] = -5;
  if (!is_view) ad_piece_copy(matrices, &full, number, piece, 0);
  for (int64_t i = 0; i < piece_rows; i++)
    for (int64_t j = 0; j < piece_cols; j++) {
      double *element = is_view ? (double *)view.data + i * view.stride + j : &piece[i * piece_cols + j];
      assert_true(*element == 100.0 * row_of[i] + col_of[j]);
      *element = -1 - *element;
      before[row_of[i] * STRIDE + col_of[j]] = *element;
    }
  if (is_view) assert_true(view.rows == piece_rows && view.cols == piece_cols && view.dtype == AD_F64);
  if (!is_view) ad_piece_copy(matrices, &full, number, piece, 1);
  assert_true(piece[piece_rows * piece_cols] == -5);
  assert_memory_equal(values, before, sizeof values);
}

static const int all[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};

static void a_plain_matrix_is_one_piece(void **state) {
  const ad_param_matrices plain = {0}, out_first = {.out_first = 1};
  assert_int_equal(ad_piece_count(&plain), 1);
  piece_is(&plain, 4, 9, 0, 4, all, 9, all);
  piece_is(&out_first, 4, 9, 0, 4, all, 9, all);
}

static void matrices_are_fused_one_after_another(void **state) {
  ad_param_matrices fused = {.form = AD_MATRIX_FUSED, .along = 1, .count = 3, .repeats = 1, .piece = {4, 2, 3}};
  assert_int_equal(ad_piece_count(&fused), 3);
  piece_is(&fused, 4, 9, 0, 4, all, 4, all);
  piece_is(&fused, 4, 9, 1, 4, all, 2, all + 4);
  piece_is(&fused, 4, 9, 2, 4, all, 3, all + 6);
  fused.along = 0;
  piece_is(&fused, 9, 5, 0, 4, all, 5, all);
  piece_is(&fused, 9, 5, 2, 3, all + 6, 5, all);
}

static void matrices_are_fused_in_groups(void **state) {
  const int first[] = {0, 1, 3, 4, 6, 7}, second[] = {2, 5, 8};
  ad_param_matrices fused = {
      .form = AD_MATRIX_FUSED, .out_first = 1, .along = 1, .count = 2, .repeats = 3, .piece = {2, 1}};
  piece_is(&fused, 5, 9, 0, 5, all, 6, first);
  piece_is(&fused, 5, 9, 1, 5, all, 3, second);
  fused.along = 0;
  piece_is(&fused, 9, 5, 0, 6, first, 5, all);
  piece_is(&fused, 9, 5, 1, 3, second, 5, all);
}

static ad_status check(const ad_shape *shape, ad_param_matrices matrices) {
  return ad_matrices_check(&record, 3, "qkv", shape, &matrices);
}

static void what_has_no_matrices_is_refused_by_name(void **state) {
  const ad_shape vector = {1, {8}}, matrix = {2, {4, 9}}, experts = {3, {5, 9, 2}}, deep = {4, {2, 2, 2, 2}};
  const ad_param_matrices fused = {.form = AD_MATRIX_FUSED, .along = 1, .count = 2, .repeats = 3, .piece = {2, 1}};
  assert_int_equal(check(&matrix, (ad_param_matrices){0}), AD_OK);
  assert_int_equal(check(&experts, (ad_param_matrices){0}), AD_OK);
  assert_int_equal(check(&matrix, fused), AD_OK);
  assert_int_equal(check(&vector, (ad_param_matrices){0}), AD_INVALID);
  assert_says("Muon", "qkv", "3", "1");
  assert_int_equal(check(&deep, (ad_param_matrices){0}), AD_INVALID);
  assert_facts(ad_last_error(), "qkv", "4");
  assert_int_equal(check(&matrix, (ad_param_matrices){.form = AD_MATRIX_NONE}), AD_INVALID);
  assert_says("Muon", "qkv", "3");
  ad_param_matrices wrong = fused;
  wrong.along = 0;
  assert_int_equal(check(&matrix, wrong), AD_INVALID);
  assert_says("Muon", "qkv", "4", "9");
  assert_int_equal(check(&experts, wrong), AD_OK);
  wrong.along = 2;
  assert_int_equal(check(&experts, wrong), AD_INVALID);
  assert_says("Muon", "qkv", "along", "2");
  wrong = fused;
  wrong.count = AD_FUSED_MAX + 1;
  assert_int_equal(check(&matrix, wrong), AD_INVALID);
  wrong.count = 0;
  assert_int_equal(check(&matrix, wrong), AD_INVALID);
  wrong = fused;
  wrong.repeats = 0;
  assert_int_equal(check(&matrix, wrong), AD_INVALID);
  wrong = fused;
  wrong.piece[0] = 3;
  wrong.piece[1] = 0;
  assert_int_equal(check(&matrix, wrong), AD_INVALID);
  assert_says("Muon", "qkv", "0");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_plain_matrix_is_one_piece),
      cmocka_unit_test(matrices_are_fused_one_after_another),
      cmocka_unit_test(matrices_are_fused_in_groups),
      cmocka_unit_test(what_has_no_matrices_is_refused_by_name),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
