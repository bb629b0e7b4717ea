/* The pieces that a verdict stands on: samples, boxes, meshes, the bound, the fit. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "base/memory.h"
#include "diff/box.h"
#include "diff/fit.h"
#include "diff/hypotheses.h"
#include "diff/mesh.h"

/* Numbers of another program (docs/dumps.md in Python): "w", 4 of 10, and 3 of 2^40. */
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

/* Three addends of which two are equal: their sum is known, and the third's count alone. */
static void equal_addends_have_no_count_of_their_own(void **state) {
  double gram[9] = {4, 1, 1, 1, 9, 9, 1, 9, 9}, with_sum[3], counts[3] = {2, 1, 0.5}, prior[3] = {1, 1, 1};
  ad_products products = {.n = 3, .gram = gram, .with_sum = with_sum, .rows = 100};
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
  assert_true(fabs(fit.counts[1] - fit.counts[2]) < 1e-12); /* next to what was expected of both */
  assert_true(isinf(fit.errors[1]) && isinf(fit.errors[2]));
  ad_fit_destroy(&fit);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_sample_is_the_same_everywhere), cmocka_unit_test(a_sample_of_parts_is_the_sample),
      cmocka_unit_test(a_box_knows_its_elements),        cmocka_unit_test(a_mesh_has_any_names),
      cmocka_unit_test(a_count_is_what_a_mistake_makes), cmocka_unit_test(equal_addends_have_no_count_of_their_own),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
