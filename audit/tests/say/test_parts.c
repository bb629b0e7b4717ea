/* Tests the pieces from which `addend diff` makes a verdict: samples, boxes of elements, meshes, the error bound, the
 * fit. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "base/memory.h"
#include "read/box.h"
#include "solve/fit.h"
#include "solve/hypotheses.h"
#include "read/mesh.h"
#include "say/verdict_case.h"

/* Expected numbers are another program's (audit/docs/dumps.md in Python): tensor "w", 4 samples of 10 and 3 of 2^40. */
static void a_sample_is_the_same_everywhere(void **state) {
  uint64_t hash = ad_sample_hash("w");
  static const int64_t small[] = {0, 4, 6, 9}, large[] = {363456313516, 618995394283, 928787940871};
  assert_true(hash == 0xaf63ea4c86020456u);
  for (int64_t k = 0; k < 4; k++) assert_int_equal(ad_sample_element(hash, k, 4, 10), small[k]);
  for (int64_t k = 0; k < 3; k++) assert_int_equal(ad_sample_element(hash, k, 3, INT64_C(1) << 40), large[k]);
}

static void a_sample_of_parts_is_the_sample(void **state) {
  ad_shape shape = {2, {13, 7}};
  for (int64_t parts = 1; parts <= 15; parts++) {
    int64_t count = 0;
    for (int64_t i = 0; i < parts; i++) {
      ad_span span = ad_cut(13, i, parts);
      ad_box box = {{span.first, 0}, {span.count, 7}};
      count += ad_sample_count("name", &shape, 20, &box);
    }
    assert_int_equal(count, 20);
  }
}

/* Checks the numbers of a box's sampled elements against a look at every sampled element; -1: the box has none. */
static void hold_numbers(const ad_shape *shape, const ad_box *box) {
  uint64_t hash = ad_sample_hash("name");
  int64_t first = -1, count = 0;
  for (int64_t k = 0; k < 23; k++) {
    if (!ad_box_has(shape, box, ad_sample_element(hash, k, 23, 60))) continue;
    if (first < 0) first = k;
    count++;
  }
  assert_int_equal(ad_sample_count("name", shape, 23, box), count);
  if (!ad_box_is_stretch(shape, box)) return;
  ad_span span = ad_sample_stretch(hash, shape, 23, box);
  assert_int_equal(span.count, count);
  if (count) assert_int_equal(span.first, first);
}

/* Tries all boxes of a 3 x 4 x 5 tensor. */
static void a_box_knows_its_sampled_elements(void **state) {
  ad_shape shape = {3, {3, 4, 5}};
  for (int64_t at = 0; at < 60; at++)
    for (int64_t size = 0; size < 60; size++) {
      ad_box box = {{at / 20, at / 5 % 4, at % 5}, {1 + size / 20, 1 + size / 5 % 4, 1 + size % 5}};
      if (box.first[0] + box.count[0] <= 3 && box.first[1] + box.count[1] <= 4 && box.first[2] + box.count[2] <= 5)
        hold_numbers(&shape, &box);
    }
  assert_false(ad_box_is_stretch(&shape, &(ad_box){{0, 0, 0}, {2, 3, 5}}));
  assert_true(ad_box_is_stretch(&shape, &(ad_box){{1, 1, 0}, {1, 2, 5}}));
}

static void a_box_knows_its_elements(void **state) {
  ad_shape shape = {3, {3, 4, 5}};
  ad_box box = {{1, 0, 2}, {2, 3, 2}};
  int64_t inside = 0;
  for (int64_t flat = 0; flat < 60; flat++) {
    if (!ad_box_has(&shape, &box, flat)) continue;
    assert_int_equal(ad_box_offset(&shape, &box, flat), inside);
    inside++;
  }
  assert_int_equal(inside, ad_box_numel(&shape, &box));
}

static void a_mesh_has_any_names(void **state) {
  ad_dump_mesh mesh;
  int32_t place[AD_DUMP_AXES];
  assert_int_equal(ad_dump_mesh_parse("data=3  expert_2=1 _t=4", &mesh), AD_OK);
  assert_int_equal(mesh.world, 12);
  ad_dump_mesh_position(&mesh, 7, place);
  assert_int_equal(place[0], 1);
  assert_int_equal(place[1], 0);
  assert_int_equal(place[2], 3);
  assert_int_equal(ad_dump_mesh_coord(&mesh, "_t=2 data=1", place), AD_OK);
  assert_int_equal(place[0], 1);
  assert_int_equal(place[2], 2);
  static const char *const wrong[] = {"",     "dp",  "dp=0",        "dp=2 dp=2",
                                      "dp=x", "2=2", "dp=99999999", "a=1 b=1 c=1 d=1 e=1 f=1 g=1 h=1 i=1"};
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
    assert_int_equal(ad_dump_mesh_parse(wrong[i], &mesh), AD_INVALID);
}

static void a_count_is_what_a_mistake_makes(void **state) {
  ad_dump_mesh mesh;
  assert_int_equal(ad_dump_mesh_parse("dp=3 tp=4", &mesh), AD_OK);
  assert_true(ad_simple_count(&mesh, 0.3334) == 1.0 / 3);
  assert_true(ad_simple_count(&mesh, 0.0834) == 1.0 / 12);
  assert_true(ad_simple_count(&mesh, 2.01) == 2);
  assert_true(ad_simple_count(&mesh, -0.001) == 0);
}

/* Two of three addends are equal: only the sum of their counts is known, and the third's count by itself. */
static void equal_addends_have_no_count_of_their_own(void **state) {
  double gram[9] = {4, 1, 1, 1, 9, 9, 1, 9, 9}, with_sum[3], counts[3] = {2, 1, 0.5}, prior[3] = {1, 1, 1};
  double rounded[3] = {0};
  ad_products products = {.n = 3, .gram = gram, .with_sum = with_sum, .rounded = rounded, .rows = 100};
  for (int i = 0; i < 3; i++) {
    with_sum[i] = 0;
    for (int j = 0; j < 3; j++) with_sum[i] += gram[3 * i + j] * counts[j];
  }
  for (int i = 0; i < 3; i++) products.sum_square += counts[i] * with_sum[i];
  ad_fit fit;
  assert_int_equal(ad_fit_create(&products, prior, &fit), AD_OK);
  assert_int_equal(fit.rank, 2);
  assert_true(fabs(fit.counts[0] - 2) < 1e-12 && isfinite(fit.errors[0]));
  assert_true(fabs(fit.counts[1] + fit.counts[2] - 1.5) < 1e-12);
  assert_true(fabs(fit.counts[1] - fit.counts[2]) < 1e-12); /* each equal addend gets the share expected of it */
  assert_true(isinf(fit.errors[1]) && isinf(fit.errors[2]));
  ad_fit_destroy(&fit);
}

/* Each addend has a component of every other one; fits of 1 to 13 addends cover all sizes of blocks of the solver.
 * Errors follow from the inverse of the Gram matrix, which here is (d - s) times the unit matrix plus s in every
 * element. */
static void counts_come_back_of_any_number_of_addends(void **state) {
  enum { MOST = 13 };
  for (size_t n = 1; n <= MOST; n++) {
    double gram[MOST * MOST], with_sum[MOST] = {0}, prior[MOST], rounded[MOST] = {0}, s = 0.25, d = 1;
    ad_products products = {.n = n, .gram = gram, .with_sum = with_sum, .rounded = rounded, .rows = 100 + n};
    for (size_t i = 0; i < n; i++) {
      prior[i] = 1;
      for (size_t j = 0; j < n; j++) gram[i + j * n] = i == j ? d : s;
      for (size_t j = 0; j < n; j++) with_sum[i] += gram[i + j * n] * (double)(1 + j % 3);
      products.sum_square += with_sum[i] * (double)(1 + i % 3);
    }
    products.sum_square += 1; /* 100 rows have a remainder that no count explains */
    ad_fit fit;
    assert_int_equal(ad_fit_create(&products, prior, &fit), AD_OK);
    assert_int_equal(fit.rank, n);
    /* a diagonal element of the inverse */
    double own = (d + s * ((double)n - 2)) / ((d - s) * (d + s * ((double)n - 1)));
    for (size_t j = 0; j < n; j++) {
      assert_true(fabs(fit.counts[j] - (double)(1 + j % 3)) < 1e-12);
      assert_true(fabs(fit.errors[j] / (0.1 * sqrt(own)) - 1) < 1e-9);
    }
    ad_fit_destroy(&fit);
  }
}

/* ---- thresholds, each tried from both sides ---- */

static void a_count_may_be_off_by_eight_of_its_errors_and_a_little(void **state) {
  static const double errors[] = {0, 1e-6, 1e-3, 0.02, 0.03, 1, INFINITY};
  static const double allowed[] = {1e-4, 1e-4 + 8e-6, 8.1e-3, 0.1601, 0.2, 0.2, 0.2};
  for (size_t i = 0; i < sizeof errors / sizeof *errors; i++) {
    assert_true(fabs(ad_count_tolerance(errors[i]) / allowed[i] - 1) < 1e-12);
    for (int side = -1; side <= 1; side += 2) {
      assert_true(ad_counts_close(0.5 + side * 0.999 * allowed[i], 0.5, errors[i]));
      assert_false(ad_counts_close(0.5 + side * 1.001 * allowed[i], 0.5, errors[i]));
    }
  }
  assert_true(ad_counts_close(32 * (1 + 0.99e-4), 32, 0)); /* relative for large counts */
  assert_false(ad_counts_close(32 * (1 + 1.01e-4), 32, 0));
  assert_true(ad_counts_close(-32 * (1 + 0.99e-4), -32, 0));
  assert_false(ad_counts_close(NAN, 1, 0.1));
}

static void a_size_is_a_groups_within_a_ten_thousandth(void **state) {
  ad_dump_mesh mesh;
  uint32_t sets[AD_DUMP_SETS];
  assert_int_equal(ad_dump_mesh_parse("a=2 one=1 b=3 c=6", &mesh), AD_OK);
  for (int side = -1; side <= 1; side += 2) {
    assert_int_equal(ad_dump_axes_of_size(&mesh, 6 / (1 + side * 0.99e-4), 0, sets), 2);
    assert_int_equal(sets[0], 8); /* the set with the fewest axes comes first */
    assert_int_equal(sets[1], 5);
    assert_int_equal(ad_dump_axes_of_size(&mesh, 6 / (1 + side * 1.01e-4), 0, sets), 0);
  }
  /* of sets with as few axes, preferred ones come first */
  assert_int_equal(ad_dump_axes_of_size(&mesh, 6, 7, sets), 2);
  assert_int_equal(sets[0], 8);
  assert_int_equal(ad_dump_axes_of_size(&mesh, 36, 0, sets), 1);
  assert_int_equal(ad_dump_axes_of_size(&mesh, 1, 0, sets), 0);
}

static void nothing_is_missing_and_not_minus_nothing(void **state) {
  ad_dump_mesh mesh;
  assert_int_equal(ad_dump_mesh_parse("dp=3", &mesh), AD_OK);
  assert_false(signbit(ad_simple_count(&mesh, -0.4)));
  assert_true(ad_simple_count(&mesh, 1.0 / 6 - 1e-9) == 0 && ad_simple_count(&mesh, 1.0 / 6 + 1e-9) == 1.0 / 3);
}

static void of_many_ranks_six_are_named(void **state) {
  ad_dump_mesh mesh;
  unsigned char ranks[12] = {0};
  char text[200];
  assert_int_equal(ad_dump_mesh_parse("dp=12", &mesh), AD_OK);
  static const char *const expected[] = {"rank 1", "ranks 1 and 2", "ranks 1, 2 and 3"};
  for (int i = 1; i <= 9; i++) {
    ranks[i] = 1;
    ad_dump_ranks_print(&mesh, ranks, text, sizeof text);
    if (i <= 3) assert_string_equal(text, expected[i - 1]);
    if (i == 8) assert_string_equal(text, "ranks 1, 2, 3, 4, 5, 6, 7 and 8");
    if (i == 9) assert_string_equal(text, "ranks 1, 2, 3, 4, 5, 6, ... (9 of 12)");
  }
}

/* ---- the fit of counts ---- */

/* Products of addends with this Gram matrix and of their sum, which has `counts` of each and differs
 * by `off` besides. */
typedef struct made {
  double with_sum[3], rounded[3];
  ad_products products;
} made;

static void make(double *gram, size_t n, const double *counts, double off, size_t rows, made *out) {
  *out = (made){.products = {.n = n, .gram = gram, .with_sum = out->with_sum, .rows = rows, .sum_square = off * off}};
  out->products.rounded = out->rounded;
  for (size_t i = 0; i < n; i++) {
    for (size_t j = 0; j < n; j++) out->with_sum[i] += gram[n * i + j] * counts[j];
    out->products.sum_square += counts[i] * out->with_sum[i];
  }
}

static size_t rank_of_pair(double cosine) {
  double gram[4] = {1, cosine, cosine, 1}, counts[2] = {1, 1};
  made pair;
  ad_fit fit;
  make(gram, 2, counts, 0, 100, &pair);
  assert_int_equal(ad_fit_create(&pair.products, counts, &fit), AD_OK);
  size_t rank = fit.rank;
  assert_int_equal(isfinite(fit.errors[0]), rank == 2);
  ad_fit_destroy(&fit);
  return rank;
}

/* The smaller eigenvalue of the Gram matrix of two addends of length 1 is 1 minus their cosine. */
static void addends_are_identical_where_a_billionth_tells_them_apart(void **state) {
  assert_int_equal(rank_of_pair(1 - 1.01e-9), 2);
  assert_int_equal(rank_of_pair(1 - 0.99e-9), 1);
  assert_int_equal(rank_of_pair(0), 2);
}

/* The third addend is the first plus a little of the second: whether the second's count is known depends
 * on how little. */
static int knows_second(double little) {
  double length = sqrt(1 + little * little), counts[3] = {1, 1, 1};
  double gram[9] = {1, 0, 1 / length, 0, 1, little / length, 1 / length, little / length, 1};
  made three;
  ad_fit fit;
  make(gram, 3, counts, 0, 100, &three);
  assert_int_equal(ad_fit_create(&three.products, counts, &fit), AD_OK);
  assert_true(fit.rank == 2 && isinf(fit.errors[0]) && isinf(fit.errors[2]));
  int known = isfinite(fit.errors[1]);
  ad_fit_destroy(&fit);
  return known;
}

static void a_count_is_known_if_a_millionth_of_it_is_not(void **state) {
  assert_true(knows_second(sqrt(2 * 0.98e-6)));
  assert_false(knows_second(sqrt(2 * 1.02e-6)));
}

/* A count's error is the remainder divided by the number of elements that are left beside the counts. */
static void a_counts_error_is_what_is_left_over_its_addends_length(void **state) {
  double gram[4] = {4, 0, 0, 25}, counts[2] = {1, 0.5}, prior[2] = {1, 1};
  static const size_t rows[] = {100, 3, 2, 1}, left[] = {98, 1, 1, 1};
  for (int i = 0; i < 4; i++) {
    made two;
    ad_fit fit;
    make(gram, 2, counts, 0.3, rows[i], &two);
    assert_int_equal(ad_fit_create(&two.products, prior, &fit), AD_OK);
    assert_true(fabs(fit.errors[0] / (0.3 / sqrt((double)left[i]) / 2) - 1) < 1e-9);
    assert_true(fabs(fit.errors[1] / (0.3 / sqrt((double)left[i]) / 5) - 1) < 1e-9);
    assert_true(fabs(fit.residual / (0.3 / sqrt(two.products.sum_square)) - 1) < 1e-9);
    assert_true(fabs(fit.counts[0] - 1) < 1e-12 && fabs(fit.counts[1] - 0.5) < 1e-12);
    ad_fit_destroy(&fit);
  }
}

/* A count's error is at least what rounding of each addend leaves in its product with the sum, over the addend's
 * squared length. */
static void a_counts_error_is_no_less_than_its_addends_rounding(void **state) {
  double gram[4] = {4, 0, 0, 25}, counts[2] = {1, 0.5}, prior[2] = {1, 1};
  made two;
  ad_fit fit;
  make(gram, 2, counts, 0.3, 100, &two);
  two.rounded[0] = 0.64;
  two.rounded[1] = 0.5e-4;
  assert_int_equal(ad_fit_create(&two.products, prior, &fit), AD_OK);
  assert_true(fabs(fit.errors[0] / (0.8 / 4) - 1) < 1e-9);
  assert_true(fabs(fit.errors[1] / (0.3 / sqrt(98) / 5) - 1) < 1e-9);
  ad_fit_destroy(&fit);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_sample_is_the_same_everywhere),
      cmocka_unit_test(a_sample_of_parts_is_the_sample),
      cmocka_unit_test(a_box_knows_its_sampled_elements),
      cmocka_unit_test(a_box_knows_its_elements),
      cmocka_unit_test(a_mesh_has_any_names),
      cmocka_unit_test(a_count_is_what_a_mistake_makes),
      cmocka_unit_test(equal_addends_have_no_count_of_their_own),
      cmocka_unit_test(counts_come_back_of_any_number_of_addends),
      cmocka_unit_test(a_count_may_be_off_by_eight_of_its_errors_and_a_little),
      cmocka_unit_test(a_size_is_a_groups_within_a_ten_thousandth),
      cmocka_unit_test(nothing_is_missing_and_not_minus_nothing),
      cmocka_unit_test(of_many_ranks_six_are_named),
      cmocka_unit_test(addends_are_identical_where_a_billionth_tells_them_apart),
      cmocka_unit_test(a_count_is_known_if_a_millionth_of_it_is_not),
      cmocka_unit_test(a_counts_error_is_what_is_left_over_its_addends_length),
      cmocka_unit_test(a_counts_error_is_no_less_than_its_addends_rounding),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
