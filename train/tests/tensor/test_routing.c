/* Tests the operations of a mixture of experts: choosing experts, and sending rows to the ranks of their experts and
 * back, against a composition on one rank: all experts applied to all tokens, and those that were not chosen multiplied
 * by zero. */
#include "says.h"
#include "tensor/routing.h"
#include "two_ways.h"
#include "world.h"

/* ---- choosing experts ---- */

static ad_tensor *scores_leaf(const world *w, ad_tape *t, ad_array *array, int64_t tokens, int64_t experts,
                              const double *values) {
  *array = random_array(w, AD_F64, (ad_shape){2, {tokens, experts}}, 1, 0);
  if (values) memcpy(array->data, values, (size_t)(tokens * experts) * sizeof *values);
  return ad_input(t, array);
}

static void the_largest_scores_are_chosen_and_of_equal_ones_the_lowest_expert(void **state) {
  static const double values[] = {1, 3, 3, 2, /**/ 0, 0, 0, 0, /**/ 1, 2, 3, 4};
  static const int32_t wanted[] = {1, 2, 0, 1, 3, 2};
  world w = world_open();
  ad_tape *t = open_tape(&w, AD_F64);
  ad_array array;
  ad_routing *routing;
  ad_tensor *chosen = ad_top_k(t, scores_leaf(&w, t, &array, 3, 4, values), 2, NULL, &routing);
  must(ad_tape_status(t));
  assert_memory_equal(routing->expert, wanted, sizeof wanted);
  assert_true(routing->margin == 0); /* the margin of the four equal scores */
  assert_int_equal(routing->slots, 6);
  static const size_t tokens_by_expert[] = {1, 0, 1, 0, 2, 2}; /* slots by expert: 0, 1, 1, 2, 2, 3 */
  assert_memory_equal(routing->token_of_slot, tokens_by_expert, sizeof tokens_by_expert);
  assert_true(element(ad_tensor_array(chosen), 4) == 4);
  free(array.data);
  ad_tape_destroy(t);
  world_close(&w);
}

static void a_bias_decides_and_enters_nothing_else(void **state) {
  static const double values[] = {1, 3, 2};
  double bias_values[] = {5, 0, 0};
  world w = world_open();
  ad_tape *t = open_tape(&w, AD_F64);
  ad_array array, bias = random_array(&w, AD_F64, (ad_shape){1, {3}}, 2, 0);
  memcpy(bias.data, bias_values, sizeof bias_values);
  ad_routing *routing;
  ad_tensor *chosen = ad_top_k(t, scores_leaf(&w, t, &array, 1, 3, values), 1, &bias, &routing);
  must(ad_tape_status(t));
  assert_int_equal(routing->expert[0], 0);
  assert_true(element(ad_tensor_array(chosen), 0) == 1);
  free(array.data);
  free(bias.data);
  ad_tape_destroy(t);
  world_close(&w);
}

static void scores_that_are_not_chosen_have_exactly_zero_gradient(void **state) {
  world w = world_open();
  ad_tape *t = open_tape(&w, AD_F64);
  ad_array array, weights;
  ad_routing *routing;
  ad_tensor *scores = scores_leaf(&w, t, &array, 5, 4, NULL);
  ad_tensor *chosen = ad_top_k(t, scores, 2, NULL, &routing);
  must(ad_backward(t, project(&w, t, ad_slot_weights(t, chosen, routing), 9, &weights)));
  for (size_t i = 0; i < 20; i++) {
    const int32_t *of_token = routing->expert + i / 4 * 2;
    int is_chosen = of_token[0] == (int32_t)(i % 4) || of_token[1] == (int32_t)(i % 4);
    assert_int_equal(element(ad_grad(scores), i) != 0, is_chosen);
  }
  free(array.data);
  free(weights.data);
  ad_tape_destroy(t);
  world_close(&w);
}

/* Two samples of three positions; this rank routes the last four rows. */
static void choices_are_kept_by_the_number_of_their_token_and_taken_where_they_are_given(void **state) {
  enum { SAMPLES = 2, SEQ = 3, FIRST = 2, TOKENS = 4, EXPERTS = 3, K = 2 };
  int32_t kept[SAMPLES * SEQ * K];
  for (size_t i = 0; i < SAMPLES * SEQ * K; i++) kept[i] = -1;
  world w = world_open();
  ad_tape *t = open_tape(&w, AD_F64);
  ad_array array, batch = random_array(&w, AD_F64, (ad_shape){3, {SAMPLES, SEQ, 1}}, 3, 0);
  ad_routing *routing;
  ad_tensor *scores = scores_leaf(&w, t, &array, TOKENS, EXPERTS, NULL), *of = ad_constant(t, &batch);
  ad_top_k_kept(t, scores, K, NULL, of, FIRST, (ad_decisions){kept, 0}, &routing, AD_HERE);
  must(ad_tape_status(t));
  for (size_t i = 0; i < FIRST * K; i++) assert_int_equal(kept[i], -1);
  assert_memory_equal(kept + FIRST * K, routing->expert, TOKENS * K * sizeof *kept);
  int32_t *own = kept + FIRST * K, left = EXPERTS - own[0] - own[1];
  double margin = element(&array, (size_t)own[1]) - element(&array, (size_t)left);
  own[1] = left;
  ad_top_k_kept(t, scores, K, NULL, of, FIRST, (ad_decisions){kept, 1}, &routing, AD_HERE);
  must(ad_tape_status(t));
  assert_memory_equal(kept + FIRST * K, routing->expert, TOKENS * K * sizeof *kept);
  assert_true(margin > 0 && routing->margin == -margin);
  free(array.data);
  free(batch.data);
  ad_tape_destroy(t);
  world_close(&w);
}

static void refuse_given(int32_t first, int32_t second, const char *const *facts) {
  int32_t given[] = {first, second};
  world w = world_open();
  ad_tape *t = open_tape(&w, AD_F64);
  ad_array array, batch = random_array(&w, AD_F64, (ad_shape){3, {1, 1, 1}}, 3, 0);
  ad_routing *routing;
  ad_tensor *scores = scores_leaf(&w, t, &array, 1, 3, NULL);
  ad_top_k_kept(t, scores, 2, NULL, ad_constant(t, &batch), 0, (ad_decisions){given, 1}, &routing, AD_HERE);
  assert_int_equal(ad_tape_status(t), AD_INVALID);
  assert_says_all(facts);
  free(array.data);
  free(batch.data);
  ad_tape_destroy(t);
  world_close(&w);
}

static void what_is_given_is_an_expert_and_none_twice(void **state) {
  refuse_given(3, 0, SAYS_FACTS("top_k", "choice 0", "token 0", "3"));
  refuse_given(2, -1, SAYS_FACTS("top_k", "choice 1", "token 0", "-1", "3"));
  refuse_given(2, 2, SAYS_FACTS("top_k", "choice 1", "token 0", "2", "3", "0"));
}

/* A routing reports to its caller what was chosen, including choices that were dropped later. */
static void a_routing_reports_its_choices_and_how_clear_they_were(void **state) {
  static const double values[] = {1, 3, 2.5, /**/ 4, 9, 8.25, /**/ 0, 1, 7};
  static const int32_t wanted[] = {1, 2, 1, 2, 2, 1};
  world w = world_open();
  ad_tape *t = open_tape(&w, AD_F64);
  ad_array array, batch = random_array(&w, AD_F64, (ad_shape){3, {1, 3, 2}}, 2, 0);
  ad_routing *routing;
  size_t count = 0;
  ad_top_k(t, scores_leaf(&w, t, &array, 3, 3, values), 2, NULL, &routing);
  const int32_t *expert = ad_routing_choices(routing, &count);
  must(ad_tape_status(t));
  assert_int_equal(count, 6);
  assert_memory_equal(expert, wanted, sizeof wanted);
  assert_true(ad_routing_margin(routing) == 1); /* the smallest margin is between the last token's scores 1 and 0 */
  assert_int_equal(ad_routing_dropped(routing), 0);
  ad_limit(t, routing, 0.5, ad_constant(t, &batch), 0); /* leaves each expert one choice */
  must(ad_tape_status(t));
  assert_int_equal(ad_routing_dropped(routing), 4);
  assert_memory_equal(ad_routing_choices(routing, &count), wanted, sizeof wanted);
  assert_int_equal(count, 6);
  free(array.data);
  free(batch.data);
  ad_tape_destroy(t);
  world_close(&w);
}

static void assert_nothing_chosen(const ad_routing *routing) {
  size_t count = 9;
  assert_null(ad_routing_choices(routing, &count));
  assert_int_equal(count, 0);
  assert_true(ad_routing_margin(routing) == INFINITY);
  assert_int_equal(ad_routing_dropped(routing), 0);
}

static void where_nothing_was_chosen_a_routing_has_no_choices(void **state) {
  world w = world_open();
  ad_tape *t = open_tape(&w, AD_F64);
  ad_array array;
  ad_routing *routing;
  ad_top_k(t, scores_leaf(&w, t, &array, 2, 3, NULL), 4, NULL, &routing);
  assert_int_equal(ad_tape_status(t), AD_INVALID);
  assert_nothing_chosen(routing);
  assert_nothing_chosen(NULL);
  free(array.data);
  ad_tape_destroy(t);
  world_close(&w);
}

static void refuse_bias(const char *wrong, const ad_array *bias, const char *const *facts) {
  world w = world_open();
  ad_tape *t = open_tape(&w, AD_F64);
  ad_array array;
  ad_top_k(t, scores_leaf(&w, t, &array, 2, 3, NULL), 1, bias, NULL);
  assert_int_equal(ad_tape_status(t), AD_INVALID);
  assert_says_in(wrong, ad_last_error(), facts);
  free(array.data);
  ad_tape_destroy(t);
  world_close(&w);
}

static void a_bias_has_a_float_for_each_expert(void **state) {
  double numbers[4] = {0};
  ad_array bias = {.dtype = AD_F64, .shape = {1, {2}}, .local = {1, {2}}, .data = numbers};
  refuse_bias("a short bias", &bias, SAYS_FACTS("top_k", "[2]", "f64", "3"));
  bias.local = (ad_shape){2, {3, 1}};
  refuse_bias("a bias with a second dimension", &bias, SAYS_FACTS("top_k", "[3, 1]", "f64", "3"));
  bias.local = (ad_shape){1, {3}};
  bias.dtype = AD_I32;
  refuse_bias("a bias of i32", &bias, SAYS_FACTS("top_k", "[3]", "i32", "3"));
  bias.dtype = AD_F64;
  bias.data = NULL;
  refuse_bias("a bias without data", &bias, SAYS_FACTS("top_k", "[3]", "f64", "3"));
}

static void more_choices_than_experts_are_refused(void **state) {
  world w = world_open();
  ad_tape *t = open_tape(&w, AD_F64);
  ad_array array;
  ad_routing *routing;
  ad_tensor *chosen = ad_top_k(t, scores_leaf(&w, t, &array, 2, 3, NULL), 4, NULL, &routing);
  ad_tensor *slots = ad_to_slots(t, ad_slot_weights(t, chosen, routing), routing); /* the routing was refused before */
  assert_null(ad_tensor_array(ad_return(t, ad_dispatch(t, slots, routing, "ep"), routing, "ep")));
  assert_int_equal(ad_tape_status(t), AD_INVALID);
  assert_says("top_k", "4", "[2, 3]", "1");
  free(array.data);
  ad_tape_destroy(t);
  world_close(&w);
}

static void rows_that_were_never_dispatched_do_not_return(void **state) {
  world w = world_open();
  ad_tape *t = open_tape(&w, AD_F64);
  ad_array array;
  ad_routing *routing;
  ad_tensor *chosen = ad_top_k(t, scores_leaf(&w, t, &array, 2, 3, NULL), 1, NULL, &routing);
  assert_null(ad_tensor_array(ad_return(t, chosen, routing, "ep")));
  assert_int_equal(ad_tape_status(t), AD_INVALID);
  assert_listed();
  free(array.data);
  ad_tape_destroy(t);
  world_close(&w);
}

/* A routing takes a rank's own rows (V), not parts of a sharded value. */
static void rows_that_are_parts_of_a_full_value_are_refused(void **state) {
  for (int back = 0; back <= 1; back++) {
    world w = world_open();
    ad_tape *t = open_tape(&w, AD_F64);
    ad_array array;
    ad_routing *routing;
    ad_top_k(t, scores_leaf(&w, t, &array, 2, 3, NULL), 1, NULL, &routing);
    must(ad_layout_parse(w.mesh, "tp=S0", &w.layout));
    ad_array sharded = random_array(&w, AD_F64, (ad_shape){2, {2, 4}}, 5, 0);
    ad_tensor *x = ad_input(t, &sharded);
    assert_null(ad_tensor_array(back ? ad_from_slots(t, x, routing) : ad_to_slots(t, x, routing)));
    assert_int_equal(ad_tape_status(t), AD_TYPE);
    assert_says("tp", "0");
    free(array.data);
    free(sharded.data);
    ad_tape_destroy(t);
    world_close(&w);
  }
}

/* Compares the gradient with the difference quotient of a randomly weighted sum. */
static void check_slope(ad_tensor *(*apply)(ad_tape *t, ad_tensor *x)) {
  enum { COUNT = 12 };
  const double step = 1e-6;
  world w = world_open();
  ad_tape *t = open_tape(&w, AD_F64);
  ad_array array = random_array(&w, AD_F64, (ad_shape){2, {3, 4}}, 1, 0), weights;
  double slopes[COUNT], *x = array.data;
  ad_tensor *leaf = ad_input(t, &array);
  must(ad_backward(t, project(&w, t, apply(t, leaf), 2, &weights)));
  for (size_t i = 0; i < COUNT; i++) slopes[i] = element(ad_grad(leaf), i);
  for (size_t i = 0; i < COUNT; i++) {
    double at[2], before = x[i];
    for (int side = 0; side < 2; side++) {
      free(weights.data);
      ad_tape_reset(t);
      x[i] = before + (side ? step : -step);
      at[side] = ad_tensor_scalar(project(&w, t, apply(t, ad_input(t, &array)), 2, &weights));
    }
    x[i] = before;
    assert_true(fabs((at[1] - at[0]) / (2 * step) - slopes[i]) < 1e-8);
  }
  free(weights.data);
  free(array.data);
  ad_tape_destroy(t);
  world_close(&w);
}

static ad_tensor *softmax(ad_tape *t, ad_tensor *x) { return ad_softmax(t, x); }
static ad_tensor *sigmoid(ad_tape *t, ad_tensor *x) { return ad_sigmoid(t, x); }
static ad_tensor *shares(ad_tape *t, ad_tensor *x) { return ad_shares(t, ad_sigmoid(t, x)); }

static void scores_have_the_slope_of_their_values(void **state) {
  check_slope(softmax);
  check_slope(sigmoid);
  check_slope(shares);
}

/* ---- rows sent to the ranks of their experts and back ---- */

enum { TOP_K = 2 };

/* Shapes: x [tokens, d], scores [tokens, experts], w [experts, d, m]. */
static ad_tensor *routed(ad_tape *t, ad_tensor *const *x, int scores_first) {
  const ad_mesh *mesh = ad_tensor_array(x[0])->layout.mesh;
  int is_sharded = (ad_mesh_named(mesh) & AD_AXES(AD_ETP)) != 0,
      has_replicas = (ad_mesh_named(mesh) & AD_AXES(AD_EFSDP)) != 0;
  ad_tensor *tokens = ad_to_rows(t, x[0]), *scores = ad_to_rows(t, x[1]), *w = x[2];
  if (is_sharded) tokens = ad_convert(t, tokens, "etp", AD_R);
  if (is_sharded) scores = ad_convert(t, scores, "etp", AD_R);
  if (has_replicas) w = ad_convert(t, w, "efsdp", AD_R);
  ad_routing *routing;
  ad_tensor *chosen = ad_top_k(t, scores, TOP_K, NULL, &routing), *factors = ad_slot_weights(t, chosen, routing);
  ad_tensor *slots = ad_to_slots(t, tokens, routing);
  if (scores_first) slots = ad_scale_rows(t, slots, factors);
  slots = ad_dispatch(t, slots, routing, "ep");
  slots = ad_grouped_linear(t, slots, w, routing);
  slots = ad_return(t, slots, routing, "ep");
  if (!scores_first) slots = ad_scale_rows(t, slots, factors);
  return ad_from_rows(t, ad_from_slots(t, slots, routing), x[0]);
}
static ad_tensor *scored_before(ad_tape *t, ad_tensor *const *x) { return routed(t, x, 1); }
static ad_tensor *scored_after(ad_tape *t, ad_tensor *const *x) { return routed(t, x, 0); }

/* A constant, the same on every rank, in memory that outlives the tape. */
static ad_tensor *constant_of(ad_tape *t, const ad_tensor *like, ad_shape shape, double (*value)(int64_t, int64_t),
                              double **memory) {
  static double values[4][1 << 14];
  static int next;
  ad_array array = ad_array_describe(ad_tape_comm(t), AD_F64, &shape, &ad_tensor_array(like)->layout);
  array.data = values[next = (next + 1) % 4];
  CHECK(ad_array_numel(&array) <= 1 << 14);
  for (int64_t i = 0; i < shape.dim[0]; i++)
    for (int64_t j = 0; value && j < shape.dim[1]; j++) ((double *)array.data)[i * shape.dim[1] + j] = value(i, j);
  if (memory) *memory = array.data;
  return ad_constant(t, &array);
}

enum { WIDTH = 3 };
static double tiles(int64_t i, int64_t j) { return i == j % WIDTH; }
static double spreads(int64_t i, int64_t j) { return i == j / WIDTH; }

/* Sets the mask to 1 where the expert is among the token's best TOP_K. */
static void mark_chosen(const double *scores, int64_t tokens, int64_t experts, double *mask) {
  for (int64_t i = 0; i < tokens * experts * WIDTH; i++) {
    int64_t token = i / (experts * WIDTH), expert = i / WIDTH % experts, better = 0;
    const double *of_token = scores + token * experts;
    for (int64_t e = 0; e < experts; e++) better += of_token[e] > of_token[expert];
    for (int64_t e = 0; e < expert; e++) better += of_token[e] == of_token[expert];
    mask[i] = better < TOP_K;
  }
}

/* The composition: each token is repeated once for each expert, times score and choice: [tokens, experts * d], and
 * multiplied with the experts' matrices, one below the other. */
static ad_tensor *by_all_experts(ad_tape *t, ad_tensor *const *x) {
  const ad_mesh *mesh = ad_tensor_array(x[0])->layout.mesh;
  int is_sharded = (ad_mesh_named(mesh) & AD_AXES(AD_ETP)) != 0,
      has_replicas = (ad_mesh_named(mesh) & AD_AXES(AD_EFSDP)) != 0;
  const char *sharded = has_replicas ? "efsdp,ep" : "ep";
  ad_tensor *tokens = ad_all_gather(t, x[0], sharded, AD_I), *scores = ad_all_gather(t, x[1], sharded, AD_I);
  ad_tensor *w = ad_all_gather(t, x[2], "ep", AD_I);
  if (is_sharded) w = ad_all_gather(t, w, "etp", AD_I);
  int64_t count = ad_tensor_array(scores)->shape.dim[0], experts = ad_tensor_array(scores)->shape.dim[1];
  double *mask;
  ad_tensor *chosen = constant_of(t, scores, (ad_shape){2, {count, experts * WIDTH}}, NULL, &mask);
  mark_chosen(ad_tensor_array(scores)->data, count, experts, mask);
  tokens = ad_linear(t, tokens, constant_of(t, scores, (ad_shape){2, {WIDTH, experts * WIDTH}}, tiles, NULL));
  scores = ad_linear(t, scores, constant_of(t, scores, (ad_shape){2, {experts, experts * WIDTH}}, spreads, NULL));
  tokens = ad_multiply(t, ad_multiply(t, tokens, scores), chosen);
  ad_tensor *y = ad_linear(t, tokens, ad_to_rows(t, w));
  if (has_replicas) y = ad_convert(t, y, "efsdp", AD_S(0));
  y = ad_convert(t, y, "ep", AD_S(0));
  return is_sharded ? ad_convert(t, y, "etp", AD_S(1)) : y;
}

static void compare_routed(const char *mesh, const char *rows, const char *w, int64_t tokens, int64_t experts) {
  comparison c = {.mesh = mesh,
                  .inputs = {{rows, SHAPE(2, tokens, WIDTH), 0},
                             {rows, SHAPE(2, tokens, experts), 0},
                             {w, SHAPE(3, experts, WIDTH, 5), 0}},
                  .input_count = 3,
                  .fused = scored_before,
                  .composed = by_all_experts};
  compare(c);
  c.fused = scored_after;
  compare(c);
}

static void rows_find_their_experts_and_come_back(void **state) {
  compare_routed("ep=1", "ep=S0", "ep=S0", 7, 3);
  compare_routed("ep=2", "ep=S0", "ep=S0", 7, 4);
  compare_routed("ep=3", "ep=S0", "ep=S0", 11, 7);
  compare_routed("ep=3", "ep=S0", "ep=S0", 1, 7); /* some ranks have no token, some experts get none */
  compare_routed("ep=3", "ep=S0", "ep=S0", 5, 2); /* one rank has no expert */
}

static void experts_are_sharded_and_replicated(void **state) {
  compare_routed("ep=2 etp=2", "ep=S0 etp=I", "ep=S0 etp=S2", 7, 4);
  compare_routed("ep=1 etp=3", "ep=S0 etp=I", "ep=S0 etp=S2", 7, 4);
  compare_routed("efsdp=2 ep=3", "efsdp=S0 ep=S0", "efsdp=I ep=S0", 13, 4);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(the_largest_scores_are_chosen_and_of_equal_ones_the_lowest_expert),
      cmocka_unit_test(a_bias_decides_and_enters_nothing_else),
      cmocka_unit_test(scores_that_are_not_chosen_have_exactly_zero_gradient),
      cmocka_unit_test(choices_are_kept_by_the_number_of_their_token_and_taken_where_they_are_given),
      cmocka_unit_test(what_is_given_is_an_expert_and_none_twice),
      cmocka_unit_test(a_routing_reports_its_choices_and_how_clear_they_were),
      cmocka_unit_test(where_nothing_was_chosen_a_routing_has_no_choices),
      cmocka_unit_test(a_bias_has_a_float_for_each_expert),
      cmocka_unit_test(more_choices_than_experts_are_refused),
      cmocka_unit_test(rows_that_were_never_dispatched_do_not_return),
      cmocka_unit_test(rows_that_are_parts_of_a_full_value_are_refused),
      cmocka_unit_test(scores_have_the_slope_of_their_values),
      cmocka_unit_test(rows_find_their_experts_and_come_back),
      cmocka_unit_test(experts_are_sharded_and_replicated),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
