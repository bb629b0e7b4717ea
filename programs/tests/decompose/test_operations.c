/* Tests decompose's operations with ad_check_operation (the check for users' operations), without a row, and which
 * types they refuse. */
#include <string.h>
#include "../../../train/tests/tensor/world.h"
#include "decompose/operations.h"
#include "says.h"

#define SHAPES(...) \
  .shapes = (const ad_shape[]){__VA_ARGS__}, .count = sizeof((const ad_shape[]){__VA_ARGS__}) / sizeof(ad_shape)
#define SHAPE(n, ...) ((ad_shape){(n), {__VA_ARGS__}})

static void check(const ad_operation *record, ad_operation_trial trial, int line) {
  trial.size = sizeof trial;
  trial.seed = 3;
  ad_status status = ad_check_operation(record, &trial);
  if (status) fail_msg("line %d: %s: %s", line, ad_status_name(status), ad_last_error());
}
#define CHECK(record, ...) check(&(record), (ad_operation_trial){__VA_ARGS__}, __LINE__)

static void each_holds_to_its_record(void **state) {
  const ad_power_numbers powers = {1e-3, 1.7};
  const double beta = 0.75;
  CHECK(ad_returning_lower_record, SHAPES(SHAPE(2, 5, 4)));
  CHECK(ad_plain_lower_record, SHAPES(SHAPE(2, 5, 4)));
  CHECK(ad_upper_record, SHAPES(SHAPE(2, 5, 4)));
  CHECK(ad_mix_record, SHAPES(SHAPE(2, 5, 4), SHAPE(2, 5, 4)));
  CHECK(ad_mix_record, SHAPES(SHAPE(2, 3, 100), SHAPE(2, 3, 100)));  // more elements than one piece of the kernel
  CHECK(ad_power_sums_record, SHAPES(SHAPE(2, 5, 4)), .own = &powers, .least = 0.1, .most = 2);
  CHECK(ad_power_sums_record, SHAPES(SHAPE(3, 3, 20, 7)), .own = &powers, .least = 0.1, .most = 2);
  CHECK(ad_sparsity_record, SHAPES(SHAPE(1, 5)), .own = &beta, .least = 0.1, .most = 2);
}

/* Uses x as both operands. */
static ad_tensor *mixed_with_itself(ad_tape *t, ad_tensor *x) { return ad_mix(t, x, x); }

static void a_value_that_is_mixed_with_itself_has_both_shares(void **state) {
  world w = world_open();
  ad_tape *t = open_tape(&w, AD_F64);
  ad_array array = random_array(&w, AD_F64, SHAPE(2, 3, 5), 1, 0);
  ad_tensor *x = ad_input(t, &array);
  must(ad_backward(t, ad_sum(t, mixed_with_itself(t, x))));
  for (size_t i = 0; i < 15; i++) assert_true(fabs(element(ad_grad(x), i) - 2 * (1 - element(&array, i))) < 1e-14);
  free(array.data);
  ad_tape_destroy(t);
  world_close(&w);
}

static void without_a_row_there_is_nothing_to_add_up(void **state) {
  world w = world_open();
  ad_tape *t = open_tape(&w, AD_F64);
  ad_array array = random_array(&w, AD_F64, SHAPE(3, 0, 9, 13), 1, 0);
  ad_tensor *x = ad_input(t, &array);
  ad_tensor *kept = ad_mix(t, ad_upper(t, x), ad_lower(t, x, AD_SLOPE_RETURNS));
  ad_tensor *loss = ad_sparsity(t, ad_power_sums(t, kept, 0.1, 0.5), 0.75);
  must(ad_tape_status(t));
  assert_true(ad_tensor_scalar(loss) == 0);
  must(ad_backward(t, loss));
  free(array.data);
  ad_tape_destroy(t);
  world_close(&w);
}

static void sums_are_not_taken_in_bf16(void **state) {
  world w = world_open();
  ad_tape *t = open_tape(&w, AD_BF16);
  ad_array array = random_array(&w, AD_BF16, SHAPE(1, 3), 1, 0);
  assert_null(ad_tensor_array(ad_sparsity(t, ad_input(t, &array), 0.75)));
  assert_int_equal(ad_tape_status(t), AD_INVALID);
  assert_listed();
  free(array.data);
  ad_tape_destroy(t);
  world_close(&w);
}

/* ---- types on backend dry ---- */

enum { ARRAYS = 8 };

typedef struct dry_world {
  ad_comm *comm;
  ad_mesh *mesh;
  ad_tape *tape;
  ad_array arrays[ARRAYS];
  size_t count;
} dry_world;

static int open_dry(void **state) {
  static dry_world d;
  d = (dry_world){0};
  must(ad_comm_open_dry(1, 6, &d.comm));
  must(ad_mesh_create("dp_shard=3 tp=2", &d.mesh));
  must(ad_tape_create(d.comm, d.mesh, NULL, &d.tape));
  *state = &d;
  return 0;
}

static int close_dry(void **state) {
  dry_world *d = *state;
  ad_tape_destroy(d->tape);
  ad_mesh_destroy(d->mesh);
  ad_comm_close(d->comm);
  return 0;
}

static ad_tensor *leaf(dry_world *d, const char *layout_text, ad_shape shape) {
  ad_layout layout;
  must(ad_layout_parse(d->mesh, layout_text, &layout));
  assert_true(d->count < ARRAYS);
  ad_array *array = &d->arrays[d->count++];
  *array = ad_array_describe(d->comm, AD_F32, &shape, &layout);
  return ad_input(d->tape, array);
}

static void refused(dry_world *d, const ad_tensor *out, ad_status status, const char *const *facts) {
  assert_null(ad_tensor_array(out));
  assert_int_equal(ad_tape_status(d->tape), status);
  assert_says_all(facts);
  ad_tape_reset(d->tape);
  d->count = 0;
}

static void lower_takes_no_gradient_that_is_an_addend(void **state) {
  dry_world *d = *state;
  ad_tensor *x = leaf(d, "dp=S0 tp=R", SHAPE(2, 6, 8));
  refused(d, ad_lower(d->tape, x, AD_SLOPE_RETURNS), AD_TYPE, SAYS_FACTS("lower", "tp", "R", "all_reduce", "P->I"));
  x = leaf(d, "dp=S0 tp=R", SHAPE(2, 6, 8));
  must(ad_backward(d->tape, ad_once(d->tape, ad_sum(d->tape, ad_lower(d->tape, x, AD_SLOPE_PLAIN)), "tp")));
  ad_tape_reset(d->tape);
  x = leaf(d, "dp=S0 tp=I", SHAPE(2, 6, 8));
  must(ad_backward(d->tape, ad_sum(d->tape, ad_lower(d->tape, x, AD_SLOPE_RETURNS))));
}

static void what_is_linear_in_neither_takes_no_addends(void **state) {
  dry_world *d = *state;
  ad_tensor *x = leaf(d, "dp=S0 tp=P", SHAPE(2, 6, 8)), *u = leaf(d, "dp=S0 tp=R", SHAPE(2, 6, 8));
  refused(d, ad_mix(d->tape, x, u), AD_TYPE, SAYS_FACTS("mix", "tp", "operand 1", "P", "all_reduce"));
  x = leaf(d, "dp=S0 tp=P", SHAPE(2, 6, 8));
  refused(d, ad_lower(d->tape, x, AD_SLOPE_RETURNS), AD_TYPE,
          SAYS_FACTS("lower", "tp", "operand 1", "P", "all_reduce"));
  x = leaf(d, "dp=S0 tp=P", SHAPE(2, 6, 8));
  refused(d, ad_upper(d->tape, x), AD_TYPE, SAYS_FACTS("upper", "tp", "operand 1", "P", "all_reduce"));
  x = leaf(d, "dp=S0 tp=P", SHAPE(2, 6, 8));
  refused(d, ad_power_sums(d->tape, x, 0.1, 2), AD_TYPE,
          SAYS_FACTS("power_sums", "tp", "operand 1", "P", "all_reduce"));
}

/* Checks the types on dp_shard and tp. */
static void assert_types(const ad_array *array, ad_type on_dp, ad_type on_tp) {
  assert_non_null(array);
  assert_int_equal(array->layout.type[AD_DP_SHARD], on_dp);
  assert_int_equal(array->layout.type[AD_TP], on_tp);
}

static void the_sum_inside_a_logarithm_is_of_all_ranks(void **state) {
  dry_world *d = *state;
  ad_tensor *sums = ad_power_sums(d->tape, leaf(d, "dp=S0 tp=S2", SHAPE(3, 6, 4, 8)), 0.1, 2);
  assert_types(ad_tensor_array(sums), AD_P, AD_S(0));
  refused(d, ad_sparsity(d->tape, sums, 0.5), AD_TYPE, SAYS_FACTS("sparsity", "dp_shard", "P", "all_reduce", "P->I"));
  ad_tensor *x = leaf(d, "dp=S0 tp=S2", SHAPE(3, 6, 4, 8));
  sums = ad_all_reduce(d->tape, ad_power_sums(d->tape, x, 0.1, 2), "dp", AD_I);
  ad_tensor *loss = ad_sparsity(d->tape, sums, 0.5);
  assert_types(ad_tensor_array(loss), AD_I, AD_P);  // columns are sharded, and each has its own logarithm
  must(ad_backward(d->tape, loss));
  assert_types(ad_grad(x), AD_S(0), AD_S(2));
  ad_tape_reset(d->tape);
  x = leaf(d, "dp=S0 tp=I", SHAPE(3, 6, 4, 8));
  refused(d, ad_sparsity(d->tape, x, 0.5), AD_INVALID, SAYS_FACTS("sparsity", "operand 1", "[6, 4, 8]", "1"));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, open_dry, close_dry)

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(each_holds_to_its_record),
      cmocka_unit_test(a_value_that_is_mixed_with_itself_has_both_shares),
      cmocka_unit_test(without_a_row_there_is_nothing_to_add_up),
      cmocka_unit_test(sums_are_not_taken_in_bf16),
      TEST(lower_takes_no_gradient_that_is_an_addend),
      TEST(what_is_linear_in_neither_takes_no_addends),
      TEST(the_sum_inside_a_logarithm_is_of_all_ranks),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
