/* Tests the sentences for addends that were wrong before the sum, and for shards that were wrongly summed with each
 * other. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "check/computed.h"
#include "check/shards.h"
#include "layout/type.h"

/* Transitions of a program: a forward pass over tp (2 ranks), its backward, a bridge's over cp (3), and a count. */
static const ad_place list[] = {
    {"count", AD_PLACE_STEP, AD_MOVE_ALL_REDUCE, .axes = AD_AXES(AD_CP), .large = AD_AXES(AD_CP), .ranks = 3},
    {"src/a.c:1", AD_PLACE_FORWARD, AD_MOVE_ALL_GATHER, .axes = AD_AXES(AD_TP), .large = AD_AXES(AD_TP), .ranks = 2},
    {"src/a.c:2", AD_PLACE_FORWARD, AD_MOVE_REDUCE_SCATTER, .axes = AD_AXES(AD_TP), .large = AD_AXES(AD_TP),
     .ranks = 2},
    {"src/a.c:2", AD_PLACE_BACKWARD, AD_MOVE_ALL_GATHER, .axes = AD_AXES(AD_TP), .large = AD_AXES(AD_TP), .ranks = 2},
    {"images", AD_PLACE_BACKWARD, AD_MOVE_ALL_REDUCE, .axes = AD_AXES(AD_CP), .large = AD_AXES(AD_CP), .ranks = 3},
    {"src/a.c:1", AD_PLACE_BACKWARD, AD_MOVE_CONVERT, .axes = AD_AXES(AD_CP), .large = AD_AXES(AD_CP), .ranks = 3},
    {"src/a.c:3", AD_PLACE_BACKWARD, AD_MOVE_ALL_REDUCE, .axes = AD_AXES(AD_CP), .ranks = 1},
    {"w", AD_PLACE_STEP, AD_MOVE_ALL_REDUCE, .axes = AD_AXES(AD_CP), .large = AD_AXES(AD_CP), .ranks = 3},
};
static const ad_places places = {(ad_place *)(uintptr_t)list, sizeof list / sizeof *list, 0, AD_OK};

enum { PARAMS = 3 };
static ad_check_result *result;

/* Explains a check whose first two parameters have wrong addends, off by the factor `ratio` (NaN: by no factor). */
static void explain(double ratio, double loss_error) {
  free(result);
  result = calloc(1, sizeof *result + PARAMS * sizeof *result->params);
  result->param_count = PARAMS;
  result->loss_err = loss_error;
  result->loss_bound = 1e-12;
  for (int i = 0; i < PARAMS; i++) {
    ad_check_param *param = &result->params[i];
    strcpy(param->name, (const char *[]){"first", "second", "third"}[i]);
    param->accounted = i < 2 ? AD_ADDENDS_ARE_WRONG : AD_SUM_IS_WRONG;
    param->proportional = isfinite(ratio);
    param->ratio = ratio;
    ad_causes_add(&param->causes, AD_CAUSE_UNKNOWN, 0, NAN, "before");
  }
  ad_computed_explain(&places, result);
}

static void says(int index, ad_axes axes, const char *place, const char *text) {
  const ad_cause *cause = &result->params[0].causes.list[index];
  assert_true(index < result->params[0].causes.count);
  assert_string_equal(cause->text, text);
  assert_string_equal(cause->place, place);
  assert_int_equal(cause->axes, axes);
}

static void with_the_right_loss_it_is_the_way_back(void **state) {
  explain(NAN, 0);
  assert_int_equal(result->params[0].causes.count, 3);
  says(0, AD_AXES(AD_TP), "",
       "in the backward pass: a transition over tp was left out, averaged, summed twice, or done over other ranks "
       "(all_gather at src/a.c:2)");
  says(1, AD_AXES(AD_CP), "images",
       "on the way back over the bridge `images`: the transition over cp was left out, averaged, summed twice, or "
       "done over other ranks");
  assert_int_equal(result->params[0].causes.list[1].kind, AD_CAUSE_UNKNOWN);
  says(2, 0, "", "a formula of the backward pass is wrong, in the gradient that reaches `second`; the loss is right");
  assert_int_equal(result->params[1].causes.count, 3);
  assert_int_equal(result->params[2].causes.count, 1); /* no cause was added to the one it had */
}

static void a_wrong_loss_is_made_on_the_way_there(void **state) {
  explain(NAN, 1e-3);
  assert_int_equal(result->params[0].causes.count, 3);
  says(0, AD_AXES(AD_CP), "",
       "the count that losses are divided by is wrong: its sum over cp was left out, averaged, made twice, or made "
       "over other ranks");
  says(1, AD_AXES(AD_TP), "",
       "in the forward pass: a transition over tp was left out, averaged, summed twice, or done over other ranks "
       "(all_gather at src/a.c:1 or 1 more)");
  says(2, 0, "", "a formula or the data of the forward pass is wrong, since the loss is wrong as well");
  explain(NAN, NAN);
  assert_int_equal(result->params[0].causes.count, 3);
}

static void a_factor_is_that_of_a_group_of_its_size(void **state) {
  explain(1.0 / 3, 0);
  assert_int_equal(result->params[0].causes.count, 2);
  says(0, AD_AXES(AD_CP), "images",
       "on the way back over the bridge `images`: the transition over cp was averaged, or done over fewer ranks");
  explain(2, 0);
  assert_int_equal(result->params[0].causes.count, 2);
  says(0, AD_AXES(AD_TP), "",
       "in the backward pass: a transition over tp was summed twice, or over more ranks (all_gather at src/a.c:2)");
  assert_int_equal(result->params[0].causes.list[0].kind, AD_CAUSE_DOUBLED);
  explain(3, 1e-3); /* the loss is wrong as well: its divisor is too small */
  says(0, AD_AXES(AD_CP), "",
       "the count that losses are divided by is wrong: its sum over cp was left out, averaged, or made over fewer "
       "ranks");
  assert_int_equal(result->params[0].causes.list[0].kind, AD_CAUSE_AVERAGED);
  explain(1.0 / 3, 1e-3);
  says(0, AD_AXES(AD_CP), "",
       "the count that losses are divided by is wrong: its sum over cp was made twice, or over more ranks");
  assert_int_equal(result->params[0].causes.list[0].kind, AD_CAUSE_DOUBLED);
  explain(5, 0); /* no group has 5 ranks, so any transition may be wrong */
  assert_int_equal(result->params[0].causes.count, 3);
}

/* ---- shards that were wrongly summed with each other ---- */

enum { ROWS = 4, WIDTH = 6 };

static ad_axes summed(const char *mesh_text, const char *layout_text, ad_axis axis, double wrong) {
  ad_mesh *mesh;
  ad_layout layout;
  const ad_shape shape = {2, {ROWS, WIDTH}};
  double ref[ROWS * WIDTH], dist[ROWS * WIDTH];
  assert_int_equal(ad_mesh_create(mesh_text, &mesh), AD_OK);
  assert_int_equal(ad_layout_parse(mesh, layout_text, &layout), AD_OK);
  int64_t shards = ad_mesh_axis_size(mesh, axis);
  int dim = ad_type_dim(layout.type[axis]);
  for (int i = 0; i < ROWS * WIDTH; i++) ref[i] = sin(i + 1);
  for (int i = 0; i < ROWS * WIDTH; i++) {
    int64_t at = dim ? i % WIDTH : i / WIDTH, each = (dim ? WIDTH : ROWS) / shards;
    dist[i] = 0;
    for (int64_t s = 0; s < shards; s++) {
      int64_t of = at % each + s * each;
      dist[i] += dim ? ref[i / WIDTH * WIDTH + of] : ref[of * WIDTH + i % WIDTH];
    }
  }
  dist[ROWS * WIDTH - 1] += wrong;
  ad_axes axes = ad_shards_summed(&layout, &shape, dist, ref, 1);
  ad_mesh_destroy(mesh);
  return axes;
}

static void shards_that_were_summed_are_seen_along_their_axis(void **state) {
  assert_int_equal(summed("dp_shard=2 tp=3", "dp_shard=S0 tp=S1", AD_DP_SHARD, 0), AD_AXES(AD_DP_SHARD));
  assert_int_equal(summed("dp_shard=2 tp=3", "dp_shard=S0 tp=S1", AD_TP, 0), AD_AXES(AD_TP));
  assert_int_equal(summed("dp_shard=2 tp=3", "dp_shard=S0 tp=S1", AD_TP, 1e-6), 0);
  /* 6 columns on 4 ranks: shards of 1 and 2 */
  assert_int_equal(summed("dp_shard=4 tp=1", "dp_shard=S1 tp=R", AD_DP_SHARD, 0), 0);
}

/* 5 columns on 2 ranks: shards of 2 and 3 columns, 4 and 6 elements, of which the first 4 have a partner. */
static void shards_of_unequal_size_are_summed_as_they_lie_in_memory(void **state) {
  ad_mesh *mesh;
  ad_layout layout;
  const ad_shape shape = {2, {2, 5}};
  static const int shorter[] = {0, 1, 5, 6}, longer[] = {2, 3, 4, 7, 8, 9};
  double ref[10], dist[10];
  for (int i = 0; i < 10; i++) ref[i] = dist[i] = sin(i + 1);
  for (int k = 0; k < 4; k++) dist[longer[k]] = dist[shorter[k]] = ref[longer[k]] + ref[shorter[k]];
  assert_int_equal(ad_mesh_create("tp=2", &mesh), AD_OK);
  assert_int_equal(ad_layout_parse(mesh, "tp=S1", &layout), AD_OK);
  assert_int_equal(ad_shards_summed(&layout, &shape, dist, ref, 1), AD_AXES(AD_TP));
  dist[longer[5]] += 1e-6; /* an element without a partner */
  assert_int_equal(ad_shards_summed(&layout, &shape, dist, ref, 1), 0);
  ad_mesh_destroy(mesh);
}

/* Two axes cut one dimension of 8 elements: tp's parts are pairs inside the halves of dp_shard. */
static void the_inner_of_two_axes_sums_neighbours(void **state) {
  ad_mesh *mesh;
  ad_layout layout;
  const ad_shape shape = {1, {8}};
  double ref[8], inner[8], outer[8];
  for (int i = 0; i < 8; i++) ref[i] = sin(i + 1);
  for (int i = 0; i < 8; i++) inner[i] = ref[i] + ref[i ^ 2], outer[i] = ref[i] + ref[i ^ 4];
  assert_int_equal(ad_mesh_create("dp_shard=2 tp=2", &mesh), AD_OK);
  assert_int_equal(ad_layout_parse(mesh, "dp_shard=S0 tp=S0", &layout), AD_OK);
  ad_axis inside = layout.depth[AD_TP] ? AD_TP : AD_DP_SHARD, outside = layout.depth[AD_TP] ? AD_DP_SHARD : AD_TP;
  assert_int_equal(ad_shards_summed(&layout, &shape, inner, ref, 1), AD_AXES(inside));
  assert_int_equal(ad_shards_summed(&layout, &shape, outer, ref, 1), AD_AXES(outside));
  ad_mesh_destroy(mesh);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(with_the_right_loss_it_is_the_way_back),
      cmocka_unit_test(a_wrong_loss_is_made_on_the_way_there),
      cmocka_unit_test(a_factor_is_that_of_a_group_of_its_size),
      cmocka_unit_test(shards_that_were_summed_are_seen_along_their_axis),
      cmocka_unit_test(shards_of_unequal_size_are_summed_as_they_lie_in_memory),
      cmocka_unit_test(the_inner_of_two_axes_sums_neighbours),
  };
  int failed = cmocka_run_group_tests(tests, NULL, NULL);
  free(result);
  return failed;
}
