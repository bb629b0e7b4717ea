/* Tests what the record of an operation may state, each by a record made for this test: memory that forward makes, a
 * backward that is not linear, dtypes, a custom struct. */
#include <stdio.h>
#include "says.h"
#include "tensor/tape.h"
#include "world.h"

/* ---- memory that forward makes ---- */

/* An operation that packs the elements above a limit: how many there are is known only after reading the values. */
typedef struct above_numbers {
  double limit;
} above_numbers;

static double limit_of(const ad_tensor *out) { return ((const above_numbers *)out->own)->limit; }

static ad_status above_describe(ad_tape *tape, ad_tensor *out) {
  const ad_array *x = ad_operand(out, 0);  // the output's shape is the operand's; backend dry has no values
  ad_result_set(out, x->dtype, &x->shape, &x->layout);
  return AD_OK;
}

static size_t above_scratch(const ad_tensor *out) { return 8 * ad_numel(out->operand[0]); }

static ad_status above_forward(ad_tape *tape, ad_tensor *out) {
  const ad_array *x = &out->operand[0]->array;
  double *packed = out->scratch;
  size_t count = 0;
  void *memory;
  for (size_t i = 0; i < ad_array_numel(x); i++)
    if (element(x, i) > limit_of(out)) packed[count++] = element(x, i);
  AD_TRY(ad_tape_take(tape, count * sizeof *packed, &memory));
  memcpy(memory, packed, count * sizeof *packed);
  ad_result_set(out, x->dtype, &(ad_shape){1, {(int64_t)count}}, &x->layout);
  ad_result_set_data(out, memory);
  return AD_OK;
}

static ad_status above_backward(ad_tape *tape, ad_tensor *out, const ad_gradient_slot *slot) {
  const ad_array *x = &out->operand[0]->array;
  double *grad = slot[0].data;
  for (size_t i = 0, next = 0; i < ad_array_numel(x); i++) {
    double share = element(x, i) > limit_of(out) ? element(&out->grad, next++) : 0;
    grad[i] = slot[0].adds ? grad[i] + share : share;
  }
  return AD_OK;
}

static const ad_operation above = {.name = "above",
                                   .dtypes = AD_IN_F32_F64,
                                   .own_size = sizeof(above_numbers),
                                   .makes_memory = 1,
                                   .describe = above_describe,
                                   .scratch = above_scratch,
                                   .forward = above_forward,
                                   .backward = above_backward};

static void forward_may_make_the_memory_of_its_result(void **state) {
  world w = world_open();
  ad_tape *tape = open_tape(&w, AD_F64);
  double values[5] = {1, -2, 3, -4, 5};
  ad_array x = ad_array_describe(w.comm, AD_F64, &(ad_shape){1, {5}}, &w.layout);
  x.data = values;
  ad_tensor *leaf = ad_input(tape, &x);
  above_numbers limit = {0};
  ad_tensor *packed = ad_tape_apply(tape, &above, &leaf, 1, &limit, AD_HERE);
  limit.limit = 100;  // the operation keeps a copy of its own numbers, so this has no effect
  ad_tensor *squares = ad_multiply(tape, packed, packed);
  must(ad_tape_status(tape));
  assert_int_equal(ad_array_numel(ad_tensor_array(packed)), 3);
  assert_true(element(ad_tensor_array(packed), 2) == 5);
  must(ad_backward(tape, ad_sum(tape, squares)));
  for (size_t i = 0; i < 5; i++) assert_true(element(ad_grad(leaf), i) == (values[i] > 0 ? 2 * values[i] : 0));
  ad_tape_destroy(tape);
  world_close(&w);
}

static void a_plan_counts_with_the_shape_that_was_described(void **state) {
  world w = world_open();
  ad_comm *dry;
  ad_tape *tape;
  must(ad_comm_open_dry(0, 1, &dry));
  must(ad_tape_create(dry, w.mesh, NULL, &tape));
  ad_array x = ad_array_describe(dry, AD_F32, &(ad_shape){1, {1000}}, &w.layout);
  ad_tensor *leaf = ad_input(tape, &x);
  size_t before = ad_tape_peak_bytes(tape);
  ad_tensor *packed = ad_tape_apply(tape, &above, &leaf, 1, &(above_numbers){0}, AD_HERE);
  must(ad_backward(tape, ad_sum(tape, packed)));
  // 8,000 bytes of scratch; 4,000 each for the value and both gradients
  assert_true(ad_tape_peak_bytes(tape) - before >= 8 * 1000 + 3 * 4 * 1000);
  ad_tape_destroy(tape);
  ad_comm_close(dry);
  world_close(&w);
}

/* The memory that a value of so many bytes takes: in a tape's own memory multiples of 64 bytes, in shared memory also
 * less than a sixteenth more. */
static void a_block_is_as_large_as_a_plan_counts(void **state) {
  static const size_t sizes[][3] = {{0, 64, 64},
                                    {1, 64, 64},
                                    {64, 64, 64},
                                    {65, 128, 128},
                                    {2048, 2048, 2048},
                                    {2049, 2112, 2112},
                                    {4096, 4096, 4096},
                                    {4097, 4160, 4224},
                                    {100000, 100032, 102400},
                                    {131072, 131072, 131072}}; /* bytes, own, shared */
  world w = world_open();
  ad_comm *comm;
  must(ad_comm_open_dry(0, 1, &comm));
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
    ad_tape *tape;
    ad_tape_pool *pool;
    void *block;
    must(ad_tape_create(comm, w.mesh, NULL, &tape));
    must(ad_tape_pool_create(1, &pool));
    size_t before = ad_tape_peak_bytes(tape), shared_before = ad_tape_pool_peak_bytes(pool);
    must(ad_block_take(tape, sizes[i][0], &block));
    assert_int_equal(ad_tape_peak_bytes(tape) - before, sizes[i][1]);
    ad_tape_share(tape, pool);
    must(ad_block_take(tape, sizes[i][0], &block));
    assert_int_equal(ad_tape_pool_peak_bytes(pool) - shared_before, sizes[i][2]);
    ad_tape_destroy(tape);
    ad_tape_pool_destroy(pool);
  }
  ad_comm_close(comm);
  world_close(&w);
}

static ad_status nothing_forward(ad_tape *tape, ad_tensor *out) { return AD_OK; }

static void a_forward_that_makes_no_memory_is_found_out(void **state) {
  ad_operation forgetful = above;
  forgetful.forward = nothing_forward;
  world w = world_open();
  ad_tape *tape = open_tape(&w, AD_F64);
  ad_array x = random_array(&w, AD_F64, (ad_shape){1, {5}}, 1, 0);
  ad_tensor *leaf = ad_input(tape, &x);
  ad_tape_apply(tape, &forgetful, &leaf, 1, &(above_numbers){0}, AD_HERE);
  assert_int_equal(ad_tape_status(tape), AD_INVALID);
  assert_says("above");
  free(x.data);
  ad_tape_destroy(tape);
  world_close(&w);
}

/* ---- a backward that is not linear ---- */

static ad_status clip_forward(ad_tape *tape, ad_tensor *out) {
  memcpy(out->array.data, out->operand[0]->array.data, ad_array_bytes(&out->array));
  return AD_OK;
}

static ad_status clip_backward(ad_tape *tape, ad_tensor *out, const ad_gradient_slot *slot) { return AD_OK; }

/* Passes on gradients clipped to 1. The clipped sum of addends is not the sum of clipped addends. */
static const ad_operation clip = {.name = "clip",
                                  .dims = "...->...",
                                  .linearity = AD_MULTILINEAR,
                                  .dtypes = AD_IN_F32_F64,
                                  .not_linear = 1,
                                  .forward = clip_forward,
                                  .backward = clip_backward};

static ad_status clip_on(const char *mesh_text, const char *layout_text, int carries) {
  ad_comm *comm;
  ad_mesh *mesh;
  ad_tape *tape;
  ad_layout layout;
  must(ad_mesh_create(mesh_text, &mesh));
  must(ad_comm_open_dry(0, ad_mesh_size(mesh), &comm));
  must(ad_tape_create(comm, mesh, NULL, &tape));
  must(ad_layout_parse(mesh, layout_text, &layout));
  ad_array x = ad_array_describe(comm, AD_F32, &(ad_shape){1, {6}}, &layout);
  ad_tensor *leaf = carries ? ad_input(tape, &x) : ad_constant(tape, &x);
  ad_tape_apply(tape, &clip, &leaf, 1, NULL, AD_HERE);
  ad_status status = ad_tape_status(tape);
  ad_tape_destroy(tape);
  ad_mesh_destroy(mesh);
  ad_comm_close(comm);
  return status;
}

static void what_is_not_linear_backward_is_refused_where_its_gradient_would_be_an_addend(void **state) {
  must(clip_on("dp_shard=3 tp=2", "dp=S0 tp=I", 1));
  must(clip_on("dp_shard=3 tp=2", "dp=V tp=P", 1));  // the gradients of V and P are V and R
  assert_int_equal(clip_on("dp_shard=3 tp=2", "dp=S0 tp=R", 1), AD_TYPE);
  assert_says("clip", "R", "tp", "P->I");
  // types are judged by the mesh's axes, whatever their sizes
  assert_int_equal(clip_on("dp_shard=3 tp=1", "dp=I tp=R", 1), AD_TYPE);
  must(clip_on("dp_shard=3", "dp_shard=I", 1));      // an axis that the mesh does not name is R
  must(clip_on("dp_shard=3 tp=2", "dp=R tp=R", 0));  // without backward anything is allowed
}

/* ---- dtypes an operation takes ---- */

static ad_status apply_to(const ad_operation *op, ad_dtype dtype) {
  world w = world_open();
  ad_tape *tape = open_tape(&w, dtype);
  double element_of_any_dtype = 0;
  ad_array x = ad_array_describe(w.comm, dtype, &(ad_shape){1, {1}}, &w.layout);
  x.data = &element_of_any_dtype;
  ad_tensor *leaf = ad_input(tape, &x);
  ad_tape_apply(tape, op, &leaf, 1, NULL, AD_HERE);
  ad_status status = ad_tape_status(tape);
  ad_tape_destroy(tape);
  world_close(&w);
  return status;
}

static void a_record_says_for_which_dtypes_it_has_arithmetic(void **state) {
  ad_operation narrow = clip;
  narrow.dtypes = 1u << AD_F64;
  must(apply_to(&clip, AD_F32));
  must(apply_to(&narrow, AD_F64));
  assert_int_equal(apply_to(&narrow, AD_F32), AD_INVALID);
  assert_says("clip", "f32");
}

static void a_dtype_that_a_tape_has_not_is_refused_where_it_was_asked_for(void **state) {
  world w = world_open();
  ad_tape *tape = open_tape(&w, AD_F32);
  ad_array x = random_array(&w, AD_F32, (ad_shape){1, {5}}, 1, 0);
  ad_to_dtype(tape, ad_input(tape, &x), AD_I32);
  assert_int_equal(ad_tape_status(tape), AD_INVALID);
  assert_facts(ad_last_error(), "test_records.c", "i32", "f32");
  free(x.data);
  ad_tape_destroy(tape);
  world_close(&w);
}

/* ---- the terms of dims ---- */

/* "..." means the dimensions of the first operand that has it, here for the most; in other terms, of more letters
 * than their operands have, it takes as much room, until the operands are compared with their terms. */
static void terms_that_take_the_most_room_are_refused_for_their_letters(void **state) {
  char dims[AD_OPERANDS_MAX * (AD_DIMS_MAX + 1) + 1] = "...";
  size_t count = 1, used = 3;
  for (; used + sizeof ",...abc->a" <= sizeof dims && count < AD_OPERANDS_MAX; count++)
    used += (size_t)snprintf(dims + used, sizeof dims - used, ",...abc");
  snprintf(dims + used, sizeof dims - used, "->a");
  ad_operation wide = clip;
  wide.name = "wide";
  wide.dims = dims;
  world w = world_open();
  ad_tape *tape = open_tape(&w, AD_F64);
  ad_tensor *leaves[AD_OPERANDS_MAX];
  ad_array x = random_array(&w, AD_F64, (ad_shape){AD_DIMS_MAX, {1, 1, 1, 1, 1, 1}}, 1, 0);
  for (size_t i = 0; i < count; i++) leaves[i] = ad_input(tape, &x);
  ad_tape_apply(tape, &wide, leaves, count, NULL, AD_HERE);
  assert_int_equal(ad_tape_status(tape), AD_INVALID);
  assert_facts(ad_last_error(), "wide", "operand 2", "9");
  free(x.data);
  ad_tape_destroy(tape);
  world_close(&w);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(forward_may_make_the_memory_of_its_result),
      cmocka_unit_test(a_plan_counts_with_the_shape_that_was_described),
      cmocka_unit_test(a_block_is_as_large_as_a_plan_counts),
      cmocka_unit_test(a_forward_that_makes_no_memory_is_found_out),
      cmocka_unit_test(what_is_not_linear_backward_is_refused_where_its_gradient_would_be_an_addend),
      cmocka_unit_test(a_record_says_for_which_dtypes_it_has_arithmetic),
      cmocka_unit_test(a_dtype_that_a_tape_has_not_is_refused_where_it_was_asked_for),
      cmocka_unit_test(terms_that_take_the_most_room_are_refused_for_their_letters),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
