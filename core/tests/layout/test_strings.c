/* Tests types and layout strings: what is read, printed and refused; and layouts as values that can be copied and
 * compared. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>
#include "addend/layout.h"
#include "layout/shown.h"
#include "says.h"
#include "layout/type.h"

static ad_mesh *mesh;

static int make_mesh(void **state) { return ad_mesh_create("pp=1 dp_replicate=2 dp_shard=2 cp=2 tp=2", &mesh); }
static int drop_mesh(void **state) {
  ad_mesh_destroy(mesh);
  return 0;
}

static const ad_type every_type[] = {
    AD_R,    AD_I,    AD_V,           AD_P,           AD_S(0),        AD_S(1),        AD_S(2),        AD_S(3),
    AD_S(4), AD_S(5), AD_S_ZIGZAG(0), AD_S_ZIGZAG(1), AD_S_ZIGZAG(2), AD_S_ZIGZAG(3), AD_S_ZIGZAG(4), AD_S_ZIGZAG(5)};
enum { TYPE_COUNT = sizeof every_type / sizeof every_type[0] };

static void a_type_is_the_dual_of_its_dual(void **state) {
  for (int i = 0; i < TYPE_COUNT; i++) assert_int_equal(ad_type_dual(ad_type_dual(every_type[i])), every_type[i]);
  assert_int_equal(ad_type_dual(AD_R), AD_P);
  assert_int_equal(ad_type_dual(AD_I), AD_I);
  assert_int_equal(ad_type_dual(AD_V), AD_V);
  assert_int_equal(ad_type_dual(AD_S_ZIGZAG(1)), AD_S_ZIGZAG(1));
}

static void a_type_prints_as_in_messages(void **state) {
  char text[32];
  assert_string_equal(ad_type_print(AD_R, text, sizeof text), "R");
  assert_string_equal(ad_type_print(AD_P, text, sizeof text), "P");
  assert_string_equal(ad_type_print(AD_S(0), text, sizeof text), "S(0)");
  assert_string_equal(ad_type_print(AD_S_ZIGZAG(1), text, sizeof text), "S(1z)");
  assert_string_equal(ad_type_print(0x99, text, sizeof text), "unknown type 0x99");
  assert_int_equal(ad_type_dim(AD_S(AD_DIMS_MAX)), -1);
  assert_int_equal(ad_type_dim(AD_V), -1);
  assert_true(ad_type_is_sharded(AD_S_ZIGZAG(5)));
}

/* Prints and reads every pair of types on two axes, in both orders, so that every nest of two axes comes. */
static void a_layout_prints_as_it_is_read(void **state) {
  char text[128];
  for (int i = 0; i < TYPE_COUNT; i++)
    for (int j = 0; j < TYPE_COUNT; j++)
      for (int swapped = 0; swapped < 2; swapped++) {
        ad_layout layout = ad_layout_all(mesh, AD_R), again;
        ad_layout_set(&layout, AD_AXES(swapped ? AD_TP : AD_DP_REPLICATE), every_type[i]);
        ad_layout_set(&layout, AD_AXES(swapped ? AD_DP_REPLICATE : AD_TP), every_type[j]);
        assert_int_equal(ad_layout_parse(mesh, ad_layout_print(&layout, text, sizeof text), &again), AD_OK);
        assert_true(ad_layout_equal(&layout, &again));
      }
}

static void a_layout_string_is_normalised(void **state) {
  static const char *const pairs[][2] = {
      {"dp=R cp=R tp=S1", "pp=R dp_replicate=R dp_shard=R cp=R tp=S1"},
      {"tp=V dp=P cp=I", "pp=R dp_replicate=P dp_shard=P cp=I tp=V"},
      {"dp=S0 cp=S1z tp=R ", "pp=R dp_replicate=S0 dp_shard=S0 cp=S1z tp=R"},
      {"dp_shard=S0\tdp_replicate=S0 cp=R tp=R pp=I", "pp=I dp_shard=S0 dp_replicate=S0 cp=R tp=R"},
      {"tp=S0 cp=S0 dp=S0", "pp=R tp=S0 cp=S0 dp_replicate=S0 dp_shard=S0"},
      {"dp=R cp=R tp=R ep=R etp=V", "pp=R dp_replicate=R dp_shard=R cp=R tp=R etp=V"},
      {"tp=S0 dp_shard=S0z cp=S1 dp_replicate=S1", "pp=R cp=S1 tp=S0 dp_replicate=S1 dp_shard=S0z"},
  };
  char text[128];
  for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
    ad_layout layout;
    assert_int_equal(ad_layout_parse(mesh, pairs[i][0], &layout), AD_OK);
    assert_string_equal(ad_layout_print(&layout, text, sizeof text), pairs[i][1]);
  }
}

static void dp_cuts_replicate_outside_shard_in_any_mesh(void **state) {
  ad_mesh *reordered = NULL;
  ad_layout layout;
  char text[64];
  assert_int_equal(ad_mesh_create("dp_shard=2 dp_replicate=3", &reordered), AD_OK);
  assert_int_equal(ad_layout_parse(reordered, "dp=S0", &layout), AD_OK);
  assert_string_equal(ad_layout_print(&layout, text, sizeof text), "dp_replicate=S0 dp_shard=S0");
  ad_mesh_destroy(reordered);
}

static void a_wrong_layout_string_is_refused_and_says_why(void **state) {
  static const struct {
    const char *text, *facts[8];
  } cases[] = {
      {"tp=R", {"dp_replicate,dp_shard,cp", "pp=1 dp_replicate=2 dp_shard=2 cp=2 tp=2"}},
      {"", {"dp_replicate,dp_shard,cp,tp", "dp_replicate=2"}},
      {"dp=R cp=R tp=R dp_shard=R", {"dp_shard"}},
      {"dp_shard=R dp=R", {"dp_shard"}},
      {"dp=R cp=R tp=R world=R", {"world", "dp_replicate"}},
      {"dp=R cp=R tp=S", {"tp", "`S`", "S0", "S5z"}},
      {"dp=R cp=R tp=S6", {"tp", "S6"}},
      {"dp=R cp=R tp=S0zz", {"tp", "S0zz"}},
      {"dp=R cp=R tp=r", {"tp", "r"}},
      {"dp=Q cp=R tp=R", {"dp", "Q"}},
      {"dp=R cp=R tp", {"tp", "AXIS=TYPE"}},
      {"dp=R cp=R =R", {"dp_replicate", "etp"}},
  };
  ad_layout before = ad_layout_all(mesh, AD_V), layout = before;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    assert_int_equal(ad_layout_parse(mesh, cases[i].text, &layout), AD_INVALID);
    assert_says_in(cases[i].text, ad_last_error(), cases[i].facts);
    assert_true(ad_layout_equal(&layout, &before));
  }
}

static void layouts_differ_by_type_by_nest_and_by_mesh(void **state) {
  ad_mesh *pool = NULL;
  ad_layout a, b, c, d;
  assert_int_equal(ad_mesh_create_pool(ad_mesh_text(mesh), 16, &pool), AD_OK);
  assert_int_equal(ad_layout_parse(mesh, "dp=R cp=S0 tp=S0", &a), AD_OK);
  assert_int_equal(ad_layout_parse(mesh, "dp=R tp=S0 cp=S0", &b), AD_OK);
  assert_int_equal(ad_layout_parse(mesh, "dp=R cp=S0 tp=S0z", &c), AD_OK);
  assert_int_equal(ad_layout_parse(pool, "dp=R cp=S0 tp=S0", &d), AD_OK);
  assert_true(ad_layout_equal(&a, &a));
  assert_false(ad_layout_equal(&a, &b));
  assert_false(ad_layout_equal(&a, &c));
  assert_false(ad_layout_equal(&a, &d));
  ad_mesh_destroy(pool);
}

static void a_gradient_has_the_dual_layout_and_the_same_nest(void **state) {
  ad_layout layout, dual, wanted;
  assert_int_equal(ad_layout_parse(mesh, "dp=R tp=S0 cp=S0", &layout), AD_OK);
  assert_int_equal(ad_layout_parse(mesh, "pp=P dp=P tp=S0 cp=S0", &wanted), AD_OK);
  dual = ad_layout_dual(&layout);
  assert_int_equal(ad_layout_axes_of(&dual, AD_P) & ad_mesh_named(mesh), AD_AXES(AD_PP) | AD_AXES_DP);
  assert_int_equal(ad_layout_axes_of(&dual, AD_S(0)), AD_AXES(AD_CP) | AD_AXES(AD_TP));
  assert_memory_equal(dual.depth, wanted.depth, sizeof dual.depth);
  dual = ad_layout_dual(&dual);
  assert_true(ad_layout_equal(&dual, &layout));
}

static void an_undone_sharding_closes_the_nest(void **state) {
  ad_layout layout, wanted;
  assert_int_equal(ad_layout_parse(mesh, "dp_shard=S0 tp=S0 cp=S0 dp_replicate=R", &layout), AD_OK);
  ad_layout_set(&layout, AD_AXES(AD_TP), AD_V);
  assert_int_equal(ad_layout_parse(mesh, "dp_shard=S0 cp=S0 tp=V dp_replicate=R", &wanted), AD_OK);
  assert_true(ad_layout_equal(&layout, &wanted));
  ad_layout_set(&layout, AD_AXES(AD_TP) | AD_AXES(AD_DP_REPLICATE), AD_S(0));
  assert_int_equal(ad_layout_parse(mesh, "dp_shard=S0 cp=S0 dp_replicate=S0 tp=S0", &wanted), AD_OK);
  assert_true(ad_layout_equal(&layout, &wanted));
}

static void a_shape_prints_and_counts(void **state) {
  char text[32];
  ad_shape scalar = {0}, matrix = {2, {4, 128}}, empty = {3, {4, 0, 7}};
  assert_string_equal(ad_shape_print(&matrix, text, sizeof text), "[4, 128]");
  assert_string_equal(ad_shape_print(&scalar, text, sizeof text), "[]");
  assert_int_equal(ad_shape_numel(&scalar), 1);
  assert_int_equal(ad_shape_numel(&matrix), 512);
  assert_int_equal(ad_shape_numel(&empty), 0);
  assert_true(ad_shape_equal(&matrix, &matrix));
  assert_false(ad_shape_equal(&matrix, &empty));
  assert_false(ad_shape_equal(&matrix, &(ad_shape){2, {4, 127}}));
}

static void people_see_the_axes_that_say_something(void **state) {
  char text[160];
  ad_layout layout = ad_layout_all(mesh, AD_I); /* the mesh does not name ep, etp, ... */
  ad_layout_set(&layout, AD_AXES_DP, AD_P);
  assert_string_equal(ad_layout_shown(&layout, text, sizeof text), "pp=I dp_replicate=P dp_shard=P cp=I tp=I");
  ad_layout_set(&layout, AD_AXES(AD_EP), AD_S(0));
  ad_layout_set(&layout, AD_AXES(AD_ETP), AD_V);
  ad_layout before = layout;
  assert_string_equal(ad_layout_shown(&layout, text, sizeof text), "pp=I dp_replicate=P dp_shard=P cp=I tp=I ep=S0");
  assert_true(ad_layout_equal(&before, &layout));
  char other[160];
  ad_layout_set(&layout, AD_AXES(AD_ETP), AD_P); /* the layouts differ only on an axis that is usually not printed */
  ad_layouts_shown_apart(&before, &layout, text, other, sizeof text);
  assert_facts(text, "ep=S0", "etp=V");
  assert_facts(other, "ep=S0", "etp=P");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_type_is_the_dual_of_its_dual),
      cmocka_unit_test(a_type_prints_as_in_messages),
      cmocka_unit_test(a_layout_prints_as_it_is_read),
      cmocka_unit_test(a_layout_string_is_normalised),
      cmocka_unit_test(dp_cuts_replicate_outside_shard_in_any_mesh),
      cmocka_unit_test(a_wrong_layout_string_is_refused_and_says_why),
      cmocka_unit_test(layouts_differ_by_type_by_nest_and_by_mesh),
      cmocka_unit_test(a_gradient_has_the_dual_layout_and_the_same_nest),
      cmocka_unit_test(an_undone_sharding_closes_the_nest),
      cmocka_unit_test(people_see_the_axes_that_say_something),
      cmocka_unit_test(a_shape_prints_and_counts),
  };
  return cmocka_run_group_tests(tests, make_mesh, drop_mesh);
}
