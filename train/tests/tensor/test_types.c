/* Tests what the tape refuses, on backend dry: types, shapes, dtypes and where backward may start. The type rules
 * themselves are tested in core/tests/layout. */
#include <stdio.h>
#include "says.h"
#include "base/injection.h"
#include "layout/sentences.h"
#include "reduce/count.h"
#include "tensor/repair.h"
#include "tensor/tape.h"
#include "bent.h"
#include "dry_world.h"
#include "addend/routing.h"

/* Checks the types on dp_shard and tp. */
static void assert_types(const ad_array *array, ad_type on_dp, ad_type on_tp) {
  assert_non_null(array);
  assert_int_equal(array->layout.type[AD_DP_SHARD], on_dp);
  assert_int_equal(array->layout.type[AD_TP], on_tp);
}

/* A transformer block: x is I on tp, the weights are sharded. */
static ad_tensor *block(dry_world *d, int reduces) {
  ad_tensor *x = leaf(d, "dp=S0 tp=I", SHAPE(3, 6, 4, 8));
  ad_tensor *w1 = leaf(d, "dp=R tp=S1", SHAPE(2, 8, 32)), *w2 = leaf(d, "dp=R tp=S0", SHAPE(2, 32, 8));
  ad_tensor *h = ad_linear(d->tape, ad_convert(d->tape, x, "tp", AD_R), w1);
  h = ad_linear(d->tape, ad_gelu(d->tape, h), w2);
  if (reduces) h = ad_all_reduce(d->tape, h, "tp", AD_I);
  return ad_add(d->tape, x, h);
}

static void a_forgotten_all_reduce_is_a_type_error_at_the_next_line(void **state) {
  dry_world *d = *state;
  ad_tensor *out = block(d, 0);
  assert_null(ad_tensor_array(out));
  assert_int_equal(ad_tape_status(d->tape), AD_TYPE);
  assert_says("test_types.c", "add", "operand 1", "tp", "P->I");
}

static void the_block_with_its_all_reduce_is_typed(void **state) {
  dry_world *d = *state;
  ad_tensor *out = block(d, 1);
  must(ad_tape_status(d->tape));
  assert_types(ad_tensor_array(out), AD_S(0), AD_I);
  must(ad_backward(d->tape, ad_sum(d->tape, out)));
}

static void gradients_have_the_dual_layout(void **state) {
  dry_world *d = *state;
  ad_tensor *x = leaf(d, "dp=S0 tp=I", SHAPE(2, 6, 8)), *w = leaf(d, "dp=R tp=S1", SHAPE(2, 8, 4));
  ad_tensor *r = ad_convert(d->tape, x, "tp", AD_R), *y = ad_linear(d->tape, r, w);
  ad_keep(r);
  must(ad_backward(d->tape, ad_sum(d->tape, y)));
  assert_types(ad_grad(w), AD_P, AD_S(1));
  assert_types(ad_grad(r), AD_S(0), AD_P);
  assert_types(ad_grad(x), AD_S(0), AD_I);
  assert_null(ad_grad(y));
}

static void the_first_error_sticks(void **state) {
  dry_world *d = *state;
  ad_tensor *x = leaf(d, "dp=S0 tp=I", SHAPE(2, 6, 8)), *y = leaf(d, "dp=S0 tp=I", SHAPE(2, 6, 7));
  ad_tensor *first = ad_add(d->tape, x, y);
  char message[512];
  assert_int_equal(ad_tape_status(d->tape), AD_INVALID);
  snprintf(message, sizeof message, "%s", ad_last_error());
  ad_tensor *later = ad_linear(d->tape, ad_gelu(d->tape, first), NULL);
  assert_null(ad_tensor_array(later));
  assert_null(ad_grad(later));
  assert_true(isnan(ad_tensor_scalar(later)));
  assert_int_equal(ad_backward(d->tape, later), AD_INVALID);
  assert_string_equal(ad_last_error(), message);
  ad_tape_reset(d->tape);
  must(ad_tape_status(d->tape));
}

static void shapes_that_differ_are_named(void **state) {
  dry_world *d = *state;
  ad_linear(d->tape, leaf(d, "dp=S0 tp=I", SHAPE(2, 6, 8)), leaf(d, "dp=R tp=I", SHAPE(2, 9, 4)));
  assert_int_equal(ad_tape_status(d->tape), AD_INVALID);
  assert_says("linear", "operand 2", "[9, 4]");
  ad_tape_reset(d->tape);
  ad_linear(d->tape, leaf(d, "dp=S0 tp=I", SHAPE(2, 6, 8)), leaf(d, "dp=R tp=I", SHAPE(1, 8)));
  assert_int_equal(ad_tape_status(d->tape), AD_INVALID);
  assert_says("linear", "operand 2", "2 dimensions");
  ad_tape_reset(d->tape);
  ad_attention(d->tape, leaf(d, "dp=S0 tp=I", SHAPE(3, 6, 8, 12)), leaf(d, "dp=S0 tp=I", SHAPE(3, 6, 8, 12)),
               leaf(d, "dp=S0 tp=I", SHAPE(3, 6, 8, 12)), 5);
  assert_int_equal(ad_tape_status(d->tape), AD_INVALID);
  assert_says("attention", "head_dim 5", "12", "12");
}

/* The numbers of heads that a message names are those of the operands: 12 / 4 and 8 / 4. */
static void heads_that_do_not_go_together_are_counted(void **state) {
  dry_world *d = *state;
  for (int64_t head_dim = 4; head_dim <= 8; head_dim += 4) {
    ad_tensor *keys = leaf(d, "dp=S0 tp=I", SHAPE(3, 6, 8, 8));
    ad_attention(d->tape, leaf(d, "dp=S0 tp=I", SHAPE(3, 6, 8, 12)), keys, keys, head_dim);
    assert_int_equal(ad_tape_status(d->tape), AD_INVALID);
    if (head_dim == 4)
      assert_says("attention", "2", "3");
    else
      assert_says("attention", "head_dim 8", "12", "8");
    ad_tape_reset(d->tape);
  }
}

static void heads_are_not_cut_in_two(void **state) {
  dry_world *d = *state;
  ad_rotary(d->tape, leaf(d, "dp=S0 tp=S2", SHAPE(3, 6, 8, 12)), 4, 10000);
  assert_int_equal(ad_tape_status(d->tape), AD_INVALID);
  assert_says("rotary", "[6, 12)", "4", "3");
}

static void scaled_rotations_have_numbers_that_mean_something(void **state) {
  dry_world *d = *state;
  static const ad_rotary_scaling wrong[] = {{-1, 1, 4, 64}, {8, 0, 4, 64}, {8, 4, 4, 64}, {8, 1, 4, 0}};
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
    ad_rotary_scaled(d->tape, leaf(d, "dp=S0 tp=I", SHAPE(3, 6, 8, 12)), 4, 10000, &wrong[i]);
    assert_int_equal(ad_tape_status(d->tape), AD_INVALID);
    assert_says("rotary", "high_turns", "low_turns");
    ad_tape_reset(d->tape);
    d->count = 0;
  }
  static const ad_rotary_scaling none = {0};
  ad_rotary_scaled(d->tape, leaf(d, "dp=S0 tp=I", SHAPE(3, 6, 8, 12)), 4, 10000, &none);
  ad_rotary_scaled(d->tape, leaf(d, "dp=S0 tp=I", SHAPE(3, 6, 8, 12)), 4, 10000, NULL);
  must(ad_tape_status(d->tape));
}

static void indices_are_i32_and_values_are_not(void **state) {
  dry_world *d = *state;
  ad_embedding(d->tape, leaf(d, "dp=R tp=I", SHAPE(2, 9, 4)), leaf(d, "dp=S0 tp=I", SHAPE(2, 6, 5)));
  assert_int_equal(ad_tape_status(d->tape), AD_INVALID);
  assert_says("embedding", "i32");
  ad_tape_reset(d->tape);
  ad_gelu(d->tape, indices(d, "dp=S0 tp=I", SHAPE(2, 6, 5)));
  assert_int_equal(ad_tape_status(d->tape), AD_INVALID);
  ad_tape_reset(d->tape);
  ad_input(d->tape, array_of(d, AD_F64, "dp=R tp=I", SHAPE(1, 4)));
  assert_int_equal(ad_tape_status(d->tape), AD_INVALID);
  assert_says("f64", "f32");
}

static ad_status start_from(dry_world *d, const char *layout) {
  ad_tape_reset(d->tape);
  d->count = 0;
  return ad_backward(d->tape, ad_scale(d->tape, leaf(d, layout, SHAPE(0, 0)), 2));
}

static void backward_starts_from_sums_only(void **state) {
  dry_world *d = *state;
  must(start_from(d, "dp=P tp=I"));
  must(start_from(d, "dp=I tp=P"));
  assert_int_equal(start_from(d, "dp=R tp=I"), AD_TYPE);
  assert_says("backward", "R", "dp_shard", "R->P");
  assert_int_equal(start_from(d, "dp=P tp=V"), AD_TYPE);
  assert_says("backward", "V", "tp", "V->P");
  ad_tape_reset(d->tape);
  assert_int_equal(ad_backward(d->tape, leaf(d, "dp=P tp=I", SHAPE(1, 3))), AD_INVALID);
  assert_says("backward", "[3]");
}

static void backward_runs_once(void **state) {
  dry_world *d = *state;
  ad_tensor *loss = ad_sum(d->tape, leaf(d, "dp=S0 tp=I", SHAPE(1, 6)));
  must(ad_backward(d->tape, loss));
  assert_int_equal(ad_backward(d->tape, loss), AD_INVALID);
  assert_says("ad_tape_reset");
}

static void tensors_belong_to_their_tape(void **state) {
  dry_world *d = *state;
  ad_tape *other;
  must(ad_tape_create(d->comm, d->mesh, NULL, &other));
  ad_tensor *x = leaf(d, "dp=S0 tp=I", SHAPE(1, 6));
  ad_gelu(other, x);
  assert_int_equal(ad_tape_status(other), AD_INVALID);
  ad_tape_destroy(other);
  ad_add(d->tape, x, NULL);
  assert_int_equal(ad_tape_status(d->tape), AD_INVALID);
  assert_says("add", "operand 2", "NULL");
  ad_tensor *dead = ad_gelu(d->tape, x);
  ad_tape_reset(d->tape);
  assert_int_equal(ad_backward(d->tape, dead), AD_INVALID);
  assert_says("ad_tape_reset");
  ad_tape_reset(d->tape);
  ad_all_reduce(d->tape, dead, "tp", AD_R);
  assert_int_equal(ad_tape_status(d->tape), AD_INVALID);
}

static void wrong_options_are_refused(void **state) {
  dry_world *d = *state;
  ad_tape *tape = NULL;
  ad_tape_options options = {0};
  assert_int_equal(ad_tape_create(d->comm, d->mesh, &options, &tape), AD_INVALID);
  options.size = sizeof options;
  options.dtype = AD_F16;
  assert_int_equal(ad_tape_create(d->comm, d->mesh, &options, &tape), AD_INVALID);
  assert_says("tape", "f16");
  options.dtype = AD_F32;
  options.residual = AD_BF16;
  assert_int_equal(ad_tape_create(d->comm, d->mesh, &options, &tape), AD_INVALID);
  assert_says("tape", "bf16", "f32");
  assert_null(tape);
}

static void a_tape_takes_no_dtype_of_collectives_alone(void **state) {
  dry_world *d = *state;
  for (ad_dtype dtype = AD_U8; dtype <= AD_BOOL; dtype++) {
    ad_tape *tape = NULL;
    ad_tape_options options = {.size = sizeof options, .dtype = dtype};
    assert_int_equal(ad_tape_create(d->comm, d->mesh, &options, &tape), AD_INVALID);
    assert_says("tape", ad_dtype_name(dtype));
    ad_array array = *array_of(d, AD_I32, "dp=R tp=R", (ad_shape){1, {4}});
    array.dtype = dtype;
    ad_tape_reset(d->tape);
    ad_constant(d->tape, &array);
    assert_int_equal(ad_tape_status(d->tape), AD_INVALID);
    assert_says(ad_dtype_name(dtype), "i32");
    ad_tape_reset(d->tape);
    ad_input(d->tape, &array);
    assert_int_equal(ad_tape_status(d->tape), AD_INVALID);
    assert_says("test_types.c", ad_dtype_name(dtype), "f32");
  }
}

/* Rows that all ranks of an axis flattened in the same way cannot return to a tensor that is sharded on this axis: rows
 * and tensor would be sharded at different places. */
static void rows_that_were_sharded_on_their_way_do_not_return(void **state) {
  dry_world *d = *state;
  ad_tensor *x = leaf(d, "dp=S0 tp=I", SHAPE(3, 6, 4, 8)), *like = leaf(d, "dp=S0 tp=I", SHAPE(3, 3, 4, 8));
  ad_tensor *sharded = ad_convert(d->tape, ad_to_rows(d->tape, x), "tp", AD_S(0));
  must(ad_tape_status(d->tape));
  assert_null(ad_tensor_array(ad_from_rows(d->tape, sharded, like)));
  assert_int_equal(ad_tape_status(d->tape), AD_TYPE);
  assert_says("S(0)", "tp", "I");
}

static void a_move_over_axes_of_different_types_is_a_chain(void **state) {
  dry_world *d = *state;
  ad_tensor *x = leaf(d, "dp=I tp=R", SHAPE(2, 6, 8));
  ad_tensor *sharded = ad_convert(d->tape, x, "dp tp", AD_S(0)), *full = ad_all_gather(d->tape, sharded, "dp tp", AD_I);
  must(ad_tape_status(d->tape));
  assert_types(ad_tensor_array(sharded), AD_S(0), AD_S(0));
  assert_types(ad_tensor_array(full), AD_I, AD_I);
  must(ad_backward(d->tape, ad_sum(d->tape, full)));
  assert_types(ad_grad(x), AD_I, AD_P);
}

static void nested_shardings_come_back_in_their_order(void **state) {
  dry_world *d = *state;
  ad_tensor *x = leaf(d, "tp=S0 dp=S0", SHAPE(2, 12, 8));  // tp is the outer cut of dimension 0
  ad_tensor *full = ad_all_gather(d->tape, x, "dp tp", AD_I);
  must(ad_tape_status(d->tape));
  must(ad_backward(d->tape, ad_sum(d->tape, full)));
  ad_layout dual = ad_layout_dual(&ad_tensor_array(x)->layout);
  assert_true(ad_layout_equal(&ad_grad(x)->layout, &dual));
}

/* The loss of a batch that is sharded over dp_shard, the only data axis that the mesh names; on the other it is R. */
static ad_tensor *loss_of_sharded_batch(dry_world *d) {
  return ad_sum(d->tape, leaf(d, "dp_shard=S0 tp=I", SHAPE(2, 6, 8)));
}

static void an_axis_that_the_mesh_does_not_name_is_left_out_of_a_set(void **state) {
  dry_world *d = *state;
  ad_tensor *loss = loss_of_sharded_batch(d);
  assert_types(ad_tensor_array(ad_all_reduce(d->tape, loss, "dp", AD_R)), AD_R, AD_I);
  ad_tensor *reduced = ad_all_reduce(d->tape, loss, "dp", AD_I);
  assert_types(ad_tensor_array(reduced), AD_I, AD_I);
  assert_int_equal(ad_tensor_array(reduced)->layout.type[AD_DP_REPLICATE], AD_R);
  must(ad_backward(d->tape, reduced));
}

static void a_set_that_has_arrived_is_refused_by_its_named_axis(void **state) {
  dry_world *d = *state;
  ad_tensor *reduced = ad_all_reduce(d->tape, loss_of_sharded_batch(d), "dp", AD_I);
  must(ad_tape_status(d->tape));
  ad_all_reduce(d->tape, reduced, "dp", AD_I);
  assert_int_equal(ad_tape_status(d->tape), AD_TYPE);
  assert_says("all_reduce", "I", "dp_shard");
  ad_tape_reset(d->tape);
  ad_all_reduce(d->tape, loss_of_sharded_batch(d), "dp_replicate", AD_R);
  assert_int_equal(ad_tape_status(d->tape), AD_TYPE);
  assert_says("all_reduce", "R", "dp_replicate");
}

static void the_gradient_of_a_replicated_addend_of_a_varying_sum_is_partial(void **state) {
  dry_world *d = *state;
  ad_tensor *x = leaf(d, "dp=I tp=R", SHAPE(1, 6)), *y = leaf(d, "dp=I tp=V", SHAPE(1, 6));
  ad_tensor *sum = ad_declare(d->tape, ad_sum(d->tape, ad_add(d->tape, x, y)), "tp", AD_P);
  must(ad_backward(d->tape, sum));
  assert_types(ad_grad(x), AD_I, AD_P);  // x's gradient is in the memory of the sum's gradient, which is V
  assert_types(ad_grad(y), AD_I, AD_V);
}

static void transitions_are_numbered_in_the_order_of_recording(void **state) {
  dry_world *d = *state;
  for (int i = 0; i < 2; i++) {
    ad_tape_reset(d->tape);
    d->count = 0;
    block(d, 1);
    must(ad_tape_status(d->tape));
    assert_int_equal(d->tape->transitions, 2);
    // one conversion would be needed for each type
    ad_convert(d->tape, leaf(d, "dp=I tp=R", SHAPE(2, 6, 8)), "dp tp", AD_S(0));
    must(ad_tape_status(d->tape));
    assert_int_equal(d->tape->transitions, 4);
  }
}

/* ---- partial sums inside nonlinear formulas ---- */

static void what_is_not_linear_takes_no_gradient_that_is_an_addend(void **state) {
  dry_world *d = *state;
  ad_tensor *x = leaf(d, "dp=S0 tp=R", SHAPE(3, 6, 4, 8));
  refused(d, bent(d->tape, x), AD_TYPE, "bent", "R", "tp", "all_reduce", "P->I");
  x = leaf(d, "dp=S0 tp=P", SHAPE(3, 6, 4, 8));
  must(ad_backward(d->tape, ad_sum(d->tape, bent(d->tape, ad_all_reduce(d->tape, x, "tp", AD_I)))));
  ad_tape_reset(d->tape);
  x = leaf(d, "dp=S0 tp=I", SHAPE(3, 6, 4, 8));
  must(ad_backward(d->tape, ad_sum(d->tape, bent(d->tape, x))));
  ad_tape_reset(d->tape);
  x = leaf(d, "dp=S0 tp=P", SHAPE(3, 6, 4, 8));
  refused(d, bent(d->tape, x), AD_TYPE, "bent", "operand 1", "P", "tp", "all_reduce");
}

static void cannot_start(dry_world *d, const char *layout, const char *const *facts) {
  assert_int_equal(ad_backward(d->tape, leaf(d, layout, (ad_shape){0})), AD_TYPE);
  assert_says_in(layout, ad_last_error(), facts);
  ad_tape_reset(d->tape);
}

static void what_is_reported_missing_makes_a_loss_one(void **state) {
  dry_world *d = *state;
  cannot_start(d, "dp=P tp=R", SAYS_FACTS("backward", "R", "tp", "R->P", "P->I", "P->R"));
  must(ad_backward(d->tape, ad_once(d->tape, leaf(d, "dp=P tp=R", (ad_shape){0}), "tp")));
  ad_tape_reset(d->tape);
  must(ad_backward(d->tape, ad_all_reduce(d->tape, leaf(d, "dp=P tp=P", (ad_shape){0}), "tp", AD_I)));
  ad_tape_reset(d->tape);
  cannot_start(d, "dp_shard=V tp=I", SAYS_FACTS("backward", "V", "dp_shard", "V->P"));
  must(ad_backward(d->tape, ad_declare(d->tape, leaf(d, "dp_shard=V tp=I", (ad_shape){0}), "dp_shard", AD_P)));
}

static ad_type type_called(const char *text) {
  static const ad_type types[] = {AD_R, AD_I, AD_V, AD_P, AD_S(0), AD_S(2)};
  char printed[16];
  for (size_t i = 0; i < sizeof types / sizeof *types; i++)
    if (!strcmp(ad_type_print(types[i], printed, sizeof printed), text)) return types[i];
  fail_msg("no type is \"%s\"", text);
  return AD_R;
}

/* Applies a proposal such as "convert operand 2 I->R" on `tp`. */
static void follow_advice(dry_world *d, const char *advice, ad_tensor *operands[2]) {
  char name[32], from[16], to[16], printed[16];
  int operand, move = 0;
  if (sscanf(advice, "%31s operand %d %15[^-]->%15s", name, &operand, from, to) != 4) fail_msg("%s", advice);
  while (move < AD_MOVE_COUNT && strcmp(ad_move_name((ad_move)move), name) != 0) move++;
  ad_tensor **x = &operands[operand - 1];
  assert_string_equal(ad_type_print(ad_tensor_array(*x)->layout.type[AD_TP], printed, sizeof printed), from);
  *x = ad_move_at(d->tape, *x, (ad_move)move, "tp", type_called(to), AD_HERE);
}

/* A type error on an axis proposes a single transition that exists, or proposes nothing if there is none. */
static void what_is_said_to_repair_a_place_does(void **state) {
  static const char *const types[] = {"dp=S0 tp=R", "dp=S0 tp=I",  "dp=S0 tp=V",
                                      "dp=S0 tp=P", "dp=S0 tp=S0", "dp=S0 tp=S2"};
  dry_world *d = *state;
  int reported_count = 0, silent = 0;
  for (int i = 0; i < 36; i++) {
    const ad_shape full = SHAPE(3, 6, 4, 8), front = SHAPE(3, 6, 2, 8);
    if (i / 6 == i % 6) continue;
    assert_null(ad_tensor_array(ad_place(d->tape, leaf(d, types[i / 6], full), leaf(d, types[i % 6], front))));
    assert_says("place", "operand 1", "operand 2", "tp");
    const char *may = strstr(ad_last_error(), AD_MAY_REPAIR);
    char advice[128];
    snprintf(advice, sizeof advice, "%s", may ? may + strlen(AD_MAY_REPAIR) : "");
    ad_tape_reset(d->tape);
    silent += !may;
    if (may) {
      ad_tensor *operands[2] = {leaf(d, types[i / 6], full), leaf(d, types[i % 6], front)};
      follow_advice(d, advice, operands);
      if (!ad_tensor_array(ad_place(d->tape, operands[0], operands[1]))) fail_msg("%s: %s", advice, ad_last_error());
      reported_count++;
    }
    ad_tape_reset(d->tape);
    d->count = 0;
  }
  assert_int_equal(reported_count, 24);
  assert_int_equal(silent, 6); /* V with I, or V with a cut */
}

/* Returns -1, 0 or 1. */
static int sign_of(int64_t difference) { return (difference > 0) - (difference < 0); }

/* Orders repairs by what they state, number of steps, place, operand, axes. */
static int order_of(const ad_repair *a, const ad_repair *b) {
  const int by[] = {ad_repair_states(a) - ad_repair_states(b), a->way.count - b->way.count, a->is_before - b->is_before,
                    a->operand - b->operand, sign_of((int64_t)a->axes - (int64_t)b->axes)};
  for (size_t i = 0; i < sizeof by / sizeof *by; i++)
    if (by[i]) return by[i];
  return 0;
}

/* Among repairs that move the same bytes the first is proposed, so their order must not depend on the sort. */
static void what_a_refused_call_takes_is_listed_in_one_order(void **state) {
  dry_world *d = *state;
  ad_repairs repairs = {0};
  ad_tensor *x = ad_scale(d->tape, leaf(d, "dp=S0 tp=R", SHAPE(3, 6, 4, 8)), 2);
  ad_repairs_watch(&repairs);
  assert_null(ad_tensor_array(bent(d->tape, x)));
  ad_repairs_end();
  must(repairs.status);
  assert_true(repairs.refused);
  int by_axes = 0;
  for (size_t i = 1; i < repairs.count; i++) {
    assert_true(order_of(&repairs.list[i - 1], &repairs.list[i]) <= 0);
    by_axes += repairs.list[i - 1].axes != repairs.list[i].axes;
  }
  assert_true(by_axes > 2);
  ad_repairs_release(&repairs);
}

/* The file's path may be of any length; the line, which tells calls apart, is kept. */
static void the_line_of_a_call_is_kept_however_long_its_path_is(void **state) {
  dry_world *d = *state;
  for (size_t length = 150; length < 170; length++) {
    char site[220];
    ad_repairs repairs = {0};
    size_t before = 0;
    memset(site, 'p', length);
    memcpy(site + length, ":4711", sizeof ":4711");
    ad_tensor *x = ad_scale_at(d->tape, leaf(d, "dp=S0 tp=R", SHAPE(3, 6, 4, 8)), 2, site);
    ad_repairs_watch(&repairs);
    assert_null(ad_tensor_array(bent(d->tape, x)));
    ad_repairs_end();
    must(repairs.status);
    for (size_t i = 0; i < repairs.count; i++) {
      const char *kept = repairs.list[i].site;
      if (!repairs.list[i].is_before) continue;
      before++;
      assert_string_equal(kept + strlen(kept) - 5, ":4711");
      if (strcmp(kept, site)) assert_true(strlen(site) >= sizeof repairs.list[i].site && !memcmp(kept, "...", 3));
    }
    assert_true(before > 0);
    ad_repairs_release(&repairs);
    ad_tape_reset(d->tape);
    d->count = 0;
  }
}

static void what_is_linear_in_neither_takes_no_addends(void **state) {
  dry_world *d = *state;
  ad_tensor *x = leaf(d, "dp=S0 tp=P", SHAPE(2, 6, 8)), *u = leaf(d, "dp=S0 tp=P", SHAPE(2, 6, 8));
  refused(d, ad_squared_error(d->tape, x, u), AD_TYPE, "squared_error", "operand 1", "P", "tp", "all_reduce");
  x = leaf(d, "dp=S0 tp=P", SHAPE(2, 6, 8));
  refused(d, ad_rms_norm_unweighted(d->tape, x, 0.1), AD_TYPE, "rms_norm_unweighted", "operand 1", "P", "tp",
          "all_reduce");
  x = leaf(d, "dp=S0 tp=S1", SHAPE(2, 6, 8));
  refused(d, ad_rms_norm_unweighted(d->tape, x, 0.1), AD_TYPE, "rms_norm_unweighted", "operand 1", "S(1)", "tp",
          "all_gather");
  x = leaf(d, "dp=S0 tp=P", SHAPE(2, 6, 8));
  refused(d, ad_shares(d->tape, x), AD_TYPE, "shares", "operand 1", "P", "tp", "all_reduce");
  x = leaf(d, "dp=S0 tp=S1", SHAPE(2, 6, 8));
  refused(d, ad_shares(d->tape, x), AD_TYPE, "shares", "operand 1", "S(1)", "tp", "all_gather");
}

static void the_largest_is_looked_for_in_a_whole_dimension_that_there_is(void **state) {
  dry_world *d = *state;
  ad_tensor *x = leaf(d, "dp=S0 tp=S2", SHAPE(3, 6, 4, 8));
  refused(d, ad_max_over(d->tape, x, 2), AD_TYPE, "max_over", "operand 1", "S(2)", "tp", "all_gather");
  x = leaf(d, "dp=S0 tp=P", SHAPE(3, 6, 4, 8));
  refused(d, ad_max_over(d->tape, x, 2), AD_TYPE, "max_over", "operand 1", "P", "tp", "all_reduce");
  x = leaf(d, "dp=S0 tp=I", SHAPE(3, 6, 4, 0));
  refused(d, ad_max_over(d->tape, x, 2), AD_INVALID, "max_over", "dimension 2");
  x = leaf(d, "dp=S0 tp=S2", SHAPE(3, 6, 4, 8));
  refused(d, ad_norm_over(d->tape, x, 2), AD_TYPE, "norm_over", "operand 1", "S(2)", "tp", "all_gather");
  x = leaf(d, "dp=S0 tp=P", SHAPE(3, 6, 4, 8));
  refused(d, ad_norm_over(d->tape, x, 2), AD_TYPE, "norm_over", "operand 1", "P", "tp", "all_reduce");
  x = leaf(d, "dp=S0 tp=I", SHAPE(3, 6, 4, 8));
  refused(d, ad_scale_by(d->tape, x, leaf(d, "dp=R tp=I", SHAPE(1, 2))), AD_INVALID, "scale_by", "2", "1");
  x = leaf(d, "dp=S0 tp=I", SHAPE(3, 6, 4, 8));
  refused(d, ad_scale_by(d->tape, x, leaf(d, "dp=R tp=R", SHAPE(1, 1))), AD_TYPE, "scale_by", "tp", "I", "R");
  x = leaf(d, "dp=S0 tp=P", SHAPE(2, 6, 8));
  refused(d, ad_binary_cross_entropy(d->tape, x, leaf(d, "dp=S0 tp=P", SHAPE(2, 6, 8))), AD_TYPE,
          "binary_cross_entropy", "operand 1", "P", "tp", "all_reduce");
  x = leaf(d, "dp=S0 tp=I", SHAPE(3, 6, 4, 8));
  refused(d, ad_sum_over(d->tape, x, 3), AD_INVALID, "sum_over", "dimension 3", "[6, 4, 8]");
  x = leaf(d, "dp=S0 tp=I", SHAPE(3, 6, 4, 8));
  refused(d, ad_mean_over(d->tape, x, -1), AD_INVALID, "mean_over", "dimension -1", "[6, 4, 8]");
}

static void stretches_are_taken_and_joined_along_a_whole_dimension_that_there_is(void **state) {
  dry_world *d = *state;
  ad_tensor *x = leaf(d, "dp=S0 tp=S1", SHAPE(3, 6, 4, 8));
  refused(d, ad_slice(d->tape, x, 1, 0, 2), AD_TYPE, "slice", "operand 1", "S(1)", "tp", "all_gather");
  x = leaf(d, "dp=S0 tp=S1", SHAPE(3, 6, 4, 8));
  refused(d, ad_concat(d->tape, (ad_tensor *[]){x, x}, 2, 1), AD_TYPE, "concat", "operand 1", "S(1)", "tp",
          "all_gather");
  x = leaf(d, "dp=S0 tp=I", SHAPE(3, 6, 4, 8));
  refused(d, ad_slice(d->tape, x, 1, 3, 2), AD_INVALID, "slice", "2", "3", "dimension 1", "4");
  x = leaf(d, "dp=S0 tp=I", SHAPE(3, 6, 4, 8));
  refused(d, ad_slice(d->tape, x, -2, 0, 2), AD_INVALID, "slice", "[6, 4, 8]");
  x = leaf(d, "dp=S0 tp=I", SHAPE(3, 6, 4, 8));
  refused(d, ad_concat(d->tape, (ad_tensor *[]){x, x}, 2, 3), AD_INVALID, "concat", "dimension 3", "[6, 4, 8]");
  x = leaf(d, "dp=S0 tp=I", SHAPE(3, 6, 4, 8));
  ad_tensor *other = leaf(d, "dp=S0 tp=I", SHAPE(3, 6, 3, 7));
  refused(d, ad_concat(d->tape, (ad_tensor *[]){x, other}, 2, 1), AD_INVALID, "concat", "operand 2", "[6, 3, 7]",
          "dimension 1");
}

static ad_tensor *reshaped(dry_world *d, const char *layout, ad_shape to) {
  return ad_reshape(d->tape, leaf(d, layout, SHAPE(3, 6, 4, 8)), &to);
}

/* dp has three ranks, tp has two. */
static void a_sharding_stays_where_its_parts_are_the_same_elements(void **state) {
  dry_world *d = *state;
  const ad_array *y = ad_tensor_array(reshaped(d, "dp=S0 tp=S2", SHAPE(5, 3, 2, 4, 8, 1)));
  assert_types(y, AD_S(0), AD_S(3));
  y = ad_tensor_array(reshaped(d, "dp=S0 tp=P", SHAPE(1, 192)));
  assert_types(y, AD_S(0), AD_P);
  y = ad_tensor_array(reshaped(d, "dp=S0 tp=S1", SHAPE(4, 1, 6, 2, 16)));
  assert_types(y, AD_S(1), AD_S(2));
  refused(d, reshaped(d, "dp=S0 tp=S2", SHAPE(2, 6, 32)), AD_TYPE, "reshape", "operand 1", "[6, 4, 8]", "S(2)", "tp",
          "[6, 32]", "all_gather", "S(2)->I");
  refused(d, reshaped(d, "dp=S0 tp=I", SHAPE(2, 4, 48)), AD_TYPE, "reshape", "S(0)", "dp_shard", "[4, 48]");
  refused(d, reshaped(d, "dp=S0 tp=S0", SHAPE(2, 3, 64)), AD_TYPE, "reshape", "S(0)", "dp_shard", "[3, 64]");
  refused(d, reshaped(d, "dp=S0 tp=I", SHAPE(2, 6, 31)), AD_INVALID, "reshape", "[6, 4, 8]", "192", "[6, 31]", "186");
  refused(d, reshaped(d, "dp=S0 tp=I", SHAPE(2, -6, -32)), AD_INVALID, "reshape", "0", "6");
  refused(d, ad_reshape(d->tape, leaf(d, "dp=S0 tp=I", SHAPE(2, 6, 4)), NULL), AD_INVALID, "reshape", "NULL");
  ad_tensor *x = leaf(d, "dp=S0 tp=I", SHAPE(3, 6, 4, 8));
  refused(d, ad_transpose(d->tape, x, 0, 3), AD_INVALID, "transpose", "dimension 3", "[6, 4, 8]");
}

static void a_function_of_one_number_takes_no_addends(void **state) {
  dry_world *d = *state;
  refused(d, ad_relu(d->tape, leaf(d, "dp=S0 tp=P", SHAPE(2, 6, 8))), AD_TYPE, "relu", "operand 1", "P", "tp",
          "all_reduce");
  refused(d, ad_ln(d->tape, leaf(d, "dp=S0 tp=P", SHAPE(2, 6, 8))), AD_TYPE, "ln", "operand 1", "P", "tp",
          "all_reduce");
  assert_types(ad_tensor_array(ad_tanh(d->tape, leaf(d, "dp=S0 tp=S1", SHAPE(2, 6, 8)))), AD_S(0), AD_S(1));
}

static void a_layer_norm_is_of_whole_rows(void **state) {
  dry_world *d = *state;
  ad_tensor *x = leaf(d, "dp=S0 tp=S1", SHAPE(2, 6, 8)), *row = leaf(d, "dp=R tp=S0", SHAPE(1, 8));
  refused(d, ad_layer_norm(d->tape, x, row, row, 1e-5), AD_TYPE, "layer_norm", "operand 1", "S(1)", "tp", "all_gather");
  x = leaf(d, "dp=S0 tp=I", SHAPE(2, 6, 8)), row = leaf(d, "dp=R tp=I", SHAPE(1, 8));
  ad_tensor *short_one = leaf(d, "dp=R tp=I", SHAPE(1, 7));
  refused(d, ad_layer_norm(d->tape, x, row, short_one, 1e-5), AD_INVALID, "layer_norm", "operand 3", "[7]");
}

static void dropout_is_of_parts_of_one_whole(void **state) {
  dry_world *d = *state;
  ad_tensor *x = leaf(d, "dp=V tp=I", SHAPE(2, 6, 8));
  refused(d, ad_dropout(d->tape, x, 0.5, 1, "a", 0, 0), AD_TYPE, "dropout", "operand 1", "V", "dp_replicate",
          "V->S(0)");
  x = leaf(d, "dp=S0 tp=P", SHAPE(2, 6, 8));
  assert_types(ad_tensor_array(ad_dropout(d->tape, x, 0.5, 1, "a", 0, 0)), AD_S(0), AD_P);
  static const double no_probabilities[] = {1, -0.25, NAN};
  for (size_t i = 0; i < 3; i++) {
    x = leaf(d, "dp=S0 tp=I", SHAPE(2, 6, 8));
    refused(d, ad_dropout(d->tape, x, no_probabilities[i], 1, "a", 0, 0), AD_INVALID, "dropout", "1");
  }
  x = leaf(d, "dp=S0 tp=I", SHAPE(2, 6, 8));
  refused(d, ad_dropout(d->tape, x, 0.5, 1, NULL, 0, 0), AD_INVALID, "dropout", "NULL");
  x = ad_sum(d->tape, leaf(d, "dp=I tp=I", SHAPE(2, 6, 8)));
  refused(d, ad_dropout(d->tape, x, 0.5, 1, "a", 0, 0), AD_INVALID, "dropout");
}

static void a_divergence_is_from_a_constant_of_whole_rows(void **state) {
  dry_world *d = *state;
  ad_tensor *x = leaf(d, "dp=S0 tp=I", SHAPE(3, 6, 4, 8)), *target = leaf(d, "dp=S0 tp=I", SHAPE(3, 6, 4, 8));
  refused(d, ad_kl_divergence(d->tape, x, target), AD_INVALID, "kl_divergence", "operand 2");
  x = leaf(d, "dp=S0 tp=S2", SHAPE(3, 6, 4, 8));
  target = ad_constant(d->tape, array_of(d, AD_F32, "dp=S0 tp=S2", SHAPE(3, 6, 4, 8)));
  refused(d, ad_kl_divergence(d->tape, x, target), AD_TYPE, "kl_divergence", "operand 1", "S(2)", "tp", "all_gather");
  x = leaf(d, "dp=S0 tp=I", SHAPE(3, 6, 4, 8));
  target = ad_constant(d->tape, array_of(d, AD_F32, "dp=S0 tp=I", SHAPE(3, 6, 4, 8)));
  ad_tensor *loss = ad_kl_divergence(d->tape, x, target);
  assert_types(ad_tensor_array(loss), AD_P, AD_I);
  must(ad_backward(d->tape, loss));
  assert_null(ad_grad(target));
}

/* ---- joining columns ---- */

static ad_tensor *concat_of_two(dry_world *d, ad_tensor *a, ad_tensor *b) {
  return ad_concat(d->tape, (ad_tensor *[]){a, b}, 2, -1);
}

static void columns_side_by_side_are_of_one_type(void **state) {
  dry_world *d = *state;
  ad_tensor *out = concat_of_two(d, leaf(d, "dp=S0 tp=P", SHAPE(2, 6, 8)), leaf(d, "dp=S0 tp=P", SHAPE(2, 6, 3)));
  assert_types(ad_tensor_array(out), AD_S(0), AD_P);
  assert_int_equal(ad_tensor_array(out)->shape.dim[1], 11);
  assert_types(ad_tensor_array(ad_slice(d->tape, out, -1, 2, 9)), AD_S(0), AD_P);
  must(ad_tape_status(d->tape));
  out = concat_of_two(d, leaf(d, "dp=S0 tp=P", SHAPE(2, 6, 8)), leaf(d, "dp=S0 tp=R", SHAPE(2, 6, 3)));
  refused(d, out, AD_TYPE, "concat", "operand 1", "P", "tp", "operand 2", "R", "R->P");
  out = concat_of_two(d, leaf(d, "dp=S0 tp=I", SHAPE(2, 6, 8)), leaf(d, "dp=I tp=I", SHAPE(2, 6, 3)));
  refused(d, out, AD_TYPE, "concat", "operand 1", "S(0)", "dp_shard", "operand 2", "I", "I->S(0)");
  out = concat_of_two(d, leaf(d, "dp=S0 tp=S1", SHAPE(2, 6, 8)), leaf(d, "dp=S0 tp=S1", SHAPE(2, 6, 3)));
  refused(d, out, AD_TYPE, "concat", "operand 1", "S(1)", "tp", "all_gather");
  refused(d, ad_slice(d->tape, leaf(d, "dp=S0 tp=S1", SHAPE(2, 6, 8)), -1, 0, 2), AD_TYPE, "slice", "operand 1", "S(1)",
          "tp", "all_gather");
}

static void columns_that_do_not_fit_are_named(void **state) {
  dry_world *d = *state;
  ad_tensor *out = concat_of_two(d, leaf(d, "dp=I tp=I", SHAPE(2, 6, 8)), leaf(d, "dp=I tp=I", SHAPE(2, 5, 8)));
  refused(d, out, AD_INVALID, "concat", "operand 2", "[5, 8]", "operand 1", "[6, 8]");
  out = concat_of_two(d, leaf(d, "dp=I tp=I", SHAPE(0, 0)), leaf(d, "dp=I tp=I", SHAPE(0, 0)));
  refused(d, out, AD_INVALID, "concat", "operand 1", "[]");
  out = concat_of_two(d, leaf(d, "dp=I tp=I", SHAPE(1, 8)), leaf(d, "dp=I tp=I", SHAPE(2, 8, 8)));
  refused(d, out, AD_INVALID, "concat", "operand 2", "[8, 8]", "operand 1", "[8]");
  out = concat_of_two(d, leaf(d, "dp=I tp=I", SHAPE(1, 8)), indices(d, "dp=I tp=I", SHAPE(1, 8)));
  refused(d, out, AD_INVALID, "concat", "operand 2", "i32", "f32");
  enum { PARTS_MAX = AD_OPERANDS_MAX * AD_OPERANDS_MAX };
  refused(d, ad_concat(d->tape, NULL, 2, -1), AD_INVALID, "concat", "0", "1", "4096");
  ad_tensor *x = leaf(d, "dp=I tp=I", SHAPE(2, 6, 8)), *many[PARTS_MAX + 1];
  for (int i = 0; i <= PARTS_MAX; i++) many[i] = x;
  refused(d, ad_concat(d->tape, many, PARTS_MAX + 1, -1), AD_INVALID, "concat", "4097", "1", "4096");
  refused(d, ad_slice(d->tape, leaf(d, "dp=I tp=I", SHAPE(2, 6, 8)), -1, 5, 4), AD_INVALID, "slice", "4", "5", "8");
  refused(d, ad_slice(d->tape, leaf(d, "dp=I tp=I", SHAPE(2, 6, 8)), -1, -1, 4), AD_INVALID, "slice", "4", "-1", "8");
}

/* ---- counts ---- */

static ad_count *count_on(dry_world *d, const char *layout_text) {
  ad_layout layout;
  ad_count *count;
  must(ad_layout_parse(d->mesh, layout_text, &layout));
  must(ad_count_create(d->comm, &layout, 1, &count));
  return count;
}

static ad_status divide_on(dry_world *d, const ad_count *count, int shares) {
  ad_tape_reset(d->tape);
  d->count = 0;
  ad_tensor *loss = ad_sum(d->tape, leaf(d, "dp=S0 tp=I", SHAPE(1, 6)));
  return ad_backward(d->tape, shares ? ad_share(d->tape, loss, count, 0) : ad_divide(d->tape, loss, count));
}

static void see_transit(void *context, void *passing) { ++*(int *)context; }

static void a_count_that_is_the_same_on_all_ranks_takes_no_sum(void **state) {
  static const char *const layouts[] = {"dp=R tp=I", "dp=P tp=I"};
  for (int sums = 0; sums <= 1; sums++) {
    int seen = 0;
    int64_t total;
    ad_count *count = count_on(*state, layouts[sums]);
    ad_injection_set(AD_INJECT_TRANSIT, (ad_injection){see_transit, &seen});
    must(ad_count_post(count, &(int64_t){5}));
    must(ad_count_wait(count, &total));
    ad_injection_set(AD_INJECT_TRANSIT, (ad_injection){0});
    assert_int_equal(seen, sums);
    assert_int_equal(total, 5);
    ad_count_destroy(count);
  }
}

static void a_loss_is_divided_by_a_summed_count_only(void **state) {
  dry_world *d = *state;
  ad_count *count = count_on(d, "dp=P tp=I");
  for (int shares = 0; shares < 2; shares++) {
    assert_int_equal(divide_on(d, count, shares), AD_TYPE);
    assert_says(shares ? "share" : "divide", "P", "dp_shard", "ad_count_post");
  }
  must(ad_count_post(count, &(int64_t){7}));
  assert_int_equal(ad_count_array(count)->layout.type[AD_DP_SHARD], AD_P);
  must(divide_on(d, count, 0));  // this waits for the sum
  assert_int_equal(ad_count_array(count)->layout.type[AD_DP_SHARD], AD_R);
  must(divide_on(d, count, 1));
  ad_count_destroy(count);
}

static void a_count_on_a_world_of_three_is_no_count_before_its_sum(void **state) {
  dry_world d = {0};
  must(ad_comm_open_dry(1, 3, &d.comm));
  must(ad_mesh_create("dp_shard=3", &d.mesh));
  must(ad_tape_create(d.comm, d.mesh, NULL, &d.tape));
  ad_count *count = count_on(&d, "dp_shard=P");
  ad_tape_reset(d.tape);
  ad_tensor *loss = ad_sum(d.tape, leaf(&d, "dp_shard=S0", SHAPE(1, 6)));
  assert_int_equal(ad_backward(d.tape, ad_divide(d.tape, loss, count)), AD_TYPE);
  ad_count_destroy(count);
  ad_tape_destroy(d.tape);
  ad_mesh_destroy(d.mesh);
  ad_comm_close(d.comm);
}

static void a_count_that_was_never_posted_divides_nothing(void **state) {
  dry_world *d = *state;
  ad_count *count = count_on(d, "dp=R tp=I");
  assert_int_equal(divide_on(d, count, 0), AD_INVALID);
  assert_says("ad_count_wait", "ad_count_post");
  assert_int_equal(divide_on(d, NULL, 0), AD_INVALID);
  assert_says("divide", "NULL");
  ad_count_destroy(count);
}

static void a_count_of_fewer_ranks_than_the_tapes_is_refused(void **state) {
  dry_world *d = *state, few = {.comm = d->comm};
  must(ad_mesh_create("dp_shard=3", &few.mesh));
  ad_count *count = count_on(&few, "dp_shard=P");
  must(ad_count_post(count, &(int64_t){7}));
  assert_int_equal(divide_on(d, count, 0), AD_TYPE);
  assert_says("divide", "ranks 0", "2", "dp_shard=3 tp=2", "ranks 0", "5");
  ad_count_destroy(count);
  ad_mesh_destroy(few.mesh);
}

/* ---- changes of view ---- */

static void a_view_goes_there_and_back(void **state) {
  dry_world *d = *state;
  ad_mesh *view;
  must(ad_mesh_create_view(d->mesh, "ep=6", &view));
  ad_tensor *x = leaf(d, "dp_shard=V tp=V", SHAPE(2, 6, 8)), *seen = ad_view(d->tape, x, view);
  must(ad_tape_status(d->tape));
  assert_int_equal(ad_tensor_array(seen)->layout.type[AD_EP], AD_V);
  ad_tensor *loss = ad_declare(d->tape, ad_sum(d->tape, seen), "ep", AD_P);
  ad_keep(seen);
  must(ad_backward(d->tape, loss));
  assert_true(ad_grad(seen)->layout.mesh == view);
  assert_types(ad_grad(x), AD_V, AD_V);
  ad_tape_reset(d->tape);
  x = leaf(d, "dp_shard=P tp=P", SHAPE(0, 0));
  ad_tensor *back = ad_view(d->tape, ad_view(d->tape, x, view), d->mesh);
  must(ad_backward(d->tape, back));
  assert_true(ad_layout_equal(&ad_tensor_array(back)->layout, &ad_tensor_array(x)->layout));
  assert_int_equal(ad_grad(x)->layout.type[AD_DP_SHARD], AD_R);
  ad_mesh_destroy(view);
}

static void tensors_on_two_views_meet_on_one_of_them(void **state) {
  dry_world *d = *state;
  ad_mesh *view;
  must(ad_mesh_create_view(d->mesh, "ep=6", &view));
  ad_tensor *x = leaf(d, "dp_shard=V tp=V", SHAPE(1, 8));
  ad_tensor *again = ad_view(d->tape, ad_view(d->tape, x, view), d->mesh);
  must(ad_backward(d->tape, ad_declare(d->tape, ad_sum(d->tape, ad_add(d->tape, x, again)), "dp_shard,tp", AD_P)));
  ad_tape_reset(d->tape);
  x = leaf(d, "dp_shard=V tp=V", SHAPE(1, 8));
  ad_add(d->tape, x, ad_view(d->tape, x, view));
  assert_int_equal(ad_tape_status(d->tape), AD_TYPE);
  assert_says("add", "operand 1", "operand 2");
  ad_tape_reset(d->tape);
  ad_view(d->tape, leaf(d, "dp_shard=S0 tp=V", SHAPE(1, 9)), view);
  assert_int_equal(ad_tape_status(d->tape), AD_TYPE);
  assert_says("test_types.c", "S(0)", "dp_shard");
  ad_tape_reset(d->tape);
  ad_view(d->tape, leaf(d, "dp_shard=I tp=I", SHAPE(1, 9)), NULL);
  assert_int_equal(ad_tape_status(d->tape), AD_INVALID);
  assert_says("view", "NULL");
  ad_mesh_destroy(view);
}

/* ---- attention ---- */

static ad_tensor *attend(dry_world *d, ad_shape q, ad_shape k, ad_shape v) {
  const char *layout = "dp=I tp=I";
  return ad_attention(d->tape, leaf(d, layout, q), leaf(d, layout, k), leaf(d, layout, v), 4);
}

static void keys_and_values_of_attention_are_the_same_and_fit_its_queries(void **state) {
  dry_world *d = *state;
  ad_shape right = SHAPE(3, 6, 8, 12), wider = SHAPE(3, 6, 8, 24), longer = SHAPE(3, 6, 9, 12),
           more = SHAPE(3, 7, 8, 12);
  attend(d, right, right, right);
  must(ad_tape_status(d->tape));
  refused(d, attend(d, right, right, wider), AD_INVALID, "attention", "[6, 8, 12]", "[6, 8, 12]", "[6, 8, 24]");
  refused(d, attend(d, right, longer, longer), AD_INVALID, "attention", "[6, 8, 12]", "[6, 9, 12]", "[6, 9, 12]");
  refused(d, attend(d, right, more, more), AD_INVALID, "attention", "[6, 8, 12]", "[7, 8, 12]");
  refused(d, attend(d, SHAPE(2, 6, 8), right, right), AD_INVALID, "attention", "[6, 8]");
  refused(d, attend(d, right, SHAPE(2, 6, 8), SHAPE(2, 6, 8)), AD_INVALID, "attention", "[6, 8]");
}

/* ---- parameters ---- */

static void a_parameter_is_one_of_its_module(void **state) {
  dry_world *d = *state;
  const ad_array *list[2] = {array_of(d, AD_F32, "dp=R tp=I", SHAPE(1, 4)), NULL};
  ad_parameters from = {.size = sizeof from, .values = list, .count = 2};
  ad_parameter(d->tape, &from, 2);
  assert_int_equal(ad_tape_status(d->tape), AD_INVALID);
  assert_says("parameter 2", "2");
  ad_tape_reset(d->tape);
  ad_parameter(d->tape, &from, 1);
  assert_int_equal(ad_tape_status(d->tape), AD_INVALID);
  assert_says("NULL");
  ad_tape_reset(d->tape);
  ad_parameter(d->tape, &from, 0);
  must(ad_tape_status(d->tape));
}

#define TEST(function) cmocka_unit_test_setup_teardown(function, open_dry, close_dry)
int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(a_forgotten_all_reduce_is_a_type_error_at_the_next_line),
      TEST(the_block_with_its_all_reduce_is_typed),
      TEST(gradients_have_the_dual_layout),
      TEST(the_first_error_sticks),
      TEST(shapes_that_differ_are_named),
      TEST(heads_that_do_not_go_together_are_counted),
      TEST(heads_are_not_cut_in_two),
      TEST(scaled_rotations_have_numbers_that_mean_something),
      TEST(indices_are_i32_and_values_are_not),
      TEST(backward_starts_from_sums_only),
      TEST(backward_runs_once),
      TEST(tensors_belong_to_their_tape),
      TEST(wrong_options_are_refused),
      TEST(a_tape_takes_no_dtype_of_collectives_alone),
      TEST(a_move_over_axes_of_different_types_is_a_chain),
      TEST(nested_shardings_come_back_in_their_order),
      TEST(an_axis_that_the_mesh_does_not_name_is_left_out_of_a_set),
      TEST(rows_that_were_sharded_on_their_way_do_not_return),
      TEST(a_set_that_has_arrived_is_refused_by_its_named_axis),
      TEST(the_gradient_of_a_replicated_addend_of_a_varying_sum_is_partial),
      TEST(transitions_are_numbered_in_the_order_of_recording),
      TEST(what_is_not_linear_takes_no_gradient_that_is_an_addend),
      TEST(what_is_reported_missing_makes_a_loss_one),
      TEST(what_is_said_to_repair_a_place_does),
      TEST(what_a_refused_call_takes_is_listed_in_one_order),
      TEST(the_line_of_a_call_is_kept_however_long_its_path_is),
      TEST(what_is_linear_in_neither_takes_no_addends),
      TEST(the_largest_is_looked_for_in_a_whole_dimension_that_there_is),
      TEST(stretches_are_taken_and_joined_along_a_whole_dimension_that_there_is),
      TEST(a_sharding_stays_where_its_parts_are_the_same_elements),
      TEST(a_function_of_one_number_takes_no_addends),
      TEST(a_layer_norm_is_of_whole_rows),
      TEST(dropout_is_of_parts_of_one_whole),
      TEST(a_divergence_is_from_a_constant_of_whole_rows),
      TEST(columns_side_by_side_are_of_one_type),
      TEST(columns_that_do_not_fit_are_named),
      TEST(a_count_that_is_the_same_on_all_ranks_takes_no_sum),
      TEST(a_loss_is_divided_by_a_summed_count_only),
      TEST(a_count_on_a_world_of_three_is_no_count_before_its_sum),
      TEST(a_count_that_was_never_posted_divides_nothing),
      TEST(a_count_of_fewer_ranks_than_the_tapes_is_refused),
      TEST(a_view_goes_there_and_back),
      TEST(tensors_on_two_views_meet_on_one_of_them),
      TEST(keys_and_values_of_attention_are_the_same_and_fit_its_queries),
      TEST(a_parameter_is_one_of_its_module),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
