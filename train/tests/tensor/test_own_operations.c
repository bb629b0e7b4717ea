/* Tests users' operations, written on the public header alone: how they compute, what their record must have, and how a
 * record made for an older or a newer header is read. */
#include <stdio.h>
#include "addend/operation.h"
#include "says.h"
#include "world.h"

/* ---- an operation: x [..., n] + factor * row [n]^2, whose backward does not read x ---- */

typedef struct bend_numbers {
  double factor;
} bend_numbers;

static double factor_of(const ad_tensor *out) { return ((const bend_numbers *)ad_operation_own(out))->factor; }

static size_t bend_saved(const ad_tensor *out) { return ad_array_numel(ad_operand(out, 1)) * sizeof(double); }

static ad_status bend_forward(ad_tape *tape, ad_tensor *out) {
  const ad_array *x = ad_operand(out, 0), *row = ad_operand(out, 1), *y = ad_tensor_array(out);
  double *squares = ad_operation_saved(out);
  size_t width = ad_array_numel(row);
  for (size_t i = 0; i < width; i++) squares[i] = ad_array_get(row, i) * ad_array_get(row, i);
  for (size_t i = 0; i < ad_array_numel(y); i++)
    ad_array_set(y, i, ad_array_get(x, i) + factor_of(out) * squares[i % width]);
  if (width && squares[0] > 1e6)
    return ad_fail(AD_NUMBER, "%s: bend: the first number is %g", ad_tensor_site(out), ad_array_get(row, 0));
  return AD_OK;
}

static ad_status bend_backward(ad_tape *tape, ad_tensor *out, const ad_gradient_slot *slot) {
  const ad_array *row = ad_operand(out, 1), *grad = ad_result_grad(out);
  double *sums = ad_operation_scratch(out);
  size_t width = ad_array_numel(row);
  for (size_t i = 0; i < width; i++) sums[i] = 0;
  for (size_t i = 0; i < ad_array_numel(grad); i++) {
    ad_slot_put(&slot[0], i, ad_array_get(grad, i));
    sums[i % width] += 2 * factor_of(out) * ad_array_get(row, i % width) * ad_array_get(grad, i);
  }
  ad_slot_put_all(&slot[1], 0, sums, AD_F64, width);
  return AD_OK;
}

static const ad_operation bend = {.size = sizeof bend,
                                  .name = "bend",
                                  .dims = "...n,n->...n",
                                  .linearity = AD_NONLINEAR,
                                  .dtypes = AD_IN_ANY_FLOAT,
                                  .unread = 1u << 0,
                                  .own_size = sizeof(bend_numbers),
                                  .saved = bend_saved,
                                  .scratch = bend_saved,
                                  .forward = bend_forward,
                                  .backward = bend_backward};

static const bend_numbers half = {0.5};

/* ---- a tape to record it on ---- */

typedef struct scene {
  world w;
  ad_tape *tape;
  ad_array array[2];
  ad_tensor *x[2];
} scene;

static scene scene_open(ad_dtype dtype) {
  scene s = {.w = world_open()};
  s.tape = open_tape(&s.w, dtype);
  s.array[0] = random_array(&s.w, dtype, (ad_shape){2, {3, 2}}, 1, 0);
  s.array[1] = random_array(&s.w, dtype, (ad_shape){1, {2}}, 2, 0);
  for (int i = 0; i < 2; i++) s.x[i] = ad_input(s.tape, &s.array[i]);
  return s;
}

static void scene_close(scene *s) {
  ad_tape_destroy(s->tape);
  for (int i = 0; i < 2; i++) free(s->array[i].data);
  world_close(&s->w);
}

static void an_operation_of_ones_own_computes_and_has_its_gradient(void **state) {
  scene s = scene_open(AD_F64);
  ad_tensor *y = ad_operation_apply(s.tape, &bend, s.x, 2, &half);
  must(ad_backward(s.tape, ad_sum(s.tape, y)));
  assert_int_equal(ad_operand_count(y), 2);
  assert_null(ad_operand(y, 2));
  assert_says("operand 2", "2");
  for (size_t i = 0; i < 6; i++) {
    double r = element(&s.array[1], i % 2);
    assert_true(fabs(element(ad_tensor_array(y), i) - (element(&s.array[0], i) + 0.5 * r * r)) < 1e-15);
    assert_true(element(ad_grad(s.x[0]), i) == 1);
  }
  for (size_t i = 0; i < 2; i++) assert_true(fabs(element(ad_grad(s.x[1]), i) - 3 * element(&s.array[1], i)) < 1e-15);
  scene_close(&s);
}

static void its_sentence_sticks_to_the_tape(void **state) {
  scene s = scene_open(AD_F64);
  ad_array_set(&s.array[1], 0, 2000);
  assert_null(ad_tensor_array(ad_operation_apply_at(s.tape, &bend, s.x, 2, &half, "mine.c:7")));
  assert_int_equal(ad_tape_status(s.tape), AD_NUMBER);
  assert_says("mine.c:7", "2000");
  scene_close(&s);
}

static void numbers_of_an_array_are_read_and_put_in_any_dtype(void **state) {
  static const ad_dtype dtypes[] = {AD_F64, AD_F32, AD_BF16, AD_F16, AD_I32, AD_I64};
  world w = world_open();
  for (size_t k = 0; k < sizeof dtypes / sizeof *dtypes; k++) {
    int64_t memory[2] = {0};
    ad_array array = ad_array_describe(w.comm, dtypes[k], &(ad_shape){1, {2}}, &w.layout);
    array.data = memory;
    ad_array_set(&array, 1, -7);
    assert_true(ad_array_get(&array, 0) == 0);
    assert_true(ad_array_get(&array, 1) == -7);
  }
  world_close(&w);
}

/* ---- what a record must have ---- */

/* The call is refused with these facts; its sentence is in the list of the case. */
static void refused(const char *name, const ad_operation *op, size_t count, const void *own, const char *const *facts) {
  scene s = scene_open(AD_F64);
  assert_null(ad_tensor_array(ad_operation_apply_at(s.tape, op, s.x, count, own, "mine.c:7")));
  assert_int_equal(ad_tape_status(s.tape), AD_INVALID);
  assert_says_in(name, ad_last_error(), facts);
  scene_close(&s);
}

#define WITHOUT(member, ...)                                                           \
  do {                                                                                 \
    ad_operation less = bend;                                                          \
    less.member = 0;                                                                   \
    refused("without " #member, &less, 2, &half, SAYS_FACTS("mine.c:7", __VA_ARGS__)); \
  } while (0)

static void a_record_without_what_it_must_have_is_refused(void **state) {
  WITHOUT(name, "ad_operation");
  WITHOUT(forward, "bend", "ad_operation", "forward");
  WITHOUT(backward, "bend", "ad_operation", "backward");
  WITHOUT(dims, "bend", "ad_operation", "dims");
  WITHOUT(size, "size", "0", "ad_operation");
  refused("no record", NULL, 2, &half, SAYS_FACTS("mine.c:7", "NULL"));
  refused("no struct of its own", &bend, 2, NULL, SAYS_FACTS("mine.c:7", "own"));
  refused("no operands", &bend, 0, &half, SAYS_FACTS("mine.c:7", "0", "64"));
  refused("65 operands", &bend, 65, &half, SAYS_FACTS("mine.c:7", "65", "64"));
}

static void with_dims(const char *dims) {
  ad_operation other = bend;
  char list[64];
  other.dims = dims;
  snprintf(list, sizeof list, "dims \"%.50s\"", dims);
  refused(list, &other, 2, &half, SAYS_FACTS("mine.c:7", "bend", "dims"));
}

static void dims_that_mean_nothing_are_refused(void **state) {
  with_dims("");
  with_dims("...n,n");
  with_dims("...n;n->...n");
  with_dims("...n,n->...n->n");
  with_dims("...n,n->...n,n");
  with_dims("n...,n->n");
  with_dims("...n->...n");
  with_dims("...n,n,n->...n");
  with_dims("...n,n->...m");
  char long_one[1024];
  memset(long_one, 'n', sizeof long_one);
  long_one[sizeof long_one - 1] = 0;
  with_dims(long_one);
}

static void no_tape_and_no_operands_are_refused(void **state) {
  scene s = scene_open(AD_F64);
  assert_null(ad_operation_apply(NULL, &bend, s.x, 2, &half));
  assert_says_in("no tape", ad_last_error(), SAYS_FACTS("NULL"));
  ad_operation_apply(s.tape, &bend, NULL, 2, &half);
  assert_int_equal(ad_tape_status(s.tape), AD_INVALID);
  assert_says_in("no list of operands", ad_last_error(), SAYS_FACTS("NULL"));
  scene_close(&s);
}

/* ---- records made for other versions of the header ---- */

/* A record of a later header has one member more. */
static void a_record_of_a_newer_header_is_refused(void **state) {
  struct {
    ad_operation op;
    int more;
  } newer = {.op = bend};
  newer.op.size = sizeof newer;
  char size[24];
  snprintf(size, sizeof size, "%zu", sizeof newer);
  refused("a newer header", &newer.op, 2, &half, SAYS_FACTS("mine.c:7", "size", size, "ad_operation"));
}

/* A record of an earlier header ends before `describe`; the bytes behind it do not belong to the record. */
static void a_record_of_an_older_header_has_defaults(void **state) {
  scene s = scene_open(AD_F64);
  struct {
    ad_operation op;
  } older = {.op = bend};
  older.op.size = offsetof(ad_operation, describe);
  memset((char *)&older.op + older.op.size, 0xff, sizeof older.op - older.op.size);
  ad_tensor *y = ad_operation_apply(s.tape, &older.op, s.x, 2, &half);
  must(ad_backward(s.tape, ad_sum(s.tape, y)));
  assert_true(element(ad_grad(s.x[0]), 5) == 1);
  scene_close(&s);
}

/* ---- operands for which backward has no gradient ---- */

static void an_operand_whose_gradient_is_not_filled_must_be_a_constant(void **state) {
  ad_operation half_of_it = bend;
  half_of_it.fills = 1u << 0;
  refused("a gradient that is not filled", &half_of_it, 2, &half, SAYS_FACTS("mine.c:7", "bend", "operand 2"));
  scene s = scene_open(AD_F64);
  ad_tensor *x[2] = {s.x[0], ad_constant(s.tape, &s.array[1])};
  must(ad_backward(s.tape, ad_sum(s.tape, ad_operation_apply(s.tape, &half_of_it, x, 2, &half))));
  assert_true(element(ad_grad(s.x[0]), 5) == 1);
  scene_close(&s);
}

static void its_dtypes_are_f32_and_f64_where_it_says_nothing(void **state) {
  ad_operation plain = bend;
  plain.dtypes = 0;
  for (int k = 0; k < 3; k++) {
    static const ad_dtype dtypes[] = {AD_F64, AD_F32, AD_BF16};
    scene s = scene_open(dtypes[k]);
    ad_operation_apply(s.tape, &plain, s.x, 2, &half);
    assert_int_equal(ad_tape_status(s.tape), k < 2 ? AD_OK : AD_INVALID);
    scene_close(&s);
  }
}

/* ---- an output shape that `dims` cannot express: every other row ---- */

static ad_status thin_describe(ad_tape *tape, ad_tensor *out) {
  AD_TRY(ad_operation_describe(tape, out));
  const ad_array *y = ad_tensor_array(out);
  ad_shape shape = y->shape;
  ad_layout layout = y->layout;
  shape.dim[0] /= 2;
  ad_result_set(out, y->dtype, &shape, &layout);
  return AD_OK;
}

static ad_status thin_forward(ad_tape *tape, ad_tensor *out) {
  const ad_array *x = ad_operand(out, 0), *y = ad_tensor_array(out);
  for (size_t i = 0; i < ad_array_numel(y); i++) ad_array_set(y, i, ad_array_get(x, 2 * i));
  return AD_OK;
}

static ad_status thin_backward(ad_tape *tape, ad_tensor *out, const ad_gradient_slot *slot) {
  for (size_t i = 0; i < ad_array_numel(ad_operand(out, 0)); i++)
    ad_slot_put(slot, i,
                i % 2 || i / 2 >= ad_array_numel(ad_result_grad(out)) ? 0 : ad_array_get(ad_result_grad(out), i / 2));
  return AD_OK;
}

static const ad_operation thin = {.size = sizeof thin,
                                  .name = "thin",
                                  .dims = "n->n",
                                  .full = "n",
                                  .describe = thin_describe,
                                  .forward = thin_forward,
                                  .backward = thin_backward};

static void the_shape_of_a_result_may_be_described_by_hand(void **state) {
  world w = world_open();
  ad_tape *tape = open_tape(&w, AD_F32);
  ad_array array = random_array(&w, AD_F32, (ad_shape){1, {5}}, 1, 0);
  ad_tensor *x = ad_input(tape, &array), *y = ad_operation_apply(tape, &thin, &x, 1, NULL);
  must(ad_backward(tape, ad_sum(tape, y)));
  assert_int_equal(ad_tensor_array(y)->shape.dim[0], 2);
  for (size_t i = 0; i < 5; i++) assert_true(element(ad_grad(x), i) == (i == 0 || i == 2));
  free(array.data);
  ad_tape_destroy(tape);
  world_close(&w);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(an_operation_of_ones_own_computes_and_has_its_gradient),
      cmocka_unit_test(its_sentence_sticks_to_the_tape),
      cmocka_unit_test(numbers_of_an_array_are_read_and_put_in_any_dtype),
      cmocka_unit_test(a_record_without_what_it_must_have_is_refused),
      cmocka_unit_test(dims_that_mean_nothing_are_refused),
      cmocka_unit_test(no_tape_and_no_operands_are_refused),
      cmocka_unit_test(a_record_of_a_newer_header_is_refused),
      cmocka_unit_test(a_record_of_an_older_header_has_defaults),
      cmocka_unit_test(an_operand_whose_gradient_is_not_filled_must_be_a_constant),
      cmocka_unit_test(its_dtypes_are_f32_and_f64_where_it_says_nothing),
      cmocka_unit_test(the_shape_of_a_result_may_be_described_by_hand),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
