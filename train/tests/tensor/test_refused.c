/* Tests what operations say of operands and numbers that they refuse, on backend dry: every number of each message, and
 * both sides of each bound. Types that are refused, and operands of several operations, are in test_types.c. */
#include <stdio.h>
#include "dry_world.h"
#include "tensor/routing.h"

#define NEXT(d) (ad_tape_reset((d)->tape), (d)->count = 0)

/* ---- elements ---- */

static void a_factor_is_a_finite_number(void **state) {
  dry_world *d = *state;
  refused(d, ad_scale(d->tape, leaf(d, "dp=S0 tp=I", SHAPE(1, 6)), INFINITY), AD_INVALID, "scale");
  refused(d, ad_scale(d->tape, leaf(d, "dp=S0 tp=I", SHAPE(1, 6)), NAN), AD_INVALID, "scale");
  assert_non_null(ad_tensor_array(ad_scale(d->tape, leaf(d, "dp=S0 tp=I", SHAPE(1, 6)), -1.5)));
}

/* ---- heads and positions ---- */

static void rotations_are_of_pairs_by_a_positive_base(void **state) {
  dry_world *d = *state;
  const ad_shape shape = SHAPE(3, 6, 8, 12);
  refused(d, ad_rotary(d->tape, leaf(d, "dp=S0 tp=I", shape), 3, 10000), AD_INVALID, "rotary", "3");
  refused(d, ad_rotary(d->tape, leaf(d, "dp=S0 tp=I", shape), 4, 0), AD_INVALID, "rotary", "0");
  refused(d, ad_rotary(d->tape, leaf(d, "dp=S0 tp=I", shape), 4, -2.5), AD_INVALID, "rotary", "-2.5", "0");
  refused(d, ad_rotary(d->tape, leaf(d, "dp=S0 tp=I", shape), 5, 10000), AD_INVALID, "rotary", "head_dim 5", "12");
  refused(d, ad_rotary(d->tape, leaf(d, "dp=S0 tp=I", shape), 0, 10000), AD_INVALID, "rotary", "head_dim 0", "12");
  assert_non_null(ad_tensor_array(ad_rotary(d->tape, leaf(d, "dp=S0 tp=I", shape), 2, 0.5)));
}

/* Each of four numbers at its bound, and all of them above it. */
static void the_numbers_of_a_scaled_rotation_are_named(void **state) {
  dry_world *d = *state;
  const ad_shape shape = SHAPE(3, 6, 8, 12);
  static const struct {
    ad_rotary_scaling is;
    const char *facts[6];
  } wrong[] = {{{-8, 1, 4, 64}, {"rotary", "factor -8", "low_turns 1", "high_turns 4", "original_positions 64"}},
               {{8, 0, 4, 64}, {"rotary", "factor 8", "low_turns 0", "high_turns 4", "original_positions 64"}},
               {{8, 4, 4, 64}, {"rotary", "factor 8", "low_turns 4", "high_turns 4", "original_positions 64"}},
               {{8, 1, 4, 0}, {"rotary", "factor 8", "low_turns 1", "high_turns 4", "original_positions 0"}}};
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
    assert_null(ad_tensor_array(ad_rotary_scaled(d->tape, leaf(d, "dp=S0 tp=I", shape), 4, 10000, &wrong[i].is)));
    assert_says_all(wrong[i].facts);
    NEXT(d);
  }
  const ad_rotary_scaling right = {0.5, 0.25, 0.5, 1};
  assert_non_null(ad_tensor_array(ad_rotary_scaled(d->tape, leaf(d, "dp=S0 tp=I", shape), 4, 10000, &right)));
}

static ad_tensor *attend(dry_world *d, const char *on_q, ad_shape q, const char *on_k, ad_shape k, int64_t head_dim) {
  return ad_attention(d->tape, leaf(d, on_q, q), leaf(d, on_k, k), leaf(d, on_k, k), head_dim);
}

static void what_attention_needs_is_reported_in_numbers(void **state) {
  dry_world *d = *state;
  const ad_shape all_dims = SHAPE(3, 2, 12, 6), fewer = SHAPE(3, 2, 12, 3);
  refused(d, attend(d, "dp=I tp=I", all_dims, "dp=I tp=I", SHAPE(3, 2, 10, 6), 2), AD_INVALID, "attention",
          "[2, 12, 6]", "[2, 10, 6]");
  refused(d, attend(d, "dp=S1 tp=S1", all_dims, "dp=S1 tp=S1", all_dims, 2), AD_INVALID, "attention", "dp_shard", "tp");
  assert_non_null(ad_tensor_array(attend(d, "dp=I tp=S2", all_dims, "dp=I tp=R", fewer, 1)));
  NEXT(d);
  assert_non_null(ad_tensor_array(attend(d, "dp=I tp=S2", all_dims, "dp=I tp=S2", all_dims, 1)));
  NEXT(d);
  assert_non_null(ad_tensor_array(attend(d, "dp=I tp=S1", all_dims, "dp=I tp=S1", all_dims, 1)));
}

/* The second of three ranks has the heads 2 to 4 of eight, but only head 1 of four. */
static void a_rank_has_the_keys_that_its_queries_need(void **state) {
  dry_world d = {0};
  must(ad_comm_open_dry(1, 3, &d.comm));
  must(ad_mesh_create("tp=3", &d.mesh));
  must(ad_tape_create(d.comm, d.mesh, NULL, &d.tape));
  const ad_shape all_dims = SHAPE(3, 2, 12, 8), half = SHAPE(3, 2, 12, 4);
  refused(&d, attend(&d, "tp=S2", all_dims, "tp=S2", half, 1), AD_INVALID, "attention", "heads 2", "4", "heads 1", "2",
          "1", "head 1");
  assert_non_null(ad_tensor_array(attend(&d, "tp=S2", all_dims, "tp=R", half, 1)));
  ad_tape_destroy(d.tape);
  ad_mesh_destroy(d.mesh);
  ad_comm_close(d.comm);
}

static void an_operand_of_attention_has_the_dtype_of_the_tape(void **state) {
  dry_world *d = *state;
  ad_tape *narrow;
  ad_tape_options options = {.size = sizeof options, .dtype = AD_BF16};
  must(ad_tape_create(d->comm, d->mesh, &options, &narrow));
  for (int i = 0; i < 3; i++) {
    static const char *const names[] = {"operand 1", "operand 2", "operand 3"};
    ad_tensor *x[3];
    for (int k = 0; k < 3; k++)
      x[k] = ad_input(narrow, array_of(d, k == i ? AD_F32 : AD_BF16, "dp=I tp=I", SHAPE(3, 2, 4, 6)));
    assert_null(ad_tensor_array(ad_attention(narrow, x[0], x[1], x[2], 2)));
    assert_says("attention", names[i], "f32", "bf16");
    ad_tape_reset(narrow);
  }
  ad_tape_destroy(narrow);
}

/* ---- sharded tables ---- */

static void a_rank_has_one_piece_of_a_table(void **state) {
  dry_world *d = *state;
  ad_tensor *table = leaf(d, "dp_shard=S0z tp=I", SHAPE(2, 8, 4));
  refused(d, ad_embedding(d->tape, table, indices(d, "dp=I tp=I", SHAPE(2, 3, 5))), AD_INVALID, "embedding", "2");
  table = leaf(d, "dp=I tp=S0", SHAPE(2, 8, 4));
  assert_non_null(ad_tensor_array(ad_embedding(d->tape, table, indices(d, "dp=I tp=I", SHAPE(2, 3, 5)))));
  NEXT(d);
  ad_tensor *logits = leaf(d, "dp_shard=S1z tp=I", SHAPE(2, 3, 8));
  refused(d, ad_cross_entropy(d->tape, logits, indices(d, "dp=I tp=I", SHAPE(1, 3))), AD_INVALID, "cross_entropy", "2");
  logits = leaf(d, "dp=I tp=S1", SHAPE(2, 3, 8));
  assert_non_null(ad_tensor_array(ad_cross_entropy(d->tape, logits, indices(d, "dp=I tp=I", SHAPE(1, 3)))));
}

/* ---- rows in the place of others ---- */

static void what_is_placed_in_front_fits_the_sequence(void **state) {
  dry_world *d = *state;
  static const struct {
    ad_shape of, front;
    const char *facts[4];
  } wrong[] = {{{3, {6, 4, 8}}, {3, {6, 5, 8}}, {"place", "[6, 5, 8]", "[6, 4, 8]"}},
               {{3, {6, 4, 8}}, {3, {3, 2, 8}}, {"place", "[3, 2, 8]", "[6, 4, 8]"}},
               {{3, {6, 4, 8}}, {3, {6, 2, 7}}, {"place", "[6, 2, 7]", "[6, 4, 8]"}},
               {{3, {6, 4, 8}}, {2, {6, 2}}, {"place", "[6, 2]", "[6, 4, 8]"}},
               {{2, {6, 4}}, {3, {6, 4, 8}}, {"place", "[6, 4, 8]", "[6, 4]"}}};
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
    ad_tensor *x = leaf(d, "dp=I tp=I", wrong[i].of), *y = leaf(d, "dp=I tp=I", wrong[i].front);
    assert_null(ad_tensor_array(ad_place(d->tape, x, y)));
    assert_int_equal(ad_tape_status(d->tape), AD_INVALID);
    assert_says_all(wrong[i].facts);
    NEXT(d);
  }
  for (int64_t rows = 0; rows <= 4; rows += 4) {
    ad_tensor *x = leaf(d, "dp=I tp=I", SHAPE(3, 6, 4, 8)), *y = leaf(d, "dp=I tp=I", SHAPE(3, 6, rows, 8));
    assert_non_null(ad_tensor_array(ad_place(d->tape, x, y)));
  }
  for (int i = 0; i < 2; i++) {
    NEXT(d);
    ad_tensor *x = leaf(d, i ? "dp=S0 tp=S1" : "dp=S0 tp=I", SHAPE(3, 6, 4, 8));
    ad_tensor *y = leaf(d, i ? "dp=S0 tp=I" : "dp=S0 tp=S1", SHAPE(3, 6, 2, 8));
    refused(d, ad_place(d->tape, x, y), AD_TYPE, "place", "tp");
  }
}

/* ---- rows ---- */

static void rows_come_back_to_the_value_that_they_were_of(void **state) {
  dry_world *d = *state;
  refused(d, ad_to_rows(d->tape, leaf(d, "dp=I tp=I", SHAPE(1, 6))), AD_INVALID, "to_rows", "[6]", "2");
  ad_tensor *like = leaf(d, "dp=I tp=I", SHAPE(3, 2, 3, 8));
  refused(d, ad_from_rows(d->tape, leaf(d, "dp=I tp=I", SHAPE(2, 5, 8)), like), AD_INVALID, "from_rows", "5", "6");
  like = leaf(d, "dp=I tp=I", SHAPE(3, 2, 3, 8));
  refused(d, ad_from_rows(d->tape, leaf(d, "dp=I tp=I", SHAPE(3, 6, 2, 4)), like), AD_INVALID, "from_rows", "6", "6");
  like = leaf(d, "dp=I tp=I", SHAPE(3, 2, 3, 8));
  refused(d, ad_from_rows(d->tape, leaf(d, "dp=I tp=I", SHAPE(0, 0)), like), AD_INVALID, "from_rows", "0", "6");
  refused(d, ad_from_rows(d->tape, leaf(d, "dp=I tp=I", SHAPE(2, 6, 8)), NULL), AD_INVALID, "from_rows", "NULL");
  like = leaf(d, "dp=I tp=I", SHAPE(3, 2, 3, 8));
  const ad_array *back = ad_tensor_array(ad_from_rows(d->tape, leaf(d, "dp=I tp=I", SHAPE(2, 6, 5)), like));
  assert_true(back && ad_shape_equal(&back->shape, &SHAPE(3, 2, 3, 5)));
}

static ad_routing *route(dry_world *d) {
  ad_routing *routing;
  ad_tensor *chosen = ad_top_k(d->tape, leaf(d, "dp=I tp=V", SHAPE(2, 7, 3)), 2, NULL, &routing);
  assert_non_null(ad_tensor_array(chosen));
  return routing;
}

/* Seven tokens choose two of three experts each: fourteen slots. */
static void rows_are_as_many_as_were_routed(void **state) {
  dry_world *d = *state;
  for (int64_t less = 0; less < 2; less++) {
    ad_routing *routing = route(d);
    ad_tensor *tokens = leaf(d, "dp=I tp=V", SHAPE(2, 7 - less, 4)), *x = ad_to_slots(d->tape, tokens, routing);
    if (less)
      refused(d, x, AD_INVALID, "to_slots", "6", "7");
    else
      assert_int_equal(ad_tensor_array(x)->shape.dim[0], 14);
    NEXT(d);
    routing = route(d);
    x = ad_from_slots(d->tape, leaf(d, "dp=I tp=V", SHAPE(2, 14 - less, 4)), routing);
    if (less)
      refused(d, x, AD_INVALID, "from_slots", "13", "14");
    else
      assert_int_equal(ad_tensor_array(x)->shape.dim[0], 7);
    NEXT(d);
    routing = route(d);
    x = ad_slot_weights(d->tape, leaf(d, "dp=I tp=V", SHAPE(2, 7, 2 - less)), routing);
    if (less)
      refused(d, x, AD_INVALID, "slot_weights", "7", "14");
    else
      assert_int_equal(ad_tensor_array(x)->shape.dim[0], 14);
    NEXT(d);
  }
  ad_routing *routing = route(d);
  refused(d, ad_to_slots(d->tape, leaf(d, "dp=I tp=V", SHAPE(0, 0)), routing), AD_INVALID, "to_slots", "0", "7");
}

/* Rank 1 of two has the experts 1 and 2, to which both send what it sends on backend dry: five rows and four. */
static void each_expert_has_its_matrix(void **state) {
  dry_world *d = *state;
  static const struct {
    int64_t rows, matrices;
    const char *facts[8];
  } cases[] = {{18, 3, {NULL}},
               {17, 3, {"grouped_linear", "operand 1", "17", "operand 2", "2", "18", "2"}},
               {18, 5, {"grouped_linear", "operand 1", "18", "operand 2", "3", "18", "2"}}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    ad_routing *routing = route(d);
    ad_tensor *tokens = leaf(d, "dp=I tp=V", SHAPE(2, 7, 4));
    ad_tensor *sent = ad_dispatch(d->tape, ad_to_slots(d->tape, tokens, routing), routing, "tp");
    assert_int_equal(ad_tensor_array(sent)->local.dim[0], 18);
    ad_tensor *x = leaf(d, "dp=I tp=V", SHAPE(2, cases[i].rows, 4));
    ad_tensor *w = leaf(d, "dp=I tp=S0", SHAPE(3, cases[i].matrices, 4, 5));
    int made = ad_tensor_array(ad_grouped_linear(d->tape, x, w, routing)) != NULL;
    assert_int_equal(made, i == 0);
    if (!made) assert_says_all(cases[i].facts);
    NEXT(d);
  }
}

static void experts_are_chosen_from_whole_rows(void **state) {
  dry_world *d = *state;
  static const char *const layouts[] = {"dp=I tp=S1", "dp=I tp=P", "dp=I tp=S0"}, *const types[] = {"S(1)", "P",
                                                                                                    "S(0)"};
  for (int i = 0; i < 3; i++) {
    assert_null(ad_tensor_array(ad_top_k(d->tape, leaf(d, layouts[i], SHAPE(2, 6, 4)), 2, NULL, NULL)));
    assert_int_equal(ad_tape_status(d->tape), AD_TYPE);
    assert_says("top_k", types[i], "tp", "R", "I", "V");
    NEXT(d);
  }
  for (int64_t k = 0; k <= 5; k++) {
    int made = ad_tensor_array(ad_top_k(d->tape, leaf(d, "dp=I tp=V", SHAPE(2, 6, 4)), k, NULL, NULL)) != NULL;
    assert_int_equal(made, k >= 1 && k <= 4);
    NEXT(d);
  }
}

static void a_limit_is_of_a_batch_of_the_tape(void **state) {
  dry_world *d = *state;
  ad_routing *routing = route(d);
  ad_limit(d->tape, routing, 1, NULL, 0);
  assert_int_equal(ad_tape_status(d->tape), AD_INVALID);
  assert_says("limit", "NULL");
  NEXT(d);
  routing = route(d);
  ad_limit(d->tape, routing, 1, leaf(d, "dp=I tp=V", SHAPE(1, 7)), 0);
  assert_int_equal(ad_tape_status(d->tape), AD_INVALID);
  assert_says("limit", "[samples, seq, ...]");
  NEXT(d);
  routing = route(d);
  ad_limit(d->tape, routing, 1, leaf(d, "dp=I tp=V", SHAPE(2, 1, 7)), 0);
  must(ad_tape_status(d->tape));
}

/* ---- leaves ---- */

static void a_leaf_has_the_ranks_of_its_tape(void **state) {
  dry_world *d = *state, other = {.comm = d->comm};
  must(ad_mesh_create("dp_shard=3", &other.mesh));
  const ad_array *x = array_of(&other, AD_F32, "dp_shard=S0", SHAPE(1, 6));
  refused(d, ad_input(d->tape, x), AD_TYPE, "dp_shard=3 tp=2");
  ad_array scaled = *array_of(d, AD_F32, "dp=S0 tp=I", SHAPE(1, 6));
  scaled.scale = 3;
  refused(d, ad_input(d->tape, &scaled), AD_TYPE, "3", "0");
  refused(d, ad_input(d->tape, NULL), AD_INVALID, "NULL");
  ad_mesh_destroy(other.mesh);
}

static void a_tape_is_of_a_rank_of_its_mesh(void **state) {
  dry_world *d = *state;
  ad_comm *comm;
  ad_tape *tape = NULL;
  must(ad_comm_open_dry(6, 8, &comm));
  assert_int_equal(ad_tape_create(comm, d->mesh, NULL, &tape), AD_INVALID);
  assert_says("rank 6", "dp_shard=3 tp=2");
  ad_comm_close(comm);
}

static void parameters_are_of_the_size_of_their_struct(void **state) {
  dry_world *d = *state;
  const ad_array *list[1] = {array_of(d, AD_F32, "dp=R tp=I", SHAPE(1, 4))};
  ad_parameters from = {.size = 7, .values = list, .count = 1};
  char size[24];
  snprintf(size, sizeof size, "%zu", sizeof from);
  refused(d, ad_parameter(d->tape, &from, 0), AD_INVALID, "7", size);
  from.values = NULL;
  refused(d, ad_parameter(d->tape, &from, 0), AD_INVALID, "NULL");
  refused(d, ad_parameter(d->tape, NULL, 0), AD_INVALID, "NULL");
}

/* Five columns sharded over two ranks have parts of two and three, which are no whole of equal parts. */
static void what_comes_in_and_what_leaves_is_there(void **state) {
  dry_world *d = *state;
  refused(d, ad_to_local(d->tape, NULL, NULL), AD_INVALID, "to_local", "NULL");
  refused(d, ad_from_local(d->tape, NULL, "tp=I", NULL), AD_INVALID, "from_local", "NULL");
  ad_array none = {.dtype = AD_F32};
  refused(d, ad_from_local(d->tape, &none, "tp=I", NULL), AD_INVALID, "from_local", "NULL");
  const ad_array *sharded = array_of(d, AD_F32, "dp=I tp=S1", SHAPE(2, 4, 5));
  refused(d, ad_from_local(d->tape, sharded, "dp=I tp=V", NULL), AD_INVALID, "from_local", "[4, 6]", "[4, 5]");
  sharded = array_of(d, AD_F32, "dp=I tp=S1", SHAPE(2, 4, 6));
  assert_non_null(ad_tensor_array(ad_from_local(d->tape, sharded, "dp=I tp=V", NULL)));
}

/* Beyond backend dry, values have memory: those of a leaf, and those of a parameter where it is used. */
static void values_are_in_memory(void **state) {
  world w = world_open();
  ad_tape *tape = open_tape(&w, AD_F64);
  ad_array full = random_array(&w, AD_F64, (ad_shape){1, {5}}, 1, 0), empty = full;
  const ad_array *list[1] = {&empty};
  ad_parameters from = {.size = sizeof from, .values = list, .count = 1};
  empty.data = NULL;
  assert_null(ad_tensor_array(ad_input(tape, &empty)));
  assert_says("test_refused.c", "NULL");
  ad_tape_reset(tape);
  assert_null(ad_tensor_array(ad_parameter(tape, &from, 0)));
  assert_says("test_refused.c", "NULL");
  ad_tape_reset(tape);
  empty.data = full.data;
  ad_tensor *param = ad_parameter(tape, &from, 0);
  empty.data = NULL;
  assert_null(ad_tensor_array(ad_add(tape, param, ad_input(tape, &full))));
  assert_says("test_refused.c", "NULL");
  ad_tape_reset(tape);
  empty.shape.dim[0] = empty.local.dim[0] = 0;
  assert_non_null(ad_tensor_array(ad_input(tape, &empty)));
  ad_tape_destroy(tape);
  free(full.data);
  world_close(&w);
}

#define TEST(function) cmocka_unit_test_setup_teardown(function, open_dry, close_dry)
int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(a_factor_is_a_finite_number),
      TEST(rotations_are_of_pairs_by_a_positive_base),
      TEST(the_numbers_of_a_scaled_rotation_are_named),
      TEST(what_attention_needs_is_reported_in_numbers),
      cmocka_unit_test(a_rank_has_the_keys_that_its_queries_need),
      TEST(an_operand_of_attention_has_the_dtype_of_the_tape),
      TEST(a_rank_has_one_piece_of_a_table),
      TEST(what_is_placed_in_front_fits_the_sequence),
      TEST(rows_come_back_to_the_value_that_they_were_of),
      TEST(rows_are_as_many_as_were_routed),
      TEST(each_expert_has_its_matrix),
      TEST(experts_are_chosen_from_whole_rows),
      TEST(a_limit_is_of_a_batch_of_the_tape),
      TEST(a_leaf_has_the_ranks_of_its_tape),
      TEST(a_tape_is_of_a_rank_of_its_mesh),
      TEST(parameters_are_of_the_size_of_their_struct),
      TEST(what_comes_in_and_what_leaves_is_there),
      cmocka_unit_test(values_are_in_memory),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
